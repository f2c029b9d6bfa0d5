"""Attention: the formula, its fused path, and many heads.

Two paths give one answer. :func:`attention` is the readable one and returns the weights;
:func:`fused_attention` hands the same work to PyTorch's fused kernel, which never stores them.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_lib.cache import KeyValueStore
from transformer_lib.checks import (
    check_divides,
    check_probability,
    expect_last,
    expect_shape,
)
from transformer_lib.config import RopePairing
from transformer_lib.hooks import is_plain_linear
from transformer_lib.masks import causal_mask
from transformer_lib.positions import rotate


def attention(
    q: Float[Tensor, "*q_batch T K"],
    k: Float[Tensor, "*k_batch S K"],
    v: Float[Tensor, "*v_batch S Dv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*out T Dv"], Float[Tensor, "*weights T S"]]:
    r"""Look up each query among the keys and return the weighted mean of the values.

    .. math:: \operatorname{softmax}\!\left(Q K^\top / \sqrt{d_k}\right) V

    Args:
        q: queries, ``(..., T, K)``.
        k: keys, ``(..., S, K)``.
        v: values, ``(..., S, Dv)``; their width may differ from ``K``.
        mask: boolean, ``True`` = may attend, broadcastable to ``(..., T, S)``. A query that may
            attend to nothing gets zero weights and a zero output.
        bias: added to the scaled scores, broadcastable to ``(..., T, S)`` (ALiBi, T5).
        causal: whether to hide the future too; the last query stands at the last key.
        scale: what the scores are multiplied by; ``1/sqrt(K)`` if left out.
        dropout: the probability with which a weight is dropped; the others grow to make up for it.

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
    _check_inputs(q, k, v, mask, bias)
    mask = _with_causal(mask, q, k) if causal else mask
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * (q @ k.mT)  # (..., T, S)
    scores = scores if bias is None else scores + bias.to(scores.dtype)
    weights = scores.softmax(dim=-1) if mask is None else _masked_softmax(scores, mask)
    # Dropout thins out what mixes the values; the weights that are returned stay whole.
    mixing = F.dropout(weights, dropout) if dropout else weights
    return mixing @ v, weights  # (..., T, Dv), (..., T, S)


