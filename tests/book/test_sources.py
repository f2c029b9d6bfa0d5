"""``book/sources.yml``: every item is taught, every error is shown by the output of a cell."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from nbformat import NotebookNode
from omissions import fail_on

from tools import documents
from tools.notebooks.model import NotebookError, is_compared, load

BOOK = Path(__file__).resolve().parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import book_places  # noqa: E402
import book_sources  # noqa: E402

TEXT = (BOOK / "sources.yml").read_text(encoding="utf-8")
CHAPTERS: dict[str, dict[str, dict[str, str]]] = yaml.load(TEXT, book_sources.LOADER)
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


def count_problems(names: list[str]) -> list[str]:
    """What is listed twice, and where the file has more or fewer entries than the audit counted."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    problems = [f"book/sources.yml lists {name} twice: keep one of the two" for name in twice]
    items = Counter(name[0] for name in names if not is_error(name))
    errors = Counter(name[2] for name in names if is_error(name))
    for what, audited, found in (("ITEMS", ITEMS, items), ("ERRORS", ERRORS, errors)):
        problems += [
            f"book/sources.yml has {found[letter]} {what.lower()} of document {letter}, {what} in "
            f"tests/book/test_sources.py counts {audited.get(letter, 0)}: {_COUNT}"
            for letter in sorted({*audited, *found})
            if found[letter] != audited.get(letter, 0)
        ]
    return problems


_COUNT = "add the entry that is missing, or change the count if this one was added on purpose"


def test_every_item_and_every_error_is_listed_once() -> None:
    names = re.findall(r"^  ([A-EX]-\S+):$", TEXT, re.MULTILINE)
    fail_on(count_problems(names))
    assert len(names) == len(EVERY), 'a name must stand alone on its line: "  A-1.1a:"'


def owned_problems(chapters: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    """Which chapters own more or fewer items and errors than the audit gave them."""
    owned = {
        chapter: (sum(not is_error(name) for name in entries), sum(map(is_error, entries)))
        for chapter, entries in chapters.items()
    }
    return [
        f"book/sources.yml: chapter {chapter!r} owns {owned.get(chapter)} items and errors, "
        f"OWNED in tests/book/test_sources.py says {OWNED.get(chapter)}: {_COUNT}"
        for chapter in sorted({*owned, *OWNED})
        if owned.get(chapter) != OWNED.get(chapter)
    ]


def test_each_chapter_owns_what_the_audit_gave_it() -> None:
    fail_on(owned_problems(CHAPTERS))


COUNTED = [f"{letter}-{n}" for letter, count in ITEMS.items() for n in range(count)]
COUNTED += [f"X-{letter}{n}" for letter, count in ERRORS.items() for n in range(count)]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("A-new", f"has {ITEMS['A'] + 1} items of document A, ITEMS in tests/book/test_sources.py"),
        (
            "X-Bnew",
            f"has {ERRORS['B'] + 1} errors of document B, ERRORS in tests/book/test_sources",
        ),
        ("X-F1", "has 1 errors of document F, ERRORS in tests/book/test_sources.py counts 0: add"),
        ("A-1", "lists A-1 twice: keep one of the two"),
    ],
)
def test_an_entry_that_nobody_counted_is_told_where_to_count_it(new: str, said: str) -> None:
    assert count_problems(COUNTED) == []
    assert count_problems([*COUNTED, new])[0].startswith(f"book/sources.yml {said}")


def test_a_chapter_with_one_item_more_is_told_where_to_count_it() -> None:
    owned = {
        chapter: {
            name: {} for name in [*map(str, range(items)), *(f"X-{n}" for n in range(errors))]
        }
        for chapter, (items, errors) in OWNED.items()
    }
    assert owned_problems(owned) == []
    owned["05"]["new"] = {}
    (problem,) = owned_problems(owned)
    items, errors = OWNED["05"]
    assert problem.startswith(
        f"book/sources.yml: chapter '05' owns ({items + 1}, {errors}) items and"
    )


def test_one_word_and_the_same_counts_wherever_they_are_told() -> None:
    """ "Corrections": not every one of them is of an error, and no count is typed and forgotten."""
    counts = book_sources.counts()
    for source, number in ERRORS.items():
        found = (counts[f"items_{source}"], counts[f"corrections_{source}"])
        said = f"book/sources.yml has {found} items and errors of document {source}"
        expected = (str(ITEMS[source]), str(number))
        assert found == expected, f"{said}, ITEMS and ERRORS in this file say {expected}"
    kinds = Counter(entry["kind"] for entry in ERRATA.values())
    assert int(counts["hard"]) == len(ERRATA) - kinds["misleading"] - kinds["typo"]
    for name in ("README.md", "book/index.md", "book/sources.md", "book/colophon.md"):
        text = " ".join((BOOK.parent / name).read_text(encoding="utf-8").split())
        for number, words in re.findall(r"(\d+) (?:of them )?(corrections|hard|items)\b", text):
            assert counts[words] == number, f"{name}: {number} {words}"
        assert not re.search(r"\d+ errors", text), f"{name}: call them corrections"
        assert re.search(r"\bcorrections?\b", text), name


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_places_are_headings_of_the_chapter_or_of_a_lab(chapter: str) -> None:
    for name, entry in CHAPTERS[chapter].items():
        page, _, anchor = entry["at"].partition("#")
        own = r"|sources$" if entry.get("kind") == "typo" else ""  # what our copies lost
        pages = rf"{chapter}[a-z]?_|lab\d_{own}"
        where = f'book/sources.yml, {name}, "at: {entry["at"]}"'
        assert re.match(pages, page), f"{where}: expected a page of chapter {chapter}, or a lab"
        problem = book_places.problem_with(entry["at"])
        assert not problem, f"{where}: {problem}"
        assert anchor in book_places.outline(page).headings, f"{where}: expected a heading"


