"""The index of the API says of each module what the module says of itself."""

import ast
import re
from pathlib import Path

import pytest

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
    (path,) = paths
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0]


def test_the_index_has_a_row_for_most_of_the_code():
    assert len(ROWS) >= 40


@pytest.mark.parametrize(("module", "words"), ROWS, ids=[module for module, _ in ROWS])
def test_the_index_repeats_the_modules_own_words(module, words):
    assert words == first_line_of(module)


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


@pytest.mark.parametrize("module", LIBRARY)
def test_a_module_imports_only_from_those_above_it(module):
    above = LIBRARY[: LIBRARY.index(module) + 1]
    old_names = {"moved"}  # which says where they went; nothing a reader would look up
    assert sorted(set(imported_modules(module)) - set(above) - old_names) == []
