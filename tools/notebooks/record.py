"""The record `verified.json` beside the notebooks: what was verified, and what is excused.

`chapters` holds, for each notebook, how many cells with output re-execution compares and their
share of all cells with output. Both are floors. `skips` lists every cell that is excused from the
comparison, by notebook and cell id, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from .model import (
    NotebookError,
    code_cells,
    figures,
    is_compared,
    show,
    skip_markers,
    write_atomically,
)

FILE_NAME = "verified.json"


@dataclass(frozen=True)
class Coverage:
    """How much of a notebook the comparison covers, counted from the stored notebook alone."""

    code_cells: int
    with_output: int
    compared: int
    compared_with_output: int
    figures: int
    skipped: tuple[tuple[int, str], ...]

    @property
    def ratio(self) -> float:
        """The verified-cell ratio, cut (not rounded) to four decimals."""
        return cut_ratio(self.compared_with_output, self.with_output)


def cut_ratio(compared: int, with_output: int) -> float:
    """The share of cells with output that are compared; cut, so that only a whole is 1."""
    return 1.0 if with_output == 0 else (10_000 * compared // with_output) / 10_000


def measure(notebook: NotebookNode) -> Coverage:
    """Count what the comparison of this notebook will cover."""
    cells = list(code_cells(notebook))
    return Coverage(
        code_cells=len(cells),
        with_output=sum(bool(cell.outputs) for _, cell in cells),
        compared=sum(is_compared(cell) for _, cell in cells),
        compared_with_output=sum(bool(cell.outputs) and is_compared(cell) for _, cell in cells),
        figures=sum(len(figures(cell)) for _, cell in cells if is_compared(cell)),
        skipped=tuple((number, cell.get("id", "")) for number, cell in cells if skip_markers(cell)),
    )


@dataclass
class Record:
    """The content of one `verified.json`."""

    path: Path
    chapters: dict[str, dict[str, Any]] = field(default_factory=dict)
    skips: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def beside(cls, notebook: Path) -> Record:
        """Read the record in the notebook's folder; where there is none, an empty one."""
        path = notebook.parent / FILE_NAME
        if not path.exists():
            return cls(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            chapters = {
                name: {"compared": int(entry["compared"]), "ratio": float(entry["ratio"])}
                for name, entry in content["chapters"].items()
            }
            skips = {
                (entry["notebook"], entry["cell"]): str(entry["reason"]).strip()
                for entry in content["skips"]
            }
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotebookError(
                f'{show(path)}: expected {{"chapters": {{NOTEBOOK: {{"compared": COUNT, "ratio": '
                f'SHARE}}}}, "skips": [{{"notebook", "cell", "reason"}}]}} '
                f"({type(error).__name__}: {error})"
            ) from None
        return cls(path, chapters, skips)

    def save(self) -> None:
        """Write the record, sorted, so that two chapters rarely touch the same line."""
        skips = [
            {"notebook": notebook, "cell": cell, "reason": reason}
            for (notebook, cell), reason in sorted(self.skips.items())
        ]
        content = {"chapters": dict(sorted(self.chapters.items())), "skips": skips}
        write_atomically(self.path, json.dumps(content, indent=2, ensure_ascii=False))

    def shortfalls(self, name: str, coverage: Coverage) -> Iterator[tuple[str, str]]:
        """Where a notebook is verified less than was recorded, and what to do about it."""
        known = self.chapters.get(name)
        if known is None:
            yield f"is not recorded in {FILE_NAME}", "run `make notebooks`"
            return
        if coverage.ratio < known["ratio"]:
            yield (
                f"verified-cell ratio fell from {known['ratio']:.2%} to {coverage.ratio:.2%}",
                "compare the skipped cells again; the recorded ratio may not fall",
            )
        if coverage.compared_with_output < known["compared"]:
            yield (
                f"only {coverage.compared_with_output} cells with output are compared, "
                f"{known['compared']} were recorded",
                "restore the lost outputs; if the chapter was shortened on purpose, run "
                "`python -m tools.notebooks run --accept-fewer` on it",
            )

    def update(self, name: str, coverage: Coverage, *, accept_fewer: bool) -> None:
        """Raise the recorded floors; lower the count only when told to, the ratio never."""
        known = self.chapters.get(name, {"compared": 0, "ratio": 0.0})
        compared = coverage.compared_with_output
        if not accept_fewer:
            compared = max(compared, known["compared"])
        self.chapters[name] = {
            "compared": compared,
            "ratio": max(coverage.ratio, known["ratio"]),
        }
