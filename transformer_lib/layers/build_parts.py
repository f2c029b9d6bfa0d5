"""What a block is made of: the seam for parts of one's own."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from torch import nn

from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.feedforward import make_feed_forward
from transformer_lib.layers.norms import make_norm
from transformer_lib.layers.qk_norm_softcap import BoundedAttention

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

    The configuration says of RoPE what holds for the part: in layers with a window ``rope_theta``
    and ``rope_scaling`` may be others, and for cross-attention ``rope_scaling`` is ``None``.

    A model keeps these functions, and can be pickled with them: by ``torch.save``, or on its way to
    another process. Of one that pickle cannot find by its name, such as a lambda, only the name is
    kept. The model that comes out works; another one cannot be made with its ``parts``.

    Args:
        attention: makes what is called like
            :class:`~transformer_lib.layers.attention.MultiHeadAttention`; a subclass of it that
            overrides one of its steps is the least work.
        feed_forward: makes what takes vectors ``(..., D)`` and returns such.
        norm: makes what takes vectors ``(..., D)`` and returns such.

    Example:
        >>> from transformer_lib import CausalLM
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

    def __copy__(self) -> "Parts":
        return self  # it never changes, and copies of a model are made by the same functions

    def __deepcopy__(self, memo: dict[int, object]) -> "Parts":
        return self

    def __reduce__(self) -> tuple[Callable[..., "Parts"], tuple[dict[str, MakePart]]]:
        makers = {field.name: getattr(self, field.name) for field in fields(self)}
        return _parts_of, ({name: _or_its_name(make) for name, make in makers.items()},)


def _parts_of(makers: dict[str, MakePart]) -> Parts:
    return Parts(**makers)


def _or_its_name(make: MakePart) -> MakePart:
    """What makes a part, or what is left of it where pickle cannot take it along."""
    try:
        pickle.dumps(make)
    except Exception:  # each kind of object has its own
        return _Lost(make.__module__, getattr(make, "__qualname__", type(make).__qualname__))
    return make


class _Lost:
    """What is left of a maker that was not pickled: its name."""

    def __init__(self, module: str, name: str) -> None:
        self.__module__, self.__qualname__ = module, name

    def __call__(self, config: TransformerConfig) -> NoReturn:
        name = f"{self.__module__}.{self.__qualname__}"
        advice = "give parts=Parts(...) anew"
        raise ValueError(f"{name} makes a part, and could not be pickled: {advice}")


STANDARD_PARTS = Parts()
