"""The rulers, proven: each finds the page that is one too long, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import specimens as sp
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from small_book import Book, code, page, prose

from tools.notebooks.pages import measure_page
from tools.notebooks.rulers import PAGE_KINDS, count_words, rule

CORE = {
    "words": 2800, "visible": 180, "longest": 22, "your_file": 30, "excess": 0, "verdicts": 0.1,
    "mentions": 0,
}  # fmt: skip
FURTHER = {**CORE, "visible": 240}
CORE["forward"] = 3
LAB = {**FURTHER, "visible": 300}


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    return Book(tmp_path, monkeypatch)


# --- every ruler, at its border ---------------------------------------------------------------


def lines_of_code(lines: int) -> list[NotebookNode]:
    """Cells of at most 20 lines."""
    whole, rest = divmod(lines, 20)
    return [code(20) for _ in range(whole)] + [code(rest)] * bool(rest)


def full(limits: dict[str, float], kind: str) -> NotebookNode:
    """A page that has everything it may have."""
    cells = lines_of_code(int(limits["visible"]) - 22 - 30 - 11)
    folded = [code(20, "fold") for _ in range(int(limits["visible"]) // 20)]
    verdicts = [code(2, printed="equal: True\n"), *(code(1, printed="0.5\n") for _ in range(9))]
    own = [code(22), code(30, "your-file")]
    sent_on = [new_markdown_cell("[](06_page.ipynb) " * int(limits.get("forward", 0)))]
    return page(prose(int(limits["words"])), *cells, *own, *folded, *sent_on, *verdicts, kind=kind)


def lengthen(notebook: NotebookNode, lines: int, *tags: str) -> None:
    """Add a line to the last cell of so many lines with these tags."""
    cells = [c for c in notebook.cells if c.metadata.get("tags") == list(tags)]
    victim = [c for c in cells if len(c.source.split()) == 3 * lines][-1]
    victim.source += "\n\na = 1"


def longer_cell(notebook: NotebookNode) -> None:
    """Add a line to the longest cell and take one from another."""
    lengthen(notebook, 22)
    notebook.cells[1].source = notebook.cells[1].source.removesuffix("\n\na = 1")


def longer_file_cell(notebook: NotebookNode) -> None:
    """Add a line to the cell of the reader's file and take one from another."""
    lengthen(notebook, 30, "your-file")
    notebook.cells[1].source = notebook.cells[1].source.removesuffix("\n\na = 1")


def say(old: str, new: str) -> sp.Damage:
    def damage(notebook: NotebookNode) -> None:
        notebook.cells[0].source = notebook.cells[0].source.removesuffix(old) + new

    return damage


def print_a_verdict(notebook: NotebookNode) -> None:
    notebook.cells[-1].outputs[0].text = "equal: True\n"


OVER: dict[str, tuple[sp.Damage, str]] = {
    "words": (say("", " word"), "01 words, at most "),
    "visible": (lambda notebook: lengthen(notebook, 1), "1 visible lines of code, at most "),
    "longest": (longer_cell, "a visible cell of 23 lines, at most 22 "),
    "your_file": (longer_file_cell, "a “your file” cell of 31 lines, at most 30 "),
    "excess": (
        lambda notebook: lengthen(notebook, 20, "fold"),
        "1 more folded lines than visible ones, at most 0 ",
    ),
    "verdicts": (print_a_verdict, "a share of 0.2 of outputs that say only True or False, at most"),
    "mentions": (say("word word", "source A"), "1 mentions of the five documents, at most 0 "),
    "forward": (
        say("", "[](05b_page.ipynb)"),
        "4 references forward (05b_page, 06_page, 06_page, 06_page), at most 3 ",
    ),
}
KINDS = {"core": CORE, "further": FURTHER, "lab": LAB}


