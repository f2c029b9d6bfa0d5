"""The link to the PDF, on the site: only where there is one, so that no link is ever broken.

The front page has a place for it among its buttons, an empty pair of comments, and no download
menu. In the download menu of every other page it is one more line. Both are written again whenever
the book is printed.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from tools.light.icons import with_drawn_icons

from .contents import PdfError

NAME = "the-executable-transformer.pdf"
OPEN, CLOSE = "<!-- pdf -->", "<!-- /pdf -->"
_PLACE = re.compile(f"{re.escape(OPEN)}.*?{re.escape(CLOSE)}", re.DOTALL)
_MENU = re.compile(r'(<div class="dropdown dropdown-download-buttons">.*?)(</ul>)', re.DOTALL)


def megabytes(size: int) -> str:
    """Return a size as readers say it.

    >>> megabytes(12_345_678)
    '12 MB'
    """
    return f"{max(1, round(size / 1e6))} MB"


def offer(site: Path, documents: list[str], pages: int, size: int) -> None:
    """Link to the PDF from the front page and from the download menu of every other page.

    Args:
        site: the folder of the built site, in which the PDF is.
        documents: the pages of the book; the first one is the front page.
        pages: how many pages the PDF has.
        size: its size in bytes.

    Raises:
        PdfError: if a page has no place for the link; then none is written.
    """
    for file, html in linked(site, documents, f"{pages:,} pages, {megabytes(size)}").items():
        file.write_text(html, encoding="utf-8")


def linked(site: Path, documents: list[str], size: str) -> dict[Path, str]:
    """Return what the pages of a site are with their links to the PDF; nothing is written.

    Args:
        site: the folder of the built site.
        documents: the pages of the book; the first one is the front page.
        size: the size of the PDF, in words.

    Raises:
        PdfError: if a page has no place for the link.
    """
    found = {}
    for document in documents:
        file = site / f"{document}.html"
        html = file.read_text(encoding="utf-8")
        address = posixpath.relpath(NAME, posixpath.dirname(document) or ".")
        if document == documents[0]:
            found[file] = _on_front_page(html, address, size, document)
        else:
            found[file] = _in_menu(html, address, document)
    return found


def _in_menu(html: str, address: str, document: str) -> str:
    line = with_drawn_icons(
        f'{OPEN}<li><a class="btn btn-sm dropdown-item" href="{address}">'
        '<span class="btn__icon-container"><i class="fas fa-book"></i></span> '
        f'<span class="btn__text-container">whole book, .pdf</span></a></li>{CLOSE}'
    )
    menu = _MENU.search(html)
    if menu is None:
        raise PdfError(f"{document}: the page has no download menu to put the PDF into")
    without = _PLACE.sub("", menu[1])
    return html[: menu.start()] + without + line + menu[2] + html[menu.end() :]


def _on_front_page(html: str, address: str, size: str, document: str) -> str:
    link = f'{OPEN}<a class="action reference" href="{address}" title="{size}">PDF</a>{CLOSE}'
    head, article, rest = html.partition('<article class="bd-article">')
    if not article or not _PLACE.search(rest):
        raise PdfError(f"{document}: the front page has no {OPEN}{CLOSE} to put the PDF into")
    return head + article + _PLACE.sub(lambda _: link, rest, count=1)
