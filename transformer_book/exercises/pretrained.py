"""Exercises of chapter 21, Real weights."""

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs

_PIECES = ("[UNK]", "un", "want", "##want", "##wanted", "##ed", "##e", "##d", "a", "##a", "##b")
_VOCABULARY = {piece: n for n, piece in enumerate((*_PIECES, "aa", "##aa", "trans", "##form"))}


def _cut(word: str, vocabulary: dict[str, int], *, longest: bool = True) -> tuple[list[int], bool]:
    """Return the ids of the pieces, and whether they cover the whole word."""
    found: list[int] = []
    rest, mark = word, ""
    while rest:
        ends = range(len(rest), 0, -1) if longest else range(1, len(rest) + 1)
        end = next((n for n in ends if mark + rest[:n] in vocabulary), 0)
        if not end:
            return found, False
        found.append(vocabulary[mark + rest[:end]])
        rest, mark = rest[end:], "##"
    return found, True


def _pieces(word: str, vocabulary: dict[str, int], *, longest: bool = True) -> list[int]:
    found, whole = _cut(word, vocabulary, longest=longest)
    return found if whole else [vocabulary["[UNK]"]]


def _keeps_what_fits(word: str, vocabulary: dict[str, int]) -> list[int]:
    found, whole = _cut(word, vocabulary)
    return found if whole else [*found, vocabulary["[UNK]"]]


def _drops_the_rest(word: str, vocabulary: dict[str, int]) -> list[int]:
    return _cut(word, vocabulary)[0]


PIECES = Exercise(
    reference=_pieces,
    inputs=[
        ("unwanted", _VOCABULARY),
        ("transform", _VOCABULARY),
        ("aaab", _VOCABULARY),
        ("wantx", _VOCABULARY),
    ],
    mistakes={
        "A word with a part that no piece covers is [UNK] as a whole.": _keeps_what_fits,
        "What no piece covers is dropped without a trace; the word must become [UNK].": (
            _drops_the_rest
        ),
        "Take the longest piece that fits, not the shortest.": (
            lambda word, vocabulary: _pieces(word, vocabulary, longest=False)
        ),
    },
)


def _pool(states: Tensor, real: Tensor) -> Tensor:
    weights = real.to(states.dtype)[..., None]
    mean = (states * weights).sum(dim=1) / weights.sum(dim=1)
    return torch.nn.functional.normalize(mean)


def _normed_first(states: Tensor, real: Tensor) -> Tensor:
    units = states / states.norm(dim=-1, keepdim=True)
    weights = real.to(states.dtype)[..., None]
    mean: Tensor = (units * weights).sum(dim=1) / weights.sum(dim=1)
    return mean


_REAL = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()

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
    },
)


def _unfuse(fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = fused.chunk(3, dim=1)
    return q.T, k.T, v.T


UNFUSE = Exercise(
    reference=_unfuse,
    inputs=[random_inputs((4, 12)), random_inputs((6, 18))],
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
        "The order is queries, keys, values.": lambda fused: _unfuse(fused)[::-1],
    },
)


def _search(query: Tensor, texts: Tensor, n: int) -> list[int]:
    cosines = texts @ query / (texts.norm(dim=1) * query.norm())
    order: list[int] = cosines.argsort(descending=True)[:n].tolist()
    return order


_LONG = torch.tensor([[9.0, 9.0, 0.0], [1.0, 0.1, 0.0], [0.0, 2.0, 0.3], [-1.0, 0.0, 0.0]])

SEARCH = Exercise(
    reference=_search,
    inputs=[
        (torch.tensor([1.0, 0.0, 0.0]), _LONG, 2),
        (torch.tensor([0.0, -3.0, 1.0]), _LONG, 3),
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
    },
)
