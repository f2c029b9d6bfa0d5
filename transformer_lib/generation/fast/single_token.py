"""Single-token decoding: one new token through a decoder, on a short path.

A decoding step is many small kernels, and on a CPU most of its time can go by between them: in
checks of what was checked in the step before, in calls inside calls, in masks that hide nothing.
:class:`LeanDecoder` does what a ``Decoder`` does for one token of each row, with the decoder's own
layers, norms and networks, called one after the other. It goes around stack, blocks and attention,
so it may do so only as long as nobody can tell.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.generation.fast_interfaces import FastStep
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.feedforward import FeedForward
from transformer_lib.layers.fused_attention import kernels_for
from transformer_lib.layers.kv_cache import KeyValueCache, LayerCache
from transformer_lib.layers.positions import turn_pairs
from transformer_lib.models.blocks import Block, Stack
from transformer_lib.models.encoder_decoder import Decoder

Layer = Callable[[Tensor], Tensor]
Turn = Callable[[Tensor], Tensor]  # what RoPE does to queries and keys
# The stream and what attention needs in, the stream out.
BlockStep = Callable[[Tensor, LayerCache, Tensor | None, Turn | None], Tensor]

# What it goes around. Embeddings, norms and parts of other classes are called as they are.
_PASSED_BY = {
    Decoder, Stack, Block, MultiHeadAttention, FeedForward, nn.Linear, nn.ModuleList, nn.Dropout
}  # fmt: skip


class LeanDecoder(FastStep):
    """Reads the next token of each row as a decoder does, if :meth:`can_read` says so.

    For use under ``torch.no_grad``. Nothing is dropped out, whatever mode the decoder is in.

    Args:
        decoder: whose layers are used.

    Example:
        >>> from transformer_lib import TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> decoder = Decoder(config).eval()
        >>> lean, token = LeanDecoder(decoder), torch.tensor([[5]])
        >>> caches = [
        ...     KeyValueCache(decoder.config.n_layers, max_len=4)
        ...     for _ in range(2)
        ... ]
        >>> with torch.no_grad():
        ...     can = lean.can_read(token, caches[0])
        ...     torch.allclose(
        ...         lean(token, caches[0]),
        ...         decoder(token, cache=caches[1]),
        ...         atol=1e-6,
        ...     )
        True
        >>> can
        True
    """

    def __init__(self, decoder: nn.Module) -> None:
        self._decoder = decoder
        self._steps: list[BlockStep] = []  # none if it can never be done
        self._attentions: list[MultiHeadAttention] = []
        parts = _passed_by(decoder)
        self._fingerprint = Fingerprint(parts, to_compare=True)
        if self._fingerprint.is_plain and set(map(type, parts)) <= _PASSED_BY:
            blocks = [part for part in parts if isinstance(part, Block)]
            if _sees_all_keys(decoder):
                self._steps = [_block_step(block) for block in blocks]
                self._attentions = [_attention_of(block) for block in blocks]

    def can_read(self, new: Int[Tensor, "B T"], cache: KeyValueCache | None) -> bool:
        """Say whether the next tokens can be read here, so that nobody can tell.

        Args:
            new: the tokens that come next.
            cache: keys and values of all tokens before.

        Returns:
            ``False`` if a part is of another class, was changed or is listened to; if there is
            more than one token, autocast, cross-attention, a window or a bias on the scores, or
            an error to raise.
        """
        return (
            len(self._steps) > 0
            and type(cache) is KeyValueCache  # a subclass may store in another way
            and new.shape[1:] == (1,)
            and isinstance(self._decoder, Decoder)
            and cache.length < self._decoder.config.max_len
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled(new.device.type)
            and self._fingerprint.holds()
            and all(attention.fused for attention in self._attentions)  # its kernel is used here
        )

    def __call__(
        self,
        new: Int[Tensor, "B 1"],
        cache: KeyValueCache,
        mask: Bool[Tensor, "B 1 1 S"] | None = None,
        positions: Int[Tensor, "#B 1"] | None = None,
    ) -> Float[Tensor, "B 1 D"]:
        """Read one token of each row.

        Args:
            new: the tokens.
            cache: keys and values of all tokens before; those of this one are added to it.
            mask: what hides padding among the keys; the new token is none.
            positions: the place of each token; counted on from the cache if left out.

        Returns:
            One vector for each row, ``(B, 1, D)``.
        """
        decoder = self._decoder
        assert isinstance(decoder, Decoder), "can_read says no"
        if positions is None:
            positions = torch.full((1, 1), cache.length, device=new.device)
        layers = cache.for_blocks(len(self._steps), None)
        x: Tensor = decoder.embedding(new, positions)
        turn = _turn(decoder.stack, positions)
        with kernels_for(True, new.device):
            for step, (layer, _) in zip(self._steps, layers, strict=True):
                x = step(x, layer, mask, turn)
        norm = decoder.stack.final_norm
        return x if norm is None else norm(x)


def _passed_by(decoder: nn.Module) -> list[nn.Module]:
    """The parts that a lean step does not call, as far as they are of a known kind."""
    parts = [decoder]
    for part in parts:
        if isinstance(part, Decoder):
            parts += [part.stack]
        elif isinstance(part, Stack):
            parts += [part.blocks, *part.blocks]
        elif isinstance(part, Block):
            parts += [part.attention, part.dropout]
            parts += [part.feed_forward] if type(part.feed_forward) is FeedForward else []
        elif isinstance(part, MultiHeadAttention | FeedForward):
            parts += [layer for layer in part.children() if type(layer) is nn.Linear]
    return parts


def _sees_all_keys(decoder: nn.Module) -> bool:
    """Whether blocks are plain: self-attention without a window or a bias on its scores.

    Norms stand in one place, and RoPE turns whole heads.
    """
    if not isinstance(decoder, Decoder) or decoder.config.window is not None:
        return False
    if decoder.config.norm_position not in ("pre", "post") or decoder.config.rope_fraction != 1:
        return False
    has_memory = any(block.cross_attention is not None for block in decoder.stack.blocks)
    return not has_memory and decoder.stack.bias is None


def _attention_of(block: Block) -> MultiHeadAttention:
    assert isinstance(block.attention, MultiHeadAttention), "it was looked at before"
    return block.attention


def _turn(stack: Stack, positions: Int[Tensor, "#B 1"]) -> Turn | None:
    """How queries and keys turn at their places, the same in all layers."""
    angles = stack._angles(positions)  # (B, 1, 1, Dk/2)
    if angles is None:
        return None
    pairing = stack.config.rope_pairing
    return partial(turn_pairs, cos=angles.cos(), sin=angles.sin(), pairing=pairing)


def _block_step(block: Block) -> BlockStep:
    """What a block does with one vector of each row."""
    pre, attend, network = block.norm_position == "pre", _attention_step(block), _network(block)
    first: Layer = block.attention_norm
    second: Layer = block.feed_forward_norm

    def step(x: Tensor, cache: LayerCache, mask: Tensor | None, turn: Turn | None) -> Tensor:
        if pre:
            x = x + attend(first(x), cache, mask, turn)
            return x + network(second(x))
        x = first(x + attend(x, cache, mask, turn))
        return second(x + network(x))

    return step


def _attention_step(block: Block) -> BlockStep:
    """What the attention of a block does with one query of each row and head."""
    attention = _attention_of(block)
    query, key, value = map(_product, (attention.query, attention.key, attention.value))
    output = _product(attention.output)
    n_groups, d_head = attention.n_kv_heads, attention.d_head

    def step(x: Tensor, cache: LayerCache, mask: Tensor | None, turn: Turn | None) -> Tensor:
        size = x.shape[0]
        # The queries of heads that share keys become rows of one head: no key is copied.
        q = query(x).reshape(size, n_groups, -1, d_head)  # (B, G, H/G, Dk)
        k = key(x).reshape(size, n_groups, 1, d_head)
        if turn is not None:
            q, k = turn(q), turn(k)
        k, v = cache.append(k, value(x).reshape(size, n_groups, 1, d_head))  # (B, G, S, Dk)
        found = F.scaled_dot_product_attention(q, k, v, mask, scale=attention.scale)
        return output(found.reshape(size, 1, -1))

    return step


def _network(block: Block) -> Layer:
    """The feed-forward network of a block; as a whole if it is of another class."""
    network = block.feed_forward
    if type(network) is not FeedForward:
        return network
    up, down = _product(network.up), _product(network.down)
    gate = None if network.gate is None else _product(network.gate)

    def step(x: Tensor) -> Tensor:
        if gate is None:
            return down(network.activation(up(x)))
        return down(network.activation(gate(x)) * up(x))

    return step


def _product(layer: nn.Module) -> Layer:
    """What a linear layer does; the layer as a whole if it is of another class."""
    if type(layer) is not nn.Linear:
        return layer
    weights: dict[str, Any] = layer._parameters  # looked up in every step: there may be others
    return lambda x: F.linear(x, weights["weight"], weights["bias"])
