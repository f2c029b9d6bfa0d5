"""Exercises of chapter 20, What Transformers learn."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _weights(*shape: int, seed: int = 0) -> Tensor:
    """Rows of attention weights, some of them exactly zero."""
    generator = torch.Generator("cpu").manual_seed(seed)
    raw = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    raw = raw.masked_fill(raw < 0.3, 0.0) + 0.01 * torch.eye(shape[-2], shape[-1], device="cpu")
    return raw / raw.sum(dim=-1, keepdim=True)


def _offset(weights: Tensor, offset: int) -> Tensor:
    return weights.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1)


def _offset_over_all(weights: Tensor, offset: int) -> Tensor:
    return weights.diagonal(offset, dim1=-2, dim2=-1).sum(dim=-1) / weights.shape[-1]


OFFSET = Exercise(
    reference=_offset,
    inputs=[(_weights(2, 5, 5), -1), (_weights(3, 4, 4, seed=1), 2), (_weights(1, 6, 6), 0)],
    mistakes={
        "Keys and queries are swapped: offset -1 is the key before the query, which lies below "
        "the main diagonal.": lambda w, o: _offset(w, -o),
        "Queries that have no key at this distance are counted as zeros; leave them out.": (
            _offset_over_all
        ),
        "That is one number for all heads: average over places only.": (
            lambda w, o: _offset(w, o).mean()
        ),
        "That is the sum; divide by the number of pairs.": (
            lambda w, o: w.diagonal(o, dim1=-2, dim2=-1).sum(dim=-1)
        ),
    },
)


def _places(weights: Tensor) -> Tensor:
    return (-torch.xlogy(weights, weights).sum(dim=-1)).exp().mean(dim=-1)


PLACES = Exercise(
    reference=_places,
    inputs=[(_weights(2, 5, 5),), (_weights(3, 4, 6, seed=2),)],
    mistakes={
        "There is a NaN: 0 log 0 counts as 0. torch.xlogy knows that.": (
            lambda w: (-(w * w.log()).sum(dim=-1)).exp().mean(dim=-1)
        ),
        "Take the exponential of each row's entropy first, then the mean over rows.": (
            lambda w: (-torch.xlogy(w, w).sum(dim=-1)).mean(dim=-1).exp()
        ),
        "That is the entropy; its exponential is the number of places.": (
            lambda w: -torch.xlogy(w, w).sum(dim=-1).mean(dim=-1)
        ),
        "The sum runs over queries; a row of weights belongs to one query and runs over keys.": (
            lambda w: (-torch.xlogy(w, w).sum(dim=-2)).exp().mean(dim=-1)
        ),
        "The minus is missing: logarithms of weights are negative.": (
            lambda w: torch.xlogy(w, w).sum(dim=-1).exp().mean(dim=-1)
        ),
    },
)


def _continue(ids: list[int]) -> int:
    """What came after the last earlier copy of the last token; -1 if there is none."""
    for place in range(len(ids) - 2, -1, -1):
        if ids[place] == ids[-1]:
            return ids[place + 1]
    return -1


def _continue_first(ids: list[int]) -> int:
    return ids[ids.index(ids[-1]) + 1] if ids.index(ids[-1]) < len(ids) - 1 else -1


CONTINUE = Exercise(
    reference=_continue,
    inputs=[([2, 1, 4, 3, 2],), ([5, 6, 5, 7, 1, 5],), ([1, 2, 3],), ([4, 4],), ([9],)],
    mistakes={
        "That is what came after the first copy; the rule asks for the last one before the end.": (
            _continue_first
        ),
        "That is the token itself: say what came after the copy.": (
            lambda ids: ids[-1] if ids[-1] in ids[:-1] else -1
        ),
        "That is what came before the copy; say what came after it.": (
            lambda ids: next(
                (ids[i - 1] for i in range(len(ids) - 2, 0, -1) if ids[i] == ids[-1]), -1
            )
        ),
    },
)


def _lens(state: Tensor, gain: Tensor, table: Tensor, eps: float = 1e-5) -> Tensor:
    normed = state / (state.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain
    return (normed @ table.mT).softmax(dim=-1)


LENS = Exercise(
    reference=_lens,
    inputs=[
        random_inputs((2, 3, 4), (4,), (5, 4)),
        random_inputs((1, 2, 6), (6,), (3, 6)),
    ],
    mistakes={
        "The final norm is missing: the output matrix never saw a stream that is not normalised.": (
            lambda state, gain, table: (state @ table.mT).softmax(dim=-1)
        ),
        "The norm's gain is missing.": (
            lambda state, gain, table: _lens(state, torch.ones_like(gain), table)
        ),
        "These are scores; a softmax makes probabilities of them.": (
            lambda state, gain, table: (
                state / (state.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * gain @ table.mT
            )
        ),
        "The softmax runs over places; it must run over the vocabulary.": (
            lambda state, gain, table: (
                state / (state.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * gain @ table.mT
            ).softmax(dim=-2)
        ),
    },
)


def _layers(distance: int, window: int) -> int:
    return math.ceil(distance / (window - 1))


LAYERS = Exercise(
    reference=_layers,
    inputs=[(1_000, 1_001), (1_000, 129), (10, 3), (7, 4), (1, 2), (9, 4)],
    mistakes={
        "A window of w keys holds the place itself and w - 1 before it: that is the reach.": (
            lambda distance, window: math.ceil(distance / window)
        ),
        "A layer that is needed in part is needed: round up.": (
            lambda distance, window: distance // (window - 1)
        ),
        "One layer is not added on top if the distance is a multiple of the reach.": (
            lambda distance, window: distance // (window - 1) + 1
        ),
        "Hops add up, they do not multiply: k layers reach k times as far as one.": (
            lambda distance, window: max(math.ceil(math.log(distance) / math.log(window)), 1)
        ),
    },
)


def _carry(a: int, b: int) -> int:
    """The longest run of digits that one carry goes through."""
    longest = run = 0
    while a or b:
        digits = a % 10 + b % 10
        run = 1 if digits > 9 else run + 1 if digits == 9 and run else 0
        longest = max(longest, run)
        a, b = a // 10, b // 10
    return longest


def _number_of_carries(a: int, b: int) -> int:
    carries = carried = 0
    while a or b:
        carried = int(a % 10 + b % 10 + carried > 9)
        carries += carried
        a, b = a // 10, b // 10
    return carries


def _without_passing(a: int, b: int) -> int:
    return int(any((a // 10**i % 10) + (b // 10**i % 10) > 9 for i in range(12)))


def _nines_alone(a: int, b: int) -> int:
    longest = run = 0
    while a or b:
        run = run + 1 if a % 10 + b % 10 >= 9 else 0
        longest = max(longest, run)
        a, b = a // 10, b // 10
    return longest


CARRY = Exercise(
    reference=_carry,
    inputs=[(999, 1), (123, 456), (55, 55), (4_599, 5_401), (72, 27), (1_995, 8_005), (0, 0)],
    mistakes={
        "That is the number of carries; a new one begins where two digits make more than 9 by "
        "themselves.": _number_of_carries,
        "A carry goes on through digits that make exactly 9.": _without_passing,
        "Digits that make 9 pass a carry on, but they do not begin one; and a sum of more than 9 "
        "begins a new one.": _nines_alone,
    },
)
