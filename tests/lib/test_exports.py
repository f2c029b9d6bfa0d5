"""What can be imported from the package itself, and what old names say or still do."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from omissions import fail_on
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import transformer_lib
from tools import rename_tensors
from transformer_lib.models.saving import with_current_names

ROOT = Path(transformer_lib.__file__).parents[1]
STUB = Path(transformer_lib.__file__).with_suffix(".pyi")
NAMES = transformer_lib._MODULES
LIBRARY = Path(transformer_lib.__file__).parent
# Files whose names stay in them: others have a name of the same spelling, or nobody would ask.
NOT_EXPORTED = (
    "cli/", "generation/fast/", "hugging_face/families/", "layers/fast/", "text/chat/",
    "text/tokenizer_json/", "core/eval_mode", "core/eval_twin", "core/fingerprint",
    "core/thread_modes", "training/run_context", "hugging_face/rope_settings",
    "hugging_face/config_json", "hugging_face/sliding_windows", "models/preset_configs",
    "tracing/dimension_letters",
)  # fmt: skip


def in_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_package_is_that_of_its_module(name):
    module = importlib.import_module(f"transformer_lib.{NAMES[name]}")
    said = f"transformer_lib/__init__.pyi: {NAMES[name]!r} does not define {name!r}"
    assert hasattr(module, name), f"{said}: name the module that does, or take the line out"
    value = getattr(transformer_lib, name)
    assert value is getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__module__ == f"transformer_lib.{NAMES[name]}"


def imports_of_the_stub():
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, alias.asname, node.module) for alias in node.names)


def test_type_checkers_read_the_same_names():
    found = list(imports_of_the_stub())
    assert {name: f"transformer_lib.{module}" for name, module in NAMES.items()} == {
        name: module for name, _, module in found
    }
    assert len(found) == len(NAMES)  # none twice
    assert [name for name, asname, _ in found if name != asname] == []  # else it counts as private


def public_names(path):
    """The classes and functions that a file defines for others."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name


def lacking(files, exported):
    """What the package does not export, for each file with the line that would do it."""
    return [
        f"transformer_lib/__init__.pyi: add `from {module} import {name} as {name}`"
        for path, names in files.items()
        for name in names
        for module in [f"transformer_lib.{path.removesuffix('.py').replace('/', '.')}"]
        if not path.startswith(NOT_EXPORTED) and name not in exported
    ]


def test_every_public_name_can_be_imported_from_the_package():
    files = {
        path.relative_to(LIBRARY).as_posix(): list(public_names(path))
        for path in LIBRARY.rglob("*.py")
        if not path.name.startswith("__")
    }
    assert len(files) > 60
    fail_on(lacking(files, NAMES))


def test_a_name_that_is_not_exported_is_told_where_to():
    line = (
        "transformer_lib/__init__.pyi: add `from transformer_lib.layers.legs import walk as walk`"
    )
    assert lacking({"layers/legs.py": ["walk"]}, {}) == [line]
    assert lacking({"cli/legs.py": ["walk"]}, {}) == []


def test_no_name_hides_a_package():
    folders = {path.name for path in LIBRARY.iterdir() if path.is_dir()}
    assert folders.isdisjoint(NAMES)


@pytest.mark.parametrize(
    "path", sorted(LIBRARY.rglob("*/__init__.py")), ids=lambda p: p.parent.name
)
def test_a_package_says_what_it_holds_and_re_exports_nothing(path):
    (only,) = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(only, ast.Expr)
    assert isinstance(only.value, ast.Constant)


def test_a_star_imports_all_names():
    assert transformer_lib.__all__ == list(NAMES)
    namespace = {}
    exec("from transformer_lib import *", namespace)
    assert set(NAMES) <= set(namespace)


def test_dir_has_all_names():
    assert {*NAMES, "__version__", "__doc__"} <= set(dir(transformer_lib))
    assert dir(transformer_lib) == sorted(dir(transformer_lib))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'transformer_lib' has no attribute 'Gpt'$"):
        transformer_lib.Gpt  # noqa: B018


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version"]  # written once, in the package
    assert re.fullmatch(r"\d+\.\d+\.\d+", transformer_lib.__version__)


def test_importing_the_package_imports_nothing_heavy():
    loaded = in_a_new_process("import sys, transformer_lib; print(*sys.modules)").split()
    assert not {"torch", "numpy", "safetensors", "jaxtyping"} & set(loaded)
    ours = {name for name in loaded if name.startswith("transformer_lib")}
    assert ours == {"transformer_lib"}


def test_a_name_nobody_knows_is_missing_as_ever():
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from transformer_lib.layers.masks import nothing", {})
    assert not hasattr(importlib.import_module("transformer_lib.layers.masks"), "nothing")


def test_imports_of_others_do_not_pass_through_the_library():
    code = "import sys; before = list(sys.meta_path); import transformer_lib, transformer_book"
    assert in_a_new_process(f"{code}; print(sys.meta_path == before)") == "True"


def test_a_module_nobody_knows_is_not_found_as_ever():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'transformer_lib\.legs'$"):
        importlib.import_module("transformer_lib.legs")


OLD = {
    "blocks.0.attention_norm.gain": "blocks.0.attention_norm.weight",
    "blocks.0.feed_forward.expand.weight": "blocks.0.feed_forward.up.weight",
    "blocks.0.feed_forward.contract.bias": "blocks.0.feed_forward.down.bias",
    "blocks.0.feed_forward.gate.weight": "blocks.0.feed_forward.gate.weight",
    "again.expandable": "again.expandable",
}


def old_tensors():
    """One tensor for each old name, with numbers that a sloppy copy would change."""
    odd = torch.tensor([float("nan"), -0.0, 1e-45])
    return {name: torch.cat([odd, torch.full((2,), float(i))]) for i, name in enumerate(OLD)}


def bits(tensor):
    return tensor.view(torch.uint8).tolist()


def test_old_names_of_tensors_become_the_current_ones():
    old = old_tensors()
    new = with_current_names(old)
    assert list(new) == list(OLD.values())
    assert all(new[OLD[name]] is tensor for name, tensor in old.items())
    assert with_current_names(new) == new


def test_a_file_with_old_names_is_written_anew_bit_for_bit(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(old_tensors(), path, {"made by": "version 0.1"})
    assert rename_tensors.rename(path)
    new = load_file(path)
    assert set(new) == set(OLD.values())
    assert all(bits(new[OLD[name]]) == bits(tensor) for name, tensor in old_tensors().items())
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"made by": "version 0.1"}


def test_a_file_with_current_names_is_left_alone(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(with_current_names(old_tensors()), path)
    before = path.stat()
    assert not rename_tensors.rename(path)
    assert path.stat() == before


SHIPPED = sorted(rename_tensors.RESULTS.glob("*/*.safetensors"))


def test_models_are_shipped():
    assert SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_a_shipped_model_has_the_current_names(path):
    with safe_open(path, "pt") as file:
        names = {name: torch.empty(0) for name in file.keys()}  # noqa: SIM118
    said = f"{path.relative_to(ROOT)} has old names of tensors"
    remedy = "run `.venv/bin/python -m tools.rename_tensors`"
    assert list(with_current_names(names)) == list(names), f"{said}: {remedy}"
