"""What all experiments share: the command line, accuracies, and the files they leave."""

import argparse
import csv
import hashlib
import json
import math
import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from tqdm import tqdm  # type: ignore[import-untyped]

from transformer_book import datasets
from transformer_lib.config import TransformerConfig
from transformer_lib.data import Batches
from transformer_lib.recipes import Recipe
from transformer_lib.saving import describe_model, save_model
from transformer_lib.tokenizers import CharTokenizer
from transformer_lib.training import modes_kept

ROOT = Path(__file__).resolve().parents[1]
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


def read_options(
    name: str,
    purpose: str,
    arguments: Sequence[str] | None = None,
    own: argparse.ArgumentParser | None = None,
) -> Options:
    """Read the command line, and prepare PyTorch.

    Args:
        name: the experiment's.
        purpose: what it is about, for ``--help``.
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
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it; no effect on a CPU
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


def watch(row: Row) -> None:
    """Stop a training that cannot learn, rather than to find out at its end.

    Args:
        row: a row of its metrics.

    Raises:
        RuntimeError: if there is no gradient.
    """
    if row["grad_norm"] == 0:
        raise RuntimeError(f"no gradient reaches the weights at step {row['step']}")


def intervals(steps: int, n_validations: int = 25) -> dict[str, int]:
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
    fields: dict[str, Any] = {
        "schedule": "constant",
        "warmup": steps // 20,
        "optimizer": "adam",
        "betas": (0.9, 0.99),
        "weight_decay": 0.0,
        "log_every": max(steps // 40, 1),
        "validate_every": steps,
        "checkpoint_every": steps,
    }
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


@cache
def texts(n_characters: int | None = None) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
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
def predictions(model: nn.Module, batches: Batches) -> torch.Tensor:
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
    n_workers = max(1, min(12, (os.cpu_count() or 1) - 4))
    # Processes are started afresh, not forked: a copy of a running PyTorch may wait for ever.
    with ProcessPoolExecutor(
        n_workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        jobs = [pool.submit(run, *each) for each in plan]
        return [job.result() for job in tqdm(jobs, desc=options.name)]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows with the names of the first one's fields above them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_results(
    options: Options,
    *,
    data: str,
    about: dict[str, str],
    metrics: dict[str, Any],
    recipe: Recipe,
    model: nn.Module | None = None,
    tokenizer: Any = None,
    rows: Sequence[Row] = (),
    more: dict[str, Any] | None = None,
) -> None:
    """Write the files of an experiment, and print its result in one line.

    Args:
        options: the experiment's.
        data: what it was trained on: the name of a file in ``book/data``, or a description.
        about: paragraphs of the model card by their headings.
        metrics: what came out; the first one is the result.
        recipe: how the model was trained.
        model: the trained model; written if given.
        tokenizer: written beside it.
        rows: the training's rows, for ``metrics.csv``.
        more: what else belongs into ``card.json``.

    Raises:
        ValueError: if a number is infinite or none, which JSON cannot hold.
    """
    card: dict[str, Any] = {"experiment": options.name, "arguments": options.arguments}
    card |= {"tiny": options.tiny, "metrics": metrics}
    card |= {"data": _describe_data(data), "seed": options.seed, "recipe": asdict(recipe)}
    if model is not None:
        save_model(model, options.folder, tokenizer=tokenizer)
        card["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        card["model"] = describe_model(model)
    if rows:
        write_csv(options.folder / "metrics.csv", rows)
    card |= (more or {}) | {"environment": _environment(options)}
    card["seconds"] = round(time.perf_counter() - options.started, 1)
    content = json.dumps(card, indent=2, allow_nan=False)
    (options.folder / "card.json").write_text(content + "\n", encoding="utf-8")
    # From what was written, so that the one can be made from the other at any time.
    (options.folder / "card.md").write_text(card_text(json.loads(content), about), encoding="utf-8")
    result = ", ".join(f"{name} {_show(value)}" for name, value in metrics.items())
    print(f"{options.name}: {result}; {card['seconds']:.0f} s", flush=True)


def _describe_data(data: str) -> dict[str, str]:
    path = ROOT / "book" / "data" / data
    if not path.is_file():
        return {"description": data}
    return {"file": f"book/data/{data}", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _environment(options: Options) -> dict[str, str]:
    on_gpu = options.device.startswith("cuda")
    device = torch.cuda.get_device_name(options.device) if on_gpu else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"device": f"{options.device} ({device})", **versions, "numpy": np.__version__}


def card_text(card: dict[str, Any], about: dict[str, str]) -> str:
    """Write the card for people: what is in ``card.json``, and paragraphs about it.

    Args:
        card: what ``card.json`` holds.
        about: paragraphs by their headings.

    Returns:
        The content of ``card.md``.
    """
    lines = [f"# {card['experiment'].capitalize()}", ""]
    for heading, paragraph in about.items():
        lines += [f"## {heading}", "", " ".join(paragraph.split()), ""]
    tables = {"Results": card["metrics"], "Data": card["data"]}
    if "model" in card:
        config = card["model"]["arguments"].get("config", {})
        rest = {k: v for k, v in card["model"]["arguments"].items() if k != "config"}
        sizes = {"class": card["model"]["class"], "parameters": card["parameters"]}
        tables["Model"] = sizes | config | rest
    tables["Recipe"] = card["recipe"]
    tables["Run"] = card["environment"] | {"seed": card["seed"], "seconds": card["seconds"]}
    for heading, table in tables.items():
        lines += [f"## {heading}", "", "| | |", "|---|---|"]
        lines += [f"| {name.replace('_', ' ')} | {_show(value)} |" for name, value in table.items()]
        lines += [""]
    command = shlex.join(["python", "-m", f"experiments.{card['experiment']}", *card["arguments"]])
    return "\n".join([*lines, f"Made by `{command}`; `card.json` has the same for programs.", ""])


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}" if type(value) is int else str(value)
