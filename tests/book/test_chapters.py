"""The table in CONTRIBUTING.md leads from each chapter to its files, and lacks none of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from omissions import differences, fail_on, told

from tools import chapters
from tools.notebooks.model import ROOT, NotebookError
from transformer_book.live import FIGURES

REPAIR = "run `.venv/bin/python -m tools.chapters`"


def written(text: str) -> dict[str, str]:
    """The lines of the table as a document has them, by the number of the chapter."""
    found = re.findall(r"^\| (\d+|lab \d) \|.*$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if re.match(r"\| (\d+|lab \d) \|", line)]
    return dict(zip((number.replace(" ", "") for number in found), lines, strict=True))


def row_problems(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    """Which rows of the table are missing, old or too many."""
    return differences(
        found,
        wanted,
        lacks=lambda row: f"CONTRIBUTING.md, what belongs to a chapter: {REPAIR}, it writes: {row}",
        extra=lambda row: f"CONTRIBUTING.md, what belongs to a chapter: {REPAIR}, it removes {row}",
    )


def names_in(column: int) -> set[str]:
    """All names that stand in a column."""
    cells = [line.split(" |")[column] for line in TABLE.values()]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def modules_of(folder: str) -> set[str]:
    return {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}


TABLE = written((ROOT / chapters.DOCUMENT).read_text(encoding="utf-8"))


# --- the table of the book ----------------------------------------------------------------------


def test_the_table_is_what_the_pages_and_files_say() -> None:
    text = (ROOT / chapters.DOCUMENT).read_text(encoding="utf-8")
    fail_on(row_problems(chapters.table().values(), TABLE.values()))
    assert chapters.with_table(text) == text, f"CONTRIBUTING.md, head of the table: {REPAIR}"


def test_every_chapter_and_lab_has_a_row() -> None:
    assert list(TABLE) == [*map(str, range(22)), *(f"lab{n}" for n in range(1, 6))]


def test_every_name_in_it_leads_to_a_file() -> None:
    named = 0
    for column, head in enumerate(chapters.HEAD):
        for pattern in re.findall(r"`([^`]+\*[^`]*)`", head):
            for name in names_in(column):
                file = pattern.replace("*", name)
                assert [*ROOT.glob(file), *ROOT.glob(f"{file}.py")], f"{file} is not there"
                named += 1
    assert named > 200


@pytest.mark.parametrize(
    ("column", "files"),
    [
        (1, {path.stem for path in (ROOT / "book").glob("[0-9l]*_*.ipynb")}),
        (2, modules_of("transformer_book/exercises")),
        (3, {n.replace("-", "_") for n, each in FIGURES.items() if "pictures" not in each}),
        (4, modules_of("experiments") - {"run_all"}),
    ],
    ids=["pages", "exercises", "live figures", "experiments"],
)
def test_nothing_that_belongs_to_a_chapter_is_missing(column: int, files: set[str]) -> None:
    assert len(files) > 5
    assert names_in(column) == files


def test_every_result_stands_beside_the_experiment_that_made_it() -> None:
    folders = {path.parent.name for path in (ROOT / "book" / "results").glob("*/card.json")}
    assert folders == names_in(4)


def test_a_live_figure_has_the_script_and_the_test_that_its_name_promises() -> None:
    names = names_in(3)
    assert len(names) > 5
    for name in names:
        assert (ROOT / "book" / "_static" / "live" / f"{name}.js").is_file()
        assert (ROOT / "tests" / "book" / f"test_live_{name}.py").is_file()


def test_a_row_that_is_old_is_told() -> None:
    lacks, extra = told(row_problems)
    assert lacks == f"CONTRIBUTING.md, what belongs to a chapter: {REPAIR}, it writes: b"
    assert extra == f"CONTRIBUTING.md, what belongs to a chapter: {REPAIR}, it removes c"


# --- how it is made -----------------------------------------------------------------------------

FILES = {
    "CONTRIBUTING.md": f"Before.\n\n{chapters.BEGIN}\n| 9 | old |\n{chapters.END}\n\nAfter.\n",
    "book/symbols.yml": "transformer_lib.layers.masks:\n  default: 05_a#x\n"
    "transformer_lib.layers.more:\n  part_of: transformer_lib.layers.masks\n",
    "book/results/runs/card.json": "{}",
    "book/results/writer/model.json": "{}",
    "experiments/runs.py": 'CHAPTER = "05_a"\n',
    "transformer_book/exercises/__init__.py": 'EXERCISES = {\n    "masks.new": masks_b.NEW,\n}\n',
    "transformer_book/figures/plots.py": "",
    "transformer_book/laws.py": "",
}


def project(folder: Path, pages: Mapping[str, str]) -> Path:
    """A small project with these pages, each with one cell of code."""
    for name, code in pages.items():
        words = {"cell_type": "markdown", "source": ["# 5 · A\n", "*5 minutes to read.*"]}
        cells = [words, {"cell_type": "code", "source": code.splitlines(keepends=True)}]
        file = folder / "book" / f"{name}.ipynb"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


BARE = "| 5 | `05_a` | | | `runs` | | | `layers/masks`, `layers/more` |"


@pytest.mark.parametrize(
    ("code", "row"),
    [
        ("x = 1", BARE),
        ('check("masks.new", f)', BARE.replace("`05_a` | |", "`05_a` | `masks_b` |")),
        ('f = pick("masks.new", f)', BARE.replace("`05_a` | |", "`05_a` | `masks_b` |")),
        ('live.figure("two-words")', BARE.replace("| | `runs`", "| `two_words` | `runs`")),
        ('table("runs", "x.csv")', BARE),  # its own
        ('results.table("writer")', BARE.replace("`runs` | |", "`runs` | `writer` |")),
        ('load(Path("results", "writer"))', BARE.replace("`runs` | |", "`runs` | `writer` |")),
        ('load("results/writer/x")', BARE.replace("`runs` | |", "`runs` | `writer` |")),
        (
            'for name in ("writer", "reader"):\n    load(Path("results", name))',
            BARE.replace("`runs` | |", "`runs` | `writer` |"),
        ),
        ('print("writer"); table("reader")', BARE),
        (
            "from transformer_book.figures import plots\nfrom transformer_book import laws, live",
            BARE.replace("`runs` | | |", "`runs` | | `figures/plots`, `laws` |"),
        ),
        ("from transformer_book.laws import Law", BARE.replace("s` | | |", "s` | | `laws` |")),
        ("from transformer_book.results import table\nimport torch", BARE),
    ],
)
def test_a_row_says_what_the_page_asks_for(code: str, row: str, tmp_path: Path) -> None:
    assert chapters.table(project(tmp_path, {"05_a": code})) == {"5": row}


def test_a_chapter_has_what_all_its_pages_ask_for_and_a_lab_its_own(tmp_path: Path) -> None:
    pages = {"05_a": "", "05b_b": 'check("masks.new", f)', "lab1_c": 'table("writer")'}
    chapter, lab = chapters.table(project(tmp_path, pages)).values()
    assert chapter.startswith("| 5 | `05_a`, `05b_b` | `masks_b` |")
    assert lab == "| lab 1 | `lab1_c` | | | | `writer` | | |"


def test_the_command_writes_the_table_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project(tmp_path, {"05_a": ""}) / "CONTRIBUTING.md"
    chapters.main(tmp_path)
    text = file.read_text(encoding="utf-8")
    assert written(text) == {"5": BARE}
    assert text.startswith(f"Before.\n\n{chapters.BEGIN}\n\n| chapter |")
    assert text.endswith(f"|\n\n{chapters.END}\n\nAfter.\n")
    chapters.main(tmp_path)
    assert file.read_text(encoding="utf-8") == text
    assert capsys.readouterr().out == 2 * "CONTRIBUTING.md: what belongs to each chapter\n"


@pytest.mark.parametrize("text", ["", chapters.BEGIN, f"{chapters.END}{chapters.BEGIN}"])
def test_a_document_without_a_place_for_it_is_told(text: str, tmp_path: Path) -> None:
    with pytest.raises(NotebookError, match=r"CONTRIBUTING\.md: expected the lines '<!-- The tab"):
        chapters.with_table(text, project(tmp_path, {"05_a": ""}))
