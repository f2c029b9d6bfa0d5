"""The file that the reader writes: gathered from the cells tagged `your-file`, in reading order.

The cells are its only source. A page that builds a part of the Transformer has one such cell; a
later page may replace what an earlier one wrote, and says so in its first line. What is written
here is the same text twice: `book/transformer.py`, which readers download and run, and the module
`transformer_book.file`, which later pages import from.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from nbformat import NotebookNode

from .fold import YOUR_FILE
from .model import BOOK, ROOT, NotebookError, code_cells, load, show, tags, write_atomically
from .names import names_of

WRITTEN = (BOOK / "transformer.py", ROOT / "transformer_book" / "file" / "__init__.py")
# What a cell may use without an import of its own, since every page has it.
IMPORTS = {
    "math": "import math",
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "nn": "from torch import nn",
}
REPLACES = re.compile(r"# replaces (?P<names>\w+(?:, \w+)*): (?P<why>\S.*)")
HEADING = re.compile(r"^# +(?P<title>\S.*?) *$", re.M)
INTRODUCTION = '''"""The Transformer that you write while you read *The Executable Transformer*.

Each part is the text of one cell of the book, marked "your file", under the title of its page. To
change a part, change the cell: `python -m tools.notebooks file` writes this file.
"""'''


@dataclass(frozen=True)
class Piece:
    """One cell of the file.

    Args:
        page: the name of the notebook, without its ending.
        title: that of the page.
        cell: the id of the cell.
        source: what stands in it.
    """

    page: str
    title: str
    cell: str
    source: str

    @property
    def where(self) -> str:
        """How messages call it."""
        return f"{self.page}: cell {self.cell}"

    @property
    def replaces(self) -> list[str]:
        """The names that it replaces, as its first line says."""
        match = REPLACES.fullmatch(self.source.split("\n")[0])
        return match["names"].split(", ") if match else []


@dataclass(frozen=True)
class Part:
    """A definition: a function, a class, a constant, or what the file does when it is run."""

    name: str
    text: str
    piece: Piece


# --- reading the cells ------------------------------------------------------------------------


def pages_in_order(root: Path = ROOT) -> list[Path]:
    """The notebooks of the book, in the order of its contents."""
    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    paths = [root / f"{name}.ipynb" for name in _documents(contents)]
    return [path for path in paths if path.is_file()]


def _documents(contents: object) -> Iterator[str]:
    if isinstance(contents, dict):
        for key, value in contents.items():
            if key in ("root", "file"):
                yield re.sub(r"\.(ipynb|md)$", "", str(value))
            else:
                yield from _documents(value)
    elif isinstance(contents, list):
        for entry in contents:
            yield from _documents(entry)


def pieces_of(notebook: NotebookNode, page: str) -> list[Piece]:
    """The cells of one page that belong to the file."""
    found = HEADING.search("\n".join(c.source for c in notebook.cells if c.cell_type == "markdown"))
    title = found["title"] if found else page
    return [
        Piece(page, title, cell.get("id", str(number)), cell.source)
        for number, cell in code_cells(notebook)
        if YOUR_FILE in tags(cell)
    ]


def all_pieces(root: Path = ROOT, until: str | None = None) -> list[Piece]:
    """The cells of all pages, or of those up to one, in reading order."""
    pieces = []
    for path in pages_in_order(root):
        pieces += pieces_of(load(path), path.stem)
        if path.stem == until:
            break
    return pieces


def parts_of(piece: Piece) -> list[Part]:
    """The definitions of a cell, each with the comments above it; imports are left out."""
    lines, parts, above = piece.source.split("\n"), [], 0
    for node in _body(piece):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            text = "\n".join(lines[above : node.end_lineno]).strip("\n")
            parts.append(Part(_name_of(node), _without_remark(text), piece))
        above = node.end_lineno or 0
    return parts


def _body(piece: Piece) -> list[ast.stmt]:
    try:
        return ast.parse(piece.source).body
    except SyntaxError as error:
        raise NotebookError(f"{piece.where}: line {error.lineno}: {error.msg}") from None


def _name_of(node: ast.stmt) -> str:
    """What a statement defines; empty for one that has no place in the file."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return "__main__"
    return ""


def _without_remark(text: str) -> str:
    """A definition without the line that says what it replaces: the file has only the last one."""
    first, _, rest = text.partition("\n")
    return rest if REPLACES.fullmatch(first) else text


