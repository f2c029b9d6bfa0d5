"""A new page from the template: `python -m tools.notebooks new 22_name`.

The template has every part that a page must have (`parts`), and runs. What is left to be written
says TODO, and `check` asks for it.
"""

from __future__ import annotations

import re
from pathlib import Path

from .minutes import set_minutes
from .model import ROOT, NotebookError, as_node, load, save, show, write_atomically

TEMPLATE = Path(__file__).with_name("template.ipynb")
PROMISE = "TODO: what it promises, in a few words"

_NAME = re.compile(r"(?P<chapter>\d\d)(?P<letter>[b-z]?)_[a-z][a-z0-9_]*")
_ENTRY = re.compile(r"^ *- file: book/(?P<page>\d\d[b-z]?_\w+)$", re.M)
_PLANNED = re.compile(r"^\S+ \| (?P<page>\d\d[b-z]?_\w+) \| .*$", re.M)


def create(name: str, title: str = "", root: Path = ROOT) -> str:
    """Write a page from the template and enter it in the contents and in the plan.

    Args:
        name: of its file, such as ``22_new`` or, for a further page of chapter 5, ``05e_more``.
        title: of the page; without one, the words of its name.
        root: the folder of the project.

    Returns:
        What was done and what is to be done, for the terminal.

    Raises:
        NotebookError: if the name has another form or is taken, or if a list has no place for it.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise NotebookError(
            f"{name!r}: expected a name such as 22_new, or 05e_more for a further page"
        )
    path = root / "book" / f"{name}.ipynb"
    if path.exists():
        raise NotebookError(f"{show(path)}: exists already; expected the name of a new page")
    number = f"{int(match['chapter'])}{match['letter']}"
    title = title or name.partition("_")[2].replace("_", " ").capitalize()
    contents, plan = root / "_toc.yml", root / "book" / "index.md"
    listed, before = _entered(contents, _ENTRY, name, f"      - file: book/{name}")
    shown = number if match["letter"] else match["chapter"]
    planned, _ = _entered(plan, _PLANNED, name, f"{shown} | {name} | {title} | {PROMISE}")
    _write_page(path, number, title, "further" if match["letter"] else "core")
    write_atomically(contents, listed)
    write_atomically(plan, planned)
    return (
        f"{show(path)}: page {number}, after {before} in {show(contents)} and {show(plan)}\n"
        f"Write what says TODO in it and in {show(plan)}, then\n"
        f"  make notebooks NB=book/{name}.ipynb    # run it, store its outputs\n"
        f"  make notebooks NB=book/paths.ipynb    # it counts the pages\n"
        f"  make check-notebooks                  # says what is missing"
    )


def _entered(path: Path, pattern: re.Pattern[str], name: str, line: str) -> tuple[str, str]:
    """The text of a list with one more line, and the page that this line comes after."""
    text = path.read_text(encoding="utf-8")
    before = [match for match in pattern.finditer(text) if match["page"] < name]
    if not before:
        raise NotebookError(f"{show(path)}: expected a line for a page that comes before {name}")
    place = max(before, key=lambda match: match["page"])
    return f"{text[: place.end()]}\n{line}{text[place.end() :]}", place["page"]


def _write_page(path: Path, number: str, title: str, kind: str) -> None:
    """Fill in the template; ids begin with the number, as links to cells expect."""
    notebook = load(TEMPLATE)
    prefix = path.stem.partition("_")[0]
    for cell in notebook.cells:
        cell.id = f"{prefix}-{cell.id}"
    top = notebook.cells[0]
    top.source = top.source.replace("NUMBER", number).replace("TITLE", title)
    notebook.metadata["page"] = as_node({"kind": kind})
    set_minutes(notebook)
    save(notebook, path)
