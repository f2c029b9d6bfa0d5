"""What the ways into the book say of it is computed from its pages: sizes, specimens, courses.

``{book-size}`` fills numbers into a text, ``{stored-cell}`` shows a cell of a notebook with what it
printed, and ``{course-plan}`` cuts the way to some pages into sessions. None of them runs code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst.directives import flag
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from transformer_book.paths import (
    Page,
    path_to,
    practice_minutes,
    read_pages,
    sessions,
    total_minutes,
)

from book_plan import parse_plan
from book_sources import counts

BOOK = Path(__file__).resolve().parents[1]


@cache
def pages() -> dict[str, Page]:
    """Read what every page says of itself."""
    return read_pages(BOOK)


def sizes(of: Sequence[Page]) -> dict[str, str]:
    """Count what a text about some pages may want to say.

    >>> sizes(
    ...     [
    ...         Page("01_a", "A", 90, (), (30, 30)),
    ...         Page("lab1_b", "B", 120, ()),
    ...     ]
    ... )["hours"]
    '1.5'
    """
    labs = [page for page in of if page.is_lab]
    core = path_to({page.name: page for page in of}, [p.name for p in of if p.is_core])
    exercises = [minutes for page in of for minutes in page.exercises]
    needed = ", ".join(page.number for page in core if not page.is_core)
    return {
        "pages": str(len(of) - len(labs)),
        "hours": _hours(total_minutes(of)),
        "exercises": str(len(exercises)),
        "exercise_hours": _hours(sum(exercises)),
        "labs": str(len(labs)),
        "lab_hours": _hours(sum(lab.minutes for lab in labs)),
        "core_hours": _hours(total_minutes(core)),
        "core_needs": needed,
        "core_rule": _core_rule(needed),
    }


def _core_rule(needed: str) -> str:
    """What the core still needs of other pages, as a sentence that stays true when that is nothing.

    >>> _core_rule("2b, 3b")
    'Some of them also need a page with a letter (2b, 3b), which is counted in.'
    >>> _core_rule("")
    'They need no other page.'
    """
    if not needed:
        return "They need no other page."
    return f"Some of them also need a page with a letter ({needed}), which is counted in."


def _hours(minutes: int) -> str:
    return f"{minutes / 60:.2g}"


def fill(text: str, values: dict[str, str]) -> str:
    """Put values into their places in a text.

    >>> fill("{pages} pages", {"pages": "48"})
    '48 pages'

    Raises:
        ValueError: if a place has a name that is not known.
    """
    unknown = sorted(set(re.findall(r"\{(\w+)\}", text)) - set(values))
    if unknown:
        raise ValueError(f"{unknown} are no sizes; expected some of {list(values)}")
    return re.sub(r"\{(\w+)\}", lambda place: values[place[1]], text)


class MarkdownDirective(SphinxDirective):
    """A directive that writes Markdown, which is read as if it stood in the page."""

    def read(self, markdown: str) -> list[nodes.Node]:
        """Read Markdown at the place of the directive."""
        holder = nodes.Element()
        lines = StringList(markdown.splitlines(), self.env.docname)
        self.state.nested_parse(lines, self.content_offset, holder)
        return holder.children


class BookSize(MarkdownDirective):
    """A text with numbers such as ``{exercises}`` filled in."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Fill the text."""
        try:
            values = sizes(list(pages().values())) | counts()
            return self.read(fill("\n".join(self.content), values))
        except ValueError as error:
            raise self.error(str(error)) from error


def stored_cell(page: str, cell: str) -> tuple[str, str]:
    """Return the code of a cell and what it printed when the notebook was last run.

    Raises:
        ValueError: if the page has no such cell, or the cell printed nothing.
    """
    cells = json.loads((BOOK / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    for found in cells:
        if found["id"] == cell:
            printed = "".join("".join(o.get("text", "")) for o in found.get("outputs", []))
            if printed:
                return "".join(found["source"]), printed.rstrip()
    raise ValueError(f"{page} has no cell {cell!r} that printed something")


class StoredCell(SphinxDirective):
    """The code of a cell, and its output: ``{stored-cell} lab1_heads lab1-054``."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Show both."""
        try:
            code, printed = stored_cell(*self.arguments)
        except ValueError as error:
            raise self.error(str(error)) from error
        return [
            nodes.literal_block(code, code, language="python"),
            nodes.literal_block(printed, printed, language="none", classes=["printed"]),
        ]


def with_labs(path: Sequence[Page]) -> list[Page]:
    """Put each lab behind the last page that it needs, if the path has all of those."""
    plan = list(path)
    for lab in (page for page in pages().values() if page.is_lab):
        places = [plan.index(pages()[need]) for need in lab.needs if pages()[need] in plan]
        if len(places) == len(lab.needs):
            plan.insert(max(places) + 1, lab)
    return plan


@cache
def promises() -> dict[str, str]:
    """What the front page says that each page is about."""
    front = (BOOK / "index.md").read_text(encoding="utf-8")
    blocks = re.findall(r":::\{chapter-plan\}\n(.*?):::", front, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return {chapter.document: chapter.promise for chapter in parse_plan(lines)}


def unpromised(of: Iterable[Page], promised: Container[str]) -> list[str]:
    """Say which pages have no line on the front page, and what it should be.

    >>> unpromised([Page("22_new", "What is new", 5, ())], {"21_old"})
    ['book/index.md has no line for 22_new: add "22 | 22_new | What is new | what it promises"']
    """
    return [
        f"book/index.md has no line for {page.name}: add "
        f'"{_planned_number(page)} | {page.name} | {page.title} | what it promises"'
        for page in of
        if page.name not in promised
    ]


def _planned_number(page: Page) -> str:
    """The number at the beginning of a page's line: ``05``, ``5b``, ``L2``."""
    if page.is_lab:
        return f"L{page.number.removeprefix('lab')}"
    return page.number.zfill(2) if page.is_core else page.number


class CoursePlan(MarkdownDirective):
    """Sessions on the way to some pages: ``{course-plan} 13_transformer`` with ``:sessions: 6``."""

    required_arguments = 1
    optional_arguments = 99
    option_spec: ClassVar = {"sessions": int, "labs": flag}

    def run(self) -> list[nodes.Node]:
        """Write a table, one row a session."""
        path = path_to(pages(), self.arguments)
        if "labs" in self.options:
            path = with_labs(path)
        rows = ["| | reading | exercises, labs | read before, in order | what it is about |"]
        rows.append("|---|---|---|---|---|")
        for number, session in enumerate(sessions(path, self.options["sessions"]), start=1):
            links = "; ".join(page.link for page in session)
            about = "; ".join(self._promise(page) for page in session)
            times = f"{total_minutes(session)} min | {practice_minutes(session)} min"
            rows.append(f"| {number} | {times} | {links} | {about} |")
        made = self.read("\n".join(rows))
        for table in (node for node in made if isinstance(node, nodes.table)):
            table["classes"].append("plan")  # on a phone its cells stand below each other
        return made

    def _promise(self, page: Page) -> str:
        if problem := unpromised([page], promises()):
            raise self.error(problem[0])
        return promises()[page.name]


def _offer_no_download(
    app: Sphinx, pagename: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """The front page has no notebook, and nobody wants its Markdown or prints it."""
    if pagename == app.config.root_doc:
        buttons = context["header_buttons"]
        context["header_buttons"] = [b for b in buttons if b["label"] != "download-buttons"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", _offer_no_download, priority=900)  # after the theme's own
    app.add_directive("book-size", BookSize)
    app.add_directive("stored-cell", StoredCell)
    app.add_directive("course-plan", CoursePlan)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
