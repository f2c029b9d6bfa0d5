"""What an engineer would search for leads to the file: by its name, or by its first line."""

import ast
import re
from pathlib import Path

import pytest
from test_api_index import first_line_of

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "transformer_lib"
SECTION = (
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("### Names that can be found")[1]
)
ROWS = re.findall(r"^\| (.+) \| (.+) \| `(\S+\.py)` \|$", SECTION.split("\n### ")[0], re.MULTILINE)


def letters(text):
    return re.sub(r"[\W_]", "", text.lower())


def row_problems(words, ours, path):
    """Say what is wrong with a row: no such file, or a word or a name that the file lacks."""
    where = f"CONTRIBUTING.md, Names that can be found, {path}"
    if not (LIBRARY / path).is_file():
        return [f"{where}: there is no such file in transformer_lib"]
    said = first_line_of("transformer_lib." + path.removesuffix(".py").replace("/", "."))
    known = [word.split("(")[0] for word in words.split(",")]
    problems = []
    if not any(letters(word) in letters(path) + " " + letters(said) for word in known):
        problems.append(f"{where}: write one of {words} into the first line, {said!r}")
    tree = ast.parse((LIBRARY / path).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    names = set(re.findall(r"`(\w+)`", ours))
    return problems + [f"{where}: it defines no {name}" for name in sorted(names - defined)]


@pytest.mark.parametrize(("words", "ours", "path"), ROWS, ids=[row[-1] for row in ROWS])
def test_a_word_of_the_field_leads_to_its_file(words, ours, path):
    assert not row_problems(words, ours, path)


def test_the_table_is_read_whole():
    assert len(ROWS) >= 15
    assert len({path for *_, path in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("masks", "`causal_mask`", "layers/legs.py"), "there is no such file"),
        (("rotary legs", "`causal_mask`", "layers/masks.py"), "write one of rotary legs into the"),
        (("attention mask, masks", "`legs`", "layers/masks.py"), "it defines no legs"),
    ],
)
def test_a_row_that_leads_nowhere_is_told(row, said):
    (problem,) = row_problems(*row)
    assert said in problem
