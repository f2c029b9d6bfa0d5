"""The command line: `python -m tools.notebooks run | check | compare | stamp | owes`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .compare import compare, table
from .execute import execute
from .guard import Finding, inspect, inspect_missing
from .model import BOOK, NotebookError, find_notebooks, show
from .owes import owed
from .owes import table as owed_table
from .record import Record, measure
from .stamp import stamp


def run_command(paths: Sequence[Path], *, accept_fewer: bool = False) -> int:
    """Execute and store each notebook, raise its record, and say what the guard still finds."""
    failures = 0
    for path in paths:
        try:
            notebook, seconds = execute(path)
        except NotebookError as error:
            failures += 1
            print(error, file=sys.stderr, flush=True)
            continue
        coverage = measure(notebook)
        record = Record.beside(path)
        record.update(path.name, coverage, accept_fewer=accept_fewer)
        record.save()
        print(
            f"{show(path)}: {coverage.code_cells} code cells in {seconds:.1f} s, "
            f"{coverage.compared_with_output} of {coverage.with_output} with output verified",
            flush=True,
        )
        failures += _tell(inspect(path))
    return 1 if failures else 0


def check_command(paths: Sequence[Path], *, whole_book: bool = False) -> int:
    """Guard the stored notebooks without a kernel."""
    found = sum(_tell(inspect(path)) for path in paths)
    if whole_book:
        found += _tell(inspect_missing(BOOK))
    if not found:
        print(f"{len(paths)} notebooks checked: every cell run, every output stored and sealed")
    return 1 if found else 0


def compare_command(paths: Sequence[Path]) -> int:
    """Execute the notebooks again and compare with what they store."""
    results, findings = compare(paths)
    print(table(results))
    _tell(findings)
    return 1 if findings else 0


def stamp_command(paths: Sequence[Path], address: str, folder: Path) -> int:
    """Write copies of the notebooks that know their repository."""
    for path in paths:
        print(show(stamp(path, address, folder)))
    return 0


def _tell(findings: Iterable[Finding]) -> int:
    """Print findings, one line each; returns how many."""
    count = 0
    for finding in findings:
        count += 1
        print(finding, file=sys.stderr, flush=True)
    return count


def build_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.notebooks", description="Execute, guard and compare the notebooks."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="execute notebooks and store their outputs")
    run.add_argument(
        "--accept-fewer",
        action="store_true",
        help="record fewer compared cells: the chapter was shortened on purpose",
    )
    check = commands.add_parser("check", help="guard the stored notebooks, without a kernel")
    compared = commands.add_parser("compare", help="execute again and compare (nbval)")
    stamped = commands.add_parser("stamp", help="write copies that know their repository")
    stamped.add_argument("address", metavar="URL", help="https://github.com/OWNER/NAME")
    stamped.add_argument("--out", metavar="DIR", type=Path, required=True, help="where to write")
    owes = commands.add_parser("owes", help="print all that leads to a page, before a rewrite")
    owes.add_argument("page", metavar="PAGE", help="such as 05_masks")
    for command in (run, check, compared, stamped):
        command.add_argument(
            "paths", nargs="*", metavar="PATH", help="notebooks or folders (default: the book)"
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = build_parser().parse_args(arguments)
    try:
        if options.command == "owes":
            print(owed_table(options.page, owed(options.page)))
            return 0
        paths = find_notebooks(options.paths)
        if options.command == "run":
            return run_command(paths, accept_fewer=options.accept_fewer)
        if options.command == "check":
            return check_command(paths, whole_book=not options.paths)
        if options.command == "compare":
            return compare_command(paths)
        return stamp_command(paths, options.address, options.out)
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
