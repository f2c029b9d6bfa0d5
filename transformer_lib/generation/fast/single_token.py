"""Single-token decoding: one new token through a decoder, on a short path.

This is a second implementation of ``Block``, ``MultiHeadAttention`` and ``FeedForward``, for one
token of each row. A decoding step is many small kernels, and on a CPU much of its time is Python
between them. Without the checks, module calls and masks that one token does not need, a step is
1.2 to 1.7 times as fast. To call the layers' own methods would cost a tenth of that step for the
network, and nearly half of it for attention.

The decoder itself runs unless every field of its configuration is allowed here, and a fingerprint
says that no module was touched. ``tests/lib/test_single_token.py`` compares the two.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.generation.fast_interfaces import FastStep
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import KeyValueCache, LayerCache
from transformer_lib.layers.feedforward import FeedForward
from transformer_lib.layers.fused_attention import kernels_for
from transformer_lib.layers.norms import LayerNorm
from transformer_lib.layers.positions import rope_angles, turn_pairs
from transformer_lib.models.blocks import Block, Stack
from transformer_lib.models.encoder_decoder import Decoder

Layer = Callable[[Tensor], Tensor]
Turn = Callable[[Tensor], Tensor]  # what RoPE does to queries and keys
Projections = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
# The stream and what attention needs in, the stream out.
BlockStep = Callable[[Tensor, LayerCache, Tensor | None, Turn | None], Tensor]

# The widest model whose projections are joined, on a CPU: a wider one waits for its weights and not
# for calls, and a copy of them would be large.
JOIN_UP_TO = 1024

# Classes whose forward pass is not called. Embeddings and parts of other classes are.
_BYPASSED = {
    Decoder, Stack, Block, MultiHeadAttention, FeedForward, LayerNorm, nn.Linear, nn.ModuleList,
    nn.Dropout,
}  # fmt: skip

# An allow-list of the fields of a configuration: a field that is in neither table is not supported.
# Fields that may have any value, by what sees to them.
ANY_VALUE = {
    "parts that are called as they are": (
        "vocab_size", "scale_embeddings", "norm_embeddings", "n_segments", "n_experts",
        "active_experts",
    ),
    "read from the modules": (
        "d_model", "n_heads", "n_kv_heads", "head_width", "d_ff", "n_layers", "activation", "bias",
        "qkv_bias", "attention_scale", "norm", "norm_eps", "norm_offset",
    ),
    "read in each step": ("max_len", "rope_theta", "rope_scaling", "rope_pattern"),
    "compared with the modules": ("rope_pairing",),
    "after the decoder": ("tie_embeddings", "logit_scale", "logit_cap"),
    "in training only": ("dropout", "attention_dropout", "init"),
    "with a window only": ("window_pattern", "local_rope_theta"),
}  # fmt: skip
_FREE_FIELDS = {name for names in ANY_VALUE.values() for name in names}
# Fields of which only these values are supported.
SOME_VALUES: dict[str, tuple[object, ...]] = {
    "position": ("sinusoidal", "learned", "rope", "none"),  # no bias on the scores
    "rope_fraction": (1,),  # whole heads are turned
    "norm_position": ("pre", "post"),  # one norm for each sublayer, not on its output
    "window": (None,),
    "qk_norm": ("none",),  # others are another class of attention
    "score_cap": (None,),
}


class LeanDecoder(FastStep):
    """Reads the next token of each row as a decoder does, if :meth:`can_read` says so.

    For use under ``torch.no_grad``, in evaluation mode: dropout of the blocks is left out, that of
    the embedding is not.

    Args:
        decoder: whose layers are used.
        weights_stay: whether no weight changes as long as this is used. Then narrow layers make
            queries, keys and values in one product, with a copy of their weights side by side.

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

    def __init__(self, decoder: nn.Module, *, weights_stay: bool = False) -> None:
        self._decoder = decoder
        self._steps: list[BlockStep] = []  # stays empty if the decoder is not supported
        self._attentions: list[MultiHeadAttention] = []
        parts = _bypassed_parts(decoder)
        self._fingerprint = Fingerprint(parts, to_compare=True)
        is_plain = self._fingerprint.is_plain and set(map(type, parts)) <= _BYPASSED
        if is_plain and _is_supported(decoder):
            blocks = [part for part in parts if isinstance(part, Block)]
            self._steps = [_block_step(block, weights_stay) for block in blocks]
            self._attentions = [_attention_of(block) for block in blocks]

    def can_read(self, new: Int[Tensor, "B T"], cache: KeyValueCache | None) -> bool:
        """Say whether the next tokens can be read here, with the output of the decoder.

        Args:
            new: the tokens that come next.
            cache: keys and values of all tokens before.

        Returns:
            ``False`` if the configuration is not supported, a part is of another class, was
            changed or has hooks; for more than one token, under autocast, with gradients, or if
            there is no room for the token.
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
            and all(attention.kernel_may_attend for attention in self._attentions)
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
            mask: what hides padding among the keys; the new token is not padding.
            positions: the place of each token; counted on from the cache if left out.

        Returns:
            One vector for each row, ``(B, 1, D)``.
        """
        decoder = self._decoder
        assert isinstance(decoder, Decoder), "can_read says no"
        if positions is None:
            positions = torch.full((1, 1), cache.length, device=new.device)
        layers = cache.for_blocks(len(self._steps), None)
        x: Tensor = decoder.embedding(new, positions)[:, 0]  # (B, D): each product is one call
        config = decoder.stack.config
        turn = _turn(config, positions)
        with kernels_for(True, new.device):
            for n, (step, (layer, _)) in enumerate(zip(self._steps, layers, strict=True)):
                x = step(x, layer, mask, turn if config.has_rope(n) else None)
        norm, x = decoder.stack.final_norm, x[:, None]
        return x if norm is None else norm(x)


