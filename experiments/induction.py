"""How does a model learn to repeat? Heads that look back, followed while they form.

    python -m experiments.induction

Small decoders read a passage of random symbols and then pieces of it, and guess the next one. They
have one layer or two, with a feed-forward network or without, and one kind has a single layer
whose keys are taken from the place before. Every few steps the answers within a piece and the
weights of all heads are measured; at the end each head is taken out in turn.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    read_options,
    rounded_row,
    side_by_side,
    small_config,
    write_results,
)
from experiments.shared.loops import minimise
from transformer_lib import CausalLM, FeedForward, MultiHeadAttention, Recipe, attention_maps

CHAPTER = "20_learned"
N_SYMBOLS, LENGTH = 32, 48  # different ones, and of a sequence
SHORTEST, LONGEST = 12, 20  # of the passage
GOING_ON = 0.8  # the probability that a piece does not end here
WIDTH, N_HEADS = 64, 4
SHIPPED = "two layers"


class Kind(NamedTuple):
    """One kind of model.

    Args:
        n_layers: how many blocks it has.
        network: whether they have feed-forward networks.
        shifted: whether the key of each place is that of the place before.
    """

    n_layers: int
    network: bool
    shifted: bool


KINDS = {
    "one layer": Kind(1, network=False, shifted=False),
    "one layer, with network": Kind(1, network=True, shifted=False),
    "one layer, keys shifted": Kind(1, network=False, shifted=True),
    "two layers": Kind(2, network=False, shifted=False),
    "two layers, with network": Kind(2, network=True, shifted=False),
}
ABOUT = {
    "Task": f"""Sequences of {LENGTH} symbols out of {N_SYMBOLS}. First a passage of {SHORTEST} to
        {LONGEST} symbols, all different. Then pieces of it: after each symbol the sequence goes on
        in the passage with probability {GOING_ON}, and else jumps to a random place of it (at the
        end of the passage, always). Predict the next symbol.""",
    "Choices": f"""Decoders of width {WIDTH} with {N_HEADS} heads in each layer, RoPE and pre-norm.
        Without a network means that the network's weights are zero and stay so. Shifted keys: the
        key of place t is computed from place t - 1; RoPE turns it as the key of place t.""",
    "How to read the tables": """`results.csv`: `right` is the share of right answers, and
        `going_on_loss` the mean loss, where a piece goes on; `other_loss` is that of all other
        places, where nobody can know the next symbol. `previous` is the weight a head puts on the
        place before, `induction` its weight on all places that come right after an earlier copy of
        the symbol at hand; both are means over places (the second one over those after the
        passage), for the head of the model with the largest value. `heads.csv`: both scores for all
        heads at the end, and the answers when only that head is taken out.""",
    "Intended use": "Teaching: watching an algorithm form, and testing which heads it needs.",
    "Limits": """A made-up task on which nothing else helps. One size, one recipe, five seeds. Text
        has other regularities, and models of text other heads.""",
}


class Shifted(nn.Module):
    """A projection whose result is moved by one place: place t gets that of place t - 1.

    Args:
        projection: makes the keys.
    """

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        """Project ``(B, T, D)`` and move it; the first place gets zeros."""
        return F.pad(self.projection(x), (0, 0, 1, 0))[:, :-1]


def build(kind: Kind, seed: int) -> CausalLM:
    """Make a model with new weights."""
    torch.manual_seed(seed)
    config = small_config(
        vocab_size=N_SYMBOLS,
        max_len=LENGTH,
        d_model=WIDTH,
        n_heads=N_HEADS,
        n_layers=kind.n_layers,
        d_ff=4 * WIDTH if kind.network else 1,
        position="rope",
        activation="relu",
        tie_embeddings=False,
    )
    model = CausalLM(config)
    for part in list(model.modules()):
        if isinstance(part, FeedForward) and not kind.network:
            for parameter in part.parameters():  # zeros that stay: nothing is added to the stream
                nn.init.zeros_(parameter).requires_grad_(False)
        if isinstance(part, MultiHeadAttention) and kind.shifted:
            part.key = Shifted(part.key)  # type: ignore[assignment]
    return model


def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw passages and pieces of them.

    Args:
        n: how many sequences.
        generator: of random numbers.

    Returns:
        Symbols ``(n, LENGTH)``; where the passage is over, ``(n, LENGTH)``; and where the next
        symbol is the next one of the passage again, ``(n, LENGTH - 1)``.
    """
    size = torch.randint(SHORTEST, LONGEST + 1, (n,), generator=generator)
    place = torch.zeros(n, dtype=torch.long)
    places = [place]
    for t in range(1, LENGTH):
        jumps = (torch.rand(n, generator=generator) > GOING_ON) | (place == size - 1)
        anywhere = (torch.rand(n, generator=generator) * size).long()
        place = torch.where((t >= size) & jumps, anywhere, place + 1)
        place = torch.where(size == t, anywhere, place)  # the first piece begins anywhere, too
        places.append(place)
    read = torch.stack(places, dim=1)
    symbols = torch.rand(n, N_SYMBOLS, generator=generator).argsort(dim=1)  # all different
    over = torch.arange(LENGTH) >= size[:, None]
    return symbols.gather(1, read), over, over[:, :-1] & (read.diff(dim=1) == 1)


@torch.no_grad()
def answers(model: CausalLM, ids: Tensor, goes_on: Tensor) -> Row:
    """Judge the answers where a piece goes on, and the loss elsewhere."""
    logits = model(ids[:, :-1])
    found = F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").double()
    right = (logits.argmax(dim=-1) == ids[:, 1:])[goes_on].double()
    return {
        "right": float(right.mean()),
        "going_on_loss": float(found[goes_on].mean()),
        "other_loss": float(found[~goes_on].mean()),
    }


