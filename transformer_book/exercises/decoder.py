"""Exercises of chapter 12, The decoder and cross-attention."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from transformer_book.exercises.grading.checking import Arguments, Exercise
from transformer_book.exercises.grading.slips import (
    attend,
    mask_slips,
    mixing_slips,
    scale_slips,
)
from transformer_lib import IGNORE


def _open_cells(source_lengths: Sequence[int], n_targets: int) -> tuple[int, int]:
    own = len(source_lengths) * (n_targets * (n_targets + 1) // 2)
    return own, n_targets * sum(source_lengths)


OPEN_CELLS = Exercise(
    reference=_open_cells,
    returns=("self-attention", "cross-attention"),
    inputs=[([3, 1], 4), ([5], 2), ([2, 2, 6], 1), ([4, 1, 3], 5)],
    mistakes={
        "The causal mask opens the diagonal, too: a position sees itself.": lambda s, n: (
            len(s) * (n * (n - 1) // 2),
            n * sum(s),
        ),
        "Self-attention in a decoder is causal: a position sees itself and what came before.": (
            lambda s, n: (len(s) * n * n, n * sum(s))
        ),
        "Padding does not answer: count the real source tokens only.": lambda s, n: (
            len(s) * (n * (n + 1) // 2),
            n * len(s) * max(s),
        ),
        "Count all sentences of the batch, not one.": lambda s, n: (
            n * (n + 1) // 2,
            n * sum(s),
        ),
        "Each position of the answer sees the source: multiply by how many there are.": (
            lambda s, n: (len(s) * (n * (n + 1) // 2), sum(s))
        ),
        "Cross-attention has no causal mask: also the first position sees the whole source.": (
            lambda s, n: (
                len(s) * (n * (n + 1) // 2),
                sum(min(t + 1, length) for t in range(n) for length in s),
            )
        ),
        "The order is self-attention first, cross-attention second.": (
            lambda s, n: _open_cells(s, n)[::-1]
        ),
    },
    hints=(
        "Draw both masks for one sentence: a triangle, and a rectangle without its padded columns.",
        "A triangle of side n has n (n + 1) / 2 cells. In the rectangle every row has as many open "
        "cells as the source has real tokens.",
        "The second number is `n_targets * sum(source_lengths)`.",
    ),
)


def _asked(
    x: Tensor, memory: Tensor, source: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values, and where the source is real, ``(B, 1, S)``."""
    return x @ w_q, memory @ w_k, memory @ w_v, (source != 0)[:, None]


def _cross_attention(*given: Tensor) -> Tensor:
    found: Tensor = attend(*_asked(*given))
    return found


def _also_causal(*given: Tensor) -> Tensor:
    q, k, v, real = _asked(*given)
    steps = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
    found: Tensor = attend(q, k, v, steps.tril() & real)
    return found


def _sentences(n_targets: int, lengths: Sequence[int], widths: Sequence[int]) -> Arguments:
    """Two sentences and three matrices; the sources are filled up with 0."""
    d, d_k, d_v = widths
    generator = torch.Generator("cpu").manual_seed(n_targets)
    shapes = (2, n_targets, d), (2, max(lengths), d), (d, d_k), (d, d_k), (d, d_v)
    x, memory, *matrices = (torch.randn(shape, generator=generator) for shape in shapes)
    places = torch.arange(max(lengths), device="cpu")
    source = torch.where(places < torch.tensor(lengths, device="cpu")[:, None], places + 7, 0)
    return x, memory, source, *matrices


CROSS_ATTENTION = Exercise(
    reference=_cross_attention,
    inputs=[  # square first: there the mistakes that need equal sizes can run, and are found
        lambda: _sentences(4, (4, 2), (4, 4, 4)),
        lambda: _sentences(3, (5, 2), (6, 2, 3)),
    ],
    mistakes={
        "That is self-attention: keys and values must come from `memory`.": (
            lambda x, m, s, q, k, v: _cross_attention(x, x, s, q, k, v)
        ),
        "That is self-attention of the memory: the queries must come from `x`.": (
            lambda x, m, s, q, k, v: _cross_attention(m, m, s, q, k, v)
        ),
        "x and memory are swapped: the answer asks, so queries come from `x`.": (
            lambda x, m, s, q, k, v: _cross_attention(m, x, s, q, k, v)
        ),
        "The values come from `x`; what is found must come from the source, from `memory`.": (
            lambda x, m, s, q, k, v: attend(x @ q, m @ k, x @ v, (s != 0)[:, None])
        ),
        "Cross-attention has no causal mask: also the first position sees the whole source.": (
            _also_causal
        ),
        "The mask lies along the answer: it must hide columns, so it needs the shape (B, 1, S).": (
            lambda *given: attend(*_asked(*given)[:3], (given[2] != 0)[..., None])
        ),
        "The padding of one sentence is hidden in all: each sentence has a mask of its own.": (
            lambda *given: attend(*_asked(*given)[:3], (given[2] != 0).all(dim=0))
        ),
        **scale_slips(_asked),
        **mask_slips(_asked),
        **mixing_slips(lambda *given: _asked(*given)[:3]),
    },
    hints=(
        "Without padding it is three products, a softmax and a fourth product. Which of them use "
        "`x`, which `memory`? Then ask which scores must not count.",
        "The scores are (B, T, S). `source == 0` is (B, S): with `[:, None]` it is (B, 1, S), and "
        "the same columns are hidden in each row of a sentence.",
        "`scores.masked_fill((source == 0)[:, None], -math.inf).softmax(dim=-1) @ (memory @ w_v)`, "
        "with `scores = (x @ w_q) @ (memory @ w_k).mT / math.sqrt(w_q.shape[1])`.",
    ),
)


