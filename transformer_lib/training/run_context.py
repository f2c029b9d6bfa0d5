"""Context of a training run: random state and activation checkpointing, put back afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def activations_recomputed(model: nn.Module) -> Iterator[None]:
    """Let blocks forget their activations and compute them again, until the ``with`` block ends.

    Args:
        model: any module; its stacks are told.

    Example:
        >>> from transformer_lib import Stack, TransformerConfig
        >>> stack = Stack(
        ...     TransformerConfig(d_model=8, n_heads=2, n_layers=1),
        ...     causal=True,
        ... )
        >>> with activations_recomputed(stack):
        ...     stack.checkpoint_activations
        True
        >>> stack.checkpoint_activations
        False
    """
    stacks: list[Any] = [x for x in model.modules() if hasattr(type(x), "checkpoint_activations")]
    before = [(stack, stack.checkpoint_activations) for stack in stacks]
    try:
        for stack in stacks:
            stack.checkpoint_activations = True
        yield
    finally:
        for stack, setting in before:
            stack.checkpoint_activations = setting


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Let random numbers go on afterwards as if none had been drawn, and nothing been seeded.

    Args:
        device: where is computed. What all devices of its kind draw from is kept, and the CPU's.

    Example:
        >>> before = torch.get_rng_state()
        >>> with random_state_kept(torch.device("cpu")):
        ...     generator = torch.manual_seed(0)
        >>> torch.equal(torch.get_rng_state(), before)
        True
    """
    on_cpu = device.type == "cpu"  # whose state is always kept
    devices = range(0 if on_cpu else torch.get_device_module(device).device_count())
    with torch.random.fork_rng(devices, device_type="cuda" if on_cpu else device.type):
        yield
