"""Folding: what a cell's tag and title line mean, and the metadata that tools make of them.

An author writes at most one of five tags (`KINDS`), and into the first line of a cell that hides
its source a title: `# @title How this table was made: rows`. `dress` derives from them what the web
page (myst-nb), JupyterLab and Colab need, each its own. Only metadata change, so a stored notebook
stays valid; the one exception is the title of a set-up cell, which is generated.

The checks are about honesty, too: a name that visible code uses and a folded cell defines stands in
that cell's title, and every cell works whether or not a solution was run.
"""

from __future__ import annotations

import ast
import copy
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nbformat import NotebookNode

from transformer_book.your_file import TAG

from .model import MAX_WIDTH, CellTrouble, as_node, code_cells, tags
from .names import Names, names_of

DRESS = "run `python -m tools.notebooks dress` on it"
GUESS = ("Write down your guess, then look", "Hide the output")
YOUR_FILE = TAG  # a cell that belongs to the file which the reader writes; it is open
OLD_TAGS = ("hide-input", "hide-cell", "hide-output")  # myst-nb's: derived, never written by hand

_SOURCE = {"source_hidden": True}
_OUTPUT = {"outputs_hidden": True}
# The author's tags, each with the tag that myst-nb reads and with what JupyterLab reads.
KINDS: dict[str, tuple[list[str], dict[str, bool]]] = {
    "fold": (["hide-input"], _SOURCE),
    "set-up": (["hide-input"], _SOURCE),
    "solution": (["hide-cell"], _SOURCE | _OUTPUT),
    "predict": (["hide-output"], _OUTPUT),
    "remove-cell": ([], _SOURCE),  # Colab's; the page leaves it out
}
TITLED = frozenset({"fold", "set-up", "solution", "remove-cell"})
VISIBLE = frozenset({"", "predict"})
_PROMPTS = ("code_prompt_show", "code_prompt_hide")
_DERIVED_KEYS = ("tags", "jupyter", "cellView", "mystnb")

_TITLE, _MORE = "# @title ", "#   "  # the first is Colab's
MAX_WORDS = 60  # characters of a title before its names
_NAME = r"[^\W\d]\w*"
_WITH_NAMES = re.compile(rf"(?P<words>[^:]*[^:.])(?:: (?P<names>{_NAME}(?:, {_NAME})*))?")
_FORMS = {
    "fold": (_WITH_NAMES, "`# @title How this table was made: rows`, names after the colon"),
    "set-up": (_WITH_NAMES, "`# @title Imports: math, torch`"),
    # What follows would give the answer away.
    "solution": (re.compile("(?P<words>Solution)"), "`# @title Solution`, and no more"),
    "remove-cell": (re.compile(r"(?P<words>.*[^.])"), "`# @title Set-up for Colab`"),
}

# All that a set-up cell may do besides importing: nothing that a reader must know.
_SETTINGS = frozenset({"set_printoptions", "manual_seed", "seed", "set_num_threads"})
_SET = frozenset({"device", "DEVICE", "seed", "SEED", "generator", "rng"})


@dataclass(frozen=True)
class Part:
    """A code cell with what folding needs to know of it."""

    number: int
    cell: NotebookNode
    kind: str
    names: Names

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"cell {self.cell.get('id', self.number)}"

    @property
    def told(self) -> set[str]:
        """The names that its title tells."""
        match = _WITH_NAMES.fullmatch(title_of(self.cell.source))
        return set((match["names"] or "").split(", ")) - {""} if match else set()


def parts_of(notebook: NotebookNode) -> list[Part]:
    """The code cells of a notebook, in order."""
    return [
        Part(number, cell, kind_of(cell), names_of(cell.source))
        for number, cell in code_cells(notebook)
    ]


def kind_of(cell: NotebookNode) -> str:
    """The author's tag that says how a cell is shown; empty for what a learner would type."""
    return next((tag for tag in tags(cell) if tag in KINDS), "")


def title_lines(source: str) -> list[str]:
    """The first lines that are the title: one, or more if a list of names goes on."""
    lines = source.split("\n")
    if not lines[0].startswith(_TITLE):
        return []
    n = 1
    while n < len(lines) and lines[n - 1].endswith(",") and lines[n].startswith(_MORE):
        n += 1
    return lines[:n]


def title_of(source: str) -> str:
    """The title in one line, without the signs of a comment; empty if there is none."""
    lines = title_lines(source)
    return " ".join(line.removeprefix(_TITLE).removeprefix(_MORE).strip() for line in lines)


# --- dressing ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A cell that was dressed anew; a new source asks for a run."""

    number: int
    new_source: bool


