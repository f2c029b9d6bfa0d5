"""Exercises of chapter 04, Scaling and softmax."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs


def _first_std(d_model: int, d_k: int) -> float:
    return 1 / math.sqrt(d_model * math.sqrt(d_k))


FIRST_STD = Exercise(
    reference=_first_std,
    inputs=[(512, 64), (256, 16), (768, 128)],
    mistakes={
        "That is right for scaled scores; here nothing takes the root of d_k away.": (
            lambda d, d_k: d**-0.5
        ),
        "That is the variance; the standard deviation is its root.": (
            lambda d, d_k: 1 / (d * math.sqrt(d_k))
        ),
        "The raw score has d_k terms: its std is the root of d_k, not d_k.": (
            lambda d, d_k: (d * d_k) ** -0.5
        ),
        "The root of D is in the query and in the key: together that is D.": (
            lambda d, d_k: (math.sqrt(d) * math.sqrt(d_k)) ** -0.5
        ),
        "That is the std of the raw score for entries of variance 1, not what undoes it.": (
            lambda d, d_k: d * math.sqrt(d_k)
        ),
    },
    hints=(
        "What is the standard deviation (std) of the raw scores, if all entries of both matrices "
        "have the std sigma?",
        "Scaled scores have the std D sigma², raw ones sqrt(d_k) D sigma². Set this to 1.",
        "sigma² is `1 / (d_model * math.sqrt(d_k))`; take its root.",
    ),
)


def _divisors(d_k: int, rho: float, std: float) -> tuple[float, float]:
    return std**2 * math.sqrt(d_k), std**2 * rho * d_k


DIVISORS = Exercise(
    reference=_divisors,
    inputs=[(64, 0.5, 1.0), (16, 0.25, 2.0), (100, 0.3, 0.5)],
    mistakes={
        "d_k is the variance of a random score of entries of variance 1; its std is the root.": (
            lambda d, rho, std: (std**2 * d, std**2 * rho * d)
        ),
        "The match scores rho sqrt(d_k) after the division by the root; the raw score is larger.": (
            lambda d, rho, std: (std**2 * math.sqrt(d), std**2 * rho * math.sqrt(d))
        ),
        "A copy of the query scores d_k; a key that matches by rho scores less.": (
            lambda d, rho, std: (std**2 * math.sqrt(d), std**2 * d)
        ),
        "The two are swapped: first the divisor for random keys.": (
            lambda d, rho, std: (std**2 * rho * d, std**2 * math.sqrt(d))
        ),
        "These are factors to multiply by; a divisor is one over each.": (
            lambda d, rho, std: (1 / (std**2 * math.sqrt(d)), 1 / (std**2 * rho * d))
        ),
        "Only the key contains rho, so each term of the score has the mean rho, not its square.": (
            lambda d, rho, std: (std**2 * math.sqrt(d), std**2 * rho**2 * d)
        ),
        "That is right for entries of variance 1: std is missing.": (
            lambda d, rho, std: (math.sqrt(d), rho * d)
        ),
        "Each term is a product of two entries, so std comes in twice.": (
            lambda d, rho, std: (std * math.sqrt(d), std * rho * d)
        ),
        "The std of a term is the square of std; its variance is the fourth power.": (
            lambda d, rho, std: (std**4 * math.sqrt(d), std**4 * rho * d)
        ),
    },
    hints=(
        "What is left of a number that is divided by itself?",
        "With entries of variance 1, a random score has the std sqrt(d_k). In the match, each of "
        "the d_k terms is rho q_i² plus something with mean 0. By how much does each term grow if "
        "all entries are std times as large?",
        "Return `std**2 * math.sqrt(d_k)` and `std**2 * rho * d_k`.",
    ),
    returns=("for random keys", "for a match"),
)


def _needle(n: int, d_k: int) -> float:
    return (math.log(n) + 0.5) / math.sqrt(d_k)


NEEDLE = Exercise(
    reference=_needle,
    inputs=[(32, 64), (2048, 128), (10, 25)],
    mistakes={
        "That is the score that is needed; a match by rho scores rho times the root of d_k.": (
            lambda n, d: math.log(n) + 0.5
        ),
        "The raw score grows with d_k, but it is divided by the root: rho sqrt(d_k) is left.": (
            lambda n, d: (math.log(n) + 0.5) / d
        ),
        "The others sum to n times the root of e, not to n: half is missing in the logarithm.": (
            lambda n, d: math.log(n) / math.sqrt(d)
        ),
        "The logarithm of the root of e is one half, not 1.": (
            lambda n, d: (math.log(n) + 1) / math.sqrt(d)
        ),
        "The exponential of its score must equal the sum of the others: take the logarithm.": (
            lambda n, d: n * math.sqrt(math.e) / math.sqrt(d)
        ),
        "Use the natural logarithm: the softmax has powers of e.": (
            lambda n, d: (math.log2(n) + 0.5) / math.sqrt(d)
        ),
        "The score is divided by the root of d_k, so rho is what is needed over that root.": (
            lambda n, d: (math.log(n) + 0.5) * math.sqrt(d)
        ),
    },
    hints=(
        "Two steps: which score does the match need, and which rho gives that score?",
        "Half of the weight means that the match's e^score equals the sum of all others: "
        "e^score = n sqrt(e). And a match by rho scores rho d_k / sqrt(d_k).",
        "The logarithm of n sqrt(e) is `math.log(n) + 0.5`; divide it by `math.sqrt(d_k)`.",
    ),
)


def _with_sink(x: Tensor, sink: float) -> Tensor:
    largest = x.amax(dim=-1, keepdim=True).clamp(min=sink)
    powers = (x - largest).exp()
    return powers / (powers.sum(dim=-1, keepdim=True) + (sink - largest).exp())


def _far_apart() -> tuple[Tensor, float]:
    """Rows that overflow without a shift, and whose largest scores are far apart."""
    (x,) = random_inputs((4, 5))
    x[3, 2] += 1700.0  # one score of a row around 800, the others around -900
    return x + torch.tensor([[0.0], [800.0], [-900.0], [-900.0]], dtype=x.dtype), -899.0


def _sink_shifted_by(shift: Tensor, x: Tensor, sink: float) -> Tensor:
    powers = (x - shift).exp()
    return powers / (powers.sum(dim=-1, keepdim=True) + (sink - shift).exp())


def _whole(x: Tensor, sink: float) -> Tensor:
    """Return the softmax of the scores and the sink, with the sink's own weight last."""
    return torch.cat([x, torch.full_like(x[..., :1], sink)], dim=-1).softmax(dim=-1)


