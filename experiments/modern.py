"""From the block of 2017 to that of a LLaMA: which change brings how much?

    python -m experiments.modern

A small decoder learns Shakespeare's letters. Seven switches lead from the block of 2017 to a modern
one. They are thrown one after the other (`path`), each alone in the old block (`alone`), and each
back in the new one (`without`). All models have the same number of parameters, within one in a
hundred. Each is trained with several learning rates and seeds, which a process computes together:
its weights have one more axis.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    n_parameters,
    read_options,
    rounded,
    rows_where,
    side_by_side,
    texts,
    write_results,
)
from experiments.shared.ensembles import PARTS, Ensemble, learn, losses_of
from transformer_lib import CausalLM, Recipe, TransformerConfig, modern_recipe

CHAPTER = "18_modern"
WIDTH, LAYERS, HEADS = 128, 4, 4
LENGTH, BATCH = 64, 32
FIRST = "2017"  # the name of the model in which no switch is thrown
RATES = (1e-3, 3e-3, 1e-2)
SWITCHES: dict[str, dict[str, Any]] = {  # in the order in which `path` throws them
    "pre-norm": {"norm_position": "pre"},
    "RMSNorm": {"norm": "rms"},
    "RoPE": {"position": "rope"},
    "SwiGLU": {"activation": "swiglu"},
    "no biases": {"bias": False},
    "GQA": {"n_kv_heads": HEADS // 2},
    "small start": {"init": "gpt2", "scale_embeddings": False},
}
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": f"""Decoders of {LAYERS} blocks of width {WIDTH} with {HEADS} heads, no dropout, tied
        embeddings. The first has the block of 2017: norms after each sum, LayerNorm, sinusoids,
        ReLU, biases, as many heads for keys as for queries, Xavier's first weights and embeddings
        that are multiplied by the root of the width. The switches: pre-norm (with a final norm);
        RMSNorm; RoPE; SwiGLU; no biases in linear layers and norms; GQA, {HEADS // 2} heads for
        keys and values; small start, GPT-2's first weights (standard deviation 0.02, less for
        those that write to the stream) and embeddings that are not multiplied. F, the width of
        the feed-forward network, is chosen so that all models have as many parameters as the first,
        which has F = 4D. AdamW with weight decay 0.1, clipping at 1, warm-up over the first tenth,
        cosine; the same for all, with three learning rates. For one seed all models see the same
        batches.""",
    "How to read the tables": """`loss` is that of new text after the training, in nats per
        character, `training_loss` the mean of the last 20 steps, `worst` the largest loss of a step
        after the first tenth. `group` is `path` (step 0 is the block of 2017, each step adds the
        switch of its name to those before), `alone` (the switch in the block of 2017) or `without`
        (the modern block without the switch). What is the same model in two groups was trained
        once, and is listed twice. `curves.csv`: training losses on the way, for the models of
        `path` and each learning rate, mean of the seeds.""",
    "Intended use": "Teaching: what the changes since 2017 are worth, in one small case.",
    "Limits": """One size, one text, windows of 64 characters, a short training without dropout.
        What GQA is for (a small cache) and what norms and small starts are for (deep models) does
        not show at this size. The feed-forward network of the model with GQA is wider: the
        comparison is at equal parameters, not at equal shape.""",
}


def configuration(switches: Sequence[str], **sizes: Any) -> TransformerConfig:
    """Describe the decoder with these switches thrown, with as many parameters as the first one.

    Args:
        switches: names of ``SWITCHES``.
        sizes: ``vocab_size``, ``max_len``, ``d_model``, ``n_layers``.

    Returns:
        The configuration; ``d_ff`` is what makes the numbers of parameters equal.
    """
    base = TransformerConfig(n_heads=HEADS, dropout=0.0, **sizes)
    changes = {field: v for name in switches for field, v in SWITCHES[name].items()}
    config = replace(base, **changes)
    wanted = count(base)
    per_unit = count(replace(config, d_ff=2)) - count(replace(config, d_ff=1))
    rest = wanted - count(replace(config, d_ff=1))
    return replace(config, d_ff=1 + round(rest / per_unit))


def count(config: TransformerConfig) -> int:
    """Count the parameters of a decoder."""
    with torch.device("meta"):
        return n_parameters(CausalLM(config))


def models() -> dict[tuple[str, ...], list[tuple[str, str, int]]]:
    """List the models by their switches, each with its places: group, name and step."""
    names = tuple(SWITCHES)
    found: dict[tuple[str, ...], list[tuple[str, str, int]]] = {}
    for step in range(len(names) + 1):
        name = names[step - 1] if step else FIRST
        found.setdefault(names[:step], []).append(("path", name, step))
    for i, name in enumerate(names):
        found.setdefault((name,), []).append(("alone", name, i + 1))
        rest = tuple(other for other in names if other != name)
        found.setdefault(rest, []).append(("without", name, i + 1))
    return found


def run_one(
    switches: tuple[str, ...],
    recipe: Recipe,
    rates: Sequence[float],
    seeds: Sequence[int],
    sizes: Row,
    batch: int,
    n_characters: int | None,
    device: str,
) -> tuple[list[Row], Tensor]:
    """Train one kind of decoder, with all learning rates and seeds.

    Args:
        switches: which of ``SWITCHES`` are thrown.
        recipe: how to train.
        rates: the learning rates.
        seeds: of the first weights and of the batches.
        sizes: ``max_len``, ``d_model`` and ``n_layers``.
        batch: how many windows a step has.
        n_characters: how much of the text to read; all of it if ``None``.
        device: where to train.

    Returns:
        For each rate and seed what was found, and the losses of all steps, ``(steps, R)``.
    """
    known, unknown, letters = texts(n_characters)
    config = configuration(switches, vocab_size=len(letters), **sizes)
    plan = [(rate, seed) for rate in rates for seed in seeds]
    made, starts = [], []
    for _, seed in plan:
        torch.manual_seed(seed)
        made.append(CausalLM(config, parts=PARTS))
        drawn = torch.Generator().manual_seed(seed)
        n = len(known) - config.max_len
        starts.append(torch.randint(n, (recipe.steps, batch), generator=drawn))
    where = torch.stack(starts, dim=1).to(device)  # (steps, R, B)
    text, window = known.to(device), torch.arange(config.max_len + 1, device=device)

    def batch_of(step: int) -> tuple[Tensor, Tensor]:
        read = text[where[step][..., None] + window]  # (R, B, T + 1)
        return read[..., :-1], read[..., 1:]

    ensemble = Ensemble(made, [rate for rate, _ in plan], device)
    losses = learn(ensemble, batch_of, losses_of, recipe)
    found = new_losses(ensemble, unknown.to(device), config.max_len)
    rows = [
        {"learning_rate": rate, "seed": seed, "loss": rounded(found[i].item())}
        | {"training_loss": rounded(losses[-20:, i].mean().item())}
        | {"worst": rounded(losses[recipe.warmup :, i].max().item())}
        | {"parameters": count(config), "d_ff": config.ffn_width}
        for i, (rate, seed) in enumerate(plan)
    ]
    return rows, losses


@torch.no_grad()
def new_losses(ensemble: Ensemble, text: Tensor, length: int) -> Tensor:
    """Return the loss of each model on a new text, ``(R,)``, cut into windows."""
    n = min(384, (len(text) - 1) // length)
    ids, targets = (text[i : i + n * length].view(n, length) for i in (0, 1))
    found = []
    for some, wanted in zip(ids.split(64), targets.split(64), strict=True):
        many = (len(ensemble.flat), -1, -1)
        losses = losses_of(ensemble(some.expand(many)), wanted.expand(many))
        found.append(losses * len(some) / n)
    return torch.stack(found).sum(dim=0)


def curves_of(run: Row, rates: Sequence[float], losses: Tensor) -> list[Row]:
    """Average the training losses over the seeds, and over stretches of steps."""
    by_rate = losses.unflatten(1, (len(rates), -1)).mean(dim=2)  # (steps, rates)
    every = max(len(losses) // 20, 1)
    return [
        run | {"learning_rate": rate, "step": end}
        | {"loss": rounded(by_rate[end - every : end, i].mean().item())}
        for i, rate in enumerate(rates)
        for end in range(every, len(losses) + 1, every)
    ]  # fmt: skip


def plan_of(options: Options, recipe: Recipe) -> list[tuple[Any, ...]]:
    """List the runs, one for each kind of model."""
    rates = options.pick(RATES, RATES[:2])
    width, layers, length = options.pick((WIDTH, LAYERS, LENGTH), (16, 1, 8))
    sizes = {"max_len": length, "d_model": width, "n_layers": layers}
    rest = (
        recipe,
        rates,
        options.seeds(4),
        sizes,
        options.pick(BATCH, 2),
        options.pick(None, 2_000),
    )
    return [(switches, *rest, options.device) for switches in models()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write two tables."""
    options = read_options("modern", __doc__, arguments)
    steps = options.n_steps(400)
    recipe = modern_recipe(steps, max(RATES), warmup=max(steps // 10, 1))
    plan = plan_of(options, recipe)
    found = side_by_side(run_one, plan, options)
    rows: list[Row] = []
    curves: list[Row] = []
    for places, (mine, losses) in zip(models().values(), found, strict=True):
        for group, name, step in places:
            run = {"group": group, "switch": name, "step": step}
            rows += [run | row for row in mine]
            if group == "path":
                curves += curves_of({"switch": name, "path": step}, plan[0][2], losses)
    n_letters = len(texts(plan[0][6])[2])
    rows.sort(key=lambda row: (row["group"], row["step"]))
    write_results(
        options,
        data="shakespeare.txt",
        about=ABOUT,
        metrics={name: best(rows, "path", name) for name in (FIRST, *SWITCHES)},
        recipe=recipe,
        tables={"results": rows, "curves": curves},
        more={
            "rates": list(plan[0][2]),
            "n_seeds": len(plan[0][3]),
            "config_2017": asdict(configuration((), vocab_size=n_letters, **plan[0][4])),
        },
    )


def best(rows: Sequence[Row], group: str, switch: str) -> float:
    """Return the lowest loss that a learning rate gives, as a mean of the seeds."""
    mine = rows_where(rows, group=group, switch=switch)
    rates = {row["learning_rate"] for row in mine}
    return min(mean_of(mine, "loss", learning_rate=rate) for rate in rates)


if __name__ == "__main__":
    main()
