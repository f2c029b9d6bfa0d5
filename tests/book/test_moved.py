"""``book/moved.yml``: old addresses still lead somewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from omissions import fail_on

BOOK = Path(__file__).resolve().parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import book_moved  # noqa: E402
import book_places  # noqa: E402


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = {"old": "new", "one#a": "one#b", "one#c": "two#d", "two#e": "one", "api/a#f": "one"}
    monkeypatch.setattr(book_moved, "moved", lambda: moved)


@pytest.mark.usefixtures("places")
def test_headings_are_told_apart_by_where_they_are_now() -> None:
    assert book_moved.renamed_on("one") == {"a": "b"}
    assert book_moved.gone_from("one") == {"c": "two.html#d"}
    assert book_moved.gone_from("two") == {"e": "one.html"}
    assert book_moved.gone_from("api/a") == {"f": "../one.html"}
    assert book_moved.renamed_on("old") == book_moved.gone_from("old") == {}


def moved_problems(moved: dict[str, str]) -> list[str]:
    """Which old places are still there, and which new ones are not."""
    problems = []
    for old, new in moved.items():
        line = f'book/moved.yml, "{old}: {new}"'
        if is_there(old):
            remedy = "take the line out, or give what is there now another heading"
            problems.append(f"{line}: {old} has not moved, it is still there: {remedy}")
        if not is_there(new):
            problem = book_places.problem_with(new) or f"{new} is a cell; expected a heading"
            problems.append(f"{line}: {problem}")
    return problems


def is_there(place: str) -> bool:
    page, _, anchor = place.partition("#")
    if not book_places.path_of(page).is_file():
        return False
    return not anchor or anchor in book_places.outline(page).headings


def test_all_that_has_moved_is_there_and_no_longer_where_it_was() -> None:
    fail_on(moved_problems(book_moved.moved()))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("05_masks#what-breaks", "05_masks", "05_masks#what-breaks has not moved, it is still"),
        ("05_masks#old", "05_masks#nowhere", "book/05_masks.ipynb has no heading or cell #nowhere"),
        ("old", "05_mask", "there is no page book/05_mask; did you mean '05_masks'?"),
    ],
)
def test_a_line_that_leads_nowhere_is_told(old: str, new: str, said: str) -> None:
    assert moved_problems({"05_masks#old": "05_masks#what-breaks"}) == []
    (problem,) = moved_problems({old: new})
    assert problem.startswith(f'book/moved.yml, "{old}: {new}": {said}')
