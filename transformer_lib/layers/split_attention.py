"""Attention over keys that are cut into parts, joined afterwards (flash-decoding).

A single query reads all keys, one after the other. If they are cut into parts, each part can be
read by another processor. A part knows only its own best score, so its sums are relative to that
one; where parts are joined, all sums are made relative to the best score of all.

This is the readable version. On a GPU, ``generation/fast/decode_kernel.py`` does the same.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformer_lib.core.checks import check_whole
from transformer_lib.core.shapes import check_attention


class PartOfKeys(NamedTuple):
    """What some of the keys contribute to attention.

    Args:
        best: the best score, ``(..., T)``; minus infinity if no key is allowed.
        total: the sum of ``exp(score - best)``, ``(..., T)``.
        mixed: the values, each times its ``exp(score - best)``, added up, ``(..., T, Dv)``.

    Example:
        >>> part = PartOfKeys(
        ...     torch.tensor([2.0]), torch.ones(1), torch.ones(1, 1)
        ... )
        >>> join_parts([part, part])
        tensor([[1.]])
    """

    best: Float[Tensor, "..."]
    total: Float[Tensor, "..."]
    mixed: Float[Tensor, "..."]


def split_attention(
    q: Float[Tensor, "*q_batch T Dk"],
    k: Float[Tensor, "*k_batch S Dk"],
    v: Float[Tensor, "*v_batch S Dv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    n_parts: int,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*out T Dv"]:
    """Return what attention returns, computed from parts of the keys.

    Args:
        q: queries, ``(..., T, Dk)``.
        k: keys, ``(..., S, Dk)``.
        v: values, ``(..., S, Dv)``.
        mask: boolean, ``True`` = may attend, broadcastable to ``(..., T, S)``. A query that may
            attend to nothing gets zeros.
        n_parts: into how many parts the keys are cut, as equal as can be.
        bias: added to the scaled scores, broadcastable to ``(..., T, S)``.
        scale: what the scores are multiplied by; ``1/sqrt(Dk)`` if left out.

    Returns:
        The outputs, ``(..., T, Dv)``, equal to those of
        :func:`~transformer_lib.layers.attention.attention` up to rounding.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if the shapes do not fit together, or there are more parts than keys.

    Example:
        >>> q, k = torch.tensor([[1.0, 0.0]]), torch.eye(2)
        >>> v = torch.tensor([[10.0], [20.0]])
        >>> split_attention(q, k, v, n_parts=2)  # as attention() has it
        tensor([[13.3024]])
    """
    check_attention(q, k, v, mask, bias)
    check_whole("n_parts", n_parts)
    if n_parts > k.shape[-2]:
        raise ValueError(f"{n_parts=} must be at most the number of keys, S={k.shape[-2]}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * (q @ k.mT)  # (..., T, S)
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    cuts = zip(scores.tensor_split(n_parts, dim=-1), v.tensor_split(n_parts, dim=-2), strict=True)
    return join_parts([_attend_to_part(scores, values) for scores, values in cuts])


def _attend_to_part(
    scores: Float[Tensor, "*batch T n"], values: Float[Tensor, "*v_batch n Dv"]
) -> PartOfKeys:
    best = scores.amax(dim=-1)
    weights = _exp_of_difference(scores, best[..., None])
    return PartOfKeys(best, weights.sum(dim=-1), weights @ values)


def join_parts(parts: list[PartOfKeys]) -> Float[Tensor, "*out T Dv"]:
    """Join what parts of the keys contribute.

    Args:
        parts: of the same queries, in any order.

    Returns:
        The mean of all values, ``(..., T, Dv)``, weighted as by a softmax over all scores.

    Example:
        >>> far = PartOfKeys(
        ...     torch.tensor([-200.0]), torch.ones(1), torch.ones(1, 1)
        ... )
        >>> near = PartOfKeys(
        ...     torch.tensor([0.0]), torch.ones(1), torch.zeros(1, 1)
        ... )
        >>> join_parts([far, near])
        tensor([[0.]])
    """
    best, total, mixed = (torch.stack(each) for each in zip(*parts, strict=True))
    shrink = _exp_of_difference(best, best.amax(dim=0))  # (parts, ..., T)
    total = (shrink * total).sum(dim=0)
    # Where no key is allowed both sums are 0.
    return (shrink[..., None] * mixed).sum(dim=0) / total.clamp(min=torch.finfo(total.dtype).tiny)[
        ..., None
    ]


def _exp_of_difference(x: Tensor, best: Tensor) -> Tensor:
    """``exp(x - best)``, where minus infinity less itself counts as minus infinity."""
    return (x - best.clamp(min=torch.finfo(x.dtype).min)).exp()
