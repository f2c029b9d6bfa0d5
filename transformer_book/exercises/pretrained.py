"""Exercises of chapter 21, Real weights."""

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs

Vocabulary = dict[str, int]

_PIECES = ("[UNK]", "un", "want", "##want", "##wanted", "##ed", "##e", "##d", "a", "##a", "##b")
_MORE = ("aa", "##aa", "trans", "##form", "tran", "##sforms", "ed", "wanted")
_VOCABULARY = {piece: n for n, piece in enumerate((*_PIECES, *_MORE), start=100)}


def _pieces(word: str, vocabulary: Vocabulary) -> list[int]:
    found, rest = _cut(word, vocabulary)
    return [vocabulary["[UNK]"]] if rest else found


def _cut(word: str, vocabulary: Vocabulary) -> tuple[list[int], str]:
    """The ids of the pieces, the longest first, and what no piece covers."""
    found: list[int] = []
    mark = ""
    while word:
        ends = range(len(word), 0, -1)
        end = next((n for n in ends if mark + word[:n] in vocabulary), None)
        if end is None:
            return found, word
        found.append(vocabulary[mark + word[:end]])
        word, mark = word[end:], "##"
    return found, ""


def _shortest(word: str, vocabulary: Vocabulary) -> list[int]:
    found: list[int] = []
    mark = ""
    while word:
        ends = range(1, len(word) + 1)
        end = next((n for n in ends if mark + word[:n] in vocabulary), None)
        if end is None:
            return [vocabulary["[UNK]"]]
        found.append(vocabulary[mark + word[:end]])
        word, mark = word[end:], "##"
    return found


def _goes_back(word: str, vocabulary: Vocabulary, mark: str = "") -> list[int]:
    """Try shorter pieces where the longest leads nowhere."""
    unknown = [vocabulary["[UNK]"]]
    for end in range(len(word), 0, -1):
        if mark + word[:end] in vocabulary:
            rest = _goes_back(word[end:], vocabulary, "##") if word[end:] else []
            if rest != unknown:
                return [vocabulary[mark + word[:end]], *rest]
    return unknown


def _unmarked(word: str, vocabulary: Vocabulary) -> list[int]:
    bare = {piece: n for piece, n in vocabulary.items() if not piece.startswith("##")}
    return _pieces(word, bare | {f"##{piece}": n for piece, n in bare.items()})


PIECES = Exercise(
    reference=_pieces,
    inputs=[
        ("unwanted", _VOCABULARY),
        ("transform", _VOCABULARY),
        ("aaab", _VOCABULARY),
        ("wantx", _VOCABULARY),
        ("transforms", _VOCABULARY),  # "tran" would fit, but "trans" is longer
        ("xa", _VOCABULARY),
    ],
    mistakes={
        "A word with a part that no piece covers is [UNK] as a whole.": (
            lambda word, vocabulary: (
                _cut(word, vocabulary)[0] + [vocabulary["[UNK]"]] * bool(_cut(word, vocabulary)[1])
            )
        ),
        "What no piece covers is dropped without a trace; the word must become [UNK].": (
            lambda word, vocabulary: _cut(word, vocabulary)[0]
        ),
        "Take the longest piece that fits, not the shortest.": _shortest,
        "WordPiece never goes back: if nothing fits after the longest piece, the word is [UNK].": (
            _goes_back
        ),
        "Pieces inside a word are marked: look for `##` and the letters.": _unmarked,
        "Only a word that is in the vocabulary as a whole is found; cut the others into pieces.": (
            lambda word, vocabulary: [vocabulary.get(word, vocabulary["[UNK]"])]
        ),
    },
    hints=(
        "Take the longest piece with which the word begins. Then do the same with the rest, until "
        "nothing is left.",
        "Try the ends from the last letter back to the first. After the first piece look for `##` "
        "before the letters. If no end fits, the whole word is `[UNK]`, whatever was found before.",
        "The ends are `range(len(word), 0, -1)`, and the test is `mark + word[:end] in "
        "vocabulary`, where `mark` is empty at first and then `##`.",
    ),
)


def _pool(states: Tensor, real: Tensor) -> Tensor:
    total = (states * real[..., None]).sum(dim=1)  # the mean has the same direction
    pooled: Tensor = total / total.norm(dim=1, keepdim=True)
    return pooled


def _normed_first(states: Tensor, real: Tensor) -> Tensor:
    units = states / states.norm(dim=-1, keepdim=True)
    weights = real.to(states.dtype)[..., None]
    mean: Tensor = (units * weights).sum(dim=1) / weights.sum(dim=1)
    return mean


_REAL = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()


def _largest(states: Tensor, real: Tensor) -> Tensor:
    hidden = torch.where(real[..., None], states, -torch.inf)
    largest = hidden.amax(dim=1)
    pooled: Tensor = largest / largest.norm(dim=1, keepdim=True)
    return pooled


