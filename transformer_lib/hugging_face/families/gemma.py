"""Gemma 1, and Gemma 2 and 3 with norms on both sides, local and global layers."""

from dataclasses import replace

from transformer_lib.hugging_face.families.llama import (
    QUERY_KEY_NORMS,
    like_llama,
    more_fields,
    more_settings,
)
from transformer_lib.hugging_face.family import (
    Settings,
    check_setting,
    number_setting,
    whole_setting,
)
from transformer_lib.hugging_face.rope_settings import one_rope_spelling, rope_object, rope_settings
from transformer_lib.hugging_face.sliding_windows import layer_types, read_pattern
from transformer_lib.hugging_face.weight_layouts import Model
from transformer_lib.models.presets import PRESETS

_NORMS = {
    "stack.blocks.N.attention_norm": "layers.N.input_layernorm",
    "stack.blocks.N.attention_update_norm": "layers.N.post_attention_layernorm",
    "stack.blocks.N.feed_forward_norm": "layers.N.pre_feedforward_layernorm",
    "stack.blocks.N.feed_forward_update_norm": "layers.N.post_feedforward_layernorm",
}
_GEMMA2 = replace(PRESETS["gemma-2-2b"].config, rope_pairing="split")
_READS = (
    "query_pre_attn_scalar", "layer_types", "sliding_window_pattern", "_sliding_window_pattern",
    "sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "rope_local_base_freq",
)  # fmt: skip


def _gemma1_fields(settings: Settings) -> Settings:
    return more_fields({"head_dim": 256} | settings)


GEMMA1 = like_llama(
    "Gemma 1",
    "gemma",
    "GemmaForCausalLM",
    replace(
        _GEMMA2,
        vocab_size=256_000,
        d_model=3072,
        n_heads=16,
        n_kv_heads=16,
        d_ff=24_576,
        n_layers=28,
        norm_position="pre",
        attention_scale=None,
        score_cap=None,
        logit_cap=None,
        window=None,
        window_pattern="L",
    ),
    # The first files say "gelu" and mean its approximation.
    activations={"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu_tanh", "silu": "swiglu"},
    must_be={"use_bidirectional_attention": False},
    more_fields=_gemma1_fields,
)


def _fields(settings: Settings, period: int) -> Settings:
    """Read scale and windows; a key with null says no, one that is missing the default."""
    key = "query_pre_attn_scalar"
    scalar = 256.0 if settings.get(key) is None else number_setting(settings, key)
    pattern = "L" * (period - 1) + "G"
    if settings.get("layer_types") is not None:
        pattern = read_pattern(settings)
    return more_fields(settings) | {
        "attention_scale": scalar**-0.5,
        "window": settings.get("sliding_window", 4096),
        "window_pattern": pattern,
    }


def _settings(model: Model) -> Settings:
    config = model.config
    scalar = (config.attention_scale or config.d_head**-0.5) ** -2
    if round(scalar) ** -0.5 == config.attention_scale:
        scalar = round(scalar)
    return more_settings(model) | {
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": config.score_cap,
        "final_logit_softcapping": config.logit_cap,
        "sliding_window": config.window,
        "layer_types": layer_types(config),
    }


def _with_activation(settings: Settings) -> Settings:
    """Say the activation even if the file does not; an older ``hidden_act`` does not count."""
    return {"hidden_activation": "gelu_pytorch_tanh"} | settings | {"hidden_act": None}


def _gemma2_spelling(settings: Settings) -> Settings:
    return one_rope_spelling(_with_activation(settings))


def _gemma2_fields(settings: Settings) -> Settings:
    """Every other layer is local; ``sliding_window_pattern`` does not count."""
    return _fields(settings, period=2) | {
        "score_cap": settings.get("attn_logit_softcapping", 50.0),
        "logit_cap": settings.get("final_logit_softcapping", 30.0),
    }


GEMMA2 = like_llama(
    "Gemma 2",
    "gemma2",
    "Gemma2ForCausalLM",
    _GEMMA2,
    settings={"hidden_activation": "activation"},
    must_be={"use_bidirectional_attention": False},
    tensors=_NORMS,
    reads=_READS,
    one_spelling=_gemma2_spelling,
    more_fields=_gemma2_fields,
    more_settings=_settings,
)


def _two_bases(settings: Settings) -> Settings:
    """Say in ``rope_theta``, ``rope_scaling`` and ``rope_local_base_freq`` what newer files say.

    ``rope_scaling`` changes what ``rope_parameters`` say of global layers, as in ``transformers``.
    """
    both, scaling = (rope_object(settings, key) for key in ("rope_parameters", "rope_scaling"))
    if both.keys() - {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"config.json has rope_parameters={both!r}; Gemma 3 needs an object with "
            "full_attention and sliding_attention, and nothing else"
        )
    if "type" in scaling and "rope_type" not in scaling:  # transformers would not look at it
        raise ValueError(f"config.json has rope_scaling={scaling!r}; Gemma 3 needs its rope_type")
    rope = rope_object(both, "full_attention") | scaling
    check_setting("truncate", rope.get("truncate", True), True)  # nor at this one
    local = rope_object(both, "sliding_attention")
    check_setting("rope_type", local.get("rope_type", local.get("type", "default")), "default")
    local_theta = local.get("rope_theta", settings.get("rope_local_base_freq"))
    settings = {"rope_theta": 1_000_000.0} | _with_activation(settings)
    settings |= {"rope_parameters": None, "rope_scaling": rope, "rope_local_base_freq": local_theta}
    return one_rope_spelling(settings)


def _gemma3_fields(settings: Settings) -> Settings:
    """There is no cap on scores: transformers knows the key, and does not look at it."""
    key = "sliding_window_pattern"
    period = whole_setting({key: settings.get(key) or 6}, key)
    theta = settings.get("rope_local_base_freq")
    return _fields(settings, period) | {
        "score_cap": None,
        "logit_cap": settings.get("final_logit_softcapping"),
        "local_rope_theta": 10_000.0 if theta is None else theta,
    }


def _gemma3_settings(model: Model) -> Settings:
    config = model.config
    scaling = rope_settings(config)["rope_scaling"]
    everywhere = {"rope_type": "default", "rope_theta": config.rope_theta}
    rope = everywhere | scaling if isinstance(scaling, dict) else everywhere
    local = everywhere | {"rope_theta": config.local_rope_theta or config.rope_theta}
    both = {"full_attention": rope, "sliding_attention": local}
    return _settings(model) | {"rope_parameters": both, "rope_scaling": None, "rope_theta": None}


GEMMA3 = like_llama(
    "Gemma 3",
    "gemma3_text",
    "Gemma3ForCausalLM",
    replace(
        _GEMMA2,
        vocab_size=262_208,
        max_len=131_072,
        qk_norm="head",
        rope_theta=1_000_000.0,
        score_cap=None,
        logit_cap=None,
    ),
    settings={"hidden_activation": "activation"},
    must_be={"use_bidirectional_attention": False},
    tensors={**_NORMS, **QUERY_KEY_NORMS},
    reads=_READS,
    one_spelling=_two_bases,
    more_fields=_gemma3_fields,
    more_settings=_gemma3_settings,
)
