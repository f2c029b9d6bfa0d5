"""What does the next token cost, with a cache and without?

    python -m experiments.cache_costs

Decoders of several sizes, with random weights (time does not depend on them), read texts of many
lengths. For each length the next token is asked for in two ways: by reading the whole text again,
and by reading the last token alone beside the kept keys and values. Then the same with several new
tokens in one pass, which is what guessing ahead lives from, and with several texts side by side.
Everything is timed on the GPU, if there is one, and on the CPU, one after the other: let nothing
else run meanwhile.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from experiments.shared.common import (
    Options,
    Row,
    merge_tables,
    modern_config,
    read_options,
    rounded,
    rounded_row,
    wait,
    write_results,
)
from transformer_lib import CausalLM, KeyValueCache, Recipe, evaluating, generate

CHAPTER = "16b_cache"
SHAPES = {  # width, heads, blocks, width of the feed-forward network, tokens
    "draft": (64, 4, 2, 170, 259),
    "plays": (256, 8, 4, 688, 259),
    "middle": (512, 8, 8, 1376, 8192),
    "GPT-2 small": (768, 12, 12, 2048, 50257),
}
LENGTHS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
N_NEW = (1, 2, 3, 5, 9, 17, 33, 65)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
WHOLE = (64, 256)
ABOUT = {
    "Task": "The time of one step of a decoder, i.e. of asking for the next token.",
    "Choices": """Decoders with the parts of today and random weights in float32 (TF32 products on
        the GPU). `plays` has the shape of the language model of `shakespeare`, `draft` that of
        `drafts`, `GPT-2 small` the width, depth and vocabulary of that model. Attention is
        PyTorch's fused one. Nothing is compiled or recorded. A time is the median of repeated runs
        after a warm-up; the GPU is waited for before and after each.""",
    "How to read the tables": """Times are in milliseconds: `ms` is the median, `low` and `high` are
        the quartiles. `results.csv`: one step after a text of `length` tokens, `cache` says whether
        keys and values were kept (then one token is read) or not (then all are read); `cache_bytes`
        is what the cache holds then. `passes.csv`: a pass that reads `n_new` tokens at once
        beside a cache of `length`. `batches.csv`: a step for `batch` texts of that length side by
        side. `busy.csv`: how long the kernels of the step of `results.csv` ran on the GPU, by
        PyTorch's profiler; the rest of its time the GPU waited. `whole.csv`: `generate` writes
        `n_new` tokens after a prompt of 16, once with a cache and once without; there `ms` is the
        time of the whole text.""",
    "Intended use": "Teaching: what a cache saves, where, and what it does not.",
    "Limits": """One GPU, one CPU, one library without compilation: on a fast GPU small models wait
        for Python and for the launch of kernels, not for arithmetic. Other machines and programs
        have other numbers; the shape of the curves is what is meant to last.""",
}


@dataclass(frozen=True)
class Clock:
    """Takes times on one device.

    Args:
        device: where the work is done.
        seconds: how long one measurement goes on at most, warm-up apart.
        most: how often a run is repeated at most.
    """

    device: str
    seconds: float
    most: int

    def __call__(self, work: Callable[[], object]) -> Row:
        """Return median and quartiles of the time that some work takes, in milliseconds."""
        wait(self.device)
        start = time.perf_counter()
        work()  # the warm-up; its time says whether there can be a second one
        wait(self.device)
        if time.perf_counter() - start < self.seconds / 10:
            work()
        times: list[float] = []
        deadline = time.perf_counter() + self.seconds
        while len(times) < 3 or (len(times) < self.most and time.perf_counter() < deadline):
            wait(self.device)
            start = time.perf_counter()
            work()
            wait(self.device)
            times.append(1000 * (time.perf_counter() - start))
        low, _, high = quantiles(times, n=4, method="inclusive")
        found = {"ms": median(times), "low": low, "high": high}
        return rounded_row(found, 4) | {"repeats": len(times)}


def build(shape: str, max_len: int) -> CausalLM:
    """Make a decoder of a shape with random weights."""
    d_model, n_heads, n_layers, d_ff, vocab_size = SHAPES[shape]
    config = modern_config(
        vocab_size=vocab_size,
        max_len=max_len,
        d_model=d_model,
        n_heads=n_heads,
        n_layers=n_layers,
        d_ff=d_ff,
        dropout=0.0,
    )
    return CausalLM(config)


class Step:
    """A model that has read a text, and reads some more tokens again and again.

    Args:
        model: a decoder, inside ``evaluating``.
        text: what it has read, ``(B, T)``.
        new: what it reads in each run, ``(B, n)``.
    """

    def __init__(self, model: CausalLM, text: Tensor, new: Tensor) -> None:
        self.model, self.new, self.length = model, new, text.shape[1]
        room = self.length + new.shape[1]
        self.cache = KeyValueCache(model.config.n_layers, room)
        model.decoder(text, cache=self.cache)

    def __call__(self) -> Tensor:
        """Read the new tokens and return the scores after each, ``(B, n, V)``."""
        self.cache.rewind(self.length)  # what the last run added is forgotten
        logits: Tensor = self.model(self.new, cache=self.cache)
        return logits


def read_again(model: CausalLM, text: Tensor) -> Tensor:
    """Read a whole text and return the scores after its last token, ``(B, V)``."""
    scores: Tensor = model.output(model.decoder(text)[:, -1])
    return scores


def steps(model: CausalLM, lengths: Sequence[int], clock: Clock) -> list[Row]:
    """Time one step after texts of several lengths, with and without a cache."""
    rows: list[Row] = []
    for length in lengths:
        text = torch.randint(model.config.vocab_size, (1, length + 1)).to(clock.device)
        step = Step(model, text[:, :-1], text[:, -1:])
        held = {"length": length, "cache_bytes": step.cache.n_bytes}
        rows.append(held | {"cache": 1} | clock(step))
        del step
        again = partial(read_again, model, text)
        rows.append({"length": length, "cache_bytes": 0, "cache": 0} | clock(again))
    return rows


def busy(model: CausalLM, lengths: Sequence[int]) -> list[Row]:
    """Add up how long the GPU works in one step, as opposed to waiting for its orders."""
    device = next(model.parameters()).device
    rows: list[Row] = []
    for length in lengths:
        text = torch.randint(model.config.vocab_size, (1, length + 1)).to(device)
        step = Step(model, text[:, :-1], text[:, -1:])
        rows.append({"length": length, "cache": 1, "busy_ms": kernel_time(step)})
        del step
        again = partial(read_again, model, text)
        rows.append({"length": length, "cache": 0, "busy_ms": kernel_time(again)})
    return rows


def kernel_time(work: Callable[[], object], n: int = 3) -> float:
    """Return the time that a GPU computes for some work, in milliseconds."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(n):
            work()
        torch.cuda.synchronize()
    total = sum(event.self_device_time_total for event in found.key_averages())
    return rounded(total / n / 1000, 4)


