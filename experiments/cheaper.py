"""What does cheaper attention give up? Shared keys, windows, patterns and linear attention.

    python -m experiments.cheaper

Small decoders of one size guess the letters of Shakespeare, each with another kind of attention in
all its layers. A trained one then gets fewer heads for keys and values, and is trained a little
more. A second task asks only for memory: items with a name and a value, then names, whose values
are to be told. Each run has a process of its own.
"""

import operator
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    merge_tables,
    n_parameters,
    read_options,
    rounded,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from experiments.shared.loops import minimise, rise_and_fall
from transformer_lib import (
    CausalLM,
    MultiHeadAttention,
    Parts,
    Recipe,
    Stack,
    TextWindows,
    TransformerConfig,
    causal_mask,
    evaluate,
    make_attention,
    modern_recipe,
    train,
    window_mask,
)

CHAPTER = "17b_cheaper"
WINDOW = 16
KINDS = (
    "full",
    "2 kv heads",
    "1 kv head",
    "window 4",
    "window 8",
    "window 16",
    "window 32",
    "window and first",
    "strided",
    "fixed",
    "every other layer",
    "linear",
)
N_NAMES, N_VALUES, N_QUESTIONS, ITEM_WIDTH = 64, 16, 16, 32
# How the small models of the second task attend, and how many heads they have.
MEMORIES = {
    "full": ("full", 4),
    "1 kv head": ("1 kv head", 4),
    "window 16": ("window 16", 4),
    "strided": ("strided", 4),
    "linear, 4 heads": ("linear", 4),
    "linear, 1 head": ("linear", 1),
}
POOLINGS = ("mean", "first", "random")
ABOUT = {
    "Task": f"""`results.csv` and `conversion.csv`: the text so far in, the probabilities of its
        next character out. `recall.csv`: a list of items, each with one of {N_NAMES} names (all
        different) and one of {N_VALUES} values, then {N_QUESTIONS} names of the list; for each its
        value is to be told. Guessing gets one in {N_VALUES}.""",
    "Choices": f"""Language models of 4 pre-norm blocks, width 128, 8 heads, learned positions, no
        dropout, 256 characters. With fewer heads for keys and values the feed-forward network is
        wider, so that all have as many parameters (within 1 in 1,000). `window N` sees N
        keys, itself included; `window and first` a window of {WINDOW} and the first 4 characters;
        `strided` a window of {WINDOW} and every {WINDOW}th key before it; `fixed` its own block of
        {WINDOW} and the last key of each block before; `every other layer` a window of {WINDOW} in
        the first and third layer and everything in the others; `linear` replaces e^score by
        (elu(q) + 1) (elu(k) + 1), unscaled. In the second task a name and a value are added up
        within one place, there are no positions, two layers of width {ITEM_WIDTH}; strided: 8.""",
    "How to read the tables": """`results.csv`: `loss` is that of new text after the training,
        `pairs` how many pairs of query and key an average head computes, as a part of all that a
        causal mask allows. `conversion.csv`: the trained `full` models with `kv_heads`
        heads made from the eight by `pooling` (`mean` of each group, its `first` head, or new
        `random` weights), after `steps` more updates. `recall.csv`: which part of the answers is
        right, for several numbers of items, and `recall_curves.csv` by the distance between the
        question and the item in the longest lists.""",
    "Intended use": "Teaching: what each way to save costs, on text and where memory is all.",
    "Limits": """One size, one text, short contexts, one learning rate, three seeds. What hardly
        matters for 256 letters may matter for 100,000 words.""",
}


