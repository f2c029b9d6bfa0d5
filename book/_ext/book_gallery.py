"""Every figure as a small picture with its words, by chapter, and as a file to download.

``{figure-list}`` shows all figures that the notebooks store, ``{live-gallery}`` those that have a
live form. A figure's words are its caption on its page; a live figure's, the question that it
answers; those of the others stand in ``captions.yml``. A figure without words fails the build.
"""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from transformer_book.paths import Page

from book_figures import natural_size
from book_front import BOOK, MarkdownDirective, pages
from book_moved import address_of
from book_places import anchor_of, place, short_name

CAPTIONS = BOOK / "captions.yml"
LICENCE = "CC BY 4.0"
_ELSEWHERE = {"play": "further down on this page", "index": "on the front page"}
_LIVE = re.compile(r'<svg [^>]*data-live="([a-z-]+)"')
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.DOTALL)


class Drawing(NamedTuple):
    """A figure as a notebook stores it.

    Attributes:
        page: its page, such as ``03_attention``.
        anchor: where it stands on the page: the cell that draws it, or a heading.
        file: its own file, seen from the book's folder.
        title: its title.
        caption: its words, in Markdown; empty if nobody has written any.
        live: the name of its live form, or nothing.
        svg: the drawing.
    """

    page: str
    anchor: str
    file: str
    title: str
    caption: str
    live: str
    svg: str

    @property
    def place(self) -> str:
        """Where it stands in the book."""
        return f"{self.page}#{self.anchor}".rstrip("#")


@cache
def written_captions() -> dict[str, str]:
    """Read the words of figures that have no caption on their page, by their places."""
    found: dict[str, str] = yaml.safe_load(CAPTIONS.read_text(encoding="utf-8")) or {}
    return found


@cache
def live_figures() -> dict[str, Any]:
    """Read what live figures say of themselves."""
    path = BOOK / "_static" / "live" / "figures.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@cache
