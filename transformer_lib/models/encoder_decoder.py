"""Encoder, decoder, and both together."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.shapes import expect_shape
from transformer_lib.layers.attention import AttentionPattern
from transformer_lib.layers.build_parts import STANDARD_PARTS, Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.embeddings import Embedding, check_ids
from transformer_lib.models.blocks import Stack, check_positions, next_positions
from transformer_lib.models.initialisation import initialise
from transformer_lib.models.padding import hide_padding, real_positions


class Encoder(nn.Module):
    """Token ids in, one vector for each token out; every token sees every other.

    Args:
        config: the model's configuration.
        parts: how attention, networks and norms are made.

    Example:
        >>> import torch
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2
        ... )
        >>> Encoder(config)(torch.tensor([[5, 7, 9]])).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: TransformerConfig, *, parts: Parts = STANDARD_PARTS) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        self.embedding = Embedding(config, parts=parts)
        self.stack = Stack(config, causal=False, parts=parts)
        initialise(self, config)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        *,
        segments: Int[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "#B T"] | None = None,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Encode a batch of sequences.

        Args:
            ids: token ids, ``(B, T)``.
            mask: what hides padding, broadcastable to ``(B, H, T, T)``; or a pattern.
            segments: the segment of each token, ``(B, T)``.
            positions: the place of each token, ``(1, T)`` or ``(B, T)``; 0, 1, 2, ... if left out.
            real: where real tokens stand, ``(B, T)``: hides all others, which are padding, and
                numbers the positions without them, on whatever side they stand.

        Returns:
            One vector for each token, ``(B, T, D)``. Those at hidden positions (padding) are
            undefined: no loss may read them.

        Raises:
            TypeError: if ids are not whole numbers.
            ValueError: if an id is outside the vocabulary or the sequence is too long.
        """
        mask, positions = _places(ids, mask, positions, real, self.config.max_len)
        x = self.embedding(ids, positions, segments)
        encoded: Tensor = self.stack(x, mask, positions=positions)
        return encoded


class Decoder(nn.Module):
    """Token ids in, one vector for each token out; a token sees only itself and what came before.

    Args:
        config: the model's configuration.
        cross_attention: whether it also reads a memory, such as an encoder's output.
        parts: how attention, networks and norms are made.

    Example:
        >>> import torch
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2
        ... )
        >>> decoder = Decoder(config, cross_attention=True)
        >>> decoder(
        ...     torch.tensor([[5, 7, 9]]), memory=torch.zeros(1, 4, 8)
        ... ).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        cross_attention: bool = False,
        parts: Parts = STANDARD_PARTS,
    ) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        self.embedding = Embedding(config, parts=parts)
        self.stack = Stack(config, causal=True, cross_attention=cross_attention, parts=parts)
        initialise(self, config)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        memory: Float[Tensor, "B S D"] | None = None,
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        *,
        positions: Int[Tensor, "#B T"] | None = None,
        cache: KeyValueCache | None = None,
        real: Bool[Tensor, "B _"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Decode a batch of sequences, or with a cache the next tokens of them.

        Args:
            ids: token ids, ``(B, T)``.
            memory: what cross-attention reads, ``(B, S, D)``.
            mask: what hides padding among the keys, those in the cache included; broadcastable to
                ``(B, H, T, S)``. Without a cache, a pattern may take its place.
            memory_mask: what hides padding in the memory, broadcastable to ``(B, H, T, S)``.
            positions: the place of each token, ``(1, T)`` or ``(B, T)``; counted on from the cache
                if left out. With padding at the start they must be the number of real tokens before
                each one, in every call: ``real`` sees to that.
            cache: keys and values of earlier tokens; those of ``ids`` are added to it.
            real: where real tokens stand among the keys, those in the cache included, ``(B, S)``:
                hides all others, and numbers the positions without them.

        Returns:
            One vector for each token, ``(B, T, D)``. Those at hidden positions (padding) are
            undefined: no loss may read them.

        Raises:
            TypeError: if ids are not whole numbers.
            ValueError: if an id is outside the vocabulary, the sequence is too long, or a memory
                is missing or not wanted.
        """
        mask, positions = _places(ids, mask, positions, real, self.config.max_len, cache)
        x = self.embedding(ids, positions)
        decoded: Tensor = self.stack(x, mask, memory, memory_mask, positions=positions, cache=cache)
        return decoded


class EncoderDecoder(nn.Module):
    """The Transformer of 2017 without its output layer: an encoder, and a decoder that reads it.

    With ``tie_embeddings`` both share one table of token vectors.

    Args:
        config: the model's configuration, the same for both.
        parts: how attention, networks and norms are made.

    Example:
        >>> import torch
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2
        ... )
        >>> model = EncoderDecoder(config)
        >>> model(torch.tensor([[5, 7, 9]]), torch.tensor([[1, 2]])).shape
        torch.Size([1, 2, 8])
    """

    def __init__(self, config: TransformerConfig, *, parts: Parts = STANDARD_PARTS) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        self.encoder = Encoder(config, parts=parts)
        self.decoder = Decoder(config, cross_attention=True, parts=parts)
        if config.tie_embeddings:
            self.decoder.embedding.tokens = self.encoder.embedding.tokens

    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
        *,
        source_real: Bool[Tensor, "B S"] | None = None,
        target_real: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Encode the source and decode the target while looking at it.

        Args:
            source: token ids, ``(B, S)``.
            target: token ids, ``(B, T)``, the correct answer shifted right (teacher forcing).
            source_mask: what hides padding in the source, ``(B, 1, 1, S)``.
            target_mask: what hides padding in the target, broadcastable to ``(B, H, T, T)``.
            source_real: where real tokens stand in the source, ``(B, S)``: hides all others, and
                numbers the positions without them.
            target_real: the same for the target, ``(B, T)``.

        Returns:
            One vector for each target token, ``(B, T, D)``.

        Raises:
            ValueError: if the source's mask is another one than for padding, or ids do not fit.
        """
        # Both kinds of attention to the source use the same mask, so it may not depend on a query.
        if source_mask is not None and (source_mask.ndim != 4 or source_mask.shape[-2] != 1):
            wanted = "a padding mask, (B, 1, 1, S), the same for every query"
            raise ValueError(f"source_mask has shape {tuple(source_mask.shape)}; expected {wanted}")
        source_mask = hide_padding("source_real", source_real, source_mask, list(source.shape))
        positions = None if source_real is None else real_positions(source_real)
        memory = self.encoder(source, source_mask, positions=positions)
        x: Tensor = self.decoder(target, memory, target_mask, source_mask, real=target_real)
        return x


