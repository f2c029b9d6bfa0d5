"""What a user gets for a mistake: the exact message, row by row."""

import contextlib
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn
from torch_weights import small_config

from transformer_lib.core.config import RopeScaling, TransformerConfig
from transformer_lib.core.shapes import describe
from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.constrained import OneOf, Pattern, TokenBytes
from transformer_lib.generation.decoding_step import read_prefix
from transformer_lib.generation.generate import generate
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.generation.speculative import NgramDraft, speculative_generate
from transformer_lib.generation.text_generation import generate_text, write_on
from transformer_lib.hugging_face.pretrained import save_pretrained
from transformer_lib.layers.attention import AttentionHead, MultiHeadAttention, attention
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache, LayerCache, MemoryCache
from transformer_lib.layers.caches.rolling_kv_cache import RollingCache
from transformer_lib.layers.caches.static_kv_cache import StaticCache
from transformer_lib.layers.embeddings import Embedding, PatchEmbedding
from transformer_lib.layers.fast.flexible_pattern import FlexPattern
from transformer_lib.layers.fast.quantized_kernels import use_int_kernels
from transformer_lib.layers.feedforward import FeedForward, MixtureOfExperts
from transformer_lib.layers.fused_attention import fused_attention
from transformer_lib.layers.latent_attention import LatentAttention
from transformer_lib.layers.linear_attention import GatedLinearAttention, StateCache
from transformer_lib.layers.masks import (
    causal_mask,
    padding_mask,
    prefix_mask,
    token_mask,
    window_mask,
)
from transformer_lib.layers.norms import LayerNorm, RMSNorm, layer_norm
from transformer_lib.layers.positions import (
    AlibiBias,
    T5Bias,
    change_pairing,
    rope_angles,
    rotate,
    sinusoidal,
    t5_bucket,
)
from transformer_lib.layers.quantized_linear import QuantizedLinear, quantize_weight
from transformer_lib.layers.split_attention import split_attention
from transformer_lib.models.blocks import Block, Stack
from transformer_lib.models.encoder_decoder import Encoder, EncoderDecoder
from transformer_lib.models.language_models import (
    CausalLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
    mean_over_tokens,
)
from transformer_lib.models.lora import LoraLinear, add_lora, merge_lora, remove_lora
from transformer_lib.models.lora_files import load_lora, save_lora
from transformer_lib.models.presets import PRESETS, build_preset
from transformer_lib.models.quantization import quantize
from transformer_lib.text.text_stream import TextStream
from transformer_lib.text.tokenizers import CharTokenizer
from transformer_lib.tracing.watch import influence
from transformer_lib.training.answers import answer_batch, label_answer
from transformer_lib.training.data import TextWindows
from transformer_lib.training.distributed import choose_device
from transformer_lib.training.loop import train
from transformer_lib.training.losses import Objective, linear_cross_entropy
from transformer_lib.training.muon import Muon, orthogonalise
from transformer_lib.training.packing import pack
from transformer_lib.training.recipes import Recipe
from transformer_lib.training.run_checkpoints import check_same_data, sum_up
from transformer_lib.training.training_step import Learner
from transformer_lib.training.weight_average import WeightAverage

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
X = torch.zeros(2, 3, 8)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype)


def allowed(*shape):
    return torch.ones(*shape, dtype=torch.bool)


def config(**changes):
    return lambda: TransformerConfig(**changes)


def recipe(**changes):
    return Recipe(**{"steps": 1, "learning_rate": 0.1} | changes)


def lm(*args, **kwargs):
    return lambda: CausalLM(small_config(position="learned"))(*args, **kwargs)


def decode_with_cache(n_before, n_now, batch=2):
    def run():
        model, cache = CausalLM(small_config()), KeyValueCache(2, 16)
        model(torch.ones(2, n_before, dtype=torch.long), cache=cache)
        model(torch.ones(batch, n_now, dtype=torch.long), cache=cache)

    return run


def overfull_store():
    store = LayerCache(max_len=3)
    store.append(zeros(1, 1, 2, 4), zeros(1, 1, 2, 4))
    store.append(zeros(1, 1, 2, 4), zeros(1, 1, 2, 4))


def retry_after_a_failure():
    model, cache = CausalLM(small_config()), KeyValueCache(2, 16)
    with contextlib.suppress(ValueError):  # the first block has stored its keys by then
        model(IDS, allowed(3, 1, 1, 3), cache=cache)
    model(IDS, cache=cache)


def mask_of_the_new_token_alone():
    model, cache = CausalLM(small_config()), KeyValueCache(2, 16)
    model(IDS, token_mask(IDS, 0), cache=cache)
    model(IDS[:, :1], token_mask(IDS[:, :1], 0), cache=cache)


def another_memory(memory):
    def run():
        attend, cache = MultiHeadAttention(8, 2), MemoryCache(X)
        attend(X, X, cache=cache)
        attend(X, memory, cache=cache)

    return run


def memory_changed_in_place():
    attend, memory = MultiHeadAttention(8, 2), X.clone()
    cache = MemoryCache(memory)
    attend(X, memory, cache=cache)
    memory.add_(1)
    attend(X, memory, cache=cache)


def keys_of_no_memory():
    attend, cache = MultiHeadAttention(8, 2), LayerCache(8)
    attend(X, cache=cache)
    attend(X, X, cache=cache)


def overfull_static_cache():
    """By hand, without a compiled decoder that would count."""
    model, cache = CausalLM(small_config()).eval(), StaticCache(2, 4)
    for _ in range(5):
        model(IDS[:, :1], cache=cache)


def static_cache_for_a_longer_model():
    model, cache = CausalLM(small_config()).eval(), StaticCache(2, 64)
    model(torch.ones(2, 16, dtype=torch.long), cache=cache)
    model(IDS[:, :1], cache=cache)


def write(**options):
    def run():
        generate(CausalLM(small_config()).eval(), IDS, **{"max_new_tokens": 2} | options)

    return run


def speculate(**options):
    def run():
        model, prompt = CausalLM(small_config()).eval(), torch.ones(1, 3, dtype=torch.long)
        usual = {"model": model, "prompt": prompt, "draft": NgramDraft(), "max_new_tokens": 2}
        speculative_generate(**usual | options)

    return run


def write_behind_a_prefix(prompt=IDS[:1], by_another=False, **options):
    """The prefix is the first two tokens of ``IDS``."""

    def run():
        model = CausalLM(small_config()).eval()
        reader = CausalLM(small_config()).eval() if by_another else model
        prefix = read_prefix(reader, IDS[:1, :2])
        generate(model, prompt, **{"max_new_tokens": 2, "prefix": prefix} | options)

    return run


def write_behind_a_prefix_in_a_used_cache():
    model, cache = CausalLM(small_config()).eval(), KeyValueCache(2, 16)
    with torch.no_grad():
        model(IDS[:1, :2], cache=cache)
    prefix = read_prefix(model, IDS[:1, :2])
    generate(model, IDS[:1], max_new_tokens=2, prefix=prefix, cache=cache)


