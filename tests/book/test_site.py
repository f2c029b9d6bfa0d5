"""The site's own code: what it derives, rewrites and refuses."""

from __future__ import annotations

import doctest
import json
import pkgutil
import re
import signal
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bs4 import BeautifulSoup
from jinja2 import Template
from omissions import differences, fail_on, told

from tools import site
from transformer_book.figures import pictures

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_figures  # noqa: E402
import book_launch  # noqa: E402
import book_pages  # noqa: E402
import book_plan  # noqa: E402
import book_references  # noqa: E402
import book_stamp  # noqa: E402

# --- the repository behind the launch links ---------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "https://github.com/owner/name",
        "https://github.com/owner/name/",
        "https://github.com/owner/name.git",
        "http://github.com/owner/name",
        "https://www.github.com/owner/name",
        "https://token@github.com/owner/name.git",
        "https://user:secret@github.com/owner/name.git",
        "git@github.com:owner/name.git",
        "ssh://git@github.com/owner/name.git",
        "ssh://git@github.com:22/owner/name.git",
        "git://github.com/owner/name.git",
        "github.com/owner/name",
        "  https://github.com/owner/name\n",
    ],
)
def test_addresses_on_github_are_normalised(address: str) -> None:
    assert book_launch.normalise_repository(address) == "owner/name"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/srv/git/book.git",
        "../book",
        "file:///srv/git/owner/name",
        "C:\\books\\transformer",
        "https://example.org/owner/name",
        "https://github.com.example.org/owner/name",
        "https://example.org/github.com/owner/name",
        "https://github.com/owner",
        "https://github.com/owner/name/tree/main",
        "https://github.com/owner/..",
        'https://github.com/owner/na"me',
        "git@localhost:owner/name.git",
    ],
)
def test_other_addresses_give_no_repository(address: str) -> None:
    assert book_launch.normalise_repository(address) is None


def test_a_dot_in_the_name_is_kept() -> None:
    assert book_launch.normalise_repository("git@github.com:o/a.b.git") == "o/a.b"


ORIGIN = "git@github.com:from/origin.git"
ACTIONS = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "from/actions"}


@pytest.mark.parametrize(
    ("environment", "origin", "expected"),
    [
        (
            {"BOOK_REPOSITORY": "https://github.com/from/variable", **ACTIONS},
            ORIGIN,
            "from/variable",
        ),
        (ACTIONS, ORIGIN, "from/actions"),
        ({}, ORIGIN, "from/origin"),
        ({"GITHUB_REPOSITORY": "half/told"}, ORIGIN, "from/origin"),
        ({"BOOK_REPOSITORY": ""}, ORIGIN, None),
        ({"BOOK_REPOSITORY": "/a/local/path", **ACTIONS}, ORIGIN, None),
        ({}, "/a/local/path", None),
        ({}, "", None),
    ],
)
def test_where_the_repository_comes_from(
    environment: dict[str, str], origin: str, expected: str | None
) -> None:
    assert book_launch.find_repository(environment, origin) == expected


def test_where_the_branch_comes_from() -> None:
    both = {"BOOK_BRANCH": "a", "GITHUB_REF_NAME": "b"}
    assert book_launch.find_branch(both) == "a"
    assert book_launch.find_branch({"GITHUB_REF_NAME": "b"}) == "b"
    assert book_launch.find_branch({}) == "main"


def test_launch_links_are_exact() -> None:
    links = book_launch.launch_links("owner/name", "fix/mask", "book/03_attention.ipynb")
    assert links == {
        "Binder": "https://mybinder.org/v2/gh/owner/name/fix%2Fmask"
        "?urlpath=lab%2Ftree%2Fbook%2F03_attention.ipynb",
        "Colab": "https://colab.research.google.com/github/owner/name/blob/fix/mask/"
        "book/03_attention.ipynb",
    }


