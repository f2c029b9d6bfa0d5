"""Picture the built book for the README: `python -m tools.cover`, or `make cover`.

Beside the picture stands a list of what it shows: the pages in the sidebar, and a digest of the
sections. It is computed from the sources, without a browser, so that a test can tell when the book
has moved on and the picture has not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]
from playwright.sync_api import Browser, sync_playwright

from tools.browser import NO_BROWSER, find_browser, has_sandbox
from tools.notebooks.model import NotebookError, cell_digest, load, show, write_atomically
from tools.notebooks.parts import sections_of
from tools.site import HTML, ROOT, toc_pages

PICTURE = ROOT / "book" / "_static" / "readme-cover.png"
SHOWN = PICTURE.with_suffix(".json")
HEIGHT = 980
# The links of the sidebar that are seen whole, by the addresses that they lead to.
_LINKS = """(height) => [...document.querySelectorAll(".bd-sidebar-primary nav a[href]")]
    .filter((link) => link.getBoundingClientRect().bottom <= height)
    .map((link) => new URL(link.href).pathname)"""


class Shot(NamedTuple):
    """One half of the picture: the page, the heading at its top, the sidebar, the colours."""

    page: str
    heading: str
    anchor: str
    scheme: str
    width: int
    sidebar: bool


SHOTS = (
    Shot("book/03_attention", "", "", "light", 1100, sidebar=True),
    Shot("book/03_attention", "What breaks", "what-breaks", "dark", 700, sidebar=False),
)


# --- what it shows ----------------------------------------------------------------------------


def title_of(page: str) -> str:
    """The first heading of a page of the book.

    Raises:
        NotebookError: if there is none.
    """
    path = source_of(page)
    text = load(path).cells[0].source if path.suffix == ".ipynb" else path.read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("# "):
            return str(line.removeprefix("# "))
    raise NotebookError(f"{show(path)}: expected a heading `# Title`")


def source_of(page: str) -> Path:
    """The file that a page is made from."""
    notebook = ROOT / f"{page}.ipynb"
    return notebook if notebook.exists() else ROOT / f"{page}.md"


def section_digest(page: str, heading: str) -> str:
    """A digest of what stands in one section: its words, its code, what the code has printed.

    Raises:
        NotebookError: if the page has no such section.
    """
    for section in sections_of(load(source_of(page))):
        if section.heading == heading:
            content = [section.text.strip(), *(cell_digest(cell) for cell in section.code)]
            return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    raise NotebookError(f"{show(source_of(page))}: expected a section {heading!r}")


def what_it_shows(n_links: int) -> dict[str, Any]:
    """All that the picture shows, as the sources have it now.

    Args:
        n_links: how many pages of the contents can be read in the sidebar.
    """
    contents = toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    return {
        "sidebar": {page: title_of(page) for page in contents[1 : 1 + n_links]},
        "sections": {f"{s.page}: {s.heading}": section_digest(s.page, s.heading) for s in SHOTS},
    }


# --- the picture ------------------------------------------------------------------------------


def make_cover(html: Path = HTML) -> None:
    """Take the picture and write down what it shows.

    Raises:
        NotebookError: if the site is missing or older than a page that is shown, if there is no
            browser, or if the sidebar is not the beginning of the contents.
    """
    for shot in SHOTS:
        require_built(html / f"{shot.page}.html", source_of(shot.page))
    with sync_playwright() as playwright:
        executable = find_browser(bundled=Path(playwright.chromium.executable_path))
        if executable is None:
            raise NotebookError(NO_BROWSER)
        browser = playwright.chromium.launch(
            executable_path=executable, chromium_sandbox=has_sandbox()
        )
        halves = [take(browser, shot, html) for shot in SHOTS]
        picture = join(browser, [picture for picture, _ in halves])
        browser.close()
    links = [link for _, links in halves for link in links]
    shown = what_it_shows(len(links))
    if links != [f"{page}.html" for page in shown["sidebar"]]:
        raise NotebookError(f"the sidebar shows {links}; expected the beginning of _toc.yml")
    PICTURE.write_bytes(picture)
    digest = hashlib.sha256(picture).hexdigest()
    write_atomically(SHOWN, json.dumps({"picture": digest, **shown}, indent=2, ensure_ascii=False))
    print(f"{show(PICTURE)}: {len(picture):,} bytes, {len(links)} pages in the sidebar")


def require_built(page: Path, source: Path) -> None:
    """See that a page was built after its source was last written."""
    if not page.is_file() or page.stat().st_mtime < source.stat().st_mtime:
        raise NotebookError(f"{show(page)}: older than {show(source)}; run `make book` first")


def take(browser: Browser, shot: Shot, html: Path) -> tuple[bytes, list[str]]:
    """Take one half; returns it and the pages in its sidebar."""
    page = browser.new_page(viewport={"width": shot.width, "height": HEIGHT})
    scheme: Any = shot.scheme
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto((html / f"{shot.page}.html").as_uri())
    page.evaluate("document.fonts.ready")
    if shot.anchor:
        page.evaluate("(anchor) => document.getElementById(anchor).scrollIntoView()", shot.anchor)
    links: list[str] = []
    if shot.sidebar:
        page.evaluate("document.querySelector('.bd-sidebar-primary').scrollTo(0, 0)")
        links = [_below(html, path) for path in page.evaluate(_LINKS, HEIGHT)]
    picture = page.screenshot()
    page.close()
    return picture, links


def _below(html: Path, path: str) -> str:
    """The address of a built page, relative to the site."""
    return Path(path).relative_to(html).as_posix()


def join(browser: Browser, halves: list[bytes]) -> bytes:
    """Put pictures side by side."""
    page = browser.new_page(viewport={"width": sum(s.width for s in SHOTS), "height": HEIGHT})
    images = "".join(
        f'<img src="data:image/png;base64,{base64.b64encode(half).decode()}">' for half in halves
    )
    page.set_content(f'<body style="margin:0;display:flex">{images}</body>')
    picture = page.screenshot()
    page.close()
    return picture


def main() -> int:
    """Make the cover; returns the exit status."""
    try:
        make_cover()
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
