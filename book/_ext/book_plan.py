"""The list of chapters on the front page: written chapters become links, planned ones do not."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class PlannedChapter(NamedTuple):
    """One line of the plan."""

    number: str
    document: str
    title: str
    promise: str


def parse_plan(lines: list[str]) -> list[PlannedChapter]:
    """Read lines of the form ``number | document | title | promise``.

    Raises:
        ValueError: if a line does not have four parts that say something.
    """
    chapters = []
    for line in filter(str.strip, lines):
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 4 or not all(parts):
            raise ValueError(f"expected `number | document | title | promise`, got {line!r}")
        chapters.append(PlannedChapter(*parts))
    return chapters


class ChapterPlan(SphinxDirective):
    """Show the plan; link the chapters that are part of this build."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Build the list."""
        try:
            chapters = parse_plan(list(self.content))
        except ValueError as error:
            raise self.error(str(error)) from error
        items = [self._item(chapter) for chapter in chapters]
        return [nodes.bullet_list("", *items, classes=["chapter-plan"])]

    def _item(self, chapter: PlannedChapter) -> nodes.list_item:
        folder = posixpath.dirname(self.env.docname)
        document = posixpath.join(folder, chapter.document)
        written = document in self.env.found_docs
        line = nodes.paragraph()
        line += nodes.inline(text=chapter.number, classes=["chapter-number"])
        line += nodes.Text(" ")
        line += _link(document, self.env.docname, chapter.title) if written else _title(chapter)
        line += nodes.Text(" ")
        line += nodes.inline(text=chapter.promise, classes=["chapter-promise"])
        if not written:
            line += nodes.Text(" ")
            line += nodes.inline(text="planned", classes=["chapter-state"])
        return nodes.list_item("", line, classes=["written" if written else "planned"])


def _title(chapter: PlannedChapter) -> nodes.inline:
    return nodes.inline(text=chapter.title, classes=["chapter-title"])


def _link(document: str, from_document: str, title: str) -> addnodes.pending_xref:
    return addnodes.pending_xref(
        "",
        nodes.inline(text=title, classes=["chapter-title"]),
        refdomain="std",
        reftype="doc",
        refexplicit=True,
        reftarget=f"/{document}",
        refdoc=from_document,
        refwarn=True,
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("chapter-plan", ChapterPlan)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
