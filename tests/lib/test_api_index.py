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
