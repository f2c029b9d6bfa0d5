"""``python -m tools.notebooks owes PAGE``: nothing that leads to a page is overlooked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.notebooks.__main__ import main
from tools.notebooks.model import NotebookError
from tools.notebooks.owes import owed, table


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A book of two pages, of which the second leads to the first in every way there is."""
    book = tmp_path / "book"
    (tmp_path / "transformer_lib").mkdir()
    book.mkdir()
    linked = {"cell_type": "markdown", "source": ["[a](01_one.ipynb#far) [b](01_one.ipynb)\n"]}
    printed = {"cell_type": "code", "source": ["1"], "outputs": [{"text": "01_one#printed"}]}
    files = {
        "book/01_one.ipynb": json.dumps({"cells": [linked]}),
        "book/02_two.ipynb": json.dumps({"cells": [linked, printed]}),
        "book/01_one_more.ipynb": json.dumps({"cells": []}),
        "book/index.md": "[c](place:01_one#far), [d](place:01_one_more#near)",
        "book/questions.md": "# Q\n\n## Why?\n\n[so](place:01_one#near)\n\n## When?\n\nThen.\n",
        "book/sources.yml": """
"01":
  A-1a: {item: an idea, at: 01_one#near}
  X-A1: {says: a claim, at: 01_one#far}
  B-1a: {item: another, at: 02_two#near}
""",
        "book/symbols.yml": """
lib.one: {default: 01_one#near, special: 01_one#far}
lib.two: {part_of: lib.one}
""",
        "transformer_lib/part.py": '"""See :place:`a <01_one#far>`, :place:`b <01_one#far>`."""',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_everything_that_leads_to_a_page_is_found_once(project: Path) -> None:
    assert owed("01_one", project) == {
        "": ["link      book/02_two.ipynb"],
        "far": [
            "error     X-A1     a claim",
            "symbol    lib.one.special",
            "link      book/02_two.ipynb",
            "link      book/index.md",
            "link      transformer_lib/part.py (2)",
        ],
        "near": ["item      A-1a     an idea", "symbol    lib.one", "question  Why?"],
    }


def test_the_table_counts_and_goes_heading_by_heading(project: Path) -> None:
    lines = table("01_one", owed("01_one", project)).splitlines()
    assert lines[0] == "01_one: 1 errors, 1 items, 4 links, 1 questions, 2 symbols"
    assert [line for line in lines if line.startswith(("#", "the"))] == [
        "the page itself",
        "#far",
        "#near",
    ]
    assert table("01_one_more", owed("01_one_more", project)).startswith("01_one_more: 1 links")


def test_a_page_that_is_not_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotebookError, match="book/03_three: no such page; expected a name such"):
        owed("03_three", project)
    assert main(["owes", "no_such_page"]) == 2
    assert "no such page" in capsys.readouterr().err


def test_of_the_real_book(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["owes", "05_masks"]) == 0
    said = capsys.readouterr().out
    for line in (
        "#an-algebra-of-masks",
        "symbol    transformer_lib.layers.masks",
        "link      _toc.yml",
    ):
        assert line in said
