"""Exercises of chapter 05, Masks."""

import math
from typing import Any

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs
from transformer_lib import IGNORE

_POLARITY = "The polarity is turned round: True means may attend."
_BIAS = "These are numbers to be added to scores; here a mask is boolean: True means may attend."
_BOTH_ALLOW = "The masks are joined by |: a pair is allowed only if both allow it (&)."
_NO_HEADS = "The axis of the heads is missing: return (B, 1, T, S)."
_AS_QUERY = "Padding is hidden as a query; it must be hidden as a key: (B, 1, 1, S)."


def _distances(n_queries: int, n_keys: int, first: int = 0) -> Tensor:
    """How far each key stands before each query, if the first query stands at ``first``."""
    queries, keys = (torch.arange(n, device="cpu") for n in (n_queries, n_keys))
    return first + queries[:, None] - keys


def _bias(mask: Tensor) -> Tensor:
    """A mask as numbers to be added to scores."""
    return torch.zeros(mask.shape, device="cpu").masked_fill(~mask, -math.inf)


def _sinks(n: int, window: int, sinks: int) -> Tensor:
    distances = _distances(n, n)
    first = torch.arange(n, device="cpu") < sinks
    return (distances >= 0) & ((distances < window) | first)


SINKS = Exercise(
    reference=_sinks,
    inputs=[(7, 3, 2), (1, 1, 1), (6, 2, 0), (5, 2, 4)],
    mistakes={
        "The future is seen: the rule for the first tokens needs the causal rule, too (&).": (
            lambda n, window, sinks: (
                _sinks(n, window, sinks) | (torch.arange(n, device="cpu") < sinks)
            )
        ),
        "The first tokens are forgotten when they leave the window: join the two rules by |.": (
            lambda n, window, sinks: _sinks(n, window, 0)
        ),
        "Only the first tokens are seen; the window is missing.": (
            lambda n, window, sinks: (
                (_distances(n, n) >= 0) & (torch.arange(n, device="cpu") < sinks)
            )
        ),
        "A window of w means w keys, the position's own included; you show one more.": (
            lambda n, window, sinks: _sinks(n, window + 1, sinks)
        ),
        "A window of w means w keys, the position's own included; you show one less.": (
            lambda n, window, sinks: _sinks(n, window - 1, sinks)
        ),
        "You keep one sink too many: the first `sinks` tokens have the numbers below it.": (
            lambda n, window, sinks: _sinks(n, window, sinks + 1)
        ),
        "It is transposed: rows are queries, and a query sees the keys before it.": (
            lambda n, window, sinks: _sinks(n, window, sinks).mT
        ),
        _POLARITY: lambda n, window, sinks: ~_sinks(n, window, sinks),
        "Nothing is hidden.": (
            lambda n, window, sinks: torch.ones(n, n, dtype=torch.bool, device="cpu")
        ),
        _BIAS: lambda n, window, sinks: _bias(_sinks(n, window, sinks)),
    },
    hints=(
        "Say it as a sentence with *and* and *or*: not the future, and near enough or one of the "
        "first.",
        "With `i = torch.arange(n)[:, None]` and `j = torch.arange(n)` each rule is a comparison; "
        "put the *or* into brackets.",
        "`(j <= i) & ((i - j < window) | ...)`.",
    ),
)


def _floor(probabilities: Tensor, lengths: Tensor) -> Tensor:
    return -(probabilities * probabilities.log()).sum() / (probabilities * lengths).sum()


_CHANCES = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64, device="cpu")
_LENGTHS = torch.tensor([3.0, 5.0, 4.0, 9.0], dtype=torch.float64, device="cpu")
_TWO = torch.tensor([0.9, 0.1], dtype=torch.float64, device="cpu")
FLOOR = Exercise(
    reference=_floor,
    inputs=[(_CHANCES, _LENGTHS), (_TWO, _LENGTHS[2:])],
    mistakes={
        "That is the floor of equally likely texts; weigh each by its probability.": (
            lambda p, n: math.log(len(p)) / (p * n).sum()
        ),
        "Those are the nats of a whole text: divide by the letters of a text.": (
            lambda p, n: -(p * p.log()).sum()
        ),
        "You divide each text by its own length; all nats are divided by all letters.": (
            lambda p, n: -(p * p.log() / n).sum()
        ),
        "The lengths are not weighed: frequent texts bring more letters.": (
            lambda p, n: -(p * p.log()).sum() / n.mean()
        ),
        "Nats use the natural logarithm.": lambda p, n: _floor(p, n) / math.log(2),
        "A floor is not negative: the logarithm of a probability is.": (lambda p, n: -_floor(p, n)),
        "Every text counts once in your sum; weigh -ln p by p.": (
            lambda p, n: -p.log().sum() / (p * n).sum()
        ),
    },
    hints=(
        "Write down a long list in which each text stands as often as its probability says. How "
        "many nats does it cost at least, and how many letters has it?",
        "A text of probability p costs at least -ln p, and stands in the list p times in all.",
        "Divide the sum of `-p * p.log()` by the sum of `p * lengths`.",
    ),
)


