"""generation: the same tokens along every route, beams equal to brute force, scores that hold."""

import copy
import itertools
import math
from functools import partial

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    LLAMA,
    make,
    random_ids,
    real_tokens,
    tiny,
    tiny_configs,
)
from torch.testing import assert_close
from transformers.generation import logits_process

from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.generate import DecodingStep, generate, stream
from transformer_lib.generation.sampling import (
    GREEDY,
    choose_token,
    filter_logits,
)
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.hugging_face.pretrained import load_pretrained
from transformer_lib.layers.masks import padding_mask
from transformer_lib.models.language_models import CausalLM, MaskedLM, Seq2SeqLM
from transformer_lib.training.data import pad

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
        logits = model(ids) if source is None else model(source, ids, source_mask)
        ids = torch.cat((ids, logits[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    return ids


# The same tokens with and without cache, in a padded batch and alone


@settings(max_examples=6, deadline=None)
@given(tiny_configs(), st.integers(0, 999))
def test_every_decoder_goes_on_alike_with_and_without_cache(config, seed):
    model, prompt = make(CausalLM, config, seed=seed), random_ids(2, 5, seed=seed)
    expected = greedy_by_hand(model, prompt, 6)
    for use_cache in (True, False):
        ids = generate(model, prompt, max_new_tokens=6, use_cache=use_cache)
        assert torch.equal(ids, expected), use_cache


@settings(max_examples=3, deadline=None)
@given(tiny_configs(), st.integers(0, 999))
def test_every_encoder_decoder_goes_on_alike_with_and_without_cache(config, seed):
    model = make(Seq2SeqLM, config, seed=seed)
    source, prompt = random_ids(2, 6, seed=seed), random_ids(2, 1, seed=seed)
    mask = padding_mask(torch.tensor([6, 3]), 6)
    expected = greedy_by_hand(model, prompt, 6, source, mask)
    for use_cache in (True, False):
        inputs = {"source": source, "source_mask": mask, "use_cache": use_cache}
        assert torch.equal(generate(model, prompt, max_new_tokens=6, **inputs), expected)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("position", POSITIONS)
def test_rows_padded_on_the_left_are_those_of_each_row_alone(position, window):
    config = tiny(position=position, window=window, n_experts=3, n_kv_heads=2)
    model, lengths = make(CausalLM, config), (5, 1)
    real = real_tokens(lengths, 5, "left")
    prompt = random_ids(2, 5).masked_fill(~real, 0)
    # padding may not count as seen
    options = {"max_new_tokens": 5, "repetition_penalty": 1.3}
    alone = [
        generate(model, prompt[row : row + 1, 5 - length :], **options)[0, length:].tolist()
        for row, length in enumerate(lengths)
    ]
    for use_cache in (True, False):
        ids = generate(model, prompt, prompt_mask=real, use_cache=use_cache, **options)
        assert ids[:, 5:].tolist() == alone, use_cache


def test_a_padded_batch_as_pad_makes_it_can_be_passed_on(gpt):
    prompt, mask = pad([[5, 7, 9], [4]], pad_id=0, side="left")
    assert mask.shape == (2, 1, 1, 3)
    for run in (partial(generate, repetition_penalty=1.3), lambda *a, **k: beam_search(
        *a, **k, n_beams=2
    )[0]):  # fmt: skip
        wide = run(gpt, prompt, max_new_tokens=5, prompt_mask=mask)
        assert torch.equal(wide, run(gpt, prompt, max_new_tokens=5, prompt_mask=mask[:, 0, 0]))


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
    return theirs, load_pretrained(folder).model


@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_equals_gpt2_of_transformers(tmp_path, penalty):
    sizes = {"vocab_size": 50, "n_positions": 24, "n_embd": 24, "n_layer": 2, "n_head": 4}
    theirs, ours = saved_and_loaded(tmp_path, transformers.GPT2LMHeadModel, **sizes)
    real = real_tokens((5, 2, 4), 5, "left")
    # Ours does not count padding as seen; with the first token of the row as filler theirs cannot.
    prompt = torch.randint(50, (3, 5), generator=torch.Generator().manual_seed(2))
    first = prompt.gather(1, real.int().argmax(dim=1, keepdim=True))
    prompt = prompt.where(real, first)
    options = {"max_new_tokens": 12, "repetition_penalty": penalty, "prompt_mask": real}
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
        options = {"max_new_tokens": 8, "temperature": 2.0} | options
        return generate(gpt, random_ids(2, 3), generator=generator, **options).tolist()

    assert draw(1) == draw(1) == draw(1, use_cache=False)
    assert draw(1) != draw(2)


def test_a_vanishing_temperature_is_greedy(gpt):
    prompt = random_ids(2, 3)
    cold = generate(gpt, prompt, max_new_tokens=8, temperature=1e-9)
    assert torch.equal(cold, generate(gpt, prompt, max_new_tokens=8, temperature=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-7, 1e-30, 1e-38, 1e-45, 5e-324])
def test_no_temperature_is_too_low_to_find_the_best_token(temperature, dtype):
    logits = torch.tensor([[1.0, 5.0, 3.0], [-900.0, -1000.0, -2000.0]], dtype=dtype)
    for options in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}):
        sampling = Sampling(temperature=temperature, **options)
        found = filter_logits(logits, sampling)
        assert found.softmax(dim=-1).argmax(dim=-1).tolist() == [1, 0]
        assert not found.isnan().any()
        assert choose_token(logits, sampling).tolist() == [1, 0]
        # Tokens as good as each other stay so.
        even = filter_logits(logits.new_tensor([[2.0, 7.0, 7.0]]), sampling).softmax(dim=-1)
        assert even.tolist() == [[0.0, 0.5, 0.5]] or "top_p" in options


NOT_NUMBERS = {
    "nan": (1, math.nan, "nan"),
    "inf": (1, math.inf, "inf"),
    "nothing left": (slice(None), -math.inf, "-inf"),
}


@pytest.mark.parametrize("name", NOT_NUMBERS)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(top_k=2, top_p=0.9)])
def test_scores_that_are_not_numbers_are_no_choice(name, sampling):
    place, value, said = NOT_NUMBERS[name]
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, -math.inf, 3.0]])  # which is allowed
    assert choose_token(logits, GREEDY).tolist() == [2, 2]
    logits[1, place] = value
    wanted = f"^logits: the best score of row 1 is {said}; expected a finite number"
    with pytest.raises(FloatingPointError, match=wanted):
        choose_token(logits, sampling)


