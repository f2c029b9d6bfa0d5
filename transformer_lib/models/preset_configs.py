"""What the configurations of famous models have in common.

What these configurations leave out, since it changes no count. Of training: how each model draws
its first weights (only GPT-2 divides residual writes by the root of their number; T5 draws
embeddings with deviation 1), and dropout inside the feed-forward network (T5, ViT). Of the model
itself: every second layer of GPT-3 has sparse attention; here all are dense.
"""

from dataclasses import replace

from transformer_lib.core.config import RopeScaling, TransformerConfig

BASE = TransformerConfig()  # the defaults are the base model of 2017

BERT = TransformerConfig(
    vocab_size=30_522,
    d_model=768,
    n_heads=12,
    n_layers=12,
    attention_dropout=0.1,
    position="learned",
    norm_eps=1e-12,
    activation="gelu",
    scale_embeddings=False,
    norm_embeddings=True,
    n_segments=2,
    init="gpt2",
)

GPT2 = TransformerConfig(
    vocab_size=50_257,
    max_len=1024,
    d_model=768,
    n_heads=12,
    n_layers=12,
    attention_dropout=0.1,
    position="learned",
    norm_position="pre",
    activation="gelu_tanh",
    scale_embeddings=False,
    init="gpt2",
)

LLAMA_2 = TransformerConfig(
    vocab_size=32_000,
    max_len=4096,
    d_model=4096,
    n_heads=32,
    d_ff=11_008,
    n_layers=32,
    dropout=0.0,
    position="rope",
    norm="rms",
    norm_position="pre",
    activation="swiglu",
    bias=False,
    scale_embeddings=False,
    tie_embeddings=False,
    init="gpt2",
)

LLAMA_3 = replace(
    LLAMA_2, vocab_size=128_256, max_len=8192, n_kv_heads=8, d_ff=14_336, rope_theta=500_000.0
)

# The decoders that people run today. All follow LLaMA, and each says in what it differs.

LLAMA_31 = replace(
    LLAMA_3,
    max_len=131_072,
    rope_scaling=RopeScaling(kind="llama3", factor=8.0, trained_len=8192, fast_turns=4.0),
)
LLAMA_32 = replace(
    LLAMA_31,
    tie_embeddings=True,
    rope_scaling=RopeScaling(kind="llama3", factor=32.0, trained_len=8192, fast_turns=4.0),
)
MISTRAL = replace(
    LLAMA_2, vocab_size=32_768, max_len=32_768, n_kv_heads=8, d_ff=14_336, rope_theta=1e6
)
SMOLLM2 = replace(
    LLAMA_2, vocab_size=49_152, max_len=8192, rope_theta=100_000.0, tie_embeddings=True
)
QWEN2 = replace(
    LLAMA_2,
    vocab_size=151_936,
    max_len=32_768,
    rope_theta=1e6,
    norm_eps=1e-6,
    qkv_bias=True,
    tie_embeddings=True,
)
QWEN3 = replace(QWEN2, max_len=40_960, n_kv_heads=8, head_width=128, qkv_bias=None, qk_norm="head")
GEMMA2 = replace(
    LLAMA_2,
    vocab_size=256_000,
    max_len=8192,
    head_width=256,
    norm_position="both",
    norm_eps=1e-6,
    norm_offset=1.0,
    activation="geglu_tanh",
    scale_embeddings=True,
    tie_embeddings=True,
    attention_scale=256**-0.5,
    score_cap=50.0,
    logit_cap=30.0,
    window=4096,
    window_pattern="LG",
)
GEMMA3 = replace(
    GEMMA2,
    vocab_size=262_144,
    max_len=32_768,
    qk_norm="head",
    rope_theta=1e6,
    local_rope_theta=10_000.0,
    score_cap=None,
    logit_cap=None,
    window=512,
    window_pattern="LLLLLG",
)
OLMO2 = replace(
    LLAMA_2,
    vocab_size=100_352,
    rope_theta=500_000.0,
    norm_position="update",
    norm_eps=1e-6,
    qk_norm="all",
)

T5 = TransformerConfig(
    vocab_size=32_128,
    attention_dropout=0.1,
    position="t5",
    norm="rms",
    norm_position="pre",
    norm_eps=1e-6,
    bias=False,
    scale_embeddings=False,
    attention_scale=1.0,  # T5 folds the scale into how it draws its weights
    logit_scale=512**-0.5,
)

VIT = TransformerConfig(
    vocab_size=1,  # no text
    max_len=14 * 14 + 1,  # the patches and the class token
    d_model=768,
    n_heads=12,
    n_layers=12,
    position="learned",
    norm_position="pre",
    norm_eps=1e-6,
    activation="gelu",
    init="gpt2",
)
