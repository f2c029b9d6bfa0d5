"""The training loop: exact, resumable, on one process or many."""

import csv
import hashlib
import io
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from safetensors.torch import save
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from transformer_lib.blocks import Block
from transformer_lib.data import IGNORE
from transformer_lib.feedforward import MixtureOfExperts
from transformer_lib.losses import Objective
from transformer_lib.recipes import Recipe, learning_rate
from transformer_lib.saving import (
    Tensors,
    describe_model,
    for_every_name,
    once,
    read_checkpoint,
    write_checkpoint,
    write_file,
)
from transformer_lib.shapes import check_whole

Batch = dict[str, Tensor]
Row = dict[str, float | int | None]  # one line of metrics.csv
History = list[Row]

COLUMNS = ("step", "tokens", "loss", "learning_rate", "grad_norm", "validation_loss", "perplexity")
# What may differ when a run goes on: it changes how the same numbers are computed or kept.
_FREE = {"log_every", "checkpoint_every", "keep", "compile", "checkpoint_activations", "strategy"}

# All tensors whole and on the CPU, in the first process only.
_GATHER = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)


@runtime_checkable
class _Stream(Protocol):
    """An endless loader of batches that can say where it stands."""

    def __iter__(self) -> Iterator[Batch]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class _Validation(Protocol):
    """Batches that can be gone through once."""

    def one_pass(self) -> Iterable[Batch]: ...


def train(
    model: nn.Module,
    batches: _Stream,
    recipe: Recipe,
    *,
    validation: _Validation | None = None,
    folder: str | Path | None = None,
    resume: bool = True,
    device: str | torch.device | None = None,
    progress: bool = True,
    on_step: Callable[[Row], None] | None = None,
) -> History:
    """Train a model, or go on where an earlier call with the same folder was stopped.

    On the CPU a run that was killed and resumed ends with the same bits as one that was not.

    Args:
        model: any model :class:`~transformer_lib.losses.Objective` knows; it is changed in place,
            moved to the device and left in evaluation mode.
        batches: an endless loader such as those of ``data``.
        recipe: how to train.
        validation: a loader whose ``one_pass()`` gives what the model is judged by.
        folder: where ``metrics.csv``, the picture ``curve.svg`` and ``checkpoints`` go; without
            one, nothing is written.
        resume: whether to go on with what the folder holds.
        device: where to train; a GPU if there is one.
        progress: whether to show a progress bar.
        on_step: called with every new row (under ``torchrun`` by the first process only).

    Returns:
        The rows of ``metrics.csv``: ``step``, ``tokens`` (targets so far), and of this step
        ``loss``, ``learning_rate``, ``grad_norm`` (before clipping); ``validation_loss`` and
        ``perplexity`` where they were computed, else ``None``.

    Raises:
        FloatingPointError: if the loss is no longer a number.
        ValueError: if the folder holds another run, or one and ``resume`` is false.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.data import TextWindows
        >>> from transformer_lib.heads import CausalLM
        >>> config = TransformerConfig(vocab_size=5, max_len=8, d_model=8, n_heads=2, n_layers=1)
        >>> text = TextWindows(torch.arange(100) % 5, length=8, batch_size=4)
        >>> recipe = Recipe(steps=50, learning_rate=0.01, log_every=25)
        >>> rows = train(CausalLM(config), text, recipe, progress=False, device="cpu")
        >>> [row["step"] for row in rows], rows[0]["loss"] > rows[1]["loss"]
        ([25, 50], True)
    """
    if recipe.patience is not None and validation is None:
        raise ValueError(f"patience={recipe.patience} needs a validation to judge by")
    run = _Run(model, batches, recipe, _device(device))
    log = _Log(None) if folder is None else run.resume(Path(folder), allowed=resume)
    hidden = run.rank > 0 or not progress
    bar = tqdm(total=recipe.steps, initial=run.step, unit="step", disable=hidden)
    with bar, _recomputing(run.model, recipe.checkpoint_activations):
        while not run.finished:
            row = run.update(validation)
            bar.update()
            if row is not None:
                bar.set_postfix_str(log.add(row))
                if on_step is not None and run.rank == 0:
                    on_step(row)
            if folder is not None and (run.due(recipe.checkpoint_every) or run.finished):
                run.save(Path(folder), log)
    log.close()
    run.hand_back(model)
    return log.rows


