"""Exercises of lab 5, A scaling law of your own."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from transformer_book.exercises.checking import Exercise

Array = NDArray[np.float64]
Fit = tuple[float, float, float]


def _cost(width: int, layers: int, vocab: int, length: int) -> tuple[int, int, int]:
    matrices = 12 * layers * width**2
    size = matrices + (2 * layers + 1) * width
    tables = (vocab + length) * width
    flops = 6 * (matrices + vocab * width) + 12 * layers * length * width
    return size, size + tables, flops


def _cost_plus(
    width: int, layers: int, vocab: int, length: int, size: int = 0, tables: int = 0, flops: int = 0
) -> tuple[int, int, int]:
    """The three numbers, with something too much or too little in them."""
    without, every, each = _cost(width, layers, vocab, length)
    return without + size, every + size + tables, each + flops


COST = Exercise(
    reference=_cost,
    inputs=[(24, 2, 128, 256), (10, 3, 7, 5)],
    mistakes={
        "The norms are missing: a gain of the model's width, two in a block and one at the end.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, size=-(2 * n + 1) * d)
        ),
        "The last norm is missing.": lambda d, n, v, t: _cost_plus(d, n, v, t, size=-d),
        "These norms have a gain and no bias: count them once.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, size=(2 * n + 1) * d)
        ),
        "Positions are learned: a row of the model's width for each of them.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, tables=-t * d)
        ),
        "The output layer is tied: its matrix is the table of tokens, counted already.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, tables=v * d)
        ),
        "Operations: the products inside attention are missing. They have no parameters.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, flops=-12 * n * t * d)
        ),
        "Operations: the output layer is missing. Tied or not, it multiplies.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, flops=-6 * v * d)
        ),
        "Operations: that is the forward pass. The backward pass takes twice as many again.": (
            lambda d, n, v, t: (*_cost(d, n, v, t)[:2], _cost(d, n, v, t)[2] // 3)
        ),
        "Operations: a multiplication and its addition are two.": (
            lambda d, n, v, t: (*_cost(d, n, v, t)[:2], _cost(d, n, v, t)[2] // 2)
        ),
        "Operations: all pairs of tokens are counted, those behind the mask as well.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, flops=-6 * n * t * d)
        ),
        "Operations: six times all parameters is the rule of thumb. Gains and positions multiply "
        "no matrix, and attention has products of its own.": (
            lambda d, n, v, t: (*_cost(d, n, v, t)[:2], 6 * _cost(d, n, v, t)[1])
        ),
    },
)


def _width(layers: int, size: int, *, step: int = 8) -> int:
    widths = range(step, 1025, step)
    return min(widths, key=lambda width: abs(_cost(width, layers, 0, 0)[0] - size))


WIDTH = Exercise(
    reference=_width,
    inputs=[(1, 27_800), (4, 27_800), (9, 27_800), (3, 60_000), (2, 1_000_000)],
    mistakes={
        "Near, but not a multiple of 8.": lambda n, size: _width(n, size, step=1),
        "That is the widest that is not larger; one that is a little larger may be nearer.": (
            lambda n, size: max(w for w in range(8, 1025, 8) if _cost(w, n, 0, 0)[0] <= size)
        ),
        "A block has 12 width² numbers in its matrices: 4 in attention, 8 in the network.": (
            lambda n, size: round(math.sqrt(size / (4 * n)) / 8) * 8
        ),
        "That is one block of this size; share it among the layers.": (
            lambda n, size: _width(1, size)
        ),
    },
)


def _plan(flops: Sequence[float], seeds: int, tokens: int, budget: float) -> int:
    return int(budget // (seeds * tokens * sum(flops)))


PLAN = Exercise(
    reference=_plan,
    inputs=[([100.0, 300.0], 3, 50, 1e6), ([7e4, 2e5, 6e5], 2, 512, 5e10)],
    mistakes={
        "Every size is trained once for each seed.": lambda f, s, t, b: _plan(f, 1, t, b),
        "The costs are those of one token; an update reads many.": (
            lambda f, s, t, b: _plan(f, s, 1, b)
        ),
        "That gives the whole budget to the largest size; all of them share it.": (
            lambda f, s, t, b: _plan([max(f)], s, t, b)
        ),
        "That is the mean cost of a size; the budget pays for all of them.": (
            lambda f, s, t, b: _plan([sum(f) / len(f)], s, t, b)
        ),
        "A part of an update cannot be made: round down.": (
            lambda f, s, t, b: b / (s * t * sum(f))
        ),
        "One more than the budget pays for: round down.": (
            lambda f, s, t, b: math.ceil(b / (s * t * sum(f)))
        ),
    },
)


def _gap(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    apart = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    return float(apart.mean()), float(apart.std(ddof=1) / math.sqrt(len(apart)))


def _gap_unpaired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    both = [np.asarray(values, dtype=float) for values in (first, second)]
    variance = sum(float(values.var(ddof=1)) / len(values) for values in both)
    return _gap(first, second)[0], math.sqrt(variance)


GAP = Exercise(
    reference=_gap,
    inputs=[([2.6, 2.5, 2.7], [2.4, 2.35, 2.42]), ([1.0, 1.3, 1.1, 1.6], [1.1, 1.2, 1.3, 1.5])],
    mistakes={
        "The sign: first minus second, positive where the second has the lower loss.": (
            lambda a, b: (-_gap(a, b)[0], _gap(a, b)[1])
        ),
        "Divide the standard deviation by the root of the number of seeds.": (
            lambda a, b: (_gap(a, b)[0], _gap(a, b)[1] * math.sqrt(len(a)))
        ),
        "That divides by n; a deviation from so few values divides by n - 1 (ddof=1).": (
            lambda a, b: (_gap(a, b)[0], _gap(a, b)[1] * math.sqrt(1 - 1 / len(a)))
        ),
        "The seeds are pairs with the same batches: take differences first, then their spread.": (
            _gap_unpaired
        ),
    },
)


def _line(x: Array, y: Array) -> tuple[float, float]:
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    return float(slope), float(y.mean() - slope * x.mean())


def _fit(
    sizes: Sequence[float],
    losses: Sequence[float],
    floors: Sequence[float],
    error: Callable[[Array, Array, float], Array] | None = None,
) -> Fit:
    n, loss = np.asarray(sizes, dtype=float), np.asarray(losses, dtype=float)
    tried = []
    for floor in floors:
        slope, start = _line(np.log(n), np.log(loss - floor))
        said = floor + np.exp(start) * n**slope
        off = np.log(said / loss) if error is None else error(said, loss, floor)
        tried.append((float((off**2).sum()), (float(floor), math.exp(start), -slope)))
    return min(tried)[1]


def _above(said: Array, loss: Array, floor: float) -> Array:
    off: Array = np.log((said - floor) / (loss - floor))
    return off


_SIZES = [1e4, 3e4, 1e5, 3e5, 1e6, 3e6]
_MADE = [0.8 + 40 * n**-0.4 for n in _SIZES]
_ROUGH = [1.84, 1.45, 1.24, 1.03, 0.96, 0.92]
_FLOORS = [k / 50 for k in range(45)]

FIT = Exercise(
    reference=_fit,
    inputs=[(_SIZES, _MADE, _FLOORS), (_SIZES, _ROUGH, _FLOORS)],
    mistakes={
        "The floor is never taken off: each floor must give a line of its own.": (
            lambda n, loss, floors: (0.0, *_fit(n, loss, [0.0])[1:])
        ),
        "The sign: a falling line has a negative slope, and alpha is positive.": (
            lambda n, loss, floors: (*_fit(n, loss, floors)[:2], -_fit(n, loss, floors)[2])
        ),
        "A comes as its logarithm; take exp.": (
            lambda n, loss, floors: (
                _fit(n, loss, floors)[0],
                math.log(_fit(n, loss, floors)[1]),
                _fit(n, loss, floors)[2],
            )
        ),
        "Compare the floors by errors of the loss, log(said / loss). Errors of log(loss - floor) "
        "are stretched the more, the nearer the floor is.": (
            lambda n, loss, floors: _fit(n, loss, floors, _above)
        ),
        "The last floor is no better for being last: keep the one with the least error.": (
            lambda n, loss, floors: _fit(n, loss, floors[-1:])
        ),
    },
)


def _without(values: Sequence[float], i: int) -> list[float]:
    return [*values[:i], *values[i + 1 :]]


def _leave_out(
    sizes: Sequence[float], losses: Sequence[float], floors: Sequence[float]
) -> list[float]:
    return [_fit(_without(sizes, i), _without(losses, i), floors)[2] for i in range(len(sizes))]


LEAVE_OUT = Exercise(
    reference=_leave_out,
    inputs=[(_SIZES, _ROUGH, _FLOORS)],
    mistakes={
        "All runs are in every fit: take number i out of sizes and of losses.": (
            lambda n, loss, floors: [_fit(n, loss, floors)[2] for _ in n]
        ),
        "These are the floors; the exponents were asked for.": (
            lambda n, loss, floors: [
                _fit(_without(n, i), _without(loss, i), floors)[0] for i in range(len(n))
            ]
        ),
        "Every answer is the fit without the first: the number left out must change.": (
            lambda n, loss, floors: [_fit(n[1:], loss[1:], floors)[2] for _ in n]
        ),
    },
)
