"""The pages of a site as one document for paper, and the link to the PDF on the site."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup

from tools.pdf.article import PLAIN_TOKENS
from tools.pdf.contents import Entry, PdfError, reading_order
from tools.pdf.join import About, Book, find_problems, join
from tools.pdf.offer import CLOSE, NAME, OPEN, offer

ROOT = Path(__file__).resolve().parents[2]
ABOUT = About("A <book>", "Its authors", "CC BY", "1.0")
TOC = {
    "root": "book/index",
    "parts": [
        {"caption": "First", "chapters": [{"file": "book/one"}]},
        {"caption": "Rest", "chapters": [{"file": "book/api/two", "sections": []}]},
    ],
}
MENU = (
    '<div class="dropdown dropdown-download-buttons"><ul class="dropdown-menu">'
    "<li>.md</li></ul></div>"
)
FORMULA = """<span class="math"><span class="katex"><span class="katex-mathml"><math>
<annotation>d_k</annotation></math></span><span aria-hidden="true" class="katex-html">d</span>
</span></span>"""
ARTICLES = {
    "book/index": f"""<section id="top"><h1>The title</h1><div class="hero"><p>A claim</p>
<div class="actions"><p>Buttons {OPEN}{CLOSE}</p></div></div>
<section id="chapters"><h2>Chapters</h2><ul class="chapter-plan"><li>one</li></ul></section>
<section id="more"><h2>More</h2><p>Words. <a href="api/two.html">two</a></p></section></section>""",
    "book/one": f"""<section id="top"><h1>1 · One "word"<a class="headerlink" href="#top">#</a></h1>
<p class="launch-bar">Run it</p><button class="copybtn">Copy</button><nav>Menu</nav>
<p id="here">{FORMULA} <a href="#here" title="tip">here</a> <a href="api/two.html#there">two</a>
<a href="https://example.org/x">web</a> <a href="../_sources/book/one.ipynb">the notebook</a></p>
<svg aria-labelledby="name"><title id="name">Figure</title><defs><path id="dot"></path>
<clippath id="clip"></clippath></defs><use xlink:href="#dot"></use>
<g clip-path="url(#clip)" style="fill: url(#clip)"></g></svg>
<div class="cell tag_fold"><details class="hide"><summary><span>How it was made: <code>rows</code>
</span></summary><div class="cell_input"><pre>plumbing = 1</pre></div></details></div>
<div class="cell tag_predict"><details class="hide"><summary>Show</summary>
<div class="cell_output"><pre>42</pre></div></details></div>
<section id="exercise"><h2>Exercise 1</h2><div class="cell tag_solution" id="cell-9">
<details class="hide"><summary>Solution</summary><pre><span class="n">x</span> <span class="k">if
</span></pre></details></div><p>After it.</p></section></section>
<p class="verified-stamp">Executed.</p><script>run()</script>""",
    "book/api/two": """<section id="top"><h1>Two</h1><h2 id="there">There</h2>
