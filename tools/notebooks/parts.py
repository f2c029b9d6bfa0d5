"""The parts that a page has, by its kind: which of them a notebook lacks.

CONTRIBUTING.md says what each part is for. Here stands only what a machine can see: that a part is
there and is not empty. Whether it is good, a reader says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from .model import CellTrouble, tags
from .rulers import caption, page_kind

PLACEHOLDER = "TODO"  # what the template of a new page leaves to be written
MIN_LINES = 3  # of a summary
EXERCISES = "Exercises"
# Sections that frame the ideas of a page; the others are the ideas.
APPARATUS = frozenset(
    (
        *("Smallest numbers", "Build it", "Check it", "What breaks", "In real models", EXERCISES),
        *("What is really known", "In one minute", "Open ends", "What you should have seen"),
    )
)

_CODE_FENCE = re.compile(r"^([`~]{3,}).*?^\1[`~]*[ \t]*$", re.M | re.S)
_HEADING = re.compile(r"^## +(.+?) *$", re.M)
_HEAD = re.compile(
    r"# (?:Lab )?\w+ · .+\n\n\*\d+ minutes to (?:read|work through)(?:, \d+ for the exercises)?, "
    r".+ to run\. You need: .+"
)
_EXERCISE = re.compile(r"^### Exercise \d+ · \S.*$", re.M)
_GRADE = re.compile(r"\n+\*[A-Z][a-z ]+ · (?P<minutes>\d+ minutes|an hour)\b")
_CITATION = re.compile(r"\]\(cite:\w+\)|\{cite:?\w*\}`\w+")
_BULLET = re.compile(r"^- \S", re.M)
_FORWARD = re.compile(r"^\*\*Next:\*\* .*\]\(\w+\.(?:ipynb|md)", re.M)


# --- a page, cut at its headings --------------------------------------------------------------


@dataclass
class Section:
    """What stands below one heading of the second level; the first one has no heading."""

    heading: str
    text: str
    code: list[NotebookNode]

    @property
    def shows_something(self) -> bool:
        """Whether a cell that is no solution has an output."""
        return any(cell.outputs and "solution" not in tags(cell) for cell in self.code)


def sections_of(notebook: NotebookNode) -> list[Section]:
    """Cut a page at its headings; what is in fences is no heading."""
    sections = [Section("", "", [])]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            sections[-1].code.append(cell)
            continue
        before, *named = _HEADING.split(_CODE_FENCE.sub("", cell.source))
        sections[-1].text += before + "\n"
        for heading, text in zip(named[::2], named[1::2], strict=True):
            sections.append(Section(heading, text + "\n", []))
    return sections


def ideas_of(notebook: NotebookNode) -> list[str]:
    """The headings that stand for an idea, about five on a core page; "Check it: ..." is none."""
    headings = [section.heading for section in sections_of(notebook)]
    return [heading for heading in headings if heading and not _is_apparatus(heading)]


def _is_apparatus(heading: str) -> bool:
    return heading in APPARATUS or heading.startswith(("Check it:", "What is really known "))


def exercise_minutes(notebook: NotebookNode) -> list[int]:
    """How long each exercise of a page takes, as its line says; one without a line is left out."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    starts = [(text, match.end()) for text in texts for match in _EXERCISE.finditer(text)]
    grades = [_GRADE.match(text, end) for text, end in starts]
    said = [grade["minutes"] for grade in grades if grade]
    return [60 if minutes == "an hour" else int(minutes.split()[0]) for minutes in said]


# --- the parts --------------------------------------------------------------------------------

Sections = list[Section]


def _named(sections: Sections, heading: str) -> Section:
    """The section of a name, or an empty one."""
    return next((s for s in sections if s.heading == heading), Section(heading, "", []))


def _exercises_are_whole(notebook: NotebookNode) -> bool:
    """Whether there is an exercise, and each says how hard and long it is and has a solution."""
    solved: list[bool] = []
    n_graded = len(exercise_minutes(notebook))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            solved += [False] * len(_EXERCISE.findall(cell.source))
        elif solved and "solution" in tags(cell):
            solved[-1] = True
    return bool(solved) and all(solved) and n_graded == len(solved)


def _has_summary(sections: Sections) -> bool:
    summaries = [_named(sections, name) for name in ("In one minute", "What you should have seen")]
    bullets = len(_BULLET.findall(summaries[0].text))
    return bullets >= MIN_LINES or bool(summaries[1].text.strip())


@dataclass(frozen=True)
class Part:
    """One part: on which kinds of pages it must stand, how to see it, and what to do without it."""

    kinds: tuple[str, ...]
    is_there: Callable[[NotebookNode, Sections], bool]
    remedy: str


_PAGES, _ALL = ("core", "further"), ("core", "further", "lab")
PARTS: dict[str, Part] = {
    "head": Part(
        _ALL,
        lambda _, s: bool(_HEAD.match(s[0].text)),
        "begin with `# 5 · Title`, and below it `*5 minutes to read, 10 seconds to run. "
        "You need: ...*`; `python -m tools.notebooks minutes` on it puts the minutes right",
    ),
    "first screen": Part(
        _PAGES,
        lambda _, s: s[0].shows_something,
        "put something to look at before the first heading `##`",
    ),
    "what breaks": Part(
        _ALL,
        lambda _, s: _named(s, "What breaks").shows_something,
        "write `## What breaks`, with a mistake that is run",
    ),
    "in real models": Part(
        ("core",),
        lambda _, s: bool(_CITATION.search(_named(s, "In real models").text)),
        "write `## In real models`, with a citation",
    ),
    "exercises": Part(
        _PAGES,
        lambda notebook, _: _exercises_are_whole(notebook),
        "write `### Exercise 1 · Title`, `*Easy · 5 minutes.*`, and a cell tagged `solution`",
    ),
    "summary": Part(
        _ALL,
        lambda _, s: _has_summary(s),
        f"write `## In one minute`, with at least {MIN_LINES} lines `- ...`",
    ),
    "next": Part(
        _ALL,
        lambda _, s: bool(_FORWARD.search(s[-1].text)),
        "end with `**Next:** [what comes](06_heads.ipynb)`",
    ),
}


def missing_parts(notebook: NotebookNode) -> tuple[str, ...]:
    """Name the parts of `PARTS` that a page of this kind must have, and that it lacks."""
    kind, sections = page_kind(notebook), sections_of(notebook)
    return tuple(
        name
        for name, part in PARTS.items()
        if kind in part.kinds and not part.is_there(notebook, sections)
    )


def check_placeholders(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """What the template left to be written has been written."""
    for number, cell in enumerate(notebook.cells, start=1):
        lines = [*cell.source.splitlines(), caption(cell)]
        if line := next((line for line in lines if PLACEHOLDER in line), ""):
            yield number, f"still says {line.strip()!r}", "write it, or delete it"
