"""What does a mixture of experts need? Balance by nothing, by a loss, by a bias; finer experts.

    python -m experiments.experts

A small decoder learns Shakespeare's letters with one network, with one that is as large as all
experts together, and with mixtures whose letters meet as many parameters as the first. Three
mixtures differ in what keeps the loads even: nothing, a loss, or a bias on the scores of the
router. The last one has 32 small experts, and one more that reads every letter.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

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
from transformer_lib import CausalLM, FeedForward, Parts, Recipe, TransformerConfig, modern_recipe

CHAPTER = "08c_experts"
WIDTH, LAYERS = 128, 2
LENGTH, BATCH = 128, 64
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
BALANCE = 0.01  # the weight of the balance loss
PUSH = 0.02  # how far a bias moves in a step
CAPACITIES = (1.0, 1.25, 2.0)
CLASSES: dict[str, Callable[[str], bool]] = {  # of characters, for what an expert is sent
    "vowels": lambda c: c in "aeiou",
    "consonants": lambda c: c.islower() and c not in "aeiou",
    "capitals": str.isupper,
    "spaces": lambda c: c == " ",
    "line ends": lambda c: c == "\n",
    "others": lambda c: not (c.isalpha() or c.isspace()),
}
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": f"""A decoder of {LAYERS} pre-norm blocks of width {WIDTH} with 4 heads, RoPE, no
        biases, no dropout; Xavier's first weights; GELU; AdamW. In all mixtures a character meets
        as many parameters of the networks as with one network of F = 4D (the router apart): two of
        8 experts of F = 2D, or, in `small experts`, 7 of 32 experts of F = D/2 and one more that
        reads every character. The probabilities of the chosen experts are scaled to sum to 1.
        `balance loss` adds the loss of the Switch Transformer with the weight {BALANCE}; `bias` and
        `small experts` add a number to each logit for the choice alone, which rises by {PUSH} after
        a step in which its expert had less than an even share, and falls else. For one seed all
        runs see the same batches.""",
    "How to read the tables": """`loss` is that of new text after the training, in nats per
        character; `busiest` and `idlest` the largest and smallest share of the choices on new
        text, times the number of experts, the mean of the layers; `dropped_1` the part of the
        choices that do not fit if each expert takes an even share and no more (batches of 8,192
        characters), `dropped_1.25` and `dropped_2` with more room. `active` is the number of
        parameters that a character meets. `loads.csv`: for each layer and expert its share of the
        choices and, in the other columns, which part of its characters is of which class.
        `curves.csv`: the busiest expert's load on the way.""",
    "Intended use": "Teaching: how a mixture of experts is kept even, and what it brings.",
    "Limits": """One small model, one text, a short training, on one machine: what even loads save
        where experts are spread over machines does not show here.""",
}


class Kind(NamedTuple):
    """One of the models that are compared.

    Args:
        name: what the tables call it.
        d_ff: F of one network, as a multiple of D.
        n_experts: how many experts; none for one network.
        active: how many experts a character is sent to.
        balance: what keeps the loads even: ``""``, ``"loss"`` or ``"bias"``.
        shared: whether one more expert reads every character.
    """

    name: str
    d_ff: float
    n_experts: int = 0
    active: int = 0
    balance: str = ""
    shared: bool = False


KINDS = (
    Kind("small experts", 0.5, 32, 7, "bias", shared=True),
    Kind("bias", 2, 8, 2, "bias"),
    Kind("balance loss", 2, 8, 2, "loss"),
    Kind("no balance", 2, 8, 2),
    Kind("one network, F = 16D", 16),
    Kind("one network, F = 4D", 4),
)


