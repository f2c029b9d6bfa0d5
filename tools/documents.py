"""Write the words of the five pages on the documents: `python -m tools.documents`.

Each error of a document has a heading, what the document says, what is true, what speaks for it,
and a code cell that shows it. The code stands in the notebook and nowhere else, the words in
``book/sources.yml``. So that a page reads well in Jupyter too, they are written into it from there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import yaml  # type: ignore[import-untyped]
from nbformat import NotebookNode

from tools.notebooks.model import BOOK, NotebookError, load, save, show

sys.path.insert(0, str(BOOK / "_ext"))

import book_places  # how the site names a place

LETTERS = "ABCDE"
Entry = dict[str, str]


class Document(NamedTuple):
    """One of the five.

    Attributes:
        letter: A to E.
        errors: by name, in the order of the document.
    """

    letter: str
    errors: dict[str, Entry]


def page_of(name: str) -> str:
    """Name the page that shows an error.

    >>> page_of("X-A11")
    'sources_a'
    """
    return f"sources_{name[2].lower()}"


def cell_of(name: str) -> str:
    """Name the code cell that shows an error.

    >>> cell_of("X-A11")
    'a11'
    """
    return name[2:].lower()


def read_documents(book: Path = BOOK) -> list[Document]:
    """Read the errors of all documents from the data file."""
    chapters = yaml.safe_load((book / "sources.yml").read_text(encoding="utf-8"))
    errors = {n: e for entries in chapters.values() for n, e in entries.items() if n[:2] == "X-"}
    by_place = sorted(errors, key=lambda name: (int(errors[name]["order"]), name))
    return [
        Document(letter, {n: errors[n] for n in by_place if n[2] == letter}) for letter in LETTERS
    ]


def words_of(name: str, entry: Entry) -> str:
    """Write the text of one error, as its page has it above the cell."""
    lines = [
        f"### {name[2:]}. {entry['title']}",
        f"*{entry['where']}* · {entry['kind']} · taught in {_link(entry['at'])}",
        f"**It says.** {entry['says']}",
        f"**In fact.** {entry['true']}",
    ]
    if "fair" in entry:
        lines.append(f"**In fairness.** {entry['fair']}")
    return "\n\n".join(lines)


def _link(place: str) -> str:
    """A link to a heading of a chapter that works on the page and in Jupyter."""
    page, _, anchor = place.partition("#")
    return f"[{book_places.in_words(place)}]({page}.ipynb#{anchor})"


def write_words(document: Document, book: Path = BOOK) -> NotebookNode:
    """Return the page of a document with its words as the data file has them.

    Raises:
        NotebookError: if the page lacks the cell of an error, or has one too many.
    """
    path = book / f"sources_{document.letter.lower()}.ipynb"
    notebook = load(path)
    code = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    first = next(i for i, c in enumerate(notebook.cells) if c.id in map(cell_of, document.errors))
    cells = [c for c in notebook.cells[:first] if not c.id.startswith("x-")]
    shown = [cell_of(name) for name in document.errors]
    extra = {c.id for c in notebook.cells[first:] if c.cell_type == "code"} - set(shown)
    if extra or set(shown) - set(code):
        wrong = sorted(extra | (set(shown) - set(code)))
        raise NotebookError(f"{show(path)}: one cell for each error; look at {', '.join(wrong)}")
    for name, entry in document.errors.items():
        text = words_of(name, entry)
        words = {"cell_type": "markdown", "id": name.lower(), "metadata": {}, "source": text}
        cells += [NotebookNode(words), code[cell_of(name)]]
    notebook.cells = cells
    return notebook


def write_pages(book: Path = BOOK) -> list[Path]:
    """Write the words of all five pages; code and outputs stay as they are."""
    written = []
    for document in read_documents(book):
        path = book / f"sources_{document.letter.lower()}.ipynb"
        save(write_words(document, book), path)
        written.append(path)
    return written


if __name__ == "__main__":
    for page in write_pages():
        print(show(page))
