"""The file that the reader writes, gathered from cells.

A page that builds a part of the Transformer has a cell tagged ``your-file``. These cells are the
only source of the file; a later page may replace what an earlier one wrote, and its cell says so in
its first line. Nothing here needs PyTorch: the site is built without it.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

TAG = "your-file"
# What a cell may use without an import of its own, since the pages have it.
IMPORTS = {
    "math": "import math",
    "re": "import re",
    "Counter": "from collections import Counter",
    "pairwise": "from itertools import pairwise",
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "nn": "from torch import nn",
}
_REPLACES = re.compile(r"# replaces (?P<names>\w+(?:, \w+)*): (?P<why>\S.*)")
_TITLE = re.compile(r"^# +(?P<title>\S.*?) *$", re.MULTILINE)
_MAIN = "__main__"
_PICK = "from transformer_book.exercises import pick"
_INTRODUCTION = '''"""The Transformer that you write while you read the book.

Each part is a cell of The Executable Transformer, marked "your file", and
stands under the title of its page. All that it needs is PyTorch.

`python -m tools.notebooks file` writes it: to change a part, change its
cell.
"""'''
_Definition = ast.FunctionDef | ast.ClassDef
_Constant = ast.Assign | ast.AugAssign  # of a class; a learner gets it as it is


@dataclass(frozen=True)
class Piece:
    """One cell of the file.

    Args:
        page: the name of the notebook, without its ending.
        title: that of the page.
        cell: the id of the cell.
        number: its place among all cells of the page, from 1.
        source: what stands in it.

    Example:
        >>> piece = Piece(
        ...     "05_masks", "5 · Masks", "05-file", 9, "def hide(x): ..."
        ... )
        >>> piece.chapter, piece.where
        ('5', '05_masks.ipynb, cell 05-file')
    """

    page: str
    title: str
    cell: str
    number: int
    source: str

    @property
    def chapter(self) -> str:
        """The number in the title of its page, such as 5b."""
        return self.page.partition("_")[0].removeprefix("0") or "0"

    @property
    def where(self) -> str:
        """Where it stands, as messages say it."""
        return f"{self.page}.ipynb, cell {self.cell}"

    @property
    def replaces(self) -> list[str]:
        """The names that it replaces, as its first line says."""
        match = _REPLACES.fullmatch(self.source.split("\n")[0])
        return match["names"].split(", ") if match else []

    @property
    def news(self) -> str:
        """What is new in it, as its first line says; nothing if it replaces nothing."""
        match = _REPLACES.fullmatch(self.source.split("\n")[0])
        return match["why"] if match else ""

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements, without those that only a learner's cell has.

        Raises:
            ValueError: if it is not Python.
        """
        try:
            found = ast.parse(self.source).body
        except SyntaxError as error:
            problem = f"{self.where}: line {error.lineno}: {error.msg}; expected Python"
            raise ValueError(problem) from None
        return [node for node in found if not _takes_an_answer(node)]


@dataclass(frozen=True)
class Part:
    r"""A definition of the file: a function, a class, a constant, or what runs at its end.

    Args:
        name: what it defines; empty for a statement that has no place in the file.
        text: its source, with the comments above it.
        node: its source, parsed.
        piece: the cell that it stands in.

    Example:
        >>> source = "# replaces f: shorter\ndef f(x): return x"
        >>> (part,) = parts_of(Piece("05_masks", "", "", 1, source))
        >>> part.text, part.exercise
        ('def f(x): return x', 'file.f.5')
    """

    name: str
    text: str
    node: ast.stmt
    piece: Piece

    @property
    def exercise(self) -> str:
        """The name of its check; that of a replacement ends with the number of its page."""
        replaced = f".{self.piece.chapter}" if self.name in self.piece.replaces else ""
        return f"file.{self.name}{replaced}"

    @property
    def is_empty(self) -> bool:
        """Whether a learner has left it as the learner's edition has it."""
        return _is_empty(self.node)


# --- reading cells ------------------------------------------------------------------------------


