"""What does the scale of the scores do to training? A decoder, seven scales and learning rates.

    python -m experiments.scores

A small decoder learns Shakespeare's letters. The number of its heads and their width are chosen
apart from each other. Scores are divided by the root of the width, by the width itself, or by
nothing; or by nothing while the first queries are made as much smaller (T5's way). Two more arms
change only where scores start, or only how far a step moves them; in another, all scores are zero,
so that attention is a mean of what came before. Queries and keys start with variance 1 or, as in
GPT-2, with matrices of standard deviation 0.02. Every arm is trained with all learning rates, so
that each can be judged at its own best. Everything else is the same in all runs; each has a process
of its own. Runs that stand in the table already are not made again.
"""

import csv
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.shared.common import (
    Row,
    mean_of,
    read_options,
    rounded_row,
    rows_where,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from transformer_lib import (
    Batch,
    CausalLM,
    MultiHeadAttention,
    Objective,
    Parts,
    Recipe,
    TextWindows,
    attention_maps,
    evaluate,
    modern_recipe,
    train,
)

CHAPTER = "04c_scale_in_training"
# What scores, first queries and first keys are multiplied by: powers of d_head. A score starts with
# the product of all three; a step of the queries moves it by the scale times the size of the keys.
SCALES: dict[str, tuple[float, float, float]] = {
    "root": (-0.5, 0, 0),
    "width": (-1, 0, 0),
    "none": (0, 0, 0),
    "folded": (0, -0.5, 0),  # queries move scores as far as in "none", keys as in "root"
    "start": (-1, 0.5, 0.5),  # starts as "none", moves as "root"
    "steps": (0.5, -0.5, -0.5),  # starts as "root", moves as "none"
    "even": (-math.inf, 0, 0),  # d_head to the power of minus infinity: all scores are zero
}
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
Arm = tuple[int, int, str, str]  # number of heads, width of a head, scale, start
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """A decoder of two pre-norm blocks, width D = 256, RoPE, GELU, no dropout.
        `n_heads` heads have `d_head` features each: 16 of 16, 4 of 64 and 1 of 256 share the
        width, as usual; 4 of 16 and 4 of 256 have a narrower or a wider inside, so that the
        width of a head changes alone (at 4 heads) or the number alone (at a width of 16 and of
        256). `scale` is what the scores are multiplied by: `root` 1/sqrt(d_head), `width`
        1/d_head, `none` 1; `folded` is 1 too, but the first queries are divided by
        sqrt(d_head). `start` starts with the scores of `none`, and a step of Adam moves them as
        far as in `root`: 1/d_head, first queries and keys times sqrt(d_head). `steps` is the
        opposite: sqrt(d_head), first queries and keys divided by sqrt(d_head). `even` is 0: all
        weights of a row are equal, for ever. The column `start` is how
        the matrices of queries and keys are drawn: `unit` with standard deviation 1/sqrt(D),
        `small` with 0.02; all other matrices as in GPT-2. AdamW with seven learning rates
        (`rate`) for every arm; the value under Recipe is one of them.""",
    "How to read the table": """`loss` is that of new text after the training (`nan`: it
        diverged); `spread` the standard deviation of the scaled scores within a row, `entropy`
        that of the rows of weights as a part of the largest possible (1: even weights, 0: all
        on one key), both means over heads, layers and rows, before (`_start`) and after
        (`_end`) the training; `gradient_q`, `_k` and `_v` are the lengths of the first
        gradients of the first block's matrices.""",
    "Intended use": "Teaching: what dividing by the root of d_head is good for, and when.",
    "Limits": """One size, one task, a short training, one optimizer. Larger and deeper models
        may need the scale more or less than this one. 4 heads of 16 have fewer parameters and 4
        of 256 have more than the others: compare scales within a shape. `seconds` are those of
        the last call, which made only the runs that were missing.""",
}


def all_arms() -> list[Arm]:
    """Return every combination of heads, scale and start that is trained."""
    shared = ((16, 16), (4, 64), (1, 256))  # the heads share the width of the model
    arms = [
        (*shape, scale, "unit")
        for shape, scale in product(((4, 256), (4, 16), *shared), ("root", "none"))
    ]
    arms += [
        (*shape, scale, "unit")
        for shape, scale in product(shared, ("width", "folded", "start", "steps", "even"))
    ]
    return arms + [(1, 256, scale, "small") for scale in SCALES if scale != "even"]


def build(arm: Arm, d_model: int, length: int, vocab: int) -> CausalLM:
    """Make the decoder with new weights.

    Args:
        arm: how many heads of which width, one of ``SCALES``, and the start.
        d_model: the width, a multiple of that of a head.
        length: the longest text.
        vocab: how many different characters there are.

    Returns:
        The model. Arms with the same heads drew the same random numbers.
    """
    n_heads, d_head, scale, start = arm
    sizes = {"vocab_size": vocab, "max_len": length, "d_model": d_model}
    sizes["n_heads"] = d_model // d_head  # so RoPE turns heads of this width
    config = small_config(**sizes, position="rope", scale_embeddings=False, init="gpt2")
    heads = Parts(attention=lambda _: MultiHeadAttention(d_model, n_heads, d_head=d_head))
    model = CausalLM(config, parts=heads)
    power, of_queries, of_keys = SCALES[scale]
    for part in attentions(model):
        unit = 1 / (0.02 * math.sqrt(d_model)) if start == "unit" else 1.0
        part.query.weight.data *= unit * d_head**of_queries
        part.key.weight.data *= unit * d_head**of_keys
        part.scale = d_head**power
    return model


def attentions(model: nn.Module) -> list[MultiHeadAttention]:
    """Return the attention of each block."""
    return [part for part in model.modules() if isinstance(part, MultiHeadAttention)]


