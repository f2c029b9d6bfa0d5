"""The order of the pages, as ``_toc.yml`` gives it, with the parts that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple


class PdfError(Exception):
    """The book cannot be printed as it should be."""


class Entry(NamedTuple):
    """One page of the book.

    Attributes:
        document: its name in ``_toc.yml``.
        part: the caption of the part that begins with it, if one does.
        depth: 0 for the root, 1 for a chapter, 2 and more for pages below a chapter.
    """

    document: str
    part: str | None
    depth: int

    @property
    def anchor(self) -> str:
        """The name that the page's own anchors begin with.

        >>> Entry("book/api/layers", None, 2).anchor
        'api-layers'
        """
        return self.document.removeprefix("book/").replace("/", "-")


def reading_order(toc: dict[str, Any]) -> list[Entry]:
    """Return the pages of a ``_toc.yml`` in reading order.

    >>> toc = {
    ...     "root": "index",
    ...     "parts": [{"caption": "One", "chapters": [{"file": "a"}]}],
    ... }
    >>> [
    ...     (page.document, page.part, page.depth)
    ...     for page in reading_order(toc)
    ... ]
    [('index', None, 0), ('a', 'One', 1)]
    """
    entries = [Entry(_name(toc["root"]), None, 0)]
    for part in toc.get("parts", []):
        for number, entry in enumerate(_below(part.get("chapters", []), 1)):
            entries.append(entry._replace(part=part["caption"]) if number == 0 else entry)
    entries += _below(toc.get("chapters", []), 1)
    names = [entry.anchor for entry in entries]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise PdfError(f"_toc.yml has pages with the same name: {', '.join(sorted(repeated))}")
    return entries


def _below(chapters: list[dict[str, Any]], depth: int) -> Iterator[Entry]:
    for chapter in chapters:
        yield Entry(_name(chapter["file"]), None, depth)
        yield from _below(chapter.get("sections", []), depth + 1)


def _name(file: str) -> str:
    return re.sub(r"\.(ipynb|md)$", "", file)
