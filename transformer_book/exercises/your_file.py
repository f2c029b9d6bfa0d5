"""The parts of the reader's file, each held equal to the library's.

The references are the cells of the pages themselves, as `transformer_book.file` has them.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

import transformer_lib as lib
from transformer_book.exercises.grading.checking import Answer, Exercise, UnfitError, random_inputs
from transformer_book.file import (
    Block,
    BytePairs,
    FeedForward,
    MultiHeadAttention,
    RMSNorm,
    attention,
    causal_mask,
    merge,
    padding_mask,
    rotate,
    sinusoids,
)

EQUAL = 1e-10  # in float64: another order of the same steps is far nearer, a mistake far off
_IN_PLACE = "modified by an inplace operation"
_NO_EPSILON_IN_NORM = "Epsilon is missing: a token of zeros gives 0/0."
_NO_GRADIENT = "Leave out detach(), .data and torch.no_grad()."


# --- byte pairs ---------------------------------------------------------------------------------


class _Pairs:
    """Byte-pair encoding in steps, so that each of them can go wrong; a piece is a tuple of ids."""

    def __init__(self, text: str, n_merges: int) -> None:
        self.merges: list[tuple[int, int]] = []
        words = [self.spell(word) for word in self.words(text)]
        for _ in range(n_merges):
            pairs = self.count(words)
            if not pairs:
                break
            best = self.choose(pairs)
            self.merges.append(best)
            words = [self.merge(word, best, self.id_of(best)) for word in words]

    def words(self, text: str) -> list[str]:
        return re.findall(BytePairs.pattern, text)

    def spell(self, word: str) -> list[int]:
        return list(word.encode())

    def count(self, words: list[list[int]]) -> Counter[tuple[int, int]]:
        return Counter(pair for word in words for pair in pairwise(word))

    def choose(self, pairs: Counter[tuple[int, int]]) -> tuple[int, int]:
        return min(pairs, key=lambda pair: (-pairs[pair], pair))

    def id_of(self, pair: tuple[int, int]) -> int:
        return 256 + self.merges.index(pair)

    def merge(self, ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
        merged: list[int] = []
        for i in ids:
            if merged and (merged[-1], i) == pair:
                merged[-1] = new
            else:
                merged.append(i)
        return merged

    def order(self) -> Iterable[tuple[int, int]]:
        return self.merges

    def encode_word(self, word: str) -> list[int]:
        ids = self.spell(word)
        for pair in self.order():
            ids = self.merge(ids, pair, self.id_of(pair))
        return ids

    def encode(self, text: str) -> object:
        return [i for word in self.words(text) for i in self.encode_word(word)]

    def bytes_of(self, i: int) -> bytes:
        if i < 256:
            return bytes([i])
        a, b = self.merges[i - 256]
        return self.bytes_of(a) + self.bytes_of(b)

    def decode(self, ids: Iterable[int]) -> object:
        return b"".join(map(self.bytes_of, ids)).decode(errors="replace")


def _pairs_with(**steps: Callable[..., object]) -> Answer:
    """Byte-pair encoding with other steps."""
    return type("_PairsWith", (_Pairs,), steps)


def _first_met(_: _Pairs, pairs: Counter[tuple[int, int]]) -> tuple[int, int]:
    return max(pairs, key=pairs.__getitem__)


def _largest_ids(_: _Pairs, pairs: Counter[tuple[int, int]]) -> tuple[int, int]:
    return max(pairs, key=lambda pair: (pairs[pair], pair))


def _rarest(_: _Pairs, pairs: Counter[tuple[int, int]]) -> tuple[int, int]:
    return min(pairs, key=lambda pair: (pairs[pair], pair))


def _first_bytes(self: _Pairs, pairs: Counter[tuple[int, int]]) -> tuple[int, int]:
    def spelled(pair: tuple[int, int]) -> tuple[bytes, bytes]:
        return self.bytes_of(pair[0]), self.bytes_of(pair[1])

    return min(pairs, key=lambda pair: (-pairs[pair], spelled(pair)))


def _each_word_once(_: _Pairs, words: list[list[int]]) -> Counter[tuple[int, int]]:
    return Counter(pair for word in {*map(tuple, words)} for pair in pairwise(word))


def _across_words(_: _Pairs, words: list[list[int]]) -> Counter[tuple[int, int]]:
    return Counter(pairwise(i for word in words for i in word))


def _only_first_place(_: _Pairs, ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    place = next((n for n, both in enumerate(pairwise(ids)) if both == pair), None)
    return ids if place is None else [*ids[:place], new, *ids[place + 2 :]]


def _from_the_right(self: _Pairs, ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    return _Pairs.merge(self, ids[::-1], pair[::-1], new)[::-1]


def _overlapping(_: _Pairs, ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    merged, skip = [], False
    for n, i in enumerate(ids):
        hit = (i, *ids[n + 1 : n + 2]) == pair
        if hit or not skip:
            merged.append(new if hit else i)
        skip = hit
    return merged


def _left_to_right(self: _Pairs, word: str) -> list[int]:
    """Merge whatever stands first in the word, not what was learned first."""
    ids, place = self.spell(word), 0
    while place < len(ids) - 1:
        pair = ids[place], ids[place + 1]
        if pair in self.merges:
            ids[place : place + 2] = [self.id_of(pair)]
            place = 0
        else:
            place += 1
    return ids


def _longest_first(self: _Pairs, word: str) -> list[int]:
    known = {self.bytes_of(i): i for i in range(256 + len(self.merges))}
    ids, rest = [], word.encode()
    while rest:
        end = next(n for n in range(len(rest), 0, -1) if rest[:n] in known)
        ids.append(known[rest[:end]])
        rest = rest[end:]
    return ids


def _without_words(self: _Pairs, text: str) -> list[str]:
    return [text]


def _one_by_one(self: _Pairs, ids: Iterable[int]) -> str:
    return "".join(self.bytes_of(i).decode(errors="replace") for i in ids)


def _as_characters(self: _Pairs, ids: Iterable[int]) -> str:
    return b"".join(map(self.bytes_of, ids)).decode("latin-1")


_PROBES = (
    "strain rail tails", "a aa aaa aaaa aaaaa", "naïve café, 5 €", "it's  1984\n\n  or_2084 ",
    "abcabc bca", "",
)  # fmt: skip


def _whole_numbers(found: object, what: str) -> list[int]:
    if found is None or found is ...:
        raise NotImplementedError
    ids = found.tolist() if isinstance(found, Tensor) else found
    if not isinstance(ids, list | tuple) or not all(isinstance(i, int) for i in ids):
        raise UnfitError(
            f"{what} returns {type(found).__name__}; expected a list of whole numbers."
        )
    return list(ids)


def _characters(found: object) -> list[int]:
    if found is None or found is ...:
        raise NotImplementedError
    if not isinstance(found, str):
        raise UnfitError(f"decode returns {type(found).__name__}; expected a text, a str.")
    return [ord(character) for character in found]


def _write_and_read(found: Any) -> dict[str, list[int]]:
    """The ids of some texts, what comes back, and the tokens one by one."""
    for name in ("encode", "decode"):
        if not callable(getattr(found, name, None)):
            raise UnfitError(f"There is no {name!r} in it: write a class with encode and decode.")
    measured = {}
    for text in _PROBES:
        ids = _whole_numbers(found.encode(text), "encode")
        measured[f"ids of {text!r}"] = ids
        measured[f"{text!r} and back, as characters"] = _characters(found.decode(ids))
    measured["half a character, decode([195])"] = _characters(found.decode([195]))
    for i in range(256, 256 + _MOST_MERGES):
        try:
            measured[f"token {i}, as characters"] = _characters(found.decode([i]))
        except (IndexError, KeyError, ValueError):  # there is no such token
            measured[f"token {i}, as characters"] = []
    return measured


_MOST_MERGES = 7
_RAIN = {"rain": 5, "train": 4, "rainy": 3, "tail": 3, "rail": 2}
BYTE_PAIRS = Exercise(
    reference=BytePairs,
    inputs=[
        ("\n".join(word for word, n in _RAIN.items() for _ in range(n)), 6),
        ("abc bca bc ab bca zy zy zy zy", 6),
        ("aaaa aaaaaa aaa baaa aaaaa", 4),
        ("naïve naïveté, café au lait; 5 €, 20 €, 20 €", _MOST_MERGES),
        ("It's 1984. It's 2084!  It'll be\n\n  2184 or_2084 or 1984.", _MOST_MERGES),
        ("bc\nbc\nbc\nab\nab", 2),
        ("if x:\n        return  y\n        return z", 5),
        ("to be", 100),
        ("", 0),
    ],
    measure=_write_and_read,
    mistakes={
        "encode merges whatever stands first in the word. Apply the merges in the order in which "
        "they were learned: all places of the first, then all of the second.": _pairs_with(
            encode_word=_left_to_right
        ),
        "encode takes the longest token that fits, as WordPiece does. Apply the merges in the "
        "order in which they were learned.": _pairs_with(encode_word=_longest_first),
        "encode applies the merges from the last to the first; the first learned comes first.": (
            _pairs_with(order=lambda self: self.merges[::-1])
        ),
        "Ties: of equally frequent pairs you take the one that was met first. Take the one with "
        "the smallest ids: min(pairs, key=lambda pair: (-pairs[pair], pair)).": _pairs_with(
            choose=_first_met
        ),
        "Ties: of equally frequent pairs you take the one with the largest ids; take the "
        "smallest.": _pairs_with(choose=_largest_ids),
        "Ties: you compare the bytes of the pieces. Compare their ids, of which bytes have the "
        "smallest.": _pairs_with(choose=_first_bytes),
        "The rarest pair is merged; merge the most frequent one.": _pairs_with(choose=_rarest),
        "A word that occurs often is counted once. Count its pairs as often as it occurs.": (
            _pairs_with(count=_each_word_once)
        ),
        "Pairs are counted across the borders of words: split the text with the pattern first.": (
            _pairs_with(count=_across_words)
        ),
        "The text is not split into words, so merges cross the borders between them. Use "
        "the pattern in both, __init__ and encode.": _pairs_with(words=_without_words),
        "encode does not split the text into words as __init__ does.": _pairs_with(
            encode=lambda self, text: self.encode_word(text)
        ),
        "A pair is merged in one place of a word only; write it as one wherever it stands.": (
            _pairs_with(merge=_only_first_place)
        ),
        "Overlapping pairs: in aaa, the pair a a is merged from the right; begin at the left.": (
            _pairs_with(merge=_from_the_right)
        ),
        "Overlapping pairs: in aaa, the middle letter is used twice. A letter that is merged is "
        "gone.": _pairs_with(merge=_overlapping),
        "Characters above 127 are more than one byte: spell words with word.encode(), not with "
        "ord.": _pairs_with(spell=lambda self, word: [min(ord(c), 255) for c in word]),
        "Bytes above 127 are lost: spell words with word.encode(), which leaves nothing out.": (
            _pairs_with(spell=lambda self, word: [*word.encode("ascii", errors="ignore")])
        ),
        "The ids of the merges do not begin at 256: ids 0 to 255 are the bytes, whether they "
        "occur in the text or not.": _pairs_with(
            encode=lambda self, text: [
                i - 256 if i >= 256 else i for i in cast("list[int]", _Pairs.encode(self, text))
            ]
        ),
        "decode turns every token into text alone, which destroys characters that span two "
        "tokens. Join the bytes first.": _pairs_with(decode=_one_by_one),
        "decode reads each byte as a character; join the bytes, and decode them as UTF-8.": (
            _pairs_with(decode=_as_characters)
        ),
        "decode stops at bytes that are no UTF-8, which a model may well write. Show them as �: "
        'decode(errors="replace").': _pairs_with(
            decode=lambda self, ids: b"".join(map(self.bytes_of, ids)).decode()
        ),
        "decode leaves bytes out that are no UTF-8, so that an error does not show. Show them as "
        '�: decode(errors="replace").': _pairs_with(
            decode=lambda self, ids: b"".join(map(self.bytes_of, ids)).decode(errors="ignore")
        ),
        "encode returns the pieces; return their ids.": _pairs_with(
            encode=lambda self, text: [
                self.bytes_of(i) for i in cast("list[int]", _Pairs.encode(self, text))
            ]
        ),
        "decode returns bytes; turn them into text.": _pairs_with(
            decode=lambda self, ids: b"".join(map(self.bytes_of, ids))
        ),
        "The last merge is not learned: range(256, 256 + n_merges) has n_merges steps.": (
            lambda text, n_merges: _Pairs(text, max(n_merges - 1, 0))
        ),
    },
    hints=(
        "Start with what you did by hand: count the pairs, merge the most frequent one, repeat. "
        "Ids 0 to 255 are the bytes, and the n-th merge gets the id 256 + n.",
        "Keep the merges in their order, and for each id its bytes. encode splits the text into "
        "words, spells each as bytes and applies all merges in order; decode joins the bytes of "
        "all ids and decodes them once.",
        "`min(pairs, key=lambda pair: (-pairs[pair], pair))` is the next pair; "
        "`merge(word, (a, b), new)` writes it as one; "
        '`b"".join(self.tokens[i] for i in ids).decode(errors="replace")` reads back.',
    ),
)


def _as_pieces(found: object) -> list[int]:
    """Ids as they are, and texts as numbers."""
    if found is None or found is ...:
        raise NotImplementedError
    if not isinstance(found, list):
        raise UnfitError(f"It returns {type(found).__name__}; expected a list of pieces.")
    return [i if isinstance(i, int) else int.from_bytes(str(i).encode(), "big") for i in found]


_merged = cast("Callable[..., list[object]]", merge)  # the page has no types


def _either_order(pieces: list[object], pair: tuple[object, object], new: object) -> list[object]:
    return _merged(_merged(pieces, pair, new), pair[::-1], new)


def _taken_out(pieces: list[object], pair: tuple[object, object], new: object) -> list[object]:
    return [piece for piece in _merged(pieces, pair, new) if piece != new]


def _one_letter(pieces: list[object], pair: tuple[object, object], new: object) -> list[object]:
    return [new if piece in pair else piece for piece in pieces]


def _last_left_out(pieces: list[object], pair: tuple[object, object], new: object) -> list[object]:
    merged, n = [], 0
    while n < len(pieces) - 1:
        hit = (pieces[n], pieces[n + 1]) == pair
        merged.append(new if hit else pieces[n])
        n += 2 if hit else 1
    return merged


def _as_texts(pieces: list[object], pair: tuple[object, object], new: object) -> list[object]:
    return _merged(pieces, pair, f"{pair[0]}{pair[1]}")


MERGE = Exercise(
    reference=merge,
    inputs=[
        ([116, 114, 97, 105, 110], (97, 105), 256),
        ([97, 97, 97, 98, 97, 97], (97, 97), 300),
        ([98, 97, 98, 97, 98, 99], (97, 98), 256),
        ([98, 97, 99, 97, 98], (97, 98), 256),
        ([110, 97, 195, 175, 110, 97], (110, 97), 257),
        (list("trail"), ("a", "i"), "ai"),
        ([7], (7, 7), 256),
        ([], (7, 7), 256),
    ],
    measure=_as_pieces,
    mistakes={
        "A pair is merged in one place only; write it as one wherever it stands.": partial(
            cast("Answer", _only_first_place), None
        ),
        "Overlapping pairs: in a a a, the pair a a is merged from the right; begin at the left.": (
            lambda pieces, pair, new: _merged(pieces[::-1], pair[::-1], new)[::-1]
        ),
        "Overlapping pairs: in a a a, the middle piece is used twice. A piece that is merged is "
        "gone.": partial(cast("Answer", _overlapping), None),
        "A pair is also merged in the other order: a b is not b a.": _either_order,
        "The pair is taken out, but `new` is not written in its place.": _taken_out,
        "Each half of the pair is replaced, wherever it stands. Replace the two only where they "
        "are neighbours.": _one_letter,
        "The last piece is lost if it belongs to no pair.": _last_left_out,
        "You write both pieces as one text. Write `new`, which may be an id.": _as_texts,
    },
    hints=(
        "Copy the pieces one by one into a new list, and look at its end after each of them.",
        "If the last two of the new list are the pair, replace the two by `new`. Compare a tuple "
        "with a tuple: a list is never equal to one.",
        "`merged.append(piece)`, then `if tuple(merged[-2:]) == pair: merged[-2:] = [new]`.",
    ),
)


# --- attention ----------------------------------------------------------------------------------


def _root(q: Tensor, k: Tensor, v: Tensor) -> float:
    return 1 / math.sqrt(q.shape[-1])


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: Callable[[Tensor, Tensor, Tensor], float] = _root,
    axis: int = -1,
    turned: bool = False,
    fill: float = -math.inf,
    cleaned: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention with a mistake in one of its steps."""
    scores = q @ k.mT * scale(q, k, v)
    if mask is None:
        weights = scores.softmax(dim=axis)
        return weights @ v, weights
    hidden = mask if turned else ~mask
    weights = scores.masked_fill(hidden, fill).softmax(dim=axis)
    weights = weights.masked_fill(hidden, 0.0) if cleaned else weights
    return weights @ v, weights


