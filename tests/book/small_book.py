"""A small book in a folder of its own, with the real budgets, and cells to fill its pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import specimens as sp
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.notebooks.budgets import FILE_NAME, Budgets, inspect_page
from tools.notebooks.model import BOOK, load
from tools.notebooks.pages import measure_page

# The pages that the contents of a small book name; few of them are there.
PAGES = ("04_page", "05_page", "05b_page", "06_page", "06b_page", "07_page", "lab1_page", "speed")
# What people wrote into the file of budgets.
WRITTEN = (BOOK / FILE_NAME).read_text(encoding="utf-8").partition("\ntoday:")[0]


def prose(words: int) -> NotebookNode:
    return new_markdown_cell(" ".join(["word"] * words))


def code(lines: int, *tags: str, printed: str = "") -> NotebookNode:
    cell = new_code_cell("\n\n".join(["a = 1"] * lines), metadata={"tags": list(tags)})
    if printed:
        cell.outputs = [new_output("stream", name="stdout", text=printed)]
    return cell


def page(*cells: NotebookNode, kind: str = "core") -> NotebookNode:
    return new_notebook(cells=list(cells), metadata={"page": {"kind": kind}})


class Book:
    """A small book in a folder of its own, with the real budgets.

    Its pages are bare, so that each holds only what is measured; test_page_parts.py asks for parts.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tools.notebooks.pages.missing_parts", lambda notebook: ())
        self.folder = folder / "book"
        self.helpers = folder / "transformer_book"
        for directory in (self.folder, self.helpers / "exercises"):
            directory.mkdir(parents=True)
        contents = "".join(f"  - file: book/{page}\n" for page in PAGES)
        (folder / "_toc.yml").write_text(f"chapters:\n{contents}", encoding="utf-8")
        self.enter()

    def enter(self, **today: object) -> None:
        text = yaml.safe_dump({"today": today})
        (self.folder / FILE_NAME).write_text(f"{WRITTEN}\n{text}", encoding="utf-8")

    def put(self, name: str, notebook: NotebookNode) -> Path:
        path = self.folder / f"{name}.ipynb"
        sp.write(notebook, path)
        return path.resolve()

    def cell_id(self, name: str, number: int) -> str:
        """The id of a cell of a page, which findings name."""
        return str(load(self.folder / f"{name}.ipynb").cells[number - 1].id)

    @property
    def budgets(self) -> Budgets:
        budgets = Budgets.beside(self.folder / FILE_NAME)
        assert budgets is not None
        return budgets

    def findings(self, name: str, notebook: NotebookNode) -> list[str]:
        """What the check says of a page."""
        measured = measure_page(self.put(name, notebook))
        return [str(finding) for finding in inspect_page(measured, self.budgets)]
