"""Exercises of chapter 8, the feed-forward network."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from transformer_book.exercises.grading.checking import Answer, Exercise, random_inputs


def _swiglu(x: Tensor, gate: Tensor, expand: Tensor, contract: Tensor) -> Tensor:
    return (F.silu(x @ gate) * (x @ expand)) @ contract


SWIGLU = Exercise(
    reference=_swiglu,
    inputs=[  # square first: there a matrix that is transposed can run, and is found
        random_inputs((2, 5, 4), (4, 4), (4, 4), (4, 4)),
        random_inputs((2, 3, 4), (4, 6), (4, 6), (6, 4)),
    ],
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
        "That is ReGLU: the gate passes a ReLU. SwiGLU uses SiLU.": (
            lambda x, g, e, c: ((x @ g).relu() * (x @ e)) @ c
        ),
        "That is the bilinear form: the activation of the gate is missing.": (
            lambda x, g, e, c: ((x @ g) * (x @ e)) @ c
        ),
        "The activation comes after the product; it belongs to the gate alone.": (
            lambda x, g, e, c: F.silu((x @ g) * (x @ e)) @ c
        ),
        "The matrices are used as x @ w, without a transpose.": (
            lambda x, g, e, c: _swiglu(x, g.mT, e.mT, c.mT)
        ),
    },
    hints=(
        "Two maps go up, side by side. One of them decides how much of the other is let through.",
        "The gate passes SiLU, z times its sigmoid. Multiply gate and `x @ expand` number by "
        "number, then come down.",
        "The gate is `F.silu(x @ gate)`; `*` multiplies number by number, `@ contract` comes last.",
    ),
)


def _gated_width(d_model: int, multiple: int) -> int:
    return multiple * math.ceil(8 * d_model / 3 / multiple)


GATED_WIDTH = Exercise(
    reference=_gated_width,
    inputs=[(4096, 256), (5120, 256), (8192, 256), (512, 64), (7, 4), (96, 64)],
    mistakes={
        "4D with three matrices costs half as much again as with two.": lambda d, m: 4 * d,
        "It is rounded to the nearest multiple; LLaMA rounds up.": (
            lambda d, m: m * round(8 * d / 3 / m)
        ),
        "It is rounded down; LLaMA rounds up.": lambda d, m: m * math.floor(8 * d / 3 / m),
        "Round up to a multiple of the second argument.": lambda d, m: math.ceil(8 * d / 3),
        "Two thirds of 4D are meant, not three quarters.": lambda d, m: m * math.ceil(3 * d / m),
        "Two thirds of D: it is two thirds of 4D.": lambda d, m: m * math.ceil(2 * d / 3 / m),
        "What is a multiple already stays as it is; this adds one more.": (
            lambda d, m: m * (math.floor(8 * d / 3 / m) + 1)
        ),
        "That is how many multiples it takes; multiply by the second argument.": (
            lambda d, m: math.ceil(8 * d / 3 / m)
        ),
        "Round up to a whole multiple: math.ceil.": lambda d, m: 8 * d / 3,
    },
    hints=(
        "A gated network has three matrices of D × F. What do two matrices with F = 4D cost?",
        "3 D F = 2 D · 4 D gives F. Then divide by `multiple`, round up, and multiply again.",
        "F is `8 * d_model / 3`; `math.ceil` rounds up to a whole number of multiples.",
    ),
)


def _share(n: int, d_model: int, d_ff: int) -> float:
    network = 2 * d_model * d_ff
    return network / (network + 4 * d_model * d_model + 2 * n * d_model)


SHARE = Exercise(
    reference=_share,
    inputs=[(512, 512, 2048), (100, 64, 96), (8192, 1024, 4096)],
    mistakes={
        "The projections W_Q, W_K, W_V and W_O cost 4 n D² and are missing.": (
            lambda n, d, f: 2 * f / (2 * f + 2 * n)
        ),
        "There are four projections: W_O is one of them.": (
            lambda n, d, f: 2 * f / (2 * f + 3 * d + 2 * n)
        ),
        "Scores and the weighted sum cost n² D each: only one of them is counted.": (
            lambda n, d, f: 2 * f / (2 * f + 4 * d + n)
        ),
        "Scores and the weighted sum are missing: n² D each.": (
            lambda n, d, f: 2 * f / (2 * f + 4 * d)
        ),
        "The network has two matrices: n D F products each.": (
            lambda n, d, f: d * f / (d * f + 4 * d * d + 2 * n * d)
        ),
        "That is the share of attention.": lambda n, d, f: 1 - _share(n, d, f),
        "That is the ratio to attention; the share is of the whole block.": (
            lambda n, d, f: 2 * d * f / (4 * d * d + 2 * n * d)
        ),
        "F need not be 4 D; use d_ff.": lambda n, d, f: _share(n, d, 4 * d),
        "The pairs are those of n tokens, all else is that of one: multiply the rest by n, too.": (
            lambda n, d, f: 2 * f / (2 * f + 4 * d + 2 * n * n)
        ),
    },
    hints=(
        "Count the multiplications of both parts for n tokens. Attention makes two kinds: with its "
        "matrices, and between tokens.",
        "Network: n D F for each of two matrices. Attention: n D² for each of four projections, "
        "and n² D for the scores and again for the weighted sum.",
        "The share is that of the network over the sum of all: `2 * d_ff` stands above, if you "
        "divide everything by n and D.",
    ),
)


def _unit(x: Tensor, expand: Tensor, contract: Tensor, unit: int) -> Tensor:
    return (x @ expand[unit]).relu()[..., None] * contract[:, unit]


UNIT = Exercise(
    reference=_unit,
    inputs=[
        (*random_inputs((2, 6, 3), (3, 3), (3, 3)), 1),
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
        "nn.Linear stores (out, in): a unit is a row of the first weight and a column of the "
        "second, not the other way round.": (
            lambda x, e, c, u: (x @ e[:, u]).relu()[..., None] * c[u]
        ),
        "That is what all other units write; take this one.": (
            lambda x, e, c, u: (x @ e.mT).relu() @ c.mT - _unit(x, e, c, u)
        ),
    },
    hints=(
        "A unit has a key, which it compares with the stream, and a value, which it writes as "
        "loudly as the key fits.",
        "Stored as (F, D), the key is a row of `expand`; stored as (D, F), the value is a column "
        "of `contract`. How loud it is has shape (B, T), what it writes (B, T, D).",
        "It is as loud as `(x @ expand[unit]).relu()`; give that one more axis with `[..., None]` "
        "and multiply by `contract[:, unit]`.",
    ),
)


def _mixture(x: Tensor, router: Tensor, experts: Tensor, k: int) -> Tensor:
    """``experts`` are linear maps, (E, D, D)."""
    probabilities = (x @ router).softmax(dim=-1)  # (N, E)
    weights, chosen = probabilities.topk(k, dim=-1)
    return _said(x, experts, chosen, weights / weights.sum(dim=-1, keepdim=True))


def _said(x: Tensor, experts: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """What the chosen experts say, weighted, all (N, k)."""
    said = torch.einsum("nd,nkdo->nko", x, experts[chosen])
    return (weights[..., None] * said).sum(dim=1)


def _mixture_with(weigh: Callable[[Tensor, Tensor], Tensor]) -> Answer:
    """The right experts with weights made from the router's scores, (N, E), and the choice."""

    def mixture(x: Tensor, router: Tensor, experts: Tensor, k: int) -> Tensor:
        chosen = (x @ router).topk(k, dim=-1).indices
        return _said(x, experts, chosen, weigh(x @ router, chosen))

    return mixture


