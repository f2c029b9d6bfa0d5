"""What all experiments share: the command line, small models, means, and the files they leave.

A module of ``experiments`` with a ``CHAPTER`` is an experiment; the constant names the page of the
book that its results serve. See also ``loops``, ``cards`` and ``ensembles``.
"""

import argparse
import csv
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm  # type: ignore[import-untyped]

from experiments.shared.cards import card_text, describe_data, environment, show
from transformer_book import datasets
from transformer_lib import (
    Batches,
    CharTokenizer,
    Metrics,
    Recipe,
    TransformerConfig,
    describe_model,
    modes_kept,
    save_model,
)

ROOT = Path(__file__).resolve().parents[2]
MOST_ROWS = 500  # of a metrics.csv

Row = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Args:
        name: the experiment's.
        folder: where the results go.
        device: where models are trained.
        seed: of weights, batches and dropout.
        tiny: whether only to check in seconds that everything runs.
        steps: how many updates to make instead of the experiment's own number.
        eager: whether not to compile, where the experiment would.
        given: all arguments, those of one experiment alone too.
        arguments: those that are not the default, as one would type them.
        started: when the experiment began, in seconds.
    """

    name: str
    folder: Path
    device: str
    seed: int
    tiny: bool
    steps: int | None
    eager: bool
    given: argparse.Namespace
    arguments: list[str]
    started: float

    def pick(self, full: Value, tiny: Value) -> Value:
        """Return what goes with the size of this run."""
        return tiny if self.tiny else full

    def n_steps(self, full: int) -> int:
        """Return how many updates to make."""
        return self.steps or self.pick(full, 4)

    def seeds(self, full: int, tiny: int = 1) -> range:
        """Return the seeds of repeated runs: so many, from that of the command line on."""
        return range(self.seed, self.seed + self.pick(full, tiny))


def read_options(
    name: str,
    purpose: str | None,
    arguments: Sequence[str] | None = None,
    own: argparse.ArgumentParser | None = None,
) -> Options:
    """Read the command line, and prepare PyTorch.

    Products of float32 matrices may be rounded to TF32 on GPUs that have it, here and in the
    processes of :func:`side_by_side`. An experiment that needs all bits says so after this call.

    Args:
        name: the experiment's.
        purpose: what it is about, for ``--help``; the module's docstring.
        arguments: those of the command line if left out.
        own: arguments that only this experiment has.

    Returns:
        The options.
    """
    parser = argparse.ArgumentParser(
        f"python -m experiments.{name}", description=purpose, parents=[own] if own else []
    )
    parser.add_argument("--tiny", action="store_true", help="only check that everything runs")
    parser.add_argument("--out", type=Path, help="where results go (default: book/results/NAME)")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help=f"where to train (default: {default})")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--steps", type=int, help="updates, instead of the experiment's number")
    parser.add_argument("--eager", action="store_true", help="never compile a model")
    given = parser.parse_args(arguments)
    # A tiny run must not replace the results that the book shows.
    folder = given.out or ROOT / ("_build/experiments" if given.tiny else "book/results") / name
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(given.seed)
    choices = (given.device, given.seed, given.tiny, given.steps, given.eager, given)
    return Options(name, folder, *choices, _typed(given, parser), started=time.perf_counter())


def _typed(given: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """Return the arguments that make a difference to the results, as one would type them."""
    typed: list[str] = []
    for name, value in vars(given).items():
        if name != "out" and value != parser.get_default(name):
            typed += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return typed


def watch(row: Metrics) -> None:
    """Stop a training that cannot learn, rather than to find out at its end.

    Args:
        row: the latest of its metrics.

    Raises:
        RuntimeError: if there is no gradient.
    """
    if row["grad_norm"] == 0:
        raise RuntimeError(f"no gradient reaches the weights at step {row['step']}")


class Intervals(TypedDict):
    """The fields of a :class:`Recipe` that :func:`intervals` chooses."""

    log_every: int
    validate_every: int
    checkpoint_every: int


def intervals(steps: int, n_validations: int = 25) -> Intervals:
    """Say how often a run logs and validates, so that its table of metrics stays short.

    Args:
        steps: how many updates the run has.
        n_validations: how often it validates.

    Returns:
        Fields of a :class:`Recipe`. There are no checkpoints, so these add no rows.
    """
    log_every = math.ceil(steps / (MOST_ROWS // 2))
    validate_every = math.ceil(steps / n_validations / log_every) * log_every
    return {"log_every": log_every, "validate_every": validate_every, "checkpoint_every": steps}


def constant_adam(steps: int, learning_rate: float = 3e-3, **changes: Any) -> Recipe:
    """Make the recipe of small tasks: Adam, a constant rate, nothing decays, one validation.

    Args:
        steps: how many updates.
        learning_rate: after a warm-up of one step in twenty.
        changes: fields of the recipe that are different.

    Returns:
        The recipe.
    """
    fields: dict[str, Any] = {"optimizer": "adam", "betas": (0.9, 0.99), "weight_decay": 0.0}
    fields |= {"schedule": "constant", "warmup": steps // 20, "log_every": max(steps // 40, 1)}
    fields |= {"validate_every": steps, "checkpoint_every": steps}
    return Recipe(steps=steps, learning_rate=learning_rate, **fields | changes)


def modern_config(**sizes: Any) -> TransformerConfig:
    """Describe a decoder with the parts of today, as the model of the plays has them.

    Args:
        sizes: all fields but those parts.

    Returns:
        The configuration.
    """
    parts: dict[str, Any] = {"position": "rope", "norm": "rms", "norm_position": "pre"}
    parts |= {"activation": "swiglu", "bias": False, "scale_embeddings": False, "init": "gpt2"}
    return TransformerConfig(**sizes, **parts)


def small_config(**changes: Any) -> TransformerConfig:
    """Describe the model of most small tasks: two pre-norm blocks, four heads, GELU, no dropout.

    Args:
        changes: the sizes of the task, and fields that are different.

    Returns:
        The configuration.
    """
    fields: dict[str, Any] = {"n_heads": 4, "n_layers": 2, "dropout": 0.0}
    fields |= {"norm_position": "pre", "activation": "gelu"}
    return TransformerConfig(**fields | changes)


@cache
def texts(n_characters: int | None = None) -> tuple[Tensor, Tensor, list[str]]:
    """Read the book's plays letter by letter.

    Args:
        n_characters: of each text, if not all of it is wanted.

    Returns:
        The ids of the text to learn from, of a new one, and all letters by their ids.
    """
    text = datasets.shakespeare()
    tokenizer = CharTokenizer.train([text.train])
    known, unknown = (torch.tensor(tokenizer.encode(part[:n_characters])) for part in text)
    return known, unknown, [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]


@torch.no_grad()
def predictions(model: nn.Module, batches: Batches) -> Tensor:
    """Return the class a classifier finds for each example, in order, ``(N,)`` on the CPU."""
    device = next(model.parameters()).device
    found = []
    with modes_kept(model):
        model.eval()
        for batch in batches.one_pass():
            inputs = {name: t.to(device) for name, t in batch.items() if name != "targets"}
            found.append(model(**inputs).argmax(dim=-1).cpu())
    return torch.cat(found)


def accuracy(model: nn.Module, batches: Batches) -> float:
    """Return which part of the examples a classifier gets right."""
    targets = torch.cat([batch["targets"] for batch in batches.one_pass()])
    return float((predictions(model, batches) == targets).double().mean())


def n_parameters(model: nn.Module) -> int:
    """Count the numbers that a model learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def wait(device: str) -> None:
    """Wait until the GPU has done what it was told; a CPU is never late."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def side_by_side(
    run: Callable[..., Value], plan: Sequence[tuple[Any, ...]], options: Options
) -> list[Value]:
    """Make many small runs, each in a process and with a thread of its own.

    Args:
        run: makes one run; a function at the top of a module.
        plan: the arguments of each run; let the longest ones come first.
        options: the experiment's; a tiny one makes its runs one after the other.

    Returns:
        What each run gives, in the order of the plan.
    """
    if options.tiny:
        return [run(*each) for each in plan]
    with worker_pool(most=12, spare=4) as pool:
        jobs = [pool.submit(run, *each) for each in plan]
        return [job.result() for job in tqdm(jobs, desc=options.name)]


def worker_pool(most: int, spare: int) -> ProcessPoolExecutor:
    """Start processes with one thread each, which round products as this one does.

    Args:
        most: how many processes there are at most.
        spare: how many CPU cores stay free.

    Returns:
        The processes, for a ``with`` block.
    """
    n_workers = max(1, min(most, (os.cpu_count() or 1) - spare))
    # They are started afresh, not forked: a copy of a running PyTorch may wait for ever.
    how = (torch.get_float32_matmul_precision(),)
    return ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker, how)


def _start_worker(precision: str) -> None:
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(precision)


def rounded(value: float, digits: int = 5) -> float:
    """Round to so many digits; tables hold five, of measured times four."""
    return float(f"{value:.{digits}g}")


def rounded_row(row: Row, digits: int = 5) -> Row:
    """Round all floats of a row, and leave the rest as it is."""
    return {k: rounded(v, digits) if isinstance(v, float) else v for k, v in row.items()}


def rows_where(rows: Iterable[Row], /, **fields: object) -> list[Row]:
    """Return the rows that have these values in these fields."""
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]


def mean_of(rows: Iterable[Row], column: str, /, **fields: object) -> float:
    """Return the mean of a column over the rows that have these values in these fields.

    Args:
        rows: of a table.
        column: whose mean is wanted.
        fields: which rows count; all if there are none.

    Returns:
        The mean; NaN if one of the values is not a number, or is missing (``None`` or empty).
    """
    values = [row[column] for row in rows_where(rows, **fields)]
    return math.nan if None in values or "" in values else mean(values)


def merge_tables(parts: Iterable[Mapping[str, Sequence[Row]]]) -> dict[str, list[Row]]:
    """Join the tables of several runs: rows of tables with one name stand below each other."""
    tables: dict[str, list[Row]] = {}
    for part in parts:
        for name, rows in part.items():
            tables.setdefault(name, []).extend(rows)
    return tables


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with the names of the first one's fields above them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_results(
    options: Options,
    data: str,
    about: dict[str, str],
    metrics: dict[str, Any],
    recipe: Recipe,
    *,
    model: nn.Module | None = None,
    tokenizer: Any = None,
    rows: Sequence[Mapping[str, object]] = (),
    tables: Mapping[str, Sequence[Row]] | None = None,
    more: dict[str, Any] | None = None,
) -> None:
    """Write the files of an experiment, and print its result in one line.

    Args:
        options: the experiment's.
        data: what it was trained on: the name of a file in ``book/data``, or a description.
        about: paragraphs of the model card by their headings.
        metrics: what came out; the first one is the result. NaN and infinity are written in
            words, since JSON has neither.
        recipe: how the model was trained.
        model: the trained model; written if given.
        tokenizer: written beside it.
        rows: the training's rows, for ``metrics.csv``.
        tables: the rows of other tables by their names; ``"results"`` goes to ``results.csv``.
        more: what else belongs into ``card.json``.

    Raises:
        ValueError: if another number of the card is NaN or infinite.
    """
    metrics = {
        name: "not a number" if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
    card: dict[str, Any] = {"experiment": options.name, "arguments": options.arguments}
    card |= {"tiny": options.tiny, "metrics": metrics}
    card |= {"data": describe_data(data, ROOT), "seed": options.seed, "recipe": asdict(recipe)}
    if model is not None:
        save_model(model, options.folder, tokenizer=tokenizer)
        card["parameters"] = n_parameters(model)
        card["model"] = describe_model(model)
    for name, table in (({"metrics": rows} if rows else {}) | dict(tables or {})).items():
        write_csv(options.folder / f"{name}.csv", table)
    card |= (more or {}) | {"environment": environment(options.device)}
    card["seconds"] = round(time.perf_counter() - options.started, 1)
    content = json.dumps(card, indent=2, allow_nan=False)
    (options.folder / "card.json").write_text(content + "\n", encoding="utf-8")
    # From what was written, so that the one can be made from the other at any time.
    (options.folder / "card.md").write_text(card_text(json.loads(content), about), encoding="utf-8")
    result = ", ".join(f"{name} {show(value)}" for name, value in metrics.items())
    print(f"{options.name}: {result}; {card['seconds']:.0f} s", flush=True)