def _starts(cu_seqlens: Tensor) -> Tensor:
    lengths = cu_seqlens.diff()
    places = torch.arange(int(cu_seqlens[-1]), device="cpu")
    return places - cu_seqlens[:-1].repeat_interleave(lengths)


def _numbers(cu_seqlens: Tensor) -> Tensor:
    lengths = cu_seqlens.diff()
    return torch.arange(len(lengths), device="cpu").repeat_interleave(lengths)


STARTS = Exercise(
    reference=_starts,
    inputs=[
        (torch.tensor([0, 3, 5, 9], device="cpu"),),
        (torch.tensor([0, 4], device="cpu"),),
        (torch.tensor([0, 1, 6], device="cpu"),),
    ],
    mistakes={
        "Positions run on from one text into the next; each text starts at 0 again.": (
            lambda cu: torch.arange(int(cu[-1]), device="cpu")
        ),
        "Those are the numbers of the texts; we want the place within each.": _numbers,
        "Positions count from 0, not from 1.": lambda cu: _starts(cu) + 1,
        "Those are the places where the texts start; subtract them from 0, 1, 2, ...": (
            lambda cu: cu[:-1].repeat_interleave(cu.diff())
        ),
        "You subtract the end of each text; subtract its start.": (
            lambda cu: torch.arange(int(cu[-1]), device="cpu") - cu[1:].repeat_interleave(cu.diff())
        ),
    },
    hints=(
        "Number all tokens 0, 1, 2, ... and subtract from each the place where its text starts.",
        "The starts are `cu_seqlens[:-1]`, the lengths `cu_seqlens.diff()`.",
        "`repeat_interleave(lengths)` writes each start as often as its text has tokens.",
    ),
)


def _shift(ids: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    return ids[:, :-1], _marked(ids[:, 1:], pad_id)


def _marked(targets: Tensor, pad_id: int) -> Tensor:
    return targets.masked_fill(targets == pad_id, IGNORE)


_TEXTS = torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0], [1, 9, 4, 2, 0]], device="cpu")
_OTHER_TEXTS = torch.tensor([[1, 0, 7, 2, 3, 3], [1, 4, 0, 5, 6, 2]], device="cpu")  # 0 is a word
SHIFT = Exercise(
    reference=_shift,
    inputs=[(_TEXTS, 0), (_OTHER_TEXTS, 3)],
    mistakes={
        "Nothing is shifted: each position is asked for the token that it reads.": (
            lambda ids, pad_id: (ids[:, :-1], _marked(ids[:, :-1], pad_id))
        ),
        "It is shifted the wrong way: each position is asked for the token before it.": (
            lambda ids, pad_id: (ids[:, 1:], _marked(ids[:, :-1], pad_id))
        ),
        "The two are swapped: return what is read first, then what must be said.": (
            lambda ids, pad_id: _shift(ids, pad_id)[::-1]
        ),
        "Padding is asked for: write -100 where the answer is padding.": (
            lambda ids, pad_id: (ids[:, :-1], ids[:, 1:])
        ),
        "You look for padding in what is read; look in the answers. The first padding is still "
        "asked for.": (
            lambda ids, pad_id: (
                ids[:, :-1],
                ids[:, 1:].masked_fill(ids[:, :-1] == pad_id, IGNORE),
            )
        ),
        "What is read holds -100, which is no token; only answers are marked.": (
            lambda ids, pad_id: tuple(_marked(part, pad_id) for part in (ids[:, :-1], ids[:, 1:]))
        ),
        "You take 0 for padding; use `pad_id`.": lambda ids, pad_id: _shift(ids, 0),
        "It is shifted by two: the answer is the next token, not the one after it.": (
            lambda ids, pad_id: (ids[:, :-2], _marked(ids[:, 2:], pad_id))
        ),
        "Nothing is cut: the last token has no answer, so both have a column less than `ids`.": (
            lambda ids, pad_id: (ids, _marked(ids.roll(-1, dims=1), pad_id))
        ),
        "Rows are cut, not columns: the texts are the rows.": (
            lambda ids, pad_id: (ids[:-1], _marked(ids[1:], pad_id))
        ),
    },
    hints=(
        "Write down one text of the batch. What is the last token that is read, and the first "
        "that must be said?",
        "What is read are all columns but the last; the answers are all but the first. Then look "
        "for `pad_id` in the answers.",
        "`targets = ids[:, 1:]`, and `targets.masked_fill(targets == pad_id, -100)`.",
    ),
    returns=("reads", "says"),
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