def write_allowed(allowed, vocab_size=260, write=generate, prompt=IDS, **options):
    def run():
        model = CausalLM(small_config(vocab_size=vocab_size)).eval()
        write(model, prompt, max_new_tokens=2, allowed=allowed, **{"eos_id": 2} | options)

    return run


def search_allowed(allowed, **options):
    return write_allowed(allowed, write=beam_search, n_beams=2, **options)


def speculate_allowed(allowed, **options):
    options |= {"prompt": IDS[:1], "draft": NgramDraft()}
    return write_allowed(allowed, write=speculative_generate, **options)


def latent_attention(d_latent=4, d_query_latent=None, **changes):
    return lambda: LatentAttention(
        small_config(**changes), d_latent=d_latent, d_query_latent=d_query_latent
    )


def gated_attention(changes=None, **options):
    """A call of the layer, causal unless said otherwise."""

    def run():
        layer = GatedLinearAttention(small_config(**{"position": "none"} | (changes or {})))
        layer(X, **{"causal": True} | options)

    return run


def write_gated(cache=None, **changes):
    parts = Parts(attention=GatedLinearAttention)
    model = CausalLM(small_config(**{"position": "none"} | changes), parts=parts)
    generate(model, IDS, max_new_tokens=2, cache=cache)


def rewind_a_state():
    write_gated(cache := StateCache(2, 16))
    cache.rewind(2)


def keys_in_a_cache_of_states():
    generate(CausalLM(small_config()), IDS, max_new_tokens=2, cache=StateCache(2, 16))


def roll_back():
    model = CausalLM(small_config(window=2)).eval()
    cache = RollingCache(model.config)
    with torch.no_grad():
        model(IDS, cache=cache)
    cache.rewind(2)


def quantized(*args, **changes):
    def run():
        model = CausalLM(small_config()).eval()
        quantize(model, *args, **changes)
        return model

    return run


def quantize_twice():
    quantize(quantized(8, 4)(), 8, 4)


def train_in_few_bits():
    Learner(quantized(8, 4)(), recipe(), torch.device("cpu"))


def write_few_bits_as_a_checkpoint():
    save_pretrained(quantized(8, 4)(), "nowhere")


def quantize_changed(change):
    def run():
        model = CausalLM(small_config()).eval()
        change(model.decoder.stack.blocks[0].attention.key)
        quantize(model, 4, 4)

    return run


def full_cache():
    model, cache = CausalLM(small_config()).eval(), KeyValueCache(2, 16)
    with torch.no_grad():
        model(torch.cat((IDS, IDS), dim=1), cache=cache)
    generate(model, IDS, max_new_tokens=2, cache=cache)


def made_with_lost_parts():
    parts = pickle.loads(pickle.dumps(Parts(norm=lambda config: nn.LayerNorm(config.d_model))))
    CausalLM(small_config(), parts=parts)


def rewind(length, kind=KeyValueCache):
    def run():
        model, cache = CausalLM(small_config()), kind(2, 16)
        model(IDS, cache=cache)
        cache.rewind(length)

    return run


def in_a_world_of(n, call):
    def run():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", "1")
            patch.setenv("WORLD_SIZE", str(n))
            call()

    return run


def attend_by_rule(n_queries=3, n_keys=3, device="cpu", bias=None, **rules):
    """Two rows by a pattern."""
    q, k = (zeros(2, 1, n, 4).to(device) for n in (n_queries, n_keys))
    return lambda: FlexPattern(**rules).attend(q, k, k, bias)


def model_by_rule(attention=None, *, cache=None, real=None, **changes):
    def run():
        parts = Parts() if attention is None else Parts(attention=attention)
        model = CausalLM(small_config(**changes), parts=parts)
        model(IDS, FlexPattern(window=2), cache=cache, real=real)

    return run


def encode_decode(**masks):
    return lambda: EncoderDecoder(small_config())(IDS, IDS, **masks)


CONFIGURATION = [
    (config(d_model=0), "d_model=0 must be a whole number of at least 1"),
    (config(d_model=512.0), "d_model=512.0 must be a whole number of at least 1"),
    (
        config(d_model=np.float64(512)),
        "d_model=np.float64(512.0) must be a whole number of at least 1",
    ),
    (
        config(n_heads=np.int64(7)),
        "n_heads=7 must divide d_model=512: 512 / 7 leaves a remainder of 1",
    ),
    (config(n_layers=np.True_), "n_layers=np.True_ must be a whole number of at least 1"),
    (config(n_layers=True), "n_layers=True must be a whole number of at least 1"),
    (config(vocab_size=-5), "vocab_size=-5 must be a whole number of at least 1"),
    (config(max_len="512"), "max_len='512' must be a whole number of at least 1"),
    (config(window=0), "window=0 must be a whole number of at least 1"),
    (config(n_segments=-1), "n_segments=-1 must be a whole number of at least 0"),
    (
        config(n_heads=7),
        "n_heads=7 must divide d_model=512: 512 / 7 leaves a remainder of 1",
    ),
    (
        config(n_kv_heads=3),
        "n_kv_heads=3 must divide n_heads=8: 8 / 3 leaves a remainder of 2",
    ),
    (config(dropout=1.0), "dropout=1.0 must be at least 0 and less than 1"),
    (config(dropout="a lot"), "dropout='a lot' must be at least 0 and less than 1"),
    (config(attention_dropout=-0.1), "attention_dropout=-0.1 must be at least 0 and less than 1"),
    (config(norm_eps=0), "norm_eps=0 must be a number greater than 0"),
    (config(rope_theta=-1.0), "rope_theta=-1.0 must be a number greater than 0"),
    (config(attention_scale="none"), "attention_scale='none' must be a number greater than 0"),
    (config(bias="no"), "bias='no' must be one of True, False"),
    (
        config(position="rotary"),
        "position='rotary' must be one of 'sinusoidal', 'learned', 'rope', 'alibi', 't5', 'none'",
    ),
    (config(norm="batch"), "norm='batch' must be one of 'layer', 'rms'"),
    (
        config(norm_position="middle"),
        "norm_position='middle' must be one of 'pre', 'post', 'update', 'both'",
    ),
    (config(rope_pairing="half"), "rope_pairing='half' must be one of 'interleaved', 'split'"),
    (config(init="he"), "init='he' must be one of 'xavier', 'gpt2'"),
    (
        config(activation="silu"),
        "activation='silu' must be one of "
        "'relu', 'gelu', 'gelu_tanh', 'swiglu', 'geglu', 'geglu_tanh'",
    ),
    (
        config(d_model=24, position="rope"),
        "position='rope' rotates pairs of features: d_model / n_heads = 3 must be even",
    ),
    (
        config(d_model=9, n_heads=3),
        "position='sinusoidal' pairs sines with cosines: d_model=9 must be even",
    ),
    (config(n_experts=2, active_experts=3), "active_experts=3 must be at most n_experts=2"),
    (
        lambda: build_preset("gpt-5"),
        f"name='gpt-5' must be one of {', '.join(map(repr, PRESETS))}",
    ),
]