def evaluate(model: nn.Module, validation: _Validation) -> dict[str, float]:
    """Judge a model by data it was not trained on. Under ``torchrun``, every process calls this.

    Args:
        model: any model :class:`~transformer_lib.losses.Objective` knows.
        validation: a loader whose ``one_pass()`` gives the batches.

    Returns:
        ``loss``, the mean over all targets; ``perplexity``, its exponential: among how many equally
        likely tokens one would be as unsure; and ``tokens``, the number of targets.

    Raises:
        ValueError: if there is no target.

    Example:
        >>> from transformer_lib.config import TransformerConfig
        >>> from transformer_lib.data import TextWindows
        >>> from transformer_lib.heads import CausalLM
        >>> config = TransformerConfig(vocab_size=5, max_len=8, d_model=8, n_heads=2, n_layers=1)
        >>> text = TextWindows(torch.arange(101) % 5, length=8, batch_size=4)
        >>> evaluate(CausalLM(config), text)["tokens"]
        100
    """
    return _mean_loss(Objective(model), validation, next(model.parameters()).device)


def bits_per_byte(loss: float, n_tokens: int, n_bytes: int) -> float:
    """Turn a loss per token into one that does not depend on how text is cut into tokens.

    Args:
        loss: the mean loss of a token, in nats.
        n_tokens: how many tokens were predicted.
        n_bytes: the length of the same text in UTF-8.

    Returns:
        How many bits each byte would take if the model compressed the text.

    Raises:
        ValueError: if one of the numbers is not positive.

    Example:
        >>> round(bits_per_byte(math.log(256), n_tokens=10, n_bytes=10), 6)  # knows nothing
        8.0
    """
    check_whole("n_tokens", n_tokens)
    check_whole("n_bytes", n_bytes)
    return loss / math.log(2) * n_tokens / n_bytes


