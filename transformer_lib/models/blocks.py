"""One block for every model, and a stack of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.fast_path_register import fast_path
from transformer_lib.core.precision import autocast_dtype
from transformer_lib.core.thread_modes import check_modes
from transformer_lib.layers.attention import AttentionPattern, MultiHeadAttention
from transformer_lib.layers.build_parts import STANDARD_PARTS, Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache, LayerCache, MemoryCache
from transformer_lib.layers.feedforward import FeedForward
from transformer_lib.layers.masks import additive_mask, query_key_distances
from transformer_lib.layers.norms import LayerNorm, RMSNorm
from transformer_lib.layers.positions import AlibiBias, T5Bias, rope_angles
from transformer_lib.layers.quantized_linear import QuantizedLinear
from transformer_lib.models.lora import LoraLinear
from transformer_lib.models.padding import check_mask

_PADDING_FREE = fast_path("padding_free")


class _Visibility(NamedTuple):
    """What the self-attention of some layers may see."""

    mask: Tensor | AttentionPattern | None  # boolean, (B, H, T, S)
    bias: Tensor | None  # added to the scores, (B, H, T, S)
    causal: bool  # whether the future is hidden on top


class Block(nn.Module):
    """Attention, optional cross-attention, feed-forward: each read from and added to the stream.

    Args:
        config: the model's configuration, with RoPE as this block has it.
        cross_attention: whether the block also attends to a memory (the decoder of 2017).
        parts: how attention, network and norms are made.

    Example:
        >>> block = Block(TransformerConfig(d_model=8, n_heads=2))
        >>> block(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        cross_attention: bool = False,
        parts: Parts = STANDARD_PARTS,
    ) -> None:
        super().__init__()
        self.norm_position = config.norm_position
        twice = config.norm_position == "both"
        self.attention = parts.attention(config)
        self.attention_norm = parts.norm(config)
        self.attention_update_norm = parts.norm(config) if twice else None
        # Cross-attention has no RoPE, so its scores are not scaled as YaRN scales them elsewhere.
        unscaled = replace(config, rope_scaling=None)
        self.cross_attention = parts.attention(unscaled) if cross_attention else None
        self.cross_attention_norm = parts.norm(config) if cross_attention else None
        self.cross_attention_update_norm = parts.norm(config) if cross_attention and twice else None
        self.feed_forward = parts.feed_forward(config)
        self.feed_forward_norm = parts.norm(config)
        self.feed_forward_update_norm = parts.norm(config) if twice else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        memory: Float[Tensor, "B S D"] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        *,
        bias: Float[Tensor, "..."] | None = None,
        angles: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        cache: LayerCache | None = None,
        memory_cache: MemoryCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Carry the residual stream through the block.

        Args:
            x: the stream, ``(B, T, D)``.
            mask: for self-attention, broadcastable to ``(B, H, T, S)``, where S counts the keys in
                the cache too; or a pattern.
            memory: what cross-attention reads, ``(B, S, D)``.
            memory_mask: for cross-attention, broadcastable to ``(B, H, T, S)``.
            bias: added to the scores of self-attention.
            angles: RoPE's angles for self-attention.
            causal: whether self-attention hides the future.
            cache: keys and values of earlier steps, for self-attention.
            memory_cache: keys and values of the memory, for cross-attention.

        Returns:
            The stream, ``(B, T, D)``.

        Raises:
            RuntimeError: if another thread has switched training and evaluation mode meanwhile.
            ValueError: if there is a memory and no cross-attention, or the other way round.
        """
        check_modes(self)
        self._check_memory(memory)
        before = self.norm_position in ("pre", "both")  # else norms come after their sublayers

        read = self.attention_norm(x) if before else x
        update = self.attention(
            read, mask=mask, bias=bias, angles=angles, causal=causal, cache=cache
        )
        x = self._add(x, update, self.attention_norm, self.attention_update_norm)

        if self.cross_attention is not None and self.cross_attention_norm is not None:
            read = self.cross_attention_norm(x) if before else x
            update = self.cross_attention(read, memory=memory, mask=memory_mask, cache=memory_cache)
            x = self._add(x, update, self.cross_attention_norm, self.cross_attention_update_norm)

        read = self.feed_forward_norm(x) if before else x
        update = self.feed_forward(read)
        return self._add(x, update, self.feed_forward_norm, self.feed_forward_update_norm)

    def _add(
        self, x: Tensor, update: Tensor, norm: nn.Module, update_norm: nn.Module | None
    ) -> Float[Tensor, "B T D"]:
        """Add a sublayer's update to the stream, with the norms that come after the sublayer."""
        if self.norm_position == "update":
            update = norm(update)
        elif update_norm is not None:
            update = update_norm(update)
        x = x + self.dropout(update)
        return norm(x) if self.norm_position == "post" else x

    def _check_memory(self, memory: Tensor | None) -> None:
        if (memory is None) != (self.cross_attention is None):
            has = "no cross-attention" if self.cross_attention is None else "cross-attention"
            given = "no memory was given" if memory is None else "a memory was given"
            raise ValueError(f"the block has {has}, but {given}")


