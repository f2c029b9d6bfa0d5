"""Does a deep model need warm-up? Eight set-ups, four depths, with and without it.

    python -m experiments.warmup

Small decoders learn Shakespeare's letters. Their norms stand after each sum (post), before each
sublayer with one more at the end (pre), before each sublayer without that last one, or nowhere;
what sublayers write begins as in 2017, or smaller; and RMSNorm is compared with LayerNorm. All runs
that differ only in learning rate, warm-up and seed are trained at once, as slices of larger
tensors. Everything else is the same in all runs.

A second, small part puts BatchNorm where a decoder of two blocks has LayerNorm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    merge_tables,
    read_options,
    rounded,
    rounded_row,
    side_by_side,
    texts,
    write_results,
)
from experiments.shared.ensembles import PARTS, Stacked
from transformer_lib import (
    STANDARD_PARTS,
    Block,
    CausalLM,
    FeedForward,
    MultiHeadAttention,
    Norm,
    NormPosition,
    Parts,
    Recipe,
    TextWindows,
    TransformerConfig,
    evaluate,
    learning_rate,
    train,
)

CHAPTER = "09b_before_or_after"
KINDS = (
    *("post", "pre", "post, small writes", "pre, no final norm", "pre, rms", "no norm"),
    *("no norm, small writes", "pre, small writes"),
)
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """Decoders of width 64 with four heads, sinusoidal positions, ReLU, no dropout, tied
        embeddings and the first weights of 2017 (Xavier). `post`: LayerNorm after each residual
        sum. `pre`: before each sublayer, and one after the last block. `post, small writes`: as
        `post`, but the last matrix of each sublayer starts divided by the root of the number of
        sublayers. `pre, no final norm`: as `pre` without that last one. `pre, rms`: as `pre` with
        RMSNorm. `no norm`: none at all. `no norm, small writes` and `pre, small writes`: as
        `no norm` and `pre`, with such small writes. Adam with the betas and the epsilon of 2017, no
        weight decay, no clipping. The learning rate rises in a straight line over `warmup` steps,
        or is there from the first step (`warmup` 0), and then stays.""",
    "How to read the tables": """`results.csv`: `loss` is that of new text after the training;
        `nan` means that the training ended in numbers that are none. `first` is the training loss
        of the first step. `curves.csv` has the training losses on the way: their mean, the lowest
        and the highest of the seeds. `streams.csv` has the root mean square of the stream after
        each block (0 is the embedding, `final` what the output layer reads) and `apart`, the part
        of its mean square that is left when the mean of all tokens is taken away; `gradients.csv`
        the decimal logarithm of the length of the gradient of each block's weights. Both are means
        over the seeds after `step` steps, for the two middle learning rates. `batchnorm.csv`: a
        pre-norm decoder of two blocks with LayerNorm or BatchNorm, by the number of windows in a
        batch; `loss` is that of new text with the running means of the training, `loss_batch` with
        the means of the batch itself, as in training.""",
    "Intended use": "Teaching: what the place of a norm does to a deep stack; what warm-up is for.",
    "Limits": """One width, one text, short trainings, a constant rate, no clipping. What a larger
        model needs may be different. The last two kinds were added in later runs of this script;
        repeated on the same kind of GPU, means of three seeds moved by 0.02 at most, and by more
        where seeds of one setting lie far apart.""",
}


class Subject(nn.Module):
    """A decoder that says what its loss is, and how large its stream is on the way.

    Args:
        kind: one of ``KINDS``.
        config: sizes; the norm is chosen by ``kind``.
    """

    def __init__(self, kind: str, config: TransformerConfig) -> None:
        super().__init__()
        position: NormPosition = "post" if kind.startswith("post") else "pre"
        norm: Norm = "rms" if kind == "pre, rms" else "layer"
        without = kind.startswith("no norm")
        parts = Parts(norm=lambda _: nn.Identity()) if without else PARTS
        self.lm = CausalLM(replace(config, norm=norm, norm_position=position), parts=parts)
        if kind == "pre, no final norm":
            self.lm.decoder.stack.final_norm = None
        blocks = [part for part in self.modules() if isinstance(part, Block)]
        for block in blocks if kind.endswith("small writes") else []:
            attention, network = block.attention, block.feed_forward
            assert isinstance(attention, MultiHeadAttention)
            assert isinstance(network, FeedForward)
            for writer in (attention.output, network.down):
                writer.weight.data /= math.sqrt(2 * config.n_layers)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Carry ids ``(B, T)`` through the model.

        Args:
            ids: the text.
            targets: the characters that follow, ``(B, T)``.

        Returns:
            The loss, and two measures of the stream as :func:`measure` takes them: of the
            embeddings, after each block, and of what the output layer reads, ``(n_layers + 2, 2)``.
        """
        embedding, stack = self.lm.decoder.embedding, self.lm.decoder.stack
        # Not by a call of the decoder, which would look at the ids: slices cannot be looked at.
        x = embedding.tokens(ids) * math.sqrt(self.lm.config.d_model)
        x = embedding.positions(x, torch.arange(ids.shape[1], device=ids.device)[None])
        found = [measure(x)]
        for block in stack.blocks:
            x = block(x, causal=True)
            found.append(measure(x))
        x = x if stack.final_norm is None else stack.final_norm(x)
        found.append(measure(x))
        logits = self.lm.output(x)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), torch.stack(found)


