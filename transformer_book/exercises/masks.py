"""Exercises of chapter 05, Masks."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _distances(n_queries: int, n_keys: int, first: int = 0) -> Tensor:
    """How far each key stands before each query, if the first query stands at ``first``."""
    queries, keys = (torch.arange(n, device="cpu") for n in (n_queries, n_keys))
    return first + queries[:, None] - keys


CAUSAL = Exercise(
    reference=lambda n: _distances(n, n) >= 0,
    inputs=[(4,), (1,), (7,)],
    mistakes={
        "It hides the diagonal: a position may see itself.": lambda n: _distances(n, n) > 0,
        "It lets each position see the next one too.": lambda n: _distances(n, n) >= -1,
        "It is transposed: rows are queries, and a query sees the keys before it.": (
            lambda n: _distances(n, n) <= 0
        ),
        "The polarity is turned round: True means may attend.": lambda n: _distances(n, n) < 0,
        "Nothing is hidden.": lambda n: torch.ones(n, n, dtype=torch.bool, device="cpu"),
    },
)


def _batch(ids: Tensor, pad_id: int, *, causal: bool = True, queries: bool = False) -> Tensor:
    real = ids != pad_id
    mask = (real[:, None, :, None] if queries else real[:, None, None, :]).expand(
        -1, 1, ids.shape[1], ids.shape[1]
    )
    return mask & (_distances(ids.shape[1], ids.shape[1]) >= 0) if causal else mask


_IDS = torch.tensor([[5, 7, 0, 0], [3, 2, 8, 6], [4, 2, 1, 0]], device="cpu")
BATCH = Exercise(
    reference=_batch,
    inputs=[(_IDS, 0), (_IDS[:, :3] + 1, 3)],  # in the second, padding stands in the middle too
    mistakes={
        "The future is not hidden: combine with the causal mask (&).": (
            lambda ids, pad: _batch(ids, pad, causal=False)
        ),
        "The padding is not hidden: compare ids with pad_id.": (lambda ids, pad: _batch(ids, -1)),
        "Padding is hidden as a query; it must be hidden as a key: (B, 1, 1, S).": (
            lambda ids, pad: _batch(ids, pad, queries=True)
        ),
        "The masks are joined by |: a pair is allowed only if both allow it (&).": (
            lambda ids, pad: _batch(ids, pad, causal=False) | _batch(ids, -1)
        ),
        "The pad id is written into your code; take the one you are given.": (
            lambda ids, pad: _batch(ids, 0)
        ),
        "The axis of the heads is missing: return (B, 1, T, T).": (
            lambda ids, pad: _batch(ids, pad)[:, 0]
        ),
        "The polarity is turned round: True means may attend.": lambda ids, pad: ~_batch(ids, pad),
    },
)


def _pairs(length: int, window: int) -> int:
    near = min(length, window)
    return near * (near + 1) // 2 + (length - near) * window


PAIRS = Exercise(
    reference=_pairs,
    inputs=[(6, 3), (4, 4), (1000, 128), (3, 9)],
    mistakes={
        "The first positions have fewer than w keys before them: count them apart.": (
            lambda length, window: length * window
        ),
        "That is the whole triangle; a window takes pairs away.": (
            lambda length, window: length * (length + 1) // 2
        ),
        "The diagonal counts too: a position sees itself.": (
            lambda length, window: _pairs(length, window) - length
        ),
        "A window may be larger than the sequence: use the smaller of the two.": (
            lambda length, window: window * (window + 1) // 2 + (length - window) * window
        ),
        "A window of w means w keys in all, the position's own included.": (
            lambda length, window: _pairs(length, window + 1)
        ),
    },
)


def _softmax(scores: Tensor, mask: Tensor, *, hidden: float = -math.inf) -> Tensor:
    return scores.masked_fill(~mask, hidden).softmax(dim=-1)


def _guarded(scores: Tensor, mask: Tensor) -> Tensor:
    empty = ~mask.any(dim=-1, keepdim=True)
    return _softmax(scores, mask | empty).masked_fill(~mask, 0.0)


_SCORES = random_inputs((3, 4))[0]
_MASK = torch.tensor(
    [[True, False, True, False], [False, False, False, False], [True, True, True, True]],
    device="cpu",
)
SOFTMAX = Exercise(
    reference=_guarded,
    inputs=[(_SCORES, _MASK), (random_inputs((2, 3, 4))[0], _MASK)],
    mistakes={
        "A row with no allowed key shares its weight evenly; it should be all zeros.": (
            lambda scores, mask: _softmax(scores, mask, hidden=-1e4)
        ),
        "The weights are hidden after the softmax: allowed weights no longer sum to 1.": (
            lambda scores, mask: scores.softmax(dim=-1) * mask
        ),
        "The polarity is turned round: True means may attend.": (
            lambda scores, mask: _guarded(scores, ~mask)
        ),
        "The row without a key is an ordinary softmax; its weights must become zeros.": (
            lambda scores, mask: _softmax(scores, mask | ~mask.any(dim=-1, keepdim=True))
        ),
        "The scores of hidden keys are set to 0, and e to the power of 0 is 1.": (
            lambda scores, mask: _softmax(scores, mask, hidden=0.0)
        ),
    },
)

CACHED = Exercise(
    reference=lambda n_queries, n_keys: _distances(n_queries, n_keys, n_keys - n_queries) >= 0,
    inputs=[(1, 4), (2, 5), (3, 3)],
    mistakes={
        "It is aligned top-left: the queries are the last positions, not the first.": (
            lambda n_queries, n_keys: _distances(n_queries, n_keys) >= 0
        ),
        "Off by one: the last query must see the last key, which is its own.": (
            lambda n_queries, n_keys: _distances(n_queries, n_keys, n_keys - n_queries) > 0
        ),
        "Off by one the other way: only the last query may see the last key.": (
            lambda n_queries, n_keys: _distances(n_queries, n_keys, n_keys - n_queries) >= -1
        ),
        "Nothing is hidden: with several queries the earlier ones must not see the later keys.": (
            lambda n_queries, n_keys: torch.ones(n_queries, n_keys, device="cpu")
        ),
        "The shape is turned round: one row for each query, one column for each key.": (
            lambda n_queries, n_keys: _distances(n_queries, n_keys, n_keys - n_queries).mT >= 0
        ),
    },
)


def _translate(ignore: Tensor, forbid: Tensor) -> Tensor:
    return ~ignore[:, None, None, :] & ~forbid


_IGNORE = torch.tensor([[False, False, True], [False, True, True]], device="cpu")
_FORBID = _distances(3, 3) < 0
TRANSLATE = Exercise(
    reference=_translate,
    inputs=[(_IGNORE, _FORBID)],
    mistakes={
        "Both masks still say True = ignore: turn them round with ~.": (
            lambda ignore, forbid: ignore[:, None, None, :] & forbid
        ),
        "That is PyTorch's meaning with our shape: True must mean may attend.": (
            lambda ignore, forbid: ignore[:, None, None, :] | forbid
        ),
        "Joined by |: a pair is allowed only if both masks allow it (&).": (
            lambda ignore, forbid: ~ignore[:, None, None, :] | ~forbid
        ),
        "Padding is hidden as a query; the axis of the keys is the last one.": (
            lambda ignore, forbid: ~ignore[:, None, :, None] & ~forbid
        ),
        "Only the padding is turned round; the other mask says True = forbidden too.": (
            lambda ignore, forbid: ~ignore[:, None, None, :] & forbid
        ),
        "Only the second mask is turned round; the padding says True = ignore too.": (
            lambda ignore, forbid: ignore[:, None, None, :] & ~forbid
        ),
        "The axis of the heads is missing: return (B, 1, T, S).": (
            lambda ignore, forbid: ~ignore[:, None, :] & ~forbid
        ),
    },
)
