"""What is a GPU fast at? Matrix products, memory, and a training step in several forms.

    python -m experiments.hardware

Three tables. Single operations: how many multiplications and how many bytes a second. One training
step of GPT-2: its time and its memory by precision, with and without recomputed activations, kept
logits, and the compiler. And how memory grows with the batch. Run it alone: it measures times.
"""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    n_parameters,
    read_options,
    rows_where,
    wait,
    write_results,
)
from transformer_lib import PRESETS, CausalLM, Objective

CHAPTER = "19c_hardware"
TYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,  # stored in 32 bits, multiplied with the 10 bits of float16 behind the 1
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
LATEST = 65.0  # seconds after which the compiler is not started any more
ABOUT = {
    "Task": """`operations.csv`: a square matrix product `n x n` by precision; a linear layer of
        4,096 to 4,096 features for some number of tokens (bfloat16); operations on each element of
        a large tensor (bfloat16). `results.csv`: one step of training GPT-2 with 124 million
        parameters, a vocabulary of 50,304 and sequences of 1,024 tokens: forward, loss, backward,
        AdamW. `batches.csv`: the same with more and more sequences.""",
    "Choices": """A time is the median of several runs, each of many calls in a row, after some that
        do not count. Bytes are those that must be read and written if each tensor is touched once.
        In `float32` TF32 is off. With 16 bits, weights and optimizer stay in float32 (autocast),
        and float16 has a scaled loss. `recomputed`: blocks keep what they were given and compute
        the rest again. `logits kept`: PyTorch's cross-entropy of all logits instead of the
        library's, which turns a part at a time into its gradient.""",
    "How to read the tables": """`peak_gib` is the most that PyTorch had allocated, `state_gib` what
        weights and optimizer take before the step.""",
    "Intended use": "Teaching: what limits a step, and what memory is spent on.",
    "Limits": "One GPU, one model, one version of PyTorch; nothing else ran on the machine.",
}


@dataclass(frozen=True)
class Form:
    """One form of a training step."""

    precision: str = "bfloat16"
    recomputed: bool = False
    logits_kept: bool = False
    compiled: bool = False


FORMS = {
    "float32": Form("float32"),
    "tf32": Form("tf32"),
    "bfloat16": Form(),
    "float16": Form("float16"),
    "bfloat16, logits kept": Form(logits_kept=True),
    "bfloat16, recomputed": Form(recomputed=True),
    "bfloat16, compiled": Form(compiled=True),
}


def seconds(call: Callable[[], Any], device: str, *, calls: int, repeats: int = 5) -> float:
    """Return the median time of one call; the first calls do not count."""
    for _ in range(2):
        call()
    times = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait(device)
        times.append((time.perf_counter() - start) / calls)
    return median(times)


def set_precision(name: str) -> None:
    """Allow TF32, or not."""
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")


def operation(kind: str, name: str, size: int, time_s: float, flops: float, n_bytes: int) -> Row:
    """Make a row of ``operations.csv``."""
    return {
        "kind": kind,
        "name": name,
        "size": size,
        "seconds": time_s,
        "tflops": flops / time_s / 1e12,
        "gigabytes": n_bytes / time_s / 1e9,
        "intensity": flops / n_bytes,
    }


