"""Exercises of chapter 02, From text to tensors."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs

Symbols = Sequence[int]
Merges = Sequence[tuple[int, int, int]]


Pairs = dict[tuple[int, int], int]


def _pair_counts(words: Sequence[Symbols], counts: Sequence[int]) -> Pairs:
    pairs: Pairs = {}
    for word, n in zip(words, counts, strict=True):
        for pair in pairwise(word):
            pairs[pair] = pairs.get(pair, 0) + n
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


def _most_frequent_pair(words: Sequence[Symbols], counts: Sequence[int]) -> tuple[int, int]:
    pairs = _pair_counts(words, counts)
    return max(pairs, key=lambda pair: pairs[pair])


def _across_words(words: Sequence[Symbols], counts: Sequence[int]) -> int:
    text = [word for word, n in zip(words, counts, strict=True) for _ in range(n)]
    return max(Counter(pairwise(chain.from_iterable(text))).values())


def _unordered(words: Sequence[Symbols], counts: Sequence[int]) -> int:
    both: Counter[tuple[int, ...]] = Counter()
    for pair, n in _pair_counts(words, counts).items():
        both[tuple(sorted(pair))] += n
    return max(both.values())


BEST_PAIR = Exercise(
    reference=_best_pair,
    inputs=[
        ([[1, 2, 3, 1, 2], [2, 3], [3, 1, 4]], [2, 5, 3]),
        ([[7, 8, 7, 8, 7, 8], [8, 8, 9]], [4, 1]),
        ([[9], [1, 2], [6, 1, 2]], [7, 2, 3]),  # a word of one symbol has no pair
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
        "That is the number of different pairs; return the count of the most frequent one.": (
            lambda words, counts: len(_pair_counts(words, counts))
        ),
        "The order matters: (a, b) and (b, a) are different pairs.": _unordered,
        "That is the pair itself; return how often it occurs.": _most_frequent_pair,
        "The end of a word and the beginning of the next are no pair: count in each word alone.": (
            _across_words
        ),
    },
    hints=(
        "Count every pair of neighbours in every word, then look for the largest count.",
        "Each word brings its pairs as often as it occurs. Keep the sums in a `Counter`, with the "
        "pair `(a, b)` as key.",
        "The neighbours of a word are `pairwise(word)`, or `zip(word, word[1:])`. Add n to each of "
        "them and return `max(pairs.values())`.",
    ),
)


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


def _from_the_right(symbols: Symbols, merges: Merges) -> list[int]:
    turned = _cut(list(reversed(symbols)), [(b, a, new) for a, b, new in merges])
    return list(reversed(turned))


def _keeps_both(symbols: Symbols, merges: Merges) -> list[int]:
    word = list(symbols)
    for first, second, new in merges:
        merged: list[int] = []
        for symbol in word:
            known = bool(merged) and (merged[-1], symbol) == (first, second)
            merged.extend([new, symbol] if known else [symbol])
        word = merged
    return word


CUT = Exercise(
    reference=_cut,
    inputs=[
        ([1, 2, 3, 2, 3], [(2, 3, 10), (1, 2, 11), (1, 10, 12)]),
        ([5, 5, 5, 6], [(5, 6, 20), (5, 5, 21)]),
        ([1, 2, 1, 2, 4], [(1, 2, 30), (30, 30, 31), (31, 4, 32)]),
        ([8, 8, 8, 8, 8], [(8, 8, 40), (40, 8, 41), (8, 40, 42)]),
        ([6, 7, 6, 9], [(6, 9, 50), (7, 6, 51), (6, 7, 52)]),
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
        "The order within a pair matters: `a` stands on the left of `b`.": (
            lambda symbols, merges: _cut(symbols, [(b, a, new) for a, b, new in merges])
        ),
        "Only the first merge was applied; go on with the others.": (
            lambda symbols, merges: _cut(symbols, merges[:1])
        ),
        "Where a symbol could belong to two pairs, the left pair takes it: go from left to "
        "right.": _from_the_right,
        "Both symbols are still there: `new` takes the place of `a` and of `b`.": _keeps_both,
    },
    hints=(
        "Two loops: one over the merges, in their order, and inside it one over the word.",
        "Build a new list from left to right. Whenever its last symbol and the next one are the "
        "pair `a, b`, the last symbol becomes `new`; otherwise the next one is added.",
        "The test inside is `if merged and (merged[-1], symbol) == (a, b):`, then "
        "`merged[-1] = new`. The result of one merge is the word for the next.",
    ),
)


def _pad(sequences: Sequence[Symbols], pad_id: int) -> Tensor:
    longest = max(len(sequence) for sequence in sequences)
    return torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in sequences])


def _pad_left(sequences: Sequence[Symbols], pad_id: int) -> Tensor:
    return _pad([row[::-1] for row in sequences], pad_id).flip(1)


def _pad_further(sequences: Sequence[Symbols], pad_id: int) -> Tensor:
    padded = _pad(sequences, pad_id)
    return torch.cat([padded, torch.full_like(padded[:, :1], pad_id)], dim=1)


def _cut_to_the_shortest(sequences: Sequence[Symbols], pad_id: int) -> Tensor:
    shortest = min(len(sequence) for sequence in sequences)
    return torch.tensor([list(sequence[:shortest]) for sequence in sequences])


PAD = Exercise(
    reference=_pad,
    inputs=[([[5, 6, 7], [8], [9, 9]], 0), ([[3], [4, 5]], 9), ([[1], [2, 3, 4, 5, 6]], 7)],
    mistakes={
        "The filling is on the left; put it on the right.": (_pad_left),
        "The filling is 0; use pad_id, whatever it is.": lambda sequences, _: _pad(sequences, 0),
        "The rows were cut to the shortest; nothing may be lost.": _cut_to_the_shortest,
        "The rows are one place too long: the longest row needs no filling.": (_pad_further),
        "That is the mask, which says where the filling is; the ids themselves are asked for.": (
            lambda sequences, _: _pad([[1] * len(s) for s in sequences], 0)
        ),
    },
    hints=(
        "How long must every row be? And how many places are missing in a row of length n?",
        "Take the length of the longest row. Behind each row put `pad_id` as often as the row is "
        "shorter than that.",
        "A row becomes `s + [pad_id] * (longest - len(s))`; `torch.tensor(rows)` makes the table.",
    ),
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
        (torch.tensor([2, 2, 2, 1, 0, 5], device="cpu"), *random_inputs((6, 3)), 6),  # T = V
        (torch.tensor([3, 1, 3, 0], device="cpu"), *random_inputs((4, 2)), 5),
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
        "The one-hot matrix is not transposed: token 2 gets the gradient of place 2.": (
            lambda ids, gradient, n: F.one_hot(ids, n).to(gradient.dtype) @ gradient
        ),
        "That is how often each token stands there; add up its gradients.": (
            lambda ids, gradient, n: ids.bincount(minlength=n)[:, None].expand(n, gradient.shape[1])
        ),
    },
    hints=(
        "A row of the table was copied to every place where its token stands. What does it get "
        "back from each of them?",
        "Row v gets the sum of the rows of `gradient` at the places where `ids` is v, and zeros "
        "where there are none. A lookup is a product with a one-hot matrix `(T, V)`; its gradient "
        "is a product with the transposed one.",
        "The matrix is `F.one_hot(ids, n_rows).to(gradient.dtype)`. Or start with zeros of shape "
        "`(V, D)` and use `index_add_(0, ids, gradient)`.",
    ),
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
        "The entry of a position has the root mean square 1/√2; the entry of a token is multiplied "
        "by √D, so divide by √D, not by D.": lambda d_model: 1 / (math.sqrt(2) * d_model),
        "A position has the length √(D/2), not √(2D): D/2 pairs, each with sin² + cos² = 1.": (
            lambda d_model: math.sqrt(2 / d_model)
        ),
    },
    hints=(
        "How long is a vector of D entries with standard deviation s? And how long is a sinusoidal "
        "position, whose D/2 pairs are sines and cosines?",
        "Each pair contributes sin² + cos² = 1, so a position has the length √(D/2). A row has the "
        "length s √D, and after the factor √D it is s D.",
        "Solve s D = √(D/2) for s; `math.sqrt(d_model / 2)` is the right-hand side.",
    ),
)


def _analogy(table: Tensor, a: int, b: int, c: int) -> int:
    scores = _cosines(table, table[b] - table[a] + table[c])
    scores[[a, b, c]] = -math.inf
    return int(scores.argmax())


def _cosines(table: Tensor, goal: Tensor) -> Tensor:
    """Cosines, times the length of the goal, which is the same for all."""
    scaled: Tensor = table @ goal / table.norm(dim=1)
    return scaled


def _best_of_others(scores: Tensor, *left_out: int) -> int:
    scores[list(left_out)] = -math.inf
    return int(scores.argmax())


def _goal(table: Tensor, a: int, b: int, c: int) -> Tensor:
    return table[b] - table[a] + table[c]


def _units_first(table: Tensor, a: int, b: int, c: int) -> int:
    return _analogy(table / table.norm(dim=1, keepdim=True), a, b, c)


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
        (random_inputs((12, 4))[0], 0, 1, 5),  # c would come first, then b
        (random_inputs((12, 4))[0], 0, 2, 6),  # all three would come before the answer
    ],
    mistakes={
        "The three words of the question are still in the race; leave them out.": (
            lambda table, a, b, c: int(_cosines(table, _goal(table, a, b, c)).argmax())
        ),
        "Only c is left out; a and b are still in the race.": (
            lambda table, a, b, c: _best_of_others(_cosines(table, _goal(table, a, b, c)), c)
        ),
        "This is the largest dot product, which long vectors win; divide by the lengths.": (
            lambda table, a, b, c: _best_of_others(table @ _goal(table, a, b, c), a, b, c)
        ),
        "This is the smallest distance; the direction is asked for, so use the cosine.": (
            lambda table, a, b, c: _best_of_others(
                -(table - _goal(table, a, b, c)).norm(dim=-1), a, b, c
            )
        ),
        "The rows were made equally long before the sum; take them as they are.": _units_first,
        "The difference is turned round: go from a to b, so b - a + c.": (
            lambda table, a, b, c: _analogy(table, b, a, c)
        ),
        "a was added; it must be taken away: b - a + c.": (
            lambda table, a, b, c: _best_of_others(
                _cosines(table, table[a] + table[b] + table[c]), a, b, c
            )
        ),
        "This is the nearest neighbour of c; the step from a to b is missing.": (
            lambda table, a, b, c: _best_of_others(_cosines(table, table[c]), a, b, c)
        ),
        "This row is the farthest away; take the largest cosine.": (
            lambda table, a, b, c: _best_of_others(-_cosines(table, _goal(table, a, b, c)), a, b, c)
        ),
    },
    hints=(
        "First make one vector, the goal. Then ask which row points most nearly the same way.",
        "The goal is `table[b] - table[a] + table[c]`. The cosine of a row with it is their dot "
        "product over both lengths; the length of the goal is the same for all rows.",
        "Set the cosines of the three words to minus infinity, `cosines[[a, b, c]] = -torch.inf`, "
        "and return `int(cosines.argmax())`.",
    ),
)
