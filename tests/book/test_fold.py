"""Folding, proven: each check finds the cell that is wrong, and what is derived is derived once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import specimens as sp
from folded_page import CELLS, dressed, undressed
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.notebooks import fold, guard
from tools.notebooks.__main__ import main
from tools.notebooks.fold import Change, dress, title_of
from tools.notebooks.model import MAX_WIDTH, load


@pytest.fixture
def page() -> NotebookNode:
    return dressed()


def troubles(notebook: NotebookNode) -> list[tuple[str, int | None, str]]:
    """What the checks say: which of them, of which cell, what is wrong and how to correct it."""
    return [
        (check.__name__, number, f"{trouble}; {remedy}")
        for check in fold.CHECKS
        for number, trouble, remedy in check(notebook)
    ]


# --- every check, with pages that it refuses --------------------------------------------------


def tagged(*names: str) -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        victim.metadata["tags"] = list(names)

    return damage


def source(text: str) -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        victim.source = text

    return damage


def without_title(victim: NotebookNode) -> None:
    lines = victim.source.split("\n")
    assert lines[0].startswith("# @title ")
    victim.source = "\n".join(lines[1:])


def title(text: str) -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        without_title(victim)
        victim.source = f"# @title {text}\n{victim.source}"

    return damage


def first(text: str) -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        victim.source = f"{text}\n{victim.source}"

    return damage


def more(text: str) -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        victim.source += f"\n{text}"

    return damage


def drop(key: str) -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        del victim.metadata[key]

    return damage


def set_metadata(**values: object) -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        victim.metadata.update(values)

    return damage


def prints(victim: NotebookNode) -> None:
    victim.outputs = [new_output("stream", name="stdout", text="x")]


LONG = "a" + 60 * "b"
DRESS = "run `python -m tools.notebooks dress` on it"
OTHER_TITLE = "has the title line"

# check -> cell, damage, words of the trouble
REFUSED: dict[str, list[tuple[str, sp.Damage, str]]] = {
    "check_kinds": [
        ("guess", sp.tag("fold"), "has the tags `predict`, `fold`; keep one of them"),
        ("count", tagged("hide-input"), "is tagged `hide-input`, which only tools write; tag it"),
        ("count", tagged("hide-output"), "is tagged `hide-output`, which only tools write"),
        ("solution", tagged("hide-cell"), "is tagged `hide-cell`, which only tools write"),
        ("title", tagged("fold"), "is tagged `fold` but holds no code; remove the tag"),
        ("title", tagged("your-file"), "is tagged `your-file` but holds no code; remove the tag"),
        ("words", sp.tag("your-file"), "belongs to the reader's file, but is tagged `fold`"),
    ],
    "check_titles": [
        ("colab", without_title, "is tagged `remove-cell` but has no title line; write `# @title"),
        ("imports", without_title, "is tagged `set-up` but has no title line"),
        ("words", without_title, "is tagged `fold` but has no title line"),
        ("solution", without_title, "is tagged `solution` but has no title line"),
        ("solution", sp.change_source("# @title ", "# "), "but has no title line"),
        ("count", first("# @title X"), "does not hide"),
        ("guess", first("# @title X"), "does not hide"),
        ("words", title("The words."), OTHER_TITLE),
        ("words", title("The words: words and longest"), OTHER_TITLE),
        ("words", title("The words: words,longest"), OTHER_TITLE),
        ("words", title(f"{LONG}: words, longest"), "at most 60 characters before a colon"),
        ("words", title("All: words, longest, shortest"), "tells `shortest` but does not define"),
        ("solution", title("Answer"), "write `# @title Solution`, and no more"),
        ("solution", title("Solution: a loop"), OTHER_TITLE),
        ("solution", title("Solutions"), OTHER_TITLE),
        ("colab", title("Set-up for Colab."), OTHER_TITLE),
    ],
    "check_dress": [
        ("imports", title("Imports: math"), "does not list the names that visible code uses; run"),
        ("imports", title("Imports: math, random, torch, seed"), "does not list the names"),
        ("words", drop("jupyter"), f"its metadata are not what its tag and title ask for; {DRESS}"),
        ("words", drop("cellView"), "its metadata are not"),
        ("words", drop("mystnb"), "its metadata are not"),
        ("words", title("Words: words, longest"), "its metadata are not"),
        ("words", tagged("fold"), "its metadata are not"),
        ("solution", set_metadata(jupyter={"source_hidden": True}), "its metadata are not"),
        ("solution", tagged("solution", "hide-input"), "its metadata are not"),
        ("guess", drop("jupyter"), "its metadata are not"),
        ("guess", set_metadata(cellView="form"), "its metadata are not"),
        ("count", set_metadata(jupyter={"source_hidden": True}), "its metadata are not"),
        ("colab", drop("cellView"), "its metadata are not"),
    ],
    "check_set_up": [
        ("end", tagged("set-up"), "is tagged `set-up` but comes after other code; move it up"),
        ("imports", prints, "is tagged `set-up` but has an output"),
        ("imports", more("rows = 3"), "does more than set up: `rows = 3`; move that"),
        ("imports", more("seed, rows = 0, 3"), "does more than set up: `seed, rows = (0, 3)`"),
        ("imports", more("def f():\n    pass"), "does more than set up: `def f():`"),
        ("imports", more("print(1)"), "does more than set up: `print(1)`"),
        ("imports", more("torch.set_default_dtype(torch.float64)"), "does more than set up"),
        ("imports", more("if seed:\n    seed = 1"), "does more than set up: `if seed:`"),
    ],
    "check_sources": [
        ("end", source("%time count(1)"), "is not plain Python (line 1: invalid syntax)"),
        ("end", more("print(os.getpid())"), "uses `os`, which only Colab's cell defines"),
    ],
    "check_told_names": [
        ("words", title("The words: words"), "code uses its `longest` (cell count); name them"),
        ("words", title("The words: longest"), "visible code uses its `words` (cell count)"),
        ("words", title("The words"), "its `longest` (cell count), `words` (cell count)"),
    ],
    "check_solutions": [
        ("end", more('solved_count("a")'), "uses `solved_count`, which only a solution defines (c"),
        ("end", more("f = lambda: solved_count(1)"), "uses `solved_count`, which only a solution"),
        ("guess", more("f = lambda: solved_count(1)"), "only a solution defines (cell solution)"),
        ("second", more('solved_count("a")'), "uses `solved_count`, which only a solution defines"),
        ("solution", more("seed = 1"), "gives `seed` another value, which cell end uses; choose"),
        ("solution", more("words = []"), "gives `words` another value, which cell count uses"),
        ("solution", more("seed += 1"), "gives `seed` another value, which cell end uses"),
        ("solution", more("def your_count(x): ..."), "gives `your_count` another value, which c"),
        ("solution", more("for seed in words: ..."), "gives `seed` another value"),
    ],
}  # fmt: skip


def test_every_check_is_proven_and_part_of_the_guard() -> None:
    assert [check.__name__ for check in fold.CHECKS] == list(REFUSED)
    assert set(fold.CHECKS) <= set(guard.NOTEBOOK_CHECKS)


def test_a_good_page_passes(page: NotebookNode) -> None:
    assert troubles(page) == []


@pytest.mark.parametrize(
    ("check", "number"), [(name, n) for name, cases in REFUSED.items() for n in range(len(cases))]
)
def test_each_check_refuses(check: str, number: int, page: NotebookNode) -> None:
    name, damage, words = REFUSED[check][number]
    damage(sp.cell(page, name))
    place = (check, sp.number(page, name))
    found = [told for *where, told in troubles(page) if tuple(where) == place]
    assert any(words in told for told in found), f"{words!r} not in {troubles(page)}"


def on(name: str, *damages: sp.Damage) -> sp.Damage:
    """Change one cell of a page."""
    return lambda notebook: sp.both(*damages)(sp.cell(notebook, name))


def define_early(notebook: NotebookNode) -> None:
    """Put a function above the cell with the names that it calls."""
    notebook.cells.insert(3, new_code_cell("def later():\n    return words"))


ACCEPTED: dict[str, sp.Damage] = {
    "a title tells more than is used": on("words", title("The words: words, longest, spare")),
    "a folded cell uses what is not told": on(
        "end", tagged("fold"), source("# @title How it ends\nprint(spare, words)")
    ),
    "a solution uses its own names": on("solution", more("rest = 1\nprint(rest + 1)")),
    "two solutions choose one name": sp.both(
        on("solution", more("rest = 1\nprint(rest)")), on("second", more("rest = 2\nprint(rest)"))
    ),
    "what a solution binds is bound anew below it": sp.both(
        on("solution", more("seed = 1")), on("end", first("seed = 2"))
    ),
    "an exception is meant": on("end", tagged("raises-exception")),
    "a device, a seed and options are set": on(
        "imports", more('device = "cpu"\nrng = random.Random(0)\nrandom.seed(1)')
    ),
    "a function is defined before what it calls": define_early,
    "visible code defines what a folded cell does, too": sp.both(
        on("words", title("The words: words")), on("count", first("longest = 3"))
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_right_is_not_refused(case: str, page: NotebookNode) -> None:
    ACCEPTED[case](page)
    dress(page)
    assert troubles(page) == []


# --- what is derived --------------------------------------------------------------------------

FORM = {"cellView": "form"}
SOURCE_HIDDEN = {"jupyter": {"source_hidden": True}}


def prompts(show: str, hide: str) -> dict[str, Any]:
    return {"mystnb": {"code_prompt_show": show, "code_prompt_hide": hide}}


TITLE = "The words that are counted: words, longest"
SOLUTION = "Solution"
IMPORTS = "Imports: math, random, seed"
DERIVED: dict[str, dict[str, Any]] = {
    "title": {},
    "colab": {"tags": ["remove-cell"], **SOURCE_HIDDEN, **FORM},
    "imports": {
        "tags": ["set-up", "hide-input"], **SOURCE_HIDDEN, **FORM, **prompts(IMPORTS, IMPORTS),
    },
    "words": {"tags": ["fold", "hide-input"], **SOURCE_HIDDEN, **FORM, **prompts(TITLE, TITLE)},
    "count": {},
    "guess": {
        "tags": ["predict", "hide-output"],
        "jupyter": {"outputs_hidden": True},
        **prompts("Write down your guess, then look", "Hide the output"),
    },
    "yours": {},
    "solution": {
        "tags": ["solution", "hide-cell"],
        "jupyter": {"source_hidden": True, "outputs_hidden": True},
        **FORM,
        **prompts(SOLUTION, SOLUTION),
    },
    "end": {},
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
def test_each_place_gets_what_it_reads(name: str, page: NotebookNode) -> None:
    assert sp.cell(page, name).metadata == DERIVED[name]


def test_only_the_title_of_the_imports_is_written(page: NotebookNode) -> None:
    assert sp.cell(page, "imports").source == f"# @title {IMPORTS}\n{CELLS['imports'][1]}"
    before = undressed()
    for old, new in zip(before.cells, page.cells, strict=True):
        assert old.get("outputs") == new.get("outputs")
        assert new.id == "imports" or old.source == new.source


def test_dressing_twice_changes_nothing(page: NotebookNode) -> None:
    once = copy.deepcopy(page)
    assert dress(page) == []
    assert page == once


def test_dressing_says_which_cells_it_changed_and_which_must_run_again() -> None:
    changes = dress(undressed())
    assert [change.number for change in changes] == [2, 3, 4, 6, 8, 9]
    assert [change for change in changes if change.new_source] == [Change(3, new_source=True)]


@pytest.mark.parametrize("name", ["imports", "words", "guess", "solution", "colab"])
def test_a_cell_that_is_unfolded_again_keeps_nothing(name: str, page: NotebookNode) -> None:
    cell = sp.cell(page, name)
    cell.metadata["tags"] = ["raises-exception"]
    dress(page)
    assert cell.metadata == {"tags": ["raises-exception"]}


def test_what_is_not_about_folding_stays(page: NotebookNode) -> None:
    cell = sp.cell(page, "words")
    cell.metadata["tags"] = ["allow-stderr", "hide-cell", "fold"]
    cell.metadata["mystnb"]["figure"] = {"name": "fig-words"}
    dress(page)
    assert cell.metadata["tags"] == ["allow-stderr", "fold", "hide-input"]
    assert cell.metadata["mystnb"]["figure"] == {"name": "fig-words"}
    assert cell.metadata["mystnb"]["code_prompt_show"] == TITLE


def test_a_cell_with_an_old_tag_stays_hidden() -> None:
    cell = new_code_cell("x = 1", metadata={"tags": ["hide-input"]})
    assert dress(new_notebook(cells=[cell])) == []
    assert cell.metadata == {"tags": ["hide-input"]}


def imports_of(*used: str) -> str:
    """The set-up cell of a page that imports 26 modules and uses some of them in view."""
    names = [f"module_{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    imports = new_code_cell(
        "\n".join(f"import {name}" for name in names), metadata={"tags": ["set-up"]}
    )
    hidden = new_code_cell("# @title Hidden\nmodule_b", metadata={"tags": ["fold"]})
    notebook = new_notebook(cells=[imports, hidden, new_code_cell("\n".join(used))])
    dress(notebook)
    assert dress(notebook) == []
    return str(imports.source)


def test_a_title_tells_what_visible_code_uses_in_the_order_of_the_imports() -> None:
    assert imports_of().split("\n")[:2] == ["# @title Imports", "import module_a"]
    first = imports_of("module_z", "module_c()", "f = lambda module_d: module_e").split("\n")[0]
    assert first == "# @title Imports: module_c, module_e, module_z"


def test_a_long_title_goes_on_below() -> None:
    used = [f"module_{letter}" for letter in "acdefghijklmnopqrstuvwxyz"]
    lines = imports_of(*used).split("\n")
    assert lines[0].startswith("# @title Imports: module_a, module_c,")
    head = [line for line in lines if line.startswith("#")]
    assert len(head) > 3
    assert all(line.startswith("#   module_") for line in head[1:])
    assert max(map(len, head)) <= MAX_WIDTH
    assert title_of("\n".join(lines)) == f"Imports: {', '.join(used)}"


# --- the command ------------------------------------------------------------------------------


def test_the_command_dresses_pages_and_says_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "01_page.ipynb"
    sp.write(undressed(), path)
    assert main(["dress", str(path)]) == 0
    said = capsys.readouterr().out
    assert "01_page.ipynb: 6 cells dressed" in said
    assert (
        "01_page.ipynb: cell imports (under “A page”) has a new title line; run the notebook"
        in said
    )
    assert load(path) == dressed()
    before = path.read_bytes()
    assert main(["dress", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert path.read_bytes() == before


def test_the_command_check_sees_what_is_not_dressed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "01_page.ipynb"
    sp.write(undressed(), path)
    assert main(["check", str(tmp_path)]) == 1
    command = f"run `.venv/bin/python -m tools.notebooks dress {path}`"
    trouble = "its metadata are not what its tag and title ask for"
    assert f"cell words (under “A page”): {trouble}; {command}" in capsys.readouterr().err
