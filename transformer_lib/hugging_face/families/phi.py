"""Phi-3: LLaMA with projections joined into one matrix."""

from dataclasses import replace

from transformer_lib.hugging_face.families.llama import (
    LLAMA,
    like_llama,
    more_fields,
    more_settings,
)
from transformer_lib.hugging_face.family import Settings, check_setting
from transformer_lib.hugging_face.rope_settings import one_rope_spelling, rope_object
from transformer_lib.hugging_face.weight_layouts import JOINED_GATE, JOINED_QKV, Model


def _one_spelling(settings: Settings) -> Settings:
    """Say which part of a head turns in one place, and refuse all scaling.

    What is called YaRN elsewhere would mean another one here.
    """
    key = "partial_rotary_factor"
    for place in ("rope_parameters", "rope_scaling"):  # the second takes the place of the first
        if rope := rope_object(settings, place):
            settings = settings | {key: rope.get(key, settings.get(key)), place: rope | {key: None}}
    settings = one_rope_spelling(settings)
    check_setting("rope_scaling", settings["rope_scaling"], None)
    return settings


def _fields(settings: Settings) -> Settings:
    return more_fields(settings) | {"window": settings.get("sliding_window")}


def _settings(model: Model) -> Settings:
    return more_settings(model) | {"sliding_window": model.config.window}


PHI3 = like_llama(
    "Phi-3",
    "phi3",
    "Phi3ForCausalLM",
    replace(
        LLAMA.base,
        vocab_size=32_064,
        max_len=4096,
        d_model=3072,
        d_ff=8192,
        n_kv_heads=32,
        norm_eps=1e-5,
        dropout=0.0,
    ),
    settings={
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "partial_rotary_factor": "rope_fraction",
    },
    # Files name code of their own (auto_map) from when transformers did not have this family.
    reads=("sliding_window", "original_max_position_embeddings", "auto_map"),
    tensors={
        "stack.blocks.N.attention.query": "layers.N.self_attn.qkv_proj",
        "stack.blocks.N.attention.key": "layers.N.self_attn.qkv_proj",
        "stack.blocks.N.attention.value": "layers.N.self_attn.qkv_proj",
        "stack.blocks.N.feed_forward.gate": "layers.N.mlp.gate_up_proj",
        "stack.blocks.N.feed_forward.up": "layers.N.mlp.gate_up_proj",
    },
    layouts={"qkv_proj": JOINED_QKV, "gate_up_proj": JOINED_GATE},
    one_spelling=_one_spelling,
    more_fields=_fields,
    more_settings=_settings,
)
