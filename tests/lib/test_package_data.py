"""What is not Python is installed too: every such file is named in ``pyproject.toml``."""

import fnmatch
import pathlib
import tomllib

import pytest

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


@pytest.mark.parametrize("package", ["transformer_lib", "transformer_book"])
def test_every_file_is_installed_and_every_pattern_finds_one(package):
    patterns = SETUP["package-data"][package]
    files = data_files(package)
    found = {pattern: fnmatch.filter(files, pattern) for pattern in patterns}
    assert files == {name for names in found.values() for name in names}
    assert all(found.values()), found


def test_the_library_has_data():
    assert "py.typed" in data_files("transformer_lib")
