"""The parts of a page, and a page from the template that has them all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.notebooks import __main__ as command_line
from tools.notebooks.budgets import FILE_NAME, Budgets, inspect_page, rewrite
from tools.notebooks.execute import execute
from tools.notebooks.guard import inspect
from tools.notebooks.model import BOOK, ROOT, NotebookError, code_cells, load, save
from tools.notebooks.new import TEMPLATE, create
from tools.notebooks.pages import measure_page
from tools.notebooks.parts import MIN_LINES, PARTS, exercise_minutes, missing_parts
from tools.site import toc_pages

MOST_LACKS = 93  # what pages lacked when this was first counted; it may only fall


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what lists the pages, with one new page, made and run."""
    root = tmp_path_factory.mktemp("project")
    (root / "book").mkdir()
    (root / "transformer_book").mkdir()
    for name in ("_toc.yml", "book/index.md", f"book/{FILE_NAME}", "book/verified.json"):
        shutil.copy(ROOT / name, root / name)
    create("22_new_things", root=root)
    execute(root / "book" / "22_new_things.ipynb")
    return root


@pytest.fixture
def whole(project: Path) -> NotebookNode:
    """A page with all parts."""
    return load(project / "book" / "22_new_things.ipynb")


# --- a new page -------------------------------------------------------------------------------


def test_a_new_page_lacks_only_what_is_to_be_written(project: Path, whole: NotebookNode) -> None:
    page = project / "book" / "22_new_things.ipynb"
    budgets = Budgets.beside(page)
    assert budgets is not None
    assert list(inspect_page(measure_page(page), budgets)) == []
    found = [finding for finding in inspect(page) if "still says" not in finding.trouble]
    assert [finding.trouble for finding in found] == ["is not recorded in verified.json"], found
    unwritten = [n for n, cell in enumerate(whole.cells, start=1) if "TODO" in cell.source]
    assert len(unwritten) > 5
    said = [finding.cell for finding in inspect(page) if "still says" in finding.trouble]
    assert said == unwritten


def test_a_new_page_is_entered_where_it_belongs(project: Path) -> None:
    pages = toc_pages(yaml.safe_load((project / "_toc.yml").read_text(encoding="utf-8")))
    before = toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    place = pages.index("book/22_new_things")
    assert pages[place - 1].startswith("book/21")
    assert [*pages[:place], *pages[place + 1 :]] == before
    lines = (project / "book" / "index.md").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if "22_new_things" in line]
    assert line == "22 | 22_new_things | New things | TODO: what it promises, in a few words"


def test_a_further_page_stands_behind_its_core_page(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    for name in ("_toc.yml", "book/index.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    told = create("03x_more", "More of it", tmp_path)
    assert "page 3x, after 03" in told
    assert "make notebooks NB=book/paths.ipynb" in told
    notebook = load(tmp_path / "book" / "03x_more.ipynb")
    assert notebook.metadata.page == {"kind": "further"}
    assert notebook.cells[0].source.startswith("# 3x · More of it\n\n*5 minutes to read, ")
    assert {cell.id.partition("-")[0] for cell in notebook.cells} == {"03x"}
    toc = (tmp_path / "_toc.yml").read_text(encoding="utf-8")
    assert toc.index("book/03_attention") < toc.index("book/03x_more") < toc.index("book/04")


@pytest.mark.parametrize(
    "name", ["new", "5_masks", "22-new", "22_New", "lab6_more", "22_new.ipynb"]
)
def test_a_name_of_another_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["new", name]) == 2
    said = capsys.readouterr().err
    assert said == f"{name!r}: expected a name such as 22_new, or 05e_more for a further page\n"


def test_a_name_that_is_taken_and_a_list_without_a_place(tmp_path: Path) -> None:
    with pytest.raises(NotebookError, match=r"03_attention\.ipynb: exists already"):
        create("03_attention")
    (tmp_path / "book").mkdir()
    (tmp_path / "_toc.yml").write_text("- file: book/05_masks\n", encoding="utf-8")
    with pytest.raises(NotebookError, match=r"_toc\.yml: expected a line for a page .* 04_new"):
        create("04_new", root=tmp_path)
    assert not list((tmp_path / "book").iterdir())


def test_no_page_is_left_unwritten() -> None:
    """The guard looks at notebooks; the plan on the home page is Markdown."""
    pages = sorted(BOOK.glob("*.md"))
    assert BOOK / "index.md" in pages
    for path in pages:
        is_written = "TODO" not in path.read_text(encoding="utf-8")
        assert is_written, f"book/{path.name} still says TODO: write what is asked for there"


def test_the_template_starts_on_colab_as_all_pages_do() -> None:
    pages = [next(code_cells(load(path)))[1] for path in (TEMPLATE, BOOK / "03_attention.ipynb")]
    assert pages[0].source == pages[1].source


# --- the parts --------------------------------------------------------------------------------


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.id == f"22-{name}")