MASKS = [
    (lambda: causal_mask(0), "n_queries=0 must be a whole number of at least 1"),
    (
        lambda: causal_mask(4, 3),
        "n_queries=4 is larger than n_keys=3: the first queries would have nothing to look at",
    ),
    (lambda: window_mask(4, window=0), "window=0 must be a whole number of at least 1"),
    (
        lambda: padding_mask(torch.tensor([2, 9]), 5),
        "lengths has [9]; each must be between 0 and n_keys=5",
    ),
    (
        lambda: padding_mask(torch.tensor([2.0, 5.0]), 5),
        "lengths has dtype torch.float32; expected whole numbers",
    ),
    (lambda: padding_mask(torch.tensor([[2]]), 5), "lengths has shape (1, 1); expected (B)"),
    (
        lambda: prefix_mask(torch.tensor([6, -1]), 5),
        "prefix_lengths has [6, -1]; each must be between 0 and n_keys=5",
    ),
    (lambda: token_mask(torch.tensor([1, 2]), 0), "ids has shape (2,); expected (B, S)"),
    (
        lambda: describe(X, "B T"),
        "letters names 2 dimensions ('B T') but the tensor has 3: (2, 3, 8)",
    ),
]

ATTENTION = [
    (
        lambda: attention(zeros(2, 4), zeros(3, 5), zeros(3, 4)),
        "k has shape (3, 5); expected (..., S, Dk) with Dk=4, got Dk=5",
    ),
    (
        lambda: fused_attention(zeros(2, 4), zeros(3, 4), zeros(2, 4)),
        "v has shape (2, 4); expected (..., S, Dv) with S=3, got S=2",
    ),
    (
        lambda: attention(zeros(4), zeros(3, 4), zeros(3, 4)),
        "q has shape (4,); expected (..., T, Dk)",
    ),
    (
        lambda: attention(zeros(2, 4), zeros(0, 4), zeros(0, 4)),
        "k has shape (0, 4); S in (..., S, Dk) may not be 0",
    ),
    (
        lambda: attention(zeros(2, 2, 4), zeros(3, 3, 4), zeros(3, 3, 4)),
        "the leading dimensions of q, k and v must broadcast together; "
        "got q (2, 2, 4), k (3, 3, 4), v (3, 3, 4)",
    ),
    (
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4), zeros(2, 3)),
        "mask has dtype torch.float32; expected torch.bool with True = may attend "
        "(for a 0/1 mask: mask.bool())",
    ),
    (
        lambda: attention(zeros(2, 4), zeros(3, 4), zeros(3, 4), allowed(3, 2)),
        "mask has shape (3, 2); expected one that broadcasts to the scores, (..., T, S) = (2, 3)",
    ),
    (
        lambda: fused_attention(zeros(2, 4), zeros(3, 4), zeros(3, 4), allowed(3)),
        "mask has shape (3,); expected one that broadcasts to the scores, (..., T, S) = (2, 3)",
    ),
    (
        lambda: fused_attention(zeros(2, 4), zeros(3, 4), zeros(3, 4), bias=zeros(2, 2)),
        "bias has shape (2, 2); expected one that broadcasts to the scores, (..., T, S) = (2, 3)",
    ),
    (
        lambda: attention(*[zeros(2, 4, dtype=torch.long)] * 3),
        "q has dtype torch.int64; expected floating-point numbers",
    ),
    (
        lambda: attention(zeros(2, 4), zeros(2, 4, dtype=torch.float64), zeros(2, 4)),
        "k has dtype torch.float64; expected that of q, torch.float32",
    ),
    (
        lambda: attention(zeros(4, 4), zeros(3, 4), zeros(3, 4), causal=True),
        "n_queries=4 is larger than n_keys=3: the first queries would have nothing to look at",
    ),
    (lambda: FlexPattern(window=0), "window=0 must be a whole number of at least 1"),
    (
        lambda: FlexPattern(documents=zeros(2, 3)),
        "documents has dtype torch.float32; expected whole numbers",
    ),
    (lambda: FlexPattern(documents=IDS[0]), "documents has shape (3,); expected (B, T)"),
    (lambda: FlexPattern(prefix=allowed(2)), "prefix has dtype torch.bool; expected whole numbers"),
    (
        lambda: FlexPattern(prefix=IDS[0], documents=IDS),
        "documents has shape (2, 3); expected (B, T) with B=3, got B=2",
    ),
    (
        lambda: FlexPattern(prefix=torch.tensor([2, -1])),
        "prefix has -1; expected lengths of at least 0",
    ),
    (
        attend_by_rule(prefix=torch.tensor([2, 4])),
        "prefix has 4; expected at most T=3",
    ),
    (
        attend_by_rule(documents=IDS[:1]),
        "documents has shape (1, 3); expected (B, T) with B=2, got B=1",
    ),
    (
        attend_by_rule(4, 4, documents=IDS),
        "documents has shape (2, 3); expected (B, T) with T=4, got T=3",
    ),
    (
        attend_by_rule(device="meta", documents=IDS),
        "documents is on cpu; expected the device of q, meta",
    ),
    (
        attend_by_rule(1, 3),
        "a FlexPattern is for whole sequences; got 1 queries and 3 keys",
    ),
    (
        attend_by_rule(bias=zeros(3, 3)),
        "a FlexPattern adds no bias to scores (ALiBi, T5); give a mask",
    ),
    (
        model_by_rule(position="t5"),
        "a FlexPattern adds no bias to scores (ALiBi, T5); give a mask",
    ),
    (
        model_by_rule(cache=KeyValueCache(2, 16)),
        "a FlexPattern is for whole sequences; expected no cache",
    ),
    (
        model_by_rule(real=IDS > 1),
        "real was given with a FlexPattern: give padding documents of its own, and positions",
    ),
    (
        model_by_rule(attention_dropout=0.5),
        "dropout=0.5: expected none with a FlexPattern, or a mask in its place",
    ),
    (
        model_by_rule(score_cap=50.0),
        "cap=50.0: expected none with a FlexPattern, or a mask in its place",
    ),
    (
        model_by_rule(lambda config: LatentAttention(config, d_latent=4)),
        "a FlexPattern knows no latent vectors; give a mask",
    ),
    (lambda: AttentionHead(8, 0), "d_head=0 must be at least 1"),
    (
        lambda: MultiHeadAttention(10, 4),
        "n_heads=4 must divide d_model=10: 10 / 4 leaves a remainder of 2",
    ),
    (lambda: MultiHeadAttention(8, 0), "n_heads=0 must be a whole number of at least 1"),
    (
        lambda: MultiHeadAttention(8, 4, 3),
        "n_kv_heads=3 must divide n_heads=4: 4 / 3 leaves a remainder of 1",
    ),
    (
        lambda: MultiHeadAttention(8, 2, dropout=1.5),
        "dropout=1.5 must be at least 0 and less than 1",
    ),
    (
        lambda: MultiHeadAttention(8, 2)(zeros(2, 3, 7)),
        "x has shape (2, 3, 7); expected (B, T, D) with D=8, got D=7",
    ),
    (lambda: MultiHeadAttention(8, 2)(zeros(3, 8)), "x has shape (3, 8); expected (B, T, D)"),
    (
        lambda: MultiHeadAttention(8, 2)(X, zeros(4, 5, 8)),
        "memory has shape (4, 5, 8); expected (B, S, D) with B=2, got B=4",
    ),
    (
        lambda: fused_attention(zeros(1, 4, 2, 8), *zeros(2, 1, 3, 5, 8), enable_gqa=True),
        "the heads of k=3 must divide the heads of q=4: 4 / 3 leaves a remainder of 1",
    ),
    (
        lambda: fused_attention(
            zeros(1, 4, 2, 8), zeros(1, 2, 5, 8), zeros(1, 4, 5, 8), enable_gqa=True
        ),
        "v has shape (1, 4, 5, 8); expected (..., G, S, Dv) with G=2, got G=4",
    ),
    (
        lambda: fused_attention(zeros(4, 8), zeros(5, 8), zeros(5, 8), enable_gqa=True),
        "k has shape (5, 8); expected (..., G, S, Dk)",
    ),
    (
        lambda: MultiHeadAttention(8, 4, 2)(X, mask=allowed(2, 3)),
        "mask has shape (2, 3); expected one that broadcasts to the scores, "
        "(..., T, S) = (2, 4, 3, 3)",
    ),
    (
        lambda: MultiHeadAttention(8, 2)(X, mask=allowed(2, 3)),
        "mask has shape (2, 3); expected one that broadcasts to the scores, "
        "(..., T, S) = (2, 2, 3, 3)",
    ),
    (
        speculate(draft=nn.Linear(2, 2)),
        "draft has type Linear; expected a CausalLM or an NgramDraft",
    ),
    (
        speculate(draft=CausalLM(small_config(vocab_size=9))),
        "draft has vocab_size=9; expected that of the model, 11",
    ),
    (
        speculate(prompt=torch.ones(2, 3, dtype=torch.long)),
        "prompt has shape (2, 3); expected one row, (1, T): rows would keep different numbers of "
        "guesses",
    ),
    (
        speculate(sampling=Sampling(repetition_penalty=1.2)),
        "repetition_penalty=1.2 must be 1: guesses are judged before it is known which tokens come "
        "before them",
    ),
    (speculate(n_guesses=0), "n_guesses=0 must be a whole number of at least 1"),
    (lambda: NgramDraft(longest=0), "longest=0 must be a whole number of at least 1"),
    (
        speculate(model=nn.Linear(2, 2)),
        "model has type Linear; expected a CausalLM",
    ),
    (
        speculate(max_new_tokens=15),
        "max_new_tokens=15 after a prompt of 3 tokens: there is room for max_len=16, "
        "not counting the last token",
    ),
    (write(prefill_chunk=0), "prefill_chunk=0 must be a whole number of at least 1"),
    (
        write(prefill_chunk=2, use_cache=False),
        "prefill_chunk=2 needs a cache: leave out use_cache=False",
    ),
    (
        lambda: read_prefix(Seq2SeqLM(small_config()), IDS[:1]),
        "model has type Seq2SeqLM; expected a CausalLM, which reads ids alone",
    ),
    (
        lambda: read_prefix(CausalLM(small_config()), IDS),
        "ids has shape (2, 3); expected one row, (1, T)",
    ),
    (
        lambda: read_prefix(
            CausalLM(
                small_config(
                    position="rope",
                    rope_scaling=RopeScaling(kind="ntk", factor=2.0, trained_len=8),
                )
            ),
            IDS[:1],
        ),
        "rope_scaling has kind='ntk': keys depend on the length of the whole text, and cannot be "
        "kept for another",
    ),
    (
        write_behind_a_prefix(use_cache=False),
        "prefix needs a cache: leave out use_cache=False",
    ),
    (
        write_behind_a_prefix(by_another=True),
        "prefix was read by another model: read it with this one",
    ),
    (
        write_behind_a_prefix(IDS),
        "prompt must begin with the prefix: token 0 of row 1 is another",
    ),
    (
        write_behind_a_prefix(IDS[:1, :1]),
        "prompt must begin with the prefix, 2 tokens: row 0 has 1",
    ),
    (
        write_behind_a_prefix_in_a_used_cache,
        "cache holds 2 tokens; a prefix needs an empty one",
    ),
    (
        write_behind_a_prefix(cache=KeyValueCache(3, 16)),
        "the cache has 3 layers; expected n_layers=2 of the model",
    ),
    (
        lambda: generate_text(
            CausalLM(small_config(vocab_size=260)),
            CharTokenizer(),
            "Is it? ",
            max_new_tokens=11,
            allowed=OneOf(["yes"], CharTokenizer()),
        ),
        "max_new_tokens=11 after 7 tokens: allowed text must fit into the model's context, 16",
    ),
    (write_allowed(["yes"]), "allowed has type list; expected a OneOf or a Pattern"),
    (
        write_allowed(OneOf(["yes"], CharTokenizer()), eos_id=None),
        "allowed needs eos_id: the token that says that a text is complete",
    ),
    (
        write_allowed(OneOf(["yes"], CharTokenizer()), vocab_size=11),
        "the tokenizer of allowed has 259 tokens; expected at most vocab_size=11, those of the "
        "model",
    ),
    (
        write_allowed(OneOf(["yes"], CharTokenizer()), eos_id=CharTokenizer().encode("y")),
        "eos_id=91 stands for b'y', which may come in allowed texts",
    ),
    (search_allowed(["yes"]), "allowed has type list; expected a OneOf or a Pattern"),
    (
        search_allowed(OneOf(["yes"], CharTokenizer()), eos_id=None),
        "allowed needs eos_id: the token that says that a text is complete",
    ),
    (speculate_allowed("yes"), "allowed has type str; expected a OneOf or a Pattern"),
    (
        speculate_allowed(OneOf(["yes"], CharTokenizer()), eos_id=None),
        "allowed needs eos_id: the token that says that a text is complete",
    ),
    (
        lambda: OneOf("yes", CharTokenizer()),
        "answers has type str; expected several texts, such as [text]",
    ),
    (
        lambda: OneOf(["yes", 0], CharTokenizer()),
        "answers[1] has type int; expected a text",
    ),
    (lambda: OneOf([], CharTokenizer()), "answers is empty; expected one text at least"),
    (lambda: Pattern(7, CharTokenizer()), "pattern has type int; expected a text"),
    (
        lambda: Pattern(r"\d{2", CharTokenizer()),
        r"pattern '\\d{2' at place 3: expected {3}, {2,}, {2,5} or {,5}; write \{ for a brace",
    ),
    (lambda: TokenBytes("abc"), "tokenizer has type str; expected a tokenizer"),
    (
        latent_attention(n_kv_heads=1),
        "n_kv_heads=1: all heads share a latent vector already; leave it out",
    ),
    (
        latent_attention(norm="rms", qk_norm="head"),
        "qk_norm='head', score_cap=None: latent attention has neither a norm nor a cap of scores",
    ),
    (
        latent_attention(position="rope"),
        "rope_fraction=1.0 must be less than 1: a part of each head must come from the latent "
        "vector",
    ),
    (latent_attention(d_latent=0), "d_latent=0 must be a whole number of at least 1"),
    (latent_attention(d_query_latent=0), "d_query_latent=0 must be a whole number of at least 1"),
    (
        gated_attention({"position": "alibi"}),
        "position='alibi': gates tell near from far; expected 'none', or one that is added to "
        "embeddings",
    ),
    (gated_attention({"window": 3}), "window=3: a state has none; leave it out"),
    (gated_attention({"n_kv_heads": 1}), "n_kv_heads=1: a state has none; leave it out"),
    (
        gated_attention({"attention_dropout": 0.1}),
        "qk_norm='none', attention_dropout=0.1: there is no softmax; leave them out",
    ),
    (
        gated_attention(causal=False),
        "causal=False: a state is read from left to right, and has no scores",
    ),
    (
        gated_attention(memory=X),
        "memory: a state is read from left to right; expected none",
    ),
    (
        gated_attention(bias=zeros(3, 3)),
        "a bias on scores: a state is read from left to right, and has no scores",
    ),
    (
        gated_attention(angles=zeros(3, 2)),
        "angles: neighbours in a key have gates of their own; expected none",
    ),
    (
        gated_attention(mask=allowed(2, 1, 3, 3)),
        "mask has shape (2, 1, 3, 3); expected (B, 1, 1, S), which hides keys",
    ),
    (write_gated, "cache is a LayerCache; expected part of a StateCache"),
    (
        rewind_a_state,
        "length=2 must be that of the cache, 4: a state cannot forget its newest tokens",
    ),
    (
        keys_in_a_cache_of_states,
        "cache is a StateCache, for layers with a state; expected a KeyValueCache",
    ),
    (
        lambda: RollingCache(small_config()),
        "config has window=None: all keys are seen, use a KeyValueCache",
    ),
    (
        roll_back,
        "length=2 must be that of the cache, 3: a rolling cache has let go of keys that would be "
        "seen again",
    ),
    (lambda: split_attention(X, X, X, n_parts=0), "n_parts=0 must be a whole number of at least 1"),
    (
        lambda: split_attention(X, X, X, n_parts=9),
        "n_parts=9 must be at most the number of keys, S=3",
    ),
    (lambda: LayerCache(0), "max_len=0 must be a whole number of at least 1"),
    (lambda: LayerCache(3).read(), "the cache is empty: append keys and values first"),
    (
        overfull_store,
        "the cache holds max_len=3 positions; 2 are in use and 2 more were given",
    ),
]

