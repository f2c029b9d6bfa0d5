"""EMA: an average of the weights on the way, which is judged and kept."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from transformer_lib.core.checks import check_probability
from transformer_lib.models.saving import Tensors
from transformer_lib.training.distributed import (
    cut_like,
    from_first,
    gather_tensor,
    rank_and_world,
)


class WeightAverage:
    r"""The mean of a model's weights after each step, of which the latest count most (EMA).

    With :math:`\beta`, the weights of :math:`k` steps ago count :math:`\beta^k` times as much as
    the last ones: about :math:`1 / (1 - \beta)` steps matter. The weights before the first step
    count nothing. So after :math:`n` steps the average moves towards the newest weights by the part
    :math:`(1 - \beta) / (1 - \beta^n)`, which is all of the way at first.

    Args:
        model: whose trained weights are averaged. What is not trained is as it is.
        beta: how slowly the average forgets, from 0 (at once) to below 1.

    Raises:
        ValueError: if ``beta`` is out of range.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> average = WeightAverage(layer, beta=0.5)
        >>> for value in (3.0, 6.0):
        ...     nn.init.constant_(layer.weight, value) is layer.weight
        ...     average.add()
        True
        True
        >>> with average.in_model():  # (0.5 * 3 + 6) / (0.5 + 1)
        ...     round(layer.weight.item(), 4)
        5.0
        >>> layer.weight.item()
        6.0
    """

    def __init__(self, model: nn.Module, beta: float) -> None:
        check_probability("beta", beta)
        self.beta, self.n_steps = beta, 0
        self.learning = {n: p for n, p in model.named_parameters() if p.requires_grad}
        # At least in float32: in 16 bits, a small part of the way would be rounded away.
        self.average = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self.learning.items()
        }

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights as they are now, after a step."""
        self.n_steps += 1
        share = _share_of_newest(self.beta, self.n_steps)
        for name, parameter in self.learning.items():
            average = self.average[name]
            average.mul_(1 - share).add_(parameter.to(average.dtype), alpha=share)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Let the model have the average, until the end of the ``with`` block."""
        learning = {name: p.detach().clone() for name, p in self.learning.items()}
        self.put(self.average)
        try:
            yield
        finally:
            self.put(learning)

    @torch.no_grad()
    def put(self, weights: Tensors) -> None:
        """Give the model other weights.

        Args:
            weights: ``average`` of this object, or others by the same names.
        """
        for name, parameter in self.learning.items():
            parameter.copy_(weights[name])

    def state(self) -> Tensors:
        """Bring the average to the first process, on its CPU; in all others, return nothing."""
        found: Tensors = {}
        for name, average in self.average.items():
            tensor = gather_tensor(average)  # all processes take part
            if rank_and_world()[0] == 0:
                found[name] = tensor.cpu()
        return found

    def load_state(self, average: Tensors, n_steps: int) -> None:
        """Know again what :meth:`state` gave.

        Args:
            average: by names; only that of the first process counts.
            n_steps: how many steps it is of.
        """
        self.n_steps = n_steps
        for name, mine in self.average.items():
            tensor = from_first(average.get(name))  # one at a time: they are large
            assert tensor is not None
            mine.copy_(cut_like(mine, tensor))


def _share_of_newest(beta: float, n_steps: int) -> float:
    """Which part of the average the newest weights are; at first, there are no others."""
    share: float = (1 - beta) / (1 - beta**n_steps)
    return share
