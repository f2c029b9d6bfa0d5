"""The training loop: exact, resumable, on many processes."""

import atexit
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm  # type: ignore[import-untyped]

from transformer_lib import saving
from transformer_lib.blocks import Block
from transformer_lib.checks import check_whole
from transformer_lib.data import IGNORE, Batch, Batches
from transformer_lib.losses import Objective
from transformer_lib.recipes import Recipe, learning_rate
from transformer_lib.saving import lock_folder, write_file

Row = dict[str, Any]  # one line of metrics.csv: a number or None for each of these
COLUMNS = ("step", "tokens", "loss", "learning_rate", "grad_norm", "validation_loss", "perplexity")

# What may differ when a run goes on: these change how the same numbers are computed and kept.
_FREE = {"log_every", "checkpoint_every", "keep", "compile", "checkpoint_activations", "strategy"}


def train(
    model: nn.Module,
    batches: Batches,
    recipe: Recipe,
    *,
    validation: Batches | None = None,
    folder: str | Path | None = None,
    resume: bool = True,
    device: str | torch.device | None = None,
    progress: bool = True,
    on_step: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Train a model, or go on where an earlier call with the same folder was stopped.

    On a CPU, a run that was killed and resumed ends with the same bits as one that was not.

    Args:
        model: one that :class:`~transformer_lib.losses.Objective` can judge. It is changed in
            place and left in evaluation mode; after an error its parts are in the modes they were.
        batches: what to learn from, without end.
        recipe: how to train.
        validation: what ``one_pass()`` of it gives is not learned from, but judged by.
        folder: where ``metrics.csv``, ``curve.svg`` and ``checkpoints`` go; nowhere if left out.
        resume: whether to go on with what the folder holds; if not, that is an error.
        device: where to compute; on a GPU if there is one.
        progress: whether to show a progress bar.
        on_step: called with every new row, by the first process.

    Returns:
        The rows of ``metrics.csv``: ``step``; ``tokens``, the targets so far; ``loss``,
        ``learning_rate`` and ``grad_norm`` (before clipping) of this step; ``validation_loss`` and
        ``perplexity``, ``None`` in steps without validation. ``loss`` is what is made small, with
        label smoothing and balance; the validation is judged without both.

    Raises:
        BlockingIOError: if another process trains in the folder.
        FloatingPointError: if the loss or the gradient is not a number any more.
        ValueError: if the folder holds another run.

    Example:
        >>> from transformer_lib import config, data, models
        >>> sizes = config.TransformerConfig(vocab_size=5, d_model=8, n_heads=2, n_layers=1)
        >>> text = data.TextWindows(torch.arange(100) % 5, length=8, batch_size=4)
        >>> recipe = Recipe(steps=50, learning_rate=0.01, log_every=25)
        >>> rows = train(models.CausalLM(sizes), text, recipe, progress=False, device="cpu")
        >>> [row["step"] for row in rows], rows[0]["loss"] > rows[1]["loss"]
        ([25, 50], True)
    """
    if recipe.patience is not None and validation is None:
        raise ValueError(f"patience={recipe.patience} needs a validation to judge by")
    where = _device(device)
    first = _rank_and_world()[0] == 0  # of the processes that share a run, this one writes
    with lock_folder(folder if first else None), modes_kept(model):
        run = _Run(model, batches, recipe, validation, where)
        run.go(None if folder is None else Path(folder), resume, progress, on_step)
        run.hand_back(model)
    model.eval()
    return run.rows


def evaluate(model: nn.Module, validation: Batches) -> dict[str, float]:
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
        >>> from transformer_lib import config, data, models
        >>> sizes = config.TransformerConfig(vocab_size=5, d_model=8, n_heads=2, n_layers=1)
        >>> text = data.TextWindows(torch.arange(101) % 5, length=8, batch_size=4)
        >>> evaluate(models.CausalLM(sizes), text)["tokens"]
        100
    """
    return _mean_loss(Objective(model), validation, next(model.parameters()).device)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Let every module end in the mode it was in, training or evaluation, whatever comes between.

    ``model.train()`` would not do: it also wakes the dropout of parts that were frozen.

    Args:
        model: any module.

    Example:
        >>> model = nn.Sequential(nn.Dropout().eval(), nn.Dropout())
        >>> with modes_kept(model):
        ...     model = model.eval()
        >>> [part.training for part in model]
        [False, True]
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


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


@dataclass
class _Run:
    """All that changes while training: model, optimizer, loader, and the rows so far."""

    model: nn.Module
    batches: Batches
    recipe: Recipe
    validation: Batches | None
    device: torch.device

    def __post_init__(self) -> None:
        recipe, device = self.recipe, self.device
        self.rank, self.world = _rank_and_world()
        # How tensors of all processes become one on the first one's CPU, and come back.
        self.whole = dcp.StateDictOptions(
            full_state_dict=True,
            cpu_offload=True,
            broadcast_from_rank0=self.world > 1,
            strict=False,  # of tied tensors there is only one
        )
        self.step, self.tokens, self.rows = 0, torch.tensor(0), list[Row]()
        self.waited = 0  # validations since the best one
        self.best_weights: saving.Tensors = {}
        sharded = self.world > 1 and recipe.strategy == "fsdp"  # for good, so only a copy is
        self.model = deepcopy(self.model) if sharded else self.model.to(device)
        self.model.zero_grad(set_to_none=True)  # what somebody left there is not of our first step
        self.thrifty = {
            block: partial(checkpoint, block.forward, use_reentrant=False)
            for block in _blocks(self.model)
            if recipe.checkpoint_activations
        }
        self.objective = Objective(self.model, recipe.label_smoothing, recipe.balance).train()
        parallel = _spread(self.objective, device, self.world, sharded=sharded)
        self.compute: Any = torch.compile(parallel) if recipe.compile else parallel
        self.optimizer = _make_optimizer(self.model, recipe, fused=device.type == "cuda")
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "float16")

    def go(self, folder: Path | None, resume: bool, progress: bool, on_step: Any) -> None:
        """Make all steps that are left."""
        self.folder = folder
        if folder is not None:
            self.resume(folder, allowed=resume)
        hidden = self.rank > 0 or not progress
        bar = tqdm(total=self.recipe.steps, initial=self.step, unit="step", disable=hidden)
        with bar, closing(_Log(folder if self.rank == 0 else None, self.rows)) as log:
            while not self.finished:
                row = self.update()
                bar.update()
                if row is not None:
                    bar.set_postfix_str(log.add(row))
                    if on_step is not None and self.rank == 0:
                        on_step(row)
                if folder is not None and (self.due(self.recipe.checkpoint_every) or self.finished):
                    self.save(folder)
                    log.draw()

    @property
    def finished(self) -> bool:
        return self.step >= self.recipe.steps or self.waited >= (self.recipe.patience or math.inf)

    def due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.recipe.steps

    def update(self) -> Row | None:
        """Make one step; return its row if this one is to be logged."""
        recipe = self.recipe
        self.step += 1
        # Whatever is random in a step follows from its number, so nothing of it has to be saved.
        torch.manual_seed(zlib.crc32(f"{recipe.seed} {self.step} {self.rank}".encode()))
        total, count = self._gradients()
        every = (recipe.log_every, recipe.validate_every, recipe.checkpoint_every)
        logged = any(map(self.due, every))
        norm = self._clip() if logged or recipe.clip is not None else total
        rate = learning_rate(self.step, recipe)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.tokens = self.tokens + count
        if not logged:
            return None
        if self.world > 1:
            dist.all_reduce(total)
        loss, length = float(total / count), float(norm)  # only here does anything wait for the GPU
        # In float16 a gradient may overflow: the scaler has left that step out.
        if not math.isfinite(loss) or not (math.isfinite(length) or self.scaler.is_enabled()):
            raise FloatingPointError(f"{loss=} and grad_norm={length} at step {self.step}")
        row = dict.fromkeys(COLUMNS) | {"step": self.step, "tokens": int(self.tokens)}
        self.rows.append(row | {"loss": loss, "learning_rate": rate, "grad_norm": length})
        if self.validation is not None and self.due(recipe.validate_every):
            self._validate(self.validation)
        return self.rows[-1]

    def _gradients(self) -> tuple[Tensor, Tensor]:
        """Make the gradients of the mean loss; return this process' sum, and everybody's count.

        Every process sees the whole batch, so the count is known without asking the others.
        """
        parts = [self._next_batch() for _ in range(self.recipe.accumulate)]
        count = torch.stack([(part["targets"] != IGNORE).sum() for part in parts]).sum()
        if not count:
            raise ValueError(f"batches gave no target at step {self.step}: all of them are IGNORE")
        total = torch.zeros((), device=self.device)
        for part in parts:
            with self._autocast(), _forward_replaced(self.thrifty):
                loss, _ = self.compute(_share(part, self.rank, self.world, self.device))
            # DDP and FSDP give the mean over processes; what is wanted is the sum.
            self.scaler.scale(loss * self.world / count).backward()
            total += loss.detach()
        return total, count

    def _next_batch(self) -> Batch:
        if self.folder is not None:  # a checkpoint says where this batch was
            self.place = self.batches.state_dict()
        self.latest = next(self.batches)
        return self.latest

    def _autocast(self) -> torch.autocast:
        kind = self.recipe.precision
        return torch.autocast(self.device.type, getattr(torch, kind), enabled=kind != "float32")

    def _clip(self) -> Tensor:
        """Shorten the gradient if need be; return how long it was."""
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip or math.inf)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of all shards

    def _validate(self, validation: Batches) -> None:
        self.objective.label_smoothing = self.objective.balance = 0.0
        with self._autocast():
            found = _mean_loss(self.compute, validation, self.device)
        self.objective.label_smoothing = self.recipe.label_smoothing
        self.objective.balance = self.recipe.balance
        self.rows[-1] |= {"validation_loss": found["loss"], "perplexity": found["perplexity"]}
        self._count_waiting()
        if self.recipe.patience is not None and self.waited == 0:
            self.best_weights = {name: t.clone() for name, t in self._weights().items()}

    def _count_waiting(self) -> None:
        losses = [row["validation_loss"] for row in self.rows]
        losses = [math.inf if math.isnan(loss) else loss for loss in losses if loss is not None]
        self.waited = len(losses) - 1 - losses.index(min(losses)) if losses else 0

    def save(self, folder: Path) -> None:
        """Write a checkpoint; every process takes part, the first one writes."""
        moments: Any = dcp.get_optimizer_state_dict(self.model, self.optimizer, options=self.whole)
        tensors = {f"model/{name}": tensor for name, tensor in self._weights().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best_weights.items()}
        for name, values in moments.get("state", {}).items():
            tensors |= {f"{key}/{name}": tensor for key, tensor in values.items()}
        state: Row = {"recipe": asdict(self.recipe), "model": saving.describe_model(self.model)}
        state |= {"rows": self.rows, "scaler": self.scaler.state_dict()}
        state |= {"place": self.place, "batch": _fingerprint([self.latest])}
        state |= {"validation": self.judged_by}
        if self.rank == 0:
            to = folder / "checkpoints"
            saving.write_checkpoint(to, self.step, tensors, state, self.recipe.keep)

    @cached_property
    def judged_by(self) -> int | None:
        """A checksum of the validation: losses on other data could not be compared."""
        return None if self.validation is None else _fingerprint(self.validation.one_pass())

    def resume(self, folder: Path, *, allowed: bool) -> None:
        """Go on from the newest checkpoint, if there is one; the first process reads it."""
        path = folder / "checkpoints"
        tensors, state = saving.read_checkpoint(path) if self.rank == 0 else ({}, {})
        if self.world > 1:
            box = [state]
            dist.broadcast_object_list(box)
            state = box[0]
        if not state:
            return
        if not allowed:
            raise ValueError(f"resume=False, but {folder} holds a run; take another folder")
        _check_same(folder, state["model"], saving.describe_model(self.model))
        # What an older version did not know of, it did as the default says.
        defaults = {field.name: field.default for field in fields(Recipe)}
        _check_same(folder, defaults | state["recipe"], asdict(self.recipe))
        self.batches.load_state_dict(state["place"])
        instead = "give the same one, or take another folder"
        if _fingerprint([self._next_batch()]) != state["batch"]:
            raise ValueError(f"batches gives other data than the run in {folder}; {instead}")
        if state.get("validation", self.judged_by) != self.judged_by:
            raise ValueError(f"validation differs from that of the run in {folder}; {instead}")
        self.rows, self.step = state["rows"], state["rows"][-1]["step"]
        self.tokens = torch.tensor(state["rows"][-1]["tokens"])
        self._count_waiting()
        self.scaler.load_state_dict(state["scaler"])
        self.best_weights = _part(tensors, "best")
        self._load(self.model, _part(tensors, "model"))
        held: Any = dcp.get_optimizer_state_dict(self.model, self.optimizer, options=self.whole)
        if self.rank == 0:
            moments = {key: _part(tensors, key) for key in ("step", "exp_avg", "exp_avg_sq")}
            held["state"] = {
                name: {key: moments[key][name] for key in moments} for name in moments["step"]
            }
        dcp.set_optimizer_state_dict(self.model, self.optimizer, held, options=self.whole)

    def hand_back(self, model: nn.Module) -> None:
        """Put the best weights back if they were kept; give the caller's model what was learned."""
        if self.recipe.patience is not None:
            self._load(self.model, self.best_weights)
        if self.model is not model:
            self._load(model, self._weights())

    def _weights(self) -> saving.Tensors:
        """Return all weights, whole; in all processes but the first, nothing."""
        state: Any = dcp.get_model_state_dict(self.model, options=self.whole)
        return saving.without_copies(self.model, state)

    def _load(self, model: nn.Module, weights: Any) -> None:
        if self.rank == 0:
            saving.check_tensors(model, weights)
        dcp.set_model_state_dict(model, weights, options=self.whole)


