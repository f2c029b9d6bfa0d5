"""Exercises of chapter 03b, the backward pass of attention."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Answer, Exercise, random_inputs


def _scores_gradient(weights: Tensor, weights_gradient: Tensor) -> Tensor:
    mean = (weights * weights_gradient).sum(dim=-1, keepdim=True)
    return weights * (weights_gradient - mean)


def _temperature(scores: Tensor, temperature: float, weights_gradient: Tensor) -> Tensor:
    weights = (scores / temperature).softmax(dim=-1)
    scores_bar = _scores_gradient(weights, weights_gradient)
    return -(scores_bar * scores).sum() / temperature**2


def _wrong_at_the_softmax(change: Callable[[Tensor, Tensor], Tensor]) -> Answer:
    """A mistake in the gradient of the scaled scores, from the weights and their gradient."""

    def backward(scores: Tensor, temperature: float, weights_gradient: Tensor) -> Tensor:
        scores_bar = change((scores / temperature).softmax(dim=-1), weights_gradient)
        return -(scores_bar * scores).sum() / temperature**2

    return backward


def _wrong_after_the_softmax(change: Callable[[Tensor, Tensor, float], Tensor]) -> Answer:
    """A mistake in the last step, from the gradient of the scaled scores, the scores and T."""

    def backward(scores: Tensor, temperature: float, weights_gradient: Tensor) -> Tensor:
        weights = (scores / temperature).softmax(dim=-1)
        return change(_scores_gradient(weights, weights_gradient), scores, temperature)

    return backward


def _temperature_inputs(*shape: int, temperature: float) -> tuple[Tensor, float, Tensor]:
    scores, weights_gradient = random_inputs(shape, shape)
    return scores, temperature, weights_gradient


TEMPERATURE = Exercise(
    reference=_temperature,
    inputs=[
        _temperature_inputs(3, 3, temperature=0.5),
        _temperature_inputs(2, 5, temperature=0.4),
        _temperature_inputs(2, 3, 4, temperature=2.0),
    ],
    mistakes={
        "The sign is turned round: a higher temperature makes the scaled scores smaller.": (
            lambda *given: -_temperature(*given)
        ),
        "The derivative of 1 / temperature is -1 / temperature squared; this divides by the "
        "temperature once.": lambda s, t, g: _temperature(s, t, g) * t,
        "The scaled scores are divided by the temperature already, and then this divides by its "
        "square.": lambda s, t, g: _temperature(s, t, g) / t,
        "That is the gradient of 1 / temperature, the factor of the scores; one more step leads to "
        "the temperature.": _wrong_after_the_softmax(lambda bar, s, t: (bar * s).sum()),
        "One temperature serves all scores: add up their shares, take no mean.": (
            _wrong_after_the_softmax(lambda bar, s, t: -(bar * s).mean() / t**2)
        ),
        "That is one number for each query; one temperature serves them all, so add them up.": (
            _wrong_after_the_softmax(lambda bar, s, t: -(bar * s).sum(dim=-1) / t**2)
        ),
        "These are the shares of the scores one by one; add them up.": (
            _wrong_after_the_softmax(lambda bar, s, t: -bar * s / t**2)
        ),
        "That is the gradient of the scaled scores; go on to the temperature.": (
            _wrong_after_the_softmax(lambda bar, s, t: bar)
        ),
        "That is the gradient of the scores; the temperature is asked for.": (
            _wrong_after_the_softmax(lambda bar, s, t: bar / t)
        ),
        "The weights are those of the bare scores; divide by the temperature before the softmax.": (
            lambda s, t, g: -(_scores_gradient(s.softmax(dim=-1), g) * s).sum() / t**2
        ),
        "The softmax is missing on the way back: weights times gradient, less its average.": (
            _wrong_at_the_softmax(lambda w, g: g)
        ),
        "This lets each weight depend on its own score alone; subtract the average first.": (
            _wrong_at_the_softmax(lambda w, g: w * g)
        ),
        "That is the gradient of independent sigmoids, w (1 - w) g.": (
            _wrong_at_the_softmax(lambda w, g: w * (1 - w) * g)
        ),
        "The average runs over the wrong axis: sum over the keys of each query (dim=-1).": (
            _wrong_at_the_softmax(lambda w, g: w * (g - (w * g).sum(dim=-2, keepdim=True)))
        ),
        "The average runs over everything; each query has its own: sum over its keys (dim=-1).": (
            _wrong_at_the_softmax(lambda w, g: w * (g - (w * g).sum()))
        ),
        "dim=1 is the axis of the keys only as long as there is no batch; dim=-1 always is.": (
            _wrong_at_the_softmax(lambda w, g: w * (g - (w * g).sum(dim=1, keepdim=True)))
        ),
        "The average is unweighted; each entry counts with its own weight.": (
            _wrong_at_the_softmax(lambda w, g: w * (g - g.mean(dim=-1, keepdim=True)))
        ),
        "The factor in front is missing: multiply by the weights once more.": (
            _wrong_at_the_softmax(lambda w, g: g - (w * g).sum(dim=-1, keepdim=True))
        ),
    },
    hints=(
        "Go backwards in two steps: from the weights to the scaled scores, as in the softmax step "
        "of the page, and from there to the temperature. How many scores does it touch?",
        "If the temperature rises a little, each scaled score changes by -score / temperature "
        "squared. Multiply that by the gradient of the scaled score, and add up all of them.",
        "With `weights = (scores / temperature).softmax(dim=-1)`, the average is "
        "`(weights * weights_gradient).sum(dim=-1, keepdim=True)`, and `scores_bar` is the weights "
        "times what exceeds it. Return `-(scores_bar * scores).sum() / temperature**2`.",
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
        "The gradient of the weights of token 2 is (10, 0), its weights are 0.3302 and 0.6698. The "
        "formula of the softmax step of the page gives the row.",
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
    """A mistake in the scores' gradient, from weights, their gradient and the root of Dk."""

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
        "The scores were divided by the square root of Dk on the way forward; the gradients of "
        "queries and keys are, too.": _wrong_at_the_scores(
            lambda w, g, root: _scores_gradient(w, g)
        ),
        "The softmax is missing on the way back: weights times gradient, less its average.": (
            _wrong_at_the_scores(lambda w, g, root: g / root)
        ),
        "On its way back through the softmax the gradient loses its average: see the softmax "
        "step of the page.": (_wrong_at_the_scores(lambda w, g, root: w * g / root)),
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
