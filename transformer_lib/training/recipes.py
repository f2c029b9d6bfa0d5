"""Recipes: every number that decides how training goes."""

import math
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from transformer_lib.core.checks import check_fields, check_number, check_probability, check_whole


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All choices of a training run; together with model and data it decides every weight.

    Args:
        steps: the number of updates in all.
        learning_rate: the highest one, which warm-up ends with.
        schedule: how it goes on from there: :func:`learning_rate` has the formulas. ``"wsd"`` is
            warm-up, stable, decay: up to the last part, it does not ask how many steps there are.
        warmup: the number of updates over which it rises from 0 in a straight line.
        final_fraction: what part of it is left at the last step (``"cosine"``, ``"linear"``,
            ``"wsd"``).
        decay_share: over which part of the steps, the last ones, it falls (``"wsd"``).
        optimizer: Adam, or AdamW, which takes weight decay out of the gradient; or
            :class:`~transformer_lib.training.muon.Muon` for the matrices of all blocks, and AdamW
            for embeddings, output layer, norms and biases. The same rates suit both.
        betas: how slowly the means of the gradient and of its square change.
        eps: what is added to the root of the second.
        momentum: how slowly Muon forgets earlier gradients.
        weight_decay: how fast matrices shrink by themselves. Biases and norms never do: they have
            no size that could get out of hand, and a gain belongs near 1, not near 0. Tables of
            embeddings are matrices too, the tied one is the output layer.
        clip: the largest length of the gradient; a longer one is scaled down. ``None``: any.
        accumulate: how many batches make one update.
        average: 0.99 or the like lets the average of the weights, about the last 100 steps' then,
            be validated and handed back instead of the last ones; those go on learning, and
            ``loss`` is theirs. See :class:`~transformer_lib.training.weight_average.WeightAverage`.
            ``None``: no average.
        label_smoothing: how much of the target's probability is spread over all classes.
        balance: the weight of the balance loss of every mixture of experts; 0.01 is usual. Of each
            process and part of a step its own rows are balanced, padding included.
        precision: what matrices are multiplied in; weights and the optimizer stay in float32. In
            ``"bfloat16"`` the residual stream is rounded too, at every block: half the bytes to
            move, and a larger error. In ``"float16"``, where a long sum could overflow, it stays in
            float32. Muon's own products are in bfloat16 with either.
        half_weights: whether weights that are themselves in float16 or bfloat16 are trained as they
            are; if not, they are refused. A step that is small beside its weight is rounded away
            there: at a rate of 2e-5, most weights never change.
        compile: whether ``torch.compile`` translates the forward and backward pass.
        checkpoint_activations: whether blocks forget their activations and compute them again in
            the backward pass: a third more work, far less memory.
        log_every: how often a row is written, in updates; in between nothing waits for the GPU.
        validate_every: how often the validation loss is computed, and always after the last one.
        checkpoint_every: how often a checkpoint is written, and always after the last one.
        keep: how many checkpoints are kept, the newest ones.
        patience: after how many validations without a better loss training stops; the best weights
            are then put back. ``None``: never, and the last weights stay.
        seed: of dropout and whatever else is random in a step.
        strategy: how processes under ``torchrun`` share the work: each has the whole model
            (``"ddp"``) or a part of every tensor (``"fsdp"``).

    Raises:
        ValueError: if a value is out of range.

    Example:
        >>> recipe = Recipe(steps=1_000, learning_rate=3e-4, warmup=100)
        >>> recipe.schedule, recipe.optimizer
        ('cosine', 'adamw')
        >>> Recipe(steps=10, learning_rate=3e-4, warmup=11)
        Traceback (most recent call last):
        ValueError: warmup=11 must be at most steps=10
    """

    steps: int
    learning_rate: float
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"] = "cosine"
    warmup: int = 0
    final_fraction: float = 0.1
    decay_share: float = 0.2
    optimizer: Literal["adam", "adamw", "muon"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.95
    weight_decay: float = 0.1
    clip: float | None = 1.0
    accumulate: int = 1
    average: float | None = None
    label_smoothing: float = 0.0
    balance: float = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    half_weights: bool = False
    compile: bool = False
    checkpoint_activations: bool = False
    log_every: int = 10
    validate_every: int = 500
    checkpoint_every: int = 500
    keep: int = 2
    patience: int | None = None
    seed: int = 0
    strategy: Literal["ddp", "fsdp"] = "ddp"

    def __post_init__(self) -> None:
        check_fields(self, may_be_zero=("warmup", "seed"))
        for name in ("learning_rate", "eps", "weight_decay", "balance"):
            check_number(name, getattr(self, name), lambda x: x >= 0, "of at least 0")
        for name in ("final_fraction", "label_smoothing", "momentum"):
            check_probability(name, getattr(self, name))
        if self.average is not None:
            check_probability("average", self.average)
        share = "greater than 0 and at most 1"
        check_number("decay_share", self.decay_share, lambda x: 0 < x <= 1, share)
        for beta in self.betas:
            check_probability("betas", beta)
        if self.clip is not None:
            check_number("clip", self.clip, lambda x: x > 0, "greater than 0")
        if self.warmup > self.steps:
            raise ValueError(f"warmup={self.warmup} must be at most steps={self.steps}")
        if self.schedule == "wsd" and self.warmup > _stable_until(self):
            decay = f"the decay begins (decay_share={self.decay_share} of steps={self.steps})"
            raise ValueError(f"warmup={self.warmup} must end before {decay}")


class RecipeChoices(TypedDict, total=False):
    """Fields of a :class:`Recipe` that a finished recipe can be given otherwise.

    All but ``steps``, ``learning_rate`` and ``warmup``, which are arguments of their own.

    Example:
        >>> changes: RecipeChoices = {"clip": 0.5, "seed": 1}
        >>> modern_recipe(steps=5_000, **changes).clip
        0.5
    """

    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"]
    final_fraction: float
    decay_share: float
    optimizer: Literal["adam", "adamw", "muon"]
    betas: tuple[float, float]
    eps: float
    momentum: float
    weight_decay: float
    clip: float | None
    accumulate: int
    average: float | None
    label_smoothing: float
    balance: float
    precision: Literal["float32", "bfloat16", "float16"]
    half_weights: bool
    compile: bool
    checkpoint_activations: bool
    log_every: int
    validate_every: int
    checkpoint_every: int
    keep: int
    patience: int | None
    seed: int
    strategy: Literal["ddp", "fsdp"]


def recipe_2017(
    d_model: int, *, steps: int = 100_000, warmup: int = 4_000, **others: Unpack[RecipeChoices]
) -> Recipe:
    r"""Build the recipe of "Attention Is All You Need", section 5.

    Adam with :math:`\beta_2 = 0.98` and :math:`\epsilon = 10^{-9}`, label smoothing of 0.1, no
    weight decay, no clipping, and

    .. math:: \text{rate} = d_\text{model}^{-0.5} \min(s^{-0.5},\; s \cdot \text{warmup}^{-1.5})

    at step :math:`s`, whose highest value is :math:`(d_\text{model} \cdot \text{warmup})^{-0.5}`.

    Args:
        d_model: D, the width of the model.
        steps: the number of updates.
        warmup: how many of them warm up.
        others: fields of :class:`Recipe` to be set otherwise.

    Returns:
        The recipe.

    Raises:
        ValueError: if the width or the warm-up is not positive.

    Example:
        >>> recipe = recipe_2017(512)
        >>> f"{learning_rate(4_000, recipe):.6f} {512**-0.5 * 4_000**-0.5:.6f}"
        '0.000699 0.000699'
    """
    check_whole("d_model", d_model)
    check_whole("warmup", warmup)  # none would divide by zero
    paper: RecipeChoices = {
        "optimizer": "adam",
        "betas": (0.9, 0.98),
        "eps": 1e-9,
        "schedule": "inverse_sqrt",
        "label_smoothing": 0.1,
        "weight_decay": 0.0,
        "clip": None,
    }
    peak = (d_model * warmup) ** -0.5
    return Recipe(steps=steps, learning_rate=peak, warmup=warmup, **paper | others)


def modern_recipe(
    steps: int,
    learning_rate: float = 6e-4,
    *,
    warmup: int | None = None,
    **others: Unpack[RecipeChoices],
) -> Recipe:
    r"""Build the recipe that most language models after GPT-3 follow.

    AdamW with :math:`\beta_2 = 0.95` and decay 0.1, gradients clipped to length 1, a cosine down
    to a tenth, and a warm-up over the first hundredth of the steps.

    Args:
        steps: the number of updates.
        learning_rate: the highest one; 6e-4 is what GPT-3's paper gives for 125 million parameters.
        warmup: how many updates warm up, if not a hundredth.
        others: fields of :class:`Recipe` to be set otherwise.

    Returns:
        The recipe.

    Example:
        >>> modern_recipe(steps=5_000).warmup
        50
    """
    warmup = steps // 100 if warmup is None else warmup
    return Recipe(steps=steps, learning_rate=learning_rate, warmup=warmup, **others)


def learning_rate(step: int, recipe: Recipe) -> float:
    r"""Return the learning rate of one update.

    With :math:`s` the step, :math:`w` the warm-up and :math:`p = (s - w) / (\text{steps} - w)`, the
    highest rate is multiplied by :math:`s / w` up to step :math:`w`, and after that by

    ================ ===================================
    ``inverse_sqrt`` :math:`\sqrt{w / s}`, with w at least 1
    ``cosine``       :math:`f + (1 - f)(1 + \cos \pi p) / 2` with :math:`f` the ``final_fraction``
    ``linear``       :math:`f + (1 - f)(1 - p)`
    ``constant``     1
    ``wsd``          1, and from step :math:`e` on :math:`1 - (1 - f) \sqrt q`
    ================ ===================================

    where :math:`e = (1 - \text{decay\_share}) \cdot \text{steps}`, rounded, and
    :math:`q = (s - e) / (\text{steps} - e)`. The root makes the rate fall fast at first.

    Args:
        step: the number of the update; the first one is 1, and its rate is not 0.
        recipe: the recipe.

    Returns:
        The learning rate.

    Example:
        >>> recipe = Recipe(
        ...     steps=100, learning_rate=1.0, warmup=10, final_fraction=0.0
        ... )
        >>> [
        ...     round(learning_rate(step, recipe), 2)
        ...     for step in (1, 10, 55, 100)
        ... ]
        [0.1, 1.0, 0.5, 0.0]
    """
    peak, warmup = recipe.learning_rate, recipe.warmup
    if step <= warmup:
        return peak * step / warmup
    if recipe.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    if recipe.schedule == "constant":
        return peak
    if recipe.schedule == "wsd":
        return peak * (1 - (1 - recipe.final_fraction) * math.sqrt(_decay_done(step, recipe)))
    done = (step - warmup) / (recipe.steps - warmup)
    left = 1 - done if recipe.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return peak * (recipe.final_fraction + (1 - recipe.final_fraction) * left)


def _stable_until(recipe: Recipe) -> int:
    """The last step before the rate of ``"wsd"`` falls."""
    return recipe.steps - max(1, round(recipe.decay_share * recipe.steps))


def _decay_done(step: int, recipe: Recipe) -> float:
    """Which part of the decay of ``"wsd"`` is over."""
    begin = _stable_until(recipe)
    return max(0.0, (step - begin) / (recipe.steps - begin))