def _scaled_late(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    _, weights = _attend(q, k, v, mask, scale=lambda *_: 1.0)
    weights = weights * _root(q, k, v)
    return weights @ v, weights


def _scores_as_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT * _root(q, k, v)
    return scores @ v, scores


def _scores_in_place_of_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _attend(q, k, v)[0], q @ k.mT * _root(q, k, v)


def _with_triangle(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    past = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device="cpu").tril()
    return _attend(q, k, v, past)


def _masked_late(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    _, weights = _attend(q, k, v)
    weights = weights if mask is None else weights.masked_fill(~mask, 0.0)
    return weights @ v, weights


def _from_layers(
    *shapes: tuple[int, ...], mask: Tensor | None = None
) -> Callable[[], tuple[Tensor, ...]]:
    """Queries, keys and values that come out of something which learns, and maybe a mask."""

    def make() -> tuple[Tensor, ...]:
        made = tuple(1.0 * x.requires_grad_() for x in random_inputs(*shapes))
        return made if mask is None else (*made, mask.clone())

    return make


def _send_back(output: Tensor) -> None:
    """Send a gradient back from every number of an output, each another one."""
    upstream = torch.arange(output.numel(), dtype=output.dtype, device="cpu") / output.numel()
    output.backward(upstream.view_as(output))


def _pair(found: object) -> tuple[Tensor, Tensor]:
    """What was found, and the weights, if an answer returned both."""
    if isinstance(found, tuple | list) and len(found) == 2:
        output, weights = found
        if isinstance(output, Tensor) and isinstance(weights, Tensor):
            return output, weights
    both = "what was found and the weights: `return weights @ v, weights`"
    raise UnfitError(f"It must return two tensors, {both}.")


def _forwards_and_backwards(found: object) -> dict[str, Tensor]:
    """What was found, and the weights; a gradient is sent back to where they came from."""
    output, weights = _pair(found)
    if output.requires_grad:
        try:
            _send_back(output)
        except RuntimeError as error:
            if _IN_PLACE not in str(error):
                raise
            change = "It changes a tensor in place that the gradient needs"
            raise UnfitError(f"{change}: work on a copy, as `masked_fill` does.") from None
    return {"output": output, "weights": weights}


def _leaf_of(x: Tensor) -> Tensor | None:
    """The tensor that an argument was made of, whatever was done to it since."""
    waiting = [x.grad_fn]
    while waiting:
        step = waiting.pop()
        if step is not None:
            leaf = getattr(step, "variable", None)
            if isinstance(leaf, Tensor):
                return leaf
            waiting.extend(before for before, _ in step.next_functions)
    return None


def _other_gradient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> str:
    """Where the gradient that was sent back is not the library's, in a sentence."""
    leaves = [leaf for leaf in map(_leaf_of, (q, k, v)) if leaf is not None]
    if not leaves:
        return ""
    twins = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    _send_back(lib.attention(twins[0], twins[1], twins[2], mask)[0])
    for name, leaf, twin in zip("qkv", leaves, twins, strict=True):
        if leaf.grad is None:
            return f"The numbers are right, but no gradient comes back to {name}. {_NO_GRADIENT}"
        assert twin.grad is not None
        if not torch.allclose(leaf.grad, twin.grad, rtol=EQUAL, atol=EQUAL):
            return f"The numbers are right, but the gradient of {name} is not. {_NO_GRADIENT}"
    return ""


_NO_SCALE = "The scores are not scaled: divide them by the square root of the width of a query."
_AXIS = "The softmax runs over the queries; each query's row must sum to 1: dim=-1."
_SQUARE = ((4, 4), (4, 4), (4, 4))  # on which swapped arguments do not crash
_LINES = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6))  # B H T Dk, B H S Dk, B H S Dv
ATTENTION = Exercise(
    reference=attention,
    inputs=[random_inputs(*_SQUARE), _from_layers(*_LINES), _from_layers((1, 3), (6, 3), (6, 2))],
    measure=_forwards_and_backwards,
    inspect=_other_gradient,
    leaves_arguments=True,
    tolerance=EQUAL,
    mistakes={
        _AXIS: partial(_attend, axis=-2),
        _NO_SCALE: partial(_attend, scale=lambda *_: 1.0),
        "The scores are divided by the width of a query; divide by its square root.": partial(
            _attend, scale=lambda q, k, v: 1 / q.shape[-1]
        ),
        "The scores are multiplied by the square root of the width; divide by it.": partial(
            _attend, scale=lambda q, k, v: math.sqrt(q.shape[-1])
        ),
        "The root counts the keys; it must be that of the width of a query, q.shape[-1].": partial(
            _attend, scale=lambda q, k, v: 1 / math.sqrt(k.shape[-2])
        ),
        "The root counts the queries; it must be that of the width of a query, q.shape[-1].": (
            partial(_attend, scale=lambda q, k, v: 1 / math.sqrt(q.shape[-2]))
        ),
        "The root counts the features of a value; the width of a query is what matters.": partial(
            _attend, scale=lambda q, k, v: 1 / math.sqrt(v.shape[-1])
        ),
        "The root comes after the softmax; divide the scores by it, before the softmax.": (
            _scaled_late
        ),
        "The scores went in as weights; apply the softmax so that they sum to 1.": (
            _scores_as_weights
        ),
        "Queries and keys are swapped: this is softmax(K Qᵀ).": lambda q, k, v: _attend(k, q, v),
        "Keys and values are swapped: the scores compare queries with keys, and the values are "
        "what is mixed.": lambda q, k, v: _attend(q, v, k),
        "The keys are mixed; mix the values.": lambda q, k, v: _attend(q, k, k),
        "Features meet features; positions must meet positions: q @ k.mT.": (
            lambda q, k, v: _attend(q.mT, k.mT, v)
        ),
        "The transpose is missing: q @ k.mT, so that every query meets every key.": (
            lambda q, k, v: _attend(q, k.mT, v)
        ),
        "The second result must be the weights; these are the scores before the softmax.": (
            _scores_in_place_of_weights
        ),
        "There is a causal mask in it; here every query sees every key.": _with_triangle,
    },
    hints=(
        "Four steps: every query with every key, divided by a root, a softmax along the keys, and "
        "a weighted mean of the values. Any axes may stand in front of the last two.",
        "The scores are `(..., T, S)`: `q @ k.mT`, divided by the root of `q.shape[-1]`. Each row "
        "of the weights sums to 1.",
        "`weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)`, then "
        "`return weights @ v, weights`.",
    ),
)


