"""Imports go one way: a file may use its own package and those before it, none after it."""

import ast
import pathlib

import pytest
from omissions import differences, fail_on, told

import transformer_book
import transformer_lib

# The packages, in the order in which a reader meets them: each may use those before it.
PACKAGES = (
    "core", "text", "layers", "models", "generation", "training", "hugging_face", "tracing", "cli",
)  # fmt: skip
MOST_FILES = 15  # in one folder: more say nothing in a list
EXPORTS = transformer_lib._MODULES  # a name of the package itself counts as its module
ROOT = pathlib.Path(transformer_lib.__file__).parent
FILES = [path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.parent != ROOT]


def imported_packages(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "transformer_lib":
            modules = (EXPORTS.get(alias.name, alias.name) for alias in node.names)
            yield from (module.split(".")[0] for module in modules if module != "__version__")
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


def package_problems(found, packages):
    """Which folders have no place in the order, and which places have no folder."""
    where = "tests/lib/test_floors.py, PACKAGES"
    after = "after all packages that it imports"
    return differences(
        packages,
        found,
        lacks=lambda name: f"{where}: {name} is not there: add it {after}",
        extra=lambda name: f"{where}: transformer_lib has no package {name}: take it out",
    )


def test_every_file_is_in_a_package_that_has_its_place():
    fail_on(package_problems([path.parts[0] for path in FILES], PACKAGES))
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_a_package_without_a_place_is_told_where_to_give_it_one():
    without, unknown = told(package_problems)
    where = "tests/lib/test_floors.py, PACKAGES:"
    assert without == f"{where} b is not there: add it after all packages that it imports"
    assert unknown == f"{where} transformer_lib has no package c: take it out"


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=str)
def test_a_folder_can_be_read_at_a_glance(folder):
    files = [path.name for path in FILES if path.parent == folder and path.name != "__init__.py"]
    assert 0 < len(files) <= MOST_FILES, f"transformer_lib/{folder} has {len(files)} files"


def upward(package, imported):
    """The packages that one imports although they come later."""
    allowed = PACKAGES[: PACKAGES.index(package) + 1]
    return sorted(set(imported) - set(allowed))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_imports_only_from_packages_before_its_own(path):
    package = path.parts[0]
    wrong = upward(package, imported_packages(ROOT / path))
    remedy = f"it may import from {package} and packages before it: {', '.join(PACKAGES)}"
    assert not wrong, f"transformer_lib/{path} imports from {', '.join(wrong)}: {remedy}"


def test_an_import_that_goes_up_is_found(tmp_path):
    (tmp_path / "legs.py").write_text(
        "import transformer_lib.cli.main\n"
        "from transformer_lib import CausalLM, __version__\n"
        "from transformer_lib.core.config import TransformerConfig\n"
    )
    found = list(imported_packages(tmp_path / "legs.py"))
    assert sorted(found) == ["cli", "core", "models"]
    assert upward("layers", found) == ["cli", "models"]
    assert upward("cli", found) == []


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
