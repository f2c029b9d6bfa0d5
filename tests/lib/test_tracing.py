"""Traces: letters that are true, steps that really ran, counts that are PyTorch's own."""

import functools
import inspect
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from transformer_book.counting import attention_matrix_bytes, forward_flops
from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers import attention
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.feedforward import FeedForward, MixtureOfExperts
from transformer_lib.layers.masks import padding_mask
from transformer_lib.models import blocks
from transformer_lib.models.blocks import Block, Stack
from transformer_lib.models.encoder_decoder import Decoder, Encoder, EncoderDecoder
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.models.presets import PRESETS
from transformer_lib.tracing.dimension_letters import (
    RULES,
    STEP_LETTERS,
    complete_letters,
    declared_letters,
)
from transformer_lib.tracing.step_wording import WORDS, Words
from transformer_lib.tracing.watch import attention_maps, hidden_states, influence, trace

# All sizes differ: a letter in the wrong place would have the wrong size.
B, T, S, D, H, F, V = 3, 5, 7, 12, 6, 20, 50
SMALL = TransformerConfig(
    vocab_size=V, max_len=16, d_model=D, n_heads=H, d_ff=F, n_layers=2, dropout=0.5
)
IMAGES = TransformerConfig(d_model=D, n_heads=H, d_ff=F, n_layers=2, max_len=10, position="learned")


def ids(length=T, batch=B):
    return torch.arange(batch * length).reshape(batch, length) % V


def stream(length=T):
    return torch.linspace(-1, 1, B * length * D).reshape(B, length, D)


def mask(length=T):
    return padding_mask(torch.tensor([length, 2, 1]), length)


def config(**choices):
    return replace(SMALL, **choices)


CASES = {  # a model, its inputs, its named inputs
    "encoder": lambda: (Encoder(SMALL), [ids(), mask()], {}),
    "decoder": lambda: (Decoder(SMALL), [ids()], {}),
    "decoder with memory": lambda: (
        Decoder(SMALL, cross_attention=True),
        [ids(), stream(S)],
        {"mask": mask(), "memory_mask": mask(S)},
    ),
    "encoder-decoder": lambda: (EncoderDecoder(SMALL), [ids(S), ids()], {}),
    "seq2seq": lambda: (Seq2SeqLM(SMALL), [ids(S), ids(), mask(S), mask()], {}),
    "untied seq2seq": lambda: (Seq2SeqLM(config(tie_embeddings=False)), [ids(S), ids()], {}),
    "masked lm": lambda: (MaskedLM(config(activation="gelu")), [ids()], {}),
    "classifier by first token": lambda: (
        SequenceClassifier(config(n_segments=2, norm_embeddings=True), 4),
        [ids(), mask()],
        {"segments": ids() % 2},
    ),
    "classifier by mean": lambda: (SequenceClassifier(SMALL, 4, "mean"), [ids()], {}),
    "classifier by masked mean": lambda: (
        SequenceClassifier(config(n_segments=2), 0, "mean"),
        [ids(), mask()],
        {},
    ),
    "vision": lambda: (VisionTransformer(IMAGES, 6, 2, 1, 4), [torch.ones(B, 1, 6, 6)], {}),
    "block": lambda: (Block(SMALL), [stream()], {"causal": True}),
    "block with memory": lambda: (
        Block(SMALL, cross_attention=True),
        [stream()],
        {"memory": stream(S)},
    ),
    "stack": lambda: (Stack(config(norm_position="pre"), causal=True), [stream()], {}),
    "attention": lambda: (MultiHeadAttention(D, H), [stream(), stream(S)], {}),
    "feed-forward": lambda: (FeedForward(D, F, "geglu"), [stream()], {}),
    "feed-forward on rows": lambda: (FeedForward(D, F), [stream()[0]], {}),
    "experts": lambda: (MixtureOfExperts(config(n_experts=4)), [stream()], {}),
    "causal lm": lambda: (CausalLM(SMALL), [ids()], {}),
    "causal lm with padding": lambda: (CausalLM(SMALL), [ids(), mask()], {}),
    "learned": lambda: (CausalLM(config(position="learned")), [ids()], {}),
    "rope": lambda: (CausalLM(config(position="rope", norm_position="pre")), [ids()], {}),
    "split rope": lambda: (CausalLM(config(position="rope", rope_pairing="split")), [ids()], {}),
    "alibi": lambda: (CausalLM(config(position="alibi", window=2)), [ids()], {}),
    "t5": lambda: (Seq2SeqLM(config(position="t5", norm="rms")), [ids(S), ids()], {}),
    "gqa": lambda: (CausalLM(config(n_kv_heads=3, position="rope")), [ids()], {}),
    "mqa": lambda: (CausalLM(config(n_kv_heads=1, activation="swiglu")), [ids()], {}),
    "mixture": lambda: (CausalLM(config(n_experts=4, active_experts=3)), [ids()], {}),
    "one sequence": lambda: (CausalLM(config(position="learned")), [ids(batch=1)], {}),
}