def spread_and_entropy(model: nn.Module, ids: Tensor) -> tuple[float, float]:
    """Measure rows of attention: how far their scores are apart, and how even their weights are.

    Args:
        model: a decoder.
        ids: texts, ``(B, T)``.

    Returns:
        The root mean square of the rows' standard deviations of scaled scores, and the mean
        entropy of their weights as a part of the largest possible. The first position, which has
        nothing to choose from, does not count.
    """
    variances, entropies = [], []
    exact = deepcopy(model).double()  # float32 would round weights below 1e-45 to zero
    for weights in attention_maps(exact, ids).values():
        for n in range(2, ids.shape[1] + 1):
            row = weights[:, :, n - 1, :n]  # (B, H, n)
            # A weight is e^score over a sum: its logarithm is the score, up to a constant.
            logs = row.clamp_min(1e-300).log()
            variances.append(logs.var(dim=-1).mean())
            entropies.append(-(row * logs).sum(dim=-1).mean() / math.log(n))
    return float(torch.stack(variances).mean().sqrt()), float(torch.stack(entropies).mean())


def first_gradients(model: nn.Module, batch: Batch) -> dict[str, float]:
    """Return the lengths of the gradients of the first block's projections for one batch."""
    model.zero_grad()
    total, count = Objective(model)(batch)
    (total / count).backward()
    part = attentions(model)[0]
    matrices = {"q": part.query, "k": part.key, "v": part.value}
    lengths = {f"gradient_{name}": _length(layer.weight) for name, layer in matrices.items()}
    model.zero_grad(set_to_none=True)
    return lengths


def _length(weight: Tensor) -> float:
    assert weight.grad is not None
    return float(weight.grad.norm())


def run_one(
    arm: Arm, recipe: Recipe, d_model: int, length: int, n_characters: int | None, device: str
) -> Row:
    """Train one decoder.

    Args:
        arm: how many heads of which width, one of ``SCALES``, and the start.
        recipe: how to train; its seed is that of weights and batches, too.
        d_model: the width.
        length: how many characters a window has.
        n_characters: how much of the text to read; all of it if ``None``.
        device: where to train.

    Returns:
        A row of ``results.csv``.
    """
    known, unknown, letters = texts(n_characters)
    windows = TextWindows(known, length, batch_size=32, seed=recipe.seed)
    new = TextWindows(unknown[: 256 * length + 1], length, batch_size=256)
    some = {name: tensor.to(device) for name, tensor in next(iter(new.one_pass())).items()}
    torch.manual_seed(recipe.seed)
    model = build(arm, d_model, length, len(letters)).to(device)
    gradients = first_gradients(model, some)
    before = spread_and_entropy(model, some["ids"][:16])
    try:
        train(model, windows, recipe, device=device, progress=False)
        loss, after = evaluate(model, new)["loss"], spread_and_entropy(model, some["ids"][:16])
    except FloatingPointError:  # it diverged
        loss, after = math.nan, (math.nan, math.nan)
    found: Row = {"loss": loss}
    for when, (spread, entropy) in {"start": before, "end": after}.items():
        found |= {f"spread_{when}": spread, f"entropy_{when}": entropy}
    return run_of(arm, recipe.learning_rate, recipe.seed) | rounded_row(found | gradients)


def best(rows: Sequence[Row], arm: Arm) -> float:
    """Return an arm's mean loss at the rate where that is lowest; diverged runs do not count."""
    names = dict(zip(("n_heads", "d_head", "scale", "start"), arm, strict=True))
    means = [mean_of(rows, "loss", **names, rate=rate) for rate in {row["rate"] for row in rows}]
    return min(mean for mean in means if not math.isnan(mean))


def run_of(arm: Arm, rate: float, seed: int) -> Row:
    """Return the columns that tell a run from all others."""
    names = dict(zip(("n_heads", "d_head", "scale", "start"), arm, strict=True))
    return {**names, "rate": rate, "seed": seed}


def known_runs(folder: Path) -> list[Row]:
    """Read the runs that the table of a folder has already."""
    path = folder / "results.csv"
    if not path.is_file():
        return []
    words, counts = {"scale", "start"}, {"n_heads", "d_head", "seed"}
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {k: v if k in words else int(v) if k in counts else float(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write a table."""
    options = read_options("scores", __doc__, arguments)
    steps = options.n_steps(500)
    recipe = modern_recipe(steps, 1e-3, warmup=steps // 20, log_every=steps, checkpoint_every=steps)
    few: list[Arm] = [(2, 16, "root", "unit"), (2, 16, "none", "unit"), (1, 4, "root", "unit")]
    arms, rates = options.pick((all_arms(), RATES), (few, RATES[3:4]))
    d_model, length, seeds = options.pick(256, 16), options.pick(64, 8), options.seeds(3)
    rest = (d_model, length, options.pick(None, 2_000), options.device)
    known, runs = known_runs(options.folder), list(product(arms, rates, seeds))
    plan = [
        (arm, replace(recipe, seed=seed, learning_rate=rate), *rest)
        for arm, rate, seed in runs
        if not rows_where(known, **run_of(arm, rate, seed))
    ]
    made = known + side_by_side(run_one, plan, options)
    rows = [rows_where(made, **run_of(*run))[0] for run in runs]
    write_results(
        options, "shakespeare.txt", ABOUT,
        {f"best_loss_{n}x{width}_{scale}_{start}": best(rows, (n, width, scale, start))
         for n, width, scale, start in arms},
        recipe, tables={"results": rows},
        more={"d_model": d_model, "length": length, "n_seeds": len(seeds), "rates": list(rates)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
