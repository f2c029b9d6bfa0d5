"""Where the seconds of a run go: CPU and wall, by test file, notebook and browser test.

    make test && make seconds

`make test` writes them down as it goes. Tests are measured by this module as a plugin of pytest
(`-p tools.seconds --seconds NAME`), other steps by `python -m tools.seconds run NAME COMMAND`. CPU
seconds are those of the process and of all that it started: kernels, browsers, training runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "_build" / "seconds"
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 1  # Windows has neither
_BEFORE = "(start, imports, collection)"


# --- CPU seconds ------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """The CPU seconds that this process and all that it started have used so far."""
    if Path("/proc/self/stat").exists() and _has_children():
        return _of_the_tree(os.getpid())
    return sum(os.times()[:4])  # its own and those of children that have ended


def _has_children() -> bool:
    """Whether this process has children; asked for each test, so it may not take long."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # looks, and leaves them
    except ChildProcessError:
        return False
    return True


def _of_the_tree(root: int) -> float:
    """Add up a process and its descendants; what has ended is counted by its parent."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for pid, parent, used in _processes():
        ticks[pid] = used
        children.setdefault(parent, []).append(pid)
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total / _TICKS


def _processes() -> Iterator[tuple[int, int, int]]:
    """Each process with its parent and its ticks, in user and system mode, ended children too."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has just ended
                continue
            fields = stat.rpartition(")")[2].split()
            yield int(name), int(fields[1]), sum(map(int, fields[11:15]))


# --- measuring --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What one test, or one step, took."""

    what: str
    wall: float
    cpu: float


class Meter:
    """Measures every test of one pytest process."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self.file = folder / f"{name}.json"
        self.rows: list[Row] = []
        self.began = time.perf_counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Take the time of a test with its set-up and teardown."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        try:
            return (yield)
        finally:
            # A browser that is closed takes what its ended children used out of sight.
            used = max(0.0, cpu_seconds() - cpu)
            self.rows.append(Row(item.nodeid, time.perf_counter() - wall, used))

    def pytest_sessionfinish(self) -> None:
        """Write down the tests, and what the process took beside them."""
        wall, cpu = time.perf_counter() - self.began, cpu_seconds()
        for row in self.rows:
            wall, cpu = wall - row.wall, cpu - row.cpu
        write(self.file, [Row(_BEFORE, wall, max(0.0, cpu)), *self.rows])


def write(file: Path, rows: Sequence[Row]) -> None:
    """Write down what was measured."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([[r.what, r.wall, r.cpu] for r in rows]), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says under which name the seconds are written down."""
    parser.addoption("--seconds", metavar="NAME", help="write down what each test takes")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in the processes that run tests: xdist's workers, or the only one there is."""
    name: str | None = config.getoption("--seconds")
    if not name:
        return
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None:
        for old in FOLDER.glob(f"{name}.*.json"):
            old.unlink()
    if worker or not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Meter(f"{name}.{worker or 'alone'}"), "seconds-meter")


def run(name: str, command: Sequence[str]) -> int:
    """Run a command and write down what it took; returns its exit status."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    status = subprocess.run(command, check=False).returncode
    spent = Row(" ".join(command[1:]) or name, time.perf_counter() - wall, cpu_seconds() - cpu)
    write(FOLDER / f"{name}.alone.json", [spent])
    return status


# --- reading ----------------------------------------------------------------------------------


def read(folder: Path = FOLDER) -> dict[str, list[list[Row]]]:
    """What was written down: for each name the rows of each process."""
    found: dict[str, list[list[Row]]] = {}
    for file in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime):
        rows = [Row(*row) for row in json.loads(file.read_text(encoding="utf-8"))]
        found.setdefault(file.name.split(".")[0], []).append(rows)
    return found


def by_file(rows: Sequence[Row]) -> list[Row]:
    """Add up the tests of each file; a browser test stands for itself."""
    sums: dict[str, Row] = {}
    for row in rows:
        what = row.what if "browser/" in row.what else row.what.partition("::")[0]
        known = sums.get(what, Row(what, 0.0, 0.0))
        sums[what] = Row(what, known.wall + row.wall, known.cpu + row.cpu)
    return sorted(sums.values(), key=lambda row: -row.cpu)


def report(measured: dict[str, list[list[Row]]], most: int, every_test: bool = False) -> str:
    """A line for each step, then for each of them where its seconds went, largest first."""
    lines = [f"{'CPU s':>8} {'wall s':>8}  step"]
    parts = []
    for name, processes in measured.items():
        rows = [row for process in processes for row in process]
        wall = max(sum(row.wall for row in process) for process in processes)
        lines.append(f"{sum(row.cpu for row in rows):8.1f} {wall:8.1f}  {name}")
        told = sorted(rows, key=lambda row: -row.cpu) if every_test else by_file(rows)
        if len(told) > 1:
            parts += ["", f"{name}: {len(rows):,} rows", *map(_line, told[:most])]
            if len(told) > most:
                rest = told[most:]
                left = Row(f"{len(rest)} more", sum(r.wall for r in rest), sum(r.cpu for r in rest))
                parts.append(_line(left))
    return "\n".join(lines + parts)


def _line(row: Row) -> str:
    return f"{row.cpu:8.1f} {row.wall:8.1f}  {row.what}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the seconds of the last run, or measure a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.seconds", description=__doc__)
    parser.add_argument("--most", type=int, default=15, help="lines for each step (default: 15)")
    parser.add_argument("--tests", action="store_true", help="a line a test, not a file")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:
        return run(words[1], words[2:])
    options = parser.parse_args(words)
    measured = read()
    if not measured:
        print("nothing was measured yet: run `make test`, or a part of it", file=sys.stderr)
        return 1
    print(report(measured, options.most, options.tests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
