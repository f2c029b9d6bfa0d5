"""One block for every model, and a stack of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.attention import MultiHeadAttention
from transformer_lib.cache import KeyValueCache, KeyValueStore
from transformer_lib.config import TransformerConfig
from transformer_lib.feedforward import make_feed_forward
from transformer_lib.masks import causal_mask, window_mask
from transformer_lib.norms import make_norm
from transformer_lib.positions import AlibiBias, T5Bias, rope_angles
from transformer_lib.precision import autocast_dtype


class Block(nn.Module):
    """Attention, optional cross-attention, feed-forward: each read from and added to the stream.

    Args:
        config: the model's configuration.
        cross_attention: whether the block also attends to a memory (the decoder of 2017).

    Example:
        >>> block = Block(TransformerConfig(d_model=8, n_heads=2))
        >>> block(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, config: TransformerConfig, *, cross_attention: bool = False) -> None:
        super().__init__()
        self.norm_position = config.norm_position
        self.attention = _make_attention(config)
        self.attention_norm = make_norm(config)
        self.cross_attention = _make_attention(config) if cross_attention else None
        self.cross_attention_norm = make_norm(config) if cross_attention else None
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "..."] | None = None,
        memory: Float[Tensor, "B S D"] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        *,
        bias: Float[Tensor, "..."] | None = None,
        angles: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        own_store: KeyValueStore | None = None,
        memory_store: KeyValueStore | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Carry the residual stream through the block.

        Args:
            x: the stream, ``(B, T, D)``.
            mask: for self-attention, broadcastable to ``(B, H, T, T)``.
            memory: what cross-attention reads, ``(B, S, D)``.
            memory_mask: for cross-attention, broadcastable to ``(B, H, T, S)``.
            bias: added to the scores of self-attention.
            angles: RoPE's angles for self-attention.
            causal: whether self-attention hides the future.
            own_store: keys and values of earlier steps, for self-attention.
            memory_store: keys and values of the memory, for cross-attention.

        Returns:
            The stream, ``(B, T, D)``.

        Raises:
            ValueError: if there is a memory and no cross-attention, or the other way round.
        """
        if (memory is None) != (self.cross_attention is None):
            has = "no cross-attention" if self.cross_attention is None else "cross-attention"
            given = "no memory was given" if memory is None else "a memory was given"
            raise ValueError(f"the block has {has}, but {given}")
        options: Any = {"bias": bias, "angles": angles, "causal": causal, "store": own_store}
        x = self._add(x, self.attention_norm, partial(self.attention, mask=mask, **options))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            options = {"memory": memory, "mask": memory_mask, "store": memory_store}
            x = self._add(x, self.cross_attention_norm, partial(self.cross_attention, **options))
        return self._add(x, self.feed_forward_norm, self.feed_forward)

    def _add(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Add what a sublayer says to the stream; the norm stands before or after."""
        if self.norm_position == "pre":
            x = x + self.dropout(sublayer(norm(x)))
        else:
            x = norm(x + self.dropout(sublayer(x)))
        return x