@functools.cache
def case(name):
    return CASES[name]()


@functools.cache
def traced(name):
    model, inputs, options = case(name)
    return trace(model, *inputs, **options)


def rows(steps):
    """The words and shapes of steps, numbers left out."""
    return [
        (
            re.sub(r"^(scale by.*?)( =)? [\d.]+$", r"\1", step.what),
            ", ".join(step.inputs) + " -> " + step.output,
        )
        for step in steps
    ]


def size_of(text, sizes):
    """The size that a letter, a number, a product or a fraction stands for."""
    total = 1
    for factor in text.split("*"):
        over, _, under = factor.partition("/")
        total *= (int(over) if over.isdigit() else sizes[over]) // int(under or 1)
    return total


@pytest.mark.parametrize("name", CASES)
def test_every_letter_has_its_size(name):
    found = traced(name)
    assert set(found.sizes) <= set(STEP_LETTERS)
    for step in found:
        shapes = [
            *zip(step.inputs, step.input_sizes, strict=True),
            (step.output, step.output_sizes),
        ]
        for letters, sizes in shapes:
            expected = tuple(size_of(letter, found.sizes) for letter in letters.split())
            assert expected == sizes, (step, letters)


@pytest.mark.parametrize("name", CASES)
def test_the_totals_are_those_of_the_model_and_of_torch(name):
    model, inputs, options = case(name)
    assert traced(name).total.parameters == sum(weight.numel() for weight in model.parameters())
    modes = {part: part.fused for part in model.modules() if isinstance(part, MultiHeadAttention)}
    for part in modes:
        part.fused = False
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs, **options)
    for part, fused in modes.items():
        part.fused = fused
    assert traced(name).total.flops == counter.get_total_flops() > 0


