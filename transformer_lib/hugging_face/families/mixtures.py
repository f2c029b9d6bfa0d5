"""Mixtral and Qwen 3 MoE: LLaMA with a mixture of experts."""

from dataclasses import replace

from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.families.llama import (
    LLAMA,
    MISTRAL,
    QUERY_KEY_NORMS,
    like_llama,
    more_fields,
    more_settings,
)
from transformer_lib.hugging_face.families.qwen import QWEN3
from transformer_lib.hugging_face.family import Settings, check_setting, one_name
from transformer_lib.hugging_face.rope_settings import one_rope_spelling
from transformer_lib.hugging_face.weight_layouts import Model

_EXPERT = "stack.blocks.N.feed_forward.experts.N"
_ROUTER = "stack.blocks.N.feed_forward.router"


def _mixtral_spelling(settings: Settings) -> Settings:
    settings = one_name(settings, {"num_experts": "num_local_experts"})
    return one_rope_spelling(settings | {"rope_theta": settings.get("rope_theta") or 1_000_000.0})


def _mixtral_fields(settings: Settings) -> Settings:
    return more_fields(settings) | {"window": settings.get("sliding_window")}


def _mixtral_settings(model: Model) -> Settings:
    return more_settings(model) | {"sliding_window": model.config.window}


def _at_least_two(config: TransformerConfig, settings: Settings) -> TransformerConfig:
    """One expert alone would count fully there; ours counts as much as the router says."""
    if config.active_experts == 1:
        raise ValueError("config.json has num_experts_per_tok=1; our models need 2 or more here")
    return config


MIXTRAL = like_llama(
    "Mixtral",
    "mixtral",
    "MixtralForCausalLM",
    replace(MISTRAL.base, n_experts=8, active_experts=2, norm_eps=1e-5, rope_theta=1_000_000.0),
    settings={"num_local_experts": "n_experts", "num_experts_per_tok": "active_experts"},
    must_be={"router_jitter_noise": 0.0},
    reads=("sliding_window", "num_experts"),
    tensors={
        f"{_EXPERT}.gate": "layers.N.block_sparse_moe.experts.N.w1",
        f"{_EXPERT}.up": "layers.N.block_sparse_moe.experts.N.w3",
        f"{_EXPERT}.down": "layers.N.block_sparse_moe.experts.N.w2",
        _ROUTER: "layers.N.block_sparse_moe.gate",
    },
    one_spelling=_mixtral_spelling,
    more_fields=_mixtral_fields,
    more_settings=_mixtral_settings,
    finish=_at_least_two,
)


def _qwen_spelling(settings: Settings) -> Settings:
    return one_rope_spelling(one_name(settings, {"num_local_experts": "num_experts"}))


def _qwen_fields(settings: Settings) -> Settings:
    """All layers have the window, or none: there is no pattern here."""
    uses = settings.get("use_sliding_window")
    window = settings.get("sliding_window", 4096) if uses else None
    return more_fields(settings) | {"window": window}


def _qwen_settings(model: Model) -> Settings:
    config = model.config
    return more_settings(model) | {
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "norm_topk_prob": config.active_experts > 1,
    }


def _scaled_as_ours(config: TransformerConfig, settings: Settings) -> TransformerConfig:
    """Our mixture scales the weights of several experts to a sum of 1, and leaves a single one."""
    scaled = bool(settings.get("norm_topk_prob"))
    check_setting("norm_topk_prob", scaled, config.active_experts > 1)
    return config


# There, ``intermediate_size`` is the width of layers without experts, and all layers have some.
_QWEN_KEYS = {
    **{key: ours for key, ours in LLAMA.settings.items() if key != "intermediate_size"},
    "moe_intermediate_size": "d_ff",
    "num_experts": "n_experts",
    "num_experts_per_tok": "active_experts",
}
QWEN3_MOE = replace(
    like_llama(
        "Qwen 3 MoE",
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        replace(
            QWEN3.base,
            d_model=2048,
            n_heads=32,
            n_kv_heads=4,
            n_layers=24,
            d_ff=768,
            n_experts=128,
            active_experts=8,
        ),
        must_be={"decoder_sparse_step": 1, "mlp_only_layers": []},
        reads=("use_sliding_window", "sliding_window", "norm_topk_prob", "num_local_experts"),
        tensors={
            **QUERY_KEY_NORMS,
            f"{_EXPERT}.gate": "layers.N.mlp.experts.N.gate_proj",
            f"{_EXPERT}.up": "layers.N.mlp.experts.N.up_proj",
            f"{_EXPERT}.down": "layers.N.mlp.experts.N.down_proj",
            _ROUTER: "layers.N.mlp.gate",
        },
        one_spelling=_qwen_spelling,
        more_fields=_qwen_fields,
        more_settings=_qwen_settings,
        finish=_scaled_as_ours,
    ),
    settings=_QWEN_KEYS,
)
