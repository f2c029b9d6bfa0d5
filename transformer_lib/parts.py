"""What a block is made of: the seam for parts of one's own."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from transformer_lib.attention import make_attention
from transformer_lib.config import TransformerConfig
from transformer_lib.feedforward import make_feed_forward
from transformer_lib.norms import make_norm

MakePart = Callable[[TransformerConfig], nn.Module]


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
        >>> model = CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2), parts=parts)
        >>> type(model.decoder.stack.blocks[0].attention_norm).__module__
        'torch.nn.modules.normalization'
    """

    attention: MakePart = make_attention
    feed_forward: MakePart = make_feed_forward
    norm: MakePart = make_norm


STANDARD_PARTS = Parts()
