"""Attention: the formula, one head, and many.

:func:`attention` is the formula, one step a line. :class:`MultiHeadAttention` projects, splits into
heads, attends and merges; it attends with
:func:`~transformer_lib.layers.fused_attention.fused_attention`, which gives the same answer as the
formula and never stores the weights.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from transformer_lib.core.checks import check_divides, check_probability
from transformer_lib.core.config import RopePairing
from transformer_lib.core.shapes import check_attention, check_streams
from transformer_lib.layers.caches.kv_cache import AttentionCache, MemoryCache
from transformer_lib.layers.fused_attention import fused_attention, repeat_heads
from transformer_lib.layers.masks import with_causal
from transformer_lib.layers.positions import rotate


def attention(
    q: Float[Tensor, "*q_batch T Dk"],
    k: Float[Tensor, "*k_batch S Dk"],
    v: Float[Tensor, "*v_batch S Dv"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    cap: float | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*out T Dv"], Float[Tensor, "*weights T S"]]:
    r"""Look up each query among the keys and return the weighted mean of the values.

    .. math:: \operatorname{softmax}\!\left(Q K^\top / \sqrt{d_k}\right) V

    Args:
        q: queries, ``(..., T, Dk)``.
        k: keys, ``(..., S, Dk)``.
        v: values, ``(..., S, Dv)``; their width may differ from ``Dk``.
        mask: boolean, ``True`` = may attend, broadcastable to ``(..., T, S)``. A query that may
            attend to nothing gets zero weights and a zero output.
        bias: added to the scaled scores, broadcastable to ``(..., T, S)`` (ALiBi, T5).
        causal: whether to hide the future too. The queries are the last T of the S positions.
        scale: what the scores are multiplied by; ``1/sqrt(Dk)`` if left out.
        cap: scores are squashed by a tanh so that none is larger than this (Gemma 2).
        dropout: the probability with which a weight is dropped; the others are scaled up.

    Returns:
        The outputs ``(..., T, Dv)`` and the weights ``(..., T, S)``, whose rows sum to 1, or to 0
        where nothing may be attended to.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if the shapes do not fit together.

    Example:
        >>> import torch
        >>> q = torch.tensor([[1.0, 0.0]])
        >>> k = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> v = torch.tensor([[10.0], [20.0]])
        >>> output, weights = attention(q, k, v)
        >>> weights
        tensor([[0.6698, 0.3302]])
        >>> output
        tensor([[13.3024]])
    """
    check_attention(q, k, v, mask, bias)
    mask = with_causal(mask, q.shape[-2], k.shape[-2], device=q.device) if causal else mask
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * (q @ k.mT)  # (..., T, S)
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    scores = scores if bias is None else scores + bias.to(scores.dtype)
    weights = scores.softmax(dim=-1) if mask is None else _masked_softmax(scores, mask)
    # Dropout applies to what mixes the values; the weights are returned without it. In evaluation
    # the caller passes no dropout.
    mixing = F.dropout(weights, dropout) if dropout else weights
    return mixing @ v, weights  # (..., T, Dv), (..., T, S)


def _masked_softmax(
    scores: Float[Tensor, "*batch T S"], mask: Bool[Tensor, "..."]
) -> Float[Tensor, "*out T S"]:
    """Softmax over the allowed keys; exact zeros elsewhere, also in a row that allows none.

    A row of ``-inf`` alone would be NaN in the forward and the backward pass, even if a later step
    replaced it. Such a row keeps its scores, and its weights are set to zero afterwards.
    """
    has_a_key = mask.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~mask & has_a_key, -math.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


class AttentionHead(nn.Module):
    """One attention head: three learned projections around :func:`attention`.

    The projections are what is learned. Queries, keys and values are computed anew from each
    input.

    Args:
        d_model: D, the width of the input vectors.
        d_head: Dk, the width of queries and keys.
        d_value: width of the values and of the output; the same as ``d_head`` if left out.
        bias: whether the projections add a learned constant.

    Raises:
        ValueError: if a width is not positive.

    Example:
        >>> import torch
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


