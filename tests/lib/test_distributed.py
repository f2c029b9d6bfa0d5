"""torchrun: two processes give the losses and weights of one, and go on where they were stopped."""

import csv
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from shared_run import OWN, TODAY, go
from torch.testing import assert_close

SCRIPT = pathlib.Path(__file__).with_name("shared_run.py")
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [
            {name: float(cell or -1) for name, cell in line.items()}
            for line in csv.DictReader(file)
        ]


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        yield


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes have left: one folder for each strategy."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = "torch.distributed.run", "--standalone", "--nproc-per-node=2"
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, SCRIPT, folder],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The same in this process, without a break."""
    folder = tmp_path_factory.mktemp("one")
    go(folder / "plain")
    go(folder / "experts", n_experts=4)
    go(folder / "balanced", n_experts=4, balance=0.5)
    go(folder / "own", own=OWN)
    go(folder / "today", recipe=TODAY)
    return folder


@pytest.mark.parametrize(
    ("several", "alone"),
    [
        ("ddp", "plain"),
        ("fsdp", "plain"),
        ("experts", "experts"),
        ("own-ddp", "own"),  # with an objective, an optimizer and a schedule of one's own
        ("own-fsdp", "own"),
        ("today-ddp", "today"),  # with Muon, a stable rate that decays, and averaged weights
        ("today-fsdp", "today"),
    ],
)
def test_two_processes_compute_what_one_does(several, alone, two, one):
    ours, theirs = rows(two / several), rows(one / alone)
    assert len(ours) == len(theirs) == 8
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, **CLOSE)
    for rank in (0, 1):  # every process is handed the whole model
        weights = load_file(two / several / f"end-{rank}")
        assert_close(weights, load_file(one / alone / "end-0"), **CLOSE)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_balance_experts_nearly_as_one_does(strategy, two, one):
    """Each sees the balance of its own rows; their mean is close to that of all rows."""
    ours, theirs = rows(two / f"balanced-{strategy}"), rows(one / "balanced")
    for a, b in zip(ours, theirs, strict=True):
        assert a["tokens"] == b["tokens"]
        assert_close(a["loss"], b["loss"], rtol=0.02, atol=0)
    for a, b in zip(ours, rows(one / "experts"), strict=True):
        assert a["loss"] > b["loss"] + 0.9  # two blocks, each about 1, with the weight 0.5
    weights = [load_file(two / f"balanced-{strategy}" / f"end-{rank}") for rank in (0, 1)]
    assert_close(*weights, rtol=0, atol=0)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_extra_loss_of_two_processes_is_that_of_the_recipe(strategy, two):
    """The same number, asked for in another way."""
    ours, theirs = rows(two / f"even-{strategy}"), rows(two / f"balanced-{strategy}")
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_process_goes_on_where_two_stopped(strategy, two, one, tmp_path):
    shutil.copytree(two / strategy / "checkpoints", tmp_path / "checkpoints")
    max((tmp_path / "checkpoints").iterdir()).unlink()  # so that there is something left to do
    go(tmp_path)
    assert rows(tmp_path)[:6] == rows(two / strategy)[:6]  # with what the two had written
    for a, b in zip(rows(tmp_path), rows(one / "plain"), strict=True):
        assert_close(a, b, **CLOSE)
    assert_close(load_file(tmp_path / "end-0"), load_file(one / "plain" / "end-0"), **CLOSE)
