"""Qwen 2 and 3: LLaMA with biases on Q, K, V, or with norms."""

from dataclasses import replace

from transformer_lib.hugging_face.families.llama import (
    LLAMA,
    QUERY_KEY_NORMS,
    like_llama,
    more_fields,
    more_settings,
)
from transformer_lib.hugging_face.family import Settings, whole_setting
from transformer_lib.hugging_face.sliding_windows import layer_types, read_pattern
from transformer_lib.hugging_face.weight_layouts import Model

_BASE = replace(LLAMA.base, vocab_size=151_936, max_len=32_768, n_kv_heads=32, d_ff=22_016)


def _fields(settings: Settings) -> Settings:
    """Read the window of the last layers too, if it is in use at all."""
    fields = more_fields(settings)
    if not settings.get("use_sliding_window"):
        return fields
    n_layers = whole_setting({"num_hidden_layers": _BASE.n_layers} | settings, "num_hidden_layers")
    first = whole_setting({"max_window_layers": 28} | settings, "max_window_layers", least=0)
    pattern = "G" * min(first, n_layers) + "L" * (n_layers - first)
    if settings.get("layer_types") is not None:
        pattern = read_pattern(settings)
    window = settings.get("sliding_window", 4096)
    return fields | {"window": window if "L" in pattern else None, "window_pattern": pattern}


def _qwen3_fields(settings: Settings) -> Settings:
    return _fields({"head_dim": 128} | settings)


def _settings(model: Model) -> Settings:
    config = model.config
    uses = config.window is not None
    return more_settings(model) | {
        "use_sliding_window": uses,
        "sliding_window": config.window,
        "layer_types": layer_types(config) if uses else None,
    }


QWEN2 = like_llama(
    "Qwen 2",
    "qwen2",
    "Qwen2ForCausalLM",
    replace(_BASE, qkv_bias=True),
    reads=("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    more_fields=_fields,
    more_settings=_settings,
)
QWEN3 = like_llama(
    "Qwen 3",
    "qwen3",
    "Qwen3ForCausalLM",
    replace(_BASE, qk_norm="head"),
    tensors=QUERY_KEY_NORMS,
    reads=QWEN2.reads,
    more_fields=_qwen3_fields,
    more_settings=_settings,
)
