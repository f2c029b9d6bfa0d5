"""What the ``config.json`` of published checkpoints says, and the same with sizes that are tiny.

The flags, the ratios and the scalings are those of the files on the hub, as other public
repositories repeat them; keys that all files of a kind share are named once. :func:`shrunk` leaves
them and makes the sizes small: as many heads share keys, a head is wider than its share of the
stream by the same factor, layers change kind alike.
"""

_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11_008,
    "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None,
    "rope_theta": 10_000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 32_000,
}  # fmt: skip
_LLAMA_3 = {
    **_LLAMA, "bos_token_id": 128_000, "eos_token_id": [128_001, 128_008, 128_009],
    "intermediate_size": 14_336, "max_position_embeddings": 131_072, "mlp_bias": False,
    "num_key_value_heads": 8, "rope_theta": 500_000.0, "vocab_size": 128_256,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
_SMOLLM2 = {
    **_LLAMA, "bos_token_id": 0, "eos_token_id": 0, "is_llama_config": True,
    "max_position_embeddings": 8192, "rope_interleaved": False, "rope_theta": 100_000,
    "tie_word_embeddings": True, "vocab_size": 49_152,
}  # fmt: skip
_MISTRAL = {
    **_LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
    "intermediate_size": 14_336, "max_position_embeddings": 32_768, "num_key_value_heads": 8,
    "sliding_window": 4096,
}  # fmt: skip
for _key in ("attention_bias", "pretraining_tp", "rope_scaling"):
    del _MISTRAL[_key]
_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "attention_dropout": 0.0,
    "bos_token_id": 151_643, "eos_token_id": 151_643, "hidden_act": "silu", "hidden_size": 896,
    "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 131_072,
    "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
    "sliding_window": 131_072, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 151_936,
}  # fmt: skip
_QWEN3 = {
    **_QWEN2, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "attention_bias": False, "head_dim": 128, "hidden_size": 1024, "intermediate_size": 3072,
    "max_position_embeddings": 40_960, "max_window_layers": 28, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "rope_scaling": None,
    "rope_theta": 1_000_000, "sliding_window": None,
}  # fmt: skip
_GEMMA = {
    "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256,
    "hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 16_384, "max_position_embeddings": 8192, "num_attention_heads": 8,
    "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-6,
    "rope_scaling": None, "rope_theta": 10_000.0, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 256_000,
}  # fmt: skip
_GEMMA2 = {
    **_GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2",
    "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}  # fmt: skip
_PHI3 = {
    **_LLAMA, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "embd_pdrop": 0.0,
    "eos_token_id": 32_000, "hidden_size": 3072, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
    "pad_token_id": 32_000, "resid_pdrop": 0.0, "sliding_window": 2047, "vocab_size": 32_064,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
}  # fmt: skip
_LONGROPE = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}
_GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
    "attn_pdrop": 0.1, "bos_token_id": 50_256, "embd_pdrop": 0.1, "eos_token_id": 50_256,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_embd": 768,
    "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50_257,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}  # fmt: skip
_BERT = {
    "architectures": ["BertForMaskedLM"], "model_type": "bert",
    "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
    "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
    "position_embedding_type": "absolute", "type_vocab_size": 2, "use_cache": True,
    "vocab_size": 30_522,
}  # fmt: skip
_T5 = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_ff": 2048, "d_kv": 64,
    "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-6,
    "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True, "pad_token_id": 0,
    "relative_attention_num_buckets": 32, "use_cache": True, "vocab_size": 32_128,
}  # fmt: skip
_T5_NEWER = {
    **_T5, "d_ff": 1024, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 8,
    "num_heads": 6, "num_layers": 8, "tie_word_embeddings": False,
}  # fmt: skip

