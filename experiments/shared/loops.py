"""A training loop for tasks that draw their data as they go."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_lib import Recipe, learning_rate


def rise_and_fall(step: int, recipe: Recipe) -> float:
    """Return the learning rate of a step that rises over the warm-up and falls to zero at the end.

    The falling line begins at the first step, so the highest rate is a little below the recipe's.
    """
    pace = min(step / max(recipe.warmup, 1), 1 - (step - 1) / recipe.steps)
    return pace * recipe.learning_rate


def minimise(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    loss_at: Callable[[int], Tensor],
    *,
    rate: Callable[[int, Recipe], float] = learning_rate,
    clip: float | None = None,
) -> list[float]:
    """Train with data that are drawn as the training goes.

    Where there is a list of examples, :func:`transformer_lib.training.loop.train` does more.

    Args:
        model: what learns.
        optimizer: of its weights.
        recipe: how many steps there are, and what ``rate`` needs.
        loss_at: draws the data of a step, counted from 1, and returns their loss.
        rate: the learning rate of a step.
        clip: the longest gradient; as long as it is if ``None``.

    Returns:
        The loss of every step.
    """
    losses: list[Tensor] = []
    for step in range(1, recipe.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, recipe)
        loss = loss_at(step)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.detach())  # as tensors: nothing waits for the GPU
    found: list[float] = torch.stack(losses).tolist()
    return found
