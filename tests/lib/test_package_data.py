"""What is not Python is installed too: every such file is named in ``pyproject.toml``."""

import fnmatch
import pathlib
import tomllib

import pytest
from omissions import fail_on

import transformer_lib

ROOT = pathlib.Path(transformer_lib.__file__).parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def data_files(package):
    """The paths of all files that are not Python, below their package."""
    folder = ROOT / package
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix()
        for path in files
        if path.suffix not in (".py", ".pyc") and not path.name.startswith(".")
    }


def pattern_problems(package, files, patterns):
    """Which files no pattern finds, and which patterns find none."""
    where = f"pyproject.toml, [tool.setuptools.package-data], {package}"
    found = {pattern: fnmatch.filter(files, pattern) for pattern in patterns}
    lost = sorted(set(files) - {name for names in found.values() for name in names})
    idle = [pattern for pattern, names in found.items() if not names]
    return [f'{where}: add "{name}", else it is not installed' for name in lost] + [
        f'{where}: "{pattern}" finds no file: take it out' for pattern in idle
    ]


@pytest.mark.parametrize("package", ["transformer_lib", "transformer_book"])
def test_every_file_is_installed_and_every_pattern_finds_one(package):
    fail_on(pattern_problems(package, data_files(package), SETUP["package-data"][package]))


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ([], 'add "py.typed", else it is not installed'),
        (["py.typed", "*.csv"], '"*.csv" finds no file: take it out'),
    ],
)
def test_a_file_that_would_not_be_installed_is_told(patterns, said):
    (problem,) = pattern_problems("lib", {"py.typed"}, patterns)
    assert problem == f"pyproject.toml, [tool.setuptools.package-data], lib: {said}"


def test_the_library_has_data():
    assert "py.typed" in data_files("transformer_lib")
