"""The budgets, proven: the list of what is above them may only fall, and so may the sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import specimens as sp
from nbformat.v4 import new_notebook
from small_book import WRITTEN, Book, code, page, prose

from tools.notebooks import __main__ as command_line
from tools.notebooks.budgets import FILE_NAME, Budgets, rewrite, weigh
from tools.notebooks.model import BOOK, NotebookError, load, normalise
from tools.notebooks.pages import PAGE_RULERS, Values
from tools.notebooks.rulers import page_kind, set_kind


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    return Book(tmp_path, monkeypatch)


# --- the budgets of the book -----------------------------------------------------------------


def test_the_budgets_are_those_that_were_agreed(book: Book) -> None:
    core = {
        "words": 2400, "visible": 180, "longest": 22, "excess": 0, "verdicts": 0.1, "mentions": 0,
    }  # fmt: skip
    assert book.budgets.kinds == {
        "core": core,
        "further": {**core, "words": 2800, "visible": 240},
        "lab": {**core, "words": 2800, "visible": 300},
    }
    assert book.budgets.sums == {"core_words": 52_999, "book_words": 135_999}


def test_every_budget_says_why() -> None:
    lines = [line for line in WRITTEN.splitlines() if line.startswith("    ")]
    assert len(lines) == 3 * len(PAGE_RULERS)
    assert all("  # " in line for line in lines)


def test_the_pages_on_documents_are_there() -> None:
    budgets = Budgets.beside(BOOK / FILE_NAME)
    assert budgets is not None
    assert all((BOOK / f"{name}.ipynb").exists() for name in budgets.documents)


# --- the list may only fall -------------------------------------------------------------------

LISTED: dict[int, str | None] = {
    3001: "3,001 words, 3,000 in budgets.yml, which may only fall (budget on a core page: 2,400)",
    3000: None,
    2999: "2,999 words, but 3,000 in budgets.yml; lower the list",
    2400: "2,400 words, but 3,000 in budgets.yml; lower the list",
}


@pytest.mark.parametrize("words", LISTED)
def test_a_listed_value_is_held(words: int, book: Book) -> None:
    book.enter(pages={"05_page": {"words": 3000}})
    found = book.findings("05_page", page(prose(words)))
    said = LISTED[words]
    assert [said is not None and said in line for line in found] == [True] * (said is not None)


def test_another_page_gains_nothing_from_the_list(book: Book) -> None:
    book.enter(pages={"05_page": {"words": 3000}})
    (found,) = book.findings("06_page", page(prose(2500)))
    assert "2,500 words, at most 2,400 on a core page; shorten" in found


def test_a_page_apart_has_nothing_in_the_list(book: Book) -> None:
    book.enter(pages={"speed": {"words": 3000}})
    (found,) = book.findings("speed", page(prose(3000), kind="apart"))
    assert "budgets.yml lists its words; run `python -m tools.notebooks budgets`" in found


def listed(book: Book) -> dict[str, Values]:
    return {name: dict(values) for name, values in book.budgets.listed_pages.items()}


def test_the_list_is_written_once_and_then_only_lowered(book: Book) -> None:
    book.put("05_page", page(prose(3000), code(30)))
    book.put("06_page", page(prose(100)))
    refused = rewrite(book.folder, accept_more=False)
    assert any(line.startswith("05_page: 3,000 words") for line in refused)
    assert listed(book) == {}
    assert rewrite(book.folder, accept_more=True) == []
    assert listed(book) == {"05_page": {"words": 3000, "longest": 30}}
    assert book.sums() == []

    book.put("05_page", page(prose(2900), code(31)))
    refused = rewrite(book.folder, accept_more=False)
    assert refused == [
        "05_page: a visible cell of 31 lines",
        "31 lines of code in all, visible, folded and in transformer_book",
    ]
    assert listed(book) == {"05_page": {"words": 2900, "longest": 30}}

    book.put("05_page", page(prose(2400), code(22)))
    assert rewrite(book.folder, accept_more=False) == []
    assert listed(book) == {}
    assert (book.folder / FILE_NAME).read_text(encoding="utf-8").startswith(WRITTEN)


def test_chosen_pages_alone_may_be_listed_with_more(book: Book) -> None:
    chosen = book.put("05_page", page(prose(3000)))
    book.put("06_page", page(prose(3000)))
    assert rewrite(book.folder, [chosen], accept_more=True) == []
    assert listed(book) == {"05_page": {"words": 3000}}


def test_pages_without_a_kind_are_not_listed(book: Book) -> None:
    book.put("05_page", new_notebook(cells=[prose(3000)]))
    with pytest.raises(NotebookError, match=r"05_page\.ipynb: says no kind, expected one of"):
        rewrite(book.folder, accept_more=True)


def test_a_page_that_is_gone_leaves_the_list(book: Book) -> None:
    book.enter(pages={"04_gone": {"words": 3000}}, numbers={"03_gone": ["0.5"]})
    book.put("05_page", page(prose(10)))
    found = book.sums()
    assert ["03_gone" in found[0], "04_gone" in found[1]] == [True, True]
    assert all("which is no page; run `python -m tools.notebooks budgets`" in f for f in found)
    assert rewrite(book.folder, accept_more=False) == []
    assert book.sums() == []


@pytest.mark.parametrize(
    ("old", "new"), [("words: 2400", "words: many"), ("  lab:", "  labs:"), ("sums:", "sum:")]
)
def test_a_damaged_file_is_named(old: str, new: str, book: Book) -> None:
    path = book.folder / FILE_NAME
    assert old in WRITTEN
    path.write_text(WRITTEN.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(NotebookError, match=r"budgets\.yml: expected `budgets` with words, "):
        Budgets.beside(path)


# --- sums -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "budget", "words"),
    [
        ("core", "core_words: 52999", "100 words on all core pages, at most 99 together"),
        ("further", "book_words: 135999", "100 words in the book, at most 99 together"),
        ("apart", "book_words: 135999", "100 words in the book, at most 99 together"),
    ],
)
def test_the_words_of_all_pages_are_held(kind: str, budget: str, words: str, book: Book) -> None:
    path = book.folder / FILE_NAME
    assert budget in WRITTEN
    smaller = WRITTEN.replace(budget, budget.partition(":")[0] + ": 99")
    path.write_text(f"{smaller}\ntoday: {{}}\n", encoding="utf-8")
    book.put("05_page", page(prose(50), kind=kind))
    book.put("06_page", page(prose(49), kind=kind))
    book.put("sources_a", page(prose(9000), kind="apart"))
    assert book.sums() == [], "pages on documents are apart"
    book.put("06_page", page(prose(50), kind=kind))
    (found,) = book.sums()
    assert words in found
    assert rewrite(book.folder, accept_more=False) == [words.partition(", at")[0]]
    assert rewrite(book.folder, accept_more=True) == []
    assert book.sums() == []


MORE_CODE: dict[str, Callable[[Book], object]] = {
    "a visible line": lambda book: book.put("06_page", page(code(1))),
    "a folded line": lambda book: book.put("06_page", page(code(1, "fold"))),
    "a line of a page apart": lambda book: book.put("speed", page(code(1), kind="apart")),
    "a helper": lambda book: (book.helpers / "more.py").write_text("x = 1\n"),
    "a helper with a like name": lambda book: (book.helpers / "exercises.py").write_text("x = 1\n"),
}
OTHER_LINES: dict[str, Callable[[Book], object]] = {
    "imports": lambda book: book.put("06_page", page(code(9, "set-up"))),
    "solutions": lambda book: book.put("06_page", page(code(9, "solution"))),
    "an exercise": lambda book: (book.helpers / "exercises" / "one.py").write_text("x = 1\n"),
    "docstrings": lambda book: (book.helpers / "helper.py").write_text(
        '"""What it is.\n\nMore of it.\n"""\n\n\ndef f():\n    """Do it."""\n    return 1\n'
    ),
}


def with_code(book: Book) -> None:
    """A page with 10 visible and 5 folded lines and a helper of 2: 17 lines."""
    book.put("05_page", page(code(10), code(5, "fold")))
    (book.helpers / "helper.py").write_text("def f():\n    return 1\n")
    book.enter(sums={"code_lines": 17})
    assert book.sums() == []


@pytest.mark.parametrize("kind", MORE_CODE)
def test_code_may_not_grow_anywhere(kind: str, book: Book) -> None:
    with_code(book)
    MORE_CODE[kind](book)
    (found,) = book.sums()
    assert "18 lines of code in all, visible, folded and in transformer_book, 17 in" in found
    assert "moving code elsewhere is not shortening" in found


@pytest.mark.parametrize("kind", OTHER_LINES)
def test_what_is_counted_apart_may_grow(kind: str, book: Book) -> None:
    with_code(book)
    OTHER_LINES[kind](book)
    assert book.sums() == []


def test_code_that_shrank_may_not_grow_back(book: Book) -> None:
    with_code(book)
    book.put("05_page", page(code(9), code(5, "fold")))
    (found,) = book.sums()
    assert "16 lines of code in all" in found
    assert "lower the list: run `python -m tools.notebooks budgets`" in found


# --- the commands -----------------------------------------------------------------------------


def test_the_kind_is_written_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "05_page.ipynb"
    sp.write(sp.build(), path)
    assert command_line.main(["kind", str(path), "further"]) == 0
    assert "05_page.ipynb: further" in capsys.readouterr().out
    notebook = load(path)
    normalise(notebook)
    assert page_kind(notebook) == "further"
    assert notebook.metadata.page == {"kind": "further"}
    with pytest.raises(NotebookError, match="no kind 'long'; expected one of core"):
        set_kind(path, "long")
    with pytest.raises(SystemExit):
        command_line.main(["kind", str(path), "long"])
    assert command_line.main(["kind", "no_such_page", "core"]) == 2


def test_check_prints_a_line_for_each_page_and_fails_above_a_budget(
    book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    long = book.put("05_page", page(prose(2401), code(3, printed="0.5\n")))
    short = book.put("06_page", page(prose(10), kind="lab"))
    assert command_line.main(["check", str(long), str(short)]) == 1
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines()]
    assert rows[0][:5] == ["page", "kind", "verified", "words", "visible"]
    assert rows[1][:6] == ["05_page", "core", "0/1", "2,401*", "3", "3"]
    assert rows[2][:6] == ["06_page", "lab", "0/0", "10", "0", "0"]
    assert "2,401 words, at most 2,400 on a core page; shorten the text" in said.err


def test_the_whole_book_is_compared_with_its_sums(book: Book) -> None:
    path = book.put("05_page", page(prose(10), code(3)))
    said, found = weigh([path], whole_book=True)
    assert "3 lines of code in all, visible, folded and in transformer_book (at most 0)" in said
    assert ["lines of code in all" in str(finding) for finding in found] == [True]
    (book.folder / FILE_NAME).unlink()
    _, found = weigh([path], whole_book=True)
    assert ["budgets.yml: does not exist" in str(finding) for finding in found] == [True]
    assert weigh([path])[1] == [], "notebooks elsewhere have no budgets"


def test_a_notebook_that_cannot_be_read_is_left_to_the_guard(book: Book) -> None:
    path = book.put("05_page", page(prose(10)))
    path.write_text("{", encoding="utf-8")
    assert weigh([path])[1] == []


def test_the_budgets_command_refuses_to_raise(
    book: Book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "BOOK", book.folder)
    path = book.put("05_page", page(prose(2500)))
    assert command_line.main(["budgets", str(path)]) == 1
    assert "05_page: 2,500 words: more than listed" in capsys.readouterr().err
    assert command_line.main(["budgets", "--accept-more", str(path)]) == 0
    assert listed(book) == {"05_page": {"words": 2500}}
