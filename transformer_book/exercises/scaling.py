"""Exercises of chapter 04, Scaling and softmax."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _score_std(d_k: int, std_q: float, std_k: float) -> float:
    return math.sqrt(d_k) * std_q * std_k


SCORE_STD = Exercise(
    reference=_score_std,
    inputs=[(64, 1.0, 1.0), (64, 0.5, 1.0), (9, 2.0, 3.0)],
    mistakes={
        "That is the variance; the standard deviation is its root.": (
            lambda d, q, k: d * q**2 * k**2
        ),
        "This grows with d_k; a standard deviation of a sum grows with its root.": (
            lambda d, q, k: d * q * k
        ),
        "It must depend on how large queries and keys are, not on d_k alone.": (
            lambda d, q, k: math.sqrt(d)
        ),
        "You have divided by the root already: this is the scaled score.": lambda d, q, k: q * k,
        "Each feature contributes a product of a query and a key: their deviations multiply.": (
            lambda d, q, k: math.sqrt(d) * (q + k)
        ),
        "The deviations are roots already; only d_k goes under the root.": (
            lambda d, q, k: math.sqrt(d * q * k)
        ),
        "These are variances of queries and keys; a deviation is asked for: do not square.": (
            lambda d, q, k: math.sqrt(d) * q**2 * k**2
        ),
        "The score is not scaled yet: multiply by the root, do not divide.": (
            lambda d, q, k: q * k / math.sqrt(d)
        ),
    },
    hints=(
        "A score is a sum of `d_k` products. What is the variance of one product, and what "
        "happens to variances when independent terms are added?",
        "With mean 0 the variance of a product is std_q² · std_k². The sum of d_k such terms has "
        "d_k times as much. Then take the root.",
        "The root of `d_k * std_q**2 * std_k**2` can be written more simply.",
    ),
)


def _first_spread(d_model: int, std: float) -> float:
    return d_model * std**2


FIRST_SPREAD = Exercise(
    reference=_first_spread,
    inputs=[(768, 0.02), (256, 0.05), (64, 0.125)],
    mistakes={
        "That is the deviation of a query; the score has a key in it, too.": (
            lambda d, std: math.sqrt(d) * std
        ),
        "Squared once too often: the variance of a query is D std², that of a key too, and the "
        "deviation of a product is the root of both together.": lambda d, std: (d * std**2) ** 2,
        "Queries are sums over all features of the input: D must be in it.": lambda d, std: std**2,
        "The variance of an entry is std², not std.": lambda d, std: d * std,
        "A query has the deviation √D std and a key as well: their product has D, not √D.": (
            lambda d, std: math.sqrt(d) * std**2
        ),
    },
    hints=(
        "Go step by step: the spread of one entry of a query, then that of a raw score, then the "
        "scale.",
        "An entry of a query is a sum of D terms, each with variance std²: its deviation is √D "
        "std, and that of a key is the same. Exercise 1 of chapter 4 gives the raw score; the "
        "scale takes its √d_k away.",
        "What is left is the product of the two deviations, each `math.sqrt(d_model) * std`.",
    ),
)


def _softmax(x: Tensor) -> Tensor:
    powers = (x - x.amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


def _far_apart() -> tuple[Tensor]:
    """Rows that overflow without a shift, and whose largest scores are far apart."""
    (x,) = random_inputs((4, 5))
    x[3, 2] += 1700.0  # one score of a row around 800, the others around -900
    return (x + torch.tensor([[0.0], [800.0], [-900.0], [-900.0]], dtype=x.dtype),)


def _shifted_by(shift: Tensor, x: Tensor) -> Tensor:
    e = (x - shift).exp()
    return e / e.sum(dim=-1, keepdim=True)


def _without_keepdim(x: Tensor) -> Tensor:
    powers = (x - x.amax(dim=-1)).exp()
    return powers / powers.sum(dim=-1)


SAFE_SOFTMAX = Exercise(
    reference=_softmax,
    inputs=[random_inputs((3, 3)), _far_apart()],
    mistakes={
        "Right for small scores; e^800 is too large for any format. Subtract each row's maximum.": (
            lambda x: _shifted_by(torch.zeros(()), x)
        ),
        "One maximum for all rows: rows far below it become 0 / 0. Take each row's own.": (
            lambda x: _shifted_by(x.max(), x)
        ),
        "The columns sum to 1; each row must (dim=-1).": lambda x: x.softmax(dim=0),
        "Not divided by the sum: the rows must sum to 1.": (
            lambda x: (x - x.amax(dim=-1, keepdim=True)).exp()
        ),
        "These are logarithms of the weights; take e to their power.": (
            lambda x: x.log_softmax(dim=-1)
        ),
        "The mean of a row is subtracted; only its maximum makes sure that no power is large.": (
            lambda x: _shifted_by(x.mean(dim=-1, keepdim=True), x)
        ),
        "The scores are divided by their maximum; subtract it.": (
            lambda x: _shifted_by(torch.zeros(()), x / x.amax(dim=-1, keepdim=True))
        ),
        "The axis is lost, so that the numbers of the rows meet the columns: keepdim=True.": (
            _without_keepdim
        ),
        "One sum for the whole matrix: each row must sum to 1 by itself.": (
            lambda x: (
                (x - x.amax(dim=-1, keepdim=True)).exp()
                / (x - x.amax(dim=-1, keepdim=True)).exp().sum()
            )
        ),
    },
    hints=(
        "e^800 is too large for any format. Which number may be subtracted from all scores of a "
        "row without changing its softmax?",
        "Any number may be, as long as it is the same in the whole row. Subtract the row's "
        "maximum: then the largest power is e^0 = 1. Keep the axis, so that `(rows, 1)` "
        "broadcasts.",
        "Start with `(x - x.amax(dim=-1, keepdim=True)).exp()` and divide by its sum over the same "
        "axis.",
    ),
)


def _jacobian(p: Tensor) -> Tensor:
    return torch.diag(p) - torch.outer(p, p)


JACOBIAN = Exercise(
    reference=_jacobian,
    inputs=[(scores.softmax(dim=0),) for scores in (*random_inputs((3,)), *random_inputs((5,)))],
    mistakes={
        "Only the diagonal: raising one score also lowers all other weights.": (
            lambda p: torch.diag(p * (1 - p))
        ),
        "Only diag(p): each weight also loses what the sum gains.": lambda p: torch.diag(p),
        "The signs are turned round: raising a score raises its own weight.": (
            lambda p: -_jacobian(p)
        ),
        "The diagonal is missing its p: it is p(1 - p), not -p².": lambda p: -torch.outer(p, p),
        "Only what is off the diagonal has a minus sign: entry (i, i) is p(1 - p).": (
            lambda p: torch.diag(p) + torch.outer(p, p)
        ),
        "Off the diagonal a minus is missing: raising one score lowers all other weights.": (
            lambda p: torch.diag(p * (1 - p)) + torch.outer(p, p) - torch.diag(p * p)
        ),
        "Off the diagonal it is -p_i p_j, with the weights of both.": (
            lambda p: torch.diag(p) - p.expand(len(p), -1)
        ),
    },
    hints=(
        "There are two cases: how weight i changes with its own score, and how it changes with "
        "another one.",
        "The derivative is p_i (1 - p_i) on the diagonal and -p_i p_j elsewhere. Both are p_i "
        "(1 if i = j, else 0) minus p_i p_j.",
        "All the products p_i p_j are `torch.outer(p, p)`; `torch.diag(p)` has p on the diagonal.",
    ),
)


def _temperature_for(gap: float, p: float) -> float:
    return gap / math.log(p / (1 - p))


TEMPERATURE_FOR = Exercise(
    reference=_temperature_for,
    inputs=[(8.0, 0.9), (2.0, 0.75), (1.0, 0.6)],
    mistakes={
        "That is what to multiply by; a temperature divides.": (
            lambda gap, p: math.log(p / (1 - p)) / gap
        ),
        "The other weight is missing: the gap over the temperature is log(p / (1 - p)).": (
            lambda gap, p: -gap / math.log(p)
        ),
        "The sign is turned round: log(p / (1 - p)).": (lambda gap, p: gap / math.log((1 - p) / p)),
        "Use the natural logarithm.": lambda gap, p: gap / math.log10(p / (1 - p)),
        "The natural logarithm is needed, not that to base 2: the softmax has powers of e.": (
            lambda gap, p: gap / math.log2(p / (1 - p))
        ),
        "Take the logarithm of p / (1 - p).": lambda gap, p: gap * (1 - p) / p,
        "The gap is missing.": lambda gap, p: 1 / math.log(p / (1 - p)),
    },
    hints=(
        "With two scores the softmax is a sigmoid of their difference.",
        "The larger weight is sigmoid(gap / temperature) = p. Undo the sigmoid: "
        "gap / temperature = log(p / (1 - p)).",
        "Solve for the temperature; the right-hand side is `math.log(p / (1 - p))`.",
    ),
)


class Chunks:
    """Chunks of scores that can be read once, from the first to the last.

    Args:
        chunks: the scores.

    Example:
        >>> [len(chunk) for chunk in Chunks([torch.zeros(2), torch.zeros(3)])]
        [2, 3]
    """

    def __init__(self, chunks: Sequence[Tensor]) -> None:
        self._chunks: Sequence[Tensor] | None = chunks

    def __iter__(self) -> Iterator[Tensor]:
        """Hand the chunks out, for the first and last time."""
        if self._chunks is None:
            raise RuntimeError("the chunks have been read already, and each is seen only once")
        chunks, self._chunks = self._chunks, None
        return iter(chunks)


def _online(chunks: Iterable[Tensor]) -> float:
    largest, total = -math.inf, 0.0
    for chunk in chunks:
        new = max(largest, chunk.max().item())
        total = total * math.exp(largest - new) + (chunk - new).exp().sum().item()
        largest = new
    return largest + math.log(total)


def _never_rescaled(chunks: Iterable[Tensor]) -> Tensor:
    """Keeps a sum of terms that were shifted by different maxima."""
    largest, total = torch.tensor(-math.inf), torch.tensor(0.0)
    for chunk in chunks:
        largest = torch.maximum(largest, chunk.max())
        total = total + (chunk - largest).exp().sum()
    return largest + total.log()


def _at_once(chunks: Iterable[Tensor]) -> Tensor:
    return torch.cat(list(chunks))


def _rescaled_the_wrong_way(chunks: Iterable[Tensor]) -> Tensor:
    largest, total = torch.tensor(-math.inf), torch.tensor(0.0)
    for chunk in chunks:
        new = torch.maximum(largest, chunk.max())
        factor = (new - largest).exp() if largest.isfinite() else torch.tensor(1.0)
        total = total * factor + (chunk - new).exp().sum()
        largest = new
    return largest + total.log()


def _shifted_sum(chunks: Iterable[Tensor]) -> Tensor:
    scores = _at_once(chunks)
    return (scores - scores.max()).exp().sum()


def _from_zero(chunks: Iterable[Tensor]) -> float:
    largest, total = 0.0, 0.0
    for chunk in chunks:
        new = max(largest, chunk.max().item())
        total = total * math.exp(largest - new) + (chunk - new).exp().sum().item()
        largest = new
    return largest + math.log(total) if total else -math.inf


def _pieces(*shifts: float) -> tuple[Chunks]:
    """Chunks of scores of different length, each shifted."""
    parts = random_inputs(*[(2 + i,) for i in range(len(shifts))])
    return (Chunks([part + shift for part, shift in zip(parts, shifts, strict=True)]),)


ONLINE = Exercise(
    reference=_online,
    inputs=[
        _pieces(0.0, 2.0, 1.0),
        _pieces(1.0, -2.0, 2.0, 0.0),
        _pieces(900.0, 902.0),
        _pieces(-900.0, -899.0, -901.0),  # far below 0: no maximum may start there
    ],
    mistakes={
        "The old sum was shifted by the old maximum: multiply it by e^(old - new) first.": (
            _never_rescaled
        ),
        "The old sum must shrink when the maximum grows: the factor is e^(old - new).": (
            _rescaled_the_wrong_way
        ),
        "That is the sum of the chunks' results; add what is inside the logarithms.": (
            lambda chunks: torch.stack([chunk.logsumexp(dim=0) for chunk in chunks]).sum()
        ),
        "That is the last chunk's result; keep what was before.": (
            lambda chunks: list(chunks)[-1].logsumexp(dim=0)
        ),
        "The maximum is missing: it was taken out of the sum and must be added again.": (
            lambda chunks: _shifted_sum(chunks).log()
        ),
        "That is the largest score alone.": lambda chunks: _at_once(chunks).max(),
        "The logarithm of the sum is missing.": _shifted_sum,
        "Without a maximum the powers overflow or vanish: keep the largest score so far.": (
            lambda chunks: _at_once(chunks).exp().sum().log()
        ),
        "The largest score starts at 0, but all scores may lie far below; start with -math.inf.": (
            _from_zero
        ),
    },
    hints=(
        "The sum that you keep belongs to one maximum. When a larger score comes, every old term "
        "was shifted by too little.",
        "Start with the largest at minus infinity and the sum at 0. For each chunk: find the new "
        "largest, bring the old sum to it, add the chunk's own terms. Loop over `chunks` once.",
        "The old sum is multiplied by `math.exp(largest - new)`; at the end the result is "
        "`largest + math.log(total)`.",
    ),
)