def _bypassed_parts(decoder: nn.Module) -> list[nn.Module]:
    """The modules whose forward pass is not called, and any that stand in their place."""
    parts = [decoder]
    for part in parts:
        if isinstance(part, Decoder):
            parts += [part.stack]
        elif isinstance(part, Stack):
            parts += [part.blocks, *part.blocks]
        elif isinstance(part, Block):
            parts += [part.attention, part.dropout]
            optional = (part.feed_forward, part.attention_norm, part.feed_forward_norm)
            parts += [x for x in optional if type(x) in (FeedForward, LayerNorm)]
        elif isinstance(part, MultiHeadAttention | FeedForward):
            parts += [layer for layer in part.children() if type(layer) is nn.Linear]
    return parts


def _is_supported(decoder: nn.Module) -> bool:
    """Whether all fields of the configuration are allowed, and the decoder reads no memory."""
    if not isinstance(decoder, Decoder) or decoder.stack.bias is not None:
        return False
    config = decoder.config
    return all(
        field.name in _FREE_FIELDS or getattr(config, field.name) in SOME_VALUES.get(field.name, ())
        for field in fields(config)
    ) and all(
        block.cross_attention is None and _attention_of(block).pairing == config.rope_pairing
        for block in decoder.stack.blocks
    )


def _attention_of(block: Block) -> MultiHeadAttention:
    assert isinstance(block.attention, MultiHeadAttention), "_BYPASSED has no other attention"
    return block.attention


def _turn(config: TransformerConfig, positions: Int[Tensor, "#B 1"]) -> Turn | None:
    """How RoPE turns queries and keys at their positions, the same in all layers that have it."""
    if config.position != "rope":
        return None
    theta, scaling = config.rope_of(local=False)  # no layer has a window
    angles = rope_angles(positions, config.rope_width, theta, scaling=scaling)
    angles = angles[:, None]  # (B, 1, 1, Dk/2), the same for all heads
    return partial(turn_pairs, cos=angles.cos(), sin=angles.sin(), pairing=config.rope_pairing)


def _block_step(block: Block, weights_stay: bool) -> BlockStep:
    """``Block.forward`` for one vector of each row."""
    pre, network = block.norm_position == "pre", _network(block)
    attend = _attention_step(block, weights_stay)
    first, second = _norm(block.attention_norm), _norm(block.feed_forward_norm)

    def step(x: Tensor, cache: LayerCache, mask: Tensor | None, turn: Turn | None) -> Tensor:
        if pre:
            x = x + attend(first(x), cache, mask, turn)
            return x + network(second(x))
        x = first(x + attend(x, cache, mask, turn))
        return second(x + network(x))

    return step


