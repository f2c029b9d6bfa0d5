"""Exercises of lab 5, A scaling law of your own."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from transformer_book.exercises.grading.checking import Answer, Exercise

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


def _cost_with(flops: Callable[[int, int, int, int], int]) -> Answer:
    """The two sizes, and operations that are counted otherwise."""
    return lambda d, n, v, t: (*_cost(d, n, v, t)[:2], flops(d, n, v, t))


COST = Exercise(
    reference=_cost,
    inputs=[(24, 2, 128, 256), (10, 3, 7, 5)],
    returns=("N without tables", "N with tables", "FLOPs"),
    mistakes={
        "The norms are missing: a gain of the model's width, two in a block and one at the end.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, size=-(2 * n + 1) * d)
        ),
        "The last norm is missing.": lambda d, n, v, t: _cost_plus(d, n, v, t, size=-d),
        "These norms have a gain and no bias: count them once.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, size=(2 * n + 1) * d)
        ),
        "There are no biases in these models, neither in attention nor in the network.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, size=9 * n * d)
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
        "Operations: half of the products inside attention are missing. There are two, the scores "
        "and the weighted sum, and all pairs of tokens count, those behind the mask as well.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, flops=-6 * n * t * d)
        ),
        "Operations: only the pairs that the mask lets through are counted. Those behind it are "
        "computed, too: count all pairs.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, flops=-6 * n * (t - 1) * d)
        ),
        "Operations: the output layer is missing. Tied or not, it multiplies.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, flops=-6 * v * d)
        ),
        "Operations: the table of tokens counts twice. At the input a row is looked up, which "
        "multiplies nothing.": lambda d, n, v, t: _cost_plus(d, n, v, t, flops=6 * v * d),
        "Operations: the norms are in it. Gains multiply no matrix.": (
            lambda d, n, v, t: _cost_plus(d, n, v, t, flops=6 * (2 * n + 1) * d)
        ),
        "Operations: that is the forward pass. The backward pass takes twice as many again.": (
            _cost_with(lambda d, n, v, t: _cost(d, n, v, t)[2] // 3)
        ),
        "Operations: a multiplication and its addition are two.": (
            _cost_with(lambda d, n, v, t: _cost(d, n, v, t)[2] // 2)
        ),
        "Operations: six times N without tables is the rule of thumb for large models. The output "
        "layer and the products inside attention are missing, and gains multiply no matrix.": (
            _cost_with(lambda d, n, v, t: 6 * _cost(d, n, v, t)[0])
        ),
        "Operations: six times all parameters is the rule of thumb. Gains and positions multiply "
        "no matrix, and attention has products of its own.": (
            _cost_with(lambda d, n, v, t: 6 * _cost(d, n, v, t)[1])
        ),
        "Operations: those of a whole window of tokens; the cost of one token was asked for.": (
            _cost_with(lambda d, n, v, t: t * _cost(d, n, v, t)[2])
        ),
    },
    hints=(
        "Begin with one block: which matrices does it have, and what are their sizes in terms of "
        "the width? Then the gains, then the tables. For the operations go through the matrices "
        "again, and ask which products have no matrix of parameters.",
        "Attention has 4 width², the network 8 width². There are 2 gains in a block and 1 at the "
        "end. A parameter in a product costs 2 FLOPs forward and 4 backward. In attention each "
        "token meets `length` others twice, for its scores and for its weighted sum.",
        "With `matrices = 12 * layers * width**2` the FLOPs are "
        "`6 * (matrices + vocab * width + 2 * layers * length * width)`.",
    ),
)


_WIDTHS = [8 * k for k in range(1, 129)]


def _width(layers: int, size: int) -> int:
    def off(width: int) -> int:
        return abs(12 * layers * width**2 + (2 * layers + 1) * width - size)

    return min([8 * k for k in range(1, 129)], key=off)


def _nearest(widths: Sequence[int], count: Callable[[int, int], int]) -> Answer:
    """Other widths to choose from, or another count of a width and a number of layers."""
    return lambda layers, size: min(widths, key=lambda width: abs(count(width, layers) - size))


def _n(width: int, layers: int) -> int:
    return _cost(width, layers, 0, 0)[0]


# Just beyond the middle between two widths, so that every part of N decides.
_BETWEEN = (_n(64, 5) + _n(72, 5)) // 2

WIDTH = Exercise(
    reference=_width,
    inputs=[
        (1, 27_800),
        (4, 27_800),
        (9, 27_800),
        (3, 60_000),
        (2, 1_000_000),
        (5, _BETWEEN - 2),
        (5, _BETWEEN + 2),
        (1, 500),
        (1, 14_000_000),
    ],
    mistakes={
        "Near, but not a multiple of 8.": _nearest(range(1, 1025), _n),
        "That is wider than 1,024, where the list of widths ends.": (
            _nearest(range(8, 4096, 8), _n)
        ),
        "That is the widest that is not larger; one that is a little larger may be nearer.": (
            lambda layers, size: max([8, *(w for w in _WIDTHS if _n(w, layers) <= size)])
        ),
        "The gains count, too: N is what `cost` gives, all of it.": (
            _nearest(_WIDTHS, lambda width, layers: 12 * layers * width**2)
        ),
        "The tables do not count: compare N without them, the first number of `cost`.": (
            _nearest(_WIDTHS, lambda width, layers: _cost(width, layers, 66, 32)[1])
        ),
        "A block has 12 width² numbers in its matrices: 4 in attention, 8 in the network.": (
            _nearest(_WIDTHS, lambda width, layers: 4 * layers * width**2)
        ),
        "That is one block of this size; share it among the layers.": (
            lambda layers, size: _width(1, size)
        ),
    },
    hints=(
        "There are only 128 widths to choose from: try them all.",
        "For each width take N without tables, the first of the three numbers of `cost` (vocab and "
        "length do not matter for it), and its distance from `size`.",
        "`min(range(8, 1025, 8), key=off)` finds the width with the least `off(width)`, the "
        "absolute value of `cost(width, layers, 0, 0)[0] - size`.",
    ),
)


def _plan(flops: Sequence[float], seeds: int, tokens: int, budget: float) -> int:
    return int(budget // (seeds * tokens * sum(flops)))


PLAN = Exercise(
    reference=_plan,
    inputs=[
        ([100.0, 300.0], 3, 50, 1e6),
        ([7e4, 2e5, 6e5], 2, 512, 5e10),
        ([100.0, 300.0], 3, 50, 1.2e6),  # nothing is left over
    ],
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
        "That is shared among the sizes a second time: their costs add up already.": (
            lambda f, s, t, b: int(b // (s * t * sum(f) * len(f)))
        ),
        "A part of an update cannot be made: round down.": (
            lambda f, s, t, b: b / (s * t * sum(f))
        ),
        "One more than the budget pays for: round down.": (
            lambda f, s, t, b: math.ceil(b / (s * t * sum(f)))
        ),
        "Rounded to the nearest whole number; the budget must not be exceeded: round down.": (
            lambda f, s, t, b: round(b / (s * t * sum(f)))
        ),
    },
    hints=(
        "What does one update of everything cost, that is, of all sizes with all seeds? How often "
        "does that fit into the budget?",
        "A token costs `sum(flops)` for all sizes together; an update reads `tokens` of them, and "
        "every seed does so again.",
        "Divide and round down in one step: `budget // (seeds * tokens * sum(flops))`, made an "
        "`int`.",
    ),
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
    returns=("mean difference", "standard error"),
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
        "That is the variance of the mean; take its square root.": (
            lambda a, b: (_gap(a, b)[0], _gap(a, b)[1] ** 2)
        ),
        "The standard deviation is divided by n; divide it by the root of n.": (
            lambda a, b: (_gap(a, b)[0], _gap(a, b)[1] / math.sqrt(len(a)))
        ),
    },
    hints=(
        "The same seed means the same batches, so the losses come in pairs: look at the "
        "difference of each pair first.",
        "Of the n differences take the mean, and their standard deviation with n - 1 below the "
        "line. The standard error is that, divided by the root of n.",
        "`apart = np.subtract(first, second)`; then `apart.mean()` and "
        "`apart.std(ddof=1) / math.sqrt(len(apart))`.",
    ),
)


def _log_ratio(said: Array, loss: Array, floor: float) -> Array:
    off: Array = np.log(said / loss)
    return off


def _above(said: Array, loss: Array, floor: float) -> Array:
    off: Array = np.log((said - floor) / (loss - floor))
    return off


def _plain(said: Array, loss: Array, floor: float) -> Array:
    return said - loss


def _best_line(
    sizes: Sequence[float],
    losses: Sequence[float],
    floors: Sequence[float],
    off: Callable[[Array, Array, float], Array] = _log_ratio,
) -> Fit:
    """The floor whose law fits best, with the start and the slope of its line."""
    x, loss = np.log(np.asarray(sizes, dtype=float)), np.asarray(losses, dtype=float)
    run = x - x.mean()
    tried = []
    for floor in floors:
        y = np.log(loss - floor)
        slope = float((run * y).sum() / (run**2).sum())
        start = float(y.mean() - slope * x.mean())
        said = floor + np.exp(start + slope * x)
        tried.append((float((off(said, loss, floor) ** 2).sum()), (floor, start, slope)))
    return min(tried)[1]


def _fit(sizes: Sequence[float], losses: Sequence[float], floors: Sequence[float]) -> Fit:
    floor, start, slope = _best_line(sizes, losses, floors)
    return floor, math.exp(start), -slope


def _fit_by(off: Callable[[Array, Array, float], Array]) -> Answer:
    """A fit that compares the floors by other errors."""

    def fit(sizes: Sequence[float], losses: Sequence[float], floors: Sequence[float]) -> Fit:
        floor, start, slope = _best_line(sizes, losses, floors, off)
        return floor, math.exp(start), -slope

    return fit


_SIZES = [1e4, 3e4, 1e5, 3e5, 1e6, 3e6]
_MADE = [0.8 + 40 * n**-0.4 for n in _SIZES]
_ROUGH = [1.84, 1.45, 1.24, 1.03, 0.96, 0.92]
_FEW = [2e3, 9e3, 5e4, 2e5, 8e5]
_NOISY = [4.90, 2.63, 1.96, 1.32, 0.98]  # other errors choose other floors
_FLOORS = [k / 50 for k in range(45)]

FIT = Exercise(
    reference=_fit,
    inputs=[(_SIZES, _MADE, _FLOORS), (_SIZES, _ROUGH, _FLOORS), (_FEW, _NOISY, _FLOORS)],
    returns=("E", "A", "alpha"),
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
        "are stretched the more, the nearer the floor is.": _fit_by(_above),
        "Compare the floors by log(said / loss). Errors of said - loss give the large losses of "
        "the small models more weight.": _fit_by(_plain),
        "Compare the floors by log(said / loss). said / loss - 1 is nearly that, but not the same "
        "where a law is far off.": _fit_by(lambda said, loss, floor: said / loss - 1),
        "Squares of log(said / loss) are summed, not its absolute values.": (
            _fit_by(lambda said, loss, floor: np.sqrt(np.abs(np.log(said / loss))))
        ),
        "The last floor is no better for being last: keep the one with the least error.": (
            lambda n, loss, floors: _fit(n, loss, floors[-1:])
        ),
    },
    hints=(
        "Pretend that you know the floor. Then log(loss - floor) against log(size) is a straight "
        "line, and you can compute what the law says about each size. Do this for every floor.",
        "For each floor: the slope and the start of the line, said = floor + exp(start + slope x), "
        "and the sum of squares of log(said / loss). Keep the floor with the least sum. A is "
        "exp(start), alpha is minus the slope.",
        "With `x = np.log(sizes)`, `y = np.log(losses - floor)` (as an array) and "
        "`run = x - x.mean()` the slope is `(run * (y - y.mean())).sum() / (run**2).sum()`, and "
        "the start is `y.mean() - slope * x.mean()`.",
    ),
)


def _without(values: Sequence[float], i: int) -> list[float]:
    return [*values[:i], *values[i + 1 :]]


def _leave_out(
    sizes: Sequence[float], losses: Sequence[float], floors: Sequence[float]
) -> list[float]:
    rest = ((_without(sizes, i), _without(losses, i)) for i in range(len(sizes)))
    return [-_best_line(n, loss, floors)[2] for n, loss in rest]


LEAVE_OUT = Exercise(
    reference=_leave_out,
    inputs=[(_SIZES, _ROUGH, _FLOORS), (_FEW, _NOISY, _FLOORS)],
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
        "These are fits of the first i runs; leave one run out and keep those after it.": (
            lambda n, loss, floors: [
                _fit(n[: i + 1], loss[: i + 1], floors)[2] for i in range(1, len(n))
            ]
        ),
    },
    hints=(
        "For each i make two new lists, without the size and without the loss of number i, and fit "
        "those.",
        "What stands before i and what stands after it, joined: `[*sizes[:i], *sizes[i + 1 :]]`, "
        "and the same for `losses`. The third number of `fit` is alpha; collect one for each i.",
    ),
)
