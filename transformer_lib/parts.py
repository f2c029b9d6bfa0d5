"""What a block is made of: the seam for parts of one's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from transformer_lib.attention import MultiHeadAttention
from transformer_lib.bounded import BoundedAttention
from transformer_lib.config import TransformerConfig
from transformer_lib.feedforward import make_feed_forward
from transformer_lib.norms import make_norm

MakePart = Callable[[TransformerConfig], nn.Module]


def make_attention(config: TransformerConfig) -> MultiHeadAttention:
    """Build the attention that a configuration asks for.

    Args:
        config: all that it says of heads, projections and scores is read.

    Returns:
        A new multi-head attention.

    Example:
        >>> make_attention(TransformerConfig(d_model=8, n_heads=4)).d_head
        2
    """
    choices: dict[str, Any] = {
        "d_model": config.d_model,
        "n_heads": config.n_heads,
        "n_kv_heads": config.n_kv_heads,
        "d_head": config.d_head,
        "bias": config.bias,
        "qkv_bias": config.qkv_bias,
        "scale": config.score_scale,
        "dropout": config.attention_dropout,
        "pairing": config.rope_pairing,
    }
    if config.qk_norm == "none" and config.score_cap is None:
        return MultiHeadAttention(**choices)
    return BoundedAttention(config, **choices)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How each part of a model is made of its configuration. Any of them may be another one.

    Args:
        attention: makes what is called like
            :class:`~transformer_lib.attention.MultiHeadAttention`; a subclass of it that overrides
            one of its steps is the least work.
        feed_forward: makes what takes vectors ``(..., D)`` and returns such.
        norm: makes what takes vectors ``(..., D)`` and returns such.

    Example:
        >>> from transformer_lib.models import CausalLM
        >>> parts = Parts(norm=lambda config: nn.LayerNorm(config.d_model))
        >>> model = CausalLM(
        ...     TransformerConfig(vocab_size=100, d_model=8, n_heads=2),
        ...     parts=parts,
        ... )
        >>> type(model.decoder.stack.blocks[0].attention_norm).__module__
        'torch.nn.modules.normalization'
    """

    attention: MakePart = make_attention
    feed_forward: MakePart = make_feed_forward
    norm: MakePart = make_norm


STANDARD_PARTS = Parts()
