"""What is set for a while, and put back whatever happens."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from transformer_lib.blocks import Stack


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


@contextmanager
def activations_recomputed(model: nn.Module) -> Iterator[None]:
    """Let blocks forget their activations and compute them again, until the ``with`` block ends.

    Args:
        model: any module; its stacks are told.

    Example:
        >>> from transformer_lib.config import TransformerConfig
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
    before = [
        (part, part.checkpoint_activations) for part in model.modules() if isinstance(part, Stack)
    ]
    try:
        for stack, _ in before:
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
