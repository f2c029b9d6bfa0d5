"""What does the feed-forward network do for a language model? None, six kinds, or eight at once.

    python -m experiments.activations

A small decoder learns Shakespeare's letters. Five questions, each a group of runs. `kind`: which
non-linearity, at equal parameters? `without`: no network at all, or no attention, the parameters
spent on the other? `share`: which part of a fixed budget should the network have? `width`: what
does a wider one bring? `experts`: how does a mixture of eight share its work, with and without the
balance loss? Everything else is the same in all runs; each has a process of its own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
    rounded,
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
    MixtureOfExperts,
    Parts,
    Recipe,
    TransformerConfig,
    modern_recipe,
)

CHAPTER = "08_feedforward"
WIDTH, LAYERS = 128, 2  # of the model that all others are compared with
LENGTH, BATCH = 128, 64
EXPERTS = 8
RATES = (1e-3, 3e-3, 1e-2)  # the one in the middle for all groups
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
        biases, no dropout; Xavier's first weights (with those of GPT-2, which are small, gated
        networks start slowly: a product of two small numbers); AdamW. `kind` compares networks of
        equal parameters: two matrices with F = 4D, or three with F = 8D/3, rounded so that a block
        differs by less than 1 %. `linear` has no non-linearity, `bilinear` a gate without one.
        `without` takes the network out (`none`), and gives its parameters to more layers (`none,
        deeper`) or to a wider stream (`none, wider`); `no attention` gives those of attention to
        the network. `share` keeps the parameters of a block and changes D, and F with it. `width`
        changes F alone. `experts` has {EXPERTS} GELU networks: two of F = 2D for each token, or one
        of F = 4D, so that a token meets the same number of weights as with F = 4D. Its weights are
        scaled to sum to 1, but in `one expert, raw`, where what is said is multiplied by the
        router's probability (Switch Transformer). For one seed all runs see the same batches.""",
    "How to read the tables": """`loss` is that of new text after the training, in nats per
        character; `training_loss` the mean of the last 20 steps; `active` the part of the inner
        units whose input is positive, the mean over new text and layers; `never` the part of
        units for which it never is; `balance` the balance loss, the mean of the layers;
        `parameters` all of the model's. `experts.csv`: for each layer and expert the share of all
        choices and, in the other columns, which part of its tokens is of which class.
        `curves.csv`: training losses and balance losses on the way.""",
    "Intended use": "Teaching: what the feed-forward network is good for, and which one.",
    "Limits": f"""One small model, one text, {LENGTH} characters, a short training; three learning
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
        activation: one of the library's, or ``"linear"``, ``"bilinear"``, ``"none"``, or
            ``"no attention"``.
        active_experts: how many experts a token is sent to; 0 for one network without experts.
        balance: the weight of the balance loss.
        raw: whether what experts say is weighed with the router's own probabilities.
    """

    group: str
    kind: str
    d_model: int = WIDTH
    d_ff: int = 4 * WIDTH
    n_layers: int = LAYERS
    activation: str = "gelu"
    active_experts: int = 0
    balance: float = 0.0
    raw: bool = False


