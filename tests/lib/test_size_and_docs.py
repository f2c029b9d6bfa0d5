"""Small and documented: limits on lines, and an example that runs for every public name."""

import ast
import doctest
import importlib
import inspect
import io
import pathlib
import tokenize

import pytest

import transformer_book
import transformer_lib

ROOT = pathlib.Path(transformer_lib.__file__).parents[1]
LIBRARY = sorted(pathlib.Path(transformer_lib.__file__).parent.rglob("*.py"))
BOOK = sorted(pathlib.Path(transformer_book.__file__).parent.rglob("*.py"))
MAX_FUNCTION_LINES = 60
MAX_CODE_LINES = 4200  # of transformer_lib; blank lines, comments and docstrings not counted
NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def docstring_lines(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node) is not None:
                yield from range(first.lineno, first.end_lineno + 1)


def code_lines(source):
    """The numbers of the lines that hold code."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - set(docstring_lines(ast.parse(source)))


def test_code_lines_are_counted_without_words():
    source = '"""Words."""\n\nx = 1  # why\n\ndef f():\n    """More."""\n    return (\n        x)\n'
    assert code_lines(source) == {3, 5, 7, 8}


def test_the_library_can_be_read_in_an_evening():
    counts = {path.name: len(code_lines(path.read_text(encoding="utf-8"))) for path in LIBRARY}
    assert sum(counts.values()) <= MAX_CODE_LINES, counts


@pytest.mark.parametrize("path", LIBRARY + BOOK, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_is_long(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            length = node.end_lineno - node.lineno + 1  # its docstring included
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def public_names():
    for path in LIBRARY + BOOK:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or getattr(value, "__module__", None) != name:
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                yield pytest.param(value, id=f"{name}.{attribute}")


def argument_names(value):
    return [
        name
        for name in inspect.signature(value).parameters
        if not name.startswith("_") and name not in ("self", "args", "kwargs")
    ]


@pytest.mark.parametrize("value", list(public_names()))
def test_every_public_name_says_what_it_does_and_shows_it(value):
    text = inspect.getdoc(value)
    assert text, "no docstring"
    summary = text.split("\n", 1)[0]
    assert summary.endswith("."), f"the first line is not a sentence: {summary!r}"
    assert doctest.DocTestParser().get_examples(text), "no example that runs"
    arguments = argument_names(value)
    for name in arguments:
        assert f"{name}:" in text, f"argument {name!r} is not described"


@pytest.mark.parametrize("value", list(public_names()))
def test_every_public_method_says_what_it_does(value):
    if inspect.isclass(value):
        for name, method in vars(value).items():
            if not name.startswith("_") and inspect.isfunction(method):
                assert inspect.getdoc(method), f"{value.__name__}.{name} has no docstring"


@pytest.mark.parametrize("path", LIBRARY + BOOK, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_first_line_of_a_file_says_what_it_holds(path):
    first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).split("\n")[0]
    assert first.endswith(".")
    if path.parent.parent == ROOT and path.stem != "__init__":
        assert len(first) <= 59, "chapter 00 prints it beside the name, in 74 columns"