class Stack(nn.Module):
    """``n_layers`` blocks, with the positions that act inside attention, and the final norm.

    Args:
        config: the model's configuration.
        causal: whether self-attention hides the future (a decoder).
        cross_attention: whether each block also attends to a memory.
        parts: how attention, networks and norms are made.

    Attributes:
        checkpoint_activations: whether blocks forget their activations in training and compute
            them again for the backward pass; ``Recipe.checkpoint_activations`` asks for it.

    Example:
        >>> stack = Stack(
        ...     TransformerConfig(d_model=8, n_heads=2, n_layers=2),
        ...     causal=True,
        ... )
        >>> stack(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    checkpoint_activations = False

    def __init__(
        self,
        config: TransformerConfig,
        *,
        causal: bool,
        cross_attention: bool = False,
        parts: Parts = STANDARD_PARTS,
    ) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.blocks = nn.ModuleList(
            Block(_of_layer(config, layer), cross_attention=cross_attention, parts=parts)
            for layer in range(config.n_layers)
        )
        # All blocks share one bias, as in T5.
        self.bias: AlibiBias | T5Bias | None = None
        if config.position == "alibi":
            self.bias = AlibiBias(config.n_heads)
        elif config.position == "t5":
            self.bias = T5Bias(config.n_heads, bidirectional=not causal)
        # After post-norm the stream is normalised already. All others leave a bare sum.
        self.final_norm = None if config.norm_position == "post" else parts.norm(config)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        memory: Float[Tensor, "B S D"] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        *,
        positions: Int[Tensor, "#B T"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Carry the residual stream through all blocks.

        Under autocast to bfloat16 the stream itself is in bfloat16 too. Padding is left out where
        that is faster and real tokens get the same result: see
        :func:`~transformer_lib.layers.fast.padding_free.padding_free_batch`. So outputs at hidden
        positions are undefined: zeros if padding was left out, which depends on the size of the
        batch, else whatever the layers compute there. No loss may read them.

        Args:
            x: the stream, ``(B, T, D)``.
            mask: what hides padding among the keys, those in the cache included; broadcastable to
                ``(B, H, T, S)``, with S as its last dimension. The causal mask and the window come
                on top. Without a cache, a pattern may take its place.
            memory: what cross-attention reads, ``(B, S, D)``.
            memory_mask: for cross-attention, broadcastable to ``(B, H, T, S)``.
            positions: the place of each vector, ``(1, T)`` or ``(B, T)``; counted on from the
                cache if left out. ALiBi, T5's bias and the window count places in the tensor
                instead: for them only distances matter.
            cache: keys and values of earlier steps; those of this step are added to it.

        Returns:
            The stream, ``(B, T, D)``.

        Raises:
            ValueError: if a mask has other than four dimensions, or shapes do not fit, or a
                pattern is given with a cache.
        """
        n_keys = x.shape[1] if cache is None else cache.n_keys(x.shape[1])
        if not isinstance(mask, AttentionPattern):
            check_mask("mask", mask, n_keys)
        elif cache is not None:
            raise ValueError(f"a {type(mask).__name__} is for whole sequences; expected no cache")
        check_mask("memory_mask", memory_mask, None if memory is None else memory.shape[1])
        positions = next_positions(x, cache) if positions is None else positions
        check_positions(positions, x)
        x = _as_stream(x)

        # Two kinds of layers at most, local ones (with a window) and global ones.
        is_local = [self.config.is_local(layer) for layer in range(len(self.blocks))]
        visible = {local: self._visibility(x, mask, cache, local) for local in set(is_local)}
        given = isinstance(mask, AttentionPattern)
        pattern = None if given else self._without_padding(x, visible, memory, cache)
        if pattern is not None:
            x, positions = pattern.drop(x), pattern.drop(positions)
        angles = {local: self._angles(positions, local) for local in visible}

        caches = self._caches(cache, memory)
        for layer, (block, local, (own_cache, memory_cache)) in enumerate(
            zip(self.blocks, is_local, caches, strict=True)
        ):
            own_mask, bias, causal = visible[local]
            x = self._maybe_checkpointed(block)(
                x, own_mask if pattern is None else pattern, memory, memory_mask, bias=bias,
                angles=angles[local] if self.config.has_rope(layer) else None,
                causal=causal, cache=own_cache, memory_cache=memory_cache,
            )  # fmt: skip
        if cache is not None:
            cache.advance(x.shape[1])
        x = x if self.final_norm is None else self.final_norm(x)
        return x if pattern is None else pattern.put_back(x)

    def _without_padding(
        self,
        x: Tensor,
        visible: dict[bool, _Visibility],
        memory: Tensor | None,
        cache: KeyValueCache | None,
    ) -> AttentionPattern | None:
        """Where the real tokens are, if the others may be left out; ``None`` if padding stays."""
        if _PADDING_FREE is None or memory is not None or cache is not None:
            return None
        if not visible or x.shape[2:] != (self.config.d_model,):
            return None
        scaling = self.config.rope_scaling
        if scaling is not None and scaling.kind == "ntk":
            return None  # it depends on the length of the sequence, padding included
        bias = next(iter(visible.values())).bias  # the same in all layers
        masks = [seen.mask for seen in visible.values()]  # one that hides a window hides more
        pattern: AttentionPattern | None = _PADDING_FREE.padding_free_batch(
            self, _TOKEN_BY_TOKEN, x, masks, bias
        )
        return pattern

    def _maybe_checkpointed(self, block: nn.Module) -> Callable[..., Tensor]:
        """The block itself, or one that computes its activations again in the backward pass."""
        if self.checkpoint_activations and self.training:
            return partial(checkpoint, block, use_reentrant=False)
        return block

    def _caches(
        self, cache: KeyValueCache | None, memory: Tensor | None
    ) -> Sequence[tuple[LayerCache | None, MemoryCache | None]]:
        if cache is None:
            return [(None, None)] * len(self.blocks)
        return cache.for_blocks(len(self.blocks), memory)

    def _angles(
        self, positions: Int[Tensor, "#B T"], local: bool = False
    ) -> Float[Tensor, "#B 1 T half"] | None:
        """RoPE's angles; layers with a window may have their own."""
        config = self.config
        if config.position != "rope":
            return None
        theta, scaling = config.rope_of(local=local)
        angles = rope_angles(positions, config.rope_width, theta, scaling=scaling)
        return angles[:, None]  # the same for all heads

    def _visibility(
        self,
        x: Tensor,
        mask: Tensor | AttentionPattern | None,
        cache: KeyValueCache | None,
        local: bool,
    ) -> _Visibility:
        """Say what layers of one kind may see, local ones or global ones."""
        if isinstance(mask, AttentionPattern):
            bias = self._mask_and_bias(x, None, None, local=False)[1]
            window = self.config.window if local else None
            return _Visibility(mask.within(window), bias, self.causal)
        mask, bias = self._mask_and_bias(x, mask, cache, local)
        if cache is not None and cache.shows_unused_places:
            return _Visibility(None, _as_bias(x, mask, bias, cache), causal=False)
        return _Visibility(mask, bias, self.causal)

    def _mask_and_bias(
        self, x: Tensor, mask: Tensor | None, cache: KeyValueCache | None, local: bool
    ) -> tuple[Bool[Tensor, "..."] | None, Float[Tensor, "..."] | None]:
        """Hide what is outside the window, and make the bias for positions, if there is one."""
        window = self.config.window if local else None
        if window is None and self.bias is None:
            return mask, None
        if cache is None:
            distances = query_key_distances(x.shape[1], device=x.device)  # (T, S)
        else:
            distances = cache.distances(x.shape[1], x.device, local=local)
            if mask is not None:  # of all keys; a rolling cache gives only the newest
                mask = mask[..., -distances.shape[1] :]
        bias = None if self.bias is None else self.bias(distances)
        if window is not None:
            mask = _joined(mask, distances.abs() < window)
        return mask, bias


