"""Slips that people make wherever they write attention, shared by the exercises of all chapters.

Each function returns mistakes for :class:`~transformer_book.exercises.grading.checking.Exercise`.
"""

import math
from collections.abc import Callable, Mapping

from torch import Tensor

from transformer_book.exercises.grading.checking import Answer

Parts = Callable[..., tuple[Tensor, ...]]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None = None,
    *,
    scale: float | None = None,
    axis: int = -1,
) -> Tensor:
    """Compute attention, or a wrong version of it.

    Args:
        q: queries, ``(..., T, Dk)``.
        k: keys, ``(..., S, Dk)``.
        v: values, ``(..., S, Dv)``.
        allowed: a mask, ``True`` where a query may look; everywhere if left out.
        scale: what the scores are multiplied by; ``1 / sqrt(Dk)`` if left out.
        axis: the axis along which weights sum to 1.

    Returns:
        What each query finds, ``(..., T, Dv)``.

    Example:
        >>> import torch
        >>> attend(
        ...     torch.zeros(1, 2),
        ...     torch.ones(3, 2),
        ...     torch.tensor([[1.0], [2.0], [6.0]]),
        ... )
        tensor([[3.]])
    """
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(dim=axis) @ v


def scale_slips(
    parts: Parts, finish: Answer = lambda found, *_: found, *, equal_widths: bool = False
) -> dict[str, Answer]:
    """Make the mistakes of scaling.

    Args:
        parts: makes queries, keys and values, and maybe a mask, from the arguments of the
            exercise.
        finish: makes the result from what attention finds and these arguments.
        equal_widths: whether values are as wide as queries: then neither can be mixed up.

    Returns:
        For each hint the function that makes this mistake.

    Example:
        >>> slips = scale_slips(lambda q, k, v: (q, k, v))
        >>> [hint.partition(":")[0] for hint in slips if "not scaled" in hint]
        ['The scores are not scaled']
    """

    def by(scale: Callable[[Tensor, Tensor, Tensor], float]) -> Answer:
        return lambda q, k, v, *mask: attend(q, k, v, *mask, scale=scale(q, k, v))

    slips: dict[str, Answer] = {
        "The scores are not scaled: divide them by the square root of the width of a query.": by(
            lambda q, k, v: 1.0
        ),
        "The scores are divided by the width of a query; divide by its square root.": by(
            lambda q, k, v: 1 / q.shape[-1]
        ),
        "The scores are multiplied by the square root of the width; divide by it.": by(
            lambda q, k, v: math.sqrt(q.shape[-1])
        ),
        "The scale counts the keys; the width of a key is what matters.": by(
            lambda q, k, v: 1 / math.sqrt(k.shape[-2])
        ),
        "The scale is applied after the softmax; it belongs before it.": (
            lambda q, k, v, *mask: attend(q, k, v, *mask, scale=1.0) / math.sqrt(q.shape[-1])
        ),
    }
    if not equal_widths:
        sentence = "The scale counts the features of a value; the width of a query is what matters."
        slips[sentence] = by(lambda q, k, v: 1 / math.sqrt(v.shape[-1]))
    return _finished(slips, parts, finish)


def mixing_slips(parts: Parts, finish: Answer = lambda found, *_: found) -> dict[str, Answer]:
    """Make the mistakes of who meets whom, and what is mixed.

    The first inputs of the exercise should be square, or some of them crash.

    Args:
        parts: makes queries, keys and values from the arguments of the exercise.
        finish: makes the result from what attention finds and these arguments.

    Returns:
        For each hint the function that makes this mistake.

    Example:
        >>> "The keys are mixed; mix the values." in mixing_slips(
        ...     lambda q, k, v: (q, k, v)
        ... )
        True
    """
    slips: dict[str, Answer] = {
        "The softmax runs over the queries; each query's row must sum to 1.": (
            lambda q, k, v: attend(q, k, v, axis=-2)
        ),
        "The scores went in as weights; apply the softmax so that they sum to 1.": (
            lambda q, k, v: q @ k.mT / math.sqrt(q.shape[-1]) @ v
        ),
        "Queries and keys are swapped: this is softmax(K Qᵀ).": lambda q, k, v: attend(k, q, v),
        "Features meet features; positions must meet positions: q @ k.mT.": (
            lambda q, k, v: attend(q.mT, k.mT, v)
        ),
        "The keys are mixed; mix the values.": lambda q, k, v: attend(q, k, k),
    }
    return _finished(slips, parts, finish)


def mask_slips(parts: Parts, finish: Answer = lambda found, *_: found) -> dict[str, Answer]:
    """Make the mistakes of masking.

    Args:
        parts: makes queries, keys, values and a mask (``True``: may be looked at) from the
            arguments of the exercise.
        finish: makes the result from what attention finds and these arguments.

    Returns:
        For each hint the function that makes this mistake.

    Example:
        >>> slips = mask_slips(lambda q, k, v, mask: (q, k, v, mask))
        >>> [hint for hint in slips if "exp(0)" in hint]
        ['Hidden scores are set to 0, but exp(0) is 1: hide them with -inf.']
    """
    slips: dict[str, Answer] = {
        "The mask is not used: hidden keys get weight.": lambda q, k, v, _: attend(q, k, v),
        "The mask is turned round: True may be looked at, False is hidden.": (
            lambda q, k, v, allowed: _hide(q, k, allowed, -math.inf).softmax(dim=-1) @ v
        ),
        "Hidden scores are set to 0, but exp(0) is 1: hide them with -inf.": (
            lambda q, k, v, allowed: _hide(q, k, ~allowed, 0.0).softmax(dim=-1) @ v
        ),
        "The mask comes after the softmax, so the rows no longer sum to 1: hide the scores.": (
            lambda q, k, v, allowed: _hide(q, k, ~allowed, 0.0, after=True) @ v
        ),
    }
    return _finished(slips, parts, finish)


def _hide(q: Tensor, k: Tensor, hidden: Tensor, fill: float, *, after: bool = False) -> Tensor:
    """Scores with a number in place of some of them, or the weights with it."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores.softmax(dim=-1) if after else scores).masked_fill(hidden, fill)


def _finished(slips: Mapping[str, Answer], parts: Parts, finish: Answer) -> dict[str, Answer]:
    """The slips as answers to an exercise with arguments of its own."""

    def answer(slip: Answer) -> Answer:
        return lambda *arguments: finish(slip(*parts(*arguments)), *arguments)

    return {hint: answer(slip) for hint, slip in slips.items()}
