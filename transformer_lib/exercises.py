"""Checks that diagnose an answer instead of only refusing it.

Each exercise has a reference answer, a few inputs, and a list of mistakes that people really make.
An answer that is wrong is compared with each mistake; if it makes the same numbers, the reader is
told which one it is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Answer = Callable[..., object]
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exercise:
    """A question with a reference answer and the mistakes it knows.

    Args:
        reference: the right answer.
        inputs: argument lists; chosen so that each mistake gives another result than the answer.
        mistakes: for each hint the function that makes this mistake.
    """

    reference: Answer
    inputs: Sequence[tuple[object, ...]]
    mistakes: Mapping[str, Answer]


def check(name: str, answer: Answer) -> None:
    """Say whether an answer is right and, if it is not, what probably went wrong.

    Args:
        name: the exercise, such as ``"attention.soft_lookup"``.
        answer: the reader's function; one that returns ``...`` or ``None`` counts as not begun.

    Raises:
        ValueError: if there is no exercise of this name.

    Example:
        >>> check("attention.soft_lookup", lambda query, keys, values: ...)
        attention.soft_lookup: not attempted yet.
        >>> check("attention.soft_lookup", lambda q, k, v: v.mean(dim=0))  # doctest: +ELLIPSIS
        attention.soft_lookup: not yet. This is the plain mean: the weights must depend on ...
    """
    if name not in EXERCISES:
        raise ValueError(f"name={name!r} is not an exercise; expected one of {sorted(EXERCISES)}")
    print(f"{name}: {_diagnose(EXERCISES[name], answer)}")


def _diagnose(exercise: Exercise, answer: Answer) -> str:
    """One sentence about the first input that the answer gets wrong, or a word of praise."""
    for arguments in exercise.inputs:
        expected = _as_tensor(exercise.reference(*arguments))
        try:
            returned = answer(*arguments)
        except NotImplementedError:
            return "not attempted yet."
        except Exception as error:  # whatever the reader's code raises is shown to the reader
            return f"not yet. It raised {type(error).__name__}: {error}"
        if returned is None or returned is ...:
            return "not attempted yet."
        complaint = _compare(exercise, arguments, returned, expected)
        if complaint:
            return f"not yet. {complaint}"
    return f"correct on all {len(exercise.inputs)} inputs."


def _compare(
    exercise: Exercise, arguments: tuple[object, ...], returned: object, expected: Tensor
) -> str:
    """What is wrong with a returned value; empty if nothing is."""
    try:
        got = _as_tensor(returned)
    except (TypeError, ValueError, RuntimeError):
        return f"It returned a {type(returned).__name__}; expected numbers."
    if got.shape == expected.shape and _close(got, expected):
        return ""
    for hint, mistake in exercise.mistakes.items():
        wrong = _as_tensor(mistake(*arguments))
        if got.shape == wrong.shape and _close(got, wrong) and not _close(wrong, expected):
            return hint
    if got.shape != expected.shape:
        return f"The shape is {tuple(got.shape)}; expected {tuple(expected.shape)}."
    if got.isnan().any():
        return "There are NaNs in it: is a row of -inf alone going through the softmax?"
    return f"The shape is right; the largest error is {(got - expected).abs().max():.3g}."


def _as_tensor(value: object) -> Tensor:
    """One tensor of doubles; several tensors become one long row."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", torch.float64)
    if isinstance(value, tuple) and all(isinstance(item, Tensor) for item in value):
        return torch.cat([_as_tensor(item).flatten() for item in value])
    return torch.as_tensor(value, dtype=torch.float64)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def _nothing(*_: object) -> Tensor:
    """A mistake that cannot be made on this input."""
    return torch.full((1,), math.nan)