_NOISE = torch.randn((5, 4), generator=torch.Generator("cpu").manual_seed(0))


def _future_links(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    before, found = function(x), 0
    for j in range(x.shape[1]):
        changed = x.clone()
        changed[:, j] += _NOISE[j].to(x)
        moved = (function(changed) - before).abs().amax(dim=(0, 2)) > 1e-6
        found += int(moved[:j].sum())
    return found


def _running_mean(x: Tensor) -> Tensor:
    counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
    return x.cumsum(dim=1) / counts


def _peeks(x: Tensor) -> Tensor:
    """Causal but for position 1, which also sees the last one."""
    seen = _running_mean(x).clone()
    seen[:, 1] += x[:, -1]
    return seen


def _normed_mean(x: Tensor) -> Tensor:
    """Everybody sees everything, behind a norm."""
    normed = F.layer_norm(x, x.shape[-1:])
    return normed + normed.mean(dim=1, keepdim=True)


def _table(function: Callable[[Tensor], Tensor], x: Tensor, alike: bool = False) -> Tensor:
    """Which output moves with which input, ``(T, T)``; on request all features get the same."""
    columns = []
    for j in range(x.shape[1]):
        changed = x.clone()
        changed[:, j] += 1.0 if alike else _NOISE[j].to(x)
        columns.append((function(changed) - function(x)).abs().amax(dim=(0, 2)) > 1e-6)
    return torch.stack(columns, dim=1)


def _scaled(x: Tensor) -> Tensor:
    """Each vector is multiplied by the mean of all: no link is seen where the vectors are zero."""
    return x * x.mean(dim=1, keepdim=True)


_STREAM = torch.randn((1, 5, 4), generator=torch.Generator("cpu").manual_seed(1))

FUTURE_LINKS = Exercise(
    reference=_future_links,
    inputs=[
        lambda: (_running_mean, _STREAM.clone()),
        lambda: (_peeks, _STREAM.clone()),
        lambda: (_normed_mean, _STREAM.clone()),
        lambda: (_scaled, _STREAM.clone()),
    ],
    mistakes={
        "You added the same number to all features. A norm takes that away, so the change is not "
        "seen: add different numbers.": (
            lambda f, x: int(_table(f, x, alike=True).triu(diagonal=1).sum())
        ),
        "Those are the links to the past: look at the outputs before the changed input.": (
            lambda f, x: int(_table(f, x).tril(diagonal=-1).sum())
        ),
        "A position may see itself: leave the diagonal out.": (
            lambda f, x: int(_table(f, x).triu().sum())
        ),
        "Only the neighbour was looked at: every output before the changed input counts.": (
            lambda f, x: int(_table(f, x).diagonal(offset=1).sum())
        ),
        "Only the last input was changed: change each in turn.": (
            lambda f, x: int(_table(f, x)[:-1, -1].sum())
        ),
        "Those are all links, the past included.": lambda f, x: int(_table(f, x).sum()),
        "A verdict is not asked for: count the links.": (lambda f, x: int(_future_links(f, x) > 0)),
    },
    hints=(
        "Change one input at a time. Which outputs must not move?",
        "With `before = function(x)`, copy `x`, add random numbers at position j, and compare the "
        "outputs 0 to j - 1 with those of `before`.",
        "`moved = (function(changed) - before).abs().amax(dim=(0, 2)) > 1e-6`, then add "
        "`int(moved[:j].sum())`.",
    ),
)


def _shift(target: Tensor, bos_id: int, eos_id: int) -> Tensor:
    reads, answers = F.pad(target, (1, 0), value=bos_id), F.pad(target, (0, 1), value=eos_id)
    return torch.stack([reads, answers])


def _ids(*ids: int) -> Tensor:
    return torch.tensor(ids, device="cpu")


SHIFT = Exercise(
    reference=_shift,
    inputs=[(_ids(7, 8, 9), 1, 2), (_ids(5, 6), 3, 4)],
    mistakes={
        "Nothing is shifted: the decoder reads the very letter it should answer.": (
            lambda t, b, e: torch.stack([F.pad(t, (0, 1), value=e)] * 2)
        ),
        "The rows are swapped: the first one is read, the second one is answered.": (
            lambda t, b, e: _shift(t, b, e).flip(0)
        ),
        "The end is read and never asked for: the model would not learn to stop.": (
            lambda t, b, e: torch.stack([F.pad(t, (1, 0), value=b), F.pad(t, (1, 0), value=e)])
        ),
        "The end token is missing from the answers: the model would not learn to stop.": (
            lambda t, b, e: torch.stack([F.pad(t[:-1], (1, 0), value=b), t])
        ),
        "The start token is missing: nothing comes before the first letter, so something must "
        "stand there.": (lambda t, b, e: torch.stack([t[:-1], t[1:]])),
        "Start and end are mixed up.": lambda t, b, e: _shift(t, e, b),
        "Those are two tensors; stack them as the rows of one.": (
            lambda t, b, e: tuple(_shift(t, b, e))
        ),
        "Both rows have start and end, so the places do not differ: the decoder would read the "
        "very letter it should answer.": (
            lambda t, b, e: torch.stack([F.pad(F.pad(t, (1, 0), value=b), (0, 1), value=e)] * 2)
        ),
    },
    hints=(
        "At each place the decoder has read what came before and answers the next letter. What has "
        "it read when it answers the first one? What should it answer after the last?",
        "The first row begins with `bos_id` and the second ends with `eos_id`. Both are one longer "
        "than `target`.",
        "`F.pad(target, (1, 0), value=bos_id)` puts one entry in front; the other row needs one "
        "behind. Join them with `torch.stack`.",
    ),
)


def _exact_match(answers: Tensor, targets: Tensor) -> Tensor:
    return ((answers == targets) | (targets == IGNORE)).all(dim=1).double().mean()


_TARGETS = torch.tensor(
    [[7, 8, 2, IGNORE], [9, 6, 5, 2], [4, 2, IGNORE, IGNORE], [6, 2, IGNORE, IGNORE]], device="cpu"
)
_ANSWERS = torch.tensor([[7, 8, 2, 2], [9, 6, 6, 2], [4, 2, 4, 4], [5, 2, 5, 5]], device="cpu")

EXACT_MATCH = Exercise(
    reference=_exact_match,
    inputs=[
        (_ANSWERS, _TARGETS),
        (_ANSWERS[:3], _TARGETS[:3]),
        (torch.cat([_ANSWERS, _TARGETS[1:2]]), torch.cat([_TARGETS, _TARGETS[1:2]])),
    ],
    mistakes={
        "Padding counts as wrong: where the target says ignore, every answer is fine.": (
            lambda a, t: (a == t).all(dim=1).double().mean()
        ),
        "That is the share of right letters; a word is right if all of its letters are.": (
            lambda a, t: ((a == t) & (t != IGNORE)).sum().double() / (t != IGNORE).sum()
        ),
        "That is how many words are right; divide by the number of words.": (
            lambda a, t: ((a == t) | (t == IGNORE)).all(dim=1).sum().double()
        ),
        "That is the share of words with at least one right letter.": (
            lambda a, t: ((a == t) & (t != IGNORE)).any(dim=1).double().mean()
        ),
        "That is the share of words with a mistake in them.": (lambda a, t: 1 - _exact_match(a, t)),
        "A word is a row: look along dim=1, not dim=0.": (
            lambda a, t: ((a == t) | (t == IGNORE)).all(dim=0).double().mean()
        ),
        "One wrong letter anywhere makes everything wrong: ask word by word, all(dim=1).": (
            lambda a, t: ((a == t) | (t == IGNORE)).all().double()
        ),
        "Padding counts as wrong, and letters are counted instead of words.": (
            lambda a, t: (a == t).double().mean()
        ),
        "Padding counts as a right letter, and letters are counted instead of words.": (
            lambda a, t: ((a == t) | (t == IGNORE)).double().mean()
        ),
    },
    hints=(
        "Up to its first mistake a model reads the same, taught or by itself. So its own answer is "
        "perfect exactly where the taught one has no mistake at all.",
        "A place is fine if the answer is the target, or if the target is `IGNORE`. A word is "
        "perfect if all of its places are fine.",
        "Of the boolean tensor of fine places take `.all(dim=1)`, then the mean over the words.",
    ),
)
