"""Muon: steps of matrices that are as large in every direction."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_lib.core.checks import check_choice, check_number, check_probability
from transformer_lib.models.blocks import Block
from transformer_lib.training.distributed import cut_like, gather_tensor

# Published with the algorithm: five times a s + b s^3 + c s^5 takes every singular value s between
# 0.002 and 1 to one between 0.68 and 1.21.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
N_ITERATIONS = 5

Precision = Literal["float32", "bfloat16"]


class _Settings(TypedDict):
    """Of a group of parameters, what its steps need."""

    momentum: float
    betas: tuple[float, float]
    eps: float
    precision: Precision


class Muon(Optimizer):
    r"""Muon for the matrices of hidden layers, AdamW for all other parameters.

    The gradient of a matrix is large in a few directions and small in all others, and so is the
    step that momentum or Adam makes of it. Muon's step has the same directions, and is as large in
    each of them. From the gradient :math:`G` and what is left of earlier ones, :math:`M`:

    .. math:: M \leftarrow \mu M + G, \qquad U = G + \mu M, \qquad
        W \leftarrow (1 - \eta \lambda) W
        - \eta \cdot 0.2 \sqrt{\max(\text{rows}, \text{columns})} \cdot O(U)

    with :func:`orthogonalise` as :math:`O`, the rate :math:`\eta`, the momentum :math:`\mu` and the
    weight decay :math:`\lambda`. The factor before :math:`O` makes the root mean square of a step's
    numbers about :math:`0.2\,\eta`, which is AdamW's, too ("Muon is Scalable for LLM Training"): so
    one rate and one decay serve both. The factor published first,
    :math:`\sqrt{\max(1, \text{rows} / \text{columns})}`, needs a rate of its own.

    Muon keeps one tensor for a matrix, where AdamW keeps two.

    Args:
        matrices: what Muon changes: weights of two dimensions. Tables of embeddings and output
            layers are better left to AdamW, and a weight that joins several matrices (query, key
            and value in one) would be taken for one: those of this library are apart.
        others: what AdamW changes: parameters, or groups of them with settings of their own.
        lr: the rate, until a schedule says otherwise.
        momentum: how slowly Muon forgets earlier gradients.
        betas: how slowly AdamW forgets gradients and their squares.
        eps: what AdamW adds to the root of the second.
        weight_decay: of all that have none of their own.
        precision: what :func:`orthogonalise` multiplies in.

    Raises:
        ValueError: if a value is out of range, or there is no matrix, or one has not two
            dimensions.

    Example:
        >>> layer = nn.Linear(3, 3)
        >>> optimizer = Muon([layer.weight], [layer.bias], lr=0.01)
        >>> inputs, before = torch.randn(5, 3), layer.weight.detach().clone()
        >>> layer(inputs).square().sum().backward()
        >>> optimizer.step()
        >>> kept = 1 - 0.01 * 0.1  # weight decay
        >>> change = (layer.weight - kept * before).detach()
        >>> sizes = torch.linalg.svdvals(change) / (0.01 * 0.2 * 3**0.5)
        >>> bool((sizes > 0.67).all() and (sizes < 1.22).all())
        True
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter] | Iterable[Mapping[str, object]] = (),
        *,
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        precision: Precision = "float32",
    ) -> None:
        first, rest = list(matrices), list(others)
        _check_matrices(first)
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            check_number(name, value, lambda x: x >= 0, "of at least 0")
        for name, value in (("momentum", momentum), ("betas", betas[0]), ("betas", betas[1])):
            check_probability(name, value)
        check_choice("precision", precision, ("float32", "bfloat16"))
        groups = [dict(g) if isinstance(g, Mapping) else {"params": [g]} for g in rest]
        super().__init__(
            [{"params": first, "uses_muon": True}, *groups],
            {
                "lr": lr, "momentum": momentum, "betas": betas, "eps": eps,
                "weight_decay": weight_decay, "precision": precision, "uses_muon": False,
            },
        )  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change all parameters that have a gradient.

        Args:
            closure: computes the loss and its gradients anew, as for any optimizer of PyTorch.

        Returns:
            What the closure gives.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            make_step = _muon if group["uses_muon"] else _adam
            settings = cast("_Settings", group)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    step = make_step(parameter.grad, self.state[parameter], settings)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(step, alpha=-group["lr"])
        return loss


