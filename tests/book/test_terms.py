"""Core terms: each is defined before it is used, and the list of those that are not only falls."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from small_book import Book, page

from tools.notebooks.budgets import FILE_NAME as BUDGETS
from tools.notebooks.budgets import Budgets, rewrite
from tools.notebooks.model import BOOK, NotebookError, find_notebooks, load
from tools.notebooks.rulers import page_kind
from tools.notebooks.terms import FILE_NAME, CoreTerms, Use, undefined_terms

MOST_UNDEFINED = 67  # what pages used undefined when this was first counted; it may only fall

GLOSSARY = """# Glossary

:::{glossary}
attention head
head
  One copy of attention.

causal mask
  A mask that hides what comes later.

hidden state
  What a recurrent network carries along.

key
  What a query is compared with.

mask
  Who may look at whom.

query
  What a position looks for.

softmax
  Numbers that sum to 1.
:::
"""
CORE = {"04_page": ["softmax"], "05_page": ["mask", "key"], "06_page": ["attention head"]}


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    book = Book(tmp_path, monkeypatch)
    (book.folder / "glossary.md").write_text(GLOSSARY, encoding="utf-8")
    write_core(book, CORE)
    return book


def write_core(book: Book, core: dict[str, list[str]]) -> None:
    text = yaml.safe_dump({"mask": "05_page", "core": core})
    (book.folder / FILE_NAME).write_text(text, encoding="utf-8")


DEFINED = "A **mask** says who may look. The **key** is what a query meets."


def undefined(book: Book, name: str, *texts: str, kind: str = "core") -> list[str]:
    """The terms that a page uses undefined."""
    return [use.term for use in uses(book, name, page(*map(new_markdown_cell, texts), kind=kind))]


def uses(book: Book, name: str, notebook: NotebookNode) -> list[Use]:
    order = ["04_page", "05_page", "05b_page", "06_page"]
    return list(undefined_terms(notebook, name, order, CoreTerms.of(book.folder)))


# --- one page ---------------------------------------------------------------------------------

KEPT = {
    "the sentence of its first use": DEFINED,
    "as a link": "A **[mask](term:mask)** hides. **[Keys](<term:key>)** are found.",
    "as a link around bold": "A [**mask**](term:mask) hides. A [**key**](term:key) is found.",
    "another form, linked": "It is **[masked](term:mask)**, and masks hide. A **key** is found.",
    "a few words beside it": "The **attention mask** hides, the **first key** is found.",
    "a lead-in": "1. **Mask.** Who may look.\n2. **Key.** What is found.",
    "a row of a table": "| **mask** | who may look |\n|---|---|\n| **key** | what is found |",
    "later in the sentence": "Which masks there are, a **mask** being a table. A **key** is found.",
    "what an earlier page defined": f"{DEFINED} A softmax follows.",
    "a longer term": f"The causal mask is another term. {DEFINED}",
    "an everyday word": f"The key idea is old.\n\n{DEFINED}",
    "part of a word": f"Masked, unmasked. {DEFINED}",
    "a heading": f"## Mask and key, query\n\n{DEFINED}",
    "code": f"`mask` and\n\n```text\nmask, key, query\n```\n\n{DEFINED}",
    "a formula": f"$mask$ {DEFINED}",
    "an exercise": f"{DEFINED}\n\n## Exercises\n\nHeads of attention.",
    "real models": f"{DEFINED}\n\n## In real models\n\nHeads of attention.",
    "the way on": f"{DEFINED}\n\n**Next:** [heads](06_page.ipynb) of attention.",
    "a prerequisite": (
        "# 5 · A\n\n*5 minutes to read, 9 seconds to run. You need: what a mask is, and "
        "[keys](04_page.ipynb).*\n\nA mask hides a key from a query."
    ),
}
BROKEN = {
    "used before": (f"A mask is old. {DEFINED}", ["mask"]),
    "in the paragraph before": (f"Masks hide.\n\n{DEFINED}", ["mask"]),
    "as a link that is not in bold": (f"It is [masked](term:mask). {DEFINED}", ["mask"]),
    "never in bold": ("A mask hides. A **key** is found.", ["mask"]),
    "never named": ("A **key** is found.", ["mask"]),
    "in a sentence that is all bold": ("**A mask says who may look.** A **key** is.", ["mask"]),
    "only in italics": ("A *mask* hides. A **key** is found.", ["mask"]),
    "what a later page defines": (f"{DEFINED} Attention has heads.", ["attention head"]),
    "in a table": (f"| heads | of attention |\n\n{DEFINED}", ["attention head"]),
    "after real models": (
        f"{DEFINED}\n\n## In real models\n\nWords.\n\n## What breaks\n\nHeads of attention.",
        ["attention head"],
    ),
    "a prerequisite that is another": (
        "# 5 · A\n\n*5 minutes to read. You need: queries.*\n\nA mask hides. A **key** is found.",
        ["mask"],
    ),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_page_that_defines_its_terms(kind: str, book: Book) -> None:
    assert undefined(book, "05_page", KEPT[kind]) == []


@pytest.mark.parametrize("kind", BROKEN)
def test_a_page_that_does_not(kind: str, book: Book) -> None:
    text, terms = BROKEN[kind]
    assert undefined(book, "05_page", text) == terms


def test_a_page_may_define_a_term_before_its_time(book: Book) -> None:
    assert undefined(book, "05_page", f"{DEFINED} A **head** is one copy of attention.") == []
    assert undefined(book, "04_page", "A **softmax** sums to 1. A mask hides.") == ["mask"]


def test_a_page_is_not_blamed_for_what_an_earlier_one_forgot(book: Book) -> None:
    assert undefined(book, "06_page", "An **attention head** has a mask, a key, a softmax.") == []


def test_other_pages_and_other_books_are_not_judged(book: Book, tmp_path: Path) -> None:
    assert undefined(book, "05b_page", "Heads of attention.", kind="further") == []
    assert undefined(book, "99_page", "Heads of attention.") == []
    assert CoreTerms.of(tmp_path) == CoreTerms()


def test_captions_and_comments_are_no_running_text(book: Book) -> None:
    cell = new_code_cell("# heads of attention")
    cell.metadata["mystnb"] = {"figure": {"caption": "heads of attention"}}
    assert uses(book, "05_page", page(new_markdown_cell(DEFINED), cell)) == []


def test_a_finding_names_the_cell_the_word_and_the_remedy(book: Book) -> None:
    texts = [
        "# 5 · A",
        f"## Idea\n\nA mask is old. {DEFINED}",
        "It has **heads**, as attention has.",
    ]
    early = new_markdown_cell("Two heads of attention.")
    cells = [*map(new_markdown_cell, texts[:2]), early, new_markdown_cell(texts[2])]
    said = book.findings("05_page", page(*cells))
    ids = [book.cell_id("05_page", number) for number in (2, 3)]
    assert [line.split("05_page.ipynb: ")[1] for line in said] == [
        f"cell {ids[0]} (under “Idea”): uses 'mask' before it is defined (in: 'A mask is old.'); "
        "say in the sentence where it first stands what it is, with **mask** in bold",
        f"cell {ids[1]} (under “Idea”): uses 'attention head', which 06_page defines, later in the "
        "core (in: 'Two heads of attention.'); use other words; or say in the sentence where it "
        "first stands what it is, with **attention head** in bold, and name this page in terms.yml",
    ]
    (never,) = book.findings("04_page", page(new_markdown_cell("Words.")))
    assert "is to define 'softmax' (terms.yml, core), and never names it; say in" in never


# --- the lists --------------------------------------------------------------------------------


def test_the_list_of_what_is_undefined_shrinks_and_never_grows(book: Book) -> None:
    def put(text: str) -> list[str]:
        path = book.put("05_page", page(new_markdown_cell(text)))
        return rewrite(book.folder, [path], accept_more=False)

    def found() -> list[str]:
        return book.findings("05_page", load(book.folder / "05_page.ipynb"))

    book.enter(terms={"05_page": ["mask"]})
    assert put("A mask hides a **key**. Heads of attention.") == [
        "05_page: uses undefined attention head"
    ]
    assert book.budgets.listed_terms == {"05_page": ["mask"]}
    assert ["attention head" in line for line in found()] == [True]
    assert put(DEFINED) == []
    assert book.budgets.listed_terms == {}
    assert found() == []
    assert put("A mask hides a **key**.") == ["05_page: uses undefined mask"]
    assert ["'mask'" in line for line in found()] == [True]


@pytest.mark.parametrize(
    ("core", "said"),
    [
        ({"04_page": ["mask"], "05_page": ["mask"]}, "'mask' stands on 04_page and 05_page"),
        ({"04_page": ["head"]}, "'head' is not the first name of an entry of glossary.md"),
        ({"04_page": ["tokne"]}, "'tokne' is not the first name of an entry of glossary.md"),
    ],
)
def test_a_wrong_list_is_named(core: dict[str, list[str]], said: str, book: Book) -> None:
    write_core(book, core)
    with pytest.raises(NotebookError, match=rf"terms\.yml: core.*{said}"):
        CoreTerms.of(book.folder)


def test_the_books_terms_stand_on_core_pages_in_order() -> None:
    listed = yaml.safe_load((BOOK / FILE_NAME).read_text(encoding="utf-8"))["core"]
    kinds = {path.stem: page_kind(load(path)) for path in find_notebooks([BOOK])}
    assert {kinds.get(page) for page in listed} == {"core"}
    assert list(listed) == sorted(listed)
    assert all(terms == sorted(terms, key=str.lower) for terms in listed.values())
    assert 55 <= sum(map(len, listed.values())) <= 75
    assert {"update", "learning rate", "seed", "logit", "query", "mask"} <= set(
        CoreTerms.of(BOOK).homes
    )


def test_the_books_list_has_not_grown() -> None:
    budgets = Budgets.beside(BOOK / BUDGETS)
    assert budgets is not None
    assert sum(map(len, budgets.listed_terms.values())) <= MOST_UNDEFINED
