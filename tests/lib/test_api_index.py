"""The index of the API says of each module what the module says of itself."""

import ast
import re
from pathlib import Path

import pytest
from omissions import fail_on

ROOT = Path(__file__).resolve().parents[2]
INDEX = (ROOT / "book" / "api" / "index.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \[`(\w+)`\]\(#module-\w+\) \| (.+) \|$", INDEX, re.MULTILINE)


def first_line_of(module):
    paths = [
        path
        for folder in ("transformer_lib", "transformer_book", "transformer_book/figures")
        for path in (ROOT / folder / f"{module}.py", ROOT / folder / module / "__init__.py")
        if path.exists()
    ]
    if not paths:
        pytest.fail(f"book/api/index.md has a row for {module}, which is no module: take it out")
    (path,) = paths
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0]


def test_the_index_has_a_row_for_most_of_the_code():
    assert len(ROWS) >= 40


@pytest.mark.parametrize(("module", "words"), ROWS, ids=[module for module, _ in ROWS])
def test_the_index_repeats_the_modules_own_words(module, words):
    said = first_line_of(module)
    where = f"book/api/index.md, row of {module}"
    assert words == said, f"{where}: write the first line of the module's docstring, {said!r}"


def imported_modules(module):
    """The modules of the library that one of its modules, or of its packages, imports."""
    folder = ROOT / "transformer_lib"
    for path in [folder / f"{module}.py", *(folder / module).glob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "transformer_lib":
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "transformer_lib."
            ):
                yield node.module.split(".")[1]


LIBRARY = [module for module, _ in ROWS[: ROWS.index(next(r for r in ROWS if r[0] == "cli")) + 1]]


def order_problems(module, imported, order):
    """What to do about the row of a module that imports others than those above it."""
    problems = []
    for used in sorted(set(imported) - set(order[: order.index(module) + 1])):
        said = f"book/api/index.md: {module} imports {used}"
        if used in order:
            problems.append(f"{said}, which comes later: move the row of {module} below it")
        else:
            problems.append(f"{said}, which has no row: add one above that of {module}")
    return problems


@pytest.mark.parametrize("module", LIBRARY)
def test_a_module_imports_only_from_those_above_it(module):
    old_names = {"moved"}  # which says where they went; nothing a reader would look up
    fail_on(order_problems(module, set(imported_modules(module)) - old_names, LIBRARY))


@pytest.mark.parametrize(
    ("imported", "said"),
    [
        (["c"], ["book/api/index.md: b imports c, which comes later: move the row of b below it"]),
        (["new"], ["book/api/index.md: b imports new, which has no row: add one above that of b"]),
        (["a"], []),
    ],
)
def test_a_row_in_the_wrong_place_is_told_where_it_belongs(imported, said):
    assert order_problems("b", imported, ["a", "b", "c"]) == said


def test_a_row_of_a_module_that_is_gone_is_told():
    with pytest.raises(pytest.fail.Exception, match="has a row for legs, which is no module"):
        first_line_of("legs")