def test_launch_bar_stands_below_the_title_only() -> None:
    bar = book_launch.launch_bar({"Colab": "https://x.org/?a=1&b=2"})
    assert 'href="https://x.org/?a=1&amp;b=2"' in bar
    assert book_launch.insert_after_title("<h1>T</h1><p>t</p>", "+") == "<h1>T</h1>+<p>t</p>"
    assert book_launch.insert_after_title("<p>no title</p>", "+") == "<p>no title</p>"


def test_a_page_leads_to_its_source_and_to_an_issue_that_names_it() -> None:
    links = book_launch.repository_links("owner/name", "book/05_masks.ipynb", "5 · Masks & more")
    assert links == {
        "repository_link": "https://github.com/owner/name",
        "source_link": "https://github.com/owner/name/blob/HEAD/book/05_masks.ipynb",
        "report_link": "https://github.com/owner/name/issues/new"
        "?title=5%20%C2%B7%20Masks%20%26%20more%3A%20"
        "&body=Page%3A%20book%2F05_masks.ipynb%0A%0AWhat%20is%20wrong%2C%20and%20where%20on%20the%20"
        "page%3F%0A%0A",
    }
    made_by_sphinx = book_launch.repository_links("owner/name", None, "")
    assert list(made_by_sphinx) == ["repository_link"]


FOOT = (ROOT / "book" / "_templates" / "book-footer.html").read_text(encoding="utf-8")


def foot(**context: str | None) -> BeautifulSoup:
    page = Template(FOOT).render(pathto=lambda page: page, citation="A book.", **context)
    return BeautifulSoup(page, "html.parser")


def test_the_foot_says_how_to_report_an_error_when_no_repository_is_known() -> None:
    said = " ".join(foot(source_name="book/05_masks.ipynb").details.get_text().split())
    assert said == (
        "How to report an error Open an issue in the repository that this copy was made from, "
        "and name the source of this page: book/05_masks.ipynb."
    )
    assert "made from." in foot(source_name=None).details.get_text()  # the index has no source


def test_the_foot_leads_to_the_repository_when_it_is_known() -> None:
    links = book_launch.repository_links("owner/name", "book/05_masks.ipynb", "5 · Masks")
    made = foot(source_name="book/05_masks.ipynb", **links)
    addresses = [link["href"] for link in made.select("li a")]
    assert set(links.values()) <= set(addresses)
    assert "How to report an error" not in made.get_text()


def test_examples_of_links_hold() -> None:
    assert doctest.testmod(book_launch).attempted > 0
    assert doctest.testmod(book_launch).failed == 0


def test_a_copy_is_linked_where_its_address_is_known_and_described_where_not() -> None:
    known, unknown = book_launch.copy_words("owner/name"), book_launch.copy_words(None)
    assert "https://github.com/owner/name/archive/HEAD.zip" in known
    assert "`git clone https://github.com/owner/name`" in known
    assert "clone the repository that these pages were made from" in unknown
    assert "http" not in unknown


@pytest.mark.parametrize("page", ["index", "teachers", "colophon", "api/index"])
def test_pages_with_commands_say_how_to_get_a_copy(page: str) -> None:
    text = (ROOT / "book" / f"{page}.md").read_text(encoding="utf-8")
    assert re.search(r"`(?:\.venv/bin/|make |pip )|^make ", text, re.MULTILINE), "no command"
    assert "{get-a-copy}" in text


def test_the_citation_is_what_the_citation_file_says() -> None:
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    line = book_launch.citation(about, None)
    assert about["title"] in line
    assert f"version {about['version']}." in line
    assert "http" not in line
    people = [{"given-names": "A.", "family-names": "B"}, {"name": "C"}]
    cited = {"authors": people, "title": "T", "version": "1", "date-released": "2030-01-02"}
    assert book_launch.citation(cited, None) == "A. B, C (2030). T, version 1."


# --- figures ------------------------------------------------------------------------------------

SVG_OPEN = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
FIGURE = (
    f'<?xml version="1.0"?>{SVG_OPEN} width="300pt" height="150pt" viewBox="0 0 300 150">'
    "<metadata>made by a tool</metadata><title>Weights</title><desc>Rows sum to 1.</desc>"
    "<style>*{stroke-linecap: butt} .a, .b {fill: #1b2733}</style>"
    '<defs><clipPath id="c1"><rect width="9" height="9"/></clipPath><path id="m" d="M0 0"/></defs>'
    '<g clip-path="url(#c1)" style="fill: #0067A5; stroke: #123456"><use xlink:href="#m"/></g>'
    '<text font-size="10" style="font: 600 12px x" fill="#5b6875">q</text></svg>'
)