PARTS = [
    (
        lambda: LayerNorm(8)(zeros(2, 7)),
        "x has shape (2, 7); expected (..., D) with D=8, got D=7",
    ),
    (lambda: RMSNorm(0), "width=0 must be a whole number of at least 1"),
    (
        lambda: layer_norm(zeros(2, 8), zeros(8), zeros(7)),
        "bias has shape (7,); expected (..., D) with D=8, got D=7",
    ),
    (
        lambda: FeedForward(8, 16, "tanh"),
        "activation='tanh' must be one of "
        "'relu', 'gelu', 'gelu_tanh', 'swiglu', 'geglu', 'geglu_tanh'",
    ),
    (
        lambda: FeedForward(8, 16)(zeros(2, 16)),
        "x has shape (2, 16); expected (..., D) with D=8, got D=16",
    ),
    (
        lambda: MixtureOfExperts(small_config()),
        "n_experts=None; a mixture of experts needs a number of experts",
    ),
    (
        lambda: MixtureOfExperts(small_config(n_experts=2))(zeros(2, 9)),
        "x has shape (2, 9); expected (..., D) with D=8, got D=9",
    ),
    (
        lambda: sinusoidal(torch.arange(3), 5),
        "d_model=5 must be even: features are taken in pairs",
    ),
    (
        lambda: rope_angles(torch.arange(3), 5),
        "d_head=5 must be even: features are taken in pairs",
    ),
    (
        lambda: rotate(zeros(3, 8), zeros(3, 5)),
        "angles has 5 pairs; expected at most half the width of x, 8 / 2",
    ),
    (
        lambda: rotate(zeros(3, 8), zeros(3, 4), "halves"),
        "pairing='halves' must be one of 'interleaved', 'split'",
    ),
    (
        lambda: change_pairing(zeros(10, 8), 4, "split"),
        "weight has 10 rows; expected 4 heads of even width",
    ),
    (lambda: AlibiBias(0), "n_heads=0 must be a whole number of at least 1"),
    (
        lambda: T5Bias(4, bidirectional=True, n_buckets=2),
        "n_buckets=2 must be a whole number of at least 4",
    ),
    (
        lambda: t5_bucket(torch.arange(3), max_distance=8),
        "max_distance=8 must be more than 8, up to which every distance has its own bucket",
    ),
    (
        lambda: PatchEmbedding(10, 4, 3, 8),
        "patch_size=4 must divide image_size=10: 10 / 4 leaves a remainder of 2",
    ),
    (
        lambda: PatchEmbedding(8, 4, 3, 8)(zeros(2, 1, 8, 8)),
        "images has shape (2, 1, 8, 8); expected (B, 3, 8, 8)",
    ),
    (
        lambda: Embedding(small_config())(IDS, IDS, segments=IDS),
        "segments were given, but the configuration has n_segments=0",
    ),
    (lambda: influence(lambda x: x, X), "x has shape (2, 3, 8); expected one sequence, (1, T, D)"),
]

