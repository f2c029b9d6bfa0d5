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

import torch

from experiments.shared.common import (
    Row,
    constant_adam,
    mean_of,
    read_options,
    rounded,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from transformer_lib import CausalLM, Metrics, Recipe, TextWindows, evaluate, train

CHAPTER = "10c_dropout"
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
    known, unknown, letters = texts(n_characters)
    known = known[: n_letters or None]
    length, batch_size = 64, 64
    batches = TextWindows(known, length, batch_size, seed=recipe.seed)
    seen, new = (TextWindows(part[: n_judged + 1], length, 320) for part in (known, unknown))
    torch.manual_seed(recipe.seed)
    sizes = {"vocab_size": len(letters), "max_len": length, "d_model": d_model}
    config = small_config(**sizes, position="rope", dropout=dropout, init="gpt2")
    model = CausalLM(config).to(device)
    rows: list[Row] = []

    def look(row: Metrics) -> None:
        rows.append(
            {
                "letters": len(known),
                "dropout": dropout,
                "seed": recipe.seed,
                "step": row["step"],
                "passes": rounded(row["step"] * length * batch_size / len(known)),
                "train_loss": rounded(evaluate(model, seen)["loss"]),
                "loss": rounded(evaluate(model, new)["loss"]),
            }
        )

    train(model, batches, recipe, device=device, progress=False, on_step=look)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write one table."""
    options = read_options("dropout", __doc__, arguments)
    steps = options.n_steps(800)
    recipe = constant_adam(steps, 1e-3, log_every=max(steps // 16, 1))
    amounts, rates = options.pick((LETTERS, DROPOUTS), ((2_000,), (0.0, 0.3)))
    sizes = options.pick((128, N_JUDGED, None), (16, 640, 4_000))
    plan = [
        (n, rate, replace(recipe, seed=seed), *sizes, options.device)
        for n, rate, seed in product(amounts, rates, options.seeds(3))
    ]
    rows = [row for found in side_by_side(run_one, plan, options) for row in found]
    metrics = {
        f"loss ({letters:,} letters, dropout {rate})": mean_of(
            rows, "loss", letters=letters, dropout=rate, step=steps
        )
        for letters, rate in dict.fromkeys((row["letters"], row["dropout"]) for row in rows)
    }
    write_results(options, "shakespeare.txt", ABOUT, metrics, recipe, tables={"results": rows})


if __name__ == "__main__":
    main()
