"""Exercises of chapter 09, Normalisation."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _layer_norm(
    x: Tensor, gain: Tensor, bias: Tensor, eps: float, *, dim: int = -1, correction: int = 0
) -> Tensor:
    away = x - x.mean(dim=dim, keepdim=True)
    variance = x.var(dim=dim, correction=correction, keepdim=True)
    return gain * away / (variance + eps).sqrt() + bias


def _of_everything(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    return gain * (x - x.mean()) / (x.var(correction=0) + eps).sqrt() + bias


def _epsilon_outside(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    away = x - x.mean(dim=-1, keepdim=True)
    return gain * away / (x.std(dim=-1, correction=0, keepdim=True) + eps) + bias


def _not_the_root(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    away = x - x.mean(dim=-1, keepdim=True)
    return gain * away / (x.var(dim=-1, correction=0, keepdim=True) + eps) + bias


LAYER_NORM = Exercise(
    reference=_layer_norm,
    inputs=[
        (*random_inputs((2, 3, 4), (4,), (4,)), 0.1),
        (*random_inputs((5, 6), (6,), (6,)), 0.5),
    ],
    mistakes={
        "The variance is divided by D - 1: `x.var()` does that unless you say correction=0.": (
            lambda x, g, b, e: _layer_norm(x, g, b, e, correction=1)
        ),
        "Epsilon is added outside the root; it belongs to the variance, inside.": _epsilon_outside,
        "Epsilon is missing.": lambda x, g, b, e: _layer_norm(x, g, b, 0.0),
        "You divided by the variance; take its root.": _not_the_root,
        "Mean and variance run over the positions; they belong to the features of one token, "
        "dim=-1.": lambda x, g, b, e: _layer_norm(x, g, b, e, dim=-2),
        "That is one mean and one variance for the whole batch; each token has its own.": (
            _of_everything
        ),
        "The bias is missing.": lambda x, g, b, e: _layer_norm(x, g, 0 * b, e),
        "The gain is missing.": lambda x, g, b, e: _layer_norm(x, torch.ones_like(g), b, e),
        "The bias is multiplied by the gain, too: it is added last.": (
            lambda x, g, b, e: g * (_layer_norm(x, torch.ones_like(g), b, e))
        ),
        "The mean is not taken away: that is RMSNorm with a bias.": (
            lambda x, g, b, e: _rms_norm(x, g, e) + b
        ),
    },
)


def _rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return gain * x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()


RMS_NORM = Exercise(
    reference=_rms_norm,
    inputs=[(*random_inputs((2, 3, 4), (4,)), 0.1), (*random_inputs((5, 6), (6,)), 0.5)],
    mistakes={
        "That is LayerNorm: RMSNorm leaves the mean where it is.": (
            lambda x, g, e: _layer_norm(x, g, torch.zeros_like(g), e)
        ),
        "You divided by the standard deviation, which is about the mean; take the root of the "
        "mean square of x itself.": (
            lambda x, g, e: g * x / (x.var(dim=-1, correction=0, keepdim=True) + e).sqrt()
        ),
        "You divided by the length of the vector: the sum of squares must become a mean.": (
            lambda x, g, e: g * x / (x.square().sum(dim=-1, keepdim=True) + e).sqrt()
        ),
        "Epsilon is added outside the root; it belongs to the mean square, inside.": (
            lambda x, g, e: g * x / (x.square().mean(dim=-1, keepdim=True).sqrt() + e)
        ),
        "Epsilon is missing.": lambda x, g, e: _rms_norm(x, g, 0.0),
        "You divided by the mean square; take its root.": (
            lambda x, g, e: g * x / (x.square().mean(dim=-1, keepdim=True) + e)
        ),
        "The gain is missing.": lambda x, g, e: _rms_norm(x, torch.ones_like(g), e),
        "The mean square runs over the whole batch; each token has its own.": (
            lambda x, g, e: g * x / (x.square().mean() + e).sqrt()
        ),
    },
)


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
    },
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
    },
)


def _backward(x: Tensor, upstream: Tensor) -> Tensor:
    """Return the gradient of x through a norm without gain, bias and epsilon."""
    deviation = x.std(dim=-1, correction=0, keepdim=True)
    normal = _plain(x)
    along = (upstream * normal).mean(dim=-1, keepdim=True)
    return (upstream - upstream.mean(dim=-1, keepdim=True) - normal * along) / deviation


def _backward_parts(x: Tensor, g: Tensor, *, mean: bool, along: bool, divide: bool) -> Tensor:
    normal = _plain(x)
    out = g
    if mean:
        out = out - g.mean(dim=-1, keepdim=True)
    if along:
        out = out - normal * (g * normal).mean(dim=-1, keepdim=True)
    return out / x.std(dim=-1, correction=0, keepdim=True) if divide else out


BACKWARD = Exercise(
    reference=_backward,
    inputs=[random_inputs((4,), (4,)), random_inputs((3, 6), (3, 6))],
    mistakes={
        "The standard deviation depends on x, too: what lies along the normalised vector must be "
        "taken away.": lambda x, g: _backward_parts(x, g, mean=True, along=False, divide=True),
        "The mean depends on x, too: the mean of the gradient must be taken away.": (
            lambda x, g: _backward_parts(x, g, mean=False, along=True, divide=True)
        ),
        "The division by the standard deviation is missing.": (
            lambda x, g: _backward_parts(x, g, mean=True, along=True, divide=False)
        ),
        "Mean and deviation depend on x, too: two parts must be taken away.": (
            lambda x, g: _backward_parts(x, g, mean=False, along=False, divide=True)
        ),
        "The part along the normalised vector is a mean of products, not their sum.": (
            lambda x, g: (
                (
                    g
                    - g.mean(dim=-1, keepdim=True)
                    - _plain(x) * (g * _plain(x)).sum(dim=-1, keepdim=True)
                )
                / x.std(dim=-1, correction=0, keepdim=True)
            )
        ),
    },
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
    },
)
