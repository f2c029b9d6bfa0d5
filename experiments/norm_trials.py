"""Do norms hold distributions still, and does it matter? And where do norms stand today?

    python -m experiments.norm_trials

Small decoders learn Shakespeare's letters. Part one follows what every sublayer reads while they
learn: with LayerNorm, without norms, and with LayerNorm whose output is moved and scaled at random,
anew at every step. Part two compares the places where norms stand in models of today. Runs that
differ only in learning rate, warm-up and seed are trained at once.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    merge_tables,
    read_options,
    rounded,
    side_by_side,
    texts,
    write_results,
)
from experiments.shared.ensembles import PlainRMSNorm, Stacked, plain_norm
from experiments.warmup import Many, Plan, batches, windows
from transformer_lib import (
    Block,
    CausalLM,
    FeedForward,
    MultiHeadAttention,
    NormPosition,
    Parts,
    Recipe,
    TransformerConfig,
    learning_rate,
)
from transformer_lib.layers.build_parts import make_attention
from transformer_lib.layers.qk_norm_softcap import BoundedAttention

CHAPTER = "09c_norms_in_practice"
NOISE = {"pre": 0.0, "pre, noise 0.5": 0.5, "pre, noise 1": 1.0, "no norm": 0.0}
NOISE |= {"no norm, small writes": 0.0}
PLACES: dict[str, tuple[NormPosition, bool]] = {
    "before": ("pre", False),
    "before, QK": ("pre", True),
    "around": ("both", False),
    "around, QK": ("both", True),
    "after": ("update", False),
    "after, QK": ("update", True),
}
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """Decoders of six blocks, width 64, four heads, sinusoidal positions, ReLU, no
        dropout, tied embeddings, initial weights of 2017 (Xavier). Adam with the betas and the
        epsilon of 2017, no weight decay, no clipping. The learning rate rises in a straight line
        over `warmup` steps, or is there from the first step (`warmup` 0), and then stays.
        Part one: `pre` has LayerNorm before each sublayer and one after the last block. In
        `pre, noise s` each feature that leaves a norm before a sublayer is multiplied by exp(s u)
        and moved by s v, with u and v drawn from the normal distribution anew at every step, the
        same for all tokens and all runs; new text is read without this noise. `no norm` has none at
        all; in `no norm, small writes` the last matrix of each sublayer starts divided by the root
        of the number of sublayers. Part two has RMSNorm: `before` the sublayer, `after` it and
        before the sum, `around` it (both); `QK`: queries and keys of each head have a norm,
        too.""",
    "How to read the tables": """`shift.csv`: for a step (`step`) and the measured step before it
        (`since`), `moved` is how far the mean of a feature of what a sublayer reads has moved, in
        standard deviations that the feature had before, and `scaled` the absolute logarithm (base
        2) of the ratio of its standard deviations; means over the 64 features of the 11 sublayers
        after the first, for the same texts. `results.csv`: `loss` is that of new text after the
        training, `trained` the mean training loss of the last tenth of the steps; `nan` means
        that a training ended in numbers that are none. `places.csv`: `loss` as before, `stream`
        the root mean square of the stream after the last block, `score` the largest size of a
        scaled score in any block for one batch of new text.""",
    "Intended use": "Teaching: whether norms keep distributions still, and where norms stand.",
    "Limits": "One width, one depth, one text, short trainings. Large models may differ.",
}


class Watched(nn.Module):
    """A norm that can disturb what it gives away, and remembers how that is distributed.

    Args:
        inner: the norm.
        width: over how many features.
    """

    gain: Tensor
    shift: Tensor

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("gain", torch.ones(width))
        self.register_buffer("shift", torch.zeros(width))
        self.seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x``, ``(..., D)``, and disturb it."""
        out: Tensor = self.inner(x) * self.gain + self.shift
        flat = out.detach().flatten(0, -2)
        self.seen = (flat.mean(dim=0), flat.std(dim=0, correction=0))
        return out

    def disturb(self, size: float, generator: torch.Generator) -> None:
        """Draw a new disturbance of some size; none if it is 0."""
        u, v = size * torch.randn(2, len(self.gain), generator=generator)
        self.gain.copy_(u.exp())
        self.shift.copy_(v)


