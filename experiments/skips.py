"""What do skips do to a Transformer? Decoders with and without them, before and after training.

    python -m experiments.skips
    python -m experiments.skips --starts --device cpu    # the small trial below; minutes on a CPU

Small decoders learn Shakespeare's letters. `plain` ones have no skips: what a sublayer computes
replaces the stream. Residual ones add it, from three kinds of first weights. Before and after the
training, the Jacobian of the whole stack says how many directions of the input get through. Then
the loss is computed along lines through the trained weights, scaled unit by unit (Li et al., 2018).

A small trial asks when small first writes help: it crosses them with embeddings that enter as they
are, or multiplied by the root of the width.
"""

import argparse
import csv
import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import product
from statistics import mean

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.activations import learn
from experiments.shared.cards import environment
from experiments.shared.common import (
    Options,
    Row,
    merge_tables,
    read_options,
    rounded,
    rows_where,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from transformer_book.mistakes import mistake
from transformer_lib import Block, CausalLM, Recipe, modern_recipe

CHAPTER = "10_residuals"
WIDTH, LENGTH, BATCH = 64, 64, 32
DEPTHS = (2, 6, 16)  # blocks
KINDS = ("plain", "residual", "small", "zero")  # the last two at the greatest depth only
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
START_RATES, START_BATCH = (3e-3,), 8  # of the small trial
N_TEXTS, READ = 8, 16  # texts of so many letters, for the Jacobian
N_LINES, POINTS = 2, 41  # lines through each network, and points on each
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": f"""Decoders of {DEPTHS[0]} to {DEPTHS[-1]} blocks of width {WIDTH} with 4 heads, a
        LayerNorm before each sublayer and at the end, GELU, a learned table of positions, no
        dropout; Xavier's first weights; AdamW with warm-up and decay, gradients clipped at 1.
        `plain`: what a sublayer computes replaces the stream. `residual`: it is added. `small`:
        added, and at the start the matrices that write are divided by the root of their number.
        `zero`: added, and these matrices start at zero. For one seed all runs see the same
        batches. Every rate and seed is a row.""",
    "How to read the tables": f"""`results.csv`: `loss` is that of new text after the training, in
        nats per character, `loss_before` that before it; `training_loss` the mean of the last 20
        steps; `directions_before` and `directions_after` the effective number of directions,
        (Σs²)² / Σs⁴, of the {WIDTH} singular values of the Jacobian of all blocks: the last vector
        of a text of {READ} letters by all vectors that enter, the mean over {N_TEXTS} texts.
        `spectra.csv`: these singular values of the first text, relative to the largest.
        `lines.csv`: the loss on new text along random lines through the trained weights, from -1
        to 1, where 1 is a step as long, unit by unit, as the weights themselves. `starts.csv` is
        the small trial of `--starts`, made later and on a CPU, as `starts.json` says: {DEPTHS[-1]}
        blocks, {START_BATCH} windows a step instead of {BATCH}; `large` is 1 where the embeddings
        are multiplied by the root of the width, and `enters` the root mean square of what
        enters the first block.""",
    "Intended use": "Teaching: what the plus is for, and what a loss surface shows.",
    "Limits": """One small model, one text, a short training, no model larger than a million
        parameters. A line shows one direction of thousands.""",
}


def build(kind: str, depth: int, vocab_size: int, width: int, *, large: bool = False) -> CausalLM:
    """Make a decoder with new weights; those of all kinds are drawn alike."""
    config = small_config(
        vocab_size=vocab_size, max_len=LENGTH, d_model=width, n_layers=depth, d_ff=4 * width,
        position="learned", scale_embeddings=large, init="xavier",
    )  # fmt: skip
    model = CausalLM(config)
    scale = {"small": (2 * depth) ** -0.5, "zero": 0.0}.get(kind, 1.0)
    with torch.no_grad():
        for block in blocks(model):
            for name in ("attention.output.weight", "feed_forward.down.weight"):
                block.get_parameter(name).mul_(scale)
    return model


def blocks(model: CausalLM) -> list[Block]:
    """Return the blocks of a decoder."""
    return [part for part in model.modules() if isinstance(part, Block)]


def stretches(model: CausalLM, ids: Tensor) -> Tensor:
    """Return the singular values of the Jacobian of all blocks, ``(N, D)``, largest first.

    Args:
        model: a decoder.
        ids: N texts, ``(N, T)``.
    """
    model = deepcopy(model).double()
    with torch.no_grad():
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        enters = model.decoder.embedding(ids, places)  # (N, T, D)
    width = enters.shape[-1]
    h = enters.repeat_interleave(width, dim=0).requires_grad_()  # a copy for each feature
    x = h
    for block in blocks(model):
        x = block(x, causal=True)
    last = x[:, -1].unflatten(0, (-1, width))  # (N, D copies, D features)
    (rows,) = torch.autograd.grad(last.diagonal(dim1=1, dim2=2).sum(), h)
    values: Tensor = torch.linalg.svdvals(rows.flatten(1).unflatten(0, (-1, width)))
    return values


def directions(s: Tensor) -> float:
    """Return how many directions share the strength, the mean over ``(N, D)`` singular values."""
    return float((s.square().sum(dim=1) ** 2 / s.pow(4).sum(dim=1)).mean())


@torch.no_grad()
def loss_of(model: CausalLM, ids: Tensor, targets: Tensor) -> float:
    """Return the mean loss of a decoder on texts."""
    return float(F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()))


@torch.no_grad()
def line(model: CausalLM, ids: Tensor, targets: Tensor, seed: int, points: int) -> list[float]:
    """Compute the loss along one random line through the weights of a decoder.

    Args:
        model: the decoder; it is put back afterwards.
        ids: texts, ``(N, T)``.
        targets: their next letters.
        seed: of the direction.
        points: how many, from -1 to 1.

    Returns:
        The losses.
    """
    generator = torch.Generator().manual_seed(1_000 + seed)
    weights = [w for w in model.parameters() if w.dim() > 1]  # a row is a unit, or a token
    kept = [w.clone() for w in weights]
    moves = []
    for w in weights:
        drawn = torch.randn(w.shape, generator=generator).to(w.device)
        moves.append(drawn * w.norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True))
    found = []
    for place in torch.linspace(-1, 1, points).tolist():
        for w, old, move in zip(weights, kept, moves, strict=True):
            w.copy_(old + place * move)
        found.append(rounded(loss_of(model, ids, targets)))
    for w, old in zip(weights, kept, strict=True):
        w.copy_(old)
    return found


def known_text(options: Options) -> Tensor:
    """The text that is learned, as ids."""
    return texts(options.pick(None, 3_000))[0].to(options.device)


def new_text(options: Options) -> tuple[Tensor, Tensor, int]:
    """Cut windows of new text: ids and the letters that follow, ``(N, T)``; and count letters."""
    _, unknown, letters = texts(options.pick(None, 3_000))
    n = min(options.pick(64, 4), len(unknown) // (LENGTH + 1))
    new = unknown[: n * (LENGTH + 1)].view(n, LENGTH + 1).to(options.device)
    return new[:, :-1], new[:, 1:], len(letters)


def run_one(
    kind: str, depth: int, rate: float, seed: int, recipe: Recipe, options: Options
) -> dict[str, list[Row]]:
    """Train one decoder, and look at it before and after.

    Args:
        kind: one of ``KINDS``.
        depth: how many blocks.
        rate: the highest learning rate.
        seed: of weights and batches.
        recipe: how to train; its rate and seed are replaced.
        options: the experiment's.

    Returns:
        Rows of the three tables.
    """
    torch.set_float32_matmul_precision("highest")
    recipe = replace(recipe, learning_rate=rate, seed=seed)
    ids, targets, n_letters = new_text(options)
    torch.manual_seed(seed)
    model = build(kind, depth, n_letters, options.pick(WIDTH, 16)).to(options.device)
    run: Row = {"kind": kind, "depth": depth, "rate": rate, "seed": seed}
    spectra, lines = [], []
    with mistake("residual-forgotten") if kind == "plain" else nullcontext():
        row = run | {"loss_before": rounded(loss_of(model, ids, targets))}
        for stage in ("before", "after"):
            if stage == "after":
                losses = learn(model, known_text(options), LENGTH, BATCH, recipe)
                row["loss"] = rounded(loss_of(model, ids, targets))
                row["training_loss"] = rounded(mean(losses[-20:]))
            s = stretches(model, ids[:N_TEXTS, :READ])
            row[f"directions_{stage}"] = rounded(directions(s))
            shares = (s[0] / s[0, 0]).tolist()
            spectra.append(run | {"stage": stage})
            spectra[-1] |= {f"s{i}": rounded(share) for i, share in enumerate(shares, start=1)}
        for number in range(options.pick(N_LINES, 1)):
            found = line(model, ids[:16], targets[:16], number, options.pick(POINTS, 3))
            lines.append(run | {"line": number} | {f"x{k}": loss for k, loss in enumerate(found)})
    return {"results": [row], "spectra": spectra, "lines": lines}


def plan_of(options: Options) -> list[tuple[str, int, float, int]]:
    """List all runs; the deepest come first."""
    depths = options.pick(DEPTHS, (2,))
    return [
        (kind, depth, rate, seed)
        for depth in reversed(depths)
        for kind, rate, seed in product(KINDS, options.pick(RATES, RATES[:1]), options.seeds(3))
        if depth == depths[-1] or kind in ("plain", "residual")
    ]


def try_starts(rates: Sequence[float], recipe: Recipe, options: Options) -> None:
    """Make the runs of the small trial one after the other, and write each as it is made.

    What is in `starts.csv` already is not made again, so the trial can be stopped and taken up.

    Args:
        rates: the highest learning rates.
        recipe: how to train; its rate and seed are replaced.
        options: the experiment's.
    """
    path, depth = options.folder / "starts.csv", options.pick(DEPTHS[-1], 2)
    ids, targets, n_letters = new_text(options)
    cases = product(options.seeds(2), rates, (0, 1), ("residual", "small"))
    for seed, rate, large, kind in cases:
        run: Row = {"kind": kind, "large": large, "rate": rate, "seed": seed}
        is_new = not path.exists()
        made = [] if is_new else list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        if any(all(row[name] == str(value) for name, value in run.items()) for row in made):
            continue
        torch.manual_seed(seed)
        width = options.pick(WIDTH, 16)
        model = build(kind, depth, n_letters, width, large=bool(large)).to(options.device)
        with torch.no_grad():
            places = torch.arange(ids.shape[1], device=ids.device)[None]
            enters = model.decoder.embedding(ids, places).square().mean().sqrt().item()
        its_recipe = replace(recipe, learning_rate=rate, seed=seed)
        losses = learn(model, known_text(options), LENGTH, START_BATCH, its_recipe)
        run |= {"enters": rounded(enters), "loss": rounded(loss_of(model, ids, targets))}
        run |= {"training_loss": rounded(mean(losses[-20:]))}
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(run), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(run)
    card = {"experiment": options.name, "arguments": options.arguments, "recipe": asdict(recipe)}
    card |= {"environment": environment(options.device)}
    content = json.dumps(card, indent=2) + "\n"
    (options.folder / "starts.json").write_text(content, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write three tables."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--starts", action="store_true", help="only the small trial; starts.csv")
    options = read_options("skips", __doc__, arguments, own)
    steps = options.n_steps(400)
    recipe = modern_recipe(steps, RATES[1], warmup=steps // 10)
    if options.given.starts:
        try_starts(options.pick(START_RATES, START_RATES[:1]), recipe, options)
        return
    plan = [(*run, recipe, options) for run in plan_of(options)]
    tables = merge_tables(side_by_side(run_one, plan, options))
    best: dict[tuple[str, int], float] = {}
    for row in tables["results"]:
        key = (row["kind"], row["depth"])
        same = rows_where(tables["results"], kind=key[0], depth=key[1], rate=row["rate"])
        loss = mean(each["loss"] if math.isfinite(each["loss"]) else 1e9 for each in same)
        best[key] = min(loss, best.get(key, math.inf))
    metrics = {f"loss ({kind}, {depth} blocks)": loss for (kind, depth), loss in best.items()}
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, tables=tables,
        more={"rates": RATES, "n_seeds": len(options.seeds(3))},
    )  # fmt: skip


if __name__ == "__main__":
    main()