# --- the guard --------------------------------------------------------------------------------


def problems(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, str, str]]:
    """What is wrong with the cells of the file: which cell, what, and how to mend it."""
    written: dict[str, Piece] = {}
    for piece in pieces:
        own = [part.name for part in parts_of(piece)]
        yield from _problems_of_form(piece, own)
        yield from _problems_of_replacing(piece, own, written)
        known = {*written, *own, *IMPORTS, *_imported(piece), *vars(builtins), "__name__"}
        if missing := sorted(names_of(piece.source).needs - known):
            names = ", ".join(missing)
            yield piece, f"uses {names}, which no page before wrote", "write it, or do without"
        written |= dict.fromkeys(own, piece)


def _problems_of_form(piece: Piece, own: Sequence[str]) -> Iterator[tuple[Piece, str, str]]:
    if "" in own:
        more = "move the rest to the cell below"
        yield piece, "does something besides defining functions and classes", more
    for module in _modules(piece):
        if module.split(".")[0] not in {"torch", *sys.stdlib_module_names}:
            yield piece, f"imports {module}", "the file may use torch and the standard library"


def _problems_of_replacing(
    piece: Piece, own: Sequence[str], written: dict[str, Piece]
) -> Iterator[tuple[Piece, str, str]]:
    for name in own:
        if name in written and name not in piece.replaces:
            line = f"`# replaces {name}: what is new` as its first line"
            yield piece, f"defines {name}, as {written[name].page} does", f"write {line}"
    for name in piece.replaces:
        if name not in own or name not in written:
            yield piece, f"says that it replaces {name}, and does not", "correct its first line"


def _modules(piece: Piece) -> Iterator[str]:
    for node in _body(piece):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def _imported(piece: Piece) -> set[str]:
    aliases = [
        alias
        for node in _body(piece)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    return {alias.asname or alias.name.split(".")[0] for alias in aliases}


# --- writing ----------------------------------------------------------------------------------


def gather(pieces: Sequence[Piece]) -> str:
    """The text of the file: the latest version of each part, where its first one stood."""
    parts: dict[str, Part] = {}
    for piece in pieces:
        for part in parts_of(piece):
            parts[part.name] = part  # a name that is there already keeps its place
    main = parts.pop("__main__", None)
    text, page = [INTRODUCTION, _imports(pieces)], ""
    for part in [*parts.values(), *([main] if main else [])]:
        heading = f"# --- {part.piece.title} ---\n\n\n" if part.piece.page != page else ""
        text.append(heading + part.text)
        page = part.piece.page
    return f"{text[0]}\n\n{text[1]}\n\n\n" + "\n\n\n".join(text[2:]) + "\n"


def _imports(pieces: Iterable[Piece]) -> str:
    """The lines that the file begins with: the standard library first, then torch."""
    lines = set()
    for piece in pieces:
        lines |= {IMPORTS[name] for name in names_of(piece.source).needs if name in IMPORTS}
        for node in _body(piece):
            if isinstance(node, ast.Import | ast.ImportFrom):
                lines.add(ast.unparse(node))
    groups = [sorted(line for line in lines if ("torch" in line) == last) for last in (False, True)]
    in_order = ["\n".join(sorted(group, key=_by_module)) for group in groups if group]
    return "\n\n".join(in_order)


def _by_module(line: str) -> tuple[bool, str]:
    return line.startswith("from "), line


def write_file(root: Path = ROOT, targets: Sequence[Path] = WRITTEN) -> str:
    """Gather the file and write it to both places; returns what was written.

    Raises:
        NotebookError: if something is wrong with a cell.
    """
    pieces = all_pieces(root)
    wrong = [f"{piece.where}: {what}; {cure}" for piece, what, cure in problems(pieces)]
    if wrong:
        raise NotebookError("\n".join(wrong))
    text = gather(pieces)
    for path in targets:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    return text


def state_at(page: str, root: Path = ROOT) -> str:
    """The file as far as a page has brought it."""
    if page not in (path.stem for path in pages_in_order(root)):
        raise NotebookError(f"{page}: expected a page of the book, such as 06_heads")
    return gather(all_pieces(root, until=page))


def stale(targets: Sequence[Path] = WRITTEN, root: Path = ROOT) -> list[str]:
    """Where the written file is not what the cells say."""
    text = gather(all_pieces(root))
    return [
        f"{show(path)}: not what the cells say; run `python -m tools.notebooks file`"
        for path in targets
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