@pytest.mark.parametrize(("kind", "limits"), KINDS.items())
def test_a_page_may_have_all_that_it_may_have(
    kind: str, limits: dict[str, float], book: Book
) -> None:
    notebook = full(limits, kind)
    assert book.findings("05_page", notebook) == []
    measured = measure_page(book.put("05_page", notebook))
    assert {name: measured.values[name] for name in limits} == limits
    assert measured.rulers.folded == measured.rulers.visible


@pytest.mark.parametrize(("ruler", "kind"), [(r, k) for k in KINDS for r in KINDS[k]])
def test_one_more_is_found(ruler: str, kind: str, book: Book) -> None:
    notebook = full(KINDS[kind], kind)
    damage, words = OVER[ruler]
    damage(notebook)
    (found,) = book.findings("05_page", notebook)
    assert words in found
    assert f"on a {kind} page; " in found


def test_the_finding_names_page_cell_value_budget_and_remedy(book: Book) -> None:
    headed = new_markdown_cell("## The idea\n\nwords")
    (found,) = book.findings("05_page", page(headed, code(3), code(25)))
    name, rest = found.split(":", 1)
    assert name.endswith("05_page.ipynb")
    assert rest == (
        f" cell {book.cell_id('05_page', 3)} (under “The idea”): "
        "a visible cell of 25 lines, at most 22 on a core page; "
        "break it up, or fold what is not the idea"
    )


def test_a_page_apart_has_no_budgets(book: Book) -> None:
    notebook = page(prose(9000), code(500), code(900, "fold"), kind="apart")
    assert book.findings("speed", notebook) == []


@pytest.mark.parametrize("metadata", [{}, {"page": {}}, {"page": {"kind": "long"}}])
def test_a_page_must_say_its_kind(metadata: dict[str, object], book: Book) -> None:
    (found,) = book.findings("05_page", new_notebook(cells=[prose(9)], metadata=metadata))
    assert "says no kind; run `python -m tools.notebooks kind 05_page KIND`" in found
    assert all(kind in found for kind in PAGE_KINDS)


# --- words ------------------------------------------------------------------------------------

WORDS = {
    "two plain words, isn't it": 5,
    "a state-of-the-art model": 3,
    "$x + y$ is $$\na + b\n$$ six": 2,
    r"it costs \$5 and then \$6 more": 5,
    "[two words](05_masks.ipynb#not-these) and [one](<term:fused attention>)": 4,
    "[GELU](https://en.wikipedia.org/wiki/Rectifier_(neural_networks)) ends": 2,
    "before\n```python\nx = many + words\n```\nafter": 2,
    "```{note}\nfour words of text\n```": 5,
    "```{code} python\nx = y\n```": 0,
    "~~~\nfenced too\n~~~": 0,
    "## A heading": 2,
    "| a | table |\n|---|---|\n| of | four |": 4,
    "<details><summary>Seen</summary> words </details>": 2,
    "<!-- not read -->": 0,
    "`code_spans` are read": 3,
    "12 0.5 %": 0,
}


@pytest.mark.parametrize("text", WORDS)
def test_words_are_counted(text: str) -> None:
    assert count_words(text) == WORDS[text]


def test_the_text_after_a_fence_or_a_heading_counts() -> None:
    assert count_words("# One\n\ntwo\n\n```\nno\n```\n\nthree\n\n```\nno\n```\n\nfour") == 4


def described(caption: str) -> NotebookNode:
    cell = new_code_cell("draw()")
    cell.metadata["mystnb"] = {"figure": {"caption": caption, "name": "fig-x"}}
    return cell


HIDING_PLACES: dict[str, Callable[[], NotebookNode]] = {
    "a caption": lambda: described("three more words"),
    "a comment": lambda: new_code_cell("x = 1  # three more words"),
    "a folded comment": lambda: new_code_cell(
        "# @title three\nx = 1  # more words", metadata={"tags": ["fold"]}
    ),
    "a title line": lambda: new_code_cell(
        "# @title three more: words\nx = 1", metadata={"tags": ["fold"]}
    ),
    "a comment among the imports": lambda: new_code_cell(
        "# @title Imports: math, torch, nn, attention,\n#   plots\nimport math  # three more words",
        metadata={"tags": ["set-up"]},
    ),
    "a guess": lambda: new_code_cell("x = 1  # three more words", metadata={"tags": ["predict"]}),
}


