"""A pytest plugin that closes nbval's holes and reports what was compared, cell by cell.

nbval runs each cell and compares most of its outputs. After it, this plugin fails a cell that

- has no execution count (nbval then compares nothing),
- is meant to raise and no longer does,
- stores other pictures than those it draws now (see `svg` for the tolerance),
- stores its outputs in another order, or another traceback (nbval looks at neither).

It also starts a kernel again that died at its start (see `patiently`), and forks kernels where that
can be done (see `forked`).

`--guard-report FILE` writes one JSON record for each cell; it works under xdist too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import nbval.plugin
import pytest
from jupyter_client.provisioning import local_provisioner
from nbformat import NotebookNode
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell, NbCellError

from . import forked, svg
from .execute import patiently
from .model import ANSI_COLOUR, MUST_RAISE, SVG, has_error, is_compared, shorten_traceback, tags

REPORT = pytest.StashKey[dict[tuple[str, int], dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the report."""
    parser.addoption("--guard-report", metavar="FILE", help="write one JSON record for each cell")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the report, and let nbval start its kernels patiently."""
    config.stash[REPORT] = {}
    nbval.plugin.RunningKernel = patient_kernel
    if forked.can_fork():
        vars(local_provisioner)["launch_kernel"] = forked.launch


def pytest_unconfigure() -> None:
    """End the process that kernels were forked from."""
    forked.close()


def patient_kernel(*args: Any, **kwargs: Any) -> RunningKernel:
    """A kernel for nbval, which by itself gives up at the first failed start."""
    return patiently(lambda: RunningKernel(*args, **kwargs))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Take over the pictures from nbval, which would compare them character by character."""
    if isinstance(item, IPyNbCell):
        if SVG not in item.parent.skip_compare:
            item.parent.skip_compare += (SVG,)
        number = next(n for n, c in enumerate(item.parent.nb.cells, start=1) if c is item.cell)
        item.user_properties += [
            ("notebook", str(item.path)),
            ("cell", number),
            ("with_output", bool(item.cell.outputs)),
        ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Let nbval run and compare the cell, then look at what it overlooks."""
    if not isinstance(item, IPyNbCell):
        return (yield)
    try:
        yield
        for trouble in overlooked(item.cell, item.test_outputs):
            raise NbCellError(item.cell_num, trouble, item.cell.source)
    except NbCellError as error:
        item.user_properties.append(("trouble", _in_one_line(error)))
        raise
    if is_compared(item.cell):
        item.user_properties += [("compared", True), ("figures", len(_pictures(item.cell.outputs)))]
    return None


def _in_one_line(error: NbCellError) -> str:
    """The message of nbval, with the line of its details that says most."""
    details = ANSI_COLOUR.sub("", error.inner_traceback or "").split("\n")
    lines = [line.strip() for line in details if line.strip()]
    if not lines:
        return str(error)
    return f"{error}: {lines[0 if 'differ' in str(error) else -1]}"


def overlooked(cell: NotebookNode, computed: Sequence[NotebookNode]) -> Iterator[str]:
    """What nbval accepts although a reader would be misled."""
    if cell.execution_count is None:
        yield "has no execution count, so nothing was compared: run `make notebooks`"
    if MUST_RAISE in tags(cell) and not has_error(computed):
        yield f"is tagged `{MUST_RAISE}` but raises no exception any more"
    if not is_compared(cell):
        return
    old, new = [_kind(o) for o in cell.outputs], [_kind(o) for o in computed]
    if old != new:
        yield f"stored outputs {old}, computed {new}"
    for number, (stored, drawn) in enumerate(
        zip(_pictures(cell.outputs), _pictures(computed), strict=False), start=1
    ):
        if trouble := svg.difference(stored, drawn):
            yield f"figure {number} differs: {trouble}"
    if _tracebacks(cell.outputs) != _tracebacks(computed):
        yield (
            f"traceback differs: stored {_tracebacks(cell.outputs)}, "
            f"computed {_tracebacks(computed)}"
        )


def _kind(output: NotebookNode) -> str:
    """An output's place in the order: a stream's name, or the formats it comes in."""
    return str(output.get("name") or "+".join(sorted(output.get("data", {}))) or "error")


def _pictures(outputs: Sequence[NotebookNode]) -> list[str]:
    return [output.data[SVG] for output in outputs if SVG in output.get("data", {})]


def _tracebacks(outputs: Sequence[NotebookNode]) -> list[str]:
    """Tracebacks as a reader sees them, without colours and without nbval's own cell numbers."""
    return [
        re.sub(r"In\s?\[\d+\]", "In[]", ANSI_COLOUR.sub("", frame)).strip()
        for output in outputs
        if output.output_type == "error"
        for frame in shorten_traceback(output.traceback)
    ]


# --- the report -------------------------------------------------------------------------------


class _Reporter:
    """Collects the reports of all cells, in the process that prints them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase (set-up, call or teardown) of one cell."""
        properties: dict[str, Any] = dict(report.user_properties)
        known = self.config.stash[REPORT].setdefault(
            (properties["notebook"], properties["cell"]), {"outcome": "passed", "seconds": 0.0}
        )
        known.update(properties)
        known["seconds"] += report.duration
        if report.outcome != "passed":
            known["outcome"] = report.outcome
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(crash.message if crash else report.longrepr)
            known.setdefault("trouble", message.strip().splitlines()[0])

    def pytest_sessionfinish(self) -> None:
        """Write the report."""
        content = list(self.config.stash[REPORT].values())
        Path(self.config.option.guard_report).write_text(json.dumps(content), encoding="utf-8")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Report from the one process that hears of every cell, not from xdist's workers."""
    if session.config.option.guard_report and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Reporter(session.config), "guard-reporter")