def measure(x: Tensor) -> Tensor:
    """Return the root mean square of a stream ``(B, T, D)``, and how much of it tells tokens apart.

    Args:
        x: the stream.

    Returns:
        Two numbers, ``(2,)``; the second is the part of the mean square that is left when the mean
        of all tokens is taken away: 0 if all tokens have the same vector.
    """
    square = x.square().mean()
    apart = (x - x.mean(dim=(0, 1))).square().mean() / square
    return torch.stack([square.sqrt(), apart]).detach()


@dataclass(frozen=True)
class Plan:
    """What the runs of one group have in common.

    Args:
        steps: how many updates.
        rates: learning rates.
        warmups: steps of warm-up.
        seeds: of weights and batches.
        batch_size: how many windows a step sees.
        n_tests: how many windows of new text the last loss is measured on.
        moments: the steps before which streams and gradients are measured.
        log_every: over how many steps a row of the curves is the mean.
        n_characters: how much of the text to read; all of it if ``None``.
        config: sizes of the model.
    """

    steps: int
    rates: tuple[float, ...]
    warmups: tuple[int, ...]
    seeds: tuple[int, ...]
    batch_size: int
    n_tests: int
    moments: tuple[int, ...]
    log_every: int
    n_characters: int | None
    config: TransformerConfig

    @property
    def runs(self) -> list[tuple[float, int, int]]:
        """Rate, warm-up and seed of each run."""
        return list(product(self.rates, self.warmups, self.seeds))


class Many(Stacked[tuple[Tensor, Tensor]]):
    """The runs of a plan, trained side by side.

    Args:
        kind: one of ``KINDS``.
        plan: what to train.
        device: where.
    """

    def __init__(self, kind: str, plan: Plan, device: str) -> None:
        subjects = {}
        for seed in plan.seeds:
            torch.manual_seed(seed)
            subjects[seed] = Subject(kind, plan.config).eval()
        super().__init__([subjects[seed] for _, _, seed in plan.runs], device)

    @torch.no_grad()
    def step(self, number: int, rates: Tensor, betas: tuple[float, float], eps: float) -> None:
        """Make one update of Adam, with a learning rate for each run, ``(runs,)``."""
        gradient, (mean, square) = self.flat.grad, self.moments
        assert gradient is not None
        mean.lerp_(gradient, 1 - betas[0])
        square.lerp_(gradient.square(), 1 - betas[1])
        root = (square / (1 - betas[1] ** number)).sqrt_().add_(eps)
        self.flat -= rates[:, None] * mean / (1 - betas[0] ** number) / root
        self.flat.grad = None

    @torch.no_grad()
    def gradients(self, n_layers: int) -> Tensor:
        """Return the length of the gradient of each block's weights, ``(runs, n_layers)``."""
        assert self.flat.grad is not None
        parts = self.named(self.flat.grad).items()
        found = []
        for i in range(n_layers):
            own = [part.flatten(1) for name, part in parts if f".blocks.{i}." in name]
            found.append(torch.cat(own, dim=1).norm(dim=1))
        return torch.stack(found, dim=1)


def batches(plan: Plan, known: Tensor, device: str) -> Tensor:
    """Draw where the windows of all steps begin, ``(steps, runs, B)``; a seed, a sequence."""
    drawn = {}
    for seed in plan.seeds:
        generator = torch.Generator().manual_seed(seed)
        last = len(known) - plan.config.max_len - 1
        drawn[seed] = torch.randint(last, (plan.steps, plan.batch_size), generator=generator)
    return torch.stack([drawn[seed] for _, _, seed in plan.runs], dim=1).to(device)


