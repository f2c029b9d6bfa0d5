"""Long prompts in less memory: caches that roll, and prompts that are read in chunks."""

import pytest
import torch
from torch.testing import assert_close
from torch_weights import randomise, small_config

from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.decoding_step import DecodingStep
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate, stream
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.caches.rolling_kv_cache import RollingCache
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM

POSITIONS = ("learned", "rope", "alibi")
WINDOWS = ({"window": 1}, {"window": 4}, {"window": 4, "window_pattern": "LG"}, {"window": 50})
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]] * 2)
IDS[1] = IDS[1].flip(0)


def model_of(kind=CausalLM, **changes):
    torch.manual_seed(0)
    return randomise(kind(small_config(max_len=60, n_layers=3, **changes))).double().eval()


def in_pieces(model, cache, sizes, mask=None):
    """The logits of IDS, read so many tokens at a time."""
    found, start = [], 0
    for size in sizes:
        new, start = IDS[:, start : start + size], start + size
        seen = None if mask is None else mask[..., :start]
        found.append(model(new, seen, cache=cache))
    return torch.cat(found, dim=1)


PIECES = ([18], [1] * 18, [9, 1, 1, 7], [3, 8, 2, 5], [12, 1, 1, 1, 1, 1, 1])


@torch.no_grad()
def test_tokens_see_what_they_see_without_a_cache():
    for position in POSITIONS:
        for window in WINDOWS:
            model = model_of(position=position, **window)
            wanted = model(IDS)
            for sizes in PIECES:
                assert_close(in_pieces(model, RollingCache(model.config), sizes), wanted)


@torch.no_grad()
def test_padding_is_hidden_as_in_an_ordinary_cache():
    model = model_of(position="rope", window=4)
    mask = (torch.arange(18) >= torch.tensor([[5], [0]]))[:, None, None]
    real = mask[:, 0, 0]
    for sizes in PIECES:
        wanted = in_pieces(model, KeyValueCache(3, 60), sizes, mask)
        found = in_pieces(model, RollingCache(model.config), sizes, mask)
        assert_close(found[real], wanted[real])


def test_two_windows_are_held_however_long_the_text():
    model = model_of(window=4, window_pattern="LLG")  # every third layer sees all
    cache, whole = RollingCache(model.config), KeyValueCache(3, 60)
    wanted = generate(model, IDS, max_new_tokens=40, cache=whole)
    assert torch.equal(generate(model, IDS, max_new_tokens=40, cache=cache), wanted)
    assert [layer.n_bytes * 60 // whole.layers[0].n_bytes for layer in cache.layers] == [8, 8, 60]
    cache.reset()
    assert (cache.n_bytes, cache.length) == (0, 0)
    assert torch.equal(generate(model, IDS, max_new_tokens=40, cache=cache), wanted)


def test_beams_take_their_keys_with_them():
    model = model_of(position="rope", window=4)
    options = {"n_beams": 3, "max_new_tokens": 12}
    wanted = beam_search(model, IDS[:1], **options)
    assert_close(beam_search(model, IDS[:1], cache=RollingCache(model.config), **options), wanted)


@torch.no_grad()
@pytest.mark.parametrize("kind", [CausalLM, Seq2SeqLM])
@pytest.mark.parametrize("changes", [{"position": "rope"}, {"position": "alibi", "window": 4}])
def test_a_prompt_in_chunks_is_the_same_prompt(kind, changes):
    model = model_of(kind, **changes)
    inputs = {"prompt_mask": torch.arange(18) >= torch.tensor([[5], [0]])}
    if kind is Seq2SeqLM:
        inputs["source"] = IDS[:, :4]
    wanted = DecodingStep(model, IDS, 5, **inputs)(IDS)
    for chunk in (1, 5, 6, 17, 18, 99):
        step = DecodingStep(model, IDS, 5, prefill_chunk=chunk, **inputs)
        assert_close(step(IDS), wanted)
        assert step.cache.length == 18


def test_no_more_than_a_chunk_is_read_at_once():
    model, read = model_of(window=4), []
    model.decoder.register_forward_hook(lambda _, inputs, __: read.append(inputs[0].shape[1]))
    options = {"max_new_tokens": 4, "prefill_chunk": 7}
    found = generate(model, IDS, cache=RollingCache(model.config), **options)
    assert read == [7, 7, 4, 1, 1, 1]
    assert torch.equal(found, generate(model, IDS, max_new_tokens=4))
    assert torch.equal(torch.stack(list(stream(model, IDS, **options)), dim=1), found[:, 18:])


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_decoder_reads_chunks_too(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    model = model_of()
    found = generate(CompiledDecoder(model, 30), IDS, max_new_tokens=4, prefill_chunk=7)
    assert torch.equal(found, generate(model, IDS, max_new_tokens=4))
