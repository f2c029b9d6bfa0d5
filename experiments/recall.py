"""Who remembers what came first? Recurrent networks, a Transformer, and two controls.

    python -m experiments.recall

A symbol, then ``distance`` fillers; at the end the first symbol is asked for. With two alphabets no
filler can be taken for the symbol, so a network that only counts tokens can answer. With one
alphabet nothing but the order tells which symbol was first. All runs of a network at one distance
(both forms, all learning rates, all seeds) learn at once; each network
and distance has a process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import mean
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    n_parameters,
    read_options,
    rows_where,
    side_by_side,
    small_config,
    write_results,
)
from experiments.shared.ensembles import Ensemble, losses_of
from transformer_book.recurrent import Kind, RecurrentClassifier, open_forget_gate
from transformer_book.tasks import FIRST_SYMBOL
from transformer_lib import CausalLM, Recipe

CHAPTER = "01_recurrence"
N_SYMBOLS = 8
VOCABULARY = FIRST_SYMBOL + 2 * N_SYMBOLS
WIDTHS: dict[Kind, int] = {"rnn": 104, "gru": 60, "lstm": 52}  # of the recurrent networks
OPEN = 5.0  # the forget gate's bias in "lstm open": a gate of 0.993
WINDOW = 16
BATCH = 32
FORMS = ("two alphabets", "one alphabet")
DISTANCES = (5, 10, 20, 50, 100)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
ENOUGH, LOOK_EVERY = 0.99, 25
CHUNK = 200  # sequences that are measured at once
ABOUT = {
    "Task": f"""One of {N_SYMBOLS} symbols, then `distance` random fillers in; the first symbol out.
        Guessing gets one in {N_SYMBOLS} right. With two alphabets the fillers are {N_SYMBOLS}
        other ids; with one alphabet they are drawn from the same {N_SYMBOLS} symbols.""",
    "Choices": f"""An RNN, a GRU, an LSTM, the same LSTM whose forget gate starts with a bias of
        {OPEN:g}, the same RNN with an orthogonal recurrent matrix, no bias and inputs of a tenth
        (one layer each, which answer from their last state) and a Transformer decoder (two layers,
        which answers at the last position), all with about 25,000 parameters and otherwise with
        PyTorch's usual initialisation. Two controls: `bag` is a linear reader of the sum of
        embeddings, which knows no order; `window` is a linear reader of the last {WINDOW} tokens.
        Batches of {BATCH} new sequences at each update, the same for all networks and rates;
        Adam, a constant learning rate after a warm-up, gradients clipped to length 1. For each
        network, form and distance the learning rate is the one of {RATES} with the best mean
        accuracy on a validation set, in two digits, and of several such ones the quickest
        (`grid.csv`); `accuracy` is measured on another set.""",
    "Intended use": "Teaching: what a recurrent network can learn to remember, and how fast.",
    "Limits": """One task in two forms, one size, one number of updates. What a network does not
        learn here it may learn with more updates, another size or another initialisation.""",
}


class Bag(nn.Module):
    """A linear reader of the sum of the tokens' embeddings: it knows which, but not in what order.

    Args:
        d_model: the width of the embeddings.
    """

    def __init__(self, d_model: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, d_model)
        self.head = nn.Linear(d_model, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Score each id as the answer, ``(B, V)``."""
        return self.head(self.embedding(ids).sum(dim=1))  # type: ignore[no-any-return]


class Window(nn.Module):
    """A linear reader of the last tokens, each at its place."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WINDOW * VOCABULARY, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Score each id as the answer, ``(B, V)``."""
        seen = pad(ids, (WINDOW, 0))[:, -WINDOW:]
        places = seen + VOCABULARY * torch.arange(WINDOW, device=ids.device)
        return self.head(one_hot(places, WINDOW * VOCABULARY).sum(dim=1).float())  # type: ignore[no-any-return]


def recurrent(kind: Kind) -> RecurrentClassifier:
    """Make one of the recurrent networks with new weights."""
    return RecurrentClassifier(kind, VOCABULARY, WIDTHS[kind], n_classes=VOCABULARY)


