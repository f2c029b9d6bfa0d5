"""References that also read well where nothing resolves them.

In JupyterLab and on Colab a chapter's references are plain words. In the book

- ``[Figure](#fig-weights)`` and ``[equation](#eq-attention)`` become "Figure 2", "equation (1)";
- ``[weights](term:weight)`` leads to the glossary;
- ``[Vaswani et al., 2017](cite:vaswani2017attention)`` leads to the bibliography;
- ``[the mask](place:05_masks#by-hand-four-tokens)`` leads to a heading or a cell of a page.

A reference that leads nowhere fails the build. Each entry of the bibliography says which chapters
and labs cite it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

from book_front import BOOK, pages
from book_places import PLACE

CITATION = "book-citation"
SCHEMES = {"term": ("std", "term"), "cite": ("", CITATION), "place": ("", PLACE)}
_CITED = re.compile(r"\]\(cite:(\w+)\)|\{cite:\w+\}`(\w+(?:,\w+)*)`")
_NUMBERED_WORD = re.compile(r"(?:figure|table|equation)", re.IGNORECASE)
_log = logging.getLogger(__name__)


def numbered_reference(word: str, target: str, document: str) -> list[nodes.Node]:
    """Return what stands for ``[word](#target)``: Sphinx fills in the number."""
    if word.lower() == "equation":
        reference = _pending("math", "eq", target, document, explicit=False)
        reference += nodes.literal(text=target)
        return [nodes.Text(f"{word}\N{NO-BREAK SPACE}"), reference]
    reference = _pending("std", "numref", target, document)
    reference += nodes.literal(text=f"{word}\N{NO-BREAK SPACE}%s")
    return [reference]


def named_reference(scheme: str, target: str, document: str) -> addnodes.pending_xref:
    """Return what stands for a link with one of our schemes, still without its text."""
    domain, kind = SCHEMES[scheme]
    return _pending(domain, kind, target, document)


def _pending(
    domain: str, kind: str, target: str, document: str, *, explicit: bool = True
) -> addnodes.pending_xref:
    return addnodes.pending_xref(
        "",
        refdomain=domain,
        reftype=kind,
        reftarget=target,
        refdoc=document,
        refexplicit=explicit,
        refwarn=True,
    )


class BookReferences(SphinxTransform):
    """Turn a document's plain links into references that Sphinx resolves and checks."""

    default_priority = 870  # before MyST resolves its ``[text](#target)`` links, at 879

    def apply(self, **_kwargs: Any) -> None:
        """Replace the links of one document."""
        for link in list(self.document.findall(nodes.reference)):
            word = link.astext()
            if link.get("id_link") and _NUMBERED_WORD.fullmatch(word):
                target = link["refuri"].removeprefix("#")
                link.replace_self(numbered_reference(word, target, self.env.docname))
        for link in list(self.document.findall(addnodes.pending_xref)):
            scheme, colon, target = str(link.get("reftarget", "")).partition(":")
            if colon and scheme in SCHEMES and link.get("reftype") == "myst":
                reference = named_reference(scheme, target, self.env.docname)
                reference += nodes.inline("", "", *link.children, classes=[scheme])
                reference.source, reference.line = link.source, link.line
                link.replace_self(reference)


def _resolve_citation(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.reference | None:
    if node["reftype"] != CITATION:
        return None
    citations = env.get_domain("cite").citations  # type: ignore[attr-defined]
    for citation in citations:
        if citation.key == node["reftarget"]:
            document = citation.bibliography_key.docname
            place = citation.citation_id
            return make_refnode(app.builder, node["refdoc"], document, place, content)
    return None


def problem_with_citation(key: str, known: Iterable[str]) -> str:
    """Say what to do about a citation of a work that the bibliography does not have.

    >>> problem_with_citation("kaplan2020scalin", ["kaplan2020scaling"])
    "book/references.bib has no entry 'kaplan2020scalin': add it, or write 'kaplan2020scaling'"
    """
    near = get_close_matches(key, list(known), n=1, cutoff=0.9)
    other = f", or write {near[0]!r}" if near else ""
    return f"book/references.bib has no entry {key!r}: add it{other}"


def _tell_missing(app: Sphinx, _domain: object, node: addnodes.pending_xref) -> bool | None:
    """Warn of a citation that leads nowhere, in more words than Sphinx has."""
    if node["reftype"] != CITATION:
        return None
    citations = app.env.get_domain("cite").citations  # type: ignore[attr-defined]
    known = [citation.key for citation in citations]
    _log.warning(problem_with_citation(node["reftarget"], known), location=node)
    return True


def cited_keys(text: str) -> list[str]:
    """List the works that a text cites, each once.

    >>> cited_keys(
    ...     "[A](cite:a2017), {cite:p}`b2018,c2019`, [A](cite:a2017)"
    ... )
    ['a2017', 'b2018', 'c2019']
    """
    found = (key for keys in _CITED.findall(text) for key in (keys[0] or keys[1]).split(","))
    return list(dict.fromkeys(found))


@cache
def citing_pages() -> dict[str, list[str]]:
    """For each work the chapters and labs that cite it, in reading order."""
    found: dict[str, list[str]] = {}
    for name in pages():
        for key in cited_keys((BOOK / f"{name}.ipynb").read_text(encoding="utf-8")):
            found.setdefault(key, []).append(name)
    return found


def _say_where_cited(app: Sphinx, doctree: nodes.document, document: str) -> None:
    """Add a line to each entry, on the page that has the entries."""
    entries = list(doctree.findall(nodes.citation))
    citations = app.env.get_domain("cite").citations if entries else ()  # type: ignore[attr-defined]
    keys = {citation.citation_id: citation.key for citation in citations}
    for entry in entries:
        line = nodes.paragraph("", "Cited in ", classes=["cited-in"])
        for name in citing_pages().get(keys[entry["ids"][0]], []):
            target = posixpath.join(posixpath.dirname(document), name)
            number = nodes.Text(pages()[name].number.replace("lab", "lab "))
            line += [make_refnode(app.builder, document, target, "", number), nodes.Text(", ")]
        if len(line) > 1:
            entry += nodes.paragraph("", "", *line.children[:-1], classes=["cited-in"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_transform(BookReferences)
    app.connect("missing-reference", _resolve_citation)
    app.connect("warn-missing-reference", _tell_missing)
    app.connect("doctree-resolved", _say_where_cited)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
