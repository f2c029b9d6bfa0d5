"""Exercises of chapter 07, Positional encodings."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs

_EXPONENT = "The exponent is i / d; it must be 2i / d, so that the slowest pair is really slow."


def _angles(position: int, width: int, base: float = 10_000.0) -> Tensor:
    return position * base ** -(torch.arange(0, width, 2) / width)


def _in_turn(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), dim=-1).flatten(start_dim=-2)


def _row(position: int, width: int) -> Tensor:
    angles = _angles(position, width)
    return _in_turn(angles.sin(), angles.cos())


def _row_not_doubled(position: int, width: int) -> Tensor:
    angles = position * 10_000.0 ** -(torch.arange(width // 2) / width)
    return _in_turn(angles.sin(), angles.cos())


def _row_by_feature(position: int, width: int) -> Tensor:
    """Let every feature have a frequency of its own, where two should share one."""
    angles = position * 10_000.0 ** -(torch.arange(width) / width)
    even = torch.arange(width) % 2 == 0
    return torch.where(even, angles.sin(), angles.cos())


def _row_doubled_by_feature(position: int, width: int) -> Tensor:
    """Take the number of the feature for that of the pair."""
    angles = position * 10_000.0 ** -(2 * torch.arange(width) / width)
    even = torch.arange(width) % 2 == 0
    return torch.where(even, angles.sin(), angles.cos())


ROW = Exercise(
    reference=_row,
    inputs=[(1, 4), (7, 8), (120, 6)],
    mistakes={
        "Sine and cosine have changed places: even features are sines.": (
            lambda p, d: _in_turn(_angles(p, d).cos(), _angles(p, d).sin())
        ),
        "All sines come first here; they take turns with the cosines.": (
            lambda p, d: torch.cat((_angles(p, d).sin(), _angles(p, d).cos()))
        ),
        _EXPONENT: _row_not_doubled,
        "The i of 2i / d is the number of the pair, 0, 0, 1, 1, 2, 2, ..., not of the feature.": (
            _row_doubled_by_feature
        ),
        "Every feature has a frequency of its own; the two of a pair share one.": _row_by_feature,
        "The position is multiplied by 10000^(2i/d); it must be divided.": (
            lambda p, d: _in_turn(
                (p * 10_000.0 ** (torch.arange(0, d, 2) / d)).sin(),
                (p * 10_000.0 ** (torch.arange(0, d, 2) / d)).cos(),
            )
        ),
        "All pairs turn equally fast. Each has its own frequency.": (
            lambda p, d: torch.tensor([math.sin(p), math.cos(p)] * (d // 2))
        ),
        "All are sines: the odd features are cosines.": (
            lambda p, d: _in_turn(_angles(p, d).sin(), _angles(p, d).sin())
        ),
    },
    hints=(
        "There are `width / 2` pairs; pair number i has one angle, position / 10000^(2i / width), "
        "and gives its sine and its cosine.",
        "`torch.arange(0, width, 2)` has the numbers 2i, so there are `width / 2` angles. Sine and "
        "cosine take turns: sin, cos, sin, cos, ...",
        "`angles = position * 10_000.0 ** -(torch.arange(0, width, 2) / width)`; stack sines and "
        "cosines with `torch.stack(..., dim=-1)` and `.flatten()` them.",
    ),
)


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


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x[..., 0::2], x[..., 1::2]
    c, s = angles.cos(), angles.sin()
    return _in_turn(first * c - second * s, first * s + second * c)


def _rotate_halves(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    c, s = angles.cos(), angles.sin()
    return torch.cat((first * c - second * s, first * s + second * c), dim=-1)


def _rotate_not_put_back(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x[..., 0::2], x[..., 1::2]
    c, s = angles.cos(), angles.sin()
    return torch.cat((first * c - second * s, first * s + second * c), dim=-1)


def _rotate_by_shuffled_angles(x: Tensor, angles: Tensor) -> Tensor:
    """Pair neighbours, but lay their angles down half by half."""
    c, s = (torch.cat((part, part), dim=-1) for part in (angles.cos(), angles.sin()))
    return x * c + _in_turn(-x[..., 1::2], x[..., 0::2]) * s


ROTATE = Exercise(
    reference=_rotate,
    inputs=[random_inputs((3, 4), (3, 2)), random_inputs((2, 5, 6), (5, 3))],
    mistakes={
        "It turns the wrong way round: (1, 0) must go to (cos, sin).": (
            lambda x, a: _rotate(x, -a)
        ),
        "You paired feature 0 with the one half a width away (the split pairing); here neighbours "
        "turn together.": _rotate_halves,
        "The pairs are turned rightly, but then laid down half by half: put each feature back "
        "where it was.": _rotate_not_put_back,
        "That adds the angle's cosine and sine; RoPE multiplies.": (
            lambda x, a: x + _in_turn(a.cos(), a.sin())
        ),
        "Lengths change: the second feature of a pair needs both of the old ones.": (
            lambda x, a: _in_turn(
                x[..., 0::2] * a.cos() - x[..., 1::2] * a.sin(), x[..., 1::2] * a.cos()
            )
        ),
        "Lengths change: one of the two sines needs a minus.": (
            lambda x, a: _in_turn(
                x[..., 0::2] * a.cos() + x[..., 1::2] * a.sin(),
                x[..., 0::2] * a.sin() + x[..., 1::2] * a.cos(),
            )
        ),
        "Neighbours are paired, but the angles are laid down half by half: both features of a "
        "pair turn by the same one (repeat_interleave).": _rotate_by_shuffled_angles,
    },
    hints=(
        "Features 0 and 1 are one pair, 2 and 3 the next. Each pair is a point in the plane and "
        "is turned by its own angle.",
        "`x[..., 0::2]` and `x[..., 1::2]` are `(..., T, Dk/2)`, as wide as `angles`. A turn takes "
        "(a, b) to (a cos - b sin, a sin + b cos). Then put the features back where they were.",
        "With `first` and `second` for these, the new ones are `first * angles.cos() - second * "
        "angles.sin()` and its counterpart; `torch.stack(..., dim=-1).flatten(start_dim=-2)` lets "
        "them take turns.",
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


def _interpolated(position: Tensor, scale: float, width: int) -> Tensor:
    return position[:, None] / scale * 10_000.0 ** -(torch.arange(0, width, 2) / width)


INTERPOLATED = Exercise(
    reference=_interpolated,
    inputs=[(torch.arange(4), 2.0, 4), (torch.arange(100, 105), 4.0, 6)],
    mistakes={
        "Nothing is stretched yet: divide by the scale.": lambda p, s, d: _interpolated(p, 1.0, d),
        "The angles grow; positions of a longer text must fall between the trained ones.": (
            lambda p, s, d: _interpolated(p, 1 / s, d)
        ),
        "Positions are cut down to whole numbers: two neighbours would share one.": (
            lambda p, s, d: _interpolated(p // s, 1.0, d)
        ),
        "That changes the base, as NTK-aware scaling does; interpolation divides all angles.": (
            lambda p, s, d: p[:, None] * (10_000.0 * s) ** -(torch.arange(0, d, 2) / d)
        ),
        _EXPONENT: lambda p, s, d: p[:, None] / s * 10_000.0 ** -(torch.arange(d // 2) / d),
        "Every angle stands there twice: one for each pair, (T, width/2).": (
            lambda p, s, d: _interpolated(p, s, d).repeat_interleave(2, dim=-1)
        ),
    },
    hints=(
        "Interpolation changes the positions and nothing else: a text that is twice as long is "
        "squeezed into the old range.",
        "Divide the positions by `scale`. As a column `(T, 1)` they meet the speeds of the pairs, "
        "`(width/2,)`.",
        "`positions[:, None] / scale` times `10_000.0 ** -(torch.arange(0, width, 2) / width)`.",
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