READ = {  # those that must say what transformers says
    "Llama-2-7b": _LLAMA,
    "CodeLlama-7b": {
        **_LLAMA, "max_position_embeddings": 16_384, "rope_theta": 1_000_000, "vocab_size": 32_016,
    },
    "TinyLlama-1.1B": {
        **_LLAMA, "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 2048,
        "num_hidden_layers": 22, "num_key_value_heads": 4,
    },
    "Yi-6B": {**_LLAMA, "num_key_value_heads": 4, "rope_theta": 5_000_000.0, "vocab_size": 64_000},
    "Meta-Llama-3-8B": {
        **_LLAMA_3, "eos_token_id": 128_001, "max_position_embeddings": 8192, "rope_scaling": None,
    },
    "Llama-3.1-8B-Instruct": _LLAMA_3,
    "Llama-3.2-1B": {
        **_LLAMA_3, "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "tie_word_embeddings": True,
        "rope_scaling": {**_LLAMA_3["rope_scaling"], "factor": 32.0},
    },
    "SmolLM2-135M": {
        **_SMOLLM2, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
        "num_hidden_layers": 30, "num_key_value_heads": 3,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    },
    "SmolLM2-1.7B": {
        **_SMOLLM2, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
        "rope_theta": 130_000,
    },
    "SmolLM3-3B": {
        **_LLAMA_3, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3",
        "eos_token_id": 128_012, "hidden_size": 2048, "intermediate_size": 11_008,
        "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65_536,
        "max_window_layers": 28, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
        "pad_token_id": 128_004, "pretraining_tp": 2, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 5_000_000.0, "sliding_window": None, "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "Mistral-7B-v0.1": _MISTRAL,
    "Mistral-7B-Instruct-v0.3": {
        **_MISTRAL, "rope_theta": 1_000_000.0, "sliding_window": None, "vocab_size": 32_768,
    },
    "Mistral-Nemo-Instruct-2407": {
        **_MISTRAL, "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 131_072,
        "num_hidden_layers": 40, "rope_theta": 1_000_000.0, "sliding_window": None,
        "vocab_size": 131_072,
    },
    "Mixtral-8x7B-v0.1": {
        **_MISTRAL, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": False,
        "rope_theta": 1_000_000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
    },
    "Qwen2-0.5B": _QWEN2,
    "Qwen2.5-7B": {
        **_QWEN2, "hidden_size": 3584, "intermediate_size": 18_944, "max_window_layers": 28,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "tie_word_embeddings": False, "use_mrope": False, "vocab_size": 152_064,
    },
    "DeepSeek-R1-Distill-Qwen-1.5B": {
        **_QWEN2, "hidden_size": 1536, "intermediate_size": 8960, "max_window_layers": 21,
        "num_attention_heads": 12, "num_hidden_layers": 28, "rope_theta": 10_000,
        "sliding_window": 4096, "tie_word_embeddings": False, "use_mrope": False,
    },
    "Qwen3-0.6B": _QWEN3,
    "Qwen3-8B": {
        **_QWEN3, "hidden_size": 4096, "intermediate_size": 12_288, "max_window_layers": 36,
        "num_attention_heads": 32, "num_hidden_layers": 36, "tie_word_embeddings": False,
    },
    "Qwen3-30B-A3B": {
        **_QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144,
        "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "output_router_logits": False, "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
    },
    "gemma-2b": _GEMMA,
    "gemma-7b": {
        **_GEMMA, "hidden_activation": None, "hidden_size": 3072, "intermediate_size": 24_576,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 16,
    },
    "gemma-2-2b": _GEMMA2,
    "gemma-2-27b": {
        **_GEMMA2, "head_dim": 128, "hidden_size": 4608, "intermediate_size": 36_864,
        "num_attention_heads": 32, "num_hidden_layers": 46, "num_key_value_heads": 16,
        "query_pre_attn_scalar": 144,
    },
    "gemma-3-1b-it": {
        **_GEMMA2, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "attn_logit_softcapping": None, "eos_token_id": [1, 106], "final_logit_softcapping": None,
        "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32_768,
        "num_attention_heads": 4, "num_key_value_heads": 1, "rope_local_base_freq": 10_000,
        "rope_theta": 1_000_000, "sliding_window": 512, "sliding_window_pattern": 6,
        "vocab_size": 262_144,
    },
    "OLMo-2-1124-7B": {
        **_LLAMA, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2",
        "eos_token_id": 100_257, "pad_token_id": 100_277, "rms_norm_eps": 1e-6,
        "rope_theta": 500_000, "vocab_size": 100_352,
    },
    "Phi-3-mini-4k-instruct": _PHI3,
    "phi-4": {
        **{key: value for key, value in _PHI3.items() if key != "auto_map"},
        "eos_token_id": 100_265, "hidden_size": 5120, "intermediate_size": 17_920,
        "max_position_embeddings": 16_384, "num_attention_heads": 40, "num_hidden_layers": 40,
        "num_key_value_heads": 10, "original_max_position_embeddings": 16_384,
        "pad_token_id": 100_349, "rope_theta": 250_000, "sliding_window": None,
        "vocab_size": 100_352,
    },
    "gpt2": _GPT2,
    "gpt2-medium": {
        **_GPT2, "n_embd": 1024, "n_head": 16, "n_layer": 24, "n_special": 0,
        "predict_special_tokens": True,
    },
    "distilgpt2": {
        **_GPT2, "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
        "n_layer": 6,
    },
    "bert-base-uncased": _BERT,
    "bert-base-multilingual-cased": {
        **_BERT, "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform", "vocab_size": 119_547,
    },
    "all-MiniLM-L6-v2": {
        **_BERT, "architectures": ["BertModel"], "hidden_size": 384, "intermediate_size": 1536,
        "num_hidden_layers": 6,
    },
    "t5-small": _T5,
    "t5-3b": {**_T5, "d_ff": 16_384, "d_kv": 128, "d_model": 1024, "num_heads": 32},
    "t5-v1_1-small": {**_T5_NEWER, "d_ff": 1024},
    "flan-t5-small": {**_T5_NEWER, "relative_attention_max_distance": 128},
    "vit-base-patch16-224": {
        "architectures": ["ViTForImageClassification"], "model_type": "vit",
        "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
        "hidden_size": 768, "image_size": 224, "initializer_range": 0.02,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "num_attention_heads": 12,
        "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": True,
    },
}  # fmt: skip


def _other(model_type, architecture, **settings):
    return {"model_type": model_type, "architectures": [architecture], **settings}


def _unknown(model_type):
    return f"model_type='{model_type}' must be one of 'bert', 'gpt2', 'llama', "


_SCALED = "config.json has rope_type='longrope'; our models know 'default', "
REFUSED = {  # those whose blocks compute something else, and what is said of them
    "Phi-3-mini-128k-instruct": ({**_PHI3, "rope_scaling": _LONGROPE}, _SCALED),
    "Phi-4-mini-instruct": (
        {**_PHI3, "partial_rotary_factor": 0.75, "rope_scaling": _LONGROPE}, _SCALED,
    ),
    "byt5-small": (
        {**_T5_NEWER, "d_ff": 3584, "d_model": 1472, "num_decoder_layers": 4, "num_layers": 12},
        "config.json has num_decoder_layers=4; our models need 12 here",
    ),
    "mixtral, quantised": (
        {**READ["Mixtral-8x7B-v0.1"], "quantization_config": {"quant_method": "awq", "bits": 4}},
        "config.json has quantization_config=",
    ),
    "pythia-160m": (_other("gpt_neox", "GPTNeoXForCausalLM"), _unknown("gpt_neox")),
    "falcon-7b": (_other("falcon", "FalconForCausalLM"), _unknown("falcon")),
    "phi-2": (_other("phi", "PhiForCausalLM"), _unknown("phi")),
    "OLMo-3-7B": (_other("olmo3", "Olmo3ForCausalLM"), _unknown("olmo3")),
    "gpt-oss-20b": (_other("gpt_oss", "GptOssForCausalLM"), _unknown("gpt_oss")),
    "DeepSeek-V3": (_other("deepseek_v3", "DeepseekV3ForCausalLM"), _unknown("deepseek_v3")),
    "gemma-3-4b-it": (_other("gemma3", "Gemma3ForConditionalGeneration"), _unknown("gemma3")),
    "Qwen1.5-MoE-A2.7B": (_other("qwen2_moe", "Qwen2MoeForCausalLM"), _unknown("qwen2_moe")),
    "granite-3.0-2b-base": (_other("granite", "GraniteForCausalLM"), _unknown("granite")),
    "mt5-small": (_other("mt5", "MT5ForConditionalGeneration"), _unknown("mt5")),
    "roberta-base": (_other("roberta", "RobertaForMaskedLM"), _unknown("roberta")),
    "ModernBERT-base": (_other("modernbert", "ModernBertForMaskedLM"), _unknown("modernbert")),
    "distilbert-base-uncased": (
        _other("distilbert", "DistilBertForMaskedLM"), _unknown("distilbert"),
    ),
}  # fmt: skip

_SMALL = {  # sizes that stand alone
    "vocab_size": 50, "intermediate_size": 40, "moe_intermediate_size": 16, "d_ff": 40,
    "max_position_embeddings": 64, "original_max_position_embeddings": 64, "n_positions": 64,
    "n_ctx": 64, "sliding_window": 5, "num_experts": 6, "num_local_experts": 6,
    "num_experts_per_tok": 2, "image_size": 12, "patch_size": 4, "type_vocab_size": 2,
}  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")
_WIDTHS = (  # the stream, its heads, those with keys of their own, the width of one
    ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    ("n_embd", "n_head", None, None),
    ("d_model", "num_heads", None, "d_kv"),
)
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def shrunk(settings):
    """The same settings with tiny sizes."""
    tiny = {key: min(_SMALL.get(key, value), value) if key in _SMALL and value else value
            for key, value in settings.items() if key not in ("torch_dtype", *_TOKENS)}  # fmt: skip
    tiny |= {key: None if key == "pad_token_id" else 1 for key in _TOKENS if key in settings}
    _shrink_widths(tiny, settings)
    _shrink_depth(tiny, settings)
    if isinstance(scaling := settings.get("rope_scaling"), dict):
        short = {"original_max_position_embeddings": 16}
        tiny["rope_scaling"] = scaling | {key: short[key] for key in short if key in scaling}
    return tiny


def _shrink_widths(tiny, settings):
    for stream, heads, shared, own in _WIDTHS:
        if stream not in settings:
            continue
        n_heads = settings[heads]
        n_shared = settings.get(shared, n_heads)
        each = n_heads // n_shared
        few = 3 if each == 1 else min(2, n_shared)
        share = 1.0
        if own is not None and own in settings:
            tiny[own] = 8
            share = settings[stream] / (n_heads * settings[own])
        tiny[heads] = few * each
        tiny[stream] = max(8, 8 * round(few * each * share))
        if shared is not None and shared in settings:
            tiny[shared] = few


def _shrink_depth(tiny, settings):
    depth = next(settings[key] for key in _LAYERS if key in settings)
    n_layers = max(3, 1 + settings.get("sliding_window_pattern", 0),
                   settings.get("no_rope_layer_interval", 0))  # fmt: skip
    tiny |= {key: n_layers * settings[key] // depth for key in _LAYERS if key in settings}
    if "max_window_layers" in settings:
        tiny["max_window_layers"] = n_layers * settings["max_window_layers"] // depth
    for key in ("layer_types", "no_rope_layers"):
        if key in settings:
            tiny[key] = settings[key][:n_layers]
