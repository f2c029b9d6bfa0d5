"""A small good notebook whose cells are independent, so that each can be damaged on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

DRAWING = """
class Picture:
    def __init__(self, height):
        self.summary = f"A chart with one bar of height {height:.0f}."
        self.svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" '
            'viewBox="0 0 100 50" role="img">'
            f"<title>Bar</title><desc>{self.summary}</desc>"
            f'<rect x="10" y="10" width="20" height="{height:.2f}" '
            'fill="#0067a5"/>'
            '<text x="10" y="45">one bar</text></svg>'
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"image/svg+xml": self.svg, "text/plain": self.summary}
""".strip()

FIGURE = "Picture(3.0)"
RAISES = 'raise ValueError("meant: 3")'

# id -> source. Cells whose name begins with "raise" are tagged as raising.
SOURCES = {
    "drawing": DRAWING,
    "control": 'print("total 3.25")',
    "value": "20 + 22",
    "digit": 'print("total 3.25")',
    "blanked": 'print("total 3.25")',
    "forgotten": 'print("total 3.25")',
    "uncounted": 'print("total 3.25")',
    "source": 'print("total 3.25")',
    "silent": "quiet = 1",
    "order": 'print("first")\nPicture(2.0)',
    "skipped": 'print("total 3.25")',
    "figure-control": FIGURE,
    "figure-number": FIGURE,
    "figure-last-digit": FIGURE,
    "figure-colour": FIGURE,
    "figure-text": FIGURE,
    "figure-summary": FIGURE,
    "figure-data": FIGURE,
    "figure-dropped": FIGURE,
    "raise-control": RAISES,
    "raise-message": RAISES,
    "raise-traceback": RAISES,
    "raise-gone": RAISES,
    "raise-nothing": RAISES,
}

SVG = "image/svg+xml"


def build() -> NotebookNode:
    """The notebook before it is run, with the litter that editors leave."""
    source = '# @title Set-up for Colab\nREPOSITORY = ""  \n'
    setup = new_code_cell(source, id="setup", metadata={"tags": ["remove-cell"]})
    cells = [new_markdown_cell("# A good chapter \n", id="title"), setup]
    for name, source in SOURCES.items():
        tags = {"tags": ["raises-exception"]} if name.startswith("raise") else {}
        cells.append(new_code_cell(source, id=name, metadata={**tags, "collapsed": False}))
    return new_notebook(cells=cells, metadata={"widgets": {"state": {}}, "title": "x"})


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.id == name)


def number(notebook: NotebookNode, name: str) -> int:
    return 1 + [c.id for c in notebook.cells].index(name)


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook as it is, damaged or not."""
    path.write_text(nbformat.v4.writes(notebook) + "\n", encoding="utf-8")


# --- ways to damage one cell ------------------------------------------------------------------

Damage = Callable[[NotebookNode], None]


def change_source(old: str, new: str) -> Damage:
    def damage(victim: NotebookNode) -> None:
        assert old in victim.source
        victim.source = victim.source.replace(old, new)

    return damage


def change_stream(old: str, new: str) -> Damage:
    def damage(victim: NotebookNode) -> None:
        assert old in victim.outputs[0].text
        victim.outputs[0].text = victim.outputs[0].text.replace(old, new)

    return damage


def change_data(kind: str, old: str, new: str) -> Damage:
    def damage(victim: NotebookNode) -> None:
        data = victim.outputs[0].data
        assert old in data[kind]
        data[kind] = data[kind].replace(old, new)

    return damage


def change_error(key: str, old: str, new: str) -> Damage:
    def damage(victim: NotebookNode) -> None:
        error = victim.outputs[0]
        assert old in str(error[key])
        if key == "traceback":
            error[key] = [frame.replace(old, new) for frame in error[key]]
        else:
            error[key] = error[key].replace(old, new)

    return damage


def drop_outputs(victim: NotebookNode) -> None:
    assert victim.outputs
    victim.outputs = []


def drop_count(victim: NotebookNode) -> None:
    assert victim.execution_count
    victim.execution_count = None


def swap_outputs(victim: NotebookNode) -> None:
    assert len(victim.outputs) == 2
    victim.outputs.reverse()


def tag(name: str) -> Damage:
    def damage(victim: NotebookNode) -> None:
        victim.metadata["tags"] = [*victim.metadata.get("tags", []), name]

    return damage


def both(*damages: Damage) -> Damage:
    def damage(victim: NotebookNode) -> None:
        for one in damages:
            one(victim)

    return damage
