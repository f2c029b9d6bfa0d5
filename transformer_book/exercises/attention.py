"""Exercises of chapter 03, Attention."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from transformer_book.exercises.checking import Answer, Exercise, random_inputs


def _soft_lookup(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return _lookup_weights(query, keys, 1 / math.sqrt(len(query))) @ values


def _lookup_weights(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    return (scale * (keys @ query)).softmax(dim=0)


SOFT_LOOKUP = Exercise(
    reference=_soft_lookup,
    inputs=[random_inputs((4,), (3, 4), (3, 2)), random_inputs((2,), (6, 2), (6, 5))],
    mistakes={
        "This is the plain mean: the weights must depend on the query.": (
            lambda q, k, v: v.mean(dim=0)
        ),
        "The scores are not scaled: divide them by the square root of the query's width.": (
            lambda q, k, v: _lookup_weights(q, k, 1.0) @ v
        ),
        "The scores are divided by the width; divide by its square root.": (
            lambda q, k, v: _lookup_weights(q, k, 1 / len(q)) @ v
        ),
        "This is the value of the best key alone; mix all values by their weights.": (
            lambda q, k, v: v[(k @ q).argmax()]
        ),
        "The scores went in as weights; apply the softmax so that they sum to 1.": (
            lambda q, k, v: (k @ q / math.sqrt(len(q))) @ v
        ),
        "These are the weights; mix the values with them.": (
            lambda q, k, v: _lookup_weights(q, k, 1 / math.sqrt(len(q)))
        ),
        "The scale counts the keys; the width of a key is what matters.": (
            lambda q, k, v: _lookup_weights(q, k, 1 / math.sqrt(len(k))) @ v
        ),
    },
)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, axis: int = -1
) -> Tensor:
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return (scale * (q @ k.mT)).softmax(dim=axis) @ v


FROM_SCRATCH = Exercise(
    reference=_attend,
    inputs=[  # square first: there the mistakes that need equal sizes can run, and are found
        random_inputs((4, 4), (4, 4), (4, 4)),
        random_inputs((3, 9), (3, 9), (3, 2)),
        random_inputs((2, 5, 8), (2, 7, 8), (2, 7, 3)),
    ],
    mistakes={
        "The scores are not scaled: divide them by the square root of K.": (
            lambda q, k, v: _attend(q, k, v, scale=1.0)
        ),
        "The scores are divided by K; divide by its square root.": (
            lambda q, k, v: _attend(q, k, v, scale=1 / q.shape[-1])
        ),
        "The scale counts the keys; the width of a key is what matters.": (
            lambda q, k, v: _attend(q, k, v, scale=1 / math.sqrt(k.shape[-2]))
        ),
        "The softmax runs over the queries; each query's row must sum to 1.": (
            lambda q, k, v: _attend(q, k, v, axis=-2)
        ),
        "Queries and keys are swapped: this is softmax(K Qᵀ).": lambda q, k, v: _attend(k, q, v),
        "Features meet features; positions must meet positions: q @ k.mT.": (
            lambda q, k, v: _attend(q.mT, k.mT, v)
        ),
        "The scale is applied after the softmax; it belongs before it.": (
            lambda q, k, v: _attend(q, k, v, scale=1.0) / math.sqrt(q.shape[-1])
        ),
    },
)


def _head(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    return _attend(x @ w_query.mT, x @ w_key.mT, x @ w_value.mT)


HEAD = Exercise(
    reference=_head,
    inputs=[
        random_inputs((4, 4), (4, 4), (4, 4), (4, 4)),
        random_inputs((5, 6), (2, 6), (2, 6), (3, 6)),
    ],
    mistakes={
        "nn.Linear stores its weight as (out, in): multiply by the transpose, x @ W.T.": (
            lambda x, q, k, v: _attend(x @ q, x @ k, x @ v)
        ),
        "The scores are not scaled: divide them by the square root of K.": (
            lambda x, q, k, v: _attend(x @ q.mT, x @ k.mT, x @ v.mT, scale=1.0)
        ),
        "Queries and keys are swapped.": lambda x, q, k, v: _attend(x @ k.mT, x @ q.mT, x @ v.mT),
        "The values are not projected: x itself went into the mean.": (
            lambda x, q, k, v: _attend(x @ q.mT, x @ k.mT, x)
        ),
        "Keys and values share a projection: each has its own.": (
            lambda x, q, k, v: _attend(x @ q.mT, x @ k.mT, x @ k.mT)
        ),
        "The scale counts D, the width of x; it must be K, the width of a query.": (
            lambda x, q, k, v: _attend(
                x @ q.mT, x @ k.mT, x @ v.mT, scale=1 / math.sqrt(x.shape[-1])
            )
        ),
    },
)


def _scores_gradient(weights: Tensor, weights_gradient: Tensor) -> Tensor:
    mean = (weights * weights_gradient).sum(dim=-1, keepdim=True)
    return weights * (weights_gradient - mean)


SCORES_GRADIENT = Exercise(
    reference=_scores_gradient,
    inputs=[
        (scores.softmax(dim=-1), gradient)
        for scores, gradient in (random_inputs((3, 3), (3, 3)), random_inputs((2, 5), (2, 5)))
    ],
    mistakes={
        "This lets each weight depend on its own score alone; raising one score lowers the other "
        "weights.": lambda w, g: w * g,
        "That is the gradient of independent sigmoids, w (1 - w) g.": lambda w, g: w * (1 - w) * g,
        "The mean runs over the wrong axis: sum over the keys of each query (dim=-1).": (
            lambda w, g: w * (g - (w * g).sum(dim=-2, keepdim=True))
        ),
        "The mean is unweighted; each entry counts with its own weight.": (
            lambda w, g: w * (g - g.mean(dim=-1, keepdim=True))
        ),
        "The factor in front is missing: multiply by the weights once more.": (
            lambda w, g: g - (w * g).sum(dim=-1, keepdim=True)
        ),
    },
)


def _score_for(p: float) -> float:
    return math.log(p / (1 - p))


SCORE_FOR = Exercise(
    reference=_score_for,
    inputs=[(0.9,), (0.5,), (0.2,)],
    mistakes={
        "The other weight is missing: it is e^s / (e^s + 1) that equals p.": lambda p: math.log(p),
        "That is e^s; take its logarithm.": lambda p: p / (1 - p),
        "Use the natural logarithm.": lambda p: math.log10(p / (1 - p)),
        "The sign is turned round: a larger weight needs a larger score.": (
            lambda p: math.log((1 - p) / p)
        ),
    },
)

SPOT_THE_ERROR = Exercise(
    reference=lambda: torch.tensor([1.0, 0.5, 0.5]).softmax(dim=0),
    inputs=[()],
    mistakes={
        "Dividing the printed numbers by their sum mends the sum, not the weights.": (
            lambda: torch.tensor([0.5, 0.3, 0.3]) / 1.1
        ),
        "Those are the scores divided by their sum; the softmax takes e to their power first.": (
            lambda: torch.tensor([0.5, 0.25, 0.25])
        ),
    },
)


def _second_token(first_row: bool = False, average: bool = True) -> Tensor:
    """The scores' gradient of the two-token example for the loss O[1, 0]."""
    weights = torch.tensor([1 / math.sqrt(2), 0.0]).softmax(dim=0).flip(0)
    worth = torch.tensor([10.0, 0.0])
    row = weights * (worth - (weights @ worth if average else 0.0))
    nothing = torch.zeros(2)
    return torch.stack([row, nothing] if first_row else [nothing, row])