class Stack(nn.Module):
    """``n_layers`` blocks, with the positions that act inside attention, and the final norm.

    Args:
        config: the model's configuration.
        causal: whether self-attention hides the future (a decoder).
        cross_attention: whether each block also attends to a memory.

    Example:
        >>> stack = Stack(TransformerConfig(d_model=8, n_heads=2, n_layers=2), causal=True)
        >>> stack(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self, config: TransformerConfig, *, causal: bool, cross_attention: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.blocks = nn.ModuleList(
            Block(config, cross_attention=cross_attention) for _ in range(config.n_layers)
        )
        # All blocks share one bias, as in T5, where the first block owns it.
        self.bias: AlibiBias | T5Bias | None = None
        if config.position == "alibi":
            self.bias = AlibiBias(config.n_heads)
        elif config.position == "t5":
            self.bias = T5Bias(config.n_heads, bidirectional=not causal)
        # After post-norm the stream is normalised already. Pre-norm leaves a bare sum.
        self.final_norm = make_norm(config) if config.norm_position == "pre" else None

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "..."] | None = None,
        memory: Float[Tensor, "B S D"] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        *,
        positions: Int[Tensor, "#B T"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Carry the residual stream through all blocks.

        Args:
            x: the stream, ``(B, T, D)``.
            mask: what hides padding among the keys, those in the cache included; broadcastable to
                ``(B, H, T, S)``. The causal mask and the window come on top.
            memory: what cross-attention reads, ``(B, S, D)``.
            memory_mask: for cross-attention, broadcastable to ``(B, H, T, S)``.
            positions: the place of each vector, ``(1, T)`` or ``(B, T)``; counted on from the
                cache if left out. ALiBi, T5's bias and the window count places in the tensor
                instead: for them only distances matter.
            cache: keys and values of earlier steps; those of this step are added to it.

        Returns:
            The stream, ``(B, T, D)``.

        Raises:
            ValueError: if a mask has other than four dimensions, or shapes do not fit.
        """
        if cache is not None:
            cache.check_layers(len(self.blocks))
        n_queries = x.shape[1]
        n_keys = n_queries if cache is None else cache.n_keys(n_queries)
        _check_mask("mask", mask, n_keys)
        _check_mask("memory_mask", memory_mask, None if memory is None else memory.shape[1])
        positions = next_positions(x, cache) if positions is None else positions
        check_positions(positions, x)
        angles = self._angles(positions)
        if autocast_dtype(x.device) == torch.bfloat16:
            # PyTorch alone would keep the stream in float32: twice the bytes to move. Not so in
            # float16, where a long sum could overflow.
            x = x.to(torch.bfloat16)
        mask, bias = self._mask_and_bias(x, mask, n_keys, cache)
        causal = self.causal and (cache is None or cache.filled is None)
        options: dict[str, Any] = {"bias": bias, "angles": angles, "causal": causal}
        for i, block in enumerate(self.blocks):
            if cache is not None:
                options |= {"own_store": cache.own[i], "memory_store": cache.memory[i]}
            x = block(x, mask, memory, memory_mask, **options)
        if cache is not None:
            cache.advance(n_queries)
        return x if self.final_norm is None else self.final_norm(x)

    def _angles(self, positions: Int[Tensor, "#B T"]) -> Float[Tensor, "#B 1 T half"] | None:
        if self.config.position != "rope":
            return None
        return rope_angles(positions, self.config.d_head, self.config.rope_theta)[:, None]

    def _mask_and_bias(
        self, x: Tensor, mask: Tensor | None, n_keys: int, cache: KeyValueCache | None
    ) -> tuple[Bool[Tensor, "..."] | None, Float[Tensor, "..."] | None]:
        """What hides keys (the causal mask comes on top), and what is added to the scores."""
        window, n_queries, device = self.config.window, x.shape[1], x.device
        slots = None if cache is None or cache.filled is None else next_positions(x, cache)[0]
        # The queries are the last places, but not in a static cache: there, tables have all rows.
        n_rows = n_queries if slots is None else n_keys
        bias = None if self.bias is None else _rows(self.bias(n_rows, n_keys, device), slots)
        if window is not None:
            near = _rows(window_mask(n_rows, n_keys, window=window, device=device), slots)
            mask = near[None, None] if mask is None else mask & near
        if slots is None:
            return mask, bias
        # Keys that are not there yet are hidden with the future. One table for all layers, added
        # to the scores as the kernels want it. A row without a key is padding; nobody reads it.
        past = _rows(causal_mask(n_keys, device=device), slots)
        mask = past[None, None] if mask is None else mask & past
        bias = mask.new_zeros((), dtype=x.dtype) if bias is None else bias.to(x.dtype)
        return None, torch.where(mask, bias, torch.finfo(x.dtype).min)


def next_positions(x: Tensor, cache: KeyValueCache | None = None) -> Int[Tensor, "1 T"]:
    """Number the positions of a sequence, going on where the cache ends.

    Args:
        x: ids ``(B, T)`` or vectors ``(B, T, D)``.
        cache: what came before; nothing if left out.

    Returns:
        The positions, ``(1, T)``.

    Example:
        >>> next_positions(torch.zeros(2, 3, 8))
        tensor([[0, 1, 2]])
    """
    start = 0 if cache is None else cache.start
    return (torch.arange(x.shape[1], device=x.device) + start)[None]


def check_positions(positions: Tensor, x: Tensor) -> None:
    """Raise an error unless there is one position for each token, or for each place.

    Args:
        positions: should be ``(1, T)`` or ``(B, T)``.
        x: ids ``(B, T)`` or vectors ``(B, T, D)``.

    Raises:
        ValueError: if the shape is another one.

    Example:
        >>> check_positions(torch.arange(4)[None], torch.zeros(2, 3, 8))
        Traceback (most recent call last):
        ValueError: positions has shape (1, 4); expected (1, T) = (1, 3) or (B, T) = (2, 3)
    """
    batch, length = x.shape[:2]
    if tuple(positions.shape) not in ((1, length), (batch, length)):
        wanted = f"(1, T) = (1, {length}) or (B, T) = ({batch}, {length})"
        raise ValueError(f"positions has shape {tuple(positions.shape)}; expected {wanted}")


def _rows(table: Tensor, slots: Tensor | None) -> Tensor:
    """The rows ``(..., T, S)`` of a table for these places; all of it if there are none."""
    return table if slots is None else table[..., slots, :]


def _check_mask(name: str, mask: Tensor | None, n_keys: int | None) -> None:
    """Refuse a mask that would fit by accident, before anything is stored in a cache.

    ``(B, S)`` would pass for ``(T, S)`` if B happened to equal T. ``(B, 1, 1, 1)`` of the newest
    token alone would unhide every padded key that the cache holds.
    """
    if mask is None:
        return
    if mask.ndim != 4:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}; expected four dimensions that broadcast to "
            "(B, H, T, S), such as (B, 1, 1, S) from padding_mask"
        )
    if mask.shape[-1] != n_keys:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}; its last dimension must be the number of keys, "
            f"S={n_keys}, those in the cache included"
        )


def _make_attention(config: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.n_heads,
        config.n_kv_heads,
        bias=config.bias,
        scale=config.attention_scale,
        dropout=config.attention_dropout,
        pairing=config.rope_pairing,
    )
