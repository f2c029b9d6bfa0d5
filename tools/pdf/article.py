"""One page of the site, prepared for paper: its article, with names and links of the whole book."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Comment, Tag

from .contents import Entry, PdfError
from .folds import HEADINGS, classes, print_folds

# What works only on a screen. Headings get their links from the outline.
SCREEN_ELEMENTS = {"script", "style", "template", "button", "nav", "form", "iframe"}
SCREEN_CLASSES = {
    *("headerlink", "launch-bar", "actions", "toctree-wrapper", "only-dark", "file-so-far"),
    *("figure-small", "figure-ways", "figure-file", "live-gallery"),
}
# Tokens that book.css gives the colour of ink.
PLAIN_TOKENS = set(re.findall(r"\w+", "n na ni nl nn no nt nv nx o p vc vg vi vm w x"))
ID_REFERENCES = ("for", "headers", "aria-labelledby", "aria-describedby", "aria-controls")
_ARTICLE = re.compile(r'<article class="bd-article">.*?</article>', re.DOTALL)
_URL_REFERENCE = re.compile(r"url\(\s*([\"']?)#([^)\"']+)\1\s*\)")


def read_article(site: Path, document: str) -> Tag:
    """Return the article of a built page.

    Raises:
        PdfError: if the page is missing, or is not one article with one title.
    """
    file = site / f"{document}.html"
    if not file.is_file():
        raise PdfError(f"{document}: the page was not built")
    # Menus are a good part of a page; what is not printed need not be parsed.
    found = _ARTICLE.findall(file.read_text(encoding="utf-8"))
    article = BeautifulSoup(found[0], "html.parser").article if len(found) == 1 else None
    if article is None or len(article.find_all("h1")) != 1:
        raise PdfError(f"{document}: expected one article with one title")
    return article


def prepare(article: Tag, entry: Entry, find_target: Callable[[str], str | None]) -> str:
    """Make an article ready for paper; return its title.

    Args:
        article: the article of a built page; it is changed.
        entry: the page.
        find_target: gives the anchor in the book for an address on this page, ``None`` for what
            is on the site but not in the book.
    """
    for element in article.find_all(_is_for_screens):
        element.decompose()
    for comment in article.find_all(string=lambda text: isinstance(text, Comment)):
        comment.extract()
    heading = article.h1
    assert heading is not None  # `read_article` saw to it
    title = heading.get_text().strip()
    print_folds(article)
    _set_formulas(article)
    _prefix_ids(article, entry)
    _rewrite_links(article, find_target)
    _lighten_code(article)
    if entry.depth:
        _lower_headings(article)
    return title


def _is_for_screens(element: Tag) -> bool:
    return element.name in SCREEN_ELEMENTS or not SCREEN_CLASSES.isdisjoint(classes(element))


def _set_formulas(article: Tag) -> None:
    """Print each formula once; those who listen hear its TeX."""
    for formula in article.find_all("span", class_="katex"):
        spoken, seen = formula.find(class_="katex-mathml"), formula.find(class_="katex-html")
        if spoken is None or seen is None:
            continue
        tex = spoken.find("annotation")
        formula["role"] = "img"
        formula["aria-label"] = tex.get_text() if tex else spoken.get_text()
        del seen["aria-hidden"]
        spoken.decompose()


def _prefix_ids(article: Tag, entry: Entry) -> None:
    """Put the page's name before each id, and before whatever refers to one inside the page."""
    prefix = f"{entry.anchor}--"
    seen: set[str] = set()
    for element in article.find_all(True):
        if "id" in element.attrs:
            own = str(element["id"])
            if own in seen:
                raise PdfError(f"{entry.document}: the id {own!r} stands twice")
            seen.add(own)
            element["id"] = prefix + own
        for name, value in element.attrs.items():
            if name in ID_REFERENCES:
                element[name] = " ".join(prefix + part for part in _text(value).split())
            elif isinstance(value, str) and "url(" in value:
                element[name] = _URL_REFERENCE.sub(rf"url(#{prefix}\2)", value)
        for name in ("href", "xlink:href"):
            if element.name != "a" and str(element.get(name, "")).startswith("#"):
                element[name] = f"#{prefix}{str(element[name])[1:]}"


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _rewrite_links(article: Tag, find_target: Callable[[str], str | None]) -> None:
    for link in article.find_all("a"):
        address = str(link.get("href", ""))
        del link["title"]  # a meaning shown on hover; paper has none
        if not address:
            link.unwrap()
        elif not urlsplit(address).scheme and not address.startswith("//"):
            target = find_target(address)
            if target is None:
                link.unwrap()
            else:
                link["href"] = f"#{target}"


def _lighten_code(article: Tag) -> None:
    """Drop the marks of tokens that look like the code around them.

    Each would be an element of the tagged PDF: half of the file, and nothing to see or hear.
    """
    for block in article.find_all("pre"):
        for token in block.find_all("span"):
            if PLAIN_TOKENS.issuperset(classes(token)) and "id" not in token.attrs:
                token.unwrap()
        block.smooth()


def _lower_headings(article: Tag) -> None:
    """Make room for the parts, which are the outline's first level."""
    for name, lower in reversed(list(pairwise(HEADINGS))):
        for heading in article.find_all(name):
            heading.name = lower


def target_finder(
    site: Path, entry: Entry, entries: Mapping[str, Entry]
) -> Callable[[str], str | None]:
    """Return what finds the anchor in the book for an address on a page.

    Args:
        site: the folder of the built site.
        entry: the page.
        entries: all pages of the book, by their documents.
    """

    def find(address: str) -> str | None:
        path, _, fragment = address.partition("#")
        target = entry.document
        if path:
            folder = posixpath.dirname(entry.document)
            file = posixpath.normpath(posixpath.join(folder, unquote(path)))
            target = file.removesuffix(".html")
            if target not in entries:
                if (site / file).is_file():
                    return None
                raise PdfError(f"{entry.document}: a link leads to {address}, which is not there")
        anchor = entries[target].anchor
        return f"{anchor}--{unquote(fragment)}" if fragment else anchor

    return find
