"""References forward and needs of core pages: what counts, what does not, and the list of both."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from small_book import PAGES, Book, page

from tools.notebooks.budgets import FILE_NAME, Budgets, rewrite
from tools.notebooks.model import BOOK
from tools.notebooks.references import further_needs, reading_order, references_forward

# Pages and needs on the lists when this was first counted; they may only fall.
MOST_FORWARD, MOST_NEEDS = 15, 8


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    return Book(tmp_path, monkeypatch)


# --- what counts ------------------------------------------------------------------------------

FORWARD = {  # what a page 05 says, and where it sends its reader
    "[heads](06_heads.ipynb)": ["06_heads"],
    "[its own further page](05b_more.ipynb#part)": ["05b_more"],
    "[one](06_heads.ipynb) and [the same](06_heads.ipynb#why)": ["06_heads", "06_heads"],
    "[a cell](place:06_heads#cell-06-001)": ["06_heads"],
    "more in chapter 6, and on page 5b.": ["06_heads", "05b_more"],
    "- an item, [heads](06_heads.ipynb)": ["06_heads"],
    "| a row | [heads](06_heads.ipynb) |": ["06_heads"],
    "## Check it\n\n[heads](06_heads.ipynb)": ["06_heads"],
    "### A smaller heading\n\n[heads](06_heads.ipynb)": ["06_heads"],
    "[back](04_scaling.ipynb), as chapter 4 said": [],
    "[this page](05_masks.ipynb#above)": [],
    "[a lab](lab1_heads.ipynb), [a reference](notation.md)": [],
    "[Vaswani et al., 2017](cite:vaswani2017attention)": [],
    "| [2017](cite:vaswani2017attention) | [heads](06_heads.ipynb) |": [],
    "`[heads](06_heads.ipynb)`": [],
    "```text\n[heads](06_heads.ipynb)\n```": [],
    "# 5 · A\n\n*5 minutes to read, 9 for the exercises. You need: [heads](06_heads.ipynb).*": [],
    "## Two [heads](06_heads.ipynb)": [],
    "## In real models\n\n### One\n\n[heads](06_heads.ipynb)": [],
    "## Exercises\n\n### Exercise 1 · One\n\n[heads](06_heads.ipynb)": [],
    "## In one minute\n\n- one\n\n**Next:** [heads](06_heads.ipynb); [more](05b_more.ipynb).": [],
}
ORDER = ["index", "04_scaling", "05_masks", "05b_more", "06_heads", "lab1_heads", "notation"]


@pytest.mark.parametrize("text", FORWARD)
def test_what_is_a_reference_forward(text: str) -> None:
    notebook = page(new_markdown_cell(text))
    found = references_forward(notebook, "05_masks", ORDER)
    assert [reference.page for reference in found] == FORWARD[text]
    assert {reference.cell for reference in found} <= {1}


def test_a_section_that_is_apart_ends_with_the_next_heading() -> None:
    link = "[heads](06_heads.ipynb)"
    text = f"## In real models\n\n{link}\n\n## What breaks\n\n{link}"
    notebook = page(new_markdown_cell("words"), new_markdown_cell(text), new_markdown_cell(link))
    cells = [found.cell for found in references_forward(notebook, "05_masks", ORDER)]
    assert cells == [2, 3]


def test_captions_and_code_are_no_running_text() -> None:
    cell = new_code_cell("# [heads](06_heads.ipynb)")
    cell.metadata["mystnb"] = {"figure": {"caption": "[heads](06_heads.ipynb)"}}
    assert references_forward(page(cell), "05_masks", ORDER) == ()


def test_what_is_no_chapter_sends_nobody_forward() -> None:
    notebook = page(new_markdown_cell("[heads](06_heads.ipynb)"), kind="apart")
    assert references_forward(notebook, "index", ORDER) == ()
    assert references_forward(notebook, "03_elsewhere", ORDER) == ()


def test_the_order_is_that_of_the_contents(book: Book, tmp_path: Path) -> None:
    assert reading_order(book.folder) == list(PAGES)
    order = reading_order(BOOK)
    assert order.index("paths") < order.index("01_recurrence") < order.index("01b_one_vector")
    assert order.index("01c_gates") < order.index("02_tokens") < order.index("lab1_heads")
    (tmp_path / "_toc.yml").unlink()
    for name in ("06_page", "05_page"):
        book.put(name, page())
    assert reading_order(book.folder) == ["05_page", "06_page"]


# --- a page above its budget ------------------------------------------------------------------


def sending(times: int) -> list[str]:
    return ["[on](06_page.ipynb)"] * times


def test_a_finding_names_the_place_the_links_and_the_remedy(book: Book) -> None:
    texts = [new_markdown_cell(text) for text in ("## The idea", *sending(4))]
    (found,) = book.findings("05_page", page(*texts))
    assert found.split("05_page.ipynb:")[1] == (
        f" cell {book.cell_id('05_page', 5)} (under “The idea”): 4 references forward (06_page, "
        "06_page, 06_page, 06_page), at most 3 on a core page; say the fact in half a sentence "
        "instead"
    )
    assert book.findings("05_page", page(*texts[:4])) == []
    assert book.findings("05b_page", page(*texts, kind="further")) == []


def test_the_list_of_references_shrinks_and_never_grows(book: Book) -> None:
    def put(times: int) -> list[str]:
        path = book.put("05_page", page(*map(new_markdown_cell, sending(times))))
        return rewrite(book.folder, [path], accept_more=False)

    book.enter(pages={"05_page": {"forward": 5}})
    assert put(6) == [
        "05_page: 6 references forward",
    ]
    assert book.budgets.listed_pages == {"05_page": {"forward": 5}}
    assert put(4) == []
    assert book.budgets.listed_pages == {"05_page": {"forward": 4}}
    assert put(3) == []
    assert book.budgets.listed_pages == {}


# --- the core is closed -----------------------------------------------------------------------

NEEDS = {
    "# 6 · A\n\n*5 minutes to read. You need: [one](04_page.ipynb).*": [],
    "# 6 · A\n\n*5 minutes to read. You need: [one](04_page.ipynb) and [a](05b_page.ipynb#x).*": [
        "05b_page"
    ],
    "# 6 · A\n\n*5 minutes to read. You need: Python. More: [a](05b_page.ipynb).*": [],
    "For this you will need [page 5b](05b_page.ipynb).": ["05b_page"],
    "Read [page 5b](05b_page.ipynb) first, then [page 3b](03b_x.ipynb).": ["03b_x", "05b_page"],
    "[Page 5b](05b_page.ipynb) goes deeper.": [],
    "Read on. [Page 5b](05b_page.ipynb) goes deeper, and needs time.": [],
    "## Exercises\n\nYou need [page 5b](05b_page.ipynb).": [],
}


@pytest.mark.parametrize("text", NEEDS)
def test_what_names_a_further_page_as_needed(text: str, book: Book) -> None:
    notebook = page(new_markdown_cell(text))
    assert [need.page for need in further_needs(notebook)] == NEEDS[text]
    said = book.findings("06_page", notebook)
    assert [f"is a core page and needs {need}, a further one" for need in NEEDS[text]] == [
        line.split(": ")[2].split("; ")[0] for line in said
    ]
    assert further_needs(page(new_markdown_cell(text), kind="further")) == ()


def test_the_list_of_needs_shrinks_and_never_grows(book: Book) -> None:
    def put(*needs: str) -> list[str]:
        links = " and ".join(f"[it]({need}.ipynb)" for need in needs)
        text = f"# 6 · A\n\n*5 minutes to read. You need: {links}.*"
        path = book.put("06_page", page(new_markdown_cell(text)))
        return rewrite(book.folder, [path], accept_more=False)

    book.enter(needs={"06_page": ["04b_page", "05b_page"]})
    assert put("05b_page", "03b_page") == ["06_page: needs 03b_page"]
    assert book.budgets.listed_needs == {"06_page": ["05b_page"]}
    assert put("04_page") == []
    assert book.budgets.listed_needs == {}


def test_the_books_lists_have_not_grown() -> None:
    budgets = Budgets.beside(BOOK / FILE_NAME)
    assert budgets is not None
    assert sum("forward" in values for values in budgets.listed_pages.values()) <= MOST_FORWARD
    assert sum(map(len, budgets.listed_needs.values())) <= MOST_NEEDS