def windows(text: Tensor, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cut windows ``(..., T)`` and the characters that follow each of theirs."""
    cut = text[starts[..., None] + torch.arange(length + 1, device=text.device)]
    return cut[..., :-1], cut[..., 1:]


def run_group(kind: str, depth: int, plan: Plan, device: str) -> dict[str, list[Row]]:
    """Train all runs of one kind and depth.

    Args:
        kind: one of ``KINDS``.
        depth: how many blocks.
        plan: what to train.
        device: where to train.

    Returns:
        Rows of each table.
    """
    known, unknown, letters = texts(plan.n_characters)
    known, unknown = known.to(device), unknown.to(device)
    config = replace(plan.config, n_layers=depth, vocab_size=len(letters))
    plan = replace(plan, config=config)
    many, length = Many(kind, plan, device), config.max_len
    starts = batches(plan, known, device)
    recipe = Recipe(steps=plan.steps, learning_rate=1.0, schedule="constant")
    runs, losses, streams, gradients = plan.runs, [], {}, {}
    for step in range(1, plan.steps + 1):
        rates = [r * learning_rate(step, replace(recipe, warmup=w)) for r, w, _ in runs]
        loss, found = many(*windows(known, starts[step - 1], length))
        loss.sum().backward()
        losses.append(loss.detach())
        if step - 1 in plan.moments:
            streams[step - 1] = found.cpu()
            gradients[step - 1] = many.gradients(depth).cpu()
        many.step(step, torch.tensor(rates, device=device), (0.9, 0.98), 1e-9)
    return _tables(kind, depth, plan, torch.stack(losses).cpu(), streams, gradients) | {
        "results": _results(kind, depth, plan, many, unknown, losses[0].tolist())
    }


@torch.no_grad()
def _results(
    kind: str, depth: int, plan: Plan, many: Many, unknown: Tensor, first: list[float]
) -> list[Row]:
    """Measure the loss of new text, a part at a time."""
    length, found = plan.config.max_len, []
    starts = torch.arange(plan.n_tests, device=unknown.device) * length
    for part in starts.split(plan.batch_size):
        ids, targets = windows(unknown, part.expand(len(plan.runs), -1), length)
        found.append(many(ids, targets)[0] * len(part))
    losses = (torch.stack(found).sum(dim=0) / plan.n_tests).tolist()
    return [
        _run(kind, depth, *run) | {"first": rounded(begun), "loss": rounded(loss)}
        for run, begun, loss in zip(plan.runs, first, losses, strict=True)
    ]


def _tables(
    kind: str,
    depth: int,
    plan: Plan,
    losses: Tensor,
    streams: dict[int, Tensor],
    gradients: dict[int, Tensor],
) -> dict[str, list[Row]]:
    """Make the rows of the curves, the streams and the gradients."""
    curves = []
    for rate, warmup in product(plan.rates, plan.warmups):
        chosen = [i for i, run in enumerate(plan.runs) if run[:2] == (rate, warmup)]
        about = {"kind": kind, "depth": depth, "rate": rate, "warmup": warmup}
        for k, part in enumerate(losses[:, chosen].split(plan.log_every), start=1):
            seeds = part.double().mean(dim=0)  # one loss for each seed
            found = {"loss": seeds.mean(), "lowest": seeds.min(), "highest": seeds.max()}
            about |= {"step": min(k * plan.log_every, plan.steps)}
            curves.append(about | {name: rounded(float(v)) for name, v in found.items()})
    measured: dict[str, list[Row]] = {"streams": [], "gradients": []}
    for moment, rate, warmup in product(streams, plan.rates[-3:-1] or plan.rates, plan.warmups[:2]):
        chosen = [i for i, run in enumerate(plan.runs) if run[:2] == (rate, warmup)]
        about = {"kind": kind, "depth": depth, "rate": rate, "warmup": warmup, "step": moment}
        stream = streams[moment][chosen].double().mean(dim=0).tolist()
        for place, (size, apart) in zip([*range(depth + 1), "final"], stream, strict=True):
            found = {"block": place, "rms": rounded(size), "apart": rounded(apart)}
            measured["streams"].append(about | found)
        # Lengths differ by powers of ten: the mean of their logarithms.
        logs = gradients[moment][chosen].double().log10().mean(dim=0).tolist()
        for place, value in enumerate(logs, start=1):
            found = {"block": place, "log10": rounded(value)}
            measured["gradients"].append(about | found)
    return {"curves": curves} | measured


def _run(kind: str, depth: int, rate: float, warmup: int, seed: int) -> Row:
    return {"kind": kind, "depth": depth, "rate": rate, "warmup": warmup, "seed": seed}


class OverTheBatch(nn.Module):
    """BatchNorm of the features, over all tokens of all sequences of a batch."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each feature of ``x``, ``(B, T, D)``."""
        normed: Tensor = self.norm(x.flatten(0, 1)).view_as(x)
        return normed


def run_batch_norm(norm: str, batch_size: int, plan: Plan, seed: int, device: str) -> Row:
    """Train one decoder of two blocks with BatchNorm or with LayerNorm.

    Args:
        norm: ``"batch"`` or ``"layer"``.
        batch_size: how many windows a step sees.
        plan: sizes, and how many steps.
        seed: of weights and batches.
        device: where to train.

    Returns:
        A row of ``batchnorm.csv``.
    """
    known, unknown, letters = texts(plan.n_characters)
    length = plan.config.max_len
    torch.manual_seed(seed)
    config = replace(plan.config, vocab_size=len(letters), n_layers=2, norm_position="pre")
    parts = Parts(norm=OverTheBatch) if norm == "batch" else STANDARD_PARTS
    model = CausalLM(config, parts=parts).to(device)
    windows = TextWindows(known, length, batch_size, seed=seed)
    train(model, windows, constant_adam(plan.steps, 1e-3), device=device, progress=False)
    new = TextWindows(unknown[: plan.n_tests * length + 1], length, batch_size)
    found = {"loss": evaluate(model, new)["loss"], "loss_batch": _loss_in_training(model, new)}
    row: Row = {"norm": norm, "batch_size": batch_size, "seed": seed}
    return row | rounded_row(found)


@torch.no_grad()
def _loss_in_training(model: nn.Module, new: TextWindows) -> float:
    """Measure the loss of new text with the statistics of each batch, as in training."""
    model.train()
    total, count, device = 0.0, 0, next(model.parameters()).device
    for batch in new.one_pass():
        ids, targets = batch["ids"].to(device), batch["targets"].to(device).flatten()
        total += float(F.cross_entropy(model(ids).flatten(0, 1), targets, reduction="sum"))
        count += len(targets)
    return total / count


def make_plan(options: Options) -> tuple[Plan, tuple[int, ...]]:
    """Say what to train, and at which depths."""
    steps = options.n_steps(400)
    length, width = options.pick(64, 8), options.pick(64, 16)
    config = TransformerConfig(max_len=length, d_model=width, n_heads=4, dropout=0.0)
    plan = Plan(
        steps=steps,
        rates=options.pick((1e-4, 3e-4, 1e-3, 3e-3), (1e-3,)),
        warmups=(0, steps // 5, steps * 3 // 5) if steps >= 5 else (0, 2),
        seeds=tuple(options.seeds(3)),
        batch_size=options.pick(12, 2),
        n_tests=options.pick(512, 4),
        moments=(0, 1, 3, 10, 30, steps // 5, steps - 1) if steps > 150 else (0, steps - 1),
        log_every=max(steps // 20, 1),
        n_characters=options.pick(None, 2_000),
        config=config,
    )
    return plan, options.pick((18, 12, 6, 2), (2,))


def make_groups(depths: Sequence[int]) -> list[tuple[str, int]]:
    """Pair kinds and depths, the deepest first: two kinds at all depths, the others at some."""
    return [
        (kind, depth)
        for depth, kind in product(depths, KINDS)
        if kind in ("post", "pre") or depth in (depths[0], 6)
    ]


def summary(
    rows: Sequence[Row], depth: int, rate: float, warmups: Sequence[int]
) -> dict[str, float | str]:
    """Return the mean losses of one depth and rate; words where they are none, for JSON."""
    found: dict[str, float | str] = {}
    for kind, warmup in product(KINDS, warmups):
        if kind == "no norm":  # deep, it always ends in numbers that are none
            continue
        loss = mean_of(rows, "loss", kind=kind, depth=depth, rate=rate, warmup=warmup)
        name = f"loss_{kind}_{depth}_warmup_{warmup}".replace(",", "").replace(" ", "_")
        found[name] = loss if math.isfinite(loss) else "not a number"
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all groups side by side and write four tables."""
    options = read_options("warmup", __doc__, arguments)
    plan, depths = make_plan(options)
    groups = [(*each, plan, options.device) for each in make_groups(depths)]
    tables = merge_tables(side_by_side(run_group, groups, options))
    sizes = product(("layer", "batch"), options.pick((1, 4, 16), (2,)))
    few = [(*each, plan, seed, options.device) for each, seed in product(sizes, plan.seeds)]
    torch.set_float32_matmul_precision("highest")  # the published table was made with all bits
    tables["batchnorm"] = side_by_side(run_batch_norm, few, options)
    middle = plan.rates[-2] if len(plan.rates) > 1 else plan.rates[0]
    recipe = Recipe(
        steps=plan.steps, learning_rate=middle, warmup=plan.warmups[-1], schedule="constant",
        optimizer="adam", betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, clip=None,
    )  # fmt: skip
    lengths = {"d_model": plan.config.d_model, "length": plan.config.max_len, "depths": depths}
    choices = {"rates": plan.rates, "warmups": plan.warmups, "n_seeds": len(plan.seeds)}
    write_results(
        options, "shakespeare.txt", ABOUT,
        summary(tables["results"], depths[0], middle, plan.warmups), recipe, tables=tables,
        more=lengths | choices | {"batch_size": plan.batch_size},
    )  # fmt: skip


if __name__ == "__main__":
    main()