SINK = Exercise(
    reference=_with_sink,
    inputs=[(*random_inputs((3, 3)), 0.5), (*random_inputs((2, 4)), -1.0), _far_apart],
    mistakes={
        "Right for small scores; e^800 is too large for any format. Subtract a maximum first.": (
            lambda x, sink: _sink_shifted_by(torch.zeros(()), x, sink)
        ),
        "One maximum for all rows: rows far below it become 0 / 0. Take each row's own.": (
            lambda x, sink: _sink_shifted_by(x.max().clamp(min=sink), x, sink)
        ),
        "The sink is missing: these rows sum to 1.": lambda x, sink: x.softmax(dim=-1),
        "The sink is a score: e to its power stands in the sum.": (
            lambda x, sink: x.exp() / (x.exp().sum(dim=-1, keepdim=True) + sink)
        ),
        "The scores were shifted by the maximum and the sink was not.": (
            lambda x, sink: (
                (x - x.amax(dim=-1, keepdim=True)).exp()
                / (
                    (x - x.amax(dim=-1, keepdim=True)).exp().sum(dim=-1, keepdim=True)
                    + math.exp(sink)
                )
            )
        ),
        "The sink's own weight is in the result; return the weights of the keys alone.": _whole,
    },
    hints=(
        "Think of the sink as one more key whose weight is thrown away.",
        "A softmax over the row and the sink is safe if the largest of both is subtracted from "
        "both. Rows differ: each needs its own maximum.",
        "`x.amax(dim=-1, keepdim=True).clamp(min=sink)` is the largest of both.",
    ),
)


def _slope(gap: float) -> float:
    p = 1 / (1 + math.exp(-gap))
    return p * (1 - p)


SLOPE = Exercise(
    reference=_slope,
    inputs=[(2.0,), (0.5,), (8.0,)],
    mistakes={
        "That is the weight; its slope is p (1 - p).": lambda gap: 1 / (1 + math.exp(-gap)),
        "That is the other key's weight; the slope is p (1 - p).": (
            lambda gap: 1 / (1 + math.exp(gap))
        ),
        "The growing sum is forgotten: it takes p² away.": (
            lambda gap: 2 / (1 + math.exp(-gap)) - _slope(gap)
        ),
        "That is the slope by the other key's score, -p (1 - p).": lambda gap: -_slope(gap),
        "Near the slope for a large gap only: the powers of both keys stand in the sum.": (
            lambda gap: math.exp(-gap)
        ),
        "The sum of both powers is missing: p is e^gap / (e^gap + 1), not e^gap.": (
            lambda gap: math.exp(gap) * (1 - math.exp(gap))
        ),
    },
    hints=(
        "Two steps: what does the first key weigh, and how steep is that by its score?",
        "The scores may be gap and 0, since only differences count. The slope is on the diagonal "
        "of diag(p) - p p^T.",
        "The weight is `p = 1 / (1 + math.exp(-gap))`, and the diagonal holds p (1 - p).",
    ),
)


def _split_fold(d_k: int, share: float) -> tuple[float, float]:
    return d_k ** (-share / 2), d_k ** (-(1 - share) / 2)


SPLIT_FOLD = Exercise(
    reference=_split_fold,
    inputs=[(64, 0.5), (256, 0.25), (16, 1.0)],
    mistakes={
        "The factors must multiply to 1 / sqrt(d_k); here they multiply to 1 / d_k. (Adam's step "
        "does not grow with the gradient: a rate changes as its matrix does, and no more.)": (
            lambda d, share: (d**-share, d ** -(1 - share))
        ),
        "Both matrices have got the whole root: together that divides by d_k.": (
            lambda d, share: (d**-0.5, d**-0.5)
        ),
        "The rates go the wrong way: a smaller matrix needs smaller steps.": (
            lambda d, share: (d ** (share / 2), d ** ((1 - share) / 2))
        ),
        "Queries and keys are swapped.": lambda d, share: tuple(reversed(_split_fold(d, share))),
        "The root is shared as a product of powers, not as a sum.": (
            lambda d, share: (share * d**-0.5, (1 - share) * d**-0.5)
        ),
    },
    hints=(
        "By which factor is each of the two matrices smaller? The two factors multiply to "
        "1 / sqrt(d_k).",
        "W_Q is d_k^(-share/2) times as large, W_K d_k^(-(1-share)/2) times. For Adam a rate "
        "must change as its matrix does.",
        "Return `d_k ** (-share / 2)` and the same with `1 - share`.",
    ),
    returns=("rate of W_Q", "rate of W_K"),
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
