"""Exercises of chapter 02, From text to tensors."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs

Symbols = Sequence[int]
Merges = Sequence[tuple[int, int, int]]


def _pair_counts(words: Sequence[Symbols], counts: Sequence[int]) -> Counter[tuple[int, int]]:
    pairs: Counter[tuple[int, int]] = Counter()
    for word, n in zip(words, counts, strict=True):
        for pair in pairwise(word):
            pairs[pair] += n
    return pairs


def _single_symbols(words: Sequence[Symbols], counts: Sequence[int]) -> int:
    symbols: Counter[int] = Counter()
    for word, n in zip(words, counts, strict=True):
        for symbol in word:
            symbols[symbol] += n
    return max(symbols.values())


def _words_with_the_pair(words: Sequence[Symbols], counts: Sequence[int]) -> int:
    once = [sorted(set(pairwise(word))) for word in words]
    pairs: Counter[tuple[int, int]] = Counter()
    for found, n in zip(once, counts, strict=True):
        for pair in found:
            pairs[pair] += n
    return max(pairs.values())


def _best_pair(words: Sequence[Symbols], counts: Sequence[int]) -> int:
    return max(_pair_counts(words, counts).values())


BEST_PAIR = Exercise(
    reference=_best_pair,
    inputs=[
        ([[1, 2, 3, 1, 2], [2, 3], [3, 1, 4]], [2, 5, 3]),
        ([[7, 8, 7, 8, 7, 8], [8, 8, 9]], [4, 1]),
    ],
    mistakes={
        "Every word was counted once; a word that occurs 5 times brings its pairs 5 times.": (
            lambda words, counts: _best_pair(words, [1] * len(words))
        ),
        "A pair that stands twice in a word counts twice.": _words_with_the_pair,
        "These are single symbols; count pairs of neighbours.": _single_symbols,
        "That is the number of all pairs; return the count of the most frequent one.": (
            lambda words, counts: sum(_pair_counts(words, counts).values())
        ),
        "The order matters: (a, b) and (b, a) are different pairs.": (
            lambda words, counts: _unordered(_pair_counts(words, counts))
        ),
    },
)


def _unordered(pairs: Counter[tuple[int, int]]) -> int:
    both: Counter[tuple[int, ...]] = Counter()
    for pair, n in pairs.items():
        both[tuple(sorted(pair))] += n
    return max(both.values())


def _cut(symbols: Symbols, merges: Merges) -> list[int]:
    for merge in merges:
        symbols = _merge_all(symbols, merge)
    return list(symbols)


def _merge_all(symbols: Symbols, merge: tuple[int, int, int]) -> list[int]:
    first, second, new = merge
    merged: list[int] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == (first, second):
            merged[-1] = new
        else:
            merged.append(symbol)
    return merged


def _only_the_first(symbols: Symbols, merges: Merges) -> list[int]:
    word = list(symbols)
    for first, second, new in merges:
        for place in range(len(word) - 1):
            if (word[place], word[place + 1]) == (first, second):
                word[place : place + 2] = [new]
                break
    return word


def _from_the_left(symbols: Symbols, merges: Merges) -> list[int]:
    """Merge whatever fits at the first place where something fits."""
    table = {(first, second): new for first, second, new in merges}
    word = list(symbols)
    place = 0
    while place < len(word) - 1:
        pair = (word[place], word[place + 1])
        if pair in table:
            word[place : place + 2] = [table[pair]]
            place = 0
        else:
            place += 1
    return word


CUT = Exercise(
    reference=_cut,
    inputs=[
        ([1, 2, 3, 2, 3], [(2, 3, 10), (1, 2, 11), (1, 10, 12)]),
        ([5, 5, 5, 6], [(5, 6, 20), (5, 5, 21)]),
        ([1, 2, 1, 2, 4], [(1, 2, 30), (30, 30, 31), (31, 4, 32)]),
    ],
    mistakes={
        "The merges were applied in the order of the places in the word; the order in which they "
        "were learned decides.": _from_the_left,
        "Each merge was applied at one place only; a pair may stand in a word several times.": (
            _only_the_first
        ),
        "The merges were applied last first; begin with the one that was learned first.": (
            lambda symbols, merges: _cut(symbols, list(reversed(merges)))
        ),
        "Nothing was merged: these are the symbols as they came.": (
            lambda symbols, merges: list(symbols)
        ),
    },
)


def _pad(sequences: Sequence[Symbols], pad_id: int, *, left: bool = False, more: int = 0) -> Tensor:
    longest = max(len(sequence) for sequence in sequences) + more
    rows = []
    for sequence in sequences:
        filling = [pad_id] * (longest - len(sequence))
        rows.append([*filling, *sequence] if left else [*sequence, *filling])
    return torch.tensor(rows)


def _cut_to_the_shortest(sequences: Sequence[Symbols], pad_id: int) -> Tensor:
    shortest = min(len(sequence) for sequence in sequences)
    return torch.tensor([list(sequence[:shortest]) for sequence in sequences])


PAD = Exercise(
    reference=_pad,
    inputs=[([[5, 6, 7], [8], [9, 9]], 0), ([[3], [4, 5]], 9)],
    mistakes={
        "The filling is on the left; put it on the right.": (
            lambda sequences, pad_id: _pad(sequences, pad_id, left=True)
        ),
        "The filling is 0; use pad_id, whatever it is.": lambda sequences, _: _pad(sequences, 0),
        "The rows were cut to the shortest; nothing may be lost.": _cut_to_the_shortest,
        "The rows are one place too long: the longest row needs no filling.": (
            lambda sequences, pad_id: _pad(sequences, pad_id, more=1)
        ),
        "That is the mask, which says where the filling is; the ids themselves are asked for.": (
            lambda sequences, _: _pad([[1] * len(s) for s in sequences], 0)
        ),
    },
)


def _table_gradient(ids: Tensor, gradient: Tensor, n_rows: int) -> Tensor:
    return F.one_hot(ids, n_rows).to(gradient.dtype).mT @ gradient


def _last_one_wins(ids: Tensor, gradient: Tensor, n_rows: int) -> Tensor:
    table = gradient.new_zeros(n_rows, gradient.shape[1])
    for place, token in enumerate(ids.tolist()):
        table[token] = gradient[place]
    return table


def _mean_of_uses(ids: Tensor, gradient: Tensor, n_rows: int) -> Tensor:
    uses = ids.bincount(minlength=n_rows).clamp(min=1)
    return _table_gradient(ids, gradient, n_rows) / uses[:, None]


TABLE_GRADIENT = Exercise(
    reference=_table_gradient,
    inputs=[
        (torch.tensor([3, 1, 3, 0], device="cpu"), *random_inputs((4, 2)), 5),
        (torch.tensor([2, 2, 2, 1, 0, 5], device="cpu"), *random_inputs((6, 3)), 6),
    ],
    mistakes={
        "A token that stands twice gets only its last gradient; both must be added.": (
            _last_one_wins
        ),
        "A token that stands twice gets the mean of its gradients; it must be their sum.": (
            _mean_of_uses
        ),
        "The shape should be that of the table, (V, D): transpose it.": (
            lambda ids, gradient, n: _table_gradient(ids, gradient, n).mT
        ),
        "These are the gradients of the places; gather them by token.": (
            lambda ids, gradient, n: gradient
        ),
        "Every row got a gradient; rows that were not looked up get none.": (
            lambda ids, gradient, n: gradient.sum(dim=0).expand(n, -1)
        ),
    },
)

EQUAL_STD = Exercise(
    reference=lambda d_model: 1 / math.sqrt(2 * d_model),
    inputs=[(512,), (128,), (8,)],
    mistakes={
        "That makes a token vector as long as the root of D; positions have the length root of "
        "D/2.": lambda d_model: 1 / math.sqrt(d_model),
        "You left out the factor root of D that multiplies the table's rows.": (
            lambda d_model: 1 / math.sqrt(2)
        ),
        "That is the variance; the standard deviation is its root.": (
            lambda d_model: 1 / (2 * d_model)
        ),
        "That is the length of a position; ask which standard deviation gives that length.": (
            lambda d_model: math.sqrt(d_model / 2)
        ),
    },
)


def _analogy(
    table: Tensor, a: int, b: int, c: int, *, exclude: bool = True, measure: str = "cosine"
) -> int:
    goal = table[b] - table[a] + table[c]
    if measure == "cosine":
        scores = F.cosine_similarity(table, goal[None], dim=-1)
    elif measure == "dot":
        scores = table @ goal
    else:
        scores = -(table - goal).norm(dim=-1)
    if exclude:
        scores = scores.clone()
        scores[[a, b, c]] = -math.inf
    return int(scores.argmax())


def _toy_table() -> Tensor:
    """Words as points, such that each way to ask an analogy has another answer."""
    rows = [[1, 0, 0], [1, 0, 1], [1, 5, 0], [0.5, 1.25, 0.3], [4, 6, 1], [2, 3.5, 1.5], [9, 1, 9]]
    return torch.tensor(rows, dtype=torch.float64, device="cpu")


ANALOGY = Exercise(
    reference=_analogy,
    inputs=[
        (_toy_table(), 0, 1, 2),
        (random_inputs((12, 4))[0], 3, 7, 5),
        (random_inputs((30, 3))[0], 0, 1, 2),
    ],
    mistakes={
        "The three words of the question are still in the race; leave them out.": (
            lambda table, a, b, c: _analogy(table, a, b, c, exclude=False)
        ),
        "This is the largest dot product, which long vectors win; divide by the lengths.": (
            lambda table, a, b, c: _analogy(table, a, b, c, measure="dot")
        ),
        "This is the smallest distance; the direction is asked for, so use the cosine.": (
            lambda table, a, b, c: _analogy(table, a, b, c, measure="distance")
        ),
        "The difference is turned round: go from a to b, so b - a + c.": (
            lambda table, a, b, c: _analogy(table, b, a, c)
        ),
        "This is the nearest neighbour of c; the step from a to b is missing.": (
            lambda table, a, b, c: _analogy(table, b, b, c)
        ),
    },
)
