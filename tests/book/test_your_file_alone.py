"""The reader's file runs alone: in an empty folder, with PyTorch and the standard library only."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.notebooks.gather import targets
from tools.notebooks.model import BOOK
from transformer_book.your_file import all_pieces, parts_of

FILE, _ = targets()
# Runs a file as a script, or as a module whose parts are then called. Whatever the file itself
# imports must be PyTorch or Python; our own packages are hidden from everything.
RUN = """
import builtins, runpy, sys

path, *arguments = sys.argv[1:]
allowed = {"torch", *sys.stdlib_module_names}
whole = builtins.__import__

def only_torch(name, globals=None, locals=None, fromlist=(), level=0):
    top = name.partition(".")[0]
    by_the_file = (globals or {}).get("__file__") == path
    if (by_the_file and top not in allowed) or top.startswith("transformer_"):
        raise ImportError(f"{path} imports {name}")
    return whole(name, globals, locals, fromlist, level)

builtins.__import__ = only_torch
sys.argv = [path, *arguments]
names = runpy.run_path(path, run_name="__main__")
import torch
pairs = names["BytePairs"]("rain train", 3)
assert pairs.decode(pairs.encode("naïve train")) == "naïve train"
q, k, v = torch.randn(3, 2, 4, 6)
output, weights = names["attention"](q, k, v, torch.ones(4, 4).tril().bool())
assert output.shape == (2, 4, 6) and weights.shape == (2, 4, 4)
layer = names["MultiHeadAttention"](6, 3)
assert layer(q, memory=torch.randn(2, 5, 6)).shape == (2, 4, 6)
assert names["FeedForward"](6, 9)(q).shape == (2, 4, 6)
print("all parts run")
"""


def run_alone(file: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of a file in a folder that has nothing else."""
    folder.mkdir()
    shutil.copyfile(file, folder / "transformer.py")
    command = [sys.executable, "-I", "-c", RUN, "transformer.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def has_main() -> bool:
    """Whether the file does something when it is run; chapter 16 brings that."""
    return any(part.name == "__main__" for p in all_pieces(BOOK) for part in parts_of(p))


def test_it_runs_alone(tmp_path: Path) -> None:
    steps = ["--steps", "20"] if has_main() else []
    done = run_alone(FILE, tmp_path / "empty", *steps)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all parts run\n")
    assert not has_main() or len(done.stdout.splitlines()) > 2, "progress, and a sample"


@pytest.mark.parametrize(
    "line", ["import numpy", "from transformer_lib import attention", "import transformer_book"]
)
def test_a_file_that_needs_more_is_refused(line: str, tmp_path: Path) -> None:
    text = FILE.read_text(encoding="utf-8").replace("import math\n", f"import math\n{line}\n")
    (tmp_path / "more.py").write_text(text, encoding="utf-8")
    done = run_alone(tmp_path / "more.py", tmp_path / "empty")
    assert done.returncode != 0
    assert "ImportError: transformer.py imports" in done.stderr


def test_a_file_that_does_not_run_is_noticed(tmp_path: Path) -> None:
    text = FILE.read_text(encoding="utf-8").replace("nn.Linear(", "nn.Linier(", 1)
    (tmp_path / "wrong.py").write_text(text, encoding="utf-8")
    assert "Linier" in run_alone(tmp_path / "wrong.py", tmp_path / "empty").stderr