class Experts(nn.Module):
    """A mixture of experts, computed in full: every expert reads every token.

    Most of it is thrown away, but nothing waits to learn which tokens go where, and on a GPU that
    is shared by many processes waiting is what takes time.

    Args:
        config: ``d_model`` is read.
        kind: the rest.
    """

    bias: Tensor
    chosen: Tensor
    balance_loss: Tensor

    def __init__(self, config: TransformerConfig, kind: Kind) -> None:
        super().__init__()
        d, f, n = config.d_model, round(kind.d_ff * config.d_model), kind.n_experts
        self.kind = kind
        self.router = nn.Linear(d, n, bias=False)
        self.up = nn.Parameter(torch.stack([_xavier(f, d) for _ in range(n)]))  # (E, F, D)
        self.down = nn.Parameter(torch.stack([_xavier(d, f) for _ in range(n)]))  # (E, D, F)
        self.shared = FeedForward(d, f, "gelu", bias=False) if kind.shared else None
        self.register_buffer("bias", torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        """Send each vector of ``x``, ``(..., D)``, to its experts and add up what they say."""
        logits = self.router(x)  # (..., E)
        probabilities = logits.softmax(dim=-1)
        self.chosen = (logits + self.bias).topk(self.kind.active, dim=-1).indices  # (..., k)
        picked = F.one_hot(self.chosen, self.kind.n_experts).sum(dim=-2).to(x.dtype)  # (..., E)
        gates = probabilities * picked
        gates = gates / gates.sum(dim=-1, keepdim=True)
        share = picked.flatten(end_dim=-2).mean(dim=0) / self.kind.active
        mean_probability = probabilities.flatten(end_dim=-2).mean(dim=0)
        self.balance_loss = self.kind.n_experts * (share * mean_probability).sum()
        self.share = share.detach()
        inner = F.gelu(x @ self.up.flatten(end_dim=1).T).unflatten(-1, (self.kind.n_experts, -1))
        output: Tensor = (gates[..., None] * inner).flatten(start_dim=-2)
        output = output @ self.down.mT.flatten(end_dim=1)
        return output if self.shared is None else output + self.shared(x)

    @torch.no_grad()
    def push(self) -> None:
        """Move the biases towards even loads, by a step of one size."""
        if self.kind.balance == "bias":
            self.bias += PUSH * torch.sign(1 / self.kind.n_experts - self.share)


def _xavier(n_out: int, n_in: int) -> Tensor:
    return nn.init.xavier_uniform_(torch.empty(n_out, n_in))


def build(kind: Kind, vocab_size: int, length: int, width: int = WIDTH) -> CausalLM:
    """Make a decoder with new weights."""
    config = small_config(
        vocab_size=vocab_size,
        max_len=length,
        d_model=width,
        n_layers=LAYERS,
        d_ff=round(kind.d_ff * width),
        position="rope",
        activation="gelu",
        bias=False,
        scale_embeddings=False,
        init="xavier",
    )
    mixture = Parts(feed_forward=partial(Experts, kind=kind)) if kind.n_experts else Parts()
    return CausalLM(config, parts=mixture)


def mixtures(model: nn.Module) -> list[Experts]:
    """Return all mixtures of a model, in the order of the layers."""
    return [part for part in model.modules() if isinstance(part, Experts)]


def n_active(model: CausalLM, kind: Kind) -> int:
    """Count the parameters that one character meets."""
    idle = sum(p.numel() for part in mixtures(model) for p in (part.up, part.down))
    return n_parameters(model) - round(idle * (1 - kind.active / max(kind.n_experts, 1)))


def learn(
    model: CausalLM, kind: Kind, known: Tensor, length: int, batch: int, recipe: Recipe
) -> list[Tensor]:
    """Train a decoder on random windows of a text; return the busiest load of each step."""
    drawn = torch.Generator().manual_seed(recipe.seed)
    starts = torch.randint(len(known) - length, (recipe.steps, batch), generator=drawn)
    starts, window = starts.to(known.device), torch.arange(length + 1, device=known.device)
    parts = mixtures(model)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, recipe.learning_rate, recipe.betas)
    busiest: list[Tensor] = []

    def loss_at(step: int) -> Tensor:
        text = known[starts[step - 1][:, None] + window]  # (B, T + 1)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        for part in parts:
            part.push()
            if kind.balance == "loss":
                loss = loss + BALANCE * part.balance_loss
        if parts:
            busiest.append(torch.stack([p.share.max() for p in parts]).mean() * kind.n_experts)
        return loss

    minimise(model, optimizer, recipe, loss_at, clip=1.0)
    return busiest


