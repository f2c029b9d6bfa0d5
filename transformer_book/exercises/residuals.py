"""Exercises of chapter 10, Residual stream and dropout."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _block(x: Tensor, read: Tensor, write: Tensor) -> Tensor:
    return x + (x @ read).relu() @ write


BLOCK = Exercise(
    reference=_block,
    inputs=[random_inputs((2, 3, 4), (4, 8), (8, 4)), random_inputs((1, 5, 6), (6, 3), (3, 6))],
    mistakes={
        "What the sublayer says replaces the stream; add it to the stream instead.": (
            lambda x, r, w: (x @ r).relu() @ w
        ),
        "The stream went through the ReLU as well: nothing may stand on its path.": (
            lambda x, r, w: (x + (x @ r).relu() @ w).relu()
        ),
        "Add what the sublayer says once; this adds it twice.": (
            lambda x, r, w: x + 2 * ((x @ r).relu() @ w)
        ),
        "The ReLU is missing between reading and writing.": lambda x, r, w: x + x @ r @ w,
        "The ReLU stands after the write; it belongs between reading and writing.": (
            lambda x, r, w: x + (x @ r @ w).relu()
        ),
    },
)


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
        "B's sentence: the identity alone would keep it at 1. The branch can be negative.": (
            lambda c, n: 1.0
        ),
    },
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
    },
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


WITHOUT_WRITE = Exercise(
    reference=_without_write,
    inputs=[
        (*random_inputs((3, 6), (4, 3, 6)), 1, *random_inputs((6,))),
        (*random_inputs((2, 5), (3, 2, 5)), 0, *random_inputs((5,))),
    ],
    mistakes={
        "The final norm is missing: the output layer reads the normalised stream.": (
            _unscaled_without
        ),
        "The norm still divides by the length of the whole stream. That is the direct effect; "
        "here the norm should see what is left.": _old_scale_without,
        "This keeps that write alone; everything else should stay.": _only_write,
        "All writes from this one on are gone; take away one.": _cut_off_writes,
    },
)


def _scaled_dropout(x: Tensor, keep: Tensor, p: float) -> Tensor:
    return x * keep / (1 - p)


SCALED_DROPOUT = Exercise(
    reference=_scaled_dropout,
    inputs=[
        (*random_inputs((2, 4)), torch.tensor([[1.0, 0, 1, 1], [0, 1, 1, 0]]), 0.25),
        (*random_inputs((3,)), torch.tensor([1.0, 0, 1]), 0.1),
    ],
    mistakes={
        "The mean shrinks: divide what is kept by 1 - p.": lambda x, keep, p: x * keep,
        "What is kept is divided by p; the share that stays is 1 - p.": (
            lambda x, keep, p: x * keep / p
        ),
        "What is kept is multiplied by 1 - p: that is the scaling of 2014, at test time.": (
            lambda x, keep, p: x * keep * (1 - p)
        ),
        "keep is 1 where a value stays; here the others stay.": (
            lambda x, keep, p: x * (1 - keep) / (1 - p)
        ),
    },
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
    },
)


def _keep_rate(p: float, n_places: int) -> float:
    return float((1 - p) ** n_places)


ALL_KEPT = Exercise(
    reference=_keep_rate,
    inputs=[(0.1, 13), (0.5, 4), (0.3, 25)],
    mistakes={
        "That is the chance that all of them are dropped.": lambda p, n: p**n,
        "That is the chance that at least one is dropped.": lambda p, n: 1 - (1 - p) ** n,
        "Chances of independent events are multiplied.": lambda p, n: 1 - n * p,
    },
)


def _direction(weight: Tensor, noise: Tensor) -> Tensor:
    scaled: Tensor = noise * weight.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
    return scaled


DIRECTION = Exercise(
    reference=_direction,
    inputs=[random_inputs((4, 6), (4, 6)), random_inputs((2, 3), (2, 3))],
    mistakes={
        "A unit's weights are a row of (out, in); these are columns.": (
            lambda w, n: n * w.norm(dim=0) / n.norm(dim=0)
        ),
        "The whole matrix got one length; each unit has its own.": (
            lambda w, n: n * w.norm() / n.norm()
        ),
        "The noise keeps its own length: divide by it first.": (
            lambda w, n: n * w.norm(dim=1, keepdim=True)
        ),
        "Every unit got length 1; it should be as long as its weights.": (
            lambda w, n: n / n.norm(dim=1, keepdim=True)
        ),
        "That multiplies entry by entry: the direction is no longer random.": (
            lambda w, n: n * w.abs()
        ),
    },
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
    },
)
