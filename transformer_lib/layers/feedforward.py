"""The feed-forward network (MLP), and a mixture of experts (MoE)."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_lib.core.checks import check_choice, check_whole
from transformer_lib.core.config import Activation, TransformerConfig
from transformer_lib.core.shapes import expect_last


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")  # not a partial: copies of a model share a function


# name: the function, and whether its result multiplies a second projection (a gate)
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "relu": (F.relu, False),
    "gelu": (F.gelu, False),
    "gelu_tanh": (_gelu_tanh, False),
    "swiglu": (F.silu, True),
    "geglu": (F.gelu, True),
    "geglu_tanh": (_gelu_tanh, True),
}


class FeedForward(nn.Module):
    """Widen each vector, apply a non-linearity, and narrow it again.

    Plain: ``down(activation(up(x)))``. Gated (``swiglu``, ``geglu``):
    ``down(activation(gate(x)) * up(x))``.

    Args:
        d_model: D, the width of the residual stream.
        d_ff: F, the inner width.
        activation: which non-linearity, and whether there is a gate.
        bias: whether the projections add a learned constant.

    Raises:
        ValueError: if a width is not positive or the activation is unknown.

    Example:
        >>> FeedForward(d_model=8, d_ff=32, activation="swiglu")(
        ...     torch.zeros(2, 5, 8)
        ... ).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation = "relu", *, bias: bool = True
    ) -> None:
        super().__init__()
        check_whole("d_model", d_model)
        check_whole("d_ff", d_ff)
        check_choice("activation", activation, tuple(ACTIVATIONS))
        self.d_model = d_model
        self.activation, gated = ACTIVATIONS[activation]
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.gate = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Work on each vector of ``x``, ``(..., D)``, alone."""
        expect_last("x", x, "D", {"D": self.d_model})
        wide = self.up(x)  # (..., F)
        active = self.activation(wide if self.gate is None else self.gate(x))
        narrow: Tensor = self.down(active if self.gate is None else active * wide)
        return narrow


class MixtureOfExperts(nn.Module):
    """Several feed-forward networks, of which each token uses the few that a router picks.

    The router's probabilities of the experts picked are scaled to sum to 1 and weigh their outputs.
    That of a single expert is left as it is, as in the Switch Transformer: scaled, it would be 1
    whatever the router says, and the task could not teach the router anything. Which tokens go
    where depends on the data, so ``torch.compile`` splits its graph here.

    Args:
        config: ``d_model``, ``d_ff``, ``activation``, ``bias``, ``n_experts`` and
            ``active_experts`` are read.

    Raises:
        ValueError: if the configuration has no experts.

    Example:
        >>> config = TransformerConfig(
        ...     d_model=8, n_heads=2, d_ff=16, n_experts=4
        ... )
        >>> experts = MixtureOfExperts(config)
        >>> experts(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.n_experts is None:
            raise ValueError("n_experts=None; a mixture of experts needs a number of experts")
        self.active_experts = config.active_experts
        self.router = nn.Linear(config.d_model, config.n_experts, bias=False)
        self.experts = nn.ModuleList(_one_network(config) for _ in range(config.n_experts))
        self.balance_loss = torch.zeros(())

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Send each vector of ``x``, ``(..., D)``, to its experts and add up their outputs."""
        expect_last("x", x, "D", {"D": self.router.in_features})
        tokens = x.flatten(end_dim=-2)  # (N, D)
        probabilities = self.router(tokens).softmax(dim=-1)  # (N, E)
        weights, chosen = probabilities.topk(self.active_experts, dim=-1)  # (N, k)
        if self.active_experts > 1:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        balance_loss = _balance_loss(probabilities, chosen)
        output = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            rows, slots = (chosen == i).nonzero(as_tuple=True)
            weighted = weights[rows, slots, None] * expert(tokens[rows])
            output = output.index_add(0, rows, weighted.to(output.dtype))
        output = output.view_as(x)
        self._remember(balance_loss, output)
        return output

    @property
    def balance_loss(self) -> Tensor:
        """How unevenly the experts were used in the latest forward pass.

        It is 1 if all of them were used evenly, up to ``n_experts / active_experts`` if the same
        ones always were (Switch Transformer's loss). ``Recipe.balance`` adds that of each block to
        the training loss, with a small weight such as 0.01. It takes no mask: padding is counted
        like any other token. It can be differentiated as long as the graph of the output lives;
        after that it is a plain number, and nothing of the pass is left in memory.
        """
        with_graph = None if self._with_graph is None else self._with_graph()
        return self._balance if with_graph is None else with_graph

    @balance_loss.setter
    def balance_loss(self, loss: Tensor) -> None:
        self._balance: Tensor = loss
        self._with_graph: weakref.ref[Tensor] | None = None

    def _remember(self, loss: Tensor, output: Tensor) -> None:
        """Keep the loss, but its graph only as long as that of the output lives.

        A plain attribute would keep the graph, with all activations, until the next pass, also
        if there is no backward pass. So the graph of the output owns the loss; the module has a
        weak reference to it, and a copy without a graph for afterwards.
        """
        node = None if torch.compiler.is_compiling() else output.grad_fn
        if node is None:
            self.balance_loss = loss
            return
        node.metadata["balance_loss"] = loss  # type: ignore[index]  # PyTorch calls it a method
        self._balance, self._with_graph = loss.detach(), weakref.ref(loss)

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the model, or a pickled one, starts without a graph.
        return self.__dict__ | {"_balance": self._balance.detach(), "_with_graph": None}


def make_feed_forward(config: TransformerConfig) -> FeedForward | MixtureOfExperts:
    """Build the feed-forward part that a configuration asks for.

    Args:
        config: ``d_model``, ``d_ff``, ``activation``, ``bias``, ``n_experts`` and
            ``active_experts`` are read.

    Returns:
        One network, or a mixture of experts if ``n_experts`` is set.

    Example:
        >>> type(make_feed_forward(TransformerConfig(n_experts=8))).__name__
        'MixtureOfExperts'
    """
    return _one_network(config) if config.n_experts is None else MixtureOfExperts(config)


def _one_network(config: TransformerConfig) -> FeedForward:
    return FeedForward(config.d_model, config.ffn_width, config.activation, bias=config.bias)


def _balance_loss(
    probabilities: Float[Tensor, "N E"], chosen: Int[Tensor, "N k"]
) -> Float[Tensor, ""]:
    """``E * sum_i f_i P_i``: the share of choices times the mean probability of each expert."""
    n_experts = probabilities.shape[-1]
    share = F.one_hot(chosen, n_experts).to(probabilities.dtype).mean(dim=(0, 1))  # (E,)
    return n_experts * (share * probabilities.mean(dim=0)).sum()
