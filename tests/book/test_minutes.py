"""The minutes under a title are those of the formula: what it counts, and who writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from small_book import code, page, prose

from tools.notebooks import __main__ as command_line
from tools.notebooks import minutes
from tools.notebooks.execute import execute
from tools.notebooks.guard import inspect
from tools.notebooks.minutes import Load, check_minutes, load_of, minutes_of, set_minutes
from tools.notebooks.model import BOOK, SVG, find_notebooks, load, save
from tools.notebooks.parts import ideas_of
from tools.notebooks.rulers import page_kind

TOP = "# 5 · Masks\n\n*{}, 10 seconds to run. You need: [chapter 3](03_attention.ipynb).*"


def figure(source: str = "draw()", caption: str = "") -> NotebookNode:
    data = {SVG: "<svg/>", "text/plain": "What it shows,\nin two lines"}
    cell = new_code_cell(source, outputs=[new_output("display_data", data=data)])
    cell.metadata = {"tags": ["fold"], "mystnb": {"figure": {"caption": caption}}}
    return cell


# --- the formula ------------------------------------------------------------------------------

COUNTED: dict[str, tuple[list[NotebookNode], Load]] = {
    "words": ([prose(7)], Load(7, 0, 0, 0, 0)),
    "a heading": ([new_markdown_cell("## Two words\n\nand three more")], Load(5, 0, 0, 0, 0)),
    "no formulas": ([new_markdown_cell("one $x + y$ two")], Load(2, 0, 0, 0, 0)),
    "visible code": ([code(3), code(4, "predict")], Load(0, 7, 0, 0, 0)),
    "no folded code": (
        [code(3, "fold"), code(3, "set-up"), code(9, "remove-cell")],
        Load(*[0] * 5),
    ),
    "outputs": ([code(1, printed="a\n\nb\n"), code(2, "fold", printed="c\n")], Load(0, 1, 3, 0, 0)),
    "figures": ([figure(), figure(caption="two words")], Load(2, 0, 0, 2, 0)),
    "live figures": ([figure('live.figure("heads")')], Load(0, 0, 0, 0, 1)),
    "no solutions": ([code(3, "solution", printed="x\n")], Load(*[0] * 5)),
    "no exercises": (
        [new_markdown_cell("## Exercises\n\nmany words"), code(3, printed="x\n"), figure()],
        Load(*[0] * 5),
    ),
    "the end": (
        [new_markdown_cell("## Exercises\n\nno\n\n## In one minute\n\n- yes")],
        Load(4, 0, 0, 0, 0),
    ),
    "parts of a lab": ([new_code_cell('f = pick("lab1.scores", f)')], Load(0, 1, 0, 0, 0, 1)),
}


@pytest.mark.parametrize("what", COUNTED)
def test_what_is_counted(what: str) -> None:
    cells, counted = COUNTED[what]
    assert load_of(page(*cells)) == counted


def test_each_thing_takes_its_time() -> None:
    assert Load(100, 0, 0, 0, 0).minutes == 1
    assert Load(0, 5, 0, 0, 0).minutes == 1
    assert Load(0, 0, 10, 0, 0).minutes == 1
    assert Load(0, 0, 0, 1, 0).minutes == 1
    assert Load(0, 0, 0, 0, 1).minutes == 5
    assert Load(0, 0, 0, 0, 0, 1).minutes == 10
    assert Load(100, 5, 10, 1, 1, 1).minutes == 19


def test_the_readers_who_took_the_time_are_met() -> None:
    """60 to 75 minutes, they said; these are the pages as they were then, for the docstring too."""
    first, second = Load(2046, 148, 60, 4, 1), Load(2064, 130, 60, 4, 1)
    assert [round(part.minutes) for part in (first, second)] == [65, 62]
    said = " ".join(str(minutes.__doc__).split())
    assert "chapter 1 (2,046 words, 148 lines of code, 60 of output, 4 figures, 1 live)" in said
    assert "comes to 65 minutes and chapter 2 (2,064, 130, 60, 4, 1) to 60" in said


@pytest.mark.parametrize(
    ("words", "exercises", "said"),
    [(10, [], (5, 0)), (1740, [10], (15, 10)), (1760, [3], (20, 5)), (5000, [5, 15, 60], (50, 80))],
)
def test_minutes_are_rounded_to_five(
    words: int, exercises: list[int], said: tuple[int, int]
) -> None:
    graded = [f"### Exercise {n} · X\n\n*Easy · {m} minutes.* Do." for n, m in enumerate(exercises)]
    tasks = new_markdown_cell("\n\n".join(["## Exercises", *graded]))
    found = minutes_of(page(prose(words), tasks))
    assert (found.reading, found.exercises) == said


def test_an_hour_is_sixty_minutes() -> None:
    task = new_markdown_cell("## Exercises\n\n### Exercise 1 · X\n\n*Open · an hour.* Do.")
    assert minutes_of(page(task)).exercises == 60


# --- the line ---------------------------------------------------------------------------------

EXERCISE = "## Exercises\n\n### Exercise 1 · X\n\n*Easy · 20 minutes.* Do."
LINES = {
    "30 minutes to read": "10 minutes to read, 20 for the exercises",
    "10 minutes to read, 5 for the exercises": "10 minutes to read, 20 for the exercises",
    "10 minutes to read, 20 for the exercises": "10 minutes to read, 20 for the exercises",
    "90 minutes to work through": "10 minutes to work through, 20 for the exercises",
}


@pytest.mark.parametrize("said", LINES)
def test_the_line_is_written_and_checked(said: str) -> None:
    notebook = page(new_markdown_cell(TOP.format(said)), prose(900), new_markdown_cell(EXERCISE))
    is_wrong = said != LINES[said]
    found = [trouble for _, trouble, _ in check_minutes(notebook)]
    assert found == [f"says {said!r}; the formula gives {LINES[said]!r}"] * is_wrong
    assert set_minutes(notebook) == is_wrong
    assert notebook.cells[0].source == TOP.format(LINES[said])
    assert list(check_minutes(notebook)) == []
    assert not set_minutes(notebook)


def test_a_page_without_exercises_says_nothing_of_them() -> None:
    notebook = page(new_markdown_cell(TOP.format("30 minutes to read, 5 for the exercises")))
    assert set_minutes(notebook)
    assert notebook.cells[0].source == TOP.format("5 minutes to read")


@pytest.mark.parametrize(
    "notebook",
    [
        page(new_markdown_cell(TOP.format("30 minutes to read")), kind="apart"),
        page(new_markdown_cell("# Title"), new_markdown_cell(TOP.format("30 minutes to read"))),
        page(),
    ],
)
def test_other_pages_are_left_alone(notebook: NotebookNode) -> None:
    before = [cell.source for cell in notebook.cells]
    assert list(check_minutes(notebook)) == []
    assert not set_minutes(notebook)
    assert [cell.source for cell in notebook.cells] == before


def test_the_command_writes_what_check_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "05_page.ipynb"
    save(page(new_markdown_cell(TOP.format("30 minutes to read")), prose(900)), path)
    (said,) = [str(finding) for finding in inspect(path) if "formula" in finding.trouble]
    assert "the formula gives '10 minutes to read'; run `.venv/bin/python -m tools" in said
    assert command_line.main(["minutes", str(path)]) == 0
    assert "05_page.ipynb: other minutes\nThe paths add them up" in capsys.readouterr().out
    assert [finding for finding in inspect(path) if "formula" in finding.trouble] == []
    assert command_line.main(["minutes", str(path)]) == 0
    assert capsys.readouterr().out == ""


def test_a_run_writes_them_too(tmp_path: Path) -> None:
    path = tmp_path / "05_page.ipynb"
    top = new_markdown_cell(TOP.format("5 minutes to read"))
    save(page(top, new_code_cell("for n in range(100):\n    print(n)")), path)
    execute(path)
    assert load(path).cells[0].source == TOP.format("10 minutes to read")


def test_every_page_that_is_read_says_its_minutes() -> None:
    for path in find_notebooks([BOOK]):
        notebook = load(path)
        if page_kind(notebook) != "apart":
            assert minutes._LINE.search(notebook.cells[0].source), path.name
            assert list(check_minutes(notebook)) == [], path.name


# --- ideas ------------------------------------------------------------------------------------


def test_ideas_are_the_headings_that_are_no_frame() -> None:
    text = "# 5 · Masks\n\n## By hand\n\n### A part\n\n## Build it: a block\n\n```text\n## No\n```"
    frame = "\n\n".join(f"## {name}" for name in ("Build it", "Check it", "Check it: four ways"))
    end = "## What breaks\n\n## In real models\n\n## Exercises\n\n## In one minute"
    known = "## What is really known\n\n## What is really known about it\n\n## Smallest numbers"
    notebook = page(*map(new_markdown_cell, (text, frame, end, known, "## What is known")))
    assert ideas_of(notebook) == ["By hand", "Build it: a block", "What is known"]
