"""The order of reading: core pages follow each other, and each offers its further pages.

A notebook says what it is in its metadata, ``"page": {"kind": "core"}``. A chapter has one *core*
page and, after it in ``_toc.yml``, any number of *further* pages that go deeper. *Labs*, pages
*apart*, and whatever is not a notebook stand for themselves. In the menu, further pages hang below
their core page; at the foot of a page, "next" and "previous" pass them by, and a short list offers
them. The way to a page, part and chapter, stands above its title. A notebook that does not say
what it is fails the build.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from bs4 import BeautifulSoup, Tag
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from book_places import short_name

KINDS = ("core", "further", "lab", "apart")
MENU_WIDTH = 32  # characters that fit on one line of the menu
_NUMBERED = re.compile(r"(?:lab)?\d+[a-z]?_")
_ONE_WORD = re.compile(r"\d+[b-z] · \S+")  # as the subject of a further page
_MINUTES = re.compile(r"\*(\d+) minutes to ")
_log = logging.getLogger(__name__)


class About(NamedTuple):
    """What a page says about itself.

    Attributes:
        kind: one of :data:`KINDS`; another value, or none, is a mistake on the page.
        minutes: how long it takes, if it says so.
    """

    kind: str | None
    minutes: int | None


@cache
def about(source: Path) -> About:
    """Read what a page says about itself; what is not a notebook stands apart."""
    if source.suffix != ".ipynb":
        return About("apart", None)
    notebook = json.loads(source.read_text(encoding="utf-8"))
    kind = notebook["metadata"].get("page", {}).get("kind")
    said = _MINUTES.search("".join(notebook["cells"][0]["source"]))
    return About(kind, int(said[1]) if said else None)


def problems(kinds: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield each page whose kind is missing, unknown or out of place, and what is wrong.

    Args:
        kinds: the kind of each document, in the order of the contents.
    """
    in_chapter = False
    for document, kind in kinds.items():
        if kind not in KINDS:
            expected = '"page": {"kind": ...} with ' + ", ".join(KINDS)
            yield document, f"expected {expected} in the notebook's metadata, found {kind!r}"
        elif kind == "further" and not in_chapter:
            yield document, "a further page must follow the core page of its chapter in _toc.yml"
        if kind != "further":
            in_chapter = kind not in ("lab", "apart")


def neighbours(document: str, kinds: Mapping[str, str | None]) -> tuple[str | None, str | None]:
    """Return where "previous" and "next" lead: never to a further page.

    From a further page, "previous" therefore leads back to its core page. Whoever reads on from the
    front page comes to the first chapter: pages apart that stand between the two are passed by.
    """
    pages = list(kinds)
    start = next((n for n, page in enumerate(pages) if kinds[page] == "core"), 0)
    passed = {page for page in pages if kinds[page] == "further"} | set(pages[1:start])
    line = [page for page in pages if page not in passed or page == document]
    place = line.index(document)
    return (
        line[place - 1] if place > 0 else None,
        line[place + 1] if place + 1 < len(line) else None,
    )


def offered(document: str, kinds: Mapping[str, str | None]) -> list[str]:
    """Return the further pages to offer: all of a core page's, on a further page the next one."""
    found: list[str] = []
    pages = list(kinds)
    for page in pages[pages.index(document) + 1 :]:
        if kinds[page] != "further":
            break
        found.append(page)
    return {"core": found, "further": found[:1]}.get(kinds[document] or "", [])


def words_for(way: str, document: str, target: str, kinds: Mapping[str, str | None]) -> str:
    """Return the words above a link at the foot of a page.

    Args:
        way: ``Previous`` or ``Next``.
        document: the page that the link stands on.
        target: the page that it leads to.
        kinds: the kind of each document.
    """
    if way == "Previous" and kinds[document] == "further":
        return f"Back to {short_name(target.rpartition('/')[2])}"
    return f"{way} chapter" if kinds[target] == "core" else way


def short_title(title: str) -> str:
    """Shorten a title to a line of the menu: up to its colon, then to as many parts as fit.

    Of a further page, a single word says too little: its title takes two lines.

    >>> short_title("5 · Masks: who may look at whom")
    '5 · Masks'
    >>> short_title("6c · Heads: shapes, widths and bugs")
    '6c · Heads: shapes, widths and bugs'
    >>> short_title(
    ...     "12b · Teacher forcing, alignment, and a decoder's own words"
    ... )
    '12b · Teacher forcing, alignment'
    """
    subject = title.partition(":")[0]
    if _ONE_WORD.fullmatch(subject):  # what its chapter has for a subject
        return title
    title = subject
    while len(title) > MENU_WIDTH and "," in title:
        title = title.rpartition(",")[0]
    return title


