"""What does the feed-forward network do for a language model? None at all, or one of six kinds.

    python -m experiments.activations

A small decoder learns Shakespeare's letters. Four questions, each a group of runs. `kind`: which
non-linearity, at equal parameters? `without`: no network at all, or its parameters spent on more
layers of attention? `share`: which part of a fixed budget should the network have? `width`: what
does a wider one bring? Everything else is the same in all runs; each has a process of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from experiments.decoders import Silent
from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    n_parameters,
    read_options,
    rounded_row,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from experiments.shared.loops import minimise
from transformer_lib import (
    Block,
    CausalLM,
    FeedForward,
    Recipe,
    modern_recipe,
)

CHAPTER = "08_feedforward"
WIDTH, LAYERS = 128, 2  # of the model that all others are compared with
LENGTH, BATCH = 128, 64
RATES = (1e-3, 3e-3, 1e-2, 3e-2)  # the second one for all groups
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": f"""A decoder of {LAYERS} pre-norm blocks of width {WIDTH} with 4 heads, RoPE, no
        biases, no dropout; Xavier's first weights (with those of GPT-2, which are small, gated
        networks start slowly: a product of two small numbers); AdamW. `kind` compares networks of
        equal parameters: two matrices with F = 4D, or three with F = 8D/3, rounded so that a block
        differs by less than 1 %. `linear` has no non-linearity, `bilinear` a gate without one.
        `without` takes the network out (`none`), and gives its parameters to more layers (`none,
        deeper`). `share` keeps the parameters of a block and changes D, and F with it. `width`
        changes F alone. For one seed all runs see the same batches.""",
    "How to read the tables": """`loss` is that of new text after the training, in nats per
        character; `training_loss` the mean of the last 20 steps; `active` the part of the inner
        units whose input is positive, the mean over new text and layers; `never` the part of
        units for which it never is; `parameters` all of the model's.""",
    "Intended use": "Teaching: what the feed-forward network is good for, and which one.",
    "Limits": f"""One small model, one text, {LENGTH} characters, a short training; four learning
        rates for the groups `kind` and `without`, one for the others. Differences of a hundredth
        between non-linearities say nothing about large models.""",
}


class Model(NamedTuple):
    """One of the models that are compared.

    Args:
        group: which question it belongs to.
        kind: its name within the group.
        d_model: D.
        d_ff: F.
        n_layers: how many blocks.
        activation: one of the library's, or ``"linear"``, ``"bilinear"`` or ``"none"``.
    """

    group: str
    kind: str
    d_model: int = WIDTH
    d_ff: int = 4 * WIDTH
    n_layers: int = LAYERS
    activation: str = "gelu"


def models(width: int = WIDTH) -> list[Model]:
    """List all models; those that take longest come first."""
    d, gated = width, round(8 * width / 3)
    without = [
        Model("without", "none, deeper", d, n_layers=3 * LAYERS, activation="none"),
        Model("without", "none", d, activation="none"),
    ]
    kinds = [Model("kind", name, d, 4 * d, activation=name) for name in ("relu", "gelu", "linear")]
    kinds += [
        Model("kind", name, d, gated, activation=name) for name in ("swiglu", "geglu", "bilinear")
    ]
    budget = 12 * d * d
    widths = [8 * round(part * d / 8) for part in (1.625, 1.25, 0.8125, 0.5)]
    share = [
        Model("share", f"D={w}", w, max(1, round((budget - 4 * w * w) / (2 * w)))) for w in widths
    ]
    width_of = [Model("width", f"F={part:g}D", d, int(part * d)) for part in (16, 2, 0.5, 0.125)]
    return without + kinds + share + width_of


def build(model: Model, vocab_size: int, length: int) -> CausalLM:
    """Make a decoder with new weights."""
    kind = model.activation
    plain: dict[str, Any] = {"linear": "gelu", "none": "gelu", "bilinear": "swiglu"}
    config = small_config(
        vocab_size=vocab_size,
        max_len=length,
        d_model=model.d_model,
        n_layers=model.n_layers,
        d_ff=model.d_ff,
        position="rope",
        activation=plain.get(kind, kind),
        bias=False,
        scale_embeddings=False,
        init="xavier",
    )
    made = CausalLM(config)
    for block in parts(made, Block):  # taken out afterwards: all draw the same first weights
        if kind == "none":
            block.feed_forward, block.feed_forward_norm = Silent(), nn.Identity()
    for network in parts(made, FeedForward):
        if kind in ("linear", "bilinear"):
            network.activation = _same
    return made


