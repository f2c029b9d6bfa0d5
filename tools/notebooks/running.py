"""The running text of a page: what a reader reads from the top to the bottom.

It is the Markdown of a notebook without headings, formulas and code, without the line under the
title, the sections "In real models" and "Exercises", and the link forward at the end. Captions
stand with their figures, in the code, and are apart for that reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from .numbers import CODE_SPAN, blocks
from .rulers import without_formulas

APART = frozenset({"In real models", "Exercises"})
NEXT = "**Next:**"

_HEADING = re.compile(r"(#+) +(.+)")
_TOP = re.compile(r"\*\d+ minutes to (?:read|work through)\b")
_NEEDS = re.compile(r"You need: (.*?)\.(?=[\s*]|$)", re.S)


@dataclass(frozen=True)
class Passage:
    """A paragraph, an item of a list or a row of a table, with its links."""

    cell: int
    heading: str  # of the second level, above it
    text: str


def running_text(notebook: NotebookNode) -> Iterator[Passage]:
    """The passages of a page, in order."""
    heading = ""
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "markdown":
            continue
        for block in map(str.strip, blocks(CODE_SPAN.sub(" ", without_formulas(cell.source)))):
            if match := _HEADING.match(block):
                heading = match[2] if len(match[1]) <= 2 else heading
            elif block and heading not in APART and not _is_frame(block):
                yield Passage(number, heading, block)


def _is_frame(block: str) -> bool:
    """Whether a block is the line under the title, or the link forward."""
    return _TOP.match(block) is not None or block.startswith(NEXT)


def needs_sentence(notebook: NotebookNode) -> str:
    """What a page says that one needs, in the line under its title; empty without one."""
    top = notebook.cells[0].source if notebook.cells else ""
    match = _NEEDS.search(top)
    return match[1] if match else ""
