"""Executing notebooks and storing what came out."""

from __future__ import annotations

import copy
import datetime
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager
from traitlets import default

from .fold import dress
from .minutes import set_minutes
from .model import (
    MUST_RAISE,
    NotebookError,
    as_node,
    code_cells,
    digests,
    has_error,
    load,
    normalise,
    place_of,
    save,
    show,
    tags,
)

CELL_TIMEOUT_SECONDS = 120
KERNEL_STARTS = 3

Result = TypeVar("Result")


def execute(path: Path) -> tuple[NotebookNode, float]:
    """Run a notebook in a fresh kernel of this environment, in its folder; store the result.

    Returns:
        The stored notebook and the seconds that it took to run.

    Raises:
        NotebookError: if a cell fails; then the file is left as it was.
    """
    before = load(path)
    notebook = copy.deepcopy(before)
    normalise(notebook)
    dress(notebook)
    for _, cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    start = time.perf_counter()
    _run_cells(notebook, path)
    seconds = time.perf_counter() - start
    normalise(notebook)
    set_minutes(notebook)  # outputs count, too
    notebook.metadata["executed"] = as_node(_stamp(before, notebook))
    save(notebook, path)
    return notebook, seconds


def kernel_environment() -> dict[str, str]:
    """The variables of the kernels: offline, no debugger messages on stderr, static figures."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "TRANSFORMER_BOOK_STATIC": "1",  # a live figure's scripts are not stored
    }


class _OwnKernelManager(AsyncKernelManager):
    """Starts kernels of this environment, whatever the user's kernel specifications say."""

    @default("kernel_spec_manager")
    def _kernel_spec_manager(self) -> NbvalKernelspecManager:
        return NbvalKernelspecManager()


def patiently(start: Callable[[], Result]) -> Result:
    """Start a kernel, and again if it dies at once.

    That was seen with two kernels starting together, and has nothing to do with the notebook: a
    kernel's ports, for one, can be taken between the choice and the use.
    """
    for _ in range(KERNEL_STARTS - 1):
        try:
            return start()
        except DeadKernelError:  # it died later, in a cell
            raise
        except RuntimeError as error:
            print(f"{error}; starting the kernel again", file=sys.stderr, flush=True)
    return start()


def _run_cells(notebook: NotebookNode, path: Path) -> None:
    def run() -> NotebookNode:
        client = NotebookClient(
            notebook,
            kernel_manager_class=_OwnKernelManager,
            kernel_name=CURRENT_ENV_KERNEL_NAME,
            timeout=CELL_TIMEOUT_SECONDS,
            extra_arguments=["--log-level=ERROR"],
            record_timing=False,
            skip_cells_with_tag="",  # nothing is skipped: the guard refuses the tag
            resources={"metadata": {"path": str(path.parent)}},
        )
        return client.execute(env=kernel_environment())

    try:
        patiently(run)
    except (CellExecutionError, CellTimeoutError, RuntimeError) as error:
        raise NotebookError(f"{show(path)}: {_failure(notebook)}\n{error}") from None
    for number, cell in code_cells(notebook):
        if MUST_RAISE in tags(cell) and not has_error(cell.outputs):
            raise NotebookError(
                f"{show(path)}: {place_of(notebook, number)} is tagged `{MUST_RAISE}` but raised "
                "nothing; "
                "the stored notebook is unchanged"
            )


def _failure(notebook: NotebookNode) -> str:
    """Which cell the run stopped at: the last one that the kernel had started."""
    started = [number for number, cell in code_cells(notebook) if cell.execution_count is not None]
    failed = [
        number
        for number, cell in code_cells(notebook)
        if has_error(cell.outputs) and MUST_RAISE not in tags(cell)
    ]
    where = [place_of(notebook, number) for number in failed or started[-1:]] or ["the kernel"]
    return f"{where[0]} failed; the stored notebook is unchanged"


def _stamp(before: NotebookNode, after: NotebookNode) -> dict[str, Any]:
    """When and with what the notebook was run; the date stays while nothing else changes."""
    stamp = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "torch": importlib.metadata.version("torch").partition("+")[0],
        **digests(after),
    }
    old = dict(before.metadata.get("executed", {}))
    date = old.pop("date", None)
    unchanged = date is not None and old == stamp
    return {**stamp, "date": date if unchanged else datetime.date.today().isoformat()}
