"""Places: every heading and every code cell of a page can be linked to, from any page.

A place is written ``05_masks#what-breaks`` (a heading) or ``05_masks#cell-05-046`` (a code cell, by
the id that the notebook gives it). Pages write ``[text](place:05_masks#what-breaks)``, docstrings
the role ``:place:`text <05_masks#what-breaks>```. A place that is not there fails the build.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole
from sphinx.util.nodes import make_refnode, split_explicit_title

PLACE = "book-place"
BOOK = Path(__file__).resolve().parents[1]
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"^(```|:::).*?^\1", re.MULTILINE | re.DOTALL)
_log = logging.getLogger(__name__)


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

    >>> short_name("05b_masks_in_practice"), short_name("05e_more")
    ('chapter 5b', 'chapter 5e')
    >>> short_name("lab2_families")
    'lab 2'
    """
    match = re.match(r"(?:(lab)|0?)(\d+[a-z]?)_", page)
    if match is None:
        return outline(page).title
    return f"{match[1] or 'chapter'} {match[2]}"


def in_words(target: str) -> str:
    """Name a place: ``chapter 5, An algebra of masks``.

    Raises:
        ValueError: if there is no such place.
    """
    if problem := problem_with(target):
        raise ValueError(problem)
    page, _, anchor = target.partition("#")
    if not anchor:
        return short_name(page)
    if anchor not in outline(page).headings:
        raise ValueError(f"{target} is a cell, which has no words; expected a heading")
    return f"{short_name(page)}, {outline(page).headings[anchor]}"


def problem_with(target: str) -> str:
    """Say why a place is none, and what it may be called; nothing if it is one.

    >>> problem_with("05_mask")
    "there is no page book/05_mask; did you mean '05_masks'?"
    >>> problem_with("05_masks#what-break")
    "book/05_masks.ipynb has no heading or cell #what-break; did you mean 'what-breaks'?"
    >>> problem_with("05_masks#what-breaks")
    ''
    """
    page, _, anchor = target.partition("#")
    if not path_of(page).is_file():
        return f"there is no page book/{page}; {_nearest(page, _pages())}"
    found = outline(page)
    anchors = ["", *found.headings, *(f"cell-{cell}" for cell in found.cells)]
    if anchor not in anchors:
        where = f"book/{path_of(page).relative_to(BOOK).as_posix()}"
        return f"{where} has no heading or cell #{anchor}; {_nearest(anchor, anchors)}"
    return ""


def _pages() -> list[str]:
    found = (path for kind in ("ipynb", "md") for path in BOOK.rglob(f"*.{kind}"))
    return [path.relative_to(BOOK).with_suffix("").as_posix() for path in found]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else "nothing there is called like that"


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
        return None  # which is told below, and a warning fails the build
    return make_refnode(app.builder, node["refdoc"], document, anchor, content)


def why_missing(target: str, *, in_book: bool) -> str:
    """Say why a link to a place leads nowhere.

    Args:
        target: the place.
        in_book: whether its page is one of the book that is built.
    """
    if problem := problem_with(target):
        return f"place:{target}: {problem}"
    page, _, anchor = target.partition("#")
    if in_book:
        return f"place:{target}: the page that was built has no #{anchor}"
    return f'place:{target}: _toc.yml has no line for the page: add "- file: book/{page}"'


def _tell_missing(app: Sphinx, _domain: object, node: addnodes.pending_xref) -> bool | None:
    """Warn of a place that was not found, in more words than Sphinx has."""
    if node["reftype"] != PLACE:
        return None
    target = node["reftarget"]
    in_book = f"book/{target.partition('#')[0]}" in app.env.found_docs
    _log.warning(why_missing(target, in_book=in_book), location=node)
    return True


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
    app.connect("warn-missing-reference", _tell_missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