# The standard parts of a stack. All but attention work on each token alone, and attention does so
# with an AttentionPattern: whoever adds one here makes sure of that.
_TOKEN_BY_TOKEN = {
    Stack, Block, MultiHeadAttention, FeedForward, LayerNorm, RMSNorm, AlibiBias, T5Bias,
    nn.ModuleList, nn.Linear, nn.Dropout, nn.Embedding, LoraLinear, QuantizedLinear,
}  # fmt: skip


def _of_layer(config: TransformerConfig, layer: int) -> TransformerConfig:
    """The configuration of one layer: local layers may have their own RoPE, and some have none."""
    theta, scaling = config.rope_of(local=config.is_local(layer))
    if not config.has_rope(layer):
        scaling = None  # nor does it sharpen attention there
    return replace(config, rope_theta=theta, rope_scaling=scaling)


def _as_stream(x: Tensor) -> Float[Tensor, "B T D"]:
    """Under autocast to bfloat16, the stream in bfloat16.

    PyTorch alone would keep it in float32: twice the bytes to move. Not so under autocast to
    float16, where a long sum could overflow.
    """
    return x.to(torch.bfloat16) if autocast_dtype(x.device) == torch.bfloat16 else x


def _as_bias(
    x: Tensor, mask: Tensor | None, bias: Tensor | None, cache: KeyValueCache
) -> Float[Tensor, "..."]:
    """Mask, bias and causality as one bias on the scores, for a cache with unused places."""
    # Places after the query's own hold the future, or nothing yet: one test hides both.
    past = cache.distances(x.shape[1], x.device) >= 0  # (T, S)
    return additive_mask(_joined(mask, past), bias, x.dtype)


def _joined(mask: Tensor | None, other: Bool[Tensor, "T S"]) -> Bool[Tensor, "..."]:
    return other[None, None] if mask is None else mask & other


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
        >>> positions, x = torch.arange(4)[None], torch.zeros(2, 3, 8)
        >>> check_positions(positions, x)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: positions has shape (1, 4); expected (1, T) = (1, 3) or ...
    """
    batch, length = x.shape[:2]
    if tuple(positions.shape) not in ((1, length), (batch, length)):
        wanted = f"(1, T) = (1, {length}) or (B, T) = ({batch}, {length})"
        raise ValueError(f"positions has shape {tuple(positions.shape)}; expected {wanted}")
