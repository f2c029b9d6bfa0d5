"""Places: every heading and every code cell of a page can be linked to, from any page.

A place is written ``05_masks#what-breaks`` (a heading) or ``05_masks#cell-05-046`` (a code cell, by
the id that the notebook gives it). Pages write ``[text](place:05_masks#what-breaks)``, docstrings
the role ``:place:`text <05_masks#what-breaks>```. A place that is not there fails the build.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxRole
from sphinx.util.nodes import make_refnode, split_explicit_title

PLACE = "book-place"
BOOK = Path(__file__).resolve().parents[1]
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"^(```|:::).*?^\1", re.MULTILINE | re.DOTALL)


class Outline(NamedTuple):
    """What of a page can be pointed at.

    Attributes:
        title: its title, such as ``5b · Masks in practice``.
        headings: for each anchor the words of its heading.
        cells: the ids of its code cells.
    """

    title: str
    headings: dict[str, str]
    cells: tuple[str, ...]


def anchor_of(heading: str) -> str:
    """Return the anchor that docutils makes of a heading's words."""
    return nodes.make_id(heading)


def path_of(page: str) -> Path:
    """Return the file of a page: a notebook, or else plain Markdown.

    >>> path_of("05_masks").name, path_of("sources").name
    ('05_masks.ipynb', 'sources.md')
    """
    notebook = BOOK / f"{page}.ipynb"
    return notebook if notebook.exists() else notebook.with_suffix(".md")


@cache
def outline(page: str) -> Outline:
    """Read the outline of a stored page, such as ``05_masks`` (a notebook) or ``sources``."""
    path = path_of(page)
    text = path.read_text(encoding="utf-8")
    only = {"cell_type": "markdown", "source": text}
    cells = [only] if path.suffix == ".md" else json.loads(text)["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    words = [_LINK.sub(r"\1", w) for text in texts for w in _HEADING.findall(_FENCE.sub("", text))]
    headings = {anchor_of(heading): heading.replace("`", "") for heading in words}
    ids = tuple(cell["id"] for cell in cells if cell["cell_type"] == "code")
    return Outline(words[0], headings, ids)


def short_name(page: str) -> str:
    """Name a page in a few words: ``chapter 5b``, ``lab 2``, or its title.

    >>> short_name("05b_masks_in_practice")
    'chapter 5b'
    >>> short_name("lab2_families")
    'lab 2'
    """
    match = re.match(r"(?:(lab)|0?)(\d+[a-d]?)_", page)
    if match is None:
        return outline(page).title
    return f"{match[1] or 'chapter'} {match[2]}"


def in_words(target: str) -> str:
    """Name a place: ``chapter 5, An algebra of masks``."""
    page, _, anchor = target.partition("#")
    return f"{short_name(page)}, {outline(page).headings[anchor]}" if anchor else short_name(page)


def place(target: str, document: str, *words: nodes.Node) -> addnodes.pending_xref:
    """Return a reference to a place, to be resolved when all pages are read."""
    reference = addnodes.pending_xref(
        "",
        refdomain="",
        reftype=PLACE,
        reftarget=target,
        refdoc=document,
        refexplicit=True,
        refwarn=True,
    )
    reference += nodes.inline("", "", *words)
    return reference


class PlaceRole(SphinxRole):
    """The role ``:place:`text <page#anchor>```."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Make the reference."""
        _, words, target = split_explicit_title(self.text)
        return [place(target, self.env.docname, nodes.Text(words))], []


class CellAnchors(SphinxTransform):
    """Give each code cell of a notebook the anchor ``cell-`` and its id; note all anchors."""

    default_priority = 400

    def apply(self, **_kwargs: Any) -> None:
        """Mark the cells of one document."""
        path = Path(str(self.env.doc2path(self.env.docname)))
        if path.suffix == ".ipynb":
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            for node in self.document.findall(nodes.container):
                if node.get("nb_element") == "cell_code":
                    node["ids"].append(f"cell-{cells[node['cell_index']]['id']}")


def _note_anchors(app: Sphinx, doctree: nodes.document) -> None:
    anchors = _anchors(app.env)
    anchors[app.env.docname] = {name for node in doctree.findall() for name in _ids(node)}


def _ids(node: nodes.Node) -> list[str]:
    return list(node["ids"]) if isinstance(node, nodes.Element) else []


def _anchors(env: BuildEnvironment) -> dict[str, set[str]]:
    if not hasattr(env, "book_anchors"):
        env.book_anchors = {}  # type: ignore[attr-defined]
    found: dict[str, set[str]] = env.book_anchors  # type: ignore[attr-defined]
    return found


def _resolve_place(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.reference | None:
    if node["reftype"] != PLACE:
        return None
    page, _, anchor = node["reftarget"].partition("#")
    document = f"book/{page}"
    if document not in env.found_docs or (anchor and anchor not in _anchors(env)[document]):
        return None  # Sphinx warns, and a warning fails the build
    return make_refnode(app.builder, node["refdoc"], document, anchor, content)


def _forget(_app: Sphinx, env: BuildEnvironment, document: str) -> None:
    _anchors(env).pop(document, None)


def _merge(_app: Sphinx, env: BuildEnvironment, _names: object, other: BuildEnvironment) -> None:
    _anchors(env).update(_anchors(other))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_role("place", PlaceRole())
    app.add_transform(CellAnchors)
    app.connect("doctree-read", _note_anchors)
    app.connect("env-purge-doc", _forget)
    app.connect("env-merge-info", _merge)
    app.connect("missing-reference", _resolve_place)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
