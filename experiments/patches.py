"""Beyond text: what does a Transformer know of pictures, and what must it be told?

    python -m experiments.patches

Three groups of runs. `order`: Vision Transformers, a convolutional network and a plain network of
about the same size read digits as they are, with their patches moved about, and with their pixels
moved about. `data`: the same with fewer and fewer images. `domains`: one and the same stack of
blocks reads words, series, sets of points and graphs, with what tells it their structure and
without. Each kind of model is trained with several learning rates and seeds at once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import mean
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from experiments.digits import distort
from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    n_parameters,
    read_options,
    rows_where,
    side_by_side,
    small_config,
    write_results,
)
from experiments.shared.ensembles import Ensemble, learn, losses_of
from transformer_book import datasets
from transformer_book.datasets import LANGUAGES
from transformer_lib import (
    AddedPositions,
    CharTokenizer,
    Recipe,
    Stack,
    TransformerConfig,
    VisionTransformer,
    initialise,
    modern_recipe,
    next_positions,
)

CHAPTER = "18b_beyond_text"
Position = Literal["sinusoidal", "learned", "none"]
Part = tuple[Tensor, ...]  # inputs, and the targets last; one row for each example
ARRANGEMENTS = ("as they are", "patches moved", "pixels moved")
AMOUNTS = (50, 100, 200, 400, 800, 1197)
RATES = (1e-3, 3e-3, 1e-2)
IMAGE, PATCH = 8, 2
LONGEST = 48  # letters of a number's words; what is longer is cut
ABOUT = {
    "Task": """Digits of 8×8 pixels in, the digit out; and four other kinds of data: the letters of
        a number's words in, their language out (`words`); 64 measurements of an oscillation in
        noise, in 16 tokens of four, in: does it become faster or slower? (`series`); 24 points on
        the outline of a shape in, the shape out: circle, triangle, square or cross (`points`); a
        graph of 12 nodes, one of them marked, in: which nodes are within two steps of the mark?
        (`graph`).""",
    "Choices": """All models have about 58,000 parameters. The Vision Transformers (`vit`) have two
        pre-norm blocks of width 48 with four heads and GELU, a class token, patches of 2×2 pixels
        and learned positions; `vit, no positions` has none, `vit, grid` one table for rows and one
        for columns, `vit, pixels` a token for each pixel. `cnn` has three convolutions of 3×3 with
        32, 64 and 64 channels, `mlp` two hidden layers of 205 units. The other data are read by the
        same blocks behind another input layer. `signal` says what tells the model about the
        structure: positions for words and series, the edges as an attention mask for graphs,
        nothing for points. `moved` patches or pixels: one permutation for each seed, the same for
        all of its images. `distorted` images are turned, scaled and shifted a little, anew in each
        step. AdamW, weight decay 0.1, cosine, 64 examples a step; three learning rates.""",
    "How to read the tables": """`digits.csv`: `validation` is the part of the validation images
        that is right, arranged as in training; `as they are`, `patches moved` and `pixels moved`
        that of the test images, arranged so: a model is asked about all three. `n` is the number of
        training images, drawn at random for each seed. `domains.csv`: `validation` and `test`, the
        part of right answers (of nodes, for graphs); `most_common`, that of always giving the most
        common answer. `results.csv`: of each model the learning rate with the best validation, and
        the mean, least and largest test accuracy of its seeds.""",
    "Intended use": "Teaching: what is built into a model, and what it must learn or be told.",
    "Limits": """Very small images, very small models, little data. One mistake in the 400 test
        images is a quarter of a per cent. Nothing here says which kind of model wins with millions
        of images. The four other tasks are made up, or easy. The test part of `words` is every
        fourth example; since the file goes through the twelve languages in turn, nearly all of it
        is in three of them. The validation part, which chose the learning rate, has all.""",
}


class Reader(nn.Module):
    """The same stack of blocks for any data: a layer before it, a layer behind it.

    Args:
        inputs: turns what is read into vectors, ``(B, T, D)``.
        config: the stack's.
        n_classes: how many answers there are.
        pooled: whether the answer is about the whole, or about each token.
    """

    def __init__(
        self, inputs: nn.Module, config: TransformerConfig, n_classes: int, *, pooled: bool = True
    ) -> None:
        super().__init__()
        self.inputs, self.pooled = inputs, pooled
        self.positions = AddedPositions(config)
        self.stack = Stack(config, causal=False)
        self.classifier = nn.Linear(config.d_model, n_classes)
        initialise(self, config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score the answers.

        Args:
            x: the data, ``(B, T)`` or ``(B, T, C)``.
            mask: which tokens see which, broadcastable to ``(B, 1, T, T)``.

        Returns:
            Logits ``(B, n_classes)``, or ``(B, T, n_classes)`` for an answer about each token.
        """
        vectors = self.inputs(x)
        vectors = self.stack(self.positions(vectors, next_positions(vectors)), mask)
        if self.pooled:
            real = torch.ones_like(vectors[..., :1])
            if mask is not None:
                real = mask[:, 0, 0, :, None].to(vectors.dtype)  # (B, T, 1)
            vectors = (vectors * real).sum(dim=1) / real.sum(dim=1)
        logits: Tensor = self.classifier(vectors)
        return logits


