"""Does training suffer from 16 bits? The same small language model in six kinds of arithmetic.

    python -m experiments.precision

A decoder learns the plays letter by letter. Weights and optimizer have 32 bits, or 16; the passes
forward and backward have 32 bits, or 16; the loss is scaled, or not. First weights, batches and
recipe are the same for one seed.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    read_options,
    rows_where,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from transformer_lib import CausalLM, Recipe, TextWindows, learning_rate

CHAPTER = "19c_hardware"
LENGTH = 128


@dataclass(frozen=True)
class Kind:
    """One kind of arithmetic: what the weights are kept in, and what the passes are made in."""

    weights: torch.dtype
    passes: torch.dtype
    scaled: bool = False


KINDS = {
    "float32": Kind(torch.float32, torch.float32),
    "bfloat16": Kind(torch.float32, torch.bfloat16),
    "float16, scaled": Kind(torch.float32, torch.float16, scaled=True),
    "float16, not scaled": Kind(torch.float32, torch.float16),
    "bfloat16, weights too": Kind(torch.bfloat16, torch.bfloat16),
    "float16, weights too": Kind(torch.float16, torch.float16),
}
ABOUT = {
    "Task": "The plays, letter by letter: predict the next one. Judged on the play nobody trained.",
    "Choices": """One small decoder in six kinds of arithmetic. The first four keep weights and
        optimizer in 32 bits and differ in what layers compute with (autocast); the last two keep
        everything in 16 bits. `scaled`: the loss is multiplied before the backward pass and the
        gradients are divided after it (PyTorch's GradScaler). AdamW, warm-up, cosine to a tenth;
        no clipping, no dropout. The validation loss is computed in the same arithmetic, its last
        step (softmax and mean) in 32 bits.""",
    "How to read the tables": """`results.csv`: one row for each run and validation; an empty loss
        is not a number. `zeros`: the share of gradient entries of the blocks' matrices that are
        exactly zero. `skipped`: how many steps the scaler has left out so far.""",
    "Intended use": "Teaching: which 16 bits can train, and what has to stay in 32.",
    "Limits": "One small model, one rate, a short run. Large models can fail where it does not.",
}


def passes(kind: Kind, device: str) -> AbstractContextManager[object]:
    """Let layers compute in this kind's numbers until the end of a ``with`` block."""
    if kind.passes == torch.float32 or kind.passes == kind.weights:
        return nullcontext()
    return torch.autocast(device, kind.passes)


def zeros(model: CausalLM) -> float:
    """Return the share of the gradient of the blocks' matrices that is exactly zero."""
    found = [p.grad for p in model.decoder.stack.parameters() if p.grad is not None and p.ndim == 2]
    return sum(int((grad == 0).sum()) for grad in found) / sum(grad.numel() for grad in found)


@torch.no_grad()
def judge(model: CausalLM, kind: Kind, ids: Tensor) -> float | None:
    """Return the mean loss of windows ``(B, T + 1)``; nothing if it is not a number."""
    with passes(kind, ids.device.type):
        logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()).item()
    return loss if math.isfinite(loss) else None


def run(name: str, seed: int, options: Options, recipe: Recipe) -> list[Row]:
    """Train one model and return its rows of ``results.csv``."""
    kind, device = KINDS[name], options.device
    known, unknown, letters = texts(options.pick(None, 5_000))
    torch.manual_seed(seed)
    sizes = {"vocab_size": len(letters), "max_len": LENGTH, "d_model": options.pick(128, 16)}
    config = small_config(**sizes, n_layers=3, init="gpt2")
    model = CausalLM(config).to(device, kind.weights)
    optimizer = torch.optim.AdamW(model.parameters(), betas=recipe.betas, weight_decay=0.0)
    scaler = torch.amp.GradScaler(device, enabled=kind.scaled)
    stream = iter(TextWindows(known, LENGTH, batch_size=options.pick(32, 2), seed=seed))
    n_windows = options.pick(200, 2)
    held = unknown[: n_windows * (LENGTH + 1)].view(n_windows, -1).to(device)
    rows: list[Row] = []
    skipped = 0
    for step in range(1, recipe.steps + 1):
        optimizer.param_groups[0]["lr"] = learning_rate(step, recipe)
        batch = {key: tensor.to(device) for key, tensor in next(stream).items()}
        with passes(kind, device.split(":")[0]):
            logits = model(batch["ids"])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch["targets"].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        share = zeros(model) if step % recipe.log_every == 0 else 0.0
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        if step % recipe.log_every == 0:
            row = {"kind": name, "seed": seed, "step": step, "loss": judge(model, kind, held)}
            rows.append(row | {"zeros": share, "scale": scaler.get_scale(), "skipped": skipped})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write one table."""
    options = read_options("precision", __doc__, arguments)
    torch.set_float32_matmul_precision("highest")  # 32 bits mean 32 bits here
    steps = options.n_steps(1_000)
    recipe = Recipe(
        steps=steps,
        learning_rate=1e-3,
        warmup=steps // 20,
        weight_decay=0.0,
        clip=None,
        log_every=max(steps // 20, 1),
    )
    plan = [(*each, options, recipe) for each in product(KINDS, options.seeds(5))]
    rows = [row for found in side_by_side(run, plan, options) for row in found]
    last = rows_where(rows, step=rows[-1]["step"])
    write_results(
        options,
        data="shakespeare.txt",
        about=ABOUT,
        metrics={
            f"{column} ({name})": mean_of(last, column, kind=name)
            for column, name in product(("loss", "zeros"), KINDS)
        },
        recipe=recipe,
        tables={"results": rows},
    )


if __name__ == "__main__":
    main()
