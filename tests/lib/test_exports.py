"""What can be imported from the package itself, and what old names say or still do."""

import ast
import importlib
import pkgutil
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
from transformer_lib.saving import with_current_names

import transformer_book
import transformer_lib
from tools import rename_tensors
from transformer_lib.moved import MOVED, MOVED_NAMES, MovedModules, tell_moved_modules

ROOT = Path(transformer_lib.__file__).parents[1]
SOURCE = Path(transformer_lib.__file__).read_text(encoding="utf-8")
NAMES = transformer_lib._MODULES
FIGURES = {
    f"transformer_book.{name}": f"transformer_book.figures.{name}"
    for name in (
        "diagrams", "landscapes", "panels", "pictures", "plot_data", "plot_style", "plots",
        "sketches",
    )
}  # fmt: skip
OLD_PATHS = MOVED | FIGURES


def names_for_type_checkers():
    """What the imports under ``if TYPE_CHECKING`` say: for each name its module."""
    (block,) = (
        node.body
        for node in ast.parse(SOURCE).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    for node in block:
        assert isinstance(node, ast.ImportFrom), ast.unparse(node)
        for alias in node.names:
            where = f"transformer_lib/__init__.py: write `import {alias.name} as {alias.name}`"
            assert alias.asname == alias.name, f"{where}; a type checker takes it for private else"
            yield alias.name, node.module.removeprefix("transformer_lib.")


def in_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_package_is_that_of_its_module(name):
    module = importlib.import_module(f"transformer_lib.{NAMES[name]}")
    said = f"transformer_lib/__init__.py, _MODULES: {NAMES[name]!r} does not define {name!r}"
    assert hasattr(module, name), f"{said}: name the module that does, or take the line out"
    value = getattr(transformer_lib, name)
    assert value is getattr(module, name)
    if hasattr(value, "__module__"):
        package = f"transformer_lib.{NAMES[name]}"
        assert value.__module__ == package or value.__module__.startswith(f"{package}.")


def export_problems(typed, looked_up):
    """Where the two lists of names of the package differ.

    Args:
        typed: for each name below ``if TYPE_CHECKING`` its module.
        looked_up: for each name in ``_MODULES`` its module.
    """
    where = "transformer_lib/__init__.py"
    problems = []
    for name in sorted({*typed, *looked_up}):
        one, other = typed.get(name), looked_up.get(name)
        if one is None:
            line = f"from transformer_lib.{other} import {name} as {name}"
            problems.append(f'{where}: {name} is not below `if TYPE_CHECKING`: add "{line}"')
        elif other is None:
            problems.append(f'{where}: {name} is not in _MODULES: add \'"{name}": "{one}",\'')
        elif one != other:
            problems.append(f"{where}: {name} is in {one} by its import, in {other} by _MODULES")
    return problems


def test_type_checkers_read_the_same_names():
    fail_on(export_problems(dict(names_for_type_checkers()), NAMES))


@pytest.mark.parametrize(
    ("typed", "looked_up", "said"),
    [
        (
            {"A": "parts"},
            {"A": "parts", "B": "parts"},
            'B is not below `if TYPE_CHECKING`: add "from transformer_lib.parts import B as B"',
        ),
        (
            {"A": "parts", "B": "parts"},
            {"A": "parts"},
            'B is not in _MODULES: add \'"B": "parts",\'',
        ),
        ({"A": "parts"}, {"A": "blocks"}, "A is in parts by its import, in blocks by _MODULES"),
    ],
)
def test_a_name_that_is_exported_once_is_told_where_else(typed, looked_up, said):
    assert export_problems(typed, looked_up) == [f"transformer_lib/__init__.py: {said}"]


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
    assert ours == {"transformer_lib", "transformer_lib.moved"}


@pytest.mark.parametrize(("old", "new"), OLD_PATHS.items(), ids=OLD_PATHS)
def test_an_old_path_names_the_new_one(old, new):
    importlib.import_module(new)
    says = f"^{old} is called {new} now$".replace(".", r"\.")
    with pytest.raises(ImportError, match=says) as caught:
        importlib.import_module(old)
    assert caught.value.name == old
    package, name = old.split(".")
    with pytest.raises(ImportError, match=says):
        exec(f"from {package} import {name}", {})


@pytest.mark.parametrize(("old", "new"), MOVED_NAMES.items(), ids=MOVED_NAMES)
def test_an_old_name_names_the_new_one(old, new):
    pkgutil.resolve_name(new)
    module, _, name = old.rpartition(".")
    with pytest.raises(ImportError, match=f"^{old} is {new} now$".replace(".", r"\.")) as caught:
        exec(f"from {module} import {name}", {})
    assert caught.value.name == old


def test_a_name_nobody_knows_is_missing_as_ever():
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from transformer_lib.generation import nothing", {})
    assert not hasattr(importlib.import_module("transformer_lib.cache"), "nothing")


def test_the_tables_of_old_paths_are_asked_last_and_once():
    ours = [finder for finder in sys.meta_path if isinstance(finder, MovedModules)]
    assert [dict(finder.new_paths) for finder in ours] == [MOVED, FIGURES]
    before = list(sys.meta_path)
    tell_moved_modules(MOVED)
    importlib.reload(transformer_book)
    assert sys.meta_path == before


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