def drawings(page: str) -> list[Drawing]:
    """Read the figures of a page, in order."""
    cells = json.loads((BOOK / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    found: list[Drawing] = []
    for cell in cells:
        shown = (output.get("data", {}) for output in cell.get("outputs", []))
        for svg in ("".join(d["image/svg+xml"]) for d in shown if "image/svg+xml" in d):
            title = html.unescape(_TITLE.search(svg)[1])  # type: ignore[index]
            mark = _LIVE.search(svg)
            live = mark[1] if mark else ""
            question = live_figures().get(live, {}).get("question")
            own = cell["metadata"].get("mystnb", {}).get("figure", {}).get("caption", "")
            words = own or question or written_captions().get(f"{page}#{cell['id']}")
            file, anchor = f"figures/{page}-{len(found) + 1}.svg", f"cell-{cell['id']}"
            found.append(Drawing(page, anchor, file, title, words or "", live, svg))
    return found


def all_drawings() -> list[Drawing]:
    """Return the figures of all pages, in the order of the pages."""
    return [drawing for page in pages() for drawing in drawings(page)]


def picture(drawing: Drawing, seen_from: str) -> str:
    """Show a figure small, as a link to where it stands.

    The browser gets a picture when it comes near the screen. The title beside it is the same link,
    so Tab and those who listen are led to that one alone.
    """
    width, height, _ = natural_size(ET.fromstring(drawing.svg))
    return (
        f'<a class="figure-small" href="{address_of(drawing.place, seen_from)}" tabindex="-1"'
        f' aria-hidden="true"><img src="{drawing.file}" alt="" role="presentation"'
        f' loading="lazy" width="{width:.0f}" height="{height:.0f}"/></a>'
    )


def offer(drawing: Drawing) -> str:
    """Offer a figure as a file, with its size and its licence."""
    size = max(1, round(len(drawing.svg.encode()) / 1000))
    return (
        f'<p class="figure-file"><a href="{drawing.file}" download>'
        f"Download, SVG, {size} kB</a> · {LICENCE}</p>"
    )


class Gallery(MarkdownDirective):
    """What the two directives have in common: a card for each figure."""

    def cards(self, of: Iterable[Drawing], last: Callable[[Drawing], str]) -> nodes.container:
        """Make the cards.

        Args:
            of: the figures.
            last: gives the last line of a figure's card, as HTML.
        """
        gallery = nodes.container(classes=["figure-gallery"])
        for drawing in of:
            if not drawing.caption:
                where = drawing.place.replace("#cell-", "#")
                remedy = f'write a caption in its cell, or "{where}: ..." in book/captions.yml'
                raise self.error(f"the figure {drawing.title!r} has no words: {remedy}")
            title = place(drawing.place, self.env.docname, nodes.Text(drawing.title))
            gallery += nodes.container(
                "",
                nodes.raw("", picture(drawing, "figures"), format="html"),
                nodes.paragraph("", "", title, classes=["figure-title"]),
                *self.read(drawing.caption),
                nodes.raw("", last(drawing), format="html"),
                classes=["figure-card"],
            )
        return gallery


class FigureList(Gallery):
    """Every figure of the chapters, by chapter: a picture, its words, its file."""

    def run(self) -> list[nodes.Node]:
        """Write a gallery for each page that has figures, and a line that leads to each chapter."""
        shown = [page for page in pages().values() if drawings(page.name)]
        made: list[nodes.Node] = [nodes.raw("", self._ways(shown), format="html")]
        for page in shown:
            link = f'<a href="{page.name}.html">{html.escape(f"{page.number} · {page.title}")}</a>'
            heading = f'<h2 class="plan-part" id="{_anchor(page)}">{link}</h2>'
            made += [nodes.raw("", heading, format="html"), self.cards(drawings(page.name), offer)]
        return made

    def _ways(self, shown: Iterable[Page]) -> str:
        links = (f'<a href="#{_anchor(page)}">{page.number}</a>' for page in shown)
        return f'<p class="figure-ways">Figures of {" ".join(links)}</p>'


def _anchor(page: Page) -> str:
    return f"figures-of-{re.sub(r'[^a-z0-9]+', '-', page.name)}"


class LiveGallery(Gallery):
    """The live figures as they stand still: each leads to the page that has it."""

    def run(self) -> list[nodes.Node]:
        """Write the gallery."""
        gallery = self.cards(live_drawings(), self._play)
        gallery["classes"].append("live-gallery")  # left out on paper
        return [gallery]

    def _play(self, drawing: Drawing) -> str:
        page = pages().get(drawing.page)
        where = "in " + short_name(drawing.page) if page else _ELSEWHERE[drawing.page]
        return f'<p class="figure-file">Live {where}</p>'


def live_drawings() -> list[Drawing]:
    """Return the still picture of each live figure on its own page; other pages may show it too."""
    own = {name: about["page"] for name, about in live_figures().items()}
    stored = [each for each in all_drawings() if each.live and each.page == own[each.live]]
    others = set(live_figures()) - {drawing.live for drawing in stored}
    return [*stored, *(_kept(name) for name in sorted(others))]


def _kept(name: str) -> Drawing:
    """A live figure of a page that is no notebook: its picture is a file of its own."""
    about = live_figures()[name]
    page, file = about["page"], f"_static/live/{about['pictures'][0]}"
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    above = re.findall(r"^##+ (.+)$", text.partition(f"{{live-figure}} {name}\n")[0], re.MULTILINE)
    anchor = anchor_of(above[-1]) if above else ""
    svg = (BOOK / file).read_text(encoding="utf-8")
    return Drawing(page, anchor, f"../{file}", about["title"], about["question"], name, svg)


def write_drawings(app: Sphinx, error: Exception | None) -> None:
    """Write the files that the galleries show, beside their pages."""
    if error is None and "book/figures" in app.env.found_docs:
        folder = Path(app.outdir) / "book" / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        for drawing in all_drawings():
            (folder.parent / drawing.file).write_text(drawing.svg, encoding="utf-8")


def add_style(
    app: Sphinx,
    _page: str,
    _template: str,
    _context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Give a page with a gallery its style sheet; the others are lighter without it."""
    boxes = doctree.findall(nodes.container) if doctree is not None else ()
    if any("figure-gallery" in box["classes"] for box in boxes):
        app.add_css_file("gallery.css")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("figure-list", FigureList)
    app.add_directive("live-gallery", LiveGallery)
    app.connect("html-page-context", add_style)
    app.connect("build-finished", write_drawings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