class _Log:
    """Where rows go: ``metrics.csv``, a picture, TensorBoard; nowhere without a folder."""

    def __init__(self, folder: Path | None, rows: list[Row]) -> None:
        self.folder, self.rows, self.clock = folder, rows, time.perf_counter()
        self.board: Any = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            lines = [",".join(COLUMNS) + "\n", *map(_line, rows)]
            write_file(folder / "metrics.csv", "".join(lines).encode())
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (optional)

                next_step = rows[-1]["step"] + 1 if rows else 1
                self.board = SummaryWriter(folder / "tensorboard", purge_step=next_step)

    def add(self, row: Row) -> str:
        """Write a row; return what the progress bar shall say."""
        if self.folder is not None:
            with (self.folder / "metrics.csv").open("a", encoding="utf-8") as file:
                file.write(_line(row))
        if self.board is not None:
            for name in COLUMNS[1:]:
                if row[name] is not None:
                    self.board.add_scalar(name, row[name], row["step"])
        before, self.clock = self.clock, time.perf_counter()
        tokens = row["tokens"] - (self.rows[-2]["tokens"] if len(self.rows) > 1 else 0)
        return f"loss {row['loss']:.4f}, {tokens / (self.clock - before):,.0f} tokens/s"

    def draw(self) -> None:
        """Draw the losses so far, if matplotlib is installed."""
        if self.folder is None:
            return
        if self.board is not None:
            self.board.flush()
        with suppress(ImportError):
            from matplotlib.figure import Figure  # noqa: PLC0415  (optional)

            figure = Figure(figsize=(7, 4), layout="constrained")
            axes = figure.subplots()
            for name in ("loss", "validation_loss"):
                drawn = [(row["step"], row[name]) for row in self.rows if row[name] is not None]
                axes.plot(*zip(*drawn, strict=True), label=name) if drawn else None
            axes.set(xlabel="step", ylabel="loss of a target, in nats")
            axes.legend()
            part = self.folder / ".curve.svg"
            figure.savefig(part)
            part.replace(self.folder / "curve.svg")

    def close(self) -> None:
        """Let TensorBoard's writer end its file and its thread."""
        if self.board is not None:
            self.board.close()


