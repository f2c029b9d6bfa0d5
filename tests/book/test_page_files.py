"""``book/files.yml``: every chapter and lab leads to the files that hold its subject."""

from __future__ import annotations

import ast
import doctest
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omissions import differences, fail_on, told

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_files  # noqa: E402
import book_symbols  # noqa: E402
from book_order import about  # noqa: E402

PAGES = {path.stem: about(path).kind for path in (ROOT / "book").glob("*.ipynb")}
APART = {name for name, kind in PAGES.items() if kind == "apart"}  # looked up; may have files


def page_problems(wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    """Which pages have no line, and which lines no page."""
    return differences(
        found,
        wanted,
        lacks=lambda page: f'book/files.yml has no line for {page}: add "{page}: [PATH]"',
        extra=lambda page: f"book/files.yml has a line for {page}, which is no page: take it out",
    )


def test_every_chapter_and_lab_has_a_file() -> None:
    assert len(PAGES) > 50
    fail_on(page_problems(set(PAGES) - APART, set(book_files.files()) - APART))
    assert all(book_files.files().values())


def test_a_page_without_a_file_is_told_what_to_write() -> None:
    lacks, extra = told(page_problems)
    assert lacks == 'book/files.yml has no line for b: add "b: [PATH]"'
    assert extra == "book/files.yml has a line for c, which is no page: take it out"


def public_names(path: Path) -> list[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [name for name in names if not name.startswith("_")]


def words_of(page: str) -> str:
    cells = json.loads((ROOT / "book" / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def speaks_of(page: str, path: str) -> bool:
    """Whether a page names something of a file, or ``symbols.yml`` says that it explains it."""
    places = book_symbols.places().get(book_files.module_of(path), {}).values()
    names = "|".join(public_names(ROOT / path))
    explains = any(place.partition("#")[0] == page for place in places)
    return explains or re.search(rf"\b(?:{names})\b", words_of(page)) is not None


def test_a_page_speaks_of_its_files() -> None:
    documented = "\n".join(path.read_text("utf-8") for path in (ROOT / "book/api").glob("*.md"))
    for page, paths in book_files.files().items():
        for path in paths:
            assert (ROOT / path).is_file(), f"book/files.yml, {page}: there is no file {path}"
            section = f"automodule:: {book_files.module_of(path)}\n"
            assert section in documented, f"book/files.yml, {page}: no API page has {path}"
        said = f"book/files.yml: {page} names nothing that {', '.join(paths)} defines"
        assert any(speaks_of(page, path) for path in paths), said


def test_a_page_that_does_not_speak_of_a_file_is_noticed() -> None:
    assert speaks_of("05_masks", "transformer_lib/layers/masks.py")
    assert speaks_of("19c_hardware", "transformer_lib/training/distributed.py")  # by symbols.yml
    assert not speaks_of("05_masks", "transformer_lib/text/chat/sandbox.py")


def line_on(page: str, monkeypatch: pytest.MonkeyPatch, repository: str) -> str:
    """What stands below the title of a page whose file is ``lib/masks.py``."""
    monkeypatch.setenv("BOOK_REPOSITORY", repository)
    monkeypatch.setattr(book_files, "files", lambda: {"05_masks": ["lib/masks.py"]})
    where = SimpleNamespace(docname="book/api/lib", node_id="module-lib.masks")
    python = SimpleNamespace(modules={"lib.masks": where})
    app = SimpleNamespace(
        srcdir=ROOT,
        env=SimpleNamespace(get_domain=lambda _: python),
        builder=SimpleNamespace(get_relative_uri=lambda _page, _to: "api/lib.html"),
    )
    context: dict[str, Any] = {"body": "<h1>Masks</h1><p>Words.</p>"}
    book_files._add_line(app, page, "", context, object())  # type: ignore[arg-type]
    return str(context["body"]).removeprefix("<h1>Masks</h1>").removesuffix("<p>Words.</p>")


def test_the_line_leads_to_the_file_or_to_its_documentation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = line_on("book/05_masks", monkeypatch, "")
    assert '<a href="api/lib.html#module-lib.masks">lib/<wbr>masks.py</a>' in local
    known = line_on("book/05_masks", monkeypatch, "https://github.com/owner/name")
    assert 'href="https://github.com/owner/name/blob/HEAD/lib/masks.py"' in known
    assert line_on("book/06_heads", monkeypatch, "") == ""


def test_examples_hold() -> None:
    outcome = doctest.testmod(book_files)
    assert outcome.attempted > 1
    assert outcome.failed == 0
