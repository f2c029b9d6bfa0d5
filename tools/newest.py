"""Report what the newest versions change: `python -m tools.newest`, where the pins were lifted.

The versions of requirements.txt prove the book. This looks ahead: it runs the library's tests and
all notebooks with whatever is installed, the second also if the first fails, and writes a report
in Markdown. The report lists the versions that differ from the pinned ones, and what fails with
them. A failing check is a finding here, and the exit status is 0 in any case: only
``.github/workflows/newest.yml`` uses this, and it proves nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "_build" / "newest"
REPORT = FOLDER / "report.md"

SAME = "Nothing differs: every check passes with the newest versions."  # the workflow looks for it
MOST_FINDINGS = 60  # an issue holds 65,536 characters
TAIL_LINES = 40
LINE_LENGTH = 300

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
_FINDING = re.compile(r"^(?:FAILED |ERROR |\S+\.ipynb:).*$", re.MULTILINE)


@dataclass(frozen=True)
class Check:
    """Something to run, and for how long at most."""

    name: str
    command: Sequence[str]
    minutes: float


@dataclass(frozen=True)
class Outcome:
    """How a check ended: its status, which is None if its time was over, and all that it said."""

    check: Check
    status: int | None
    output: str

    @property
    def words(self) -> str:
        """The end in words."""
        if self.status is None:
            return f"was not done after {self.check.minutes:g} minutes"
        return "passes" if self.status == 0 else f"fails (status {self.status})"

    @property
    def findings(self) -> list[str]:
        """The lines that name a failed test or a notebook that is not what it was."""
        return [line[:LINE_LENGTH] for line in _FINDING.findall(self.output)]


_PYTEST = ("env", "OMP_NUM_THREADS=1", sys.executable, "-m", "pytest", "-n", "auto", "-q", "-rfE")
CHECKS = (
    Check(
        "the library's tests",
        (*_PYTEST, "transformer_lib", "transformer_book", "tests/lib", "tests/book"),
        28,
    ),
    Check("all notebooks", (sys.executable, "-m", "tools.notebooks", "compare"), 20),
)


# --- versions ---------------------------------------------------------------------------------


def read_pins(requirements: str) -> dict[str, str]:
    """The exact versions that a requirements file names."""
    return dict(_PIN.findall(requirements))


def installed_version(package: str) -> str:
    """The version of a package in this environment; "none" if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def moved(
    pins: Mapping[str, str], installed: Callable[[str], str] = installed_version
) -> list[tuple[str, str, str]]:
    """Name, pinned version and installed version of each package whose versions differ.

    A local label such as the one in ``2.13.0+cpu`` says who built a package, and counts as equal.
    """
    found = [(name, pinned, installed(name)) for name, pinned in pins.items()]
    return [row for row in found if row[1] != row[2].partition("+")[0]]


# --- checks -----------------------------------------------------------------------------------


def run(check: Check, log: Path) -> Outcome:
    """Run a check with its output in a file; stop it, and all that it started, after its time."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            check.command,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(timeout=60 * check.minutes)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    return Outcome(check, status, log.read_text(encoding="utf-8", errors="replace"))


# --- the report -------------------------------------------------------------------------------


def write_report(
    versions: Sequence[tuple[str, str, str]], n_pins: int, outcomes: Sequence[Outcome]
) -> str:
    """The report in Markdown. Its first line is `SAME` only if every check passed."""
    failed = sum(outcome.status != 0 for outcome in outcomes)
    lines = [f"{failed} of {len(outcomes)} checks did not pass." if failed else SAME, ""]
    lines += [f"{len(versions)} of {n_pins} pinned packages have another version here.", ""]
    if versions:
        lines += ["| package | pinned | installed |", "|---|---|---|"]
        lines += [f"| {name} | {pinned} | {here} |" for name, pinned, here in versions]
    for outcome in outcomes:
        lines += ["", f"**{outcome.check.name.capitalize()}**: {outcome.words}.", ""]
        if outcome.status != 0:
            lines += _told(outcome)
    return "\n".join(lines) + "\n"


def _told(outcome: Outcome) -> list[str]:
    """What a check found, and the end of its output, folded."""
    found, tail = outcome.findings, outcome.output.splitlines()[-TAIL_LINES:]
    lines = [f"- `{line.replace('`', chr(39))}`" for line in found[:MOST_FINDINGS]]
    if len(found) > MOST_FINDINGS:
        lines.append(f"- and {len(found) - MOST_FINDINGS} more, in the log of the run")
    lines += ["", "<details><summary>The end of its output</summary>", "", "~~~~text"]
    return [*lines, *(line[:LINE_LENGTH] for line in tail), "~~~~", "", "</details>"]


def report(checks: Sequence[Check] = CHECKS, path: Path = REPORT) -> str:
    """Run every check, whatever became of the one before it, and write the report to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number, check in enumerate(checks, start=1):
        outcomes.append(run(check, path.parent / f"check-{number}.log"))
        print(outcomes[-1].output, flush=True)
    pins = read_pins((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    text = write_report(moved(pins), len(pins), outcomes)
    path.write_text(text, encoding="utf-8")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the report; returns 0, since a difference is no failure."""
    parser = argparse.ArgumentParser(prog="python -m tools.newest", description=__doc__)
    parser.parse_args(arguments)
    print(report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