class _Run:
    """All that changes while training: model, optimizer, loader, and how far they have come."""

    def __init__(
        self, model: nn.Module, batches: _Stream, recipe: Recipe, device: torch.device
    ) -> None:
        self.recipe, self.batches, self.device = recipe, batches, device
        self.rank, self.world = _rank_and_world()
        self.step, self.tokens, self.waited = 0, torch.tensor(0), 0
        self.best: float | None = None
        self.best_weights: Tensors = {}
        sharded = self.world > 1 and recipe.strategy == "fsdp"
        self.model = deepcopy(model) if sharded else model.to(device)
        self.objective = Objective(self.model, recipe.label_smoothing).train()
        self.parallel = _spread(self.objective, device, self.world, sharded=sharded)
        self.compute = torch.compile(self.parallel) if recipe.compile else self.parallel
        self.optimizer = _make_optimizer(self.model, recipe, fused=device.type == "cuda")
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "float16")
        self.stream = iter(batches)

    @property
    def finished(self) -> bool:
        patience = self.recipe.patience
        return self.step >= self.recipe.steps or (patience is not None and self.waited >= patience)

    def due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.recipe.steps

    def update(self, validation: _Validation | None) -> Row | None:
        """Make one step; return its row if this one is to be logged."""
        self.step += 1
        # Whatever is random in a step follows from its number, so nothing of it has to be saved.
        torch.manual_seed(_hash(self.recipe.seed, self.step, self.rank))
        rate = learning_rate(self.step, self.recipe)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total, count = self._gradients()
        judged = validation is not None and self.due(self.recipe.validate_every)
        logged = judged or self.due(self.recipe.log_every) or self.due(self.recipe.checkpoint_every)
        norm = self._clip() if logged or self.recipe.clip is not None else total
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.tokens = self.tokens + count
        if not logged:
            return None
        if self.world > 1:
            dist.all_reduce(total)
        loss = float(total / count)  # only here does anything wait for the device
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self.step}; try a lower rate")
        row: Row = dict.fromkeys(COLUMNS)
        row |= {"step": self.step, "tokens": int(self.tokens), "loss": loss}
        row |= {"learning_rate": rate, "grad_norm": float(norm)}
        return row | self._validate(validation) if validation is not None and judged else row

    def _gradients(self) -> tuple[Tensor, Tensor]:
        """Leave the gradients of the mean loss; return this process' summed loss, and the count.

        Every process sees the whole batch, so all know the count without asking one another.
        """
        parts = [self._next_batch() for _ in range(self.recipe.accumulate)]
        count = torch.stack([(part["targets"] != IGNORE).sum() for part in parts]).sum().clamp(1)
        total = torch.zeros((), device=self.device)
        for i, part in enumerate(parts):
            self._wait_for_others(last=i == len(parts) - 1)
            with self._autocast():
                loss, _ = self.compute(_share(part, self.rank, self.world, self.device))
            # DDP and FSDP take the mean over processes; what is wanted is the sum.
            self.scaler.scale(loss * self.world / count).backward()
            total += loss.detach()
        return total, count

    def _next_batch(self) -> Batch:
        self.before = self.batches.state_dict()
        self.latest = next(self.stream)
        return self.latest

    def _wait_for_others(self, *, last: bool) -> None:
        """Processes exchange gradients once a step, with the last part."""
        if isinstance(self.parallel, DistributedDataParallel):
            self.parallel.require_backward_grad_sync = last
        elif self.world > 1:
            self.parallel.set_requires_gradient_sync(last)  # type: ignore[operator]

    def _autocast(self) -> torch.autocast:
        kind = self.recipe.precision
        return torch.autocast(self.device.type, getattr(torch, kind), enabled=kind != "float32")

    def _clip(self) -> Tensor:
        """Shorten the gradient if need be; return how long it was."""
        self.scaler.unscale_(self.optimizer)
        longest = self.recipe.clip or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), longest)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _validate(self, validation: _Validation) -> Row:
        self.objective.label_smoothing = 0.0
        with self._autocast():
            found = _mean_loss(self.compute, validation, self.device)
        self.objective.label_smoothing = self.recipe.label_smoothing
        self.waited += 1
        if self.best is None or found["loss"] < self.best:
            self.best, self.waited = found["loss"], 0
            if self.recipe.patience is not None:
                self.best_weights = self._weights()
        return {"validation_loss": found["loss"], "perplexity": found["perplexity"]}

    def save(self, folder: Path, log: "_Log") -> None:
        """Write a checkpoint; every process takes part, the first one writes."""
        held = dcp.get_optimizer_state_dict(self.model, self.optimizer, options=_GATHER)
        moments = {
            f"{name}.{key}": tensor
            for name, values in held.get("state", {}).items()
            for key, tensor in values.items()
        }
        weights = self._weights()
        if self.rank > 0:
            return
        state = {name: getattr(self, name) for name in ("step", "waited", "best")}
        state |= {"tokens": int(self.tokens), "scaler": self.scaler.state_dict()}
        state |= {"batches": self.before, "batch": _fingerprint(self.latest)}
        state |= {"metrics": log.size(), "recipe": asdict(self.recipe)}
        files = {"model.safetensors": weights, "optimizer.safetensors": moments}
        files |= {"best.safetensors": self.best_weights, "state.json": state}
        files |= {"model.json": describe_model(self.model)}
        write_checkpoint(folder / "checkpoints", self.step, files, self.recipe.keep)
        log.draw()

    def resume(self, folder: Path, *, allowed: bool) -> "_Log":
        """Go on from the newest checkpoint, if there is one; the first process reads it."""
        files = read_checkpoint(folder / "checkpoints") if self.rank == 0 else {}
        if files and not allowed:
            raise ValueError(f"resume=False, but {folder} holds a run; take another folder")
        box = [{name: held for name, held in files.items() if name.endswith(".json")}]
        if self.world > 1:
            dist.broadcast_object_list(box)
        if not box[0]:
            return _Log(folder if self.rank == 0 else None)
        state = box[0]["state.json"]
        _check_same(folder, box[0]["model.json"], describe_model(self.model))
        _check_same(folder, state["recipe"], asdict(self.recipe))
        self._go_on(files, state)
        return _Log(folder if self.rank == 0 else None, state["metrics"])

    def _go_on(self, files: dict[str, Any], state: dict[str, Any]) -> None:
        self.batches.load_state_dict(state["batches"])
        self.stream = iter(self.batches)
        if _fingerprint(self._next_batch()) != state["batch"]:
            raise ValueError("batches gives other data than before, or in another order")
        self.step, self.waited, self.best = state["step"], state["waited"], state["best"]
        self.tokens = torch.tensor(state["tokens"])
        self.scaler.load_state_dict(state["scaler"])
        held = dcp.get_optimizer_state_dict(self.model, self.optimizer, options=_GATHER)
        moments: dict[str, Tensors] = {}
        for name, tensor in files.get("optimizer.safetensors", {}).items():
            parameter, _, key = name.rpartition(".")
            moments.setdefault(parameter, {})[key] = tensor
        held = {**held, "state": moments} if held else {}
        dcp.set_optimizer_state_dict(self.model, self.optimizer, held, options=self._scatter())
        self.best_weights = files.get("best.safetensors", {})
        self._put(self.model, files.get("model.safetensors", {}))

    def hand_back(self, model: nn.Module) -> None:
        """Put the best weights back if training was to stop at them; leave the caller's model."""
        if self.recipe.patience is not None and self.best is not None:
            self._put(self.model, self.best_weights)
        if self.model is not model:
            self._put(model, self._weights())
        model.eval()

    def _weights(self) -> Tensors:
        """Return a copy of all weights; in all processes but the first, nothing."""
        state = dcp.get_model_state_dict(self.model, options=_GATHER)
        return {name: tensor.clone() for name, tensor in once(self.model, state).items()}

    def _put(self, model: nn.Module, weights: Tensors) -> None:
        state = for_every_name(model, weights, "the checkpoint") if self.rank == 0 else {}
        dcp.set_model_state_dict(model, state, options=self._scatter())

    def _scatter(self) -> dcp.StateDictOptions:
        return dcp.StateDictOptions(full_state_dict=True, broadcast_from_rank0=self.world > 1)