MODELS = [
    (lm(torch.tensor([1, 2])), "ids has shape (2,); expected (B, T)"),
    (lm(zeros(2, 0, dtype=torch.long)), "ids has shape (2, 0); T in (B, T) may not be 0"),
    (lm(zeros(0, 3, dtype=torch.long)), "ids has shape (0, 3); B in (B, T) may not be 0"),
    (
        lm(zeros(1, 3)),
        "ids has dtype torch.float32; expected whole numbers such as torch.long",
    ),
    (lm(torch.tensor([[3, 11]])), "ids has 11; each must be between 0 and 10"),
    (lm(torch.tensor([[3, -100]])), "ids has -100; each must be between 0 and 10"),
    (
        lm(zeros(1, 17, dtype=torch.long)),
        "ids has 17 tokens; the model accepts max_len=16",
    ),
    (
        lm(IDS, positions=torch.arange(3)),
        "positions has shape (3,); expected (B, T)",
    ),
    (
        lm(IDS, positions=torch.arange(4)[None]),
        "positions has shape (1, 4); expected (1, T) = (1, 3) or (B, T) = (2, 3)",
    ),
    (
        lm(IDS, positions=torch.tensor([[0, 1, 16]])),
        "positions has 16; each must be between 0 and 15",
    ),
    (
        lm(IDS, IDS > 0),
        "mask has shape (2, 3); expected four dimensions that broadcast to (B, H, T, S), "
        "such as (B, 1, 1, S) from padding_mask; what says where real tokens stand, (B, S), is an "
        "argument of its own, real",
    ),
    (
        lm(IDS, allowed(2, 1, 1, 4)),
        "mask has shape (2, 1, 1, 4); its last dimension must be the number of keys, "
        "S=3, those in the cache included",
    ),
    (
        decode_with_cache(15, 2),
        "ids has 2 tokens after 15 in the cache; the model accepts max_len=16",
    ),
    (decode_with_cache(3, 1, batch=1), "the cache was filled with a batch of 2; got 1"),
    (
        lm(IDS, cache=KeyValueCache(3, 16)),
        "the cache has 3 layers; expected n_layers=2 of the model",
    ),
    (
        retry_after_a_failure,
        "the layers of the cache hold [3, 0] positions: an earlier call failed halfway; "
        "rewind(0), or start with a new one",
    ),
    (
        mask_of_the_new_token_alone,
        "mask has shape (2, 1, 1, 1); its last dimension must be the number of keys, "
        "S=4, those in the cache included",
    ),
    (
        another_memory(zeros(2, 4, 8)),
        "memory has shape (2, 4, 8); the cache holds another one, with (B, S) = (2, 3)",
    ),
    (
        another_memory(X + 1),
        "memory is another one than that whose keys are stored: "
        "start with a new cache, or reset() this one",
    ),
    (
        memory_changed_in_place,
        "memory was changed in place since its keys were stored: "
        "start with a new cache, or reset() this one",
    ),
    (
        keys_of_no_memory,
        "cache is a LayerCache; expected a MemoryCache",
    ),
    (
        overfull_static_cache,
        "the cache holds max_len=4 positions; 4 are in use and 1 more were given",
    ),
    (rewind(4), "length=4 is more than the cache holds, 3"),
    (rewind(5, StaticCache), "length=5 is more than the cache holds, 3"),
    (rewind(-1), "length=-1 must be a whole number of at least 0"),
    (rewind(1.0, StaticCache), "length=1.0 must be a whole number of at least 0"),
    (rewind(True), "length=True must be a whole number of at least 0"),
    (
        lambda: Stack(small_config(), causal=True)(X, positions=torch.arange(3)),
        "positions has shape (3,); expected (1, T) = (1, 3) or (B, T) = (2, 3)",
    ),
    (
        lambda: Block(small_config(), cross_attention=True)(X),
        "the block has cross-attention, but no memory was given",
    ),
    (
        lambda: Stack(small_config(), causal=True)(X, memory=X),
        "the block has no cross-attention, but a memory was given",
    ),
    (
        encode_decode(source_mask=causal_mask(3)),
        "source_mask has shape (3, 3); expected a padding mask, (B, 1, 1, S), "
        "the same for every query",
    ),
    (
        lambda: Encoder(small_config(n_segments=2))(IDS, segments=IDS),
        "segments has 6; each must be between 0 and 1",
    ),
    (
        lambda: SequenceClassifier(small_config(), -1),
        "n_classes=-1 must be a whole number of at least 0",
    ),
    (
        lambda: SequenceClassifier(small_config(), 2, "max"),
        "pooling='max' must be one of 'cls', 'mean'",
    ),
    (
        lambda: mean_over_tokens(X, allowed(2, 3)),
        "mask has shape (2, 3); expected a padding mask, (B, 1, 1, T) = (2, 1, 1, 3)",
    ),
    (
        lambda: VisionTransformer(small_config(), 8, 4),
        "max_len=16 must be 5: 4 patches and the class token",
    ),
    (
        static_cache_for_a_longer_model,
        "ids has 1 tokens after 16 in the cache; the model accepts max_len=16",
    ),
    (
        write(max_new_tokens=15, cache=StaticCache(2, 64)),
        "max_new_tokens=15 after a prompt of 3 tokens: there is room for max_len=16, "
        "not counting the last token",
    ),
    (
        full_cache,
        "cache holds 6 tokens, more than a prompt of 3 tokens: begin the prompt with all of them, "
        "or rewind it",
    ),
    (
        write(stop=lambda new: new[:, -1]),
        "what stop returned can only be a tensor of torch.bool, which rows have ended; "
        "it is one of torch.int64",
    ),
    (
        write(stop=lambda new: None),
        "what stop returned is a NoneType; expected (B,) boolean, which rows have ended",
    ),
    (
        made_with_lost_parts,
        "test_misuse.made_with_lost_parts.<locals>.<lambda> makes a part, and could not be "
        "pickled: give parts=Parts(...) anew",
    ),
]