def _worst(x: Tensor, router: Tensor, experts: Tensor, k: int) -> Tensor:
    weights, chosen = (x @ router).softmax(dim=-1).topk(k, dim=-1, largest=False)
    return _said(x, experts, chosen, weights / weights.sum(dim=-1, keepdim=True))


def _over_tokens(x: Tensor, router: Tensor, experts: Tensor, k: int) -> Tensor:
    weights, chosen = (x @ router).softmax(dim=0).topk(k, dim=-1)
    return _said(x, experts, chosen, weights / weights.sum(dim=-1, keepdim=True))


MIXTURE = Exercise(
    reference=_mixture,
    inputs=[
        (*random_inputs((6, 3), (3, 4), (4, 3, 3)), 2),
        (*random_inputs((7, 2), (2, 5), (5, 2, 2)), 3),
    ],
    mistakes={
        "The weights of the experts picked do not sum to 1: divide them by their sum.": (
            _mixture_with(lambda scores, chosen: scores.softmax(dim=-1).gather(1, chosen))
        ),
        "All experts are asked; pick the k most probable ones for each token.": (
            lambda x, r, e, k: _mixture(x, r, e, len(e))
        ),
        "The experts picked count alike; weigh them by the router's probabilities.": (
            _mixture_with(
                lambda scores, chosen: torch.full_like(
                    chosen, 1 / chosen.shape[1], dtype=scores.dtype
                )
            )
        ),
        "The weights are the router's scores; take the softmax of them first.": (
            _mixture_with(lambda scores, chosen: scores.gather(1, chosen))
        ),
        "Only the best expert is asked; k of them are to be.": (
            lambda x, r, e, k: _mixture(x, r, e, 1)
        ),
        "The least probable experts are picked.": _worst,
        "What the experts say is added up; weigh it by the router's probabilities.": (
            _mixture_with(lambda scores, chosen: torch.ones_like(chosen).to(scores))
        ),
        "The softmax runs over the tokens; each token divides its own among the experts.": (
            _over_tokens
        ),
        "An expert is used as x @ experts[i], without a transpose.": (
            lambda x, r, e, k: _mixture(x, r, e.mT, k)
        ),
    },
    hints=(
        "First the router: which experts has each token, and with which weights? Then the experts.",
        "The probabilities are (N, E), a softmax over the experts. `topk` gives the k largest and "
        "their numbers, (N, k); divide the largest by their sum.",
        "`probabilities.topk(k, dim=-1)`; then put the weights into a table of zeros, (N, E), with "
        "`scatter(1, chosen, weights)`, and mix `x @ experts[i]` for all i with it.",
    ),
)