@pytest.mark.parametrize("name", NOT_NUMBERS)
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("run", [generate, partial(beam_search, n_beams=3)])
def test_a_model_that_diverges_on_its_way_is_noticed_at_once(run, use_cache, name):
    model, calls = make(CausalLM, tiny()), []
    place, value, said = NOT_NUMBERS[name]

    def spoil(_module, _inputs, logits):
        calls.append(1)
        if len(calls) == 3:
            logits[len(logits) // 2 :, ..., place] = value
        return logits

    model.output.register_forward_hook(spoil)
    wanted = f"^logits: the best score of row 1 at new token 3 is {said}; expected a finite number"
    with pytest.raises(FloatingPointError, match=wanted):
        run(model, random_ids(2, 3), max_new_tokens=9, use_cache=use_cache)
    assert len(calls) == 3


def test_rows_that_have_ended_may_say_what_they_like(gpt, free):
    """Their scores are not looked at, so they cannot be wrong."""
    model, calls = copy.deepcopy(gpt), []

    def spoil(_module, _inputs, logits):
        calls.append(1)
        if len(calls) > 1:
            logits[0] = math.nan
        return logits

    model.output.register_forward_hook(spoil)
    prompt, eos_id = random_ids(3, 3, seed=4), free[0][0]
    ids = generate(model, prompt, max_new_tokens=5, eos_id=eos_id, pad_id=9)
    assert torch.equal(ids, generate(gpt, prompt, max_new_tokens=5, eos_id=eos_id, pad_id=9))
    assert ids[0, 4:].tolist() == [9] * 4


def test_without_a_temperature_only_what_asks_for_a_draw_draws(gpt):
    prompt, best = random_ids(4, 2), {"max_new_tokens": 12}

    def written(**options):
        return generate(gpt, prompt, **best, **options, generator=torch.Generator().manual_seed(1))

    greedy = generate(gpt, prompt, **best)
    assert torch.equal(written(), greedy)
    assert torch.equal(written(repetition_penalty=1.0), greedy)
    assert torch.equal(written(top_k=5, temperature=0), greedy)
    for draws in ({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.01}):
        assert torch.equal(written(**draws), written(**draws, temperature=1.0))
        assert not torch.equal(written(**draws), greedy)


def test_the_penalty_sees_the_prompt_and_what_was_generated(gpt):
    prompt = random_ids(1, 2)
    ids = generate(gpt, prompt, max_new_tokens=10, repetition_penalty=1.5)[0].tolist()
    assert ids != generate(gpt, random_ids(1, 2), max_new_tokens=10)[0].tolist()
    for n in range(2, 12):
        scores = gpt(torch.tensor([ids[:n]]))[0, -1].tolist()
        for token in set(ids[:n]):
            scores[token] *= 1.5 if scores[token] < 0 else 1 / 1.5
        assert ids[n] == scores.index(max(scores))


# Ends


def cut(row, *ends):
    """A list up to and with the first of some sequences in it."""
    for n in range(1, len(row) + 1):
        if any(n >= len(end) and row[n - len(end) : n] == list(end) for end in ends):
            return row[:n]
    return row


@pytest.fixture(scope="module")
def free(gpt):
    """Three rows of ten new tokens that nothing ended, of a prompt of three."""
    return generate(gpt, random_ids(3, 3, seed=4), max_new_tokens=10)[:, 3:].tolist()


def check_ended(ids, free, *ends, pad_id):
    expected = [cut(row, *ends) for row in free]
    longest = max(len(row) for row in expected)
    assert len({len(row) for row in expected}) > 1, "all rows are equally long: nothing is tested"
    assert ids[:, 3:].tolist() == [row + [pad_id] * (longest - len(row)) for row in expected]


def test_a_row_ends_with_the_end_token(gpt, free):
    options = {"eos_id": free[0][0], "max_new_tokens": 10}
    ids = generate(gpt, random_ids(3, 3, seed=4), pad_id=9, **options)
    check_ended(ids, free, [free[0][0]], pad_id=9)
    check_ended(generate(gpt, random_ids(3, 3, seed=4), **options), free, [free[0][0]], pad_id=0)


@pytest.mark.parametrize("kind", [list, tuple])
def test_there_may_be_several_end_tokens(gpt, free, kind):
    ends = kind((free[0][1], free[1][4]))
    options = {"max_new_tokens": 10, "eos_id": ends, "pad_id": 9}
    ids = generate(gpt, random_ids(3, 3, seed=4), **options)
    check_ended(ids, free, [ends[0]], [ends[1]], pad_id=9)
    options |= {"n_beams": 1}
    assert torch.equal(beam_search(gpt, random_ids(3, 3, seed=4), **options)[0][:, 0], ids)


def test_the_last_end_ends_it_all(gpt, free):
    ends = [row[3:5] for row in free]
    ids = generate(gpt, random_ids(3, 3, seed=4), max_new_tokens=10, stop=ends)
    assert ids.shape[1] <= 3 + 5


def test_a_row_ends_with_a_stop_sequence_or_the_end_token(gpt, free):
    ends = [free[0][1:4], free[1][:2]]
    options = {"stop": ends, "max_new_tokens": 10}
    check_ended(generate(gpt, random_ids(3, 3, seed=4), **options), free, *ends, pad_id=0)
    eos_id = free[2][1]
    ids = generate(gpt, random_ids(3, 3, seed=4), eos_id=eos_id, pad_id=1, **options)
    check_ended(ids, free, *ends, [eos_id], pad_id=1)


def test_a_stop_sequence_counts_only_among_new_tokens(gpt, free):
    prompt = random_ids(3, 3, seed=4)
    half_old = [[prompt[0, 2].item(), free[0][0]]]
    ids = generate(gpt, prompt, max_new_tokens=2, stop=half_old)
    assert ids[0, 3:].tolist() == free[0][:2]


def test_a_function_may_say_which_rows_ended(gpt, free):
    seen = []

    def second_row_after_four(new):
        seen.append(new.tolist())
        return torch.tensor([False, new.shape[1] == 4, False])

    options = {"max_new_tokens": 10, "stop": second_row_after_four, "pad_id": 7}
    ids = generate(gpt, random_ids(3, 3, seed=4), **options)
    assert ids[:, 3:].tolist() == [free[0], free[1][:4] + [7] * 6, free[2]]
    assert seen[3] == [row[:4] for row in free]
    assert len(seen) == 10


def test_a_translation_ends_too(translator):
    source, start = random_ids(2, 5), torch.ones(2, 1, dtype=torch.long)
    free = generate(translator, start, source=source, max_new_tokens=9)[:, 1:].tolist()
    eos_id = free[0][3]
    ids = generate(translator, start, source=source, max_new_tokens=9, eos_id=eos_id, pad_id=0)
    rows = [cut(row, [eos_id]) for row in free]
    longest = max(map(len, rows))
    assert ids[:, 1:].tolist() == [row + [0] * (longest - len(row)) for row in rows]


# Streaming, and the state the model is left in


def test_tokens_stream_as_they_are_made(gpt, free):
    prompt, calls = random_ids(3, 3, seed=4), []
    hook = gpt.output.register_forward_pre_hook(lambda *_: calls.append(1))
    tokens = stream(gpt, prompt, max_new_tokens=10)
    assert next(tokens).tolist() == [row[0] for row in free]
    assert len(calls) == 1
    assert next(tokens).tolist() == [row[1] for row in free]
    assert len(calls) == 2
    hook.remove()
    assert len(list(tokens)) == 8


def test_generate_hands_each_step_on(gpt, free):
    heard = []
    ids = generate(gpt, random_ids(3, 3, seed=4), max_new_tokens=10, on_token=heard.append)
    assert torch.stack(heard, dim=1).tolist() == ids[:, 3:].tolist() == free


@pytest.mark.parametrize("n_steps", [1, 3])
def test_every_module_gets_its_mode_back(n_steps):
    model = make(CausalLM, tiny()).train()
    model.decoder.stack.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    tokens = stream(model, random_ids(1, 2), max_new_tokens=3)
    for _ in range(n_steps):
        first = next(tokens)
        assert [module.training for module in model.modules()] == modes  # also between tokens
        assert torch.is_grad_enabled()  # switched off inside only
    tokens.close()
    assert [module.training for module in model.modules()] == modes
    expected = generate(model, random_ids(1, 2), max_new_tokens=3)  # dropout is off all the same
    assert torch.equal(expected, generate(model.eval(), random_ids(1, 2), max_new_tokens=3))
    assert first.item() == expected[0, 1 + n_steps]


def test_modes_come_back_after_a_failure(gpt):
    def fail(new):
        raise RuntimeError("no")

    gpt.train()
    with pytest.raises(RuntimeError, match="no"):
        generate(gpt, random_ids(1, 2), max_new_tokens=3, stop=fail)
    assert gpt.training
    beam_search(gpt, random_ids(1, 2), n_beams=2, max_new_tokens=2)
    assert gpt.training
    gpt.eval()


def test_half_precision_is_scored_in_single():
    model = make(CausalLM, tiny()).bfloat16()
    ids = random_ids(2, 3)
    with torch.no_grad():
        logits = DecodingStep(model, ids, 1)(ids)
    assert filter_logits(logits, Sampling(temperature=0.7)).dtype == torch.float32
    assert beam_search(model, ids, n_beams=2, max_new_tokens=3)[1].dtype == torch.float32
    assert generate(model, ids, max_new_tokens=3).shape == (2, 6)


# Beams


def log_probability(model, prompt, new, **inputs):
    """Of new tokens after a prompt, with the model's own forward pass."""
    ids = torch.tensor([[*prompt, *new]])
    logits = model(inputs["source"], ids) if inputs else model(ids)
    chosen = logits[0].log_softmax(dim=-1)[range(len(prompt) - 1, ids.shape[1] - 1), list(new)]
    return chosen.sum().item()


def all_hypotheses(vocab_size, max_new_tokens, eos_id):
    """Every sequence that ends with the end token, or nowhere before the limit."""
    for n in range(1, max_new_tokens + 1):
        for new in itertools.product(range(vocab_size), repeat=n):
            if eos_id not in new[:-1] and (new[-1] == eos_id or n == max_new_tokens):
                yield new


def brute_force(model, prompt, max_new_tokens, eos_id, length_penalty, **inputs):
    """All hypotheses and their scores, the best first."""
    scored = [
        (
            log_probability(model, prompt, new, **inputs) / ((5 + len(new)) / 6) ** length_penalty,
            list(new),
        )
        for new in all_hypotheses(model.config.vocab_size, max_new_tokens, eos_id)
    ]
    return sorted(scored, reverse=True)


def unpadded(row, eos_id):
    return cut(row.tolist(), [eos_id])


@pytest.mark.parametrize(
    ("kind", "length_penalty"),
    [(CausalLM, 0.0), (CausalLM, 0.6), (CausalLM, 2.0), (Seq2SeqLM, 0.6)],
)
def test_enough_beams_find_what_brute_force_finds(kind, length_penalty):
    model = make(kind, tiny(vocab_size=4))
    prompt, inputs = random_ids(1, 2) % 4, {}
    if kind is Seq2SeqLM:
        inputs = {"source": random_ids(1, 5) % 4}
    with torch.no_grad():
        expected = brute_force(model, prompt[0].tolist(), 3, 2, length_penalty, **inputs)
    assert len(expected) == 1 + 3 + 9 + 27
    options = {"max_new_tokens": 3, "length_penalty": length_penalty, "eos_id": 2, "pad_id": 0}
    ids, scores = beam_search(model, prompt, n_beams=40, **options, **inputs)
    assert [unpadded(row[2:], 2) for row in ids[0]] == [new for _, new in expected]
    assert_close(scores[0], torch.tensor([score for score, _ in expected], dtype=scores.dtype))
    assert torch.equal(ids[0, :, :2], prompt.expand(40, 2))
    # With more beams than there are hypotheses, the rest says so.
    more_ids, more = beam_search(model, prompt, n_beams=45, **options, **inputs)
    assert_close(more[0, :40], scores[0])
    assert torch.equal(more_ids[0, :40], ids[0])
    assert (more[0, 40:] == -math.inf).all()


@pytest.mark.parametrize("use_cache", [True, False])
def test_one_beam_is_greedy(gpt, free, use_cache):
    prompt, eos_id = random_ids(3, 3, seed=4), free[0][4]
    options = {"max_new_tokens": 10, "eos_id": eos_id, "use_cache": use_cache}
    ids, _ = beam_search(gpt, prompt, n_beams=1, **options)
    assert torch.equal(ids[:, 0], generate(gpt, prompt, **options))
    ids, _ = beam_search(gpt, prompt, n_beams=1, max_new_tokens=10)
    assert ids[:, 0, 3:].tolist() == free


def beam_search_by_hand(model, prompt, n_beams, max_new_tokens, eos_id):
    """The same search with lists, one row, one hypothesis at a time; the most probable first."""
    beams = [(0.0, [])]
    for _ in range(max_new_tokens):
        candidates = []
        for total, new in beams:
            if new and new[-1] == eos_id:
                candidates.append((total, new))
                continue
            logits = model(torch.tensor([prompt + new]))[0, -1]
            gains = logits.log_softmax(dim=-1).tolist()
            candidates += [(total + gain, [*new, token]) for token, gain in enumerate(gains)]
        beams = sorted(candidates, reverse=True)[:n_beams]
    return beams


@pytest.mark.parametrize(
    ("position", "use_cache"), [("rope", True), ("learned", False), ("alibi", True)]
)
def test_few_beams_equal_a_search_by_hand_in_a_padded_batch(position, use_cache):
    model, lengths = make(CausalLM, tiny(position=position), seed=3), (4, 2)
    real = real_tokens(lengths, 4, "left")
    prompt = random_ids(2, 4, seed=1).masked_fill(~real, 0)
    options = {"max_new_tokens": 6, "use_cache": use_cache, "prompt_mask": real, "n_beams": 4}
    eos_id = beam_search(model, prompt, **options)[0][0, 0, 6].item()  # a token that will come
    ids, scores = beam_search(model, prompt, eos_id=eos_id, length_penalty=1.0, **options)
    n_ended = 0
    for row, length in enumerate(lengths):
        with torch.no_grad():
            expected = beam_search_by_hand(model, prompt[row, 4 - length :].tolist(), 4, 6, eos_id)
        expected = sorted(((t / ((5 + len(new)) / 6), new) for t, new in expected), reverse=True)
        assert [unpadded(ids[row, i, 4:], eos_id) for i in range(4)] == [new for _, new in expected]
        assert_close(scores[row], torch.tensor([score for score, _ in expected]).double())
        n_ended += sum(new[-1] == eos_id and len(new) < 6 for _, new in expected)
    assert n_ended, "nothing ended early: nothing was kept"


def test_beams_read_their_own_source(translator):
    source, start = random_ids(2, 6), torch.ones(2, 1, dtype=torch.long)
    mask = padding_mask(torch.tensor([6, 3]), 6)
    options = {"n_beams": 3, "max_new_tokens": 6, "eos_id": EOS}
    ids, scores = beam_search(translator, start, source=source, source_mask=mask, **options)
    for row, length in ((0, 6), (1, 3)):
        alone, alone_scores = beam_search(
            translator, start[:1], source=source[row : row + 1, :length], **options
        )
        assert_close(scores[row], alone_scores[0])
        for i in range(3):
            new = unpadded(ids[row, i, 1:], EOS)
            assert new == unpadded(alone[0, i, 1:], EOS)
            total = log_probability(translator, [1], new, source=source[row : row + 1, :length])
            assert scores[row, i].item() == pytest.approx(total / ((5 + len(new)) / 6) ** 0.6)


def test_the_search_ends_when_all_beams_have(gpt, free):
    """With an end token that is certain after the first step, nobody asks the model again."""
    model, calls = make(CausalLM, tiny()), []
    model.output.register_forward_pre_hook(lambda *_: calls.append(1))
    model.output.register_forward_hook(
        lambda _m, _i, out: out.index_fill(-1, torch.tensor(EOS), 99)
    )
    ids, scores = beam_search(model, random_ids(2, 3), n_beams=1, max_new_tokens=9, eos_id=EOS)
    assert ids[:, 0, 3:].tolist() == [[EOS], [EOS]]
    assert_close(scores, torch.zeros_like(scores))
    assert len(calls) == 1


# Mistakes

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
MODELS = {}


def run(kind=CausalLM, function=generate, prompt=IDS, max_new_tokens=4, **options):
    if kind not in MODELS:
        MODELS[kind] = make(kind, tiny())
    model = MODELS[kind]
    return lambda: function(model, prompt, max_new_tokens=max_new_tokens, **options)


WRONG = {
    "temperature": (
        lambda: Sampling(temperature=-1),
        "temperature=-1 must be a number of at least 0",
    ),
    "temperature, nan": (
        lambda: Sampling(temperature=math.nan),
        "temperature=nan must be a number",
    ),
    "temperature, text": (
        lambda: Sampling(temperature="hot"),
        "temperature='hot' must be a number",
    ),
    "top_k": (lambda: Sampling(top_k=0), "top_k=0 must be a whole number of at least 1"),
    "top_p": (
        lambda: Sampling(top_p=1.2),
        "top_p=1.2 must be a number greater than 0 and at most 1",
    ),
    "min_p": (lambda: Sampling(min_p=-0.1), "min_p=-0.1 must be a number from 0 to 1"),
    "penalty": (
        lambda: Sampling(repetition_penalty=0),
        "repetition_penalty=0 must be a number greater than 0",
    ),
    "kind": (
        run(MaskedLM),
        "model is a MaskedLM; expected a CausalLM, or a Seq2SeqLM with a source",
    ),
    "no source": (run(Seq2SeqLM), "model is a Seq2SeqLM; expected a CausalLM, or a Seq2SeqLM with"),
    "source": (run(source=IDS), "model is a CausalLM; expected a CausalLM, or a Seq2SeqLM with a"),
    "prompt, one row": (run(prompt=IDS[0]), "prompt has shape (3,); expected (B, T)"),
    "prompt, empty": (
        run(prompt=IDS[:, :0]),
        "prompt has shape (2, 0); T in (B, T) may not be 0",
    ),
    "prompt, floats": (run(prompt=IDS.float()), "prompt has dtype torch.float32; expected whole"),
    "prompt, unknown": (run(prompt=IDS + 9), "prompt has 15; each must be between 0 and 10"),
    "stop, empty": (run(stop=[[]]), "stop=[[]] must hold sequences of ids, each with one id"),
    "stop, no sequence": (run(stop=[5]), "stop=[5] must hold sequences of ids, each with one id"),
    "no tokens": (run(max_new_tokens=0), "max_new_tokens=0 must be a whole number of at least 1"),
    "too many": (
        run(max_new_tokens=23),
        "max_new_tokens=23 after a prompt of 3 tokens: there is room for max_len=24, not counting",
    ),
    "top-p in a beam search": (
        run(function=beam_search, n_beams=2, top_p=0.9),
        "beam_search() got an unexpected keyword argument 'top_p'",
    ),
    "do_sample": (run(do_sample=True), "generate() got an unexpected keyword argument 'do_sample'"),
    "unknown": (
        run(function=stream, warmth=3),
        "stream() got an unexpected keyword argument 'warmth'",
    ),
    "temperature of generate": (
        run(temperature=-1),
        "temperature=-1 must be a number of at least 0",
    ),
    "top-k of generate": (run(top_k=0), "top_k=0 must be a whole number of at least 1"),
    "top-p of generate": (
        run(top_p=1.5),
        "top_p=1.5 must be a number greater than 0 and at most 1",
    ),
    "min-p of generate": (run(min_p=2), "min_p=2 must be a number from 0 to 1"),
    "penalty of generate": (
        run(repetition_penalty=0),
        "repetition_penalty=0 must be a number greater than 0",
    ),
    "eos, none at all": (run(eos_id=[]), "eos_id=[] must have one id at least; leave it out if"),
    "eos, one too large": (
        run(eos_id=[2, 11]),
        "eos_id and pad_id has 11; each must be between 0 and 10",
    ),
    "mask, four dimensions": (
        run(prompt_mask=torch.ones(2, 1, 3, 3).bool()),
        "prompt_mask has shape (2, 1, 3, 3); expected (B, T)",
    ),
    "eos": (run(eos_id=11), "eos_id and pad_id has 11; each must be between 0 and 10"),
    "pad": (run(pad_id=-1), "eos_id and pad_id has -1; each must be between 0 and 10"),
    "mask, shape": (
        run(prompt_mask=torch.ones(2, 4).bool()),
        "prompt_mask has shape (2, 4); expected (B, T) with T=3, got T=4",
    ),
    "mask, right": (
        run(prompt_mask=torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()),
        "prompt_mask hides a token that comes after a real one",
    ),
    "mask, hole": (
        run(prompt_mask=torch.tensor([[1, 1, 1], [1, 0, 1]]).bool()),
        "prompt_mask hides a token that comes after a real one",
    ),
    "mask, nothing": (
        run(prompt_mask=torch.tensor([[1, 1, 1], [0, 0, 0]]).bool()),
        "prompt_mask hides a token that comes after a real one",
    ),
    "mask, whole numbers": (run(prompt_mask=torch.ones(2, 3).long()), "mask has dtype torch.int64"),
    "source, rows": (
        run(Seq2SeqLM, source=IDS[:1]),
        "source has shape (1, 3); expected (B, S) with B=2, got B=1",
    ),
    "source mask": (
        run(Seq2SeqLM, source=IDS, source_mask=torch.ones(2, 3).bool()),
        "source_mask has shape (2, 3); expected (B, 1, 1, S)",
    ),
    "source mask, queries": (
        run(Seq2SeqLM, source=IDS, source_mask=torch.ones(2, 1, 3, 3).bool()),
        "source_mask has shape (2, 1, 3, 3); expected (B, 1, 1, S) with 1=1, got 1=3",
    ),
    "stop": (
        run(stop=lambda new: torch.zeros(2, 3).bool()),
        "what stop returned has shape (2, 3); expected (B)",
    ),
    "stop, one answer": (
        run(stop=lambda new: False),
        "what stop returned has shape (); expected (B)",
    ),
    "beams": (
        run(function=beam_search, n_beams=0),
        "n_beams=0 must be a whole number of at least 1",
    ),
    "length penalty": (
        run(function=beam_search, n_beams=2, length_penalty=-1.0),
        "length_penalty=-1.0 must be a number of at least 0",
    ),
    "beams, eos": (
        run(function=beam_search, n_beams=2, eos_id=99),
        "eos_id and pad_id has 99; each must be between 0 and 10",
    ),
}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named(name):
    attempt, message = WRONG[name]
    with pytest.raises((TypeError, ValueError)) as error:
        attempt()
    assert str(error.value).startswith(message)
