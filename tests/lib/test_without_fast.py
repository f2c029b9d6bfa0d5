"""Whoever deletes the folders called ``fast`` has a complete, correct, slower library.

A copy of the package without them is used by a process of its own: it runs the tests that hold the
library to PyTorch, and its answers are compared with those of the whole library.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_lib
from transformer_lib.core.fast_path_register import BUILT_ON, FAST_PATHS, fast_path, missing_file

LIBRARY = Path(transformer_lib.__file__).parent
TESTS = Path(__file__).parent

# Batches with padding, generation of all kinds, a few updates: where fast paths would be taken.
ANSWERS = """
import json, sys, torch
import transformer_lib as lib

def config(**more):
    return lib.TransformerConfig(
        vocab_size=30, d_model=64, n_heads=4, n_layers=2, max_len=600, **more
    )

def model_of(kind, **more):
    torch.manual_seed(0)
    return kind(config(**more)).eval()

answers = {"from": lib.__file__}
prompt = torch.tensor([[5, 7, 9], [3, 4, 8]])
for name, more in {
    "sinusoidal": {}, "rope": {"position": "rope", "norm": "rms", "n_kv_heads": 2},
    "alibi": {"position": "alibi"}, "window": {"position": "rope", "window": 4},
}.items():
    model = model_of(lib.CausalLM, **more)
    answers[name] = lib.generate(model, prompt, max_new_tokens=9).tolist()
    found = lib.beam_search(model, prompt, max_new_tokens=5, n_beams=2)
    answers[name + ", beams"] = found.tolist() if torch.is_tensor(found) else found[0].tolist()
ids = torch.randint(1, 30, (2, 500), generator=torch.Generator().manual_seed(1))
mask = lib.padding_mask(torch.tensor([500, 20]), 500)
model = model_of(lib.MaskedLM)
with torch.no_grad():
    logits = model(ids, mask)
answers["padding"] = [logits[0].sum().item(), logits[1, :20].sum().item()]
model = model_of(lib.Seq2SeqLM)
answers["seq2seq"] = lib.generate(model, prompt[:, :1], max_new_tokens=5, source=prompt).tolist()
model, losses = model_of(lib.CausalLM).train(), []
updates = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = lib.Objective(model)(lib.next_token_batch(ids.tolist()))[0]
    loss.backward(); updates.step(); updates.zero_grad()
    losses.append(loss.item())
answers["losses"] = losses
print(json.dumps(answers))
"""

# In short, for copies without one file; recorded steps run on a CPU as they would on a GPU.
# What is slow to import is imported once; then each package has a process of its own.
FEW_ANSWERS = """
import json, os, sys
import jaxtyping, safetensors, torch

def answers():
    import transformer_lib as lib
    names = {}
    exec("from transformer_lib import *", names)
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "d_model": 16, "n_heads": 2, "n_layers": 2}
    model = lib.CausalLM(lib.TransformerConfig(**sizes)).eval()
    prompt = torch.tensor([[5, 7, 9], [3, 4, 8]])
    found = {"from": lib.__file__, "plain": lib.generate(model, prompt, max_new_tokens=6).tolist()}
    graph = lib.fast_path("cuda_graph")
    if graph is not None:
        graph.can_record = lambda *_: True
    found["recorded"] = lib.generate(model, prompt, max_new_tokens=6).tolist()
    ids, mask = torch.ones(2, 400, dtype=torch.long), lib.padding_mask(torch.tensor([400, 20]), 400)
    with torch.no_grad():
        logits = lib.MaskedLM(model.config).eval()(ids, mask)
    found["padding"] = [logits[0].sum().item(), logits[1, :20].sum().item()]
    found["errors"] = {}
    for name in ("CompiledDecoder", "FlexPattern", "has_step_kernel", "use_int_kernels"):
        try:
            getattr(lib, name)
        except ImportError as error:
            assert name not in names
            found["errors"][name] = str(error)
    return found

