"""Numbers in running text, proven: each that no cell has printed is found, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from small_book import Book, page

from tools.notebooks.budgets import rewrite
from tools.notebooks.numbers import account, said_in, sentences, values_in

PRINTED = "loss 0.4519, share 12%, 124,439,808 parameters, ratio 3.04\nids [464, 262], 1.3e-05\n"


def prints(text: str, source: str = "show()", *tags: str) -> NotebookNode:
    cell = new_code_cell(source, metadata={"tags": list(tags)})
    cell.outputs = [new_output("stream", name="stdout", text=text)]
    return cell


def loose(text: str, *cells: NotebookNode) -> list[str]:
    """The numbers of a text that its page does not bear out."""
    notebook = page(new_markdown_cell(text), *(cells or [prints(PRINTED)]))
    return [said.text for said in account(notebook).loose]


# --- numbers that stand nowhere ---------------------------------------------------------------

UNBOUND = {
    "a decimal": ("The loss is 0.4619.", ["0.4619"]),
    "one digit more than was printed": ("The loss is 0.45193.", ["0.45193"]),
    "wrongly rounded": ("The loss is 0.46.", ["0.46"]),
    "a negative number": ("It falls by −0.35, or by -0.36.", ["0.35", "0.36"]),
    "three digits": ("There are 465 ids.", ["465"]),
    "thousands": ("There are 12,288 of them.", ["12,288"]),
    "without separator": ("There are 12288 of them.", ["12288"]),
    "a million": ("All 125 million parameters.", ["125 million"]),
    "a few billions": ("All 8 billion parameters.", ["8 billion"]),
    "a letter for billions": ("All 1.5B parameters.", ["1.5B"]),
    "a percentage": ("That is 13% of it.", ["13%"]),
    "a percentage with a blank": ("That is 13 % of it.", ["13 %"]),
    "a percentage in words": ("That is 13 percent of it.", ["13 percent"]),
    "of a hundred": ("It is right in 13 of 100 cases.", ["13 of 100"]),
    "a factor": ("It is 7 times as large.", ["7 times"]),
    "a factor with a sign": ("It is 7× faster.", ["7×"]),
    "a fold": ("A 7-fold gain.", ["7-fold"]),
    "a decimal factor": ("It is 2.5 × as large.", ["2.5 ×"]),
    "a power": ("The rate is 3e-4.", ["3e-4"]),
    "in a heading": ("## The 465 ids", ["465"]),
    "after a heading": ("# Title\n\nThe loss is 0.4619.\n\n## More\n\nAnd 465.", ["0.4619", "465"]),
    "in a table": ("| loss | ids |\n|---|---|\n| 0.4619 | 465 |", ["0.4619", "465"]),
    "in a list": ("- one\n- 465 ids\n1. 0.4619", ["465", "0.4619"]),
    "at the end of brackets": ("Few ids (465).", ["465"]),
    "in bold": ("A loss of **0.4619**.", ["0.4619"]),
    "in the text of a link": ("[465 ids](02_tokens.ipynb)", ["465"]),
    "between formulas": ("For $d = 4$ it is 465, and $e = 5$.", ["465"]),
    "after a formula with lines": ("$$\na = 1\n$$\n\nIt is 465.", ["465"]),
    "after code": ("```python\nx = 465\n```\nIt is 465.", ["465"]),
    "beside a chapter": ("Chapter 3, 465 of them; section 4.2 and 0.4619.", ["465", "0.4619"]),
    "beside a year": ("In 2017 there were 465.", ["465"]),
    "a width that looks like a year": ("Texts of 2048 tokens.", ["2048"]),
    "twice": ("There are 465, and once more 465.", ["465", "465"]),
    "in a directive": ("```{note}\nThere are 465.\n```", ["465"]),
}


@pytest.mark.parametrize("kind", UNBOUND)
def test_a_number_that_stands_nowhere_is_found(kind: str) -> None:
    text, numbers = UNBOUND[kind]
    assert loose(text) == numbers


def test_a_number_in_a_caption_is_found() -> None:
    cell = prints(PRINTED)
    cell.metadata["mystnb"] = {"figure": {"caption": "All 465 ids, loss 0.452."}}
    (said,) = account(page(cell)).loose
    assert (said.text, said.cell, said.sentence) == ("465", 1, "All 465 ids, loss 0.452.")


# --- numbers that stand somewhere -------------------------------------------------------------

BOUND = {
    "as printed": "The loss is 0.4519 and the ids are 464 and 262.",
    "rounded": "The loss is 0.452, or 0.45, or 0.5.",
    "a share as a percentage": "That is 45%, or 45.2 percent, or 45 of 100.",
    "a percentage as printed": "That is 12%.",
    "a percentage as a share": "That is 0.12.",
    "thousands": "All 124,439,808 parameters.",
    "without separators": "All 124439808 parameters.",
    "rounded to thousands": "All 124,440,000 parameters.",
    "in millions": "All 124 million or 124.4 million or 124M parameters.",
    "in billions": "All 0.12 billion parameters.",
    "a factor": "It is 3 times as large, or 3.0 ×.",
    "a power": "It is 1.3e-5, or 0.000013.",
    "a list": "- 464\n- 0.4519\n\n| 262 | 45% |",
}
APART = {
    "two digits": "Layer 7 of 12, 99 tokens.",
    "a word": "It is twice, three times, half as large.",
    "a formula": "With $d = 512$ and $$x = 0.123$$.",
    "a code span": "With `d_model=512` and ``0.123``.",
    "fenced code": "```\nx = 0.123\n```",
    "the target of a link": "[here](https://example.org/1234) and [there](<03.md#s-512>)",
    "an address": "See https://example.org/2.5/1234 .",
    "years": "In 1997 and in 2017, and in the 2010s.",
    "a date": "On 2026-01-31.",
    "chapters and sections": "Section 3.2 and 3.4, table 4.1, Appendix D.2, chapter 19b, § 5.4.",
    "pages": "On page 345, pp. 345–349.",
    "names": "GPT-3.5, Llama 3.1, WikiText-103, float32, H100, Python 3.11, PyTorch 2.8.0.",
    "an id of a cell": "Cell 19-035.",
    "a product": "A matrix of 4 × 4, and 3 times 5.",
    "minutes": "*120 minutes to work through, 105 for the exercises, 30 seconds to run.*",
    "a comment": "<!-- 465 -->",
}


@pytest.mark.parametrize("text", BOUND.values(), ids=BOUND)
def test_a_number_that_a_cell_printed_is_bound(text: str) -> None:
    assert loose(text) == []
    assert account(page(new_markdown_cell(text))).loose, "without the cell it would be loose"


@pytest.mark.parametrize("text", APART.values(), ids=APART)
def test_what_is_no_measured_number_is_apart(text: str) -> None:
    assert [said.text for said in said_in(text, 1)] == []


def test_a_number_is_taken_from_any_text_output() -> None:
    value = new_code_cell("x", outputs=[new_output("execute_result", data={"text/plain": "0.25"})])
    error = new_code_cell("y", outputs=[new_output("error", ename="E", evalue="3x512 and 64x10")])
    solution = prints("0.75\n", "z", "solution")
    assert loose("0.25, 512 and 0.75", value, error, solution) == []


def test_the_summary_of_a_figure_counts_and_its_drawing_does_not() -> None:
    data = {"image/svg+xml": '<svg><path d="M 0.25 512"/></svg>', "text/plain": "Up to 640."}
    figure = new_code_cell("draw()", outputs=[new_output("display_data", data=data)])
    assert loose("From 512 to 640, at 0.25.", figure) == ["512", "0.25"]


def test_a_picture_in_html_does_not_count() -> None:
    data = {"text/html": "<b>512</b>", "text/plain": "A live figure with 640 points."}
    live = new_code_cell("draw()", outputs=[new_output("display_data", data=data)])
    assert loose("From 512 to 640.", live) == ["512"]


# --- code -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["d = 1_024", 'text = "1,024 letters"', "d = 2  # not 1024"])
def test_code_binds_nothing(source: str) -> None:
    assert loose("Width 1,024.", new_code_cell(source)) == ["1,024"]


# --- citations --------------------------------------------------------------------------------

CITE = "([Brown et al., 2020](cite:brown2020language))"
CITED: dict[str, list[str]] = {
    f"The paper says 175 billion {CITE}.": [],
    f"The paper says 175 billion {CITE}. We count 174.6 billion.": ["174.6 billion"],
    f"We count 174.6 billion. The paper says 175 billion {CITE}.": ["174.6 billion"],
    f"| GPT-3 {CITE} | 175 billion |\n| ours | 174.6 |": ["174.6"],
    f"- {CITE} has 175 billion\n- ours has 174.6": ["174.6"],
    f"It has 175 billion,\nas written {CITE}.": [],
    f"It has 175 billion.\n\nAs written {CITE}.": ["175 billion"],
    "[Liu et al. (2024)](cite:liu2024lost) et al. (2024) find 30.5 in 2,384 texts.": [],
    "It has 175 billion ([chapter 19](19_counting.ipynb)).": ["175 billion"],
    "# 175 billion\n\n" + CITE: ["175 billion"],
}


@pytest.mark.parametrize("text", CITED)
def test_a_citation_bears_its_own_sentence(text: str) -> None:
    assert loose(text, prints("nothing")) == CITED[text]


def test_the_numbers_of_a_citation_are_its_own() -> None:
    assert list(said_in("[Table 3, 28.4 BLEU, 2017](cite:vaswani2017attention)", 1)) == []


def test_sentences_end_where_they_end() -> None:
    text = "One is 0.5. Two, e.g. 3.\nThree et al. (2020)! *Four.* **Five?** (Six.) `x.` Seven"
    assert [part.strip() for part in sentences(text) if part.strip()] == [
        "One is 0.5.", "Two, e.g. 3.", "Three et al. (2020)!", "*Four.", "**Five?", "(Six.",
        "Seven",
    ]  # fmt: skip


def test_all_numbers_of_an_output_are_read() -> None:
    read = list(values_in("1,024 -0.5 45% 3e+02 (3,512) 12. x86 .25 1_000"))
    assert {1024, 0.5, 45, 0.45, 300, 3512, 3, 512, 12, 86, 0.25, 1000} <= set(read)


def test_the_account_adds_up() -> None:
    text = f"Loss 0.45, width 512, {CITE} 175 billion. And 0.99."
    found = account(page(new_markdown_cell(text), prints("loss 0.4519", "d = 512")))
    assert (found.said, found.cited, len(found.loose)) == (4, 2, 1)


# --- the list may only shrink -----------------------------------------------------------------


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    return Book(tmp_path, monkeypatch)


def findings(book: Book, name: str, text: str, listed: list[str]) -> list[str]:
    """What the check says of a page with this text."""
    book.enter(numbers={name: listed})
    return book.findings(name, page(new_markdown_cell("# Title"), new_markdown_cell(text)))


def test_the_finding_names_page_cell_number_words_and_remedy(book: Book) -> None:
    (found,) = findings(book, "05_page", "About 7 of them: a loss of 0.4619 is not much.", [])
    cell = book.cell_id("05_page", 2)
    name, _, rest = found.partition(":")
    assert name.endswith("05_page.ipynb")
    assert rest == (
        f" cell {cell} (under “Title”): '0.4619' stands in no text output of the page and "
        "carries no citation (in: "
        "'About 7 of them: a loss of 0.4619 is not much.'); print it, cite where it comes from, "
        "or say it without the number"
    )


def test_a_listed_number_is_excused_as_often_as_it_is_listed(book: Book) -> None:
    text = "First 0.4619, then 0.4619, then 465."
    assert findings(book, "05_page", text, ["465", "0.4619", "0.4619"]) == []
    (found,) = findings(book, "05_page", text, ["465", "0.4619"])
    assert "'0.4619' stands in no text output" in found


def test_a_listed_number_that_is_gone_fails_nothing(book: Book) -> None:
    assert findings(book, "05_page", "Only 465.", ["465", "0.4619", "0.4619"]) == []
    assert rewrite(book.folder, accept_more=False) == []
    assert book.budgets.listed_numbers == {"05_page": ["465"]}


def test_pages_on_documents_may_quote(book: Book) -> None:
    assert findings(book, "sources_a", "**It says.** The loss is 0.4619.", []) == []


def test_the_list_is_only_made_shorter(book: Book) -> None:
    findings(book, "05_page", "Now 0.4619 and 465 and 0.99.", ["0.99", "0.98"])
    assert rewrite(book.folder, accept_more=False) == [
        "05_page: '0.4619' stands in no output", "05_page: '465' stands in no output",
    ]  # fmt: skip
    assert book.budgets.listed_numbers == {"05_page": ["0.99"]}
    assert rewrite(book.folder, accept_more=True) == []
    assert book.budgets.listed_numbers == {"05_page": ["0.4619", "465", "0.99"]}


@pytest.mark.parametrize(
    "said", ["8.4e6", "45%", "1,024", "2048", "0.5", "3 times", "1_0", "12:30"]
)
def test_numbers_survive_the_file(said: str, book: Book) -> None:
    """YAML reads 2048 as a number and 12:30 as 750 unless they are quoted."""
    findings(book, "05_page", "x", [])
    budgets = book.budgets
    budgets.listed_numbers = {"05_page": [said]}
    budgets.save()
    assert book.budgets.listed_numbers == {"05_page": [said]}
