"""From measurements to a record, a table, and an answer to "fast enough?"."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cases import Case
from bench.races import summary

Record = dict[str, Any]

# What the library set out to reach: in float32 on a CPU, and on an H200 against nanoGPT, whose
# compiled training step was seen to reach 62 % of the speed of a matrix product in 21.2 GiB.
LEAST_TRAINING_ON_CPU = 1.0
LEAST_GENERATION_ON_CPU = 1.5
LEAST_SHARE = 0.65
LEAST_EAGER = 1.1
MOST_GIB = 21.2
LEAST_TOKENS = {"generation-1": 2_000, "generation-64": 90_000}


def record_of(case: Case, matmul: Mapping[str, float] | None = None) -> Record:
    """Write down everything that is known of a case.

    Args:
        case: during or after its race.
        matmul: the speed of a matrix product before and after it, operations a second.

    Returns:
        What goes into the file: all times, and what follows from them.
    """
    entries = {c.name: summary(c, case.amount) for c in case.competitors}
    answers = {c.name: c.answer for c in case.competitors if c.answer is not None}
    record: Record = {
        "title": case.title,
        "sizes": case.sizes,
        "tokens_per_run": case.amount,
        "checks": case.check(answers),
        "entries": entries,
        "ratios": ratios(entries),
    }
    if matmul and case.flops_per_token:
        speed = sum(matmul.values()) / len(matmul)
        record["flops_per_token"] = case.flops_per_token
        record["matmul_tflops"] = {when: rate / 1e12 for when, rate in matmul.items()}
        for entry in entries.values():
            if "per_second" in entry:
                entry["share_of_matmul"] = entry["per_second"] * case.flops_per_token / speed
    return record


def ratios(entries: Mapping[str, Record]) -> dict[str, dict[str, float]]:
    """How many times as fast each of ours is as each of the others."""
    rates = {name: e["per_second"] for name, e in entries.items() if "per_second" in e}
    ours = [name for name in rates if name.startswith("ours")]
    others = [name for name in rates if name not in ours]
    return {mine: {other: rates[mine] / rates[other] for other in others} for mine in ours}


def load(path: Path, environment: Record) -> Record:
    """Read the record of an earlier run, to add to; a fresh one if machine or versions differ."""
    if path.is_file():
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("environment") == environment:
            return record
    return {"environment": environment, "cases": {}, "bars": []}


def store(record: Record, path: Path) -> None:
    """Write the record; whoever reads it meanwhile sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(_rounded(record), indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _rounded(value: Any) -> Any:
    """Six significant digits are more than any clock is worth."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def bars(record: Record) -> list[Record]:
    """Compare what was measured with what was to be reached."""
    cases = record["cases"]
    on_cpu = record["environment"]["device"] == "cpu"
    return _bars_on_cpu(cases) if on_cpu else _bars_on_gpu(cases)


def _bars_on_cpu(cases: Mapping[str, Record]) -> list[Record]:
    found = []
    for name, case in cases.items():
        # Against the fastest of the others, for each way in which we do it ourselves.
        ratios = {mine: min(r.values()) for mine, r in case["ratios"].items() if r}
        best = max(ratios, key=ratios.__getitem__, default="ours")
        if name == "training":
            what, least = "training: times the fastest peer", LEAST_TRAINING_ON_CPU
            found.append(_bar(what, ratios.get(best), least=least))
        elif name.startswith("generation"):
            what, least = f"{name}, {best}: times transformers", LEAST_GENERATION_ON_CPU
            found.append(_bar(what, ratios.get(best), least=least))
    return found


def _bars_on_gpu(cases: Mapping[str, Record]) -> list[Record]:
    found = []
    for name, case in cases.items():
        compiled = case["entries"].get("ours, compiled", {})
        if name == "training":
            eager = case["ratios"].get("ours", {}).get("torch.nn")
            share, peak = compiled.get("share_of_matmul"), compiled.get("peak_gib")
            found += [
                _bar("training, compiled: share of matmul", share, least=LEAST_SHARE),
                _bar("training, compiled: peak GiB", peak, most=MOST_GIB),
                _bar("training, eager: times torch.nn", eager, least=LEAST_EAGER),
            ]
        elif name in LEAST_TOKENS:
            speed = compiled.get("per_second")
            found.append(_bar(f"{name}: tokens/s", speed, least=LEAST_TOKENS[name]))
        elif name == "generation-float32":
            same = case["checks"].get("same_tokens", {}).get("ours, compiled")
            found.append(_bar("float32: share of eager tokens", same, least=1.0))
    return found


def _bar(
    what: str, value: float | None, *, least: float | None = None, most: float | None = None
) -> Record:
    reached = value is not None and (least is None or value >= least)
    reached = reached and (most is None or value is None or value < most)
    return {"what": what, "value": value, "least": least, "most": most, "reached": reached}


def table(record: Record) -> str:
    """Write a record as text, a few lines for each case."""
    lines = []
    for name, case in record["cases"].items():
        agree = "answers agree" if case["checks"]["agree"] else "ANSWERS DIFFER"
        lines.append(f"{name}: {case['title']} ({agree})")
        lines += [_line(entry, name, case) for name, entry in case["entries"].items()]
    for bar in record["bars"]:
        value = "not measured" if bar["value"] is None else f"{bar['value']:,.2f}"
        wanted = f">= {bar['least']:,}" if bar["most"] is None else f"< {bar['most']:,}"
        missed = "" if bar["value"] is None else "NOT REACHED"
        verdict = "reached" if bar["reached"] else missed
        lines.append(f"{bar['what']:46} {value:>12} {wanted:>10}  {verdict}")
    return "\n".join(lines)


def _line(entry: Record, name: str, case: Record) -> str:
    if "error" in entry:
        return f"  {name:23} {entry['error'][:90]}"
    low, high = entry["quartiles_s"]
    spread = (high - low) / entry["median_s"]
    line = f"  {name:23} {1e3 * entry['median_s']:9.1f} ms ±{spread:4.0%} "
    line += f"{entry['per_second']:11,.0f} tokens/s"
    if "share_of_matmul" in entry:
        line += f" {entry['share_of_matmul']:4.0%}"
    if "peak_gib" in entry:
        line += f" {entry['peak_gib']:5.1f} GiB"
    against = {mine: r[name] for mine, r in case["ratios"].items() if name in r}
    return line + "".join(f"  {mine} x{ratio:.2f}" for mine, ratio in against.items())