<p><a href="../one.html">one</a></p><details><summary>All</summary><p>of it</p></details>
</section>""",
}


def write_site(folder: Path, **changes: str) -> Path:
    """Write a site of three pages, with some articles changed; the front page has no menu."""
    for document, article in (ARTICLES | changes).items():
        file = folder / f"{document}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        depth = "../" * document.count("/")
        menu = "" if document == TOC["root"] else MENU
        file.write_text(
            f'<html><head><link rel="stylesheet" href="{depth}_static/book.css?v=1"></head><body>'
            f'{menu}<article class="bd-article">{article}</article></body></html>',
            encoding="utf-8",
        )
    (folder / "_sources/book").mkdir(parents=True, exist_ok=True)
    (folder / "_sources/book/one.ipynb").touch()
    return folder


def joined(folder: Path, **changes: str) -> tuple[Book, BeautifulSoup]:
    book = join(write_site(folder, **changes), reading_order(TOC), ABOUT, "../html")
    return book, BeautifulSoup(book.html(), "html.parser")


def test_the_order_is_that_of_the_contents() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    entries = reading_order(toc)
    listed = re.findall(
        r"^\s*-? *(?:root|file): (\S+)$",
        (ROOT / "_toc.yml").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert [entry.document for entry in entries] == listed
    parts = [entry.part for entry in entries if entry.part]
    assert parts == [part["caption"] for part in toc["parts"]]


def test_pages_with_one_name_are_refused() -> None:
    with pytest.raises(PdfError, match="a-b"):
        reading_order({"root": "i", "chapters": [{"file": "book/a/b"}, {"file": "book/a-b"}]})


def test_pages_follow_each_other_below_their_parts(tmp_path: Path) -> None:
    book, page = joined(tmp_path)
    assert [section["id"] for section in page.select("section.sheet")] == [
        "index",
        "one",
        "api-two",
    ]
    assert [sheet.title for sheet in book.sheets] == ["About this book", '1 · One "word"', "Two"]
    headings = [(h.name, h.get_text()) for h in page.find_all(re.compile(r"^h\d$"))]
    assert headings[:3] == [("h1", "Contents"), ("h1", "About this book"), ("h2", "More")]
    assert headings[3:6] == [("h1", "First"), ("h2", '1 · One "word"'), ("h3", "Exercise 1")]
    lines = [a["href"] for a in page.select(".contents-line a")]
    assert lines == ["#index", "#one", "#api-two"]
    assert '@page sheet-one { @top-left { content: "1 · One \\"word\\"" } }' in book.html()
    styles = [str(link["href"]).removeprefix("../html/_static/") for link in page.select("link")]
    assert styles == ["book.css", "fonts/fonts.css"]


def test_every_id_is_unique_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    _, page = joined(tmp_path)
    ids = [element["id"] for element in page.find_all(id=True)]
    assert len(ids) == len(set(ids))
    assert {"one--top", "api-two--top", "one--here", "one--cell-9"} <= set(ids)
    inside = [a["href"] for a in page.find_all("a") if str(a["href"]).startswith("#")]
    assert {"#one--here", "#api-two--there", "#api-two", "#one"} <= set(inside)
    assert {str(target)[1:] for target in inside} <= set(ids)
    assert [a["href"] for a in page.find_all("a", string="web")] == ["https://example.org/x"]
    assert "the notebook" in page.get_text()  # it is no part of the book: plain text
    assert not page.find_all("a", string="the notebook")


def test_references_inside_drawings_keep_their_targets(tmp_path: Path) -> None:
    _, page = joined(tmp_path)
    drawing = page.svg
    assert drawing is not None
    assert drawing["aria-labelledby"] == "one--name"
    assert drawing.use is not None
    assert drawing.use["xlink:href"] == "#one--dot"
    assert drawing.g is not None
    assert drawing.g["clip-path"] == "url(#one--clip)"
    assert drawing.g["style"] == "fill: url(#one--clip)"


def test_nothing_for_the_screen_is_printed(tmp_path: Path) -> None:
    _, page = joined(tmp_path)
    assert not page.find_all(["button", "nav", "script", "details", "summary"])
    assert not page.select(".headerlink, .launch-bar, .actions, .chapter-plan, .katex-mathml")
    for words in ("Copy", "Menu", "Run it", "Buttons", "Show"):
        assert words not in page.get_text()
    assert page.select_one(".title-page .hero") is not None
    formula = page.select_one(".katex")
    assert formula is not None
    assert formula["aria-label"] == "d_k"
    assert not formula.find_all(attrs={"aria-hidden": True})


def test_folds_print_what_teaches(tmp_path: Path) -> None:
    _, page = joined(tmp_path)
    text = page.get_text()
    assert "plumbing = 1" not in text
    assert "How it was made" not in text, "a line that opens nothing"
    assert "42" in text
    assert [p.get_text() for p in page.select(".unfolded-title")] == ["All"]
    # The solution stands after what followed it, and before the stamp; links lead there and back.
    assert text.index("After it.") < text.index("x if") < text.index("Executed.")
    there, back = page.select_one(".solution-link a"), page.select_one(".solution-title a")
    assert there is not None
    assert back is not None
    assert (there["href"], back["href"]) == ("#one--printed-solution-1", "#one--printed-exercise-1")
    assert back.get_text() == "Exercise 1"


@pytest.mark.parametrize(
    ("document", "old", "new", "message"),
    [
        ("book/one", "api/two.html#there", "api/two.html#gone", "#api-two--gone"),
        ("book/one", 'href="#here"', 'href="#gone"', "#one--gone"),
        ("book/one", "../_sources/book/one.ipynb", "gone.html", "gone.html, which is not there"),
        ("book/one", 'id="here"', 'id="top"', "'top' stands twice"),
        ("book/api/two", "<h1>Two</h1>", "", "one article with one title"),
        (
            "book/api/two",
            "</section>",
            "</section></article>" + '<article class="bd-article">',
            "one",
        ),
    ],
)
def test_damage_is_noticed(tmp_path: Path, document: str, old: str, new: str, message: str) -> None:
    assert old in ARTICLES[document]
    with pytest.raises(PdfError, match=re.escape(message)):
        joined(tmp_path, **{document: ARTICLES[document].replace(old, new)})


def test_a_missing_page_is_noticed(tmp_path: Path) -> None:
    site = write_site(tmp_path)
    (site / "book/api/two.html").unlink()
    with pytest.raises(PdfError, match="book/api/two: the page was not built"):
        join(site, reading_order(TOC), ABOUT, "..")


def test_a_name_that_two_pages_share_is_noticed() -> None:
    html = '<section id="a"></section><p class="x" id="a"><a href="#b">b</a></p>'
    assert find_problems(html) == [
        "the id 'a' stands twice",
        "a link leads to #b, which is not there",
    ]


def test_the_site_links_to_the_pdf_only_when_it_is_printed(tmp_path: Path) -> None:
    documents = [entry.document for entry in reading_order(TOC)]
    site = write_site(tmp_path)
    assert NAME not in (site / "book/index.html").read_text(encoding="utf-8")
    offer(site, documents, 1207, 31_400_000)
    once = {d: (site / f"{d}.html").read_text(encoding="utf-8") for d in documents}
    front = BeautifulSoup(once["book/index"], "html.parser")
    assert [(a.get_text(), a["title"]) for a in front.select("article a.action")] == [
        ("PDF", "1,207 pages, 31 MB")
    ]
    for document in documents:
        links = BeautifulSoup(once[document], "html.parser").select(f"a[href$='{NAME}']")
        assert [a["href"] for a in links] == ["../" * document.count("/") + NAME]
        in_menu = [a for a in links if a.find_parent("ul", class_="dropdown-menu")]
        assert len(in_menu) == (document != documents[0])
    offer(site, documents, 1207, 31_400_000)  # printed again: nothing is doubled
    assert once == {d: (site / f"{d}.html").read_text(encoding="utf-8") for d in documents}


@pytest.mark.parametrize(
    ("document", "old", "message"),
    [
        ("book/index", OPEN, "book/index: the front page has no"),
        ("book/api/two", MENU, "book/api/two: the page has no download menu"),
    ],
)
def test_a_page_without_a_place_for_the_link_is_noticed_and_nothing_is_written(
    tmp_path: Path, document: str, old: str, message: str
) -> None:
    site = write_site(tmp_path)
    damaged = site / f"{document}.html"
    damaged.write_text(damaged.read_text(encoding="utf-8").replace(old, ""), encoding="utf-8")
    with pytest.raises(PdfError, match=message):
        offer(site, [entry.document for entry in reading_order(TOC)], 1, 1)
    assert not any(NAME in file.read_text(encoding="utf-8") for file in site.rglob("*.html"))


def test_the_front_page_has_a_place_for_the_link() -> None:
    assert OPEN + CLOSE in (ROOT / "book/index.md").read_text(encoding="utf-8")


def test_tokens_without_marks_have_the_colour_of_ink() -> None:
    """They lose their marks on paper, so they must look like the code around them."""
    css = (ROOT / "book/_static/book.css").read_text(encoding="utf-8")
    rule = re.search(r"pre :is\(([^)]*)\) \{\s*color: var\(--book-ink\)", css)
    assert rule is not None
    assert set(re.findall(r"\.(\w+)", rule[1])) == PLAIN_TOKENS


@pytest.mark.parametrize("name", ["contents", "offer", "polish"])
def test_the_examples_are_true(name: str) -> None:
    outcome = doctest.testmod(import_module(f"tools.pdf.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_an_entry_names_its_page() -> None:
    assert Entry("book/05_masks", None, 1).anchor == "05_masks"
