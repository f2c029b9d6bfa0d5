"""Run notebooks in a fresh environment that has only what Binder would install.

    python -m tools.fresh_env book/03_attention.ipynb

It copies the repository, makes an empty virtual environment, does what Binder's repo2docker does
with `binder/` (requirements.txt, then postBuild), executes the notebooks there, compares their
text outputs with the stored ones, and holds the kernel's peak memory against what Binder gives.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BINDER_MIB = 2048
JUPYTER_SERVER_MIB = 300  # what JupyterLab takes of it before a kernel starts
COMPARED_TYPES = ("text/plain", "text/html", "text/latex", "text/markdown")

Cell = dict[str, Any]


class FreshEnvError(Exception):
    """The environment cannot be made, or a notebook cannot be run in it."""


@dataclass(frozen=True)
class Report:
    """What running one notebook showed."""

    name: str
    compared: int
    differences: list[str]
    seconds: float
    peak_mib: int

    @property
    def problems(self) -> list[str]:
        """The differences, and a line when Binder's memory would not do."""
        if self.peak_mib <= BINDER_MIB - JUPYTER_SERVER_MIB:
            return self.differences
        room = f"{BINDER_MIB} MiB less {JUPYTER_SERVER_MIB} for Jupyter"
        return [*self.differences, f"{self.name}: peak {self.peak_mib} MiB, Binder has {room}"]


@dataclass(frozen=True)
class FreshEnv:
    """A copy of the repository and an environment made from its `binder/` folder."""

    clone: Path
    environment: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.environment / "bin" / "python"

    @property
    def variables(self) -> dict[str, str]:
        """The surrounding variables, without what would let another environment shine through."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "JUPYTER_PATH", "IPYTHONDIR")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        kept["PATH"] = f"{self.environment / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
        return kept

    def call(self, *command: str | Path) -> None:
        """Run a command in the copy of the repository; a failure ends the check."""
        status = subprocess.run(
            [str(word) for word in command], cwd=self.clone, env=self.variables, check=False
        ).returncode
        if status:
            raise FreshEnvError(f"exit status {status}: {' '.join(map(str, command))}")


def copy_repository(target: Path) -> None:
    """Copy what git tracks or would track: no environment, no build, nothing ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in sorted(set(listed.stdout.decode().split("\0")) - {""}):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def pinned(package: str) -> str:
    """The line of requirements.txt that pins a package."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith(f"{package}=="):
            return line
    raise FreshEnvError(f"requirements.txt does not pin {package}")


def create(folder: Path) -> FreshEnv:
    """Copy the repository and install what `binder/` lists, in the order of repo2docker."""
    fresh = FreshEnv(clone=folder / "clone", environment=folder / "environment")
    copy_repository(fresh.clone)
    subprocess.run([sys.executable, "-m", "venv", str(fresh.environment)], check=True)
    # Binder's own notebook stack brings nbclient; here it is all of that stack that we need.
    fresh.call(fresh.python, "-m", "pip", "install", "--quiet", pinned("nbclient"))
    listed = fresh.clone / "binder" / "requirements.txt"
    fresh.call(fresh.python, "-m", "pip", "install", "--quiet", "--requirement", listed)
    fresh.call(fresh.clone / "binder" / "postBuild")
    return fresh


def run(fresh: FreshEnv, notebook: Path) -> Report:
    """Execute the copy of a notebook and compare its text outputs with the stored ones."""
    name = notebook.resolve().relative_to(ROOT)
    result = fresh.clone.parent / "result.json"
    runner = ROOT / "tools" / "run_notebook.py"
    fresh.call(fresh.python, "-P", runner, fresh.clone / name, result)
    report = json.loads(result.read_text(encoding="utf-8"))
    stored = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    compared, differences = compare(str(name), stored, report["notebook"]["cells"])
    return Report(str(name), compared, differences, report["seconds"], report["peak_mib"])


def compare(name: str, stored: list[Cell], new: list[Cell]) -> tuple[int, list[str]]:
    """Compare the text that the code cells stored with the text that they gave now.

    Returns:
        How many cells had text to compare, and a line for each that differs.
    """
    pairs = [(a, b) for a, b in zip(stored, new, strict=True) if a["cell_type"] == "code"]
    compared, differences = 0, []
    for number, (before, after) in enumerate(pairs, start=1):
        expected, got = text_outputs(before), text_outputs(after)
        compared += bool(expected)
        if expected != got:
            differences.append(f"{name}: code cell {number} stores {expected!r} but gives {got!r}")
    return compared, differences


def text_outputs(cell: Cell) -> dict[str, str]:
    """The text of a cell's outputs, by kind; pieces of the same kind are joined."""
    texts: dict[str, str] = {}
    for output in cell["outputs"]:
        for kind, text in _pieces(output):
            texts[kind] = texts.get(kind, "") + text
    return texts


def _pieces(output: Cell) -> list[tuple[str, str]]:
    if output["output_type"] == "stream":
        return [(output["name"], _joined(output["text"]))]
    if output["output_type"] == "error":
        return [("error", f"{output['ename']}: {_without_colours(output['evalue'])}")]
    data = output["data"]
    return [(kind, _joined(data[kind])) for kind in COMPARED_TYPES if kind in data]


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def main(arguments: list[str] | None = None) -> int:
    """Check the notebooks and say what came of it; the exit status is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: every chapter in book/")
    chosen = parser.parse_args(arguments).notebooks or sorted((ROOT / "book").glob("*.ipynb"))
    if not chosen:
        raise FreshEnvError("there is no notebook in book/")
    with tempfile.TemporaryDirectory(prefix="fresh-env-") as folder:
        fresh = create(Path(folder).resolve())
        reports = [run(fresh, notebook) for notebook in chosen]
    for report in reports:
        print(
            f"{'FAIL' if report.problems else 'pass'}  {report.name}: {report.compared} cells "
            f"compared, {report.seconds:.1f} s, peak {report.peak_mib} of {BINDER_MIB} MiB"
        )
    problems = [problem for report in reports for problem in report.problems]
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FreshEnvError as error:
        sys.exit(f"fresh_env: {error}")
