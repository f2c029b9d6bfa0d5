"""Exercises of chapter 03, Attention."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from transformer_book.exercises.checking import Answer, Exercise, random_inputs
from transformer_book.exercises.slips import attend, mixing_slips, scale_slips


def _soft_lookup(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return (keys @ query / math.sqrt(len(query))).softmax(dim=0) @ values


def _one_query(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    return query[None], keys, values


SOFT_LOOKUP = Exercise(
    reference=_soft_lookup,
    inputs=[random_inputs((4,), (3, 4), (3, 2)), random_inputs((2,), (6, 2), (6, 5))],
    mistakes={
        "This is the plain mean: the weights must depend on the query.": (
            lambda q, k, v: v.mean(dim=0)
        ),
        "This is the value of the best key alone; mix all values by their weights.": (
            lambda q, k, v: v[(k @ q).argmax()]
        ),
        "The scores went in as weights; apply the softmax so that they sum to 1.": (
            lambda q, k, v: (k @ q / math.sqrt(len(q))) @ v
        ),
        "The scores went in as weights; apply the softmax, and scale them before it.": (
            lambda q, k, v: (k @ q) @ v
        ),
        "These are the weights; mix the values with them.": (
            lambda q, k, v: (k @ q / math.sqrt(len(q))).softmax(dim=0)
        ),
        "The keys are mixed; mix the values.": lambda q, k, v: _soft_lookup(q, k, k),
        "Dividing scores by their sum is no softmax: take e to their power first.": (
            lambda q, k, v: (k @ q) / (k @ q).sum() @ v
        ),
        "These are the weighted values one by one; add them up.": (
            lambda q, k, v: (k @ q / math.sqrt(len(q))).softmax(dim=0)[:, None] * v
        ),
        **scale_slips(_one_query, lambda found, *_: found[0]),
    },
    hints=(
        "Compare the query with every key: one dot product for each of the S keys. A larger one "
        "means more weight.",
        "`keys @ query` holds the S scores. Divide them by the square root of K, the width of the "
        "query; a softmax turns them into weights that sum to 1.",
        "The weights are `(keys @ query / math.sqrt(len(query))).softmax(dim=0)`; a product of "
        "weights and `values` is the weighted mean.",
    ),
)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v


def _as_given(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return q, k, v


FROM_SCRATCH = Exercise(
    reference=_attend,
    inputs=[  # square first: there the mistakes that need equal sizes can run, and are found
        random_inputs((4, 4), (4, 4), (4, 4)),
        random_inputs((3, 9), (3, 9), (3, 2)),
        random_inputs((2, 5, 8), (2, 7, 8), (2, 7, 3)),
    ],
    mistakes={
        **scale_slips(_as_given),
        "The scale is the root of len(q), the first size of q; its width is the last size, "
        "q.shape[-1].": lambda q, k, v: attend(q, k, v, scale=1 / math.sqrt(len(q))),
        **mixing_slips(_as_given),
        "dim=1 is the axis of the keys only as long as there is no batch; dim=-1 always is.": (
            lambda q, k, v: attend(q, k, v, axis=1)
        ),
        "The softmax runs along dim=0, over the queries or even over the batch; the keys are the "
        "last axis, dim=-1.": lambda q, k, v: attend(q, k, v, axis=0),
        "These are the weights; mix the values with them.": (
            lambda q, k, v: (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
        ),
    },
    hints=(
        "Three steps: every query meets every key, the scores of a query become weights, and the "
        "weights mix the values.",
        "The scores are (..., T, S): `q` times `k` with its last two axes swapped, divided by the "
        "square root of K. The weights of a query stand in a row, so they sum to 1 along the last "
        "axis.",
        "Swap the axes with `k.mT`, which leaves a batch alone, and normalise with "
        "`.softmax(dim=-1)`; `@ v` comes last.",
    ),
)


def _head(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    return _attend(x @ w_query.mT, x @ w_key.mT, x @ w_value.mT)


def _projected(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> tuple[Tensor, ...]:
    return x @ w_query.mT, x @ w_key.mT, x @ w_value.mT


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
        "The values are not projected: x itself went into the mean.": (
            lambda x, q, k, v: _attend(x @ q.mT, x @ k.mT, x)
        ),
        "The scale counts D, the width of x; it must be K, the width of a query.": (
            lambda x, q, k, v: attend(*_projected(x, q, k, v), scale=1 / math.sqrt(x.shape[-1]))
        ),
        **scale_slips(_projected),
        **mixing_slips(_projected),
    },
    hints=(
        "The head is attention between three projections of `x`. Which shape has each?",
        "Queries and keys are (T, K), values (T, Dv). A stored matrix is (K, D), so it has to be "
        "transposed before `x` can be multiplied by it.",
        "The queries are `x @ w_query.T`, keys and values likewise; the rest is attention as in "
        "exercise 2, with K = `w_query.shape[0]` under the root.",
    ),
)


def _scores_gradient(weights: Tensor, weights_gradient: Tensor) -> Tensor:
    mean = (weights * weights_gradient).sum(dim=-1, keepdim=True)
    return weights * (weights_gradient - mean)


SCORES_GRADIENT = Exercise(
    reference=_scores_gradient,
    inputs=[
        (scores.softmax(dim=-1), gradient)
        for scores, gradient in (
            random_inputs((3, 3), (3, 3)),
            random_inputs((2, 5), (2, 5)),
            random_inputs((2, 3, 4), (2, 3, 4)),
        )
    ],
    mistakes={
        "This lets each weight depend on its own score alone; raising one score lowers the other "
        "weights.": lambda w, g: w * g,
        "That is the gradient of independent sigmoids, w (1 - w) g.": lambda w, g: w * (1 - w) * g,
        "The mean runs over the wrong axis: sum over the keys of each query (dim=-1).": (
            lambda w, g: w * (g - (w * g).sum(dim=-2, keepdim=True))
        ),
        "The mean runs over everything; each query has its own: sum over its keys (dim=-1).": (
            lambda w, g: w * (g - (w * g).sum())
        ),
        "dim=1 is the axis of the keys only as long as there is no batch; dim=-1 always is.": (
            lambda w, g: w * (g - (w * g).sum(dim=1, keepdim=True))
        ),
        "The mean is unweighted; each entry counts with its own weight.": (
            lambda w, g: w * (g - g.mean(dim=-1, keepdim=True))
        ),
        "The weighted gradients are summed; a mean over the keys divides them once more by S.": (
            lambda w, g: w * (g - (w * g).mean(dim=-1, keepdim=True))
        ),
        "What is subtracted must count with the weight, too: weights times (gradient - average).": (
            lambda w, g: w * g - (w * g).sum(dim=-1, keepdim=True)
        ),
        "The factor in front is missing: multiply by the weights once more.": (
            lambda w, g: g - (w * g).sum(dim=-1, keepdim=True)
        ),
    },
    hints=(
        "Raising one score raises its own weight and lowers the others of its row. What is a score "
        "worth, compared with the average of its row?",
        "For each query take the average of `weights_gradient`, in which every key counts with its "
        "weight. Keep the axis, so that it can be subtracted from the row.",
        "The average is `(weights * weights_gradient).sum(dim=-1, keepdim=True)`. Subtract it from "
        "`weights_gradient`, then multiply by `weights`.",
    ),
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
        "Use the natural logarithm, not that of base 2.": lambda p: math.log2(p / (1 - p)),
        "The sign is turned round: a larger weight needs a larger score.": (
            lambda p: math.log((1 - p) / p)
        ),
        "That is the weight of a score p; the score for a weight p is asked for.": (
            lambda p: 1 / (1 + math.exp(-p))
        ),
        "That holds for p = 0.9 alone; find the formula for any p.": lambda p: math.log(9),
    },
    hints=(
        "Write the softmax of the two scores s and 0: what is the first weight?",
        "e^0 is 1, so p = e^s / (e^s + 1). Solve it for e^s first.",
        "e^s = p / (1 - p); undo the exponential with `math.log`.",
    ),
)


def _right_weights() -> Tensor:
    exponentials = torch.tensor([1.0, 0.5, 0.5]).exp()
    return exponentials / exponentials.sum()


SPOT_THE_ERROR = Exercise(
    reference=_right_weights,
    inputs=[()],
    mistakes={
        "Those are the blog's weights, and they sum to 1.1; weights sum to 1.": (
            lambda: torch.tensor([0.5, 0.3, 0.3])
        ),
        "Dividing the printed numbers by their sum mends the sum, not the weights.": (
            lambda: torch.tensor([0.5, 0.3, 0.3]) / 1.1
        ),
        "Those are the scores divided by their sum; the softmax takes e to their power first.": (
            lambda: torch.tensor([0.5, 0.25, 0.25])
        ),
        "The last weight is not what is missing to 1: equal scores must have equal weights.": (
            lambda: torch.tensor([0.5, 0.3, 0.2])
        ),
        "That is e to the power of the scores; divide by the sum.": (
            lambda: torch.tensor([1.0, 0.5, 0.5]).exp()
        ),
    },
    hints=(
        "Add the printed weights up. What must weights always give?",
        "The right ones are e to the power of each score, divided by the sum of all three.",
        "Put the scores into a tensor and return its `.softmax(dim=0)`, or type four decimals.",
    ),
)


def _second_token() -> Tensor:
    """The scores' gradient of the two-token example for the loss O[1, 0]."""
    weights = torch.tensor([0.0, 1 / math.sqrt(2)]).softmax(dim=0)
    worth = torch.tensor([10.0, 0.0])
    row = weights * (worth - weights @ worth)
    return torch.stack([torch.zeros(2), row])


