"""Small and documented: limits on lines, and an example that runs for every public name."""

import ast
import doctest
import importlib
import inspect
import io
import pathlib
import re
import tokenize
import tomllib
from typing import is_typeddict

import pytest

import transformer_book
import transformer_lib

ROOT = pathlib.Path(transformer_lib.__file__).parents[1]
LIBRARY = sorted(pathlib.Path(transformer_lib.__file__).parent.rglob("*.py"))
BOOK = sorted(pathlib.Path(transformer_book.__file__).parent.rglob("*.py"))
MAX_FILE_LINES = 400  # of a file of transformer_lib, all lines counted
MAX_CODE_LINES = 40  # of a function of transformer_lib; docstring, comments and blanks not counted
LINES_WITH_ANY = 20  # of transformer_lib must be fewer: object, a Protocol, a Callable say more
MAX_FUNCTION_LINES = 60  # of a function of transformer_book, all lines counted
MAX_EXAMPLE_WIDTH = 71  # characters that an API page shows of a method's example, at 1280 px
NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def docstring_lines(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
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


def functions(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, range(node.lineno, node.end_lineno + 1)


def short_path(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", LIBRARY, ids=short_path)
def test_a_file_of_the_library_is_read_in_one_sitting(path):
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert n_lines <= MAX_FILE_LINES, f"{n_lines} lines; at most {MAX_FILE_LINES}: split it"


@pytest.mark.parametrize("path", LIBRARY, ids=short_path)
def test_a_function_of_the_library_fits_on_one_screen(path):
    code = code_lines(path.read_text(encoding="utf-8"))
    for name, lines in functions(path):
        n_lines = len(code.intersection(lines))
        assert n_lines <= MAX_CODE_LINES, f"{name} has {n_lines} lines of code"


@pytest.mark.parametrize("path", BOOK, ids=short_path)
def test_no_function_of_the_book_is_long(path):
    for name, lines in functions(path):  # a docstring counts
        assert len(lines) <= MAX_FUNCTION_LINES, f"{name} has {len(lines)} lines"


def test_types_say_something():
    untyped = [
        f"{short_path(path)}:{token.start[0]}"
        for path in LIBRARY
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        if token.type == tokenize.NAME and token.string == "Any"
    ]
    assert len(set(untyped)) < LINES_WITH_ANY, untyped


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
    keys = value.__annotations__ if is_typeddict(value) else inspect.signature(value).parameters
    return [
        name for name in keys if not name.startswith("_") and name not in ("self", "args", "kwargs")
    ]


def said_of_arguments(value, text):
    """What describes the arguments: the docstring, or that of the class whose fields they are."""
    if is_typeddict(value) and (found := re.search(r"Fields of a :class:`(\w+)`", text)):
        return inspect.getdoc(vars(inspect.getmodule(value))[found[1]])
    return text


@pytest.mark.parametrize("value", list(public_names()))
def test_every_public_name_says_what_it_does_and_shows_it(value):
    text = inspect.getdoc(value)
    assert text, "no docstring"
    summary = text.split("\n", 1)[0]
    assert summary.endswith("."), f"the first line is not a sentence: {summary!r}"
    assert doctest.DocTestParser().get_examples(text), "no example that runs"
    said = said_of_arguments(value, text)
    for name in argument_names(value):
        assert f"{name}:" in said, f"argument {name!r} is not described"


@pytest.mark.parametrize("value", list(public_names()))
def test_every_public_method_says_what_it_does(value):
    if inspect.isclass(value):
        fields = getattr(value, "__dataclass_fields__", {})  # a default may be a function
        for name, method in vars(value).items():
            if not name.startswith("_") and inspect.isfunction(method) and name not in fields:
                assert inspect.getdoc(method), f"{value.__name__}.{name} has no docstring"


def example_lines(text):
    """The lines of all examples of a docstring, as an API page shows them."""
    for example in doctest.DocTestParser().get_examples(text):
        first, *rest = re.sub(r" *# doctest:.*", "", example.source).splitlines()
        yield f">>> {first}"
        yield from (f"... {line}" for line in rest)
        yield from example.want.splitlines()


def test_lines_of_examples_are_counted_with_prompts_and_without_directives():
    text = (
        "    >>> f(\n    ...     1)  # doctest: +ELLIPSIS\n    one\n    two\n\n    >>> 3\n    3\n"
    )
    assert list(example_lines(text)) == [">>> f(", "...     1)", "one", "two", ">>> 3", "3"]


def test_no_example_runs_out_of_its_box():
    """`ruff format` breaks code in docstrings at this width; strings and results are up to us."""
    texts = {
        f"{short_path(path)}:{node.lineno if hasattr(node, 'lineno') else 1}": text
        for path in LIBRARY + BOOK
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
    }
    lines = {(place, line) for place, text in texts.items() for line in example_lines(text)}
    assert len(lines) > 1000
    assert not sorted(found for found in lines if len(found[1]) > MAX_EXAMPLE_WIDTH)


def test_the_formatter_breaks_examples_at_the_same_width():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]
    assert settings["format"]["docstring-code-format"] is True
    assert settings["format"]["docstring-code-line-length"] == MAX_EXAMPLE_WIDTH - len(">>> ")


@pytest.mark.parametrize("path", LIBRARY + BOOK, ids=short_path)
def test_the_first_line_of_a_file_says_what_it_holds(path):
    first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).split("\n")[0]
    assert first.endswith(".")
    if path.parent.parent == ROOT and path.stem != "__init__":
        assert len(first) <= 58, "chapter 00 prints it beside the name, in 74 columns"