def pieces_of(notebook: Path) -> list[Piece]:
    """Read the cells of one page that belong to the file.

    Args:
        notebook: the page.

    Returns:
        Its pieces, in order.

    Raises:
        ValueError: if it cannot be read.

    Example:
        >>> pieces_of(Path("no.ipynb"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: no.ipynb: expected a notebook, JSON with a list ...
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "expected a notebook, JSON with a list of cells"
        raise ValueError(f"{notebook}: {expected} ({type(error).__name__}: {error})") from None
    words = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    found = _TITLE.search(words)
    title = found["title"] if found else notebook.stem
    return [
        Piece(notebook.stem, title, cell.get("id", str(n)), n, "".join(cell["source"]))
        for n, cell in enumerate(cells, start=1)
        if cell["cell_type"] == "code" and TAG in cell.get("metadata", {}).get("tags", [])
    ]


def all_pieces(book: Path) -> list[Piece]:
    """Read the cells of all pages that belong to the file.

    Args:
        book: the folder of the pages; in the order of their names they are in reading order.

    Returns:
        The pieces, in reading order.

    Raises:
        ValueError: if a page cannot be read.

    Example:
        >>> all_pieces(Path("nowhere"))
        []
    """
    return [piece for page in sorted(book.glob("*.ipynb")) for piece in pieces_of(page)]


def parts_of(piece: Piece) -> list[Part]:
    r"""Take a cell apart into its definitions; imports are left out.

    Args:
        piece: the cell.

    Returns:
        Its parts, each with the comments above it.

    Raises:
        ValueError: if it is not Python.

    Example:
        >>> piece = Piece(
        ...     "a", "A", "1", 1, "import math\n\n# All.\nN = 3\nprint(N)"
        ... )
        >>> [(part.name, part.text) for part in parts_of(piece)]
        [('N', '# All.\nN = 3'), ('', 'print(N)')]
    """
    lines, parts, above = piece.source.split("\n"), [], 0
    for node in piece.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            own = lines[above : node.end_lineno]
            text = "\n".join(line for line in own if not _REPLACES.fullmatch(line)).strip("\n")
            parts.append(Part(_name_of(node), text, node, piece))
        above = node.end_lineno or 0
    return parts


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, _Definition):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return _MAIN
    return ""


def _takes_an_answer(node: ast.stmt) -> bool:
    """Whether it is one of the lines that the learner's edition adds to a cell."""
    if isinstance(node, ast.ImportFrom):
        return ast.unparse(node) == _PICK
    call = node.value if isinstance(node, ast.Assign) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) == "pick"


def _is_empty(node: ast.stmt) -> bool:
    if not isinstance(node, _Definition):
        return False
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if isinstance(node, ast.ClassDef):
        return all(_is_empty(part) for part in body if not isinstance(part, _Constant))
    return all(isinstance(part, ast.Pass) or ast.unparse(part) == "..." for part in body)


# --- writing ------------------------------------------------------------------------------------


def gather(pieces: Sequence[Piece]) -> str:
    r"""Write the file: the latest version of each part, where its first one stood.

    Args:
        pieces: its cells, in reading order.

    Returns:
        The text.

    Raises:
        ValueError: if a cell is not Python.

    Example:
        >>> old = Piece("03_a", "3 · A", "x", 1, "def f(x): return x")
        >>> new = Piece(
        ...     "05_b",
        ...     "5 · B",
        ...     "y",
        ...     1,
        ...     "# replaces f: -x\ndef f(x): return -x",
        ... )
        >>> print(gather([old, new]).partition("--- ")[2])
        3 · A
        <BLANKLINE>
        <BLANKLINE>
        # page 5: -x
        def f(x): return -x
        <BLANKLINE>
    """
    latest: dict[str, Part] = {}
    first: dict[str, Piece] = {}
    for part in (part for piece in pieces for part in parts_of(piece)):
        latest[part.name] = part  # a name that is there already keeps its place
        first.setdefault(part.name, part.piece)
    names = sorted(latest, key=lambda name: name == _MAIN)  # what runs comes last
    blocks, page = [], ""
    for name in names:
        title, page_before, page = first[name].title, page, first[name].page
        blocks += [f"# --- {title}"] if page != page_before else []
        news = latest[name].piece.news if latest[name].piece is not first[name] else ""
        mark = f"# page {latest[name].piece.chapter}: {news}\n" if news else ""
        blocks.append(mark + latest[name].text)
    imports = imports_of(pieces)
    return "\n\n".join(filter(None, [_INTRODUCTION, imports, "\n\n\n".join(blocks)])) + "\n"


