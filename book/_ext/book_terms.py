"""Terms: the first use of each term on a page leads to the glossary, and says what it means.

Chapters write plain words; nothing in them has to be kept in step with the glossary. Words that
also have an everyday meaning ("key", "value", "unit") count as the term only where their paragraph
speaks of the matter. Links that a chapter sets itself, ``[weights](term:weight)``, stay.
"""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from book_words import Definition, first_uses, parse_glossary

GLOSSARY = Path(__file__).resolve().parents[1] / "glossary.md"
_SILENT = (  # no links inside these
    *(nodes.title, nodes.reference, addnodes.pending_xref, nodes.literal, nodes.literal_block),
    *(nodes.math, nodes.math_block, nodes.raw, nodes.caption, nodes.term, nodes.comment),
)


@cache
def glossary() -> dict[str, Definition]:
    """Read the glossary: for each word that it defines, synonyms included, its definition."""
    return parse_glossary(GLOSSARY.read_text(encoding="utf-8"))


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
