"""What the learner's edition shows of a cell that belongs to the reader's file: its signatures."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

Definition = ast.FunctionDef | ast.ClassDef


def emptied(source: str) -> str:
    """A cell of the file to be filled: signatures, one sentence each, and what takes the answer.

    >>> print(emptied('def double(x):\\n    "Twice x."\\n    return 2 * x'))
    def double(x):
        "Twice x."
        ...
    <BLANKLINE>
    <BLANKLINE>
    double = pick("file.double", double)
    """
    lines, body = source.split("\n"), ast.parse(source).body
    kept = [
        "\n".join(_stub(node, lines)) if isinstance(node, Definition) else _text(node, lines)
        for node in body
    ]
    names = [node.name for node in body if isinstance(node, Definition)]
    return "\n\n\n".join([*kept, "\n".join(f'{n} = pick("file.{n}", {n})' for n in names)])


def _stub(node: Definition, lines: list[str]) -> Iterator[str]:
    """A signature with its docstring; of a class, those of its functions too."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    yield from lines[first - 1 : node.body[0].lineno - 1]
    described = ast.get_docstring(node) is not None
    if described:
        yield _text(node.body[0], lines)
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    if isinstance(node, ast.ClassDef) and functions:
        for number, part in enumerate(functions):
            yield from [""] if described or number else []
            yield from _stub(part, lines)
    else:
        yield " " * node.body[0].col_offset + "..."


def _text(node: ast.stmt, lines: list[str]) -> str:
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


def typed(source: str) -> str:
    """What a learner wrote into such a cell, without the lines that take it.

    >>> typed('def double(x):\\n    return x + x\\n\\n\\ndouble = pick("file.double", double)')
    'def double(x):\\n    return x + x'
    """
    lines = [line for line in source.split("\n") if ' = pick("file.' not in line]
    return textwrap.dedent("\n".join(lines)).strip("\n")
