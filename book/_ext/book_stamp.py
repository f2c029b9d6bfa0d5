"""A line at the end of each chapter: when and with what it was run, and how much is compared.

Both come from what the notebook machinery stored, so the line cannot claim more than was done.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

_log = logging.getLogger(__name__)


def stamp(executed: Mapping[str, Any], compared: int, with_output: int) -> str:
    """Return the line for one chapter.

    Args:
        executed: the stamp that execution left in the notebook.
        compared: cells with output that every test run compares.
        with_output: all cells with output.
    """
    words = (
        f"Executed on {executed['date']} with Python {executed['python']} and "
        f"torch {executed['torch']}. Every test run executes the chapter again and compares "
        f"{compared} of {with_output} outputs with what you see."
    )
    return f'<p class="verified-stamp">{html.escape(words)}</p>'


def stamp_of(notebook: Path, record: Path) -> str:
    """Return the line for a stored notebook.

    Raises:
        ValueError: if it was never executed, or if nobody has recorded what is compared of it.
    """
    content = json.loads(notebook.read_text(encoding="utf-8"))
    chapters = json.loads(record.read_text(encoding="utf-8"))["chapters"]
    with_output = sum(bool(cell.get("outputs")) for cell in content["cells"])
    run = f"make notebooks NB=book/{notebook.name}"
    if "executed" not in content["metadata"]:
        raise ValueError(f"book/{notebook.name} was not executed: run `{run}`")
    if notebook.name not in chapters:
        raise ValueError(f"book/{record.name} has no entry for {notebook.name}: run `{run}`")
    compared = chapters[notebook.name]["compared"]
    return stamp(content["metadata"]["executed"], compared, with_output)


def _add_stamp(
    app: Sphinx, pagename: str, _template: str, context: dict[str, Any], doctree: object
) -> None:
    path = Path(str(app.env.doc2path(pagename)))
    if doctree is not None and path.suffix == ".ipynb":
        try:
            context["body"] += stamp_of(path, path.parent / "verified.json")
        except ValueError as error:
            _log.warning(str(error), location=pagename)  # a warning fails the build


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", _add_stamp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
