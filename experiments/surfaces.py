"""What do skips do to a deep network? Digits, networks with and without them, and their surfaces.

    python -m experiments.surfaces

A block is a Transformer's feed-forward network: out to a hidden layer, ReLU, and back. A plain
network replaces its vector by what the block says, a residual one adds it. Both are trained at many
depths, with and without a norm before each block, from three kinds of first weights, with four
learning rates and five seeds. Runs of one depth are trained at once, as one stack of matrices. Then
the loss is computed on a square around some of the networks found, along two random directions
that are scaled filter by filter (Li et al., 2018).
"""

import math
from collections.abc import Sequence
from itertools import product
from statistics import mean
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    read_options,
    rounded,
    rows_where,
    write_results,
)
from transformer_book import datasets
from transformer_lib import Recipe

CHAPTER = "10b_surfaces"
WIDTH = 32
DEPTHS = (1, 2, 4, 8, 16, 32)  # blocks of two matrices
SHAPES = ("plain", "residual")
NORMS = ("none", "layer")
STARTS = ("torch", "he", "zero")
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
DRAWN = (  # the networks whose surfaces are computed: shape, norm, start
    ("plain", "none", "he"),
    ("plain", "layer", "he"),
    ("residual", "none", "torch"),
    ("residual", "layer", "he"),
)
DRAWN_DEPTHS = (2, 8, 32)
SIDE = 31  # points along a side of a surface
N_DRAWN = 3  # seeds
REACH = 1.0  # from -1 to 1 in both directions
ABOUT = {
    "Task": "A picture of 8×8 pixels in, the digit in it out.",
    "Choices": f"""64 pixels to {WIDTH} features, then 1 to 32 blocks W2 ReLU(W1 h), then 10
        classes. `plain` replaces the vector h by what the block says, `residual` adds it. `norm`
        says what stands before each block and before the classes: nothing, or a LayerNorm without
        parameters. `start` is how matrices are drawn: `torch` as nn.Linear does, `he` with
        variances that keep a plain network's vectors at one size, `zero` as `he` but with W2 = 0.
        Adam at a constant rate; every rate and seed is a row.""",
    "How to read the tables": f"""`results.csv`: `loss` and `accuracy` are those of all training
        images after the training, `test_accuracy` those of the test images; `nan` is a run that
        overflowed. `arrives` is the length of the loss's gradient by the first vector, divided by
        that by the last, and `grows` the length of the last vector divided by that of the first,
        both at the start. `surfaces.csv`: the loss on a square of {SIDE} by {SIDE} points, a row of
        the table for each row of points, centred on the network with the rate that was best for
        its kind; a unit is a step as long, filter by filter, as the network's own weights.""",
    "Intended use": "Teaching: what depth costs, what skips give, and what a surface shows.",
    "Limits": """One small data set, narrow networks, one optimiser, no convolutions. A surface
        shows two directions of thousands, and changes with them.""",
}


class Runs(NamedTuple):
    """Choices of R networks that are trained at once; all have one depth and one kind of norm."""

    shapes: list[str]
    starts: list[str]
    rates: list[float]
    seeds: list[int]


Weights = list[Tensor]  # W and b in turn: of the first layer, of each block's two, of the last


def plan_runs(seeds: Sequence[int]) -> Runs:
    """List all choices of one depth; plain networks that start at zero could not learn."""
    choices = product(SHAPES, STARTS, RATES, seeds)
    kept = [each for each in choices if each[:2] != ("plain", "zero")]
    return Runs(*(list(column) for column in zip(*kept, strict=True)))


def first_weights(depth: int, starts: Sequence[str], seeds: Sequence[int]) -> Weights:
    """Draw the weights of R networks, each ``(R, in, out)`` or ``(R, 1, out)``."""
    sizes = [(64, WIDTH), *[(WIDTH, WIDTH)] * (2 * depth), (WIDTH, 10)]
    runs = []
    for start, seed in zip(starts, seeds, strict=True):
        generator = torch.Generator().manual_seed(seed)
        weights = []
        for place, (n_in, n_out) in enumerate(sizes):
            matrix = torch.randn(n_in, n_out, generator=generator)
            after_relu = 0 < place < len(sizes) - 1 and place % 2 == 0  # it reads half zeros
            gain = math.sqrt(1 / 3) if start == "torch" else math.sqrt(2) if after_relu else 1.0
            if start == "zero" and after_relu:
                gain = 0.0
            weights += [gain / math.sqrt(n_in) * matrix, torch.zeros(1, n_out)]
        runs.append(weights)
    return [torch.stack(each) for each in zip(*runs, strict=True)]


