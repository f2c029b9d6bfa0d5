"""The file that the reader writes: refused where a cell breaks its rules, and written twice.

How cells become a file is `transformer_book.your_file`'s business. Its text goes to two places:
`book/transformer.py`, which readers download and run, and `transformer_book.file`, which later
pages import from.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from transformer_book.your_file import IMPORTS, Part, Piece, all_pieces, gather, parts_of

from .guard import Finding
from .model import BOOK, NotebookError, write_atomically
from .names import names_of

WRITE = "run `python -m tools.notebooks file`"
_TORCH_AND_STANDARD = {"torch", *sys.stdlib_module_names}
Trouble = tuple[Piece, str, str]  # which cell, what is wrong, how to mend it


def targets(book: Path = BOOK) -> tuple[Path, Path]:
    """Where the file of a book stands: to be downloaded, and to be imported."""
    return book / "transformer.py", book.parent / "transformer_book" / "file" / "__init__.py"


# --- the rules --------------------------------------------------------------------------------


def problems(pieces: Iterable[Piece]) -> Iterator[Trouble]:
    """What is wrong with the cells of the file, in reading order."""
    written: dict[str, Piece] = {}
    for piece in pieces:
        try:
            parts = parts_of(piece)
        except ValueError as error:
            yield piece, str(error).removeprefix(f"{piece.where}: "), "correct it"
            continue
        yield from _problems_of_form(piece, parts)
        yield from _problems_of_imports(piece)
        own = [part.name for part in parts]
        yield from _problems_of_replacing(piece, own, written)
        known = {*written, *own, *IMPORTS, *_imported(piece), *vars(builtins), "__name__"}
        if missing := sorted(names_of(piece.source).needs - known):
            names = ", ".join(f"`{name}`" for name in missing)
            yield piece, f"uses {names}, which no page before it wrote", "write it, or do without"
        written |= dict.fromkeys(own, piece)


def _problems_of_form(piece: Piece, parts: Iterable[Part]) -> Iterator[Trouble]:
    for part in parts:
        if not part.name:
            begin = part.text.split("\n")[0]
            yield piece, f"does more than define parts: `{begin}`", "move that to the cell below"
        if isinstance(part.node, ast.FunctionDef | ast.ClassDef):
            said = ast.get_docstring(part.node) or ""
            if not said or "\n" in said:
                trouble = f"`{part.name}` has no docstring of one line"
                yield piece, trouble, "write one: it is all that a learner sees of it"


def _problems_of_imports(piece: Piece) -> Iterator[Trouble]:
    for node in ast.walk(ast.Module(piece.body, [])):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "."]
        for module in modules:
            if module.split(".")[0] not in _TORCH_AND_STANDARD:
                cure = "do without: the file has only PyTorch and the standard library"
                yield piece, f"imports {module}", cure


def _problems_of_replacing(
    piece: Piece, own: Sequence[str], written: dict[str, Piece]
) -> Iterator[Trouble]:
    for name in own:
        if name in written and name not in piece.replaces:
            line = f"`# replaces {name}: what is new` as its first line, or choose another name"
            yield piece, f"defines `{name}`, as {written[name].where} does", f"write {line}"
    for name in piece.replaces:
        if name not in own or name not in written:
            trouble = f"says that it replaces `{name}`, and does not"
            yield piece, trouble, "correct its first line"


def _imported(piece: Piece) -> set[str]:
    imports = [node for node in piece.body if isinstance(node, ast.Import | ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names]
    return {alias.asname or alias.name.split(".")[0] for alias in aliases}


# --- the guard, and writing -------------------------------------------------------------------


def inspect_file(paths: Sequence[Path]) -> Iterator[Finding]:
    """What is wrong with the cells of some notebooks, and with the file that theirs are part of."""
    for book in sorted({path.parent for path in paths}):
        try:
            pieces = all_pieces(book)
        except ValueError:
            continue  # a notebook that cannot be read: the guard of notebooks says so
        found = list(problems(pieces))
        for piece, trouble, remedy in found:
            if (path := book / f"{piece.page}.ipynb") in paths:
                yield Finding(path, piece.number, f"belongs to the file, but {trouble}", remedy)
        if pieces and not found:
            yield from _stale(book, pieces)


def _stale(book: Path, pieces: Sequence[Piece]) -> Iterator[Finding]:
    text = gather(pieces)
    for path in targets(book):
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield Finding(path, None, "is not what the cells of the pages say", WRITE)


def write_file(book: Path = BOOK) -> str:
    """Gather the file and write it to both places; returns what was written.

    Raises:
        NotebookError: if a cell breaks a rule, or a notebook cannot be read.
    """
    try:
        pieces = all_pieces(book)
    except ValueError as error:
        raise NotebookError(str(error)) from None
    wrong = [f"{piece.where}: {trouble}; {cure}" for piece, trouble, cure in problems(pieces)]
    if wrong or not pieces:
        raise NotebookError("\n".join(wrong) or f"{book}: no cell is tagged `your-file`")
    text = gather(pieces)
    for path in targets(book):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    return text
