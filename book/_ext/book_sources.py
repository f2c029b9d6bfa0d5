"""The five documents: what they teach and where they err, from one file, ``sources.yml``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book_places import anchor_of, place

FILE = Path(__file__).resolve().parents[1] / "sources.yml"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built
Entry = dict[str, str]


@cache
def entries() -> dict[str, Entry]:
    """Read every entry of the file, by its name, in the order of the names.

    Raises:
        ValueError: if an entry lacks a field.
    """
    text = FILE.read_text(encoding="utf-8")
    chapters: dict[str, dict[str, Entry]] = yaml.load(text, LOADER)
    found = {name: entry for part in chapters.values() for name, entry in part.items()}
    missing = (problem for pair in found.items() for problem in missing_fields(*pair))
    if problem := next(missing, ""):
        raise ValueError(problem)
    return dict(sorted(found.items(), key=lambda pair: natural_key(pair[0])))


def fields_of(name: str) -> tuple[str, ...]:
    """Name the fields that an entry must have: those of an error or of an item.

    >>> fields_of("A-10a")
    ('item', 'at')
    """
    of_errors = ("where", "kind", "order", "title", "says", "true", "at", "shows")
    return of_errors if name.startswith("X-") else ("item", "at")


def missing_fields(name: str, entry: Entry) -> list[str]:
    """Say which fields an entry lacks.

    >>> missing_fields("A-10a", {"at": "05_masks"})
    ['book/sources.yml, A-10a: add "item: ...", which the head of that file explains']
    """
    return [
        f'book/sources.yml, {name}: add "{field}: ...", which the head of that file explains'
        for field in fields_of(name)
        if field not in entry
    ]


def natural_key(name: str) -> list[tuple[int, str]]:
    """Let numbers count as numbers in an order of names.

    >>> sorted(["A-10a", "A-2.1", "A-1.3b"], key=natural_key)
    ['A-1.3b', 'A-2.1', 'A-10a']
    """
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", name)
    ]


def errors_of(source: str) -> dict[str, Entry]:
    """Return the errors of one document, in its own order: those named ``X-`` and its letter."""
    found = {n: e for n, e in entries().items() if n.startswith(f"X-{source}")}
    return dict(sorted(found.items(), key=lambda pair: int(pair[1]["order"])))


def items_of(source: str) -> dict[str, Entry]:
    """Return the teachable items of one source."""
    return {n: e for n, e in entries().items() if n.startswith(f"{source}-")}


def counts() -> dict[str, str]:
    """Count items and corrections by kind, of all documents (``hard``) and of each (``hard_A``).

    >>> sum(int(counts()[f"hard_{letter}"]) for letter in "ABCDE") == int(
    ...     counts()["hard"]
    ... )
    True
    """
    found: dict[str, int] = {}
    for document, suffix in [("[A-E]", ""), *((letter, f"_{letter}") for letter in "ABCDE")]:
        kinds = [e["kind"] for n, e in entries().items() if re.match(f"X-{document}", n)]
        soft = {"misleading": kinds.count("misleading"), "typos": kinds.count("typo")}
        here = {"corrections": len(kinds), "hard": len(kinds) - sum(soft.values()), **soft}
        here["items"] = sum(bool(re.match(f"{document}-", name)) for name in entries())
        found |= {f"{name}{suffix}": number for name, number in here.items()}
    return {name: str(number) for name, number in found.items()}


def page_of(name: str) -> str:
    """Name the page that shows an error.

    >>> page_of("X-A11")
    'sources_a'
    """
    return f"sources_{name[2].lower()}"


def cell_of(name: str) -> str:
    """Name the code cell that shows an error.

    >>> cell_of("X-A11")
    'a11'
    """
    return name[2:].lower()


def heading_of(name: str, entry: Entry) -> str:
    """Return the heading of an error on its page, without the letter of the document.

    >>> heading_of("X-A05", {"title": "A mask that hides nothing"})
    'A5. A mask that hides nothing'
    """
    return f"{name[2]}{int(name[3:])}. {entry['title']}"


def place_of(name: str, entry: Entry) -> str:
    """Return the place that shows an error: ``sources_a#a5-a-mask-that-hides-nothing``."""
    return f"{page_of(name)}#{anchor_of(heading_of(name, entry))}"


class Errata(SphinxDirective):
    """``{errata} A``: the errors of one document, each with a link to the place that shows it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the list."""
        self.env.note_dependency(str(FILE))
        errors = errors_of(self.arguments[0]).items()
        return [nodes.bullet_list("", *(self._item(n, e) for n, e in errors), classes=["errata"])]

    def _item(self, name: str, entry: Entry) -> nodes.list_item:
        words = nodes.Text(heading_of(name, entry))
        line = nodes.paragraph("", "", place(place_of(name, entry), self.env.docname, words))
        line += nodes.Text(" ")
        line += nodes.inline(text=entry["kind"], classes=["erratum-kind"])
        return nodes.list_item("", line, ids=[name.lower()])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("errata", Errata)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
