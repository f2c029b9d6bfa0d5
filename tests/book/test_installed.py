"""`pip install .`: it leaves nothing behind, and what is installed works without a clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import transformer_lib
from tools.fresh_env import copy_repository

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
OFFLINE = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]

# What a user does: commands as `python -m transformer_lib` runs them, and the book's own code.
USE = '''
import contextlib, io, runpy, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import transformer_lib
assert Path(transformer_lib.__file__).is_relative_to(sys.argv[1]), transformer_lib.__file__
sys.modules["matplotlib.figure"] = None  # no picture: it takes longer than all the rest


def command(*words):
    """Run a command; return what it prints."""
    sys.argv = ["transformer_lib", *words]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_module("transformer_lib", run_name="__main__")
        except SystemExit as ended:
            assert not ended.code, ended.code
    return printed.getvalue()


assert command("generate", "--prompt", "My lord, ", "--tokens", "5").startswith("My lord, ")
small = ["--layers", "1", "--d-model", "8", "--heads", "2", "--batch-size", "64"]
assert "the model is in runs/shakespeare" in command("train", "--steps", "1", *small)
assert command("generate", "--prompt", "My lord, ", "--tokens", "5").startswith("My lord, ")
assert command("translate", "two hundred and forty-one") == "zweihunderteinundvierzig\\n"
assert "project to queries" in command("trace", "gpt2")
assert "llama-3-70b" in command("presets")

from transformer_book import datasets, file, results
from transformer_book.file.__main__ import save
assert file.MultiHeadAttention and save
assert datasets.shakespeare().validation.startswith("MACBETH")
assert [len(list(read())) for read in (datasets.numbers, datasets.languages, datasets.digits)]
assert results.table("recall")[0]["model"] == "rnn"
assert results.table("heads", "single.csv")
print("everything works")
'''

README = (ROOT / "README.md").read_text(encoding="utf-8")
((EXAMPLE, PRINTED),) = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone")
    copy_repository(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install .` makes and installs."""
    folder = tmp_path_factory.mktemp("wheel")
    before = listing(clone)
    subprocess.run([*PIP, "wheel", *OFFLINE, "--wheel-dir", str(folder), str(clone)], check=True)
    assert listing(clone) == before, "the build left something in the tree"
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is installed, and nothing else of the project."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([*PIP, "install", *OFFLINE, "--target", str(folder), str(wheel)], check=True)
    return folder


def listing(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def run_alone(site: Path, empty: Path, script: str, *options: str) -> str:
    """Run a script in an empty folder, where only the installed package can be imported."""
    empty.mkdir()
    hidden = ("PYTHONPATH", "EXECUTABLE_TRANSFORMER_DATA", "COV")  # coverage is about the clone
    variables = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
    command = [sys.executable, "-I", *options, "-c", script, str(site)]
    done = subprocess.run(
        command, cwd=empty, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(site: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the commands and then the README's example print, in one process: it starts slowly."""
    return run_alone(site, tmp_path_factory.mktemp("use") / "empty", USE + EXAMPLE)


def test_every_command_and_the_books_data_work_without_a_clone(printed: str) -> None:
    assert printed.startswith("everything works\n")


def test_the_readmes_example_works_without_a_clone(printed: str) -> None:
    assert printed.removeprefix("everything works\n") == PRINTED


def test_an_editable_installation_leaves_nothing_in_the_tree(clone: Path, tmp_path: Path) -> None:
    """As `make env` does it."""
    before = listing(clone)
    command = [*PIP, "install", *OFFLINE, "--target", str(tmp_path / "site"), "--editable", "."]
    subprocess.run(command, cwd=clone, check=True)
    assert listing(clone) == before
    code = "import site, sys; site.addsitedir(sys.argv[1]); import transformer_book as book\n"
    code += "print(book.__file__)"
    printed = run_alone(tmp_path / "site", tmp_path / "empty", code, "-S")  # -S: no other packages
    assert Path(printed.strip()) == clone / "transformer_book" / "__init__.py"


def test_what_is_installed_is_what_is_read(wheel: Path) -> None:
    """One source: the files of the wheel are those in book/, and no others."""
    assert wheel.name.startswith(f"transformer_lib-{transformer_lib.__version__}-")
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("transformer_lib/book/")]
        for name in names:
            assert archive.read(name) == (ROOT / name.partition("/")[2]).read_bytes(), name
        readers_file = archive.read("transformer_book/file/__init__.py")
    assert readers_file == (ROOT / "book" / "transformer.py").read_bytes()
    assert {"transformer_lib/book/data/README.md", "transformer_lib/book/data/digits.csv"} <= {
        *names
    }
    assert wheel.stat().st_size < 10 * 2**20


def test_what_the_readme_installs_in_addition_is_there(wheel: Path) -> None:
    """Of an extra that the package lacks, pip only warns."""
    (extra,) = re.findall(r'`pip install "\.(\[\w+\])"`', README)
    command = [*PIP, "install", "--dry-run", "--no-index", f"{wheel}{extra}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "does not provide the extra" not in done.stderr
    assert "Requirement already satisfied: regex>=" in done.stdout
