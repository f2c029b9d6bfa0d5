"""Exercises of chapter 15, Three architectures."""

from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs
from transformer_book.objectives import corrupt_spans
from transformer_lib.data import IGNORE


def _pairs(n_source: int, n_target: int) -> Tensor:
    triangle = n_target * (n_target + 1) // 2
    both = n_source * n_source + n_target * n_source + triangle
    whole = n_source + n_target
    return torch.tensor([both, both, whole * (whole + 1) // 2])


PAIRS = Exercise(
    reference=_pairs,
    inputs=[(3, 2), (5, 4), (1, 6)],
    mistakes={
        "The order is encoder-decoder, prefix, causal.": lambda s, t: _pairs(s, t).flip(0),
        "A position sees itself, too: a triangle of n positions has n (n + 1) / 2 pairs.": (
            lambda s, t: torch.tensor(
                [
                    s * s + t * s + t * (t - 1) // 2,
                    s * s + t * s + t * (t - 1) // 2,
                    (s + t) * (s + t - 1) // 2,
                ]
            )
        ),
        "Cross-attention is missing: every target position sees all of the source.": (
            lambda s, t: _pairs(s, t) - torch.tensor([s * t, 0, 0])
        ),
        "With a prefix mask the source's positions see each other in both directions.": (
            lambda s, t: _pairs(s, t)[[0, 2, 2]]
        ),
        "The target is causal in all three: no position of it sees a later one.": (
            lambda s, t: torch.tensor([s * s + t * s + t * t, (s + t) ** 2, (s + t) ** 2])
        ),
    },
)


def _answer_targets(prompt: Tensor, answer: Tensor) -> Tensor:
    whole = torch.cat([prompt, answer])
    targets = whole[1:].clone()
    targets[: len(prompt) - 1] = IGNORE
    return targets


def _ids(*ids: int) -> Tensor:
    return torch.tensor(ids, device="cpu")


def _from(prompt: Tensor, answer: Tensor, start: int) -> Tensor:
    targets = torch.cat([prompt, answer])[1:].clone()
    targets[: max(start, 0)] = IGNORE
    return targets


ANSWER_TARGETS = Exercise(
    reference=_answer_targets,
    inputs=[(_ids(5, 6, 3), _ids(8, 9, 2)), (_ids(5, 3), _ids(7, 2))],
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
    },
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

MASKED = Exercise(
    reference=_masked,
    inputs=[
        (_TOKENS, _CHOSEN, _FATE, _OTHER, 4),
        (_TOKENS[1:], _CHOSEN[1:], _FATE[1:], _OTHER[1:], 3),
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
    },
)


def _span_source(
    ids: Sequence[int], spans: Sequence[tuple[int, int]], sentinels: Sequence[int]
) -> Tensor:
    return torch.tensor(corrupt_spans(ids, spans, sentinels)[0])


def _span_target(
    ids: Sequence[int], spans: Sequence[tuple[int, int]], sentinels: Sequence[int]
) -> Tensor:
    return torch.tensor(corrupt_spans(ids, spans, sentinels)[1])


def _without(ids: Sequence[int], sentinels: Sequence[int]) -> Tensor:
    return torch.tensor([token for token in ids if token not in sentinels])


SPAN_TARGET = Exercise(
    reference=_span_target,
    inputs=[
        ([5, 6, 7, 8, 9, 10], [(1, 3), (5, 6)], [90, 91, 92]),
        ([5, 6, 7, 8], [(0, 2)], [80, 81]),
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
    },
)


def _last(x: Tensor, lengths: Tensor) -> Tensor:
    return x[torch.arange(len(x)), lengths - 1]


LAST = Exercise(
    reference=_last,
    inputs=[
        (*random_inputs((3, 5, 2)), _ids(5, 2, 4)),
        (*random_inputs((2, 4, 3)), _ids(1, 3)),
    ],
    mistakes={
        "That is the last place of the row, which may be padding; take the last real token.": (
            lambda x, n: x[:, -1]
        ),
        "That is the first token. In a decoder it has seen nothing but itself.": (
            lambda x, n: x[:, 0]
        ),
        "One too far: a text of n tokens ends at place n - 1.": (
            lambda x, n: x[torch.arange(len(x)), n.clamp(max=x.shape[1] - 1)]
        ),
        "That is the mean over all places, padding included.": lambda x, n: x.mean(dim=1),
    },
)