class CountsRows(Objective):
    """An objective that does not count targets."""

    def forward(self, batch):
        total, _ = super().forward(batch)
        return total, torch.tensor(len(batch["targets"]))


def train_small(**own):
    batches = TextWindows(torch.arange(9), 2, 1)
    return train(CausalLM(small_config()), batches, recipe(), device="cpu", **own)


TRAINING = [
    (lambda: recipe(balance=-0.01), "balance=-0.01 must be a number of at least 0"),
    (lambda: recipe(balance=float("nan")), "balance=nan must be a number of at least 0"),
    (lambda: recipe(balance="little"), "balance='little' must be a number of at least 0"),
    (
        lambda: Objective(CausalLM(small_config(n_experts=4)), balance=-1.0),
        "balance=-1.0 must be a number of at least 0",
    ),
    (
        lambda: Objective(CausalLM(small_config()), balance=0.01),
        "balance=0.01 needs a model with a MixtureOfExperts",
    ),
    (
        lambda: train(
            CausalLM(small_config()), TextWindows(torch.arange(9), 2, 1), recipe(balance=0.01)
        ),
        "balance=0.01 needs a model with a MixtureOfExperts",
    ),
    (
        lambda: train_small(objective=Objective(CausalLM(small_config()))),
        "objective has type Objective; expected a function that makes one for a model",
    ),
    (
        lambda: train_small(optimizer=torch.optim.SGD(nn.Linear(2, 3).parameters())),
        "optimizer has type SGD; expected a function that makes one for a model",
    ),
    (
        lambda: train_small(optimizer=lambda _: torch.optim.SGD(nn.Linear(2, 3).parameters())),
        "optimizer changes parameters of shape (3, 2), (3,) that are not the model's; "
        "expected those of the model that it is called with",
    ),
    (
        lambda: train_small(objective=CountsRows),
        "objective counted 1 targets of a batch; expected 2, those that are not IGNORE",
    ),
    (
        lambda: TextWindows(torch.zeros(9), 2, 1),
        "ids has dtype torch.float32; expected whole numbers, token ids",
    ),
    (
        lambda: TextWindows(np.zeros(9), 2, 1),
        "ids has dtype float64; expected whole numbers, token ids",
    ),
    (
        lambda: TextWindows(np.zeros((3, 3), dtype=np.uint16), 2, 1),
        "ids has shape (3, 3); expected (N)",
    ),
    (
        lambda: TextWindows(np.zeros(2, dtype=np.uint16), 2, 1),
        "length=2 is too much for a text of 2 tokens: one must follow",
    ),
]