for folder in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        sys.path.insert(0, folder)
        print(json.dumps(answers()), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, folder
"""


def python(package, *arguments):
    """Run Python with the package that stands in a folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"},
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def slow_library(tmp_path_factory):
    copy = tmp_path_factory.mktemp("slow") / "transformer_lib"
    shutil.copytree(LIBRARY, copy, ignore=shutil.ignore_patterns("fast", "__pycache__"))
    assert not list(copy.rglob("fast"))
    return copy


@pytest.fixture(scope="module")
def few_answers(slow_library, tmp_path_factory):
    """Answers of the library: the whole, without each of its fast paths, and without all."""
    packages = {"none": LIBRARY, "all": slow_library}
    for name, folder in FAST_PATHS.items():
        packages[name] = tmp_path_factory.mktemp(name) / "transformer_lib"
        shutil.copytree(LIBRARY, packages[name], ignore=shutil.ignore_patterns("__pycache__"))
        (packages[name] / folder / "fast" / f"{name}.py").unlink()
    folders = [str(package.parent) for package in packages.values()]
    nowhere = tmp_path_factory.mktemp("nowhere") / "package"
    done = python(nowhere, "-c", FEW_ANSWERS, *folders)
    assert done.returncode == 0, done.stderr
    found = dict(zip(packages, map(json.loads, done.stdout.splitlines()), strict=True))
    assert [Path(x.pop("from")).parent for x in found.values()] == list(packages.values())
    return found


def answers_of(package):
    done = python(package, "-c", ANSWERS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found.pop("from")).parent == package
    return found


def test_without_fast_paths_all_answers_are_the_same(slow_library):
    fast, slow = answers_of(LIBRARY), answers_of(slow_library)
    assert fast.keys() == slow.keys()
    rounded = {"padding", "losses"}  # sums in another order
    for name in fast.keys() - rounded:
        assert slow[name] == fast[name], name
    for name in rounded:
        assert slow[name] == pytest.approx(fast[name], rel=1e-4, abs=1e-4), name


def says(name, file):
    why = f"this copy of the library is without transformer_lib/{file}"
    return {name: f"transformer_lib.{name} is part of a fast path: {why}"}


ERRORS = {
    "compiled_decoder": says("CompiledDecoder", "generation/fast/compiled_decoder.py"),
    "cuda_graph": says("CompiledDecoder", "generation/fast/cuda_graph.py"),
    "decode_kernel": says("has_step_kernel", "generation/fast/decode_kernel.py"),
    "flexible_pattern": says("FlexPattern", "layers/fast/flexible_pattern.py"),
    "quantized_kernels": says("use_int_kernels", "layers/fast/quantized_kernels.py"),
}


ERRORS["all"] = (
    ERRORS["compiled_decoder"]
    | ERRORS["decode_kernel"]
    | ERRORS["flexible_pattern"]
    | ERRORS["quantized_kernels"]
)


@pytest.mark.parametrize("deleted", ["none", *FAST_PATHS, "all"])
def test_any_fast_path_may_be_deleted_alone(deleted, few_answers):
    found, whole = few_answers[deleted], few_answers["none"]
    assert found["errors"] == ERRORS.get(deleted, {})
    assert found["plain"] == found["recorded"] == whole["plain"]
    assert found["padding"] == pytest.approx(whole["padding"], rel=1e-4, abs=1e-4)


def test_without_fast_paths_the_library_equals_pytorch(slow_library):
    code = (
        "import sys, pytest, transformer_lib\n"
        "assert transformer_lib.__file__.startswith(sys.argv[1])\n"
        "sys.exit(pytest.main(sys.argv[2:]))"
    )
    tests = str(TESTS / "test_torch_parity.py")
    options = ("-q", "-p", "no:cacheprovider", "-n", "0", tests)
    done = python(slow_library, "-c", code, str(slow_library), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_register_names_every_fast_path():
    found = {path.stem: path.parts[-3] for path in LIBRARY.glob("*/fast/*.py")}
    del found["__init__"]
    assert found == FAST_PATHS
    for name in FAST_PATHS:
        assert missing_file(name) is None
        assert fast_path(name).__name__ == f"transformer_lib.{FAST_PATHS[name]}.fast.{name}"


def fast_imports(source):
    """The modules in folders called ``fast`` that a file imports by itself."""
    for node in ast.walk(ast.parse(source)):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        yield from (module for module in modules if ".fast." in f"{module}.")


def test_only_the_register_leads_to_fast_paths():
    assert list(fast_imports("from transformer_lib.layers.fast import padding_free\n"))
    found = [
        f"{path.relative_to(LIBRARY)} imports {module}: ask fast_path() for it"
        for path in LIBRARY.rglob("*.py")
        for module in fast_imports(path.read_text(encoding="utf-8"))
        if path.parent.name != "fast" or module.rpartition(".")[2] != BUILT_ON.get(path.stem)
    ]
    assert found == []