def dress(notebook: NotebookNode) -> list[Change]:
    """Write the generated titles and the derived metadata; say which cells that changed."""
    changes = []
    parts = parts_of(notebook)
    for part in parts:
        cell, source = part.cell, generated_source(part, parts)
        metadata = derived_metadata(cell, source)
        if source != cell.source or metadata != cell.metadata:
            changes.append(Change(part.number, source != cell.source))
        cell.source, cell.metadata = source, metadata
    return changes


def generated_source(part: Part, parts: Iterable[Part]) -> str:
    """The source of a cell; a set-up cell gets a title with the names that visible code uses."""
    source: str = part.cell.source
    if part.kind != "set-up":
        return source
    used = {name for other in parts if other.kind in VISIBLE for name in other.names.needs}
    told = [name for name in part.names.defines if name in used]
    title = textwrap.wrap(
        f"Imports: {', '.join(told)}" if told else "Imports",
        MAX_WIDTH,
        initial_indent=_TITLE,
        subsequent_indent=_MORE,
        break_long_words=False,
    )
    return "\n".join([*title, *source.split("\n")[len(title_lines(source)) :]])


def derived_metadata(cell: NotebookNode, source: str) -> NotebookNode:
    """The metadata of a cell as its tag and the title in its source want them.

    A cell that carries only an old tag keeps it: without it, hidden code would show.
    """
    kind = kind_of(cell)
    if not kind and set(tags(cell)) & {*OLD_TAGS}:
        return as_node(cell.metadata)
    for_page, for_lab = KINDS.get(kind, ([], {}))
    shown = dict(copy.deepcopy(cell.metadata.get("mystnb", {})))
    for key, prompt in zip(_PROMPTS, _prompts(kind, source), strict=True):
        shown.pop(key, None)
        shown |= {key: prompt} if for_page and prompt else {}
    derived = {
        "tags": [*(tag for tag in tags(cell) if tag not in OLD_TAGS), *for_page],
        "jupyter": for_lab,
        "cellView": "form" if kind in TITLED else "",
        "mystnb": shown,
    }
    kept = {key: value for key, value in cell.metadata.items() if key not in _DERIVED_KEYS}
    return as_node(kept | {key: value for key, value in derived.items() if value})


def _prompts(kind: str, source: str) -> tuple[str, str]:
    return GUESS if kind == "predict" else (title_of(source), title_of(source))


# --- checks: tags, titles, metadata -----------------------------------------------------------


