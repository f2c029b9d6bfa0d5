"""The glossary leads on: each entry to the place that teaches it, each letter to its first entry.

The places stand in ``terms.yml``, by the first name of an entry. An entry without one fails the
build, and so does a place that is not there. The list ``core`` in the same file is for the notebook
check (``tools/notebooks/terms.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from book_places import in_words, place, problem_with

FILE = Path(__file__).resolve().parents[1] / "terms.yml"
_log = logging.getLogger(__name__)


@cache
def homes() -> dict[str, str]:
    """Read the file: for the first name of each entry the place that teaches it."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: place for name, place in found.items() if name != "core"}


def problem_of(name: str, places: Mapping[str, str]) -> str:
    """Say what is wrong with the place of an entry, and how to mend it; nothing if all is well.

    >>> problem_of("top-a", {"top-k": "16_generation"}).partition(":")[0]
    "book/terms.yml has no line for 'top-a', which book/glossary.md defines"
    >>> problem_of("top-k", {"top-k": "16_generatoin"})
    "book/terms.yml, 'top-k': there is no page book/16_generatoin; did you mean '16_generation'?"
    """
    if name not in places:
        missing = f"book/terms.yml has no line for {name!r}, which book/glossary.md defines"
        return f'{missing}: add "{name}: PAGE#heading", the section that teaches it'
    problem = problem_with(places[name])
    return f"book/terms.yml, {name!r}: {problem}" if problem else ""


class LeadOn(SphinxTransform):
    """Add to each entry of a glossary where it is taught, and put the letters above it."""

    default_priority = 876  # after the terms of the page have their anchors

    def apply(self, **_kwargs: Any) -> None:
        """Change the glossaries of one document, if it has any."""
        for glossary in list(self.document.findall(addnodes.glossary)):
            first_of: dict[str, str] = {}
            for item in glossary.findall(nodes.definition_list_item):
                term = next(iter(item.findall(nodes.term)))
                first_of.setdefault(_letter(term), term["ids"][0])
                self._add_home(item, term)
            parent = glossary.parent
            parent.insert(parent.index(glossary), letters(first_of))

    def _add_home(self, item: nodes.definition_list_item, term: nodes.term) -> None:
        if problem := problem_of(term.astext(), homes()):
            _log.warning(problem, location=term)
            return
        target = homes()[term.astext()]
        link = place(target, self.env.docname, nodes.Text(in_words(target)))
        line = nodes.paragraph("", verb(target), link, classes=["taught-in"])
        next(iter(item.findall(nodes.definition))).append(line)


def verb(target: str) -> str:
    """Say what a place does for a term: a page of questions answers.

    >>> (
    ...     verb("05_masks"),
    ...     verb("20b_questions"),
    ...     verb("questions#do-i-need-a-gpu"),
    ... )
    ('Taught in ', 'Taught in ', 'Answered in ')
    """
    return "Answered in " if target.partition("#")[0] == "questions" else "Taught in "


def _letter(term: nodes.term) -> str:
    return term.astext()[0].upper()


def letters(first_of: dict[str, str]) -> nodes.paragraph:
    """Return a row of letters, each a link to the anchor of its first entry.

    >>> letters({"A": "term-ablation", "B": "term-batch"}).astext()
    'A B'
    """
    row = nodes.paragraph("", classes=["letters"])
    for letter, anchor in first_of.items():
        row += nodes.Text(" " if row.children else "")
        row += nodes.reference("", letter, refid=anchor, internal=True)
    return row


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_transform(LeadOn)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
