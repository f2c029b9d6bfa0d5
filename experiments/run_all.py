"""Run all experiments side by side, each as a process with a log of its own.

    python -m experiments.run_all

Takes about six minutes on one large GPU with 16 CPU cores. Prints one line for each experiment, and
ends with an error if one of them failed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.common import ROOT

EXPERIMENTS = ("numbers", "shakespeare", "languages", "digits", "recall")


def start(name: str, folder: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start one experiment; what it prints goes to ``NAME.log``."""
    command = [sys.executable, "-m", f"experiments.{name}", "--out", str(folder / name), *options]
    # One thread each: they would only be in each other's way.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        )


def finish(name: str, process: subprocess.Popen[bytes], folder: Path, deadline: float) -> bool:
    """Wait for an experiment, print its verdict and return whether it went well."""
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    lines = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    last = lines[-1] if lines else "no output"
    well = process.returncode == 0
    print(last if well else f"{name} FAILED ({process.returncode}): {last}", flush=True)
    return well


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments.

    Args:
        arguments: those of the command line if left out.

    Returns:
        How many failed.
    """
    parser = argparse.ArgumentParser("python -m experiments.run_all", description=__doc__)
    default = ROOT / "book" / "results"
    parser.add_argument("--out", type=Path, default=default, help="a folder for all results")
    parser.add_argument("--only", nargs="+", default=EXPERIMENTS, choices=EXPERIMENTS)
    parser.add_argument("--limit", type=float, default=540, help="seconds, then they are ended")
    known, options = parser.parse_known_args(arguments)
    folder = known.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + known.limit
    running = {name: start(name, folder, options) for name in known.only}
    well = [finish(name, process, folder, deadline) for name, process in running.items()]
    return well.count(False)


if __name__ == "__main__":
    sys.exit(main())