def passes(model: CausalLM, length: int, n_new: Sequence[int], clock: Clock) -> list[Row]:
    """Time passes that read several new tokens beside a cache."""
    rows: list[Row] = []
    for n in n_new:
        text = torch.randint(model.config.vocab_size, (1, length + n)).to(clock.device)
        step = Step(model, text[:, :length], text[:, length:])
        rows.append({"length": length, "n_new": n} | clock(step))
    return rows


def batches(model: CausalLM, length: int, sizes: Sequence[int], clock: Clock) -> list[Row]:
    """Time one step for several texts side by side."""
    rows: list[Row] = []
    for n in sizes:
        text = torch.randint(model.config.vocab_size, (n, length + 1)).to(clock.device)
        step = Step(model, text[:, :-1], text[:, -1:])
        rows.append({"length": length, "batch": n} | clock(step))
    return rows


def whole(model: CausalLM, lengths: Sequence[int], clock: Clock) -> list[Row]:
    """Time whole texts, written with and without a cache."""
    prompt = torch.randint(model.config.vocab_size, (1, 16)).to(clock.device)
    rows: list[Row] = []
    for n in lengths:
        for kept in (True, False):
            write = partial(generate, model, prompt, max_new_tokens=n, use_cache=kept)
            rows.append({"n_new": n, "cache": int(kept)} | clock(write))
    return rows


def measure(device: str, shape: str, options: Options) -> dict[str, list[Row]]:
    """Take all times of one shape on one device.

    Args:
        device: where to run.
        shape: a key of ``SHAPES``.
        options: the experiment's.

    Returns:
        Rows of each table by its name.
    """
    on_cpu, small = device == "cpu", shape in ("draft", "plays")
    longest = 1024 if on_cpu and not small else 4096 if on_cpu else max(LENGTHS)
    lengths = [n for n in LENGTHS if n <= longest]
    lengths = options.pick(lengths, [4, 8])
    torch.manual_seed(options.seed)
    model = build(shape, options.pick(max(LENGTHS) + 128, 32)).to(device)
    # A CPU takes seconds for the longest texts: three runs must do there.
    clock = Clock(device, options.pick(0.1, 0.0), options.pick(30, 3))
    rough = Clock(device, options.pick(0.1, 0.0), options.pick(3, 3))
    found: dict[str, list[Row]] = {}
    with torch.no_grad(), evaluating(model):
        found["results"] = steps(model, lengths, clock)
        context = options.pick(512, 4)
        found["passes"] = passes(model, context, options.pick(N_NEW, (1, 2)), clock)
        sizes = BATCHES if small or not on_cpu else BATCHES[:3]
        found["batches"] = batches(model, context, options.pick(sizes, (1, 2)), clock)
        if not on_cpu:
            found["busy"] = busy(model, lengths)
    if shape == "plays":
        found["whole"] = whole(model, options.pick(WHOLE, (2, 3)), rough)
    about: Row = {"device": "CPU" if on_cpu else "GPU", "shape": shape}
    return {name: [about | row for row in rows] for name, rows in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Take all times and write the tables."""
    options = read_options("cache_costs", __doc__, arguments)
    # One thread for each core, even where experiments usually have one thread.
    torch.set_num_threads(options.pick(min(16, os.cpu_count() or 1), 1))
    devices = list(dict.fromkeys([options.device, "cpu"]))
    shapes = options.pick(list(SHAPES), ["draft", "plays"])
    found = []
    for device in devices:
        for shape in shapes:
            found.append(measure(device, shape, options))
            print(device, shape, f"{time.perf_counter() - options.started:.0f} s", flush=True)
    tables = merge_tables(found)
    last = max(row["length"] for row in tables["results"] if row["shape"] == "plays")
    metrics = {
        f"{row['device']}_{'kept' if row['cache'] else 'again'}_{row['length']}_ms": row["ms"]
        for row in tables["results"]
        if row["shape"] == "plays" and row["length"] in (tables["results"][0]["length"], last)
    }
    cpu = platform.processor() or platform.machine()
    threads = {"cpu": cpu, "threads": torch.get_num_threads()}
    recipe = Recipe(steps=1, learning_rate=1e-3)  # nothing is trained
    data = "random token ids; weights and texts do not change the times"
    more = {"cpu": threads, "shapes": {name: SHAPES[name] for name in shapes}}
    write_results(options, data, ABOUT, metrics, recipe, tables=tables, more=more)


if __name__ == "__main__":
    main()
