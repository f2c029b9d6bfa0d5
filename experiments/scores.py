"""What does the scale of the scores do to training? One decoder, four scales, two kinds of start.

    python -m experiments.scores

A small decoder learns Shakespeare's letters. Its width is fixed and it is cut into heads of 16, 64
or 256 features. Scores are divided by the root of that number, by the number itself, or by nothing;
or by nothing while the first queries are made as much smaller (T5's way). Queries and keys start
with variance 1 or, as in GPT-2, with matrices of standard deviation 0.02. Everything else is the
same in all runs; each has a process of its own.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from experiments.common import (
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
from transformer_lib.attention import MultiHeadAttention
from transformer_lib.data import Batch, TextWindows
from transformer_lib.losses import Objective
from transformer_lib.models import CausalLM
from transformer_lib.recipes import Recipe, modern_recipe
from transformer_lib.tracing import attention_maps
from transformer_lib.training import evaluate, train

CHAPTER = "04b_scores_in_training"
SCALES = ("root", "width", "none", "folded")
STARTS = ("unit", "small")
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """A decoder of two pre-norm blocks, RoPE, GELU, no dropout, whose width D = 256 is
        cut into heads of 16, 64 or 256 features, so all have the same number of parameters. `scale`
        is what the scores are multiplied by: `root` 1/sqrt(d_head), `width` 1/d_head, `none` 1;
        `folded` is 1 too, but the first queries are divided by sqrt(d_head). `start` is how the
        matrices of queries and keys are drawn: `unit` with standard deviation 1/sqrt(D), `small`
        with 0.02; all other matrices as in GPT-2. AdamW with one learning rate for all.""",
    "How to read the table": """`loss` is that of new text after the training; `spread` the standard
        deviation of the scaled scores within a row, `entropy` that of the rows of weights as a part
        of the largest possible (1: even weights, 0: all on one key), both means over heads, layers
        and rows, before (`_start`) and after (`_end`) the training; `gradient_q`, `_k` and `_v` are
        the lengths of the first gradients of the first block's matrices. `curves.csv` has the
        training losses.""",
    "Intended use": "Teaching: what dividing by the root of d_head is good for, and when.",
    "Limits": """One size, one task, one learning rate, a short training. Larger and deeper models
        may need the scale more or less than this one.""",
}


def build(d_head: int, scale: str, start: str, d_model: int, length: int, vocab: int) -> CausalLM:
    """Make the decoder with new weights.

    Args:
        d_head: how many features a head has.
        scale: one of ``SCALES``.
        start: one of ``STARTS``.
        d_model: the width, a multiple of ``d_head``.
        length: the longest text.
        vocab: how many different characters there are.

    Returns:
        The model. The same random numbers were drawn for every scale and start.
    """
    sizes = {"vocab_size": vocab, "max_len": length, "d_model": d_model}
    sizes["n_heads"] = d_model // d_head
    config = small_config(**sizes, position="rope", scale_embeddings=False, init="gpt2")
    model = CausalLM(config)
    for part in attentions(model):
        if start == "unit":
            for matrix in (part.query.weight, part.key.weight):
                matrix.data *= 1 / (0.02 * math.sqrt(d_model))
        if scale == "folded":
            part.query.weight.data /= math.sqrt(d_head)
        part.scale = {"root": 1 / math.sqrt(d_head), "width": 1 / d_head}.get(scale, 1.0)
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
    d_head: int,
    scale: str,
    start: str,
    recipe: Recipe,
    d_model: int,
    length: int,
    n_characters: int | None,
    device: str,
) -> tuple[Row, list[Row]]:
    """Train one decoder.

    Args:
        d_head: how many features a head has.
        scale: one of ``SCALES``.
        start: one of ``STARTS``.
        recipe: how to train; its seed is that of weights and batches, too.
        d_model: the width.
        length: how many characters a window has.
        n_characters: how much of the text to read; all of it if ``None``.
        device: where to train.

    Returns:
        A row of ``results.csv``, and rows of ``curves.csv``.
    """
    known, unknown, letters = texts(n_characters)
    windows = TextWindows(known, length, batch_size=32, seed=recipe.seed)
    new = TextWindows(unknown[: 256 * length + 1], length, batch_size=256)
    some = {name: tensor.to(device) for name, tensor in next(iter(new.one_pass())).items()}
    torch.manual_seed(recipe.seed)
    model = build(d_head, scale, start, d_model, length, len(letters)).to(device)
    run: Row = {"d_head": d_head, "scale": scale, "start": start, "seed": recipe.seed}
    gradients = first_gradients(model, some)
    before = spread_and_entropy(model, some["ids"][:16])
    rows = train(model, windows, recipe, device=device, progress=False)
    after = spread_and_entropy(model, some["ids"][:16])
    found: Row = {"loss": evaluate(model, new)["loss"]}
    for when, (spread, entropy) in {"start": before, "end": after}.items():
        found |= {f"spread_{when}": spread, f"entropy_{when}": entropy}
    found |= gradients
    curve = [run | {"step": row["step"], "loss": rounded(row["loss"])} for row in rows]
    return run | rounded_row(found), curve


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write two tables."""
    options = read_options("scores", __doc__, arguments)
    steps = options.n_steps(500)
    recipe = modern_recipe(
        steps, 1e-3, warmup=steps // 20, log_every=max(steps // 20, 1), checkpoint_every=steps
    )
    d_heads, seeds = options.pick((16, 64, 256), (4, 16)), options.seeds(3)
    d_model, length = max(d_heads), options.pick(64, 8)
    rest = (d_model, length, options.pick(None, 2_000), options.device)
    choices = options.pick((SCALES, STARTS), (("root", "none"), ("unit",)))
    plan = [
        (*model, replace(recipe, seed=seed), *rest)
        for *model, seed in product(d_heads, *choices, seeds)
    ]
    rows, curves = zip(*side_by_side(run_one, plan, options), strict=True)
    metrics = {
        f"loss_{scale}_{start}_{d_model}": mean_of(
            rows, "loss", d_head=d_model, scale=scale, start=start
        )
        for start, scale in product(*reversed(choices))
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe,
        tables={"results": rows, "curves": [point for curve in curves for point in curve]},
        more={"d_model": d_model, "length": length, "n_seeds": len(seeds)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
