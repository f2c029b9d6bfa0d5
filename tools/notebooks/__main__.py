"""The command line: `python -m tools.notebooks COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .budgets import FILE_NAME, lower, rewrite, weigh
from .compare import compare, summary, table
from .execute import execute
from .fold import dress
from .gather import inspect_file, targets, write_file
from .guard import Finding, inspect, inspect_missing
from .learner import FOLDER, write_learner_edition
from .minutes import write_minutes
from .model import BOOK, NotebookError, find_notebooks, load, place_of, save, show
from .new import create
from .owes import owed
from .owes import table as owed_table
from .record import Record, measure
from .rulers import PAGE_KINDS, set_kind
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
        lower(path)
    return 1 if failures else 0


def check_command(
    paths: Sequence[Path], *, whole_book: bool = False, with_table: bool = False
) -> int:
    """Guard the stored notebooks without a kernel; what is wrong comes last."""
    measured, above = weigh(paths, whole_book=whole_book, with_table=with_table)
    if measured:
        print(measured)
    found = [finding for path in paths for finding in inspect(path)]
    found += inspect_file(paths)
    if whole_book:
        found += inspect_missing(BOOK)
    if not _tell([*found, *above]):
        print(f"{len(paths)} notebooks checked: every cell run, every output stored and sealed")
    return 1 if found or above else 0


def compare_command(
    paths: Sequence[Path],
    *,
    whole_book: bool = False,
    with_table: bool = False,
    at_most: float | None = None,
) -> int:
    """Execute the notebooks again and compare with what they store; what is wrong comes last."""
    results, findings = compare(paths, seconds="nbval" if whole_book else None, at_most=at_most)
    print(table(results) if with_table else summary(results))
    _tell(findings)
    return 1 if findings else 0


def budgets_command(paths: Sequence[Path], *, accept_more: bool) -> int:
    """Write today's values above the budgets into the list: lower ones, and no others."""
    refused = rewrite(BOOK, paths, accept_more=accept_more)
    for line in refused:
        print(f"{line}: more than listed; shorten it, or --accept-more", file=sys.stderr)
    print(f"{show(BOOK / FILE_NAME)}: {len(refused)} values refused, the others are as measured")
    return 1 if refused else 0


def kind_command(pages: Sequence[str], kind: str) -> int:
    """Write into notebooks what kind of page they are."""
    for path in find_notebooks(pages):
        set_kind(path, kind)
        print(f"{show(path)}: {kind}")
    return 0


def dress_command(paths: Sequence[Path]) -> int:
    """Derive what folds cells from the tags and titles; say what must be run again."""
    for path in paths:
        notebook = load(path)
        changes = dress(notebook)
        if changes:
            save(notebook, path)
            print(f"{show(path)}: {len(changes)} cells dressed")
        for change in changes:
            if change.new_source:
                where = place_of(notebook, change.number)
                print(f"{show(path)}: {where} has a new title line; run the notebook")
    return 0


def file_command() -> int:
    """Write the file of the reader, to be downloaded and to be imported."""
    n_lines = len(write_file().splitlines())
    print(f"{' and '.join(map(show, targets()))}: {n_lines} lines")
    return 0


def minutes_command(paths: Sequence[Path]) -> int:
    """Write into the line under each title how long the page takes."""
    changed = [path for path in paths if write_minutes(path)]
    for path in changed:
        print(f"{show(path)}: other minutes")
    if changed:
        print("The paths add them up: run `make notebooks NB=paths`")
    return 0


def learner_command(folder: Path) -> int:
    """Write the learner's edition: no solutions, no outputs, ready to be handed out."""
    written = write_learner_edition(folder)
    print(f"{show(folder)}: {len(written)} notebooks without solutions and outputs")
    return 0


def stamp_command(paths: Sequence[Path], address: str, folder: Path) -> int:
    """Write copies of the notebooks that know their repository."""
    for path in paths:
        print(show(stamp(path, address, folder)))
    return 0


def _tell(findings: Iterable[Finding]) -> int:
    """Print findings, one line each; returns how many."""
    sys.stdout.flush()  # what was printed before shall stand before
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
    compared.add_argument(
        "--at-most", metavar="SECONDS", type=float, help="skip the cells that are left then"
    )
    stamped = commands.add_parser("stamp", help="write copies that know their repository")
    stamped.add_argument("address", metavar="URL", help="https://github.com/OWNER/NAME")
    stamped.add_argument("--out", metavar="DIR", type=Path, required=True, help="where to write")
    owes = commands.add_parser("owes", help="print all that leads to a page, before a rewrite")
    owes.add_argument("page", metavar="PAGE", help="such as 05_masks")
    new = commands.add_parser("new", help="begin a page from the template")
    new.add_argument("name", metavar="NAME", help="such as 22_new, or 05e_more for a further page")
    new.add_argument("--title", default="", help="of the page (default: the words of its name)")
    kind = commands.add_parser("kind", help="say what kind of page notebooks are")
    kind.add_argument("pages", nargs="+", metavar="PAGE", help="such as 05_masks")
    kind.add_argument("kind", choices=PAGE_KINDS)
    budgets = commands.add_parser("budgets", help="lower the list of what is above the budgets")
    budgets.add_argument(
        "--accept-more", action="store_true", help="also list what rose: it is meant"
    )
    learner = commands.add_parser("learner", help="write the notebooks without solutions, outputs")
    learner.add_argument("folder", nargs="?", metavar="FOLDER", type=Path, default=FOLDER)
    commands.add_parser("file", help="write the reader's file from the cells tagged `your-file`")
    dressed = commands.add_parser("dress", help="derive what folds cells from their tags, titles")
    minutes = commands.add_parser("minutes", help="write under each title how long the page takes")
    for command in (run, check, compared, stamped, budgets, dressed, minutes):
        command.add_argument(
            "paths",
            nargs="*",
            metavar="PAGE",
            help="pages by number or name, notebooks or folders (default: the book)",
        )
    for command in (check, compared):
        command.add_argument("--table", action="store_true", help="also print a line a page")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = build_parser().parse_args(arguments)
    try:
        if options.command == "owes":
            print(owed_table(options.page, owed(options.page)))
            return 0
        if options.command == "new":
            print(create(options.name, options.title))
            return 0
        if options.command == "kind":
            return kind_command(options.pages, options.kind)
        if options.command == "file":
            return file_command()
        if options.command == "learner":
            return learner_command(options.folder)
        paths = find_notebooks(options.paths)
        if options.command == "dress":
            return dress_command(paths)
        if options.command == "minutes":
            return minutes_command(paths)
        if options.command == "run":
            return run_command(paths, accept_fewer=options.accept_fewer)
        if options.command == "check":
            return check_command(paths, whole_book=not options.paths, with_table=options.table)
        if options.command == "budgets":
            chosen = paths if options.paths else ()
            return budgets_command(chosen, accept_more=options.accept_more)
        if options.command == "compare":
            return compare_command(
                paths,
                whole_book=not options.paths,
                with_table=options.table,
                at_most=options.at_most,
            )
        return stamp_command(paths, options.address, options.out)
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
