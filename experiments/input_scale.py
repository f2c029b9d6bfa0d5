"""Does the factor root of D at the input matter? Two starts of a table, with it and without it.

    python -m experiments.input_scale

A small decoder with sinusoidal positions and a tied table learns Shakespeare's letters. The table
starts with standard deviation 1/sqrt(D), as in the code of 2017, or 1, as PyTorch draws it; its
rows are multiplied by sqrt(D) or not. Everything else is the same, and every model is trained with
several learning rates and seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from experiments.shared.common import (
    Row,
    constant_adam,
    mean_of,
    read_options,
    rounded_row,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from transformer_lib import CausalLM, Recipe, TextWindows, evaluate, train

CHAPTER = "02b_embeddings"
STARTS = ("small", "unit")
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """A decoder of two pre-norm blocks of width 64 with sinusoidal positions, GELU, no
        dropout, whose table is also its output layer. `start` is how the table is drawn: `small`
        with standard deviation 1/sqrt(D), `unit` with 1. `factor` says whether rows are multiplied
        by sqrt(D) at the input. The same random numbers are drawn in all four cases. Adam with a
        constant rate after a short warm-up.""",
    "How to read the table": """`first` is the loss on new text before training, `loss` after it;
        one row for each start, factor, learning rate and seed.""",
    "Intended use": "Teaching: which start the factor belongs to.",
    "Limits": """A small model and a short training. With more steps the tables change their length
        and the four may come closer.""",
}


def build(start: str, factor: bool, d_model: int, length: int, vocab: int) -> CausalLM:
    """Make the decoder with new weights.

    Args:
        start: one of ``STARTS``.
        factor: whether rows are multiplied by the root of D.
        d_model: the width D.
        length: the longest text.
        vocab: how many different characters there are.

    Returns:
        The model. The same random numbers were drawn for every start.
    """
    sizes: dict[str, Any] = {"vocab_size": vocab, "max_len": length, "d_model": d_model}
    model = CausalLM(small_config(**sizes, position="sinusoidal", scale_embeddings=factor))
    if start == "unit":
        model.decoder.embedding.tokens.weight.data *= math.sqrt(d_model)
    return model


def run_one(
    start: str, factor: bool, recipe: Recipe, sizes: tuple[int, int, int | None], device: str
) -> Row:
    """Train one decoder.

    Args:
        start: one of ``STARTS``.
        factor: whether rows are multiplied by the root of D.
        recipe: how to train; its seed is that of weights and batches, too.
        sizes: the width, how many characters a window has, and how much of the text to read.
        device: where to train.

    Returns:
        A row of ``results.csv``.
    """
    d_model, length, n_characters = sizes
    known, unknown, letters = texts(n_characters)
    windows = TextWindows(known, length, batch_size=32, seed=recipe.seed)
    new = TextWindows(unknown[: 512 * length + 1], length, batch_size=128)
    torch.manual_seed(recipe.seed)
    model = build(start, factor, d_model, length, len(letters)).to(device)
    run: Row = {"start": start, "factor": int(factor), "rate": recipe.learning_rate}
    run |= {"seed": recipe.seed, "first": evaluate(model, new)["loss"]}
    train(model, windows, recipe, device=device, progress=False)
    return rounded_row(run | {"loss": evaluate(model, new)["loss"]})


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write one table."""
    options = read_options("input_scale", __doc__, arguments)
    recipe = constant_adam(options.n_steps(400))
    sizes = (options.pick(64, 16), options.pick(32, 8), options.pick(None, 6_000))
    rates, seeds = options.pick((3e-4, 1e-3, 3e-3, 1e-2), (3e-3,)), options.seeds(3)
    plan = [
        (start, factor, replace(recipe, learning_rate=rate, seed=seed), sizes, options.device)
        for rate, seed, start, factor in product(rates, seeds, STARTS, (True, False))
    ]
    rows = side_by_side(run_one, plan, options)
    best = {
        f"loss_{start}_{'with' if factor else 'without'}_factor": min(
            mean_of(rows, "loss", start=start, factor=factor, rate=rate) for rate in rates
        )
        for start, factor in product(STARTS, (1, 0))
    }
    write_results(
        options, "shakespeare.txt", ABOUT, best, recipe, tables={"results": rows},
        more={"d_model": sizes[0], "length": sizes[1], "n_seeds": len(seeds)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
