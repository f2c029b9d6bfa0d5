"""How many heads does it take? Two questions at once, and trained models that lose their heads.

    python -m experiments.heads

First a task that asks for two things at one position, learned with one head and with more, narrow
and wide. Then the trained models of the book: every head is taken out alone, and then one after
the other, always the one that is missed least. Each small run has a process and a CPU core of its
own; the trained models are measured on the GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from experiments.common import (
    ROOT,
    Options,
    Row,
    mean_of,
    n_parameters,
    read_options,
    side_by_side,
    write_results,
)
from experiments.loops import minimise, rise_and_fall
from transformer_book import datasets
from transformer_lib.attention import MultiHeadAttention, attention
from transformer_lib.data import Batch, Batches, TextWindows, classification_batch
from transformer_lib.data import translation_batch as translated
from transformer_lib.recipes import Recipe
from transformer_lib.saving import load_model
from transformer_lib.tokenizers import Tokenizer

CHAPTER = "06b_trained_heads"
N_NAMES, N_VALUES, N_ITEMS = 16, 8, 8
WIDTH = 32
BATCH = 128
# Heads, width of a head, and what reads the answers from what the heads found.
PLAN = [(h, WIDTH // h, "linear") for h in (1, 2, 4, 8, 16, 32)]
PLAN += [(h, WIDTH, "linear") for h in (2, 4, 8)]
PLAN += [(h, WIDTH // h, "hidden layer") for h in (1, 2, 4)]
ABOUT = {
    "Task": f"""`results.csv`: {N_ITEMS} items lie on a table, each with one of {N_NAMES} names (all
        different) and one of {N_VALUES} values. One position asks for the values of two names at
        once; the answer is right if both are, in the order of the question. Guessing gets one in
        {N_VALUES**2}. `single.csv` and `greedy.csv`: the trained models of the book without some
        of their heads.""",
    "Choices": f"""One layer of attention of width {WIDTH} without a residual path: whatever is
        known about the items has come through the heads. Heads are as narrow as usual
        ({WIDTH} / heads) or {WIDTH} wide each. What the heads found is read by a linear layer or
        by a network with a hidden layer. `distance` is the mean, over all pairs of heads, of half
        the sum of the absolute differences of their weights: 0 for equal heads, 1 for heads that
        never look at the same item. A head is taken out by multiplying what it found by zero, and
        nothing is trained afterwards. Which heads go is decided on one part of the data
        (`loss_chosen_by`), and the loss is measured on another (`loss`).""",
    "Intended use": "Teaching: what several heads are good for, and how many are missed.",
    "Limits": """One made-up task, one width and one recipe; three small models. Greedy removal is
        no search for the best set of heads, and retraining would save more of them.""",
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
        found, weights = attention(q, k, v)  # (B, H, 1, K), (B, H, 1, N_ITEMS)
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
    """Lets through what each head found, or not.

    Args:
        subject: whose heads get gates, all open.
    """

    def __init__(self, subject: Subject) -> None:
        self.open: dict[str, Tensor] = {}
        for path, layer in subject.attentions().items():
            self.open[path] = torch.ones(layer.n_heads, 1, device=layer.output.weight.device)
            layer.output.register_forward_pre_hook(self._hook(path))

    def _hook(self, path: str) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
        def shut(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            heads: Tensor = inputs[0].unflatten(-1, (len(self.open[path]), -1))  # (B, T, H, K)
            return (heads * self.open[path]).flatten(start_dim=-2)

        return shut


@torch.no_grad()
def measure(subject: Subject, batches: list[Batch]) -> tuple[float, float]:
    """Return the mean loss, and which part of the answers is right."""
    loss, n, right, n_answers = 0.0, 0, 0, 0
    for batch in batches:
        inputs = {name: tensor for name, tensor in batch.items() if name != "targets"}
        targets = batch["targets"]
        logits = subject.model(**inputs).flatten(0, -2).float()
        flat = targets.flatten()
        loss += float(F.cross_entropy(logits, flat, reduction="sum"))
        n += int((flat >= 0).sum())
        hits = (logits.argmax(dim=-1) == flat).view(targets.shape)
        if subject.whole_rows:
            hits = (hits | (targets < 0)).all(dim=1)
            right, n_answers = right + int(hits.sum()), n_answers + len(hits)
        else:
            right, n_answers = right + int(hits.sum()), n_answers + int((flat >= 0).sum())
    return loss / n, right / n_answers


def take_out(subject: Subject, few: int | None) -> tuple[list[Row], list[Row]]:
    """Take out every head alone, and then one after the other.

    Args:
        subject: the model.
        few: how many heads to look at; all if left out.

    Returns:
        The rows of ``single.csv`` and of ``greedy.csv`` for this model.
    """
    gates = Gates(subject)
    left = [(path, head) for path, gate in gates.open.items() for head in range(len(gate))][:few]

    def row(removed: int, path: str, head: int | str) -> Row:
        chosen_by, (loss, right) = (
            measure(subject, subject.choose)[0],
            measure(subject, subject.measure),
        )
        place = {"model": subject.name, "removed": removed, "layer": path, "head": head}
        return place | {"loss_chosen_by": chosen_by, "loss": loss, "right": right}

    whole = row(0, "", "")
    single = [whole]
    for path, head in left:
        gates.open[path][head] = 0
        single.append(row(1, path, head))
        gates.open[path][head] = 1
    greedy, losses = [whole], {(r["layer"], r["head"]): r["loss_chosen_by"] for r in single[1:]}
    while left:
        path, head = min(losses, key=lambda each: losses[each])
        gates.open[path][head] = 0
        greedy.append(row(len(greedy), path, head))
        left.remove((path, head))
        losses = {}
        for other, number in left:
            gates.open[other][number] = 0
            losses[other, number] = measure(subject, subject.choose)[0]
            gates.open[other][number] = 1
    return single, greedy


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
    """Make all runs, take out all heads and write three tables."""
    options = read_options("heads", __doc__, arguments)
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
    for subject in subjects(options):
        alone, in_turn = take_out(subject, options.pick(None, 2))
        single, greedy = single + alone, greedy + in_turn
        print(f"{subject.name}: {len(alone) - 1} heads", flush=True)
    metrics = {
        f"both_right_{h}x{k}_{reader.replace(' ', '_')}": mean_of(
            rows, "both_right", heads=h, d_head=k, reader=reader
        )
        for h, k, reader in PLAN
    }
    data = f"{N_ITEMS} items with {N_NAMES} names and {N_VALUES} values, drawn anew each step; "
    data += "the validation and test parts of three data sets of the book"
    tables = {"results": rows, "single": single, "greedy": greedy}
    more = {"n_seeds": len({row["seed"] for row in rows})}
    write_results(options, data, ABOUT, metrics, recipe, tables=tables, more=more)


if __name__ == "__main__":
    main()
