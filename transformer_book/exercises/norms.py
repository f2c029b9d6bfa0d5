"""Exercises of chapter 09, Normalisation."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs


def _fold(weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    return weight * gain, weight @ shift + bias


FOLD = Exercise(
    reference=_fold,
    inputs=[random_inputs((5, 5), (5,), (5,), (5,)), random_inputs((3, 4), (3,), (4,), (4,))],
    mistakes={
        "The gain multiplies rows of the weight, what the layer writes; it belongs to the columns, "
        "what the layer reads.": lambda w, b, g, s: (g[:, None] * w, w @ s + b),
        "The shift is added to the bias as it is; it has to go through the weight first.": (
            lambda w, b, g, s: (w * g, s + b)
        ),
        "The shift goes through the new weight; in the norm it comes after the gain and is not "
        "multiplied by it.": lambda w, b, g, s: (w * g, (w * g) @ s + b),
        "The bias of the layer got lost.": lambda w, b, g, s: (w * g, w @ s),
        "The shift got lost.": lambda w, b, g, s: (w * g, b),
        "Dividing by the gain would undo it; multiply.": lambda w, b, g, s: (w / g, w @ s + b),
        "The shift goes through the weight from the wrong side: the layer computes weight @ x.": (
            lambda w, b, g, s: (w * g, s @ w + b)
        ),
        "The gain multiplies the layer's bias, too; it acts on what the layer reads.": (
            lambda w, b, g, s: (w * g, w @ s + g * b)
        ),
    },
    hints=(
        "Write the layer behind the norm as weight @ (gain * x + shift) + bias, and multiply it "
        "out: what stands before x, and what does not depend on x?",
        "The gain acts on what the layer reads, one number for each *column* of `weight`. The "
        "shift becomes a constant, `(out,)`.",
        "The new weight is `weight * gain`; `weight @ shift` is added to the bias.",
    ),
    returns=("weight", "bias"),
)


CENTRE = Exercise(
    reference=lambda weight: weight - weight.mean(dim=0),
    inputs=[random_inputs((3, 4)), random_inputs((5, 5))],
    mistakes={
        "The rows have mean 0 now, so equal inputs write nothing. The mean over what is written, "
        "the first axis, must be 0.": lambda w: w - w.mean(dim=1, keepdim=True),
        "One mean for the whole matrix: a single input can still write a mean.": (
            lambda w: w - w.mean()
        ),
        "The scale changed, too: take the mean away and leave the rest.": (
            lambda w: (w - w.mean(dim=0)) / w.std(dim=0, correction=0)
        ),
        "That is the mean itself; take it away.": lambda w: w.mean(dim=0).expand_as(w),
    },
    hints=(
        "The mean of the output is the mean over its entries. Which average of `weight` gives it "
        "for an input x?",
        "The mean of weight @ x is (the mean of all rows) @ x. It is 0 for every x if the mean "
        "over the rows is 0: so each column must have mean 0.",
        "Take `weight.mean(dim=0)` away.",
    ),
)


def _sublayer(x: Tensor) -> Tensor:
    return torch.tanh(x.flip(-1))


def _plain(x: Tensor) -> Tensor:
    away = x - x.mean(dim=-1, keepdim=True)
    return away / away.square().mean(dim=-1, keepdim=True).sqrt()


ORDERS = Exercise(
    reference=lambda x, norm, f: (norm(x + f(x)), x + f(norm(x))),
    inputs=[
        (*random_inputs((2, 3, 4)), _plain, _sublayer),
        (*random_inputs((4, 6)), _plain, _sublayer),
    ],
    mistakes={
        "The two are the wrong way round: post-norm first, then pre-norm.": (
            lambda x, norm, f: (x + f(norm(x)), norm(x + f(x)))
        ),
        "Post-norm normalises the sum, not what the sublayer says.": (
            lambda x, norm, f: (x + norm(f(x)), x + f(norm(x)))
        ),
        "Pre-norm adds to the stream itself, not to its normalised copy.": (
            lambda x, norm, f: (norm(x + f(x)), norm(x) + f(norm(x)))
        ),
        "The residual of post-norm is missing.": (lambda x, norm, f: (norm(f(x)), x + f(norm(x)))),
        "The residual of pre-norm is missing.": (lambda x, norm, f: (norm(x + f(x)), f(norm(x)))),
        "Post-norm has a norm in front, too: its sublayer reads the stream as it is.": (
            lambda x, norm, f: (norm(x + f(norm(x))), x + f(norm(x)))
        ),
        "Pre-norm normalises what the sublayer reads, not what it says.": (
            lambda x, norm, f: (norm(x + f(x)), x + norm(f(x)))
        ),
    },
    hints=(
        "Both have a sublayer, a sum with the stream, and a norm. Only the place of the norm "
        "differs.",
        "Post-norm: the norm comes last, around the whole sum. Pre-norm: the norm comes first, "
        "before the sublayer, and the stream in the sum stays as it is.",
        "The first is `norm(x + f(x))`; in the second `f` reads `norm(x)`.",
    ),
    returns=("post-norm", "pre-norm"),
)


def _backward(x: Tensor, upstream: Tensor) -> Tensor:
    """Return the gradient of x through a norm without gain, bias and epsilon."""
    deviation = x.std(dim=-1, correction=0, keepdim=True)
    normal = (x - x.mean(dim=-1, keepdim=True)) / deviation
    along = (upstream * normal).mean(dim=-1, keepdim=True)
    return (upstream - upstream.mean(dim=-1, keepdim=True) - normal * along) / deviation


def _backward_parts(
    x: Tensor, g: Tensor, *, mean: float = 1, along: float = 1, divide: float = 1
) -> Tensor:
    """Count the parts of the gradient otherwise, or not at all."""
    normal = _plain(x)
    out = g - mean * g.mean(dim=-1, keepdim=True)
    out = out - along * normal * (g * normal).mean(dim=-1, keepdim=True)
    return out / x.std(dim=-1, correction=0, keepdim=True) ** divide


def _backward_of_unbiased(x: Tensor, g: Tensor) -> Tensor:
    deviation = x.std(dim=-1, keepdim=True)
    normal = (x - x.mean(dim=-1, keepdim=True)) / deviation
    along = (g * normal).mean(dim=-1, keepdim=True)
    return (g - g.mean(dim=-1, keepdim=True) - normal * along) / deviation


BACKWARD = Exercise(
    reference=_backward,
    inputs=[random_inputs((4,), (4,)), random_inputs((3, 6), (3, 6))],
    mistakes={
        "The standard deviation depends on x, too: what lies along the normalised vector must be "
        "taken away.": lambda x, g: _backward_parts(x, g, along=0),
        "The mean depends on x, too: the mean of the gradient must be taken away.": (
            lambda x, g: _backward_parts(x, g, mean=0)
        ),
        "The division by the standard deviation is missing.": (
            lambda x, g: _backward_parts(x, g, divide=0)
        ),
        "A gradient is divided by the standard deviation, not multiplied by it.": (
            lambda x, g: _backward_parts(x, g, divide=-1)
        ),
        "Mean and deviation depend on x, too: two parts must be taken away.": (
            lambda x, g: _backward_parts(x, g, mean=0, along=0)
        ),
        "The part along the normalised vector is a mean of products, not their sum.": (
            lambda x, g: _backward_parts(x, g, along=x.shape[-1])
        ),
        "The variance is divided by D - 1: `x.std()` does that unless you say correction=0.": (
            _backward_of_unbiased
        ),
    },
    hints=(
        "If mean and deviation were constants, the gradient would be `upstream` divided by the "
        "deviation. But both depend on every feature of `x`: two directions have to go.",
        "Take away from `upstream` its own mean, and what lies along the normalised vector: this "
        "vector times the mean of its products with `upstream`. Divide by the deviation last.",
        "With `hat` for the normalised vector, the second part is `(upstream * "
        "hat).mean(dim=-1, keepdim=True) * hat`.",
    ),
)


STREAM_SIZE = Exercise(
    reference=lambda n_layers, write: math.sqrt(1 + 2 * n_layers * write**2),
    inputs=[(1, 1.0), (6, 0.5), (24, 0.7)],
    mistakes={
        "Sizes of independent vectors do not add up, their squares do.": (
            lambda n, w: 1 + 2 * n * w
        ),
        "Each block writes twice: attention and the feed-forward network.": (
            lambda n, w: math.sqrt(1 + n * w**2)
        ),
        "The stream does not start empty: the embedding has size 1.": (
            lambda n, w: math.sqrt(2 * n) * w
        ),
        "That is the mean square; take its root.": lambda n, w: 1 + 2 * n * w**2,
        "Square the size of a write before you add.": lambda n, w: math.sqrt(1 + 2 * n * w),
        "They are independent: not their sizes add up, but their squares. Then take the root of "
        "the whole sum.": lambda n, w: 1 + math.sqrt(2 * n) * w,
    },
    hints=(
        "What adds up for independent vectors: their sizes, or the squares of their sizes?",
        "Count the vectors: the embedding, of rms 1, and two writes in each of `n_layers` blocks. "
        "Add up their mean squares.",
        "The mean square is `1 + 2 * n_layers * write**2`; what is asked for is its root.",
    ),
)
