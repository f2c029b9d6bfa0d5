"""Shared prefixes: read once, the same texts as from whole prompts, and never written to."""

import threading

import pytest
import torch
from tiny_models import make, positions_of, random_ids, real_tokens, tiny
from torch.testing import assert_close

from transformer_lib.core.config import RopeScaling
from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.decoding_step import DecodingStep, read_prefix
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate, stream
from transformer_lib.layers.caches.rolling_kv_cache import RollingCache
from transformer_lib.layers.caches.static_kv_cache import StaticCache
from transformer_lib.models.language_models import CausalLM

PREFIX = torch.tensor([[3, 1, 4, 1, 5, 9]])
NEW = 5
pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # hundreds of small passes
KINDS = [
    {"position": "rope", "n_kv_heads": 2},
    {"position": "learned"},
    {"position": "alibi", "window": 3},
    {"position": "t5", "n_kv_heads": 1},
    {"position": "rope", "rope_scaling": RopeScaling(kind="linear", factor=4.0), "window": 4},
]


def model_of(seed=0, **changes):
    return make(CausalLM, tiny(**changes), seed=seed)


def prompts(lengths=(4, 4, 4), longest=None):
    """Rows that begin with the prefix and go on differently, with padding on the left."""
    longest = longest or max(lengths)
    ids = torch.zeros(len(lengths), PREFIX.shape[1] + longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = torch.cat((PREFIX, random_ids(1, length, seed=row)), dim=1)
    real = real_tokens([PREFIX.shape[1] + length for length in lengths], ids.shape[1], "left")
    return ids, None if all(length == longest for length in lengths) else real


def tensors_of(prefix):
    return [x for layer in prefix._cache.layers for x in layer._stored]


@torch.no_grad()
@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_scores_and_texts_are_those_of_whole_prompts(changes):
    """Whole: one forward pass over each text, without a cache, without padding."""
    model = model_of(**changes)
    prefix = read_prefix(model, PREFIX)
    for lengths in ((1, 4), (0,)):
        ids, real = prompts(lengths)
        options = {"prompt_mask": real, "prefix": prefix}
        scores = DecodingStep(model, ids, NEW, **options)(ids)
        texts = generate(model, ids, max_new_tokens=NEW, **options)
        for row, length in enumerate(lengths):
            text = texts[row, ids.shape[1] - PREFIX.shape[1] - length :]
            wanted = model(text[None])[0, -NEW - 1 : -1]  # before each new token
            assert_close(scores[row], wanted[0], rtol=0, atol=1e-9)
            assert torch.equal(text[-NEW:], wanted.argmax(dim=-1))


@torch.no_grad()
def test_the_prefix_is_not_read_again():
    model, read = model_of(), []
    prefix = read_prefix(model, PREFIX)
    model.decoder.register_forward_hook(lambda _, inputs, __: read.append(inputs[0].shape[1]))
    for lengths, first in (((4, 4), 4), ((1, 4, 2), 4), ((0,), 1)):
        ids, real = prompts(lengths)
        read.clear()
        generate(model, ids, max_new_tokens=3, prefix=prefix, prompt_mask=real)
        assert read == [first, 1, 1]  # so many as the longest row has behind the prefix


def test_continuations_write_nothing_into_the_prefix():
    model = model_of(window=3)
    prefix = read_prefix(model, PREFIX)
    before = [x.clone() for x in tensors_of(prefix)]
    ids, real = prompts((1, 4, 2))
    options = {"prefix": prefix, "prompt_mask": real, "max_new_tokens": NEW}
    found = generate(model, ids, **options)
    assert prefix._cache.length == PREFIX.shape[1]
    beam_search(model, ids, n_beams=3, **options)
    generate(model, PREFIX, prefix=prefix, max_new_tokens=NEW)
    assert prefix._cache.length == PREFIX.shape[1]
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(prefix), before, strict=True))
    assert torch.equal(generate(model, ids, **options), found)


def test_the_ids_of_the_caller_are_kept_apart():
    model, ids = model_of(), PREFIX.clone()
    prefix = read_prefix(model, ids)
    ids.fill_(2)
    assert torch.equal(prefix.ids, PREFIX)