def entry_problems(name: str, entry: dict[str, str]) -> Iterator[str]:
    """What an entry lacks, has too much or has wrong."""
    where = f"book/sources.yml, {name}"
    wanted = book_sources.fields_of(name)
    yield from book_sources.missing_fields(name, entry)
    for field in sorted(entry.keys() - {*wanted} - ({"fair"} if is_error(name) else set())):
        yield f'{where}: take out "{field}"; expected {", ".join(wanted)}'
    empty = [field for field, words in entry.items() if not str(words).strip()]
    yield from (f'{where}: "{field}" says nothing' for field in empty)
    if is_error(name):
        if entry.get("kind") not in KINDS:
            kinds = ", ".join(sorted(KINDS))
            yield f"{where}: kind: {entry.get('kind')!r}; expected one of {kinds}"
        if not 3 <= len(entry.get("title", "").split()) <= 9:
            yield f"{where}: title: {entry.get('title')!r}; expected three to nine words"


def test_entries_say_what_they_are() -> None:
    fail_on(problem for _, name, entry in EVERY for problem in entry_problems(name, entry))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("X-A05", {"shows": None}, 'add "shows: ..."'),
        ("X-A05", {"colour": "red"}, 'take out "colour"'),
        ("X-A05", {"kind": "bad"}, "kind: 'bad'; expected one of code crashes, code sil"),
        ("X-A05", {"title": "Short"}, "title: 'Short'; expected three to nine words"),
        ("A-0a", {"item": None}, 'add "item: ..."'),
        ("A-0a", {"item": " "}, '"item" says nothing'),
    ],
)
def test_an_entry_without_a_field_is_told_which(
    name: str, change: dict[str, str | None], said: str
) -> None:
    whole = dict.fromkeys(book_sources.fields_of(name), "a few words here")
    whole = {**whole, "kind": "typo"} if is_error(name) else whole
    assert list(entry_problems(name, whole)) == []
    changed = {field: words for field, words in {**whole, **change}.items() if words is not None}
    (problem,) = entry_problems(name, changed)
    assert problem.startswith(f"book/sources.yml, {name}: {said}")


@pytest.mark.parametrize("letter", ERRORS)
def test_errors_are_told_in_the_order_of_their_document(letter: str) -> None:
    errors = book_sources.errors_of(letter)
    for wanted, (name, entry) in enumerate(errors.items(), start=1):
        said = f"book/sources.yml, {name}: order: {entry['order']}; expected {wanted}"
        assert entry["order"] == wanted, f"{said}: count the errors of document {letter} from 1 on"
    assert len(errors) == ERRORS[letter]
    titles = Counter(entry["title"] for entry in errors.values())
    twice = [title for title, count in titles.items() if count > 1]
    fail_on(f"book/sources.yml, document {letter}: the title {t!r} stands twice" for t in twice)


@pytest.mark.parametrize("name", ERRATA)
def test_an_error_is_shown_by_the_compared_output_of_a_cell(name: str) -> None:
    entry, cells = ERRATA[name], cells_of(book_sources.page_of(name))
    page, wanted = f"book/{book_sources.page_of(name)}.ipynb", book_sources.cell_of(name)
    assert wanted in cells, f"{page} has no code cell with the id {wanted!r}, which shows {name}"
    cell = cells[wanted]
    assert cell.execution_count, f"cell {wanted} was not executed: run `make notebooks NB={page}`"
    assert is_compared(cell), f"the output of cell {wanted} of {page} is not compared"
    said = f"book/sources.yml, {name}: cell {wanted} of {page} does not print {entry['shows']!r}"
    assert entry["shows"] in output_of(cell), f"{said}; `shows` is a piece of what it prints"
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
    with pytest.raises(NotebookError, match=r"sources_e\.ipynb: cell e\d+ shows no error of"):
        documents.with_words(less)
    more = whole._replace(errors={**whole.errors, "X-E99": {}})
    with pytest.raises(NotebookError, match=r"sources_e\.ipynb: X-E99 has no code cell: add"):
        documents.with_words(more)


def test_the_entrance_counts_as_this_file_does() -> None:
    found, counted = len(book_sources.entries()), sum(ITEMS.values()) + sum(ERRORS.values())
    assert found == counted, f"book/sources.yml has {found} entries, ITEMS and ERRORS {counted}"
    text = (BOOK / "sources.md").read_text(encoding="utf-8")
    assert re.findall(r"^:::\{errata\} (\w)$", text, re.MULTILINE) == list(ITEMS)
    rows = re.findall(r"^\| ([A-E]) \|.*?((?:\| \{\w+\} ){3})\|$", text, re.MULTILINE)
    of = ("items", "corrections", "hard")
    assert rows == [(s, "".join(f"| {{{name}_{s}}} " for name in of)) for s in ITEMS]


def test_names_are_ordered_as_a_reader_counts() -> None:
    names = ["X-A10", "X-A2", "A-10a", "A-2.1"]
    assert sorted(names, key=book_sources.natural_key) == ["A-2.1", "A-10a", "X-A2", "X-A10"]
