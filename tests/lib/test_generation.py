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


@settings(max_examples=12, deadline=None)
@given(tiny_configs(), st.integers(0, 999))
def test_every_decoder_goes_on_alike_with_and_without_cache(config, seed):
    model, prompt = make(CausalLM, config, seed=seed), random_ids(2, 5, seed=seed)
    expected = greedy_by_hand(model, prompt, 6)
    for use_cache in (True, False):
        ids = generate(model, prompt, max_new_tokens=6, use_cache=use_cache)
        assert torch.equal(ids, expected), use_cache


@settings(max_examples=6, deadline=None)
@given(tiny_configs(), st.integers(0, 999))
def test_every_encoder_decoder_goes_on_alike_with_and_without_cache(config, seed):
    model = make(Seq2SeqLM, config, seed=seed)
    source, prompt = random_ids(2, 6, seed=seed), random_ids(2, 1, seed=seed)
    mask = padding_mask(torch.tensor([6, 3]), 6)
    expected = greedy_by_hand(model, prompt, 6, source, mask)
    for use_cache in (True, False):
        inputs = {"source": source, "source_mask": mask, "use_cache": use_cache}
        assert torch.equal(generate(model, prompt, max_new_tokens=6, **inputs), expected)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("position", POSITIONS)
def test_rows_padded_on_the_left_are_those_of_each_row_alone(position, window, use_cache):
    config = tiny(position=position, window=window, n_experts=3, n_kv_heads=2)
    model, lengths = make(CausalLM, config), (6, 2, 1)
    real = real_tokens(lengths, 6, "left")
    prompt = random_ids(3, 6).masked_fill(~real, 0)
    sampling = Sampling(temperature=0, repetition_penalty=1.3)  # padding may not count as seen
    options = {"max_new_tokens": 5, "sampling": sampling, "use_cache": use_cache}
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


# Equal to transformers


def saved_and_loaded(folder, kind, **config):
    """A random model of transformers, and the same one read by us."""
    torch.manual_seed(0)
    theirs = kind(kind.config_class(**config)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    theirs.save_pretrained(folder)
    return theirs, load_pretrained(folder)


@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_equals_gpt2_of_transformers(tmp_path, penalty):
    sizes = {"vocab_size": 50, "n_positions": 24, "n_embd": 24, "n_layer": 2, "n_head": 4}
    theirs, ours = saved_and_loaded(tmp_path, transformers.GPT2LMHeadModel, **sizes)
    real = real_tokens((5, 2, 4), 5, "left")
    # Ours does not count padding as seen; with the first token of the row as filler theirs cannot.
    prompt = torch.randint(50, (3, 5), generator=torch.Generator().manual_seed(2))
    first = prompt.gather(1, real.int().argmax(dim=1, keepdim=True))
    prompt = prompt.where(real, first)
    sampling = Sampling(temperature=0, repetition_penalty=penalty)
    options = {"max_new_tokens": 12, "sampling": sampling, "prompt_mask": real}
    eos_id = generate(ours, prompt, **options)[1, 5 + 4].item()  # a token that will come
    expected = theirs.generate(
        prompt,
        attention_mask=real.long(),
        max_new_tokens=12,
        do_sample=False,
        repetition_penalty=penalty,
        eos_token_id=eos_id,
        pad_token_id=0,
    )
    assert (expected == eos_id)[:, 5:].any()
    assert torch.equal(generate(ours, prompt, eos_id=eos_id, **options), expected)


def test_greedy_equals_t5_of_transformers(tmp_path):
    sizes = {"vocab_size": 50, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2}
    theirs, ours = saved_and_loaded(
        tmp_path, transformers.T5ForConditionalGeneration, num_heads=4, **sizes
    )
    source = torch.randint(2, 50, (3, 7), generator=torch.Generator().manual_seed(1))
    lengths, start = torch.tensor([7, 3, 5]), torch.zeros(3, 1, dtype=torch.long)
    options = {"source": source, "source_mask": padding_mask(lengths, 7), "max_new_tokens": 12}
    eos_id = generate(ours, start, **options)[0, 5].item()
    expected = theirs.generate(
        source,
        attention_mask=(torch.arange(7) < lengths[:, None]).long(),
        max_new_tokens=12,
        do_sample=False,
        decoder_start_token_id=0,
        eos_token_id=eos_id,
        pad_token_id=0,
    )
    assert torch.equal(generate(ours, start, eos_id=eos_id, **options), expected)


FILTERS = {
    "temperature": (Sampling(temperature=0.7), ["Temperature"]),
    "top-k": (Sampling(top_k=5), ["TopK"]),
    "top-k, more than there are": (Sampling(top_k=500), ["TopK"]),
    "top-p": (Sampling(top_p=0.8), ["TopP"]),
    "top-p, tiny": (Sampling(top_p=1e-6), ["TopP"]),
    "min-p": (Sampling(min_p=0.1), ["MinP"]),
    "min-p, the best only": (Sampling(min_p=1.0), ["MinP"]),
    "penalty": (Sampling(repetition_penalty=1.5), ["Repetition"]),
    "reward": (Sampling(repetition_penalty=0.5), ["Repetition"]),
    "all": (
        Sampling(temperature=1.7, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.2),
        ["Repetition", "Temperature", "TopK", "TopP", "MinP"],
    ),
}


def theirs_of(name, sampling):
    return {
        "Repetition": lambda: logits_process.RepetitionPenaltyLogitsProcessor(
            sampling.repetition_penalty
        ),
        "Temperature": lambda: logits_process.TemperatureLogitsWarper(sampling.temperature),
        "TopK": lambda: logits_process.TopKLogitsWarper(sampling.top_k),
        "TopP": lambda: logits_process.TopPLogitsWarper(sampling.top_p),
        "MinP": lambda: logits_process.MinPLogitsWarper(sampling.min_p),
    }[name]()


@pytest.mark.parametrize("name", FILTERS)
def test_filters_equal_those_of_transformers(name):
    sampling, theirs = FILTERS[name]
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20, 40, generator=generator)
    logits[:, 7] = logits[:, 8]  # as good as each other
    previous = torch.randint(40, (20, 6), generator=generator)
    seen = torch.zeros(20, 40, dtype=torch.bool).scatter(1, previous, True)
    before, expected = logits.clone(), logits
    for processor in theirs:
        expected = theirs_of(processor, sampling)(previous, expected)
    assert not torch.equal(expected, logits) or name == "top-k, more than there are"
    assert_close(filter_logits(logits, sampling, seen), expected)
    assert torch.equal(logits, before)