@pytest.mark.parametrize(("colour", "name"), sorted(book_figures.THEME_COLOURS.items()))
def test_theme_colours_become_variables(colour: str, name: str) -> None:
    assert book_figures.map_colours(f"fill: {colour.upper()};") == f"fill: var(--fig-{name});"


@pytest.mark.parametrize("text", ["#123456", "#0067a5ff", "url(#0067a5)", "x#0067a5", "#0067a"])
def test_all_other_colours_stay(text: str) -> None:
    assert book_figures.map_colours(text) == text


def test_library_and_site_agree_on_the_colours() -> None:
    shades = {"query": "q", "key": "k", "value": "v", "weight": "w"}
    for role, name in shades.items():
        line, fill = pictures.ROLES[role]
        assert book_figures.THEME_COLOURS[line] == name
        assert book_figures.THEME_COLOURS[fill] == f"{name}-soft"
    for name in ("PAPER", "INK", "MUTED", "GRID", "PANEL"):
        assert book_figures.THEME_COLOURS[getattr(pictures, name)] == name.lower()


def inlined(source: str = FIGURE, prefix: str = "p1-") -> ET.Element:
    markup = book_figures.inline_svg(source, prefix)
    match = re.fullmatch(r'<div class="figure-scroll">(.*)</div>', markup, re.DOTALL)
    assert match
    return ET.fromstring(match[1])


def find(root: ET.Element, tag: str) -> ET.Element:
    element = root.find(f".//{{{book_figures.SVG}}}{tag}")
    assert element is not None
    return element


def test_ids_are_unique_for_each_figure_and_references_follow() -> None:
    root = inlined(prefix="p2-")
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    assert all(i.startswith("p2-") for i in ids)
    assert find(root, "g").get("clip-path") == "url(#p2-c1)"
    assert find(root, "use").get(f"{{{book_figures.XLINK}}}href") == "#p2-m"


def test_a_reference_out_of_the_figure_stays() -> None:
    source = f'{SVG_OPEN} viewBox="0 0 9 9"><use xlink:href="#elsewhere"/></svg>'
    assert find(inlined(source), "use").get(f"{{{book_figures.XLINK}}}href") == "#elsewhere"


def test_a_figure_is_named_and_described() -> None:
    root = inlined()
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "p1-title p1-desc"
    assert find(root, "title").text == "Weights"
    assert find(root, "desc").text == "Rows sum to 1."


def test_links_in_a_figure_lead_to_pages_and_can_be_reached() -> None:
    source = f'{SVG_OPEN} viewBox="0 0 9 9"><a href="03_attention.ipynb#x"><text>3</text></a></svg>'
    root = inlined(source)
    assert find(root, "a").get("href") == "03_attention.html#x"
    assert root.get("role") == "group"


def test_a_figure_without_title_gets_one() -> None:
    root = inlined(f'{SVG_OPEN} viewBox="0 0 9 9"/>')
    assert root.get("aria-labelledby") == "p1-title"
    assert find(root, "title").text == "Figure"


def test_style_rules_stay_inside_their_figure() -> None:
    assert find(inlined(), "style").text == (
        "#p1-svg * {stroke-linecap: butt}#p1-svg .a, #p1-svg .b {fill: var(--fig-ink)}"
    )


def test_colours_size_and_metadata_of_an_inlined_figure() -> None:
    root = inlined()
    assert find(root, "g").get("style") == "fill: var(--fig-q); stroke: #123456"
    assert root.find(f"{{{book_figures.SVG}}}metadata") is None
    assert (root.get("width"), root.get("height")) == ("400", "200")