def watched_norm(kind: str, config: TransformerConfig) -> nn.Module:
    """Make a norm for part one."""
    inner = nn.Identity() if kind.startswith("no norm") else plain_norm(config)
    return Watched(inner, config.d_model)


def normed_attention(config: TransformerConfig) -> MultiHeadAttention:
    """Make attention for part two, with norms that know many models."""
    attention = make_attention(config)
    if isinstance(attention, BoundedAttention):
        attention.query_norm, attention.key_norm = (
            PlainRMSNorm(attention.d_head, config.norm_eps) for _ in range(2)
        )
    return attention


class Subject(nn.Module):
    """A decoder that says what its loss is, and how its sublayers' inputs are distributed.

    Args:
        kind: a name of ``NOISE`` or of ``PLACES``.
        config: sizes.
    """

    def __init__(self, kind: str, config: TransformerConfig) -> None:
        super().__init__()
        if kind in PLACES:
            place, has_qk = PLACES[kind]
            config = replace(config, norm="rms", norm_position=place)
            config = replace(config, qk_norm="head") if has_qk else config
            parts = Parts(norm=plain_norm, attention=normed_attention)
        else:
            config = replace(config, norm_position="pre")
            parts = Parts(norm=partial(watched_norm, kind))
        self.lm = CausalLM(config, parts=parts)
        stack = self.lm.decoder.stack
        if kind not in PLACES:  # the final norm is neither disturbed nor watched
            assert isinstance(stack.final_norm, Watched)
            stack.final_norm = stack.final_norm.inner
        if kind == "no norm, small writes":
            for block in stack.blocks:
                assert isinstance(block, Block)
                assert isinstance(block.attention, MultiHeadAttention)
                assert isinstance(block.feed_forward, FeedForward)
                for writer in (block.attention.output, block.feed_forward.down):
                    writer.weight.data /= math.sqrt(2 * config.n_layers)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Carry ids ``(B, T)`` through the model.

        Args:
            ids: the text.
            targets: the characters that follow, ``(B, T)``.

        Returns:
            The loss, and the means and standard deviations of what each sublayer reads,
            ``(sublayers, 2, D)``; without watched norms an empty tensor.
        """
        embedding, stack = self.lm.decoder.embedding, self.lm.decoder.stack
        # Not by a call of the decoder, which would look at the ids: slices cannot be looked at.
        x = embedding.tokens(ids) * math.sqrt(self.lm.config.d_model)
        x = embedding.positions(x, torch.arange(ids.shape[1], device=ids.device)[None])
        for block in stack.blocks:
            x = block(x, causal=True)
        x = x if stack.final_norm is None else stack.final_norm(x)
        loss = F.cross_entropy(self.lm.output(x).flatten(0, 1), targets.flatten())
        seen = [torch.stack(norm.seen) for norm in watched(self) if norm.seen is not None]
        return loss, torch.stack(seen) if seen else loss.new_zeros(0)


def watched(model: nn.Module) -> list[Watched]:
    """Return the watched norms of a model, in the order in which they are asked."""
    return [part for part in model.modules() if isinstance(part, Watched)]


class Trials(Many):
    """The runs of a plan, trained side by side, by the optimizer of ``warmup``.

    Args:
        kind: a name of ``NOISE`` or of ``PLACES``.
        plan: what to train.
        device: where.
    """

    def __init__(self, kind: str, plan: Plan, device: str) -> None:
        subjects = {}
        for seed in plan.seeds:
            torch.manual_seed(seed)
            subjects[seed] = Subject(kind, plan.config).eval()
        Stacked.__init__(self, [subjects[seed] for _, _, seed in plan.runs], device)

    def alone(self, number: int) -> nn.Module:
        """Return one of the models."""
        own = {name: part[number].detach() for name, part in self.named(self.flat).items()}
        self.model.load_state_dict(own, strict=False)
        return self.model


def train(
    many: Trials, kind: str, plan: Plan, known: Tensor, device: str
) -> tuple[Tensor, dict[int, Tensor]]:
    """Train all runs.

    Args:
        many: the models.
        kind: a name of ``NOISE`` or of ``PLACES``.
        plan: how to train.
        known: the text to learn from.
        device: where.

    Returns:
        The training losses, ``(steps, runs)``, and by the number of updates made what the
        sublayers read of one text, ``(runs, sublayers, 2, D)``.
    """
    starts = batches(plan, known, device)
    probe = starts[:1].expand(len(plan.runs), -1, -1)[:, 0]  # the same texts for all runs
    recipe = Recipe(steps=plan.steps, learning_rate=1.0, schedule="constant")
    generator, losses, seen = torch.Generator().manual_seed(17), [], {}
    for step in range(plan.steps + 1):
        for norm in watched(many.model):
            norm.disturb(NOISE.get(kind, 0.0), generator)
        if step in plan.moments and kind in NOISE:
            with torch.no_grad():
                seen[step] = many(*windows(known, probe, plan.config.max_len))[1].cpu()
        if step == plan.steps:
            break
        loss, _ = many(*windows(known, starts[step], plan.config.max_len))
        loss.sum().backward()
        losses.append(loss.detach())
        factors = [r * learning_rate(step + 1, replace(recipe, warmup=w)) for r, w, _ in plan.runs]
        many.step(step + 1, torch.tensor(factors, device=device), (0.9, 0.98), 1e-9)
    for norm in watched(many.model):
        norm.disturb(0.0, generator)
    return torch.stack(losses).cpu(), seen


@torch.no_grad()
def new_losses(many: Trials, plan: Plan, unknown: Tensor) -> list[float]:
    """Measure each run's loss of new text."""
    length, found = plan.config.max_len, []
    starts = torch.arange(plan.n_tests, device=unknown.device) * length
    for part in starts.split(plan.batch_size):
        ids, targets = windows(unknown, part.expand(len(plan.runs), -1), length)
        found.append(many(ids, targets)[0] * len(part))
    losses: list[float] = (torch.stack(found).sum(dim=0) / plan.n_tests).tolist()
    return losses


