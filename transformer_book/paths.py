"""Paths through the book, read from the pages' own words.

Each page says in its first lines how long it takes and what it needs: "*35 minutes to read, ...
You need: [chapter 3](03_attention.ipynb).*" Each exercise says its minutes below its heading. All
that is here is computed from those lines, so that no list can fall out of step with the chapters.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from string import ascii_lowercase

from transformer_book.figures.pictures import MUTED, Picture

_MINUTES = re.compile(r"\*(\d+) minutes to (?:read|work)")
_EXERCISE = re.compile(
    r"^### (Exercise .+)\n+(?:\*[^*\n]*?(?:(\d+) minutes|(an hour)))?", re.MULTILINE
)
_NEEDS = re.compile(r"You need: (.*?)\.(?=[\s*]|$)", re.DOTALL)
_LINK = re.compile(r"\]\((\w+)\.ipynb(?:#[\w-]*)?\)")
# The path of a newcomer to the field: what one can do after each step, and the last pages of it.
NEWCOMERS = {
    "say what attention is": ("03_attention",),
    "say what a model reads, and why it may not look ahead": ("04_scaling", "05_masks"),
    "build a whole block": ("07_positions", "10_residuals"),
    "write a GPT from an empty page": ("lab4_mini_gpt",),
    "say what came before, and why it was given up": ("01_recurrence",),
}

_LISTED = 16  # pages of a path that a row of a table names
_BOX, _HIGH, _GAP, _LANE, _ROW = 126, 65, 12, 24, 108


@dataclass(frozen=True)
class Page:
    """One page of the book, as it describes itself.

    Args:
        name: its file, without the ending.
        title: its title, without the number.
        minutes: how long it takes to read, or a lab to work through.
        needs: the pages that it names as prerequisites.
        exercises: minutes of each of its exercises.

    Example:
        >>> Page(
        ...     "05b_masks_in_practice", "Masks in practice", 30, ("05_masks",)
        ... ).number
        '5b'
    """

    name: str
    title: str
    minutes: int
    needs: tuple[str, ...]
    exercises: tuple[int, ...] = ()

    @property
    def is_lab(self) -> bool:
        """Whether it is worked through, not read."""
        return self.name.startswith("lab")

    @property
    def number(self) -> str:
        """The number in its title, such as 5b."""
        return self.name.partition("_")[0].removeprefix("0") or "0"

    @property
    def link(self) -> str:
        """Its number and title as a link in Markdown."""
        return f"[{self.number.replace('lab', 'lab ')} · {self.title}]({self.name}.ipynb)"

    @property
    def chapter(self) -> str:
        """The number of its chapter, such as 5."""
        return self.number.rstrip(ascii_lowercase)

    @property
    def is_core(self) -> bool:
        """Whether it is the page of its chapter that has no letter."""
        return not self.is_lab and self.number == self.chapter


def read_pages(folder: str | Path) -> dict[str, Page]:
    """Read what the pages of all chapters, then the labs, say about themselves, in reading order.

    Args:
        folder: the book's folder.

    Returns:
        The pages by name.

    Raises:
        ValueError: if there is no chapter, if a page or an exercise does not say how long it
            takes, or if a page needs one that comes later or does not exist.

    Example:
        >>> read_pages("no")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: folder='no' holds no chapter; expected files like ...
    """
    pages: dict[str, Page] = {}
    for path in sorted([*Path(folder).glob("[0-9]*.ipynb"), *Path(folder).glob("lab*.ipynb")]):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        words = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        pages[path.stem] = read_page(path.stem, "\n\n".join(words), pages)
    if not pages:
        raise ValueError(
            f"folder={str(folder)!r} holds no chapter; expected files like 05_masks.ipynb"
        )
    return pages


def read_page(name: str, words: str, before: Mapping[str, Page]) -> Page:
    """Read one page.

    Args:
        name: of its file.
        words: its text.
        before: the pages that come before it.

    Returns:
        The page.

    Raises:
        ValueError: if it or an exercise does not say how long it takes, or if it needs what does
            not come before.

    Example:
        >>> title = "# 9 · Norms"
        >>> words = "*35 minutes to read. You need: [page 8](08_ffn.ipynb).*"
        >>> before = {"08_ffn": Page("08_ffn", "The network", 35, ())}
        >>> page = read_page("09_norms", title + chr(10) + words, before)
        >>> page.title, page.minutes, page.needs
        ('Norms', 35, ('08_ffn',))
    """
    minutes = _MINUTES.search(words)
    if minutes is None:
        raise ValueError(f"{name} does not say how many minutes it takes to read")
    said = _NEEDS.search(words)
    needs = tuple(dict.fromkeys(_LINK.findall(said[1]))) if said else ()
    late = [need for need in needs if need not in before]
    if late:
        raise ValueError(f"{name} needs {late}; expected pages that come before it")
    exercises = []
    for title, said_minutes, hour in _EXERCISE.findall(words):
        if not said_minutes and not hour:
            raise ValueError(f"{name}, {title!r} does not say how many minutes it takes")
        exercises.append(60 if hour else int(said_minutes))
    title = words.splitlines()[0].partition("·")[2].strip()
    return Page(name, title, int(minutes[1]), needs, tuple(exercises))


def path_to(
    pages: Mapping[str, Page], goals: Iterable[str], known: Iterable[str] = ()
) -> list[Page]:
    """List what to read for some goals: the pages and all that they need, in reading order.

    Args:
        pages: of the whole book.
        goals: names of pages.
        known: pages that need not be read, nor what only they need.

    Returns:
        The pages to read.

    Raises:
        ValueError: if a goal or a known page does not exist.

    Example:
        >>> pages = {
        ...     "a": Page("a", "A", 10, ()),
        ...     "b": Page("b", "B", 20, ("a",)),
        ... }
        >>> [page.name for page in path_to(pages, ["b"])]
        ['a', 'b']
        >>> [page.name for page in path_to(pages, ["b"], known=["a"])]
        ['b']
    """
    goals, known = list(goals), set(known)
    strange = [name for name in [*goals, *sorted(known)] if name not in pages]
    if strange:
        raise ValueError(f"{strange} are not pages; expected names such as {next(iter(pages))!r}")
    wanted: set[str] = set()
    while goals:
        name = goals.pop()
        if name not in wanted | known:
            wanted.add(name)
            goals += pages[name].needs
    return [page for name, page in pages.items() if name in wanted]


def in_steps(
    pages: Mapping[str, Page], goals: Mapping[str, Iterable[str]]
) -> dict[str, list[Page]]:
    """Go to one goal after another: each step has what its goals need and no earlier step had.

    Args:
        pages: of the whole book.
        goals: for each step, with its name, the pages to which it leads.

    Returns:
        The pages of each step, in reading order.

    Raises:
        ValueError: if a goal does not exist.

    Example:
        >>> names = {"a": (), "b": ("a",), "c": ("a",)}
        >>> pages = {
        ...     name: Page(name, name, 10, needs)
        ...     for name, needs in names.items()
        ... }
        >>> steps = in_steps(pages, {"first": ["c"], "then": ["b"]})
        >>> [[page.name for page in path] for path in steps.values()]
        [['a', 'c'], ['b']]
    """
    steps: dict[str, list[Page]] = {}
    for name, last in goals.items():
        steps[name] = path_to(pages, last, [page.name for path in steps.values() for page in path])
    return steps


def total_minutes(path: Iterable[Page]) -> int:
    """Add up the reading time of some pages; a lab is not read.

    Args:
        path: the pages.

    Returns:
        Minutes.

    Example:
        >>> total_minutes([Page("a", "A", 10, ()), Page("b", "B", 20, ("a",))])
        30
    """
    return sum(page.minutes for page in path if not page.is_lab)


def practice_minutes(path: Iterable[Page]) -> int:
    """Add up the time for exercises and labs.

    Args:
        path: the pages.

    Returns:
        Minutes.

    Example:
        >>> practice_minutes(
        ...     [Page("a", "A", 10, (), (5, 15)), Page("lab1_b", "B", 90, ())]
        ... )
        110
    """
    return sum(sum(page.exercises) + page.is_lab * page.minutes for page in path)


def all_minutes(path: Iterable[Page]) -> int:
    """Add up everything: reading, exercises and labs.

    Args:
        path: the pages.

    Returns:
        Minutes.

    Example:
        >>> all_minutes(
        ...     [Page("a", "A", 10, (), (5, 15)), Page("lab1_b", "B", 90, ())]
        ... )
        120
    """
    pages = list(path)
    return total_minutes(pages) + practice_minutes(pages)


@dataclass(frozen=True)
class Table:
    """A table whose cells are Markdown, with links; where no Markdown is shown, plain text.

    Args:
        head: the titles of its columns.
        rows: the cells of each row.

    Example:
        >>> Table(("page",), (("[3](03_attention.ipynb)",),))
        page
        3
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __repr__(self) -> str:
        """The table as text, without its links."""
        lines = [" | ".join(filter(None, row)) for row in (self.head, *self.rows)]
        plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line) for line in lines]
        return "\n".join(textwrap.fill(line, 72, subsequent_indent="    ") for line in plain)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Give Jupyter both forms."""
        lines = [self.head, ("---",) * len(self.head), *self.rows]
        markdown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return {"text/markdown": markdown, "text/plain": repr(self)}


def table_of_paths(paths: Mapping[str, Iterable[Page]], what: str) -> Table:
    """List paths: how long to read, how long for exercises and labs, and which pages.

    Args:
        paths: each with its name, in Markdown.
        what: the title of the column of names.

    Returns:
        The table, with a link to each page; of a long path, to its ends.

    Example:
        >>> table_of_paths(
        ...     {"an hour": [Page("03_a", "A", 25, (), (10,))]}, "you have"
        ... )
        you have | reading | exercises, labs | you read
        an hour | 25 min | 10 min | 3 · A
    """
    rows = []
    for name, path in paths.items():
        pages = list(path)
        times = (total_minutes(pages), practice_minutes(pages))
        rows.append((name, *map(_time, times), _list(pages)))
    return Table((what, "reading", "exercises, labs", "you read"), tuple(rows))


def _list(pages: list[Page]) -> str:
    """Titles may hold commas, so semicolons stand between them; nobody reads 50 titles in a row."""
    if len(pages) > _LISTED:
        return f"{len(pages)} pages, from {pages[0].link} to {pages[-1].link}"
    return "; ".join(page.link for page in pages)


def _time(minutes: int) -> str:
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def sessions(
    path: Iterable[Page], number: int, minutes: Callable[[Iterable[Page]], int] = total_minutes
) -> list[list[Page]]:
    """Cut a path into so many sessions, in order, the longest as short as it can be.

    Args:
        path: the pages.
        number: of sessions, or weeks.
        minutes: what counts: reading alone, or :func:`all_minutes`.

    Returns:
        For each session its pages; a short path makes fewer sessions.

    Raises:
        ValueError: if there is no page, or less than one session.

    Example:
        >>> path = [
        ...     Page(name, name, minutes, ())
        ...     for name, minutes in zip("abcd", (30, 20, 25, 25))
        ... ]
        >>> [[page.name for page in session] for session in sessions(path, 2)]
        [['a', 'b'], ['c', 'd']]
    """
    path = list(path)
    if not path or number < 1:
        raise ValueError(f"expected pages and at least one session, got {len(path)} and {number}")
    longest = max(minutes([page]) for page in path)
    while len(cut := _cut(path, longest, minutes)) > number:
        longest += 1
    return cut


def _cut(
    path: list[Page], longest: int, minutes: Callable[[Iterable[Page]], int]
) -> list[list[Page]]:
    """Cut a path into sessions of at most so many minutes, each as full as it can be."""
    cut: list[list[Page]] = [[]]
    for page in path:
        if cut[-1] and minutes([*cut[-1], page]) > longest:
            cut.append([])
        cut[-1].append(page)
    return cut


def chapter_needs(pages: Mapping[str, Page]) -> dict[str, set[str]]:
    """Say which chapters each chapter needs, without those that its needs need already.

    Args:
        pages: of the whole book.

    Returns:
        For each chapter the numbers of the chapters right before it in the graph.

    Example:
        >>> names = {"01_a": (), "02_b": ("01_a",), "03_c": ("01_a", "02_b")}
        >>> chapter_needs(
        ...     {
        ...         name: Page(name, name, 10, needs)
        ...         for name, needs in names.items()
        ...     }
        ... )
        {'1': set(), '2': {'1'}, '3': {'2'}}
    """
    direct: dict[str, set[str]] = {}
    for page in (page for page in pages.values() if not page.is_lab):
        needs = {pages[need].chapter for need in page.needs} - {page.chapter}
        direct[page.chapter] = direct.get(page.chapter, set()) | needs
    every: dict[str, set[str]] = {}
    for chapter, needs in direct.items():
        every[chapter] = needs.union(*(every[need] for need in needs))
    return {
        chapter: needs - set().union(*(every[need] for need in needs))
        for chapter, needs in direct.items()
    }


def prerequisite_graph(pages: Mapping[str, Page]) -> Picture:
    """Draw which chapter needs which: each stands below all that it needs, and leads to its page.

    Args:
        pages: of the whole book.

    Returns:
        The picture.

    Example:
        >>> names = {"01_a": (), "02_b": ("01_a",), "03_c": ("01_a", "02_b")}
        >>> pages = {
        ...     name: Page(name, name[3:], 10, needs)
        ...     for name, needs in names.items()
        ... }
        >>> prerequisite_graph(pages).summary
        'Which chapter needs which. 1 needs none. 2 needs 1. 3 needs 2.'
    """
    # Here and not above: the site reads pages too, on machines without PyTorch.
    from transformer_book.figures.diagrams import Canvas  # noqa: PLC0415

    needs = chapter_needs(pages)
    rows, lines = _rows(needs)
    canvas = Canvas()
    spots = _spots(rows)
    first = {page.chapter: page for page in reversed(list(pages.values()))}
    for (need, chapter), between in lines.items():
        points = [(spots[need][0], spots[need][1] + _HIGH)]
        for passing in between:  # straight down beside the boxes of that row
            x, y = spots[passing]
            points += [(x, y), (x, y + _HIGH)]
        path = "L".join(f"{x} {y}" for x, y in [*points, spots[chapter]])
        canvas.elements.append(f'<path d="M{path}" fill="none" stroke="{MUTED}"/>')
    for chapter in needs:
        x, y = spots[chapter]
        canvas.elements.append(f'<a href="{first[chapter].name}.ipynb">')
        canvas.box(x - _BOX / 2, y, _label(chapter, first[chapter].title), width=_BOX)
        canvas.elements.append("</a>")
    said = [f"{c} needs {', '.join(sorted(n, key=int)) or 'none'}." for c, n in needs.items()]
    title = "Which chapter needs which"
    return canvas.picture(title, " ".join([f"{title}.", *said]))


def _label(chapter: str, title: str) -> list[str]:
    """The number and two lines of the title, as long as a box is wide."""
    subject = title.partition(":")[0].partition(",")[0]
    lines = textwrap.wrap(subject, 19, max_lines=2, placeholder=" …")
    return [chapter, *lines, *[""] * (2 - len(lines))]


def _rows(
    needs: Mapping[str, set[str]],
) -> tuple[list[list[str]], dict[tuple[str, str], list[str]]]:
    """Rows of chapters, each below its needs, and the lines between them.

    A line that passes a row takes a place in it, named such as ``3>9 4``. Each row is sorted by the
    mean place of what its entries hang on, which takes most crossings away.
    """
    depth: dict[str, int] = {}
    for chapter, before in needs.items():
        depth[chapter] = 1 + max((depth[need] for need in before), default=-1)
    rows: list[list[str]] = [[] for _ in range(1 + max(depth.values()))]
    lines: dict[tuple[str, str], list[str]] = {}
    hangs_on: dict[str, list[str]] = {chapter: [] for chapter in needs}
    for chapter, before in needs.items():
        rows[depth[chapter]].append(chapter)
        for need in sorted(before, key=int):
            levels = range(depth[need] + 1, depth[chapter])
            between = [f"{need}>{chapter} {level}" for level in levels]
            for level, name in zip(levels, between, strict=True):
                rows[level].append(name)
            chain = [need, *between, chapter]
            for upper, lower in pairwise(chain):
                hangs_on.setdefault(lower, []).append(upper)
            lines[need, chapter] = between
    for upper_row, row in pairwise(rows):
        places = {name: place / len(upper_row) for place, name in enumerate(upper_row)}
        row.sort(key=lambda name: mean(places[upper] for upper in hangs_on[name]))
    return rows, lines


def _spots(rows: list[list[str]]) -> dict[str, tuple[float, float]]:
    """For each entry of each row the middle of its upper edge; rows are centred."""
    widths = [[_BOX + _GAP if name.isdigit() else _LANE for name in row] for row in rows]
    widest = max(map(sum, widths))
    spots: dict[str, tuple[float, float]] = {}
    for depth, (row, sizes) in enumerate(zip(rows, widths, strict=True)):
        x = 14 + (widest - sum(sizes)) / 2
        for name, size in zip(row, sizes, strict=True):
            spots[name] = (x + size / 2, 14 + depth * _ROW)
            x += size
    return spots
