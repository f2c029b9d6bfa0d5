"""SmolLM3: LLaMA with some layers that have no RoPE."""

from dataclasses import replace

from transformer_lib.hugging_face.families.llama import (
    LLAMA,
    like_llama,
    more_fields,
    more_settings,
)
from transformer_lib.hugging_face.family import Settings, whole_setting
from transformer_lib.hugging_face.rope_settings import one_rope_spelling
from transformer_lib.hugging_face.sliding_windows import layer_types, read_pattern
from transformer_lib.hugging_face.weight_layouts import Model

_BASE = replace(
    LLAMA.base,
    vocab_size=128_256,
    max_len=32_768,
    d_model=2048,
    n_heads=16,
    n_kv_heads=4,
    d_ff=11_008,
    n_layers=36,
    rope_theta=2_000_000.0,
    tie_embeddings=True,
)


def _one_spelling(settings: Settings) -> Settings:
    return one_rope_spelling(settings | {"rope_theta": settings.get("rope_theta") or 2_000_000.0})


def _rope_pattern(settings: Settings, n_layers: int) -> str:
    """Read which layers have RoPE: in spite of its name, the list has a 1 for those."""
    turned = settings.get("no_rope_layers")
    if turned is None:
        interval = whole_setting({"no_rope_layer_interval": 4} | settings, "no_rope_layer_interval")
        return "".join("RN"[(layer + 1) % interval == 0] for layer in range(n_layers))
    if not isinstance(turned, list) or len(turned) < n_layers or not set(turned) <= {0, 1}:
        raise ValueError(
            f"config.json has no_rope_layers={turned!r}; expected a list of {n_layers} zeros and "
            "ones, one for each layer"
        )
    return "".join("NR"[int(one)] for one in turned[:n_layers])


def _fields(settings: Settings) -> Settings:
    """Where ``layer_types`` do not say it, layers without RoPE have the window, if it is in use."""
    key = "num_hidden_layers"
    n_layers = whole_setting({key: _BASE.n_layers} | settings, key)
    pattern = _rope_pattern(settings, n_layers)
    uses, local = settings.get("use_sliding_window"), "G"
    if settings.get("layer_types") is not None:  # transformers asks nothing else then
        local = read_pattern(settings)
    elif uses:
        local = "".join("GL"[letter == "N"] for letter in pattern)
    window = settings.get("sliding_window") if "L" in local else None
    windows = {"window": window, "window_pattern": local}
    return more_fields(settings) | {"rope_pattern": pattern} | windows


def _settings(model: Model) -> Settings:
    config = model.config
    layers = range(config.n_layers)
    return more_settings(model) | {
        "no_rope_layers": [int(config.has_rope(layer)) for layer in layers],
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "layer_types": layer_types(config),
    }


SMOLLM3 = like_llama(
    "SmolLM3",
    "smollm3",
    "SmolLM3ForCausalLM",
    _BASE,
    reads=(
        "no_rope_layers", "no_rope_layer_interval", "use_sliding_window", "sliding_window",
        "layer_types",
    ),
    one_spelling=_one_spelling,
    more_fields=_fields,
    more_settings=_settings,
)  # fmt: skip
