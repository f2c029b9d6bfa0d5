"""What a notebook is to this machinery: reading, normal form, digests, atomic writing."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4.rwbase import rejoin_lines
from nbformat.validator import iter_validate
from nbval.plugin import coalesce_streams, comment_markers, metadata_tags

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
SVG = "image/svg+xml"
MUST_RAISE = "raises-exception"
MAX_WIDTH = 74  # characters that a page shows without scrolling sideways
CellTrouble = tuple[int | None, str, str]  # which cell, what is wrong, how to mend it

# All other metadata is dropped: editors and kernels write it, each machine its own.
KEPT_CELL_METADATA = ("tags", "mystnb", "jupyter", "cellView")
KEPT_NOTEBOOK_METADATA = ("mystnb", "page", "executed")
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python"}

# nbformat declares no types for these.
as_node: Callable[[Any], NotebookNode] = nbformat.from_dict
_join_lines: Callable[[NotebookNode], NotebookNode] = rejoin_lines
_schema_errors: Callable[[Any], Iterable[Any]] = iter_validate
_serialise: Callable[[NotebookNode], str] = nbformat.writes

ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class NotebookError(Exception):
    """Something that cannot be worked with; the message names it and says what was expected."""


def find_notebooks(paths: Sequence[str | Path]) -> list[Path]:
    """The notebooks that the paths name, sorted; without paths, every chapter of the book.

    A page of the book may be called by its name (``04_scaling``) or its number (``04``, ``lab1``).
    """
    found: set[Path] = set()
    for path in [Path(p) for p in paths] or [BOOK]:
        if path.is_dir():
            found.update(path.glob("*.ipynb"))
        elif path.suffix == ".ipynb" and path.is_file():
            found.add(path)
        elif page := page_called(str(path)):
            found.add(page)
        else:
            raise NotebookError(
                f"{path}: expected an existing .ipynb file, a folder of them, or the name or "
                "number of a page, such as 04_scaling, 04 or lab1"
            )
    if not found:
        raise NotebookError(f"{', '.join(map(str, paths)) or show(BOOK)}: no notebook found there")
    return sorted(path.resolve() for path in found)


def page_called(name: str) -> Path | None:
    """The page of the book with this name or number; None if there is none."""
    if not re.fullmatch(r"\w+", name):
        return None
    named, numbered = BOOK / f"{name}.ipynb", sorted(BOOK.glob(f"{name}_*.ipynb"))
    return named if named.is_file() else next(iter(numbered), None)


def show(path: Path) -> str:
    """The path as it is printed: relative to where the user stands, where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def load(path: Path) -> NotebookNode:
    """Read a notebook as it is stored, repairing nothing."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise NotebookError(
            f"{show(path)}: not a notebook, expected JSON in UTF-8 ({error})"
        ) from None
    version = raw.get("nbformat") if isinstance(raw, dict) else None
    if version != 4 or not isinstance(raw.get("cells"), list):
        raise NotebookError(
            f"{show(path)}: expected a notebook with nbformat 4 and a list of cells, "
            f"found nbformat {version!r}"
        )
    for flaw in _schema_errors(raw):
        where = "/".join(str(step) for step in flaw.relative_path) or "top level"
        raise NotebookError(
            f"{show(path)}: does not follow the notebook schema at {where}: {flaw.message[:200]}"
        )
    ids = [cell["id"] for cell in raw["cells"] if "id" in cell]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise NotebookError(f"{show(path)}: expected unique cell ids, {twice!r} occurs twice")
    return _join_lines(as_node(raw))


def save(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook so that no reader ever sees half of it."""
    nbformat.validate(notebook)
    write_atomically(path, _serialise(notebook) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file beside its final place, then move it there in one step."""
    text = text.rstrip("\n") + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def code_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """Code cells with their number: their place among all cells, from 1."""
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "code":
            yield number, cell


def place_of(notebook: NotebookNode, number: int) -> str:
    """A cell as an editor shows it: its id, and the heading that it stands under."""
    cell = notebook.cells[number - 1]
    above = "\n".join(c.source for c in notebook.cells[:number] if c.cell_type == "markdown")
    if cell.cell_type == "markdown" and not cell.source.startswith("#"):
        above = above.removesuffix(cell.source)  # its headings stand below its beginning
    headings = _HEADING.findall(_FENCE.sub("", above))
    under = f" (under “{headings[-1]}”)" if headings else ""
    return f"cell {cell.get('id', number)}{under}"


_FENCE = re.compile(r"^([`~]{3,}).*?^\1[`~]*[ \t]*$", re.M | re.S)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.M)


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def has_error(outputs: Sequence[NotebookNode]) -> bool:
    """Whether one of the outputs is an exception."""
    return any(output.output_type == "error" for output in outputs)


def figures(cell: NotebookNode) -> list[str]:
    """The SVG pictures that a cell stores."""
    return [output.data[SVG] for output in cell.outputs if SVG in output.get("data", {})]


# --- nbval's own switches ---------------------------------------------------------------------


def nbval_markers(cell: NotebookNode) -> list[tuple[str, Any]]:
    """Every tag and comment of a cell that nbval obeys, with its meaning in nbval's tables.

    The tables are nbval's, so that a synonym added by a new version is not missed.
    """
    comments = [
        line.strip().lstrip("#").strip()
        for line in cell.source.splitlines()
        if line.strip().startswith("#")
    ]
    return [(tag, metadata_tags[tag]) for tag in tags(cell) if tag in metadata_tags] + [
        (f"# {comment}", comment_markers[comment])
        for comment in comments
        if comment in comment_markers
    ]


def skip_markers(cell: NotebookNode) -> list[str]:
    """The markers of a cell that keep nbval from comparing it, whichever of them would win."""
    return [name for name, meaning in nbval_markers(cell) if meaning in ("skip", ("check", False))]


def is_compared(cell: NotebookNode) -> bool:
    """Whether re-execution compares this cell."""
    return cell.execution_count is not None and not skip_markers(cell)


# --- normal form ------------------------------------------------------------------------------


def normalise(notebook: NotebookNode) -> None:
    """Bring a notebook into the one form in which it is committed."""
    notebook.nbformat_minor = max(notebook.nbformat_minor, 5)
    kept = {k: notebook.metadata[k] for k in KEPT_NOTEBOOK_METADATA if k in notebook.metadata}
    notebook.metadata = as_node(
        {**kept, "kernelspec": dict(KERNELSPEC), "language_info": dict(LANGUAGE)}
    )
    count = 0
    for number, cell in enumerate(notebook.cells, start=1):
        cell.setdefault("id", f"cell-{number}")
        cell.source = "\n".join(line.rstrip() for line in cell.source.split("\n")).strip("\n")
        cell.metadata = as_node(
            {k: cell.metadata[k] for k in KEPT_CELL_METADATA if k in cell.metadata}
        )
        if cell.cell_type == "code":
            count += cell.execution_count is not None
            _normalise_outputs(cell, count)


def _normalise_outputs(cell: NotebookNode, count: int) -> None:
    """Number the cell, join its streams, and keep only what a reader needs of tracebacks."""
    if cell.execution_count is not None:
        cell.execution_count = count
    cell.outputs = coalesce_streams(cell.outputs)
    for output in cell.outputs:
        if output.output_type == "execute_result":
            output.execution_count = cell.execution_count
        elif output.output_type == "error":
            output.traceback = shorten_traceback(output.traceback)


def shorten_traceback(frames: Sequence[str]) -> list[str]:
    """Drop the frames outside the notebook: they name files and lines of one machine."""
    return [f for f in frames if not ANSI_COLOUR.sub("", f).lstrip().startswith("File ")]


# --- digests ----------------------------------------------------------------------------------


def cell_digest(cell: NotebookNode) -> str:
    """A digest of what was run and what came out, without execution counts."""
    outputs = [{k: v for k, v in o.items() if k != "execution_count"} for o in cell.outputs]
    content = json.dumps([cell.source, outputs], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def digests(notebook: NotebookNode) -> dict[str, Any]:
    """The digest of each code cell by its id, and one over all of them in order."""
    cells = {cell.get("id", f"cell-{n}"): cell_digest(cell) for n, cell in code_cells(notebook)}
    whole = hashlib.sha256(json.dumps(list(cells.items())).encode()).hexdigest()
    return {"cells": cells, "sha256": whole}


def reseal(notebook: NotebookNode) -> None:
    """Make the stored digests fit the notebook as it is now."""
    notebook.metadata.setdefault("executed", as_node({})).update(as_node(digests(notebook)))
