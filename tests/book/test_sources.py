"""``book/sources.yml``: every item and every error of the five sources has its place."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

BOOK = Path(__file__).resolve().parents[2] / "book"
TEXT = (BOOK / "sources.yml").read_text(encoding="utf-8")
CHAPTERS: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(TEXT)
ITEMS = {"A": 127, "B": 89, "C": 81, "D": 51, "E": 47}  # what the audit of the sources counted
ERRORS = {"A": 54, "B": 38, "C": 28, "D": 20, "E": 16}
# Items and errors that each chapter owns, by the same audit.
OWNED = {
    **{"00": (12, 6), "01": (23, 5), "02": (20, 10), "03": (42, 9), "04": (9, 8), "05": (17, 16)},
    **{"06": (36, 7), "07": (35, 19), "08": (20, 7), "09": (12, 8), "10": (15, 7), "11": (18, 2)},
    **{"12": (27, 4), "13": (15, 5), "14": (13, 9), "15": (22, 6), "16": (7, 7), "17": (16, 9)},
    **{"18": (6, 2), "19": (11, 6), "20": (19, 4)},
}
ENTRIES = [
    (chapter, name, entry)
    for chapter, entries in CHAPTERS.items()
    for name, entry in entries.items()
]
PLACED = [(chapter, name, entry["at"]) for chapter, name, entry in ENTRIES if "at" in entry]


def is_error(name: str) -> bool:
    return name.startswith("X-")


def pages_of(chapter: str) -> list[Path]:
    """The pages of a chapter: 06_heads.ipynb, 06b_trained_heads.ipynb."""
    return sorted(path for path in BOOK.glob(f"{chapter}*.ipynb") if path.name[2] in "_bcd")


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as Sphinx makes them of the words."""
    cells = json.loads((BOOK / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    headings = [words for text in texts for words in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") for words in headings}


def test_every_item_and_every_error_is_listed_once() -> None:
    names = re.findall(r"^  ([A-EX]-\S+):$", TEXT, re.MULTILINE)
    assert len(names) == len(set(names)) == len(ENTRIES)
    assert Counter(name[0] for name in names if not is_error(name)) == ITEMS
    assert Counter(name[2] for name in names if is_error(name)) == ERRORS


def test_each_chapter_owns_what_the_audit_gave_it() -> None:
    owned = {
        chapter: (sum(not is_error(name) for name in entries), sum(map(is_error, entries)))
        for chapter, entries in CHAPTERS.items()
    }
    assert owned == OWNED


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_written_chapter_teaches_all_that_it_owns(chapter: str) -> None:
    placed = [name for owner, name, _ in PLACED if owner == chapter]
    assert placed == (list(CHAPTERS[chapter]) if pages_of(chapter) else [])


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_targets_are_headings_of_the_chapter(chapter: str) -> None:
    pages = {path.stem: anchors(path.stem) for path in pages_of(chapter)}
    for name, target in [(name, at) for owner, name, at in PLACED if owner == chapter]:
        page, _, anchor = target.partition("#")
        assert page in pages, f"{name} is said to be taught on {page}"
        assert not anchor or anchor in pages[page], f"{name}: {page} has no heading {anchor!r}"


def test_entries_say_what_they_are() -> None:
    for _, name, entry in ENTRIES:
        assert entry.keys() - {"at"} == {"says" if is_error(name) else "item"}
        assert all(value.strip() for value in entry.values())
