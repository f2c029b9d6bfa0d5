"""How long a page takes: one formula, written under the title by a tool and never by hand.

Minutes to read are counted from what a reader meets outside the exercises::

    words / 100 + visible lines of code / 5 + lines of output / 10 + figures + 5 live figures

Readers who were new to the subject were asked how long two pages had taken them. They said 60 to 75
minutes for chapter 1 and the same for chapter 2; the pages said 30. Both pages are of one make, so
their times fix one number, the sum, and not five. Its parts come from elsewhere:

- **100 words a minute.** Adults read non-fiction at 238 (Brysbaert, 2019). A page of this book is
  studied, with new terms, and with formulas between the words that are not counted. This is the
  number that was fitted: with the others as below, it makes the sum right.
- **12 seconds a line of code**, 300 lines an hour. Reviewers who prepare an inspection read 125 to
  500 (Humphrey, 1989).
- **6 seconds a line of output**: it is compared with the code above it.
- **A minute for a figure.** Its caption counts as words.
- **Five minutes for a live figure**: it comes with two to four things to try.

With what they had when their readers took the time, chapter 1 (2,046 words, 148 lines of code, 60
of output, 4 figures, 1 live) comes to 65 minutes and chapter 2 (2,064, 130, 60, 4, 1) to 60. Folded
code and solutions count nothing: they are read by those who want to.

A **lab** asks for parts of a program (`pick`) that come without times of their own. Each counts ten
minutes, which was the median of the book's exercises in 2026. Nobody has timed a lab.

**Exercises** have minutes of their own, the sum of those that they say. All is rounded to 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from .fold import VISIBLE, kind_of
from .model import SVG, CellTrouble, load, save
from .parts import EXERCISES, exercise_minutes, sections_of
from .rulers import caption, count_lines, count_words, page_kind, printed

WORDS_A_MINUTE = 100
LINES_A_MINUTE = 5
OUTPUT_LINES_A_MINUTE = 10
MINUTES_A_FIGURE = 1
MINUTES_A_LIVE_FIGURE = 5
MINUTES_A_PART = 10
STEP = 5

_LINE = re.compile(
    r"(?<=\*)(?P<minutes>\d+) minutes to (?P<verb>read|work through)"
    r"(?:, (?P<exercises>\d+) for the exercises)?(?=, )"
)
_LIVE = re.compile(r"\blive\.figure\(")
_PART = re.compile(r"\bpick\(\s*\"lab\d+\.")
_UNREAD = ("solution", "remove-cell", "set-up")


@dataclass(frozen=True)
class Load:
    """What a reader meets on a page, outside the exercises."""

    words: int
    lines: int
    output_lines: int
    figures: int
    live_figures: int
    parts: int = 0

    @property
    def minutes(self) -> float:
        """How long it takes, not rounded."""
        return (
            self.words / WORDS_A_MINUTE
            + self.lines / LINES_A_MINUTE
            + self.output_lines / OUTPUT_LINES_A_MINUTE
            + self.figures * MINUTES_A_FIGURE
            + self.live_figures * MINUTES_A_LIVE_FIGURE
            + self.parts * MINUTES_A_PART
        )


def load_of(notebook: NotebookNode) -> Load:
    """Count what a reader meets on a page."""
    sections = [section for section in sections_of(notebook) if section.heading != EXERCISES]
    cells = [cell for section in sections for cell in section.code if kind_of(cell) not in _UNREAD]
    drawn = [cell for cell in cells if _draws(cell)]
    live = [cell for cell in drawn if _LIVE.search(cell.source)]
    told = [cell for cell in cells if not _draws(cell)]
    return Load(
        words=sum(count_words(f"{section.heading}\n\n{section.text}") for section in sections)
        + sum(count_words(caption(cell)) for cell in cells),
        lines=sum(count_lines(cell.source) for cell in cells if kind_of(cell) in VISIBLE),
        output_lines=sum(count_lines(printed(cell)) for cell in told),
        figures=len(drawn) - len(live),
        live_figures=len(live),
        parts=sum(len(_PART.findall(cell.source)) for cell in cells),
    )


def _draws(cell: NotebookNode) -> bool:
    return any(SVG in output.get("data", {}) for output in cell.outputs)


@dataclass(frozen=True)
class Minutes:
    """How long a page takes."""

    reading: int
    exercises: int  # 0 if it has none

    def said(self, verb: str) -> str:
        """As the line under the title says it."""
        exercises = f", {self.exercises} for the exercises" if self.exercises else ""
        return f"{self.reading} minutes to {verb}{exercises}"


def minutes_of(notebook: NotebookNode) -> Minutes:
    """How long a page takes, by the formula, rounded."""
    exercises = sum(exercise_minutes(notebook))
    return Minutes(_rounded(load_of(notebook).minutes), _rounded(exercises) if exercises else 0)


def _rounded(minutes: float) -> int:
    return max(STEP, STEP * round(minutes / STEP))


# --- the line under the title -----------------------------------------------------------------


def set_minutes(notebook: NotebookNode) -> bool:
    """Write the minutes of a page into the line under its title; say whether that changed it.

    A page without such a line, or of another kind than those that are read, is left as it is.
    """
    if (line := _line(notebook)) is None:
        return False
    top, right = notebook.cells[0], minutes_of(notebook).said(line["verb"])
    top.source = top.source[: line.start()] + right + top.source[line.end() :]
    return right != line.group()


def _line(notebook: NotebookNode) -> re.Match[str] | None:
    """What the first cell says about minutes; None if the page does not say it, or need not."""
    if page_kind(notebook) not in ("core", "further", "lab") or not notebook.cells:
        return None
    return _LINE.search(notebook.cells[0].source)


def write_minutes(path: Path) -> bool:
    """Write the minutes of a stored page; say whether that changed it."""
    notebook = load(path)
    changed = set_minutes(notebook)
    if changed:
        save(notebook, path)
    return changed


def check_minutes(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """The line under the title says what the formula gives."""
    if (line := _line(notebook)) is None:
        return
    if line.group() != (right := minutes_of(notebook).said(line["verb"])):
        remedy = "run `python -m tools.notebooks minutes` on it"
        yield 1, f"says {line.group()!r}; the formula gives {right!r}", remedy
