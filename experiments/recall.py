"""How far back can a model remember? Three recurrent networks and a Transformer.

    python -m experiments.recall

A symbol, then ``distance`` random fillers; at the end the symbol is asked for. Each network has
about 25,000 parameters and sees the same batches the same number of times. The recurrent ones take
one step of Python for each position, which a GPU does not make faster, so every run has a process
and a CPU core of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import nn

from experiments.common import (
    Row,
    constant_adam,
    mean_of,
    n_parameters,
    read_options,
    side_by_side,
    small_config,
    write_results,
)
from transformer_book.recurrent import Kind, RecurrentClassifier
from transformer_book.tasks import FIRST_SYMBOL, Pair, answer_batch, recall_task
from transformer_lib.data import Batch, Batches
from transformer_lib.models import CausalLM
from transformer_lib.recipes import Recipe
from transformer_lib.run_log import Metrics
from transformer_lib.training import train

CHAPTER = "01_recurrence"
N_SYMBOLS = 8
VOCABULARY = FIRST_SYMBOL + 2 * N_SYMBOLS
WIDTHS: dict[Kind, int] = {"rnn": 104, "gru": 60, "lstm": 52}  # of the recurrent networks
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


def recurrent(kind: Kind) -> RecurrentClassifier:
    """Make one of the recurrent networks with new weights."""
    return RecurrentClassifier(kind, VOCABULARY, WIDTHS[kind], n_classes=VOCABULARY)


def transformer() -> CausalLM:
    """Make a Transformer of the same size with new weights."""
    sizes = {"vocab_size": VOCABULARY, "max_len": 1 + max(DISTANCES), "d_model": 32}
    return CausalLM(small_config(**sizes, n_heads=2, activation="relu"))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    **{kind: partial(recurrent, kind) for kind in WIDTHS},
    "transformer": transformer,
}


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


def sequences(distance: int, recipe: Recipe, n_tests: int) -> tuple[list[Pair], list[Pair]]:
    """Draw sequences to learn from, and new ones, by the seed of a recipe."""
    n = BATCH * min(recipe.steps, 500)
    pairs = recall_task(n, N_SYMBOLS, distance, seed=2 * recipe.seed)
    return pairs, recall_task(n_tests, N_SYMBOLS, distance, seed=2 * recipe.seed + 1)


def learn(
    model: nn.Module, pairs: Sequence[Pair], new: Sequence[Pair], recipe: Recipe
) -> tuple[float, int | str]:
    """Train a network to recall.

    Args:
        model: the network.
        pairs: sequences to learn from.
        new: others, with which it is measured.
        recipe: how to train; its seed is that of the order, too.

    Returns:
        The last training loss, and after how many steps the network knew nearly all of the new
        sequences; nothing (empty) if it never did.
    """
    arrived: list[int] = []

    def look(row: Metrics) -> None:
        if not arrived and accuracy(model, new[:200]) >= ENOUGH:
            arrived.append(row["step"])

    collate = answer_batch if isinstance(model, CausalLM) else class_batch
    batches = Batches(pairs, collate, batch_size=BATCH, seed=recipe.seed)
    rows = train(model, batches, recipe, device="cpu", progress=False, on_step=look)
    return rows[-1]["loss"], arrived[0] if arrived else ""


def run_one(kind: str, distance: int, recipe: Recipe, n_tests: int) -> Row:
    """Train one network at one distance.

    Args:
        kind: which network.
        distance: how many fillers follow the symbol.
        recipe: how to train; its seed is that of weights, data and their order, too.
        n_tests: how many new sequences it is measured with at the end.

    Returns:
        A row of ``results.csv``. ``steps_to_99`` is empty if the network never got there.
    """
    torch.manual_seed(recipe.seed)
    model = NETWORKS[kind]()
    pairs, new = sequences(distance, recipe, n_tests)
    loss, steps = learn(model, pairs, new, recipe)
    row: Row = {"model": kind, "distance": distance, "seed": recipe.seed}
    row |= {"accuracy": accuracy(model, new), "steps_to_99": steps, "loss": loss}
    return row | {"parameters": n_parameters(model)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write one table."""
    options = read_options("recall", __doc__, arguments)
    recipe = constant_adam(options.n_steps(1_000))
    distances, seeds = options.pick(DISTANCES, (2,)), options.seeds(3)
    n_tests = options.pick(2_000, 20)
    order = list(NETWORKS)
    plan = [  # the longest ones start first
        (kind, distance, replace(recipe, seed=seed), n_tests)
        for distance, kind, seed in product(reversed(distances), reversed(order), seeds)
    ]
    rows = side_by_side(run_one, plan, options)
    rows.sort(key=lambda row: (order.index(row["model"]), row["distance"], row["seed"]))
    far = max(distances)
    write_results(
        replace(options, device="cpu"),
        data=f"transformer_book.tasks.recall_task, {N_SYMBOLS} symbols, distances {distances}",
        about=ABOUT,
        metrics={
            f"{kind}_accuracy_at_{far}": mean_of(rows, "accuracy", model=kind, distance=far)
            for kind in order
        },
        recipe=recipe,
        tables={"results": rows},
        more={
            "parameters": {row["model"]: row["parameters"] for row in rows},
            "n_seeds": len(seeds),
        },
    )


if __name__ == "__main__":
    main()
