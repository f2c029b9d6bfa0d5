"""Exercises of chapter 09, Normalisation."""

import math
from collections.abc import Callable, Sequence

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


def _centre(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return weight - weight.mean(dim=1, keepdim=True), bias - bias.mean()


CENTRE = Exercise(
    reference=_centre,
    inputs=[random_inputs((3, 4), (4,)), random_inputs((5, 5), (5,))],
    mistakes={
        "The columns have mean 0 now, so equal inputs write nothing. The weight lies as (in, out) "
        "here: the mean over what is written, the last axis, must be 0.": (
            lambda w, b: (w - w.mean(dim=0), b - b.mean())
        ),
        "One mean for the whole matrix: a single input can still write a mean.": (
            lambda w, b: (w - w.mean(), b - b.mean())
        ),
        "The scale changed, too: take the mean away and leave the rest.": (
            lambda w, b: (_plain(w), b - b.mean())
        ),
        "The bias is written, too: its mean has to go.": lambda w, b: (_centre(w, b)[0], b),
        "The bias is as it was asked for, and the weight is not yet changed.": (
            lambda w, b: (w, b - b.mean())
        ),
        "A bias of zeros writes no mean, but nothing else either: take away its mean only.": (
            lambda w, b: (_centre(w, b)[0], torch.zeros_like(b))
        ),
    },
    hints=(
        "The mean of the output is the mean over its entries. Which average of `weight` gives it "
        "for an input x?",
        "The mean of x @ weight + bias is x @ (the mean of all columns) + the mean of the bias. It "
        "is 0 for every x if each row has mean 0, and the bias, too.",
        "Take `weight.mean(dim=1, keepdim=True)` and `bias.mean()` away.",
    ),
    returns=("weight", "bias"),
)


def _turn(x: Tensor) -> Tensor:
    return torch.tanh(x.flip(-1))


def _roll(x: Tensor) -> Tensor:
    return torch.sin(x.roll(1, dims=-1)) + 0.5 * x


def _plain(x: Tensor) -> Tensor:
    away = x - x.mean(dim=-1, keepdim=True)
    return away / away.square().mean(dim=-1, keepdim=True).sqrt()


Map = Callable[[Tensor], Tensor]


def _orders(x: Tensor, norm: Map, sublayers: Sequence[Map]) -> tuple[Tensor, Tensor]:
    post = pre = x
    for f in sublayers:
        post = norm(post + f(post))
        pre = pre + f(norm(pre))
    return post, norm(pre)


def _other_orders(
    post: Callable[[Tensor, Map, Map], Tensor] = lambda x, norm, f: norm(x + f(x)),
    pre: Callable[[Tensor, Map, Map], Tensor] = lambda x, norm, f: x + f(norm(x)),
) -> Callable[[Tensor, Map, Sequence[Map]], tuple[Tensor, Tensor]]:
    """Make stacks with other steps, of which post-norm ends as it is, and pre-norm with a norm."""

    def stacks(x: Tensor, norm: Map, sublayers: Sequence[Map]) -> tuple[Tensor, Tensor]:
        first = second = x
        for f in sublayers:
            first, second = post(first, norm, f), pre(second, norm, f)
        return first, norm(second)

    return stacks


def _without_the_final_norm(
    x: Tensor, norm: Map, sublayers: Sequence[Map]
) -> tuple[Tensor, Tensor]:
    pre = x
    for f in sublayers:
        pre = pre + f(norm(pre))
    return _orders(x, norm, sublayers)[0], pre


ORDERS = Exercise(
    reference=_orders,
    inputs=[
        (*random_inputs((2, 3, 4)), _plain, (_turn, _roll)),
        (*random_inputs((4, 6)), _plain, (_roll, _turn, _roll)),
    ],
    mistakes={
        "The two are the wrong way round: post-norm first, then pre-norm.": (
            lambda x, norm, fs: _orders(x, norm, fs)[::-1]
        ),
        "What a pre-norm stack hands to the output layer needs one more norm, the final norm.": (
            _without_the_final_norm
        ),
        "That is the first sublayer alone: carry the stream through all of them.": (
            lambda x, norm, fs: _orders(x, norm, fs[:1])
        ),
        "Post-norm normalises the sum, not what the sublayer says.": (
            _other_orders(post=lambda x, norm, f: x + norm(f(x)))
        ),
        "Pre-norm adds to the stream itself, not to its normalised copy.": (
            _other_orders(pre=lambda x, norm, f: norm(x) + f(norm(x)))
        ),
        "The residual of post-norm is missing.": _other_orders(post=lambda x, norm, f: norm(f(x))),
        "The residual of pre-norm is missing.": _other_orders(pre=lambda x, norm, f: f(norm(x))),
        "Post-norm has a norm in front, too: its sublayer reads the stream as it is.": (
            _other_orders(post=lambda x, norm, f: norm(x + f(norm(x))))
        ),
        "Pre-norm normalises what the sublayer reads, not what it says.": (
            _other_orders(pre=lambda x, norm, f: x + norm(f(x)))
        ),
    },
    hints=(
        "Both orders have a sublayer, a sum with the stream, and a norm. Only the place of the "
        "norm differs, and in one of them the last sum is never normalised by a block.",
        "Post-norm: the norm comes last, around the whole sum. Pre-norm: the norm comes first, "
        "before the sublayer, the stream in the sum stays as it is; one norm stands at the end.",
        "In the loop: `post = norm(post + f(post))` and `pre = pre + f(norm(pre))`; after it, "
        "`norm(pre)`.",
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