POOL = Exercise(
    reference=_pool,
    inputs=[(*random_inputs((2, 4, 5)), _REAL), (*random_inputs((2, 4, 3)), ~_REAL)],
    mistakes={
        "Padding is counted: take the mean over the real tokens.": (
            lambda states, real: _pool(states, torch.ones_like(real))
        ),
        "The mean is not of length 1 yet: divide it by its norm.": (
            lambda states, real: (
                (states * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
            )
        ),
        "Normalise once, after the mean; before it every token would count the same.": (
            _normed_first
        ),
        "That is the first token's vector; the authors took the mean.": (
            lambda states, real: states[:, 0] / states[:, 0].norm(dim=-1, keepdim=True)
        ),
        "The norm is taken over the whole batch; each text has a length of its own.": (
            lambda states, real: (
                (states * real[..., None]).sum(dim=1) / (states * real[..., None]).sum(dim=1).norm()
            )
        ),
        "`real` is turned round: true are the tokens that count.": (
            lambda states, real: _pool(states, ~real)
        ),
        "That is the largest number of each feature; the authors took the mean.": _largest,
        "The mean runs over the features; it must run over the tokens of a text (dim=1).": (
            lambda states, real: torch.nn.functional.normalize(
                (states * real[..., None]).mean(dim=-1)
            )
        ),
    },
    hints=(
        "Two steps: a mean over the tokens that are real, and then the length of that mean.",
        "With `real[..., None]`, `(B, T, 1)`, padding is multiplied by 0 and adds nothing to the "
        "sum over the tokens. Then divide each text's vector by its own length.",
        "The sum is `(states * real[..., None]).sum(dim=1)`; the lengths are "
        "`.norm(dim=-1, keepdim=True)`.",
    ),
)


def _unfuse(fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = fused.chunk(3, dim=1)
    return q.T, k.T, v.T


UNFUSE = Exercise(
    reference=_unfuse,
    inputs=[random_inputs((4, 12)), random_inputs((6, 18)), random_inputs((3, 9))],
    mistakes={
        "GPT-2's matrices are used as x @ w, nn.Linear's as x @ w.T: transpose each part.": (
            lambda fused: fused.chunk(3, dim=1)
        ),
        "Queries, keys and values are cut from the wrong axis: the columns are the outputs.": (
            lambda fused: tuple(part.T for part in fused.chunk(3, dim=0))
        ),
        "The columns are dealt out like cards; each of the three is one block of columns.": (
            lambda fused: tuple(fused[:, n::3].T for n in range(3))
        ),
        "A reshape of (D, 3D) to (3, D, D) cuts rows apart; the three lie side by side in the "
        "columns.": lambda fused: tuple(fused.reshape(3, len(fused), -1).mT),
    },
    hints=(
        "Which axis of `fused` is the output? There queries, keys and values lie side by side.",
        "The columns are the outputs: the first D make queries, the next D keys, the last D "
        "values. Each block is used as `x @ block`, nn.Linear's as `x @ w.T`, so transpose each.",
        "Three blocks of columns are `fused.chunk(3, dim=1)`; return the three, each with `.T`.",
    ),
    returns=("queries", "keys", "values"),
)


def _search(query: Tensor, texts: Tensor, n: int) -> list[int]:
    cosines = texts @ query / texts.norm(dim=1)  # times the query's length, the same for all
    order: list[int] = cosines.argsort(descending=True)[:n].tolist()
    return order


def _cosines(query: Tensor, texts: Tensor, n: int) -> list[float]:
    cosines = texts @ query / (texts.norm(dim=1) * query.norm())
    values: list[float] = cosines.sort(descending=True).values[:n].tolist()
    return values


_LONG = torch.tensor([[9.0, 9.0, 0.0], [1.0, 0.1, 0.0], [0.0, 2.0, 0.3], [-1.0, 0.0, 0.0]])

SEARCH = Exercise(
    reference=_search,
    inputs=[
        (torch.tensor([1.0, 0.0, 0.0]), _LONG, 2),
        (torch.tensor([0.0, -3.0, 1.0]), _LONG, 3),
        (torch.tensor([0.2, 0.7, 0.1]), _LONG[:, [2, 0, 1]], 1),
    ],
    mistakes={
        "These are dot products: a long vector wins although it points elsewhere. Divide by the "
        "lengths.": lambda query, texts, n: (texts @ query).argsort(descending=True)[:n].tolist(),
        "The order is the wrong way round: the nearest come first.": (
            lambda query, texts, n: _search(-query, texts, n)
        ),
        "All texts are returned; only the first n are asked for.": (
            lambda query, texts, n: _search(query, texts, len(texts))
        ),
        "Those are the cosines; return the places of the rows.": _cosines,
        "This is the smallest distance; the direction is asked for, so use the cosine.": (
            lambda query, texts, n: (texts - query).norm(dim=1).argsort()[:n].tolist()
        ),
        "The sign of a cosine counts: a text that points the other way is far away.": (
            lambda query, texts, n: (
                (texts @ query / texts.norm(dim=1)).abs().argsort(descending=True)[:n].tolist()
            )
        ),
        "The right rows, but the nearest comes last.": (
            lambda query, texts, n: _search(query, texts, n)[::-1]
        ),
    },
    hints=(
        "Compute all cosines at once, then sort.",
        "A cosine is a dot product over both lengths; `texts @ query` has all dot products, "
        "`(N,)`. The query's length is the same for all and does not change the order.",
        "With `cosines = texts @ query / texts.norm(dim=1)`, `cosines.argsort(descending=True)` "
        "has the places, the nearest first.",
    ),
)