def test_smallest_label_decides_the_narrowest_width() -> None:
    root = ET.fromstring(FIGURE)
    assert book_figures.smallest_label(root) == 10
    # 10 units are 13.33 px at the natural 400 px; 9.5 px are reached at 285 px.
    assert book_figures.legible_width(root) == pytest.approx(400 * 9.5 / (10 * 4 / 3))


def test_a_figure_is_never_stretched_for_a_tiny_label() -> None:
    root = ET.fromstring(f'{SVG_OPEN} viewBox="0 0 100 50"><text font-size="2">x</text></svg>')
    assert book_figures.legible_width(root) == 100


def test_a_figure_without_size_is_refused() -> None:
    with pytest.raises(ValueError, match="viewBox"):
        book_figures.natural_size(ET.fromstring(f"{SVG_OPEN}/>"))


# --- pages --------------------------------------------------------------------------------------


class Script:
    def __init__(self, filename: str | None, body: str = "") -> None:
        self.filename = filename
        self.attributes = {"body": body}


def test_only_thebe_is_removed() -> None:
    assert book_pages.is_thebe_script(Script(None, 'const THEBE_JS_URL = "x"'))
    assert book_pages.is_thebe_script(Script("_static/sphinx-thebe.js"))
    assert not book_pages.is_thebe_script(Script("_static/copybutton.js"))
    assert not book_pages.is_thebe_script(Script(None, "window.book = {}"))


@pytest.mark.parametrize("gap", ["  ", '<span class="w">  </span>'])
def test_marks_for_the_formatter_are_not_shown(gap: str) -> None:
    line = f'<span class="p">)</span>{gap}<span class="c1"># fmt: skip</span>\n'
    assert book_pages.drop_formatter_marks(line) == '<span class="p">)</span>\n'
    comment = '<span class="c1"># format: (B, T)</span>'
    assert book_pages.drop_formatter_marks(comment) == comment


def test_entries_of_the_bibliography_are_items_of_their_list() -> None:
    entry = '<div class="citation" id="id1" role="doc-biblioentry">'
    assert 'role="listitem"' in book_pages.mark_citations_as_items(entry)


def test_names_of_modules_end_a_line_behind_a_dot() -> None:
    assert doctest.testmod(book_pages).attempted > 0
    assert doctest.testmod(book_pages).failed == 0
    plain = '<p>transformer_lib.layers</p><span class="pre">torch.nn.functional</span>'
    assert book_pages.let_modules_break(plain) == plain
    context: dict[str, Any] = {"toc": '<a><span class="pre">transformer_lib.text</span></a>'}
    book_pages._let_contents_break(None, "page", "", context, None)  # type: ignore[arg-type]
    assert "transformer_lib.<wbr>text" in context["toc"]


def test_the_arguments_of_a_long_signature_are_lines() -> None:
    after = "<dl><dt>else</dt><dd>as it was</dd></dl>"
    page = f'<dt class="sig py">f(<dl>\n<dd>a</dd>\n<dd>b</dd>\n</dl>)</dt>{after}'
    one, two = (f'<span class="sig-argument">{name}</span>' for name in "ab")
    lines = f'<span class="sig-arguments">\n{one}\n{two}\n</span>'
    assert book_pages.arguments_as_lines(page) == f'<dt class="sig py">f({lines})</dt>{after}'


def test_plan_lines_are_read() -> None:
    lines = ["03 | 03_attention | Attention: query | by hand", "", "  "]
    assert book_plan.parse_plan(lines) == [("03", "03_attention", "Attention: query", "by hand")]


@pytest.mark.parametrize("line", ["03 | a | b", "03 | a | b |", "03 | a | b | c | d"])
def test_a_damaged_plan_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"number . document . title . promise"):
        book_plan.parse_plan([line])


def test_numbered_words_become_numbered_references() -> None:
    (figure,) = book_references.numbered_reference("Figure", "fig-a", "book/03")
    assert (figure["reftype"], figure["reftarget"]) == ("numref", "fig-a")
    assert figure.astext() == "Figure\N{NO-BREAK SPACE}%s"
    word, equation = book_references.numbered_reference("equation", "eq-a", "book/03")
    assert word.astext() == "equation\N{NO-BREAK SPACE}"
    assert (equation["refdomain"], equation["reftarget"]) == ("math", "eq-a")


