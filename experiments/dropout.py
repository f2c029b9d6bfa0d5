"""When does dropout help, and in which places? One small language model that reads for many epochs.

    python -m experiments.dropout

A small decoder learns Shakespeare's letters from the first 20,000 letters of the training text,
from 100,000, or from all of it, until its loss on a play that it never saw has turned (on all of
the text it does not turn). The beginning of that play chooses the best moment, its end judges the
choice. With 100,000 letters dropout is also put in one place at a time. Every run has a process of
its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import mean

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from experiments.shared.common import (
    Row,
    constant_adam,
    read_options,
    rounded,
    rows_where,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from transformer_lib import (
    Block,
    CausalLM,
    Metrics,
    MultiHeadAttention,
    Recipe,
    TextWindows,
    evaluate,
    train,
)

CHAPTER = "10c_dropout"
DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)
STEPS = {100_000: 4_000, 20_000: 1_000, 0: 2_500}  # letters to learn from (0: all), and updates
FEW = 100_000  # letters, where places are compared
EVERYWHERE = "as in 2017"
PLACES = ("embedding", "attention weights", "attention writes", "feed-forward writes", "stream")
PLACE_STEPS, PLACE_RATE = 2_500, 0.3
N_JUDGED = 20_000  # letters that a loss is the mean of
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": f"""A decoder of two pre-norm blocks of width 128 with 4 heads, RoPE and GELU. In
        `results.csv` dropout acts on the embeddings and on what each sublayer writes, in places and
        at rates as in the 2017 model; attention weights are not dropped, and nothing decays.
        Windows of 64 letters, 64 in a batch, Adam at a constant rate. With {FEW:,} letters and
        20,000 the updates are enough for the loss on new text to turn at every rate up to 0.5;
        on the whole text they are not. In `places.csv` the rate is {PLACE_RATE} in one place only;
        `stream` drops what enters each block, on the stream itself.""",
    "How to read the tables": f"""`letters` is how much text there was to learn from; `passes` how
        often an average letter of it had been a target by this step. `train_loss` is the loss on
        the first {N_JUDGED:,} letters of that text, `loss` on the first {N_JUDGED:,} of a play that
        was held back, `test_loss` on the last {N_JUDGED:,} of it; all without dropout. Whoever
        stops at the lowest `loss` reads what that is worth in `test_loss`.""",
    "Intended use": "Teaching: dropout with little and with much data.",
    "Limits": """One small model, one text, one recipe, one learning rate, three seeds. Choosing and
        judging letters come from one play. All of the text is still little beside what large models
        read, and here, too, every letter comes several times.""",
}


def drop_at(model: CausalLM, place: str, rate: float) -> None:
    """Put dropout in one place of a model that has none.

    Args:
        model: the model.
        place: one of ``PLACES``.
        rate: the probability with which a value is dropped in training.
    """

    def after(module: nn.Module, _: object, out: Tensor) -> Tensor:
        return F.dropout(out, rate, module.training)

    def before(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (F.dropout(given[0], rate, module.training), *given[1:])

    if place == "embedding":
        model.decoder.embedding.register_forward_hook(after)
    for block in model.decoder.stack.blocks:
        assert isinstance(block, Block)
        assert isinstance(block.attention, MultiHeadAttention)
        if place == "attention weights":
            block.attention.dropout = rate
        elif place == "attention writes":
            block.attention.register_forward_hook(after)
        elif place == "feed-forward writes":
            block.feed_forward.register_forward_hook(after)
        elif place == "stream":
            block.register_forward_pre_hook(before)


def run_one(
    place: str,
    n_letters: int,
    dropout: float,
    recipe: Recipe,
    d_model: int,
    n_judged: int,
    n_characters: int | None,
    device: str,
) -> list[Row]:
    """Train one decoder, and judge it on the way.

    Args:
        place: where dropout acts: one of ``PLACES``, or ``EVERYWHERE``.
        n_letters: how many letters to learn from; all if 0.
        dropout: the rate.
        recipe: how to train; its seed is that of weights and batches, too.
        d_model: the width.
        n_judged: how many letters a loss is the mean of.
        n_characters: how much of each text to read; all of it if ``None``.
        device: where to train.

    Returns:
        Rows of ``results.csv`` or of ``places.csv``.
    """
    known, unknown, letters = texts(n_characters)
    known = known[: n_letters or None]
    length, batch_size = 64, 64
    batches = TextWindows(known, length, batch_size, seed=recipe.seed)
    judged = (known[: n_judged + 1], unknown[: n_judged + 1], unknown[-n_judged - 1 :])
    seen, new, test = (TextWindows(part, length, 320) for part in judged)
    torch.manual_seed(recipe.seed)
    sizes = {"vocab_size": len(letters), "max_len": length, "d_model": d_model}
    config = small_config(**sizes, position="rope", init="gpt2")
    model = CausalLM(replace(config, dropout=dropout * (place == EVERYWHERE))).to(device)
    drop_at(model, place, dropout)
    rows: list[Row] = []

    def look(row: Metrics) -> None:
        rows.append(
            {
                "place": place,
                "letters": len(known),
                "dropout": dropout,
                "seed": recipe.seed,
                "step": row["step"],
                "passes": rounded(row["step"] * length * batch_size / len(known)),
                "train_loss": rounded(evaluate(model, seen)["loss"]),
                "loss": rounded(evaluate(model, new)["loss"]),
                "test_loss": rounded(evaluate(model, test)["loss"]),
            }
        )

    train(model, batches, recipe, device=device, progress=False, on_step=look)
    return rows


def best(rows: Sequence[Row], column: str = "test_loss") -> float:
    """Return the mean over seeds of a column where each run's ``loss`` was lowest."""
    seeds = sorted({row["seed"] for row in rows})
    runs = ([row for row in rows if row["seed"] == seed] for seed in seeds)
    return float(mean(min(run, key=lambda row: row["loss"])[column] for run in runs))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write two tables."""
    options = read_options("dropout", __doc__, arguments)
    amounts, rates = options.pick((STEPS, DROPOUTS), ({2_000: 4}, (0.0, 0.3)))
    sizes = options.pick((128, N_JUDGED, None), (16, 640, 4_000))
    seeds = options.seeds(3)

    def recipe_of(n_updates: int, seed: int) -> Recipe:
        steps = options.n_steps(n_updates)
        every = max(min(steps // 20, 100), 1)
        return constant_adam(steps, 1e-3, warmup=min(40, steps // 4), log_every=every, seed=seed)

    plan = [
        (EVERYWHERE, n, rate, recipe_of(n_updates, seed), *sizes, options.device)
        for (n, n_updates), rate, seed in product(amounts.items(), rates, seeds)
        if n or rate <= 0.5  # where much text is, a high rate only learns more slowly
    ]
    few = options.pick(FEW, 2_000)
    plan += [
        (place, few, PLACE_RATE, recipe_of(PLACE_STEPS, seed), *sizes, options.device)
        for place, seed in product(PLACES, seeds)
    ]
    found = side_by_side(run_one, plan, options)
    rows = [row for run in found for row in run]
    tables = {
        "results": [row for row in rows if row["place"] == EVERYWHERE],
        "places": [row for row in rows if row["place"] != EVERYWHERE],
    }
    arms = dict.fromkeys((row["place"], row["letters"], row["dropout"]) for row in rows)
    metrics = {
        f"best test loss ({place}, {letters:,} letters, dropout {rate})": best(
            rows_where(rows, place=place, letters=letters, dropout=rate)
        )
        for place, letters, rate in arms
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe_of(STEPS[FEW], 0), tables=tables
    )


if __name__ == "__main__":
    main()
