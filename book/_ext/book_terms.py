"""Terms: the first use of each term on a page leads to the glossary, and says what it means.

Chapters write plain words; nothing in them has to be kept in step with the glossary. Words that
also have an everyday meaning ("key", "value", "unit") count as the term only where their paragraph
speaks of the matter. Links that a chapter sets itself, ``[weights](term:weight)``, stay.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

GLOSSARY = Path(__file__).resolve().parents[1] / "glossary.md"
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
    "value": _QKV,
    "weight": r"\bsoftmax\b|\bscores?\b|\battention weights?\b|\bsum to 1\b",
}
_SIGNS = {  # of formulas, as one types them
    **{"dots": "…", "ldots": "…", "cdot": "·", "times": "×", "top": "T", "sqrt": "√", "sum": "Σ"},
    **{"log": "log", "ln": "ln", "exp": "exp", "tanh": "tanh", "le": "≤", "ge": "≥", "tau": "τ"},
    **{"alpha": "α", "beta": "β", "gamma": "γ", "epsilon": "ε", "lambda": "λ", "theta": "θ"},
    **{"sigma": "σ", "mu": "μ", "pi": "π", "Phi": "Φ", "infty": "∞", "odot": "⊙"},
}
_SILENT = (  # no links inside these
    *(nodes.title, nodes.reference, addnodes.pending_xref, nodes.literal, nodes.literal_block),
    *(nodes.math, nodes.math_block, nodes.raw, nodes.caption, nodes.term, nodes.comment),
)


class Definition(NamedTuple):
    """An entry of the glossary: the term that links name, and what it means in plain text."""

    term: str
    meaning: str


@cache
def glossary() -> dict[str, Definition]:
    """Read the glossary: for each word that it defines, synonyms included, its definition."""
    return parse_glossary(GLOSSARY.read_text(encoding="utf-8"))


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
        if word in CONTEXT and not _speaks_of(word, paragraph):
            continue
        for match in pattern(word).finditer(text):
            if all(match.end() <= start or end <= match.start() for start, end in taken):
                taken.append(match.span())
                yield (*match.span(), words[word])
                break


def _speaks_of(word: str, paragraph: str) -> bool:
    """Whether a paragraph gives an everyday word the context in which it is a term."""
    others = pattern(word).sub("", paragraph)  # a word must not be its own context
    return re.search(CONTEXT[word], others, re.IGNORECASE) is not None


class LinkTerms(SphinxTransform):
    """Link the first use of each term on a chapter's page."""

    default_priority = 875  # after the chapter's own links were read, at 870

    def apply(self, **_kwargs: Any) -> None:
        """Link the terms of one document."""
        if Path(str(self.env.doc2path(self.env.docname))).suffix != ".ipynb":
            return
        words = {word: definition.term for word, definition in glossary().items()}
        for node in list(self.document.findall()):
            if isinstance(node, addnodes.pending_xref) and node.get("reftype") == "term":
                _forget(words, node["reftarget"])
            elif isinstance(node, nodes.Text) and _may_link(node):
                self._link(node, words)

    def _link(self, node: nodes.Text, words: dict[str, str]) -> None:
        text, pieces, end = node.astext(), [], 0
        for start, stop, term in sorted(first_uses(text, _paragraph(node), words)):
            pieces += [nodes.Text(text[end:start]), self._reference(text[start:stop], term)]
            end = stop
            _forget(words, term)
        if pieces:
            node.parent.replace(node, [*pieces, nodes.Text(text[end:])])

    def _reference(self, shown: str, term: str) -> addnodes.pending_xref:
        reference = addnodes.pending_xref(
            "",
            refdomain="std",
            reftype="term",
            reftarget=term,
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
        )
        reference += nodes.inline(text=shown, classes=["term"])
        return reference


def _forget(words: dict[str, str], term: str) -> None:
    """Take a term, and its synonyms, from the words still to be found."""
    known = glossary().get(term)
    for word in [w for w in words if known and glossary()[w].meaning == known.meaning]:
        del words[word]


def _may_link(node: nodes.Text) -> bool:
    parent = node.parent
    in_paragraph = False
    while parent is not None:
        if isinstance(parent, _SILENT) or (
            isinstance(parent, nodes.container) and "nb_element" in parent
        ):
            return False
        in_paragraph = in_paragraph or isinstance(parent, nodes.paragraph)
        parent = parent.parent
    return in_paragraph


def _paragraph(node: nodes.Text) -> str:
    parent = node.parent
    while not isinstance(parent, nodes.paragraph):
        parent = parent.parent
    return str(parent.astext())


def add_meanings(body: str) -> str:
    """Let each link to the glossary show what its term means when the mouse rests on it."""
    by_anchor = {_anchor(d.term): d.meaning for d in glossary().values()}

    def with_title(match: re.Match[str]) -> str:
        meaning = by_anchor.get(_anchor(match["anchor"].removeprefix("term-")), "")
        return f'{match[0]} title="{html.escape(meaning)}"' if meaning else match[0]

    return re.sub(r'href="[^"]*glossary\.html#(?P<anchor>term-[\w-]+)"', with_title, body)


def _anchor(term: str) -> str:
    """One spelling for anchors: Sphinx keeps capitals and underscores, docutils does not."""
    return nodes.make_id(term)


def _finish(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    if "body" in context:
        context["body"] = add_meanings(context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_transform(LinkTerms)
    app.connect("html-page-context", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
