"""Exercises of chapter 05, Masks."""

import math
from typing import Any

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs

_POLARITY = "The polarity is turned round: True means may attend."
_BIAS = "These are numbers to be added to scores; here a mask is boolean: True means may attend."
_BOTH_ALLOW = "The masks are joined by |: a pair is allowed only if both allow it (&)."
_NO_HEADS = "The axis of the heads is missing: return (B, 1, T, S)."
_AS_QUERY = "Padding is hidden as a query; it must be hidden as a key: (B, 1, 1, S)."
_AS_BOTH = (
    "Padding is hidden as a key and as a query. Then its rows allow nothing, and a softmax over "
    "nothing is NaN: hide it as a key only, (B, 1, 1, S)."
)


def _distances(n_queries: int, n_keys: int, first: int = 0) -> Tensor:
    """How far each key stands before each query, if the first query stands at ``first``."""
    queries, keys = (torch.arange(n, device="cpu") for n in (n_queries, n_keys))
    return first + queries[:, None] - keys


def _bias(mask: Tensor) -> Tensor:
    """A mask as numbers to be added to scores."""
    return torch.zeros(mask.shape, device="cpu").masked_fill(~mask, -math.inf)


CAUSAL = Exercise(
    reference=lambda n: _distances(n, n) >= 0,
    inputs=[(4,), (1,), (7,)],
    mistakes={
        "It hides the diagonal: a position may see itself.": lambda n: _distances(n, n) > 0,
        "It lets each position see the next one too.": lambda n: _distances(n, n) >= -1,
        "It is transposed: rows are queries, and a query sees the keys before it.": (
            lambda n: _distances(n, n) <= 0
        ),
        _POLARITY: lambda n: _distances(n, n) < 0,
        "Nothing is hidden.": lambda n: torch.ones(n, n, dtype=torch.bool, device="cpu"),
        _BIAS: lambda n: _bias(_distances(n, n) >= 0),
    },
    hints=(
        "Number the positions. A query may see a key whose number is not larger than its own.",
        "`torch.arange(n)` has these numbers. As a column `(n, 1)` they are queries, as a row "
        "`(n,)` keys; comparing the two broadcasts to `(n, n)`.",
        "With `place = torch.arange(n)`, compare `place[:, None]` with `place` by `>=`.",
    ),
)


def _batch(ids: Tensor, pad_id: int) -> Tensor:
    real = (ids != pad_id)[:, None, None, :]
    return real & (_distances(ids.shape[1], ids.shape[1]) >= 0)


def _causal_alone(ids: Tensor) -> Tensor:
    n = ids.shape[1]
    return (_distances(n, n) >= 0).expand(len(ids), 1, n, n)


def _padding_alone(ids: Tensor, pad_id: int) -> Tensor:
    return (ids != pad_id)[:, None, None, :].expand(-1, 1, ids.shape[1], -1)


def _padded_queries(ids: Tensor, pad_id: int) -> Tensor:
    return (ids != pad_id)[:, None, :, None]


_IDS = torch.tensor([[5, 7, 0, 0], [3, 2, 8, 6], [4, 2, 1, 0]], device="cpu")
_OTHER_IDS = torch.tensor([[6, 3, 0, 4, 1], [2, 5, 3, 3, 0]], device="cpu")
BATCH = Exercise(
    reference=_batch,
    inputs=[(_IDS, 0), (_OTHER_IDS, 3)],  # in the second, padding is 3 and stands in the middle
    mistakes={
        "The future is not hidden: combine with the causal mask (&).": _padding_alone,
        "That is the padding alone, (B, 1, 1, T): combine it with the causal mask (&).": (
            lambda ids, pad: (ids != pad)[:, None, None, :]
        ),
        "The padding is not hidden: compare ids with pad_id.": (
            lambda ids, pad: _causal_alone(ids)
        ),
        _AS_QUERY: lambda ids, pad: _padded_queries(ids, pad) & _causal_alone(ids),
        _AS_BOTH: lambda ids, pad: _padded_queries(ids, pad) & _batch(ids, pad),
        _BOTH_ALLOW: lambda ids, pad: _padding_alone(ids, pad) | _causal_alone(ids),
        "The pad id is written into your code; take the one you are given.": (
            lambda ids, pad: _batch(ids, 0)
        ),
        "True stands where the padding is; a key that is *not* padding may be attended to (!=).": (
            lambda ids, pad: ~_padding_alone(ids, pad) & _causal_alone(ids)
        ),
        _NO_HEADS: lambda ids, pad: _batch(ids, pad)[:, 0],
        _POLARITY: lambda ids, pad: ~_batch(ids, pad),
        _BIAS: lambda ids, pad: _bias(_batch(ids, pad)),
    },
    hints=(
        "There are two conditions for a pair: the key is not padding, and it does not stand "
        "after the query.",
        "The padding is a matter of keys, the last axis: `(B, 1, 1, T)`. The causal mask is "
        "`(T, T)`, the same for every text. Together they broadcast to `(B, 1, T, T)`.",
        "Join `(ids != pad_id)[:, None, None, :]` and the causal mask of exercise 1 by `&`.",
    ),
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
        "A window of w means w keys in all, the position's own included; you count one more.": (
            lambda length, window: _pairs(length, window + 1)
        ),
        "A window of w means w keys in all, the position's own included; you count one less.": (
            lambda length, window: _pairs(length, window - 1)
        ),
        "Those are the pairs on both sides; the mask is causal, too.": (
            lambda length, window: 2 * _pairs(length, window) - length
        ),
    },
    hints=(
        "Draw it for 6 positions and a window of 3, and count row by row: how many keys does "
        "each query have?",
        "The first `window` rows are a triangle of 1, 2, 3, ... keys; each of the others has "
        "`window` keys. What if `window` is larger than `length`?",
        "With `near = min(length, window)` the triangle has `near * (near + 1) // 2` pairs. "
        "Add the rows that are left, `length - near` of them.",
    ),
)


