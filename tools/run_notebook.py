"""Execute one notebook and measure its kernel's memory. Runs inside a fresh environment.

`tools.fresh_env` calls this file by its path with that environment's interpreter, so it imports
nothing but nbclient and nbformat.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELL_TIMEOUT_SECONDS = 300

# The kernel's own peak; Linux counts in KiB, macOS in bytes.
MEASURE_PEAK_MIB = """
import resource as _resource, sys as _sys
print(_resource.getrusage(_resource.RUSAGE_SELF).ru_maxrss
      // (1024 * 1024 if _sys.platform == "darwin" else 1024))
"""


def main(source: Path, result: Path) -> None:
    """Execute `source` in its own folder; write its new outputs, time and peak to `result`."""
    notebook = nbformat.read(source, as_version=4)  # type: ignore[no-untyped-call]
    probe = nbformat.v4.new_code_cell(MEASURE_PEAK_MIB)  # type: ignore[no-untyped-call]
    notebook.cells.append(probe)
    started = time.monotonic()
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(source.parent)}},
    ).execute()
    measured = notebook.cells.pop()
    report = {
        "seconds": time.monotonic() - started,
        "peak_mib": int(measured.outputs[0].text),
        "notebook": notebook,
    }
    result.write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
