"""What a folded cell looks like on the web page: one line that says it all, and says it once."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest
import specimens as sp
from bs4 import BeautifulSoup, Tag
from docutils import nodes
from folded_page import dressed
from myst_nb.sphinx_ import HideCodeCellNode

from tools.notebooks.model import normalise

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_fold  # noqa: E402

CONFIGURATION = f"""
import sys
sys.path.insert(0, {str(ROOT / "book" / "_ext")!r})
extensions = ["myst_nb", "book_fold"]
html_theme = "basic"
nb_execution_mode = "off"
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> BeautifulSoup:
    """The small page, built by Sphinx."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    notebook = dressed()
    sp.cell(notebook, "solution").source += "\n# @title is Colab's"
    normalise(notebook)
    sp.write(notebook, folder / "index.ipynb")
    command = ["sphinx", "-b", "html", "-W", "-q", str(folder), str(folder / "out")]
    run = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    return BeautifulSoup((folder / "out" / "index.html").read_text("utf-8"), "html.parser")


def cells(page: BeautifulSoup, kind: str) -> list[Tag]:
    return page.select(f"div.cell.tag_{kind}")


def only(tags: list[Tag]) -> Tag:
    (tag,) = tags
    return tag


def source_of(tag: Tag) -> str:
    return only(tag.select(".cell_input pre")).get_text().strip("\n")


def test_examples_of_the_extension_hold() -> None:
    outcome = doctest.testmod(book_fold)
    assert outcome.attempted >= 5
    assert outcome.failed == 0


def test_the_title_is_the_summary_and_does_not_stand_in_the_source(page: BeautifulSoup) -> None:
    cell = only(cells(page, "fold"))
    fold = only(cell.select("details.hide"))
    summary = only(fold.select("summary"))
    assert summary.get_text() == "The words that are counted: words, longest"
    assert [code.get_text() for code in summary.select("code")] == ["words", "longest"]
    assert source_of(fold).startswith('words = ["a", "bc", "abc"]\nlongest = ')
    assert only(cell.select(":scope > .cell_output")).get_text().strip() == "3", "it stays in view"


def test_a_table_stands_above_the_code_that_made_it() -> None:
    fold, answer = HideCodeCellNode(), nodes.container("", nodes.table())
    cell = nodes.container("", fold, answer)
    book_fold._answer_first(cell)
    assert cell.children == [answer, fold]
    assert answer[0]["classes"] == ["plan"]


@pytest.mark.parametrize(
    "picture",
    [
        nodes.image(uri="/a/b.svg"),
        nodes.raw("", '<div class="figure-scroll"><svg class="figure-svg"/></div>', format="html"),
    ],
)
def test_a_picture_stands_above_the_line_that_says_how_it_was_drawn(picture: nodes.Node) -> None:
    fold, shown = HideCodeCellNode(), nodes.container("", nodes.figure("", picture))
    cell = nodes.container("", fold, shown)
    book_fold._answer_first(cell)
    assert cell.children == [shown, fold]
    words = nodes.container("", HideCodeCellNode(), nodes.container("", nodes.paragraph("", "4")))
    before = list(words.children)
    book_fold._answer_first(words)
    assert words.children == before


def test_imports_are_folded(page: BeautifulSoup) -> None:
    cell = only(cells(page, "set-up"))
    assert only(cell.select("details.hide > summary")).get_text() == "Imports: math, random, seed"
    assert source_of(cell).startswith("import math\nimport random")


def test_a_solution_hides_source_and_output(page: BeautifulSoup) -> None:
    first, second = cells(page, "solution")
    fold = only(first.select("details.hide"))
    assert only(fold.select("summary")).get_text() == "Solution"
    assert fold.select("summary code") == []
    assert only(fold.select(".cell_output")).get_text().strip() == "2"
    assert first.select(":scope > .cell_output") == []
    assert source_of(fold).startswith("def solved_count(letter):")
    assert source_of(fold).endswith("# @title is Colab's"), "only the title line is taken out"
    assert only(second.select("summary")).get_text() == "Solution"


def test_a_guess_hides_the_output_and_shows_the_source(page: BeautifulSoup) -> None:
    cell = only(cells(page, "predict"))
    fold = only(cell.select("details.hide"))
    assert fold.select(".cell_input") == []
    assert only(fold.select(".cell_output")).get_text().strip() == "1.41"
    assert only(fold.select("summary > .collapsed")).get_text() == (
        "Write down your guess, then look"
    )
    assert only(fold.select("summary > .expanded")).get_text() == "Hide the output"
    assert source_of(cell) == 'print(math.sqrt(count("b")))'


def test_other_cells_are_in_view_and_colabs_is_not_there(page: BeautifulSoup) -> None:
    shown = [cell for cell in page.select("div.cell") if not cell.select("details")]
    assert [source_of(cell).split("\n")[-1] for cell in shown] == [
        'print(count("a"), longest)',
        "def your_count(letter): ...",
        'print(count("c"), random.Random(seed).random())',
    ]
    assert "REPOSITORY" not in page.get_text()


def test_the_words_are_all_that_a_screen_reader_gets(page: BeautifulSoup) -> None:
    folds = page.select("details.hide")
    assert len(folds) == 5
    assert not any(tag.get("aria-label") for fold in folds for tag in fold.select("summary"))
    assert not any(fold.has_attr("open") for fold in folds)