def open_lstm() -> RecurrentClassifier:
    """Make an LSTM whose forget gate starts nearly open."""
    model = recurrent("lstm")
    open_forget_gate(model.recurrent, OPEN)
    return model


def orthogonal_rnn() -> RecurrentClassifier:
    """Make a plain RNN that starts as a rotation, no bias, with inputs of a tenth."""
    model = recurrent("rnn")
    make_orthogonal(model)
    return model


@torch.no_grad()
def make_orthogonal(model: RecurrentClassifier) -> None:
    """Let the state of a plain RNN be turned, not shrunk, and hardly moved by the inputs."""
    cell = model.recurrent.cell
    nn.init.orthogonal_(cell.weight_hh)
    cell.weight_ih.mul_(0.1)
    for bias in (cell.bias_ih, cell.bias_hh):
        bias.zero_()


def transformer() -> CausalLM:
    """Make a Transformer of the same size with new weights."""
    sizes = {"vocab_size": VOCABULARY, "max_len": 1 + max(DISTANCES), "d_model": 32}
    return CausalLM(small_config(**sizes, n_heads=2, activation="relu"))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    **{kind: partial(recurrent, kind) for kind in WIDTHS},
    "lstm open": open_lstm,
    "rnn orthogonal": orthogonal_rnn,
    "transformer": transformer,
    "bag": Bag,
    "window": Window,
}


