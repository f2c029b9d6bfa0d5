"""Exercises of chapter 14, Training."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise, random_inputs


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
        "Natural logarithms belong to powers of e, not of 2.": (
            lambda p, n: 2 ** math.log(_perplexity(p, n))
        ),
        "That is one over the mean probability; take the mean of the logarithms.": (
            lambda p, n: n / sum(p)
        ),
        "That is one over the mean probability of a token; add up the logarithms, and divide by "
        "the number of letters.": lambda p, n: len(p) / sum(p),
    },
    hints=(
        "The loss of a whole text does not depend on how it is cut. What does each token "
        "contribute?",
        "Each token contributes -ln p. Add them up, divide by the number of letters, and take the "
        "exponential.",
        "The sum is `sum(-math.log(p) for p in probabilities)`; `math.exp` comes last.",
    ),
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
        "The others together have eps, but each of them only eps / (V - 1): that belongs inside "
        "the logarithm.": lambda v, e: _entropy(1 - e, e, 1),
        "That is in bits; the loss is in nats: use math.log.": (
            lambda v, e: _floor(v, e) / math.log(2)
        ),
        "The right token has 1 - eps and a share of the loss, too.": (
            lambda v, e: -e * math.log(e / (v - 1))
        ),
    },
    hints=(
        "The loss is lowest where the model says exactly what the target says. What is the "
        "cross-entropy of a distribution with itself?",
        "It is the entropy of the target: minus the sum of p ln p. One token has 1 - eps, and "
        "V - 1 tokens have eps / (V - 1) each.",
        "The right token contributes `-(1 - eps) * math.log(1 - eps)`; the others together "
        "-eps times the logarithm of one share.",
    ),
)


def _adamw(weight: float, gradient: float, rate: float, decay: float) -> float:
    return weight * (1 - rate * decay) - rate * gradient / (abs(gradient) + 1e-8)


def _adam_with_l2(weight: float, gradient: float, rate: float, decay: float) -> float:
    whole = gradient + decay * weight
    return weight - rate * whole / (abs(whole) + 1e-8)


def _sign(number: float) -> float:
    return math.copysign(1.0, number) if number else 0.0


ADAMW = Exercise(
    reference=_adamw,
    inputs=[
        (2.0, 0.5, 0.1, 0.2),
        (-1.0, 3.0, 0.01, 0.1),
        (0.5, -0.02, 0.1, 0.5),
        (0.7, 3e-8, 0.1, 0.3),  # hardly larger than epsilon
        (0.7, 0.0, 0.1, 0.3),
    ],
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
        "The step is taken before the decay: the decay acts on the weight as it was.": (
            lambda w, g, r, d: (w - r * g / (abs(g) + 1e-8)) * (1 - r * d)
        ),
        "Epsilon is missing: a gradient near 0 must not make a whole step.": (
            lambda w, g, r, d: w * (1 - r * d) - r * _sign(g)
        ),
        "Epsilon is inside the root; it is added to the root.": (
            lambda w, g, r, d: w * (1 - r * d) - r * g / math.sqrt(g * g + 1e-8)
        ),
        "The weight grows: decay takes a part of it away.": (
            lambda w, g, r, d: w * (1 + r * d) - r * g / (abs(g) + 1e-8)
        ),
    },
    hints=(
        "After one step, with their corrections, what are the two running means? Only one gradient "
        "has gone into them.",
        "They are g and g². So the fraction is g / (|g| + eps), nearly +1 or -1. The decay is not "
        "part of the gradient: it takes rate · decay · weight away by itself.",
        "Start with `weight * (1 - rate * decay)` and take the step away: rate times "
        "`gradient / (abs(gradient) + 1e-8)`.",
    ),
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
        "That is the mean of the first part; the batch has others.": (
            lambda parts: sum(parts[0]) / len(parts[0])
        ),
    },
    hints=(
        "What would the loss be if the batch were not cut into parts? Every target counts the same "
        "then.",
        "Add up all losses of all parts, count all targets, and divide once.",
        "The sum is `sum(sum(part) for part in parts)`; the count in the same way with `len`.",
    ),
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
        (8, 60, 16, 25, 0.5),
        (35, 60, 16, 25, 0.5),  # the last step at the peak
        (36, 60, 16, 25, 0.5),
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
        "The steps begin with 1: at step 1 the rate is peak / warmup, not 0.": (
            lambda s, n, w, f, p: p * min(1.0, (s - 1) / w, (n - s) / f)
        ),
        "It comes to 0 one step after the end; at `steps` it should be 0.": (
            lambda s, n, w, f, p: p * min(1.0, s / w, (n - s + 1) / f)
        ),
        "It always goes up to 1; the highest rate is `peak`.": (
            lambda s, n, w, f, p: min(1.0, s / w, (n - s) / f)
        ),
        "The slopes are right, but the ceiling is 1; it should be `peak`.": (
            lambda s, n, w, f, p: min(1.0, p * s / w, p * (n - s) / f)
        ),
        "`fall` is how many steps the fall takes, not the step at which it begins.": (
            lambda s, n, w, f, p: p * min(1.0, s / w, (n - s) / (n - f))
        ),
    },
    hints=(
        "Draw it: a line that rises, one that is level, one that falls. At each step, which of the "
        "three is lowest?",
        "As parts of the peak they are step / warmup, 1, and (steps - step) / fall. The rate is "
        "the smallest of them, times the peak.",
        "Write `min(1.0, step / warmup, (steps - step) / fall)` and multiply.",
    ),
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


def _by_square(a: Tensor, b: Tensor, limit: float) -> tuple[Tensor, ...]:
    square = a.square().sum().item() + b.square().sum().item()
    return tuple(t * min(1.0, limit / square) for t in (a, b))


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
        "That is the squared length: take the root before you divide.": _by_square,
        "The limit is not used: this clips to length 1.": lambda a, b, c: _clip(a, b, 1.0),
        "The factor is made for a and b, but only a is multiplied by it.": (
            lambda a, b, c: (_clip(a, b, c)[0], b)
        ),
    },
    hints=(
        "Both gradients together are one long vector. How long is it, and by which factor must it "
        "shrink?",
        "The length is the root of the sum of all squares, of a and of b. The factor is "
        "limit / length, but never more than 1; both are multiplied by the same one.",
        "The factor is `min(1.0, limit / length)`; the length "
        "`torch.cat([a.flatten(), b.flatten()]).norm().item()`.",
    ),
    returns=("a", "b"),
)
