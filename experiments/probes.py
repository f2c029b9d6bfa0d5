"""What can be read from the last state of a network that has not learned anything?

    python -m experiments.probes

Untrained recurrent networks read a symbol and then fillers. Two readers try to name the symbol from
the last state: a linear one, and a small network with one hidden layer. Both see the same states.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from experiments.shared.common import (
    Row,
    constant_adam,
    mean_of,
    read_options,
    side_by_side,
    write_results,
)
from transformer_book.recurrent import Recurrent, open_forget_gate
from transformer_lib import Recipe, learning_rate

CHAPTER = "01_recurrence"
N_SYMBOLS, WIDTH, HIDDEN, BATCH = 8, 32, 512, 1_000
OPEN = 3.0  # the forget gate's bias in "lstm open": a gate of 0.953
RIDGE = 1e-3
DISTANCES = (5, 10, 50)
KINDS = ("random symbols", "shuffled", "one filler")
READERS = ("linear", "network")
N_DISTINCT = 2_000  # sequences to learn from where all fillers are the same
CHUNK = 20_000  # sequences that are read at once
ABOUT = {
    "Task": f"""One of {N_SYMBOLS} symbols, then `distance` fillers in; the first symbol out, from
        the last state of a network with PyTorch's initialisation, which is not trained.""",
    "Choices": f"""An RNN, a GRU, an LSTM, and the same LSTM whose forget gate starts with a bias of
        {OPEN:g}, all of width {WIDTH}; of an LSTM both states are read. Fillers are drawn from the
        same symbols (`random symbols`), or all are the first of them (`one filler`); `shuffled` is
        a control (one seed) whose answers were shuffled before the readers were fitted. Symbols are
        random vectors. States are computed in float64 and standardised. Readers: ridge regression,
        and a network with one hidden layer of {HIDDEN} ReLUs, trained with Adam, its rate falling
        to zero. Both are fitted to the same states, and measured on new ones.""",
    "Intended use": "Teaching: what a linear probe finds in a state, and what it overlooks.",
    "Limits": """What neither reader finds may still be there: a larger reader with more examples
        may find more. Three seeds, of weights, symbols and sequences together.""",
}


def open_lstm() -> Recurrent:
    """Make an LSTM whose forget gate starts nearly open."""
    network = Recurrent("lstm", WIDTH, WIDTH)
    with torch.no_grad():
        open_forget_gate(network, OPEN)
    return network


NETWORKS: dict[str, Callable[[], Recurrent]] = {
    "rnn": partial(Recurrent, "rnn", WIDTH, WIDTH),
    "gru": partial(Recurrent, "gru", WIDTH, WIDTH),
    "lstm": partial(Recurrent, "lstm", WIDTH, WIDTH),
    "lstm open": open_lstm,
}


@torch.no_grad()
def last_states(
    model: str, distance: int, seed: int, n: int, device: str, *, one_filler: bool = False
) -> tuple[Tensor, Tensor]:
    """Let a new network read random sequences.

    Args:
        model: one of ``NETWORKS``.
        distance: how many fillers follow the symbol.
        seed: of weights, symbols and sequences.
        n: how many sequences.
        device: where they are read.
        one_filler: whether all fillers are the same symbol.

    Returns:
        All that the network remembers at the end, ``(n, Dh)`` or twice as wide, and the symbols
        that were first, ``(n,)``.
    """
    torch.manual_seed(seed)
    network = NETWORKS[model]().double().to(device)
    symbols = torch.randn(N_SYMBOLS, WIDTH).double().to(device)
    ids = torch.randint(N_SYMBOLS, (n, 1 + distance)).to(device)
    if one_filler:
        ids[:, 1:] = 0
    states = []
    for part in ids.split(CHUNK):
        _, state = network(symbols[part])
        states.append(torch.cat([each for each in state if each is not None], dim=1))
    return torch.cat(states), ids[:, 0]


def read_linearly(known: Tensor, answers: Tensor, new: Tensor) -> Tensor:
    """Fit a linear reader to states and their answers; return its answers to new states."""
    known, new = (pad(each, (0, 1), value=1.0) for each in (known, new))  # for the bias
    ridge = RIDGE * torch.eye(known.shape[1]).to(known)
    wanted = known.mT @ one_hot(answers, N_SYMBOLS).to(known)
    scores: Tensor = new @ torch.linalg.solve(known.mT @ known + ridge, wanted)
    return scores.argmax(dim=1)


