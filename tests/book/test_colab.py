"""A chapter that is opened alone, as Colab does it, fetches all that it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from omissions import fail_on
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "book").glob("*.ipynb"))
LOOK = """
from pathlib import Path
import transformer_book.datasets, transformer_lib
print(len(transformer_book.datasets.numbers().train) > 1000)
print(sorted(path.name for path in Path("results").iterdir() if path.is_dir()))
print(transformer_lib.__file__)
"""


TEMPLATE = ROOT / "tools" / "notebooks" / "template.ipynb"


def setup_cell(chapter: Path) -> str:
    cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
    return "".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"])


def test_all_chapters_begin_with_the_same_cell() -> None:
    remedy = "copy its first code cell from tools/notebooks/template.ipynb"
    fail_on(
        f"book/{chapter.name} starts on Colab in another way: {remedy}"
        for chapter in CHAPTERS
        if setup_cell(chapter) != setup_cell(TEMPLATE)
    )


def test_the_cell_installs_what_the_library_needs() -> None:
    (named,) = re.findall(r'^NEEDS = "(.+)"$', setup_cell(CHAPTERS[0]), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["plots"]
    wanted = " ".join(Requirement(line).name for line in needed)
    where = "the first code cell of all pages and of tools/notebooks/template.ipynb"
    assert named == wanted, f'{where}: write NEEDS = "{wanted}", as pyproject.toml has it'


def test_the_first_cell_fetches_library_data_and_results(tmp_path: Path) -> None:
    """Without `site`, an installed transformer_lib is not found; PyTorch and the like are."""
    clone = tmp_path / "origin"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), clone], check=True)
    cell = setup_cell(CHAPTERS[0]).replace('REPOSITORY = ""', f"REPOSITORY = {clone.as_uri()!r}")
    assert clone.as_uri() in cell
    packages = {"PYTHONPATH": sysconfig.get_paths()["purelib"], "PIP_NO_INDEX": "1"}
    elsewhere = tmp_path / "content"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-S", "-c", cell + LOOK],
        cwd=elsewhere,
        env={**os.environ, **packages},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data, results, library = done.stdout.splitlines()[-3:]
    assert data == "True"
    assert "'recall'" in results
    assert Path(library).is_relative_to(elsewhere)
