"""How many heads does it take? Two questions at once, and trained models that lose their heads.

    python -m experiments.heads

First a task that asks for two things at one position, learned with one head and with more, narrow
and wide. Then the trained models of the book: every head is taken out alone, in two ways, and then
one after the other, always the one that is needed least. Last, how far the heads of the language
model share the directions that they read and write. Each small run has a process and a CPU core of
its own; the trained models are measured on the GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from experiments.shared.common import (
    ROOT,
    Options,
    Row,
    mean_of,
    n_parameters,
    read_options,
    side_by_side,
    write_results,
)
from experiments.shared.loops import minimise, rise_and_fall
from transformer_book import datasets
from transformer_lib import (
    Batch,
    Batches,
    MultiHeadAttention,
    Recipe,
    TextWindows,
    Tokenizer,
    attention,
    classification_batch,
    load_model,
)
from transformer_lib import translation_batch as translated

CHAPTER = "06b_trained_heads"
N_NAMES, N_VALUES, N_ITEMS = 16, 8, 8
WIDTH = 32
BATCH = 128
N_SAMPLES = 2_000  # drawn with replacement, for an interval
N_RANDOM = 200  # layers of random heads, for a baseline
SHARE = 0.99  # of the inputs' variance, in the span of a layer's inputs
# Heads, width of a head, and what reads the answers from what the heads found.
PLAN = [(h, WIDTH // h, "linear") for h in (1, 2, 4, 8, 16, 32)]
PLAN += [(h, WIDTH, "linear") for h in (2, 4, 8)]
PLAN += [(h, WIDTH // h, "hidden layer") for h in (1, 2, 4)]
ABOUT = {
    "Task": f"""`results.csv`: {N_ITEMS} items lie on a table, each with one of {N_NAMES} names (all
        different) and one of {N_VALUES} values. One position asks for the values of two names at
        once; the answer is right if both are, in the order of the question. Guessing gets one in
        {N_VALUES**2}. `single.csv` and `greedy.csv`: the trained models of the book without some
        of their heads. `spans.csv`: how far the heads of the language model share directions.""",
    "Choices": f"""One layer of attention of width {WIDTH} without a residual path: whatever is
        known about the items has come through the heads. Heads are as narrow as usual
        ({WIDTH} / heads) or {WIDTH} wide each. What the heads found is read by a linear layer or
        by a network with a hidden layer. `distance` is the mean, over all pairs of heads, of half
        the sum of the absolute differences of their weights: 0 for equal heads, 1 for heads that
        never look at the same item. Nothing is trained after a head has been taken out. In
        `single.csv` what a head found is replaced by zeros (`zero`) or by its mean over another
        part of the data (`mean`). `rise` is the rise of the loss as a share of the whole model's,
        `fall` the fall of the share of right answers; `low` and `high` bound the middle 95% of
        {N_SAMPLES:,} paired samples of the texts, drawn with replacement. In `greedy.csv` heads
        are replaced by zeros; which one goes is decided on one part of the data
        (`loss_chosen_by`), and the loss is measured on another (`loss`).""",
    "How to read spans.csv": f"""`heads` is the mean overlap of two heads of a layer, 0 for
        orthogonal and 1 for equal; `random` is the mean of {N_RANDOM} layers of Gaussian heads,
        with the middle 95% of them (`low`, `high`). `space` says where. `all`: subspaces of all
        directions. `span`: subspaces of the first principal components, `dimensions` of them,
        which hold {SHARE:.0%} of the variance of the layer's inputs (for outputs: of the rows of
        the output matrix, times the last gain, of the letters that come next). `weighted`: each
        direction counts by how much a head makes of it and, for what is read, by how far the
        inputs vary along it (the cosine between W' C W of two heads, C the covariance).""",
    "Intended use": "Teaching: what several heads are good for, and how many are needed.",
    "Limits": """One made-up task, one width and one recipe; three small models, one training run
        each. The intervals are over texts, one head at a time; windows of one play are not quite
        independent. Greedy removal is no search for the best set of heads, and retraining would
        save more of them.""",
}