def imports_of(pieces: Iterable[Piece]) -> str:
    """Write the lines that the file begins with: the standard library first, then PyTorch.

    Args:
        pieces: its cells.

    Returns:
        The lines; only what some part uses, or a cell imports itself.

    Example:
        >>> piece = Piece(
        ...     "a", "A", "1", 1, "def f(x): return nn.Linear(math.e)"
        ... )
        >>> print(imports_of([piece]))
        import math
        <BLANKLINE>
        from torch import nn
    """
    lines = set()
    for node in (node for piece in pieces for node in piece.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines.add(ast.unparse(node))
        used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        lines |= {line for name, line in IMPORTS.items() if name in used}
    in_order = sorted(lines, key=lambda line: (line.startswith("from "), line))
    groups = [[line for line in in_order if ("torch" in line) is last] for last in (False, True)]
    return "\n\n".join("\n".join(group) for group in groups if group)


@dataclass(frozen=True)
class Listing:
    """A text that a page shows folded.

    Args:
        title: what it is; the reader presses it.
        text: the text.

    Example:
        >>> Listing("The file", "a = 1")
        The file, 1 line.
    """

    title: str
    text: str

    def __repr__(self) -> str:
        """Say what it is, not what stands in it."""
        n = len(self.text.splitlines())
        return f"{self.title}, {n} line{'s' * (n != 1)}."

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Give Jupyter the text, folded."""
        title, text = escape(repr(self)), escape(self.text)
        folded = f'<details class="listing"><summary>{title}</summary><pre>{text}</pre></details>'
        return {"text/html": folded, "text/plain": repr(self)}


def file_before(page: str, book: Path = Path()) -> Listing:
    """Show what the pages before one have written into the file.

    Args:
        page: the name of the notebook, without its ending.
        book: the folder of the pages.

    Returns:
        The file so far.

    Raises:
        ValueError: if no page before it writes into the file.

    Example:
        >>> file_before("02_a", Path("nowhere"))
        Traceback (most recent call last):
        ValueError: nowhere: no page before '02_a' writes the file
    """
    pieces = [piece for piece in all_pieces(book) if piece.page < page]
    if not pieces:
        raise ValueError(f"{book}: no page before {page!r} writes the file")
    return Listing("The file so far", gather(pieces))


# --- the learner's edition ----------------------------------------------------------------------


def emptied(piece: Piece) -> str:
    r"""Write a cell as the learner's edition has it: signatures, a sentence each, and no answer.

    Args:
        piece: the cell.

    Returns:
        What stands in its place. Its last lines take what the learner wrote, if that is right, and
        else the book's part, so that the rest of the page runs either way.

    Raises:
        ValueError: if it is not Python.

    Example:
        >>> piece = Piece(
        ...     "03_a",
        ...     "3 · A",
        ...     "x",
        ...     1,
        ...     'def f(x):\n    "Twice x."\n    return 2 * x',
        ... )
        >>> print(emptied(piece))
        from transformer_book.exercises import pick
        <BLANKLINE>
        <BLANKLINE>
        def f(x):
            "Twice x."
            ...
        <BLANKLINE>
        <BLANKLINE>
        f = pick("file.f", f)
    """
    lines = piece.source.split("\n")
    remark = [lines[0]] if piece.replaces else []
    imports = [_text(n, lines) for n in piece.body if isinstance(n, ast.Import | ast.ImportFrom)]
    parts = parts_of(piece)
    stubs = [
        "\n".join(_stub(part.node, lines)) if isinstance(part.node, _Definition) else part.text
        for part in parts
    ]
    asked = [part for part in parts if isinstance(part.node, _Definition)]
    takes = [f'{part.name} = pick("{part.exercise}", {part.name})' for part in asked]
    head = "\n".join([*remark, *imports, _PICK])
    return "\n\n\n".join([head, *stubs, "\n".join(takes)])


def _stub(node: _Definition, lines: Sequence[str]) -> Iterator[str]:
    """A signature with its sentence; of a class, its constants and those of its functions too."""
    described = ast.get_docstring(node) is not None
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    constants = [_text(part, lines) for part in node.body if isinstance(part, _Constant)]
    yield from _signature(node, lines)
    if described:
        yield _text(node.body[0], lines)
    if isinstance(node, ast.ClassDef) and functions:
        yield from ["", *constants] if described and constants else constants
        for number, part in enumerate(functions):
            yield from [""] if described or constants or number else []
            yield from _stub(part, lines)
    else:
        yield " " * (node.col_offset + 4) + "..."


def _signature(node: _Definition, lines: Sequence[str]) -> list[str]:
    """The lines above the body, decorators included and comments below it left out."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    body = node.body[0]
    if body.lineno == node.lineno:  # a body on the line of its `def`
        return [*lines[first : node.lineno - 1], lines[node.lineno - 1][: body.col_offset].rstrip()]
    found = list(lines[first : body.lineno - 1])
    while found[-1].lstrip().startswith("#") or not found[-1].strip():
        found.pop()
    return found


def _text(node: ast.stmt, lines: Sequence[str]) -> str:
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])
