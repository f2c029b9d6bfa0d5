"""Exercises of chapter 02, From text to tensors."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, UnfitError, random_inputs

Symbols = Sequence[int]

BITS_PER_BYTE = Exercise(
    reference=lambda loss, n_tokens, n_bytes: loss * n_tokens / n_bytes / math.log(2),
    inputs=[(3.2, 1_000, 4_000), (2.5, 2_000, 6_000), (0.7, 5, 5)],
    mistakes={
        "These are nats per byte; a bit is ln 2 = 0.69 nats, so divide by it.": (
            lambda loss, n_tokens, n_bytes: loss * n_tokens / n_bytes
        ),
        "A nat is more than a bit, so there are more bits than nats: divide by ln 2.": (
            lambda loss, n_tokens, n_bytes: loss * n_tokens / n_bytes * math.log(2)
        ),
        "These are bits per token; divide by the bytes that a token has.": (
            lambda loss, n_tokens, n_bytes: loss / math.log(2)
        ),
        "That multiplies by the bytes a token has; a longer token spreads its loss over more.": (
            lambda loss, n_tokens, n_bytes: loss * n_bytes / n_tokens / math.log(2)
        ),
        "That is the loss of the whole text in bits; divide by its bytes.": (
            lambda loss, n_tokens, n_bytes: loss * n_tokens / math.log(2)
        ),
    },
    hints=(
        "What does the whole text cost, in nats? And how many bytes share that cost?",
        "`n_tokens` tokens cost `loss` nats each. A bit is ln 2 nats.",
        "`loss * n_tokens / n_bytes` is in nats per byte; divide it by `math.log(2)`.",
    ),
)


def _letters(pieces: object) -> list[int]:
    """Write a list of texts as numbers, so that it can be compared; 0 ends a text."""
    if not isinstance(pieces, list | tuple) or not all(isinstance(p, str) for p in pieces):
        raise UnfitError("Return a list of texts.")
    return [number for piece in pieces for number in [*map(ord, piece), 0]]


Ranks = dict[bytes, int]


def _byte_values(pieces: object) -> list[int]:
    """Write a list of bytes as numbers, so that it can be compared; -1 ends a piece."""
    if not isinstance(pieces, list | tuple) or not all(isinstance(p, bytes) for p in pieces):
        raise UnfitError("Return a list of two pieces, as bytes.")
    return [number for piece in pieces for number in [*piece, -1]]


def _in_order(letters: bytes, learned: str) -> Ranks:
    """Give ids to bytes, then to tokens in the order in which they were learned; _ is a space."""
    tokens = [bytes([n]) for n in letters] + [t.replace("_", " ").encode() for t in learned.split()]
    return {token: n for n, token in enumerate(tokens)}


def _merged(token: bytes, ranks: Ranks, n_left: int, by: Callable[[int], int]) -> list[bytes]:
    """Merge neighbours, those with the smallest ``by(id)`` first, until so many are left."""
    parts = [bytes([byte]) for byte in token]
    for _ in range(len(token) - n_left):
        places = [n for n in range(len(parts) - 1) if parts[n] + parts[n + 1] in ranks]
        if not places:
            break
        place = min(places, key=lambda n: by(ranks[parts[n] + parts[n + 1]]))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _splits(token: bytes, ranks: Ranks) -> list[list[bytes]]:
    both = [[token[:n], token[n:]] for n in range(1, len(token))]
    return [[a, b] for a, b in both if a in ranks and b in ranks]


PAIR_OF = Exercise(
    reference=lambda token, ranks: _merged(token, ranks, 2, lambda rank: rank),
    inputs=[  # in the order of cl100k
        (b" cats", _in_order(b" acst", "at _c ca ats _ca ts cat _cat _cats cats")),
        (b"berry", _in_order(b"bery", "er err rr ber ry be erry berry")),
        (
            b" return",
            _in_order(b" enrtu", "re et _re ur urn turn _r _return return _ret ret eturn tu rn"),
        ),
        (b"abcde", _in_order(b"abcde", "bc bcd abcd de ab cde abcde")),
        (b"ai", _in_order(b"aint", "ai in")),
    ],
    mistakes={
        "The merging went on to the end; stop when two pieces are left.": (
            lambda token, ranks: _merged(token, ranks, 1, lambda rank: rank)
        ),
        "That is the first place where both halves are tokens; there may be several. Start from "
        "the bytes and merge.": lambda token, ranks: _splits(token, ranks)[0],
        "That is the last place where both halves are tokens; there may be several. Start from "
        "the bytes and merge.": lambda token, ranks: _splits(token, ranks)[-1],
        "These halves have the lowest ids, but they were never neighbours. Start from the bytes "
        "and merge.": (
            lambda token, ranks: min(
                _splits(token, ranks), key=lambda pair: ranks[pair[0]] + ranks[pair[1]]
            )
        ),
        "You merged from left to right; of all neighbours take those whose union has the lowest "
        "id.": lambda token, ranks: _merged(token, ranks, 2, lambda rank: 0),
        "You merged the union with the highest id first; the lowest was learned first.": (
            lambda token, ranks: _merged(token, ranks, 2, lambda rank: -rank)
        ),
        "The two pieces are in the wrong order.": (
            lambda token, ranks: _merged(token, ranks, 2, lambda rank: rank)[::-1]
        ),
    },
    measure=_byte_values,
    hints=(
        "When the token was learned, its bytes had been merged by all earlier merges. How many "
        "pieces were left?",
        "Do what `encode` does with a word: start from bytes, and merge the neighbours whose union "
        "has the lowest id. The last merge makes the token itself; leave it out.",
        "The loop of `encode` runs `while len(parts) > 1`. Which number do you need instead of 1?",
    ),
)


def _stream(tokens: Sequence[bytes]) -> list[str]:
    shown, n_shown = [], 0
    for n in range(1, len(tokens) + 1):
        text = b"".join(tokens[:n]).decode(errors="ignore")  # without a half character at the end
        shown.append(text[n_shown:])
        n_shown = len(text)
    return shown


def _all_or_nothing(tokens: Sequence[bytes]) -> list[str]:
    shown, waiting = [], b""
    for token in tokens:
        waiting += token
        try:
            shown.append(waiting.decode())
            waiting = b""
        except UnicodeDecodeError:
            shown.append("")
    return shown


STREAM = Exercise(
    reference=_stream,
    inputs=[
        ([b"na", b"\xc3", b"\xaf", b"ve"],),
        ([b"5 ", b"\xe2", b"\x82", b"\xac", b" or", b" \xe2\x82", b"\xac"],),
        ([b"rain", b"y"],),
    ],
    mistakes={
        "Each token was decoded alone; keep bytes that are no whole character for the next.": (
            lambda tokens: [token.decode(errors="replace") for token in tokens]
        ),
        "Bytes that are no whole character were thrown away; keep them for the next token.": (
            lambda tokens: [token.decode(errors="ignore") for token in tokens]
        ),
        "What was shown once is shown again: show only what is new.": (
            lambda tokens: list(accumulate(_stream(tokens)))
        ),
        "A token can hold whole characters and the beginning of another: show the whole ones at "
        "once.": _all_or_nothing,
        "Nothing comes before the end; show a character as soon as it is whole.": (
            lambda tokens: [*[""] * (len(tokens) - 1), b"".join(tokens).decode()]
        ),
        "Give one text for each token, an empty one where no character is whole yet.": (
            lambda tokens: [text for text in _stream(tokens) if text]
        ),
    },
    measure=_letters,
    hints=(
        "A token may end in the middle of a character. What has to be remembered until the next?",
        "Decode all bytes that have come so far, without a half character at their end, and show "
        "what is new in it.",
        'Half a character is left out by `b"".join(tokens[:n]).decode(errors="ignore")`; remember '
        "how many characters were shown before.",
    ),
)


def _ways_to_cut(word: str, pieces: Sequence[str]) -> int:
    ways = [1]  # of the first 0 letters, 1, 2, ...
    for end in range(1, len(word) + 1):
        starts = [end - len(piece) for piece in pieces if word[:end].endswith(piece)]
        ways.append(sum(ways[start] for start in starts))
    return ways[-1]


def _without_the_word(word: str, pieces: Sequence[str]) -> int:
    return _ways_to_cut(word, [piece for piece in pieces if piece != word])


WAYS_TO_CUT = Exercise(
    reference=_ways_to_cut,
    inputs=[
        ("trainy", ["t", "r", "ai", "n", "y", "tr", "rai", "rain", "train", "ny"]),
        ("aaaaa", ["a", "aa", "aaa"]),
        ("rain", ["rain", "ra", "in"]),
        ("snow", ["s", "no"]),
        ("banana", ["ba", "na", "ban", "ana", "an", "a"]),
    ],
    mistakes={
        "The whole word is a piece as well, and a cut into one.": _without_the_word,
        "That is how many pieces occur in the word; count the ways to write all of it.": (
            lambda word, pieces: sum(piece in word for piece in pieces)
        ),
        "All cuts were counted, also into letters that are no pieces.": (
            lambda word, pieces: 2 ** (len(word) - 1)
        ),
        "The longest pieces alone make one cut; count the others, too.": (
            lambda word, pieces: min(1, _ways_to_cut(word, pieces))
        ),
    },
    hints=(
        "How many ways are there for the first letter alone? For the first two, if you know that?",
        "Keep a list: the ways for the first 0 letters (one: nothing), for 1, for 2, and so on. "
        "The last piece of a cut ends where the letters end.",
        "For each `end` add up `ways[end - len(piece)]` over the pieces with "
        "`word[:end].endswith(piece)`.",
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