def check_kinds(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """At most one way to show a cell, and no tag that only tools write."""
    for number, cell in enumerate(notebook.cells, start=1):
        own = [tag for tag in tags(cell) if tag in KINDS]
        old = [tag for tag in tags(cell) if tag in OLD_TAGS]
        if len(own) > 1:
            yield number, f"has the tags {_listed(own)}", "keep one of them"
        if old and not own:
            yield number, f"is tagged {_listed(old)}, which only tools write", _CHOOSE
        if (own or YOUR_FILE in tags(cell)) and cell.cell_type != "code":
            yield (
                number,
                f"is tagged {_listed(own or [YOUR_FILE])} but holds no code",
                "remove the tag",
            )
        elif own and YOUR_FILE in tags(cell):
            trouble = f"belongs to the reader's file, but is tagged {_listed(own)}"
            yield number, trouble, "remove that tag: such a cell is open"


_CHOOSE = f"tag it with one of {', '.join(f'`{kind}`' for kind in KINDS)}, or with none"


def check_titles(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """A cell that hides its source says in its first line what it does."""
    for part in parts_of(notebook):
        title = title_of(part.cell.source)
        if part.kind not in TITLED:
            if title:
                yield part.number, "has a title line but does not hide its source", _CHOOSE
            continue
        pattern, example = _FORMS[part.kind]
        match = pattern.fullmatch(title)
        if not title:
            yield part.number, f"is tagged `{part.kind}` but has no title line", f"write {example}"
        elif not match or len(match["words"]) > MAX_WORDS:
            limit = f"at most {MAX_WORDS} characters before a colon, no full stop"
            yield part.number, f"has the title line {title!r}", f"write {example}: {limit}"
        elif part.kind == "fold" and (extra := sorted(part.told - {*part.names.defines})):
            yield part.number, f"tells {_listed(extra)} but does not define it", "correct its title"


def check_dress(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """Titles and metadata are as `dress` writes them."""
    parts = parts_of(notebook)
    for part in parts:
        if generated_source(part, parts) != part.cell.source:
            yield part.number, "its title does not list the names that visible code uses", DRESS
        if derived_metadata(part.cell, part.cell.source) != part.cell.metadata:
            yield part.number, "its metadata are not what its tag and title ask for", DRESS


# --- checks: set-up ---------------------------------------------------------------------------


def check_set_up(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """A set-up cell comes first and does nothing that a reader must know."""
    begun = False
    for part in parts_of(notebook):
        if part.kind == "set-up":
            if begun:
                yield part.number, "is tagged `set-up` but comes after other code", "move it up"
            if part.cell.outputs:
                yield part.number, "is tagged `set-up` but has an output", "move that to a cell"
            for line in _beyond_set_up(part.cell.source):
                yield part.number, f"does more than set up: `{line}`", "move that to another cell"
        begun = begun or part.kind not in ("set-up", "remove-cell")


def _beyond_set_up(source: str) -> Iterator[str]:
    """The first lines of statements that are no imports, options, devices or seeds."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # check_sources speaks of it
        return
    for statement in body:
        if not _sets_up(statement):
            yield ast.unparse(statement).split("\n")[0]


def _sets_up(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
        return all(isinstance(target, ast.Name) and target.id in _SET for target in targets)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        return isinstance(called, ast.Attribute) and called.attr in _SETTINGS
    return isinstance(statement, ast.Import | ast.ImportFrom)


# --- checks: names ----------------------------------------------------------------------------


def check_told_names(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """What visible code uses and only a folded cell defines stands in that cell's title."""
    parts = parts_of(notebook)
    untold: dict[int, list[str]] = {}
    for part in parts:
        for name in sorted(part.names.needs if part.kind in VISIBLE else ()):
            open_to_see = _provider(part, name, parts, {*VISIBLE, "set-up"})
            folded = _provider(part, name, parts, {"fold"})
            if folded and not open_to_see and name not in folded.told:
                untold.setdefault(folded.number, []).append(f"`{name}` ({part.label})")
    for number, names in untold.items():
        yield number, f"visible code uses its {', '.join(names)}", "name them in its title line"


def check_sources(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """Every cell can be read, and needs nothing from Colab's cell."""
    parts = parts_of(notebook)
    for part in parts:
        if part.names.error:
            yield part.number, f"is not plain Python ({part.names.error})", "correct it"
        for name in sorted(part.names.needs):
            colab = _provider(part, name, parts, {"remove-cell"})
            if colab and not _provider(part, name, parts, {*KINDS, ""} - {"remove-cell"}):
                yield part.number, f"uses `{name}`, which only Colab's cell defines", "define it"


def check_solutions(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """Every cell works, and means the same, whether or not a solution was run."""
    parts = parts_of(notebook)
    for part in parts:
        for name in sorted(part.names.needs):
            if _provider(part, name, parts, {*KINDS, ""} - {"solution"}):
                continue
            if solution := _provider(part, name, parts, {"solution"}):
                trouble = f"uses `{name}`, which only a solution defines ({solution.label})"
                yield part.number, trouble, "define it in a cell that is no solution"
        if part.kind == "solution":
            for name, user in _overwritten(part, parts):
                trouble = f"gives `{name}` another value, which {user.label} uses"
                yield part.number, trouble, "choose another name in the solution"


def _provider(part: Part, name: str, parts: Sequence[Part], kinds: Iterable[str]) -> Part | None:
    """The cell of these kinds from which a cell has a name.

    That is the last one above it; a function may be defined before what it calls.
    """
    given = [other for other in parts if other.kind in kinds and name in other.names.defines]
    above = [other for other in given if other.number < part.number]
    below = [other for other in given if other.number > part.number]
    if above:
        return above[-1]
    return below[0] if below and name in part.names.calls else None


def _overwritten(solution: Part, parts: Sequence[Part]) -> Iterator[tuple[str, Part]]:
    """Names that a solution binds and another cell reads, meaning the value from before."""
    others = [part for part in parts if part.kind != "solution"]
    for name in solution.names.defines:
        for part in (part for part in parts if part is not solution):
            reads = _reads_after(solution, part, parts)
            if name in reads and _provider(part, name, others, {*KINDS, ""}):
                yield name, part
                break
            is_anew = part.number > solution.number and part.kind != "solution"
            if is_anew and name in part.names.defines:
                break


def _reads_after(solution: Part, part: Part, parts: Sequence[Part]) -> set[str]:
    """What a cell reads once a solution was run; one above it, if its functions are called then."""
    if part.number > solution.number:
        return part.names.needs
    below = [other for other in parts if other.number > solution.number]
    is_used = any(other.names.needs & {*part.names.defines} for other in below)
    return part.names.calls if is_used else set()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


CHECKS: tuple[Callable[[NotebookNode], Iterator[CellTrouble]], ...] = (
    check_kinds,
    check_titles,
    check_dress,
    check_set_up,
    check_sources,
    check_told_names,
    check_solutions,
)