def models(width: int = WIDTH) -> list[Model]:
    """List all models; those that take longest come first."""
    d, gated = width, round(8 * width / 3)
    two: dict[str, Any] = {"d_ff": 2 * d, "active_experts": 2}
    one: dict[str, Any] = {"d_ff": 4 * d, "active_experts": 1, "balance": 0.01}
    experts = [
        Model("experts", "one expert", d, **one),
        Model("experts", "one expert, raw", d, raw=True, **one),
        Model("experts", "two experts", d, **two),
        Model("experts", "two experts, balanced", d, balance=0.01, **two),
    ]
    wide = 8 * round(math.sqrt(3) * d / 8)  # 4 D² for 12 D²; a multiple of 8: heads of even width
    without = [
        Model("without", "none, deeper", d, n_layers=3 * LAYERS, activation="none"),
        Model("without", "none, wider", wide, activation="none"),
        Model("without", "none", d, activation="none"),
        Model("without", "no attention", d, 6 * d, activation="no attention"),
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
    return experts + without + kinds + share + width_of


class Experts(MixtureOfExperts):
    """The library's mixture, computed in full: every expert reads every token.

    Most of it is thrown away, but nothing waits to learn which tokens go where, and on a GPU that
    is shared by many processes waiting is what takes time.

    Args:
        config: as for the library's.
        raw: whether to weigh with the router's own probabilities; as the library does if left out.
    """

    chosen: Tensor

    def __init__(self, config: TransformerConfig, *, raw: bool | None = None) -> None:
        super().__init__(config)
        self.raw = self.active_experts == 1 if raw is None else raw

    def forward(self, x: Tensor) -> Tensor:
        """Send each vector of ``x``, ``(..., D)``, to its experts and add up what they say."""
        probabilities = self.router(x).softmax(dim=-1)  # (..., E)
        weights, chosen = probabilities.topk(self.active_experts, dim=-1)  # (..., k)
        if not self.raw:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        picked = F.one_hot(chosen, EXPERTS).to(x.dtype)  # (..., k, E)
        share = picked.flatten(end_dim=-2).mean(dim=0)
        self.balance_loss = EXPERTS * (share * probabilities.flatten(end_dim=-2).mean(dim=0)).sum()
        self.chosen = chosen
        gates = (weights[..., None] * picked).sum(dim=-2)  # (..., E)
        nets: Any = self.experts
        read = torch.cat([net.up.weight for net in nets])  # (E F, D)
        write = torch.cat([net.down.weight for net in nets], dim=1)  # (D, E F)
        inner = nets[0].activation(x @ read.T).unflatten(-1, (EXPERTS, -1))  # (..., E, F)
        output: Tensor = (gates[..., None] * inner).flatten(start_dim=-2) @ write.T
        return output


def build(model: Model, vocab_size: int, length: int) -> CausalLM:
    """Make a decoder with new weights."""
    kind = model.activation
    plain: dict[str, Any] = {"linear": "gelu", "none": "gelu", "no attention": "gelu"}
    experts: dict[str, Any] = {}
    if model.active_experts:
        experts = {"n_experts": EXPERTS, "active_experts": model.active_experts}
    config = small_config(
        vocab_size=vocab_size,
        max_len=length,
        d_model=model.d_model,
        n_layers=model.n_layers,
        d_ff=model.d_ff,
        position="rope",
        activation=plain.get(kind, "swiglu" if kind == "bilinear" else kind),
        bias=False,
        scale_embeddings=False,
        init="xavier",
        **experts,
    )
    mixture = partial(Experts, raw=model.raw)
    made = CausalLM(config, parts=Parts(feed_forward=mixture) if experts else Parts())
    for block in parts(made, Block):  # taken out afterwards: all draw the same first weights
        if kind == "none":
            block.feed_forward, block.feed_forward_norm = Silent(), nn.Identity()
        elif kind == "no attention":
            block.attention, block.attention_norm = Silent(), nn.Identity()
    for network in parts(made, FeedForward):
        if kind in ("linear", "bilinear"):
            network.activation = _same
    return made


def parts(model: nn.Module, kind: type[Any]) -> list[Any]:
    """Return all modules of one kind, in the order of the layers."""
    return [part for part in model.modules() if isinstance(part, kind)]


def _same(x: Tensor) -> Tensor:
    return x


def learn(
    model: CausalLM, balance: float, known: Tensor, length: int, batch: int, recipe: Recipe
) -> tuple[list[float], list[float]]:
    """Train a decoder on random windows of a text.

    Args:
        model: changed in place.
        balance: the weight of the balance loss.
        known: the text as ids, on the model's device.
        length: how many characters a window has.
        batch: how many windows a step has.
        recipe: how to train.

    Returns:
        The loss and the balance loss of each step.
    """
    drawn = torch.Generator().manual_seed(recipe.seed)
    starts = torch.randint(len(known) - length, (recipe.steps, batch), generator=drawn)
    starts, window = starts.to(known.device), torch.arange(length + 1, device=known.device)
    mixtures = parts(model, MixtureOfExperts)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, recipe.learning_rate, recipe.betas)
    losses: list[Tensor] = []
    balances: list[Tensor] = []

    def loss_at(step: int) -> Tensor:
        text = known[starts[step - 1][:, None] + window]  # (B, T + 1)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        uneven = sum((part.balance_loss for part in mixtures), torch.zeros_like(loss))
        losses.append(loss.detach())
        balances.append(uneven.detach() / max(len(mixtures), 1))
        return loss + balance * uneven

    minimise(model, optimizer, recipe, loss_at, clip=1.0)
    return torch.stack(losses).tolist(), torch.stack(balances).tolist()