def fused_attention(
    q: Float[Tensor, "*q_batch T K"],
    k: Float[Tensor, "*k_batch S K"],
    v: Float[Tensor, "*v_batch S Dv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    enable_gqa: bool = False,
) -> Float[Tensor, "*out T Dv"]:
    """Compute what :func:`attention` computes with PyTorch's fused kernel, without the weights.

    The kernels want a bias in the dtype of ``q``: in bfloat16 one entry in it is off by up to
    1/256 of its size, so ALiBi cannot tell all far distances apart.

    Args:
        q: queries, ``(..., T, K)``.
        k: keys, ``(..., S, K)``.
        v: values, ``(..., S, Dv)``.
        mask: boolean, ``True`` = may attend, broadcastable to ``(..., T, S)``.
        bias: added to the scaled scores, broadcastable to ``(..., T, S)``.
        causal: whether to hide the future too; the last query stands at the last key.
        scale: what the scores are multiplied by; ``1/sqrt(K)`` if left out.
        dropout: the probability with which a weight is dropped.
        enable_gqa: whether ``k`` and ``v`` have fewer heads (the third dimension from the end) than
            ``q``, each shared by neighbouring heads of ``q``.

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
    _check_inputs(q, *(_first_head(k, v) if enable_gqa else (k, v)), mask, bias)
    if q.shape[-2] == 1:  # a single query stands at the last key and sees them all
        causal = False
    attend = _fused_groups if enable_gqa else _fused
    return attend(q, k, v, mask, bias, causal, scale=scale, dropout_p=dropout)


def _fused_groups(
    q: Float[Tensor, "*batch H T K"],
    k: Float[Tensor, "*batch G S K"],
    v: Float[Tensor, "*batch G S Dv"],
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    **options: Any,
) -> Float[Tensor, "*batch H T Dv"]:
    """Let each key head serve a group of query heads, without copies of it where that counts."""
    n_heads, n_groups = q.shape[-3], k.shape[-3]
    check_divides("the heads of k", n_groups, "the heads of q", n_heads)
    if q.shape[-2] == 1:  # the queries of a group become the rows of one head
        mask, bias = (_group_rows(x, n_heads, n_groups) for x in (mask, bias))
        q = q.squeeze(-2).unflatten(-2, (n_groups, -1))
        return _fused(q, k, v, mask, bias, causal, **options).flatten(-3, -2).unsqueeze(-2)
    # On a GPU only the kernel for short numbers and no mask knows groups. The others would store
    # all the scores, and beside so many of them copies of the keys are small.
    masked = mask is not None or bias is not None or (causal and q.shape[-2] != k.shape[-2])
    copied = q.device.type == "cuda" and (masked or q.element_size() > 2)
    if copied:
        k, v = _repeat_heads(q, k), _repeat_heads(q, v)
    return _fused(q, k, v, mask, bias, causal, enable_gqa=not copied, **options)


def _first_head(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """One head of both, which fits any number of query heads; they must have as many."""
    sizes: dict[str, int] = {}
    expect_last("k", k, "G S K", sizes)
    expect_last("v", v, "G S Dv", sizes)
    return k[..., :1, :, :], v[..., :1, :, :]


def _group_rows(x: Tensor | None, n_heads: int, n_groups: int) -> Tensor | None:
    """Lay heads with one row each below each other: ``(..., H, 1, n)`` to ``(..., G, H/G, n)``."""
    if x is None or x.ndim < 3 or x.shape[-3] != n_heads:
        return x  # the same for all heads
    rows: Tensor = x.squeeze(-2).unflatten(-2, (n_groups, -1))
    return rows


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    **options: Any,
) -> Tensor:
    """Choose what the kernel is told, so that every query has a key to look at."""
    kernel = partial(F.scaled_dot_product_attention, q, k, v, **options)
    if mask is None and bias is None and (not causal or q.shape[-2] == k.shape[-2]):
        return kernel(is_causal=causal)  # no mask to read: the fastest kernel
    mask = _with_causal(mask, q, k) if causal else mask
    if mask is None:
        return kernel(attn_mask=None if bias is None else bias.to(q.dtype))
    has_a_key = mask.any(dim=-1, keepdim=True)
    # Kernels and versions disagree about a row with no key (NaN or zeros), so none is sent there.
    allowed = mask | ~has_a_key
    if bias is None:
        output = kernel(attn_mask=allowed)
    else:
        output = kernel(attn_mask=bias.to(q.dtype).masked_fill(~allowed, -math.inf))
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


class MultiHeadAttention(nn.Module):
    """Several attention heads side by side, and a projection that mixes what they found.

    With fewer key-value heads than query heads, neighbouring query heads share one (GQA); with a
    single one they all do (MQA).

    Args:
        d_model: D, the width of the residual stream.
        n_heads: H, the number of query heads; must divide ``d_model``.
        n_kv_heads: the number of heads with keys and values of their own; must divide ``n_heads``;
            all of them if left out.
        bias: whether the projections add a learned constant.
        scale: what the scores are multiplied by; ``1/sqrt(K)`` if left out.
        dropout: the probability with which an attention weight is dropped in training.
        pairing: how RoPE pairs the features of a head.

    Attributes:
        fused: whether the forward pass uses :func:`fused_attention` and, while gradients are
            recorded, one product for all three projections (the default), or the readable
            :func:`attention` and one product for each; both give the same answer.

    Raises:
        ValueError: if the sizes do not divide.

    Example:
        >>> attend = MultiHeadAttention(d_model=8, n_heads=4, n_kv_heads=2)
        >>> attend(torch.zeros(2, 5, 8), causal=True).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        *,
        bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        pairing: RopePairing = "interleaved",
    ) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_divides("n_heads", n_heads, "d_model", d_model)
        check_divides("n_kv_heads", n_kv_heads, "n_heads", n_heads)
        check_probability("dropout", dropout)
        self.d_model, self.n_heads, self.n_kv_heads = d_model, n_heads, n_kv_heads
        self.d_head = d_model // n_heads
        self.scale, self.dropout, self.pairing = scale, dropout, pairing
        self.fused = True
        self.query = nn.Linear(d_model, n_heads * self.d_head, bias=bias)
        self.key = nn.Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.value = nn.Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.output = nn.Linear(n_heads * self.d_head, d_model, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        bias: Float[Tensor, "..."] | None = None,
        angles: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        store: KeyValueStore | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from ``x`` to itself, or to ``memory`` if it is given (cross-attention).

        Args:
            x: where the queries come from, ``(B, T, D)``.
            memory: where keys and values come from, ``(B, S, D)``; ``x`` itself if left out.
            mask: boolean, ``True`` = may attend, broadcastable to ``(B, H, T, S)``.
            bias: added to the scores, broadcastable to ``(B, H, T, S)``.
            angles: RoPE's angles for the positions of ``x``, broadcastable to ``(B, H, T, K/2)``.
            causal: whether to hide the future too.
            store: keys and values of earlier calls; those of this call are added to it.

        Returns:
            What each position found, ``(B, T, D)``.

        Raises:
            ValueError: if the shapes do not fit together.
        """
        q, k, v = self._project(x, memory, angles, store, self.fused)
        dropout = self.dropout if self.training else 0.0
        options: Any = {"bias": bias, "causal": causal, "scale": self.scale, "dropout": dropout}
        attend = fused_attention if self.fused else _readable_attention
        heads = attend(q, k, v, mask, enable_gqa=self.n_kv_heads < self.n_heads, **options)
        return self._merge(heads)

    def with_weights(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        bias: Float[Tensor, "..."] | None = None,
        angles: Float[Tensor, "..."] | None = None,
        causal: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T S"]]:
        """Return what the forward pass returns, and the attention weights of every head.

        Args:
            x: where the queries come from, ``(B, T, D)``.
            memory: where keys and values come from, ``(B, S, D)``; ``x`` itself if left out.
            mask: boolean, ``True`` = may attend, broadcastable to ``(B, H, T, S)``.
            bias: added to the scores, broadcastable to ``(B, H, T, S)``.
            angles: RoPE's angles for the positions of ``x``.
            causal: whether to hide the future too.

        Returns:
            The outputs ``(B, T, D)`` and the weights ``(B, H, T, S)``. No weight is dropped.
        """
        q, k, v = self._project(x, memory, angles, None)
        k, v = _repeat_heads(q, k), _repeat_heads(q, v)
        heads, weights = attention(q, k, v, mask, bias=bias, causal=causal, scale=self.scale)
        return self._merge(heads), weights

    def _project(
        self,
        x: Tensor,
        memory: Tensor | None,
        angles: Tensor | None,
        store: KeyValueStore | None,
        join: bool = False,
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]:
        """Queries, keys and values of every head; keys and values of earlier calls come first."""
        sizes = {"D": self.d_model}
        expect_shape("x", x, "B T D", sizes)
        if memory is not None:
            expect_shape("memory", memory, "B S D", sizes)
        joint = self._joint_projection(x) if join and memory is None else None
        q = self._split(self.query(x) if joint is None else joint[0])  # (B, H, T, K)
        if angles is not None:
            q = rotate(q, angles, self.pairing)
        if memory is not None and store is not None and store.length:
            store.check(memory)  # it does not change between calls
            return q, *store.read()
        source = x if memory is None else memory
        k = self._split(self.key(source) if joint is None else joint[1])  # (B, G, S, K)
        v = self._split(self.value(source) if joint is None else joint[2])
        if angles is not None:
            k = rotate(k, angles, self.pairing)
        if store is not None:
            k, v = store.append(k, v)
            if memory is not None:
                store.keep(memory)
        return q, k, v

    def _joint_projection(self, x: Float[Tensor, "B T D"]) -> Sequence[Tensor] | None:
        """Queries, keys and values of ``x`` from one large product, if there is to be one.

        Weights that are to be trained are laid side by side anew in each step, which is cheap for
        as many tokens as a step has. For one token it is not, so without gradients nobody does.
        """
        joined = self.join() if torch.is_grad_enabled() else None
        if joined is None:
            return None
        widths = [part.out_features for part in (self.query, self.key, self.value)]
        return torch.split(F.linear(x, *joined), widths, dim=-1)

    def join(self) -> tuple[Float[Tensor, "HK D"], Float[Tensor, " HK"] | None] | None:
        """Lay weights and biases of the three projections side by side.

        Returns:
            Both, or ``None`` if a projection is not a plain linear layer but one that somebody put
            in its place or listens to, or if only some of them have a bias.
        """
        parts = (self.query, self.key, self.value)
        if not all(map(is_plain_linear, parts)):
            return None
        weights: list[Tensor] = [part.weight for part in parts]
        biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
        if len(biases) not in (0, len(parts)):
            return None
        return torch.cat(weights), torch.cat(biases) if biases else None

    def _split(self, x: Float[Tensor, "B T HK"]) -> Float[Tensor, "B H T K"]:
        """Cut the features into heads: ``(B, T, H * K)`` to ``(B, H, T, K)``."""
        heads: Tensor = x.unflatten(-1, (-1, self.d_head))  # (B, T, H, K)
        return heads.transpose(1, 2)

    def _merge(self, heads: Float[Tensor, "B H T K"]) -> Float[Tensor, "B T D"]:
        """Lay the heads side by side again, ``(B, T, H * K)``, and mix them."""
        mixed: Tensor = self.output(heads.transpose(1, 2).flatten(start_dim=2))
        return mixed


def _readable_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, enable_gqa: bool, **options: Any
) -> Tensor:
    """The output of :func:`attention`, for whoever asks as :func:`fused_attention` is asked."""
    if enable_gqa:
        k, v = _repeat_heads(q, k), _repeat_heads(q, v)
    return attention(q, k, v, mask, **options)[0]


def _repeat_heads(q: Tensor, x: Float[Tensor, "*batch G S K"]) -> Float[Tensor, "*batch H S K"]:
    """Give each query head keys or values: heads 0 .. H/G - 1 share the first, and so on."""
    group = q.shape[-3] // x.shape[-3]
    return x if group == 1 else x.repeat_interleave(group, dim=-3)


def _with_causal(mask: Tensor | None, q: Tensor, k: Tensor) -> Bool[Tensor, "..."]:
    causal = causal_mask(q.shape[-2], k.shape[-2], device=q.device)
    return causal if mask is None else mask & causal


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


def _check_inputs(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None
) -> None:
    """Raise an error that names the argument if the five do not fit together."""
    if not q.is_floating_point():
        raise TypeError(f"q has dtype {q.dtype}; expected floating-point numbers")
    for name, tensor in {"k": k, "v": v}.items():
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected that of q, {q.dtype}")
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
    scores_shape = (*batch, sizes["T"], sizes["S"])
    if mask is not None:
        if mask.dtype != torch.bool:
            wanted = "torch.bool with True = may attend (for a 0/1 mask: mask.bool())"
            raise TypeError(f"mask has dtype {mask.dtype}; expected {wanted}")
        _check_fits("mask", mask, scores_shape)
    if bias is not None:
        _check_fits("bias", bias, scores_shape)


def _check_fits(name: str, tensor: Tensor, scores_shape: tuple[int, ...]) -> None:
    """Raise an error unless a mask or bias broadcasts to the scores' shape."""
    try:
        fits = tensor.ndim >= 2 and _broadcast(tensor.shape, scores_shape) == scores_shape
    except RuntimeError:
        fits = False
    if not fits:
        wanted = f"one that broadcasts to the scores, (..., T, S) = {scores_shape}"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {wanted}")


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(shapes)) == 1:  # what PyTorch would take its time to find out
        return tuple(shapes[0])
    return tuple(torch.broadcast_shapes(*shapes))
