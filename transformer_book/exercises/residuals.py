"""Exercises of chapter 10, Residual stream and dropout."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs


def _smallest(slope: float, depth: int) -> float:
    return (1 - slope) ** depth


SMALLEST = Exercise(
    reference=_smallest,
    inputs=[(0.9, 24), (0.5, 3), (0.1, 10)],
    mistakes={
        "That is the largest factor; branches may also pull against the stream.": (
            lambda c, n: (1 + c) ** n
        ),
        "That is a plain network, without the 1: the factor of a layer is 1 plus its slope.": (
            lambda c, n: c**n
        ),
        "That is one layer; the factors of all layers are multiplied.": lambda c, n: 1 - c,
        "Factors are multiplied, not subtracted one after the other.": lambda c, n: 1 - n * c,
        "The identity alone would keep it at 1. But the branch can be negative.": (
            lambda c, n: 1.0
        ),
    },
    hints=(
        "For one layer y = x + f(x): what is dy/dx, and how small can it be?",
        "It is 1 + f'. A slope of either sign, at most `slope` in size, makes it as small as "
        "1 - slope. The factors of all layers are multiplied.",
        "One layer's smallest factor is `1 - slope`; take its power.",
    ),
)


def _branch_scale(n_branches: int, growth: float) -> float:
    return math.sqrt((growth - 1) / n_branches)


BRANCH_SCALE = Exercise(
    reference=_branch_scale,
    inputs=[(24, 2.0), (8, 1.5), (100, 3.0)],
    mistakes={
        "That is the variance of one branch; its scale is the root.": lambda n, g: (g - 1) / n,
        "The stream's own variance is 1: only growth - 1 is left for the branches.": (
            lambda n, g: math.sqrt(g / n)
        ),
        "This lets all branches together add nothing like enough: n is under the root, once.": (
            lambda n, g: math.sqrt(g - 1) / n
        ),
        "This multiplies the branches up; the more there are, the smaller each must be.": (
            lambda n, g: math.sqrt((g - 1) * n)
        ),
        "That is right for a growth to 2 only.": lambda n, g: 1 / math.sqrt(n),
        "Variances of independent writes add up; this multiplies the stream by a factor at each "
        "branch.": lambda n, g: math.sqrt(g ** (1 / n) - 1),
    },
    hints=(
        "Variances of independent terms add up. Write down the variance of the stream after all "
        "branches.",
        "It is 1 + n_branches · scale², and it shall be `growth`.",
        "Solve for scale² first: `(growth - 1) / n_branches`. Then take the root.",
    ),
)


def _without_write(stream: Tensor, writes: Tensor, which: int, gain: Tensor) -> Tensor:
    left = stream - writes[which]
    return gain * left / left.square().mean(dim=-1, keepdim=True).sqrt()


def _unscaled_without(stream: Tensor, writes: Tensor, which: int, gain: Tensor) -> Tensor:
    return gain * (stream - writes[which])


def _old_scale_without(stream: Tensor, writes: Tensor, which: int, gain: Tensor) -> Tensor:
    return gain * (stream - writes[which]) / stream.square().mean(dim=-1, keepdim=True).sqrt()


def _only_write(stream: Tensor, writes: Tensor, which: int, gain: Tensor) -> Tensor:
    return gain * writes[which] / writes[which].square().mean(dim=-1, keepdim=True).sqrt()


def _cut_off_writes(stream: Tensor, writes: Tensor, which: int, gain: Tensor) -> Tensor:
    left = stream - writes[which:].sum(dim=0)
    return gain * left / left.square().mean(dim=-1, keepdim=True).sqrt()


def _layer_norm_without(stream: Tensor, writes: Tensor, which: int, gain: Tensor) -> Tensor:
    left = stream - writes[which]
    left = left - left.mean(dim=-1, keepdim=True)
    return gain * left / left.square().mean(dim=-1, keepdim=True).sqrt()


def _streams(n: int, t: int, d: int, which: int) -> tuple[Tensor, Tensor, int, Tensor]:
    """A stream that is the sum of its writes, and a gain."""
    writes, gain = random_inputs((n, t, d), (d,))
    return writes.sum(dim=0), writes, which, gain


WITHOUT_WRITE = Exercise(
    reference=_without_write,
    inputs=[_streams(4, 3, 6, 1), _streams(3, 2, 5, 0), _streams(2, 4, 4, 1)],
    mistakes={
        "The final norm is missing: the output layer reads the normalised stream.": (
            _unscaled_without
        ),
        "The norm still divides by the length of the whole stream. That is the direct effect; "
        "here the norm should see what is left.": _old_scale_without,
        "This keeps that write alone; everything else should stay.": _only_write,
        "All writes from this one on are gone; take away one.": _cut_off_writes,
        "The gain is missing: each feature is multiplied by its own number after the norm.": (
            lambda stream, writes, which, gain: _without_write(
                stream, writes, which, torch.ones_like(gain)
            )
        ),
        "An RMSNorm does not subtract the mean; that is a LayerNorm.": _layer_norm_without,
        "Nothing is taken out: this is the whole stream after the norm.": (
            lambda stream, writes, which, gain: _without_write(
                stream, torch.zeros_like(writes), which, gain
            )
        ),
        "The write is added once more; take it away.": (
            lambda stream, writes, which, gain: _without_write(stream, -writes, which, gain)
        ),
    },
    hints=(
        "Two steps: what is left of the stream without that write, and then the norm of it.",
        "What is left is `stream - writes[which]`, `(T, D)`. An RMSNorm divides each token's "
        "vector by its root mean square over the features; then the gain multiplies.",
        "The root mean square is `left.square().mean(dim=-1, keepdim=True).sqrt()`.",
    ),
)


def _stochastic_depth(x: Tensor, write: Tensor, keep: Tensor, p: float) -> Tensor:
    return x + keep[:, None, None] * write / (1 - p)


STOCHASTIC_DEPTH = Exercise(
    reference=_stochastic_depth,
    inputs=[
        (*random_inputs((2, 3, 4), (2, 3, 4)), torch.tensor([1.0, 0]), 0.3),
        (*random_inputs((3, 2, 5), (3, 2, 5)), torch.tensor([0.0, 1, 1]), 0.1),
    ],
    mistakes={
        "The mean of the write shrinks: divide what is kept by 1 - p.": (
            lambda x, write, keep, p: x + keep[:, None, None] * write
        ),
        "What is kept is divided by p; the share that stays is 1 - p.": (
            lambda x, write, keep, p: x + keep[:, None, None] * write / p
        ),
        "What is kept is multiplied by 1 - p: that is the scaling of 2014, at test time.": (
            lambda x, write, keep, p: x + keep[:, None, None] * write * (1 - p)
        ),
        "The stream is dropped with the write; it must arrive in any case.": (
            lambda x, write, keep, p: keep[:, None, None] * (x + write) / (1 - p)
        ),
        "keep is 1 where a write stays; here the others stay.": (
            lambda x, write, keep, p: x + (1 - keep)[:, None, None] * write / (1 - p)
        ),
        "Nothing is dropped: multiply the write by `keep`.": (
            lambda x, write, keep, p: x + write / (1 - p)
        ),
        "This divides by the share that happened to stay; the rate is given, so divide by 1 - p.": (
            lambda x, write, keep, p: x + keep[:, None, None] * write / keep.mean()
        ),
    },
    hints=(
        "One number decides for a whole example. Which axes of the write must it reach?",
        "`keep` is (B,), the write is (B, T, D): give `keep` two more axes. The scale is that of "
        "dropout.",
        "Add `keep[:, None, None] * write / (1 - p)` to the stream.",
    ),
)


def _penalty(x: Tensor, w: Tensor, p: float) -> Tensor:
    return p / (1 - p) * (x.square() @ w.square()).mean()


PENALTY = Exercise(
    reference=_penalty,
    inputs=[(*random_inputs((5, 3), (3,)), 0.2), (*random_inputs((2, 4), (4,)), 0.5)],
    mistakes={
        "The factor is the variance of a mask's entry, p / (1 - p).": (
            lambda x, w, p: p * (x.square() @ w.square()).mean()
        ),
        "p (1 - p) is the variance of an entry that is not divided by 1 - p.": (
            lambda x, w, p: p * (1 - p) * (x.square() @ w.square()).mean()
        ),
        "Each feature is dropped by itself: square the products first, then add them up.": (
            lambda x, w, p: p / (1 - p) * (x @ w).square().mean()
        ),
        "The inputs count too: the penalty of a weight is as large as its feature.": (
            lambda x, w, p: p / (1 - p) * w.square().sum()
        ),
        "Add up the features of an example, and take the mean over examples.": (
            lambda x, w, p: p / (1 - p) * (x.square() * w.square()).mean()
        ),
        "The examples are added up; take their mean.": (
            lambda x, w, p: p / (1 - p) * (x.square() @ w.square()).sum()
        ),
        "The factor is upside down: with hardly any dropout there is hardly any penalty.": (
            lambda x, w, p: (1 - p) / p * (x.square() @ w.square()).mean()
        ),
        "The weights are squared, too: a product x w has the variance x² w² p / (1 - p).": (
            lambda x, w, p: p / (1 - p) * (x.square() @ w.abs()).mean()
        ),
    },
    hints=(
        "The mean of a dropped product is the product itself. What is added to the squared error "
        "is the variance of the model's output.",
        "An entry of the mask, divided by 1 - p, has the variance p / (1 - p). Features are "
        "dropped independently, so the variances of the products x w add up: each is x² w² times "
        "that.",
        "For all examples at once: `x.square() @ w.square()`, then the mean over the examples and "
        "the factor.",
    ),
)


def _all_kept(p: float, n_places: int) -> float:
    return float((1 - p) ** n_places)


ALL_KEPT = Exercise(
    reference=_all_kept,
    inputs=[(0.1, 13), (0.5, 4), (0.3, 25)],
    mistakes={
        "That is the chance that all of them are dropped.": lambda p, n: p**n,
        "That is the chance that at least one is dropped.": lambda p, n: 1 - (1 - p) ** n,
        "Chances of independent events are multiplied.": lambda p, n: 1 - n * p,
        "That is one place; it must get through all of them.": lambda p, n: 1 - p,
        "That is the share that is left on average over the places; the chances are multiplied.": (
            lambda p, n: (1 - p) / n
        ),
    },
    hints=(
        "What is the probability to get through one place?",
        "It is 1 - p, and the places are independent: their probabilities are multiplied.",
        "Take the power of `1 - p`, with `n_places` as exponent.",
    ),
)


def _convex_share(losses: Tensor) -> Tensor:
    bend = losses[2:] - 2 * losses[1:-1] + losses[:-2]
    return (bend >= 0).double().mean()


CONVEX_SHARE = Exercise(
    reference=_convex_share,
    inputs=[
        (torch.tensor([4.0, 1, 0, 1, 4, 5, 4, 1]),),
        (torch.tensor([0.0, 1, 2, 4, 4, 4, 9, 10, 10]),),
    ],
    mistakes={
        "That is where the curve goes up; it should be where its slope goes up.": (
            lambda x: (x[1:] >= x[:-1]).double().mean()
        ),
        "That is where it bends downwards.": lambda x: 1 - _convex_share(x),
        "A straight piece counts as convex: use >=.": (
            lambda x: (x[2:] - 2 * x[1:-1] + x[:-2] > 0).double().mean()
        ),
        "Divide by the number of inner points: the two ends have no second difference.": (
            lambda x: (x[2:] - 2 * x[1:-1] + x[:-2] >= 0).double().sum() / len(x)
        ),
        "That is how many points it is; divide by the number of inner points.": (
            lambda x: (x[2:] - 2 * x[1:-1] + x[:-2] >= 0).double().sum()
        ),
        "The middle point counts twice: left + right - 2 · middle.": (
            lambda x: (x[2:] - x[1:-1] + x[:-2] >= 0).double().mean()
        ),
    },
    hints=(
        "A curve bends upwards where its slope grows. How do you see that from three neighbouring "
        "points?",
        "Left + right - 2 · middle is at least 0 there. Compute it for all inner points at once, "
        "with three slices of `losses`, and take the share of those that are not negative.",
        "The slices are `losses[:-2]`, `losses[1:-1]` and `losses[2:]`; the share is the mean of "
        "`(bend >= 0).double()`.",
    ),
)
