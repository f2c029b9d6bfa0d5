"""OLMo 2: LLaMA with norms behind sublayers and on Q and K."""

from dataclasses import replace

from transformer_lib.hugging_face.families.llama import LLAMA, QUERY_KEY_NORMS, like_llama

OLMO2 = like_llama(
    "OLMo 2",
    "olmo2",
    "Olmo2ForCausalLM",
    replace(LLAMA.base, vocab_size=50_304, norm_eps=1e-5, norm_position="update", qk_norm="all"),
    tensors={
        **QUERY_KEY_NORMS,
        "stack.blocks.N.attention_norm": "layers.N.post_attention_layernorm",
        "stack.blocks.N.feed_forward_norm": "layers.N.post_feedforward_layernorm",
    },
)
