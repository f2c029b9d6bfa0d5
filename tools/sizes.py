"""How large the code is: the longest files and functions, printed and enforced nowhere.

    python -m tools.sizes

A file that takes more than a sitting, or a function that takes more than a screen, is a question,
not a fault: is it two things? A limit once made people squeeze lines instead of asking.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("transformer_lib", "transformer_book", "tools")
LONG_FILE, LONG_FUNCTION = 400, 40  # from here on it is worth a question
_NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Size:
    """How many lines a file or a function has."""

    lines: int
    what: str


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code; docstrings, comments and blanks do not count."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - set(_docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def functions(source: str) -> Iterator[Size]:
    """The functions and methods of a source, with their lines of code."""
    code = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            yield Size(len(code.intersection(own)), node.name)


def measure(package: Path) -> tuple[list[Size], list[Size]]:
    """The files of a package and their functions, largest first."""
    files, inside = [], []
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        name = str(path.relative_to(package.parent))
        files.append(Size(len(source.splitlines()), name))
        inside += [Size(size.lines, f"{name}: {size.what}") for size in functions(source)]
    return sorted(files, key=_largest), sorted(inside, key=_largest)


def _largest(size: Size) -> int:
    return -size.lines


def report(package: Path) -> str:
    """A line on the whole package, then what is long in it."""
    files, inside = measure(package)
    lines = [
        f"{package.name}: {len(files)} files, {sum(file.lines for file in files):,} lines; longest "
        f"{files[0].what} ({files[0].lines}), {inside[0].what} ({inside[0].lines} lines of code)"
    ]
    lines += [f"  {file.lines} lines: {file.what}" for file in files if file.lines > LONG_FILE]
    lines += [
        f"  {size.lines} lines of code: {size.what}"
        for size in inside
        if size.lines > LONG_FUNCTION
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the sizes; returns the exit status, which is always 0."""
    for package in PACKAGES:
        print(report(ROOT / package))
    return 0


if __name__ == "__main__":
    sys.exit(main())
