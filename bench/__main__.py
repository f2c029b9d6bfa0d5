"""The command: `python -m bench [--device cpu|cuda] [--long]`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from bench.cases import Case
from bench.environment import environment, fresh_compiler_cache, moment
from bench.races import Clock, matmul_rate, prepare, take_turns
from bench.report import Record, bars, load, record_of, store, table
from bench.suites import Suite, cpu_suite, cuda_suite, long_suite

ROOT = Path(__file__).resolve().parents[1]


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure transformer_lib against torch.nn and transformers: one process, "
        "taking turns, medians. The results are kept as JSON (see --publish).",
    )
    found = "cuda" if torch.cuda.is_available() else "cpu"
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default=found, help=f"where (here: {found})")
    add("--only", nargs="+", metavar="CASE", help="these cases only, such as training")
    long = "steps after long texts beside the limit of memory, and a long prompt; small on a CPU"
    add("--long", action="store_true", help=long)
    add("--tiny", action="store_true", help="toy sizes, to see whether everything runs")
    file = parser.add_mutually_exclusive_group()
    default = "_build/speed/DEVICE.json, with --long long-DEVICE.json; toy sizes: none"
    file.add_argument(
        "--out", type=Path, metavar="FILE", help=f"the JSON file (default: {default})"
    )
    into = "write to book/results/speed, which the page Speed shows (no toy sizes)"
    file.add_argument("--publish", action="store_true", help=into)
    add("--seconds", type=float, metavar="N", help="how long each competitor runs in each case")
    add("--limit", type=float, default=math.inf, metavar="N", help="prepare nothing after N s")
    add("--threads", type=int, metavar="N", help="how many threads PyTorch uses")
    kept = "use what compilers kept of earlier runs; first calls are then no longer cold"
    add("--warm", action="store_true", help=kept)
    add("--prepare", action="store_true", help="only compile, for later runs with --warm")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that were asked for; return 0 if all answers agree."""
    options = parser().parse_args(arguments)
    if refusal := why_not(options):
        parser().error(refusal)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    suite = suite_of(options)
    unknown = sorted(set(options.only or ()) - set(suite))
    if unknown:
        print(f"no case {', '.join(unknown)}; there are {', '.join(suite)}", file=sys.stderr)
        return 2
    suite = {name: make for name, make in suite.items() if name in (options.only or suite)}
    clock = Clock(options.device, options.limit)
    clock.warm_up()
    if options.prepare:
        compile_all(suite, clock)
        return 0
    seconds = options.seconds or (0.01 if options.tiny else 6 if options.device == "cpu" else 2)
    with nullcontext() if options.warm else fresh_compiler_cache():
        record = measure(suite, clock, seconds, where(options))
    print(table(record))
    return 0 if all(case["checks"]["agree"] for case in record["cases"].values()) else 1


def why_not(options: argparse.Namespace) -> str | None:
    """Say why these options cannot be followed, if so."""
    if options.device == "cuda" and not torch.cuda.is_available():
        return "--device cuda: PyTorch sees no GPU here; leave it out to measure on the CPU"
    if options.publish and options.tiny:
        return "--publish: toy sizes are not for the page"
    if options.publish and options.long and options.device == "cpu":
        return "--publish --long: the page shows the large models, which need a GPU"
    return None


def suite_of(options: argparse.Namespace) -> Suite:
    """Return the cases of this device."""
    if options.long:
        return long_suite(options.device, tiny=options.tiny)
    return (cpu_suite if options.device == "cpu" else cuda_suite)(tiny=options.tiny)


def where(options: argparse.Namespace) -> Path | None:
    """Say which file the results go to; those that the book shows change only if asked for."""
    out: Path | None = options.out
    if out is not None or options.tiny:
        return out
    folder = "book/results/speed" if options.publish else "_build/speed"
    name = f"long-{options.device}" if options.long else options.device
    return ROOT / folder / f"{name}.json"


def measure(suite: Suite, clock: Clock, seconds: float, path: Path | None) -> Record:
    """Run the cases one after another; the file is written anew whenever there is a result."""
    here = environment(clock.device)
    record: Record = {"environment": here, "cases": {}, "bars": []}
    if path is not None:
        record = load(path, here)
    while suite:
        name = next(iter(suite))
        case = suite.pop(name)()  # nobody else holds the models of a case
        _run(name, case, clock, seconds, record, path)
        keeps = case.keeps_compiled
        del case
        clock.free(compiled=not keeps)
    return record


def _run(
    name: str, case: Case, clock: Clock, seconds: float, record: Record, path: Path | None
) -> None:
    """Prepare the competitors of a case, let them run, and write down how it went."""
    start = moment()
    matmul: dict[str, float] = {}

    def publish() -> None:
        record["cases"][name] = record_of(case, matmul) | start
        record["bars"] = bars(record)
        if path is not None:
            store(record, path)

    for competitor in case.competitors:
        prepare(competitor, clock)
        took = competitor.error or (
            f"first call {competitor.first_call:.1f} s, prepared in {competitor.preparation:.0f} s"
        )
        print(f"{name}: {competitor.name}: {took}", file=sys.stderr, flush=True)
        publish()
    compare = clock.device == "cuda" and case.flops_per_token is not None
    if compare:
        matmul["before"] = matmul_rate(clock)
    take_turns(case.competitors, clock, seconds, publish)
    if compare:
        matmul["after"] = matmul_rate(clock)
    publish()


def compile_all(suite: Suite, clock: Clock) -> None:
    """Build what has to be compiled, once; the compiler remembers it for the next process."""
    for name, make in suite.items():
        for competitor in make().competitors:
            if competitor.compiled:
                prepare(competitor, clock)
                print(f"{name}: {competitor.name}: {competitor.error or 'ready'}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
