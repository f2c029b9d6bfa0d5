"""Typed and documented: an example that runs for every public name, and sizes that are told."""

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
from tools.sizes import Size, code_lines, functions, report

ROOT = pathlib.Path(transformer_lib.__file__).parents[1]
LIBRARY = sorted(pathlib.Path(transformer_lib.__file__).parent.rglob("*.py"))
BOOK = sorted(pathlib.Path(transformer_book.__file__).parent.rglob("*.py"))
READERS_FILE = "transformer_book.file"  # plain code without types: its documentation is the book
LINES_WITH_ANY = 20  # of transformer_lib must be fewer: object, a Protocol, a Callable say more
MAX_EXAMPLE_WIDTH = 71  # characters that an API page shows of a method's example, at 1280 px


def short_path(path):
    return str(path.relative_to(ROOT))


def test_code_lines_are_counted_without_words():
    source = '"""Words."""\n\nx = 1  # why\n\ndef f():\n    """More."""\n    return (\n        x)\n'
    assert code_lines(source) == {3, 5, 7, 8}
    assert list(functions(source)) == [Size(3, "f")]


def test_long_files_and_functions_are_told(tmp_path):
    package = tmp_path / "small"
    package.mkdir()
    (package / "long.py").write_text("x = 1\n" * 401)
    (package / "deep.py").write_text("def f():\n" + "    x = 1\n" * 40)
    (package / "short.py").write_text("def g():\n" + "    x = 1\n" * 39)
    whole, *lines = report(package).splitlines()
    assert whole.startswith("small: 3 files, 482 lines; longest small/long.py (401), small/deep.py")
    assert lines == ["  401 lines: small/long.py", "  41 lines of code: small/deep.py: f"]


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
        if name == READERS_FILE:
            continue
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