def parts(model: nn.Module, kind: type[Any]) -> list[Any]:
    """Return all modules of one kind, in the order of the layers."""
    return [part for part in model.modules() if isinstance(part, kind)]


def _same(x: Tensor) -> Tensor:
    return x


def learn(model: CausalLM, known: Tensor, length: int, batch: int, recipe: Recipe) -> list[float]:
    """Train a decoder on random windows of a text.

    Args:
        model: changed in place.
        known: the text as ids, on the model's device.
        length: how many characters a window has.
        batch: how many windows a step has.
        recipe: how to train.

    Returns:
        The loss of each step.
    """
    drawn = torch.Generator().manual_seed(recipe.seed)
    starts = torch.randint(len(known) - length, (recipe.steps, batch), generator=drawn)
    starts, window = starts.to(known.device), torch.arange(length + 1, device=known.device)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, recipe.learning_rate, recipe.betas)

    def loss_at(step: int) -> Tensor:
        text = known[starts[step - 1][:, None] + window]  # (B, T + 1)
        return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    return minimise(model, optimizer, recipe, loss_at, clip=1.0)


@torch.no_grad()
def judge(model: CausalLM, unknown: Tensor, length: int, n: int) -> Row:
    """Measure a decoder on new text.

    Args:
        model: the decoder.
        unknown: the new text as ids.
        length: how many characters a window has.
        n: how many windows to read.

    Returns:
        ``loss``, ``active`` and ``never``.
    """
    inputs: list[Tensor] = []
    hooks = [
        (network.gate or network.up).register_forward_hook(
            lambda _, __, out: inputs.append(out.flatten(0, 1) > 0)
        )
        for network in parts(model, FeedForward)
    ]
    text = unknown[: n * length + 1]
    ids, targets = text[:-1].view(n, length), text[1:].view(n, length)
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    for hook in hooks:
        hook.remove()
    found: Row = {"loss": float(loss), "active": "", "never": ""}
    if inputs:
        found["active"] = mean(float(part.double().mean()) for part in inputs)
        found["never"] = mean(float((~part.any(dim=0)).double().mean()) for part in inputs)
    return found


def run_one(
    model: Model, recipe: Recipe, length: int, batch: int, n_characters: int | None, device: str
) -> Row:
    """Train one decoder.

    Args:
        model: what it is made of.
        recipe: how to train; its seed is that of weights and batches, too.
        length: how many characters a window has.
        batch: how many windows a step has.
        n_characters: how much of the text to read; all of it if ``None``.
        device: where to train.

    Returns:
        A row of ``results.csv``.
    """
    known, unknown, characters = texts(n_characters)
    torch.manual_seed(recipe.seed)
    made = build(model, len(characters), length).to(device)
    losses = learn(made, known.to(device), length, batch, recipe)
    n = min(256, (len(unknown) - 1) // length)
    found = judge(made, unknown.to(device), length, n)
    run = {"group": model.group, "kind": model.kind, "seed": recipe.seed}
    run |= {"learning_rate": recipe.learning_rate}
    sizes = {"d_model": model.d_model, "d_ff": model.d_ff, "n_layers": model.n_layers}
    sizes["parameters"] = n_parameters(made)
    found["training_loss"] = mean(losses[-20:])
    return run | sizes | rounded_row(found)


def plan_of(options: Options, recipe: Recipe) -> list[tuple[Any, ...]]:
    """List all runs: four seeds; four learning rates where kinds are compared."""
    sizes = (*options.pick((LENGTH, BATCH, None), (16, 4, 2_000)), options.device)
    return [
        (model, replace(recipe, learning_rate=rate, seed=seed), *sizes)
        for model in models(options.pick(WIDTH, 32))
        for rate in options.pick(RATES, RATES[1:2])
        for seed in options.seeds(4)
        if rate == RATES[1] or model.group in ("kind", "without")
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write a table."""
    options = read_options("activations", __doc__, arguments)
    steps = options.n_steps(400)
    recipe = modern_recipe(steps, RATES[1], warmup=steps // 20)
    rows = side_by_side(run_one, plan_of(options, recipe), options)
    metrics = {
        f"loss ({kind})": mean_of(rows, "loss", group=group, kind=kind, learning_rate=RATES[1])
        for group, kind in dict.fromkeys((row["group"], row["kind"]) for row in rows)
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, tables={"results": rows},
        more={"n_seeds": len({row["seed"] for row in rows})},
    )  # fmt: skip


if __name__ == "__main__":
    main()
