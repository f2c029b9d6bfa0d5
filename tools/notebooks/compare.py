"""Re-executing the notebooks with nbval and judging what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .execute import CELL_TIMEOUT_SECONDS, kernel_environment
from .guard import Finding
from .model import ROOT, code_cells, load, show
from .record import Coverage, Record, cut_ratio, measure

MOST_WORKERS = 4


@dataclass(frozen=True)
class Result:
    """What the comparison found in one notebook."""

    notebook: Path
    coverage: Coverage
    cells: tuple[dict[str, Any], ...]
    reasons: tuple[str, ...]

    def count(self, key: str) -> int:
        """The sum of one property over the cells that passed."""
        return sum(int(cell.get(key, 0)) for cell in self.cells if cell["outcome"] == "passed")

    @property
    def compared_with_output(self) -> int:
        """Cells that store output and were really compared."""
        return sum(cell["with_output"] and bool(cell.get("compared")) for cell in self.cells)

    @property
    def seconds(self) -> float:
        """The time for kernel and cells."""
        return sum(float(cell["seconds"]) for cell in self.cells)


def compare(
    paths: Sequence[Path], *, seconds: str | None = None, at_most: float | None = None
) -> tuple[list[Result], list[Finding]]:
    """Run nbval and our plugin over the notebooks.

    Args:
        paths: the notebooks.
        seconds: a name under which to write down what each takes, for `tools.seconds`.
        at_most: after so many seconds skip the cells that are left, for `tools.quick`.

    Returns:
        What was compared in each notebook, and what was wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "cells.json"
        status = subprocess.run(
            [*pytest_command(paths, report), *_measures(seconds, at_most)],
            cwd=ROOT,
            env=_environment(len(paths)),
            check=False,
        ).returncode
        cells = json.loads(report.read_text(encoding="utf-8")) if report.exists() else []
    results = [_result(path, cells) for path in paths]
    findings = [finding for result in results for finding in _judge(result)]
    if status and not findings:
        findings = [
            Finding(path, None, f"pytest ended with status {status}", "read its output above")
            for path in paths
        ]
    return results, findings


def pytest_command(paths: Sequence[Path], report: Path) -> list[str]:
    """The pytest invocation. It sets aside what pyproject.toml orders for the library's tests."""
    workers = _workers(len(paths))
    return [
        *(sys.executable, "-m", "pytest", "--quiet", "--no-header", "-rN"),
        f"--color={'yes' if sys.stdout.isatty() else 'no'}",  # nbval cannot tell by itself
        # Outside its root pytest names all notebooks alike, and xdist would run only one of them.
        *("-c", str(ROOT / "pyproject.toml"), f"--rootdir={common_folder(paths)}"),
        *("-o", "addopts=", "-o", "filterwarnings=default", "-o", "xfail_strict=false"),
        *("-p", "no:cacheprovider", "-p", "tools.notebooks.nbval_guard"),
        *("--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_TIMEOUT_SECONDS}"),
        f"--guard-report={report}",
        *([f"--numprocesses={workers}", "--dist=loadfile"] if workers > 1 else []),
        *map(str, paths),
    ]


def _measures(seconds: str | None, at_most: float | None) -> list[str]:
    """The options that write down times, and that keep to one."""
    noted = ["-p", "tools.seconds", f"--seconds={seconds}"] if seconds else []
    return noted + (["-p", "tools.quick", f"--quick-seconds={at_most}"] if at_most else [])


def common_folder(paths: Sequence[Path]) -> str:
    """The innermost folder that holds all the notebooks."""
    return os.path.commonpath([path.parent for path in paths])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _workers(notebooks: int) -> int:
    return min(notebooks, _cores(), MOST_WORKERS)


def _environment(notebooks: int) -> dict[str, str]:
    """Share the cores between the kernels: threads that fight for them cost more than they give."""
    environment = kernel_environment()
    environment.pop("PYTEST_ADDOPTS", None)
    if _workers(notebooks) > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // _workers(notebooks))))
    return environment


def _result(path: Path, cells: Sequence[dict[str, Any]]) -> Result:
    notebook, record = load(path), Record.beside(path)
    own = [cell for cell in cells if Path(cell["notebook"]) == path]
    coverage = measure(notebook)
    reasons = tuple(
        f"cell {cell_id}: {record.skips.get((path.name, cell_id)) or 'no reason listed'}"
        for _, cell_id in coverage.skipped
    )
    return Result(path, coverage, tuple(sorted(own, key=lambda cell: int(cell["cell"]))), reasons)


_RAISED = "the traceback stands above: mend what the cell calls"
_MEANT = "the details stand above; if the new output is right, run `make notebooks`"


def _judge(result: Result) -> Iterator[Finding]:
    """Failed cells, cells that never came up, and a ratio that fell."""
    for cell in result.cells:
        if cell["outcome"] == "failed":
            trouble = cell.get("trouble", "failed")
            remedy = _RAISED if "exception" in trouble else _MEANT
            yield Finding(result.notebook, int(cell["cell"]), trouble, remedy)
    expected = {number for number, _ in code_cells(load(result.notebook))}
    for number in sorted(expected - {int(cell["cell"]) for cell in result.cells}):
        yield Finding(result.notebook, number, "was not executed", "see above for the reason")
    record = Record.beside(result.notebook)
    for trouble, remedy in record.shortfalls(result.notebook.name, result.coverage):
        yield Finding(result.notebook, None, trouble, remedy)
    for reason in result.reasons:
        if reason.endswith("no reason listed"):
            yield Finding(result.notebook, None, f"skips {reason}", "list it or compare it")


# --- what is printed --------------------------------------------------------------------------


def summary(results: Sequence[Result]) -> str:
    """What was compared in all, in one line, then the reasons of skipped cells."""
    with_output = sum(result.coverage.with_output for result in results)
    verified = sum(result.compared_with_output for result in results)
    figures = sum(result.count("figures") for result in results)
    seconds = sum(result.seconds for result in results)
    pages = "1 notebook" if len(results) == 1 else f"{len(results)} notebooks"
    said = (
        f"{pages}: {verified:,} of {with_output:,} cells with output compared, "
        f"{figures} figures, {seconds:,.0f} s"
    )
    return "\n".join([said, *_skips(results)])


_HEADINGS = ("chapter", "code", "output", "compared", "skipped", "figures", "s", "bytes", "ratio")


def table(results: Sequence[Result]) -> str:
    """One line for each chapter, one for the whole, then the reasons of skipped cells."""
    rows = [_row(show(result.notebook), [result]) for result in results]
    if len(results) > 1:
        rows.append(_row("all", results))
    widths = [max(len(row[i]) for row in [_HEADINGS, *rows]) for i in range(len(_HEADINGS))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [_HEADINGS, *rows]
    ]
    return "\n".join([*lines, *_skips(results)])


def _skips(results: Sequence[Result]) -> list[str]:
    return [f"skipped: {show(r.notebook)} {reason}" for r in results for reason in r.reasons]


def _row(name: str, results: Sequence[Result]) -> tuple[str, ...]:
    with_output = sum(result.coverage.with_output for result in results)
    verified = sum(result.compared_with_output for result in results)
    return (
        name,
        str(sum(result.coverage.code_cells for result in results)),
        str(with_output),
        str(sum(result.count("compared") for result in results)),
        str(sum(len(result.coverage.skipped) for result in results)),
        str(sum(result.count("figures") for result in results)),
        f"{sum(result.seconds for result in results):.1f}",
        f"{sum(result.notebook.stat().st_size for result in results):,}",
        f"{cut_ratio(verified, with_output):.2%}" if with_output else "nothing",
    )
