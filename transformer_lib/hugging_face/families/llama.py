"""LLaMA, Mistral and SmolLM: RoPE, RMSNorm, a gate, shared keys."""

from dataclasses import replace
from typing import Any

from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.family import Family, LazyTensors, Settings, own_head_width
from transformer_lib.hugging_face.rope_settings import (
    one_rope_spelling,
    rope_scaling,
    rope_settings,
)
from transformer_lib.hugging_face.weight_layouts import ROTATED, Model
from transformer_lib.models.language_models import CausalLM
from transformer_lib.models.presets import PRESETS


def _build(config: TransformerConfig, settings: Settings, tensors: LazyTensors) -> CausalLM:
    return CausalLM(config)


def more_fields(settings: Settings) -> Settings:
    """Read the width of heads that do not share the stream's among them, and how RoPE is scaled.

    Args:
        settings: the content of ``config.json``, in one spelling.

    Returns:
        Values of our fields.

    Example:
        >>> more_fields(
        ...     {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}
        ... )
        {'rope_scaling': None, 'head_width': 32}
    """
    fields: Settings = {"rope_scaling": rope_scaling(settings)}
    if settings.get("head_dim") is not None:
        sizes: Settings = {"hidden_size": 4096, "num_attention_heads": 32} | settings
        fields["head_width"] = own_head_width(
            sizes, "hidden_size", "num_attention_heads", "head_dim"
        )
    return fields


def more_settings(model: Model) -> Settings:
    """Say what else is to be written: how RoPE is scaled.

    Args:
        model: the model.

    Returns:
        What comes on top in ``config.json``.

    Example:
        >>> more_settings(
        ...     CausalLM(replace(LLAMA.base, d_model=8, n_heads=2, n_layers=1))
        ... )
        {'rope_scaling': None}
    """
    return rope_settings(model.config)


LLAMA = Family(
    name="LLaMA",
    model_type="llama",
    architectures={"LlamaForCausalLM": _build},
    base=replace(PRESETS["llama-2-7b"].config, max_len=2048, norm_eps=1e-6, rope_pairing="split"),
    settings={
        "vocab_size": "vocab_size",
        "max_position_embeddings": "max_len",
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "head_dim": "d_head",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "n_layers",
        "attention_dropout": "attention_dropout",
        "rope_theta": "rope_theta",
        "rms_norm_eps": "norm_eps",
        "hidden_act": "activation",
        "tie_word_embeddings": "tie_embeddings",
    },
    activations={"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"},
    must_be={
        "attention_bias": False,
        "is_causal": True,
        "mlp_bias": False,
        "partial_rotary_factor": 1.0,
    },
    reads=("rope_parameters", "rope_scaling"),
    tensors={
        "embedding.tokens": "embed_tokens",
        "stack.blocks.N.attention.query": "layers.N.self_attn.q_proj",
        "stack.blocks.N.attention.key": "layers.N.self_attn.k_proj",
        "stack.blocks.N.attention.value": "layers.N.self_attn.v_proj",
        "stack.blocks.N.attention.output": "layers.N.self_attn.o_proj",
        "stack.blocks.N.attention_norm": "layers.N.input_layernorm",
        "stack.blocks.N.feed_forward.gate": "layers.N.mlp.gate_proj",
        "stack.blocks.N.feed_forward.up": "layers.N.mlp.up_proj",
        "stack.blocks.N.feed_forward.down": "layers.N.mlp.down_proj",
        "stack.blocks.N.feed_forward_norm": "layers.N.post_attention_layernorm",
        "stack.final_norm": "norm",
        "output.projection": "lm_head",
    },
    layouts={"q_proj": ROTATED, "k_proj": ROTATED, "q_norm": ROTATED, "k_norm": ROTATED},
    prefix="model.",
    copies={"lm_head.weight": "embed_tokens.weight"},
    ignored=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # a constant
    one_spelling=one_rope_spelling,
    more_fields=more_fields,
    more_settings=more_settings,
)

# Norms on queries and keys, where a family has them.
QUERY_KEY_NORMS = {
    "stack.blocks.N.attention.query_norm": "layers.N.self_attn.q_norm",
    "stack.blocks.N.attention.key_norm": "layers.N.self_attn.k_norm",
}


def like_llama(
    name: str, model_type: str, architecture: str, base: TransformerConfig, **differences: Any
) -> Family:
    """Make a family of decoders whose files differ from LLaMA's in a few places.

    Args:
        name: what people call it.
        model_type: what its ``config.json`` calls it.
        architecture: its class of ``transformers``.
        base: what a file means that leaves all keys out.
        differences: fields of a :class:`~transformer_lib.hugging_face.family.Family`; of
            ``settings``, ``tensors``, ``must_be`` and ``reads`` only what comes on top.

    Returns:
        The family.

    Example:
        >>> like_llama(
        ...     "Ours", "ours", "OursForCausalLM", LLAMA.base
        ... ).architectures.keys()
        dict_keys(['OursForCausalLM'])
    """
    for key in ("settings", "tensors", "must_be"):
        differences[key] = {**getattr(LLAMA, key), **differences.get(key, {})}
    differences["reads"] = (*LLAMA.reads, *differences.get("reads", ()))
    return replace(
        LLAMA,
        name=name,
        model_type=model_type,
        architectures={architecture: _build},
        base=base,
        **differences,
    )


def _mistral_fields(settings: Settings) -> Settings:
    return more_fields(settings) | {"window": settings.get("sliding_window", 4096)}


def _mistral_settings(model: Model) -> Settings:
    return more_settings(model) | {"sliding_window": model.config.window}


MISTRAL = like_llama(
    "Mistral",
    "mistral",
    "MistralForCausalLM",
    replace(LLAMA.base, max_len=131_072, n_kv_heads=8, d_ff=14_336),
    reads=("sliding_window",),
    more_fields=_mistral_fields,
    more_settings=_mistral_settings,
)