def run_group(kind: str, plan: Plan, device: str) -> dict[str, list[Row]]:
    """Train all runs of one kind.

    Args:
        kind: a name of ``NOISE`` or of ``PLACES``.
        plan: what to train.
        device: where to train.

    Returns:
        Rows of each table.
    """
    known, unknown, letters = texts(plan.n_characters)
    known, unknown = known.to(device), unknown.to(device)
    plan = replace(plan, config=replace(plan.config, vocab_size=len(letters)))
    many = Trials(kind, plan, device)
    losses, seen = train(many, kind, plan, known, device)
    found = new_losses(many, plan, unknown)
    runs = [dict(zip(("rate", "warmup", "seed"), run, strict=True)) for run in plan.runs]
    if kind in PLACES:
        ids = windows(unknown, torch.arange(plan.batch_size, device=device) * 64, 64)[0]
        ids = ids[:, : plan.config.max_len]
        rows = [
            {"kind": kind} | run | {"loss": rounded(loss)} | sizes(many.alone(i), ids)
            for i, (run, loss) in enumerate(zip(runs, found, strict=True))
        ]
        return {"places": rows}
    last = losses[-max(plan.steps // 10, 1) :].double().mean(dim=0).tolist()
    results = [
        {"kind": kind} | run | {"loss": rounded(loss), "trained": rounded(end)}
        for run, loss, end in zip(runs, found, last, strict=True)
    ]
    return {"results": results, "shift": shifts(kind, runs, seen)}


def shifts(kind: str, runs: Sequence[Row], seen: dict[int, Tensor]) -> list[Row]:
    """Say how far distributions moved between measured steps, and from the first to the last."""
    steps, rows = list(seen), []
    pairs = [*pairwise(steps), (steps[0], steps[-1])]
    for since, step in dict.fromkeys(pairs):
        before, after = seen[since].double(), seen[step].double()  # (R, sublayers, 2, D)
        old, new = before[:, 1:], after[:, 1:]  # the first reads only what is embedded
        spread = old[:, :, 1].clamp(min=1e-9)
        moved = ((new[:, :, 0] - old[:, :, 0]).abs() / spread).mean(dim=(1, 2))
        scaled = (new[:, :, 1].clamp(min=1e-9) / spread).log2().abs().mean(dim=(1, 2))
        for run, far, wide in zip(runs, moved.tolist(), scaled.tolist(), strict=True):
            row: Row = {"kind": kind} | run | {"since": since, "step": step}
            rows.append(row | {"moved": rounded(far), "scaled": rounded(wide)})
    return rows


@torch.no_grad()
def sizes(model: nn.Module, ids: Tensor) -> Row:
    """Measure the stream and the largest score of one model."""
    assert isinstance(model, Subject)
    largest: list[float] = []

    def look(attention: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(attention, MultiHeadAttention)
        q = attention.project_queries(given[0])
        k, _ = attention.project_keys_values(given[0])
        scores = (q @ k.mT / math.sqrt(attention.d_head)).tril()  # the future is hidden
        largest.append(float(scores.abs().max()))

    embedding, stack = model.lm.decoder.embedding, model.lm.decoder.stack
    x = embedding.tokens(ids) * math.sqrt(model.lm.config.d_model)
    x = embedding.positions(x, torch.arange(ids.shape[1], device=ids.device)[None])
    for block in stack.blocks:
        assert isinstance(block, Block)
        handle = block.attention.register_forward_pre_hook(look)
        x = block(x, causal=True)
        handle.remove()
    stream = float(x.square().mean().sqrt())
    return {"stream": rounded(stream), "score": rounded(max(largest))}


def make_plans(options: Options) -> tuple[Plan, Plan]:
    """Say what to train in each of the two parts."""
    steps = options.n_steps(400)
    config = TransformerConfig(
        max_len=options.pick(64, 8), d_model=options.pick(64, 16), n_heads=4,
        n_layers=options.pick(6, 2), dropout=0.0,
    )  # fmt: skip
    first = Plan(
        steps=steps,
        rates=options.pick((3e-4, 1e-3), (1e-3,)),
        warmups=(0, max(steps // 5, 2)),
        seeds=tuple(options.seeds(5)),
        batch_size=options.pick(12, 2),
        n_tests=options.pick(512, 4),
        moments=(0, 1, 3, 10, 30, 100, 200, 201, 400) if steps == 400 else (0, 1, steps),
        log_every=max(steps // 20, 1),
        n_characters=options.pick(None, 2_000),
        config=config,
    )
    rates = options.pick((1e-3, 3e-3, 1e-2, 3e-2), (1e-3,))
    return first, replace(first, rates=rates, warmups=(max(steps // 10, 1),))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all groups side by side and write three tables."""
    options = read_options("norm_trials", __doc__, arguments)
    first, second = make_plans(options)
    groups = [(kind, first, options.device) for kind in NOISE]
    groups += [(kind, second, options.device) for kind in PLACES]
    tables = merge_tables(side_by_side(run_group, groups, options))
    rate, warmup = first.rates[-1], first.warmups[-1]
    metrics = {
        f"loss_{kind}_warmup_{w}".replace(",", "").replace(" ", "_"): mean_of(
            tables["results"], "loss", kind=kind, rate=rate, warmup=w
        )
        for kind in NOISE
        for w in first.warmups
    }
    recipe = Recipe(
        steps=first.steps, learning_rate=rate, warmup=warmup, schedule="constant",
        optimizer="adam", betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, clip=None,
    )  # fmt: skip
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, tables=tables,
        more={"rates": first.rates, "rates_of_places": second.rates, "n_seeds": len(first.seeds)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