@torch.no_grad()
def judge(
    model: CausalLM, kind: Kind, unknown: Tensor, length: int, n: int, characters: list[str]
) -> tuple[Row, list[Row]]:
    """Measure a decoder on new text: a row, and a row for each expert."""
    text = unknown[: n * length + 1]
    ids, targets = text[:-1].view(n, length), text[1:].view(n, length)
    losses, chosen = [], []
    for some, wanted in zip(ids.split(BATCH), targets.split(BATCH), strict=True):
        logits = model(some)
        losses.append(F.cross_entropy(logits.flatten(0, 1), wanted.flatten()))
        chosen.append([part.chosen.flatten(end_dim=1) for part in mixtures(model)])
    found: Row = {"loss": float(torch.stack(losses).mean()), "busiest": "", "idlest": ""}
    found |= {f"dropped_{factor:g}": "" for factor in CAPACITIES}
    if not kind.n_experts:
        return found, []
    loads = [[_loads(picked, kind.n_experts) for picked in batch] for batch in chosen]
    overall = torch.stack([torch.stack(batch) for batch in loads]).mean(dim=0)  # (layers, E)
    found["busiest"] = float(overall.amax(dim=-1).mean()) * kind.n_experts
    found["idlest"] = float(overall.amin(dim=-1).mean()) * kind.n_experts
    for factor in CAPACITIES:
        over = [(load - factor / kind.n_experts).clamp(min=0).sum() for b in loads for load in b]
        found[f"dropped_{factor:g}"] = float(torch.stack(over).mean())
    rows: list[Row] = []
    for layer in range(LAYERS):
        picked = torch.cat([batch[layer] for batch in chosen]).cpu()  # (N, k)
        for expert in range(kind.n_experts):
            own = ids.flatten().cpu()[(picked == expert).any(dim=-1)]
            row: Row = {"layer": layer, "expert": expert, "share": float(overall[layer, expert])}
            for name, belongs in CLASSES.items():
                members = torch.tensor([bool(belongs(c)) for c in characters])
                row[name] = float(members[own].double().mean()) if len(own) else 0.0
            rows.append(row)
    return found, rows


def _loads(chosen: Tensor, n_experts: int) -> Tensor:
    return F.one_hot(chosen, n_experts).double().mean(dim=(0, 1))


def run_one(
    kind: Kind, recipe: Recipe, sizes: tuple[int, int, int, int | None], device: str
) -> tuple[Row, list[Row], list[Row]]:
    """Train one decoder; return rows of ``results``, ``loads`` and ``curves``."""
    width, length, batch, n_characters = sizes
    known, unknown, characters = texts(n_characters)
    torch.manual_seed(recipe.seed)
    model = build(kind, len(characters), length, width).to(device)
    busiest = learn(model, kind, known.to(device), length, batch, recipe)
    n = min(256, (len(unknown) - 1) // length)
    found, loads = judge(model, kind, unknown.to(device), length, n, characters)
    run = {"kind": kind.name, "seed": recipe.seed, "learning_rate": recipe.learning_rate}
    counted = {"parameters": n_parameters(model), "active": n_active(model, kind)}
    every = max(recipe.steps // 40, 1)
    ends = range(every, recipe.steps + 1, every) if busiest else ()
    means = [float(torch.stack(busiest[end - every : end]).mean()) for end in ends]
    pairs = zip(ends, means, strict=True)
    curve = [run | rounded_row({"step": end, "busiest": value}) for end, value in pairs]
    return run | counted | rounded_row(found), [run | rounded_row(row) for row in loads], curve


def plan_of(options: Options, recipe: Recipe) -> list[tuple[Any, ...]]:
    """List all runs."""
    sizes = options.pick((WIDTH, LENGTH, BATCH, None), (32, 16, 4, 2_000))
    return [
        (kind, replace(recipe, learning_rate=rate, seed=seed), sizes, options.device)
        for kind in KINDS
        for rate in options.pick(RATES, RATES[1:2])
        for seed in options.seeds(3)
    ]


def best_rate(rows: Sequence[Row], name: str) -> float:
    """Find the learning rate at which a kind has the lowest mean loss."""
    rates: set[float] = {row["learning_rate"] for row in rows}
    return min(rates, key=lambda rate: mean_of(rows, "loss", kind=name, learning_rate=rate))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write three tables."""
    options = read_options("experts", __doc__, arguments)
    steps = options.n_steps(400)
    recipe = modern_recipe(steps, RATES[1], warmup=steps // 20)
    found = side_by_side(run_one, plan_of(options, recipe), options)
    rows = [row for row, _, _ in found]
    best = {kind.name: best_rate(rows, kind.name) for kind in KINDS}
    tables = {
        name: [row for part in parts for row in part if row["learning_rate"] == best[row["kind"]]]
        for name, parts in (
            ("loads", [loads for _, loads, _ in found]),
            ("curves", [curve for _, _, curve in found]),
        )
    }
    metrics = {
        f"loss ({name})": mean_of(rows, "loss", kind=name, learning_rate=rate)
        for name, rate in best.items()
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, tables={"results": rows, **tables},
        more={"n_seeds": len({row["seed"] for row in rows}), "best_rates": best},
    )  # fmt: skip


if __name__ == "__main__":
    main()
