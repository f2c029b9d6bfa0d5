"""How does a model learn to repeat? Heads that look back, followed while they form.

    python -m experiments.induction

Small decoders read random symbols among which a passage comes twice, and guess the next one. They
have one layer or two, with a feed-forward network or without, and one kind has a single layer
whose keys are taken from the place before. Every few steps the loss on repeated symbols and the
weights of all heads are measured; at the end each head is taken out in turn.
"""

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from experiments.common import (
    Options,
    Row,
    constant_adam,
    read_options,
    side_by_side,
    write_csv,
    write_results,
)
from transformer_lib.attention import MultiHeadAttention
from transformer_lib.config import TransformerConfig
from transformer_lib.feedforward import FeedForward
from transformer_lib.heads import CausalLM
from transformer_lib.recipes import Recipe
from transformer_lib.tracing import attention_maps

N_SYMBOLS, LENGTH = 64, 48  # different ones, and of a sequence
SHORTEST, LONGEST = 8, 20  # of what comes twice
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
    "Task": f"""Sequences of {LENGTH} symbols out of {N_SYMBOLS}, all different, but for a passage
        of {SHORTEST} to {LONGEST} symbols that comes a second time, at the end. Where it stands the
        first time is random. Predict the next symbol. Once the first symbol of the passage has come
        again, the next ones can be known.""",
    "Choices": f"""Decoders of width {WIDTH} with {N_HEADS} heads in each layer, RoPE and pre-norm.
        Without a network means that the network's weights are zero and stay so. Shifted keys: the
        key of place t is computed from place t - 1; RoPE turns it as the key of place t.""",
    "How to read the tables": """`results.csv`: `repeated_loss` is the mean loss where the next
        symbol can be known, `new_loss` elsewhere. `previous` is the weight that the head of a layer
        puts on the place before, `induction` the weight on the place after the one where the same
        symbol stood before; both are means over places (the second one over those where the next
        symbol can be known), for the head of the model with the largest value. `heads.csv`: both
        scores for all heads at the end, and the losses when only that head is taken out.""",
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
    config = TransformerConfig(
        vocab_size=N_SYMBOLS,
        max_len=LENGTH,
        d_model=WIDTH,
        n_heads=N_HEADS,
        n_layers=kind.n_layers,
        d_ff=4 * WIDTH if kind.network else 1,
        dropout=0.0,
        position="rope",
        norm_position="pre",
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
    """Draw sequences in which a passage comes twice.

    Args:
        n: how many.
        generator: of random numbers.

    Returns:
        Symbols ``(n, LENGTH)``; where the passage comes again, ``(n, 1)``; and how many places
        before that it stood first, ``(n, 1)``.
    """
    size = torch.randint(SHORTEST, LONGEST + 1, (n, 1), generator=generator)
    between = (torch.rand(n, 1, generator=generator) * (LENGTH - 2 * size + 1)).long()
    symbols = torch.rand(n, N_SYMBOLS, generator=generator).argsort(dim=1)  # all different
    again, back = LENGTH - size, size + between
    places = torch.arange(LENGTH).expand(n, -1)
    return symbols.gather(1, torch.where(places < again, places, places - back)), again, back


@torch.no_grad()
def losses(model: CausalLM, ids: Tensor, again: Tensor) -> tuple[float, float]:
    """Return the mean loss where the next symbol can be known, and elsewhere."""
    found = F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], reduction="none").double()
    known = torch.arange(LENGTH - 1, device=ids.device) >= again
    return float(found[known].mean()), float(found[~known].mean())


