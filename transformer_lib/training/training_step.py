"""One training step: the loss of a batch, its gradients, an update."""

import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_lib.core.eval_mode import evaluating
from transformer_lib.layers.quantized_linear import QuantizedLinear
from transformer_lib.models.lora import lora_layers
from transformer_lib.models.saving import Tensors
from transformer_lib.training.data import IGNORE, Batch, Batches
from transformer_lib.training.distributed import (
    OptimizerState,
    from_first,
    gather_optimizer,
    gather_weights,
    own_rows,
    rank_and_world,
    spread,
    spread_optimizer,
    spread_weights,
    sum_over_processes,
)
from transformer_lib.training.losses import Objective, WithExtraLosses
from transformer_lib.training.muon import Muon, hidden_matrices
from transformer_lib.training.recipes import Recipe
from transformer_lib.training.weight_average import WeightAverage

# Gives the summed loss of a batch, and the number of its targets.
Compute = Callable[[Batch], tuple[Tensor, Tensor]]


class Learner:
    """A model, what it is trained for, and what changes its weights.

    Args:
        model: the model. With ``strategy="fsdp"`` and several processes, a copy of it learns.
        recipe: how to train.
        device: where to compute.
        objective: as in :func:`~transformer_lib.training.loop.train`.
        extra_losses: as there.
        optimizer: as there.

    Raises:
        TypeError: if an objective or an optimizer is given instead of what builds it.
        ValueError: if all weights are frozen, as those of a quantised model are; if weights to be
            trained are in float16 or bfloat16, and the recipe does not say so; if the optimizer has
            parameters that are not the model's.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> learner = Learner(
        ...     layer, Recipe(steps=1, learning_rate=0.1), torch.device("cpu")
        ... )
        >>> batch = {"input": torch.ones(1, 3), "targets": torch.tensor([0])}
        >>> before = learner.gradients([batch], count=torch.tensor(1))
        >>> learner.step(rate=0.1)
        >>> bool(learner.gradients([batch], count=torch.tensor(1)) < before)
        True
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        device: torch.device,
        objective: Callable[[nn.Module], nn.Module] | None = None,
        extra_losses: Sequence[Callable[[nn.Module], Tensor]] = (),
        optimizer: Callable[[nn.Module], Optimizer] | None = None,
    ) -> None:
        _check_builds("objective", objective)
        _check_builds("optimizer", optimizer)
        if not recipe.half_weights:
            _check_precise(model)
        _check_learns(model)
        self.recipe, self.device = recipe, device
        self.rank, self.world = rank_and_world()
        sharded = self.world > 1 and recipe.strategy == "fsdp"  # for good, so only a copy is
        self.model = deepcopy(model) if sharded else model.to(device)
        self.model.zero_grad(set_to_none=True)  # of what was computed before
        self.objective = self._make_objective(objective, extra_losses).train()
        if not sharded:
            self.objective.to(device)
        parallel = spread(self.objective, device, sharded=sharded)
        self.has_adapters = bool(lora_layers(self.model))
        self.compute: Compute = torch.compile(parallel) if recipe.compile else parallel
        # Only now: the parameters of a sharded model are new ones.
        self.optimizer = self._make_optimizer() if optimizer is None else optimizer(self.model)
        _check_parameters(self.model, self.optimizer)
        self.ratios = [
            float(group["lr"]) / recipe.learning_rate if recipe.learning_rate else 1.0
            for group in self.optimizer.param_groups
        ]
        self.settings = [dict(group) for group in self.optimizer.param_groups]
        beta = recipe.average
        self.average = None if beta is None else WeightAverage(self.model, beta)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "float16")
        self.count_is_checked = objective is None

    def gradients(self, parts: Sequence[Batch], count: Tensor) -> Tensor:
        """Make the gradients of the mean loss; return the sum of this process' losses.

        Args:
            parts: the batches of this step.
            count: how many targets they have, those of all processes.

        Raises:
            ValueError: if an objective of one's own counts targets otherwise.
        """
        total = torch.zeros((), device=self.device, dtype=torch.float32)
        for part in parts:
            rows = own_rows(part, self.rank, self.world, self.device)
            with self._autocast():
                loss, counted = self.compute(rows)
            if not self.count_is_checked:
                _check_count(counted, rows)
                self.count_is_checked = True
            # DDP and FSDP give the mean over processes; what is wanted is the sum.
            self.scaler.scale(loss * self.world / count).backward()
            total = total + loss.detach()  # of float64, if the loss is
        return total

    def clip(self) -> Tensor:
        """Shorten the gradient if need be; return how long it was."""
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip or math.inf)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of all shards

    def step(self, rate: float) -> None:
        """Change the weights, and forget the gradients.

        Args:
            rate: the learning rate; each group of parameters has it in its own proportion.
        """
        for group, ratio in zip(self.optimizer.param_groups, self.ratios, strict=True):
            group["lr"] = rate * ratio
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.add()

    def judge(self, validation: Batches) -> dict[str, float]:
        """Judge the model as :func:`~transformer_lib.training.loop.evaluate` does.

        Args:
            validation: what to judge it by. The average of its weights is judged, if there is one.
        """
        with self._averaged(), evaluating(self.objective), self._autocast():
            return mean_loss(self.compute, validation, self.device)

    def judged_weights(self) -> Tensors:
        """Return a copy of the weights that :meth:`judge` judges; nothing but in process 0."""
        with self._averaged():
            return {name: tensor.clone() for name, tensor in self.weights().items()}

    def keep_average(self) -> None:
        """Let the model have the average of its weights for good, if there is one."""
        if self.average is not None:
            self.average.put(self.average.average)

    def state(self) -> tuple[Tensors, OptimizerState, list[dict[str, object]]]:
        """Return all that has been learned; in all processes but the first, nothing.

        Returns:
            Weights, their average and tensors of the optimizer, as ``"model/name"``,
            ``"weight_average/name"`` and ``"exp_avg/name"``; what else it knows of each parameter;
            and which settings of its groups it has changed itself.
        """
        tensors = {f"model/{name}": tensor for name, tensor in self.weights().items()}
        if self.average is not None:
            tensors |= {f"weight_average/{name}": t for name, t in self.average.state().items()}
        values: OptimizerState = {}
        for name, known in gather_optimizer(self.model, self.optimizer).items():
            for key, value in known.items():
                if isinstance(value, Tensor):
                    tensors[f"{key}/{name}"] = value.contiguous()
                else:
                    values.setdefault(name, {})[key] = value
        changed = [
            {key: group[key] for key in group if _has_changed(key, group, before)}
            for group, before in zip(self.optimizer.param_groups, self.settings, strict=True)
        ]
        return tensors, values, changed

    def load_state(
        self,
        tensors: dict[str, Tensors],
        values: OptimizerState,
        changed: list[dict[str, object]],
        n_steps: int,
    ) -> None:
        """Know again what :meth:`state` gave.

        Args:
            tensors: ``"model"``, ``"exp_avg"`` and so on, each by names.
            values: what else the optimizer knows of each parameter.
            changed: settings of its groups.
            n_steps: how many steps there were.
        """
        self.set_weights(tensors.get("model", {}))
        if self.average is not None:
            self.average.load_state(tensors.get("weight_average", {}), n_steps)
        known = {name: dict(of_parameter) for name, of_parameter in values.items()}
        for key, by_name in tensors.items():
            if key not in ("model", "weight_average"):
                for name, tensor in by_name.items():
                    known.setdefault(name, {})[key] = tensor
        spread_optimizer(self.model, self.optimizer, known)
        for group, settings in zip(self.optimizer.param_groups, changed, strict=False):
            group.update(settings)  # files of earlier versions have none

    def weights(self) -> Tensors:
        """Return the weights that a checkpoint has; in all processes but the first, nothing.

        Of a model with adapters these are what is trained: the rest is large, and does not change.
        """
        weights = gather_weights(self.model)
        frozen = self._frozen_names()
        return {name: tensor for name, tensor in weights.items() if name not in frozen}

    def set_weights(self, weights: Tensors) -> None:
        """Take over what :meth:`weights` gave; frozen weights stay as they are.

        Args:
            weights: by names; only those of the first process count.
        """
        frozen = self._frozen_names()
        there = gather_weights(self.model) if frozen else {}
        kept = {name: tensor for name, tensor in there.items() if name in frozen}
        spread_weights(self.model, kept | weights)

    def frozen_checksum(self) -> int | None:
        """Return a checksum of what :meth:`weights` leaves out; ``None`` if that is nothing."""
        frozen = self._frozen_names()
        if not frozen:
            return None
        found = 0
        for name, tensor in sorted(gather_weights(self.model).items()):
            if name in frozen:
                content: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
                found = zlib.crc32(content, found)
        return from_first(found)

    def _frozen_names(self) -> set[str]:
        """All tensors beside the adapters of a model that are not trained."""
        if not self.has_adapters:
            return set()
        trained = {name for name, each in self.model.named_parameters() if each.requires_grad}
        return self.model.state_dict().keys() - trained

    def _make_objective(
        self,
        build: Callable[[nn.Module], nn.Module] | None,
        extra_losses: Sequence[Callable[[nn.Module], Tensor]],
    ) -> nn.Module:
        recipe = self.recipe
        if build is None:
            objective: nn.Module = Objective(self.model, recipe.label_smoothing, recipe.balance)
        else:
            objective = build(self.model)
        return WithExtraLosses(objective, self.model, extra_losses) if extra_losses else objective

    def _make_optimizer(self) -> Optimizer:
        """The one that the recipe describes."""
        recipe = self.recipe
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        hidden = hidden_matrices(self.model) if recipe.optimizer == "muon" else []
        by_muon = set(hidden)
        by_adam = [parameter for parameter in trained if parameter not in by_muon]
        groups = [
            {"params": [p for p in by_adam if p.ndim >= 2], "weight_decay": recipe.weight_decay},
            {"params": [p for p in by_adam if p.ndim < 2], "weight_decay": 0.0},
        ]
        if recipe.optimizer == "muon":
            return Muon(
                hidden,
                groups,
                lr=recipe.learning_rate,
                momentum=recipe.momentum,
                betas=recipe.betas,
                eps=recipe.eps,
                weight_decay=recipe.weight_decay,
                precision="float32" if recipe.precision == "float32" else "bfloat16",
            )
        make = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
        return make(
            groups,
            lr=recipe.learning_rate,
            betas=recipe.betas,
            eps=recipe.eps,
            fused=self.device.type == "cuda",
        )

    def _averaged(self) -> AbstractContextManager[None]:
        return nullcontext() if self.average is None else self.average.in_model()

    def _autocast(self) -> torch.autocast:
        kind = self.recipe.precision
        return torch.autocast(self.device.type, getattr(torch, kind), enabled=kind != "float32")


@torch.no_grad()
def mean_loss(compute: Compute, validation: Batches, device: torch.device) -> dict[str, float]:
    """Compute the mean loss of all targets, with all processes.

    Args:
        compute: gives the summed loss of a batch, and the number of its targets.
        validation: a loader whose ``one_pass()`` gives the batches.
        device: where to compute.

    Returns:
        ``loss``, ``perplexity`` and ``tokens``.

    Raises:
        ValueError: if there is no target.

    Example:
        >>> from transformer_lib import TextWindows
        >>> text = TextWindows(torch.arange(9), length=4, batch_size=1)
        >>> half = lambda batch: (
        ...     batch["targets"].numel() * torch.tensor(0.5),
        ...     torch.tensor(4),
        ... )
        >>> mean_loss(half, text, torch.device("cpu"))["loss"]
        0.5
    """
    rank, world = rank_and_world()
    found = [compute(own_rows(batch, rank, world, device)) for batch in validation.one_pass()]
    sums = torch.tensor([sum(float(pair[i]) for pair in found) for i in (0, 1)], dtype=torch.double)
    total, count = sum_over_processes(sums.to(device) if world > 1 else sums).tolist()
    if count == 0:
        raise ValueError("validation has no targets")
    loss = total / count
    return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "tokens": int(count)}


def _check_builds(name: str, build: object) -> None:
    """A module can be called too, and would fail only when it is called with a model."""
    if isinstance(build, nn.Module | Optimizer):
        kind = type(build).__name__
        raise TypeError(f"{name} has type {kind}; expected a function that makes one for a model")


def _check_precise(model: nn.Module) -> None:
    """Where the next number is 1/256 of a weight away, most steps would leave it as it is."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype.itemsize < 4:
            raise ValueError(
                f"model has {name} in {parameter.dtype}, which rounds small steps away; expected "
                "float32: call model.float(), and set precision='bfloat16' in the recipe to be as "
                "fast; or set half_weights=True to train it as it is"
            )


