"""Numbered references that also read well where nothing numbers them.

A chapter writes ``[Figure](#fig-weights)`` and ``[equation](#eq-attention)``. In JupyterLab and
on Colab these are plain words; in the book they become "Figure 2" and "equation (1)".
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

_NUMBERED_WORD = re.compile(r"(figure|table|equation)", re.IGNORECASE)


def with_number(text: str, number: str) -> str:
    """Add a number to the word "Figure", "Table" or "equation"; leave any other text.

    >>> with_number("Figure", "2"), with_number("equation", "1"), with_number("this", "1")
    ('Figure 2', 'equation (1)', 'this')
    """
    if not _NUMBERED_WORD.fullmatch(text):
        return text
    shown = f"({number})" if text.lower() == "equation" else number
    return f"{text}\N{NO-BREAK SPACE}{shown}"


def _number_references(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for reference in doctree.findall(nodes.reference):
        text = reference.astext()
        if not (reference.get("internal") and _NUMBERED_WORD.fullmatch(text)):
            continue
        target = reference.get("refid") or reference.get("refuri", "").rpartition("#")[2]
        number = _find_number(app, target)
        if number is not None:
            leaf = next(iter(reference.findall(nodes.Text)))
            leaf.parent.replace(leaf, nodes.Text(with_number(text, number)))


def _find_number(app: Sphinx, target: str) -> str | None:
    label = target.removeprefix("equation-")
    equations = app.env.get_domain("math").equations  # type: ignore[attr-defined]
    if label in equations:
        return str(equations[label][1])
    for kinds in app.env.toc_fignumbers.values():
        for numbers in kinds.values():
            if target in numbers:
                return ".".join(map(str, numbers[target]))
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", _number_references)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
