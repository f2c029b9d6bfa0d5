"""LLaMA: a decoder with RoPE, RMSNorm, a gate, and shared keys and values."""

from dataclasses import replace

from transformer_lib.config import TransformerConfig
from transformer_lib.hugging_face.family import Family, Settings, Tensors
from transformer_lib.hugging_face.layouts import ROTATED
from transformer_lib.models import CausalLM
from transformer_lib.presets import PRESETS


def _build(config: TransformerConfig, settings: Settings, tensors: Tensors) -> CausalLM:
    return CausalLM(config)


def _one_spelling(settings: Settings) -> Settings:
    """Say in ``rope_theta`` and ``rope_scaling`` what newer files say in ``rope_parameters``."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    theta = settings.get("rope_theta")
    if isinstance(rope, dict) and rope.keys() <= {"rope_type", "type", "rope_theta"}:
        theta = rope.get("rope_theta", theta)
        if rope.get("rope_type", rope.get("type", "default")) == "default":
            rope = None  # nothing is scaled
    return settings | {"rope_theta": theta, "rope_scaling": rope}


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
    known=("rope_parameters", "pretraining_tp", "max_sequence_length"),
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
    layouts={"q_proj": ROTATED, "k_proj": ROTATED},
    prefix="model.",
    copies={"lm_head.weight": "embed_tokens.weight"},
    ignored=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # a constant
    one_spelling=_one_spelling,
)
