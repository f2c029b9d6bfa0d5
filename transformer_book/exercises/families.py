"""Exercises of chapter 15, Three architectures."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Answer, Exercise, random_inputs
from transformer_book.objectives import corrupt_spans
from transformer_lib import IGNORE


def _pairs(n_source: int, n_target: int) -> tuple[int, int, int]:
    triangle = n_target * (n_target + 1) // 2
    both = n_source * n_source + n_target * n_source + triangle
    whole = n_source + n_target
    return both, both, whole * (whole + 1) // 2


def _pairs_with(change: Callable[[int, int, int, int, int], Sequence[int]]) -> Answer:
    """A mistake made from both lengths and the three right numbers."""
    return lambda s, t: torch.tensor(change(s, t, *_pairs(s, t)))


PAIRS = Exercise(
    reference=_pairs,
    inputs=[(3, 2), (5, 4), (1, 6)],
    mistakes={
        "The order is encoder-decoder, prefix, causal.": _pairs_with(
            lambda s, t, two, prefix, causal: (causal, prefix, two)
        ),
        "A position sees itself, too: a triangle of n positions has n (n + 1) / 2 pairs.": (
            _pairs_with(lambda s, t, *right: (right[0] - t, right[1] - t, right[2] - s - t))
        ),
        "Cross-attention is missing: every target position sees all of the source.": _pairs_with(
            lambda s, t, two, prefix, causal: (two - s * t, prefix, causal)
        ),
        "With a prefix mask the source's positions see each other in both directions.": (
            _pairs_with(lambda s, t, two, prefix, causal: (two, causal, causal))
        ),
        "An encoder has no causal mask: the source's positions see each other in both ways.": (
            _pairs_with(lambda s, t, two, prefix, causal: (causal, prefix, causal))
        ),
        "The target is causal in all three: no position of it sees a later one.": _pairs_with(
            lambda s, t, *_: (s * s + t * s + t * t, (s + t) ** 2, (s + t) ** 2)
        ),
        "The target is causal in a prefix model, too: only the source's part is open.": (
            _pairs_with(lambda s, t, two, prefix, causal: (two, (s + t) ** 2, causal))
        ),
        "The target's attention to itself is missing.": _pairs_with(
            lambda s, t, *_: (s * s + t * s, s * s + t * s, (s + t) * (s + t + 1) // 2)
        ),
    },
    hints=(
        "Draw the table of pairs for 3 source and 2 target tokens: rows ask, columns answer. Which "
        "squares are full, and which are triangles?",
        "The source sees itself, n_source² pairs, unless it is causal, too. The target sees the "
        "whole source and, of itself, a triangle.",
        "A triangle of n positions has `n * (n + 1) // 2` pairs. In a causal decoder there is one "
        "triangle, of `n_source + n_target` positions.",
    ),
    returns=(
        "pairs of the encoder-decoder",
        "pairs of the prefix model",
        "pairs of the causal decoder",
    ),
)


def _answer_targets(prompt: Tensor, answer: Tensor) -> Tensor:
    targets = torch.cat([prompt, answer])[1:]
    targets[: len(prompt) - 1] = IGNORE
    return targets


def _ids(*ids: int) -> Tensor:
    return torch.tensor(ids, device="cpu")


def _from(prompt: Tensor, answer: Tensor, start: int, filled: int = IGNORE) -> Tensor:
    targets = torch.cat([prompt, answer])[1:]
    targets[:start] = filled
    return targets


ANSWER_TARGETS = Exercise(
    reference=_answer_targets,
    inputs=[
        (_ids(5, 6, 3), _ids(8, 9, 2)),
        (_ids(5, 3), _ids(7, 2)),
        (_ids(4), _ids(8, 6, 2)),
    ],
    mistakes={
        "Nothing is shifted: each position is asked for the token it reads.": (
            lambda p, a: torch.cat([torch.full_like(p, IGNORE), a])
        ),
        "The prompt is asked for, too: put IGNORE where the next token belongs to the prompt.": (
            lambda p, a: torch.cat([p, a])[1:]
        ),
        "One too many is ignored: the last token of the prompt is asked for the first of the "
        "answer.": lambda p, a: _from(p, a, len(p)),
        "One too few is ignored: the last token of the prompt is still a target.": (
            lambda p, a: _from(p, a, len(p) - 2)
        ),
        "0 is a token like others: put IGNORE where nothing is asked.": (
            lambda p, a: _from(p, a, len(p) - 1, filled=0)
        ),
        "The answer is ignored and the prompt asked for; it is the other way round.": (
            lambda p, a: torch.cat([p[1:], torch.full_like(a, IGNORE)])
        ),
        "These are the targets of the answer alone; the places of the prompt need targets, too: "
        "IGNORE.": lambda p, a: a,
    },
    hints=(
        "Write prompt and answer in a row, and below each token the one that follows. Below which "
        "tokens does a token of the prompt stand?",
        "The targets are the whole sequence without its first token. The first ones belong to the "
        "prompt: one fewer than the prompt has tokens.",
        "`torch.cat([prompt, answer])[1:]`, then `IGNORE` in its first `len(prompt) - 1` places.",
    ),
)


def _masked(ids: Tensor, chosen: Tensor, fate: Tensor, other: Tensor, mask_id: int) -> Tensor:
    hidden = ids.masked_fill(chosen & (fate < 0.8), mask_id)
    return torch.where(chosen & (fate >= 0.8) & (fate < 0.9), other, hidden)


_TOKENS = torch.arange(10, 22, device="cpu").view(2, 6)
_CHOSEN = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 0]], dtype=torch.bool, device="cpu")
_FATE = torch.tensor(
    [[0.1, 0.85, 0.95, 0.5, 0.2, 0.85], [0.95, 0.81, 0.79, 0.1, 0.99, 0.83]], device="cpu"
)
_OTHER = torch.arange(30, 42, device="cpu").view(2, 6)
_BORDERS = torch.tensor([[0.8, 0.9], [0.0, 1.0]], device="cpu")

MASKED = Exercise(
    reference=_masked,
    inputs=[
        (_TOKENS, _CHOSEN, _FATE, _OTHER, 4),
        (_TOKENS.view(3, 4), _CHOSEN.view(3, 4), _FATE.view(3, 4), _OTHER.view(3, 4), 3),
        (_TOKENS[:, :2], _CHOSEN[:1, :2].expand(2, 2), _BORDERS, _OTHER[:, :2], 5),
    ],
    mistakes={
        "Every chosen token became [MASK]: 10 per cent of them should be random, and 10 per cent "
        "stay.": lambda ids, c, f, o, m: ids.masked_fill(c, m),
        "Tokens that were not chosen have changed, too: only chosen ones may.": (
            lambda ids, c, f, o, m: _masked(ids, torch.ones_like(c), f, o, m)
        ),
        "The shares are mixed up: below 0.8 it is [MASK], from 0.8 to 0.9 a random token.": (
            lambda ids, c, f, o, m: torch.where(
                c & (f < 0.8), o, ids.masked_fill(c & (f >= 0.8) & (f < 0.9), m)
            )
        ),
        "A fifth of the chosen tokens became random; the upper half of them should stay as they "
        "are.": lambda ids, c, f, o, m: torch.where(
            c & (f >= 0.8), o, ids.masked_fill(c & (f < 0.8), m)
        ),
        "No token became a random one: from 0.8 to 0.9 take the other token.": (
            lambda ids, c, f, o, m: ids.masked_fill(c & (f < 0.8), m)
        ),
        "Here small numbers mean [MASK]: below 0.8 it is, from 0.8 to 0.9 a random token.": (
            lambda ids, c, f, o, m: _masked(ids, c, 1 - f, o, m)
        ),
        "The tokens that were not chosen are hidden; True in chosen may change.": (
            lambda ids, c, f, o, m: _masked(ids, ~c, f, o, m)
        ),
        "The borders are wrong: below 0.8 it is [MASK], from 0.8 to 0.9 a random token, and from "
        "0.9 on a token stays.": (
            lambda ids, c, f, o, m: torch.where(
                c & (f >= 0.9), o, ids.masked_fill(c & (f < 0.9), m)
            )
        ),
    },
    hints=(
        "Only chosen tokens may change. For them `fate` decides between three things; where are "
        "the borders for 80, 10 and 10 per cent?",
        "Below 0.8 a chosen token becomes `mask_id`, from 0.8 to 0.9 it becomes the one in "
        "`other`, and above that it stays.",
        "`ids.masked_fill(chosen & (fate < 0.8), mask_id)` for the first; `torch.where` with "
        "another condition takes `other` for the second.",
    ),
)


def _span_source(
    ids: Sequence[int], spans: Sequence[tuple[int, int]], sentinels: Sequence[int]
) -> Tensor:
    return torch.tensor(corrupt_spans(ids, spans, sentinels)[0])


def _span_target(
    ids: Sequence[int], spans: Sequence[tuple[int, int]], sentinels: Sequence[int]
) -> Tensor:
    written: list[int] = []
    used = 0
    for start, end in spans:
        written += [sentinels[used], *ids[start:end]]
        used += 1
    return torch.tensor([*written, sentinels[used]])


def _without(ids: Sequence[int], sentinels: Sequence[int]) -> Tensor:
    return torch.tensor([token for token in ids if token not in sentinels])


SPAN_TARGET = Exercise(
    reference=_span_target,
    inputs=[
        ([5, 6, 7, 8, 9, 10], [(1, 3), (5, 6)], [90, 91, 92]),
        ([5, 6, 7, 8], [(0, 2)], [80, 81]),
        ([5, 6, 7, 8, 9, 10, 11], [(0, 1), (2, 3), (4, 7)], [70, 71, 72, 73, 74, 75]),
    ],
    mistakes={
        "That is what the encoder reads; asked for is what the decoder writes.": _span_source,
        "The last sentinel is missing: it says that nothing more follows.": (
            lambda ids, spans, s: _span_target(ids, spans, s)[:-1]
        ),
        "The sentinels are missing: without them nobody knows which hole a token fills.": (
            lambda ids, spans, s: _without(_span_target(ids, spans, s).tolist(), s)
        ),
        "Each sentinel stands after its span; it should announce it.": (
            lambda ids, spans, s: torch.tensor(
                [
                    token
                    for (start, end), sentinel in zip(spans, s, strict=False)
                    for token in [*ids[start:end], sentinel]
                ]
                + [s[len(spans)]]
            )
        ),
        "The spans are one token too long: the second number of a span is the place after its "
        "last token.": (
            lambda ids, spans, s: torch.tensor(
                [
                    token
                    for (start, end), sentinel in zip(spans, s, strict=False)
                    for token in [sentinel, *ids[start : end + 1]]
                ]
                + [s[len(spans)]]
            )
        ),
        "The answer ends with the sentinel that comes next, not with the last of all.": (
            lambda ids, spans, s: torch.tensor([*_span_target(ids, spans, s)[:-1].tolist(), s[-1]])
        ),
        "All sentinels are written; those of the spans and one more are enough.": (
            lambda ids, spans, s: torch.tensor(
                [*_span_target(ids, spans, s).tolist(), *s[len(spans) + 1 :]]
            )
        ),
        "Every span has a sentinel of its own.": (
            lambda ids, spans, s: torch.tensor(
                [t for start, end in spans for t in [s[0], *ids[start:end]]] + [s[1]]
            )
        ),
    },
    hints=(
        "The decoder says for each hole which one it is, and then what was in it.",
        "For each span write its sentinel, then the tokens that were cut out. The answer ends with "
        "the first sentinel that stands for no span.",
        "For span number i that is `[sentinels[i], *ids[start:end]]`; the last one is "
        "`sentinels[len(spans)]`.",
    ),
)


def _last(x: Tensor, lengths: Tensor) -> Tensor:
    return x[torch.arange(len(x)), lengths - 1]


LAST = Exercise(
    reference=_last,
    inputs=[  # texts without a full one first: there an index that is one too far can run
        (*random_inputs((2, 4, 3)), _ids(1, 3)),
        (*random_inputs((3, 5, 2)), _ids(5, 2, 4)),
    ],
    mistakes={
        "That is the last place of the row, which may be padding; take the last real token.": (
            lambda x, n: x[:, -1]
        ),
        "That is the first token. In a decoder it has seen nothing but itself.": (
            lambda x, n: x[:, 0]
        ),
        "One too far: a text of n tokens ends at place n - 1.": (
            lambda x, n: x[torch.arange(len(x)), n]
        ),
        "That is the mean over all places, padding included.": lambda x, n: x.mean(dim=1),
        "That takes each place from every text; pair them: x[torch.arange(len(x)), lengths - 1].": (
            lambda x, n: x[:, n - 1]
        ),
        "That is the mean over the real tokens; the last of them is asked for.": (
            lambda x, n: torch.stack([row[:end].mean(dim=0) for row, end in zip(x, n, strict=True)])
        ),
        "There is one axis too many: take the vector, not a slice of one place.": (
            lambda x, n: _last(x, n)[:, None]
        ),
    },
    hints=(
        "A text of n real tokens has its last one at place n - 1. Each row has another n.",
        "You need one place from each row: row 0 at `lengths[0] - 1`, row 1 at `lengths[1] - 1`, "
        "and so on. Two index tensors of shape (B,) do that at once.",
        "The rows are `torch.arange(len(x))`; use it as the first index of `x`, and `lengths - 1` "
        "as the second.",
    ),
)
