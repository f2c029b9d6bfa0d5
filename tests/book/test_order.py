"""Core pages follow each other, further pages are offered, and a page without a kind is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup, Tag
from nbformat.v4 import new_markdown_cell, new_notebook

from tools import site
from tools.notebooks import rulers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_order  # noqa: E402

KINDS: dict[str, str | None] = {
    "index": "apart",
    "01_a": "core",
    "02_b": "core",
    "02b_c": "further",
    "02c_d": "further",
    "03_e": "core",
    "03b_f": "further",
    "lab1_g": "lab",
    "glossary": "apart",
}


# --- where a page leads -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "before", "after", "further"),
    [
        ("index", None, "01_a", []),
        ("01_a", "index", "02_b", []),
        ("02_b", "01_a", "03_e", ["02b_c", "02c_d"]),
        ("02b_c", "02_b", "03_e", ["02c_d"]),
        ("02c_d", "02_b", "03_e", []),
        ("03_e", "02_b", "lab1_g", ["03b_f"]),
        ("03b_f", "03_e", "lab1_g", []),
        ("lab1_g", "03_e", "glossary", []),
        ("glossary", "lab1_g", None, []),
    ],
)
def test_where_a_page_leads(
    page: str, before: str | None, after: str | None, further: list[str]
) -> None:
    assert book_order.neighbours(page, KINDS) == (before, after)
    assert book_order.offered(page, KINDS) == further


def test_the_front_page_leads_to_the_first_chapter() -> None:
    kinds = {"index": "apart", "paths": "apart", "play": "apart", **dict(list(KINDS.items())[1:])}
    assert book_order.neighbours("index", kinds) == (None, "01_a")
    assert book_order.neighbours("01_a", kinds) == ("index", "02_b")
    assert book_order.neighbours("paths", kinds) == ("index", "01_a")
    assert book_order.neighbours("glossary", kinds) == ("lab1_g", None)


@pytest.mark.parametrize(
    ("way", "page", "target", "words"),
    [
        ("Next", "01_a", "02_b", "Next chapter"),
        ("Next", "02b_c", "03_e", "Next chapter"),
        ("Next", "03_e", "lab1_g", "Next"),
        ("Previous", "02_b", "01_a", "Previous chapter"),
        ("Previous", "02c_d", "02_b", "Back to chapter 2"),
        ("Previous", "glossary", "lab1_g", "Previous"),
    ],
)
def test_words_above_a_link(way: str, page: str, target: str, words: str) -> None:
    assert book_order.words_for(way, page, target, KINDS) == words


TITLES = {
    "book/api/parts": "The parts",
    "book/api/index": "The library",
    "book/glossary": "Glossary",
}


@pytest.mark.parametrize(
    ("page", "part", "above", "way"),
    [
        ("book/04_b", "Attention", None, ["Attention", "Chapter 4"]),
        ("book/04b_c", "Attention", "book/04_b", ["Attention", "Chapter 4 (04_b)", "Chapter 4b"]),
        ("book/lab2_d", "Labs", None, ["Labs", "Lab 2"]),
        ("book/glossary", "Reference", None, ["Reference", "Glossary"]),
        (
            "book/api/parts",
            "Reference",
            "book/api/index",
            ["Reference", "The library (index)", "The parts"],
        ),
    ],
)
def test_the_way_to_a_page(page: str, part: str, above: str | None, way: list[str]) -> None:
    steps = book_order.trail(page, part, above, TITLES)
    ends = [f" ({step.document.rpartition('/')[2]})" if step.document else "" for step in steps]
    assert [step.words + end for step, end in zip(steps, ends, strict=True)] == way


# --- what is refused ----------------------------------------------------------------------------


def test_a_good_order_has_no_problems() -> None:
    assert list(book_order.problems(KINDS)) == []


@pytest.mark.parametrize("kind", [None, "extra", ""])
def test_a_page_must_say_what_it_is(kind: str | None) -> None:
    ((page, problem),) = book_order.problems({**KINDS, "03_e": kind})
    assert page == "03_e"
    assert f"core, further, lab, apart in the notebook's metadata, found {kind!r}" in problem


@pytest.mark.parametrize("before", ["lab", "apart"])
def test_a_further_page_must_follow_its_chapter(before: str) -> None:
    ((page, problem),) = book_order.problems({"x": "core", "y": before, "z": "further"})
    assert page == "z"
    assert "must follow the core page" in problem


def test_site_and_rulers_know_the_same_kinds() -> None:
    assert book_order.KINDS == rulers.PAGE_KINDS


def test_the_further_pages_of_the_book_stand_behind_their_own_chapter() -> None:
    pages = site.toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    found = {page: next(ROOT.glob(f"{page}.*"), None) for page in pages}
    for page, source in found.items():
        assert source, f"_toc.yml has a line for {page}, which is no page: write it, or take it out"
    sources = {page: source for page, source in found.items() if source}
    kinds = {page: book_order.about(source).kind for page, source in sources.items()}
    assert list(book_order.problems(kinds)) == []
    further = [page for page in kinds if kinds[page] == "further"]
    assert len(further) >= 20
    for page in further:
        chapter, _ = book_order.neighbours(page, kinds)
        assert chapter is not None
        number = re.match(r"book/\d+", chapter)
        assert number
        assert page.startswith(number[0]), f"{page} stands behind {chapter} in _toc.yml"


# --- the menu -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "short"),
    [
        ("3 · Attention: query, key, value", "3 · Attention"),
        ("3b · Worked examples, forwards and backwards", "3b · Worked examples"),
        ("15b · Masked, causal, and spans: three objectives", "15b · Masked, causal, and spans"),
        ("19c · Precision, memory, many machines", "19c · Precision, memory"),
        ("1b · One vector, and the way out", "1b · One vector, and the way out"),
        ("11b · What an encoder makes of a token", "11b · What an encoder makes of a token"),
    ],
)
def test_titles_are_cut_at_colons_and_where_a_line_is_full(title: str, short: str) -> None:
    assert book_order.short_title(title) == short


def entry(address: str, title: str, is_current: bool = False) -> str:
    item, link = ("toctree-l1 current active", "current ") if is_current else ("toctree-l1", "")
    return f'<li class="{item}"><a class="{link}reference" href="{address}">{title}</a></li>'


MENU = (
    "<p>Part</p><ul>"
    + entry("paths.html", "Paths: a page apart, with a title that is long")
    + entry("02.html", "2 · Tokens: ids")
    + entry("#", "2b · One", is_current=True)
    + entry("02c.html", "2c · Two")
    + entry("03.html", "3 · Next")
    + "</ul>"
)
ADDRESSES: Mapping[str, str | None] = {
    "paths.html": "apart",
    "02.html": "core",
    "#": "further",
    "02c.html": "further",
    "03.html": "core",
}


def marked(menu: str = MENU) -> BeautifulSoup:
    return BeautifulSoup(book_order.mark_menu(menu, ADDRESSES), "html.parser")


def words(tags: list[Tag]) -> list[str]:
    return [tag.get_text() for tag in tags]


def test_further_pages_hang_below_their_core_page() -> None:
    menu = marked()
    assert words(menu.select("li > ul.further-pages > li > a")) == [
        "further: 2b · One",
        "further: 2c · Two",
    ]
    assert words(menu.select("ul:not(.further-pages) > li > a")) == [
        "Paths: a page apart, with a title that is long",
        "2 · Tokens",
        "3 · Next",
    ]
    assert words(menu.select("ul.further-pages .visually-hidden")) == ["further: "] * 2
    assert words(menu.select("a[title='2 · Tokens: ids']")) == ["2 · Tokens"]


def test_the_current_page_and_its_chapter_are_marked() -> None:
    menu = marked()
    assert words(menu.select("[aria-current=page]")) == ["further: 2b · One"]
    assert words(menu.select("li.current.active > a:not(.current)")) == ["2 · Tokens"]
    assert marked(MENU.replace("current", "")).select("[aria-current], .current") == []


def test_a_further_page_without_a_chapter_stays_where_it_is() -> None:
    alone = f"<ul>{entry('paths.html', 'Paths')}{entry('02c.html', '2c · Two')}</ul>"
    assert words(marked(alone).select("ul > li > a")) == ["Paths", "2c · Two"]


# --- a small site -------------------------------------------------------------------------------

CONFIGURATION = f"""
import sys
sys.path.insert(0, {str(ROOT / "book" / "_ext")!r})
extensions = ["myst_nb", "book_order"]
templates_path = [{str(ROOT / "book" / "_templates")!r}]
html_theme = "sphinx_book_theme"
nb_execution_mode = "off"
"""


def build_site(folder: Path, kinds: Mapping[str, str | None]) -> tuple[Path, str]:
    """Build a site of small notebooks; returns its folder and what Sphinx said."""
    pages = [page for page in kinds if page != "index"]
    contents = "\n".join(["# Book", "", "```{toctree}", ":caption: A part", *pages, "```", ""])
    (folder / "index.md").write_text(contents, encoding="utf-8")
    (folder / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    for number, page in enumerate(pages):
        words = (
            f"# {page.partition('_')[0]} · Page {page}\n\n*{number} minutes to read, and so on.*"
        )
        metadata = {"page": {"kind": kinds[page]}} if kinds[page] else {}
        notebook = new_notebook(cells=[new_markdown_cell(words)], metadata=metadata)
        nbformat.write(notebook, folder / f"{page}.ipynb")
    command = ["sphinx", "-b", "html", "-W", "--keep-going", "-q", str(folder), str(folder / "out")]
    run = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    assert (run.returncode == 0) == (run.stderr == ""), run.stderr
    return folder / "out", run.stderr


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, said = build_site(tmp_path_factory.mktemp("site"), KINDS)
    assert said == ""
    return folder


def foot(folder: Path, page: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The links at the foot of a page with their words, and what is offered above them."""
    html = BeautifulSoup((folder / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
    ways = []
    for relation, name in (("prev", "left-prev"), ("next", "right-next")):
        head, link = html.select(f"link[rel={relation}]"), html.select(f"a.{name}")
        assert [tag["href"] for tag in head] == [tag["href"] for tag in link]
        ways += [(tag.select("p")[0].get_text(), str(tag["href"])) for tag in link]
    return ways, [" ".join(tag.get_text().split()) for tag in html.select(".further-offer li")]


def test_the_foot_of_each_kind_of_page(small_site: Path) -> None:
    core = [("Previous chapter", "01_a.html"), ("Next chapter", "03_e.html")]
    further = [("Back to chapter 2", "02_b.html"), ("Next chapter", "03_e.html")]
    second = "02c · Page 02c_d 3 minutes"
    assert foot(small_site, "02_b") == (core, ["02b · Page 02b_c 2 minutes", second])
    assert foot(small_site, "02b_c") == (further, [second])
    assert foot(small_site, "02c_d") == (further, [])
    lab = [("Previous chapter", "03_e.html"), ("Next", "glossary.html")]
    assert foot(small_site, "lab1_g") == (lab, [])


@pytest.mark.parametrize("page", ["02b_c", "02_b", "genindex", "search"])
def test_every_page_of_the_site_has_the_marked_menu(small_site: Path, page: str) -> None:
    html = BeautifulSoup((small_site / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
    links = html.select("nav.bd-links .further-pages a")
    assert [link.get_text()[:12] for link in links] == [
        f"further: {n}" for n in ("02b", "02c", "03b")
    ]
    current = [link.get_text() for link in html.select("nav.bd-links [aria-current]")]
    assert len(current) == (page != "search")  # which is in no menu


def test_the_way_to_a_page_stands_above_its_title(small_site: Path) -> None:
    def steps(page: str) -> list[str]:
        html = (small_site / f"{page}.html").read_text(encoding="utf-8")
        trail = BeautifulSoup(html, "html.parser").select(".bd-article-container > nav.trail")
        return words(trail[0].select("li")) if trail else []

    assert steps("02_b") == ["Contents", "A part", "Chapter 2"]
    assert steps("02c_d") == ["Contents", "A part", "Chapter 2", "Chapter 2c"]
    assert steps("glossary") == ["Contents", "A part", "glossary · Page glossary"]
    assert steps("index") == steps("genindex") == []


def test_a_notebook_without_a_kind_fails_the_build(tmp_path: Path) -> None:
    _, said = build_site(tmp_path, {"index": "apart", "01_a": "core", "02_b": None})
    assert '02_b.ipynb: WARNING: expected "page": {"kind": ...}' in said
    assert "01_a" not in said