def _some(*shape: int) -> Tensor:
    """A mask in which every row sees something, and not all."""
    numbers = torch.arange(math.prod(shape), device="cpu").view(shape)
    return (numbers * 7 % 5 < 3) | (numbers % shape[-1] == 0)


def _blind(*shape: int) -> Tensor:
    """A mask with a row that sees nothing."""
    mask = _some(*shape)
    mask[..., 1, :] = False
    return mask


_TURNED = "The mask is turned round: True means may look, so hide where the mask is False, ~mask."
_NAN = (
    "A row that sees nothing is NaN: all its scores are -inf, and its softmax is 0/0. Write 0 into "
    "the weights where the mask is False."
)
ATTENTION_5 = Exercise(
    reference=attention,
    inputs=[
        (*random_inputs(*_SQUARE), _some(4, 4)),
        _from_layers(*_LINES, mask=_some(5, 7)),
        _from_layers(*_LINES, mask=_some(2, 1, 1, 7)),  # padding: a row for all queries
        _from_layers(*_LINES, mask=_blind(5, 7)),
        _from_layers(*_LINES),
    ],
    measure=_forwards_and_backwards,
    inspect=_other_gradient,
    leaves_arguments=True,
    tolerance=EQUAL,
    mistakes={
        "There is no mask yet: this version has a fourth argument, mask=None.": (
            lambda q, k, v: _attend(q, k, v)
        ),
        _NAN: partial(_attend, cleaned=False),
        _TURNED: partial(_attend, turned=True),
        "The mask is not used: hidden keys get weight.": lambda q, k, v, mask=None: _attend(
            q, k, v
        ),
        "The mask comes after the softmax, so the rows no longer sum to 1: hide the scores, "
        "before it.": _masked_late,
        "Hidden scores are set to 0, but exp(0) is 1: hide them with -inf.": partial(
            _attend, fill=0.0, cleaned=False
        ),
        "Hidden scores are set to 0, but exp(0) is 1, so that they still count in the sum of the "
        "softmax: hide them with -inf.": partial(_attend, fill=0.0),
        "A row that sees nothing shares its weight evenly, because all its scores are the same "
        "large negative number. Write 0 into the weights where the mask is False.": partial(
            _attend, fill=-1e9, cleaned=False
        ),
        _AXIS: partial(_attend, axis=-2),
        _NO_SCALE: partial(_attend, scale=lambda *_: 1.0),
    },
    hints=(
        "Take your version of chapter 3, and leave its steps as they are. What must the scores of "
        "hidden keys be, so that the softmax gives them 0?",
        "Between scores and softmax: -inf where the mask is False. After the softmax: 0 in the "
        "same places, for the sake of a row that sees nothing. Neither if there is no mask.",
        "`scores = scores.masked_fill(~mask, -math.inf)`, and after the softmax "
        "`weights = weights.masked_fill(~mask, 0.0)`, each below `if mask is not None:`.",
    ),
)


# --- masks --------------------------------------------------------------------------------------


def _bias(mask: Tensor) -> Tensor:
    """A mask as numbers to be added to scores."""
    return torch.zeros(mask.shape, device="cpu").masked_fill(~mask, -math.inf)


_NUMBERS = "These are numbers; a mask is boolean, since ~ and masked_fill need True and False: "
_ADDED = "These are numbers to be added to the scores; here a mask is boolean: True means may look."
_POLARITY = "The mask is turned round: True means may look, and False hides."


def _triangle(T: int, last: int = 0) -> Tensor:
    return torch.ones(T, T, device="cpu").tril(last).bool()


CAUSAL_MASK = Exercise(
    reference=causal_mask,
    inputs=[(4,), (1,), (7,)],
    mistakes={
        "That is the upper triangle: each position would see itself and what comes after it. Keep "
        "the lower one, tril.": lambda T: _triangle(T).mT,
        "It is shifted by one: each position also sees the next one, which is its answer.": (
            lambda T: _triangle(T, 1)
        ),
        "It is shifted by one: the diagonal is hidden, so that a position does not see itself, and "
        "the first one sees nothing.": lambda T: _triangle(T, -1),
        _POLARITY: lambda T: ~_triangle(T),
        "Nothing is hidden.": lambda T: torch.ones(T, T, device="cpu").bool(),
        "Each position sees only itself; it must see those before it, too.": (
            lambda T: torch.eye(T, device="cpu").bool()
        ),
        "The triangle hangs in the other corner: flip it, so that the first row sees one key.": (
            lambda T: _triangle(T).flip(-1)
        ),
        f"{_NUMBERS}end with .bool(), or compare.": lambda T: _triangle(T).float(),
        _ADDED: lambda T: _bias(_triangle(T)),
        "There is an axis too many: return (T, T), which fits any axes in front.": (
            lambda T: _triangle(T)[None]
        ),
    },
    hints=(
        "A table of T x T truth values, a row for each query and a column for each key. What does "
        "its first row look like, and what its last?",
        "A table of ones, of which you keep the lower triangle with its diagonal; or the places of "
        "queries, as a column, compared with those of keys.",
        "`torch.ones(T, T).tril().bool()`.",
    ),
)


def _padding(ids: Tensor, pad_id: int = 0) -> Tensor:
    return (ids != pad_id)[:, None, None, :]


def _from_the_left(ids: Tensor, pad_id: int = 0) -> Tensor:
    lengths = (ids != pad_id).sum(dim=-1, keepdim=True)
    return (torch.arange(ids.shape[1], device="cpu") < lengths)[:, None, None, :]