class Grid(AddedPositions):
    """Positions in the plane: one table for the row, one for the column, added up."""

    def __init__(self, side: int, config: TransformerConfig) -> None:
        super().__init__(config)
        width = config.d_model
        self.rows = nn.Parameter(torch.randn(side, 1, width) / math.sqrt(2 * width))
        self.columns = nn.Parameter(torch.randn(1, side, width) / math.sqrt(2 * width))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add a position to all vectors but the class token's, the first."""
        places = (self.rows + self.columns).flatten(0, 1)  # (side · side, D)
        return x + F.pad(places, (0, 0, 1, 0))


def small(length: int, position: Position, width: int = 48) -> TransformerConfig:
    """Describe the stack that reads everything."""
    return small_config(max_len=length, d_model=width, position=position)


def vision(position: Position = "learned", patch: int = PATCH, grid: bool = False) -> nn.Module:
    """Make a Vision Transformer for digits."""
    side = IMAGE // patch
    config = small(side**2 + 1, position)
    model = VisionTransformer(config, IMAGE, patch, n_channels=1, n_classes=10)
    if grid:
        model.positions = Grid(side, config)
    return model


def convolutions() -> nn.Module:
    """Make a small convolutional network."""
    layers: list[nn.Module] = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 10))


def plain() -> nn.Module:
    """Make a network that knows nothing about pictures: each pixel is a feature."""
    widths = (IMAGE**2, 205, 205, 10)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": vision,
    "vit, no positions": lambda: vision("none"),
    "vit, grid": lambda: vision("none", grid=True),
    "vit, pixels": lambda: vision(patch=1),
    "cnn": convolutions,
    "mlp": plain,
}


class Run(NamedTuple):
    """A kind of model and what it is trained on.

    Args:
        group: ``"order"``, ``"data"``, ``"distorted"`` or ``"domains"``.
        model: a name of ``MODELS``, or a domain.
        arrangement: one of ``ARRANGEMENTS``; for domains, whether there is a signal.
        n: how many training images.
    """

    group: str
    model: str
    arrangement: str
    n: int = 1197


def move(images: Tensor, arrangement: str, seed: int) -> Tensor:
    """Move patches or pixels to other places, the same for all images ``(B, 1, 8, 8)``."""
    size = {"patches moved": PATCH, "pixels moved": 1}.get(arrangement, IMAGE)
    side = IMAGE // size
    drawn = torch.Generator().manual_seed(1_000 + seed)
    order = torch.randperm(side**2, generator=drawn)
    pieces = F.unfold(images, size, stride=size)  # (B, size · size, side · side)
    return F.fold(pieces[..., order], (IMAGE, IMAGE), size, stride=size)


def digit_parts(run: Run, seed: int) -> list[Part]:
    """Return training, validation, and the test part in each of ``ARRANGEMENTS``."""
    data = datasets.digits()
    drawn = torch.Generator().manual_seed(2_000 + seed)
    some = torch.randperm(len(data.train.labels), generator=drawn)[: run.n]
    parts = [(data.train.images[some], data.train.labels[some]), tuple(data.validation)]
    found: list[Part] = [(move(x, run.arrangement, seed), y) for x, y in parts]
    images, labels = data.test
    return found + [(move(images, each, seed), labels) for each in ARRANGEMENTS]