class _Log:
    """The rows of a run: in memory, in ``metrics.csv``, as a picture and for TensorBoard."""

    def __init__(self, folder: Path | None, size: int = 0) -> None:
        self.folder, self.rows = folder, History()
        self.clock, self.board = time.perf_counter(), None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.csv"
        kept = path.read_bytes()[:size] if size else (",".join(COLUMNS) + "\n").encode()
        if len(kept) < size:
            raise ValueError(f"{path} is shorter than at the last checkpoint")
        write_file(path, kept)  # what came after the checkpoint comes again
        for line in csv.DictReader(kept.decode().splitlines()):
            self.rows.append({name: _number(text) for name, text in line.items()})
        self.file = path.open("a", encoding="utf-8")
        self.board = _tensorboard(folder, self.rows)

    def add(self, row: Row) -> str:
        """Keep a row; return what the progress bar shall say."""
        before, self.clock = self.clock, time.perf_counter()
        tokens = row["tokens"] - (self.rows[-1]["tokens"] if self.rows else 0)
        self.rows.append(row)
        if self.folder is not None:
            cells = ("" if row[name] is None else repr(row[name]) for name in COLUMNS)
            self.file.write(",".join(cells) + "\n")
            self.file.flush()
        if self.board is not None:
            for name in COLUMNS[1:]:
                if row[name] is not None:
                    self.board.add_scalar(name, row[name], row["step"])
        return f"loss {row['loss']:.4f}, {tokens / (self.clock - before):,.0f} tokens/s"

    def size(self) -> int:
        """Return how long ``metrics.csv`` is, once it is on the disk."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        if self.folder is not None:
            self.file.close()
        if self.board is not None:
            self.board.close()

    def draw(self) -> None:
        """Draw the losses so far, if matplotlib is installed."""
        try:
            from matplotlib.figure import Figure  # noqa: PLC0415  (an optional extra)
        except ImportError:
            return
        axes = (figure := Figure(figsize=(7, 4), layout="constrained")).subplots()
        for name in ("loss", "validation_loss"):
            rows = [row for row in self.rows if row[name] is not None]
            axes.plot([row["step"] for row in rows], [row[name] for row in rows], label=name)
        axes.set(xlabel="step", ylabel="loss per target (nats)")
        axes.legend()
        picture = io.BytesIO()
        figure.savefig(picture, format="svg")
        write_file(self.folder / "curve.svg", picture.getvalue())


def _tensorboard(folder: Path, rows: History) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (an optional extra)
    except ImportError:
        return None
    last = rows[-1]["step"] if rows else 0
    return SummaryWriter(folder / "tensorboard", purge_step=last + 1)  # type: ignore[no-untyped-call]


@torch.no_grad()
def _mean_loss(
    compute: nn.Module, validation: _Validation, device: torch.device
) -> dict[str, float]:
    was_training, (rank, world) = compute.training, _rank_and_world()
    compute.eval()
    found = [compute(_share(batch, rank, world, device)) for batch in validation.one_pass()]
    compute.train(was_training)
    sums = torch.tensor([sum(float(part[i]) for part in found) for i in (0, 1)], dtype=torch.double)
    if world > 1:
        sums = sums.to(device)
        dist.all_reduce(sums)
    total, count = sums.tolist()
    if not count:
        raise ValueError("validation has no target to judge by")
    loss = total / count
    return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "tokens": int(count)}


def _share(batch: Batch, rank: int, world: int, device: torch.device) -> Batch:
    """Take every ``world``-th row; where rows run out, one again whose targets do not count."""
    n_rows = len(batch["targets"])
    if world > 1:
        rows = torch.arange(rank, math.ceil(n_rows / world) * world, world)
        batch = {
            name: tensor[rows % n_rows] if len(tensor) == n_rows else tensor  # or it is (1, ...)
            for name, tensor in batch.items()
        }
        batch["targets"][rows >= n_rows] = IGNORE
    if device.type == "cuda":  # from pinned memory the copy goes on while the GPU computes
        batch = {name: t if t.is_cuda else t.pin_memory() for name, t in batch.items()}
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def _make_optimizer(model: nn.Module, recipe: Recipe, *, fused: bool) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    groups = [group for group in groups if group["params"]]
    return kind(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps, fused=fused)


def _spread(objective: Objective, device: torch.device, world: int, *, sharded: bool) -> nn.Module:
    """Let several processes share the work, with PyTorch's own means."""
    if sharded:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  (torch 2.6 or newer)

        mesh = dist.init_device_mesh(device.type, (world,))
        for block in _blocks(objective):
            fully_shard(block, mesh=mesh)
        return fully_shard(objective, mesh=mesh)
    if world > 1:
        unused = any(isinstance(part, MixtureOfExperts) for part in objective.modules())
        return DistributedDataParallel(objective, find_unused_parameters=unused)
    return objective


