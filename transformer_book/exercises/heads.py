"""Exercises of chapter 06, Multi-head attention."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


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
    inputs=[(*random_inputs((2, 4, 8)), 4), (*random_inputs((3, 5, 6)), 2)],
    mistakes={
        "The shape is right and the numbers are not: a reshape alone fills the heads with pieces "
        "of other positions. Cut the features first, then swap positions and heads.": _reshaped,
        "Positions and heads are not swapped yet: (B, T, H, K) must become (B, H, T, K).": (
            lambda x, h: x.unflatten(-1, (h, -1))
        ),
        "The features are dealt out like cards; a head gets K neighbouring ones.": _dealt_out,
        "Queries are still columns: the last axis is K, the one before it T.": (
            lambda x, h: _split(x, h).mT
        ),
    },
)


def _merge(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(start_dim=2)


MERGE = Exercise(
    reference=_merge,
    inputs=[random_inputs((2, 4, 3, 2)), random_inputs((3, 2, 5, 4))],
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
    },
)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return (scale * (q @ k.mT)).softmax(dim=-1) @ v


def _heads(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, n_heads: int, *, width: int | None = None
) -> Tensor:
    q, k, v = (_split(x @ w, n_heads) for w in (w_q, w_k, w_v))
    return _attend(q, k, v, 1 / math.sqrt(width or q.shape[-1]))


def _multi_head(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, n_heads: int
) -> Tensor:
    return _merge(_heads(x, w_q, w_k, w_v, n_heads)) @ w_o


def _multi_head_reshaped(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, n_heads: int
) -> Tensor:
    q, k, v = (_reshaped(x @ w, n_heads) for w in (w_q, w_k, w_v))
    return _merge(_attend(q, k, v, 1 / math.sqrt(q.shape[-1]))) @ w_o


MULTI_HEAD = Exercise(
    reference=_multi_head,
    inputs=[
        (*random_inputs((2, 3, 4), (4, 4), (4, 4), (4, 4), (4, 4)), 2),
        (*random_inputs((1, 5, 6), (6, 6), (6, 6), (6, 6), (6, 6)), 3),
    ],
    mistakes={
        "W_O is missing: the heads lie side by side, but nothing mixes them.": (
            lambda x, q, k, v, o, h: _merge(_heads(x, q, k, v, h))
        ),
        "The scale counts D, the width of all heads; it must be K, the width of one.": (
            lambda x, q, k, v, o, h: _merge(_heads(x, q, k, v, h, width=x.shape[-1])) @ o
        ),
        "The scores are not scaled: divide them by the square root of K.": (
            lambda x, q, k, v, o, h: _merge(_heads(x, q, k, v, h, width=1)) @ o
        ),
        "That is one head of full width: split queries, keys and values first.": (
            lambda x, q, k, v, o, h: _multi_head(x, q, k, v, o, 1)
        ),
        "The heads are split by a reshape alone, without a transpose.": _multi_head_reshaped,
        "The heads are merged by a reshape alone, without a transpose.": (
            lambda x, q, k, v, o, h: _heads(x, q, k, v, h).reshape(x.shape) @ o
        ),
        "W_O is applied from the wrong side: here it is used as heads @ W_O.": (
            lambda x, q, k, v, o, h: _multi_head(x, q, k, v, o.mT, h)
        ),
    },
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
    },
)


def _write(heads: Tensor, w_o: Tensor, head: int) -> Tensor:
    width = heads.shape[-1]
    return heads[:, head] @ w_o[head * width : (head + 1) * width]


WRITE = Exercise(
    reference=_write,
    inputs=[
        (*random_inputs((2, 2, 3, 4), (8, 8)), 1),
        (*random_inputs((1, 3, 4, 2), (6, 6)), 1),
        (*random_inputs((1, 3, 4, 2), (6, 6)), 2),
    ],
    mistakes={
        "That is what all heads write; take one of them.": (
            lambda heads, o, head: _merge(heads) @ o
        ),
        "Every head has rows of its own in W_O: those from head · K on.": (
            lambda heads, o, head: heads[:, head] @ o[: heads.shape[-1]]
        ),
        "Those are every H-th row of W_O; a head has K neighbouring ones.": (
            lambda heads, o, head: heads[:, head] @ o[head :: heads.shape[1]]
        ),
        "A head reads rows of W_O and writes to all of its columns.": (
            lambda heads, o, head: (
                heads[:, head] @ o.mT[head * heads.shape[-1] : (head + 1) * heads.shape[-1]]
            )
        ),
    },
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
        (scores.softmax(dim=-1),)
        for scores in (*random_inputs((2, 3, 4)), *random_inputs((4, 2, 5)))
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
    },
)


def _without(weight: Tensor, n_heads: int, head: int, *, axis: int = 1) -> Tensor:
    pruned = weight.clone()
    width = weight.shape[axis] // n_heads
    pruned.narrow(axis, head * width, width).zero_()
    return pruned


def _without_every_nth(weight: Tensor, n_heads: int, head: int) -> Tensor:
    pruned = weight.clone()
    pruned[:, head::n_heads] = 0
    return pruned


PRUNE = Exercise(
    reference=_without,
    inputs=[(*random_inputs((8, 8)), 4, 1), (*random_inputs((6, 6)), 2, 0)],
    mistakes={
        "Rows of the stored weight are what the layer writes to; a head is read by columns, "
        "because nn.Linear stores (out, in).": lambda w, h, i: _without(w, h, i, axis=0),
        "A head has K neighbouring columns, not every H-th one.": _without_every_nth,
        "All heads but this one are gone: it is the one that should go.": (
            lambda w, h, i: w - _without(w, h, i)
        ),
        "The columns are cut out; keep the shape and set them to zero.": (
            lambda w, h, i: torch.cat(
                [part for n, part in enumerate(w.chunk(h, dim=1)) if n != i], dim=1
            )
        ),
    },
)