def mark_menu(menu: str, kinds: Mapping[str, str | None]) -> str:
    """Hang further pages below their core pages, shorten titles, and name the current page.

    Args:
        menu: the theme's list of links.
        kinds: the kind of each page, by the address that the menu gives it.
    """
    soup = BeautifulSoup(menu, "html.parser")
    chapter = None
    for entry in soup.select("li.toctree-l1"):
        link = cast(Tag, entry.a)
        kind = kinds.get(str(link["href"]))
        _shorten(link, kind)
        if kind == "further" and chapter is not None:
            _hang_below(chapter, entry, link, soup)
        else:
            chapter = entry if kind == "core" else None
    for link in soup.select("a.current"):
        link["aria-current"] = "page"
    return str(soup)


def _shorten(link: Tag, kind: str | None) -> None:
    title = link.get_text()
    if kind in ("core", "further", "lab") and short_title(title) != title:
        link["title"] = title
        link.string = short_title(title)


def _hang_below(chapter: Tag, entry: Tag, link: Tag, soup: BeautifulSoup) -> None:
    """Move an entry into the list below its chapter, and say what it is to those who listen."""
    if chapter.ul is None:
        chapter.append(soup.new_tag("ul", attrs={"class": "further-pages"}))
    cast(Tag, chapter.ul).append(entry)
    word = soup.new_tag("span", attrs={"class": "visually-hidden"})
    word.string = "further: "
    link.insert(0, word)
    if "current" in entry["class"]:  # then its chapter is open, too
        cast(list[str], chapter["class"]).extend(("current", "active"))


def _kinds(env: BuildEnvironment) -> dict[str, str | None]:
    """Return the kind of each document, in the order of the contents."""
    return {page: _about(env, page).kind for page in env.collect_relations()}


def _about(env: BuildEnvironment, document: str) -> About:
    return about(Path(str(env.doc2path(document))))


def part_of(env: BuildEnvironment, document: str) -> str:
    """Name the part of the contents that a page belongs to; the front page belongs to none."""
    for tree in env.tocs[env.config.root_doc].findall(addnodes.toctree):
        if document in _below(env, tree["includefiles"]):
            return tree["caption"] or ""
    return ""


def _below(env: BuildEnvironment, documents: list[str]) -> Iterator[str]:
    """Yield documents of the contents and their sections."""
    for document in documents:
        yield document
        yield from _below(env, env.toctree_includes.get(document, []))


class Step(NamedTuple):
    """A step of the way from the contents to a page: its words, and the page that it leads to."""

    words: str
    document: str | None


def trail(document: str, part: str, above: str | None, titles: Mapping[str, str]) -> list[Step]:
    """Return the way from the contents to a page: part, chapter, page.

    Args:
        document: the page.
        part: the part of the contents that it belongs to.
        above: the page that it hangs below, if there is one.
        titles: the title of each page, for those that have no number.
    """
    ways = [Step(part, None)]
    if above is not None:
        ways.append(Step(_called(above, titles), above))
    return [*ways, Step(_called(document, titles), None)]


def _called(document: str, titles: Mapping[str, str]) -> str:
    """Name a page in a few words: ``Chapter 5b``, ``Lab 2``, or its title."""
    if not _NUMBERED.match(document.rpartition("/")[2]):
        return titles[document]
    name = short_name(document.rpartition("/")[2])
    return name[0].upper() + name[1:]


def _above(env: BuildEnvironment, document: str, kinds: Mapping[str, str | None]) -> str | None:
    """The page that a page hangs below in the menu: its chapter, or a page with sections."""
    if kinds[document] == "further":
        return neighbours(document, kinds)[0]
    parents = env.collect_relations()[document][:1]
    return parents[0] if parents and parents[0] != env.config.root_doc else None


def _check(_app: Sphinx, env: BuildEnvironment) -> None:
    for document, problem in problems(_kinds(env)):
        _log.warning(problem, location=document)  # a warning fails the build


def _link(app: Sphinx, page: str, pathto: Callable[[str], str]) -> dict[str, Any]:
    builder = cast(StandaloneHTMLBuilder, app.builder)
    title = builder.render_partial(app.env.titles[page])["title"]
    return {"link": pathto(page), "title": title, "minutes": _about(app.env, page).minutes}


def _set_ways(
    app: Sphinx, pagename: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    kinds, pathto = _kinds(app.env), context["pathto"]
    addresses = {pathto(page): kind for page, kind in kinds.items()}
    context["mark_menu"] = partial(mark_menu, kinds=addresses)
    if pagename not in kinds:  # the index and the search are in no contents
        return
    before, after = neighbours(pagename, kinds)
    for name, way, page in (("prev", "Previous", before), ("next", "Next", after)):
        context[name] = None
        if page is not None:
            words = words_for(way, pagename, page, kinds)
            context[name] = {**_link(app, page, pathto), "words": words}
    if part := part_of(app.env, pagename):
        titles = {page: title.astext() for page, title in app.env.titles.items()}
        above = _above(app.env, pagename, kinds)
        context["trail"] = [
            {"words": step.words, "link": step.document and pathto(step.document)}
            for step in trail(pagename, part, above, titles)
        ]
    context["further_pages"] = [_link(app, page, pathto) for page in offered(pagename, kinds)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("env-check-consistency", _check)
    app.connect("html-page-context", _set_ways)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