_AT_THE_END = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0], [9, 4, 2, 0]], device="cpu")
_OTHER_ID = torch.tensor([[3, 3, 1, 4, 0, 2], [5, 0, 6, 7, 3, 3]], device="cpu")  # 0 is a word
PADDING_MASK = Exercise(
    reference=padding_mask,
    inputs=[(_AT_THE_END,), (_AT_THE_END.flip(-1), 0), (_OTHER_ID, 3), (_AT_THE_END[:1], 0)],
    leaves_arguments=True,
    mistakes={
        "Two axes are missing: return (B, 1, 1, S). Axes are matched from the right, so (B, S) "
        "would be read as queries x keys.": lambda ids, pad_id=0: _padding(ids, pad_id)[:, 0, 0],
        "The axis of the heads is missing: return (B, 1, 1, S). With three axes the texts would "
        "be matched with the heads.": lambda ids, pad_id=0: _padding(ids, pad_id)[:, 0],
        "The two new axes stand in front, so that the texts land on the axis of the queries. They "
        "belong between texts and keys: (B, 1, 1, S).": lambda ids, pad_id=0: _padding(
            ids, pad_id
        ).permute(1, 2, 0, 3),
        "Padding is hidden as a query; it must be hidden as a key, on the last axis: "
        "(B, 1, 1, S).": lambda ids, pad_id=0: _padding(ids, pad_id).mT,
        "Padding is hidden as a query, too, which leaves rows that see nothing. Hide it as a key: "
        "(B, 1, 1, S).": lambda ids, pad_id=0: _padding(ids, pad_id) & _padding(ids, pad_id).mT,
        _POLARITY: lambda ids, pad_id=0: ~_padding(ids, pad_id),
        "You take 0 for padding; compare with `pad_id`.": lambda ids, pad_id=0: _padding(ids),
        "You count real tokens from the left, but padding may stand at the start: compare each id "
        "with `pad_id`.": _from_the_left,
        "An id above `pad_id` is no sign of a real token: compare with !=.": (
            lambda ids, pad_id=0: (ids > pad_id)[:, None, None, :]
        ),
        "Nothing is hidden.": lambda ids, pad_id=0: _padding(ids, -1),
        f"{_NUMBERS}compare, and leave the result as it is.": (
            lambda ids, pad_id=0: _padding(ids, pad_id).float()
        ),
        _ADDED: lambda ids, pad_id=0: _bias(_padding(ids, pad_id)),
    },
    hints=(
        "Which ids are real tokens? And to which of the four axes of the scores, texts, heads, "
        "queries and keys, do they belong?",
        "Compare the ids with `pad_id`. The result is `(B, S)`; axes of size 1 between the two "
        "serve all heads and all queries.",
        "`(ids != pad_id)[:, None, None, :]`.",
    ),
)


# --- heads --------------------------------------------------------------------------------------