def _line(row: Row) -> str:
    return ",".join("" if row[name] is None else repr(row[name]) for name in COLUMNS) + "\n"


@torch.no_grad()
def _mean_loss(compute: nn.Module, validation: Batches, device: torch.device) -> dict[str, float]:
    rank, world = _rank_and_world()
    with modes_kept(compute):
        compute.eval()
        found = [compute(_share(batch, rank, world, device)) for batch in validation.one_pass()]
    sums = torch.tensor([sum(float(pair[i]) for pair in found) for i in (0, 1)], dtype=torch.double)
    if world > 1:
        sums = sums.to(device)
        dist.all_reduce(sums)
    total, count = sums.tolist()
    if count == 0:
        raise ValueError("validation has no targets")
    loss = total / count
    return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "tokens": int(count)}


def _share(batch: Batch, rank: int, world: int, device: torch.device) -> Batch:
    """Take every ``world``-th row; where rows run out, one again whose targets do not count."""
    if world > 1:
        n_rows = len(batch["targets"])
        rows = torch.arange(rank, math.ceil(n_rows / world) * world, world)
        batch = {  # what has one row for all of them stays as it is
            name: tensor[rows % n_rows] if len(tensor) == n_rows else tensor
            for name, tensor in batch.items()
        }
        batch["targets"][rows >= n_rows] = IGNORE
    if device.type == "cuda":  # from pinned memory, copies go on while the GPU computes
        batch = {name: t if t.is_cuda else t.pin_memory() for name, t in batch.items()}
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def _make_optimizer(model: nn.Module, recipe: Recipe, *, fused: bool) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    make = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return make(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps, fused=fused)