def after_copies(ids: Tensor) -> Tensor:
    """Return which places come right after an earlier copy of each place's symbol, ``(B, T, T)``.

    Args:
        ids: symbols, ``(B, T)``.

    Returns:
        ``[b, t, s]`` is true if ``s - 1`` is before ``t`` and holds the same symbol.
    """
    copies = (ids[:, :, None] == ids[:, None, :]).tril(diagonal=-1)  # (B, T, T)
    return F.pad(copies, (1, 0))[:, :, :-1]


def scores(weights: Tensor, ids: Tensor, over: Tensor) -> tuple[list[float], list[float]]:
    """Return how much each head looks at the place before, and at what came after copies.

    Args:
        weights: of one layer, ``(B, H, T, T)``.
        ids: what was read, ``(B, T)``.
        over: the places to take the second score from, ``(B, T)``.

    Returns:
        Two scores between 0 and 1 for each head.
    """
    previous = weights.diagonal(offset=-1, dim1=2, dim2=3).mean(dim=(0, 2))
    hit = (weights * after_copies(ids)[:, None]).sum(dim=-1)  # (B, H, T)
    found = (hit * over[:, None]).sum(dim=(0, 2)) / over.sum()
    return previous.tolist(), found.tolist()


def without_each(model: CausalLM, ids: Tensor, over: Tensor, goes_on: Tensor) -> list[Row]:
    """Score every head, and take it out: rows of ``heads.csv``."""
    rows: list[Row] = []
    maps = attention_maps(model, ids[:, :-1])
    parts = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    for layer, (part, weights) in enumerate(zip(parts, maps.values(), strict=True)):
        output, found = part.output.weight, scores(weights, ids[:, :-1], over[:, :-1])
        for head, (previous, induction) in enumerate(zip(*found, strict=True)):
            kept = output.data
            output.data = kept.clone()
            output.data[:, head * WIDTH // N_HEADS : (head + 1) * WIDTH // N_HEADS] = 0
            row = {"layer": layer, "head": head, "previous": previous, "induction": induction}
            rows.append(row | answers(model, ids, goes_on))
            output.data = kept
    return rows


def run_one(
    name: str, seed: int, recipe: Recipe, options: Options
) -> tuple[list[Row], list[Row], dict[str, Tensor]]:
    """Train one model and watch it.

    Args:
        name: of its kind.
        seed: of weights and data.
        recipe: how long and how fast it learns.
        options: the experiment's.

    Returns:
        Rows of ``results.csv`` and of ``heads.csv``, and its weights.
    """
    device = options.device
    model = build(KINDS[name], seed).to(device)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learned, recipe.learning_rate, recipe.betas)
    drawn = torch.Generator().manual_seed(seed)
    tests = draw(options.pick(256, 8), torch.Generator().manual_seed(10_000 + seed))
    ids, over, goes_on = (tensor.to(device) for tensor in tests)
    rows: list[Row] = []

    def look(step: int) -> None:
        maps = attention_maps(model, ids[:, :-1])
        found = [scores(w, ids[:, :-1], over[:, :-1]) for w in maps.values()]
        previous, induction = (max(max(layer[i]) for layer in found) for i in (0, 1))
        row = {"kind": name, "seed": seed, "step": step} | answers(model, ids, goes_on)
        rows.append(rounded_row(row | {"previous": previous, "induction": induction}))

    def loss_at(step: int) -> Tensor:
        if (step - 1) % recipe.log_every == 0:
            look(step - 1)
        batch = draw(options.pick(64, 8), drawn)[0].to(device)
        return F.cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:])

    def rate(step: int, recipe: Recipe) -> float:
        return recipe.learning_rate * min(step / max(recipe.warmup, 1), 1.0)

    # One step more than the recipe has: what comes after its last one is looked at, too.
    minimise(model, optimizer, replace(recipe, steps=recipe.steps + 1), loss_at, rate=rate)
    run = {"kind": name, "seed": seed}
    heads = [rounded_row(run | row) for row in without_each(model, ids, over, goes_on)]
    weights = {key: tensor.cpu() for key, tensor in model.state_dict().items()}
    return rows, heads, weights


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs, write two tables, and keep one model."""
    options = read_options("induction", __doc__, arguments)
    torch.set_float32_matmul_precision("highest")  # the shipped model learned with all bits
    steps = options.n_steps(800)
    recipe = constant_adam(steps, log_every=options.pick(20, max(steps, 1)))
    order = sorted(KINDS, key=lambda name: -KINDS[name].n_layers)  # the longest runs come first
    plan = [(name, seed, recipe, options) for name in order for seed in options.seeds(5)]
    found = side_by_side(run_one, plan, options)
    rows = [row for run in found for row in run[0]]
    metrics = {
        f"{what} ({name})": mean_of(rows, what, kind=name, step=steps)
        for name in KINDS
        for what in ("right", "induction")
    }
    model = build(KINDS[SHIPPED], options.seed)
    model.load_state_dict(found[[each[:2] for each in plan].index((SHIPPED, options.seed))][2])
    write_results(
        options, "passages of random symbols, and pieces of them", ABOUT, metrics, recipe,
        model=model, tables={"results": rows, "heads": [row for run in found for row in run[1]]},
    )  # fmt: skip


if __name__ == "__main__":
    main()
