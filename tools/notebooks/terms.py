"""Core terms: each is defined before it is used, by whoever reads only core pages, in order.

The list `core` in `terms.yml` says which core page defines which term. Names and their synonyms are
those of the glossary, and everyday words ("key", "score") count where their paragraph speaks of the
matter. A term is *defined* on a page if the sentence of its first use in the running text has it in
bold, alone or with few other words: ``the **[hidden state](<term:hidden state>)**``. It is also
known there if the sentence "You need: ..." under the title names it.

So a page may use a core term if an earlier core page is to define it, if it defines the term
itself, or if it names the term as a prerequisite. The page that is to define a term must do so.
Each page is judged by itself and the list: one that fails to define its term is told so, and those
after it are not.

What this cannot see: whether a bold sentence explains anything, a term in another form ("masked"),
and a word with two senses, such as "weight", which is no core term for that reason.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from nbformat import NotebookNode

from .model import BOOK, NotebookError, show
from .numbers import LINK, sentence_spans
from .rulers import MARKUP, page_kind
from .running import needs_sentence, running_text

sys.path.insert(0, str(BOOK / "_ext"))

from book_words import CONTEXT, parse_glossary, pattern, speaks_of

FILE_NAME, GLOSSARY = "terms.yml", "glossary.md"
CORE = "core"  # the key of the list; all others are terms
MAX_OTHER_WORDS = 2  # in bold beside a term: a sentence in bold defines nothing

_BOLD = re.compile(r"\*\*(?=\S)(.+?)(?<=\S)\*\*")
_WORD = re.compile(r"\w[\w'’-]*")

Span = tuple[int, int]


# --- the list ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CoreTerms:
    """Which core page defines which term, and all names of all terms."""

    homes: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # for each name of the glossary its term

    @classmethod
    def of(cls, folder: Path) -> CoreTerms:
        """Read the list of a book; a folder without one has no core terms.

        Raises:
            NotebookError: if a term stands on two pages, or not in the glossary.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            return cls()
        listed = yaml.safe_load(path.read_text(encoding="utf-8")).get(CORE, {})
        names = _names((folder / GLOSSARY).read_text(encoding="utf-8"))
        homes: dict[str, str] = {}
        for page, terms in listed.items():
            for term in terms:
                if names.get(term) != term:
                    raise NotebookError(
                        f"{show(path)}: core, {page}: {term!r} is not the first name of an entry "
                        f"of {GLOSSARY}"
                    )
                if homes.setdefault(term, page) != page:
                    where = f"{homes[term]} and {page}"
                    raise NotebookError(f"{show(path)}: core: {term!r} stands on {where}; keep one")
        return cls(homes, names)


def _names(glossary: str) -> dict[str, str]:
    """For each name of the glossary the first name of its entry."""
    first: dict[str, str] = {}
    return {
        name: first.setdefault(definition.meaning, name)
        for name, definition in parse_glossary(glossary).items()
    }


# --- terms in a text --------------------------------------------------------------------------


@dataclass(frozen=True)
class Use:
    """A term where it first stands on a page."""

    term: str
    cell: int | None  # None: it stands nowhere
    sentence: str
    home: str  # the page that is to define it


@dataclass(frozen=True)
class _Found:
    """A term in a block."""

    term: str
    span: Span
    is_bold: bool


def undefined_terms(
    notebook: NotebookNode, page: str, order: Sequence[str], core: CoreTerms
) -> tuple[Use, ...]:
    """The core terms that a core page uses before they are defined, or fails to define.

    Args:
        notebook: the page.
        page: its name.
        order: all pages, as they are read.
        core: the list.

    Returns:
        Each with its first use, in the order of the page; of other pages, none.
    """
    if page_kind(notebook) != "core" or page not in order:
        return ()
    named = _bare(needs_sentence(notebook))[0]
    before = set(order[: order.index(page)])
    asked = {
        term: home
        for term, home in core.homes.items()
        if home not in before and not _is_named(term, named, core)
    }
    first = _first_uses(notebook, core)
    unused = [
        Use(t, None, "", page) for t, home in asked.items() if home == page and t not in first
    ]
    early = [
        Use(term, cell, sentence, asked[term])
        for term, (cell, sentence, is_defined) in first.items()
        if term in asked and not is_defined
    ]
    return (*early, *unused)


def _is_named(term: str, text: str, core: CoreTerms) -> bool:
    """Whether a text has one of the names of a term."""
    return any(pattern(name).search(text) for name, of in core.names.items() if of == term)


def _first_uses(notebook: NotebookNode, core: CoreTerms) -> dict[str, tuple[int, str, bool]]:
    """For each term of a page the cell, the sentence of its first use, and if that defines it."""
    first: dict[str, tuple[int, str, bool]] = {}
    for passage in running_text(notebook):
        text, linked = _bare(passage.text)
        found = sorted(_found(text, linked, core), key=lambda one: one.span)
        for start, end in sentence_spans(text) if found else ():
            here = [one for one in found if start <= one.span[0] < end]
            bold = {one.term for one in here if one.is_bold}
            for one in here:
                sentence = " ".join(text[start:end].split())
                first.setdefault(one.term, (passage.cell, sentence, one.term in bold))
    return first


def _bare(text: str) -> tuple[str, list[tuple[Span, str]]]:
    """A text without links and markup, and where links to the glossary stood, with their terms."""
    bare, end = "", 0
    linked: list[tuple[Span, str]] = []
    for link in LINK.finditer(text):
        bare += MARKUP.sub(" ", text[end : link.start()])
        kind, _, name = link["target"].strip("<>").partition(":")
        shown = " " if kind == "cite" else link["text"]
        if kind == "term":
            linked.append(((len(bare), len(bare) + len(shown)), name))
        bare, end = bare + shown, link.end()
    return bare + MARKUP.sub(" ", text[end:]), linked


def _found(text: str, linked: list[tuple[Span, str]], core: CoreTerms) -> Iterator[_Found]:
    """Every term in a block; of names that overlap, the longest, and links before all."""
    bold = [match.span() for match in _BOLD.finditer(text)]
    taken: list[Span] = []
    for span, name in linked:
        taken.append(span)
        yield _Found(core.names.get(name, name), span, _is_bold(span, bold, text))
    for name in sorted(core.names, key=len, reverse=True):
        if name[1:-1] not in text:  # all its forms have this; most names are not there
            continue
        in_context = name not in CONTEXT or speaks_of(name, text)
        for match in pattern(name).finditer(text):
            span = match.span()
            is_bold = _is_bold(span, bold, text)
            if (in_context or is_bold) and all(span[1] <= a or b <= span[0] for a, b in taken):
                taken.append(span)
                yield _Found(core.names[name], span, is_bold)


def _is_bold(span: Span, bold: Sequence[Span], text: str) -> bool:
    """Whether a term stands in bold, with few other words."""
    own = len(_WORD.findall(text[slice(*span)]))
    return any(
        start <= span[0]
        and span[1] <= end
        and len(_WORD.findall(text[start:end])) - own <= MAX_OTHER_WORDS
        for start, end in bold
    )