SECOND_TOKEN = Exercise(
    reference=_second_token,
    inputs=[()],
    mistakes={
        "The right numbers in the wrong row: token 2 is the second query.": (
            lambda: _second_token().flip(0)
        ),
        "The average is missing: subtract 0.3302 · 10 before multiplying by the weights.": (
            lambda: torch.tensor([[0.0, 0.0], [3.3024, 0.0]])
        ),
        "The signs are turned round: key 1 is the one that helps.": lambda: -_second_token(),
        "The row is not multiplied by its weights yet: 0.3302 and 0.6698.": (
            lambda: torch.tensor([[0.0, 0.0], [6.6976, -3.3024]])
        ),
        "That is the gradient of the scores before the root; of the scaled ones it is larger by "
        "the square root of 2.": lambda: _second_token() / math.sqrt(2),
        "That is the gradient of the weights; go on through the softmax to the scores.": (
            lambda: torch.tensor([[0.0, 0.0], [10.0, 0.0]])
        ),
    },
    hints=(
        "Only the output of token 2 is in the loss. Whose scores can matter, and what does the row "
        "of the other token get?",
        "The gradient of the weights of token 2 is (10, 0), its weights are 0.3302 and 0.6698. Use "
        "the formula of exercise 2 for this row.",
        "The average is 0.3302 · 10 = 3.302. The second row begins with `0.3302 * (10 - 3.302)`; a "
        "row of the result sums to 0.",
    ),
)


