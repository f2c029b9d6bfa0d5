"""The file that the reader writes: its cells are marked, and each offers the file so far.

A cell with the tag ``your-file`` gets a line above it, in words. Its link leads to the file as far
as that page has brought it, which is written beside the pages when the site is built.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from transformer_book.your_file import TAG, all_pieces, gather

FOLDER = "files"


def file_name(page: str) -> str:
    """Name the file as it stands at the end of a page.

    >>> file_name("05_masks")
    'transformer_05.py'
    """
    return f"transformer_{page.partition('_')[0]}.py"


def line(page: str) -> str:
    """Return the line above a cell of the file.

    >>> line("05_masks").partition(" <a")[0]
    '<p class="your-file"><span class="your-file-mark">your file</span>'
    """
    address = escape(f"{FOLDER}/{file_name(page)}")
    link = f'<a class="file-so-far" href="{address}" download>the file so far</a>'
    return f'<p class="your-file"><span class="your-file-mark">your file</span> {link}</p>'


class MarkCells(SphinxPostTransform):
    """Say of each cell of the file that it is one."""

    default_priority = 400
    formats = ("html",)

    def run(self, **_kwargs: Any) -> None:
        """Mark the cells of a page."""
        page = self.env.docname.rpartition("/")[2]
        for cell in list(self.document.findall(nodes.container)):
            if f"tag_{TAG}" in cell["classes"]:
                cell.insert(0, nodes.raw("", line(page), format="html"))


def write_states(app: Sphinx, error: Exception | None) -> None:
    """Write the file as it stands at the end of each page that adds to it."""
    if error is not None or app.builder.format != "html":
        return
    for folder in sorted({document.rpartition("/")[0] for document in app.env.found_docs}):
        pieces = all_pieces(Path(app.srcdir, folder))
        for page in dict.fromkeys(piece.page for piece in pieces):
            target = Path(app.outdir, folder, FOLDER, file_name(page))
            target.parent.mkdir(parents=True, exist_ok=True)
            so_far = [piece for piece in pieces if piece.page <= page]
            target.write_text(gather(so_far), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.setup_extension("myst_nb")
    app.add_post_transform(MarkCells)
    app.connect("build-finished", write_states)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