def test_all_ways_to_generate_take_a_prefix():
    model = model_of(position="rope", window=4)
    prefix, (ids, real) = read_prefix(model, PREFIX, prefill_chunk=4), prompts((1, 4, 2))
    usual = {"max_new_tokens": NEW, "prompt_mask": real}
    wanted = generate(model, ids, **usual)
    with_it = usual | {"prefix": prefix}
    assert torch.equal(generate(model, ids, prefill_chunk=2, **with_it), wanted)
    assert torch.equal(torch.stack(list(stream(model, ids, **with_it)), dim=1), wanted[:, -NEW:])
    for cache in (RollingCache(model.config), StaticCache(2, 24)):
        assert torch.equal(generate(model, ids, cache=cache, **with_it), wanted)
    for one, other in zip(
        beam_search(model, ids, n_beams=3, **with_it),
        beam_search(model, ids, n_beams=3, **usual),
        strict=True,
    ):
        assert_close(one, other)
    drawn = usual | {"temperature": 1.0, "repetition_penalty": 1.5, "eos_id": 2}
    texts = [
        generate(model, ids, generator=torch.Generator().manual_seed(0), **drawn, **more)
        for more in ({}, {"prefix": prefix})
    ]
    assert torch.equal(*texts)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_decoder_takes_a_prefix(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    model = model_of(position="rope")
    prefix, fast = read_prefix(model, PREFIX), CompiledDecoder(model, 20)
    for lengths in ((1, 4, 2), (2, 2, 4)):  # the second batch is replayed into the same buffers
        ids, real = prompts(lengths)
        usual = {"max_new_tokens": NEW, "prompt_mask": real}
        found = generate(fast, ids, prefix=prefix, **usual)
        assert torch.equal(found, generate(model, ids, **usual))


def test_a_model_in_training_reads_without_dropout():
    model = model_of(dropout=0.5)
    ids, _ = prompts()
    wanted = generate(model, ids, max_new_tokens=NEW)
    model.train()
    prefix = read_prefix(model, PREFIX)
    assert model.training
    assert torch.equal(generate(model, ids, max_new_tokens=NEW, prefix=prefix), wanted)


def test_changed_weights_are_noticed():
    model = model_of()
    prefix, (ids, _) = read_prefix(model, PREFIX), prompts()
    for change in (lambda: model.load_state_dict(model_of(1).state_dict()), model.float):
        change()
        with pytest.raises(ValueError, match="prefix was read by another state of the model"):
            generate(model, ids, max_new_tokens=1, prefix=prefix)
        prefix = read_prefix(model, PREFIX)
        generate(model, ids, max_new_tokens=1, prefix=prefix)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="precision"):
        generate(model, ids, max_new_tokens=1, prefix=prefix)


def test_weights_that_count_no_changes_will_do():
    with torch.inference_mode():
        model = model_of()
        prefix = read_prefix(model, PREFIX)
    ids, _ = prompts()
    found = generate(model, ids, max_new_tokens=1, prefix=prefix)
    assert torch.equal(found, generate(model, ids, max_new_tokens=1))


def test_threads_share_a_prefix():
    model = model_of()
    prefix, found = read_prefix(model, PREFIX), {}
    batches = [prompts(lengths) for lengths in ((4,), (1, 4, 2), (0, 3), (2, 2))]

    def write(n):
        ids, real = batches[n % 4]
        found[n] = generate(model, ids, max_new_tokens=NEW, prefix=prefix, prompt_mask=real)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, text in found.items():
        ids, real = batches[n % 4]
        assert torch.equal(text, generate(model, ids, max_new_tokens=NEW, prompt_mask=real))
    assert len(found) == 4


def test_its_bytes_are_those_of_its_tokens():
    prefix = read_prefix(model_of(n_kv_heads=2), PREFIX)
    assert prefix.n_bytes == 2 * 6 * 2 * 2 * 4 * 8  # layers, tokens, K and V, heads, Dk, float64


@torch.no_grad()
def test_padded_rows_are_read_as_by_hand():
    """The test's own reference: positions counted without padding, one pass, no cache."""
    model, (ids, real) = model_of(position="learned"), prompts((1, 4, 2))
    wanted = model(ids, real[:, None, None], positions=positions_of(real))[:, -1]
    step = DecodingStep(model, ids, 1, prompt_mask=real, prefix=read_prefix(model, PREFIX))
    assert_close(step(ids), wanted)
