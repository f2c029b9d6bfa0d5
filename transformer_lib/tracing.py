"""Measure what a module does to a tensor: who influences whom."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def influence(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "1 T D"]
) -> Float[Tensor, "T_out T"]:
    """Measure how strongly each input position moves each output position.

    A fixed vector is added to each position in turn, and the largest change of every output
    position is recorded. A function that works on each token alone gives a diagonal matrix; one
    that mixes tokens gives entries off the diagonal; a causal one gives a lower triangle.

    Args:
        function: maps ``(1, T, D)`` to ``(1, T_out, ...)``; a module in eval mode, for example.
        x: the input around which to measure.

    Returns:
        Entry ``[i, j]`` is the largest absolute change in output ``i`` when input ``j`` changes.

    Raises:
        ValueError: if ``x`` is not one sequence of vectors.

    Example:
        >>> influence(lambda x: 2 * x, torch.zeros(1, 3, 4))
        tensor([[2., 0., 0.],
                [0., 2., 0.],
                [0., 0., 2.]])
    """
    if x.ndim != 3 or x.shape[0] != 1:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected one sequence, (1, T, D)")
    # Not the same for all features: a norm would not notice a shift of the whole vector.
    nudge = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    with torch.no_grad():
        before = function(x)
        columns = []
        for position in range(x.shape[1]):
            changed = x.clone()
            changed[:, position] += nudge
            change = (function(changed) - before).abs()
            columns.append(change.flatten(start_dim=2).amax(dim=-1).squeeze(0))
    return torch.stack(columns, dim=1)
