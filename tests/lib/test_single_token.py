"""The single-token path gives the answers of the decoder, and is not taken where it would not."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.lib.tiny_models import LLAMA, VOCAB, make, tiny, tiny_configs
from transformer_lib.core.config import RopeScaling, TransformerConfig
from transformer_lib.generation import decoding_step
from transformer_lib.generation.decoding_step import DecodingStep
from transformer_lib.generation.fast import single_token
from transformer_lib.generation.fast.single_token import ANY_VALUE, SOME_VALUES, LeanDecoder
from transformer_lib.generation.generate import generate, stream
from transformer_lib.generation.sampling import ScoreWatch
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM

GPT = {"position": "learned", "norm_position": "pre", "activation": "gelu_tanh"}
PROMPT = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
TOKEN = torch.tensor([[5], [3]])


def filled(model, prompt=PROMPT, max_len=12):
    """A cache that has seen a prompt."""
    cache = KeyValueCache(model.config.n_layers, max_len)
    with torch.no_grad():
        model(prompt, cache=cache)
    return cache


@torch.no_grad()
def can_read(model, new=TOKEN):
    return LeanDecoder(model.decoder).can_read(new, filled(model))


def test_attention_that_pairs_features_in_another_way_is_left_to_the_decoder():
    """As made by ``Parts``; the configuration says nothing of it."""
    config = tiny(**LLAMA)
    other = "split" if config.rope_pairing == "interleaved" else "interleaved"
    parts = Parts(
        attention=lambda c: MultiHeadAttention(c.d_model, c.n_heads, c.n_kv_heads, pairing=other)
    )
    model = make(CausalLM, config, parts=parts)
    assert not can_read(model)


def test_attention_with_a_cap_set_by_hand_is_left_to_the_decoder():
    model = make(CausalLM, tiny(**GPT))
    assert can_read(model)
    model.decoder.stack.blocks[0].attention.cap = 1.0
    assert not can_read(model)


# What an attention has besides its parts, and how the single-token path heeds it.
HEEDED = {
    *("d_model", "n_heads", "n_kv_heads", "d_head", "scale"),  # read from the module
    "dropout",  # in training only
    "pairing",  # compared with the configuration
}


def test_every_setting_of_attention_was_looked_at():
    own = vars(MultiHeadAttention(8, 2)).keys() - vars(nn.Module()).keys()
    of_class = {
        name
        for name, value in vars(MultiHeadAttention).items()
        if not callable(value) and not name.startswith("__") and not isinstance(value, property)
    }
    assert own == HEEDED
    assert of_class - {"_abc_impl"} == {"fused", "cap"}


def takes_single_token_path(step, new):
    return step._shortcuts.single_token_path(step.decoder, new, step.cache) is not None


@torch.no_grad()
def compare_with_decoder(config):
    """Read two tokens by both; return whether the single-token path can."""
    decoder = make(CausalLM, config).decoder
    caches = [KeyValueCache(config.n_layers, 12) for _ in range(3)]
    lean, joined = LeanDecoder(decoder), LeanDecoder(decoder, weights_stay=True)
    for cache in caches:
        decoder(PROMPT, cache=cache)
    if not lean.can_read(TOKEN, caches[0]):
        return False
    for token in (TOKEN, TOKEN.flip(0)):
        expected = decoder(token, cache=caches[1])
        torch.testing.assert_close(lean(token, caches[0]), expected)
        torch.testing.assert_close(joined(token, caches[2]), expected)
    return True


@settings(deadline=None)
@given(tiny_configs())
def test_reads_a_token_as_the_decoder_does(config):
    refused = config.window is not None or config.position in ("alibi", "t5")
    assert compare_with_decoder(config) != refused


# A value that matters, or would if the field were not seen to, for each field that may have any.
OTHER_VALUES = {
    "vocab_size": 13, "max_len": 16, "d_model": 24, "n_heads": 2, "n_kv_heads": 1, "head_width": 6,
    "d_ff": 20, "n_layers": 3, "dropout": 0.5, "attention_dropout": 0.5, "rope_theta": 5.0,
    "rope_pairing": "split", "rope_scaling": RopeScaling(kind="yarn", factor=4.0, trained_len=4),
    "rope_pattern": "RN", "local_rope_theta": 5.0, "norm": "layer", "norm_eps": 0.5,
    "norm_offset": 1.0, "activation": "relu", "n_experts": 3, "active_experts": 1, "bias": True,
    "qkv_bias": True,
    "scale_embeddings": False, "norm_embeddings": True, "n_segments": 2, "attention_scale": 2.0,
    "logit_cap": 1.0, "tie_embeddings": True, "logit_scale": 3.0, "window_pattern": "LG",
    "init": "gpt2",
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_any_value_of_these_fields_is_seen_to(name):
    more = {"n_experts": 3} if name == "active_experts" else {}
    config = tiny(**LLAMA | more | {name: OTHER_VALUES[name]})
    assert getattr(config, name) != getattr(tiny(**LLAMA | more), name)
    assert compare_with_decoder(config)


@pytest.mark.parametrize("kind", ["linear", "ntk", "llama3"])
def test_rope_may_be_scaled_in_any_way(kind):
    scaling = RopeScaling(kind=kind, factor=4.0, trained_len=4)
    assert compare_with_decoder(tiny(**LLAMA, rope_scaling=scaling))


def test_every_field_of_the_configuration_was_looked_at():
    free = [name for names in ANY_VALUE.values() for name in names]
    names = [field.name for field in dataclasses.fields(TransformerConfig)]
    assert sorted(free + list(SOME_VALUES)) == sorted(names)
    assert sorted(free) == sorted(OTHER_VALUES)


def test_a_field_that_nobody_looked_at_is_not_supported():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Newer(TransformerConfig):
        sinks: int = 1

    known = tiny(**LLAMA)
    assert compare_with_decoder(known)
    assert not compare_with_decoder(Newer(**vars(known)))


@pytest.mark.parametrize("choices", [GPT, LLAMA, {"position": "sinusoidal"}], ids=str)
def test_padding_at_the_start_is_hidden_and_pushes_nobody_along(choices):
    model = make(CausalLM, tiny(**choices))
    padded = torch.tensor([[0, 0, 3, 1], [5, 9, 2, 6]])
    mask = padded != 0
    together = generate(model, padded, max_new_tokens=6, prompt_mask=mask)
    alone = generate(model, padded[:1, 2:], max_new_tokens=6)
    assert torch.equal(together[:1, 2:], alone)
    step = DecodingStep(model, padded, 6, prompt_mask=mask)
    with torch.no_grad():
        step(padded)
        assert takes_single_token_path(step, TOKEN)


def test_no_token_asks_the_register_of_fast_paths(monkeypatch):
    monkeypatch.setattr(decoding_step, "fast_path", lambda name: pytest.fail(f"asked for {name}"))
    step = DecodingStep(make(CausalLM, tiny(**GPT)), PROMPT, 6)
    with torch.no_grad():
        step(PROMPT)
        assert takes_single_token_path(step, TOKEN)


def test_is_taken_in_every_mode_and_leaves_the_mode_alone():
    model = make(CausalLM, tiny(**GPT))
    expected = generate(model, PROMPT, max_new_tokens=8)
    model.train()
    model.decoder.stack.blocks[0].eval()
    before = [part.training for part in model.modules()]
    assert can_read(model.eval())
    for part, mode in zip(model.modules(), before, strict=True):
        part.training = mode
    assert torch.equal(generate(model, PROMPT, max_new_tokens=8), expected)
    assert [part.training for part in model.modules()] == before


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def parts_of(model):
    block = model.decoder.stack.blocks[1]
    return {
        "decoder": model.decoder,
        "stack": model.decoder.stack,
        "block": block,
        "attention": block.attention,
        "query": block.attention.query,
        "network": block.feed_forward,
        "down": block.feed_forward.down,
        "dropout": block.dropout,
    }


@pytest.mark.parametrize("name", parts_of(make(CausalLM, tiny(**GPT))))
def test_a_hook_on_a_part_hears_every_token(name):
    model, heard = make(CausalLM, tiny(**GPT)), []
    handle = parts_of(model)[name].register_forward_hook(lambda *_: heard.append(1))
    tokens = stream(model, PROMPT, max_new_tokens=6)
    for _ in range(3):
        next(tokens)
    times = 2 if name == "dropout" else 1  # a block has one for both its parts
    assert len(heard) == 3 * times
    handle.remove()
    next(tokens)
    parts_of(model)[name].register_forward_pre_hook(lambda *_: heard.append(1))  # in the middle
    list(tokens)
    assert len(heard) == 5 * times


@pytest.mark.parametrize("name", parts_of(make(CausalLM, tiny(**GPT))))
def test_a_forward_of_its_own_is_run(name):
    model = make(CausalLM, tiny(**GPT))
    part, runs = parts_of(model)[name], []
    own = part.forward
    part.forward = lambda *args, **kwargs: runs.append(1) or own(*args, **kwargs)
    generate(model, PROMPT, max_new_tokens=4)
    assert len(runs) == (8 if name == "dropout" else 4)


def replace_attend(model, monkeypatch):
    monkeypatch.setattr(MultiHeadAttention, "attend", lambda self, q, *_, **__: 0 * q)


def replace_own_attend(model, monkeypatch):
    attention = model.decoder.stack.blocks[0].attention
    monkeypatch.setattr(attention, "attend", lambda q, *_, **__: 0 * q)


def read_plainly(model, monkeypatch):
    monkeypatch.setattr(MultiHeadAttention, "fused", False)


def call_otherwise(model, monkeypatch):
    own = nn.Module.__call__
    monkeypatch.setattr(nn.Module, "__call__", lambda self, *a, **k: own(self, *a, **k))


CHANGES = (replace_attend, replace_own_attend, read_plainly, call_otherwise)


@pytest.mark.parametrize("change", CHANGES)
def test_is_not_taken_after_a_change(change, monkeypatch):
    model = make(CausalLM, tiny(**GPT))
    lean, cache = LeanDecoder(model.decoder), filled(model)
    with torch.no_grad():
        assert lean.can_read(TOKEN, cache)
        change(model, monkeypatch)
        assert not lean.can_read(TOKEN, cache)
        assert not LeanDecoder(model.decoder).can_read(TOKEN, cache)


def test_another_part_or_weight_is_used_from_the_next_token_on():
    config = tiny(**GPT)
    for change in ("weight", "layer", "block"):
        model, other = make(CausalLM, config), make(CausalLM, config, seed=1)
        cache, step = filled(model), DecodingStep(model, PROMPT, 8)
        block, theirs = model.decoder.stack.blocks[0], other.decoder.stack.blocks[0]
        ids = torch.cat((PROMPT, TOKEN), dim=1)
        with torch.no_grad():
            step(PROMPT)
            if change == "weight":
                block.feed_forward.up.weight = theirs.feed_forward.up.weight
            elif change == "layer":
                block.attention.output = theirs.attention.output
            else:
                model.decoder.stack.blocks[0] = theirs
            expected = model(TOKEN, cache=cache)[:, -1]
            torch.testing.assert_close(step(ids), expected)


def test_projections_are_joined_only_if_nobody_can_change_weights_between_two_tokens(monkeypatch):
    asked = []
    monkeypatch.setattr(single_token, "_joined_projections", asked.append)
    model, options = make(CausalLM, tiny(**GPT)), {"max_new_tokens": 4}
    generate(model, PROMPT, **options, on_token=lambda newest: None)
    generate(model, PROMPT, **options, stop=lambda new: new[:, -1] < 0)
    list(stream(model, PROMPT, **options))
    assert not asked
    generate(model, PROMPT, **options, stop=[[3, 1, 4]])
    assert len(asked) == model.config.n_layers


@pytest.mark.parametrize("change", ["other class", "dtype", "wide", "bias"])
def test_projections_are_joined_only_if_they_are_narrow_and_alike(change, monkeypatch):
    attention = make(CausalLM, tiny(**GPT)).decoder.stack.blocks[0].attention
    assert single_token._joined_projections(attention) is not None
    if change == "other class":
        attention.value = Doubled(16, 16)
    elif change == "dtype":
        attention.value.bfloat16()
    elif change == "wide":
        monkeypatch.setattr(single_token, "JOIN_UP_TO", 15)
    else:
        had = attention.value.bias is not None
        attention.value = nn.Linear(16, 16, bias=not had)
    assert single_token._joined_projections(attention) is None


def test_layers_of_other_classes_are_called():
    model = make(CausalLM, tiny(**GPT))
    for block in model.decoder.stack.blocks:
        old = block.feed_forward.up
        block.feed_forward.up = Doubled(16, 12).double()
        block.feed_forward.up.load_state_dict(old.state_dict())
    assert can_read(model)
    cached = generate(model, PROMPT, max_new_tokens=8)
    assert torch.equal(cached, generate(model, PROMPT, max_new_tokens=8, use_cache=False))


UNSUPPORTED = {
    "position": ("alibi", "t5"),
    "rope_fraction": (0.5,),
    "norm_position": ("update", "both"),
    "window": (3,),
    "qk_norm": ("head", "all"),
    "score_cap": (5.0,),
}


@pytest.mark.parametrize("name", SOME_VALUES)
def test_other_values_of_these_fields_are_not_supported(name):
    for value in SOME_VALUES[name]:
        assert can_read(make(CausalLM, tiny(**LLAMA | {name: value})))
    for value in UNSUPPORTED[name]:
        assert not can_read(make(CausalLM, tiny(**LLAMA | {name: value})))


def test_a_memory_many_tokens_and_autocast_are_not_supported():
    model = make(CausalLM, tiny(**GPT))
    assert can_read(model)
    assert not can_read(model, PROMPT)
    lean, cache = LeanDecoder(model.decoder), filled(model)
    assert not lean.can_read(TOKEN, cache)  # with gradients
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert not lean.can_read(TOKEN, cache)
    pair = make(Seq2SeqLM, tiny(**GPT))
    with torch.no_grad():
        cache = KeyValueCache(pair.config.n_layers, 8)
        assert not LeanDecoder(pair.body.decoder).can_read(TOKEN, cache)


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ([[VOCAB], [0]], "ids has 11; each must be between 0 and 10"),
        ([[-1], [0]], "ids has -1; each must be between 0 and 10"),
        ([[1]], "the cache was filled with a batch of 2; got 1"),
    ],
)
def test_bad_tokens_are_refused_in_the_decoders_words(new, words):
    model = make(CausalLM, tiny(**GPT))
    step = DecodingStep(model, PROMPT, 8)
    with torch.no_grad():
        step(PROMPT)
        step(torch.cat((PROMPT, TOKEN), dim=1))
        before = torch.zeros(len(new), 5, dtype=torch.long)
        assert takes_single_token_path(step, torch.tensor(new))
        with pytest.raises(ValueError, match=words):
            step(torch.cat((before, torch.tensor(new)), dim=1))


def test_more_tokens_than_the_model_or_the_cache_has_places_for_are_refused():
    model = make(CausalLM, tiny(**GPT, max_len=5))
    prompt = torch.cat((PROMPT, TOKEN), dim=1)
    for cache, words in ((KeyValueCache(2, 8), "max_len=5"), (KeyValueCache(2, 5), "max_len=5")):
        with torch.no_grad():
            step = DecodingStep(model, prompt[:, :1], 1, cache=cache)
            model(prompt, cache=cache)  # behind its back: it would refuse so full a cache
            with pytest.raises(ValueError, match=words):
                step(torch.cat((prompt, TOKEN), dim=1))


class Kernels(TorchDispatchMode):
    """Counts the operations that are dispatched, and notes the largest tensor that they make."""

    def __init__(self):
        super().__init__()
        self.count, self.largest = 0, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **kwargs or {})
        first = result[0] if isinstance(result, tuple | list) else result
        if isinstance(first, torch.Tensor) and not operation.is_view:
            self.largest = max(self.largest, first.numel())
        self.count += 1
        return result


def watched_step(choices, n_layers, length=10):
    model = make(CausalLM, tiny(**choices, n_layers=n_layers, max_len=length))
    ids = torch.ones(1, length, dtype=torch.long)
    step = DecodingStep(model, ids[:, :1], length)
    with torch.no_grad():
        step(ids[:, :-1])
        with Kernels() as kernels:
            step(ids)
    return kernels


# Of a block there are 28: 6 products with a view of the weight each, 2 norms, 2 sums, the
# activation, the kernel of attention, and the cache's slices and copies. Around the blocks: 15.
KERNELS_OF_A_BLOCK = 28
KERNELS_AROUND = 15


def test_a_step_dispatches_few_kernels():
    two, four = (watched_step(GPT, n).count for n in (2, 4))
    assert (four - two) / 2 <= KERNELS_OF_A_BLOCK
    assert two - (four - two) <= KERNELS_AROUND


@pytest.mark.parametrize("n_kv_heads", [1, 2])  # with as many as queries nothing could be repeated
def test_no_key_is_copied(n_kv_heads):
    length = 200
    kernels = watched_step({**GPT, "n_kv_heads": n_kv_heads}, 2, length)
    assert kernels.largest < length * 4 * n_kv_heads  # the keys of one layer


class TestScoreWatch:
    def test_finite_scores_whose_sum_is_not_are_no_error(self):
        ScoreWatch().look(torch.full((8, 3), 6e4, dtype=torch.float16), None)

    @pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
    def test_one_row_that_is_no_number_is_found_among_others(self, wrong):
        logits = torch.zeros(8, 3)
        logits[5] = wrong
        watch = ScoreWatch()
        watch.look(torch.zeros(8, 3), None)
        with pytest.raises(FloatingPointError, match=f"row 5 at new token 2 is {wrong};"):
            watch.look(logits, None)

    def test_infinities_that_would_cancel_are_found(self):
        logits = torch.tensor([[math.inf], [-math.inf]])
        with pytest.raises(FloatingPointError, match="row 0 at new token 1 is inf"):
            ScoreWatch().look(logits, None)