def pattern(kind: str, length: int, width: int = WINDOW) -> Tensor | None:
    """Return which keys each query may see; nothing if it may see all that came before.

    Args:
        kind: one of ``KINDS``.
        length: how many places there are.
        width: of the window, the stride and the blocks, where the kind does not say it.

    Returns:
        A mask ``(length, length)``, causal.
    """
    name, _, number = kind.partition(" ")
    past = causal_mask(length)
    i, j = torch.arange(length)[:, None], torch.arange(length)
    if name == "window" and number.isdigit():
        return past & window_mask(length, window=int(number))
    near = window_mask(length, window=width)
    if kind == "window and first":
        return past & (near | (j < 4))
    if kind == "strided":
        return past & (near | ((i - j) % width == 0))
    if kind == "fixed":
        return past & ((i // width == j // width) | (j % width == width - 1))
    if kind == "every other layer":
        return past & near
    return None


class Patterned(MultiHeadAttention):
    """Attention that sees only some keys, the same ones in all heads.

    Args:
        d_model: the width of the stream.
        n_heads: how many heads there are.
        allowed: which keys each query may see, ``(T, T)``.
    """

    allowed: Tensor

    def __init__(self, d_model: int, n_heads: int, allowed: Tensor) -> None:
        super().__init__(d_model, n_heads)
        self.register_buffer("allowed", allowed, persistent=False)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Attend to the allowed keys."""
        length = q.shape[2]
        allowed = self.allowed[None, None, :length, :length]
        return super().attend(q, k, v, allowed, bias, causal=causal)


class Linear(MultiHeadAttention):
    """Causal linear attention; by pairs, since the texts are short. No mask, no positions."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Mix the values of the past by products of positive features."""
        weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()  # (B, H, T, T)
        return weights @ v / weights.sum(dim=-1, keepdim=True)


def parts_of(kind: str, length: int, width: int = WINDOW) -> Parts:
    """Return the parts of a stack whose layers attend in one of the ``KINDS``."""
    allowed, layers = pattern(kind, length, width), count()

    def attention(config: TransformerConfig) -> nn.Module:
        whole = kind == "every other layer" and next(layers) % 2 == 1
        if kind == "linear":
            return Linear(config.d_model, config.n_heads)
        if allowed is None or whole:
            return make_attention(config)
        return Patterned(config.d_model, config.n_heads, allowed)

    return Parts(attention=attention)


def kv_heads(kind: str) -> int | None:
    """Return how many heads have keys and values of their own, if the kind says so."""
    return int(kind.split(maxsplit=1)[0]) if "kv head" in kind else None


def build(kind: str, vocab: int, length: int, sizes: tuple[int, int, int]) -> CausalLM:
    """Make a language model with new weights.

    Args:
        kind: how it attends.
        vocab: how many different characters there are.
        length: of its texts.
        sizes: width, heads, layers.

    Returns:
        The model. All kinds have the same number of parameters, but for some biases.
    """
    d_model, n_heads, n_layers = sizes
    own = kv_heads(kind)
    saved = 0 if own is None else (n_heads - own) * (d_model // n_heads)
    config = small_config(
        vocab_size=vocab,
        max_len=length,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=own,
        d_ff=4 * d_model + saved,  # what keys and values save goes to the feed-forward network
        n_layers=n_layers,
        position="learned",
        scale_embeddings=False,
        init="gpt2",
    )
    return CausalLM(config, parts=parts_of(kind, length))


def share_of_pairs(kind: str, length: int, n_layers: int) -> float:
    """Return how many of the causal pairs are computed; 0 for linear attention, which has none."""
    allowed = pattern(kind, length)
    if kind == "linear":
        return 0.0
    if allowed is None:
        return 1.0
    part = float(allowed.sum() / causal_mask(length).sum())
    full_layers = n_layers // 2 if kind == "every other layer" else 0
    return (part * (n_layers - full_layers) + full_layers) / n_layers


def run_text(kind: str, seed: int, recipe: Recipe, options: Options) -> dict[str, list[Row]]:
    """Train one language model.

    Args:
        kind: how it attends.
        seed: of weights and batches.
        recipe: how it learns; its seed is replaced.
        options: the experiment's.

    Returns:
        Rows of ``results.csv``, and of ``conversion.csv`` for the kind ``full``.
    """
    known, unknown, letters = texts(options.pick(None, 2_000))
    length = options.pick(256, 32)
    sizes = options.pick((128, 8, 4), (16, 8, 2))
    torch.manual_seed(seed)
    model = build(kind, len(letters), length, sizes)
    windows = TextWindows(known, length, batch_size=16, seed=seed)
    new = TextWindows(unknown, length, batch_size=128)
    train(model, windows, replace(recipe, seed=seed), device=options.device, progress=False)
    row: Row = {"kind": kind, "seed": seed, "loss": rounded(evaluate(model, new)["loss"])}
    row["pairs"] = rounded(share_of_pairs(kind, length, sizes[-1]))
    row["parameters"] = n_parameters(model)
    converted = convert_all(model, known, new, seed, options) if kind == "full" else []
    return {"results": [row], "conversion": converted}


# Fewer heads for keys and values, after the training


def pooled(model: CausalLM, n_kv_heads: int, pooling: str) -> CausalLM:
    """Make a model with fewer heads for keys and values from one with all of them.

    Args:
        model: the trained one.
        n_kv_heads: how many heads are to be left.
        pooling: one of ``POOLINGS``.

    Returns:
        A new model with the same weights elsewhere.
    """
    new = CausalLM(replace(model.config, n_kv_heads=n_kv_heads))
    weights = new.state_dict()
    for name, tensor in model.state_dict().items():
        if tensor.shape == weights[name].shape:
            weights[name] = tensor
            continue
        groups = tensor.unflatten(0, (n_kv_heads, -1, model.config.d_head))
        if pooling == "mean":
            weights[name] = groups.mean(dim=1).flatten(0, 1)
        elif pooling == "first":
            weights[name] = groups[:, 0].flatten(0, 1)
    new.load_state_dict(weights)
    return new.to(next(model.parameters()).device)


def convert_all(
    model: CausalLM, known: Tensor, new: TextWindows, seed: int, options: Options
) -> list[Row]:
    """Convert a trained model in several ways, and train each a little more."""
    rows: list[Row] = []
    plan = [(n, how) for n in (2, 1) for how in POOLINGS] + [(8, "mean")]
    for n_kv_heads, pooling in plan:
        torch.manual_seed(seed)
        changed = pooled(model, n_kv_heads, pooling)
        done = 0
        for steps in options.pick((0, 20, 60), (0, 2)):
            if steps > done:
                windows = TextWindows(known, model.config.max_len, 16, seed=1_000 + seed + done)
                recipe = constant_adam(steps - done, 3e-4, warmup=0, seed=seed)
                train(changed, windows, recipe, device=options.device, progress=False)
            done = steps
            loss = rounded(evaluate(changed, new)["loss"])
            run = {"seed": seed, "kv_heads": n_kv_heads, "pooling": pooling}
            rows.append(run | {"steps": steps, "loss": loss})
    return rows


# Memory alone


class Table(nn.Module):
    """Reads items, then questions, and tells values.

    Args:
        kind: how it attends.
        n_heads: how many heads it has.
        length: of the longest list with its questions.
    """

    def __init__(self, kind: str, n_heads: int, length: int) -> None:
        super().__init__()
        self.name = nn.Embedding(N_NAMES, ITEM_WIDTH)
        self.value = nn.Embedding(N_VALUES + 1, ITEM_WIDTH)  # the last one is a question mark
        heads = {"n_heads": n_heads, "n_kv_heads": kv_heads(kind)}
        config = small_config(d_model=ITEM_WIDTH, position="none", **heads)
        self.stack = Stack(config, causal=True, parts=parts_of(kind, length, width=8))
        self.answer = nn.Linear(ITEM_WIDTH, N_VALUES)

    def forward(self, names: Tensor, values: Tensor) -> Tensor:
        """Return logits for the questions at the end, ``(B, N_QUESTIONS, N_VALUES)``."""
        x = self.stack(self.name(names) + self.value(values))
        logits: Tensor = self.answer(x[:, -N_QUESTIONS:])
        return logits


def lists(
    n: int, n_items: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw lists and questions.

    Args:
        n: how many lists.
        n_items: how many items each has.
        generator: draws the random numbers.

    Returns:
        Names and values of all places ``(n, n_items + N_QUESTIONS)``, the answers, and how far back
        each lies, ``(n, N_QUESTIONS)``.
    """
    names = torch.rand(n, N_NAMES, generator=generator).argsort(dim=1)[:, :n_items]
    values = torch.randint(N_VALUES, (n, n_items), generator=generator)
    places = torch.randint(n_items, (n, N_QUESTIONS), generator=generator)
    unknown = torch.full((n, N_QUESTIONS), N_VALUES)
    distances = n_items + torch.arange(N_QUESTIONS) - places
    return (
        torch.cat([names, names.gather(1, places)], dim=1),
        torch.cat([values, unknown], dim=1),
        values.gather(1, places),
        distances,
    )


def run_recall(
    name: str, n_items: int, seed: int, recipe: Recipe, options: Options
) -> dict[str, list[Row]]:
    """Train one model to remember lists.

    Args:
        name: one of ``MEMORIES``.
        n_items: how long the lists are.
        seed: of weights and data.
        recipe: how long and how fast it learns.
        options: the experiment's.

    Returns:
        Rows of ``recall.csv`` and of ``recall_curves.csv``.
    """
    kind, n_heads = MEMORIES[name]
    torch.manual_seed(seed)
    model = Table(kind, n_heads, n_items + N_QUESTIONS)
    optimizer = torch.optim.Adam(model.parameters(), recipe.learning_rate, recipe.betas)
    drawn = torch.Generator().manual_seed(seed)

    def loss_at(_step: int) -> Tensor:
        names, values, answers, _ = lists(32, n_items, drawn)
        return F.cross_entropy(model(names, values).flatten(0, 1), answers.flatten())

    minimise(model, optimizer, recipe, loss_at, rate=rise_and_fall)
    names, values, answers, distances = lists(
        options.pick(500, 20), n_items, torch.Generator().manual_seed(10_000 + seed)
    )
    with torch.no_grad():
        right = (model(names, values).argmax(dim=-1) == answers).double()
    run: Row = {"kind": name, "items": n_items, "seed": seed}
    curves = []
    for first in range(1, n_items + N_QUESTIONS, 8):
        inside = (distances >= first) & (distances < first + 8)
        if inside.any():
            curve = {"first": first, "accuracy": rounded(float(right[inside].mean()))}
            curves.append(run | curve)
    row = run | {"accuracy": rounded(float(right.mean()))}
    return {"recall": [row], "recall_curves": curves}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write four tables."""
    options = read_options("cheaper", __doc__, arguments)
    steps = options.n_steps(700)
    recipe = modern_recipe(steps, 2e-3, warmup=steps // 20, checkpoint_every=10**6)
    recalling = constant_adam(options.n_steps(500), 3e-3)
    seeds = options.seeds(3)
    kinds = options.pick(KINDS, ("full", "2 kv heads", "strided", "linear"))
    memories = options.pick(tuple(MEMORIES), ("full", "linear, 1 head"))
    counts = options.pick((64, 32, 16, 4), (8,))
    plan: list[tuple[Any, ...]] = [
        (run_text, kind, seed, recipe, options) for kind in kinds for seed in seeds
    ]
    plan += [
        (run_recall, name, n, seed, recalling, options)
        for n in counts
        for name in memories
        for seed in seeds
    ]
    tables = merge_tables(side_by_side(operator.call, plan, options))
    metrics = {
        f"loss_{kind}".replace(" ", "_"): mean_of(tables["results"], "loss", kind=kind)
        for kind in kinds
    }
    metrics |= {
        f"recall_{max(counts)}_{name}".replace(" ", "_").replace(",", ""): mean_of(
            tables["recall"], "accuracy", kind=name, items=max(counts)
        )
        for name in memories
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, tables=tables,
        more={"n_seeds": len(seeds), "window": WINDOW},
    )  # fmt: skip


if __name__ == "__main__":
    main()
