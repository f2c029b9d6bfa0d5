"""Where a page sends its reader: forward, and out of the core.

A **reference forward** is a link in the running text to a chapter's page that comes later in
`_toc.yml`, core or further, or its number in words ("chapter 7", "page 3b"). Each one counts, two
to the same page as two. A reader who meets many of them stops trusting that the page can be read
by itself; half a sentence that says the fact does more. Rows of a table that carry a citation are
apart: they list sources. Labs, reference pages and everything that comes before cost nothing.

The **core is closed** if core pages need core pages only. A core page names a further page as
needed if it links one in its sentence "You need: ...", or in a sentence of the running text such as
"You will need [page 3b](...)" or "Read [page 3b](...) first". Each core page is held to this, so
what its needs need is held to it, too. What this cannot see: a sentence that takes for granted what
a further page showed ("[Chapter 13b](...) made one step by hand"). A reader of core pages sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from .numbers import LINK, sentence_spans
from .rulers import page_kind
from .running import Passage, needs_sentence, running_text

_ENTRY = re.compile(r"^ *- file: book/(\w+)$", re.M)
_CHAPTER = r"\d\d[b-z]?_\w+?"
_FURTHER = re.compile(r"\d\d[b-z]_\w+")
_TARGET = re.compile(rf"(?:place:)?({_CHAPTER})(?:\.ipynb)?(?:#.*)?")
_SPOKEN = re.compile(r"\b(?:chapter|page)s? (\d{1,2})([b-z]?)\b", re.I)
_ASKS = re.compile(r"\byou (?:will )?need\b|\bread\b.*\b(?:first|before)\b", re.I)


def reading_order(folder: Path) -> list[str]:
    """The pages of a book in the order of its contents; in a folder without any, by name."""
    contents = folder.parent / "_toc.yml"
    if contents.is_file():
        return _ENTRY.findall(contents.read_text(encoding="utf-8"))
    return sorted(path.stem for path in folder.glob("*.ipynb"))


# --- forward ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """A place that sends the reader on."""

    page: str  # where to
    cell: int


def references_forward(
    notebook: NotebookNode, page: str, order: Sequence[str]
) -> tuple[Reference, ...]:
    """The references of a chapter's page to those that come later.

    Args:
        notebook: the page.
        page: its name.
        order: all pages, as they are read.

    Returns:
        All of them, in the order of the page; of what is no chapter, none.
    """
    if not re.fullmatch(_CHAPTER, page) or page not in order:
        return ()
    later = set(order[order.index(page) + 1 :])
    return tuple(
        Reference(target, passage.cell)
        for passage in running_text(notebook)
        for target in _targets(passage, order)
        if target in later
    )


def _targets(passage: Passage, order: Sequence[str]) -> Iterator[str]:
    """The chapters' pages that a passage names, in links and in words."""
    if passage.text.startswith("|") and "](cite:" in passage.text:
        return
    yield from _linked(passage.text)
    for number, letter in _SPOKEN.findall(LINK.sub(" ", passage.text)):
        begins = f"{int(number):02}{letter}_"
        yield from (page for page in order if page.startswith(begins))


def _linked(text: str) -> Iterator[str]:
    """The chapters' pages that a text links."""
    for link in LINK.finditer(text):
        if match := _TARGET.fullmatch(link["target"].strip("<>")):
            yield match[1]


# --- out of the core --------------------------------------------------------------------------


def further_needs(notebook: NotebookNode) -> tuple[Reference, ...]:
    """The further pages that a core page names as needed, each once; of other pages, none."""
    if page_kind(notebook) != "core":
        return ()
    asking = [(1, needs_sentence(notebook)), *_asking_sentences(notebook)]
    named: dict[str, Reference] = {}
    for cell, sentence in asking:
        for page in filter(_FURTHER.fullmatch, _linked(sentence)):
            named.setdefault(page, Reference(page, cell))
    return tuple(named[page] for page in sorted(named))


def _asking_sentences(notebook: NotebookNode) -> Iterator[tuple[int, str]]:
    """The sentences of the running text that ask for another page, each with its cell."""
    for passage in running_text(notebook):
        for start, end in sentence_spans(passage.text):
            if _ASKS.search(passage.text[start:end]):
                yield passage.cell, passage.text[start:end]