class _Heads(MultiHeadAttention):
    """The layer in steps, so that each of them can go wrong."""

    def sources(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where queries, keys and values come from."""
        return x, memory, memory

    def split(self, x: Tensor) -> Tensor:
        cut: Tensor = x.unflatten(-1, (self.n_heads, -1))
        return cut.transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _attend(q, k, v, mask)[0]

    def merge(self, found: Tensor) -> Tensor:
        return found.transpose(1, 2).flatten(start_dim=2)

    def find(self, x: Tensor, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        sources = self.sources(x, x if memory is None else memory)
        layers = (self.query, self.key, self.value)
        q, k, v = (self.split(layer(y)) for layer, y in zip(layers, sources, strict=True))
        return self.merge(self.attend(q, k, v, mask))

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> object:
        return self.output(self.find(x, memory, mask))


class _Reshaped(_Heads):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.n_heads, x.shape[1], -1)


class _MergedByReshape(_Heads):
    def merge(self, found: Tensor) -> Tensor:
        return found.reshape(found.shape[0], found.shape[2], -1)


class _ReshapedTwice(_Reshaped, _MergedByReshape):
    pass


class _Flattened(_Heads):
    def merge(self, found: Tensor) -> Tensor:
        return found.flatten(start_dim=2)


class _NotSwapped(_Flattened):
    """Neither the split nor the merge has a transposition: heads attend to heads."""

    def split(self, x: Tensor) -> Tensor:
        cut: Tensor = x.unflatten(-1, (self.n_heads, -1))
        return cut


class _Striped(_Heads):
    def split(self, x: Tensor) -> Tensor:
        cut: Tensor = x.unflatten(-1, (-1, self.n_heads))
        return cut.permute(0, 3, 1, 2)


class _OneHead(_Heads):
    def split(self, x: Tensor) -> Tensor:
        return x[:, None]


class _NoOutput(_Heads):
    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> object:
        return self.find(x, memory, mask)


class _WithInput(_Heads):
    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> object:
        return x + self.output(self.find(x, memory, mask))


class _ByModelWidth(_Heads):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        width = self.n_heads * q.shape[-1]
        return _attend(q, k, v, mask, scale=lambda *_: 1 / math.sqrt(width))[0]


class _Detached(_Heads):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _attend(q, k, v, mask)[0].detach()


def _reading(sources: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]) -> Answer:
    """The layer with queries, keys and values from other places."""
    return type("_Reading", (_Heads,), {"sources": lambda _, x, memory: sources(x, memory)})


def _attending(attend: Callable[..., tuple[Tensor, Tensor]]) -> Answer:
    """The layer with another attention in it."""
    own = {"attend": lambda _, q, k, v, mask: attend(q, k, v, mask)[0]}
    return type("_Attending", (_Heads,), own)


_FIRST_WIDTH = 12  # with it a memory is as long as x, so that swapped sources do not crash


def _cases(width: int) -> dict[str, tuple[Tensor | None, ...]]:
    """What a layer is tried on: `x`, and maybe a memory and a mask."""
    n_keys = 5 if width == _FIRST_WIDTH else 7
    shapes = (2, 5, width), (2, n_keys, width)
    x, memory = (1.0 * y.requires_grad_() for y in random_inputs(*shapes))
    triangle = torch.ones(5, 5, dtype=torch.bool, device="cpu").tril()
    return {
        "self-attention": (x,),
        "with a memory": (x, memory),
        "with a causal mask": (x, None, triangle),
        "with a memory and its padding": (x, memory, _some(2, 1, 1, n_keys)),
        "where a row sees nothing": (x, None, _blind(5, 5)),
    }


def _as_layer(found: object) -> nn.Module:
    """What an answer made, if it is a layer."""
    if not isinstance(found, nn.Module):
        raise UnfitError("It must be a class that inherits from nn.Module.")
    if "_parameters" not in vars(found):  # an __init__ that is still empty
        raise NotImplementedError
    return found


def _own_shapes(layer: nn.Module, wanted: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's weights, if it has those of the library, and no others."""
    own = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    wanted = [*wanted]
    for name in wanted:
        if name not in own:
            raise UnfitError(f"There is no {name!r} in its state_dict(), but {[*own]}.")
    if extra := [name for name in own if name not in wanted]:
        raise UnfitError(f"It has parameters or buffers that the library's has not: {extra}.")
    return own


def _fill(
    layer: nn.Module,
    own: dict[str, tuple[int, ...]],
    wanted: dict[str, tuple[int, ...]],
    why: str,
) -> None:
    """Give a layer weights of the shapes that are wanted."""
    for name, shape in wanted.items():
        if own[name] != shape:
            raise UnfitError(f"{name} has the shape {own[name]}; expected {shape}, because {why}.")
    numbers = (0.5 * x for x in random_inputs(*wanted.values()))
    layer.to("cpu", torch.float64).load_state_dict(dict(zip(wanted, numbers, strict=True)))


def _load_weights(layer: nn.Module) -> int:
    """Give a layer of attention weights by the library's names; return its width."""
    names = lib.MultiHeadAttention(4, 2).state_dict()
    own = _own_shapes(layer, names)
    width = int(own["query.weight"][-1])
    shapes = {name: (width,) * value.ndim for name, value in names.items()}
    _fill(layer, own, shapes, "all heads lie side by side in each of the four layers")
    return width


def _try_layer(found: object) -> dict[str, Tensor]:
    """What a layer returns in all cases, with the gradients of its inputs and parameters."""
    layer, measured = _as_layer(found), {}
    cases = _cases(_load_weights(layer))
    for case, given in cases.items():
        output = layer(*given)
        if not isinstance(output, Tensor):
            what = "nothing" if output is None or output is ... else f"a {type(output).__name__}"
            raise UnfitError(f"Its forward returns {what}; expected one tensor, (B, T, D).")
        measured[case] = output
    for case, given in cases.items():  # after all outputs: of these one learns more
        measured[f"gradients {case}"] = _gradients(measured[case], [*given[:2]], layer)
    return measured


def _gradients(output: Tensor, given: list[Tensor | None], layer: nn.Module) -> Tensor:
    reached = [*(x for x in given if x is not None), *layer.parameters()]
    upstream = torch.arange(output.numel(), dtype=output.dtype, device="cpu") / output.numel()
    found: tuple[Tensor | None, ...] = (None,) * len(reached)
    if output.requires_grad:
        found = torch.autograd.grad(
            output, reached, upstream.view_as(output), allow_unused=True, retain_graph=True
        )
    pairs = zip(found, reached, strict=True)
    return torch.cat([(torch.zeros_like(x) if g is None else g).flatten() for g, x in pairs])


MULTI_HEAD_ATTENTION = Exercise(
    reference=MultiHeadAttention,
    inputs=[(_FIRST_WIDTH, 3), (8, 2), (10, 5)],
    measure=_try_layer,
    tolerance=EQUAL,
    mistakes={
        "The heads are split by a reshape alone, which fills them with pieces of other positions. "
        "Cut the features first, then swap positions and heads.": _Reshaped,
        "The heads are merged by a reshape alone: swap heads and positions back first.": (
            _MergedByReshape
        ),
        "The heads are split and merged by a reshape alone. Cut the features first, then swap "
        "positions and heads; afterwards swap them back.": _ReshapedTwice,
        "Positions and heads are not swapped after the cut, so that heads attend to heads: "
        "(B, T, H, Dk) must become (B, H, T, Dk).": _NotSwapped,
        "Heads and positions are not swapped back before the merge: (B, H, T, Dk) must become "
        "(B, T, H, Dk), and then (B, T, D).": _Flattened,
        "The heads are cut in stripes: a head owns Dk neighbouring features, "
        "unflatten(-1, (n_heads, -1)).": _Striped,
        "That is one head of full width: split queries, keys and values.": _OneHead,
        "The output projection is forgotten: what the heads found lies side by side, and nothing "
        "mixes it.": _NoOutput,
        "The root is that of the model's width; it must be that of the head's, q.shape[-1] after "
        "the split.": _ByModelWidth,
        _NO_SCALE: _attending(partial(_attend, scale=lambda *_: 1.0)),
        _AXIS: _attending(partial(_attend, axis=-2)),
        "Keys and values are swapped: attention takes queries, keys, values, in this order.": (
            _attending(lambda q, k, v, mask: _attend(q, v, k, mask))
        ),
        "Queries and keys are swapped: attention takes queries, keys, values, in this order.": (
            _attending(lambda q, k, v, mask: _attend(k, q, v, mask))
        ),
        "The keys are mixed; mix the values.": _attending(
            lambda q, k, v, mask: _attend(q, k, k, mask)
        ),
        "The memory is not used: if it is given, keys and values come from it.": _reading(
            lambda x, memory: (x, x, x)
        ),
        "The memory is ignored for the keys: keys and values both come from it.": _reading(
            lambda x, memory: (x, x, memory)
        ),
        "The memory is ignored for the values: keys and values both come from it.": _reading(
            lambda x, memory: (x, memory, x)
        ),
        "The queries come from the memory; they come from x, and only keys and values from the "
        "memory.": _reading(lambda x, memory: (memory, memory, memory)),
        "The mask is not used: hand it on to attention.": _attending(
            lambda q, k, v, mask: _attend(q, k, v)
        ),
        _TURNED: _attending(partial(_attend, turned=True)),
        _NAN: _attending(partial(_attend, cleaned=False)),
        "x is added to the result: that is the residual connection around the layer, not the "
        "layer.": _WithInput,
        f"The numbers are right, but no gradient comes through the heads. {_NO_GRADIENT}": (
            _Detached
        ),
    },
    hints=(
        "Four layers of width D to D. Project, split into heads, call `attention`, merge, and "
        "project once more. Keys and values come from the memory, if there is one.",
        "`split` leads from `(B, T, D)` to `(B, T, H, Dk)` and then to `(B, H, T, Dk)`; the merge "
        "goes the same way back.",
        "`x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)` splits, and "
        "`found.transpose(1, 2).flatten(start_dim=2)` merges.",
    ),
)


# --- positions ----------------------------------------------------------------------------------


def _speeds(width: int, base: float = 10_000.0) -> Tensor:
    return base ** -(torch.arange(0, width, 2, device="cpu") / width)


def _waves(angles: Tensor) -> Tensor:
    """Sines and cosines that take turns."""
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(start_dim=-2)


def _clock(T: int, first: int = 0) -> Tensor:
    """Positions as a column."""
    return torch.arange(first, first + T, device="cpu")[:, None]


def _as_numbers(found: object) -> Tensor:
    if not isinstance(found, Tensor):
        raise UnfitError(f"It returns a {type(found).__name__}; expected a tensor, (T, D).")
    return found.double()


_HALF_EXPONENT = (
    "The exponent is i / D; it must be 2i / D, so that the last pair is really slow: "
    "torch.arange(0, D, 2) counts 0, 2, 4, ..."
)
_NUMBERED_FEATURES = "Every feature has a speed of its own; the two features of a pair share one."
_FROM_ONE = "Positions begin at 1 here; they begin at 0: torch.arange(T)."
_DEGREES = "The angles were taken for degrees and converted; they are in radians already."
_WRONG_BASE = "The base is not 10,000."
_MULTIPLIED = (
    "The speeds grow from pair to pair; they must fall: the minus in the exponent is lost."
)
_ONE_SPEED = "All pairs turn equally fast; each pair has a speed of its own."
SINUSOIDS = Exercise(
    reference=sinusoids,
    inputs=[(5, 8), (1, 4), (40, 6)],
    measure=_as_numbers,
    tolerance=1e-6,
    mistakes={
        "All sines come first here, then all cosines; they must take turns: sin, cos, sin, cos.": (
            lambda T, D: torch.cat(
                [(_clock(T) * _speeds(D)).sin(), (_clock(T) * _speeds(D)).cos()], dim=-1
            )
        ),
        "Sine and cosine have changed places: even features are sines.": (
            lambda T, D: _waves(_clock(T) * _speeds(D)).unflatten(-1, (-1, 2)).flip(-1).flatten(1)
        ),
        _HALF_EXPONENT: lambda T, D: _waves(
            _clock(T) * 10_000.0 ** -(torch.arange(D // 2, device="cpu") / D)
        ),
        "The exponent is divided by D - 2 in place of D.": lambda T, D: _waves(
            _clock(T) * 10_000.0 ** -(torch.arange(0, D, 2, device="cpu") / (D - 2))
        ),
        "The exponent runs over the features, 4i / D in place of 2i / D.": lambda T, D: _waves(
            _clock(T) * 10_000.0 ** -(2 * torch.arange(0, D, 2, device="cpu") / D)
        ),
        _NUMBERED_FEATURES: lambda T, D: torch.where(
            torch.arange(D, device="cpu") % 2 == 0,
            (_clock(T) * 10_000.0 ** -(torch.arange(D, device="cpu") / D)).sin(),
            (_clock(T) * 10_000.0 ** -(torch.arange(D, device="cpu") / D)).cos(),
        ),
        _FROM_ONE: lambda T, D: _waves(_clock(T, 1) * _speeds(D)),
        _DEGREES: lambda T, D: _waves((_clock(T) * _speeds(D)).deg2rad()),
        _MULTIPLIED: lambda T, D: _waves(_clock(T) / _speeds(D)),
        _WRONG_BASE: lambda T, D: _waves(_clock(T) * _speeds(D, 1_000.0)),
        _ONE_SPEED: lambda T, D: _waves(_clock(T) * torch.ones(D // 2, device="cpu")),
        "All are sines: the odd features are cosines.": lambda T, D: torch.stack(
            [(_clock(T) * _speeds(D)).sin()] * 2, dim=-1
        ).flatten(1),
        "These are the angles; return their sines and cosines.": lambda T, D: (
            _clock(T) * _speeds(D)
        ).repeat_interleave(2, dim=-1),
        "There is an axis too many: return (T, D), which can be added to any batch.": (
            lambda T, D: sinusoids(T, D)[None]
        ),
        "Rows and columns have changed places: a row for each position.": (
            lambda T, D: sinusoids(T, D).T
        ),
    },
    hints=(
        "A row for each position, and in it D/2 pairs, each with a speed of its own. A pair holds "
        "the sine and the cosine of position times speed.",
        "The speeds are `10_000.0 ** -(torch.arange(0, D, 2) / D)`. Positions as a column times "
        "speeds are the angles, `(T, D/2)`.",
        "`torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(start_dim=1)` lets sines and "
        "cosines take turns.",
    ),
)


def _turned(
    x: Tensor,
    positions: Tensor,
    *,
    speeds: Callable[[int], Tensor] = _speeds,
    sign: float = 1.0,
) -> Tensor:
    """Neighbours turned by angles, which can go wrong."""
    angles = sign * positions[:, None] * speeds(x.shape[-1])
    u, v = x[..., 0::2], x[..., 1::2]
    c, s = angles.cos(), angles.sin()
    return torch.stack([u * c - v * s, u * s + v * c], dim=-1).flatten(start_dim=-2)


def _turned_halves(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[:, None] * _speeds(x.shape[-1])
    u, v = x.chunk(2, dim=-1)
    c, s = angles.cos(), angles.sin()
    return torch.cat([u * c - v * s, u * s + v * c], dim=-1)


def _turned_and_sorted(x: Tensor, positions: Tensor) -> Tensor:
    sorted_pairs: Tensor = _turned(x, positions).unflatten(-1, (-1, 2)).mT
    return sorted_pairs.flatten(start_dim=-2)


def _mixed_angles(x: Tensor, positions: Tensor) -> Tensor:
    """Pair neighbours, but lay their angles down half by half."""
    angles = (positions[:, None] * _speeds(x.shape[-1])).repeat(1, 2)
    partner = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(start_dim=-2)
    return x * angles.cos() + partner * angles.sin()


def _pair_by_pair(second: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Answer:
    """Turned neighbours whose second feature is computed in another way."""

    def answer(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None] * _speeds(x.shape[-1])
        u, v, c, s = x[..., 0::2], x[..., 1::2], angles.cos(), angles.sin()
        first = u * c - v * s
        return torch.stack([first, second(u, v, c, s)], dim=-1).flatten(start_dim=-2)

    return answer


def _queries_at(*positions: int, shape: tuple[int, ...]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Queries that come out of something which learns, and their positions."""

    def make() -> tuple[Tensor, Tensor]:
        (x,) = random_inputs(shape)
        return 1.0 * x.requires_grad_(), torch.tensor(positions, device="cpu")

    return make


def _rotated(found: object) -> dict[str, Tensor]:
    """What was turned; a gradient is sent back."""
    if not isinstance(found, Tensor):
        raise UnfitError(f"It returns a {type(found).__name__}; expected a tensor like x.")
    if found.requires_grad:
        _send_back(found)
    return {"turned": found}


def _lost_gradient(x: Tensor, _: Tensor) -> str:
    leaf = _leaf_of(x)
    if leaf is None or leaf.grad is not None:
        return ""
    return f"The numbers are right, but no gradient comes back to x. {_NO_GRADIENT}"


ROTATE = Exercise(
    reference=rotate,
    inputs=[
        _queries_at(0, 1, 2, 3, shape=(4, 8)),
        _queries_at(3, 7, 60, shape=(2, 2, 3, 6)),
        _queries_at(5, shape=(1, 4)),
    ],
    measure=_rotated,
    inspect=_lost_gradient,
    leaves_arguments=True,
    tolerance=EQUAL,
    mistakes={
        "Feature j is paired with the one half a width away, the split convention; here "
        "neighbours are a pair: x[..., 0::2] and x[..., 1::2].": _turned_halves,
        "The pairs are turned rightly, but then laid down half by half: stack them on a new last "
        "axis and flatten, so that each feature is where it was.": _turned_and_sorted,
        "Neighbours are paired, but their angles are laid down half by half: both features of a "
        "pair turn by the same angle.": _mixed_angles,
        "It turns the wrong way round: (1, 0) must go to (cos, sin).": partial(_turned, sign=-1.0),
        _FROM_ONE.replace("torch.arange(T)", "use the positions that are given"): (
            lambda x, p: _turned(x, p + 1)
        ),
        "The positions that are given are not used; a text need not begin at 0.": (
            lambda x, p: _turned(x, torch.arange(len(p), device="cpu"))
        ),
        _HALF_EXPONENT.replace("D", "Dk"): partial(
            _turned,
            speeds=lambda n: 10_000.0 ** -(torch.arange(n // 2, device="cpu") / n),
        ),
        _MULTIPLIED: partial(_turned, speeds=lambda n: 1 / _speeds(n)),
        _WRONG_BASE: partial(_turned, speeds=lambda n: _speeds(n, 500_000.0)),
        _ONE_SPEED: partial(_turned, speeds=lambda n: torch.ones(n // 2, device="cpu")),
        _DEGREES: partial(_turned, speeds=lambda n: _speeds(n).deg2rad()),
        "That adds cosines and sines; RoPE multiplies.": lambda x, p: (
            x + _waves(p[:, None] * _speeds(x.shape[-1]))
        ),
        "Lengths change: the second feature of a pair needs both of the old ones, u * sin + "
        "v * cos.": _pair_by_pair(lambda u, v, c, s: v * c),
        "Lengths change: the new second feature is computed from the new first one. Keep the old "
        "one until both are done.": _pair_by_pair(lambda u, v, c, s: (u * c - v * s) * s + v * c),
        "That mirrors: look at the signs, u * sin + v * cos.": _pair_by_pair(
            lambda u, v, c, s: u * s - v * c
        ),
        "Nothing is turned.": lambda x, p: x.clone(),
        f"The numbers are right, but no gradient comes back to x. {_NO_GRADIENT}": (
            lambda x, p: _turned(x.detach(), p)
        ),
    },
    hints=(
        "Features 0 and 1 are a pair, 2 and 3 the next. Each pair is an arrow, which you turn as "
        "by hand. Its angle is the position times the speed of the pair.",
        "`positions[:, None] * speeds` are the angles, `(T, Dk/2)`, as wide as `u = x[..., 0::2]` "
        "and `v = x[..., 1::2]`.",
        "`torch.stack([u * cos - v * sin, u * sin + v * cos], dim=-1).flatten(start_dim=-2)`.",
    ),
)


class _Rotary(_Heads):
    """The layer with RoPE, in steps, so that each of them can go wrong."""

    def __init__(self, d_model: int, n_heads: int, rotary: bool = False) -> None:
        MultiHeadAttention.__init__(self, d_model, n_heads, rotary=rotary)

    def turn(
        self, q: Tensor, k: Tensor, v: Tensor, *, crossing: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What happens to queries, keys and values before they meet."""
        return (q, k, v) if crossing else (_at(q), _at(k), v)

    def find(self, x: Tensor, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        sources = self.sources(x, x if memory is None else memory)
        layers = (self.query, self.key, self.value)
        q, k, v = (self.split(layer(y)) for layer, y in zip(layers, sources, strict=True))
        if self.rotary:
            q, k, v = self.turn(q, k, v, crossing=memory is not None)
        return self.merge(self.attend(q, k, v, mask))


# The class of chapter 6. A third argument is refused as Python does it, not by a check of types.
_WithoutOption: Answer = type(
    "_WithoutOption",
    (_Heads,),
    {"__init__": lambda self, d_model, n_heads: nn.Module.__init__(self)},
)


def _at(x: Tensor, first: int = 0) -> Tensor:
    """Turned by the places of its last axis but one."""
    return _turned(x, torch.arange(first, first + x.shape[-2], device="cpu"))


def _turning(turn: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Answer:
    """The layer with another turn."""
    own = {"turn": lambda _, q, k, v, crossing: turn(q, k, v, crossing)}
    return type("_Turning", (_Rotary,), own)


def _inside(turn: Callable[[Tensor], Tensor]) -> Answer:
    """The layer with another turn of queries and keys, in self-attention."""
    return _turning(lambda q, k, v, crossing: (q, k, v) if crossing else (turn(q), turn(k), v))


class _BeforeSplit(_Rotary):
    """Turned over the whole width, before there are heads."""

    def find(self, x: Tensor, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        if not self.rotary or memory is not None:
            return _Heads.find(self, x, memory, mask)
        q, k = (self.split(_at(layer(x))) for layer in (self.query, self.key))
        return self.merge(self.attend(q, k, self.split(self.value(x)), mask))


class _BeforeProjection(_Rotary):
    def find(self, x: Tensor, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        turned = _at(x) if self.rotary and memory is None else x
        return _Heads.find(self, turned, memory, mask)


class _Always(_Rotary):
    """The option is not looked at."""

    def __init__(self, d_model: int, n_heads: int, rotary: bool = False) -> None:
        super().__init__(d_model, n_heads, rotary=True)


class _ByHeads(_Rotary):
    """Turned by the number of the head, since axes 1 and 2 were taken for each other."""

    def turn(
        self, q: Tensor, k: Tensor, v: Tensor, *, crossing: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if crossing:
            return q, k, v
        q, k = (_at(y.transpose(1, 2)).transpose(1, 2) for y in (q, k))
        return q, k, v


MULTI_HEAD_ATTENTION_7 = Exercise(
    reference=MultiHeadAttention,
    inputs=[(_FIRST_WIDTH, 3, True), (8, 2, True), (12, 2, True), (8, 2, False), (8, 2)],
    measure=_try_layer,
    tolerance=EQUAL,
    mistakes={
        "There is no RoPE yet: this version has a third argument, rotary=False.": _WithoutOption,
        "The option is not used: nothing is turned.": _turning(lambda q, k, v, _: (q, k, v)),
        "The option is not looked at: without rotary=True nothing may be turned.": _Always,
        "The values are turned as well; turn queries and keys only.": _turning(
            lambda q, k, v, crossing: (q, k, v) if crossing else (_at(q), _at(k), _at(v))
        ),
        "Values are turned as well, and everything in cross-attention, too: turn queries and keys "
        "only, and nothing if there is a memory.": _turning(
            lambda q, k, v, _: (_at(q), _at(k), _at(v))
        ),
        "Only the queries are turned; the keys must be turned, too, or their distance does not "
        "matter.": _turning(lambda q, k, v, crossing: (q, k, v) if crossing else (_at(q), k, v)),
        "Only the keys are turned; the queries must be turned, too.": _turning(
            lambda q, k, v, crossing: (q, k, v) if crossing else (q, _at(k), v)
        ),
        "Queries and keys are turned in cross-attention as well. With a memory nothing is turned, "
        "because its places are those of another text.": _turning(
            lambda q, k, v, _: (_at(q), _at(k), v)
        ),
        "Queries count from another position than keys: both from 0.": _turning(
            lambda q, k, v, crossing: (q, k, v) if crossing else (_at(q, 1), _at(k), v)
        ),
        "Keys count from another position than queries: both from 0.": _turning(
            lambda q, k, v, crossing: (q, k, v) if crossing else (_at(q), _at(k, 1), v)
        ),
        "Keys are turned against queries: both turn the same way round.": _turning(
            lambda q, k, v, crossing: (
                (q, k, v)
                if crossing
                else (_at(q), _turned(k, -torch.arange(k.shape[-2], device="cpu")), v)
            )
        ),
        "It turns over the whole width, before the split into heads; each head has its own fast "
        "and slow pairs, so split first.": _BeforeSplit,
        "x is turned, so that the values turn, too: turn queries and keys after their "
        "projections.": _BeforeProjection,
        "Heads are taken for positions: after the split, positions are the last axis but one, and "
        "there are x.shape[1] of them.": _ByHeads,
        "Feature j is paired with the one half a width away; rotate pairs neighbours.": _inside(
            lambda y: _turned_halves(y, torch.arange(y.shape[-2], device="cpu"))
        ),
        "It turns twice.": _inside(lambda y: _at(_at(y))),
        "The numbers are right, but no gradient comes through the queries and keys. "
        f"{_NO_GRADIENT}": _inside(lambda y: _at(y.detach())),
    },
    hints=(
        "Take your class of chapter 6. Between the split and `attention`, queries and keys are "
        "turned, if `rotary` was asked for and there is no memory.",
        "After the split, `q` is `(B, H, T, Dk)`; `rotate` works on the last two axes. The "
        "positions are those of `x`, `torch.arange(x.shape[1])`.",
        "`if self.rotary and memory is None:` then `q, k = rotate(q, positions), rotate(k, "
        "positions)`; ask before you put `x` in the place of the memory.",
    ),
)


# --- the feed-forward network -------------------------------------------------------------------


class _Network(FeedForward):
    """The network in steps, so that each of them can go wrong."""

    def __init__(
        self, d_model: int, d_ff: int, activation: Callable[[Tensor], Tensor] = F.relu
    ) -> None:
        FeedForward.__init__(self, d_model, d_ff, activation)

    def bend(self, x: Tensor) -> Tensor:
        bent: Tensor = self.activation(x)
        return bent

    def inner(self, x: Tensor) -> Tensor:
        return self.bend(self.up(x))

    def forward(self, x: Tensor) -> Tensor:
        narrow: Tensor = self.down(self.inner(x))
        return narrow


class _BentLate(_Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.bend(self.down(self.up(x)))


class _BentTwice(_Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.bend(super().forward(x))


class _BentEarly(_Network):
    def inner(self, x: Tensor) -> Tensor:
        wide: Tensor = self.up(self.bend(x))
        return wide


class _NetworkWithInput(_Network):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class _NetworkDetached(_Network):
    def inner(self, x: Tensor) -> Tensor:
        return super().inner(x).detach()


class _OnlyExpanded(_Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def _bending(bend: Callable[[Tensor], Tensor]) -> Answer:
    """The network with this activation, whatever was asked for."""
    return type("_Bending", (_Network,), {"bend": lambda _, x: bend(x)})


def _own_default(activation: Callable[[Tensor], Tensor]) -> Answer:
    """The network with this activation, if none is asked for."""
    return lambda d_model, d_ff, given=activation: _Network(d_model, d_ff, given)


def _always_four(d_model: int, _: int, activation: Callable[[Tensor], Tensor] = F.relu) -> _Network:
    return _Network(d_model, 4 * d_model, activation)


def _try_network(found: object) -> dict[str, Tensor]:
    """What a network returns, with the gradients of its inputs and parameters."""
    layer = _as_layer(found)
    own = _own_shapes(layer, ("up.weight", "up.bias", "down.weight", "down.bias"))
    d_model, d_ff = int(own["up.weight"][-1]), int(own["up.weight"][0])
    shapes = {"up.weight": (d_ff, d_model), "up.bias": (d_ff,)}
    shapes |= {"down.weight": (d_model, d_ff), "down.bias": (d_model,)}
    _fill(layer, own, shapes, "up leads from d_model to d_ff, and down leads back")
    measured = {"the widths D and F": torch.tensor([d_model, d_ff])}
    given = {"a batch of texts": (2, 5, d_model), "a single token": (d_model,)}
    inputs = [1.0 * x.requires_grad_() for x in random_inputs(*given.values())]
    for case, x in zip(given, inputs, strict=True):
        output = layer(x)
        if not isinstance(output, Tensor):
            what = "nothing" if output is None or output is ... else f"a {type(output).__name__}"
            raise UnfitError(f"Its forward returns {what}; expected one tensor, (..., D).")
        measured[case] = output
    for case, x in zip(given, inputs, strict=True):  # after all outputs: of these one learns more
        measured[f"gradients for {case}"] = _gradients(measured[case], [x], layer)
    return measured


FEED_FORWARD = Exercise(
    reference=FeedForward,
    inputs=[(6, 8), (4, 9, F.gelu), (5, 7, torch.tanh)],
    measure=_try_network,
    tolerance=EQUAL,
    mistakes={
        "The activation is missing: two linear layers in a row are one linear layer.": _bending(
            lambda x: x
        ),
        "The activation stands behind the second layer; it belongs between the two.": _BentLate,
        "There is an activation behind both layers; only the inner numbers pass one.": _BentTwice,
        "The activation stands before the first layer; it belongs between the two.": _BentEarly,
        "It is a ReLU whatever `activation` says: use the one that is given.": _bending(F.relu),
        "It is a GELU whatever `activation` says: use the one that is given.": _bending(F.gelu),
        "If no activation is given it must be ReLU; yours is a GELU.": _own_default(F.gelu),
        "If no activation is given it must be ReLU; yours is none at all.": _own_default(
            nn.Identity()
        ),
        "x is added to the result: that is the residual connection around the layer, not the "
        "layer.": _NetworkWithInput,
        "The second layer is missing: the result must have the width of x.": _OnlyExpanded,
        "The inner width is 4 · d_model whatever d_ff says: use d_ff.": _always_four,
        f"The numbers are right, but no gradient comes through the units. {_NO_GRADIENT}": (
            _NetworkDetached
        ),
    },
    hints=(
        "Two linear layers, with the activation between them. The first leads from d_model to "
        "d_ff, the second leads back.",
        "`up` widens each token, the activation bends every number, `down` narrows it again; "
        "nn.Linear works on the last axis, whatever stands before it.",
        "`self.down(self.activation(self.up(x)))`.",
    ),
)


# --- the norm -----------------------------------------------------------------------------------


class _Norm(RMSNorm):
    """The norm in steps, so that each of them can go wrong."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        RMSNorm.__init__(self, width, eps)

    def centre(self, x: Tensor) -> Tensor:
        return x

    def squares(self, x: Tensor) -> Tensor:
        return x.square().mean(dim=-1, keepdim=True)

    def size(self, x: Tensor) -> Tensor:
        return torch.sqrt(self.squares(x) + self.eps)

    def scale(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.weight * x
        return scaled

    def forward(self, x: Tensor) -> Tensor:
        x = self.centre(x)
        return self.scale(x / self.size(x))


class _NormCentred(_Norm):
    def centre(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=-1, keepdim=True)


class _NormByDeviation(_Norm):
    def squares(self, x: Tensor) -> Tensor:
        return x.var(dim=-1, correction=0, keepdim=True)


class _NormByLength(_Norm):
    def squares(self, x: Tensor) -> Tensor:
        return x.square().sum(dim=-1, keepdim=True)


class _NormByUnbiased(_Norm):
    def squares(self, x: Tensor) -> Tensor:
        return x.square().sum(dim=-1, keepdim=True) / (x.shape[-1] - 1)


class _NormOverTheSequence(_Norm):
    def squares(self, x: Tensor) -> Tensor:
        return x.square().mean(dim=-1 if x.ndim == 1 else -2, keepdim=True)


class _NormOfEverything(_Norm):
    def squares(self, x: Tensor) -> Tensor:
        return x.square().mean()


class _NormEpsilonOutside(_Norm):
    def size(self, x: Tensor) -> Tensor:
        size: Tensor = torch.sqrt(self.squares(x)) + self.eps
        return size


class _NormWithoutRoot(_Norm):
    def size(self, x: Tensor) -> Tensor:
        size: Tensor = self.squares(x) + self.eps
        return size


class _NormWithoutEpsilon(_Norm):
    def size(self, x: Tensor) -> Tensor:
        return torch.sqrt(self.squares(x))


class _NormWithoutGain(_Norm):
    def scale(self, x: Tensor) -> Tensor:
        return x + 0 * self.weight


class _NormPlusOne(_Norm):
    def scale(self, x: Tensor) -> Tensor:
        return (1 + self.weight) * x


class _NormOneGain(_Norm):
    def scale(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.weight[0] * x
        return scaled


class _NormDetached(_Norm):
    def size(self, x: Tensor) -> Tensor:
        return super().size(x).detach()


class _NormFixedEpsilon(_Norm):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        RMSNorm.__init__(self, width)
        del eps


class _NormFromZero(_Norm):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        RMSNorm.__init__(self, width, eps)
        nn.init.zeros_(self.weight)


def _norm_with_own_epsilon(width: int, eps: float = 1e-6) -> _Norm:
    return _Norm(width, eps)


def _try_norm(found: object) -> dict[str, Tensor]:
    """What a norm returns, with the gradients of its inputs and of its gain."""
    layer = _as_layer(found)
    own = _own_shapes(layer, ("weight",))
    (width,) = own["weight"] if len(own["weight"]) == 1 else (0,)
    if not width:
        raise UnfitError(f"weight has the shape {own['weight']}; expected (width,): a number each.")
    measured = {"the gain at the start": layer.get_parameter("weight").detach().double()}
    _fill(layer, own, {"weight": (width,)}, "each feature has a gain of its own")
    given = {"a batch of texts": (2, 5, width), "a single token": (width,)}
    inputs = [1.0 * x.requires_grad_() for x in random_inputs(*given.values())]
    inputs.append((0.01 * inputs[0].detach()).requires_grad_())
    for case, x in zip([*given, "small numbers"], inputs, strict=True):
        output = layer(x)
        if not isinstance(output, Tensor):
            what = "nothing" if output is None or output is ... else f"a {type(output).__name__}"
            raise UnfitError(f"Its forward returns {what}; expected one tensor, (..., D).")
        measured[case] = output
        measured[f"gradients for {case}"] = _gradients(output, [x], layer)
    return measured


RMS_NORM = Exercise(
    reference=RMSNorm,
    inputs=[(6,), (4, 0.1), (5, 1e-3)],
    measure=_try_norm,
    tolerance=EQUAL,
    mistakes={
        "That is LayerNorm: RMSNorm leaves the mean where it is.": _NormCentred,
        "You divided by the standard deviation, which is about the mean; take the root of the "
        "mean square of x itself.": _NormByDeviation,
        "You divided by the length of the vector: the sum of squares must become a mean.": (
            _NormByLength
        ),
        "The sum of squares is divided by D - 1; a mean divides by D.": _NormByUnbiased,
        "The mean square runs over the positions; it belongs to the features of one token, "
        "dim=-1.": _NormOverTheSequence,
        "The mean square runs over the whole batch; each token has its own.": _NormOfEverything,
        "Epsilon is added outside the root; it belongs to the mean square, inside.": (
            _NormEpsilonOutside
        ),
        "You divided by the mean square; take its root.": _NormWithoutRoot,
        _NO_EPSILON_IN_NORM: _NormWithoutEpsilon,
        "The gain is missing: multiply by weight.": _NormWithoutGain,
        "You multiply by 1 + weight: that is Gemma's form, whose weights start at 0.": _NormPlusOne,
        "All features have the first gain: multiply by the whole weight.": _NormOneGain,
        "The gain must start at 1, not at 0: else nothing passes.": _NormFromZero,
        "Epsilon is 1e-5 whatever `eps` says: keep the one that is given.": _NormFixedEpsilon,
        "If no epsilon is given it must be 1e-5.": _norm_with_own_epsilon,
        f"The numbers are right, but the gradient takes the size for a constant. {_NO_GRADIENT}": (
            _NormDetached
        ),
    },
    hints=(
        "Each token alone: its mean square, the root of that, and a division. Then the gain.",
        "The mean of the squares runs over the last axis and keeps it, so that it broadcasts: "
        "`keepdim=True`. Epsilon is added before the root.",
        "Divide `self.weight * x` by the root of `x.square().mean(dim=-1, keepdim=True) + "
        "self.eps`.",
    ),
)


# --- the block ----------------------------------------------------------------------------------


class _Gated(nn.Module):
    """A network with other weights than the book's, so that `feed` must be used."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        narrow: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return narrow


Branch = Callable[[Tensor], Tensor]


class _Around(Block):
    """The block in steps, so that each of them can go wrong."""

    def attend(self, read: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = self.attention(read, mask=mask)
        return found

    def add(self, x: Tensor, norm: Branch, sublayer: Branch) -> Tensor:
        total: Tensor = x + self.dropout(sublayer(norm(x)))
        return total

    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        x = self.add(x, self.attention_norm, lambda read: self.attend(read, mask))
        return self.add(x, self.feed_forward_norm, self.feed_forward)


def _adding(add: Callable[[Block, Tensor, Branch, Branch], Tensor]) -> Answer:
    """The block with another way to add a sublayer."""
    return type("_Adding", (_Around,), {"add": add})


def _built(**options: object) -> Answer:
    """The block with these options, whatever was asked for."""

    def build(
        d_model: int,
        n_heads: int,
        norm: object = nn.LayerNorm,
        feed: object = FeedForward,
        rotary: bool = False,
        dropout: float = 0.0,
    ) -> Block:
        asked = {"norm": norm, "feed": feed, "rotary": rotary, "dropout": dropout}
        made = cast("Callable[..., Block]", _Around)
        return made(d_model, n_heads, **asked | options)

    return build


def _in_place(block: Block, x: Tensor, norm: Branch, sublayer: Branch) -> Tensor:
    x += block.dropout(sublayer(norm(x.clone())))
    return x


class _Parallel(_Around):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        first = self.dropout(self.attend(self.attention_norm(x), mask))
        return x + first + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class _NetworkFirst(_Around):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        x = self.add(x, self.feed_forward_norm, self.feed_forward)
        return self.add(x, self.attention_norm, lambda read: self.attend(read, mask))


class _FromTheBeginning(_Around):
    """The second plus adds to what came into the block."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        y = self.add(x, self.attention_norm, lambda read: self.attend(read, mask))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(y)))


class _OneNorm(_Around):
    """One norm does the work of both."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        x = self.add(x, self.attention_norm, lambda read: self.attend(read, mask))
        return self.add(x, self.attention_norm, self.feed_forward)


class _OnlyFirst(_Around):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        x = self.add(x, self.attention_norm, lambda read: self.attend(read, mask))
        return self.feed_forward(self.feed_forward_norm(x))


class _OnlySecond(_Around):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        x = self.attend(self.attention_norm(x), mask)
        return self.add(x, self.feed_forward_norm, self.feed_forward)


class _NormAtTheEnd(_Around):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        return self.feed_forward_norm(cast("Tensor", super().forward(x, mask)))


class _Unmasked(_Around):
    def attend(self, read: Tensor, mask: Tensor | None) -> Tensor:
        return super().attend(read, None)


class _MaskAsMemory(_Around):
    def attend(self, read: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = self.attention(read, mask)
        return found


def _lost(block: Block, x: Tensor, norm: Branch, sublayer: Branch) -> Tensor:
    total: Tensor = x + block.dropout(sublayer(norm(x.detach())))
    return total


_PARTS = ("attention.", "attention_norm.", "feed_forward.", "feed_forward_norm.")


def _fill_block(block: nn.Module) -> int:
    """Give a block weights by the library's names; return its width."""
    shapes = {name: tuple(value.shape) for name, value in block.state_dict().items()}
    needed = [f"attention.{name}" for name in lib.MultiHeadAttention(4, 2).state_dict()]
    for name in (*needed, "attention_norm.weight", "feed_forward_norm.weight"):
        if name not in shapes:
            raise UnfitError(f"There is no {name!r} in its state_dict(), but {[*shapes]}.")
    if extra := [name for name in shapes if not name.startswith(_PARTS)]:
        raise UnfitError(f"It has parameters or buffers that the library's has not: {extra}.")
    names = sorted(shapes)
    numbers = (0.4 * x for x in random_inputs(*(shapes[name] for name in names)))
    block.to("cpu", torch.float64).load_state_dict(dict(zip(names, numbers, strict=True)))
    return int(shapes["attention.query.weight"][-1])


def _try_block(found: object) -> dict[str, Tensor]:
    """What a block returns in all cases, with the gradients of its inputs and parameters."""
    block = _as_layer(found)
    width = _fill_block(block)
    sizes = [float(value.numel()) for _, value in sorted(block.state_dict().items())]
    measured = {"the sizes of its weights": torch.tensor(sizes)}
    triangle = torch.ones(5, 5, dtype=torch.bool, device="cpu").tril()
    cases = {"without a mask": None, "with a causal mask": triangle}
    x = 1.0 * random_inputs((2, 5, width))[0].requires_grad_()
    for training in (True, False):
        block.train(training)
        for case, mask in cases.items():
            name = f"{case}, {'in training' if training else 'after training'}"
            given = x.clone()
            output = block(given) if mask is None else block(given, mask)
            if not isinstance(output, Tensor):
                what = "nothing" if output is None or output is ... else type(output).__name__
                raise UnfitError(f"Its forward returns {what}; expected one tensor, (B, T, D).")
            measured[name] = output
            measured[f"what became of x {name}"] = given
    for name in [name for name in measured if name.startswith("with")]:
        measured[f"gradients {name}"] = _gradients(measured[name], [x], block)
    return measured


BLOCK = Exercise(
    reference=Block,
    inputs=[
        (12, 3),
        (8, 2, lib.RMSNorm),
        (8, 4, nn.LayerNorm, _Gated),
        (8, 2, nn.LayerNorm, FeedForward, True),
        (8, 2, nn.LayerNorm, FeedForward, False, 1.0),  # all is dropped, so nothing is random
    ],
    measure=_try_block,
    tolerance=EQUAL,
    mistakes={
        "What a sublayer writes replaces the stream: add it, x + ...": _adding(
            lambda block, x, norm, f: block.dropout(f(norm(x)))
        ),
        "The norm's result replaces the stream. Normalise what the sublayer reads, and add the "
        "write to x as it was.": _adding(
            lambda block, x, norm, f: norm(x) + block.dropout(f(norm(x)))
        ),
        "That is post-norm: here the norm stands before the sublayer, and only the sublayer reads "
        "its result.": _adding(lambda block, x, norm, f: norm(x + block.dropout(f(x)))),
        "The norm stands behind the sublayer; it belongs in front of it.": _adding(
            lambda block, x, norm, f: x + block.dropout(norm(f(x)))
        ),
        "The norms are not used: each sublayer reads norm(x).": _adding(
            lambda block, x, norm, f: x + block.dropout(f(x))
        ),
        "What is added is taken away: x plus the write.": _adding(
            lambda block, x, norm, f: x - block.dropout(f(norm(x)))
        ),
        "x += changes the caller's tensor: write x = x + ...": _adding(_in_place),
        "The feed-forward network reads the stream as it was before attention wrote to it; it "
        "must read the new one.": _Parallel,
        "The second sum begins with what came into the block, so that attention's write is lost: "
        "add to the new x.": _FromTheBeginning,
        "The feed-forward network comes first; attention comes first.": _NetworkFirst,
        "Both sublayers have the same norm; each has its own.": _OneNorm,
        "There is no plus around the feed-forward network.": _OnlyFirst,
        "There is no plus around attention.": _OnlySecond,
        "There is a norm at the end: it belongs to the stack, not to the block.": _NormAtTheEnd,
        "The mask is not used: hand it on to attention.": _Unmasked,
        "The mask was handed on as the memory: write mask=mask.": _MaskAsMemory,
        "Dropout is missing: it stands between each sublayer and its plus.": _built(dropout=0.0),
        "Dropout acts on the stream; it must act on what is added, before the plus.": _adding(
            lambda block, x, norm, f: block.dropout(x + f(norm(x)))
        ),
        "Dropout acts on what the sublayer reads; it must act on what it writes.": _adding(
            lambda block, x, norm, f: x + f(block.dropout(norm(x)))
        ),
        "It is a LayerNorm whatever `norm` says: use the one that is given.": _built(
            norm=nn.LayerNorm
        ),
        "It is the same network whatever `feed` says: use the one that is given.": _built(
            feed=FeedForward
        ),
        "`rotary` is not handed on to attention.": _built(rotary=False),
        "The network's inner width must be 4 · d_model.": _built(
            feed=lambda d_model, _: FeedForward(d_model, 2 * d_model)
        ),
        f"The numbers are right, but no gradient comes through the branches. {_NO_GRADIENT}": (
            _adding(_lost)
        ),
    },
    hints=(
        "Two sublayers, each with a norm of its own. Read the stream through the norm, call the "
        "sublayer, add what it writes.",
        "The parts are `attention_norm`, `attention`, `feed_forward_norm`, `feed_forward` and "
        "`dropout`. The network's second argument is its inner width, `4 * d_model`.",
        "`x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask))`, and the same "
        "for the feed-forward network.",
    ),
)
