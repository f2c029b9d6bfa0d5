"""Exercises of chapter 20, What Transformers learn."""

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _even(n: int, causal: bool) -> float:
    """Mean distance of even weights over ``n`` places, all of them or those up to the query."""
    if causal:
        return (n - 1) / 4
    return (n * n - 1) / (3 * n)


def _pairs_counted_once(n: int, causal: bool) -> float:
    """The mean over all allowed pairs: late queries, which have more keys, count more."""
    pairs = [(i, j) for i in range(n) for j in range(i + 1 if causal else n)]
    return sum(abs(i - j) for i, j in pairs) / len(pairs)


EVEN = Exercise(
    reference=_even,
    inputs=[(2, True), (4, True), (4, False), (128, True), (128, False), (1, True)],
    mistakes={
        "Half of the value without a mask is not what even weights give: each row is divided by "
        "its own number of keys.": lambda n, c: _even(n, False) / (2 if c else 1),
        "That is the mean over all pairs; take the mean of each row first, then over the rows.": (
            _pairs_counted_once
        ),
        "The place itself is a key, too, at distance 0.": (
            lambda n, c: sum((i + 1) / 2 for i in range(1, n)) / n if c else _even(n, False)
        ),
        "The mask is forgotten: a causal query has only the places up to its own.": (
            lambda n, c: _even(n, False)
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
