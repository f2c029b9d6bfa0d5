"""generation: the same tokens along every route, beams equal to brute force, scores that hold."""

import itertools
import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    LLAMA,
    VOCAB,
    make,
    random_ids,
    real_tokens,
    tiny,
    tiny_configs,
)
from torch.testing import assert_close

from transformer_lib.generation import (
    GREEDY,
    DecodingStep,
    Sampling,
    beam_search,
    choose_token,
    filter_logits,
    generate,
    stream,
)
from transformer_lib.heads import CausalLM, MaskedLM, Seq2SeqLM
from transformer_lib.masks import padding_mask
from transformer_lib.pretrained import load_pretrained

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
import transformers
from transformers.generation import logits_process

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

EOS = 3
POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "t5", "none")


@pytest.fixture(scope="module")
def gpt():
    return make(CausalLM, tiny(**LLAMA))


@pytest.fixture(scope="module")
def translator():
    return make(Seq2SeqLM, tiny())


def greedy_by_hand(model, ids, n, source=None, source_mask=None):
    """The whole sequence through the model's own forward pass, again for every token."""
    for _ in range(n):
        if source is None:
            logits = model(ids)
        else:
            logits = model(source, ids, source_mask)
        ids = torch.cat((ids, logits[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    return ids


# The same tokens with and without cache, in a padded batch and alone


@settings(max_examples=30, deadline=None)
@given(tiny_configs(), st.integers(0, 999))
def test_every_decoder_goes_on_alike_with_and_without_cache(config, seed):
    model, prompt = make(CausalLM, config, seed=seed), random_ids(2, 5, seed=seed)
    expected = greedy_by_hand(model, prompt, 8)
    for use_cache in (True, False):
        ids = generate(model, prompt, max_new_tokens=8, use_cache=use_cache)
        assert torch.equal(ids, expected), use_cache


@settings(max_examples=15, deadline=None)
@given(tiny_configs(), st.integers(0, 999))
def test_every_encoder_decoder_goes_on_alike_with_and_without_cache(config, seed):
    model = make(Seq2SeqLM, config, seed=seed)
    source, prompt = random_ids(2, 6, seed=seed), random_ids(2, 1, seed=seed)
    mask = padding_mask(torch.tensor([6, 3]), 6)
    expected = greedy_by_hand(model, prompt, 8, source, mask)
    for use_cache in (True, False):
        inputs = {"source": source, "source_mask": mask, "use_cache": use_cache}
        assert torch.equal(generate(model, prompt, max_new_tokens=8, **inputs), expected)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("position", POSITIONS)
def test_rows_padded_on_the_left_are_those_of_each_row_alone(position, window, use_cache):
    config = tiny(position=position, window=window, n_experts=3, n_kv_heads=2)
    model, lengths = make(CausalLM, config), (6, 2, 1)
    real = real_tokens(lengths, 6, "left")
    prompt = random_ids(3, 6).masked_fill(~real, 0)
    sampling = Sampling(temperature=0, repetition_penalty=1.3)  # padding may not count as seen
    options = {"max_new_tokens": 8, "sampling": sampling, "use_cache": use_cache}
    ids = generate(model, prompt, prompt_mask=real, **options)
    for row, length in enumerate(lengths):
        alone = generate(model, prompt[row : row + 1, 6 - length :], **options)
        assert ids[row, 6:].tolist() == alone[0, length:].tolist()


def test_a_mask_of_a_prompt_without_padding_changes_nothing(gpt):
    prompt = random_ids(2, 5)
    ids = generate(gpt, prompt, max_new_tokens=5, prompt_mask=torch.ones_like(prompt).bool())
    assert torch.equal(ids, generate(gpt, prompt, max_new_tokens=5))


def test_targets_padded_on_the_left_are_those_of_each_row_alone(translator):
    source, prompt = random_ids(2, 6), random_ids(2, 3, seed=1)
    source_mask = padding_mask(torch.tensor([6, 4]), 6)
    real = real_tokens((1, 3), 3, "left")
    inputs = {"source": source, "source_mask": source_mask, "prompt_mask": real}
    ids = generate(translator, prompt, max_new_tokens=8, **inputs)
    first = generate(translator, prompt[:1, 2:], source=source[:1], max_new_tokens=8)
    second = generate(translator, prompt[1:], source=source[1:, :4], max_new_tokens=8)
    assert ids[0, 3:].tolist() == first[0, 1:].tolist()
    assert ids[1, 3:].tolist() == second[0, 3:].tolist()


def test_the_cache_saves_the_work_it_promises(gpt, translator):
    read = []

    def count(module, args):
        read.append(args[0].shape[1])

    for model, inputs in ((gpt, {}), (translator, {"source": random_ids(2, 6)})):
        decoder = gpt.decoder if model is gpt else model.body.decoder
        hooks = [decoder.register_forward_pre_hook(count)]
        if model is translator:
            hooks.append(model.body.encoder.register_forward_pre_hook(count))
        for use_cache, expected in ((True, [3, 1, 1, 1]), (False, [3, 4, 5, 6])):
            read.clear()
            generate(model, random_ids(2, 3), max_new_tokens=4, use_cache=use_cache, **inputs)
            assert read == ([6] if model is translator else []) + expected
        for hook in hooks:
            hook.remove()


def test_the_model_may_be_filled_to_the_last_place(gpt):
    ids = generate(gpt, random_ids(1, 20), max_new_tokens=5)  # max_len is 24
    assert torch.equal(ids, greedy_by_hand(gpt, random_ids(1, 20), 5))