def forward(weights: Weights, x: Tensor, skip: Tensor, *, norm: bool) -> tuple[Tensor, ...]:
    """Compute R networks at once.

    Args:
        weights: theirs.
        x: the images, ``(R or 1, B, 64)``.
        skip: 1 where the vector is kept, 0 where it is replaced, ``(R, 1, 1)``.
        norm: whether a LayerNorm stands before each block and before the classes.

    Returns:
        The scores of the classes ``(R, B, 10)``, the first vectors and the last, ``(R, B, D)``.
    """
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    (w_in, b_in), (w_out, b_out) = layers[0], layers[-1]
    first = h = x @ w_in + b_in
    for (w1, b1), (w2, b2) in zip(layers[1:-1:2], layers[2:-1:2], strict=True):
        read = F.layer_norm(h, (WIDTH,)) if norm else h
        said = F.relu(read @ w1 + b1) @ w2 + b2
        h = skip * h + said
    last = h
    return (F.layer_norm(h, (WIDTH,)) if norm else h) @ w_out + b_out, first, last


def losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of each network, ``(R,)``, for scores ``(R, B, 10)``."""
    n_runs, n_images = scores.shape[:2]
    each = F.cross_entropy(scores.flatten(0, 1), targets.repeat(n_runs), reduction="none")
    return each.view(n_runs, n_images).mean(dim=1)


def at_the_start(weights: Weights, x: Tensor, y: Tensor, skip: Tensor, norm: bool) -> list[Row]:
    """Measure how much of the gradient arrives, and how much the vectors grow."""
    scores, first, last = forward(weights, x[None], skip, norm=norm)
    total = losses(scores, y).sum()
    by_first, by_last = torch.autograd.grad(total, (first, last))
    lengths = [part.detach().double().flatten(1).norm(dim=1) for part in (first, last)]
    gradients = [part.double().flatten(1).norm(dim=1) for part in (by_first, by_last)]
    arrives, grows = gradients[0] / gradients[1], lengths[1] / lengths[0]
    return [
        {"arrives": rounded(a), "grows": rounded(g)}
        for a, g in zip(arrives.tolist(), grows.tolist(), strict=True)
    ]


def train(
    weights: Weights, x: Tensor, y: Tensor, skip: Tensor, norm: bool, rates: Tensor, recipe: Recipe
) -> None:
    """Train R networks at once with Adam, each at its own rate and on the same batches."""
    generator = torch.Generator().manual_seed(recipe.seed)
    (beta1, beta2), eps = recipe.betas, 1e-8
    means, squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    for step in range(1, recipe.steps + 1):
        some = torch.randint(len(x), (128,), generator=generator).to(x.device)
        scores, _, _ = forward(weights, x[some][None], skip, norm=norm)
        gradients = torch.autograd.grad(losses(scores, y[some]).sum(), weights)
        now = rates * min(1.0, step / max(recipe.warmup, 1))
        with torch.no_grad():
            torch._foreach_lerp_(means, gradients, 1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
            below = torch._foreach_sqrt(squares)
            torch._foreach_div_(below, math.sqrt(1 - beta2**step))
            torch._foreach_add_(below, eps)
            moves = torch._foreach_div(means, below)
            torch._foreach_mul_(moves, [now / (1 - beta1**step)] * len(moves))
            torch._foreach_sub_(weights, moves)


@torch.no_grad()
def judge(weights: Weights, x: Tensor, y: Tensor, skip: Tensor, norm: bool) -> tuple[Tensor, ...]:
    """Return the losses and the accuracies of R networks, ``(R,)`` each, on the CPU."""
    scores, _, _ = forward(weights, x[None], skip, norm=norm)
    right = (scores.argmax(dim=-1) == y).double().mean(dim=1)
    return losses(scores, y).cpu(), right.cpu()


def direction(weights: Weights, generator: torch.Generator) -> Weights:
    """Draw a direction for one network: each filter as long as its own, none for biases."""
    found = []
    for each in weights:
        drawn = torch.randn(each.shape, generator=generator).to(each.device)
        scale = each.norm(dim=-2, keepdim=True) / drawn.norm(dim=-2, keepdim=True)
        found.append(drawn * scale if each.shape[-2] > 1 else torch.zeros_like(each))
    return found


@torch.no_grad()
def surface(
    weights: Weights, x: Tensor, y: Tensor, skip: Tensor, norm: bool, side: int, seed: int
) -> list[list[float]]:
    """Compute the loss on a square of points around one network, a row of points at a time."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    across, down = direction(weights, generator), direction(weights, generator)
    places = torch.linspace(-REACH, REACH, side, device=x.device)[:, None, None]
    rows = []
    for place in places:
        moved = [w + places * a + place * d for w, a, d in zip(weights, across, down, strict=True)]
        scores, _, _ = forward(moved, x[None], skip, norm=norm)
        rows.append([rounded(loss) for loss in losses(scores, y).tolist()])
    return rows


