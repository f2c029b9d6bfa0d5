"""When does dropout help? One language model, four rates, little text, more, and all of it.

    python -m experiments.dropout

A small decoder learns Shakespeare's letters from the first 20,000 letters of the training text,
from 100,000, or from all of it, with the same number of updates. On the way it is judged by its
loss on letters it learned from and on a play that it never saw, both without dropout. Every run
has a process of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import mean

import torch

from experiments.common import (
    Row,
    constant_adam,
    read_options,
    side_by_side,
    texts,
    write_csv,
    write_results,
)
from transformer_lib.config import TransformerConfig
from transformer_lib.data import TextWindows
from transformer_lib.models import CausalLM
from transformer_lib.recipes import Recipe
from transformer_lib.training import evaluate, train

DROPOUTS = (0.0, 0.1, 0.2, 0.3)
LETTERS = (20_000, 100_000, 0)  # 0: the whole text
N_JUDGED = 20_000  # letters that a loss is the mean of
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """A decoder of two pre-norm blocks of width 128 with 4 heads, RoPE and GELU. Dropout
        acts on the embeddings and on what each sublayer says, in places and at rates as in the
        2017 model; attention weights are not dropped, and nothing decays. Windows of 64 letters,
        64 in a batch, Adam at a constant rate, the same number of updates for all.""",
    "How to read the table": f"""`letters` is how much text there was to learn from; `passes` how
        often an average letter of it had been a target by this step. `train_loss` is the loss on
        the first {N_JUDGED:,} letters of that text, `loss` on as many of a play that was held
        back; both without dropout.""",
    "Intended use": "Teaching: dropout with little and with much data.",
    "Limits": """One small model, one text, one recipe, three seeds. All of it is still little
        beside what large models read, and here, too, every letter comes several times.""",
}


def run_one(
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
        n_letters: how many letters to learn from; all if 0.
        dropout: the rate.
        recipe: how to train; its seed is that of weights and batches, too.
        d_model: the width.
        n_judged: how many letters a loss is the mean of.
        n_characters: how much of each text to read; all of it if ``None``.
        device: where to train.

    Returns:
        Rows of ``results.csv``.
    """
    torch.set_float32_matmul_precision("high")
    known, unknown, letters = texts(n_characters)
    vocab = len(letters)
    known = known[: n_letters or None]
    length, batch_size = 64, 64
    batches = TextWindows(known, length, batch_size, seed=recipe.seed)
    seen, new = (TextWindows(part[: n_judged + 1], length, 320) for part in (known, unknown))
    torch.manual_seed(recipe.seed)
    model = CausalLM(
        TransformerConfig(
            vocab_size=vocab,
            max_len=length,
            d_model=d_model,
            n_heads=4,
            n_layers=2,
            position="rope",
            norm_position="pre",
            activation="gelu",
            dropout=dropout,
            init="gpt2",
        )
    ).to(device)
    rows: list[Row] = []

    def look(row: Row) -> None:
        rows.append(
            {
                "letters": len(known),
                "dropout": dropout,
                "seed": recipe.seed,
                "step": row["step"],
                "passes": _rounded(row["step"] * length * batch_size / len(known)),
                "train_loss": _rounded(evaluate(model, seen)["loss"]),
                "loss": _rounded(evaluate(model, new)["loss"]),
            }
        )

    train(model, batches, recipe, device=device, progress=False, on_step=look)
    return rows


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write one table."""
    options = read_options("dropout", __doc__ or "", arguments)
    steps = options.n_steps(800)
    recipe = constant_adam(steps, 1e-3, log_every=max(steps // 16, 1))
    seeds = range(options.seed, options.seed + options.pick(3, 1))
    choices = product(options.pick(LETTERS, (2_000,)), options.pick(DROPOUTS, (0.0, 0.3)), seeds)
    sizes = options.pick((128, N_JUDGED, None), (16, 640, 4_000))
    plan = [
        (n, rate, replace(recipe, seed=seed), *sizes, options.device) for n, rate, seed in choices
    ]
    rows = [row for found in side_by_side(run_one, plan, options) for row in found]
    write_csv(options.folder / "results.csv", rows)
    last = [row for row in rows if row["step"] == steps]
    pairs = dict.fromkeys((row["letters"], row["dropout"]) for row in rows)
    metrics = {
        f"loss ({letters:,} letters, dropout {rate})": mean(
            row["loss"] for row in last if (row["letters"], row["dropout"]) == (letters, rate)
        )
        for letters, rate in pairs
    }
    write_results(options, data="shakespeare.txt", about=ABOUT, metrics=metrics, recipe=recipe)


if __name__ == "__main__":
    main()
