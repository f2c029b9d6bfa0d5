"""``book/sources.yml``: every item is taught, every error is shown by the output of a cell."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from nbformat import NotebookNode

from tools import documents
from tools.notebooks.model import NotebookError, is_compared, load

BOOK = Path(__file__).resolve().parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import book_places  # noqa: E402
import book_sources  # noqa: E402

TEXT = (BOOK / "sources.yml").read_text(encoding="utf-8")
CHAPTERS: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(TEXT)
ITEMS = {"A": 127, "B": 89, "C": 81, "D": 51, "E": 47}  # what the audit of the sources counted
ERRORS = {"A": 54, "B": 38, "C": 28, "D": 20, "E": 16}
# Items and errors that each chapter owns, by the same audit.
OWNED = {
    **{"00": (12, 6), "01": (23, 5), "02": (20, 10), "03": (41, 9), "04": (9, 8), "05": (17, 16)},
    **{"06": (36, 7), "07": (35, 19), "08": (20, 7), "09": (12, 8), "10": (15, 7), "11": (19, 2)},
    **{"12": (27, 4), "13": (15, 5), "14": (13, 9), "15": (22, 6), "16": (7, 7), "17": (16, 9)},
    **{"18": (6, 2), "19": (11, 6), "20": (19, 4)},
}
KINDS = {
    *("wrong number", "wrong claim", "misleading"),
    *("code crashes", "code silently wrong", "typo"),
}


def is_error(name: str) -> bool:
    return name.startswith("X-")


EVERY = [
    (chapter, name, entry)
    for chapter, entries in CHAPTERS.items()
    for name, entry in entries.items()
]
ERRATA = {name: entry for _, name, entry in EVERY if is_error(name)}


def cells_of(page: str) -> dict[str, NotebookNode]:
    return {cell.id: cell for cell in load(BOOK / f"{page}.ipynb").cells}


def output_of(cell: NotebookNode) -> str:
    """All text that a cell has printed or returned, the sentences of its figures included."""
    words = []
    for output in cell.get("outputs", []):
        words += [output.get("text", ""), f"{output.get('ename')}: {output.get('evalue')}"]
        words += [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
    return "\n".join("".join(part) for part in words)


def test_every_item_and_every_error_is_listed_once() -> None:
    names = re.findall(r"^  ([A-EX]-\S+):$", TEXT, re.MULTILINE)
    assert len(names) == len(set(names)) == len(EVERY) == 395 + 156
    assert Counter(name[0] for name in names if not is_error(name)) == ITEMS
    assert Counter(name[2] for name in names if is_error(name)) == ERRORS


def test_one_word_and_the_same_counts_wherever_they_are_told() -> None:
    """ "Corrections": not every one of them is of an error, and no count is typed and forgotten."""
    counts = book_sources.counts()
    for source, number in ERRORS.items():
        assert counts[f"corrections_{source}"] == str(number)
        assert counts[f"items_{source}"] == str(ITEMS[source])
    kinds = Counter(entry["kind"] for entry in ERRATA.values())
    assert int(counts["hard"]) == len(ERRATA) - kinds["misleading"] - kinds["typo"]
    for name in ("README.md", "book/index.md", "book/sources.md", "book/colophon.md"):
        text = " ".join((BOOK.parent / name).read_text(encoding="utf-8").split())
        for number, words in re.findall(r"(\d+) (?:of them )?(corrections|hard|items)\b", text):
            assert counts[words] == number, f"{name}: {number} {words}"
        assert not re.search(r"\d+ errors", text), f"{name}: call them corrections"
        assert re.search(r"\bcorrections?\b", text), name


def test_each_chapter_owns_what_the_audit_gave_it() -> None:
    owned = {
        chapter: (sum(not is_error(name) for name in entries), sum(map(is_error, entries)))
        for chapter, entries in CHAPTERS.items()
    }
    assert owned == OWNED


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_places_are_headings_of_the_chapter_or_of_a_lab(chapter: str) -> None:
    for name, entry in CHAPTERS[chapter].items():
        page, _, anchor = entry["at"].partition("#")
        own = r"|sources$" if entry.get("kind") == "typo" else ""  # what our copies lost
        pages = rf"{chapter}[bcd]?_|lab\d_{own}"
        assert re.match(pages, page), f"{name} is said to be taught on {page}"
        assert anchor in book_places.outline(page).headings, f"{name}: {page} has no {anchor!r}"


def test_entries_say_what_they_are() -> None:
    of_errors = {"where", "kind", "order", "title", "says", "true", "at", "shows"}
    for _, name, entry in EVERY:
        if is_error(name):
            assert entry.keys() - {"fair"} == of_errors, name
            assert entry["kind"] in KINDS, name
            assert 3 <= len(entry["title"].split()) <= 9, f"{name}: {entry['title']}"
        else:
            assert entry.keys() == {"item", "at"}, name
        assert all(str(value).strip() for value in entry.values()), name


@pytest.mark.parametrize("letter", ERRORS)
def test_errors_are_told_in_the_order_of_their_document(letter: str) -> None:
    errors = book_sources.errors_of(letter)
    assert [entry["order"] for entry in errors.values()] == list(range(1, ERRORS[letter] + 1))
    titles = [entry["title"] for entry in errors.values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", ERRATA)
def test_an_error_is_shown_by_the_compared_output_of_a_cell(name: str) -> None:
    entry, cells = ERRATA[name], cells_of(book_sources.page_of(name))
    cell = cells[book_sources.cell_of(name)]
    assert cell.execution_count, "the cell was not executed"
    assert is_compared(cell), "the cell's output is not compared"
    assert entry["shows"] in output_of(cell)
    assert re.search(r"\d|Error", entry["shows"]), "a bare verdict shows nothing"
    assert not re.search(r"\b(True|False)$", output_of(cell), re.MULTILINE), "a bare verdict"
    assert len([line for line in cell.source.splitlines() if line.strip()]) <= 26


@pytest.mark.parametrize("document", documents.read_documents(), ids=list(ERRORS))
def test_the_words_of_a_page_are_those_of_the_file(document: documents.Document) -> None:
    stored = [(c.id, c.cell_type, c.source) for c in load(document.page).cells]
    wanted = [(c.id, c.cell_type, c.source) for c in documents.with_words(document).cells]
    assert stored == wanted, "run `.venv/bin/python -m tools.documents`"


def test_a_page_without_a_cell_for_an_error_is_refused() -> None:
    whole = documents.read_documents()[4]
    less = whole._replace(errors=dict(list(whole.errors.items())[1:]))
    with pytest.raises(
        NotebookError, match=r"sources_e\.ipynb: one cell for each error; look at e"
    ):
        documents.with_words(less)


def test_the_entrance_counts_as_this_file_does() -> None:
    assert len(book_sources.entries()) == 551
    text = (BOOK / "sources.md").read_text(encoding="utf-8")
    assert re.findall(r"^:::\{errata\} (\w)$", text, re.MULTILINE) == list(ITEMS)
    rows = re.findall(r"^\| ([A-E]) \|.*?((?:\| \{\w+\} ){3})\|$", text, re.MULTILINE)
    of = ("items", "corrections", "hard")
    assert rows == [(s, "".join(f"| {{{name}_{s}}} " for name in of)) for s in ITEMS]


def test_names_are_ordered_as_a_reader_counts() -> None:
    names = ["X-A10", "X-A2", "A-10a", "A-2.1"]
    assert sorted(names, key=book_sources.natural_key) == ["A-2.1", "A-10a", "X-A2", "X-A10"]
