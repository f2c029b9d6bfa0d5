"""The list of chapters on the front page, under the parts of ``_toc.yml``, with their minutes.

Written chapters become links, planned ones do not; core pages and further ones look different.
"""

from __future__ import annotations

import posixpath
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import yaml  # type: ignore[import-untyped]
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book_order import about

CONTENTS = Path(__file__).resolve().parents[2] / "_toc.yml"


class PlannedChapter(NamedTuple):
    """One line of the plan."""

    number: str
    document: str
    title: str
    promise: str

    @property
    def shown_number(self) -> str:
        """Its number as the chapter itself writes it.

        >>> PlannedChapter("01", "01_recurrence", "", "").shown_number
        '1'
        >>> PlannedChapter("00", "00_reading", "", "").shown_number
        '0'
        """
        return self.number.removeprefix("0") or "0"


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


@cache
def part_of() -> dict[str, str]:
    """Read the contents: for each document the name of its part."""
    parts = yaml.safe_load(CONTENTS.read_text(encoding="utf-8"))["parts"]
    return {entry["file"]: part["caption"] for part in parts for entry in part["chapters"]}


class ChapterPlan(SphinxDirective):
    """Show the plan; link the chapters that are part of this build."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Build a list for each part, with its name above it unless there is only one."""
        try:
            chapters = parse_plan(list(self.content))
        except ValueError as error:
            raise self.error(str(error)) from error
        lists: list[nodes.Node] = []
        for part, group in groupby(chapters, key=lambda c: part_of().get(self._document(c), "")):
            lists.append(nodes.paragraph(text=part, classes=["plan-part"]))
            items = [self._item(chapter) for chapter in group]
            lists.append(nodes.bullet_list("", *items, classes=["chapter-plan"]))
        return lists if len(lists) > 2 else lists[1:]

    def _document(self, chapter: PlannedChapter) -> str:
        return posixpath.join(posixpath.dirname(self.env.docname), chapter.document)

    def _item(self, chapter: PlannedChapter) -> nodes.list_item:
        document = self._document(chapter)
        written = document in self.env.found_docs
        line = nodes.paragraph()
        line += nodes.inline(text=chapter.shown_number, classes=["chapter-number"])
        line += nodes.Text(" ")
        line += _link(document, self.env.docname, chapter.title) if written else _title(chapter)
        line += nodes.Text(" ")
        line += nodes.inline(text=chapter.promise, classes=["chapter-promise"])
        line += nodes.Text(" ")
        classes = ["written" if written else "planned"]
        state = "planned"
        if written:
            page = about(Path(str(self.env.doc2path(document))))
            classes.append(page.kind or "")
            further = "further, " if page.kind == "further" else ""
            state = f"{further}{page.minutes} min" if page.minutes else ""
        line += nodes.inline(text=state, classes=["chapter-state"])
        return nodes.list_item("", line, classes=classes)


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
