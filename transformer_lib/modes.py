"""What is set for a while, and put back whatever happens."""

from collections.abc import Iterator
from contextlib import contextmanager

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