def scores(weights: Tensor, again: Tensor, back: Tensor) -> tuple[list[float], list[float]]:
    """Return how much each head looks at the place before, and at what came next before.

    Args:
        weights: of one layer, ``(B, H, T, T)``.
        again: where the passage comes again, ``(B, 1)``.
        back: how many places before that it stood first, ``(B, 1)``.

    Returns:
        Two scores between 0 and 1 for each head.
    """
    places = torch.arange(weights.shape[2], device=weights.device)
    previous = weights.diagonal(offset=-1, dim1=2, dim2=3).mean(dim=(0, 2))
    known = places >= again  # (B, T)
    wanted = (places - back + 1).clamp(min=0)[:, None, :, None].expand(*weights.shape[:3], 1)
    hit = weights.gather(3, wanted)[..., 0] * known[:, None]  # (B, H, T)
    return previous.tolist(), (hit.sum(dim=(0, 2)) / known.sum()).tolist()


def without_each(model: CausalLM, ids: Tensor, again: Tensor, back: Tensor) -> list[Row]:
    """Score every head, and take it out: rows of ``heads.csv``."""
    rows: list[Row] = []
    maps = attention_maps(model, ids[:, :-1])
    parts = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    for layer, (part, weights) in enumerate(zip(parts, maps.values(), strict=True)):
        output, found = part.output.weight, scores(weights, again, back)
        for head, (previous, induction) in enumerate(zip(*found, strict=True)):
            kept = output.data
            output.data = kept.clone()
            output.data[:, head * WIDTH // N_HEADS : (head + 1) * WIDTH // N_HEADS] = 0
            repeated, new = losses(model, ids, again)
            output.data = kept
            row = {"layer": layer, "head": head, "previous": previous, "induction": induction}
            rows.append(row | {"repeated_loss": repeated, "new_loss": new})
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
    ids, again, back = (tensor.to(device) for tensor in tests)
    rows: list[Row] = []
    for step in range(recipe.steps + 1):
        if step % recipe.log_every == 0:
            repeated, new = losses(model, ids, again)
            found = [scores(w, again, back) for w in attention_maps(model, ids[:, :-1]).values()]
            previous, induction = (max(max(layer[i]) for layer in found) for i in (0, 1))
            row = {"kind": name, "seed": seed, "step": step, "repeated_loss": repeated}
            row |= {"new_loss": new, "previous": previous, "induction": induction}
            rows.append(_rounded(row))
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * min(
            (step + 1) / max(recipe.warmup, 1), 1.0
        )
        batch, _, _ = draw(options.pick(64, 8), drawn)
        batch = batch.to(device)
        loss = F.cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run = {"kind": name, "seed": seed}
    heads = [_rounded(run | row) for row in without_each(model, ids, again, back)]
    weights = {key: tensor.cpu() for key, tensor in model.state_dict().items()}
    return rows, heads, weights


def _rounded(row: Row) -> Row:
    return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs, write two tables, and keep one model."""
    options = read_options("induction", __doc__ or "", arguments)
    steps = options.n_steps(800)
    recipe = constant_adam(steps, log_every=options.pick(20, max(steps, 1)))
    order = sorted(KINDS, key=lambda name: -KINDS[name].n_layers)  # the longest runs come first
    plan = [
        (name, seed, recipe, options)
        for name in order
        for seed in range(options.seed, options.seed + options.pick(5, 1))
    ]
    found = side_by_side(run_one, plan, options)
    rows = [row for run in found for row in run[0]]
    write_csv(options.folder / "results.csv", rows)
    write_csv(options.folder / "heads.csv", [row for run in found for row in run[1]])
    last = [row for row in rows if row["step"] == steps]
    metrics = {
        f"{what} ({name})": mean(row[what] for row in last if row["kind"] == name)
        for name in KINDS
        for what in ("repeated_loss", "induction")
    }
    model = build(KINDS[SHIPPED], options.seed)
    model.load_state_dict(found[[each[:2] for each in plan].index((SHIPPED, options.seed))][2])
    write_results(
        options,
        data="random symbols among which a passage comes twice",
        about=ABOUT,
        metrics=metrics,
        recipe=recipe,
        model=model,
    )


if __name__ == "__main__":
    main()
