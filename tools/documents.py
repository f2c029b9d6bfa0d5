"""Write the words of the five pages on the documents: `python -m tools.documents`.

Each error of a document has a heading, what the document says, what is true, what speaks for it,
and a code cell that shows it; each item has a line that says where the book teaches it. The code
stands in the notebooks and nowhere else, the words in ``book/sources.yml``. So that a page reads
well in Jupyter too, they are written into it from there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode

from tools.notebooks.model import BOOK, NotebookError, load, save, show

sys.path.insert(0, str(BOOK / "_ext"))

import book_places
import book_sources

LETTERS = "ABCDE"
ITEMS = "items"  # the cell that lists them
Entry = dict[str, str]


class Document(NamedTuple):
    """One of the five.

    Attributes:
        letter: A to E.
        items: what it teaches, by name.
        errors: by name, in the order of the document.
    """

    letter: str
    items: dict[str, Entry]
    errors: dict[str, Entry]

    @property
    def page(self) -> Path:
        """The notebook."""
        return BOOK / f"sources_{self.letter.lower()}.ipynb"


def read_documents() -> list[Document]:
    """Read the data file."""
    return [
        Document(letter, book_sources.items_of(letter), book_sources.errors_of(letter))
        for letter in LETTERS
    ]


def words_of_items(items: dict[str, Entry]) -> str:
    """Write the list of all that a document teaches, folded."""
    lines = [f"- **{n}** {e['item'].rstrip('.')}. {_link(e['at'])}" for n, e in items.items()]
    return "\n".join(
        [
            "## Where this book teaches it",
            "",
            f"We counted {len(items)} things to teach in it: formulas, examples, figures, tables, "
            "listings, claims. All of them are taught in this book.",
            "",
            "<details>",
            f"<summary>All {len(items)}, and where</summary>",
            "",
            *lines,
            "",
            "</details>",
        ]
    )


def words_of_error(name: str, entry: Entry) -> str:
    """Write the text of one error, as its page has it above the cell."""
    lines = [
        f"### {book_sources.heading_of(name, entry)}",
        f"*{entry['where']}* · {entry['kind']} · taught in {_link(entry['at'])}",
        f"**It says.** {entry['says']}",
        f"**In fact.** {entry['true']}",
    ]
    if "fair" in entry:
        lines.append(f"**In fairness.** {entry['fair']}")
    return "\n\n".join(lines)


def _link(place: str) -> str:
    """A link to a heading that works on the page and in Jupyter."""
    page, _, anchor = place.partition("#")
    return f"[{book_places.in_words(place)}]({book_places.path_of(page).name}#{anchor})"


def with_words(document: Document) -> NotebookNode:
    """Return the page of a document with its words as the data file has them.

    Raises:
        NotebookError: if the page lacks the cell of an error, or has one too many.
    """
    notebook = load(document.page)
    shown = {book_sources.cell_of(name): name for name in document.errors}
    code = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    first = next((i for i, c in enumerate(notebook.cells) if c.id.startswith("x-")), 0)
    found = {c.id for c in notebook.cells[first:] if c.cell_type == "code"}
    if problems := _problems_with_cells(document, found):
        raise NotebookError("\n".join(problems))
    cells = notebook.cells[:first]
    for cell in cells:
        cell.source = words_of_items(document.items) if cell.id == ITEMS else cell.source
    for cell_id, name in shown.items():
        text = words_of_error(name, document.errors[name])
        words = {"cell_type": "markdown", "id": name.lower(), "metadata": {}, "source": text}
        cells += [NotebookNode(words), code[cell_id]]  # type: ignore[no-untyped-call]
    notebook.cells = cells
    return notebook


def _problems_with_cells(document: Document, found: set[str]) -> list[str]:
    """Which errors have no cell on the page, and which cells show no error."""
    page = show(document.page)
    shown = {book_sources.cell_of(name): name for name in document.errors}
    lacks = [
        f"{page}: {shown[cell]} has no code cell: add one with the id {cell!r}"
        for cell in sorted(shown.keys() - found)
    ]
    return lacks + [
        f"{page}: cell {cell} shows no error of book/sources.yml: add X-{cell.upper()} there, "
        "or take the cell out"
        for cell in sorted(found - shown.keys())
    ]


def main() -> None:
    """Write the words of all five pages; code and outputs stay as they are."""
    for document in read_documents():
        save(with_words(document), document.page)
        print(show(document.page))


if __name__ == "__main__":
    main()