# Only these dimensions have no letter: an image and its patches, two segments' table, distances,
# and how many tokens the data sent to an expert.
NUMBERS = {
    "cut into patches",
    "lay out in a row",
    "project each patch",
    "repeat the class token",
    "put the class token first",
    "look up a bias for distances",
    "put heads first",
    "pick the best",
    "make the weights sum to 1",
    "take this expert's tokens",
    "weigh what it says",
    "add it to the output",
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_stand_only_where_no_letter_is(name):
    for step in traced(name):
        if step.what not in NUMBERS and "experts." not in step.module:
            for letters in (*step.inputs, step.output):
                assert not re.search(r"\b[2-9]|\d\d", letters), step


def test_letters_do_not_come_from_sizes():
    def steps(batch, target, source, d_model, n_heads, n_kv_heads, d_ff, vocab_size):
        choices = config(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            d_ff=d_ff,
            vocab_size=vocab_size,
            position="rope",
        )
        inputs = torch.zeros(batch, source).long(), torch.zeros(batch, target).long()
        return rows(trace(Seq2SeqLM(choices), *inputs))

    assert steps(3, 5, 7, 12, 6, 3, 20, 50) == steps(4, 4, 4, 16, 4, 2, 16, 16)


def attention_rows(name, path):
    return rows(step for step in traced(name) if step.section == path)


def test_a_name_of_two_letters_is_one_name():
    """``Dk`` is moved, joined, cut and halved as a whole; it is never taken for ``D``."""
    names = declared_letters(Float[Tensor, "B H T Dk"], torch.zeros(2, 4, 5, 8))
    assert names == ("B", "H", "T", "Dk")
    swapped = RULES["transpose"](names, 1, 2)
    joined = RULES["flatten"](swapped, 2)
    assert joined == ("B", "T", "H*Dk")
    assert RULES["unflatten"](joined, -1, (4, -1)) == swapped
    halves = RULES["unflatten"](names, -1, (-1, 2))
    assert halves == ("B", "H", "T", "Dk/2", ".")
    assert RULES["flatten"]((*halves[:-1], "2"), -2) == names
    assert complete_letters((".", "."), "D Dk", (6, 8)) == ("D", "Dk")
    words = WORDS[MultiHeadAttention]["matmul"]
    assert words.say("Dk", None) != words.say("D", None) == words.say("T", None)


def test_the_steps_of_self_attention():
    assert attention_rows("gqa", "decoder.stack.blocks.1.attention") == [
        ("project to queries", "B T D -> B T H*Dk"),
        ("split heads", "B T H*Dk -> B T H Dk"),
        ("swap positions and heads", "B T H Dk -> B H T Dk"),
        ("rotate (RoPE)", "B H T Dk -> B H T Dk"),
        ("project to keys", "B T D -> B T G*Dk"),
        ("split heads", "B T G*Dk -> B T G Dk"),
        ("swap positions and heads", "B T G Dk -> B G T Dk"),
        ("project to values", "B T D -> B T G*Dk"),
        ("split heads", "B T G*Dk -> B T G Dk"),
        ("swap positions and heads", "B T G Dk -> B G T Dk"),
        ("rotate (RoPE)", "B G T Dk -> B G T Dk"),
        ("repeat for each group of heads", "B G T Dk -> B H T Dk"),
        ("repeat for each group of heads", "B G T Dk -> B H T Dk"),
        ("scores: queries · keys", "B H T Dk, B H T Dk -> B H T T"),
        ("scale by", "B H T T -> B H T T"),
        ("mask", "B H T T -> B H T T"),
        ("softmax", "B H T T -> B H T T"),
        ("set masked weights to 0", "B H T T -> B H T T"),
        ("weighted sum of values", "B H T T, B H T Dk -> B H T Dk"),
        ("swap positions and heads", "B H T Dk -> B T H Dk"),
        ("merge heads", "B T H Dk -> B T H*Dk"),
        ("project and mix heads", "B T H*Dk -> B T D"),
    ]


def test_the_steps_of_cross_attention():
    path = "body.decoder.stack.blocks.0.cross_attention"
    assert attention_rows("seq2seq", path) == [
        ("project to queries", "B T D -> B T H*Dk"),
        ("split heads", "B T H*Dk -> B T H Dk"),
        ("swap positions and heads", "B T H Dk -> B H T Dk"),
        ("project to keys", "B S D -> B S H*Dk"),
        ("split heads", "B S H*Dk -> B S H Dk"),
        ("swap positions and heads", "B S H Dk -> B H S Dk"),
        ("project to values", "B S D -> B S H*Dk"),
        ("split heads", "B S H*Dk -> B S H Dk"),
        ("swap positions and heads", "B S H Dk -> B H S Dk"),
        ("scores: queries · keys", "B H T Dk, B H S Dk -> B H T S"),
        ("scale by", "B H T S -> B H T S"),
        ("mask", "B H T S -> B H T S"),
        ("softmax", "B H T S -> B H T S"),
        ("set masked weights to 0", "B H T S -> B H T S"),
        ("weighted sum of values", "B H T S, B H S Dk -> B H T Dk"),
        ("swap positions and heads", "B H T Dk -> B T H Dk"),
        ("merge heads", "B T H Dk -> B T H*Dk"),
        ("project and mix heads", "B T H*Dk -> B T D"),
    ]


OUTSIDE_ATTENTION = {
    "encoder": [  # post-norm
        ("embedding.tokens", "look up token vectors", "B T -> B T D"),
        ("embedding", "scale by sqrt(D)", "B T D -> B T D"),
        ("embedding.positions", "add positions", "B T D -> B T D"),
        ("stack.blocks.0", "add to the stream", "B T D -> B T D"),
        ("stack.blocks.0.attention_norm", "layer norm", "B T D -> B T D"),
        ("stack.blocks.0.feed_forward.up", "expand", "B T D -> B T F"),
        ("stack.blocks.0.feed_forward", "activate (ReLU)", "B T F -> B T F"),
        ("stack.blocks.0.feed_forward.down", "contract", "B T F -> B T D"),
        ("stack.blocks.0", "add to the stream", "B T D -> B T D"),
        ("stack.blocks.0.feed_forward_norm", "layer norm", "B T D -> B T D"),
    ],
    "stack": [  # pre-norm
        ("blocks.0.attention_norm", "layer norm", "B T D -> B T D"),
        ("blocks.0", "add to the stream", "B T D -> B T D"),
        ("blocks.0.feed_forward_norm", "layer norm", "B T D -> B T D"),
        ("blocks.0.feed_forward.up", "expand", "B T D -> B T F"),
        ("blocks.0.feed_forward", "activate (ReLU)", "B T F -> B T F"),
        ("blocks.0.feed_forward.down", "contract", "B T F -> B T D"),
        ("blocks.0", "add to the stream", "B T D -> B T D"),
        ("final_norm", "layer norm", "B T D -> B T D"),
    ],
    "mqa": [
        ("decoder.embedding.tokens", "look up token vectors", "B T -> B T D"),
        ("decoder.embedding", "scale by sqrt(D)", "B T D -> B T D"),
        ("decoder.embedding.positions", "add positions", "B T D -> B T D"),
        ("decoder.stack.blocks.0", "add to the stream", "B T D -> B T D"),
        ("decoder.stack.blocks.0.attention_norm", "layer norm", "B T D -> B T D"),
        ("decoder.stack.blocks.0.feed_forward.up", "expand", "B T D -> B T F"),
        ("decoder.stack.blocks.0.feed_forward.gate", "expand for the gate", "B T D -> B T F"),
        ("decoder.stack.blocks.0.feed_forward", "activate (SiLU)", "B T F -> B T F"),
        ("decoder.stack.blocks.0.feed_forward", "multiply by the gate", "B T F -> B T F"),
        ("decoder.stack.blocks.0.feed_forward.down", "contract", "B T F -> B T D"),
        ("decoder.stack.blocks.0", "add to the stream", "B T D -> B T D"),
        ("decoder.stack.blocks.0.feed_forward_norm", "layer norm", "B T D -> B T D"),
        ("output.projection", "logits (tied)", "B T D -> B T V"),
    ],
    "classifier by first token": [
        ("encoder.embedding.tokens", "look up token vectors", "B T -> B T D"),
        ("encoder.embedding", "scale by sqrt(D)", "B T D -> B T D"),
        ("encoder.embedding.positions", "add positions", "B T D -> B T D"),
        ("encoder.embedding.segments", "look up segment vectors", "B T -> B T D"),
        ("encoder.embedding", "add segments", "B T D -> B T D"),
        ("encoder.embedding.norm", "layer norm", "B T D -> B T D"),
        ("", "take the first token", "B T D -> B D"),
        ("pooler", "pool", "B D -> B D"),
        ("", "tanh", "B D -> B D"),
        ("classifier", "logits", "B D -> B C"),
    ],
    "classifier by masked mean": [
        ("encoder.embedding.tokens", "look up token vectors", "B T -> B T D"),
        ("encoder.embedding", "scale by sqrt(D)", "B T D -> B T D"),
        ("encoder.embedding.positions", "add positions", "B T D -> B T D"),
        ("encoder.embedding.segments", "look up segment vectors", "B T -> B T D"),
        ("encoder.embedding", "add segments", "B T D -> B T D"),
        ("", "set padding to 0", "B T D -> B T D"),
        ("", "sum over tokens", "B T D -> B D"),
        ("", "divide by their number", "B D -> B D"),
    ],
    "vision": [
        ("patches", "cut into patches", "B 1 6 6 -> B 3 3 1 2 2"),
        ("patches", "lay out in a row", "B 3 3 1 2 2 -> B 3 3 4"),
        ("patches", "lay out in a row", "B 3 3 4 -> B 9 4"),
        ("patches.projection", "project each patch", "B 9 4 -> B 9 D"),
        ("", "repeat the class token", "12 -> B 1 D"),
        ("", "put the class token first", "B 1 D, B 9 D -> B T D"),
        ("positions.table", "look up position vectors", "1 T -> 1 T D"),
        ("positions", "add positions", "B T D -> B T D"),
        ("", "take the class token", "B T D -> B D"),
        ("classifier", "logits", "B D -> B C"),
    ],
    "masked lm": [
        ("encoder.embedding.tokens", "look up token vectors", "B T -> B T D"),
        ("encoder.embedding", "scale by sqrt(D)", "B T D -> B T D"),
        ("encoder.embedding.positions", "add positions", "B T D -> B T D"),
        ("transform", "transform", "B T D -> B T D"),
        ("", "activate (GELU)", "B T D -> B T D"),
        ("norm", "layer norm", "B T D -> B T D"),
        ("output.projection", "logits (tied)", "B T D -> B T V"),
    ],
}


@pytest.mark.parametrize("name", OUTSIDE_ATTENTION)
def test_the_steps_outside_attention(name):
    """Of the first block if it is in the list, of none otherwise."""
    expected = OUTSIDE_ATTENTION[name]
    with_block = any("blocks.0" in path for path, _, _ in expected)
    steps = [
        step
        for step in traced(name)
        if not re.search(r"\.attention\b" if with_block else r"blocks", step.module)
        and "blocks.1" not in step.module
    ]
    found = [(step.module, *row) for step, row in zip(steps, rows(steps), strict=True)]
    assert found == expected


def test_what_a_part_calls_t_is_s_in_an_encoder():
    """The positions are made inside the encoder; its annotations say T for either side."""
    model = Seq2SeqLM(config(position="learned"))
    lookups = [row for row in rows(trace(model, ids(S), ids())) if "position vec" in row[0]]
    assert [shape for _, shape in lookups] == ["1 S -> 1 S D", "1 T -> 1 T D"]
    assert ("look up position vectors", "1 T -> 1 T D") in rows(traced("one sequence"))


def test_the_steps_of_a_mixture():
    inside = [row for row in rows(traced("experts")) if row[0] not in ("expand", "contract")]
    assert [what for what, _ in inside[:5]] == [
        "line up all tokens",
        "score the experts",
        "softmax",
        "pick the best",
        "make the weights sum to 1",
    ]
    assert inside[0][1] == "B T D -> B*T D"
    assert inside[1][1] == "B*T D -> B*T E"
    assert inside[3][1] == "B*T E -> B*T 2"
    for what in ("take this expert's tokens", "weigh what it says", "add it to the output"):
        assert [row[0] for row in inside].count(what) == 4
    assert inside[-1] == ("back to sequences", "B*T D -> B T D")


def test_bias_and_distances():
    """T5's table is looked up once and added in every block; ALiBi has no table."""
    words = [step.what for step in traced("t5")]
    assert words.count("look up a bias for distances") == 2  # encoder and decoder
    assert words.count("add bias") == 4  # not in cross-attention
    words = [step.what for step in traced("alibi")]
    assert "look up a bias for distances" not in words
    assert words.count("add bias") == words.count("mask") == 2


def test_a_table_of_distances_brings_no_letters():
    """The bias calls its table T S; in self-attention both are T, in an encoder both are S."""
    assert "S" not in traced("alibi").sizes
    lookups = [row for row in rows(traced("t5")) if row[0] == "look up a bias for distances"]
    assert [shape for _, shape in lookups] == [f"{n} {n} -> {n} {n} H" for n in (S, T)]


# ---- what is recorded is what ran -----------------------------------------------------------


def without_residual(self, x, mask=None, *_, memory_cache=None, **options):
    x = self.attention_norm(self.attention(x, mask=mask, **options))
    return self.feed_forward_norm(self.feed_forward(x))


def with_exp(self, *inputs, forward=Block.forward, **options):
    return forward(self, *inputs, **options).exp()


def without_scale(self, q, k, v, *_, **__):
    return (q @ k.mT).softmax(-1) @ v


def scaled_by_tensor(self, q, k, v, *_, **__):
    return ((q @ k.mT) * torch.ones(1)).softmax(-1) @ v


def without_swap(self, x):
    return x.unflatten(-1, (-1, self.d_head))


CHANGES = {  # a patch, and the words that come or go with their number
    "no residual": (Block, "forward", without_residual, {"add to the stream": -4}),
    "one more function": (Block, "forward", with_exp, {"exp": 2}),
    "no scale, no mask": (
        MultiHeadAttention,
        "attend",
        without_scale,
        {"scale by": -2, "mask": -2, "set masked weights to 0": -2},
    ),
    "another scale": (
        MultiHeadAttention,
        "attend",
        scaled_by_tensor,
        {"scale by": -2, "scale by a tensor": 2, "mask": -2, "set masked weights to 0": -2},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_gives_a_changed_trace(name, monkeypatch):
    def count(words):
        return {word: words.count(word) for word in words}

    owner, attribute, patch, changes = CHANGES[name]
    before = count([what for what, _ in rows(traced("causal lm"))])
    monkeypatch.setattr(owner, attribute, patch)
    after = count([what for what, _ in rows(trace(CausalLM(SMALL), ids()))])
    found = {
        word: after.get(word, 0) - before.get(word, 0)
        for word in before | after
        if after.get(word) != before.get(word)
    }
    assert found == changes


def test_a_dropped_swap_of_heads_shows_in_the_letters(monkeypatch):
    """With as many positions as heads no size is wrong, and nothing else complains."""
    monkeypatch.setattr(MultiHeadAttention, "_split", without_swap)
    steps = rows(trace(MultiHeadAttention(D, H), stream(H)))
    assert ("scores: queries · keys", "B T H Dk, B T H Dk -> B T H H") in steps
    assert ("merge heads", "B H T Dk -> B H T*Dk") in steps


def test_the_factor_is_the_one_that_was_used():
    scales = [step.what for step in traced("causal lm") if "scale" in step.what]
    assert scales[:2] == ["scale by sqrt(D) = 3.464", "scale by 0.7071"]
    other = trace(CausalLM(config(attention_scale=0.25)), ids())
    assert "scale by 0.25" in [step.what for step in other]
    assert "scale by sqrt(D) = 3.464" not in [
        step.what for step in trace(CausalLM(config(scale_embeddings=False)), ids())
    ]


# ---- parameters, bytes, devices -------------------------------------------------------------


def test_views_take_no_memory_and_merging_heads_copies():
    for step in traced("rope"):
        numbers = torch.Size(step.output_sizes).numel()
        if step.what in ("split heads", "swap positions and heads"):
            assert step.bytes == 0
        else:
            assert step.bytes == 4 * numbers > 0, step


def test_the_softmax_is_as_large_as_the_formula_says():
    steps = [step for step in traced("gqa") if step.what == "softmax"]
    expected = attention_matrix_bytes(SMALL, B, T, bytes_per_number=4)
    assert [step.bytes for step in steps] == [expected, expected]
    double = trace(CausalLM(SMALL).double(), ids())
    assert [step.bytes for step in double if step.what == "softmax"] == [2 * expected] * 2


def test_a_shared_table_is_counted_once_and_has_both_paths():
    steps = [step for step in traced("seq2seq") if "tokens" in step.module]
    assert [(step.module, step.what, step.parameters) for step in steps] == [
        ("body.encoder.embedding.tokens", "look up token vectors", V * D),
        ("body.decoder.embedding.tokens", "look up token vectors (tied)", 0),
    ]
    assert not any("tied" in step.what for step in traced("untied seq2seq"))


@pytest.mark.parametrize("name", ["seq2seq", "rope", "mixture", "vision", "t5"])
def test_on_the_meta_device(name):
    """No values, no memory, and the same table; a mixture shares its tokens out evenly."""
    here = traced(name)
    with torch.device("meta"):
        model, inputs, options = CASES[name]()
    there = trace(model, *(x.to("meta") for x in inputs), **options)
    assert there.total.parameters == here.total.parameters
    assert there.total.flops == here.total.flops
    if name == "mixture":
        shares = [
            step.output_sizes[0] for step in there if step.what == "take this expert's tokens"
        ]
        assert shares == [11, 11, 11, 12] * 2  # 3 of 4 experts for each of 15 tokens
    else:
        assert rows(there) == rows(here)
        assert there.total.bytes == here.total.bytes


def test_a_model_of_70_billion():
    """Two of its 80 blocks: the others are the same."""
    preset = replace(PRESETS["llama-3-70b"].config, n_layers=2)
    with torch.device("meta"):
        model, tokens = CausalLM(preset), torch.zeros(1, 8192, dtype=torch.long)
    found = trace(model, tokens)
    assert found.total.flops == forward_flops(preset, "decoder", 1, 8192)["total"]
    assert max(step.bytes for step in found) == 64 * 8192 * 8192 * 4
    assert max(map(len, str(found).splitlines())) <= 120


def test_with_a_cache():
    model, cache = CausalLM(config(n_kv_heads=3)), KeyValueCache(n_layers=2, max_len=16)
    first = rows(trace(model, ids(), cache=cache))
    assert first.count(("set memory aside", "B G T Dk -> B G 16 Dk")) == 4
    assert first.count(("read the cache", "B G 16 Dk -> B G S Dk")) == 4
    second = trace(model, ids(1), cache=cache)
    assert cache.length == T + 1
    assert (second.sizes["T"], second.sizes["S"]) == (1, T + 1)
    assert ("read the cache", "3 3 16 2 -> B G S Dk") in rows(second)
    assert ("scores: queries · keys", "B H T Dk, B H S Dk -> B H T S") in rows(second)


def test_a_letter_has_one_size():
    """With a memory of another length S is taken: the cached keys are shown as a number."""
    model = Decoder(SMALL, cross_attention=True)
    found = trace(model, ids(), stream(S), cache=KeyValueCache(n_layers=2, max_len=16))
    assert found.sizes["S"] == S
    assert ("scores: queries · keys", f"B H T Dk, B H {T} Dk -> B H T {T}") in rows(found)
    assert ("scores: queries · keys", "B H T Dk, B H S Dk -> B H T S") in rows(found)


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.widen = nn.Linear(4, 6)
        self.mix = nn.Linear(6, 6)

    def forward(self, x, *others, flag=True):
        y = self.mix(self.mix(self.widen(x)))
        return (y.sort(dim=1).values.unflatten(-1, (-1, 3)).flatten(1) + others[0], flag)


def test_a_foreign_module_has_function_names_and_sizes():
    found = trace(Foreign(), torch.zeros(2, 5, 4), torch.zeros(30), flag=False)
    assert rows(found) == [
        ("widen", "2 5 4 -> 2 5 6"),
        ("mix", "2 5 6 -> 2 5 6"),
        ("mix (tied)", "2 5 6 -> 2 5 6"),
        ("sort", "2 5 6 -> 2 5 6"),
        ("unflatten", "2 5 6 -> 2 5 2 3"),
        ("flatten", "2 5 2 3 -> 2 30"),
        ("add", "2 30 -> 2 30"),
    ]
    assert found.total.parameters == 30 + 42


# ---- the table ------------------------------------------------------------------------------


def test_equal_blocks_are_one_line():
    found = trace(CausalLM(config(n_layers=4)), ids())
    text = str(found)
    assert "decoder.stack.blocks.1 to 3\n  as block 0 " in text
    assert "blocks.3" not in text
    assert "blocks.3.attention" in found.to_text(fold=False)
    assert found.to_text(fold=False).count("softmax") == 4
    assert text.count("softmax") == 1
    one = [step for step in found if "blocks.1" in step.module]
    folded = next(line for line in text.splitlines() if "as block 0" in line)
    assert folded.split()[-3] == f"{3 * sum(step.parameters for step in one):,}"
    assert "blocks.1\n  as block 0" in str(traced("causal lm"))


def test_a_block_that_differs_is_shown():
    model = CausalLM(config(n_layers=4))
    model.decoder.stack.blocks[2].attention.scale = 0.123
    text = str(trace(model, ids()))
    assert "scale by 0.123" in text
    assert "blocks.1\n  as block 0 " in text
    assert text.count("softmax") == 3  # blocks 0, 2 and 3
    model = CausalLM(config(n_layers=3))
    model.decoder.stack.blocks[1].feed_forward = FeedForward(D, F + 1)
    text = str(trace(model, ids()))
    assert "as block" not in text  # the words are the same, the shapes are not
    assert f"B T D → B T {F + 1} " in text


@pytest.mark.parametrize("name", ["causal lm", "seq2seq", "vision", "mixture"])
def test_the_text_is_aligned_and_fits_a_terminal(name):
    found = traced(name)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 110
    assert lines[0] == f"{found.model}: {len(found)} steps with " + " ".join(
        f"{letter}={found.sizes[letter]}" for letter in STEP_LETTERS if letter in found.sizes
    )
    table = lines[2:-2]
    ends = {len(line) for line in table if line.startswith(("  ", "total", "step"))}
    assert len(ends) == 1  # the last column ends where its heading ends
    assert not any(line.endswith(" ") for line in lines)
    total = found.total
    assert table[-1].split() == [
        "total",
        f"{total.parameters:,}",
        f"{total.flops:,}",
        f"{total.bytes:,}",
    ]


def test_large_numbers_are_short():
    preset = PRESETS["gpt2"]
    with torch.device("meta"):
        text = str(trace(preset.build(preset.config), torch.zeros(1, 1024, dtype=torch.long)))
    total = text.splitlines()[-3].split()
    assert total == ["total", "124,439,808", "291.6", "G", "3.956", "G"]


def test_the_html_is_a_table_with_a_head_and_a_total():
    found = traced("seq2seq")
    root = ET.fromstring(found._repr_html_())
    assert root.tag == "table"
    assert root.find("caption").text.startswith("Seq2SeqLM: ")
    assert [cell.text for cell in root.findall("thead/tr/th[@scope='col']")] == [
        "step",
        "shape",
        "sizes",
        "parameters",
        "FLOPs",
        "bytes",
    ]
    first = root.findall("tbody")[0].findall("tr")
    assert ["".join(cell.itertext()) for cell in first[1]] == [
        "look up token vectors",
        "B S → B S D",
        f"({B}, {S}) → ({B}, {S}, {D})",
        f"{V * D}",
        "0",
        f"{4 * B * S * D:,}",
    ]
    total = [cell.text for cell in root.find("tfoot/tr")]
    assert total[0] == "total"
    assert total[3:] == [
        f"{getattr(found.total, name):,}" for name in ("parameters", "flops", "bytes")
    ]
    assert "as block 0" in found.to_html()
    assert "as block 0" not in found.to_html(fold=False)
    assert len(ET.fromstring(found.to_html(fold=False)).findall("tbody/tr/td")) == 6 * len(found)


def test_the_html_escapes_names():
    model = nn.Sequential()
    model.add_module("a<b&c", nn.Linear(2, 2))
    outer = nn.ModuleDict({"<i>": model})
    outer.forward = lambda x: outer["<i>"](x)
    root = ET.fromstring(trace(outer, torch.zeros(1, 2)).to_html())
    texts = ["".join(cell.itertext()) for cell in root.iter() if cell.tag in ("td", "th")]
    assert "a<b&c" in texts
    assert "<i>" in texts


def test_a_trace_is_a_sequence_of_steps():
    found = traced("block")
    assert list(found) == list(found.steps)
    assert len(found) == len(found.steps)
    assert repr(found) == f"Trace({str(found).splitlines()[0]})"
    assert found.total.parameters == sum(step.parameters for step in found)


# ---- the model stays as it was --------------------------------------------------------------


def state_of(model):
    return [
        (
            name,
            part.training,
            getattr(part, "fused", None),
            getattr(part, "balance_loss", None),
            len(part._forward_hooks),
            len(part._forward_pre_hooks),
        )
        for name, part in model.named_modules()
    ]


LOOK = {"trace": trace, "attention maps": attention_maps, "hidden states": hidden_states}


@pytest.mark.parametrize("look", LOOK)
@pytest.mark.parametrize("name", ["mixture", "seq2seq"])
def test_the_model_is_left_as_it_was(look, name):
    model, inputs, options = CASES[name]()
    model.train()
    model.get_submodule("output").eval()
    some = next(part for part in model.modules() if isinstance(part, MultiHeadAttention))
    some.fused = False
    before, random = state_of(model), torch.get_rng_state()
    result = LOOK[look](model, *inputs, **options)
    assert state_of(model) == before
    assert torch.equal(torch.get_rng_state(), random)  # no dropout
    values = result.values() if isinstance(result, dict) else []
    assert not any(value.requires_grad for value in values)


@pytest.mark.parametrize("look", LOOK)
def test_the_model_is_left_as_it_was_after_an_error(look):
    model = CausalLM(SMALL)
    model.train()
    before = state_of(model)
    with pytest.raises(ValueError, match="ids has 99"):
        LOOK[look](model, torch.tensor([[1, 99]]))
    assert state_of(model) == before


def test_tracing_changes_no_result():
    model, inputs, options = CASES["mixture"]()
    model.eval()
    expected = model(*inputs, **options)
    trace(model, *inputs, **options)
    assert torch.equal(model(*inputs, **options), expected)


# ---- attention maps and hidden states -------------------------------------------------------


def test_attention_maps_are_those_of_each_layer():
    model, inputs, options = CASES["seq2seq"]()
    maps = attention_maps(model.double(), *inputs, **options)
    blocks_of = "body.{}.stack.blocks.{}.{}".format
    assert {path: tuple(weights.shape) for path, weights in maps.items()} == {
        blocks_of("encoder", 0, "attention"): (B, H, S, S),
        blocks_of("encoder", 1, "attention"): (B, H, S, S),
        blocks_of("decoder", 0, "attention"): (B, H, T, T),
        blocks_of("decoder", 0, "cross_attention"): (B, H, T, S),
        blocks_of("decoder", 1, "attention"): (B, H, T, T),
        blocks_of("decoder", 1, "cross_attention"): (B, H, T, S),
    }
    assert list(maps) == [step.section for step in trace(model, *inputs) if step.what == "softmax"]
    causal = maps[blocks_of("decoder", 1, "attention")]
    assert torch.equal(causal, causal.tril())
    cross = maps[blocks_of("decoder", 0, "cross_attention")]
    assert cross[1, ..., 2:].eq(0).all()  # the second source has two tokens
    assert_close(cross.sum(-1), torch.ones_like(cross.sum(-1)))


@pytest.mark.parametrize("position", ["rope", "alibi", "t5", "learned"])
def test_attention_maps_are_what_the_readable_path_computes(position, monkeypatch):
    """Caught where they are made: in the softmax of the model's own forward pass."""
    model, made = CausalLM(config(position=position, n_kv_heads=2)).eval(), []
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            part.fused = False
    original = attention._masked_softmax
    monkeypatch.setattr(
        attention, "_masked_softmax", lambda *given: made.append(original(*given)) or made[-1]
    )
    with torch.no_grad():
        model(ids(), mask())
    expected, made = made, []
    maps = attention_maps(model, ids(), mask())
    assert len(maps) == len(expected) == 2
    for found, weights in zip(maps.values(), expected, strict=True):
        assert_close(found, weights)


def test_attention_maps_of_one_module():
    attend = MultiHeadAttention(D, H)
    maps = attention_maps(attend, stream(), causal=True)
    assert_close(maps[""], attend.with_weights(stream(), causal=True)[1].detach())


def test_attention_maps_with_a_cache_are_refused():
    model, cache = CausalLM(SMALL), KeyValueCache(n_layers=2, max_len=16)
    with pytest.raises(
        ValueError, match=r"^attention maps are of whole sequences: leave the cache"
    ):
        attention_maps(model, ids(), cache=cache)


def test_hidden_states_are_the_stream_between_the_blocks():
    model, inputs, _ = CASES["stack"]()
    model.eval()
    states = hidden_states(model, *inputs)
    assert list(states) == ["input", "blocks.0", "blocks.1"]
    x = inputs[0]
    assert states["input"] is x
    with torch.no_grad():
        for i, block in enumerate(model.blocks):
            x = block(x, causal=True)
            assert_close(states[f"blocks.{i}"], x)
        assert_close(model.final_norm(x), model(*inputs))


def test_hidden_states_of_an_encoder_decoder():
    model, inputs, _ = CASES["seq2seq"]()
    model.eval()
    states = hidden_states(model, *inputs)
    assert list(states) == [
        f"body.{side}.stack.{name}"
        for side in ("encoder", "decoder")
        for name in ("input", "blocks.0", "blocks.1")
    ]
    with torch.no_grad():
        start = model.body.encoder.embedding(inputs[0], blocks.next_positions(inputs[0]))
        assert_close(states["body.encoder.stack.input"], start)
        assert_close(states["body.decoder.stack.blocks.1"], model.body(*inputs))


def test_hidden_states_of_one_block():
    block = Block(SMALL).eval()
    states = hidden_states(block, stream())
    assert list(states) == ["input", ""]
    assert_close(states[""], block(stream()).detach())


@pytest.mark.usefixtures("unchecked_shapes")
def test_influence_wants_one_sequence():
    with pytest.raises(ValueError, match=r"^x has shape \(3, 5, 12\); expected one sequence"):
        influence(lambda x: x, stream())


# ---- the words ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WORDS)
def test_the_words_belong_to_calls_that_exist(kind):
    """A renamed child would lose its words without a sound."""
    source = inspect.getsource(kind)
    for called in WORDS[kind]:
        is_function = any(hasattr(place, called) for place in (torch, torch.Tensor, functional))
        assert is_function or f"self.{called} = " in source, called


def test_a_subclass_has_the_words_of_its_class(monkeypatch):
    class Halved(MultiHeadAttention):
        def merge(self, heads):
            return (0.5 * super().merge(heads)).tanh()

    expected = rows(trace(MultiHeadAttention(D, H), stream()))
    steps = rows(trace(Halved(D, H), stream()))
    assert steps[:-2] == expected
    assert [what for what, _ in steps[-2:]] == ["scale by", "tanh"]
    monkeypatch.setitem(WORDS, Halved, {"tanh": Words("squash")})
    assert [what for what, _ in rows(trace(Halved(D, H), stream()))[-2:]] == ["scale by", "squash"]


def test_a_class_of_ones_own_may_have_words(monkeypatch):
    monkeypatch.setitem(
        WORDS, Foreign, {"widen": Words("widen by half", ends="F"), "sort": Words("")}
    )
    found = trace(Foreign(), torch.zeros(2, 5, 4), torch.zeros(30))
    assert rows(found)[:3] == [
        ("widen by half", "2 5 4 -> 2 5 F"),
        ("mix", "2 5 F -> 2 5 6"),
        ("mix (tied)", "2 5 6 -> 2 5 6"),
    ]
    assert ("unflatten", "2 5 6 -> 2 5 2 3") in rows(found)
    assert "sort" not in [step.what for step in found]