@pytest.mark.parametrize(
    ("scheme", "domain", "kind"), [("term", "std", "term"), ("cite", "", "book-citation")]
)
def test_links_by_scheme_become_checked_references(scheme: str, domain: str, kind: str) -> None:
    reference = book_references.named_reference(scheme, "target", "book/03")
    assert (reference["refdomain"], reference["reftype"]) == (domain, kind)
    assert reference["refwarn"]  # so that a link that leads nowhere fails the build


def test_works_know_the_pages_that_cite_them() -> None:
    assert doctest.testmod(book_references).attempted > 0
    assert doctest.testmod(book_references).failed == 0
    citing = book_references.citing_pages()
    assert "03_attention" in citing["vaswani2017attention"]
    keys = set(re.findall(r"@\w+\{(\w+),", (ROOT / "book/references.bib").read_text("utf-8")))
    fail_on(
        f"{book_references.problem_with_citation(key, keys)} (cited in {citing[key][0]})"
        for key in sorted(set(citing) - keys)
    )


def test_a_work_that_the_bibliography_lacks_is_told() -> None:
    told = book_references.problem_with_citation("nobody2030nothing", ["vaswani2017attention"])
    assert told == "book/references.bib has no entry 'nobody2030nothing': add it"


# --- what the finished site must be -------------------------------------------------------------

EXTERNAL = [
    '<script src="https://cdn.example.org/x.js"></script>',
    '<script src="//cdn.example.org/x.js"></script>',
    '<link rel="stylesheet" href="http://example.org/x.css">',
    '<link rel="preconnect" href="https://fonts.example.org">',
    '<link rel="icon" href="HTTPS://example.org/i.png">',
    '<img src="https://example.org/a.png" alt="">',
    '<img src="a.png" srcset="a.png 1x, https://example.org/b.png 2x" alt="">',
    '<iframe src="https://example.org"></iframe>',
    '<video poster="https://example.org/p.png"></video>',
    '<object data="https://example.org/x"></object>',
    '<svg><image href="https://example.org/x.png"/></svg>',
    '<svg><use xlink:href="https://example.org/x.svg#a"/></svg>',
    '<p style="background: url(https://example.org/x.png)">t</p>',
    "<style>@import 'https://example.org/x.css';</style>",
    "<style>@font-face {src: url(//example.org/x.woff2)}</style>",
]
INTERNAL = [
    '<a href="https://example.org">a link that the reader may follow</a>',
    '<script src="../_static/x.js"></script>',
    '<link rel="canonical" href="https://example.org/book/">',
    '<img src="data:image/png;base64,AA//BB==" alt="">',
    '<svg xmlns="http://www.w3.org/2000/svg"><use xlink:href="#a"/></svg>',
    '<script>const url = "https://example.org";</script>',
    '<meta property="og:url" content="https://example.org">',
    '<p style="background: url(../x.png)">t</p>',
]


@pytest.mark.parametrize("markup", EXTERNAL)
def test_what_is_fetched_from_elsewhere_is_found(markup: str) -> None:
    assert len(site.external_resources(f"<html><body>{markup}</body></html>")) == 1


@pytest.mark.parametrize("markup", INTERNAL)
def test_what_stays_at_home_is_left_alone(markup: str) -> None:
    assert site.external_resources(f"<html><body>{markup}</body></html>") == []


def test_style_sheets_are_searched_too() -> None:
    assert site.external_css('a {background: url("https://x.org/a.png")}') == [
        "https://x.org/a.png"
    ]
    assert site.external_css("a {background: url(a.png)} /* https://x.org */") == []


TEXT = "word " * 100
PAGE = f"<html><body><nav>menu</nav><article><h1>T</h1><p>{TEXT}</p></article></body></html>"


