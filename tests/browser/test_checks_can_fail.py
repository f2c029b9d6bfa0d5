"""The checks themselves, fed with pages that are broken on purpose: each must notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_checks import CHECKS, MOST_FILES, visit
from local_site import give_up, serve, skip_reasons
from playwright.sync_api import BrowserContext
from site_links import broken_links, repeated_ids

from tools.browser import find_browser
from tools.verdict import last_line, note

FOLLOW_SYSTEM = """<script>
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const follow = () => { root.dataset.theme = system.matches ? "dark" : "light"; };
  system.addEventListener("change", follow); follow();
</script>"""

SOUND = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A page</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<style>
  body {{ color: #111; background: #fff }}
  [data-theme=dark] body {{ color: #eee; background: #111 }}
</style>{FOLLOW_SYSTEM}</head>
<body><main><article><h1>A sound page</h1>
<p>Costs $5 today and $6 tomorrow. <code>$$</code> is how display math starts.</p>
<p><span class="math"><span class="katex"><span class="katex-mathml">x</span>
<span class="katex-html">x</span></span></span></p>
<svg role="img" width="9" height="9"><title>A figure</title></svg>
<div class="highlight-python">x = 1<button class="copybtn">Copy</button></div>
INSERT</article></main></body></html>"""

# What is added to the sound page, and the check that must notice it.
BROKEN = {
    "external script": (
        '<script src="https://example.org/x.js"></script>',
        "nothing from outside",
    ),
    "external hint": (
        '<link rel="preconnect" href="https://example.org">',
        "nothing from outside",
    ),
    "external font by CSS": (
        "<style>@font-face {font-family: F; src: url(https://example.org/f.woff2)}"
        " h1 {font-family: F}</style>",
        "nothing from outside",
    ),
    "late external request": (
        "<script>fetch('https://example.org/').catch(() => {})</script>",
        "nothing from outside",
    ),
    "missing file": ('<script src="not_there.js"></script>', "no failed request"),
    "console error": ("<script>console.error('oh')</script>", "quiet console"),
    "console warning": ("<script>console.warn('oh')</script>", "quiet console"),
    "exception": ("<script>throw new Error('oh')</script>", "quiet console"),
    "too many bytes": (f"<!-- {'x' * 1_500_000} -->", "light"),
    "too many files": (
        "".join(f'<link rel="stylesheet" href="page.html?{i}">' for i in range(MOST_FILES)),
        "light",
    ),
    "text that jumps": (
        "<p>below</p><script>addEventListener('load', () => setInterval(() => {"
        "const { style } = document.querySelector('h1');"
        "style.marginTop = style.marginTop ? '' : '300px'; }, 50))</script>",
        "nothing jumps",
    ),
    "wide on a desktop": ('<div style="width: 1400px">wide</div>', "fits 1280 px"),
    "wide on a phone": ('<div style="width: 600px">wide</div>', "fits 360 px"),
    "formula left raw": (r'<span class="math">\(x\)</span>', "math is typeset"),
    "formula with an error": (
        '<span class="katex-error">bad</span>',
        "math is typeset",
    ),
    "raw display math": ("<p>$$ x $$</p>", "no raw markup"),
    "raw inline math": ("<p>where $x_1$ is</p>", "no raw markup"),
    "raw TeX": (r"<p>\frac{1}{2}</p>", "no raw markup"),
    "raw delimiter": (r"<p>\(x\)</p>", "no raw markup"),
    "raw role": ("<p>see {eq}`softmax`</p>", "no raw markup"),
    "raw citation": ("<p>{cite:p}`vaswani`</p>", "no raw markup"),
    "raw fence": ("<p>:::{note}</p>", "no raw markup"),
    "raw markup in a closed solution": (
        "<details><summary>Solution</summary>```python</details>",
        "no raw markup",
    ),
    "image without alt": ('<img src="data:image/gif;base64,R0lG">', "pictures are described"),
    "figure without a role": ("<svg><title>A figure</title></svg>", "pictures are described"),
    "controls inside an image": (
        '<svg role="img"><title>A figure</title><g tabindex="0"></g></svg>',
        "pictures are described",
    ),
    "figure without a name": ('<svg role="img"></svg>', "pictures are described"),
    "code without a button": ('<div class="highlight-python">x = 1</div>', "code can be copied"),
    "wide example": (
        f"<dl class='py'><dt>f</dt><dd><pre style='overflow: hidden'>{'wide' * 99}</pre></dd></dl>",
        "examples fit their box",
    ),
    "stays light": (
        "<script>document.documentElement.dataset.theme = 'light';"
        "system.removeEventListener('change', follow);</script>",
        "follows the system's dark mode",
    ),
    "pale text": ('<p style="color: #eee; background: #fff">pale</p>', "axe light"),
    "pale code": (
        "<div class='highlight'><pre><span class='k'>for</span> <span class='k'>in</span> "
        "<span class='c' style='color: #eee'># pale</span></pre></div>",
        "axe light",
    ),
    "wide code that the keyboard cannot scroll": (
        "<pre style='overflow-x: auto'>" + "<span class='n'>wide</span> " * 100 + "</pre>",
        "axe phone",
    ),
    "dark text in the dark": (
        "<style>[data-theme=dark] .dim {color: #222}</style><p class='dim'>dim</p>",
        "axe dark",
    ),
    "a link like the text around it": (
        "<style>a {color: #333; text-decoration: none} p a:first-child {text-decoration: underline}"
        "</style><p><a href='#1'>Seen</a> is one, and <a href='#2'>this</a> cannot be told from the"
        " words around it.</p>",
        "axe light",
    ),
    "a link like the text around it, in the dark": (
        "<style>a {color: #06c; text-decoration: none} [data-theme=dark] a {color: #ccc}</style>"
        "<p>In the dark <a href='#1'>this link</a> cannot be told from the words around it.</p>",
        "axe dark",
    ),
    "button without a name": ("<button></button>", "axe phone"),
    "link without a name": ("<a href='#1'></a>", "axe light"),
    "a list of other things": ("<ul><p>no item</p></ul>", "axe light"),
}