def _spread(objective: Objective, device: torch.device, world: int, *, sharded: bool) -> Any:
    """Let several processes share the work, by PyTorch's own means."""
    if sharded:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  (new in torch 2.6)

        mesh = init_device_mesh(device.type, (world,))
        for part in (*_blocks(objective), objective):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)  # after a validation too
    elif world > 1:
        return DistributedDataParallel(objective)
    return objective


def _blocks(model: nn.Module) -> list[Block]:
    return [part for part in model.modules() if isinstance(part, Block)]


@contextmanager
def _forward_replaced(instead: Mapping[Block, Callable[..., Any]]) -> Iterator[None]:
    """Let blocks run something else for a while; whatever they had comes back."""
    before = {block: vars(block).get("forward") for block in instead}
    try:
        for block, forward in instead.items():
            vars(block)["forward"] = forward
        yield
    finally:
        for block, own in before.items():
            vars(block).pop("forward", None)
            if own is not None:
                vars(block)["forward"] = own


def _rank_and_world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _device(wanted: str | torch.device | None) -> torch.device:
    """Choose where to compute, and join the other processes if there are any."""
    if dist.is_torchelastic_launched() and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
        # Not before: evaluate and further runs share the work too. Who joined otherwise, leaves.
        atexit.register(_leave_processes)
    if wanted is None:
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        wanted = next((kind for kind in there if there[kind]), "cpu")
    return torch.device(wanted)


def _leave_processes() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _check_same(folder: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in json.loads(json.dumps(now)).items():  # as it is in a file: no tuples
        if isinstance(value, dict):
            _check_same(folder, then.get(name) or {}, value)
        elif name not in _FREE and then.get(name) != value:
            other = f"{folder} holds a run with {then.get(name)!r}; take another folder"
            raise ValueError(f"{name}={value!r}, but {other}")


def _part(tensors: saving.Tensors, name: str) -> saving.Tensors:
    start = f"{name}/"
    return {key[len(start) :]: t for key, t in tensors.items() if key.startswith(start)}


def _fingerprint(batches: Iterable[Batch]) -> int:
    layout, found = torch.contiguous_format, 0
    for batch in batches:
        content = save({name: t.clone(memory_format=layout) for name, t in batch.items()})
        found = zlib.crc32(content, found)
    return found
