"""How far back can a model remember? Three recurrent networks and a Transformer.

    python -m experiments.recall

A symbol, then ``distance`` random fillers; at the end the symbol is asked for. Each network has
about 25,000 parameters and sees the same batches the same number of times. The recurrent ones take
one step of Python for each position, which a GPU does not make faster, so every run has a process
and a CPU core of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import mean

import torch
from torch import nn

from experiments.common import (
    Options,
    Row,
    constant_adam,
    read_options,
    side_by_side,
    write_csv,
    write_results,
)
from transformer_book.recurrent import RecurrentClassifier
from transformer_book.tasks import FIRST_SYMBOL, Pair, answer_batch, recall_task
from transformer_lib.config import TransformerConfig
from transformer_lib.data import Batch, Batches
from transformer_lib.models import CausalLM
from transformer_lib.recipes import Recipe
from transformer_lib.training import train

N_SYMBOLS = 8
VOCABULARY = FIRST_SYMBOL + 2 * N_SYMBOLS
WIDTHS = {"rnn": 104, "gru": 60, "lstm": 52, "transformer": 32}  # about 25,000 parameters each
BATCH = 32
DISTANCES = (5, 10, 20, 50, 100, 200)
ENOUGH = 0.99
ABOUT = {
    "Task": f"""One of {N_SYMBOLS} symbols, then `distance` random fillers in; the symbol out.
        Guessing gets one in {N_SYMBOLS} right.""",
    "Choices": """An RNN, a GRU, an LSTM (one layer each, which answer from their last state) and a
        Transformer decoder (two layers, which answers at the last position), all with
        about 25,000 parameters. The same batches, the same number of updates, Adam with the same
        constant learning rate, gradients clipped to length 1.""",
    "Intended use": "Teaching: why a direct path to every position matters.",
    "Limits": """One task, one size, one learning rate and one number of updates for all, and the
        usual first weights. What a network does not learn here it may learn otherwise: an LSTM, for
        one, whose forget gate starts open rather than half closed.""",
}


def build(kind: str) -> nn.Module:
    """Make one of the four networks with new weights."""
    if kind != "transformer":
        return RecurrentClassifier(kind, VOCABULARY, WIDTHS[kind], n_classes=VOCABULARY)  # type: ignore[arg-type]
    config = TransformerConfig(
        vocab_size=VOCABULARY,
        max_len=1 + max(DISTANCES),
        d_model=WIDTHS[kind],
        n_heads=2,
        n_layers=2,
        norm_position="pre",
        dropout=0.0,
    )
    return CausalLM(config)


def class_batch(pairs: Sequence[Pair]) -> Batch:
    """Make a batch of equally long sequences with one class each, for a recurrent network."""
    ids, classes = (torch.tensor(side) for side in zip(*pairs, strict=True))
    return {"ids": ids, "targets": classes[:, 0]}


@torch.no_grad()
def accuracy(model: nn.Module, pairs: Sequence[Pair]) -> float:
    """Return which part of the symbols a network remembers."""
    batch = class_batch(pairs)
    logits = model(batch["ids"])
    logits = logits if logits.ndim == 2 else logits[:, -1]  # a decoder answers everywhere
    return float((logits.argmax(dim=-1) == batch["targets"]).double().mean())


def run_one(kind: str, distance: int, seed: int, recipe: Recipe, n_tests: int) -> Row:
    """Train one network at one distance.

    Args:
        kind: which network.
        distance: how many fillers follow the symbol.
        seed: of weights, data and their order.
        recipe: how to train.
        n_tests: how many new sequences it is measured with at the end.

    Returns:
        A row of ``results.csv``. ``steps_to_99`` is empty if the network never got there.
    """
    torch.manual_seed(seed)
    model = build(kind)
    pairs = recall_task(BATCH * min(recipe.steps, 500), N_SYMBOLS, distance, seed=2 * seed)
    new = recall_task(n_tests, N_SYMBOLS, distance, seed=2 * seed + 1)
    collate = answer_batch if kind == "transformer" else class_batch
    arrived: list[int] = []

    def look(row: Row) -> None:
        if not arrived and accuracy(model, new[:200]) >= ENOUGH:
            arrived.append(row["step"])

    batches = Batches(pairs, collate, batch_size=BATCH, seed=seed)
    rows = train(model, batches, recipe, device="cpu", progress=False, on_step=look)
    return {
        "model": kind,
        "distance": distance,
        "seed": seed,
        "accuracy": accuracy(model, new),
        "steps_to_99": arrived[0] if arrived else "",
        "loss": rows[-1]["loss"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def run_all(
    options: Options, recipe: Recipe, distances: Sequence[int], n_seeds: int, n_tests: int
) -> list[Row]:
    """Make all runs side by side, each with one thread; the longest ones start first."""
    seeds = range(options.seed, options.seed + n_seeds)
    plan = [
        (kind, distance, seed, replace(recipe, seed=seed), n_tests)
        for distance, kind, seed in product(
            sorted(distances, reverse=True), reversed(WIDTHS), seeds
        )
    ]
    rows = side_by_side(run_one, plan, options)
    order = list(WIDTHS)
    return sorted(rows, key=lambda row: (order.index(row["model"]), row["distance"], row["seed"]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write one table."""
    options = read_options("recall", __doc__ or "", arguments)
    recipe = constant_adam(options.n_steps(1_000))
    distances, n_seeds = options.pick(DISTANCES, (2,)), options.pick(3, 1)
    rows = run_all(options, recipe, distances, n_seeds, n_tests=options.pick(2_000, 20))
    write_csv(options.folder / "results.csv", rows)
    far = max(distances)
    metrics = {
        f"{kind}_accuracy_at_{far}": mean(
            row["accuracy"] for row in rows if (row["model"], row["distance"]) == (kind, far)
        )
        for kind in WIDTHS
    }
    sizes = {row["model"]: row["parameters"] for row in rows}
    write_results(
        replace(options, device="cpu"),
        data=f"transformer_book.tasks.recall_task, {N_SYMBOLS} symbols, distances {distances}",
        about=ABOUT,
        metrics=metrics,
        recipe=recipe,
        more={"parameters": sizes, "n_seeds": n_seeds},
    )


if __name__ == "__main__":
    main()
