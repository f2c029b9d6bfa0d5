"""Exercises of chapter 07, Positional encodings."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise


def _shift(k: int, frequency: float) -> Tensor:
    c, s = math.cos(k * frequency), math.sin(k * frequency)
    return torch.tensor([[c, s], [-s, c]])


SHIFT = Exercise(
    reference=_shift,
    inputs=[(1, 1.0), (3, 0.01), (5, 0.3)],
    mistakes={
        "It turns backwards: this leads from position p to p - k. For (sin, cos) the signs are "
        "those of sin(a + b) and cos(a + b).": lambda k, f: _shift(-k, f),
        "The offset is missing: the angle is k times the frequency.": lambda k, f: _shift(1, f),
        "The frequency is missing: the angle is k times the frequency.": (
            lambda k, f: _shift(k, 1.0)
        ),
        "That mirrors instead of turning: look at the sign of one of the sines.": (
            lambda k, f: _shift(k, f).abs() * torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        ),
        "Sines and cosines have changed places: for k = 0 it must be the identity matrix.": (
            lambda k, f: _shift(k, f).flip(0)
        ),
    },
    hints=(
        "Write down sin(a + b) and cos(a + b), with a for the angle of p and b for that of k. "
        "What do sin a and cos a get multiplied by?",
        "The first row makes the new sine from (sin, cos), the second the new cosine. b is k "
        "times the frequency.",
        "With `c, s = math.cos(k * frequency), math.sin(k * frequency)` the first row is `[c, s]`, "
        "since sin(a + b) = sin a cos b + cos a sin b.",
    ),
)


def _distance(n: int) -> Tensor:
    places = torch.arange(n)
    return (places[:, None] - places).float()


def _alibi(n: int, slope: float) -> Tensor:
    distance = _distance(n)
    return (-slope * distance).masked_fill(distance < 0, -math.inf)


ALIBI = Exercise(
    reference=_alibi,
    inputs=[(4, 0.5), (6, 0.25)],
    mistakes={
        "The future is only penalised; a causal decoder must not see it: -inf.": (
            lambda n, m: -m * _distance(n).abs()
        ),
        "The bias grows with distance: far keys would be preferred.": (
            lambda n, m: (m * _distance(n)).masked_fill(_distance(n) < 0, -math.inf)
        ),
        "Rows are queries and columns keys; this is the other way round.": (
            lambda n, m: _alibi(n, m).mT
        ),
        "The slope is missing.": lambda n, m: _alibi(n, 1.0),
        "Hidden keys got 0, which is the best bias of all: -inf.": (
            lambda n, m: (-m * _distance(n)).masked_fill(_distance(n) < 0, 0.0)
        ),
        "It hides the diagonal: a position may see itself.": (
            lambda n, m: _alibi(n, m).masked_fill(_distance(n) == 0, -math.inf)
        ),
        "It lets each position see the next one too.": (
            lambda n, m: (-m * _distance(n)).masked_fill(_distance(n) < -1, -math.inf)
        ),
        "The future is not hidden, and even preferred: distances to the right are "
        "negative.": lambda n, m: -m * _distance(n),
    },
    hints=(
        "The bias of a key depends on how far it stands before the query: 0 for the position "
        "itself, -slope for the one before it, and so on.",
        "With rows as queries and columns as keys, `(n, n)`, the distances come from two ranges "
        "of numbers. Where the distance is negative, the key lies in the future.",
        "`distance = places[:, None] - places` for `places = torch.arange(n)`; then `-slope * "
        "distance`, with `.masked_fill(distance < 0, -math.inf)`.",
    ),
)


def _buckets(
    n: int, exact: int = 8, *, sides: int = 16, last: int = 15, turned: bool = False
) -> Tensor:
    """The buckets of all pairs, from the rule, in which some numbers can go wrong."""
    offset = -_distance(n) if not turned else _distance(n)
    r = offset.abs()
    far = exact + (exact * (r.clamp(min=1) / exact).log() / math.log(128 / exact)).long()
    side = sides * (offset > 0).long()
    return side + torch.where(r < exact, r.long(), far.clamp(max=last))


def _even_buckets(n: int) -> Tensor:
    offset = -_distance(n)
    return offset.abs().long().clamp(max=15) + 16 * (offset > 0).long()


BUCKETS = Exercise(
    reference=_buckets,
    inputs=[(12,), (40,), (150,)],
    mistakes={
        "Rows are queries and columns keys; this is the other way round, so that left is right: "
        "the offset is key minus query.": lambda n: _buckets(n, turned=True),
        "Both sides share their buckets: keys to the right have 16 more.": (
            lambda n: _buckets(n, sides=0)
        ),
        "That is a decoder's rule, with 16 exact distances; an encoder has 8 on each side.": (
            lambda n: _buckets(n, exact=16, last=31) * (_distance(n) >= 0)
        ),
        "The second half begins at 8 in place of 16.": lambda n: _buckets(n, sides=8),
        "The far distances go beyond the last bucket of their side, 15.": (
            lambda n: _buckets(n, last=99)
        ),
        "Far distances share one bucket; they must share in ranges that grow with the logarithm.": (
            _even_buckets
        ),
        "The query's own place counts as right; it belongs to the left side, bucket 0.": (
            lambda n: _buckets(n) + 16 * (_distance(n) == 0)
        ),
        "The future shares bucket 0, as in a decoder; an encoder looks to the right, too.": (
            lambda n: _buckets(n) * (_distance(n) >= 0)
        ),
    },
    hints=(
        "Two questions for each pair: on which side of the query is the key, and how far away? The "
        "side decides about 16 more, the distance about the bucket within the side.",
        "`places - places[:, None]` is key minus query. Distances 0 to 7 have a bucket each; the "
        "larger ones 8 + 8 ln(r/8) / ln(128/8), cut down to a whole number, and at most 15.",
        "`far = (8 + (8 * ratio).long()).clamp(max=15)`, then `torch.where(r < 8, r, far)`; keys "
        "to the right get `+ 16`. Clamp r before the logarithm: ln 0 is no number.",
    ),
)


def _base_for(scale: float, width: int, base: float) -> float:
    return float(base * scale ** (width / (width - 2)))


NTK_BASE = Exercise(
    reference=_base_for,
    inputs=[(2.0, 4, 10_000.0), (4.0, 64, 10_000.0), (8.0, 32, 500_000.0)],
    mistakes={
        "The base is multiplied by the scale; then the slowest pair slows down by less than that: "
        "its exponent is (d - 2) / d, not 1.": lambda s, d, b: b * s,
        "The exponent is upside down.": lambda s, d, b: float(b * s ** ((d - 2) / d)),
        "That makes the slowest pair faster, not slower.": (
            lambda s, d, b: float(b * s ** (-d / (d - 2)))
        ),
        "That is the factor; multiply the old base by it.": (
            lambda s, d, b: float(s ** (d / (d - 2)))
        ),
    },
    hints=(
        "Pair number i has the speed base^(-2i / width). For the fastest one, i = 0, the base "
        "does not matter. Which i has the slowest?",
        "The slowest has i = width/2 - 1, so its speed is base^(-(width - 2) / width). A new base "
        "must make it `scale` times smaller: solve for the new base.",
        "The old base is multiplied by `scale` to the power of `width / (width - 2)`.",
    ),
)