class AttentionPattern:
    """In the place of a mask: which tokens attend to which, and a faster way to do it.

    An interface without a class of its own here: those in ``layers/fast`` are used if the folder is
    there. A pattern knows neither dropout nor a cap on the scores, and no cache.

    Example:
        >>> from transformer_lib.layers.fast.padding_free import (
        ...     PaddingFreeBatch,
        ... )
        >>> issubclass(PaddingFreeBatch, AttentionPattern)
        True
    """

    def attend(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B G T Dk"],
        v: Float[Tensor, "B G T Dk"],
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> Float[Tensor, "B H T Dk"]:
        """Let tokens attend as the pattern says; see :meth:`MultiHeadAttention.forward`."""
        raise NotImplementedError

    def within(self, window: int | None) -> "AttentionPattern":
        """Hide also what is outside the window of a layer; ``None`` hides nothing."""
        raise NotImplementedError

    def drop(self, x: Shaped[Tensor, "b T *rest"]) -> Shaped[Tensor, "..."]:
        """Lay a batch out as the pattern has it, before the layers; as it is, unless it says so."""
        return x

    def put_back(self, x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "B T *rest"]:
        """Make the batch again, behind the layers."""
        return x


class MultiHeadAttention(nn.Module):
    """Several attention heads side by side, and a projection that mixes what they found.

    The heads are not separate modules: each of the wide layers ``query``, ``key`` and ``value``
    makes the features of all heads at once, and they are split into heads of width Dk afterwards.

    With fewer key-value heads than query heads, neighbouring query heads share one (GQA); with a
    single one they all do (MQA).

    Args:
        d_model: D, the width of the residual stream.
        n_heads: H, the number of query heads; must divide ``d_model``, unless ``d_head`` is given.
        n_kv_heads: the number of heads with keys and values of their own; must divide ``n_heads``;
            all of them if left out. Shapes call their number G.
        d_head: Dk, the width of a head; ``d_model / n_heads`` if left out.
        bias: whether the projections add a learned constant.
        qkv_bias: the same for queries, keys and values alone; as ``bias`` says if left out.
        scale: what the scores are multiplied by; ``1/sqrt(Dk)`` if left out.
        dropout: the probability with which an attention weight is dropped in training.
        pairing: how RoPE pairs the features of a head.

    Attributes:
        fused: whether heads attend with PyTorch's fused kernel (the default) or with the readable
            :func:`attention`; both give the same answer.
        cap: the largest score, or ``None``; set by ``BoundedAttention``. The fused kernel has no
            cap, so that with one the readable formula is always used.

    Raises:
        ValueError: if the sizes do not divide.

    Example:
        >>> import torch
        >>> attend = MultiHeadAttention(d_model=8, n_heads=4, n_kv_heads=2)
        >>> attend(torch.zeros(2, 5, 8), causal=True).shape
        torch.Size([2, 5, 8])
    """

    fused = True
    cap: float | None = None

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        *,
        d_head: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        pairing: RopePairing = "interleaved",
    ) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        qkv_bias = bias if qkv_bias is None else qkv_bias
        if d_head is None:
            check_divides("n_heads", n_heads, "d_model", d_model)
            d_head = d_model // n_heads
        check_divides("n_kv_heads", n_kv_heads, "n_heads", n_heads)
        check_probability("dropout", dropout)
        self.d_model, self.n_heads, self.n_kv_heads = d_model, n_heads, n_kv_heads
        self.d_head = d_head
        self.scale, self.dropout, self.pairing = scale, dropout, pairing
        self.query = nn.Linear(d_model, n_heads * d_head, bias=qkv_bias)
        self.key = nn.Linear(d_model, n_kv_heads * d_head, bias=qkv_bias)
        self.value = nn.Linear(d_model, n_kv_heads * d_head, bias=qkv_bias)
        self.output = nn.Linear(n_heads * d_head, d_model, bias=bias)

    @property
    def kernel_may_attend(self) -> bool:
        """Whether a kernel may do what :meth:`attend` does, which all fast paths ask."""
        return self.fused and self.cap is None and not (self.training and self.dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        *,
        bias: Float[Tensor, "..."] | None = None,
        angles: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        cache: AttentionCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from ``x`` to itself, or to ``memory`` if it is given (cross-attention).

        Args:
            x: where the queries come from, ``(B, T, D)``.
            memory: where keys and values come from, ``(B, S, D)``; ``x`` itself if left out.
            mask: boolean, ``True`` = may attend, broadcastable to ``(B, H, T, S)``; or a pattern.
            bias: added to the scores, broadcastable to ``(B, H, T, S)``.
            angles: RoPE's angles for the positions of ``x``, broadcastable to ``(B, H, T, Dk/2)``;
                in self-attention only.
            causal: whether to hide the future on top of what the mask hides.
            cache: keys and values of earlier calls; those of this call are added to it.

        Returns:
            What each position found, ``(B, T, D)``.

        Raises:
            ValueError: if the shapes do not fit together.
        """
        self._check(x, memory, angles, cache)
        if isinstance(cache, MemoryCache) and cache.holds(memory):
            q = self.project_queries(x, angles)
            (k, v), cache = cache.read(), None  # made in the first step, the same in all others
        else:
            q, k, v = self.project(x, x if memory is None else memory, angles)
        heads = self.attend_and_keep(q, k, v, mask, bias, causal=causal, cache=cache)
        return self.merge(heads)

    def project(
        self,
        x: Float[Tensor, "B T D"],
        source: Float[Tensor, "B S D"],
        angles: Float[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B H T Dk"], Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dk"]]:
        """Make the queries of ``x``, and the keys and values of ``source``."""
        return self.project_queries(x, angles), *self.project_keys_values(source, angles)

    def project_queries(
        self, x: Float[Tensor, "B T D"], angles: Float[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B H T Dk"]:
        """Make the queries of all heads, rotated if there are angles."""
        q = self._split(self.query(x))
        return q if angles is None else rotate(q, angles, self.pairing)

    def project_keys_values(
        self, source: Float[Tensor, "B S D"], angles: Float[Tensor, "..."] | None = None
    ) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dk"]]:
        """Make the keys, rotated if there are angles, and the values of all G key-value heads."""
        k, v = self._split(self.key(source)), self._split(self.value(source))
        if angles is not None:
            k = rotate(k, angles, self.pairing)
        return k, v

    def _split(self, x: Float[Tensor, "B T HDk"]) -> Float[Tensor, "B H T Dk"]:
        """Split the features into heads: ``(B, T, H * Dk)`` to ``(B, H, T, Dk)``."""
        heads: Tensor = x.unflatten(-1, (-1, self.d_head))  # (B, T, H, Dk)
        return heads.transpose(1, 2)

    def attend_and_keep(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B G S Dk"],
        v: Float[Tensor, "B G S Dk"],
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        cache: AttentionCache | None = None,
    ) -> Float[Tensor, "B H T Dk"]:
        """Append keys and values to the cache, if there is one, and attend to all it holds."""
        if cache is not None:
            k, v = cache.append(k, v)
        if isinstance(mask, AttentionPattern):
            self._check_pattern(mask)
            return mask.attend(q, k, v, bias, causal=causal, scale=self.scale)
        return self.attend(q, k, v, mask, bias, causal=causal)

    def attend(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B G S Dk"],
        v: Float[Tensor, "B G S Dk"],
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
    ) -> Float[Tensor, "B H T Dk"]:
        """Let every head look its queries up, by the kernel or the formula; see :meth:`forward`."""
        dropout = self.dropout if self.training else 0.0
        if self.fused and self.cap is None:
            return fused_attention(
                q, k, v, mask, bias=bias, causal=causal, scale=self.scale, dropout=dropout,
                enable_gqa=self.n_kv_heads < self.n_heads,
            )  # fmt: skip
        return self.look_up(q, k, v, mask, bias, causal=causal, dropout=dropout)[0]

    def look_up(
        self,
        q: Float[Tensor, "B H T Dk"],
        k: Float[Tensor, "B G S Dk"],
        v: Float[Tensor, "B G S Dk"],
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> tuple[Float[Tensor, "B H T Dk"], Float[Tensor, "B H T S"]]:
        """Look queries up by the readable :func:`attention`; return outputs and weights."""
        k, v = repeat_heads(k, self.n_heads), repeat_heads(v, self.n_heads)  # (B, H, S, Dk)
        return attention(
            q, k, v, mask, bias=bias, causal=causal, scale=self.scale, cap=self.cap, dropout=dropout
        )

    def merge(self, heads: Float[Tensor, "B H T Dk"]) -> Float[Tensor, "B T D"]:
        """Lay the heads side by side again, ``(B, T, H * Dk)``, and mix them."""
        mixed: Tensor = self.output(heads.transpose(1, 2).flatten(start_dim=2))
        return mixed

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
        """Return what the forward pass returns in evaluation, and the weights of every head.

        Args:
            x: where the queries come from, ``(B, T, D)``.
            memory: where keys and values come from, ``(B, S, D)``; ``x`` itself if left out.
            mask: boolean, ``True`` = may attend, broadcastable to ``(B, H, T, S)``.
            bias: added to the scores, broadcastable to ``(B, H, T, S)``.
            angles: RoPE's angles for the positions of ``x``.
            causal: whether to hide the future on top of what the mask hides.

        Returns:
            The outputs ``(B, T, D)`` and the weights ``(B, H, T, S)``. No weight is dropped.
        """
        self._check(x, memory, angles, None)
        q = self.project_queries(x, angles)
        k, v = self.project_keys_values(x if memory is None else memory, angles)
        heads, weights = self.look_up(q, k, v, mask, bias, causal=causal)
        return self.merge(heads), weights

    def _check_pattern(self, pattern: AttentionPattern) -> None:
        if self.cap is not None or (self.training and self.dropout):
            what = f"dropout={self.dropout}" if self.cap is None else f"cap={self.cap}"
            name = type(pattern).__name__
            raise ValueError(f"{what}: expected none with a {name}, or a mask in its place")

    def _check(
        self, x: Tensor, memory: Tensor | None, angles: Tensor | None, cache: AttentionCache | None
    ) -> None:
        check_streams(x, memory, self.d_model)
        if memory is not None and angles is not None:
            raise ValueError("angles were given with a memory; RoPE is for self-attention only")
        if cache is not None and isinstance(cache, MemoryCache) != (memory is not None):
            wanted = "LayerCache, for self-attention" if memory is None else "MemoryCache"
            raise ValueError(f"cache is a {type(cache).__name__}; expected a {wanted}")