def train_half(dtype, **changes):
    model = CausalLM(small_config()).to(dtype)
    return train(model, TextWindows(torch.arange(9), 2, 1), recipe(**changes), device="cpu")


def go_on_with(other):
    """Go on with a run, but with other data."""
    then = sum_up([[1, 2], [3, 4], [5, 6]])
    return lambda: check_same_data(Path("runs/a"), then, sum_up(other))


LEARNING = [
    (
        lambda: train_half(torch.bfloat16, precision="bfloat16"),
        "model has decoder.embedding.tokens.weight in torch.bfloat16, which rounds small steps "
        "away; expected float32: call model.float(), and set precision='bfloat16' in the recipe to "
        "be as fast; or set half_weights=True to train it as it is",
    ),
    (lambda: recipe(half_weights="yes"), "half_weights='yes' must be one of True, False"),
    (
        go_on_with([[1, 2], [3, 4], [5, 7]]),
        "batches gives other data than the run in runs/a: of its 3 examples, counted from 0, "
        "number 2 is the first to differ; give the same data, or take another folder",
    ),
    (
        go_on_with([[1, 2], [3, 4]]),
        "batches gives other data than the run in runs/a: it has 2 examples, and had 3; "
        "give the same data, or take another folder",
    ),
    (
        lambda: linear_cross_entropy(X, zeros(11, 8), IDS.T),
        "targets has shape (3, 2); wanted (2, 3)",
    ),
    (
        lambda: linear_cross_entropy(X, zeros(11, 8), IDS, label_smoothing=1.5),
        "label_smoothing=1.5 must be at least 0 and less than 1",
    ),
    (
        lambda: pack([[1, 2], torch.tensor([1.5, 2.0])], 4),
        "sequences has numbers with a fraction; expected token ids",
    ),
]

MATRIX = nn.Parameter(torch.eye(3))

TODAY = [
    (lambda: Muon([]), "matrices is empty; expected weights of hidden layers"),
    (
        lambda: Muon(nn.Linear(3, 2).parameters()),
        "matrices has one of shape (2,); expected two dimensions each",
    ),
    (
        lambda: Muon([nn.Parameter(zeros(4, 3, 2))]),  # joined or stacked weights
        "matrices has one of shape (4, 3, 2); expected two dimensions each",
    ),
    (lambda: Muon([MATRIX], lr=-0.1), "lr=-0.1 must be a number of at least 0"),
    (lambda: Muon([MATRIX], momentum=1.0), "momentum=1.0 must be at least 0 and less than 1"),
    (lambda: Muon([MATRIX], betas=(0.9, 1.0)), "betas=1.0 must be at least 0 and less than 1"),
    (
        lambda: Muon([MATRIX], precision="float16"),
        "precision='float16' must be one of 'float32', 'bfloat16'",
    ),
    (lambda: orthogonalise(zeros(3)), "matrix has shape (3,); expected two dimensions"),
    (
        lambda: train(
            nn.Linear(2, 3), TextWindows(torch.arange(9), 2, 1), recipe(optimizer="muon")
        ),
        "optimizer='muon' is for the matrices of blocks, and Linear trains none; expected a model "
        "with blocks, or call train with optimizer=lambda model: Muon(...) with your own choice",
    ),
    (
        lambda: recipe(optimizer="lion"),
        "optimizer='lion' must be one of 'adam', 'adamw', 'muon'",
    ),
    (lambda: recipe(momentum=-0.1), "momentum=-0.1 must be at least 0 and less than 1"),
    (lambda: recipe(average=1.0), "average=1.0 must be at least 0 and less than 1"),
    (lambda: recipe(average="often"), "average='often' must be at least 0 and less than 1"),
    (lambda: WeightAverage(nn.Linear(2, 3), 1), "beta=1 must be at least 0 and less than 1"),
    (
        lambda: recipe(decay_share=0.0),
        "decay_share=0.0 must be a number greater than 0 and at most 1",
    ),
    (
        lambda: recipe(steps=20, schedule="wsd", warmup=17),
        "warmup=17 must end before the decay begins (decay_share=0.2 of steps=20)",
    ),
]

COMMAND_LINE = [
    (
        in_a_world_of(4, lambda: choose_device("cpu")),
        "WORLD_SIZE=4, but this process has not joined the others: start it with torchrun, or "
        "unset WORLD_SIZE to train alone",
    ),
    (
        in_a_world_of(2, lambda: train_small(objective=None)),
        "WORLD_SIZE=2, but this process has not joined the others: start it with torchrun, or "
        "unset WORLD_SIZE to train alone",
    ),
    (
        lambda: next(write_on(None, CharTokenizer(), [], Sampling(), 3, "cpu")),
        "ids is empty; expected one token at least to go on from",
    ),
    (
        lambda: TextStream(CharTokenizer(), prompt=[5, 999]),
        "id=999 is not in the vocabulary; expected 0 to 258",
    ),
]


def adapt(**options):
    return lambda: add_lora(CausalLM(small_config()), **options)


def adapted_twice():
    model = CausalLM(small_config())
    add_lora(model)
    add_lora(model, layers="all")


def merged_twice():
    model = CausalLM(small_config())
    add_lora(model)
    merge_lora(model)
    merge_lora(model)


def into_another_model(**changes):
    """Adapters of one model are given to another one."""

    def run():
        with tempfile.TemporaryDirectory() as parent, contextlib.chdir(parent):
            model, other = CausalLM(small_config()), CausalLM(small_config(**changes))
            add_lora(model, rank=2)
            save_lora(model, "adapter")
            load_lora(other, "adapter")

    return run


def damaged_adapter():
    with tempfile.TemporaryDirectory() as parent, contextlib.chdir(parent):
        Path("a").mkdir()
        Path("a/lora.json").write_text('{"adapters": {"x": 8}}')
        Path("a/lora.safetensors").write_bytes(save({}))
        load_lora(CausalLM(small_config()), "a")


def saved_with_more_that_is_trained():
    model = CausalLM(small_config())
    add_lora(model)
    model.decoder.stack.blocks[0].attention_norm.weight.requires_grad_(True)
    save_lora(model, "unused")


def trained_although_frozen():
    model = CausalLM(small_config()).requires_grad_(False)
    train(model, TextWindows(torch.arange(9), 2, 1), recipe(), device="cpu")


