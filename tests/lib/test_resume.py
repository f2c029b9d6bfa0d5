"""A run that is killed with SIGKILL, again and again, ends with the bits of one that never was."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("killed_run.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of all runs, and how often each was killed."""
    folder = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, SCRIPT, folder],
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # a process with threads cannot be forked
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}


@pytest.mark.parametrize("mode", ["time", "write"])
def test_killed_and_resumed_training_ends_with_the_same_bits(mode, runs):
    folder, kills = runs
    assert kills[mode] >= 2, "too few to say anything"
    for name in ("end", "metrics.csv"):  # the weights, with dropout on; every number on the way
        unharmed = folder / f"never_{mode}" / name
        assert (folder / mode / name).read_bytes() == unharmed.read_bytes(), name
