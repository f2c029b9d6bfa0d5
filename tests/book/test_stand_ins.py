"""API pages are made with stand-ins for PyTorch and others, and say what the real ones would."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_stand_ins  # noqa: E402

# The modules that pages document, and what they show of each public class and function: its bases
# and its signature. Imported in a process of its own, with stand-ins or without.
DOCUMENTED = [
    name
    for page in sorted((ROOT / "book" / "api").glob("*.md"))
    for name in re.findall(r"^\.\. automodule:: (\S+)", page.read_text(encoding="utf-8"), re.M)
]
PRELUDE = f"""
import inspect, json, sys
from importlib import import_module
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "book" / "_ext")!r}]
import book_stand_ins
from sphinx.util.inspect import signature, stringify_signature
from sphinx.util.typing import restify

def shown(value, module):
    if inspect.isclass(value):
        yield "", str([restify(base, "smart") for base in value.__bases__])
        for name, member in vars(value).items():
            if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
                yield f".{{name}}", written(member)
    elif inspect.isfunction(value):
        yield "", written(value)

def written(function):
    signed = signature(function, type_aliases=dict(ArrayLike="ArrayLike"))
    return stringify_signature(signed, unqualified_typehints=True)

def report():
    found = {{}}
    for module in {DOCUMENTED}:
        for name, value in vars(import_module(module)).items():
            if getattr(value, "__module__", "") == module and not name.startswith("_"):
                for part, text in shown(value, module):
                    found[f"{{module}}.{{name}}{{part}}"] = text
    json.dump(found, sys.stdout)
"""
REFUSE = """
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in book_stand_ins.REPLACED:
            raise ModuleNotFoundError("refused: " + name)
sys.meta_path.insert(0, Refuse())
"""


def python(*code: str) -> subprocess.CompletedProcess[str]:
    script = "\n".join((PRELUDE, *code))
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


@cache
def report(*code: str) -> dict[str, str]:
    run = python(*code, "report()")
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout)
    return found


def test_examples_of_the_extension_hold() -> None:
    outcome = doctest.testmod(book_stand_ins)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_the_library_is_imported_without_the_real_packages() -> None:
    """Each module of it, as on a machine where they are not installed; and then they are gone."""
    run = python(
        REFUSE,
        "book_stand_ins.import_library()",
        "packages = {book_stand_ins.package_of(name) for name in sys.modules}",
        "print(packages & book_stand_ins.REPLACED, 'transformer_lib.layers.masks' in sys.modules)",
        "import torch",
    )
    assert run.stdout == "set() True\n", run.stderr
    assert "refused: torch" in run.stderr


def test_without_stand_ins_it_cannot_be() -> None:
    assert "refused: torch" in python(REFUSE, "import transformer_lib.layers.attention").stderr


def test_signatures_and_bases_are_those_of_the_real_packages() -> None:
    stood_in = report("book_stand_ins.import_library()")
    real = report()
    assert len(real) > 400
    assert stood_in.keys() == real.keys()
    assert {n: (stood_in[n], real[n]) for n in real if stood_in[n] != real[n]} == {}


@pytest.mark.parametrize(
    "damage",
    [
        "book_stand_ins.HOMES.clear()",
        "del book_stand_ins._Kind.__getitem__; "
        "book_stand_ins._Kind.__getitem__ = lambda cls, key: cls",
    ],
)
def test_a_stand_in_that_says_something_else_is_noticed(damage: str) -> None:
    assert report(damage, "book_stand_ins.import_library()") != report()


def test_real_modules_come_back() -> None:
    torch = sys.modules["torch"] = sys.modules.get("torch") or __import__("torch")
    with book_stand_ins.stand_ins():
        stood_in = __import__("torch")
        assert stood_in is not torch
        assert repr(stood_in.float32) == "torch.float32"
    assert sys.modules["torch"] is torch
    assert __import__("torch") is torch


def test_a_module_that_needs_numbers_is_named() -> None:
    """In a process of its own: what was imported with stand-ins must not stay in this one."""
    run = python(
        "with book_stand_ins.stand_ins():",
        "    book_stand_ins._import_one('transformer_lib.no_such_module')",
    )
    assert "transformer_lib.no_such_module cannot be imported with stand-ins" in run.stderr