def _blocks(model: nn.Module) -> list[Block]:
    return [part for part in model.modules() if isinstance(part, Block)]


@contextmanager
def _recomputing(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Let blocks keep only what they are given, and compute the rest again going backwards."""
    blocks = _blocks(model) if wanted else []
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _rank_and_world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _device(wanted: str | torch.device | None) -> torch.device:
    """Join the other processes if there are any, and choose where to compute."""
    if dist.is_torchelastic_launched() and not dist.is_initialized():
        dist.init_process_group()
    if wanted is None:
        kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        wanted = next((kind for kind, there in kinds.items() if there), "cpu")
    device = torch.device(wanted)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    return device


def _check_same(folder: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in json.loads(json.dumps(now)).items():  # as it was written: lists, no tuples
        if isinstance(value, dict):
            _check_same(folder, then.get(name) or {}, value)
        elif name not in _FREE and then.get(name) != value:
            raise ValueError(
                f"{folder} holds a run with {name}={then.get(name)!r}, not {value!r}; "
                "take another folder"
            )


def _fingerprint(batch: Batch) -> int:
    return zlib.crc32(save({name: tensor.clone() for name, tensor in batch.items()}))


def _hash(*numbers: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest(), "big")


def _number(text: str) -> float | int | None:
    if not text:
        return None
    return int(text) if text.isdigit() else float(text)