def merged_into_whole_numbers():
    model = CausalLM(small_config())
    packed = model.decoder.stack.blocks[1].attention.query = nn.Identity()
    packed.in_features = packed.out_features = 8
    add_lora(model, layers="attention.query")
    merge_lora(model)


QUERY = "decoder.stack.blocks.0.attention.query"
ADAPTERS = [
    (adapt(rank=0), "rank=0 must be a whole number of at least 1"),
    (adapt(rank=2.5), "rank=2.5 must be a whole number of at least 1"),
    (adapt(alpha=-1.0), "alpha=-1.0 must be a number greater than 0"),
    (adapt(dropout=1.0), "dropout=1.0 must be at least 0 and less than 1"),
    (
        adapt(layers="querry"),
        "layers holds 'querry', which fits no linear layer; expected the end of a name such as "
        "'down', 'key', 'output', 'projection', 'query', 'up', 'value', or 'all'",
    ),
    (adapt(layers=[]), "layers=[] chooses nothing; expected the end of a layer's name"),
    (
        lambda: add_lora(nn.Sequential(nn.Linear(2, 3)), layers="all"),
        "layers='all' means those of blocks, and model has none; name some",
    ),
    (
        adapt(layers="projection"),
        "layers chooses output.projection, whose weights are shared: "
        "decoder.embedding.tokens.weight and output.projection.weight are one; expected layers "
        "with weights of their own",
    ),
    (
        lambda: LoraLinear(nn.Tanh()),
        "base has type Tanh; expected a layer with in_features and out_features",
    ),
    (adapted_twice, "model has adapters already; call merge_lora or remove_lora first"),
    (
        merged_twice,
        "model has no adapters; expected one that add_lora or load_lora gave some",
    ),
    (
        lambda: remove_lora(CausalLM(small_config())),
        "model has no adapters; expected one that add_lora or load_lora gave some",
    ),
    (
        merged_into_whole_numbers,
        "model has a Identity at decoder.stack.blocks.1.attention.query, whose matrix cannot take "
        "the sum; expected nn.Linear: leave the adapters beside it, or add them to the model "
        "before it was changed",
    ),
    (
        lambda: save_lora(CausalLM(small_config()), "unused"),
        "model has no adapters; expected one that add_lora gave some",
    ),
    (
        saved_with_more_that_is_trained,
        "model trains decoder.stack.blocks.0.attention_norm.weight beside its adapters, which "
        "would be lost; expected adapters alone: freeze it, or write the whole model with "
        "save_model",
    ),
    (
        into_another_model(n_layers=1),
        "adapter does not fit the model: it has an adapter for "
        "decoder.stack.blocks.1.attention.query, which is no linear layer of the model",
    ),
    (
        into_another_model(d_model=16),
        f"adapter does not fit the model: {QUERY}.down has shape (2, 8); expected (2, 16)",
    ),
    (
        damaged_adapter,
        "a/lora.json is damaged: adapters={'x': 8} must name layers with rank, alpha and dropout",
    ),
    (
        trained_although_frozen,
        "model has no parameter to train: all are frozen; expected some with requires_grad, "
        "such as the adapters of add_lora",
    ),
    (
        lambda: answer_batch([([5, 6], [6])]),
        "examples[0] has 2 ids and 1 labels; expected one label for each id",
    ),
    (
        lambda: label_answer(CharTokenizer(), "2+2=", ""),
        "answer='' has no tokens; expected some text",
    ),
]

KEY = "decoder.stack.blocks.0.attention.key"
QUERY = "decoder.stack.blocks.0.attention.query"
BITS = [
    (quantized(3, 4), f"{QUERY}: bits=3 must be one of 8, 4"),
    (quantized(4, 0), f"{QUERY}: group=0 must be a whole number of at least 1"),
    (
        quantized(4),
        f"{QUERY}: group=64 must divide in_features=8: 8 / 64 leaves a remainder of 8",
    ),
    (
        lambda: quantize_weight(zeros(2, 5), 4, 5),
        "in_features=5 must be even: with bits=4 two share a byte",
    ),
    (
        lambda: quantize_weight(zeros(2, 4) / 0, 8, 2),
        "weight has numbers that are infinite or not a number",
    ),
    (
        quantize_twice,
        f"model is quantised already, as {QUERY} is; expected full weights",
    ),
    (
        quantized(8, 4, layers="output.projection"),
        "layers has type str; expected a collection of names, such as ['output.projection']",
    ),
    (quantized(8, 4, layers=[]), "layers is empty; expected names of linear layers"),
    (
        quantized(8, 4, layers=["output.head"]),
        "layers holds 'output.head', and model has no module of that name",
    ),
    (
        quantized(8, 4, layers=["decoder.embedding.tokens"]),
        "decoder.embedding.tokens has type Embedding; expected an nn.Linear in layers",
    ),
    (
        lambda: quantize(quantized(8, 4)(), 8, 4, layers=[QUERY]),
        f"layers holds '{QUERY}', which is quantised already",
    ),
    (
        lambda: quantize(nn.Linear(4, 4), 8, 4),
        "model has no linear layers in blocks; expected some, or layers=[names]",
    ),
    (
        quantize_changed(lambda layer: layer.register_forward_hook(print)),
        f"{KEY} was changed (hooks); expected a layer as built",
    ),
    (
        quantize_changed(lambda layer: layer.to("meta")),
        f"{KEY} is on the device meta; expected weights that are there",
    ),
    (
        quantize_changed(lambda layer: layer.weight.data.fill_(float("inf"))),
        f"{KEY} has weights that are infinite or not a number",
    ),
    (
        train_in_few_bits,
        "model is quantised, and its weights are frozen; expected full weights (train first, and "
        "quantize what was trained), or adapters beside them (add_lora)",
    ),
    (
        write_few_bits_as_a_checkpoint,
        "model is quantised, which a checkpoint cannot say; call save_model",
    ),
    (
        lambda: QuantizedLinear(8, 2, bits=8, group=4)(zeros(3, 6)),
        "x has shape (3, 6); expected (..., n) with n=8, got n=6",
    ),
    (
        lambda: use_int_kernels(nn.Linear(4, 4)),
        "model has no quantised layers without kernels; call quantize first",
    ),
]

TABLE = [
    pytest.param(call, message, id=message[:60])
    for call, message in CONFIGURATION
    + MASKS
    + ATTENTION
    + PARTS
    + MODELS
    + TRAINING
    + LEARNING
    + TODAY
    + COMMAND_LINE
    + ADAPTERS
    + BITS
]


def test_the_table_has_at_least_sixty_different_messages():
    assert len({row.values[1] for row in TABLE}) >= 60


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "message"), TABLE)
def test_misuse_gets_exactly_this_message(call, message):
    wrong_type = ("has dtype", "has type", "with a fraction")
    error = TypeError if any(words in message for words in wrong_type) else ValueError
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert str(raised.value) == message
