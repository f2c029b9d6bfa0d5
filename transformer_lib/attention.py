"""Attention: scores, weights, and the weighted mean of the values.

Two paths give one answer. :func:`attention` is the readable one and returns the weights;
:func:`fused_attention` hands the same work to PyTorch's fused kernel, which never stores them.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_lib.shapes import expect_last


def attention(
    q: Float[Tensor, "*q_batch T K"],
    k: Float[Tensor, "*k_batch S K"],
    v: Float[Tensor, "*v_batch S Dv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    scale: float | None = None,
) -> tuple[Float[Tensor, "*out T Dv"], Float[Tensor, "*weights T S"]]:
    r"""Look up each query among the keys and return the weighted mean of the values.

    .. math:: \operatorname{softmax}\!\left(Q K^\top / \sqrt{d_k}\right) V

    Args:
        q: queries, ``(..., T, K)``.
        k: keys, ``(..., S, K)``.
        v: values, ``(..., S, Dv)``; their width may differ from ``K``.
        mask: boolean, ``True`` = may attend, broadcastable to ``(..., T, S)``. A query that may
            attend to nothing gets zero weights and a zero output.
        scale: what the scores are multiplied by; ``1/sqrt(K)`` if left out.

    Returns:
        The outputs ``(..., T, Dv)`` and the weights ``(..., T, S)``, whose rows sum to 1.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if the shapes do not fit together.

    Example:
        >>> q = torch.tensor([[1.0, 0.0]])
        >>> k = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> v = torch.tensor([[10.0], [20.0]])
        >>> output, weights = attention(q, k, v)
        >>> weights
        tensor([[0.6698, 0.3302]])
        >>> output
        tensor([[13.3024]])
    """
    _check_inputs(q, k, v, mask)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * (q @ k.mT)  # (..., T, S)
    weights = scores.softmax(dim=-1) if mask is None else _masked_softmax(scores, mask)
    return weights @ v, weights  # (..., T, Dv), (..., T, S)


def fused_attention(
    q: Float[Tensor, "*q_batch T K"],
    k: Float[Tensor, "*k_batch S K"],
    v: Float[Tensor, "*v_batch S Dv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    scale: float | None = None,
) -> Float[Tensor, "*out T Dv"]:
    """Compute what :func:`attention` computes with PyTorch's fused kernel, without the weights.

    Args:
        q: queries, ``(..., T, K)``.
        k: keys, ``(..., S, K)``.
        v: values, ``(..., S, Dv)``.
        mask: boolean, ``True`` = may attend, broadcastable to ``(..., T, S)``.
        scale: what the scores are multiplied by; ``1/sqrt(K)`` if left out.

    Returns:
        The outputs ``(..., T, Dv)``.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if the shapes do not fit together.

    Example:
        >>> x = torch.eye(2)
        >>> torch.allclose(fused_attention(x, x, x), attention(x, x, x)[0])
        True
    """
    _check_inputs(q, k, v, mask)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    has_a_key = mask.any(dim=-1, keepdim=True)
    # Kernels and versions disagree about a row with no key (NaN or zeros), so none is sent there.
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~has_a_key, scale=scale)
    return output.masked_fill(~has_a_key, 0.0)


class AttentionHead(nn.Module):
    """One attention head: three learned projections around :func:`attention`.

    The projections are what is learned. Queries, keys and values are computed anew from each
    input.

    Args:
        d_model: D, the width of the input vectors.
        d_head: K, the width of queries and keys.
        d_value: width of the values and of the output; the same as ``d_head`` if left out.
        bias: whether the projections add a learned constant.

    Raises:
        ValueError: if a width is not positive.

    Example:
        >>> head = AttentionHead(d_model=8, d_head=4)
        >>> output, weights = head(torch.zeros(2, 5, 8))
        >>> output.shape, weights.shape
        (torch.Size([2, 5, 4]), torch.Size([2, 5, 5]))
    """

    def __init__(
        self, d_model: int, d_head: int, d_value: int | None = None, *, bias: bool = False
    ) -> None:
        super().__init__()
        d_value = d_head if d_value is None else d_value
        for name, width in {"d_model": d_model, "d_head": d_head, "d_value": d_value}.items():
            if width < 1:
                raise ValueError(f"{name}={width} must be at least 1")
        self.query = nn.Linear(d_model, d_head, bias=bias)
        self.key = nn.Linear(d_model, d_head, bias=bias)
        self.value = nn.Linear(d_model, d_value, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B T Dv"], Float[Tensor, "B T S"]]:
        """Attend from ``x`` to itself, or to ``memory`` if it is given (cross-attention).

        Args:
            x: where the queries come from, ``(B, T, D)``.
            memory: where keys and values come from, ``(B, S, D)``; ``x`` itself if left out.
            mask: boolean, ``True`` = may attend, broadcastable to ``(B, T, S)``.

        Returns:
            The outputs ``(B, T, Dv)`` and the weights ``(B, T, S)``.
        """
        memory = x if memory is None else memory
        return attention(self.query(x), self.key(memory), self.value(memory), mask)


def _masked_softmax(
    scores: Float[Tensor, "*batch T S"], mask: Bool[Tensor, "..."]
) -> Float[Tensor, "*out T S"]:
    """Softmax over the allowed keys; exact zeros elsewhere, also in a row that allows none.

    A row of ``-inf`` alone would be NaN on its way forwards and backwards, even where a later step
    covers it up. Such a row keeps its scores, and its weights are set to zero afterwards.
    """
    has_a_key = mask.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(mask | ~has_a_key), -math.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """Raise an error that names the argument if the four do not fit together."""
    sizes: dict[str, int] = {}
    expect_last("q", q, "T K", sizes)
    expect_last("k", k, "S K", sizes)
    expect_last("v", v, "S Dv", sizes)
    try:
        batch = _broadcast(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except RuntimeError:
        raise ValueError(
            "the leading dimensions of q, k and v must broadcast together; "
            f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        ) from None
    if mask is not None:
        _check_mask(mask, (*batch, sizes["T"], sizes["S"]))


def _check_mask(mask: Tensor, scores_shape: tuple[int, ...]) -> None:
    """Raise an error unless the mask is boolean and broadcasts to the scores' shape."""
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask has dtype {mask.dtype}; expected torch.bool with True = may attend "
            "(for a 0/1 mask: mask.bool())"
        )
    try:
        fits = _broadcast(mask.shape, scores_shape) == scores_shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}; expected one that broadcasts to the scores, "
            f"(..., T, S) = {scores_shape}"
        )


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