@pytest.mark.parametrize("place", HIDING_PLACES)
def test_words_cannot_be_hidden(place: str) -> None:
    assert rule(page(prose(5), HIDING_PLACES[place]()), "x").words == 8


@pytest.mark.parametrize(
    "cell",
    [
        new_code_cell("# @title Solution\nx = 1  # more", metadata={"tags": ["solution"]}),
        new_code_cell("# not on the page", metadata={"tags": ["remove-cell"]}),
        new_code_cell("x = 1  # fmt: skip"),
        new_code_cell('x = "# no comment"'),
        new_code_cell("# @title Imports: math, torch\nimport math", metadata={"tags": ["set-up"]}),
        new_markdown_cell(", 40 for the exercises"),
    ],
)
def test_what_no_author_wrote_for_readers_is_no_word(cell: NotebookNode) -> None:
    assert rule(page(prose(5), cell), "x").words == 5


def test_a_cell_that_python_cannot_read_is_measured() -> None:
    assert rule(page(new_code_cell("# two words\nx = (1")), "x").words == 2


# --- code and outputs -------------------------------------------------------------------------


def test_lines_are_counted_by_their_tag() -> None:
    cells = [
        code(9, "remove-cell"), code(2, "set-up"), code(3), code(7, "predict"),
        code(4, "fold", "hide-input"), code(5, "solution", "hide-cell"), code(1, "hide-input"),
    ]  # fmt: skip
    measured = rule(page(*cells), "x")
    assert (measured.visible, measured.folded) == (3 + 7 + 1, 4)
    assert (measured.set_up, measured.solutions) == (2, 5)
    assert (measured.longest, measured.longest_cell) == (7, 4)


def test_folding_does_not_make_a_page_shorter() -> None:
    assert rule(page(code(10), code(11, "fold")), "x").excess == 1
    assert rule(page(code(10), code(10, "fold")), "x").excess == 0
    assert rule(page(code(10), code(9, "set-up"), code(9, "solution")), "x").excess == 0


def figure(text: str) -> NotebookNode:
    data = {"image/svg+xml": "<svg/>", "text/plain": text}
    return new_code_cell("draw()", outputs=[new_output("display_data", data=data)])


@pytest.mark.parametrize(
    ("cells", "share"),
    [
        ([code(1, printed="equal: True\n"), code(1, printed="0.25\n")], 0.5),
        ([code(1, printed="equal: True\nloss 0.25\n"), code(1, printed="0.25\n")], 0.0),
        ([code(1, printed="a True\nb False.\nloss 1\n"), code(1)], 1.0),
        ([code(1, printed="x\n"), code(1, "solution", printed="True\n")], 0.0),
        ([code(1, printed="x\n"), figure("Whether it is True")], 0.0),
        ([code(1, "fold", printed="True\n"), code(1, printed="2\n"), code(1, printed="3")], 0.3333),
        ([code(1, printed="Truely\n")], 0.0),
        ([code(3)], 0.0),
    ],
)
def test_verdicts_are_counted(cells: list[NotebookNode], share: float) -> None:
    assert rule(page(*cells), "x").verdicts == share


@pytest.mark.parametrize(
    "cell",
    [
        new_markdown_cell("Source A is wrong."),
        new_code_cell("x = 1  # C's comment"),
        code(1, "fold", printed="B says so\n"),
        described("What the document shows"),
    ],
)
def test_mentions_are_found_wherever_they_are(cell: NotebookNode) -> None:
    assert rule(page(cell), "x").mentions == 1
