"""The reader's file on the web page: a mark in words, and the file so far to download."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
import specimens as sp
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.notebooks.model import normalise
from tools.pdf.article import SCREEN_CLASSES
from transformer_book.your_file import TAG, all_pieces, gather

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_your_file  # noqa: E402

CONFIGURATION = f"""
import sys
sys.path.insert(0, {str(ROOT / "book" / "_ext")!r})
sys.path.insert(0, {str(ROOT)!r})
extensions = ["myst_nb", "book_your_file"]
html_theme = "basic"
nb_execution_mode = "off"
root_doc = "book/03_attention"
"""
FIRST = 'def attention(q):\n    """One."""\n    return q'
SECOND = '# replaces attention: two\ndef attention(q):\n    """Two."""\n    return q + q'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pages that write to the file, and one that does not."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    (folder / "book").mkdir()
    others = "\n\n```{toctree}\n04_scaling\n05_masks\n```"
    for page, source in {"03_attention": FIRST, "04_scaling": "", "05_masks": SECOND}.items():
        words = new_markdown_cell(f"# {page}{others if page == '03_attention' else ''}")
        cells = [words, new_code_cell("print(1)", id="plain")]
        if source:
            cells.append(new_code_cell(source, id="file", metadata={"tags": [TAG]}))
        notebook = new_notebook(cells=cells)
        normalise(notebook)
        sp.write(notebook, folder / "book" / f"{page}.ipynb")
    command = ["sphinx", "-b", "html", "-W", "-q", str(folder), str(folder / "out")]
    run = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    return folder / "out" / "book"


def read(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def test_examples_hold() -> None:
    outcome = doctest.testmod(book_your_file)
    assert outcome.attempted == 2
    assert outcome.failed == 0


@pytest.mark.parametrize(("page", "number"), [("03_attention", "03"), ("05_masks", "05")])
def test_a_cell_of_the_file_says_so_in_words_above_its_code(
    page: str, number: str, site: Path
) -> None:
    (cell,) = read(site / f"{page}.html").select(f"div.cell.tag_{TAG}")
    line, code = cell.find_all(recursive=False)[:2]
    assert line.get_text() == "your file the file so far"
    assert "cell_input" in code["class"]
    assert line.a["href"] == f"files/transformer_{number}.py"
    assert line.a.has_attr("download")


def test_other_cells_and_pages_have_no_mark(site: Path) -> None:
    assert "your file" not in read(site / "04_scaling.html").get_text()
    assert len(read(site / "05_masks.html").select("p.your-file")) == 1
    assert not (site / "files" / "transformer_04.py").exists()


def test_the_download_is_the_file_as_far_as_the_page_has_come(site: Path) -> None:
    first = (site / "files" / "transformer_03.py").read_text(encoding="utf-8")
    second = (site / "files" / "transformer_05.py").read_text(encoding="utf-8")
    assert "return q\n" in first
    assert "return q + q\n" in second
    pieces = all_pieces(site.parents[1] / "book")
    assert (first, second) == (gather(pieces[:1]), gather(pieces))


def test_the_front_page_offers_the_whole_file() -> None:
    text = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
    assert "[transformer.py](transformer.py)" in text
    assert (ROOT / "book" / "transformer.py").is_file()


def test_paper_has_the_mark_and_not_the_link() -> None:
    assert "file-so-far" in SCREEN_CLASSES
    assert "your-file-mark" not in SCREEN_CLASSES
    css = (ROOT / "book" / "_static" / "book.css").read_text(encoding="utf-8")
    hidden = re.search(r"@media print \{.*?\.file-so-far,.*?display: none", css, re.DOTALL)
    assert hidden is not None