class Questions(NamedTuple):
    """A batch of tables and questions.

    Args:
        names: of the items, ``(B, N_ITEMS)``.
        values: of the items, ``(B, N_ITEMS)``.
        asked: the two names that are asked for, ``(B, 2)``.
        places: where they lie, ``(B, 2)``.
        answers: their values, ``(B, 2)``.
    """

    names: Tensor
    values: Tensor
    asked: Tensor
    places: Tensor
    answers: Tensor


def questions(n: int, generator: torch.Generator) -> Questions:
    """Draw tables and two different items of each."""
    names = torch.rand(n, N_NAMES, generator=generator).argsort(dim=1)[:, :N_ITEMS]
    values = torch.randint(N_VALUES, (n, N_ITEMS), generator=generator)
    places = torch.rand(n, N_ITEMS, generator=generator).argsort(dim=1)[:, :2]
    return Questions(names, values, names.gather(1, places), places, values.gather(1, places))


class TwoAnswers(nn.Module):
    """One layer of attention from one question to all items.

    Args:
        n_heads: how many heads.
        d_head: the width of each, free of the width of the model.
        reader: ``"linear"`` or ``"hidden layer"``.
    """

    def __init__(self, n_heads: int, d_head: int, reader: str) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.name, self.first, self.second = (nn.Embedding(N_NAMES, WIDTH) for _ in range(3))
        self.what = nn.Embedding(N_VALUES, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, n_heads * d_head) for _ in range(3))
        self.output = nn.Linear(n_heads * d_head, WIDTH)
        self.reader: nn.Module = nn.Linear(WIDTH, 2 * N_VALUES)
        if reader == "hidden layer":
            last = nn.Linear(4 * WIDTH, 2 * N_VALUES)
            self.reader = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), last)

    def forward(self, names: Tensor, values: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits ``(B, 2, N_VALUES)`` and the weights ``(B, H, N_ITEMS)``."""
        items = self.name(names) + self.what(values)  # (B, N_ITEMS, D)
        question = (self.first(asked[:, 0]) + self.second(asked[:, 1]))[:, None]  # (B, 1, D)
        q, k, v = self._split(question, items)
        found, weights = attention(q, k, v)  # (B, H, 1, Dk), (B, H, 1, N_ITEMS)
        answers = self.reader(self.output(found.flatten(start_dim=1)))
        return answers.unflatten(-1, (2, N_VALUES)), weights[:, :, 0]

    def _split(self, question: Tensor, items: Tensor) -> list[Tensor]:
        projected = (self.query(question), self.key(items), self.value(items))
        return [part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in projected]


def distance_of_heads(weights: Tensor) -> float:
    """Return how far the weights ``(B, H, S)`` of two heads are apart, the mean of all pairs."""
    n = weights.shape[1]
    pairs = (weights[:, :, None] - weights[:, None]).abs().sum(dim=-1) / 2  # (B, H, H)
    return float(pairs.sum(dim=(1, 2)).mean() / (n * (n - 1))) if n > 1 else 0.0


@torch.no_grad()
def judge(model: TwoAnswers, test: Questions) -> Row:
    """Say how much a model gets right, and how its heads share the work."""
    logits, weights = model(test.names, test.values, test.asked)
    answers = logits.argmax(dim=-1)
    right, turned = (answers == test.answers), (answers == test.answers.flip(1))
    on_asked = weights.gather(2, test.places[:, None].expand(-1, model.n_heads, -1)).mean(dim=0)
    return {
        "both_right": float(right.all(dim=1).double().mean()),
        "both_right_in_some_order": float((right.all(1) | turned.all(1)).double().mean()),
        "each_right": float(right.double().mean()),
        "distance": distance_of_heads(weights),
        "specialists": int((on_asked.max(dim=1).values > 0.8).sum()),
    }


def run_one(n_heads: int, d_head: int, reader: str, seed: int, recipe: Recipe, n_tests: int) -> Row:
    """Train one model on the task of two questions.

    Args:
        n_heads: how many heads it has.
        d_head: how wide each is.
        reader: what reads the answers.
        seed: of weights and data.
        recipe: how long and how fast it learns.
        n_tests: how many new questions it is measured with.

    Returns:
        A row of ``results.csv``.
    """
    torch.manual_seed(seed)
    model = TwoAnswers(n_heads, d_head, reader)
    drawn = torch.Generator().manual_seed(seed)
    test = questions(n_tests, torch.Generator().manual_seed(10_000 + seed))
    before = judge(model, test)["distance"]
    optimizer = torch.optim.Adam(model.parameters(), recipe.learning_rate, recipe.betas)

    def loss_at(_step: int) -> Tensor:
        names, values, asked, _, answers = questions(BATCH, drawn)
        logits, _ = model(names, values, asked)
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten())

    losses = minimise(model, optimizer, recipe, loss_at, rate=rise_and_fall)
    return {
        "heads": n_heads,
        "d_head": d_head,
        "reader": reader,
        "seed": seed,
        **judge(model, test),
        "distance_before": before,
        "loss": losses[-1],
        "parameters": n_parameters(model),
    }


def run_task(options: Options, recipe: Recipe) -> list[Row]:
    """Make all runs side by side, each with one thread; the longest ones start first."""
    n_tests = options.pick(2_000, 50)
    longest_first = sorted(PLAN, key=lambda model: -model[0] * model[1])
    plan = [(*model, seed, recipe, n_tests) for model in longest_first for seed in options.seeds(6)]
    rows = side_by_side(run_one, plan, options)
    order = {model: i for i, model in enumerate(PLAN)}
    return sorted(rows, key=lambda row: order[row["heads"], row["d_head"], row["reader"]])


# Trained models without some of their heads


@dataclass(frozen=True)
class Subject:
    """A trained model and what it is measured with.

    Args:
        name: its folder in ``book/results``.
        model: itself.
        choose: batches by which heads are chosen.
        measure: batches by which the rest is judged.
        whole_rows: whether a sequence counts as right only if all of it is.
    """

    name: str
    model: nn.Module
    choose: list[Batch]
    measure: list[Batch]
    whole_rows: bool

    def attentions(self) -> dict[str, MultiHeadAttention]:
        """Return all attention layers by their paths."""
        parts = self.model.named_modules()
        return {path: part for path, part in parts if isinstance(part, MultiHeadAttention)}


class Gates:
    """Lets through what each head found, or something else.

    Args:
        subject: whose heads get gates, all open.
    """

    def __init__(self, subject: Subject) -> None:
        self.open: dict[str, Tensor] = {}
        self.instead: dict[str, Tensor] = {}  # of what a shut head found, (H, Dk)
        for path, layer in subject.attentions().items():
            weight = layer.output.weight
            self.open[path] = torch.ones(layer.n_heads, 1, device=weight.device)
            self.instead[path] = weight.new_zeros(layer.n_heads, weight.shape[1] // layer.n_heads)
            layer.output.register_forward_pre_hook(self._hook(path))

    def _hook(self, path: str) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
        def shut(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            is_open = self.open[path]
            heads: Tensor = inputs[0].unflatten(-1, (len(is_open), -1))  # (B, T, H, Dk)
            return (heads * is_open + self.instead[path] * (1 - is_open)).flatten(start_dim=-2)

        return shut


class Measured(NamedTuple):
    """Sums for each text, ``(N,)`` each.

    Args:
        loss: of all its answers.
        n_losses: how many these are.
        right: how many of its answers are right.
        n_answers: of how many.
    """

    loss: Tensor
    n_losses: Tensor
    right: Tensor
    n_answers: Tensor

    def means(self) -> tuple[float, float]:
        """Return the mean loss, and which part of the answers is right."""
        loss, n_losses, right, n_answers = (float(part.sum()) for part in self)
        return loss / n_losses, right / n_answers


@torch.no_grad()
def measure(subject: Subject, batches: list[Batch]) -> Measured:
    """Return loss and right answers of each text."""
    found = []
    for batch in batches:
        inputs = {name: tensor for name, tensor in batch.items() if name != "targets"}
        targets = batch["targets"].view(len(batch["targets"]), -1)  # (B, T), or (B, 1) for labels
        logits = subject.model(**inputs).float().view(*targets.shape, -1)
        losses = F.cross_entropy(logits.mT, targets, reduction="none")  # 0 where none is asked for
        asked = targets >= 0
        hits = (logits.argmax(dim=-1) == targets) & asked
        n_answers = asked.sum(dim=1)
        right = hits.sum(dim=1)
        if subject.whole_rows:
            right, n_answers = (right == n_answers).long(), torch.ones_like(n_answers)
        found.append(torch.stack([losses.sum(dim=1), asked.sum(dim=1), right, n_answers]).double())
    return Measured(*torch.cat(found, dim=1).cpu())


@torch.no_grad()
def mean_outputs(subject: Subject) -> dict[str, Tensor]:
    """Return what each head finds on average over the texts by which heads are chosen, (H, Dk)."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, Tensor] = {}
    batch: Batch = {}

    def add(path: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def hook(_: nn.Module, inputs: tuple[Tensor]) -> None:
            is_text = batch["targets"] >= 0
            if "encoder" in path:
                is_text = batch["source_mask" if "source_mask" in batch else "mask"][:, 0, 0]
            kept = inputs[0][is_text].double()  # without padding, (N, H*Dk)
            sums[path] = sums.get(path, 0) + kept.sum(dim=0)
            counts[path] = counts.get(path, 0) + is_text.sum()

        return hook

    layers = subject.attentions()
    hooks = [part.output.register_forward_pre_hook(add(path)) for path, part in layers.items()]
    for batch in subject.choose:
        subject.model(**{name: tensor for name, tensor in batch.items() if name != "targets"})
    for hook in hooks:
        hook.remove()
    means = {path: sums[path] / counts[path] for path in layers}
    return {path: means[path].view(part.n_heads, -1).float() for path, part in layers.items()}


def interval(changes: Tensor, of: Tensor, seed: int = 0) -> tuple[float, float, float]:
    """Return a ratio of two sums over texts, and the middle 95% of what samples of texts give.

    Args:
        changes: one number for each text, ``(N,)``.
        of: what their sum is divided by the sum of, ``(N,)``; the pairs stay together.
        seed: of the samples.

    Returns:
        The ratio, and the ends of the interval.
    """
    n = len(changes)
    drawn = torch.Generator().manual_seed(seed)
    rows = [torch.randint(n, (n,), generator=drawn) for _ in range(N_SAMPLES)]
    ratios = torch.stack([changes[row].sum() / of[row].sum() for row in rows])
    low, high = ratios.quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return float(changes.sum() / of.sum()), low, high


def take_out_one(subject: Subject, gates: Gates, few: int | None) -> list[Row]:
    """Take out every head alone, by zeros and by its mean.

    Args:
        subject: the model.
        gates: those of its heads.
        few: how many heads to look at; all if left out.

    Returns:
        The rows of ``single.csv`` for this model, the whole model first.
    """
    whole = measure(subject, subject.measure)
    means, zeros = mean_outputs(subject), dict(gates.instead)

    def row(ablation: str, path: str, head: int | str, found: Measured) -> Row:
        loss, right = found.means()
        row: Row = {"model": subject.name, "ablation": ablation, "layer": path, "head": head}
        row |= {"loss": loss, "right": right}
        rise = interval(found.loss - whole.loss, whole.loss)
        fall = interval(whole.right - found.right, whole.n_answers)
        for name, (middle, low, high) in {"rise": rise, "fall": fall}.items():
            row |= {name: middle, f"{name}_low": low, f"{name}_high": high}
        return row

    rows = [row("none", "", "", whole)]
    for ablation, instead in {"zero": zeros, "mean": means}.items():
        gates.instead.update(instead)
        for path, head in heads_of(gates)[:few]:
            gates.open[path][head] = 0
            rows.append(row(ablation, path, head, measure(subject, subject.measure)))
            gates.open[path][head] = 1
    gates.instead.update(zeros)
    return rows


def heads_of(gates: Gates) -> list[tuple[str, int]]:
    """Return the path and the number of every head."""
    return [(path, head) for path, gate in gates.open.items() for head in range(len(gate))]


def take_out_all(subject: Subject, gates: Gates, few: int | None) -> list[Row]:
    """Take out one head after the other, always the one that is needed least.

    Args:
        subject: the model.
        gates: those of its heads.
        few: how many heads to look at; all if left out.

    Returns:
        The rows of ``greedy.csv`` for this model.
    """
    rows: list[Row] = []
    left = heads_of(gates)[:few]

    def note(path: str, head: int | str) -> None:
        chosen_by, (loss, right) = (
            measure(subject, subject.choose).means()[0],
            measure(subject, subject.measure).means(),
        )
        place = {"model": subject.name, "removed": len(rows), "layer": path, "head": head}
        rows.append(place | {"loss_chosen_by": chosen_by, "loss": loss, "right": right})

    note("", "")
    while left:
        losses = {}
        for path, head in left:
            gates.open[path][head] = 0
            losses[path, head] = measure(subject, subject.choose).means()[0]
            gates.open[path][head] = 1
        path, head = min(losses, key=lambda each: losses[each])
        gates.open[path][head] = 0
        note(path, head)
        left.remove((path, head))
    for gate in gates.open.values():
        gate.fill_(1)
    return rows


# Which directions heads share


def overlap(heads: Tensor) -> float:
    """Return how far matrices overlap, the mean over all pairs.

    For two matrices ``A`` and ``B`` it is the cosine between ``A A'`` and ``B B'``. If their
    columns are orthonormal, that is the mean squared cosine of their principal angles.

    Args:
        heads: ``(H, N, Dk)``, a head's directions in its columns.

    Returns:
        From 0, all directions orthogonal, to 1.
    """
    pairs = combinations(heads, 2)
    cosines = [
        (a.mT @ b).square().sum() / ((a.mT @ a).norm() * (b.mT @ b).norm()) for a, b in pairs
    ]
    return float(torch.stack(cosines).mean())


def covariance(vectors: Tensor) -> Tensor:
    """Return how vectors ``(N, D)`` vary about their mean, ``(D, D)``."""
    return torch.cov(vectors.double().T, correction=0)


@torch.no_grad()
def inputs_of(subject: Subject) -> dict[str, Tensor]:
    """Return the covariance of what each attention layer reads, ``(D, D)``."""
    found: dict[str, list[Tensor]] = {path: [] for path in subject.attentions()}

    def keep(path: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        return lambda _, inputs: found[path].append(inputs[0].flatten(0, -2).cpu())

    layers = subject.attentions()
    hooks = [part.query.register_forward_pre_hook(keep(path)) for path, part in layers.items()]
    for batch in subject.choose:
        subject.model(**{name: tensor for name, tensor in batch.items() if name != "targets"})
    for hook in hooks:
        hook.remove()
    return {path: covariance(torch.cat(vectors)) for path, vectors in found.items()}


def compare(heads: Tensor, varies: Tensor, *, reads: bool, n_random: int) -> list[Row]:
    """Compare the overlap of heads with that of random ones, in three spaces.

    Args:
        heads: ``(H, D, Dk)``, the directions of each head in its columns.
        varies: ``(D, D)``, the covariance of the vectors whose span matters.
        reads: whether these vectors are what the heads read.
        n_random: how many layers of random heads to draw.

    Returns:
        A row for each space.
    """
    squares, axes = torch.linalg.eigh(varies)
    squares, axes = squares.flip(0).clamp(min=0), axes.flip(1)
    size = int((squares.cumsum(0) / squares.sum() < SHARE).sum()) + 1
    inside = axes[:, :size].mT  # (size, D)
    reach = (axes * squares.sqrt()).mT if reads else torch.eye(len(varies)).double()
    spaces: dict[str, Callable[[Tensor], Tensor]] = {
        "all": lambda w: torch.linalg.qr(w)[0],
        "span": lambda w: torch.linalg.qr(inside @ w)[0],
        "weighted": lambda w: reach @ w,
    }
    drawn = torch.Generator().manual_seed(0)
    layers = [torch.randn(heads.shape, generator=drawn).double() for _ in range(n_random)]
    rows = []
    for name, see in spaces.items():
        random = torch.tensor([overlap(see(layer)) for layer in layers]).double()
        low, high = random.quantile(torch.tensor([0.025, 0.975]).double()).tolist()
        row: Row = {"space": name, "dimensions": size, "heads": overlap(see(heads))}
        rows.append(row | {"random": float(random.mean()), "low": low, "high": high})
    return rows


@torch.no_grad()
def spans(subject: Subject, n_random: int) -> list[Row]:
    """Return the rows of ``spans.csv``: what the heads of each layer share."""
    rows: list[Row] = []
    inputs = inputs_of(subject)
    gain = subject.model.get_parameter("decoder.stack.final_norm.weight")
    rows_of_output = subject.model.get_parameter("output.projection.weight") * gain  # (V, D)
    letters = torch.cat([rows_of_output[batch["targets"].flatten()] for batch in subject.choose])
    asked_for = covariance(letters.cpu())
    for number, (path, layer) in enumerate(subject.attentions().items()):
        parts = {"queries": layer.query, "keys": layer.key, "values": layer.value}
        for name, part in {**parts, "outputs": layer.output}.items():
            reads = name != "outputs"
            weight = part.weight.double().cpu() if reads else part.weight.double().cpu().T
            heads = weight.unflatten(0, (layer.n_heads, -1)).mT  # (H, D, Dk)
            span = inputs[path] if reads else asked_for
            found = compare(heads, span, reads=reads, n_random=n_random)
            rows += [{"layer": number, "part": name} | row for row in found]
    return rows


def subjects(options: Options) -> list[Subject]:
    """Load the trained models and their data."""
    found = []
    few = options.pick(None, 4)
    for name in ("shakespeare", "numbers", "languages"):
        folder = ROOT / "book" / "results" / name
        model = load_model(folder).to(options.device).eval()
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        choose, judged = (
            [{k: t.to(options.device) for k, t in batch.items()} for batch in part.one_pass()]
            for part in _parts(name, tokenizer, few)
        )
        found.append(Subject(name, model, choose, judged, whole_rows=name == "numbers"))
    return found


def _parts(name: str, tokenizer: Tokenizer, few: int | None) -> list[Batches]:
    """What heads are chosen by, and what the rest is measured with."""
    if name == "shakespeare":  # the first and the second half of a play it has not learned from
        ids = torch.tensor(tokenizer.encode(datasets.shakespeare().validation))
        half = len(ids) // 2
        length = 256 if few is None else 32
        cut = None if few is None else few * length + 1
        halves = (ids[:half][:cut], ids[half:][:cut])
        return [TextWindows(part, length, batch_size=256) for part in halves]
    if name == "numbers":
        words = datasets.numbers()
        return [
            Batches(
                [(tokenizer.encode(n.english), tokenizer.encode(n.german)) for n in part[:few]],
                translated,
                batch_size=1_000,
                shuffle=False,
            )
            for part in (words.validation, words.test)
        ]
    rows = datasets.languages()
    return [
        Batches(
            [(tokenizer.encode(row.words), row.label) for row in part[:few]],
            classification_batch,
            batch_size=1_000,
            shuffle=False,
        )
        for part in (rows.validation, rows.test)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs, take out all heads, compare directions and write four tables."""
    options = read_options("heads", __doc__, arguments)
    torch.set_float32_matmul_precision("highest")  # some heads change little
    steps = options.n_steps(2_000)
    recipe = Recipe(
        steps=steps,
        learning_rate=3e-3,
        schedule="linear",
        warmup=steps // 20,
        final_fraction=0.0,
        optimizer="adam",
        betas=(0.9, 0.999),
        weight_decay=0.0,
        clip=None,
        seed=options.seed,
    )
    rows = run_task(options, recipe)
    single: list[Row] = []
    greedy: list[Row] = []
    shared: list[Row] = []
    few = options.pick(None, 2)
    for subject in subjects(options):
        if subject.name == "shakespeare":
            shared = spans(subject, options.pick(N_RANDOM, 2))
        gates = Gates(subject)
        single += take_out_one(subject, gates, few)
        greedy += take_out_all(subject, gates, few)
        print(f"{subject.name}: {len(heads_of(gates))} heads", flush=True)
    metrics = {
        f"both_right_{h}x{k}_{reader.replace(' ', '_')}": mean_of(
            rows, "both_right", heads=h, d_head=k, reader=reader
        )
        for h, k, reader in PLAN
    }
    data = f"{N_ITEMS} items with {N_NAMES} names and {N_VALUES} values, drawn anew each step; "
    data += "the validation and test parts of three data sets of the book"
    tables = {"results": rows, "single": single, "greedy": greedy, "spans": shared}
    more = {"n_seeds": len({row["seed"] for row in rows})}
    write_results(options, data, ABOUT, metrics, recipe, tables=tables, more=more)


if __name__ == "__main__":
    main()