DAMAGES = {  # the part that is gone then; a cell, and what is replaced in it
    "no minutes": ("head", "top", "*5 minutes to read", "*Takes a while"),
    "no needs": ("head", "top", "You need:", "It helps to know:"),
    "no number": ("head", "top", "# 22 · ", "# "),
    "words between": ("head", "top", "\n\n*5", "\n\nA book.\n\n*5"),
    "a heading too early": ("first screen", "top", "TODO: a", "## First\n\nTODO: a"),
    "no bugs": ("what breaks", "breaks-text", "## What breaks", "## What is nice"),
    "no citation": ("in real models", "models", "(cite:", "(see:"),
    "no exercise": ("exercises", "ex1-text", "### Exercise 1", "### Puzzle"),
    "no difficulty": ("exercises", "ex1-text", "*Easy · 5 minutes.*", ""),
    "no lines": ("summary", "end", "- TODO", "TODO"),
    "another summary": ("summary", "end", "## In one minute", "## Done"),
    "no link": ("next", "end", "](index.md)", "]"),
    "in a fence": ("summary", "end", "## In one minute", "```text\n## In one minute\n```"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_part_that_is_gone_is_noticed(damage: str, whole: NotebookNode) -> None:
    assert missing_parts(whole) == ()
    part, name, old, new = DAMAGES[damage]
    victim = cell(whole, name)
    assert old in victim.source
    victim.source = victim.source.replace(old, new)
    assert missing_parts(whole) == (part,)


@pytest.mark.parametrize(
    ("name", "part"),
    [("picture", "first screen"), ("breaks", "what breaks"), ("ex1-solution", "exercises")],
)
def test_a_cell_that_is_gone_is_noticed(name: str, part: str, whole: NotebookNode) -> None:
    whole.cells.remove(cell(whole, name))
    assert missing_parts(whole) == (part,)


def test_every_part_is_damaged_above() -> None:
    assert {part for part, *_ in DAMAGES.values()} == PARTS.keys()


def test_an_exercise_cannot_use_the_solution_of_another(whole: NotebookNode) -> None:
    place = whole.cells.index(cell(whole, "end"))
    whole.cells.insert(place, new_markdown_cell("### Exercise 2 · More\n\n*Open · an hour.*"))
    assert exercise_minutes(whole) == [5, 60]
    assert missing_parts(whole) == ("exercises",)


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [
        ("core", [*PARTS]),
        ("further", [name for name in PARTS if name != "in real models"]),
        ("lab", ["head", "what breaks", "summary", "next"]),
        ("apart", []),
    ],
)
def test_what_an_empty_page_lacks(kind: str, lacks: list[str]) -> None:
    empty = [new_markdown_cell("# Nothing\n\n## In one minute\n\n- one"), new_code_cell("1")]
    assert MIN_LINES > 1
    notebook = new_notebook(cells=empty, metadata={"page": {"kind": kind}})
    assert list(missing_parts(notebook)) == lacks


# --- the list of what is missing --------------------------------------------------------------


def test_the_list_may_only_shrink(project: Path, tmp_path: Path, whole: NotebookNode) -> None:
    book = tmp_path / "book"
    shutil.copytree(project / "book", book)
    page = book / "22_new_things.ipynb"
    rewrite(book, accept_more=True)

    def found() -> list[str]:
        budgets = Budgets.beside(page)
        assert budgets is not None
        return [str(finding) for finding in inspect_page(measure_page(page), budgets)]

    assert found() == []
    end = cell(whole, "end")
    end.source = end.source.replace("](index.md)", "]")
    save(whole, page)
    (said,) = found()
    assert "lacks a part that every core page has: next; end with `**Next:** [" in said
    assert rewrite(book, accept_more=False) == ["22_new_things: lacks next"]
    assert found() == [said]
    assert rewrite(book, accept_more=True) == []
    assert found() == []
    end.source = end.source.replace("forward]", "forward](index.md)")
    save(whole, page)
    assert found() == [], "a page that has become better never fails"
    assert rewrite(book, accept_more=False) == []
    budgets = Budgets.beside(page)
    assert budgets is not None
    assert not budgets.listed_lacks


def test_the_books_list_has_not_grown() -> None:
    budgets = Budgets.beside(BOOK / FILE_NAME)
    assert budgets is not None
    lacks = [name for parts in budgets.listed_lacks.values() for name in parts]
    assert set(lacks) <= PARTS.keys()
    assert len(lacks) <= MOST_LACKS


def test_every_exercise_of_the_book_says_how_long_it_takes() -> None:
    for path in sorted(BOOK.glob("[0-9]*.ipynb")):
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")), ensure_ascii=False)
        assert len(exercise_minutes(load(path))) == text.count('"### Exercise '), path.name
