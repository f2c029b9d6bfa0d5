"""Last touches to each page: no leftover scripts, and toggles that say what they show."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

# What myst-nb calls the hidden part of a cell, and what a reader calls it.
READER_WORDS = {"source": "the code", "output": "the output", "outputs": "the output"}
_TOGGLE = re.compile(
    r'<summary aria-label="Toggle hidden content">\s*'
    r'<p class="collapsed admonition-title">Show code cell (?P<part>\w+)</p>\s*'
    r'<p class="expanded admonition-title">Hide code cell \w+</p>'
)
_CELL = re.compile(r'(?=<div class="cell (?:tag_|docutils))')


def is_thebe_script(script: object) -> bool:
    """Tell whether a page script belongs to thebe, which the book does not use.

    Jupyter Book adds an inline script that declares ``const THEBE_JS_URL`` twice, so that each
    page ends with a console error; thebe would also load its code from a CDN.
    """
    body = getattr(script, "attributes", {}).get("body") or ""
    name = str(getattr(script, "filename", "") or "")
    return "THEBE_JS_URL" in body or "thebe" in name


def name_toggles(body: str) -> str:
    """Let each toggle of a hidden cell say what it shows: the solution, the code, the output.

    The fixed label "Toggle hidden content" goes: it would hide these words from screen readers.
    """
    return "".join(_name_toggles_of_cell(part) for part in _CELL.split(body))


def _name_toggles_of_cell(cell: str) -> str:
    is_solution = "tag_solution" in cell[: cell.find(">")]

    def renamed(match: re.Match[str]) -> str:
        words = "the solution" if is_solution else READER_WORDS.get(match["part"], "the cell")
        return (
            f'<summary><p class="collapsed admonition-title">Show {words}</p>'
            f'<p class="expanded admonition-title">Hide {words}</p>'
        )

    return _TOGGLE.sub(renamed, cell)


def _finish_page(
    _app: Sphinx, _pagename: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    for files in ("script_files", "css_files"):
        context[files] = [file for file in context.get(files, []) if not is_thebe_script(file)]
    if "body" in context:
        context["body"] = name_toggles(context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", _finish_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
