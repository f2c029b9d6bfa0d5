"""``book/moved.yml``: old addresses still lead somewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import book_moved  # noqa: E402
import book_places  # noqa: E402


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = {"old": "new", "one#a": "one#b", "one#c": "two#d", "two#e": "one"}
    monkeypatch.setattr(book_moved, "moved", lambda: moved)


@pytest.mark.usefixtures("places")
def test_headings_are_told_apart_by_where_they_are_now() -> None:
    assert book_moved.renamed_on("one") == {"a": "b"}
    assert book_moved.gone_from("one") == {"c": "two.html#d"}
    assert book_moved.gone_from("two") == {"e": "one.html"}
    assert book_moved.renamed_on("old") == book_moved.gone_from("old") == {}


def test_all_that_has_moved_is_there_and_no_longer_where_it_was() -> None:
    for old, new in book_moved.moved().items():
        for place, is_there in ((old, False), (new, True)):
            page, _, anchor = place.partition("#")
            if not anchor:
                assert any((BOOK / f"{page}{s}").exists() for s in (".md", ".ipynb")) == is_there
            elif (BOOK / f"{page}.ipynb").exists():
                assert (anchor in book_places.outline(page).headings) == is_there, place