def _check_learns(model: nn.Module) -> None:
    parameters = list(model.parameters())
    if not parameters or any(parameter.requires_grad for parameter in parameters):
        return
    if any(isinstance(part, QuantizedLinear) for part in model.modules()):
        raise ValueError(
            "model is quantised, and its weights are frozen; expected full weights (train first, "
            "and quantize what was trained), or adapters beside them (add_lora)"
        )
    raise ValueError(
        "model has no parameter to train: all are frozen; expected some with requires_grad, "
        "such as the adapters of add_lora"
    )


def _check_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    ours = {id(parameter) for parameter in model.parameters()}
    others = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in ours]
    if others:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in others)
        raise ValueError(
            f"optimizer changes parameters of shape {shapes} that are not the model's; "
            "expected those of the model that it is called with"
        )


def _check_count(counted: Tensor, rows: Batch) -> None:
    """A step divides by the number of targets, which it must know before it asks the objective."""
    wanted = int((rows["targets"] != IGNORE).sum())
    if int(counted) != wanted:
        raise ValueError(
            f"objective counted {int(counted)} targets of a batch; expected {wanted}, "
            "those that are not IGNORE"
        )


def _has_changed(key: str, group: dict[str, object], before: dict[str, object]) -> bool:
    value = group[key]
    return key != "lr" and isinstance(value, int | float) and value != before.get(key)
