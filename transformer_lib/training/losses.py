"""The cross-entropy: what training makes small.

The largest tensor of a language model is its logits: one number for every token and every word of
the vocabulary. :func:`linear_cross_entropy` holds ``LOGITS_AT_ONCE`` of them at most, however
large the batch is, and turns them into their gradient at once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_lib.core.checks import check_number, check_probability
from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.core.precision import autocast_dtype
from transformer_lib.layers.feedforward import MixtureOfExperts
from transformer_lib.models.language_models import CausalLM, OutputLayer, Seq2SeqLM
from transformer_lib.training.data import IGNORE

LOGITS_AT_ONCE = 2**31  # 4 GiB in bfloat16, 16 with what is made of them; fewer are slower


class Objective(nn.Module):
    """A model together with what it is trained for; returns a sum, and how much was summed.

    The mean belongs to a whole step, over all of its parts and processes, so it is not taken here:
    a mean of means would count the tokens of a short batch more than those of a long one.

    In evaluation mode there is neither label smoothing nor balance: a model is judged by the plain
    cross-entropy.

    Args:
        model: any model of this library that returns logits.
        label_smoothing: how much of the target's probability is spread over all classes.
        balance: the weight of the balance loss of every mixture of experts in the model.

    Raises:
        ValueError: if ``label_smoothing`` is not a probability, ``balance`` not a number of at
            least 0, or there is nothing to balance.

    Example:
        >>> objective = Objective(nn.Identity())
        >>> targets = torch.tensor([[0, 1, 3], [2, 0, IGNORE]])
        >>> total, count = objective(
        ...     {"input": torch.zeros(2, 3, 4), "targets": targets}
        ... )
        >>> f"{total / count:.4f}", int(count)  # log(4), by chance
        ('1.3863', 5)
    """

    def __init__(
        self, model: nn.Module, label_smoothing: float = 0.0, balance: float = 0.0
    ) -> None:
        super().__init__()
        check_probability("label_smoothing", label_smoothing)
        check_number("balance", balance, lambda x: x >= 0, "of at least 0")
        if balance and not _mixtures(model):
            raise ValueError(f"{balance=} needs a model with a MixtureOfExperts")
        self.model = model
        self.label_smoothing, self.balance = label_smoothing, balance

    def forward(self, batch: dict[str, Tensor]) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Compare the model's answers with the targets.

        Args:
            batch: the arguments of the model's forward pass, and ``targets``: ``(B, T)`` or
                ``(B,)``, with ``IGNORE`` where nothing is to be predicted.

        Returns:
            The summed loss of the targets, and their number. The balance loss, which is one number
            for the whole batch, counts once for each target, so that it is in the mean too.
        """
        inputs = dict(batch)
        targets = inputs.pop("targets")
        count = (targets != IGNORE).sum()
        if not (self.balance and self.training):
            return self._cross_entropy(inputs, targets), count
        mixtures = _mixtures(self.model)
        for mixture in mixtures:
            mixture.balance_loss = count.new_zeros((), dtype=torch.float32)  # not an old one
        total = self._cross_entropy(inputs, targets)
        uneven = torch.stack([mixture.balance_loss for mixture in mixtures]).sum()
        return total + self.balance * count * uneven, count

    def _may_skip_logits(self) -> bool:
        return _returns_products(self.model)

    # Asked once where the objective is compiled. That is torch.compiler.assume_constant_result,
    # which would import the compiler, and that takes seconds.
    _may_skip_logits._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _cross_entropy(self, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        smoothing = self.label_smoothing if self.training else 0.0
        if self._may_skip_logits():
            assert isinstance(self.model, CausalLM | Seq2SeqLM)
            layer = self.model.output
            x = layer.scaled(_body(self.model)(**inputs))
            return linear_cross_entropy(x, layer.projection.weight, targets, smoothing)
        output = self.model(**inputs)
        logits = output if isinstance(output, Tensor) else output.logits
        _check_targets(logits, targets)
        return _plain_cross_entropy(logits.flatten(end_dim=-2), targets.flatten(), smoothing)


class WithExtraLosses(nn.Module):
    """An objective that adds further losses to the mean, in training only.

    Args:
        objective: as :class:`Objective`: takes a batch, returns a sum and how much was summed.
        model: what the further losses look at.
        extra_losses: each is called with the model after the forward pass, and returns a number.

    Example:
        >>> model = nn.Linear(3, 4)
        >>> decay = lambda model: 10 * model.weight.pow(2).mean()
        >>> batch = {
        ...     "input": torch.ones(2, 3),
        ...     "targets": torch.tensor([0, 1]),
        ... }
        >>> plain, count = Objective(model)(batch)
        >>> total, _ = WithExtraLosses(Objective(model), model, [decay])(batch)
        >>> torch.allclose(total, plain + count * decay(model))
        True
    """

    def __init__(
        self,
        objective: nn.Module,
        model: nn.Module,
        extra_losses: Sequence[Callable[[nn.Module], Tensor]],
    ) -> None:
        super().__init__()
        self.objective, self.model, self.extra_losses = objective, model, tuple(extra_losses)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Compute the loss of a batch as the objective does, and add the others.

        Args:
            batch: what the objective takes.

        Returns:
            The sum and its count. Each further loss counts once for each target, so that it is in
            the mean too.
        """
        total, count = self.objective(batch)
        if self.training:
            for extra_loss in self.extra_losses:
                total = total + count * extra_loss(self.model)
        return total, count


def linear_cross_entropy(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, "*batch"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Sum the cross-entropy of linear logits without keeping them for the backward pass.

    Equal to ``F.cross_entropy(F.linear(x, weight), targets, reduction="sum")``. The logits
    are made a part at a time; each part is turned into its own gradient at once and let go. Only
    under the transforms of ``torch.func`` they are kept, as in ``F.cross_entropy``.

    Args:
        x: what the output layer reads, ``(..., D)``. Where nothing is asked, it may be anything.
        weight: a row for each class, ``(V, D)``.
        targets: the right class of each vector, ``(...)``, or ``IGNORE``.
        label_smoothing: how much of the target's probability is spread over all classes.

    Returns:
        The summed loss, in float32 at least. It can be differentiated once; a second derivative is
        refused with a RuntimeError (``torch.func`` gives it).

    Raises:
        ValueError: if there is not one target for each vector, or ``label_smoothing`` is not a
            probability.

    Example:
        >>> x, weight = torch.zeros(5, 2), torch.ones(4, 2)
        >>> loss = linear_cross_entropy(x, weight, torch.arange(5) % 4)
        >>> f"{loss:.4f}"  # 5 * log(4)
        '6.9315'
    """
    check_probability("label_smoothing", label_smoothing)
    _check_targets(x, targets)
    rows, classes = x.flatten(end_dim=-2), targets.flatten()
    rows = rows.to(autocast_dtype(x.device) or x.dtype)  # no layer asks on our behalf
    # What is not counted may be anything, also NaN, which times 0 would still be NaN.
    rows = torch.where((classes != IGNORE)[:, None], rows, 0)
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        # torch.func differentiates only what it sees, and as often as it is asked to.
        return _plain_cross_entropy(rows @ weight.to(rows.dtype).mT, classes, label_smoothing)
    if not torch.is_grad_enabled():
        return _in_parts(rows, weight, classes, label_smoothing, (False, False))[0]
    apply: Callable[[Tensor, Tensor, Tensor, float], Tensor] = _LinearCrossEntropy.apply
    return apply(rows, weight, classes, label_smoothing)


@runtime_checkable
class _Context(Protocol):
    """What PyTorch hands from the forward to the backward pass, as far as it is used here."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor | None, Tensor | None, Tensor]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class _LinearCrossEntropy(torch.autograd.Function):
    """Makes the gradients in the forward pass, while the logits are there."""

    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> Tensor:
        for_x, for_weight = ctx.needs_input_grad[:2]
        total, *gradients = _in_parts(x, weight, targets, smoothing, (for_x, for_weight))
        ctx.save_for_backward(*gradients, weight)
        return total

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # The gradients are constants by now: a second derivative would be zero, and wrong.
            raise RuntimeError(
                "linear_cross_entropy can be differentiated once, but create_graph=True asks for "
                "more; use F.cross_entropy(F.linear(x, weight), targets) for second derivatives"
            )
        grad_x, grad_weight, weight = ctx.saved_tensors
        return (
            None if grad_x is None else grad * grad_x,
            None if grad_weight is None else (grad * grad_weight).to(weight.dtype),
            None,
            None,
        )


def _returns_products(model: nn.Module) -> bool:
    """Whether a language model surely returns ``projection(scale * body(...))``.

    Then the result is the same without a call of its last layer. Where the model, its output layer
    or the projection was changed, wrapped, hooked or compiled, that must act, so they are called.
    """
    if type(model) is not CausalLM and type(model) is not Seq2SeqLM:
        return False
    output = model.output
    if type(output) is not OutputLayer or output.cap is not None:
        return False
    if type(output.projection) is not nn.Linear or output.projection.bias is not None:
        return False
    return Fingerprint([model, output, output.projection]).is_plain


def _body(model: CausalLM | Seq2SeqLM) -> nn.Module:
    """All of a language model but its output layer."""
    return model.decoder if isinstance(model, CausalLM) else model.body


def _mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    return [part for part in model.modules() if isinstance(part, MixtureOfExperts)]


def _check_targets(x: Tensor, targets: Tensor) -> None:
    if targets.shape != x.shape[:-1]:
        raise ValueError(f"targets has shape {tuple(targets.shape)}; wanted {tuple(x.shape[:-1])}")


def _plain_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """PyTorch's own, summed; in float32 at least."""
    precise = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(
        logits.to(precise), targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
    )


def _in_parts(
    x: Tensor, weight: Tensor, targets: Tensor, smoothing: float, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The summed loss and those of its gradients, for x and for the weight, that are wanted.

    Rows that are not counted must be zeros. The gradient that they get is not their own: it goes to
    the zeros, and no further.
    """
    for_x, for_weight = wanted
    matrix = weight.to(x.dtype)
    n_parts = max(1, math.ceil(len(x) * len(weight) / LOGITS_AT_ONCE))
    total = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
    # In float16 a sum over tokens could overflow; the mean that is made of it does not.
    sums = torch.float32 if weight.dtype == torch.float16 else weight.dtype
    grads_x, grad_weight = [], torch.zeros_like(weight, dtype=sums) if for_weight else None
    for part, part_targets in zip(x.chunk(n_parts), targets.chunk(n_parts), strict=True):
        logits = part @ matrix.mT  # (rows, V)
        loss, grad = _loss_and_gradient(logits, part_targets, smoothing)
        total = total + loss
        if for_x:
            grads_x.append(grad @ matrix)
        if grad_weight is not None:
            grad_weight = grad_weight + _sum_over_tokens(grad, part)
    return total, torch.cat(grads_x) if for_x else None, grad_weight


def _sum_over_tokens(grad: Float[Tensor, "N V"], x: Float[Tensor, "N D"]) -> Float[Tensor, "V D"]:
    """``grad.mT @ x``; in float16 with factors and in parts that cannot overflow.

    No gradient is larger than 1, no scaled ``x`` either, so a sum over 32,768 tokens fits.
    """
    if grad.dtype != torch.float16 or len(x) == 0:
        return grad.mT @ x
    largest = x.abs().amax().clamp(min=torch.finfo(torch.float16).tiny)
    total = x.new_zeros(grad.shape[1], x.shape[1], dtype=torch.float32)
    for some, part in zip(grad.split(2**15), (x / largest).split(2**15), strict=True):
        total = total + some.mT @ part
    return total * largest


def _loss_and_gradient(
    logits: Float[Tensor, "N V"], targets: Int[Tensor, " N"], smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, "N V"]]:
    """The summed cross-entropy and its gradient: the probabilities minus what they should be.

    Written so that PyTorch's compiler makes one pass over the logits, and that little is stored
    without it. The target's own entry is put in afterwards: it is a small difference, which must
    not be taken between numbers that are rounded already.
    """
    precise = torch.promote_types(logits.dtype, torch.float32)
    logs = F.log_softmax(logits, dim=-1, dtype=precise)
    counted = (targets != IGNORE)[:, None]
    place = torch.where(counted, targets[:, None], 0)
    at_target = logs.gather(1, place)
    losses = (smoothing - 1) * at_target
    grad_at_target = at_target.exp() - (1 - smoothing)
    if smoothing:
        losses = losses - smoothing * logs.mean(dim=-1, keepdim=True)
        grad = logs.exp_() - smoothing / logs.shape[1]
        grad_at_target = grad_at_target - smoothing / logs.shape[1]
    else:
        grad = logs.exp_()
    grad = grad.to(logits.dtype).scatter_(1, place, grad_at_target.to(logits.dtype))
    return torch.where(counted, losses, 0).sum(), grad