def _n_before(cache: KeyValueCache, max_len: int) -> int:
    """How many tokens a cache holds; where that is not known, a full one must fit the model."""
    if (length := cache.known_length) is not None:
        return length
    if cache.max_len > max_len:
        why = "a compiled step cannot count its tokens"
        raise ValueError(f"the cache has max_len={cache.max_len}, the model {max_len}: {why}")
    return 0


def _places(
    ids: Tensor,
    mask: Tensor | AttentionPattern | None,
    positions: Tensor | None,
    real: Tensor | None,
    max_len: int,
    cache: KeyValueCache | None = None,
) -> tuple[Bool[Tensor, "..."] | AttentionPattern | None, Int[Tensor, "#B T"]]:
    """Check that the tokens have room, hide padding, and number positions if none are given."""
    expect_shape("ids", ids, "B T", {})  # the embedding checks their values
    before = 0 if cache is None else _n_before(cache, max_len)
    if before + ids.shape[1] > max_len:
        after = f" after {before} in the cache" if before else ""
        raise ValueError(f"ids has {ids.shape[1]} tokens{after}; the model accepts {max_len=}")
    if real is not None:
        if isinstance(mask, AttentionPattern):
            remedy = "give padding documents of its own, and positions"
            raise ValueError(f"real was given with a {type(mask).__name__}: {remedy}")
        n_keys = ids.shape[1] if cache is None else cache.n_keys(ids.shape[1])
        mask = hide_padding("real", real, mask, [ids.shape[0], n_keys])
    if positions is None:
        places = next_positions(ids, cache)  # (1, T)
        return mask, places if real is None else real_positions(real)[:, places[0]]
    check_ids("positions", positions, max_len)
    check_positions(positions, ids)
    return mask, positions
