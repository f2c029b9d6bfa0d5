"""GPT-2: a decoder with learned positions and fused projections."""

from functools import partial

from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.family import (
    ACTIVATION_NAMES,
    Family,
    LazyTensors,
    Settings,
    one_name,
)
from transformer_lib.hugging_face.weight_layouts import FUSED, TRANSPOSED
from transformer_lib.models.language_models import CausalLM
from transformer_lib.models.presets import PRESETS

_SECOND_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def _build(config: TransformerConfig, settings: Settings, tensors: LazyTensors) -> CausalLM:
    return CausalLM(config)


GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    architectures={"GPT2LMHeadModel": _build, "GPT2Model": _build},
    base=PRESETS["gpt2"].config,
    settings={
        "vocab_size": "vocab_size",
        "n_positions": "max_len",
        "n_embd": "d_model",
        "n_head": "n_heads",
        "n_inner": "d_ff",
        "n_layer": "n_layers",
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
        "layer_norm_epsilon": "norm_eps",
        "activation_function": "activation",
        "tie_word_embeddings": "tie_embeddings",
    },
    activations=ACTIVATION_NAMES,
    must_be={
        "is_causal": True,
        "reorder_and_upcast_attn": False,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
    },
    tensors={
        "embedding.tokens": "wte",
        "embedding.positions.table": "wpe",
        "stack.blocks.N.attention.query": "h.N.attn.c_attn",
        "stack.blocks.N.attention.key": "h.N.attn.c_attn",
        "stack.blocks.N.attention.value": "h.N.attn.c_attn",
        "stack.blocks.N.attention.output": "h.N.attn.c_proj",
        "stack.blocks.N.attention_norm": "h.N.ln_1",
        "stack.blocks.N.feed_forward.up": "h.N.mlp.c_fc",
        "stack.blocks.N.feed_forward.down": "h.N.mlp.c_proj",
        "stack.blocks.N.feed_forward_norm": "h.N.ln_2",
        "stack.final_norm": "ln_f",
        "output.projection": "lm_head",
    },
    layouts={"c_attn": FUSED, "c_proj": TRANSPOSED, "c_fc": TRANSPOSED},
    prefix="transformer.",
    copies={"lm_head.weight": "wte.weight"},
    one_spelling=partial(one_name, names=_SECOND_NAMES),
    ignored=(r"h\.\d+\.attn\.(bias|masked_bias)",),  # the causal mask
)
