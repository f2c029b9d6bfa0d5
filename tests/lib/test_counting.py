"""Counting by formula: equal to the models themselves, to PyTorch's counter and to the cache."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from transformer_book.counting import (
    active_parameters,
    attention_matrix_bytes,
    forward_flops,
    kv_cache_bytes,
    parameter_count,
    six_n_d,
    training_flops,
)
from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.models.encoder_decoder import Decoder, Encoder
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.models.presets import PRESETS, build_preset
from transformer_lib.tracing.watch import attention_maps, trace

SMALL = TransformerConfig(vocab_size=50, max_len=10, d_model=12, n_heads=6, d_ff=20, n_layers=2)
BUILD = {  # each kind with 4 classes, and images of 9 patches of 2 × 2 × 1
    "encoder": Encoder,
    "decoder": CausalLM,
    "encoder-decoder": Seq2SeqLM,
    "masked-lm": MaskedLM,
    "classifier": lambda config: SequenceClassifier(config, 4),
    "mean-classifier": lambda config: SequenceClassifier(config, 4, "mean"),
    "vision": lambda config: VisionTransformer(config, 6, 2, 1, 4),
}
ENDS = {
    "classifier": {"n_classes": 4},
    "mean-classifier": {"n_classes": 4},
    "vision": {"n_classes": 4, "patch_numbers": 4},
}
PRESET_KINDS = {
    CausalLM: ("decoder", {}),
    Seq2SeqLM: ("encoder-decoder", {}),
    SequenceClassifier: ("classifier", {}),
    VisionTransformer: ("vision", {"n_classes": 1000}),
}

configs = st.builds(
    TransformerConfig,
    vocab_size=st.integers(3, 60),
    max_len=st.just(10),
    d_model=st.just(12),
    n_heads=st.just(6),
    n_kv_heads=st.sampled_from([None, 1, 2, 3]),
    d_ff=st.sampled_from([None, 20]),
    n_layers=st.integers(1, 2),
    position=st.sampled_from(["sinusoidal", "learned", "rope", "alibi", "t5", "none"]),
    norm=st.sampled_from(["layer", "rms"]),
    norm_position=st.sampled_from(["pre", "post"]),
    activation=st.sampled_from(["relu", "gelu", "swiglu", "geglu_tanh"]),
    n_experts=st.sampled_from([None, None, 3]),
    active_experts=st.integers(1, 3),
    bias=st.booleans(),
    norm_embeddings=st.booleans(),
    n_segments=st.sampled_from([0, 2]),
    tie_embeddings=st.booleans(),
    window=st.sampled_from([None, 2]),
)


def count(model):
    return sum(weight.numel() for weight in model.parameters())


def inputs_of(kind, batch=3, target=5, source=7):
    if kind == "vision":
        return [torch.ones(batch, 1, 6, 6)]
    target = torch.zeros(batch, target, dtype=torch.long)
    source = torch.zeros(batch, source, dtype=torch.long)
    return [source, target] if kind == "encoder-decoder" else [target]


def lengths_of(kind):
    return (10,) if kind == "vision" else (5, 7)


def counted(model, inputs, *, backward=False):
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            part.fused = False
    with FlopCounterMode(display=False) as counter:
        output = model(*inputs)
        if backward:
            output.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    model = build_preset(name, device="meta")
    kind, ends = PRESET_KINDS[type(model)]
    counts = parameter_count(PRESETS[name].config, kind, **ends)
    assert counts["total"] == count(model) == PRESETS[name].parameters
    assert counts["total"] == sum(counts.values()) - counts["total"]
    assert active_parameters(PRESETS[name].config, kind, **ends) == counts["total"]


@pytest.mark.parametrize("kind", BUILD)
@given(config=configs)
@settings(max_examples=10, deadline=None)
def test_parameters_of_any_configuration(kind, config):
    with torch.device("meta"):
        model = BUILD[kind](config)
    assert parameter_count(config, kind, **ENDS.get(kind, {}))["total"] == count(model)


@pytest.mark.parametrize("kind", BUILD)
@given(config=configs)
@settings(max_examples=4, deadline=None)
def test_operations_of_any_configuration(kind, config):
    model = BUILD[kind](config)
    formula = forward_flops(config, kind, 3, *lengths_of(kind), **ENDS.get(kind, {}))
    assert formula["total"] == counted(model, inputs_of(kind))


PARTS = {  # where a part's parameters are, and the number of them that the formula must find there
    "attention": "attention.",
    "cross-attention": "cross_attention.",
    "feed-forward": "feed_forward.experts",
    "router": "router",
    "norms": "norm.",
    "positions": "positions.table",
    "segments": "segments",
    "output": "output.projection",
    "tokens": "tokens",
}


def test_the_parts_of_a_model():
    config = replace(
        SMALL,
        n_experts=3,
        position="learned",
        n_segments=2,
        tie_embeddings=False,
        norm_embeddings=True,
        norm_position="pre",
    )
    model = Seq2SeqLM(config)
    counts = parameter_count(config, "encoder-decoder")
    assert set(counts) == {*PARTS, "total"}
    for part, text in PARTS.items():
        names = [
            name
            for name, _ in model.named_parameters()
            if text in name and not (part == "attention" and "cross_attention" in name)
        ]
        assert counts[part] == sum(model.get_parameter(name).numel() for name in names), part


def test_the_parts_of_the_heads():
    d, v = SMALL.d_model, SMALL.vocab_size
    masked = parameter_count(SMALL, "masked-lm")
    assert masked["transform"] == d * d + d
    assert masked["output bias"] == v
    assert "output" not in masked  # tied
    assert parameter_count(replace(SMALL, tie_embeddings=False), "masked-lm")["output"] == v * d
    assert parameter_count(SMALL, "classifier")["pooler"] == d * d + d
    assert "pooler" not in parameter_count(SMALL, "mean-classifier")
    vision = parameter_count(SMALL, "vision", n_classes=4, patch_numbers=30)
    assert vision["patches"] == 30 * d + d
    assert vision["class token"] == d
    assert vision["classes"] == 4 * d + 4
    assert "tokens" not in vision
    t5 = parameter_count(replace(SMALL, position="t5"), "encoder-decoder")
    assert t5["relative bias"] == 2 * 32 * SMALL.n_heads


@pytest.mark.parametrize("kind", BUILD)
def test_the_trace_counts_the_same(kind):
    config = replace(SMALL, position="learned", n_kv_heads=3, activation="geglu")
    formula = forward_flops(config, kind, 3, *lengths_of(kind), **ENDS.get(kind, {}))
    parameters = parameter_count(config, kind, **ENDS.get(kind, {}))
    total = trace(BUILD[kind](config), *inputs_of(kind)).total
    assert (total.flops, total.parameters) == (formula["total"], parameters["total"])


def test_the_parts_of_a_forward_pass():
    """Each part against the steps of a trace that belong to it."""
    config = replace(SMALL, n_kv_heads=2, n_experts=3, activation="swiglu")
    formula = forward_flops(config, "encoder-decoder", 3, 5, 7)
    steps = trace(Seq2SeqLM(config), *inputs_of("encoder-decoder"))

    def operations(pattern, what=""):
        return sum(s.flops for s in steps if pattern in s.section and what in s.what)

    projections = operations(".attention", "project")
    assert formula == {
        "scores": operations("attention", "scores"),
        "weighted sums": operations("attention", "weighted sum"),
        "attention": projections,
        "cross-attention": operations("cross_attention", "project"),
        "router": operations("feed_forward", "score the experts"),
        "feed-forward": operations("experts."),
        "output": operations("output"),
        "total": steps.total.flops,
    }


def test_active_parameters_leave_out_the_experts_that_rest():
    config = replace(SMALL, n_experts=5, active_experts=2)
    model = CausalLM(config)
    resting = sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if any(f"experts.{i}." in name for i in (2, 3, 4))
    )
    assert active_parameters(config, "decoder") == count(model) - resting
    classifier = SequenceClassifier(config, 4)
    assert active_parameters(config, "classifier", n_classes=4) == count(classifier) - resting


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder", "masked-lm", "classifier"])
def test_training_takes_three_times_the_forward_pass(kind):
    """Counted by torch, with the gradients of everything, embeddings included."""
    model = BUILD[kind](replace(SMALL, activation="swiglu"))
    forward = forward_flops(model.config, kind, 3, *lengths_of(kind), **ENDS.get(kind, {}))["total"]
    assert training_flops(forward) == counted(model, inputs_of(kind), backward=True)


def test_training_a_vision_model_takes_a_little_less():
    """Its first matrix has no gradient to pass on to the image."""
    config = replace(SMALL, position="learned")
    flops = forward_flops(config, "vision", 3, 10, **ENDS["vision"])
    found = counted(BUILD["vision"](config), inputs_of("vision"), backward=True)
    assert found == training_flops(flops["total"]) - flops["patches"]


def test_six_n_d_is_near_for_a_wide_model_and_leaves_out_attention():
    config, length = PRESETS["llama-3-8b"].config, 2048
    counts = parameter_count(config, "decoder")
    weights = counts["total"] - counts["tokens"]  # looked up in, not multiplied by
    flops = forward_flops(config, "decoder", 1, length)
    estimate = six_n_d(weights, length)
    exact = training_flops(flops["total"])
    assert estimate < exact < 1.1 * estimate
    inside = training_flops(flops["scores"] + flops["weighted sums"])
    assert exact - inside == estimate - six_n_d(counts["norms"], length)


def test_gpt3_took_as_many_operations_as_its_paper_says():
    parameters = parameter_count(PRESETS["gpt3-175b"].config, "decoder")["total"]
    assert f"{six_n_d(parameters, 300_000_000_000):.2e}" == "3.14e+23"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_attention_matrix_is_as_large_as_the_maps(dtype):
    model = Seq2SeqLM(SMALL).to(dtype)
    maps = attention_maps(model, *inputs_of("encoder-decoder"))
    sizes = {
        "encoder.stack.blocks.0.attention": (7,),
        "decoder.stack.blocks.1.cross_attention": (5, 7),
    }
    for path, lengths in sizes.items():
        expected = attention_matrix_bytes(SMALL, 3, *lengths, bytes_per_number=dtype.itemsize)
        assert maps[f"body.{path}"].nbytes == expected


@pytest.mark.parametrize("n_kv_heads", [None, 3, 1])
def test_the_cache_is_as_large_as_what_is_set_aside(n_kv_heads):
    config = replace(SMALL, n_kv_heads=n_kv_heads)
    cache = KeyValueCache(config.n_layers, max_len=9)
    CausalLM(config)(*inputs_of("decoder"), cache=cache)
    assert cache.n_bytes == kv_cache_bytes(config, 3, 9, 4)
    cache = KeyValueCache(config.n_layers, max_len=9)
    decoder = Decoder(config, cross_attention=True)
    decoder(*inputs_of("decoder"), torch.zeros(3, 7, 12), cache=cache)
    assert cache.n_bytes == kv_cache_bytes(config, 3, 9, 4, source_length=7)


def test_the_cache_of_famous_models():
    """Grouped heads make LLaMA-3 70B's cache eight times smaller than all heads would."""
    llama = PRESETS["llama-3-70b"].config
    assert kv_cache_bytes(llama, 1, 8192) == 2_684_354_560  # 2.5 GiB in bfloat16
    assert kv_cache_bytes(replace(llama, n_kv_heads=None), 1, 8192) == 8 * 2_684_354_560
    assert kv_cache_bytes(PRESETS["gpt2"].config, 1, 1024) == 37_748_736


MISUSES = [
    (
        lambda: parameter_count(SMALL, "rnn"),
        "kind='rnn' must be one of 'encoder', 'decoder', 'encoder-decoder', 'masked-lm', "
        "'classifier', 'mean-classifier', 'vision'",
    ),
    (
        lambda: forward_flops(SMALL, "decoder", 0, 5),
        "batch=0 must be a whole number of at least 1",
    ),
    (
        lambda: forward_flops(SMALL, "decoder", 1, -5),
        "length=-5 must be a whole number of at least 1",
    ),
    (
        lambda: forward_flops(SMALL, "encoder-decoder", 1, 5, 0),
        "source_length=0 must be a whole number of at least 1",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISUSES)
@pytest.mark.usefixtures("unchecked_shapes")
def test_misuse(call, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the whole message is compared)
        call()
    assert str(error.value) == message
