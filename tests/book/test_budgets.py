"""The budgets, proven: a page above one may not rise, one that falls never fails, sums are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import specimens as sp
from nbformat.v4 import new_notebook
from small_book import WRITTEN, Book, code, page, prose

from tools.notebooks import __main__ as command_line
from tools.notebooks.budgets import FILE_NAME, Budgets, lower, rewrite, weigh
from tools.notebooks.model import BOOK, NotebookError, find_notebooks, load, normalise
from tools.notebooks.pages import CORE_RULERS, PAGE_RULERS, Values
from tools.notebooks.rulers import page_kind, set_kind


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    return Book(tmp_path, monkeypatch)


# --- the budgets of the book -----------------------------------------------------------------


def test_the_budgets_are_those_that_were_agreed(book: Book) -> None:
    core = {
        "words": 2800, "visible": 180, "longest": 22, "your_file": 30, "excess": 0,
        "verdicts": 0.1, "mentions": 0,
    }  # fmt: skip
    assert book.budgets.kinds == {
        "core": {**core, "forward": 3},
        "further": {**core, "visible": 240},
        "lab": {**core, "visible": 300},
    }


def test_every_budget_says_why() -> None:
    lines = [line for line in WRITTEN.splitlines() if line.startswith("    ")]
    assert len(lines) == 3 * len(PAGE_RULERS) - 2 * len(CORE_RULERS)
    assert all("  # " in line for line in lines)


def test_the_pages_on_documents_are_there() -> None:
    budgets = Budgets.beside(BOOK / FILE_NAME)
    assert budgets is not None
    assert all((BOOK / f"{name}.ipynb").exists() for name in budgets.documents)


# --- a listed value may not rise ---------------------------------------------------------------

LISTED: dict[int, str | None] = {
    3001: "3,001 words, 3,000 in budgets.yml, which may only fall (budget on a core page: 2,800)",
    3000: None,
    2999: None,
    2800: None,
    10: None,
}


@pytest.mark.parametrize("words", LISTED)
def test_a_listed_value_may_not_rise_and_may_fall(words: int, book: Book) -> None:
    book.enter(pages={"05_page": {"words": 3000}})
    found = book.findings("05_page", page(prose(words)))
    said = LISTED[words]
    assert [said is not None and said in line for line in found] == [True] * (said is not None)


def test_another_page_gains_nothing_from_the_list(book: Book) -> None:
    book.enter(pages={"05_page": {"words": 3000}})
    (found,) = book.findings("06_page", page(prose(2900)))
    assert "2,900 words, at most 2,800 on a core page; shorten" in found


STALE: dict[str, dict[str, object]] = {
    "a ruler of a page apart": {"pages": {"speed": {"words": 3000}}},
    "a part that is there": {"lacks": {"05_page": ["head"]}},
    "a number that is borne out": {"numbers": {"05_page": ["0.5"]}},
    "a term that is defined": {"terms": {"05_page": ["token"]}},
    "a page that is needed no more": {"needs": {"05_page": ["05b_page"]}},
    "a page that is gone": {"pages": {"04_gone": {"words": 3000}}, "numbers": {"03_gone": ["1.5"]}},
    "a term of a page that is gone": {"terms": {"04_gone": ["token"]}},
}


@pytest.mark.parametrize("kind", STALE)
def test_a_stale_entry_fails_nothing_and_the_tool_removes_it(kind: str, book: Book) -> None:
    book.enter(**STALE[kind])
    paths = [
        book.put("05_page", page(prose(10))),
        book.put("speed", page(prose(3000), kind="apart")),
    ]
    assert weigh(paths, whole_book=True)[1] == []
    assert rewrite(book.folder, accept_more=False) == []
    assert [book.budgets.listed_pages, *book.budgets.lists.values()] == [{}] * 5


def test_two_branches_that_each_shorten_a_page_merge_into_a_green_book(book: Book) -> None:
    """Each is judged alone: no line of the list speaks of two pages."""
    long = {"05_page": {"words": 3000}, "06_page": {"words": 3100}}
    book.enter(pages=long)
    paths = [
        book.put("05_page", page(prose(2950))),  # this branch forgot the tool
        book.put("06_page", page(prose(3050))),
    ]
    rewrite(book.folder, [paths[1]], accept_more=False)  # this one did not
    assert listed(book) == {"05_page": {"words": 3000}, "06_page": {"words": 3050}}
    assert weigh(paths, whole_book=True)[1] == []


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

    book.put("05_page", page(prose(2900), code(31)))
    refused = rewrite(book.folder, accept_more=False)
    assert refused == ["05_page: a visible cell of 31 lines"]
    assert listed(book) == {"05_page": {"words": 2900, "longest": 30}}

    book.put("05_page", page(prose(2800), code(22)))
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


@pytest.mark.parametrize(
    ("old", "new"),
    [("words: 2800", "words: many"), ("  lab:", "  labs:"), ("documents:", "papers:")],
)
def test_a_damaged_file_is_named(old: str, new: str, book: Book) -> None:
    path = book.folder / FILE_NAME
    assert old in WRITTEN
    path.write_text(WRITTEN.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(NotebookError, match=r"budgets\.yml: expected `budgets` with words, "):
        Budgets.beside(path)


# --- sums -------------------------------------------------------------------------------------


def with_code(book: Book) -> Path:
    """A page with 10 visible and 5 folded lines and a helper of 2: 17 lines."""
    (book.helpers / "helper.py").write_text("def f():\n    return 1\n")
    return book.put("05_page", page(prose(50), code(10), code(5, "fold")))


GROWTH: dict[str, tuple[Callable[[Book], object], str]] = {
    "nothing": (lambda book: None, "17 lines of code in all"),
    "a visible line": (lambda book: book.put("06_page", page(code(1))), "18 lines"),
    "a folded line": (lambda book: book.put("06_page", page(code(1), code(1, "fold"))), "19 lines"),
    "of a page apart": (lambda book: book.put("speed", page(code(1), kind="apart")), "18 lines"),
    "a helper": (lambda book: (book.helpers / "more.py").write_text("x = 1\n"), "18 lines"),
    "imports": (lambda book: book.put("06_page", page(code(9, "set-up"))), "17 lines"),
    "solutions": (lambda book: book.put("06_page", page(code(9, "solution"))), "17 lines"),
    "an exercise": (
        lambda book: (book.helpers / "exercises" / "one.py").write_text("x = 1\n"),
        "17 lines",
    ),
    "docstrings": (
        lambda book: (book.helpers / "helper.py").write_text(
            '"""What it is.\n\nMore of it.\n"""\n\n\ndef f():\n    """Do it."""\n    return 1\n'
        ),
        "17 lines",
    ),
    "words of a core page": (lambda book: book.put("06_page", page(prose(9))), "59 words on all"),
    "words of another": (
        lambda book: book.put("06_page", page(prose(9), kind="further")),
        "59 words in the book",
    ),
    "words on documents": (
        lambda book: book.put("sources_a", page(prose(9), kind="apart")),
        "50 words in the book",
    ),
}


@pytest.mark.parametrize("kind", GROWTH)
def test_sums_over_the_book_are_told_and_fail_nothing(kind: str, book: Book) -> None:
    with_code(book)
    grow, said = GROWTH[kind]
    grow(book)
    told, found = weigh(find_notebooks([book.folder]), whole_book=True)
    assert f"\n{said}" in f"\n{told}"
    assert found == []
    assert "core_words" not in WRITTEN


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
    long = book.put("05_page", page(prose(2801), code(3, printed="0.5\n")))
    short = book.put("06_page", page(prose(10), kind="lab"))
    assert command_line.main(["check", str(long), str(short)]) == 1
    assert capsys.readouterr().out == "", "a table comes only on request"
    assert command_line.main(["check", "--table", str(long), str(short)]) == 1
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines()]
    assert rows[0][:5] == ["page", "kind", "verified", "words", "visible"]
    assert rows[1][:6] == ["05_page", "core", "0/1", "2,801*", "3", "3"]
    assert rows[2][:6] == ["06_page", "lab", "0/0", "10", "0", "0"]
    assert "2,801 words, at most 2,800 on a core page; shorten the text" in said.err


def test_a_book_without_budgets_is_noticed(book: Book) -> None:
    path = book.put("05_page", page(prose(10), code(3)))
    (book.folder / FILE_NAME).unlink()
    _, found = weigh([path], whole_book=True)
    assert ["budgets.yml: does not exist" in str(finding) for finding in found] == [True]
    assert weigh([path])[1] == [], "notebooks elsewhere have no budgets"


def test_a_run_lowers_the_entries_of_its_page_and_raises_none(book: Book) -> None:
    book.enter(pages={"05_page": {"words": 3000, "longest": 25}, "06_page": {"words": 3000}})
    path = book.put("05_page", page(prose(2900), code(26)))
    book.put("06_page", page(prose(2900)))
    lower(path)
    assert listed(book) == {
        "05_page": {"words": 2900, "longest": 25},
        "06_page": {"words": 3000},
    }


def test_a_notebook_that_cannot_be_read_is_left_to_the_guard(book: Book) -> None:
    path = book.put("05_page", page(prose(10)))
    path.write_text("{", encoding="utf-8")
    assert weigh([path])[1] == []


def test_the_budgets_command_refuses_to_raise(
    book: Book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "BOOK", book.folder)
    path = book.put("05_page", page(prose(2900)))
    assert command_line.main(["budgets", str(path)]) == 1
    assert "05_page: 2,900 words: more than listed" in capsys.readouterr().err
    assert command_line.main(["budgets", "--accept-more", str(path)]) == 0
    assert listed(book) == {"05_page": {"words": 2900}}
