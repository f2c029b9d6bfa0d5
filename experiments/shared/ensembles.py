"""Many models of one kind that learn at once: the weights of each are a row of one matrix."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Generic, TypeVar
from unittest import mock

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformer_lib import (
    Parts,
    Recipe,
    RMSNorm,
    TransformerConfig,
    learning_rate,
    make_norm,
    rms_norm,
)

Answer = TypeVar("Answer")  # of a model: a tensor, or a tuple of tensors


class PlainRMSNorm(RMSNorm):
    """RMSNorm by its formula: PyTorch's kernel knows no further axis of weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each vector of ``x``, ``(..., D)``."""
        return rms_norm(x, self.weight, self.eps)


def plain_norm(config: TransformerConfig) -> nn.Module:
    """Make the norm that a configuration asks for, in a form that knows many models."""
    if config.norm == "rms":
        return PlainRMSNorm(config.d_model, config.norm_eps)
    return make_norm(config)


PARTS = Parts(norm=plain_norm)  # of models that are to be stacked


class Stacked(Generic[Answer]):
    """Models of one kind that are asked at once.

    Args:
        models: the models, alike but for their weights; those with RMSNorm are made of ``PARTS``.
        device: where they are to be.

    Attributes:
        model: one of them, which lends its layers to the weights of all.
        flat: all weights, ``(R, P)`` for R models of P weights.
        moments: the two running means of Adam, each ``(R, P)``.
    """

    def __init__(self, models: Sequence[nn.Module], device: str) -> None:
        self.model = deepcopy(models[0]).to(device)
        self.shapes = {name: weight.shape for name, weight in models[0].named_parameters()}
        rows = [torch.cat([w.detach().flatten() for w in m.parameters()]) for m in models]
        self.flat = torch.stack(rows).to(device).requires_grad_()
        self.moments = [torch.zeros_like(self.flat, requires_grad=False) for _ in range(2)]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut a matrix ``(R, P)`` into the weights of the layers, each ``(R, ...)``."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()], dim=1)
        return {
            name: part.unflatten(1, tuple(shape))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def __call__(self, *inputs: Tensor) -> Answer:
        """Ask each model about inputs of its own: all tensors have R as their first axis."""
        with _for_many():
            one = vmap(lambda w, *given: functional_call(self.model, w, given), randomness="error")
            answer: Answer = one(self.named(self.flat), *inputs)
        return answer


class Ensemble(Stacked[Tensor]):
    """Models that learn at once with AdamW, each with its own rate and its own clipping.

    Args:
        models: the models, alike but for their weights.
        rates: the learning rate of each.
        device: where to train.
    """

    def __init__(self, models: Sequence[nn.Module], rates: Sequence[float], device: str) -> None:
        super().__init__(models, device)
        self.rates = torch.tensor(rates, dtype=self.flat.dtype, device=device)[:, None]
        decays = [torch.full((s.numel(),), float(len(s) > 1)) for s in self.shapes.values()]
        self.decays = torch.cat(decays).to(device)  # matrices shrink, biases and gains do not

    def step(self, losses: Tensor, number: int, recipe: Recipe) -> None:
        """Make one update.

        Args:
            losses: of each model, ``(R,)``.
            number: of the update, from 1.
            recipe: its learning rate is only a scale here: each model has its own.
        """
        (gradient,) = torch.autograd.grad(losses.sum(), self.flat)
        with torch.no_grad():
            length = gradient.norm(dim=1, keepdim=True)
            gradient = gradient * (recipe.clip or math.inf) / length.clamp(min=recipe.clip)
            first, second = self.moments
            first.lerp_(gradient, 1 - recipe.betas[0])
            second.lerp_(gradient.square(), 1 - recipe.betas[1])
            ways = [1 - beta**number for beta in recipe.betas]
            change = (first / ways[0]) / ((second / ways[1]).sqrt() + recipe.eps)
            rate = self.rates * (learning_rate(number, recipe) / recipe.learning_rate)
            self.flat -= rate * (change + recipe.weight_decay * self.decays * self.flat)


def learn(
    ensemble: Ensemble,
    batch: Callable[[int], tuple[Tensor, ...]],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    recipe: Recipe,
) -> Tensor:
    """Train an ensemble.

    Args:
        ensemble: changed in place.
        batch: gives the inputs of a step, the targets last, all ``(R, B, ...)``.
        loss_of: the losses ``(R,)`` from answers and targets.
        recipe: how to train.

    Returns:
        The loss of each step and model, ``(steps, R)``.
    """
    losses = []
    for step in range(recipe.steps):
        *inputs, targets = batch(step)
        each = loss_of(ensemble(*inputs), targets)
        ensemble.step(each, step + 1, recipe)
        losses.append(each.detach())  # as tensors: nothing waits for the GPU
    return torch.stack(losses).cpu()


def losses_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of each model, ``(R,)``, from ``(R, ..., V)`` and ``(R, ...)``."""
    each = nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(dim=1)


@contextmanager
def _for_many() -> Iterator[None]:
    """Leave out what cannot be done for many models at once: looking at values, fused kernels."""
    with mock.patch("transformer_lib.layers.embeddings.check_ids"), sdpa_kernel(SDPBackend.MATH):
        yield