def test_the_order_of_filters_is_that_of_their_generate():
    """Any other order of top-p and temperature, or of min-p and top-k, would keep others."""
    config = transformers.GenerationConfig(
        do_sample=True, temperature=1.7, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.2
    )
    small = transformers.GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(small)
    processors = model._get_logits_processor(config, 1, torch.zeros(1, 1), None, [])
    ours = [next(name for name in FILTERS["all"][1] if name in str(type(p))) for p in processors]
    assert ours == FILTERS["all"][1]


# Drawing


def test_tokens_as_good_as_the_last_of_top_k_stay_too():
    logits = torch.tensor([[1.0, 3.0, 1.0, 0.0]])
    kept = filter_logits(logits, Sampling(top_k=2)).isfinite()
    assert kept.tolist() == [[True, True, True, False]]


def test_top_p_keeps_the_fewest_that_are_enough():
    logits = torch.tensor([[0.25, 0.5, 0.125, 0.125]]).log()
    for top_p, n_kept in ((0.2, 1), (0.5, 1), (0.6, 2), (0.75, 2), (0.8, 3), (1.0, 4)):
        assert filter_logits(logits, Sampling(top_p=top_p)).isfinite().sum() == n_kept, top_p


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.4, 0.3, 0.2, 0.1]),
        (Sampling(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        (Sampling(top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (Sampling(top_p=0.85), [4 / 9, 3 / 9, 2 / 9, 0]),
        (Sampling(min_p=0.6), [4 / 7, 3 / 7, 0, 0]),
    ],
)
def test_tokens_come_as_often_as_they_should(sampling, expected):
    n = 40_000
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(n, -1)
    tokens = choose_token(logits, sampling, generator=torch.Generator().manual_seed(0))
    frequencies = tokens.bincount(minlength=4) / n
    expected = torch.tensor(expected)
    assert (frequencies[expected == 0] == 0).all()
    # Four standard deviations of a frequency out of n
    assert ((frequencies - expected).abs() <= 4 * (expected * (1 - expected) / n).sqrt()).all()


def test_the_same_seed_draws_the_same_tokens(gpt):
    def draw(seed, **options):
        generator = torch.Generator().manual_seed(seed)
        options = {"max_new_tokens": 8, "sampling": Sampling(temperature=2.0)} | options
        return generate(gpt, random_ids(2, 3), generator=generator, **options).tolist()

    assert draw(1) == draw(1) == draw(1, use_cache=False)
    assert draw(1) != draw(2)


def test_a_vanishing_temperature_is_greedy(gpt):
    prompt = random_ids(2, 3)
    cold = generate(gpt, prompt, max_new_tokens=8, sampling=Sampling(temperature=1e-9))
    assert torch.equal(cold, generate(gpt, prompt, max_new_tokens=8, sampling=GREEDY))


def test_the_penalty_sees_what_was_generated(gpt):
    """With a penalty without bounds no token comes twice until all have come."""
    sampling = Sampling(temperature=0, repetition_penalty=1e9)
    ids = generate(gpt, random_ids(1, 2), max_new_tokens=VOCAB - 2, sampling=sampling)
    logits = torch.zeros(1, VOCAB)  # a tie between tokens whose score is not positive is free
    assert filter_logits(logits, sampling, torch.ones(1, VOCAB).bool()).equal(logits)
    assert len(set(ids[0].tolist())) > len(set(generate(gpt, random_ids(1, 2), max_new_tokens=9)[0].tolist()))