@torch.no_grad()
def judge(model: CausalLM, unknown: Tensor, length: int, n: int) -> Row:
    """Measure a decoder on new text.

    Args:
        model: the decoder.
        unknown: the new text as ids.
        length: how many characters a window has.
        n: how many windows to read.

    Returns:
        ``loss``, ``active``, ``never`` and ``balance``, and under ``experts`` what each was sent.
    """
    inputs: list[Tensor] = []
    single = [] if parts(model, MixtureOfExperts) else parts(model, FeedForward)
    hooks = [
        (network.gate or network.up).register_forward_hook(
            lambda _, __, out: inputs.append(out.flatten(0, 1) > 0)
        )
        for network in single
    ]
    text = unknown[: n * length + 1]
    ids, targets = text[:-1].view(n, length), text[1:].view(n, length)
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    for hook in hooks:
        hook.remove()
    found: Row = {"loss": float(loss), "active": "", "never": "", "balance": ""}
    if inputs:
        found["active"] = mean(float(part.double().mean()) for part in inputs)
        found["never"] = mean(float((~part.any(dim=0)).double().mean()) for part in inputs)
    mixtures = parts(model, MixtureOfExperts)
    if mixtures:
        found["balance"] = mean(float(part.balance_loss) for part in mixtures)
    return found | {"experts": [(ids.cpu(), part.chosen.cpu()) for part in mixtures]}


def sent(ids: Tensor, chosen: Tensor, characters: list[str]) -> list[Row]:
    """Say what each expert of a layer was sent.

    Args:
        ids: of the text, ``(B, T)``.
        chosen: the experts of each character, ``(B, T, k)``.
        characters: by their ids.

    Returns:
        For each expert its share of all choices, and the classes of its characters.
    """
    rows = []
    for expert in range(EXPERTS):
        own = ids[(chosen == expert).any(dim=-1)]
        row: Row = {"expert": expert, "share": float((chosen == expert).double().mean())}
        for name, belongs in CLASSES.items():
            members = torch.tensor([bool(belongs(c)) for c in characters])
            row[name] = float(members[own].double().mean()) if len(own) else 0.0
        rows.append(row)
    return rows


def run_one(
    model: Model, recipe: Recipe, length: int, batch: int, n_characters: int | None, device: str
) -> tuple[Row, list[Row], list[Row]]:
    """Train one decoder.

    Args:
        model: what it is made of.
        recipe: how to train; its seed is that of weights and batches, too.
        length: how many characters a window has.
        batch: how many windows a step has.
        n_characters: how much of the text to read; all of it if ``None``.
        device: where to train.

    Returns:
        A row of ``results.csv``, rows of ``experts.csv`` and rows of ``curves.csv``.
    """
    known, unknown, characters = texts(n_characters)
    torch.manual_seed(recipe.seed)
    made = build(model, len(characters), length).to(device)
    losses, balances = learn(made, model.balance, known.to(device), length, batch, recipe)
    n = min(256, (len(unknown) - 1) // length)
    found = judge(made, unknown.to(device), length, n)
    experts = found.pop("experts")
    run = {"group": model.group, "kind": model.kind, "seed": recipe.seed}
    run |= {"learning_rate": recipe.learning_rate}
    sizes = {"d_model": model.d_model, "d_ff": model.d_ff, "n_layers": model.n_layers}
    sizes["parameters"] = n_parameters(made)
    found["training_loss"] = mean(losses[-20:])
    row = run | sizes | rounded_row(found)
    shares = [
        run | {"layer": layer} | rounded_row(each)
        for layer, (ids, chosen) in enumerate(experts)
        for each in sent(ids, chosen, characters)
    ]
    every = max(recipe.steps // 20, 1)
    curve = [
        run | {"step": end, "loss": rounded(mean(losses[end - every : end]))}
        | {"balance": rounded(mean(balances[end - every : end])) if experts else ""}
        for end in range(every, recipe.steps + 1, every)
    ]  # fmt: skip
    return row, shares, curve


def plan_of(options: Options, recipe: Recipe) -> list[tuple[Any, ...]]:
    """List all runs: five seeds; three learning rates where kinds are compared."""
    sizes = (*options.pick((LENGTH, BATCH, None), (16, 4, 2_000)), options.device)
    return [
        (model, replace(recipe, learning_rate=rate, seed=seed), *sizes)
        for model in models(options.pick(WIDTH, 32))
        for rate in options.pick(RATES, RATES[1:2])
        for seed in options.seeds(5)
        if rate == RATES[1] or model.group in ("kind", "without")
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write three tables."""
    options = read_options("activations", __doc__, arguments)
    steps = options.n_steps(400)
    recipe = modern_recipe(steps, RATES[1], warmup=steps // 20)
    found = side_by_side(run_one, plan_of(options, recipe), options)
    rows = [row for row, _, _ in found]
    tables = {
        "results": rows,
        "experts": [row for _, shares, _ in found for row in shares],
        "curves": [row for _, _, curve in found for row in curve],
    }
    metrics = {
        f"loss ({kind})": mean_of(rows, "loss", group=group, kind=kind, learning_rate=RATES[1])
        for group, kind in dict.fromkeys((row["group"], row["kind"]) for row in rows)
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, tables=tables,
        more={"n_seeds": len({row["seed"] for row in rows})},
    )  # fmt: skip


if __name__ == "__main__":
    main()