def test_empty_pages_are_told_from_full_ones() -> None:
    assert not site.is_empty_page(PAGE)
    assert site.is_empty_page(PAGE.replace(TEXT, "word"))
    assert site.is_empty_page(PAGE.replace("h1", "p"))
    assert site.is_empty_page(f"<body><nav>{TEXT}</nav><article><h1>T</h1></article></body>")
    assert site.is_empty_page(PAGE.replace(f"<p>{TEXT}</p>", f"<script>{TEXT}</script>"))
    assert site.is_empty_page("")


def test_pages_are_read_from_the_contents_in_order() -> None:
    toc = yaml.safe_load(
        "root: book/index\nparts:\n- chapters:\n  - file: book/a.ipynb\n    sections:\n"
        "    - file: book/b\n- chapters:\n  - file: book/c\n  - url: https://example.org\n"
    )
    assert site.toc_pages(toc) == ["book/index", "book/a", "book/b", "book/c"]


def test_problems_of_a_damaged_site_are_named(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text(PAGE, encoding="utf-8")
    (tmp_path / "empty.html").write_text("<article><h1>T</h1></article>", encoding="utf-8")
    (tmp_path / "foreign.html").write_text(PAGE + EXTERNAL[0], encoding="utf-8")
    (tmp_path / "x.css").write_text("a {background: url(https://x.org/a.png)}", encoding="utf-8")
    assert next(site.find_problems(tmp_path, ["good"])).startswith("foreign.html")
    problems = "\n".join(site.find_problems(tmp_path, ["good", "empty", "missing", "foreign"]))
    assert problems.splitlines() == [
        "empty: the page is empty",
        "missing: the page was not built",
        "foreign.html: fetches from another host: <script src='https://cdn.example.org/x.js'>",
        "x.css: fetches from another host: https://x.org/a.png",
    ]
    assert list(site.find_problems(tmp_path / "nowhere", [])) == ["_toc.yml lists no page"]


def test_warnings_are_shown_once_and_without_colour() -> None:
    log = "reading\n\x1b[91ma.md:1: WARNING: x\x1b[39;49;00m\na.md:1: WARNING: x\ndone\n"
    assert site.warnings_in(log) == ["a.md:1: WARNING: x"]


def test_a_failed_build_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, path in {"ROOT": tmp_path, "BUILD": tmp_path / "_build"}.items():
        monkeypatch.setattr(site, name, path)
    monkeypatch.setattr(site, "LOG", tmp_path / "_build" / "log")
    assert site.main(["build"]) == 1  # there is no book in this folder
    assert "The build failed" in capsys.readouterr().err


def test_serving_needs_a_built_site(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(site, "HTML", tmp_path)
    assert site.main(["serve", "--port", "0"]) == 1
    assert "no built site" in capsys.readouterr().err


SERVE = """
import signal, sys
from pathlib import Path
from tools import site

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
site.HTML = Path(sys.argv[1])
sys.exit(site.main(["serve", "--port", "0"]))
"""


def test_the_built_site_is_served_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("the book", encoding="utf-8")
    command = [sys.executable, "-u", "-c", SERVE, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        (address,) = re.findall(r"http://\S+", process.stdout.readline())
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.read() == b"the book"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10) == ("\nStopped.\n", None)
    assert process.returncode == 0


# --- the book's own pages -----------------------------------------------------------------------


# Command lines, and what gathers the reader's file, whose documentation is the book.
NOT_FOR_READERS = {
    *("transformer_lib.__main__", "transformer_book.file.__main__", "transformer_book.your_file"),
}
# Packages that are documented by their own names: their modules are entries of a catalogue.
CATALOGUES = {
    "transformer_book.exercises", "transformer_book.live", "transformer_book.mistakes",
}  # fmt: skip


def modules_of(package: str) -> Iterator[str]:
    """All modules of a package; of a catalogue the package alone."""
    for module in pkgutil.iter_modules([str(ROOT.joinpath(*package.split(".")))]):
        name = f"{package}.{module.name}"
        if name in CATALOGUES or not module.ispkg:
            yield name
        else:
            yield from modules_of(name)


def documented_in(texts: dict[str, str]) -> dict[str, str]:
    """For each module that an API page documents the page; entries of catalogues apart."""
    found = {
        module: page
        for page, text in texts.items()
        for module in re.findall(r"automodule:: ([\w.]+)\n", text)
    }
    for catalogue in CATALOGUES:  # whose pages may add what a catalogue is made with
        found = {m: p for m, p in found.items() if not m.startswith(f"{catalogue}.")}
    return found


def api_problems(modules: set[str], texts: dict[str, str]) -> list[str]:
    """Which modules have no section on an API page or no row in its index, and which are gone.

    Args:
        modules: those that readers should find.
        texts: the API pages by name.
    """
    documented = documented_in(texts)
    packages = {module.rpartition(".")[0] for module in modules}

    def lacks(module: str) -> str:
        path = module.partition(".")[2]
        section = f"(module-{path})=, ## `{module}`, and in {{eval-rst}} .. automodule:: {module}"
        return f"no page in book/api documents {module}: add to the one where it belongs {section}"

    def extra(module: str) -> str:
        where = f"book/api/{documented[module]}.md documents {module}"
        return f"{where}, which is no module for readers: take its section out"

    problems = differences(set(documented) - packages, modules, lacks=lacks, extra=extra)
    for module in documented:
        path, name = module.partition(".")[2], module.rpartition(".")[2]
        has_section = f"### `{module}`\n" in texts["index"]  # a package that has a page
        if not has_section and f"(#module-{path})" not in texts["index"]:
            row = f"| [`{name}`](#module-{path}) | the first line of its docstring |"
            problems.append(f"book/api/index.md has no row for {module}: add {row!r}")
    return problems


def test_every_module_of_the_library_is_documented() -> None:
    modules = {*modules_of("transformer_lib"), *modules_of("transformer_book")} - NOT_FOR_READERS
    pages = site.toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    written = {path.stem: path for path in (ROOT / "book" / "api").glob("*.md")}
    listed = {Path(page).name for page in pages if page.startswith("book/api/")}
    fail_on(toc_problems({f"api/{name}" for name in written}, {f"api/{name}" for name in listed}))
    fail_on(api_problems(modules, {n: p.read_text(encoding="utf-8") for n, p in written.items()}))


API = {
    "index": "| [`a`](#module-a) | A. |\n| [`b`](#module-b) | B. |\n",
    "parts": ".. automodule:: lib.a\n.. automodule:: lib.b\n",
}


@pytest.mark.parametrize(
    ("page", "forgotten", "said"),
    [
        (
            "parts",
            ".. automodule:: lib.b\n",
            "no page in book/api documents lib.b: add to the one where it belongs (module-b)=",
        ),
        ("index", "| [`b`](#module-b) | B. |\n", "book/api/index.md has no row for lib.b: add"),
    ],
)
def test_a_module_that_the_api_lacks_is_told_what_to_write(
    page: str, forgotten: str, said: str
) -> None:
    assert api_problems({"lib.a", "lib.b"}, API) == []
    (problem,) = api_problems({"lib.a", "lib.b"}, {**API, page: API[page].replace(forgotten, "")})
    assert problem.startswith(said)


def test_a_section_of_a_module_that_is_gone_is_told() -> None:
    (problem,) = api_problems({"lib.a"}, API)
    assert problem.startswith("book/api/parts.md documents lib.b, which is no module for readers")


def toc_problems(written: set[str], listed: set[str]) -> list[str]:
    """Which pages the contents lack, and which of their lines lead to no page."""
    return differences(
        listed,
        written,
        lacks=lambda page: f'_toc.yml has no line for book/{page}: add "- file: book/{page}"',
        extra=lambda page: f"_toc.yml has a line for book/{page}, which is no page: take it out",
    )


def test_a_page_that_the_contents_lack_is_told() -> None:
    assert told(toc_problems) == [
        '_toc.yml has no line for book/b: add "- file: book/b"',
        "_toc.yml has a line for book/c, which is no page: take it out",
    ]


def test_every_planned_chapter_that_is_written_is_in_the_contents() -> None:
    front = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
    blocks = re.findall(r":::\{chapter-plan\}\n(.*?):::", front, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    planned = {chapter.document for chapter in book_plan.parse_plan(lines)}
    kinds = ("[0-9]*.ipynb", "lab*.ipynb")  # chapters and labs have numbers
    written = {path.stem for kind in kinds for path in (ROOT / "book").glob(kind)}
    problems = [
        f'book/index.md has no line for {page}: add "NUMBER | {page} | TITLE | what it promises"'
        for page in sorted(written - planned)
    ]
    pages = site.toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    listed = {Path(page).name for page in pages} & (planned | written)
    fail_on(problems + toc_problems(written, listed))


# --- contrast -----------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


def mode_colours(mode: str) -> dict[str, str]:
    css = (ROOT / "book" / "_static" / "book.css").read_text(encoding="utf-8")
    block = re.search(rf'html\[data-theme="{mode}"\] \{{\n(.*?)\n\}}', css, re.DOTALL)
    assert block
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[1]))


def test_contrast_is_computed_as_defined() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_can_be_read_on_every_surface(mode: str) -> None:
    colours = mode_colours(mode)
    surfaces = ["book-paper", "book-side", "book-surface", "fig-panel"]
    texts = ["book-ink", "book-muted", "book-link", *(f"fig-{name}" for name in "qkvw")]
    pairs = [(text, surface) for text in texts for surface in surfaces]
    pairs += [(f"fig-{n}", f"fig-{n}-soft") for n in "qkvw"]
    pairs += [("book-ink", f"fig-{n}-soft") for n in "qkvw"]
    pairs += [("book-link", f"fig-{n}-soft") for n in "qkvw"]
    pairs += [("book-paper", "fig-q"), ("book-paper", "fig-w"), ("book-ink", "book-mark")]
    bad = {
        f"{text} on {surface}": round(ratio, 2)
        for text, surface in pairs
        if (ratio := contrast(colours[text], colours[surface])) < 4.5
    }
    assert bad == {}


def test_both_modes_define_every_theme_colour() -> None:
    names = {f"fig-{name}" for name in book_figures.THEME_COLOURS.values()}
    assert names <= set(mode_colours("light"))
    assert names <= set(mode_colours("dark"))


# --- the stamp at the end of a chapter ----------------------------------------------------------


def test_stamp_says_what_the_notebook_and_the_record_say(tmp_path: Path) -> None:
    cells = [{"outputs": [{}]}, {"outputs": []}, {"outputs": [{}]}, {}]
    executed = {"date": "2026-01-02", "python": "3.12", "torch": "2.9"}
    notebook, record = tmp_path / "x.ipynb", tmp_path / "verified.json"
    notebook.write_text(json.dumps({"cells": cells, "metadata": {"executed": executed}}))
    record.write_text(json.dumps({"chapters": {"x.ipynb": {"compared": 1, "ratio": 0.5}}}))
    line = book_stamp.stamp_of(notebook, record)
    assert "Executed on 2026-01-02 with Python 3.12 and torch 2.9." in line
    assert "1 of 2 outputs" in line


def test_no_stamp_is_made_up_for_a_chapter_that_was_not_run(tmp_path: Path) -> None:
    notebook, record = tmp_path / "x.ipynb", tmp_path / "verified.json"
    notebook.write_text(json.dumps({"cells": [], "metadata": {}}))
    record.write_text(json.dumps({"chapters": {"x.ipynb": {"compared": 0}}}))
    with pytest.raises(ValueError, match=r"x\.ipynb was not executed: run `make note"):
        book_stamp.stamp_of(notebook, record)


def test_a_chapter_that_the_record_lacks_is_told_the_command(tmp_path: Path) -> None:
    notebook, record = tmp_path / "x.ipynb", tmp_path / "verified.json"
    notebook.write_text(json.dumps({"cells": [], "metadata": {"executed": {}}}))
    record.write_text(json.dumps({"chapters": {}}))
    said = r"book/verified\.json has no entry for x\.ipynb: run `make notebooks NB=book/x\.ipynb`"
    with pytest.raises(ValueError, match=said):
        book_stamp.stamp_of(notebook, record)
