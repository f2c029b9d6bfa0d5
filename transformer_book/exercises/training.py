"""Exercises of chapter 14, Training."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _perplexity(probabilities: Sequence[float], n_letters: int) -> float:
    return math.exp(-sum(math.log(p) for p in probabilities) / n_letters)


PERPLEXITY = Exercise(
    reference=_perplexity,
    inputs=[([0.5, 0.25, 0.125], 6), ([0.9, 0.01], 7), ([0.3, 0.3, 0.2, 0.7], 9)],
    mistakes={
        "That is the loss per letter; perplexity is its exponential.": (
            lambda p, n: math.log(_perplexity(p, n))
        ),
        "That is the perplexity per token: divide the sum by the number of letters.": (
            lambda p, n: _perplexity(p, len(p))
        ),
        "That divides the perplexity per token: divide inside the exponential.": (
            lambda p, n: _perplexity(p, len(p)) * len(p) / n
        ),
        "That is the exponential of the sum; divide it by the number of letters first.": (
            lambda p, n: _perplexity(p, 1)
        ),
        "It is below 1: the loss is minus the logarithm.": lambda p, n: 1 / _perplexity(p, n),
    },
)


def _entropy(right: float, other: float, n_others: int) -> float:
    return -right * math.log(right) - n_others * other * math.log(other)


def _floor(V: int, eps: float) -> float:
    return _entropy(1 - eps, eps / (V - 1), V - 1)


FLOOR = Exercise(
    reference=_floor,
    inputs=[(20, 0.1), (4, 0.1), (1000, 0.2)],
    mistakes={
        "That spreads eps over all V tokens, as the page does; here only the others share it.": (
            lambda v, e: _entropy(1 - e + e / v, e / v, v - 1)
        ),
        "The others' shares do not add up to eps: there are V - 1 of them.": (
            lambda v, e: _entropy(1 - e, e / v, v - 1)
        ),
        "That is -ln p of the right token alone; the others have a target, too.": (
            lambda v, e: -math.log(1 - e)
        ),
        "Only one of the V - 1 other tokens is counted.": (
            lambda v, e: _entropy(1 - e, e / (v - 1), 1)
        ),
    },
)


def _adamw(weight: float, gradient: float, rate: float, decay: float) -> float:
    return weight * (1 - rate * decay) - rate * gradient / (abs(gradient) + 1e-8)


def _adam_with_l2(weight: float, gradient: float, rate: float, decay: float) -> float:
    whole = gradient + decay * weight
    return weight - rate * whole / (abs(whole) + 1e-8)


ADAMW = Exercise(
    reference=_adamw,
    inputs=[(2.0, 0.5, 0.1, 0.2), (-1.0, 3.0, 0.01, 0.1), (0.5, -0.02, 0.1, 0.5)],
    mistakes={
        "The decay is inside the fraction: that is Adam with decay in the gradient.": _adam_with_l2,
        "The decay is missing.": lambda w, g, r, d: _adamw(w, g, r, 0.0),
        "The decay is not multiplied by the rate.": (
            lambda w, g, r, d: w * (1 - d) - r * g / (abs(g) + 1e-8)
        ),
        "The gradient is not divided by its size: after one step the fraction is +1 or -1.": (
            lambda w, g, r, d: w * (1 - r * d) - r * g
        ),
        "The step goes up: subtract it.": (
            lambda w, g, r, d: w * (1 - r * d) + r * g / (abs(g) + 1e-8)
        ),
        "Without the corrections for the first steps the fraction is too large: divide the means "
        "by 1 - beta.": (
            lambda w, g, r, d: w * (1 - r * d) - r * 0.1 * g / (math.sqrt(0.05) * abs(g) + 1e-8)
        ),
    },
)


def _accumulated(parts: Sequence[Sequence[float]]) -> float:
    return sum(sum(part) for part in parts) / sum(len(part) for part in parts)


ACCUMULATED = Exercise(
    reference=_accumulated,
    inputs=[([[1.0, 2.0, 3.0], [5.0]],), ([[0.5], [0.7, 0.1], [2.0, 2.0, 2.0]],)],
    mistakes={
        "That is the mean of the parts' means: a token of a part with few targets counts more.": (
            lambda parts: sum(sum(part) / len(part) for part in parts) / len(parts)
        ),
        "That is the sum; divide by the number of targets.": (
            lambda parts: sum(sum(part) for part in parts)
        ),
        "Divide by the number of targets, not by that of parts.": (
            lambda parts: sum(sum(part) for part in parts) / len(parts)
        ),
        "That is the sum of the parts' means.": (
            lambda parts: sum(sum(part) / len(part) for part in parts)
        ),
    },
)


def _trapezoid(step: int, steps: int, warmup: int, fall: int, peak: float) -> float:
    return peak * min(1.0, step / warmup, (steps - step) / fall)


TRAPEZOID = Exercise(
    reference=_trapezoid,
    inputs=[
        (1, 100, 10, 20, 1.0),
        (10, 100, 10, 20, 2.0),
        (40, 100, 10, 20, 1.0),
        (90, 100, 10, 20, 3.0),
        (100, 100, 10, 20, 1.0),
    ],
    mistakes={
        "The warm-up is missing: the rate rises in a line to the peak.": (
            lambda s, n, w, f, p: p * min(1.0, (n - s) / f)
        ),
        "The rate never falls.": lambda s, n, w, f, p: p * min(1.0, s / w),
        "It falls from the end of warm-up on; it should stay until `fall` steps are left.": (
            lambda s, n, w, f, p: p * min(s / w, (n - s) / (n - w))
        ),
        "Without the peak as a ceiling the rate goes on rising after warm-up.": (
            lambda s, n, w, f, p: p * min(s / w, (n - s) / f)
        ),
        "It falls to a tenth; here it goes down to 0.": (
            lambda s, n, w, f, p: p * min(1.0, s / w, 0.1 + 0.9 * (n - s) / f)
        ),
    },
)


def _clip(a: Tensor, b: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    length = math.sqrt(a.square().sum().item() + b.square().sum().item())
    factor = min(1.0, limit / length)
    return a * factor, b * factor


def _clip_each(a: Tensor, b: Tensor, limit: float) -> tuple[Tensor, ...]:
    return tuple(t * min(1.0, limit / t.norm().item()) for t in (a, b))


def _always(a: Tensor, b: Tensor, limit: float) -> tuple[Tensor, ...]:
    length = math.sqrt(a.square().sum().item() + b.square().sum().item())
    return a * limit / length, b * limit / length


_LONG, _SHORT = random_inputs((2, 3), (4,)), random_inputs((3,), (2, 2))
CLIP = Exercise(
    reference=_clip,
    inputs=[
        (*_LONG, 1.0),
        (torch.tensor([3.0], device="cpu"), torch.tensor([4.0], device="cpu"), 2.0),
        (*(t / 100 for t in _SHORT), 1.0),
    ],
    mistakes={
        "Each tensor is clipped by itself: the length is that of all of them together.": _clip_each,
        "A gradient that is short enough is left alone; yours is made longer.": _always,
        "Every entry is clipped by itself: that changes the direction.": (
            lambda a, b, c: (a.clamp(-c, c), b.clamp(-c, c))
        ),
        "The lengths of the two tensors are added; add their squares and take the root.": (
            lambda a, b, c: tuple(
                t * min(1.0, c / (a.norm().item() + b.norm().item())) for t in (a, b)
            )
        ),
        "Nothing is clipped.": lambda a, b, c: (a, b),
    },
)