def read_with_network(known: Tensor, answers: Tensor, new: Tensor, recipe: Recipe) -> Tensor:
    """Train a small network on states and their answers; return its answers to new states."""
    known, new = known.float(), new.float()
    torch.manual_seed(recipe.seed)
    layers = nn.Linear(known.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, N_SYMBOLS)
    reader = nn.Sequential(*layers).to(known.device)
    optimizer = torch.optim.Adam(reader.parameters(), betas=recipe.betas)
    for step in range(1, recipe.steps + 1):
        optimizer.param_groups[0]["lr"] = learning_rate(step, recipe)
        rows = torch.randint(len(known), (min(BATCH, len(known)),), device=known.device)
        loss = F.cross_entropy(reader(known[rows]), answers[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        answer: Tensor = reader(new).argmax(dim=1)
    return answer


def run_one(
    model: str, distance: int, recipe: Recipe, sizes: tuple[int, int], device: str
) -> list[Row]:
    """Fit both readers to the states of one network.

    Args:
        model: one of ``NETWORKS``.
        distance: how many fillers follow the symbol.
        recipe: how the network that reads is trained; its seed is that of everything random.
        sizes: how many sequences are known, and how many new.
        device: where to compute.

    Returns:
        A row of ``results.csv`` for each kind and reader.
    """
    n_known, n_new = sizes
    rows: list[Row] = []

    def measure(kind: str, h: Tensor, first: Tensor) -> None:
        n = len(h) - n_new
        # A feature whose whole spread is a rounding error of float64 stays near 0.
        h = (h - h[:n].mean(dim=0)) / h[:n].std(dim=0).clamp(min=1e-12)
        known, new, answers, wanted = h[:n], h[n:], first[:n], first[n:]
        if kind == "shuffled":
            answers = answers[torch.randperm(n).to(device)]
        found = (
            read_linearly(known, answers, new),
            read_with_network(known, answers, new, recipe),
        )
        for reader, given in zip(READERS, found, strict=True):
            row: Row = {"model": model, "distance": distance, "kind": kind, "reader": reader}
            row |= {"seed": recipe.seed, "accuracy": (given == wanted).double().mean().item()}
            rows.append(row)

    every = last_states(model, distance, recipe.seed, n_known + n_new, device)
    measure("random symbols", *every)
    if recipe.seed == 0:  # the control: once is enough
        measure("shuffled", *every)
    few = min(n_known, N_DISTINCT) + n_new  # only eight of these sequences differ
    measure("one filler", *last_states(model, distance, recipe.seed, few, device, one_filler=True))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit all readers and write one table."""
    options = read_options("probes", __doc__, arguments)
    recipe = constant_adam(options.n_steps(6_000), 2e-3, schedule="linear", final_fraction=0.0)
    sizes = options.pick((200_000, 10_000), (200, 50))
    distances = options.pick(DISTANCES, (1, 3))
    plan = [
        (model, distance, replace(recipe, seed=seed), sizes, options.device)
        for distance, model, seed in product(reversed(distances), NETWORKS, options.seeds(3))
    ]
    done = [row for rows in side_by_side(run_one, plan, options) for row in rows]
    order, kinds, readers = list(NETWORKS), list(KINDS), list(READERS)
    done.sort(
        key=lambda row: (
            *(order.index(row["model"]), kinds.index(row["kind"]), readers.index(row["reader"])),
            *(row["distance"], row["seed"]),
        )
    )
    middle = distances[len(distances) // 2]
    write_results(
        options,
        data=f"drawn anew for each seed, {N_SYMBOLS} symbols, distances {distances}",
        about=ABOUT,
        metrics={
            f"{model}_{reader}_at_{middle}".replace(" ", "_"): mean_of(
                done, "accuracy", kind=KINDS[0], distance=middle, model=model, reader=reader
            )
            for model, reader in product(order, readers)
        },
        recipe=recipe,
        tables={"results": done},
        more={"n_known": sizes[0], "n_new": sizes[1], "n_seeds": len(options.seeds(3))},
    )


if __name__ == "__main__":
    main()