def sequences(n: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw sequences in both forms from the same numbers.

    Args:
        n: how many.
        length: tokens of each: the symbol and its fillers.
        generator: of random numbers.

    Returns:
        Ids ``(F, n, T)``, a layer for each of ``FORMS``; the first one is the answer.
    """
    one = FIRST_SYMBOL + torch.randint(N_SYMBOLS, (n, length), generator=generator)
    two = one.clone()
    two[:, 1:] += N_SYMBOLS
    return torch.stack([two, one])


class Runs:
    """All runs of one network at one distance, in the order form, rate, seed.

    Args:
        kind: which network.
        distance: how many fillers follow the symbol.
        seeds: of weights and data.
        n_tests: how many sequences are in each of the two sets that nothing is learned from.
        device: where they are.
    """

    def __init__(
        self, kind: str, distance: int, seeds: Sequence[int], n_tests: int, device: str
    ) -> None:
        self.seeds, self.length, self.device = list(seeds), 1 + distance, device
        models = []
        for seed in self.seeds:
            torch.manual_seed(seed)
            models.append(NETWORKS[kind]())
        self.generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        plan = list(product(FORMS, RATES, models))
        self.ensemble = Ensemble([m for *_, m in plan], [rate for _, rate, _ in plan], device)
        self.validation, self.test = self.batch(n_tests), self.batch(n_tests)
        self.n_parameters = n_parameters(models[0])

    def batch(self, n: int) -> Tensor:
        """Draw new sequences, ``(R, n, T)``: by the seed, the same for all rates."""
        drawn = [sequences(n, self.length, generator) for generator in self.generators]
        ids = torch.stack(drawn, dim=1)[:, None]  # form, rate, seed, n, T
        return ids.expand(-1, len(RATES), -1, -1, -1).flatten(0, 2).to(self.device)

    def logits(self, ids: Tensor) -> Tensor:
        """Score each id as the answer to each sequence, ``(R, n, V)``."""
        with mock.patch("transformer_book.recurrent.check_ids"):
            scores = self.ensemble(ids)
        return scores if scores.ndim == 3 else scores[:, :, -1]  # a decoder answers everywhere

    @torch.no_grad()
    def accuracy(self, ids: Tensor) -> Tensor:
        """Return which part of the first symbols each network names, ``(R,)``."""
        answers = [self.logits(part).argmax(dim=-1) for part in ids.split(CHUNK, dim=1)]
        return (torch.cat(answers, dim=1) == ids[..., 0]).double().mean(dim=1).cpu()

    def train(self, recipe: Recipe) -> list[int | str]:
        """Train all.

        Args:
            recipe: how; each network has a learning rate of its own.

        Returns:
            After how many updates each knew nearly all of the validation set; nothing (empty) if
            it never did.
        """
        arrived: list[int | str] = [""] * len(self.validation)
        for step in range(1, recipe.steps + 1):
            ids = self.batch(BATCH)
            self.ensemble.step(losses_of(self.logits(ids), ids[..., 0]), step, recipe)
            if step % LOOK_EVERY == 0:
                known = self.accuracy(self.validation[:, :CHUNK]) >= ENOUGH
                for run in known.nonzero().flatten().tolist():
                    arrived[run] = arrived[run] or step
        return arrived


def run_at(kind: str, distance: int, options: Options) -> list[Row]:
    """Train one network at one distance, in both forms, with all rates and seeds.

    Args:
        kind: which network.
        distance: how many fillers follow the symbol.
        options: the experiment's.

    Returns:
        A row for each run. ``steps_to_99`` is empty if the network never got there.
    """
    seeds, recipe = options.seeds(5), constant_adam(options.n_steps(1_000))
    runs = Runs(kind, distance, seeds, options.pick(1_000, 20), options.device)
    steps = runs.train(recipe)
    found = [runs.accuracy(ids).tolist() for ids in (runs.validation, runs.test)]
    rows: list[Row] = []
    for (form, rate, seed), at, known, new in zip(
        product(FORMS, RATES, seeds), steps, *found, strict=True
    ):
        row: Row = {"form": form, "model": kind, "distance": distance, "rate": rate}
        row |= {"seed": seed, "validation": known, "accuracy": new, "steps_to_99": at}
        rows.append(row | {"parameters": runs.n_parameters})
    return rows


def choose_rates(rows: Sequence[Row], n_steps: int) -> Iterator[tuple[list[Row], list[Row]]]:
    """Choose a learning rate for each form, network and distance.

    Args:
        rows: of all runs.
        n_steps: what a run counts that never knew nearly all.

    Yields:
        The runs with the chosen rate, and a row of ``grid.csv`` for each rate.
    """
    settings = dict.fromkeys((row["form"], row["model"], row["distance"]) for row in rows)
    for setting in settings:
        which = dict(zip(("form", "model", "distance"), setting, strict=True))
        runs = {rate: rows_where(rows, **which, rate=rate) for rate in RATES}
        known = {rate: mean(row["validation"] for row in runs[rate]) for rate in RATES}
        steps = {rate: mean(row["steps_to_99"] or n_steps for row in runs[rate]) for rate in RATES}
        best = max(RATES, key=lambda rate: (round(known[rate], 2), -steps[rate]))
        grid = [
            which | {"rate": rate, "validation": known[rate], "chosen": rate == best}
            for rate in RATES
        ]
        yield runs[best], grid


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write two tables."""
    options = read_options("recall", __doc__, arguments)
    recipe, distances = constant_adam(options.n_steps(1_000)), options.pick(DISTANCES, (2,))
    longest_first = list(product(reversed(distances), NETWORKS))
    plan = [(kind, distance, options) for distance, kind in longest_first]
    done = [row for rows in side_by_side(run_at, plan, options) for row in rows]
    order = list(NETWORKS)
    done.sort(
        key=lambda row: (FORMS.index(row["form"]), order.index(row["model"]), row["distance"])
    )
    chosen, grids = zip(*choose_rates(done, recipe.steps), strict=True)
    rows = [row for part in chosen for row in part]
    far = max(distances)
    write_results(
        options,
        data=f"drawn anew at each update, {N_SYMBOLS} symbols, distances {distances}",
        about=ABOUT,
        metrics={
            f"{form}_{kind}_at_{far}".replace(" ", "_"): mean_of(
                rows, "accuracy", form=form, model=kind, distance=far
            )
            for form, kind in product(FORMS, order)
        },
        recipe=replace(recipe, seed=options.seed),
        tables={"results": rows, "grid": [row for part in grids for row in part]},
        more={
            "parameters": {row["model"]: row["parameters"] for row in rows},
            "n_seeds": len(options.seeds(5)),
        },
    )


if __name__ == "__main__":
    main()