SECOND_TOKEN = Exercise(
    reference=_second_token,
    inputs=[()],
    mistakes={
        "The right numbers in the wrong row: token 2 is the second query.": (
            lambda: _second_token(first_row=True)
        ),
        "The average is missing: subtract 0.3302 · 10 before multiplying by the weights.": (
            lambda: _second_token(average=False)
        ),
        "The signs are turned round: key 1 is the one that helps.": lambda: -_second_token(),
    },
)


def _head_backward(
    x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, output_bar: Tensor
) -> tuple[Tensor, ...]:
    inputs = [t.clone().requires_grad_() for t in (x, w_query, w_key, w_value)]
    output = _attend(inputs[0] @ inputs[1], inputs[0] @ inputs[2], inputs[0] @ inputs[3])
    return torch.autograd.grad(output, inputs, output_bar)


def _head_backward_with(
    change: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]],
) -> Answer:
    """A mistake that gets one of the four gradients wrong."""
    return lambda *arguments: change(*_head_backward(*arguments))


def _forgets_a_use_of_x(
    x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, output_bar: Tensor
) -> tuple[Tensor, ...]:
    _, q_bar, k_bar, v_bar = _head_backward(x, w_query, w_key, w_value, output_bar)
    value_path = _attend(x @ w_query, x @ w_key, torch.eye(len(x), dtype=x.dtype)).mT @ output_bar
    return value_path @ w_value.mT, q_bar, k_bar, v_bar


HEAD_BACKWARD = Exercise(
    reference=_head_backward,
    inputs=[random_inputs((5, 6), (6, 4), (6, 4), (6, 3), (5, 3))],
    mistakes={
        "x is used three times: its gradient has a share from the queries and the keys too.": (
            _forgets_a_use_of_x
        ),
        "The gradients of W_Q and W_K are swapped.": _head_backward_with(
            lambda x, q, k, v: (x, k, q, v)
        ),
        "The order is x, W_Q, W_K, W_V.": _head_backward_with(lambda x, q, k, v: (q, k, v, x)),
        "A gradient has the shape of its matrix: x.mT @ q_bar.": _head_backward_with(
            lambda x, q, k, v: (x, q.mT, k.mT, v.mT)
        ),
    },
)