def _attention_step(block: Block, weights_stay: bool) -> BlockStep:
    """``MultiHeadAttention.forward`` for one query of each row and head."""
    attention = _attention_of(block)
    project = _joined_projections(attention) if weights_stay else None
    project = project or _projections(attention)
    output = _product(attention.output)

    def step(x: Tensor, cache: LayerCache, mask: Tensor | None, turn: Turn | None) -> Tensor:
        q, k, v = project(x)
        if turn is not None:
            q, k = turn(q), turn(k)
        k, v = cache.append(k, v)  # (B, G, S, Dk)
        found = F.scaled_dot_product_attention(q, k, v, mask, scale=attention.scale)
        return output(found.reshape(x.shape[0], -1))

    return step


def _projections(attention: MultiHeadAttention) -> Projections:
    """Queries, keys and values of one vector of each row.

    The queries of heads that share keys become rows of one head: no key is copied.
    """
    query, key, value = map(_product, (attention.query, attention.key, attention.value))
    n_groups, d_head = attention.n_kv_heads, attention.d_head

    def project(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = x.shape[0]
        return (
            query(x).reshape(size, n_groups, -1, d_head),  # (B, G, H/G, Dk)
            key(x).reshape(size, n_groups, 1, d_head),
            value(x).reshape(size, n_groups, 1, d_head),
        )

    return project


def _joined_projections(attention: MultiHeadAttention) -> Projections | None:
    """The same as one product; ``None`` where it saves nothing, or layers are of other classes."""
    layers = (attention.query, attention.key, attention.value)
    if any(type(layer) is not nn.Linear for layer in layers):
        return None
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers]
    is_narrow = weights[0].device.type == "cpu" and weights[0].shape[1] <= JOIN_UP_TO
    are_alike = len({(w.dtype, b is None) for w, b in zip(weights, biases, strict=True)}) == 1
    if not (is_narrow and are_alike):
        return None
    weight = torch.cat(weights)  # (HDk + 2GDk, D)
    bias = None if biases[0] is None else torch.cat(biases)
    n_groups, n_heads, d_head = attention.n_kv_heads, attention.n_heads, attention.d_head

    def project(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = F.linear(x, weight, bias).view(x.shape[0], -1, 1, d_head)  # (B, H+2G, 1, Dk)
        q, k, v = heads.split((n_heads, n_groups, n_groups), dim=1)
        return q.view(x.shape[0], n_groups, -1, d_head), k, v

    return project


def _network(block: Block) -> Layer:
    """``FeedForward.forward`` without its check; a network of another class is called."""
    network = block.feed_forward
    if type(network) is not FeedForward:
        return _called(network)
    up, down = _product(network.up), _product(network.down)
    gate = None if network.gate is None else _product(network.gate)

    def step(x: Tensor) -> Tensor:
        if gate is None:
            return down(network.activation(up(x)))
        return down(network.activation(gate(x)) * up(x))

    return step


def _norm(layer: nn.Module) -> Layer:
    """``LayerNorm.forward`` without its checks; a norm of another class is called."""
    if type(layer) is not LayerNorm:
        return _called(layer)
    weights: dict[str, Any] = layer._parameters

    def step(x: Tensor) -> Tensor:
        weight = weights["weight"]
        if x.dtype != weight.dtype:
            normed: Tensor = layer(x)
            return normed
        return F.layer_norm(x, weight.shape, weight, weights.get("bias"), layer.eps)

    return step


def _product(layer: nn.Module) -> Layer:
    """``Linear.forward``; a layer of another class is called."""
    if type(layer) is not nn.Linear:
        return _called(layer)
    weights: dict[str, Any] = layer._parameters  # read in every step: weights may be exchanged
    return lambda x: F.linear(x, weights["weight"], weights["bias"])


def _called(layer: nn.Module) -> Layer:
    """A layer as a module, which is given one token of each row, ``(B, 1, D)``."""

    def call(x: Tensor) -> Tensor:
        result: Tensor = layer(x[:, None])
        return result[:, 0]

    return call
