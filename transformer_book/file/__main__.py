"""Keep what a learner has typed: `python -m transformer_book.file save`.

The parts of the reader's file stand in the cells of many notebooks. This gathers them into one file
that can be imported: the learner's parts, and the book's where a cell is still empty.
"""

import argparse
import ast
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_book import file
from transformer_book.your_file import Part, Piece, all_pieces, imports_of, parts_of

_COMMAND = "python -m transformer_book.file save"
_SEAL = f"# As `{_COMMAND}` wrote it: "


def save(folder: Path, target: Path) -> list[str]:
    """Write the file with a learner's parts in place of the book's.

    Args:
        folder: where the notebooks are.
        target: the file to write.

    Returns:
        For each part a line that says whose it is.

    Raises:
        ValueError: if no notebook there has a cell of the file, if a cell is not Python, or if the
            target holds something else than what this function wrote.

    Example:
        >>> save(Path("nowhere"), Path("mine.py"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: nowhere: no notebook there has a cell tagged ...
    """
    pieces = all_pieces(folder)
    if not pieces:
        expected = "expected the folder `book` of the learner's edition"
        raise ValueError(f"{folder}: no notebook there has a cell tagged `your-file`; {expected}")
    if target.exists() and not _is_as_written(target):
        expected = "expected no file there, or one as this command wrote it; move yours away first"
        raise ValueError(f"{target}: {expected}")
    book = {part.name: part for part in parts_of(_whole_file()) if part.name}
    yours = [part for piece in pieces for part in parts_of(piece) if part.name]
    chosen = _chosen(book, yours)
    target.write_text(_sealed(_text_of(list(chosen.values()))), encoding="utf-8")
    return [_whose(part, [p for p in yours if p.name == name]) for name, part in chosen.items()]


def _whole_file() -> Piece:
    """The book's file, as if it were one cell."""
    return Piece("", "", "", 1, Path(str(file.__file__)).read_text(encoding="utf-8"))


def _chosen(book: dict[str, Part], yours: Sequence[Part]) -> dict[str, Part]:
    """The parts that are written, in order: a learner's latest version of each if he has one."""
    latest = {part.name: part for part in yours}
    written = {n: p for n, p in latest.items() if not p.is_empty and not _is_same(p, book.get(n))}
    order = list(book)
    for cell in {part.piece.where: part.piece for part in written.values()}.values():
        own = [part.name for part in yours if part.piece == cell and part.name in written]
        place = len(order)
        for name in reversed(own):  # what only a learner has stands where his cell has it
            if name not in order:
                order.insert(place, name)
            place = order.index(name)
    return {name: written.get(name) or book[name] for name in order}


def _is_same(part: Part, other: Part | None) -> bool:
    """Whether two parts are the same code; comments do not count."""
    return other is not None and ast.dump(part.node) == ast.dump(other.node)


def _text_of(parts: Sequence[Part]) -> str:
    head = f'"""The Transformer that you write, gathered by `{_COMMAND}`."""'
    body = [f"# {_owner(part)}\n{_without_headings(part)}" for part in parts]
    imports = imports_of({part.piece.where: part.piece for part in parts}.values())
    return "\n\n\n".join([f"{head}\n\n{imports}", *body]) + "\n"


def _without_headings(part: Part) -> str:
    """The text of a part; above those of the book stand titles of pages, which are left out."""
    lines = part.text.split("\n")
    while not part.piece.page and (not lines[0] or lines[0].startswith("#")):
        lines.pop(0)
    return "\n".join(lines)


def _owner(part: Part) -> str:
    return f"yours, from {part.piece.page}" if part.piece.page else "the book's"


def _whose(part: Part, versions: Sequence[Part]) -> str:
    """Say whose a part is and, if it is the book's although a learner wrote one, why."""
    old = [version for version in versions if not version.is_empty]
    if part.piece.page or not old or not versions[-1].is_empty:
        return f"{part.name}: {_owner(part)}"
    replaced = f"{versions[-1].piece.page} replaces yours of {old[-1].piece.page} and is empty"
    return f"{part.name}: the book's, because {replaced}"


# --- nobody's work is lost ----------------------------------------------------------------------


def _sealed(text: str) -> str:
    """The text with a last line that shows whether it was changed afterwards."""
    return f"{text}\n\n{_SEAL}{hashlib.sha256(text.encode()).hexdigest()[:16]}\n"


def _is_as_written(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return text == _sealed(text.rpartition(f"\n\n{_SEAL}")[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words behind the command; those of the shell if left out.

    Returns:
        The exit status.

    Example:
        >>> import contextlib, io
        >>> with contextlib.redirect_stderr(io.StringIO()) as said:
        ...     status = main(["save", "nowhere"])
        >>> status, "no notebook there" in said.getvalue()
        (2, True)
    """
    parser = argparse.ArgumentParser(
        prog="python -m transformer_book.file", description=(__doc__ or "").split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save", help="gather your cells into one file")
    saving.add_argument("folder", nargs="?", type=Path, default=Path(), help="of the notebooks")
    saving.add_argument(
        "--to", metavar="FILE", type=Path, default=Path("my_transformer.py"), help="what to write"
    )
    options = parser.parse_args(arguments)
    try:
        told = save(options.folder, options.to)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.to}: {len(told)} parts", *told, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
