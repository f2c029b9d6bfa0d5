"""Exercises of chapter 06, Multi-head attention."""

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs

_FROM_ZERO = "This is the head before it: heads are counted from 0."


def _split(x: Tensor, n_heads: int) -> Tensor:
    cut: Tensor = x.unflatten(-1, (n_heads, -1))
    return cut.transpose(1, 2)


def _reshaped(x: Tensor, n_heads: int) -> Tensor:
    return x.reshape(x.shape[0], n_heads, x.shape[1], -1)


def _dealt_out(x: Tensor, n_heads: int) -> Tensor:
    """Give feature 0 to head 0, feature 1 to head 1, and so on, like cards."""
    dealt: Tensor = x.unflatten(-1, (-1, n_heads))
    return dealt.permute(0, 3, 1, 2)


SPLIT = Exercise(
    reference=_split,
    inputs=[(*random_inputs((2, 4, 8)), 4), (*random_inputs((2, 5, 12)), 3)],
    mistakes={
        "The shape is right and the numbers are not: a reshape alone fills the heads with pieces "
        "of other positions. Cut the features first, then swap positions and heads.": _reshaped,
        "Positions and heads are not swapped yet: (B, T, H, Dk) must become (B, H, T, Dk).": (
            lambda x, h: x.unflatten(-1, (h, -1))
        ),
        "The features are dealt out like cards; a head gets Dk neighbouring ones.": _dealt_out,
        "Queries are still columns: the last axis is Dk, the one before it T.": (
            lambda x, h: _split(x, h).mT
        ),
    },
    hints=(
        "Two moves: cut the last axis, D, into H heads of width Dk; then bring the heads in "
        "front of the positions.",
        "The journey of the shapes: `(B, T, D)`, `(B, T, H, Dk)`, `(B, H, T, Dk)`. The second move "
        "is a transpose, not a reshape.",
        "`x.unflatten(-1, (n_heads, -1))` cuts; `.transpose(1, 2)` swaps positions and heads.",
    ),
)


