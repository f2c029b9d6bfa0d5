"""Exercises of chapter 04, Scaling and softmax."""

import math
from collections.abc import Sequence

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
    },
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
    },
)


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(dim=-1)


def _far_apart() -> tuple[Tensor]:
    """Rows that overflow without a shift, and whose largest scores are far apart."""
    (x,) = random_inputs((3, 4))
    return (x + torch.tensor([[0.0], [800.0], [-900.0]], dtype=x.dtype),)


def _shifted_by(shift: Tensor, x: Tensor) -> Tensor:
    e = (x - shift).exp()
    return e / e.sum(dim=-1, keepdim=True)


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
    },
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
    },
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
    },
)


def _online(chunks: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(chunks)).logsumexp(dim=0)


def _never_rescaled(chunks: Sequence[Tensor]) -> Tensor:
    """Keeps a sum of terms that were shifted by different maxima."""
    largest, total = torch.tensor(-math.inf), torch.tensor(0.0)
    for chunk in chunks:
        largest = torch.maximum(largest, chunk.max())
        total = total + (chunk - largest).exp().sum()
    return largest + total.log()


def _rescaled_the_wrong_way(chunks: Sequence[Tensor]) -> Tensor:
    largest, total = torch.tensor(-math.inf), torch.tensor(0.0)
    for chunk in chunks:
        new = torch.maximum(largest, chunk.max())
        factor = (new - largest).exp() if largest.isfinite() else torch.tensor(1.0)
        total = total * factor + (chunk - new).exp().sum()
        largest = new
    return largest + total.log()


def _pieces(*shifts: float) -> tuple[tuple[Tensor, ...]]:
    """Chunks of scores of different length, each shifted."""
    parts = random_inputs(*[(2 + i,) for i in range(len(shifts))])
    return (tuple(part + shift for part, shift in zip(parts, shifts, strict=True)),)


ONLINE = Exercise(
    reference=_online,
    inputs=[_pieces(0.0, 2.0, 1.0), _pieces(1.0, -2.0, 2.0, 0.0), _pieces(900.0, 902.0)],
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
        "The maximum is missing: it was taken out of the sum and must be added again.": (
            lambda chunks: _online(chunks) - torch.cat(list(chunks)).max()
        ),
        "That is the largest score alone.": lambda chunks: torch.cat(list(chunks)).max(),
    },
)