def products(options: Options) -> list[Row]:
    """Time square matrix products, and a layer for few tokens and for many."""
    device, rows = options.device, []
    for name, dtype in TYPES.items():
        if options.tiny and name == "bfloat16":
            continue  # some CPUs complain
        set_precision(name)
        for n in options.pick((128, 256, 512, 1_024, 2_048, 4_096, 8_192), (16,)):
            a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
            calls = options.pick(max(3, min(50, int(2e11 / n**3))), 1)
            time_s = seconds(partial(torch.matmul, a, b), device, calls=calls)
            n_bytes = 3 * n * n * dtype.itemsize
            rows.append(operation("product", name, n, time_s, 2 * n**3, n_bytes))
    width = options.pick(4_096, 16)
    dtype = options.pick(torch.bfloat16, torch.float32)
    weight = torch.randn(width, width, device=device, dtype=dtype)
    for n in options.pick(tuple(4**k for k in range(8)), (1, 4)):
        x = torch.randn(n, width, device=device, dtype=dtype)
        calls = options.pick(max(5, min(50, 200_000 // n)), 1)
        time_s = seconds(partial(F.linear, x, weight), device, calls=calls)
        n_bytes = (2 * n * width + width * width) * dtype.itemsize
        rows.append(operation("layer", "bfloat16", n, time_s, 2 * n * width**2, n_bytes))
    return rows


def elementwise(options: Options) -> list[Row]:
    """Time operations that touch each element of a large tensor once."""
    device, width = options.device, options.pick(4_096, 16)
    shape, dtype = (options.pick(32_768, 4), width), options.pick(torch.bfloat16, torch.float32)
    x, y = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    gain, bias = (torch.randn(width, device=device, dtype=dtype) for _ in range(2))
    # What is done with each element, how many operations that is, and how many tensors move.
    calls: dict[str, tuple[Callable[[], Tensor], int, int]] = {
        "add": (lambda: x + y, 1, 3),
        "gelu": (lambda: F.gelu(x), 10, 2),
        "softmax": (lambda: x.softmax(dim=-1), 5, 2),
        "layer norm": (lambda: F.layer_norm(x, (width,), gain, bias), 8, 2),
    }
    rows = []
    for name, (call, n_flops, n_tensors) in calls.items():
        time_s = seconds(call, device, calls=options.pick(20, 1))
        n_bytes = n_tensors * x.numel() * dtype.itemsize
        rows.append(operation("elementwise", name, x.numel(), time_s, n_flops * x.numel(), n_bytes))
    return rows


class Trainer:
    """A model and its optimizer, ready to make steps of one form."""

    def __init__(self, form: Form, batch_size: int, options: Options) -> None:
        set_precision(form.precision)
        torch.manual_seed(options.seed)
        self.form, self.device = form, options.device
        small = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 16, "vocab_size": 64}
        sizes: dict[str, Any] = options.pick({"vocab_size": 50_304}, small)
        config = replace(PRESETS["gpt2"].config, dropout=0.0, attention_dropout=0.0, **sizes)
        with torch.device(self.device):
            self.model = CausalLM(config)
            shape = (batch_size, config.max_len + 1)
            ids = torch.randint(config.vocab_size, shape, device=self.device)
        self.batch = {"ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
        self.model.decoder.stack.checkpoint_activations = form.recomputed
        fused = self.device.startswith("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=fused)
        self.scaler = torch.amp.GradScaler(self.device, enabled=form.precision == "float16")
        self.compute: Any = self.kept if form.logits_kept else Objective(self.model)
        if form.compiled and not options.tiny:
            self.compute = torch.compile(self.compute)

    def kept(self, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        """Sum the loss with PyTorch's own function, which keeps all logits."""
        logits = self.model(batch["ids"]).flatten(0, 1)
        targets = batch["targets"].flatten()
        return F.cross_entropy(logits, targets, reduction="sum"), targets.numel()

    def step(self) -> None:
        """Make one step of training."""
        dtype = TYPES[self.form.precision]
        passes: Any = nullcontext()
        if dtype != torch.float32:
            passes = torch.autocast(self.device.split(":")[0], dtype)
        with passes:
            total, count = self.compute(self.batch)
        self.scaler.scale(total / count).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def measure(name: str, form: Form, batch_size: int, options: Options, steps: int) -> Row:
    """Time a form of the training step, and say what memory it needs."""
    gpu = options.device.startswith("cuda")
    trainer = Trainer(form, batch_size, options)
    row: Row = {"form": name, "batch": batch_size, "length": trainer.batch["ids"].shape[1]}
    row["parameters"] = n_parameters(trainer.model)
    try:
        trainer.step()  # now the optimizer has its tensors
        wait(options.device)
        state = torch.cuda.memory_allocated() if gpu else 0
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        row["seconds"] = seconds(trainer.step, options.device, calls=1, repeats=steps)
        row["state_gib"] = state / 2**30
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if gpu else 0.0
    except torch.OutOfMemoryError:
        row |= {"seconds": None, "state_gib": None, "peak_gib": None}
    print(row, flush=True)
    del trainer
    release(options.device)
    return row


def release(device: str) -> None:
    """Give back what earlier models held."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write three tables."""
    options = read_options("hardware", __doc__, arguments)
    operations = [*products(options), *elementwise(options)]
    release(options.device)
    forms = dict(FORMS)
    if options.tiny:  # a CPU may complain about 16 bits
        forms = {name: replace(form, precision="float32") for name, form in forms.items()}
    usual, repeats = options.pick(16, 2), options.pick(7, 1)
    sizes = options.pick((1, 2, 4, 8, 16, 32), (1, 2))
    growth = [
        measure(name, forms[name], size, options, options.pick(3, 1))
        for name in ("bfloat16", "bfloat16, recomputed", "float32")
        for size in sizes
    ]
    rows = []
    for name, form in forms.items():
        late = time.perf_counter() - options.started > LATEST
        if not (form.compiled and (late or options.eager)):
            rows.append(measure(name, form, usual, options, repeats))
    metrics: dict[str, Any] = {f"ms a step ({r['form']})": r["seconds"] * 1e3 for r in rows}
    metrics |= {f"peak GiB ({r['form']})": r["peak_gib"] for r in rows}
    for name in TYPES:
        if some := rows_where(operations, name=name):
            metrics[f"TFLOP/s ({name})"] = max(row["tflops"] for row in some)
    metrics["GB/s"] = max(row["gigabytes"] for row in rows_where(operations, kind="elementwise"))
    write_results(
        options, "random tokens", ABOUT, metrics, constant_adam(repeats, 1e-5),
        tables={"operations": operations, "batches": growth, "results": rows},
    )  # fmt: skip


if __name__ == "__main__":
    main()