def _random(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Seeded inputs, the same on every machine that runs the same torch."""
    generator = torch.Generator("cpu").manual_seed(3)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        for shape in shapes
    )


# --- chapter 00: reading this book ----------------------------------------------------------------


def _score_shape(b: int, t: int, s: int, h: int, d: int) -> tuple[int, ...]:
    return (b, h, t, s)


SCORE_SHAPE = Exercise(
    reference=_score_shape,
    inputs=[(2, 5, 7, 8, 512), (3, 4, 4, 2, 16)],
    mistakes={
        "The head belongs before the positions: each head has its own matrix.": (
            lambda b, t, s, h, d: (b, t, s, h)
        ),
        "Queries come first: one row for each query, one column for each key.": (
            lambda b, t, s, h, d: (b, h, s, t)
        ),
        "That is the shape of the queries; a score has no width left.": (
            lambda b, t, s, h, d: (b, h, t, d // h)
        ),
        "Each head keeps a matrix of its own: H is missing.": lambda b, t, s, h, d: (b, t, s),
    },
)


def _mixes_tokens(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    changed = x.clone()
    changed[:, 0] += 1.0
    return not torch.allclose(function(x)[:, 1:], function(changed)[:, 1:])


MIXES_TOKENS = Exercise(
    reference=_mixes_tokens,
    inputs=[
        (torch.tanh, _random((1, 4, 3))[0]),
        (lambda x: x.cumsum(dim=1), _random((1, 4, 3))[0]),
        (lambda x: x - x.mean(dim=-1, keepdim=True), _random((1, 4, 3))[0]),
        (lambda x: x - x.mean(dim=1, keepdim=True), _random((1, 4, 3))[0]),
    ],
    mistakes={
        "It says yes whenever the output changes at all; look only at the positions that were "
        "not touched.": lambda function, x: not torch.allclose(function(x), function(x + 1.0)),
        "It always says no: is the changed position the only one that is compared?": (
            lambda function, x: False
        ),
    },
)

# --- chapter 03: attention ------------------------------------------------------------------------


def _soft_lookup(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return _lookup_weights(query, keys, 1 / math.sqrt(len(query))) @ values


def _lookup_weights(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    return (scale * (keys @ query)).softmax(dim=0)


SOFT_LOOKUP = Exercise(
    reference=_soft_lookup,
    inputs=[_random((4,), (3, 4), (3, 2)), _random((2,), (6, 2), (6, 5))],
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
    },
)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, axis: int = -1
) -> Tensor:
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return (scale * (q @ k.mT)).softmax(dim=axis) @ v


FROM_SCRATCH = Exercise(
    reference=_attend,
    inputs=[_random((3, 4), (3, 4), (3, 4)), _random((2, 5, 8), (2, 7, 8), (2, 7, 3))],
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
        "Queries and keys are swapped: this is softmax(K Qᵀ).": (
            lambda q, k, v: _attend(k, q, v) if q.shape == k.shape else _nothing()
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
    inputs=[_random((3, 4), (4, 4), (4, 4), (4, 4)), _random((5, 6), (2, 6), (2, 6), (3, 6))],
    mistakes={
        "nn.Linear stores its weight as (out, in): multiply by the transpose, x @ W.T.": (
            lambda x, q, k, v: _attend(x @ q, x @ k, x @ v) if q.shape == (4, 4) else _nothing()
        ),
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
        for scores, gradient in (_random((3, 3), (3, 3)), _random((2, 5), (2, 5)))
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
    inputs=[_random((5, 6), (6, 4), (6, 4), (6, 3), (5, 3))],
    mistakes={
        "x is used three times: its gradient has a share from the queries and the keys too.": (
            _forgets_a_use_of_x
        ),
        "The gradients of W_Q and W_K are swapped.": _head_backward_with(
            lambda x, q, k, v: (x, k, q, v)
        ),
        "The order is x, W_Q, W_K, W_V.": _head_backward_with(lambda x, q, k, v: (q, k, v, x)),
    },
)

EXERCISES = {
    "reading.score_shape": SCORE_SHAPE,
    "reading.mixes_tokens": MIXES_TOKENS,
    "attention.soft_lookup": SOFT_LOOKUP,
    "attention.from_scratch": FROM_SCRATCH,
    "attention.head": HEAD,
    "attention.score_for": SCORE_FOR,
    "attention.spot_the_error": SPOT_THE_ERROR,
    "attention.scores_gradient": SCORES_GRADIENT,
    "attention.second_token": SECOND_TOKEN,
    "attention.head_backward": HEAD_BACKWARD,
}
