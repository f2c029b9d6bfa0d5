"""Exercises of chapter 20, What Transformers learn."""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Answer, Exercise, random_inputs


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
        "Those are signed distances, which cancel; take absolute values.": (
            lambda n, c: _even(n, True) if c else 0.0
        ),
        "That is the sum over the queries; take their mean.": lambda n, c: n * _even(n, c),
    },
    hints=(
        "Take one query first: what is the mean distance to its keys, if all have the same "
        "weight? Then take the mean over the queries.",
        "A causal query number i (from 0) has i + 1 keys at the distances 0 to i. Without a mask "
        "there are n² pairs, all with the same weight.",
        "Causal: the mean of `i / 2` over `range(n)`. Without a mask: the mean of `abs(i - j)` "
        "over all pairs.",
    ),
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
        "The very first token is never looked at: it can be the copy, too.": (
            lambda ids: next(
                (ids[i + 1] for i in range(len(ids) - 2, 0, -1) if ids[i] == ids[-1]), -1
            )
        ),
        "The copy just before the end is skipped: what comes after it is the last token itself.": (
            lambda ids: next(
                (ids[i + 1] for i in range(len(ids) - 3, -1, -1) if ids[i] == ids[-1]), -1
            )
        ),
        "That is the place of the copy; say which token came after it.": (
            lambda ids: next((i for i in range(len(ids) - 2, -1, -1) if ids[i] == ids[-1]), -1)
        ),
    },
    hints=(
        "Walk backwards from the last token but one, and stop at the first copy you meet.",
        "If the copy stands at `place`, the answer stands at `place + 1`. Do not compare the last "
        "token with itself; if the walk ends without a copy, the answer is -1.",
        "`for place in range(len(ids) - 2, -1, -1)` walks backwards down to place 0.",
    ),
)


def _lens(state: Tensor, gain: Tensor, table: Tensor) -> Tensor:
    size = (state.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
    return (state / size * gain @ table.mT).softmax(dim=-1)


def _lens_with(norm: Callable[[Tensor], Tensor], axis: int | None = -1) -> Answer:
    """A lens with another norm, or with the softmax over another axis, or without it."""

    def lens(state: Tensor, gain: Tensor, table: Tensor) -> Tensor:
        scores = norm(state) * gain @ table.mT
        return scores if axis is None else scores.softmax(dim=axis)

    return lens


def _rms(state: Tensor, eps: float = 1e-5) -> Tensor:
    return state / (state.square().mean(dim=-1, keepdim=True) + eps).sqrt()


def _centred(state: Tensor) -> Tensor:
    away = state - state.mean(dim=-1, keepdim=True)
    return _rms(away)


def _faint(state: Tensor, gain: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    """Make the stream so small that epsilon counts."""
    return state * 0.003, gain, table


LENS = Exercise(
    reference=_lens,
    inputs=[
        random_inputs((2, 3, 4), (4,), (5, 4)),
        random_inputs((3, 2, 6), (6,), (7, 6)),
        _faint(*random_inputs((2, 3, 4), (4,), (5, 4))),
    ],
    mistakes={
        "The final norm is missing: the output matrix never saw a stream that is not normalised.": (
            _lens_with(lambda state: state)
        ),
        "Norm and gain are missing: the output matrix never saw a stream that is not normalised.": (
            lambda state, gain, table: (state @ table.mT).softmax(dim=-1)
        ),
        "The norm's gain is missing.": (
            lambda state, gain, table: _lens(state, torch.ones_like(gain), table)
        ),
        "These are scores; a softmax makes probabilities of them.": _lens_with(_rms, axis=None),
        "The softmax runs over places; it must run over the vocabulary, dim=-1.": _lens_with(
            _rms, axis=-2
        ),
        "That is LayerNorm: RMSNorm leaves the mean where it is.": _lens_with(_centred),
        "Epsilon is missing.": _lens_with(lambda state: _rms(state, eps=0.0)),
        "Epsilon is added outside the root; it belongs to the mean square, inside.": _lens_with(
            lambda state: state / (state.square().mean(dim=-1, keepdim=True).sqrt() + 1e-5)
        ),
        "You divided by the length of the vector: the sum of squares must become a mean.": (
            _lens_with(
                lambda state: state / (state.square().sum(dim=-1, keepdim=True) + 1e-5).sqrt()
            )
        ),
    },
    hints=(
        "Treat the stream as if it were the last one: the final norm, then the output matrix, "
        "then a softmax.",
        "RMSNorm divides by the root of mean square plus epsilon, over the last axis, and "
        "multiplies by `gain`. `table` is `(V, D)`, so it has to be transposed: `(B, T, V)`.",
        "With `size` for that root, the scores are `state / size * gain @ table.T`.",
    ),
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


def _last_run(a: int, b: int) -> int:
    last = run = 0
    while a or b:
        digits = a % 10 + b % 10
        run = 1 if digits > 9 else run + 1 if digits == 9 and run else 0
        last = run or last
        a, b = a // 10, b // 10
    return last


CARRY = Exercise(
    reference=_carry,
    inputs=[
        (999, 1),
        (123, 456),
        (55, 55),
        (4_599, 5_401),
        (72, 27),
        (1_995, 8_005),
        (0, 0),
        (500_999, 500_001),
    ],
    mistakes={
        "That is the number of carries; a new one begins where two digits make more than 9 by "
        "themselves.": _number_of_carries,
        "A carry goes on through digits that make exactly 9.": _without_passing,
        "Digits that make 9 pass a carry on, but they do not begin one; and a sum of more than 9 "
        "begins a new one.": _nines_alone,
        "That is the last carry; the longest is asked for.": _last_run,
    },
    hints=(
        "Go through the digits from the last one on, and count how far the present carry has come.",
        "Three cases for the sum of two digits: more than 9 begins a carry, whatever was before; "
        "exactly 9 passes one on, if there is one; less ends it.",
        "`a % 10` is the last digit and `a // 10` the rest; `run = 1 if both > 9 else run + 1 if "
        "both == 9 and run else 0`.",
    ),
)