def _softmax(scores: Tensor, mask: Tensor, *, hidden: float = -math.inf) -> Tensor:
    return scores.masked_fill(~mask, hidden).softmax(dim=-1)


def _guarded(scores: Tensor, mask: Tensor) -> Tensor:
    empty = ~mask.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(mask | empty), -math.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


def _guarded_over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    return _guarded(scores.mT, mask.mT).mT


_MASK = torch.tensor(
    [[True, False, True, False], [False, False, False, False], [True, True, True, True]],
    device="cpu",
)


def _with_history(*shape: int) -> tuple[Tensor, Tensor]:
    """Scores that want a gradient, but are no leaf, so that an answer may change them in place."""
    (scores,) = random_inputs(shape)
    return scores.requires_grad_() * 1, _MASK.clone()


def _forwards_and_backwards(weights: object) -> dict[str, object]:
    """The weights, and whether a NaN is met when a gradient is sent back through them."""
    met: list[bool] = []
    if isinstance(weights, Tensor) and weights.requires_grad:
        for node in _nodes(weights.grad_fn):
            node.register_hook(
                lambda grads, _: met.extend(bool(g.isnan().any()) for g in grads if g is not None)
            )
        upstream = torch.arange(weights.numel(), dtype=weights.dtype, device="cpu")
        torch.autograd.backward(weights, upstream.view_as(weights))
    return {"weights": weights, "NaN on the way": int(any(met))}


def _nodes(last: Any) -> set[Any]:
    """All steps of a computation that autograd goes back through."""
    found, waiting = set(), [last]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(before for before, _ in node.next_functions)
    return found


SOFTMAX = Exercise(
    reference=_guarded,
    inputs=[lambda: _with_history(3, 4), lambda: _with_history(2, 3, 4)],
    mistakes={
        "A row with no allowed key shares its weight evenly; it should be all zeros.": (
            lambda scores, mask: _softmax(scores, mask, hidden=-1e4)
        ),
        "The mask comes after the softmax, so the rows no longer sum to 1: hide the scores.": (
            lambda scores, mask: scores.softmax(dim=-1) * mask
        ),
        _POLARITY: lambda scores, mask: _guarded(scores, ~mask),
        "The row without a key is an ordinary softmax; its weights must become zeros.": (
            lambda scores, mask: _softmax(scores, mask | ~mask.any(dim=-1, keepdim=True))
        ),
        "Hidden scores are set to 0, but exp(0) is 1: hide them with -inf.": (
            lambda scores, mask: _softmax(scores, mask, hidden=0.0)
        ),
        "Hidden scores are multiplied by 0, but exp(0) is 1: hide them with -inf.": (
            lambda scores, mask: (scores * mask).softmax(dim=-1).masked_fill(~mask, 0.0)
        ),
        "The softmax runs over the queries; each query's row must sum to 1, so dim=-1.": (
            _guarded_over_queries
        ),
        "The mask is not used: hidden keys get weight.": (
            lambda scores, mask: scores.softmax(dim=-1)
        ),
        "A softmax over -inf alone is NaN: a row without a key needs finite scores before the "
        "softmax and zeros after it.": _softmax,
        "The weights are right, but there was NaN on the way: a row of -inf alone went through the "
        "softmax and was covered up later. Give such a row finite scores before the softmax.": (
            lambda scores, mask: _softmax(scores, mask).nan_to_num(0.0)
        ),
    },
    hints=(
        "Hide scores with -inf *before* the softmax. Which rows would that make NaN?",
        "Find the rows without an allowed key. Let them keep their scores through the softmax, "
        "so that no NaN ever exists, and set their weights to zero afterwards.",
        "`empty = ~mask.any(dim=-1, keepdim=True)` finds them; `scores.masked_fill(~(mask | "
        "empty), -math.inf)` goes into the softmax; a second `masked_fill` follows it.",
    ),
    measure=_forwards_and_backwards,
)