Inspect = Callable[..., dict[str, list[str]]]


@pytest.fixture
def inspect(context: BrowserContext, tmp_path: Path) -> Inspect:
    def inspect_html(addition: str, *checks: str) -> dict[str, list[str]]:
        (tmp_path / "page.html").write_text(SOUND.replace("INSERT", addition), encoding="utf-8")
        with serve(tmp_path) as origin:
            return visit(context, origin, f"{origin}/page.html", checks or CHECKS)

    return inspect_html


def test_a_sound_page_passes_everything(inspect: Inspect) -> None:
    assert inspect("") == {check: [] for check in CHECKS}


@pytest.mark.parametrize(("addition", "check"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_page_is_noticed(addition: str, check: str, inspect: Inspect) -> None:
    assert inspect(addition, check)[check] != []


def test_every_check_is_seen_to_fail() -> None:
    assert {check for _, check in BROKEN.values()} == set(CHECKS)


def test_overflow_names_the_culprit(inspect: Inspect) -> None:
    wide = '<div id="culprit" style="width: 600px">wide</div>'
    (problem,) = inspect(wide, "fits 360 px")["fits 360 px"]
    assert "culprit" in problem


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("gone.html", "no such file"),
        ("other.html#gone", "no such anchor"),
        ("#gone", "no such anchor"),
        ("/other.html", "absolute path"),
        ("../outside.html", "leaves the site"),
    ],
)
def test_a_broken_link_is_noticed(reference: str, complaint: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "outside.html").write_text("outside", encoding="utf-8")
    (site / "other.html").write_text('<p id="here">other</p>', encoding="utf-8")
    sound = '<a href="other.html#here"></a><a href="#top"></a><p id="top"></p>'
    (site / "index.html").write_text(sound, encoding="utf-8")
    assert broken_links(site) == []
    (site / "index.html").write_text(f'{sound}<a href="{reference}"></a>', encoding="utf-8")
    (problem,) = broken_links(site)
    assert complaint in problem


def test_a_repeated_id_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<p id="a"></p><p id="b"></p><p id="a"></p>', "utf-8")
    assert repeated_ids(tmp_path) == ["index.html: id 'a' occurs 2 times"]


def test_a_named_browser_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(FileNotFoundError, match="no-such-browser"):
        find_browser(bundled=tmp_path)


def test_no_browser_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tools.browser.ON_MACOS", ())
    assert find_browser(bundled=tmp_path / "not_installed") is None
    (tmp_path / "installed").touch()
    assert find_browser(bundled=tmp_path / "installed") == str(tmp_path / "installed")


def test_a_missing_browser_fails_only_in_ci() -> None:
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        give_up({"CI": "true"})
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        give_up({})


def test_what_was_skipped_is_written_down(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Without a browser the last line of `make test` says so, and how many tests did not run."""
    hooks = [p for p in pytestconfig.pluginmanager.get_plugins() if "browser" in str(p)]
    assert any(hasattr(plugin, "pytest_terminal_summary") for plugin in hooks)
    place = ("test_pages.py", 7, "Skipped: no Chromium")
    skipped = pytest.TestReport("a test", place, {}, "skipped", place, "setup")
    notes = tmp_path / "notes.json"
    note(skip_reasons([skipped, skipped]), notes)
    line = "make test: all that ran passed, but 2 browser tests were SKIPPED (no Chromium)"
    assert last_line(notes) == line
    note(skip_reasons([]), notes)
    assert last_line(notes) == "make test: everything passed"
    notes.unlink()
    with pytest.raises(FileNotFoundError, match=r"notes\.json: missing; expected `make test-br"):
        last_line(notes)
