"""Attention by PyTorch's fused kernels (SDPA, FlashAttention).

:func:`fused_attention` answers what :func:`~transformer_lib.layers.attention.attention` answers,
faster, and never stores the weights.
The formula is easy. The work is to choose the arguments with which PyTorch picks a fast kernel.
"""

import math
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float
from torch import Tensor

from transformer_lib.core.checks import check_divides
from transformer_lib.core.shapes import check_attention, expect_last
from transformer_lib.layers.masks import with_causal


def fused_attention(
    q: Float[Tensor, "*q_batch T Dk"],
    k: Float[Tensor, "*k_batch S Dk"],
    v: Float[Tensor, "*v_batch S Dv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    enable_gqa: bool = False,
) -> Float[Tensor, "*out T Dv"]:
    """Compute attention with PyTorch's fused kernel, without the weights.

    The kernels want a bias in the dtype of ``q``: bfloat16 rounds its entries by up to 1/256 of
    their size, so that ALiBi gives some far distances the same bias.

    Args:
        q: queries, ``(..., T, Dk)``.
        k: keys, ``(..., S, Dk)``.
        v: values, ``(..., S, Dv)``.
        mask: boolean, ``True`` = may attend, broadcastable to ``(..., T, S)``.
        bias: added to the scaled scores, broadcastable to ``(..., T, S)``.
        causal: whether to hide the future too; the last query stands at the last key.
        scale: what the scores are multiplied by; ``1/sqrt(Dk)`` if left out.
        dropout: the probability with which a weight is dropped.
        enable_gqa: whether ``k`` and ``v`` have fewer heads (the third dimension from the end) than
            ``q``, each shared by neighbouring heads of ``q``.

    Returns:
        The outputs ``(..., T, Dv)``.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if the shapes do not fit together.

    Example:
        >>> import torch
        >>> q, k, v = (
        ...     torch.eye(2)[:1],
        ...     torch.eye(2),
        ...     torch.tensor([[10.0], [20.0]]),
        ... )
        >>> # as attention() has it: 10 with 0.67, 20 with 0.33
        >>> fused_attention(q, k, v)
        tensor([[13.3024]])
    """
    check_attention(q, *(_first_head(k, v) if enable_gqa else (k, v)), mask, bias)
    is_single = q.shape[-2] == 1  # stands at the last key and sees them all
    causal = causal and not is_single
    # Kernels can hide the future by themselves, but only if there are as many queries as keys.
    masked = mask is not None or bias is not None or (causal and q.shape[-2] != k.shape[-2])
    if not enable_gqa:
        with kernels_for(is_single, q.device):
            return _run_kernel(q, k, v, mask, bias, causal, masked, scale, dropout)
    n_heads, n_groups = q.shape[-3], k.shape[-3]
    check_divides("the heads of k", n_groups, "the heads of q", n_heads)
    if is_single:
        # The queries of a group become the rows of one head: nothing is copied.
        q = q.squeeze(-2).unflatten(-2, (n_groups, -1))  # (..., G, H/G, Dk)
        mask, bias = _group_rows(mask, n_heads, n_groups), _group_rows(bias, n_heads, n_groups)
        with kernels_for(is_single, q.device):
            rows = _run_kernel(q, k, v, mask, bias, causal, masked, scale, dropout)
        return rows.flatten(-3, -2).unsqueeze(-2)
    # On a GPU only FlashAttention knows groups, which takes 16-bit floats and no mask. Otherwise
    # PyTorch would store all the scores; copies of the keys are small beside them.
    if q.device.type == "cuda" and (masked or q.element_size() > 2):
        k, v = repeat_heads(k, n_heads), repeat_heads(v, n_heads)
    shared = k.shape[-3] < n_heads
    return _run_kernel(q, k, v, mask, bias, causal, masked, scale, dropout, enable_gqa=shared)


def repeat_heads(
    x: Float[Tensor, "*batch G S Dk"], n_heads: int
) -> Float[Tensor, "*batch {n_heads} S Dk"]:
    """Give each query head a copy of the keys or values that it shares with others.

    Args:
        x: keys or values of G heads, ``(..., G, S, Dk)``.
        n_heads: H, the number of query heads.

    Returns:
        ``(..., H, S, Dk)``: heads 0 to H/G - 1 get the first, and so on.

    Example:
        >>> import torch
        >>> repeat_heads(
        ...     torch.tensor([1.0, 2.0]).view(2, 1, 1), n_heads=4
        ... ).flatten()
        tensor([1., 1., 2., 2.])
    """
    group = n_heads // x.shape[-3]
    return x if group == 1 else x.repeat_interleave(group, dim=-3)


def kernels_for(is_single: bool, device: torch.device) -> AbstractContextManager[None]:
    """Say among which kernels PyTorch may choose: for single queries on a GPU, not cuDNN's.

    cuDNN makes a plan for every number of keys. Decoding meets one more key in each step, and the
    plans for 256 tokens took 12 seconds.

    Args:
        is_single: whether each row and head has one query.
        device: where the queries are.

    Returns:
        A context in which to call the kernel.

    Example:
        >>> with kernels_for(True, torch.device("cpu")):
        ...     torch.backends.cuda.cudnn_sdp_enabled()
        True
    """
    if is_single and device.type == "cuda" and not torch.compiler.is_compiling():
        return _WITHOUT_CUDNN
    return nullcontext()


class _Switch:
    """Turns cuDNN off; the setting is one for all threads, so the last one to leave restores it."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.backends.cuda.cudnn_sdp_enabled()
                torch.backends.cuda.enable_cudnn_sdp(False)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.backends.cuda.enable_cudnn_sdp(self._before)


_WITHOUT_CUDNN = _Switch()


def _run_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    masked: bool,
    scale: float | None,
    dropout: float,
    *,
    enable_gqa: bool = False,
) -> Tensor:
    """Join mask, bias and causality to what the kernel takes; a query without a key gets zeros."""
    kernel = partial(
        F.scaled_dot_product_attention,
        q,
        k,
        v,
        scale=scale,
        dropout_p=dropout,
        enable_gqa=enable_gqa,
    )
    if not masked:
        return kernel(is_causal=causal)  # no mask to read: the fastest kernel
    mask = with_causal(mask, q.shape[-2], k.shape[-2], device=q.device) if causal else mask
    if mask is None:
        return kernel(attn_mask=None if bias is None else bias.to(q.dtype))
    has_a_key = mask.any(dim=-1, keepdim=True)
    # For a row without a key some kernels return NaN, others zeros: let it see all keys instead.
    allowed = mask | ~has_a_key
    if bias is None:
        output = kernel(attn_mask=allowed)
    else:
        output = kernel(attn_mask=bias.to(q.dtype).masked_fill(~allowed, -math.inf))
    return output.masked_fill(~has_a_key, 0.0)


def _first_head(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The first head of keys and values, to check shapes with; both must have as many heads."""
    sizes: dict[str, int] = {}
    expect_last("k", k, "G S Dk", sizes)
    expect_last("v", v, "G S Dv", sizes)
    return k[..., :1, :, :], v[..., :1, :, :]


def _group_rows(x: Tensor | None, n_heads: int, n_groups: int) -> Tensor | None:
    """Lay heads with one row each below each other: ``(..., H, 1, n)`` to ``(..., G, H/G, n)``."""
    if x is None or x.ndim < 3 or x.shape[-3] != n_heads:
        return x  # the same for all heads
    rows: Tensor = x.squeeze(-2).unflatten(-2, (n_groups, -1))
    return rows
