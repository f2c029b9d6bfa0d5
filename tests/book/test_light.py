"""Light pages: what is taken out of a built site, and what must stay."""

from __future__ import annotations

import doctest
from base64 import b64encode
from pathlib import Path
from types import ModuleType

import pytest

from tools.light import drawings, lighten, pages, styles
from tools.light.drawings import short_path, with_lighter_drawings
from tools.light.icons import UnknownIconError, with_drawn_icons
from tools.light.styles import rules_of, used_part, whole_sheet, without_icon_font

PAGE = """<html><head>
<link rel="stylesheet" href="../_static/theme.css?v=1" />
<link href="../_static/book.css" rel="stylesheet" />
<script defer src="../_static/scripts/fontawesome.js?digest=1"></script>
<script src="../_static/first.js"></script>
<script src="../_static/documentation_options.js"></script>
<script src="../_static/doctools.js"></script>
<script src="../_static/sphinx_highlight.js"></script>
<script src="../_static/searchtools.js"></script>
<script src="../_static/language_data.js"></script>
<script src="../searchindex.js"></script>
</head><body><p class="note"><i class="fa-solid fa-sun" aria-hidden="true"></i>INSERT</p>
<script defer="defer" src="../_static/second.js?v=2"></script></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    files = {
        "book/page.html": PAGE,
        "index.html": '<meta http-equiv="Refresh" content="0; url=book/page.html" />',
        "_static/theme.css": '@import "more/more.css";.note{color:red}.gone{color:blue}',
        "_static/more/more.css": ".open{background:url('../picture.svg')}.never{color:blue}",
        "_static/book.css": ".note{color:green}",
        "_static/first.js": "document.body.classList.add('open') // no newline",
        "_static/second.js": "second()",
        "_static/documentation_options.js": "options()",
        "_static/doctools.js": "tools()",
        "_static/sphinx_highlight.js": "highlight()",
        "_static/searchtools.js": "search()",
        "_static/language_data.js": "language()",
        "_static/scripts/fontawesome.js": "never",
        "_static/vendor/fontawesome/font.woff2": "",
        "_static/picture.svg": "<svg/>",
        "_static/macros.html": "{{ a template }}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    lighten(tmp_path)
    return tmp_path


def test_scripts_that_come_later_are_sent_without_their_comments(tmp_path: Path) -> None:
    live = tmp_path / "_static" / "live"
    live.mkdir(parents=True)
    (live / "figures.json").write_text('{"a": {"later": ["b.js"]}, "c": {}}', encoding="utf-8")
    text = "/* What. */\nrun(); // (T,)\nconst at = 'a // b';\n"
    for name in ("b.js", "c.js"):
        (live / name).write_text(text, encoding="utf-8")
    lighten(tmp_path)
    assert (live / "b.js").read_text(encoding="utf-8") == "run();\nconst at = 'a // b';\n"
    assert (live / "c.js").read_text(encoding="utf-8") == text  # a page has it in its own script


def joined(site: Path, page: str, kind: str) -> list[str]:
    """What stands in the files of this kind that a page loads."""
    html = (site / page).read_text(encoding="utf-8")
    names = [part.split('"')[0] for part in html.split("_static/book-")[1:]]
    files = [site / "_static" / f"book-{name}" for name in names if name.endswith(kind)]
    return [file.read_text(encoding="utf-8") for file in files]


def test_a_page_has_one_sheet_with_what_it_uses_in_the_old_order(site: Path) -> None:
    (sheet,) = joined(site, "book/page.html", "css")
    assert sheet == ".open{background:url(picture.svg)}.note{color:red}.note{color:green}"


def test_a_page_has_one_script_in_the_old_order_without_the_search(site: Path) -> None:
    html = (site / "book/page.html").read_text(encoding="utf-8")
    (script,) = joined(site, "book/page.html", "js")
    assert html.count("<script defer") == 1
    assert script.index("classList") < script.index("second()")
    assert "\n;\nsecond()" in script  # a comment at a file's end must not swallow the next one
    assert "search" not in script
    assert "highlight" not in script
    assert "language" not in script
    assert "searchindex" not in html


def test_the_icon_font_is_gone_and_icons_are_drawn(site: Path) -> None:
    html = (site / "book/page.html").read_text(encoding="utf-8")
    assert '<svg class="fa-solid fa-sun" aria-hidden="true"' in html
    assert "<i " not in html
    assert "fontawesome" not in html
    assert not list(site.rglob("*fontawesome*"))


def test_pages_that_only_lead_on_and_templates_stay_as_they_are(site: Path) -> None:
    assert "Refresh" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "_static/macros.html").read_text(encoding="utf-8") == "{{ a template }}"


def test_the_code_font_is_fetched_ahead_only_where_there_is_code(tmp_path: Path) -> None:
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/theme.css").write_text("a{b:c}", encoding="utf-8")
    sheet = '<link rel="stylesheet" href="_static/theme.css" />'
    (tmp_path / "plain.html").write_text(sheet, encoding="utf-8")
    (tmp_path / "code.html").write_text(f"{sheet}<code>", encoding="utf-8")
    lighten(tmp_path)
    assert "jetbrains-mono" not in (tmp_path / "plain.html").read_text(encoding="utf-8")
    assert "jetbrains-mono" in (tmp_path / "code.html").read_text(encoding="utf-8")


def test_fonts_of_formulas_are_inside_the_sheet_that_asks_for_them(tmp_path: Path) -> None:
    (tmp_path / "_static/katex/fonts").mkdir(parents=True)
    (tmp_path / "_static/katex/fonts/KaTeX_Main-Regular.woff2").write_bytes(b"letters")
    names = ("KaTeX_Main-Regular", "KaTeX_Size1-Regular")
    faces = "".join(f"@font-face{{src:url(fonts/{name}.woff2)}}" for name in names)
    (tmp_path / "_static/katex/katex.css").write_text(faces, encoding="utf-8")
    sheet = '<link rel="stylesheet" href="_static/katex/katex.css" />'
    (tmp_path / "page.html").write_text(sheet, encoding="utf-8")
    lighten(tmp_path)
    (sheet,) = joined(tmp_path, "page.html", "css")
    assert sheet.count(f"url(data:font/woff2;base64,{b64encode(b'letters').decode()})") == 1
    assert sheet.count("url(katex/fonts/KaTeX_Size1-Regular.woff2)") == 1


def test_only_fonts_that_are_asked_for_ahead_are_optional(tmp_path: Path) -> None:
    (tmp_path / "_static/fonts").mkdir(parents=True)
    face = "@font-face{font-display: swap;src:url(%s.woff2)}"
    letters, symbols = face % "source-sans-3-latin-wght-normal", face % "book-symbols-sans"
    (tmp_path / "_static/fonts/fonts.css").write_text(letters + symbols, encoding="utf-8")
    sheet = '<link rel="stylesheet" href="_static/fonts/fonts.css" />'
    (tmp_path / "page.html").write_text(sheet, encoding="utf-8")
    lighten(tmp_path)
    (sheet,) = joined(tmp_path, "page.html", "css")
    first, second = sheet.split("@font-face")[1:]
    assert "optional" in first
    assert "swap" in second


@pytest.mark.parametrize("icon", ["<span class='fa-sun'>text</span>", "<b class='fa-sun'>"])
def test_an_icon_that_is_left_stops_the_build(icon: str) -> None:
    with pytest.raises(UnknownIconError, match="not drawn"):
        with_drawn_icons(icon.replace("'", '"'))


def test_an_icon_may_be_a_span_and_is_hidden_from_screen_readers() -> None:
    drawn = with_drawn_icons('<span class="fa-solid fa-bars"></span>')
    assert drawn.startswith('<svg class="fa-solid fa-bars" aria-hidden="true"')


def test_an_icon_that_nobody_has_drawn_stops_the_build() -> None:
    with pytest.raises(UnknownIconError, match="fa-dragon"):
        with_drawn_icons('<i class="fa-solid fa-dragon"></i>')


@pytest.mark.parametrize(
    ("css", "kept"),
    [
        (".used{a:b}", True),
        (".gone{a:b}", False),
        (".used .gone{a:b}", False),
        ("#gone{a:b}", False),
        ("p{a:b}", True),
        (".used:not(.gone){a:b}", True),  # matches just because there is no such class
        (".used:is(.gone,.used){a:b}", True),
        ("[class*=gone]{a:b}", True),
        ("[data-x='.gone']{a:b}", True),
        ("@media print{.used{a:b}}", True),
        ("@media print{.gone{a:b}}", False),
        ("@supports (a:b){@media print{.gone{a:b}}}", False),
        ("@font-face{font-family:F}", True),
        ("@keyframes k{0%{a:b}}", True),
        (r".used\:x{a:b}", False),
    ],
)
def test_only_rules_that_cannot_match_are_left_out(css: str, kept: bool) -> None:
    assert used_part(css, frozenset({"used"})) == (css if kept else "")


def test_of_several_selectors_the_used_ones_stay() -> None:
    assert used_part(".gone,.used,p.gone{a:b}", frozenset({"used"})) == ".used{a:b}"


def test_braces_and_semicolons_in_strings_do_not_end_a_rule() -> None:
    css = '.a::before{content:"}"}.b{content:"\\"{"}'
    assert [head for head, _ in rules_of(css)] == [".a::before", ".b"]


def test_a_brace_that_is_never_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match="never closed"):
        list(rules_of(".a{b:c"))


def test_a_missing_import_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@import "gone.css";', encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"gone\.css"):
        whole_sheet(tmp_path / "a.css", tmp_path)


def test_addresses_follow_the_sheet_and_data_stays(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    css = ".a{b:url(x.svg?v=1#y)}.c{d:url(data:image/png;base64,AA)}.e{f:url('#g')}"
    (tmp_path / "deep/a.css").write_text(css, encoding="utf-8")
    moved = whole_sheet(tmp_path / "deep/a.css", tmp_path)
    assert moved == ".a{b:url(deep/x.svg?v=1#y)}.c{d:url(data:image/png;base64,AA)}.e{f:url('#g')}"


def test_rules_of_an_icon_font_go_also_inside_of_a_media_query() -> None:
    css = r'@media print{.a:after{content:"\f107";font-family:Font Awesome\ 6}.b{c:d}}'
    assert without_icon_font(css) == "@media print{.b{c:d}}"


@pytest.mark.parametrize("module", [drawings, pages, styles])
def test_the_examples_in_the_docstrings_hold(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


FIGURE = """<svg role="img" aria-labelledby="t"><title id="t">A</title><defs>
 <path id="m" d="M 0 0  L 0 3  "/><path id="n" d="M 0 0"/></defs>
 <g id="axes"> <g id="empty"/>
 </g>
 <text x="1" transform="rotate(-0 1 2)"><tspan>a</tspan>
 <tspan>b</tspan></text><use href="#m"/></svg>"""


def test_a_figure_keeps_what_something_refers_to_and_the_spaces_of_its_text() -> None:
    light = with_lighter_drawings(f'<p id="p">{FIGURE}</p>')
    assert light == (
        '<p id="p"><svg role="img" aria-labelledby="t"><title id="t">A</title><defs>'
        '<path id="m" d="M0 0V3"/><path d="M0 0"/></defs>\n <text x="1"><tspan>a</tspan>\n '
        '<tspan>b</tspan></text><use href="#m"/></svg></p>'
    )


def test_icons_and_other_drawings_are_left_alone() -> None:
    icon = '<svg id="i"><path d="M 1 2"/></svg>'
    assert with_lighter_drawings(icon) == icon


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("M 1 2 L 3 2 L 3 4 z", "M1 2H3V4z"),
        ("M 1 2 Q 3 4 5 6 L 5 7", "M1 2Q3 4 5 6L5 7"),  # a curve's end is not kept
        ("M 1 2 L 3 2 L 3 4 L 3 4", "M1 2H3V4H3"),
        ("M 1 2 L 1e-05 2", "M 1 2 L 1e-05 2"),
        ("M 1,2 L 3,2", "M1 2H3"),
        ("M 1 2 L 3 2 5 6", "M1 2L3 2 5 6"),
    ],
)
def test_paths_stay_where_they_are(path: str, short: str) -> None:
    assert short_path(path) == short
