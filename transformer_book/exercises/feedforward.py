"""Exercises of chapter 8, the feed-forward network."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _network(x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
    return (x @ w_1 + b_1).relu() @ w_2 + b_2


NETWORK = Exercise(
    reference=_network,
    inputs=[random_inputs((2, 3, 4), (4, 8), (8,), (8, 4), (4,))],
    mistakes={
        "The ReLU is missing: two linear maps in a row are one linear map.": (
            lambda x, w, b, v, c: (x @ w + b) @ v + c
        ),
        "The ReLU stands after the second map: what is written could never be negative.": (
            lambda x, w, b, v, c: ((x @ w + b) @ v + c).relu()
        ),
        "There is a ReLU after both maps; only the inner values pass one.": (
            lambda x, w, b, v, c: _network(x, w, b, v, c).relu()
        ),
        "The first bias is added after the ReLU; it shifts where each unit begins to be active.": (
            lambda x, w, b, v, c: ((x @ w).relu() + b) @ v + c
        ),
        "The biases are missing.": lambda x, w, b, v, c: (x @ w).relu() @ v,
        "The second bias is missing.": lambda x, w, b, v, c: (x @ w + b).relu() @ v,
        "The residual is added; here only what the network says is asked for.": (
            lambda x, w, b, v, c: x + _network(x, w, b, v, c)
        ),
    },
)


def _swiglu(x: Tensor, gate: Tensor, expand: Tensor, contract: Tensor) -> Tensor:
    return (F.silu(x @ gate) * (x @ expand)) @ contract


SWIGLU = Exercise(
    reference=_swiglu,
    inputs=[random_inputs((2, 3, 4), (4, 6), (4, 6), (6, 4))],
    mistakes={
        "The activation is on the wrong branch: it belongs to the gate.": (
            lambda x, g, e, c: _swiglu(x, e, g, c)
        ),
        "That is GeGLU: the gate passes a GELU. SwiGLU uses SiLU.": (
            lambda x, g, e, c: (F.gelu(x @ g) * (x @ e)) @ c
        ),
        "The gate is a sigmoid: that is GLU. SiLU is x times its sigmoid.": (
            lambda x, g, e, c: ((x @ g).sigmoid() * (x @ e)) @ c
        ),
        "Both branches pass the activation; only the gate does.": (
            lambda x, g, e, c: (F.silu(x @ g) * F.silu(x @ e)) @ c
        ),
        "The branches are added; multiply them, number by number.": (
            lambda x, g, e, c: (F.silu(x @ g) + x @ e) @ c
        ),
        "The second branch is missing: this network has no gate.": (
            lambda x, g, e, c: F.silu(x @ g) @ c
        ),
        "The last matrix is missing: the result must have the width of x.": (
            lambda x, g, e, c: F.silu(x @ g) * (x @ e)
        ),
    },
)


def _gated_width(d_model: int, multiple: int) -> int:
    return multiple * math.ceil(8 * d_model / 3 / multiple)


GATED_WIDTH = Exercise(
    reference=_gated_width,
    inputs=[(4096, 256), (5120, 256), (8192, 256), (512, 64), (7, 1)],
    mistakes={
        "4D with three matrices costs half as much again as with two.": lambda d, m: 4 * d,
        "It is rounded to the nearest multiple; LLaMA rounds up.": (
            lambda d, m: m * round(8 * d / 3 / m)
        ),
        "It is rounded down; LLaMA rounds up.": lambda d, m: m * math.floor(8 * d / 3 / m),
        "Round up to a multiple of the second argument.": lambda d, m: math.ceil(8 * d / 3),
        "Two thirds of 4D are meant, not three quarters.": lambda d, m: m * math.ceil(3 * d / m),
        "Two thirds of D: it is two thirds of 4D.": lambda d, m: m * math.ceil(2 * d / 3 / m),
    },
)


def _share(length: int, d_model: int, d_ff: int, *, projections: int = 4, sums: int = 2) -> float:
    network = 2 * d_model * d_ff
    attention = projections * d_model * d_model + sums * length * d_model
    return network / (network + attention)


SHARE = Exercise(
    reference=_share,
    inputs=[(512, 512, 2048), (100, 64, 96), (8192, 1024, 4096)],
    mistakes={
        "The projections W_Q, W_K, W_V and W_O cost 4 n D² and are missing.": (
            lambda n, d, f: _share(n, d, f, projections=0)
        ),
        "There are four projections: W_O is one of them.": (
            lambda n, d, f: _share(n, d, f, projections=3)
        ),
        "Scores and the weighted sum cost n² D each: only one of them is counted.": (
            lambda n, d, f: _share(n, d, f, sums=1)
        ),
        "Scores and the weighted sum are missing: n² D each.": (
            lambda n, d, f: _share(n, d, f, sums=0)
        ),
        "The network has two matrices: n D F products each.": (
            lambda n, d, f: d * f / (d * f + 4 * d * d + 2 * n * d)
        ),
        "That is the share of attention.": lambda n, d, f: 1 - _share(n, d, f),
        "That is the ratio to attention; the share is of the whole block.": (
            lambda n, d, f: 2 * d * f / (4 * d * d + 2 * n * d)
        ),
    },
)


def _unit(x: Tensor, expand: Tensor, contract: Tensor, unit: int) -> Tensor:
    return (x @ expand[unit]).relu()[..., None] * contract[:, unit]


UNIT = Exercise(
    reference=_unit,
    inputs=[
        (*random_inputs((1, 6, 3), (3, 3), (3, 3)), 1),
        (*random_inputs((2, 3, 4), (5, 4), (4, 5)), 2),
    ],
    mistakes={
        "That is what all units write; take one of them.": (
            lambda x, e, c, u: (x @ e.mT).relu() @ c.mT
        ),
        "The activation is missing: a unit whose key does not match must be silent.": (
            lambda x, e, c, u: (x @ e[u])[..., None] * c[:, u]
        ),
        "A unit's value is a column of the second weight: nn.Linear stores (out, in).": (
            lambda x, e, c, u: (x @ e[u]).relu()[..., None] * c[u]
        ),
        "A unit's key is a row of the first weight: nn.Linear stores (out, in).": (
            lambda x, e, c, u: (x @ e[:, u]).relu()[..., None] * c[:, u]
        ),
        "That is how active the unit is; multiply its value by it.": (
            lambda x, e, c, u: (x @ e[u]).relu()
        ),
    },
)


def _mixture(x: Tensor, router: Tensor, experts: Tensor, k: int, how: str = "scaled") -> Tensor:
    """``experts`` are linear maps, (E, D, D)."""
    probabilities = (x @ router).softmax(dim=-1)  # (N, E)
    weights, chosen = probabilities.topk(k, dim=-1)
    if how == "scaled":
        weights = weights / weights.sum(dim=-1, keepdim=True)
    elif how == "even":
        weights = torch.full_like(weights, 1 / k)
    elif how == "logits":
        weights = (x @ router).gather(1, chosen)
    said = torch.einsum("nd,nkdo->nko", x, experts[chosen])
    return (weights[..., None] * said).sum(dim=1)


def _all_experts(x: Tensor, router: Tensor, experts: Tensor, k: int) -> Tensor:
    return _mixture(x, router, experts, len(experts))


def _worst(x: Tensor, router: Tensor, experts: Tensor, k: int) -> Tensor:
    probabilities = (x @ router).softmax(dim=-1)
    weights, chosen = (-probabilities).topk(k, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return (weights[..., None] * torch.einsum("nd,nkdo->nko", x, experts[chosen])).sum(dim=1)


MIXTURE = Exercise(
    reference=_mixture,
    inputs=[
        (*random_inputs((6, 3), (3, 4), (4, 3, 3)), 2),
        (*random_inputs((5, 2), (2, 5), (5, 2, 2)), 3),
    ],
    mistakes={
        "The weights of the experts picked do not sum to 1: divide them by their sum.": (
            lambda x, r, e, k: _mixture(x, r, e, k, "raw")
        ),
        "All experts are asked; pick the k most probable ones for each token.": _all_experts,
        "The experts picked count alike; weigh them by the router's probabilities.": (
            lambda x, r, e, k: _mixture(x, r, e, k, "even")
        ),
        "The weights are the router's scores; take the softmax of them first.": (
            lambda x, r, e, k: _mixture(x, r, e, k, "logits")
        ),
        "Only the best expert is asked; k of them are to be.": (
            lambda x, r, e, k: _mixture(x, r, e, 1)
        ),
        "The least probable experts are picked.": _worst,
    },
)


def _balance(probabilities: Tensor, chosen: Tensor) -> Tensor:
    n = probabilities.shape[-1]
    share = F.one_hot(chosen, n).to(probabilities).mean(dim=(0, 1))
    return n * (share * probabilities.mean(dim=0)).sum()


BALANCE = Exercise(
    reference=_balance,
    inputs=[
        (scores.softmax(dim=-1), scores.topk(k, dim=-1).indices)
        for (scores,), k in ((random_inputs((6, 4)), 2), (random_inputs((9, 3)), 1))
    ],
    mistakes={
        "The number of experts is missing: even use must give 1.": (
            lambda p, c: _balance(p, c) / p.shape[-1]
        ),
        "The shares sum to k, not to 1: divide by the number of choices, N times k.": (
            lambda p, c: _balance(p, c) * c.shape[-1]
        ),
        "That has the shares twice; one factor is the mean probability, which has a gradient.": (
            lambda p, c: (
                p.shape[-1] * F.one_hot(c, p.shape[-1]).to(p).mean(dim=(0, 1)).square().sum()
            )
        ),
        "That has the mean probabilities twice; one factor is the share of the choices.": (
            lambda p, c: p.shape[-1] * p.mean(dim=0).square().sum()
        ),
        "Means over tokens come first, then the product: not the mean of products.": (
            lambda p, c: (
                p.shape[-1] * (F.one_hot(c, p.shape[-1]).to(p).mean(dim=1) * p).sum(dim=-1).mean()
            )
        ),
    },
)
