"""The training loop: exact, resumable, on many processes."""

import math
import signal
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm  # type: ignore[import-untyped]

from transformer_lib.core.checks import check_whole
from transformer_lib.core.eval_mode import evaluating, modes_kept
from transformer_lib.core.files import lock_folder
from transformer_lib.models.saving import Tensors, describe_model
from transformer_lib.training import run_checkpoints
from transformer_lib.training.data import IGNORE, Batch, Batches
from transformer_lib.training.distributed import (
    choose_device,
    from_first,
    gather_weights,
    rank_and_world,
    spread_weights,
    sum_over_processes,
)
from transformer_lib.training.losses import Objective
from transformer_lib.training.recipes import Recipe, learning_rate
from transformer_lib.training.run_checkpoints import (
    DataSums,
    RunState,
    batch_checksum,
    check_same_data,
    check_same_run,
    split_by_kind,
    sum_up,
)
from transformer_lib.training.run_context import activations_recomputed, random_state_kept
from transformer_lib.training.run_log import Metrics, MetricsLog
from transformer_lib.training.training_step import Learner, mean_loss


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
    on_step: Callable[[Metrics], None] | None = None,
    objective: Callable[[nn.Module], nn.Module] | None = None,
    extra_losses: Sequence[Callable[[nn.Module], Tensor]] = (),
    optimizer: Callable[[nn.Module], Optimizer] | None = None,
    schedule: Callable[[int, Recipe], float] = learning_rate,
) -> list[Metrics]:
    """Train a model, or go on where an earlier call with the same folder was stopped.

    On a CPU, a run that was killed and resumed ends with the same bits as one that was not. With
    more ``steps`` than before, a run that has ended goes on too, and the rate of each further step
    is the new recipe's. The schedules ``"constant"`` and ``"inverse_sqrt"`` do not ask how many
    steps there are: the end is then that of a run that had all the steps from the start. Only the
    row and the validation of the old last step are there in addition. Together with ``steps``, the
    ``warmup`` may be another one: recipes often choose it by them.

    Random numbers that are drawn afterwards are those that would have been drawn before it.

    Ctrl-C ends a run that has a folder after a step, with a checkpoint: nothing is lost but that
    the row of this step is there in addition. A second Ctrl-C ends it at once.

    Args:
        model: one that the objective can judge. It is changed in place and left in evaluation
            mode; after an error its parts are in the modes they were, and after an error or Ctrl-C
            its weights are those that learn, not the best or the average.
        batches: what to learn from, without end.
        recipe: how to train.
        validation: what ``one_pass()`` of it gives is not learned from, but judged by.
        folder: where ``metrics.csv``, ``curve.svg`` and ``checkpoints`` go; nowhere if left out.
            It remembers model, recipe and data, and refuses others: at the first checkpoint, and
            when the run goes on, all examples are read once for that. Of a model with adapters
            (LoRA) checkpoints hold only these, and a checksum of the rest. The four functions below
            cannot be compared: give the same ones to go on.
        resume: whether to go on with what the folder holds; if not, that is an error.
        device: where to compute; on a GPU if there is one.
        progress: whether to show a progress bar.
        on_step: called with every new row, by the first process.
        objective: builds from the model what is trained and judged: a module that takes a batch
            and returns the summed loss of all ``targets`` that are not ``IGNORE``, and their
            number. Parameters of its own are not trained. If left out,
            :class:`~transformer_lib.training.losses.Objective` with what the recipe says of it.
        extra_losses: each is called with the model after the forward pass of a batch, and its value
            is added to the mean loss, in training only. With ``strategy="fsdp"`` the weights are in
            pieces then: only what the forward pass has left behind can be used.
        optimizer: builds one from the model, instead of the one that the recipe describes. Each
            group's rate stays in the proportion to the recipe's that it had in the beginning.
        schedule: gives the learning rate of a step, counted from 1.

    Returns:
        The rows of ``metrics.csv``. ``loss`` is what is made small, with label smoothing, balance
        and extra losses; the validation is judged without them.

    Raises:
        BlockingIOError: if another process trains in the folder.
        FloatingPointError: if the loss or the gradient is not a number any more.
        KeyboardInterrupt: after Ctrl-C.
        TypeError: if an objective or an optimizer is given instead of what builds it.
        ValueError: if the folder holds another run, or one with more steps; if the objective counts
            other targets, or the optimizer changes other parameters; if weights are in float16 or
            bfloat16, and the recipe does not say so.

    Example:
        >>> from transformer_lib.core import config
        >>> from transformer_lib.training import data
        >>> from transformer_lib.models import language_models as models
        >>> sizes = config.TransformerConfig(
        ...     vocab_size=5, d_model=8, n_heads=2, n_layers=1
        ... )
        >>> text = data.TextWindows(
        ...     torch.arange(100) % 5, length=8, batch_size=4
        ... )
        >>> recipe = Recipe(steps=50, learning_rate=0.01, log_every=25)
        >>> rows = train(
        ...     models.CausalLM(sizes),
        ...     text,
        ...     recipe,
        ...     progress=False,
        ...     device="cpu",
        ... )
        >>> [row["step"] for row in rows], rows[0]["loss"] > rows[1]["loss"]
        ([25, 50], True)
    """
    if recipe.patience is not None and validation is None:
        raise ValueError(f"patience={recipe.patience} needs a validation to judge by")
    where, to = choose_device(device), None if folder is None else Path(folder)
    first = rank_and_world()[0] == 0  # of the processes that share a run, this one writes
    with lock_folder(to if first else None), modes_kept(model), random_state_kept(where):
        learner = Learner(model, recipe, where, objective, extra_losses, optimizer)
        run = _Run(learner, batches, validation, schedule, to)
        sparing = recipe.checkpoint_activations
        with activations_recomputed(learner.model) if sparing else nullcontext():
            run.resume(allowed=resume)
            run.make_steps(progress, on_step)
        run.hand_back(model)
    model.eval()
    return run.rows


