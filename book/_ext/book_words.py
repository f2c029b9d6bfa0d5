"""Words of the glossary: its entries, and how a term is told from an everyday word in a text.

The site links terms with this (`book_terms`), and the notebook check sees whether they are defined
before they are used (`tools/notebooks/terms.py`). It needs no Sphinx.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

_QKV = r"\b(?:quer(?:y|ies)|keys|values)\b"
# Everyday words, and what else the paragraph must say for the word to be the term.
CONTEXT = {
    "bias": r"\bgains?\b|\blinear\b|\bprojections?\b|\bgates?\b|\bALiBi\b|\bmatri(?:x|ces)\b",
    "block": r"\bstacks?\b|\bsublayers?\b|\bfeed-forward\b|\battention\b|\b(?:en|de)coder",
    "head": r"\battention\b|\bquer(?:y|ies)\b|\bkeys?\b",
    "kernel": r"\bGPUs?\b|\bfused\b|\blaunch|\bFlashAttention\b|\bbackward\b|\bPyTorch\b",
    "key": _QKV,
    "loss": r"\btrain|\bmodels?\b|\bgradients?\b|\bnats?\b|\blearn",
    "memory": r"\bencoder\b|\bcross-attention\b",
    "merge": r"\bpairs?\b|\bBPE\b|\bbyte-pair\b",
    "norm": r"\bsublayers?\b|\bresiduals?\b|\bgains?\b|\bblocks?\b|\bstream\b|\battention\b",
    "patch": r"\bimages?\b|\bpictures?\b|\bpixels?\b",
    "score": r"\bsoftmax\b|\bquer(?:y|ies)\b|\bkeys?\b|\battention\b",
    "tile": r"\bsoftmax\b|\battention\b|\bkeys\b",
    "unit": r"\bfeed-forward\b|\binner\b|\bneurons?\b|\bFFN\b",
    "update": r"\bgradients?\b|\blearning rates?\b|\boptimi[sz]er|\btrain|\blosses\b|\bloss\b",
    "value": _QKV,
    "weight": r"\bsoftmax\b|\bscores?\b|\battention weights?\b|\bsum to 1\b",
}
_SIGNS = {  # of formulas, as one types them
    **{"dots": "…", "ldots": "…", "cdot": "·", "times": "×", "top": "T", "sqrt": "√", "sum": "Σ"},
    **{"log": "log", "ln": "ln", "exp": "exp", "tanh": "tanh", "le": "≤", "ge": "≥", "tau": "τ"},
    **{"alpha": "α", "beta": "β", "gamma": "γ", "epsilon": "ε", "lambda": "λ", "theta": "θ"},
    **{"sigma": "σ", "mu": "μ", "pi": "π", "Phi": "Φ", "infty": "∞", "odot": "⊙"},
}


class Definition(NamedTuple):
    """An entry of the glossary: the term that links name, and what it means in plain text."""

    term: str
    meaning: str


def parse_glossary(text: str) -> dict[str, Definition]:
    """Read a glossary in MyST: names at the margin, one below the other, then an indented text."""
    body = text.partition(":::{glossary}\n")[2].partition("\n:::")[0]
    found: dict[str, Definition] = {}
    for block in re.split(r"\n\n(?=\S)", body):
        lines = block.strip("\n").splitlines()
        names = [line.strip() for line in lines if not line.startswith(" ")]
        meaning = plain(" ".join(line.strip() for line in lines if line.startswith(" ")))
        meaning = meaning.partition(" Also: ")[0]  # the names that others use
        found |= {name: Definition(name, meaning) for name in names}
    return found


def plain(markdown: str) -> str:
    """Strip a definition of its markup.

    >>> plain(
    ...     "A {term}`mask` of {term}`keys <key>`, `(T, S)`, in [chapter 5](05_masks.ipynb)."
    ... )
    'A mask of keys, (T, S), in chapter 5.'
    """
    text = re.sub(r"\{\w+(?::\w+)?\}`([^`<]*?)(?: <[^`]*>)?`", r"\1", markdown)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\$([^$]*)\$", lambda formula: _typed(formula[1]), text)
    return re.sub(r"[`*]", "", text)


def _typed(formula: str) -> str:
    r"""Write a small formula with the signs of a keyboard.

    >>> _typed(r"0 \dots t, x\,\Phi(x), \sqrt{d_k}, \mathrm{norm}(x)")
    '0 … t, x Φ(x), √d_k, norm(x)'
    """
    formula = re.sub(r"\\[,;! ]", " ", formula)
    for command, sign in _SIGNS.items():
        formula = re.sub(rf"\\{command}(?![a-zA-Z])", sign, formula)
    return re.sub(r"\\[a-zA-Z]+ ?|[{}\\]", "", formula)


@cache
def pattern(word: str) -> re.Pattern[str]:
    """Match a term in running text: whole words, singular or plural, large or small first letter.

    >>> [
    ...     bool(pattern("query").search(t))
    ...     for t in ("Queries ask", "the query", "queryable")
    ... ]
    [True, True, False]
    """
    stem, ending = re.escape(word), "(?:s|es)?"
    if word.endswith("y") and not word.endswith("ey"):
        stem, ending = re.escape(word[:-1]), "(?:y|ies)"
    first = stem[0]
    if first.isalpha() and not word[:2].isupper():
        stem = f"[{first.lower()}{first.upper()}]{stem[1:]}"
    return re.compile(rf"(?<![\w-]){stem}{ending}(?![\w-])")


def first_uses(
    text: str, paragraph: str, words: Mapping[str, str]
) -> Iterator[tuple[int, int, str]]:
    """Yield where terms stand for the first time in a piece of text: start, end, term.

    Args:
        text: the piece.
        paragraph: all of the paragraph that holds it.
        words: the words still to be found, each with its term. Longer words win.
    """
    taken: list[tuple[int, int]] = []
    for word in sorted(words, key=len, reverse=True):
        if word[1:-1] not in text:  # all its forms have this; most words are not there
            continue
        if word in CONTEXT and not speaks_of(word, paragraph):
            continue
        for match in pattern(word).finditer(text):
            if all(match.end() <= start or end <= match.start() for start, end in taken):
                taken.append(match.span())
                yield (*match.span(), words[word])
                break


def speaks_of(word: str, paragraph: str) -> bool:
    """Whether a paragraph gives an everyday word the context in which it is a term."""
    others = pattern(word).sub("", paragraph)  # a word must not be its own context
    return re.search(CONTEXT[word], others, re.IGNORECASE) is not None
