"""From measurements to a record, a table, and an answer to "fast enough?"."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cases import LIMIT, Case
from bench.races import summary

Record = dict[str, Any]

OURS, COMPILED, PLAIN = "ours", "ours, compiled", "plain GPT"

# What the library set out to reach on a CPU: how many times as fast as whom.
LEAST_ON_CPU = (
    ("training", OURS, "torch.nn", 1.0),
    ("training", OURS, "transformers", 1.0),
    ("generation-1", OURS, "transformers", 1.4),
    ("generation-1", COMPILED, "transformers", 2.0),
    ("generation-8", OURS, "transformers", 1.4),
    ("generation-8", COMPILED, "transformers", 2.0),
    ("encoder", OURS, "transformers", 1.2),
    ("gqa", OURS, "repeated keys", 4.0),
    ("gqa-attention", OURS, "repeated keys", 4.0),
)
# And on an H200: tokens a second, and seconds of the first call.
ON_GPU = (
    ("generation-1", OURS, 1_300, 4),
    ("generation-1", COMPILED, 2_500, 30),
    ("generation-64", OURS, 60_000, 4),
    ("generation-64", COMPILED, 95_000, 30),
)
LEAST_TRAINING = 560_000  # tokens a second, where a matrix product reaches
MATMUL = 700  # TFLOP/s; GPUs of the same name differ, and slow down when they are hot
LEAST_SHARE, LEAST_EAGER = 0.65, 1.1
MOST_GIB = 17.5
MOST_LOSS_GAP = 1e-3


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
        for name, entry in entries.items():
            if "per_second" in entry and name != LIMIT:  # a copy multiplies nothing
                entry["share_of_matmul"] = entry["per_second"] * case.flops_per_token / speed
    if case.bytes_per_run is not None and "median_s" in entries.get(LIMIT, {}):
        record["copy_gb_per_s"] = case.bytes_per_run / entries[LIMIT]["median_s"] / 1e9
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
    return [
        _bar(f"{name}, {mine}: times {peer}", _ratio(cases[name], mine, peer), least=least)
        for name, mine, peer, least in LEAST_ON_CPU
        if name in cases
    ]


def _bars_on_gpu(cases: Mapping[str, Record]) -> list[Record]:
    found = _bars_of_training(cases["training"]) if "training" in cases else []
    for name, mine, least, most in ON_GPU:
        if name in cases:
            entry = cases[name]["entries"].get(mine, {})
            speed, first = entry.get("per_second"), entry.get("first_call_s")
            found.append(_bar(f"{name}, {mine}: tokens/s", speed, least=least))
            found.append(_bar(f"{name}, {mine}: first call, s", first, most=most))
    if "generation-float32" in cases:
        same = cases["generation-float32"]["checks"].get("same_tokens", {})
        for name in (OURS, COMPILED, "ours, not recorded"):
            what = f"float32, {name}: share of same tokens"
            found.append(_bar(what, same.get(name), least=1.0))
    return found


def _bars_of_training(case: Record) -> list[Record]:
    """The bars of the training step, which depend on how fast the GPU happens to be."""
    compiled, losses = case["entries"].get(COMPILED, {}), case["checks"].get("third_losses", {})
    speed, rates = compiled.get("per_second"), case.get("matmul_tflops", {}).values()
    scaled = speed * MATMUL * len(rates) / sum(rates) if speed and rates else None
    gaps = [
        abs(losses[mine] - losses[PLAIN]) for mine in (OURS, COMPILED) if {mine, PLAIN} <= {*losses}
    ]
    share, peak = compiled.get("share_of_matmul"), compiled.get("peak_gib")
    return [
        _bar("training, compiled: tokens/s", speed, least=LEAST_TRAINING),
        _bar(f"training, compiled: tokens/s at {MATMUL} TFLOP/s", scaled, least=LEAST_TRAINING),
        _bar("training, compiled: share of matmul", share, least=LEAST_SHARE),
        _bar("training, compiled: peak GiB", peak, most=MOST_GIB),
        _bar("training, eager: times torch.nn", _ratio(case, OURS, "torch.nn"), least=LEAST_EAGER),
        _bar("training: third loss, off plain GPT", max(gaps, default=None), most=MOST_LOSS_GAP),
    ]


def _ratio(case: Record, mine: str, peer: str) -> float | None:
    ratio: float | None = case["ratios"].get(mine, {}).get(peer)
    return ratio


def _bar(
    what: str, value: float | None, *, least: float | None = None, most: float | None = None
) -> Record:
    reached = value is not None and (least is None or value >= least)
    reached = reached and (most is None or value is None or value <= most)
    return {"what": what, "value": value, "least": least, "most": most, "reached": reached}


def _verdict(checks: dict[str, Any]) -> str:
    """Say what is known of the answers."""
    if not checks["agree"]:
        return "ANSWERS DIFFER"
    return "answers agree" if checks.get("compared", True) else "answers not compared"


def table(record: Record) -> str:
    """Write a record as text, a few lines for each case."""
    lines = []
    for name, case in record["cases"].items():
        lines.append(f"{name}: {case['title']} ({_verdict(case['checks'])})")
        lines += [_line(entry, name, case) for name, entry in case["entries"].items()]
    if any(PLAIN in name for case in record["cases"].values() for name in case["entries"]):
        lines.append(f"({PLAIN}: as nanoGPT builds it, with our weights)")
    for bar in record["bars"]:
        value = "not measured" if bar["value"] is None else _number(bar["value"])
        wanted = f">= {bar['least']:,}" if bar["most"] is None else f"<= {bar['most']:,}"
        missed = "" if bar["value"] is None else "NOT REACHED"
        verdict = "reached" if bar["reached"] else missed
        lines.append(f"{bar['what']:48} {value:>12} {wanted:>10}  {verdict}")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.2g}"


def _line(entry: Record, name: str, case: Record) -> str:
    if "error" in entry:
        return f"  {name:24} {entry['error'][:90]}"
    low, high = entry["quartiles_s"]
    spread = (high - low) / entry["median_s"]
    line = f"  {name:24} {1e3 * entry['median_s']:9.1f} ms ±{spread:4.0%} "
    line += f"{entry['per_second']:11,.0f} tokens/s"
    if entry.get("first_call_s") is not None:
        line += f" first {entry['first_call_s']:6.2f} s"
    if "share_of_matmul" in entry:
        line += f" {entry['share_of_matmul']:4.0%}"
    if "peak_gib" in entry:
        line += f" {entry['peak_gib']:5.1f} GiB"
    against = {mine: r[name] for mine, r in case["ratios"].items() if name in r}
    return line + "".join(f"  {mine} x{ratio:.2f}" for mine, ratio in against.items())