def _head_backward(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, output_bar: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q_bar, k_bar, v_bar = _attention_backward(x @ w_q, x @ w_k, x @ w_v, output_bar)
    x_bar = q_bar @ w_q.mT + k_bar @ w_k.mT + v_bar @ w_v.mT
    return x_bar, x.mT @ q_bar, x.mT @ k_bar, x.mT @ v_bar


def _attention_backward(
    q: Tensor, k: Tensor, v: Tensor, output_bar: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    root = math.sqrt(q.shape[-1])
    weights = (q @ k.mT / root).softmax(dim=-1)
    scores_bar = _scores_gradient(weights, output_bar @ v.mT)
    return scores_bar @ k / root, scores_bar.mT @ q / root, weights.mT @ output_bar


def _head_backward_with(
    change: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]],
) -> Answer:
    """A mistake that gets one of the four gradients wrong."""
    return lambda *arguments: change(*_head_backward(*arguments))


def _forgets_a_use_of_x(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, output_bar: Tensor
) -> tuple[Tensor, ...]:
    v_bar = _attention_backward(x @ w_q, x @ w_k, x @ w_v, output_bar)[2]
    return v_bar @ w_v.mT, *_head_backward(x, w_q, w_k, w_v, output_bar)[1:]


def _wrong_at_the_scores(change: Callable[[Tensor, Tensor, float], Tensor]) -> Answer:
    """A mistake in the scores' gradient, from weights, their gradient and the root of K."""

    def backward(
        x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, output_bar: Tensor
    ) -> tuple[Tensor, ...]:
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        root = math.sqrt(q.shape[-1])
        weights = (q @ k.mT / root).softmax(dim=-1)
        scores_bar = change(weights, output_bar @ v.mT, root)
        q_bar, k_bar, v_bar = scores_bar @ k, scores_bar.mT @ q, weights.mT @ output_bar
        x_bar = q_bar @ w_q.mT + k_bar @ w_k.mT + v_bar @ w_v.mT
        return x_bar, x.mT @ q_bar, x.mT @ k_bar, x.mT @ v_bar

    return backward


HEAD_BACKWARD = Exercise(
    reference=_head_backward,
    inputs=[
        random_inputs((5, 6), (6, 4), (6, 4), (6, 3), (5, 3)),
        random_inputs((3, 4), (4, 5), (4, 5), (4, 2), (3, 2)),
    ],
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
        "The scores were divided by the square root of K on the way forward; the gradients of "
        "queries and keys are, too.": _wrong_at_the_scores(
            lambda w, g, root: _scores_gradient(w, g)
        ),
        "The softmax is missing on the way back: weights times gradient, less its average.": (
            _wrong_at_the_scores(lambda w, g, root: g / root)
        ),
        "On its way back through the softmax the gradient loses its average: see exercise 2.": (
            _wrong_at_the_scores(lambda w, g, root: w * g / root)
        ),
    },
    hints=(
        "Go backwards through Q = X W_Q: from the gradient of Q to those of X and of W_Q. Then the "
        "same for K and V.",
        "`attention_backward` of `x @ w_q`, `x @ w_k`, `x @ w_v` and `output_bar` gives `q_bar`, "
        "`k_bar` and `v_bar`. Each matrix has one share in the gradient of `x`: add three of them.",
        "A matrix gets `x.mT @ q_bar`; `x` gets `q_bar @ w_q.mT` and two more terms like it.",
    ),
    returns=("x", "W_Q", "W_K", "W_V"),
)