def words_task(n: int, seed: int) -> Part:
    """Letters of ``n`` number words or some more, what is real, and the language.

    Here ``seed`` says which part of the data: 0 training, 1 validation, 2 test.
    """
    parts = list(datasets.languages())
    rows, tokenizer = parts[seed], CharTokenizer.train([row.words for row in parts[0]])
    ids = torch.zeros(len(rows), LONGEST, dtype=torch.long)
    for i, row in enumerate(rows):
        letters = tokenizer.encode(row.words)[:LONGEST]
        ids[i, : len(letters)] = torch.tensor(letters)
    step = max(1, len(rows) // n)
    labels = torch.tensor([row.label for row in rows])
    return ids[::step], (ids != 0)[::step, None, None], labels[::step]


def series_task(n: int, seed: int) -> Part:
    """Oscillations in noise that become faster (1) or slower (0), as 16 tokens of 4."""
    drawn = torch.Generator().manual_seed(seed)
    time = torch.linspace(0, 1, 64)
    slow, fast, phase = (torch.rand(n, 1, generator=drawn) for _ in range(3))
    first, last = 2 + 2 * slow, 6 + 4 * fast  # turns over the whole stretch
    turns = first * time + (last - first) * time**2 / 2
    wave = torch.sin(2 * math.pi * (turns + phase))
    label = torch.randint(2, (n,), generator=drawn)
    wave = torch.where(label[:, None] == 1, wave, wave.flip(1))
    noise = torch.randn(n, 64, generator=drawn)
    return (wave + 0.7 * noise).unflatten(1, (16, 4)), label


def points_task(n: int, seed: int) -> Part:
    """24 points on the outline of a turned circle, triangle, square or cross, in any order."""
    drawn = torch.Generator().manual_seed(seed)
    label = torch.randint(4, (n,), generator=drawn)
    where = torch.rand(n, 24, generator=drawn)
    angle = 2 * math.pi * where
    circle = torch.stack((angle.cos(), angle.sin()), dim=-1)
    shapes = [circle, _outline(where, 3), _outline(where, 4)]
    arm = (2 * where - 1) * 1.2
    upright = torch.rand(n, 24, generator=drawn) < 0.5
    zero = torch.zeros_like(arm)
    shapes.append(torch.where(upright[..., None], _pair(zero, arm), _pair(arm, zero)))
    points = torch.stack(shapes, dim=1)[torch.arange(n), label]  # (n, 24, 2)
    turn = 2 * math.pi * torch.rand(n, 1, generator=drawn)
    x, y = points.unbind(dim=-1)
    points = _pair(x * turn.cos() - y * turn.sin(), x * turn.sin() + y * turn.cos())
    return points + 0.08 * torch.randn(points.shape, generator=drawn), label


def _pair(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack((x, y), dim=-1)


def _outline(where: Tensor, n_corners: int) -> Tensor:
    """Points on a regular polygon, by how far along its outline they are."""
    side = (where * n_corners).floor()
    part = (where * n_corners - side)[..., None]
    corners = [2 * math.pi * (side + i) / n_corners for i in (0, 1)]
    first, last = (_pair(angle.cos(), angle.sin()) for angle in corners)
    return (1 - part) * first + part * last


def graph_task(n: int, seed: int) -> Part:
    """A marked node of 12, who is whose neighbour as a mask, and who is within two steps."""
    drawn = torch.Generator().manual_seed(seed)
    edges = torch.rand(n, 12, 12, generator=drawn) < 0.13
    near = edges | edges.mT | torch.eye(12, dtype=torch.bool)  # everybody sees itself
    mark = F.one_hot(torch.randint(12, (n,), generator=drawn), 12)  # (n, 12)
    within = (near.float() @ near.float() @ mark[..., None].float()).squeeze(-1) > 0
    return mark, near[:, None], within.long()


@cache
def domain_parts(name: str, sizes: tuple[int, ...]) -> list[Part]:
    """Return the training, validation and test parts of a domain."""
    task = {"words": words_task, "series": series_task, "points": points_task, "graph": graph_task}
    return [task[name](n, seed) for seed, n in enumerate(sizes)]


def domain_model(name: str, signal: bool) -> nn.Module:
    """Make the model for a domain, with or without what tells it about the structure."""
    width = 48
    if name == "words":
        n = CharTokenizer.train([row.words for row in datasets.languages().train]).vocab_size
        config = small(LONGEST, "sinusoidal" if signal else "none")
        return Reader(nn.Embedding(n, width), config, len(LANGUAGES))
    if name == "series":
        return Reader(nn.Linear(4, width), small(16, "learned" if signal else "none"), 2)
    if name == "points":  # here it is the other way round: there is no order to tell about
        return Reader(nn.Linear(2, width), small(24, "none" if signal else "learned"), 4)
    return Reader(nn.Embedding(2, width), small(12, "none"), 2, pooled=False)


@torch.no_grad()
def shares_right(ensemble: Ensemble, parts: Sequence[Part]) -> list[float]:
    """Return which part of the answers each model gets right, about a part of its own."""
    stacked = [torch.stack(each).to(ensemble.flat.device) for each in zip(*parts, strict=True)]
    right = []
    for *inputs, targets in zip(*(each.split(250, dim=1) for each in stacked), strict=True):
        right.append((ensemble(*inputs).argmax(dim=-1) == targets).flatten(1))
    return [float(share) for share in torch.cat(right, dim=1).double().mean(dim=1)]


def run_one(
    run: Run,
    recipe: Recipe,
    rates: Sequence[float],
    seeds: Sequence[int],
    sizes: tuple[int, ...],
    batch: int,
    device: str,
) -> list[Row]:
    """Train one kind of model, with all learning rates and seeds.

    Args:
        run: which.
        recipe: how to train.
        rates: the learning rates.
        seeds: of the first weights, of the batches, and of what is moved about.
        sizes: how many examples a domain has for training, validation and test.
        batch: how many examples a step has.
        device: where to train.

    Returns:
        A row for each rate and seed.
    """
    plan = [(rate, seed) for rate in rates for seed in seeds]
    made, parts = [], []
    for _, seed in plan:
        torch.manual_seed(seed)
        if run.group == "domains":
            made.append(domain_model(run.model, run.arrangement == "signal"))
            parts.append([_seen(part, run) for part in domain_parts(run.model, sizes)])
        else:
            made.append(MODELS[run.model]())
            parts.append(digit_parts(run, seed))
    ensemble = Ensemble(made, [rate for rate, _ in plan], device)
    known = [torch.stack(each).to(device) for each in zip(*(p[0] for p in parts), strict=True)]
    picks = _picks([seed for _, seed in plan], recipe.steps, batch, known[-1].shape[1]).to(device)
    which = torch.arange(len(plan), device=device)[:, None]

    def batch_of(step: int) -> tuple[Tensor, ...]:
        *inputs, targets = (each[which, picks[step]] for each in known)
        if run.group == "distorted":
            images = distort(inputs[0].flatten(0, 1).cpu(), turn=12.0, stretch=0.2, shift=0.7)
            inputs = [images.view_as(inputs[0]).to(device)]
        return *inputs, targets

    torch.manual_seed(0)  # of what is distorted
    learn(ensemble, batch_of, losses_of, recipe)
    found = [shares_right(ensemble, each) for each in list(zip(*parts, strict=True))[1:]]
    return [
        _row(run, rate, seed, [shares[i] for shares in found], made[i], parts[i])
        for i, (rate, seed) in enumerate(plan)
    ]


def _seen(part: Part, run: Run) -> Part:
    """Leave the edges of a graph out if there is to be no signal."""
    if run.model == "graph" and run.arrangement != "signal":
        return part[0], torch.ones_like(part[1]), part[2]
    return part


def _picks(seeds: Sequence[int], steps: int, batch: int, n: int) -> Tensor:
    """Draw the examples of each step and model, ``(steps, R, B)``."""
    drawn = [
        torch.randint(n, (steps, batch), generator=torch.Generator().manual_seed(seed))
        for seed in seeds
    ]
    return torch.stack(drawn, dim=1)


def _row(
    run: Run, rate: float, seed: int, shares: list[float], model: nn.Module, parts: list[Part]
) -> Row:
    row: Row = {"group": run.group, "model": run.model}
    if run.group == "domains":
        row |= {"signal": int(run.arrangement == "signal")}
        answers = parts[2][-1].flatten()
        names = ["validation", "test"]
        more = {"most_common": float(answers.bincount().max() / answers.numel())}
    else:
        row |= {"arrangement": run.arrangement, "n": run.n}
        names, more = ["validation", *ARRANGEMENTS], {}
    row |= {"learning_rate": rate, "seed": seed, "parameters": n_parameters(model)}
    values = dict(zip(names, shares, strict=True)) | more
    return row | {name: round(value, 5) for name, value in values.items()}


def runs(tiny: bool) -> list[Run]:
    """List all kinds of runs; those that take longest come first."""
    if tiny:
        found = [Run("order", "vit", "patches moved", 40), Run("data", "cnn", ARRANGEMENTS[0], 40)]
        found += [Run("distorted", "mlp", ARRANGEMENTS[0], 40)]
        return found + [Run("domains", name, "signal") for name in ("words", "points", "graph")]
    names = ("words", "series", "points", "graph")
    found = [Run("domains", name, each) for name in names for each in ("signal", "none")]
    found += [Run("order", model, each) for model in MODELS for each in ARRANGEMENTS]
    some = ("vit", "cnn", "mlp")
    found += [Run("distorted", model, ARRANGEMENTS[0], n) for model in some for n in (100, 1197)]
    return found + [
        Run("data", model, ARRANGEMENTS[0], n)
        for model in ("vit", "vit, no positions", "cnn", "mlp")
        for n in AMOUNTS
    ]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Choose the learning rate with the best validation, and average the seeds' tests."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        kind = ("signal",) if row["group"] == "domains" else ("arrangement", "n")
        key = (row["group"], row["model"], *(row[name] for name in kind))
        groups.setdefault(key, []).append(row)
    found = []
    for (group, model, *rest), mine in groups.items():
        rates = dict.fromkeys(row["learning_rate"] for row in mine)  # in their order
        judged = {rate: mean_of(mine, "validation", learning_rate=rate) for rate in rates}
        rate = max(rates, key=judged.__getitem__)
        best = rows_where(mine, learning_rate=rate)
        tests = [row["test"] if group == "domains" else row[rest[0]] for row in best]
        found.append(
            {"group": group, "model": model, "kind": rest[0], "n": (*rest, "")[1]}
            | {"learning_rate": rate, "test": round(mean(tests), 5)}
            | {"least": min(tests), "largest": max(tests), "parameters": mine[0]["parameters"]}
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write three tables."""
    options = read_options("patches", __doc__, arguments)
    steps = options.n_steps(400)
    recipe = modern_recipe(steps, max(RATES), warmup=max(steps // 20, 1))
    plan = plan_of(options, recipe)
    rows = [row for found in side_by_side(run_one, plan, options) for row in found]
    digits = [row for row in rows if row["group"] != "domains"]
    best = summary(rows)
    metrics = {
        " ".join(str(row[name]) for name in ("group", "model", "kind", "n")).strip(): row["test"]
        for row in best
    }
    write_results(
        options,
        data="digits.csv",
        about=ABOUT,
        metrics=metrics,
        recipe=replace(recipe, learning_rate=RATES[1]),
        tables={
            "digits": digits,
            "domains": rows_where(rows, group="domains"),
            "results": best,
        },
        more={"rates": list(plan[0][2]), "n_seeds": len(plan[0][3])},
    )


def plan_of(options: Options, recipe: Recipe) -> list[tuple[Any, ...]]:
    """List the arguments of each run."""
    rates = options.pick(RATES, RATES[1:2])
    sizes = options.pick((2_000, 1_000, 2_000), (20, 10, 10))
    rest = (recipe, rates, options.seeds(5), sizes, options.pick(64, 4), options.device)
    return [(run, *rest) for run in runs(options.tiny)]


if __name__ == "__main__":
    main()