def _merge(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(start_dim=2)


MERGE = Exercise(
    reference=_merge,
    inputs=[random_inputs((2, 4, 3, 5)), random_inputs((3, 2, 5, 4))],
    mistakes={
        "A reshape alone gives each position pieces of other positions: swap positions and heads "
        "back before you flatten.": (
            lambda heads: heads.reshape(heads.shape[0], heads.shape[2], -1)
        ),
        "The heads are interleaved feature by feature; they must lie side by side.": (
            lambda heads: heads.permute(0, 2, 3, 1).flatten(start_dim=2)
        ),
        "The heads are added up; lay them side by side.": lambda heads: heads.sum(dim=1),
        "This is the mean of the heads; lay them side by side.": lambda heads: heads.mean(dim=1),
        "Positions and heads are not swapped back: these are the positions of one head side by "
        "side.": lambda heads: heads.flatten(start_dim=2),
    },
    hints=(
        "Undo the two moves of the way there in the opposite order: first swap, then join.",
        "The journey of the shapes: `(B, H, T, Dk)`, `(B, T, H, Dk)`, `(B, T, H*Dk)`.",
        "`heads.transpose(1, 2)` swaps back; `.flatten(start_dim=2)` joins the last two axes.",
    ),
)


def _parameters(d_model: int, n_heads: int, d_key: int, d_value: int) -> int:
    return 2 * d_model * n_heads * (d_key + d_value)


PARAMETERS = Exercise(
    reference=_parameters,
    inputs=[(512, 8, 64, 64), (512, 8, 32, 48), (6, 2, 5, 7)],
    mistakes={
        "4 D² is right only where H times each width is D.": lambda d, h, k, v: 4 * d * d,
        "That is one head; there are H of them.": lambda d, h, k, v: 2 * d * (k + v),
        "W_O reads H values of width d_v, not D features.": (
            lambda d, h, k, v: d * h * (2 * k + v) + d * d
        ),
        "W_O is missing.": lambda d, h, k, v: d * h * (2 * k + v),
        "Values have a width of their own, d_v.": lambda d, h, k, v: 4 * d * h * k,
        "Keys and queries have the width d_k, values d_v.": lambda d, h, k, v: 4 * d * h * v,
        "Queries and keys have a matrix each, of the width d_k.": (
            lambda d, h, k, v: d * h * (k + 2 * v)
        ),
        "There are no biases here.": lambda d, h, k, v: (
            _parameters(d, h, k, v) + h * (2 * k + v) + d
        ),
    },
    hints=(
        "There are four matrices. For each of them: how wide is what it reads, how wide what it "
        "writes, all heads together?",
        "W_Q and W_K lead from D to H d_k, W_V from D to H d_v. W_O reads what the heads found.",
        "`d_model * n_heads * d_key` for each of two matrices, `d_model * n_heads * d_value` for "
        "each of the other two.",
    ),
)


def _ov(value: Tensor, output: Tensor, n_heads: int, head: int) -> Tensor:
    width = value.shape[0] // n_heads
    own = slice(head * width, (head + 1) * width)
    return value[own].mT @ output[:, own].mT


def _ov_of_every_nth(value: Tensor, output: Tensor, n_heads: int, head: int) -> Tensor:
    return value[head::n_heads].mT @ output[:, head::n_heads].mT


def _ov_not_stored(value: Tensor, output: Tensor, n_heads: int, head: int) -> Tensor:
    """Take the matrices as the formula writes them, not as they are stored."""
    width = output.shape[0] // n_heads
    own = slice(head * width, (head + 1) * width)
    return value[:, own] @ output[own]


OV = Exercise(
    reference=_ov,
    inputs=[
        (*random_inputs((8, 8), (8, 8)), 4, 1),
        (*random_inputs((12, 10), (10, 12)), 3, 2),  # H*Dk is not D
    ],
    mistakes={
        "nn.Linear stores (out, in): a head has rows of `value` and columns of `output`.": (
            _ov_not_stored
        ),
        "This is the transpose: x @ ov must first be read by the values, then written.": (
            lambda v, o, n, head: _ov(v, o, n, head).mT
        ),
        "A head has Dk neighbouring rows, not every H-th one.": _ov_of_every_nth,
        "That is the sum over all heads; take the rows and columns of one.": (
            lambda v, o, n, head: v.mT @ o.mT
        ),
        "This is Dk by Dk: what a head writes, read again by its values. Read first, then write.": (
            lambda v, o, n, head: (
                v[head * (len(v) // n) : (head + 1) * (len(v) // n)]
                @ o[:, head * (len(v) // n) : (head + 1) * (len(v) // n)]
            )
        ),
        _FROM_ZERO: lambda v, o, n, head: _ov(v, o, n, head - 1),
    },
    hints=(
        "The head's values are x times its part of W_V; its write is that times its part of W_O. "
        "Which part of each stored matrix belongs to head number `head`?",
        "`value` is W_V transposed, so a head has Dk neighbouring *rows* of it; `output` is W_O "
        "transposed, so it has Dk neighbouring *columns*.",
        "With `own = slice(head * width, (head + 1) * width)`: `value[own].T @ output[:, own].T`.",
    ),
)


def _distances(weights: Tensor) -> Tensor:
    """Half the sum of absolute differences for each pair of heads and each query, (H, H, T)."""
    return (weights[:, None] - weights[None]).abs().sum(dim=-1) / 2


def _distance(weights: Tensor) -> Tensor:
    n = len(weights)
    return _distances(weights).mean(dim=-1).sum() / (n * (n - 1))


DISTANCE = Exercise(
    reference=_distance,
    inputs=[
        ((3 * scores).softmax(dim=-1),)
        for scores in (*random_inputs((3, 2, 4)), *random_inputs((4, 3, 5)))
    ],
    mistakes={
        "The half is missing: heads with nothing in common must be 1 apart.": (
            lambda w: 2 * _distance(w)
        ),
        "A head was compared with itself: only pairs of different heads count.": (
            lambda w: _distances(w).mean()
        ),
        "Sum over the queries became part of it: take their mean.": (
            lambda w: _distance(w) * w.shape[1]
        ),
        "The differences are averaged over the keys; add them up.": (
            lambda w: _distance(w) / w.shape[-1]
        ),
        "These are Euclidean distances; add up absolute differences, and halve.": (
            lambda w: (
                (w[:, None] - w[None]).norm(dim=-1).mean(dim=-1).sum() / (len(w) * (len(w) - 1))
            )
        ),
        "The differences cancel, because each row sums to 1: take absolute values first.": (
            lambda w: 0 * _distance(w)
        ),
        "Only the first two heads are compared; take the mean over all pairs.": (
            lambda w: _distance(w[:2])
        ),
        "The sum over the pairs is divided by the number of heads; divide by that of the pairs.": (
            lambda w: _distance(w) * (len(w) - 1) / 2
        ),
    },
    hints=(
        "Take two heads first: for each query, half the sum of absolute differences over the "
        "keys; then the mean over the queries.",
        "Each pair of different heads counts once: there are H (H - 1) / 2. Take the mean over "
        "these pairs.",
        "`itertools.combinations(weights, 2)` gives the pairs; one of them, `a` and `b`, is "
        "`((a - b).abs().sum(dim=-1) / 2).mean()` apart.",
    ),
)


def _without(weight: Tensor, n_heads: int, head: int) -> Tensor:
    pruned = weight.clone()
    width = weight.shape[1] // n_heads
    pruned[:, head * width : (head + 1) * width] = 0
    return pruned


def _without_every_nth(weight: Tensor, n_heads: int, head: int) -> Tensor:
    pruned = weight.clone()
    pruned[:, head::n_heads] = 0
    return pruned


PRUNE = Exercise(
    reference=_without,
    inputs=[(*random_inputs((8, 8)), 4, 1), (*random_inputs((7, 12)), 3, 2)],
    mistakes={
        "Rows of the stored weight are what the layer writes to; a head is read by columns, "
        "because nn.Linear stores (out, in).": lambda w, h, i: _without(w.mT, h, i).mT,
        "A head has Dk neighbouring columns, not every H-th one.": _without_every_nth,
        "All heads but this one are gone: it is the one that should go.": (
            lambda w, h, i: w - _without(w, h, i)
        ),
        "The columns are cut out; keep the shape and set them to zero.": (
            lambda w, h, i: torch.cat(
                [part for n, part in enumerate(w.chunk(h, dim=1)) if n != i], dim=1
            )
        ),
        _FROM_ZERO: lambda w, h, i: _without(w, h, i - 1),
        "Only one column is set to zero; a head has Dk of them.": (
            lambda w, h, i: w * (torch.arange(w.shape[1], device="cpu") != i)
        ),
    },
    hints=(
        "A head writes nothing if the part of the matrix that reads it is zero. Which part is "
        "that, if `nn.Linear` stores `(out, in)`?",
        "The heads lie side by side in what the layer *reads*: head number `head` has Dk "
        "neighbouring columns, Dk = `weight.shape[1] // n_heads`.",
        "Begin with `pruned = weight.clone()`; with `width` for Dk set "
        "`pruned[:, head * width : (head + 1) * width]` to 0.",
    ),
    leaves_arguments=True,
)
