"""Write the table of what belongs to each chapter into CONTRIBUTING.md: `python -m tools.chapters`.

Nothing of it is typed: exercises, live figures, results and modules are those that the pages' own
code asks for, an experiment names its page itself, and ``book/symbols.yml`` says which files of the
library a page explains. A test fails while the table is not up to date.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tools.notebooks.model import ROOT, NotebookError, write_atomically
from transformer_book.paths import read_pages

DOCUMENT = "CONTRIBUTING.md"
BEGIN = "<!-- The table is written by python -m tools.chapters -->"
END = "<!-- The end of the table -->"
HEAD = (
    "chapter",
    "pages: `book/*.ipynb`",
    "exercises: `transformer_book/exercises/*.py`",
    "live figure: `transformer_book/live/*.py`",
    "made by `experiments/*.py`, kept in `book/results/*`",
    "of other chapters it reads `book/results/*`",
    "uses `transformer_book/*`",
    "explains `transformer_lib/*`",
)
_TOLD_APART = ("exercises", "live", "results")  # they have columns of their own
_UNNAMED = ""  # the result that a page reads by a name which stands elsewhere


@dataclass
class Parts:
    """What belongs to a page, or to all pages of a chapter, by name."""

    pages: set[str] = field(default_factory=set)
    exercises: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)
    experiments: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    library: set[str] = field(default_factory=set)

    def add(self, other: Parts) -> None:
        """Take in what belongs to another page."""
        for name, found in vars(other).items():
            getattr(self, name).update(found)


def table(root: Path = ROOT) -> dict[str, str]:
    """The lines of the table, by the number of the chapter or lab, in reading order."""
    chapters: dict[str, Parts] = {}
    explained, made = _explained(root), _experiments(root)
    for name, page in read_pages(root / "book").items():
        parts = read_page(root / "book" / f"{name}.ipynb", root)
        parts.experiments |= made.get(name, set())
        parts.library |= explained.get(name, set())
        chapters.setdefault(page.chapter, Parts()).add(parts)
    return {number: _row(number, parts) for number, parts in chapters.items()}


def _row(number: str, parts: Parts) -> str:
    parts.results -= parts.experiments
    cells = [", ".join(f"`{name}`" for name in sorted(found)) for found in vars(parts).values()]
    return _line([number.replace("lab", "lab "), *cells])


def _line(cells: Iterable[str]) -> str:
    return " ".join(["|", *(f"{cell} |" if cell else "|" for cell in cells)])


def with_table(text: str, root: Path = ROOT) -> str:
    """Return a document with the table as it should be.

    Raises:
        NotebookError: if the document does not say where the table begins and ends.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise NotebookError(f"{DOCUMENT}: expected the lines {BEGIN!r} and {END!r}")
    lines = [_line(HEAD), _line(["---"] * len(HEAD)), *table(root).values()]
    return "\n".join([before + begin, "", *lines, "", end + after])


# --- what a page asks for ---------------------------------------------------------------------


def read_page(path: Path, root: Path = ROOT) -> Parts:
    """Read off a notebook's code what it asks for."""
    register, folders = _register(root), root / "book" / "results"
    parts, strings = Parts({path.stem}), set()
    for node in _nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
            parts.results.update(re.findall(r"^results/(\w+)/", node.value))
        elif isinstance(node, ast.ImportFrom):
            parts.modules.update(_modules(node, root))
        elif isinstance(node, ast.Call):
            _add_call(parts, node, register)
    if _UNNAMED in parts.results:
        models = {file.parent.name for file in folders.glob("*/model.json")}
        parts.results |= strings & models
    parts.results &= {folder.name for folder in folders.iterdir()}
    return parts


def _add_call(parts: Parts, call: ast.Call, register: Mapping[str, str]) -> None:
    """Note what a call asks for: an exercise, a live figure or a result."""
    asked = ast.unparse(call.func)
    first, second, *_ = [*map(_string, call.args), "", ""]
    if asked in ("check", "pick") and first in register:
        parts.exercises.add(register[first])
    elif asked == "live.figure":
        parts.live.add(first.replace("-", "_"))
    elif asked in ("table", "results", "results.table") and first:
        parts.results.add(first)
    elif first == "results":  # Path("results", "shakespeare")
        parts.results.add(second or _UNNAMED)


def _string(node: ast.expr) -> str:
    """The string that an argument is; nothing if it is something else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _modules(node: ast.ImportFrom, root: Path) -> Iterator[str]:
    """The modules of `transformer_book` that a line imports from, without those told apart."""
    package, _, below = (node.module or "").partition(".")
    for name in node.names if package == "transformer_book" else ():
        outer = below.replace(".", "/")
        inner = f"{outer}/{name.name}".removeprefix("/")
        found = inner if (root / package / f"{inner}.py").is_file() else outer or inner
        if found not in _TOLD_APART:
            yield found


def _nodes(path: Path) -> Iterator[ast.AST]:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield from ast.walk(ast.parse("".join(cell["source"])))


# --- what other files say of a page -----------------------------------------------------------


def _register(root: Path) -> dict[str, str]:
    """For each exercise the module that it stands in."""
    text = (root / "transformer_book" / "exercises" / "__init__.py").read_text(encoding="utf-8")
    return dict(re.findall(r'^    "([\w.]+)": (\w+)\.', text, re.MULTILINE))


def _experiments(root: Path) -> dict[str, set[str]]:
    """For each page the experiments that were made for it."""
    found: dict[str, set[str]] = {}
    for file in (root / "experiments").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        for page in re.findall(r'^CHAPTER = "(\w+)"$', text, re.MULTILINE):
            found.setdefault(page, set()).add(file.stem)
    return found


def _explained(root: Path) -> dict[str, set[str]]:
    """For each page the modules of the library that have a name which it explains."""
    text = (root / "book" / "symbols.yml").read_text(encoding="utf-8")
    symbols: Mapping[str, Mapping[str, str]] = yaml.safe_load(text)
    found: dict[str, set[str]] = {}
    for module, own in symbols.items():
        package, _, below = module.partition(".")
        places = symbols[own["part_of"]] if "part_of" in own else own
        for place in places.values() if package == "transformer_lib" else ():
            found.setdefault(place.partition("#")[0], set()).add(below.replace(".", "/"))
    return found


def main(root: Path = ROOT) -> None:
    """Write the table."""
    document = root / DOCUMENT
    write_atomically(document, with_table(document.read_text(encoding="utf-8"), root))
    print(f"{DOCUMENT}: what belongs to each chapter")


if __name__ == "__main__":
    main()