def orthogonalise(matrix: Tensor, precision: Precision = "float32") -> Tensor:
    r"""Make all singular values of a matrix about 1, and leave its directions as they are.

    Of :math:`U S V^\top` that leaves about :math:`U V^\top`. No singular value is computed for it:
    a matrix :math:`X` that is scaled to length 1 becomes
    :math:`a X + b\,(X X^\top) X + c\,(X X^\top)^2 X`, five times over. Each time a singular value
    :math:`s` becomes :math:`a s + b s^3 + c s^5` (Newton and Schulz). With these coefficients it
    does not settle at 1. Values that are 0.002 or more after scaling end between 0.68 and 1.21:
    close enough, in fewer rounds. Smaller ones end lower, and zeros stay zero.

    Args:
        matrix: of any two sizes.
        precision: what it multiplies in. In ``"bfloat16"``, as it was published, the singular
            values are a few hundredths off.

    Returns:
        A matrix of the same shape.

    Raises:
        ValueError: if it has not two dimensions.

    Example:
        >>> matrix = torch.diag(torch.tensor([3.0, 0.5]))
        >>> [round(size, 1) for size in orthogonalise(matrix).diag().tolist()]
        [0.7, 1.0]
    """
    if matrix.ndim != 2:
        raise ValueError(f"matrix has shape {tuple(matrix.shape)}; expected two dimensions")
    a, b, c = COEFFICIENTS
    x = _on_its_side(_of_length_one(matrix.float()).to(getattr(torch, precision)))
    for _ in range(N_ITERATIONS):
        squared = x @ x.mT
        x = a * x + (b * squared + c * squared @ squared) @ x
    return (x if x.shape == matrix.shape else x.mT).to(matrix.dtype)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Find the weights that Muon is for: the matrices of all blocks.

    Args:
        model: any model that is made of blocks.

    Returns:
        The weights of two dimensions that are trained, and are in a
        :class:`~transformer_lib.models.blocks.Block`. Embeddings and the output layer are not.

    Raises:
        ValueError: if there is none.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(
        ...     vocab_size=9, d_model=8, n_heads=2, n_layers=1
        ... )
        >>> # query, key, value, output; up and down
        >>> len(hidden_matrices(CausalLM(config)))
        6
    """
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    inside = {parameter: None for block in blocks for parameter in block.parameters()}  # each once
    found = [p for p in inside if p.ndim == 2 and p.requires_grad]
    if not found:
        own = "optimizer=lambda model: Muon(...) with your own choice"
        raise ValueError(
            f"optimizer='muon' is for the matrices of blocks, and {type(model).__name__} trains "
            f"none; expected a model with blocks, or call train with {own}"
        )
    return found


def _muon(gradient: Tensor, state: dict[str, Tensor], group: _Settings) -> Tensor:
    """The step of a matrix, for a rate of 1."""
    if not state:
        state["momentum"] = torch.zeros_like(gradient)
    towards = gather_tensor(_nesterov(gradient, state["momentum"], group["momentum"]))
    step = orthogonalise(towards, group["precision"]) * _scale(*towards.shape)
    return cut_like(gradient, step)


def _nesterov(gradient: Tensor, momentum: Tensor, mu: float) -> Tensor:
    """Look one step ahead: what the momentum will be if the next gradient is zero."""
    momentum.mul_(mu).add_(gradient)
    return gradient + mu * momentum


def _scale(rows: int, columns: int) -> float:
    """What makes 0.2 of the root mean square of an orthogonal matrix's numbers."""
    return 0.2 * math.sqrt(max(rows, columns))


def _of_length_one(matrix: Tensor) -> Tensor:
    """Then no singular value is above 1; those above 1.4 would grow from round to round."""
    scaled: Tensor = matrix / matrix.norm().clamp(min=1e-7)
    return scaled


def _on_its_side(matrix: Tensor) -> Tensor:
    """Turn a tall matrix, so that the product with its transpose is the small one."""
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


def _adam(gradient: Tensor, state: dict[str, Tensor], group: _Settings) -> Tensor:
    """The step of any other parameter, for a rate of 1: AdamW's, whose decay is apart."""
    if not state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(gradient)
        state["exp_avg_sq"] = torch.zeros_like(gradient)
    beta1, beta2 = group["betas"]
    state["step"] += 1
    n = state["step"].item()
    mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
    square = state["exp_avg_sq"].mul_(beta2).add_(gradient.square(), alpha=1 - beta2)
    root = (square / (1 - beta2**n)).sqrt()
    step: Tensor = mean / (1 - beta1**n) / (root + group["eps"])
    return step


def _check_matrices(matrices: Sequence[nn.Parameter]) -> None:
    if not matrices:
        raise ValueError("matrices is empty; expected weights of hidden layers")
    for matrix in matrices:
        if matrix.ndim != 2:
            shape = tuple(matrix.shape)
            raise ValueError(f"matrices has one of shape {shape}; expected two dimensions each")
