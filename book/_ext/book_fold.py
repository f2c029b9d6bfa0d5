"""Folded cells: each says in one line what it hides, and does not say it again when it is open.

The words come from the cell's metadata, which `python -m tools.notebooks dress` derives from the
title line of its source (``# @title How this table was made: rows``). myst-nb folds the cells; this
extension takes the title line out of the source that is shown, sets the names in it as code, and
drops myst-nb's label "Toggle hidden content", which would hide the words from screen readers. Where
a folded cell answers with a picture or a table, that comes first and the fold below it.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode, HideInputCells
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator

_NAMES = re.compile(r"(.*): ([^\W\d]\w*(?:, [^\W\d]\w*)*)")


def without_title(source: str, title: str) -> str:
    r"""Return the source of a cell without the comment lines that make up its title.

    >>> without_title(
    ...     "# @title How it was made: rows\nrows = []",
    ...     "How it was made: rows",
    ... )
    'rows = []'
    >>> without_title(
    ...     "# @title Imports: math,\n#   torch\nimport math",
    ...     "Imports: math, torch",
    ... )
    'import math'
    >>> without_title("# a comment\nrows = []", "How it was made: rows")
    '# a comment\nrows = []'
    """
    lines = source.split("\n")
    words: list[str] = []
    for line in lines:
        if not line.startswith("#"):
            break
        words.append(line.removeprefix("# @title").removeprefix("#").strip())
        if " ".join(words) == title:
            return "\n".join(lines[len(words) :]).lstrip("\n")
    return source


def summary(prompt: str, *, names: bool) -> str:
    """Return the words of a fold as HTML; with `names`, those after the colon are set as code.

    >>> summary("The order test: moved, words", names=True)
    'The order test: <code>moved</code>, <code>words</code>'
    >>> summary("Solution: A < B", names=False)
    'Solution: A &lt; B'
    """
    match = _NAMES.fullmatch(prompt)
    if not names or not match:
        return escape(prompt, quote=False)
    told = ", ".join(f"<code>{name}</code>" for name in match[2].split(", "))
    return f"{escape(match[1], quote=False)}: {told}"


def visit_fold(self: HTML5Translator, node: HideCodeCellNode) -> None:
    """Open a fold: one line, with other words while it is open if there are such."""
    shown, hidden = (
        summary(node[key], names=node.get("names", False)) for key in ("prompt_show", "prompt_hide")
    )
    words = f"<span>{shown}</span>"
    if hidden != shown:
        words = f'<span class="collapsed">{shown}</span><span class="expanded">{hidden}</span>'
    self.body.append(f'<details class="hide {" ".join(node["classes"])}">\n')
    self.body.append(f"<summary>{words}</summary>\n")


def depart_fold(self: HTML5Translator, _node: HideCodeCellNode) -> None:
    """Close a fold."""
    self.body.append("</details>\n")


class TellOnce(SphinxPostTransform):
    """Take the title line out of the source that a fold shows: it stands above it."""

    default_priority = HideInputCells.default_priority + 1
    formats = ("html",)

    def run(self, **_kwargs: Any) -> None:
        """Shorten the sources of all folded cells of a page."""
        for cell in self.document.findall(nodes.container):
            for fold in cell.children if cell.get("nb_element") == "cell_code" else ():
                if isinstance(fold, HideCodeCellNode):
                    fold["names"] = "tag_solution" not in cell["classes"]
                    _drop_title(fold)
            _answer_first(cell)


def _drop_title(fold: HideCodeCellNode) -> None:
    for block in list(fold.findall(nodes.literal_block)):
        if "cell_input" in block.parent["classes"]:
            source = without_title(block.astext(), fold["prompt_show"])
            block.replace_self(nodes.literal_block(source, source, **block.attributes))


def _answer_first(cell: nodes.container) -> None:
    """Put the code below what it made; tables are marked, for their form on a phone."""
    tables = list(cell.findall(nodes.table))
    if (tables or _has_picture(cell)) and isinstance(cell[0], HideCodeCellNode):
        cell.append(cell.pop(0))
    for table in tables:
        table["classes"].append("plan")


def _has_picture(cell: nodes.container) -> bool:
    """Whether a cell shows a picture, be it still a file or in the page already (book_figures)."""
    files = (image.get("uri", "") for image in cell.findall(nodes.image))
    drawn = (raw.astext() for raw in cell.findall(nodes.raw))
    return any(file.endswith(".svg") for file in files) or any("figure-svg" in svg for svg in drawn)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.setup_extension("myst_nb")
    app.add_node(HideCodeCellNode, override=True, html=(visit_fold, depart_fold))
    app.add_post_transform(TellOnce)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
