"""Imports go one way: a file may use its own floor and lower ones, never a higher one."""

import ast
import pathlib

import pytest
from omissions import differences, fail_on, told

import transformer_book
import transformer_lib

FLOORS = {
    "moved": 0,
    "checks": 0,
    "hooks": 0,
    "modes": 0,
    "precision": 0,
    "config": 0,
    "masks": 0,
    "cache": 0,
    "static_cache": 0,
    "data": 0,
    "packing": 0,
    "recipes": 0,
    "rope_scaling": 0,
    "files": 0,
    "attention": 1,
    "fused": 1,
    "bounded": 1,
    "ragged": 1,
    "feedforward": 1,
    "norms": 1,
    "positions": 1,
    "embeddings": 1,
    "parts": 1,
    "blocks": 2,
    "initialisation": 2,
    "encoder_decoder": 3,
    "models": 3,
    "preset_configs": 3,
    "presets": 3,
    "losses": 3,
    "hugging_face": 4,
    "pretrained": 4,
    "text_stream": 4,
    "tracing": 4,
    "saving": 4,
    "tokenizers": 4,
    "distributed": 4,
    "run_checkpoints": 4,
    "run_log": 4,
    "learner": 4,
    "training": 4,
    "lean": 4,
    "decoding": 4,
    "endings": 4,
    "sampling": 4,
    "step_kernel": 4,
    "recorded": 4,
    "compiled": 4,
    "generation": 4,
    "beams": 4,
    "cli": 5,
    "cli_models": 5,
    "cli_options": 5,
    "cli_text": 5,
    "cli_train": 5,
    "__main__": 5,
}
EXPORTS = transformer_lib._MODULES  # a name of the package itself counts as its module
ROOT = pathlib.Path(transformer_lib.__file__).parent
FILES = {  # each file and the module on whose floor it stands
    path.relative_to(ROOT): path.relative_to(ROOT).with_suffix("").parts[0]
    for path in ROOT.rglob("*.py")
    if path != ROOT / "__init__.py"
}


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "transformer_lib":
            yield from (EXPORTS.get(alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "transformer_lib."
        ):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("transformer_lib.")
            )


def floor_problems(modules, floors):
    """Which modules have no floor, and which floors have no module."""
    where = "tests/lib/test_floors.py, FLOORS"
    lowest = "the lowest that is not below any module that it imports"
    return differences(
        floors,
        modules,
        lacks=lambda name: f"{where}: {name} has no floor: add '\"{name}\": FLOOR', {lowest}",
        extra=lambda name: f"{where}: transformer_lib has no module {name}: take its line out",
    )


def floor_of(module):
    fail_on(floor_problems([module], {module} & set(FLOORS)))
    return FLOORS[module]


def test_every_file_has_a_floor():
    fail_on(floor_problems(FILES.values(), FLOORS))


def test_a_module_without_a_floor_is_told_where_to_give_it_one():
    without, unknown = told(floor_problems)
    where = "tests/lib/test_floors.py, FLOORS:"
    assert without.startswith(f"{where} b has no floor: add '\"b\": FLOOR', the lowest that is not")
    assert unknown == f"{where} transformer_lib has no module c: take its line out"


def test_an_import_of_a_module_without_a_floor_is_told():
    with pytest.raises(pytest.fail.Exception, match="FLOORS: legs has no floor"):
        floor_of("legs")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_imports_only_downwards(path):
    floor = floor_of(FILES[path])
    for used in imported_modules(ROOT / path):
        said = f"transformer_lib/{path} (floor {floor}) imports {used} (floor {floor_of(used)})"
        remedy = "import from its own floor or lower ones, or give it a higher one in FLOORS"
        assert floor_of(used) <= floor, f"{said}: {remedy}"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_the_library_knows_nothing_of_the_book(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert pathlib.Path(transformer_book.__file__).parent.name not in text


def relative_imports(source):
    """The lines of imports that begin with a dot, whose floor the tests above do not see."""
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, ast.ImportFrom) and node.level]


def test_imports_name_their_package():
    assert relative_imports("import a\nfrom . import b\nfrom .c import d\nfrom e import f\n") == [
        2,
        3,
    ]
    packages = [ROOT, pathlib.Path(transformer_book.__file__).parent]
    found = [
        f"{path}:{line}: write `from transformer_lib.x import y`, not `from .x import y`"
        for package in packages
        for path in package.rglob("*.py")
        for line in relative_imports(path.read_text(encoding="utf-8"))
    ]
    fail_on(found)
