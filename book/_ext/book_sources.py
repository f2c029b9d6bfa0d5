"""The pages on the five sources, made of one file: ``sources.yml``.

``{errata} A`` lists the errors of source A: what it says, what is true, and the cell that shows it.
``{taught} A`` lists its items, each with the heading that teaches it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book_places import in_words, place

FILE = Path(__file__).resolve().parents[1] / "sources.yml"
Entry = dict[str, str]


@cache
def entries() -> dict[str, Entry]:
    """Read every entry of the file, by its name, in the order of the names."""
    chapters: dict[str, dict[str, Entry]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    found = {name: entry for part in chapters.values() for name, entry in part.items()}
    return dict(sorted(found.items(), key=lambda pair: natural_key(pair[0])))


def natural_key(name: str) -> list[tuple[int, str]]:
    """Let numbers count as numbers in an order of names.

    >>> sorted(["A-10a", "A-2.1", "A-1.3b"], key=natural_key)
    ['A-1.3b', 'A-2.1', 'A-10a']
    """
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", name)
    ]


def errors_of(source: str) -> dict[str, Entry]:
    """Return the errors of one source: those whose name begins with ``X-`` and its letter."""
    return {n: e for n, e in entries().items() if n.startswith(f"X-{source}")}


def items_of(source: str) -> dict[str, Entry]:
    """Return the teachable items of one source."""
    return {n: e for n, e in entries().items() if n.startswith(f"{source}-")}


class _OneSource(SphinxDirective):
    """A directive whose only argument is the letter of a source."""

    required_arguments = 1

    def link_to(self, target: str, *words: nodes.Node) -> nodes.Node:
        """Refer to a place in the book."""
        self.env.note_dependency(str(FILE))
        return place(target, self.env.docname, *words)

    def heading_link(self, target: str) -> list[nodes.Node]:
        """Name the page and the heading of a place, as one link."""
        words = in_words(target)
        return [self.link_to(target, nodes.Text(words[0].upper() + words[1:]))]


class Errata(_OneSource):
    """The errors of one source."""

    def run(self) -> list[nodes.Node]:
        """Make one block for each."""
        return [self._block(name, entry) for name, entry in errors_of(self.arguments[0]).items()]

    def _block(self, name: str, entry: Entry) -> nodes.Node:
        block = nodes.container("", ids=[name.lower()], classes=["erratum"])
        head = nodes.paragraph("", classes=["erratum-head"])
        head += nodes.strong(text=name.removeprefix("X-"))
        head += nodes.Text(f" {entry['where']} ")
        head += nodes.inline(text=entry["kind"], classes=["erratum-kind"])
        block += head
        block += self._line("Says.", self.parse_words(entry["says"]))
        block += self._line("True.", self.parse_words(entry["true"]))
        page = entry["at"].partition("#")[0]
        cell = self.link_to(f"{page}#cell-{entry['cell']}", nodes.Text("a cell"))
        shown = nodes.literal(text=entry["shows"])
        block += self._line(
            "Evidence.",
            [
                *(*self.heading_link(entry["at"]), nodes.Text(": "), cell),
                *(nodes.Text(" whose output contains "), shown, nodes.Text(".")),
            ],
        )
        if "fair" in entry:
            block += self._line("In fairness.", self.parse_words(entry["fair"]))
        return block

    def parse_words(self, text: str) -> list[nodes.Node]:
        """Read the Markdown of one value."""
        holder = nodes.container()
        self.state.nested_parse([text], self.content_offset, holder)  # type: ignore[arg-type]
        return list(holder.children[0].children) if holder.children else []

    @staticmethod
    def _line(label: str, words: list[nodes.Node]) -> nodes.paragraph:
        line = nodes.paragraph()
        line += nodes.inline(text=label, classes=["erratum-label"])
        line += nodes.Text(" ")
        line.extend(words)
        return line


class Taught(_OneSource):
    """The teachable items of one source, and where each is taught."""

    def run(self) -> list[nodes.Node]:
        """Make the list."""
        items = [self._item(name, e) for name, e in items_of(self.arguments[0]).items()]
        return [nodes.bullet_list("", *items, classes=["taught"])]

    def _item(self, name: str, entry: Entry) -> nodes.list_item:
        line = nodes.paragraph()
        line += nodes.strong(text=name)
        line += nodes.Text(f" {entry['item'].rstrip('.')}. ")
        line.extend(self.heading_link(entry["at"]))
        return nodes.list_item("", line, ids=[name.lower().replace(".", "-")])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("errata", Errata)
    app.add_directive("taught", Taught)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