def _cached(n_queries: int, n_keys: int) -> Tensor:
    return _distances(n_queries, n_keys, n_keys - n_queries) >= 0


CACHED = Exercise(
    reference=_cached,
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
            lambda n_queries, n_keys: torch.ones(n_queries, n_keys, dtype=torch.bool, device="cpu")
        ),
        "The shape is turned round: one row for each query, one column for each key.": (
            lambda n_queries, n_keys: _cached(n_queries, n_keys).mT
        ),
        "That is the mask of all positions; only the last rows are new queries.": (
            lambda n_queries, n_keys: _cached(n_keys, n_keys)
        ),
        _POLARITY: lambda n_queries, n_keys: ~_cached(n_queries, n_keys),
        _BIAS: lambda n_queries, n_keys: _bias(_cached(n_queries, n_keys)),
    },
    hints=(
        "The new positions are the *last* ones. At which place of the whole text does the first "
        "of them stand?",
        "Give queries and keys their places in the whole text: keys have 0 to `n_keys - 1`, "
        "queries the last `n_queries` of these. Then compare as in a causal mask.",
        "With `keys = torch.arange(n_keys)` the queries are `keys[n_keys - n_queries :]`; compare "
        "them as a column with `keys`.",
    ),
)


def _translate(ignore: Tensor, forbid: Tensor) -> Tensor:
    return ~ignore[:, None, None, :] & ~forbid


_IGNORE = torch.tensor([[False, False, True], [False, True, True]], device="cpu")
_FORBID = _distances(3, 3) < 0
_OTHER_IGNORE = torch.tensor(
    [[False, True, False, True], [True, False, False, False], [False, False, False, True]],
    device="cpu",
)
_OTHER_FORBID = _distances(2, 4, 1) < 0
TRANSLATE = Exercise(
    reference=_translate,
    inputs=[(_IGNORE, _FORBID), (_OTHER_IGNORE, _OTHER_FORBID)],
    mistakes={
        "Both masks still say True = ignore: turn them round with ~.": (
            lambda ignore, forbid: ignore[:, None, None, :] & forbid
        ),
        "That is PyTorch's meaning with our shape: True must mean may attend.": (
            lambda ignore, forbid: ignore[:, None, None, :] | forbid
        ),
        _BOTH_ALLOW: lambda ignore, forbid: ~ignore[:, None, None, :] | ~forbid,
        _AS_QUERY: lambda ignore, forbid: ~ignore[:, None, :, None] & ~forbid,
        "Only the padding is turned round; the other mask says True = forbidden too.": (
            lambda ignore, forbid: ~ignore[:, None, None, :] & forbid
        ),
        "Only the second mask is turned round; the padding says True = ignore too.": (
            lambda ignore, forbid: ignore[:, None, None, :] & ~forbid
        ),
        _NO_HEADS: lambda ignore, forbid: ~ignore[:, None, :] & ~forbid,
        "key_padding_mask is not used: padding must be hidden, too.": (
            lambda ignore, forbid: (~forbid).expand(len(ignore), 1, -1, -1)
        ),
        "attn_mask is not used: a pair is allowed only if both masks allow it.": (
            lambda ignore, forbid: ~ignore[:, None, None, :].expand(-1, 1, *forbid.shape)
        ),
    },
    hints=(
        "Turn both masks round first. When is a pair allowed: if one of them allows it, or both?",
        "`key_padding_mask` speaks of keys, the last axis: it becomes `(B, 1, 1, S)`. "
        "`attn_mask`, `(T, S)`, broadcasts as it is.",
        "`~` turns a mask round, `&` joins two, and `key_padding_mask[:, None, None, :]` has the "
        "axes.",
    ),
)