def evaluate(
    model: nn.Module,
    validation: Batches,
    objective: Callable[[nn.Module], nn.Module] = Objective,
) -> dict[str, float]:
    """Judge a model by data it was not trained on. Under ``torchrun``, every process calls this.

    Args:
        model: any model that the objective can judge.
        validation: a loader whose ``one_pass()`` gives the batches.
        objective: builds from the model what judges it, as in :func:`train`.

    Returns:
        ``loss``, the mean over all targets; ``perplexity``, its exponential: among how many equally
        likely tokens one would be as unsure; and ``tokens``, the number of targets.

    Raises:
        RuntimeError: if a model in training is used by another thread, too.
        ValueError: if there is no target.

    Example:
        >>> from transformer_lib.core import config
        >>> from transformer_lib.training import data
        >>> from transformer_lib.models import language_models as models
        >>> sizes = config.TransformerConfig(
        ...     vocab_size=5, d_model=8, n_heads=2, n_layers=1
        ... )
        >>> text = data.TextWindows(
        ...     torch.arange(101) % 5, length=8, batch_size=4
        ... )
        >>> evaluate(models.CausalLM(sizes), text)["tokens"]
        100
    """
    judge = objective(model)
    with evaluating(judge):
        return mean_loss(judge, validation, next(model.parameters()).device)


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
        >>> knows_nothing = math.log(256)
        >>> round(bits_per_byte(knows_nothing, n_tokens=10, n_bytes=10), 6)
        8.0
    """
    check_whole("n_tokens", n_tokens)
    check_whole("n_bytes", n_bytes)
    return loss / math.log(2) * n_tokens / n_bytes


class _CtrlC:
    """Notes the first Ctrl-C, and lets the second one through; at its end it passes on the first.

    A handler of the caller's own stays in place, and outside of the main thread nothing is changed.

    Args:
        waits: whether to do so; if not, the first one is let through.
    """

    def __init__(self, waits: bool) -> None:
        main = threading.current_thread() is threading.main_thread()
        known = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self.waits, self.came = waits and main and known, False

    def __enter__(self) -> "_CtrlC":
        if self.waits:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.waits:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.came and kind is None:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            signal.default_int_handler(number, frame)
        self.came = True


class _Run:
    """The loop: what has been learned, the place in the data, the rows so far."""

    def __init__(
        self,
        learner: Learner,
        batches: Batches,
        validation: Batches | None,
        schedule: Callable[[int, Recipe], float],
        folder: Path | None,
    ) -> None:
        self.learner, self.recipe, self.schedule = learner, learner.recipe, schedule
        self.batches, self.validation, self.folder = batches, validation, folder
        self.rank = rank_and_world()[0]
        self.step, self.tokens, self.rows = 0, torch.tensor(0), list[Metrics]()
        self.validations_since_best = 0
        self.best_weights: Tensors = {}
        self.last_batch: Batch = {}
        self.place_of_last_batch: dict[str, int] = {}

    def make_steps(self, progress: bool, on_step: Callable[[Metrics], None] | None) -> None:
        """Make all steps that are left."""
        logged_to = self.folder if self.rank == 0 else None
        hidden = self.rank > 0 or not progress
        bar = tqdm(total=self.recipe.steps, initial=self.step, unit="step", disable=hidden)
        # Several processes would have to agree on a step, so they stop at once.
        waits = self.folder is not None and rank_and_world()[1] == 1
        with _CtrlC(waits) as ctrl_c, bar, closing(MetricsLog(logged_to, self.rows)) as log:
            while not self.finished:
                row = self.update(logged=ctrl_c.came)
                bar.update()
                if row is not None:
                    bar.set_postfix_str(log.add(row))
                    if on_step is not None and self.rank == 0:
                        on_step(row)
                stops = ctrl_c.came and row is not None  # a checkpoint has the row of its step
                if self.due(self.recipe.checkpoint_every) or self.finished or stops:
                    self.save()
                    log.draw()
                if stops:
                    break

    @property
    def finished(self) -> bool:
        patience = self.recipe.patience or math.inf
        return self.step >= self.recipe.steps or self.validations_since_best >= patience

    def due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.recipe.steps

    def update(self, *, logged: bool = False) -> Metrics | None:
        """Make one step; return its row if this one is to be logged, as asked or as is its turn."""
        recipe, learner = self.recipe, self.learner
        self.step += 1
        # Whatever is random in a step follows from its number, so nothing of it has to be saved.
        self._seed(zlib.crc32(f"{recipe.seed} {self.step} {self.rank}".encode()))
        parts = [self._next_batch() for _ in range(recipe.accumulate)]
        # Every process sees the whole batches, so the count is known without asking the others.
        count = torch.stack([(part["targets"] != IGNORE).sum() for part in parts]).sum()
        if not count:
            raise ValueError(f"batches gave no target at step {self.step}: all of them are IGNORE")
        total = learner.gradients(parts, count)
        every = (recipe.log_every, recipe.validate_every, recipe.checkpoint_every)
        logged = logged or any(map(self.due, every))
        norm = learner.clip() if logged or recipe.clip is not None else None
        rate = self.schedule(self.step, recipe)
        learner.step(rate)
        self.tokens = self.tokens + count
        if norm is None or not logged:
            return None
        # Only here does anything wait for the GPU.
        self._add_row(float(sum_over_processes(total) / count), rate, float(norm))
        if self.validation is not None and self.due(recipe.validate_every):
            self._validate(self.validation)
        return self.rows[-1]

    def _seed(self, number: int) -> None:
        """Seed what a step draws from; on a CPU not the GPUs, where others may draw."""
        on_cpu = self.learner.device.type == "cpu"
        (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(number)

    def _next_batch(self) -> Batch:
        if self.folder is not None:  # a checkpoint says where this batch was
            self.place_of_last_batch = self.batches.state_dict()
        self.last_batch = next(self.batches)
        return self.last_batch

    def _add_row(self, loss: float, rate: float, grad_norm: float) -> None:
        overflows = self.learner.scaler.is_enabled()  # in float16: that step was left out
        if not math.isfinite(loss) or not (math.isfinite(grad_norm) or overflows):
            raise FloatingPointError(f"{loss=} and {grad_norm=} at step {self.step}")
        row = Metrics(
            step=self.step,
            tokens=int(self.tokens),
            loss=loss,
            learning_rate=rate,
            grad_norm=grad_norm,
            validation_loss=None,
            perplexity=None,
        )
        self.rows.append(row)

    def _validate(self, validation: Batches) -> None:
        found = self.learner.judge(validation)
        self.rows[-1]["validation_loss"] = found["loss"]
        self.rows[-1]["perplexity"] = found["perplexity"]
        self._look_for_best()
        if self.recipe.patience is not None and self.validations_since_best == 0:
            self.best_weights = self.learner.judged_weights()

    def _look_for_best(self) -> None:
        losses = [row["validation_loss"] for row in self.rows]
        known = [math.inf if math.isnan(loss) else loss for loss in losses if loss is not None]
        self.validations_since_best = len(known) - 1 - known.index(min(known)) if known else 0

    def save(self) -> None:
        """Write a checkpoint; every process takes part, the first one writes."""
        if self.folder is None:
            return
        tensors, values, changed = self.learner.state()
        tensors |= {f"best/{name}": tensor for name, tensor in self.best_weights.items()}
        state = RunState(
            recipe=asdict(self.recipe),
            model=describe_model(self.learner.model),
            rows=self.rows,
            scaler=self.learner.scaler.state_dict(),
            place=self.place_of_last_batch,
            batch=batch_checksum([self.last_batch]),
            validation=self.validation_checksum,
            data=self.data_sums,
            frozen=self.frozen_checksum,
            optimizer=values,
            groups=changed,
        )
        if self.rank == 0:
            to = self.folder / "checkpoints"
            run_checkpoints.write_checkpoint(to, self.step, tensors, state, self.recipe.keep)

    @cached_property
    def validation_checksum(self) -> int | None:
        """Losses on other data could not be compared."""
        return None if self.validation is None else batch_checksum(self.validation.one_pass())

    @cached_property
    def frozen_checksum(self) -> int | None:
        """Adapters that were trained beside other weights would be worth nothing."""
        return self.learner.frozen_checksum()

    @cached_property
    def data_sums(self) -> DataSums | None:
        """Of all examples, unless the place has a checksum; a stream of one's own has only that."""
        known = getattr(self.batches, "state_has_checksum", True)
        return None if known else sum_up(self.batches.examples)

    def resume(self, *, allowed: bool) -> None:
        """Go on from the newest checkpoint, if there is one; the first process reads it."""
        folder = self.folder
        if folder is None:
            return
        path = folder / "checkpoints"
        found = run_checkpoints.read_checkpoint(path) if self.rank == 0 else None
        tensors, state = found or ({}, None)
        state = from_first(state)
        if state is None:
            return
        if not allowed:
            raise ValueError(f"resume=False, but {folder} holds a run; take another folder")
        learner = self.learner
        check_same_run(folder, state, learner.model, self.recipe)
        if state.get("frozen") != self.frozen_checksum:
            raise ValueError(
                f"model has other frozen weights than that of the run in {folder}; give the same "
                "model, or take another folder"
            )
        self._go_to_last_batch(folder, state)
        self.rows, self.step = state["rows"], state["rows"][-1]["step"]
        self.tokens = torch.tensor(state["rows"][-1]["tokens"])
        self._look_for_best()
        learner.scaler.load_state_dict(state["scaler"])
        kinds = split_by_kind(tensors, learner.model.state_dict())
        _check_dtypes(folder, kinds.get("model", {}), learner.model)
        self.best_weights = kinds.pop("best", {})
        known, groups = state.get("optimizer", {}), state.get("groups", [])
        learner.load_state(kinds, known, groups, self.step)

    def _go_to_last_batch(self, folder: Path, state: RunState) -> None:
        """Take the last batch of the earlier run again: it must be the same one."""
        self.batches.load_state_dict(state["place"])
        instead = "give the same one, or take another folder"
        known = state.get("data")  # files of earlier versions have none
        if known is not None and self.data_sums is not None:
            check_same_data(folder, known, self.data_sums)
        if batch_checksum([self._next_batch()]) != state["batch"]:
            raise ValueError(f"batches gives other data than the run in {folder}; {instead}")
        if state.get("validation", self.validation_checksum) != self.validation_checksum:
            raise ValueError(f"validation differs from that of the run in {folder}; {instead}")

    def hand_back(self, model: nn.Module) -> None:
        """Put the best weights or the average in; give the caller's model what was learned."""
        learned = self.learner.model
        if self.recipe.patience is not None:
            self.learner.set_weights(self.best_weights)
        else:
            self.learner.keep_average()
        if learned is not model:
            spread_weights(model, gather_weights(learned))


def _check_dtypes(folder: Path, then: Tensors, model: nn.Module) -> None:
    """Weights that are read as other numbers than they were written in would be another run."""
    for name, tensor in model.state_dict().items():  # in its order: that of a file is any
        if name in then and then[name].dtype != tensor.dtype:
            other = f"holds a run with {then[name].dtype}; convert it, or take another folder"
            raise ValueError(f"model has {name} in {tensor.dtype}, but {folder} {other}")
