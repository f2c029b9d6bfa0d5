"""The ways into the book: what they say of its size, its courses and its figures is computed."""

from __future__ import annotations

import ast
import doctest
import re
import sys
from pathlib import Path

import pytest
from omissions import fail_on

from tools.notebooks.model import code_cells, load
from transformer_book.paths import NEWCOMERS, Page, in_steps, path_to, sessions, total_minutes

BOOK = Path(__file__).resolve().parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import book_front  # noqa: E402
import book_order  # noqa: E402
import book_plan  # noqa: E402


@pytest.mark.parametrize("module", [book_front, book_plan])
def test_examples_hold(module: object) -> None:
    outcome = doctest.testmod(module)  # type: ignore[arg-type]
    assert outcome.attempted > 0
    assert outcome.failed == 0


# --- the front page -----------------------------------------------------------------------------


def test_sizes_are_those_of_the_pages() -> None:
    lab = Page("lab1_c", "C", 150, ())
    of = [Page("01_a", "A", 100, (), (30, 60)), Page("01b_b", "B", 80, ()), lab]
    assert book_front.sizes(of) == {
        **{"pages": "2", "hours": "3", "exercises": "2", "exercise_hours": "1.5"},
        **{"labs": "1", "lab_hours": "2.5", "core_hours": "1.7", "core_needs": ""},
        "core_rule": "They need no other page.",
    }


def test_the_core_is_what_it_is_said_to_be() -> None:
    """When it needs no further page, the front page, README and others can say so."""
    pages = book_front.pages()
    for name, page in pages.items():
        kind = book_order.about(BOOK / f"{name}.ipynb").kind
        where = f'book/{name}.ipynb has "kind": "{kind}" in its metadata'
        assert page.is_core == (kind == "core"), f"{where}; only a core page has no letter"
    core = [page for page in pages.values() if page.is_core]
    further = sorted({n for page in core for n in page.needs if not pages[n].is_core})
    told = book_front.sizes(list(pages.values()))["core_needs"]
    assert told == ", ".join(pages[need].number for need in further)


def test_a_size_that_nobody_counts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\['words'\] are no sizes; expected some of \['pages'\]"):
        book_front.fill("{pages} pages, {words} words", {"pages": "2"})


def test_the_front_page_types_no_size_by_hand() -> None:
    front = (BOOK / "index.md").read_text(encoding="utf-8")
    opening = front.partition("## Chapters")[0]
    assert re.findall(r"\d+ (?:pages|hours|exercises|labs|minutes)", opening) == []
    assert "<svg" not in front


def test_a_specimen_is_a_cell_that_was_run() -> None:
    front = (BOOK / "index.md").read_text(encoding="utf-8")
    page, cell = re.findall(r"\{stored-cell\} (\S+) (\S+)", front)[0]
    code, printed = book_front.stored_cell(page, cell)
    assert "softmax(dim=-1).tril()" in code
    assert "not yet. Mask before the softmax" in printed
    with pytest.raises(ValueError, match="lab1_heads has no cell 'nowhere' that printed"):
        book_front.stored_cell("lab1_heads", "nowhere")


def test_the_first_claim_is_the_same_in_the_readme() -> None:
    claim = (
        "It takes the Transformer apart and builds it again. "
        "No number that a cell prints can change without a test failing."
    )
    for path in (BOOK / "index.md", BOOK.parent / "README.md"):
        words = path.read_text(encoding="utf-8").replace("**", "").split()
        assert claim in " ".join(words), f"{path.name} does not say {claim!r}"


def test_the_front_page_sends_newcomers_where_their_path_begins() -> None:
    front = (BOOK / "index.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"^\*\*New to this\?\*\*.*$", front, re.MULTILINE)
    first = next(iter(in_steps(book_front.pages(), NEWCOMERS).values()))
    assert re.findall(r"\((\w+)\.ipynb\)", said) == [page.name for page in first]
    assert "](place:paths#new-to-this)" in said


def test_chapters_stand_under_the_part_that_the_contents_give_them() -> None:
    assert book_plan.part_of()["book/03_attention"] == "Attention"
    assert book_plan.part_of()["book/lab1_heads"] == "Labs"


# --- courses ------------------------------------------------------------------------------------

TEACHERS = (BOOK / "teachers.md").read_text(encoding="utf-8")
PLANS = re.findall(r"\{course-plan\} (.+)\n:sessions: (\d+)(\n:labs:)?", TEACHERS)


def plan(goals: str, labs: str) -> list[Page]:
    path = path_to(book_front.pages(), goals.split())
    return book_front.with_labs(path) if labs else path


LONGEST = {"1": 120, "6": 270, "14": 270}  # minutes to read before a session; they may only fall


@pytest.mark.parametrize(("goals", "number", "labs"), PLANS)
def test_a_course_has_as_many_sessions_as_it_says(goals: str, number: str, labs: str) -> None:
    cut = sessions(plan(goals, labs), int(number))
    assert len(cut) == int(number)
    assert max(total_minutes(session) for session in cut) <= LONGEST[number]


def test_the_semester_has_the_core_of_every_chapter_and_all_labs() -> None:
    goals, _, labs = PLANS[-1]
    names = [page.name for page in plan(goals, labs)]
    core = [
        p for p in book_front.pages() if book_order.about(BOOK / f"{p}.ipynb").kind != "further"
    ]
    assert set(core) <= set(names)
    for number, name in enumerate(names):
        assert set(book_front.pages()[name].needs) <= set(names[:number]), name


def test_every_page_of_a_course_has_a_promise() -> None:
    fail_on(book_front.unpromised(book_front.pages().values(), book_front.promises()))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("05_masks", "05 | 05_masks | A | what it promises"),
        ("05b_more", "5b | 05b_more | A | what it promises"),
        ("lab6_more", "L6 | lab6_more | A | what it promises"),
    ],
)
def test_a_page_that_the_front_page_lacks_is_told_its_line(name: str, line: str) -> None:
    (problem,) = book_front.unpromised([Page(name, "A", 5, ())], set())
    assert problem == f'book/index.md has no line for {name}: add "{line}"'


# --- the paths ----------------------------------------------------------------------------------


def test_the_paths_add_up_the_minutes_of_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of `paths` finds this, too, but not in the quick check of another page."""
    monkeypatch.chdir(BOOK)
    names: dict[str, object] = {}
    for _, cell in code_cells(load(BOOK / "paths.ipynb")):
        if not cell.outputs:
            continue
        *body, last = ast.parse(cell.source).body
        assert isinstance(last, ast.Expr)
        exec(compile(ast.Module(body, []), cell.id, "exec"), names)
        shown = eval(compile(ast.Expression(last.value), cell.id, "eval"), names)
        said = shown._repr_mimebundle_()["text/plain"]
        remedy = "other minutes, titles or needs than the pages: run `make notebooks NB=paths`"
        assert said == cell.outputs[0].data["text/plain"], f"book/paths.ipynb has {remedy}"
