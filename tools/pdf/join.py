"""All pages as one HTML document, with a title page and a table of contents."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import NamedTuple

from bs4 import BeautifulSoup, Tag

from .article import prepare, read_article, target_finder
from .contents import Entry, PdfError

STYLE = Path(__file__).with_name("print.css")
LATE_FONTS = "_static/fonts/fonts.css"  # the site does without a font that is late; paper waits
CONTENTS = "contents"  # the anchor of the table of contents


class About(NamedTuple):
    """What the title page says.

    Attributes:
        title: of the book.
        authors: who wrote it.
        licence: of text and code.
        version: of the sources.
    """

    title: str
    authors: str
    licence: str
    version: str


class Sheet(NamedTuple):
    """A page of the site, ready for paper.

    Attributes:
        entry: which page it is.
        title: its heading.
        html: its article.
    """

    entry: Entry
    title: str
    html: str


class Book(NamedTuple):
    """The book as one document.

    Attributes:
        sheets: its pages in reading order.
        opening: what the front page of the site opens with, for the title page.
        about: what else the title page says.
        styles: the addresses of the site's style sheets.
    """

    sheets: list[Sheet]
    opening: str
    about: About
    styles: list[str]

    def html(self) -> str:
        """Return the document. Its contents have no page numbers before it is printed."""
        sheets = [_printed(sheet) for sheet in self.sheets]
        body = "\n".join([self._title_page(), _table_of_contents(self.sheets), *sheets])
        links = "\n".join(f'<link rel="stylesheet" href="{escape(s)}">' for s in self.styles)
        rules = STYLE.read_text(encoding="utf-8") + _page_heads(self.sheets)
        return (
            '<!doctype html>\n<html lang="en" data-theme="light">\n<head><meta charset="utf-8">\n'
            f"<title>{escape(self.about.title)}</title>\n"
            f'<meta name="author" content="{escape(self.about.authors)}">\n{links}\n'
            f"<style>\n{rules}</style>\n"
            f'</head>\n<body>\n<main class="bd-article">\n{body}\n</main>\n</body>\n</html>\n'
        )

    def _title_page(self) -> str:
        about = self.about
        return (
            f'<section class="title-page"><p class="book-title">{escape(about.title)}</p>\n'
            f'{self.opening}\n<div class="imprint"><p>{escape(about.authors)}</p>\n'
            f"<p>Version {escape(about.version)}. {escape(about.licence)}.</p></div></section>"
        )


def join(site: Path, entries: list[Entry], about: About, styles_from: str) -> Book:
    """Join the built pages.

    Args:
        site: the folder of the built site.
        entries: the pages in reading order.
        about: what the title page says.
        styles_from: where the site is, as seen from the document.

    Raises:
        PdfError: if a page is missing or damaged, or a link leads nowhere.
    """
    by_document = {entry.document: entry for entry in entries}
    opening, sheets = "", []
    for entry in entries:
        article = read_article(site, entry.document)
        if entry.depth == 0:
            opening = _take_opening(article)
        title = prepare(article, entry, target_finder(site, entry, by_document))
        sheets.append(Sheet(entry, title, article.decode_contents()))
    styles = _styles(site, entries[0].document, styles_from)
    book = Book(sheets, opening, about, styles)
    if problems := find_problems(book.html()):
        raise PdfError("The pages do not fit together:\n" + "\n".join(f"  {p}" for p in problems))
    return book


def _take_opening(article: Tag) -> str:
    """Take what the title page and the contents show out of the front page."""
    taken = ""
    for part in article.select(".hero, .specimen"):
        for actions in part.select(".actions"):
            actions.decompose()
        for link in part.select("a"):
            link.unwrap()  # a title page leads nowhere
        taken += str(part.extract())
    for plan in article.select("ul.chapter-plan"):
        section = plan.find_parent("section")
        if section is not None:
            section.decompose()
    if article.h1 is not None:
        article.h1.string = "About this book"
    return taken


def _styles(site: Path, document: str, styles_from: str) -> list[str]:
    """Return the site's own style sheets, as the document has to name them."""
    soup = BeautifulSoup((site / f"{document}.html").read_text(encoding="utf-8"), "html.parser")
    depth = document.count("/")
    found = [str(link["href"]).partition("?")[0] for link in soup.select("link[rel=stylesheet]")]
    found.append("../" * depth + LATE_FONTS)
    return [f"{styles_from}/{path.removeprefix('../' * depth)}" for path in found]


def _printed(sheet: Sheet) -> str:
    part = f'<h1 class="part">{escape(sheet.entry.part)}</h1>\n' if sheet.entry.part else ""
    anchor = escape(sheet.entry.anchor)
    kind = f'class="sheet" style="page: sheet-{anchor}"'
    return f'<section {kind} id="{anchor}">\n{part}{sheet.html}\n</section>'


def _table_of_contents(sheets: Iterable[Sheet]) -> str:
    lines = []
    for sheet in sheets:
        anchor = sheet.entry.anchor
        if sheet.entry.part:
            lines.append(f'<p class="contents-part">{escape(sheet.entry.part)}</p>')
        lines.append(
            f'<p class="contents-line depth-{sheet.entry.depth}"><a href="#{escape(anchor)}">'
            f"<span>{escape(sheet.title)}</span><i></i><b></b></a></p>"
        )
    inner = "\n".join(lines)
    return f'<section class="contents" id="{CONTENTS}">\n<h1>Contents</h1>\n{inner}\n</section>'


def _page_heads(sheets: Iterable[Sheet]) -> str:
    """Give each page of the site a kind of paper of its own, whose head carries its title."""
    rules = []
    for sheet in sheets:
        words = json.dumps(sheet.title, ensure_ascii=False)  # CSS escapes quotes in the same way
        rules.append(f"@page sheet-{sheet.entry.anchor} {{ @top-left {{ content: {words} }} }}")
    return "\n".join(rules) + "\n"


def find_problems(html: str) -> list[str]:
    """Return what is wrong with a joined document: repeated ids, links that lead nowhere."""
    ids = Counter(re.findall(r'<[^>]*?\sid="([^"]*)"', html))
    problems = [f"the id {name!r} stands twice" for name in sorted(ids) if ids[name] > 1]
    for target in sorted(set(re.findall(r'href="#([^"]*)"', html))):
        if target not in ids:
            problems.append(f"a link leads to #{target}, which is not there")
    return problems
