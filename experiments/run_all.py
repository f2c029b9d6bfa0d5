"""Run all experiments, each as a process with a log of its own.

    python -m experiments.run_all

Meant for one large GPU with 16 CPU cores. Those that measure times, or need the whole machine, come
first and one by one; all others run side by side. Prints one line for each experiment, and
ends with an error if one of them failed. Arguments it does not know go to every experiment.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.shared.common import ROOT

# A module of this folder is an experiment if it says which chapter it serves.
EXPERIMENTS = tuple(
    path.stem
    for path in sorted(Path(__file__).parent.glob("*.py"))
    if "\nCHAPTER = " in path.read_text(encoding="utf-8")
)
ALONE = {"cache_costs", "attention_costs", "mask_costs", "norm_costs", "hardware", "scaling"}


def start(name: str, folder: Path, log: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start one experiment; what it prints goes to its log."""
    command = [sys.executable, "-m", f"experiments.{name}", "--out", str(folder / name), *options]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    if name not in ALONE:
        environment["OMP_NUM_THREADS"] = "1"  # more would only be in each other's way
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        )


def finish(name: str, process: subprocess.Popen[bytes], log: Path, deadline: float) -> bool:
    """Wait for an experiment, print its verdict and return whether it went well."""
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = lines[-1] if lines else "no output"
    well = process.returncode == 0
    failed = f"{name} FAILED ({process.returncode}): {last}; see {log}"
    print(last if well else failed, flush=True)
    return well


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments.

    Args:
        arguments: those of the command line if left out.

    Returns:
        How many failed.
    """
    parser = argparse.ArgumentParser("python -m experiments.run_all", description=__doc__)
    out, built = "book/results, with --tiny _build/experiments", ROOT / "_build" / "experiments"
    parser.add_argument("--out", type=Path, help=f"a folder for all results (default: {out})")
    parser.add_argument("--logs", type=Path, default=built / "logs", help="a folder for the logs")
    parser.add_argument("--tiny", action="store_true", help="only check that everything runs")
    parser.add_argument("--only", nargs="+", default=EXPERIMENTS, choices=EXPERIMENTS)
    parser.add_argument(
        "--limit", type=float, default=540, help="seconds for each group, then it is ended"
    )
    known, options = parser.parse_known_args(arguments)
    options += ["--tiny"] if known.tiny else []
    # As with a single experiment: a tiny run must not replace the results that the book shows.
    folder = (known.out or (built if known.tiny else ROOT / "book" / "results")).resolve()
    known.logs.mkdir(parents=True, exist_ok=True)
    logs = {name: known.logs.resolve() / f"{name}.log" for name in known.only}
    alone = [[name] for name in known.only if name in ALONE]
    together = [name for name in known.only if name not in ALONE]
    well = []
    for group in [*alone, together]:
        deadline = time.monotonic() + known.limit
        running = {name: start(name, folder, logs[name], options) for name in group}
        well += [finish(name, running[name], logs[name], deadline) for name in group]
    return well.count(False)


if __name__ == "__main__":
    sys.exit(main())
