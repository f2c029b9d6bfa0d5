"""Muon or AdamW? Each at its own best learning rate, with three ways to end a training.

    python -m experiments.optimizers --device cpu

A small language model learns letters of the plays with AdamW, and with Muon for the matrices of
its blocks. The rate falls from the start along a cosine, or stays until the last fifth of the
steps, or stays to the end; of the last, the average of the weights is judged, too.
"""

from collections.abc import Sequence
from itertools import product
from typing import Literal

import torch

from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    merge_tables,
    modern_config,
    read_options,
    rounded,
    rows_where,
    side_by_side,
    texts,
    write_results,
)
from transformer_lib import CausalLM, Metrics, Recipe, TextWindows, evaluate, train

CHAPTER = "14b_recipes"
OPTIMIZERS: tuple[Literal["adamw", "muon"], ...] = ("adamw", "muon")
SCHEDULES: tuple[Literal["cosine", "wsd", "constant"], ...] = ("cosine", "wsd", "constant")
AVERAGED = "constant, averaged"
RATES = (0.004, 0.008, 0.016, 0.032, 0.064)
BETA = 0.95  # of the average: about the last twenty steps
STEPS, LENGTH, BATCH = 200, 32, 16
N_JUDGED = 20_000
ABOUT = {
    "Task": f"""Letters of the plays in, the probabilities of each next one out. The loss is the
        mean over the first {N_JUDGED:,} letters of a play that was held back.""",
    "Choices": f"""Two pre-norm blocks, width 48, four heads, RoPE, RMSNorm, SwiGLU, no dropout;
        {BATCH} windows of {LENGTH} letters a step, warm-up over the first tenth, gradients clipped
        at 1, decay 0.1. With `muon`, the matrices of the blocks have Muon (momentum 0.95), all
        else AdamW; one rate serves both. `cosine` and `wsd` end at a tenth of the rate; `wsd`
        stays at the full rate until the last fifth. The average is exponential, with beta {BETA};
        it is that of the very run with the constant rate. Every arm has all five rates, two seeds
        each; for one seed all arms start with the same weights and see the same windows.""",
    "How to read the tables": """`results.csv`: the `loss` on new text after the last step.
        `curves.csv`: the training losses of single batches on the way, which are noisy. An arm is
        judged at the rate whose mean loss over the seeds is lowest; that the best rates are not
        the ends of the grid is tested.""",
    "Intended use": "Teaching: how optimizers are compared, and what a decay and an average do.",
    "Limits": """A tiny model in the first steps of a training: what Muon gains here is more than
        what is known of long trainings of large models. Two seeds show how large the noise is, and
        not more. Losses are compared after equal numbers of steps, not after equal times: Muon's
        steps take more work. At Muon's best rate, which is higher, the embeddings and the output
        layer have AdamW with that rate, too. That is not all of the gain: at AdamW's best rate,
        0.008, where these have the same rate in both arms, Muon's loss is lower by 0.22 to 0.26 in
        all three schedules. Momentum, betas, decays and beta are the usual ones, for none of the
        arms were they searched.""",
}


def run_one(recipe: Recipe, options: Options) -> dict[str, list[Row]]:
    """Train one model; return its rows of both tables.

    Args:
        recipe: how; its seed is that of weights and windows, too.
        options: the experiment's.
    """
    known, unknown, letters = texts(options.pick(None, 4_000))
    judged = TextWindows(unknown[: options.pick(N_JUDGED, 640) + 1], LENGTH, 128)
    torch.manual_seed(recipe.seed)
    width = options.pick(48, 16)
    config = modern_config(
        vocab_size=len(letters), max_len=LENGTH, d_model=width, n_heads=4, n_layers=2,
        d_ff=width // 3 * 8, dropout=0.0,
    )  # fmt: skip
    model = CausalLM(config).to(options.device)
    losses: dict[str, float] = {}

    def look(row: Metrics) -> None:
        if row["step"] == recipe.steps:  # with an average, it takes the model's place only later
            losses[recipe.schedule] = evaluate(model, judged)["loss"]

    windows = TextWindows(known, LENGTH, BATCH, seed=recipe.seed)
    steps = train(model, windows, recipe, device=options.device, progress=False, on_step=look)
    if recipe.average is not None:
        losses[AVERAGED] = evaluate(model, judged)["loss"]
    arm = {"optimizer": recipe.optimizer, "schedule": recipe.schedule}
    run = {"rate": recipe.learning_rate, "seed": recipe.seed}
    return {
        "results": [
            arm | {"schedule": name} | run | {"loss": rounded(loss)}
            for name, loss in losses.items()
        ],
        "curves": [
            arm | run | {"step": row["step"], "loss": rounded(row["loss"])} for row in steps
        ],
    }


def best_rate(rows: Sequence[Row], **arm: object) -> float:
    """Return the rate whose mean loss is lowest."""
    rates = sorted({float(row["rate"]) for row in rows_where(rows, **arm)})
    return min(rates, key=lambda rate: mean_of(rows, "loss", **arm, rate=rate))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs."""
    options = read_options("optimizers", __doc__, arguments)
    steps = options.n_steps(STEPS)
    recipes = [
        Recipe(
            steps=steps, learning_rate=rate, warmup=steps // 10, optimizer=optimizer,
            schedule=schedule, average=BETA if schedule == "constant" else None, seed=seed,
            log_every=max(steps // 20, 1), checkpoint_every=steps, validate_every=steps,
        )
        for optimizer, schedule, rate, seed in product(
            OPTIMIZERS, SCHEDULES, options.pick(RATES, RATES[2:3]), options.seeds(2)
        )
    ]  # fmt: skip
    found = merge_tables(side_by_side(run_one, [(each, options) for each in recipes], options))
    metrics: dict[str, float] = {}
    for schedule, optimizer in product((*SCHEDULES, AVERAGED), OPTIMIZERS):
        arm = {"optimizer": optimizer, "schedule": schedule}
        rate = best_rate(found["results"], **arm)
        loss = mean_of(found["results"], "loss", **arm, rate=rate)
        metrics[f"loss ({optimizer}, {schedule})"] = rounded(loss)
        metrics[f"best rate ({optimizer}, {schedule})"] = rate
    write_results(options, "shakespeare.txt", ABOUT, metrics, recipes[0], tables=found)


if __name__ == "__main__":
    main()