def run_depth(
    depth: int, norm: str, options: Options, recipe: Recipe
) -> tuple[list[Row], list[Row]]:
    """Train all networks of one depth and one kind of norm, and draw around some of them.

    Args:
        depth: how many blocks they have.
        norm: one of ``NORMS``.
        options: the experiment's.
        recipe: how to train; rates and seeds are the runs' own.

    Returns:
        Rows of ``results.csv`` and of ``surfaces.csv``.
    """
    data, device = datasets.digits(), options.device
    x, new = (part.images.flatten(1).to(device) for part in (data.train, data.test))
    y, new_y = (part.labels.to(device) for part in (data.train, data.test))
    runs = plan_runs(options.seeds(5))
    skip = torch.tensor([float(s == "residual") for s in runs.shapes], device=device)[:, None, None]
    weights = [w.to(device) for w in first_weights(depth, runs.starts, runs.seeds)]
    for each in weights:
        each.requires_grad_()
    with_norm = norm == "layer"
    starts = at_the_start(weights, x, y, skip, with_norm)
    rates = torch.tensor(runs.rates, device=device)[:, None, None]
    train(weights, x, y, skip, with_norm, rates, recipe)
    found_losses, accuracies = judge(weights, x, y, skip, with_norm)
    _, tests = judge(weights, new, new_y, skip, with_norm)
    rows: list[Row] = [
        {"shape": runs.shapes[i], "norm": norm, "start": runs.starts[i], "depth": depth}
        | {"rate": runs.rates[i], "seed": runs.seeds[i], "loss": rounded(found_losses[i].item())}
        | {"accuracy": rounded(accuracies[i].item()), "test_accuracy": rounded(tests[i].item())}
        | starts[i]
        for i in range(len(runs.seeds))
    ]
    surfaces: list[Row] = []
    kept = options.pick(DRAWN_DEPTHS, (depth,))
    for shape, _, start in [kind for kind in DRAWN if kind[1] == norm and depth in kept]:
        rate = best_rate(rows, shape, start)
        for i, row in enumerate(rows):
            which = (row["shape"], row["start"], row["rate"])
            if which == (shape, start, rate) and row["seed"] < options.seed + N_DRAWN:
                own = [w[i : i + 1].detach() for w in weights]
                side = options.pick(SIDE, 3)
                drawn = surface(own, x, y, skip[i : i + 1], with_norm, side, row["seed"])
                surfaces += surface_rows(row, drawn)
    print(f"{depth} blocks, norm {norm}: {len(rows)} runs", flush=True)
    return rows, surfaces


def surface_rows(run: Row, drawn: list[list[float]]) -> list[Row]:
    """Make the rows of ``surfaces.csv`` for one network."""
    name = {key: run[key] for key in ("shape", "norm", "start", "depth", "rate", "seed")}
    return [
        name | {"row": j} | {f"x{k}": loss for k, loss in enumerate(line)}
        for j, line in enumerate(drawn)
    ]


def best_rate(rows: Sequence[Row], shape: str, start: str) -> float:
    """Return the rate with the lowest mean training loss; an overflow is the worst of all."""

    def loss(rate: float) -> float:
        found = [row["loss"] for row in rows_where(rows, shape=shape, start=start, rate=rate)]
        return mean(value if math.isfinite(value) else 1e9 for value in found)

    return min(RATES, key=loss)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write two tables."""
    options = read_options("surfaces", __doc__, arguments)
    torch.set_float32_matmul_precision("highest")  # a surface should not be rough by rounding
    recipe = constant_adam(options.n_steps(800), RATES[-1], betas=(0.9, 0.999))
    rows: list[Row] = []
    surfaces: list[Row] = []
    for depth, norm in product(options.pick(DEPTHS, (2,)), NORMS):
        found, drawn = run_depth(depth, norm, options, recipe)
        rows += found
        surfaces += drawn
    deepest = rows_where(rows, depth=max(row["depth"] for row in rows))
    metrics = {}
    for shape, norm, start in DRAWN:
        same = rows_where(deepest, norm=norm)
        rate = best_rate(same, shape, start)
        metrics[f"accuracy ({shape}, norm {norm}, start {start}, deepest)"] = mean_of(
            same, "accuracy", shape=shape, start=start, rate=rate
        )
    write_results(
        options, "digits.csv", ABOUT, metrics, recipe,
        tables={"results": rows, "surfaces": surfaces},
        more={"rates": RATES, "n_seeds": len(options.seeds(5))},
    )  # fmt: skip


if __name__ == "__main__":
    main()
