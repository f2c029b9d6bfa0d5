"""Which names a cell defines and which it needs from other cells, read without running it."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

# Statements that hold others, which are read one by one, in the order in which they run.
_COMPOUND = (
    *(ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Match),
    *(ast.Try, ast.TryStar),
)
# Scopes inside a statement that run with it; those of functions run when they are called.
_COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")


@dataclass
class Names:
    """The names of one cell that other cells could share.

    Attributes:
        defines: what it binds at module level, in the order of the source.
        reads: what it reads at once and has not bound before; another cell must have done so.
        calls: what its functions read when they are called, and the cell does not bind.
        error: why the source cannot be read, if it cannot.
    """

    defines: list[str] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    error: str = ""

    @property
    def needs(self) -> set[str]:
        """All names that must come from other cells (or are Python's own)."""
        return self.reads | self.calls


@lru_cache(maxsize=4096)
def names_of(source: str) -> Names:
    """Read the names of a cell. Treat what is returned as frozen: it is shared.

    Scopes are Python's own (`symtable`): the parameter of a function is no use of a global name
    that happens to be spelt like it.
    """
    found = Names()
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        found.error = f"line {error.lineno}: {error.msg}"
        return found
    for step in _steps(module):
        _add(found, step)
    found.calls -= {*found.defines} | found.reads
    return found


def _add(found: Names, step: str) -> None:
    """Add the names of one simple statement."""
    (statement,) = ast.parse(step).body
    table = symtable.symtable(step, "cell", "exec")
    read = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    for name, at_once in _read_inside(table):
        (read if at_once else found.calls).add(name)
    read -= {*_bound_on_the_way(statement)}
    changed = _changed_in_place(statement)
    found.reads |= (read | changed) - {*found.defines}
    gone = changed if isinstance(statement, ast.Delete) else ()
    bound = dict.fromkeys([*found.defines, *_bound(table, statement)])
    found.defines = [name for name in bound if name not in gone]


def _steps(node: ast.AST) -> Iterator[str]:
    """The simple statements of a cell, in the order in which they run; loops run once."""
    if isinstance(node, ast.stmt) and not isinstance(node, _COMPOUND):
        yield ast.unparse(node)
    elif isinstance(node, ast.expr):
        is_target = isinstance(getattr(node, "ctx", None), ast.Store)
        yield f"{ast.unparse(node)} = None" if is_target else ast.unparse(node)
    else:
        for key in ("name", "rest"):  # of `except ... as name`, and of what `case` takes apart
            if getattr(node, key, None):
                yield f"{getattr(node, key)} = None"
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.For | ast.AsyncFor):
            parts[:2] = node.iter, node.target
        for part in parts:
            yield from _steps(part)


def _bound(table: symtable.SymbolTable, statement: ast.stmt) -> Iterator[str]:
    """What a statement binds at module level, also by `global` inside a function."""
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            yield symbol.get_name()
    for node in ast.walk(statement):
        if isinstance(node, ast.Global):
            yield from node.names
    yield from _bound_on_the_way(statement)


def _bound_on_the_way(statement: ast.stmt) -> Iterator[str]:
    """The names of `n := ...`, which also leave a comprehension."""
    for node in _outside_functions(statement):
        if isinstance(node, ast.NamedExpr):
            yield node.target.id


def _changed_in_place(statement: ast.stmt) -> set[str]:
    """The names of `x += 1` or `del x`: they must be there."""
    changed: list[ast.expr] = statement.targets if isinstance(statement, ast.Delete) else []
    if isinstance(statement, ast.AugAssign):
        changed = [statement.target]
    return {target.id for target in changed if isinstance(target, ast.Name)}


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _read_inside(table: symtable.SymbolTable, at_once: bool = True) -> Iterator[tuple[str, bool]]:
    """Global names that scopes inside a statement read, and whether they do so at once."""
    for child in table.get_children():
        runs = child.get_type() == "class" or child.get_name() in _COMPREHENSIONS
        for symbol in child.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                yield symbol.get_name(), at_once and runs
        yield from _read_inside(child, at_once and runs)
