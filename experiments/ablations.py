"""What does each part of a recipe do? Two tasks, two recipes, one thing changed at a time.

    python -m experiments.ablations

A small translator with the parts of 2017 learns to turn English numbers into German ones by the
recipe of 2017, and a small decoder with later parts learns Shakespeare's letters by a later
recipe. Then one thing of the recipe is left out or exchanged, and everything is trained again with
the same first weights. What concerns the learning rate is tried with three highest rates, since
the best one may be another. Every run has a process of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from experiments.decoders import judge, letters, numbers
from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    read_options,
    rounded,
    rounded_row,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from experiments.shared.loops import minimise
from transformer_book.tasks import FIRST_SYMBOL
from transformer_lib import (
    IGNORE,
    Batch,
    Batches,
    CausalLM,
    Metrics,
    Objective,
    Recipe,
    Seq2SeqLM,
    TextWindows,
    TransformerConfig,
    evaluate,
    modern_recipe,
    recipe_2017,
    train,
    translation_batch,
)

CHAPTER = "14b_recipes"
BASE = "baseline"
RATES = (1e-3, 3e-3, 1e-2)  # the highest ones that are tried for text
MIDDLE = RATES[1]
STEPS = {"numbers": 400, "text": 400}
BATCH = {"numbers": 64, "text": 32}
N_POINTS = 20  # of a curve
SLOWEST, FASTEST = 1e-5, 1.0  # the rates between which a range test rises
TINY = {  # what is tried when only to check
    "numbers": (BASE, "no dropout", "batch / 4"),
    "text": (BASE, "no warm-up", "batch x 4, updates / 4"),
}


@dataclass(frozen=True)
class Change:
    """What is different from the baseline.

    Args:
        recipe: fields of the recipe.
        dropout: the rate, if another one.
        batch: the batch is so many times as large.
        same_tokens: whether there are as many times fewer updates.
        rates: whether several highest rates are tried.
    """

    recipe: dict[str, Any] = field(default_factory=dict)
    dropout: float | None = None
    batch: float = 1
    same_tokens: bool = False
    rates: bool = False


CHANGES: dict[str, dict[str, Change]] = {
    "numbers": {
        BASE: Change(rates=True),
        "constant": Change({"schedule": "constant"}, rates=True),
        "constant, no warm-up": Change({"schedule": "constant", "warmup": 0}, rates=True),
        "cosine": Change({"schedule": "cosine"}, rates=True),
        "no smoothing": Change({"label_smoothing": 0.0}),
        "no dropout": Change(dropout=0.0),
        "clip 1": Change({"clip": 1.0}),
        "AdamW, decay 0.1": Change({"optimizer": "adamw", "weight_decay": 0.1}),
        "beta2 0.999": Change({"betas": (0.9, 0.999)}),
        "batch / 4": Change(batch=1 / 4),
        "batch x 4": Change(batch=4),
    },
    "text": {
        BASE: Change(rates=True),
        "no warm-up": Change({"warmup": 0}, rates=True),
        "constant": Change({"schedule": "constant"}, rates=True),
        "linear": Change({"schedule": "linear"}, rates=True),
        "inverse root": Change({"schedule": "inverse_sqrt"}, rates=True),
        "no clipping": Change({"clip": None}, rates=True),
        "no decay": Change({"weight_decay": 0.0}),
        "decay in the gradient": Change({"optimizer": "adam"}),
        "smoothing 0.1": Change({"label_smoothing": 0.1}),
        "dropout 0.1": Change(dropout=0.1),
        "beta2 0.999": Change({"betas": (0.9, 0.999)}),
        "batch / 2, updates x 2": Change(batch=1 / 2, same_tokens=True, rates=True),
        "batch x 2, updates / 2": Change(batch=2, same_tokens=True, rates=True),
        "batch x 4, updates / 4": Change(batch=4, same_tokens=True, rates=True),
    },
}
ABOUT = {
    "Task": """`numbers`: an English number below 10,000 in, the German word out, letter by letter.
        `text`: the plays so far in, the probabilities of the next letter out.""",
    "Choices": f"""`numbers`: an encoder-decoder of two blocks each, D = 64, the parts of 2017
        (post-norm, ReLU, sinusoids, dropout 0.1); recipe of 2017: Adam with beta2 0.98, warm-up
        over a quarter of the updates, then the inverse root, label smoothing 0.1, no clipping, no
        decay; {BATCH["numbers"]} numbers in a batch. `text`: a decoder of two pre-norm blocks,
        D = 128, RoPE, GELU, no dropout; AdamW with beta2 0.95 and decay 0.1, warm-up over a
        twentieth, cosine down to a tenth, clipping at 1; {BATCH["text"]} windows of 64 letters. A
        change alters one thing. Without warm-up the highest rate is there from the first update on
        (`numbers`: it stays until the baseline's warm-up would be over, then falls like it).
        Batches of another size keep the number of updates (`numbers`) or of tokens (`text`), and
        the rate is not adapted to them, except that three are tried for `text`.""",
    "How to read the tables": """`loss` is that of new numbers or of a new play, without smoothing
        and dropout; empty if the run ended with something that is not a number. `accuracy` is the
        share of right next letters (the true ones before them), `confidence` the mean probability
        of the letter that the model finds likeliest, `words` the share of numbers written without
        a mistake by the model alone (greedy). `weights` is the root mean square of all entries of
        matrices at the end, `largest` the longest gradient of a logged update, before clipping.
        `curves.csv`: `train_loss` of single batches as it was minimised, with smoothing and
        dropout, and `loss` as above, means over seeds. `range.csv`: the rate rises from 1e-5 to 1
        within 200 updates of the baseline of `text`; the loss of each batch before the update at
        that rate.""",
    "Intended use": "Teaching: which parts of a recipe matter for two small tasks.",
    "Limits": """Two small models, short trainings, three seeds. Most rates were not tuned for each
        change. What does not matter here may matter for deep models and long trainings.""",
}


def config_of(
    task: str, change: Change, d_model: int, vocab: int, max_len: int
) -> TransformerConfig:
    """Return the configuration of a task's model."""
    fields: dict[str, Any] = {"vocab_size": vocab, "max_len": max_len, "d_model": d_model}
    if change.dropout is not None:
        fields["dropout"] = change.dropout
    if task == "text":
        return small_config(position="rope", init="gpt2", **fields)
    return TransformerConfig(n_heads=4, n_layers=2, **fields)


def recipe_of(task: str, change: Change, steps: int, peak: float | None, seed: int) -> Recipe:
    """Return the recipe of a run.

    Args:
        task: one of ``CHANGES``.
        change: what is different.
        steps: how many updates the baseline has.
        peak: the highest rate; the baseline's own if ``None``.
        seed: of the run.
    """
    steps = max(1, round(steps / change.batch)) if change.same_tokens else steps
    every = max(1, steps // N_POINTS)
    fields: dict[str, Any] = {"log_every": every, "validate_every": every, "seed": seed}
    fields |= {"checkpoint_every": steps} | change.recipe
    if task == "text":
        return modern_recipe(steps, peak or MIDDLE, **{"warmup": steps // 20} | fields)
    recipe = recipe_2017(64, steps=steps, warmup=max(1, steps // 4))
    return replace(recipe, **{"learning_rate": peak or MIDDLE} | fields)


def data_of(
    task: str, batch_size: int, length: int, few: int | None, seed: int
) -> tuple[Batches, Batches, int, int]:
    """Return what to learn from, what to be judged by, the vocabulary and the longest input."""
    if task == "text":
        known, unknown, symbols = texts(few and 2_000)
        new = TextWindows(unknown[: (few or 320) * length + 1], length, batch_size=320)
        return TextWindows(known, length, batch_size, seed=seed), new, len(symbols), length
    known_pairs, new_pairs = numbers()
    new_pairs = new_pairs[:few]
    longest = 1 + max(len(side) for pair in [*known_pairs, *new_pairs] for side in pair)
    batches = Batches(
        known_pairs[: few and 64], translation_batch, batch_size=batch_size, seed=seed
    )
    new_batches = Batches(new_pairs, translation_batch, batch_size=512, shuffle=False)
    return batches, new_batches, FIRST_SYMBOL + len(letters()), longest


@torch.no_grad()
def sureness(model: nn.Module, batches: Batches) -> Row:
    """Return the share of right next letters, and how sure the model is of its first choice."""
    device = next(model.parameters()).device
    found: list[Tensor] = []
    for batch in batches.one_pass():
        inputs = {name: tensor.to(device) for name, tensor in batch.items()}
        targets = inputs.pop("targets")
        probability, choice = model(**inputs).softmax(dim=-1).max(dim=-1)
        counted = targets != IGNORE
        right = (choice == targets)[counted].double()
        found.append(torch.stack([right, probability[counted].double()]))
    accuracy, confidence = torch.cat(found, dim=1).mean(dim=1).tolist()
    return {"accuracy": rounded(accuracy), "confidence": rounded(confidence)}


def size_of_weights(model: nn.Module) -> float:
    """Return the root mean square of all entries of all matrices."""
    matrices = [p.detach() for p in model.parameters() if p.ndim >= 2]
    n = sum(matrix.numel() for matrix in matrices)
    return math.sqrt(sum(float(matrix.square().sum()) for matrix in matrices) / n)


def on_device(batches: Batches, device: str) -> Batch:
    """Return all examples as one batch."""
    (batch,) = Batches(
        batches.examples, batches.collate, batch_size=len(batches.examples), shuffle=False
    ).one_pass()
    return {name: tensor.to(device) for name, tensor in batch.items()}


def run_one(
    task: str, name: str, recipe: Recipe, sizes: tuple[int, int, int | None], device: str
) -> tuple[Row, list[Row]]:
    """Train one model by one recipe.

    Args:
        task: one of ``CHANGES``.
        name: of the change.
        recipe: how to train; its seed is that of weights and batches, too.
        sizes: the width, the length of a window, and how many examples there are if only a few.
        device: where to train.

    Returns:
        A row of ``results.csv``, and the points of its curve.
    """
    d_model, length, few = sizes
    change = CHANGES[task][name]
    batch_size = max(1, round((few or BATCH[task]) * change.batch))
    batches, new, vocab, longest = data_of(task, batch_size, length, few, recipe.seed)
    torch.manual_seed(recipe.seed)
    config = config_of(task, change, d_model, vocab, longest)
    model = (CausalLM if task == "text" else Seq2SeqLM)(config).to(device)
    run: Row = {"task": task, "change": name, "rate": recipe.learning_rate, "seed": recipe.seed}
    seen: list[Metrics] = []
    empty = dict.fromkeys(("loss", "accuracy", "confidence", "words", "weights"), "")
    row = run | {"updates": recipe.steps, "batch": batch_size} | empty
    try:
        train(
            model, batches, recipe, validation=new, device=device, progress=False,
            on_step=seen.append,
        )  # fmt: skip
        row |= {"loss": rounded(evaluate(model, new)["loss"])} | sureness(model, new)
        row["weights"] = rounded(size_of_weights(model))
        if task == "numbers":
            row["words"] = judge(model, on_device(new, device))["words"]
    except FloatingPointError:
        pass  # the row says so by what it lacks
    row["largest"] = rounded(max((point["grad_norm"] for point in seen), default=math.inf))
    return row, [run | _point(point, batch_size) for point in seen]


def _point(row: Metrics, batch_size: int) -> Row:
    loss = row["validation_loss"]
    assert loss is not None  # every step that is logged is followed by a validation
    values = {"train_loss": row["loss"], "loss": loss, "grad_norm": row["grad_norm"]}
    return {"step": row["step"], "examples": row["step"] * batch_size} | rounded_row(values)


def range_test(seed: int, steps: int, sizes: tuple[int, int, int | None], device: str) -> list[Row]:
    """Raise the learning rate at every update, until nothing is learned any more.

    Args:
        seed: of weights and batches.
        steps: how many updates lead from the slowest rate to the fastest.
        sizes: as in :func:`run_one`.
        device: where to train.

    Returns:
        Rows of ``range.csv``: the loss of each batch before the update at that rate.
    """
    d_model, length, few = sizes
    change = CHANGES["text"][BASE]
    batches, _, vocab, longest = data_of("text", few or BATCH["text"], length, few, seed)
    torch.manual_seed(seed)
    model = CausalLM(config_of("text", change, d_model, vocab, longest)).to(device)
    objective = Objective(model).train()
    adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)

    def loss_at(_step: int) -> Tensor:
        total, count = objective({name: t.to(device) for name, t in next(batches).items()})
        loss: Tensor = total / count
        return loss

    def rate(step: int, recipe: Recipe) -> float:
        grown: float = (FASTEST / SLOWEST) ** ((step - 1) / (recipe.steps - 1))
        return SLOWEST * grown

    recipe = Recipe(steps=steps, learning_rate=FASTEST)
    losses = takewhile(math.isfinite, minimise(model, adam, recipe, loss_at, rate=rate, clip=1.0))
    return [
        {"seed": seed, "rate": rounded(rate(step, recipe)), "loss": rounded(loss)}
        for step, loss in enumerate(losses, start=1)
    ]


def over_seeds(curves: Sequence[Row]) -> list[Row]:
    """Return the points of curves as means over seeds."""
    keys = ("task", "change", "rate", "step", "examples")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for point in curves:
        groups.setdefault(tuple(point[key] for key in keys), []).append(point)
    return [
        dict(zip(keys, key, strict=True))
        | {"seeds": len(points)}
        | {name: rounded(mean_of(points, name)) for name in ("train_loss", "loss", "grad_norm")}
        for key, points in groups.items()
    ]


def make_plan(options: Options) -> list[tuple[Any, ...]]:
    """List the arguments of all runs, the longest ones first."""
    plan = []
    for task, changes in CHANGES.items():
        steps = options.n_steps(STEPS[task])
        sizes = options.pick((64 if task == "numbers" else 128, 64, None), (16, 8, 8))
        for name in options.pick(tuple(changes), TINY[task]):
            change = changes[name]
            rates = options.pick(RATES if change.rates else (MIDDLE,), (MIDDLE,))
            for rate in rates:
                for seed in options.seeds(3):
                    recipe = recipe_of(task, change, steps, rate, seed)
                    plan.append((task, name, recipe, sizes, options.device))
    return sorted(plan, key=lambda run: -run[2].steps)


def summary(table: Sequence[Row]) -> dict[str, float]:
    """Return the mean loss of each change at the middle rate; NaN if a run ended in none."""
    return {
        f"loss ({task}, {name})": mean_of(table, "loss", task=task, change=name, rate=MIDDLE)
        for task, name in dict.fromkeys((row["task"], row["change"]) for row in table)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write three tables."""
    options = read_options("ablations", __doc__, arguments)
    plan = make_plan(options)
    rows, curves = zip(*side_by_side(run_one, plan, options), strict=True)
    order = [(task, name) for task, changes in CHANGES.items() for name in changes]
    table = sorted(rows, key=lambda row: order.index((row["task"], row["change"])))
    sizes = options.pick((128, 64, None), (16, 8, 8))
    tests = [(seed, options.pick(200, 4), sizes, options.device) for seed in options.seeds(3)]
    found = side_by_side(range_test, tests, options)
    tables = {
        "results": table,
        "curves": over_seeds([point for curve in curves for point in curve]),
        "range": [row for each in found for row in each],
    }
    recipe = recipe_of("text", CHANGES["text"][BASE], options.n_steps(STEPS["text"]), None, 0)
    write_results(
        options, "shakespeare.txt", ABOUT, summary(table), recipe, tables=tables,
        more={"updates": STEPS, "batch": BATCH, "rates": RATES},
    )  # fmt: skip


if __name__ == "__main__":
    main()
