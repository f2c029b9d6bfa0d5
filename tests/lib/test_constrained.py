"""Constrained output: exactly the allowed texts, each as probable as the model says among them."""

import functools
import itertools
import random
import re
from unittest import mock

import pytest
import torch
from test_speculative import AllChoices
from tiny_models import LLAMA, make, tiny

from transformer_lib.generation import generate as generating
from transformer_lib.generation.beam_search import beam_search, length_divisor
from transformer_lib.generation.constrained import (
    DEAD,
    AllowedText,
    AllowedTokens,
    OneOf,
    Pattern,
    TokenBytes,
)
from transformer_lib.generation.decoding_step import read_prefix
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate, stream
from transformer_lib.generation.sampling import filter_logits
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.generation.speculative import (
    NgramDraft,
    speculative_generate,
    speculative_stream,
)
from transformer_lib.generation.text_generation import generate_text, write_on
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.text.byte_automaton import read_pattern, read_texts
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.text_stream import TextStream
from transformer_lib.text.tokenizers import (
    BPETokenizer,
    CharTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # thousands of small passes
TOKENIZER = WordTokenizer(["ab", "ba", "aab", "abab"])
END = TOKENIZER.eos_id
PROMPT = torch.tensor([TOKENIZER.encode("ab") + TOKENIZER.encode("b")])


def lively(seed=0, vocab_size=None):
    """A small model whose distributions are far from even, in float64."""
    sizes = {"vocab_size": vocab_size or TOKENIZER.vocab_size + 2, "n_layers": 1, "max_len": 40}
    model = make(CausalLM, tiny(**LLAMA | sizes), seed=seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim == 2 else 1)
    return model


@pytest.fixture(scope="module")
def model():
    return lively()


def new_text(ids, n_prompt=PROMPT.shape[1]):
    return TOKENIZER.decode(ids[n_prompt:].tolist())


# Expressions as Python's own module reads them.


def random_pattern(rng, depth):
    kind = rng.randrange(9)
    if depth == 0 or kind < 3:
        parts = ("a", "b", ".", "[ab]", "[^a]", "ü", "[a-ü]", r"\d", r"\W", r"[\s1-]", r"\x61", "é")
        return rng.choice(parts)
    if kind == 3:
        return random_pattern(rng, depth - 1) + random_pattern(rng, depth - 1)
    if kind == 4:
        return f"({random_pattern(rng, depth - 1)}|{random_pattern(rng, depth - 1)})"
    times = rng.choice(["?", "*", "+", "{2}", "{1,2}", "{1,}", "{,2}"])
    return f"(?:{random_pattern(rng, depth - 1)}){times}"


def test_random_expressions_match_what_they_match_in_python():
    rng, texts = (
        random.Random(0),
        ["".join(t) for n in range(4) for t in itertools.product("abü\n1é", repeat=n)],
    )
    for _ in range(40):
        pattern = random_pattern(rng, 4)
        automaton, reference = read_pattern(pattern), re.compile(pattern, re.ASCII)
        for text in texts:
            assert automaton.accepts(text) == bool(reference.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        ".",
        r"\w",
        r"\D",
        r"\S",
        "[^a]",
        "[à-ÿ]",
        "[ࠀ-￿]",
        "[\x7f-\x80߿-ࠀ]",
        "[🀀-🙏]",
        "[]a]",
        "[^]a-]",
        r"\u00e9",
        r"[\n\t]",
    ],
)
def test_classes_hold_the_characters_that_they_hold_in_python(pattern):
    """At the borders of the lengths of UTF-8, and a sample of all others."""
    borders = (0x7F, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10FFFF, 0x1F000, 0x1F64F, 0xE0, 0xFF)
    codes = {c + d for c in borders for d in (-1, 0, 1)} | set(range(0, 0x110000, 1999))
    codes |= set(range(130))
    automaton, reference = read_pattern(pattern), re.compile(pattern, re.ASCII)
    for code in codes:
        if code < 0x110000 and not 0xD800 <= code < 0xE000:
            assert automaton.accepts(chr(code)) == bool(reference.fullmatch(chr(code))), hex(code)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a**", "place 3: lazy, possessive and doubled repetition is not supported"),
        ("(a", "place 1: this '(' is never closed"),
        ("a)", "place 2: this ')' closes no group"),
        ("[a", "place 1: this '[' is never closed"),
        ("a$", r"place 2: '$' is not needed, because the whole text must match; write \$ for the"),
        ("a{x}", r"place 2: expected {3}, {2,}, {2,5} or {,5}; write \{ for a brace"),
        ("a{3,2}", "place 2: {3,2} asks for at least 3 and at most 2"),
        ("a\\", "place 2: a backslash ends the pattern"),
        (r"\1", r"place 1: '\1' is not supported"),
        ("(?=a)", "place 1: groups with (? other than (?: are not supported"),
        ("[z-a]", "place 1: the range in this class has no first and last"),
        (r"[!-\d]", "place 1: the range in this class has no first and last"),
        ("a|*b", "place 3: there is nothing to repeat"),
        (r"\xg0", "place 1: expected 2 hexadecimal digits"),
        (r"[^\d\D]", "matches no text"),
    ],
)
def test_what_is_not_an_expression_is_told_with_its_place(pattern, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        read_pattern(pattern)


def test_expressions_that_grow_too_large_are_refused(monkeypatch):
    monkeypatch.setattr("transformer_lib.text.byte_automaton.MOST_PLACES", 100)
    with pytest.raises(ValueError, match="has more than 100 parts: repeat less"):
        read_pattern("(a{20}){20}")
    monkeypatch.setattr("transformer_lib.text.byte_automaton.MOST_PLACES", 1000)
    monkeypatch.setattr("transformer_lib.text.byte_automaton.MOST_STATES", 100)
    with pytest.raises(ValueError, match="needs more than 100 states: make it simpler"):
        read_pattern("(a|b)*a(a|b){9}")


def test_no_byte_leads_into_a_dead_end():
    automaton = read_pattern(r"(a[^\d\D]|b)c*")
    assert automaton.steps[0].keys() == {ord("b")}
    targets = {state for row in automaton.steps for state in row.values()}
    assert all(automaton.steps[state] or state in automaton.ends for state in targets)


# Tokens.


def byte_level():
    vocabulary = {c: n for n, c in enumerate(["a", "b", "ab", "Ġ", "Ã", "¼", "Ġa", "é"])}
    settings = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"], ["Ġ", "a"]]},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [
            {"id": 9, "content": "</s>", "special": True},
            {"id": 8, "content": "<tool>", "special": False},
        ],
    }
    return PretrainedTokenizer(settings, {"eos_token": "</s>"})


def with_fallback(*more):
    tokens = ["▁", "a", "▁a", "<0xC3>", "<0xBC>", "b", "▁▁", "ü"]
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    steps = [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip, *more]
    return PretrainedTokenizer(
        {
            "model": {"type": "BPE", "vocab": {c: n for n, c in enumerate(tokens)}, "merges": []},
            "decoder": {"type": "Sequence", "decoders": steps},
        }
    )


def metaspace():
    tokens = {c: n for n, c in enumerate(["▁", "a", "▁a", "b"])}
    return PretrainedTokenizer(
        {
            "model": {"type": "BPE", "vocab": tokens, "merges": []},
            "decoder": {"type": "Metaspace", "replacement": "▁"},
        }
    )


@pytest.mark.parametrize(
    "tokenizer",
    [
        TOKENIZER,
        BPETokenizer.train(["für fürst für"], 264),
        WordPieceTokenizer(["für", "##für", "##st"]),
        byte_level(),
        with_fallback(),
        metaspace(),
    ],
    ids=["words", "bpe", "word-piece", "byte-level", "fallback", "metaspace"],
)
def test_bytes_of_tokens_are_what_they_add_to_a_text(tokenizer):
    rng, start = random.Random(0), 1
    for _ in range(200):
        ids = [
            rng.choice([n for n in range(tokenizer.vocab_size) if tokenizer.tokens[n]])
            for _ in range(5)
        ]
        stream_ = TextStream(tokenizer, prompt=[start])
        added = "".join(map(stream_.push, ids)) + stream_.end()
        found = b"".join(map(tokenizer.token_bytes, ids))
        try:
            text = found.decode()
        except UnicodeDecodeError:  # half letters: decoders write signs for them, more or fewer
            continue
        assert text == added


def test_a_decoder_that_must_see_all_of_a_text_is_refused():
    replace = {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}
    with pytest.raises(ValueError, match="tokenizer has a decoder that must see the whole text"):
        TokenBytes(with_fallback(replace))


@functools.cache
def by_hand(text, pattern, longest=5):
    """Which tokens may follow a text, by trying all texts of a's and b's."""
    texts = ["".join(t) for n in range(longest + 1) for t in itertools.product("ab", repeat=n)]
    allowed = [t for t in texts if re.fullmatch(pattern, t)]
    found = {
        n
        for n in range(TOKENIZER.vocab_size)
        if (more := TOKENIZER.token_bytes(n).decode(errors="replace"))
        and any(t.startswith(text + more) for t in allowed)
    }
    return found | ({END} if text in allowed else set())


PATTERNS = ["(ab|ba){1,2}", "a(b?a){0,2}", "b|ab{0,2}"]


def test_tokens_that_may_follow_are_those_found_by_trying():
    for pattern in PATTERNS:
        assert_same_tokens(Pattern(pattern, TOKENIZER), pattern)


def assert_same_tokens(allowed, pattern):
    """After each text that may be a beginning, letter by letter."""
    texts = [""]
    for text in texts:
        tokens = AllowedTokens(allowed, 1, torch.tensor([END]), TOKENIZER.vocab_size + 2)
        for letter in text:
            tokens.push(torch.tensor(TOKENIZER.encode(letter)))
        may_come = tokens.mask(torch.zeros(1, TOKENIZER.vocab_size + 2))[0].isfinite()
        found = set(may_come.nonzero()[:, 0].tolist())
        assert found == by_hand(text, pattern)
        letters = (TOKENIZER.decode([n]) for n in found)
        texts += [text + c for c in letters if c in ("a", "b") and text + c not in texts]
    assert len(texts) > 4


def outcomes(model, allowed, sampling):
    """The probability of each row of new tokens, over every way in which draws can fall."""
    choices = AllChoices()
    options = {"temperature": sampling.temperature, "top_k": sampling.top_k, "eos_id": END}

    def draw(logits, sampling, seen, generator):
        chances = filter_logits(logits, sampling, seen).softmax(dim=-1)[0]
        return torch.tensor([choices.choose(chances.tolist())])

    def run():
        ids = generate(model, PROMPT, max_new_tokens=9, allowed=allowed, **options)
        return tuple(ids[0, PROMPT.shape[1] :].tolist())

    with mock.patch.object(generating, "draw_token", draw):
        return choices.outcomes(run)


@torch.no_grad()
def enumerated(model, prompt, sampling, may_come, is_over):
    """The same by hand: whole passes over all rows of tokens that ``may_come`` names."""
    found = {}

    def follow(new, chance):
        if is_over(new):
            found[new] = chance
            return
        tokens = may_come(new)
        ids = torch.cat((prompt, torch.tensor([new], dtype=torch.long)), dim=1)
        chances = filter_logits(model(ids)[:, -1, tokens], sampling).softmax(dim=-1)[0]
        for token, p in zip(tokens, chances.tolist(), strict=True):
            if p > 0:
                follow((*new, token), chance * p)

    follow((), 1.0)
    return found


@pytest.mark.parametrize(
    ("pattern", "sampling"),
    [
        (PATTERNS[0], Sampling()),
        (PATTERNS[1], Sampling(temperature=0.5)),
        (PATTERNS[2], Sampling(top_k=2)),
    ],
)
def test_texts_are_as_probable_as_enumerated(model, pattern, sampling):
    wanted = enumerated(
        model,
        PROMPT,
        sampling,
        may_come=lambda new: sorted(by_hand(TOKENIZER.decode(new), pattern)),
        is_over=lambda new: END in new,
    )
    assert sum(wanted.values()) == pytest.approx(1)
    assert len(wanted) >= 3
    found = outcomes(model, Pattern(pattern, TOKENIZER), sampling)
    assert found.keys() == wanted.keys()
    assert all(found[new] == pytest.approx(wanted[new], abs=1e-9) for new in wanted)


def test_answers_of_a_list_are_all_there_are(model):
    answers = ["ab", "abb", "ba", ""]
    found = outcomes(model, OneOf(answers, TOKENIZER), Sampling())
    assert {TOKENIZER.decode(new) for new in found} == set(answers)
    assert sum(found.values()) == pytest.approx(1)


# In the loop.


def test_rows_of_a_batch_are_written_as_if_alone(model):
    """Greedy, with padding, until the longest has ended; the shorter ones are filled."""
    allowed = Pattern("(a|b){1,6}", TokenBytes(TOKENIZER))
    ids = torch.tensor([[0, 0, 260], [0, 262, 98], [97, 261, 98]])
    options = {"allowed": allowed, "eos_id": END, "max_new_tokens": 9}
    found = generate(model, ids, prompt_mask=ids > 0, **options)
    ends = []
    for row, text in zip(ids, found, strict=True):
        alone = generate(model, row[row > 0][None], **options)[0, (row > 0).sum() :]
        assert torch.equal(text[3 : 3 + len(alone)], alone)
        assert not text[3 + len(alone) :].any()
        assert re.fullmatch("[ab]{1,6}", TOKENIZER.decode(alone.tolist()))
        ends.append(len(alone))
    assert len(set(ends)) > 1


def test_the_best_token_is_the_best_of_those_that_may_come(model):
    pattern = PATTERNS[0]
    ids = generate(model, PROMPT, max_new_tokens=9, allowed=Pattern(pattern, TOKENIZER), eos_id=END)
    new = ids[0, PROMPT.shape[1] :].tolist()
    for n, token in enumerate(new):
        with torch.no_grad():
            logits = model(ids[:, : PROMPT.shape[1] + n])[0, -1]
        may_come = sorted(by_hand(TOKENIZER.decode(new[:n]), pattern))
        assert token == may_come[int(logits[may_come].argmax())]
    assert new[-1] == END


def test_all_ways_to_generate_take_it(model, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    allowed = Pattern("(ab|ba){2,3}", TOKENIZER)
    usual = {"allowed": allowed, "eos_id": END, "max_new_tokens": 9}
    wanted = generate(model, PROMPT, **usual)
    assert re.fullmatch("(ab|ba){2,3}", TOKENIZER.decode(wanted[0, 2:].tolist()))
    assert torch.equal(torch.stack(list(stream(model, PROMPT, **usual)), dim=1), wanted[:, 2:])
    prefix = read_prefix(model, PROMPT[:, :1])
    assert torch.equal(generate(model, PROMPT, prefix=prefix, **usual), wanted)
    assert torch.equal(generate(CompiledDecoder(model, 20), PROMPT, **usual), wanted)
    penalised = generate(model, PROMPT, repetition_penalty=3.0, top_p=0.5, **usual)
    assert re.fullmatch("(ab|ba){2,3}", TOKENIZER.decode(penalised[0, 2:].tolist()))


def test_a_text_is_given_only_what_is_allowed(model):
    """As a text from a text, and in pieces."""
    allowed = Pattern("(ab|ba){2}", TOKENIZER)
    text = generate_text(model, TOKENIZER, "abb", max_new_tokens=9, allowed=allowed)
    assert re.fullmatch("abb(ab|ba){2}", text)
    pieces = write_on(
        model, TOKENIZER, TOKENIZER.encode("abb"), Sampling(), 9, "cpu", allowed=allowed
    )
    assert re.fullmatch("(ab|ba){2}", "".join(pieces))


def test_what_is_cut_off_is_a_beginning(model):
    options = {"allowed": Pattern("(ab){3}", TOKENIZER), "eos_id": END}
    ids = generate(model, PROMPT, max_new_tokens=1, **options)
    assert "ababab".startswith(TOKENIZER.decode(ids[0, 2:].tolist()))


def test_a_row_that_a_rule_has_ended_asks_for_nothing_more(model):
    options = {"allowed": Pattern("a{6}", TOKENIZER), "eos_id": END, "max_new_tokens": 9}
    ids = generate(
        model, PROMPT.repeat(2, 1), stop=lambda new: torch.tensor([True, False]), **options
    )
    assert TOKENIZER.decode(ids[0, 2:].tolist()) == "a"
    assert TOKENIZER.decode(ids[1, 2:].tolist()) == "a" * 6


def test_any_of_several_end_tokens_ends_a_text(model):
    """One of them is a letter that no text holds; one that some text holds is refused."""
    b, c = TOKENIZER.encode("b") + TOKENIZER.encode("c")
    options = {"allowed": Pattern("a{1,3}", TOKENIZER), "temperature": 1.0, "max_new_tokens": 9}
    found, generator = set(), torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = generate(model, PROMPT, eos_id=[END, b, c], generator=generator, **options)
        new = ids[0, 2:].tolist()
        found.add(new[-1])
        assert re.fullmatch("a{1,3}[bc]?", TOKENIZER.decode(new))
        assert len({END, b, c} & set(new)) == 1
    assert len(found) > 1
    with pytest.raises(ValueError, match=f"eos_id={b} stands for b'b', which may come in allowed"):
        generate(model, PROMPT, eos_id=[END, b], **options | {"allowed": OneOf(["b"], TOKENIZER)})


def test_tokens_that_the_tokenizer_does_not_have_never_come():
    model, allowed = lively(), Pattern(".*", TOKENIZER)
    tokens = AllowedTokens(allowed, 2, torch.tensor([END]), model.config.vocab_size)
    may_come = tokens.mask(torch.zeros(2, model.config.vocab_size)).isfinite()
    assert not may_come[:, TOKENIZER.vocab_size :].any()
    assert not may_come[:, [TOKENIZER.pad_id, TOKENIZER.bos_id]].any()
    assert may_come[:, END].all()


def test_letters_of_several_bytes_are_never_left_half_written():
    tokenizer = CharTokenizer.train(["é"])
    model = lively(vocab_size=tokenizer.vocab_size)
    allowed = Pattern("[à-ÿ]{1,3}|[🀀-🙏]", tokenizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = generate(
            model, PROMPT[:, :1] % 259, max_new_tokens=9, allowed=allowed, eos_id=END,
            temperature=1.0, generator=generator,
        )  # fmt: skip
        assert allowed.automaton.accepts(tokenizer.decode(ids[0, 1:].tolist()))


def test_a_vocabulary_without_some_bytes_never_runs_into_a_dead_end():
    """Here "c" is no token: after "a", only "b" leads to an end, and "ac" to none."""
    tokens = {"a": 0, "b": 1, "ca": 2}
    tokenizer = PretrainedTokenizer(
        {
            "model": {"type": "BPE", "vocab": tokens, "merges": []},
            "decoder": {"type": "ByteLevel"},
            "added_tokens": [{"id": 3, "content": "</s>", "special": True}],
        }
    )
    allowed = Pattern("a(b|c|ca[^ab]|cab)|c", tokenizer)
    after = allowed.states_after(0)
    assert [n for n in range(3) if after[n] != DEAD] == [0]
    then = allowed.states_after(int(after[0]))
    assert [n for n in range(3) if then[n] != DEAD] == [1, 2]
    last = allowed.states_after(int(then[2]))
    assert [n for n in range(3) if last[n] != DEAD] == [1]
    with pytest.raises(ValueError, match="tokenizer has no tokens for any of the texts"):
        OneOf(["c", "bc"], tokenizer)


def test_few_states_are_kept(model, monkeypatch):
    for value in (1, 256):
        monkeypatch.setattr("transformer_lib.generation.constrained.MAX_REMEMBERED", value)
        allowed = AllowedText(read_texts(["ababa", "babab"]), TOKENIZER)
        options = {"allowed": allowed, "eos_id": END, "max_new_tokens": 9}
        found = generate(model, PROMPT, **options)
        assert len(allowed._remembered) <= value
        if value == 1:
            wanted = found
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scores_of_any_kind_are_masked(dtype):
    tokens = AllowedTokens(OneOf(["a"], TOKENIZER), 1, torch.tensor([END]), TOKENIZER.vocab_size)
    scores = tokens.mask(torch.zeros(1, TOKENIZER.vocab_size, dtype=dtype))
    assert scores.dtype == dtype
    assert scores.isfinite().nonzero()[:, 1].tolist() == TOKENIZER.encode("a")


def test_a_model_for_which_all_that_is_allowed_is_impossible_is_told(model):
    def no_letter(module, inputs, logits):
        return logits.index_fill(-1, torch.tensor(TOKENIZER.encode("a")), -torch.inf)

    options = {"allowed": OneOf(["a"], TOKENIZER), "eos_id": END, "max_new_tokens": 3}
    handle = model.register_forward_hook(no_letter)
    try:
        for write in (generate, functools.partial(speculative_generate, draft=NgramDraft())):
            with pytest.raises(FloatingPointError, match="row 0 at new token 1 is -inf"):
                write(model, PROMPT, **options)
        _, scores = beam_search(model, PROMPT, n_beams=2, **options)
        assert scores.tolist() == [[-torch.inf] * 2]
    finally:
        handle.remove()


# Beams.


@pytest.mark.parametrize("pattern", PATTERNS)
def test_one_beam_writes_what_the_best_tokens_write(model, pattern):
    """In a batch with padding, in texts that end and in one that is cut off."""
    ids = torch.tensor([[0, 0, 260], [0, 262, 98], [97, 261, 98]])
    for n in (2, 9):
        options = {"allowed": Pattern(pattern, TOKENIZER), "eos_id": END, "max_new_tokens": n}
        wanted = generate(model, ids, prompt_mask=ids > 0, **options)
        found, _ = beam_search(model, ids, prompt_mask=ids > 0, n_beams=1, **options)
        assert torch.equal(found[:, 0], wanted)


@torch.no_grad()
def best_first(model, pattern, length_penalty):
    """All rows of tokens that are allowed, by hand: their scores are the model's own."""
    found = {}

    def follow(new, total):
        if END in new:
            found[new] = total / length_divisor(len(new), length_penalty)
            return
        ids = torch.cat((PROMPT, torch.tensor([new], dtype=torch.long)), dim=1)
        gains = model(ids)[0, -1].log_softmax(dim=-1)
        for token in by_hand(TOKENIZER.decode(new), pattern):
            follow((*new, token), total + float(gains[token]))

    follow((), 0.0)
    return sorted(found.items(), key=lambda item: -item[1])


def test_beams_find_the_best_of_all_texts():
    """Without arguments: the catalogue of mistakes calls it."""
    model = lively()
    for pattern, length_penalty in itertools.product(PATTERNS, (0.0, 1.0)):
        wanted = best_first(model, pattern, length_penalty)
        for n_beams in (len(wanted), len(wanted) + 3):  # then three places stay empty
            ids, scores = beam_search(
                model, PROMPT, n_beams=n_beams, length_penalty=length_penalty, max_new_tokens=9,
                allowed=Pattern(pattern, TOKENIZER), eos_id=END,
            )  # fmt: skip
            assert scores[0].isfinite().sum() == len(wanted)
            for row, score, (new, best) in zip(ids[0], scores[0], wanted, strict=False):
                assert score == pytest.approx(best, abs=1e-9)
                assert tuple(row[2 : 2 + len(new)].tolist()) == new
                assert not row[2 + len(new) :].any()


def test_a_few_beams_may_find_what_the_best_tokens_miss():
    """Else a list of answers could as well be written greedily."""
    allowed, usual = OneOf(["ab", "ba"], TOKENIZER), {"eos_id": END, "max_new_tokens": 4}
    better = 0
    for seed in range(8):
        model = lively(seed)
        greedy, one = beam_search(model, PROMPT, n_beams=1, allowed=allowed, **usual)
        best, scores = beam_search(model, PROMPT, n_beams=6, allowed=allowed, **usual)
        assert scores[0, 0] >= one[0, 0]
        assert new_text(best[0, 0]) in ("ab", "ba")
        better += new_text(best[0, 0]) != new_text(greedy[0, 0])
    assert better


def test_a_search_ends_when_all_texts_are_written(model):
    """Even if there are fewer of them than beams."""
    calls = []
    handle = model.decoder.register_forward_hook(lambda *_: calls.append(1))
    beam_search(
        model, PROMPT, n_beams=8, max_new_tokens=30, allowed=OneOf(["a"], TOKENIZER), eos_id=END
    )
    handle.remove()
    assert len(calls) == 2  # the letter, and the end


def test_beams_of_a_batch_and_of_a_translator():
    sizes = {"vocab_size": TOKENIZER.vocab_size, "n_layers": 1, "max_len": 40}
    model = make(Seq2SeqLM, tiny(**sizes))
    allowed, source = Pattern("(ab|ba){2,3}", TOKENIZER), torch.tensor([[97, 98], [98, 261]])
    usual = {"allowed": allowed, "eos_id": END, "max_new_tokens": 9, "n_beams": 3}
    start = torch.full((2, 1), TOKENIZER.bos_id)
    ids, scores = beam_search(model, start, source=source, **usual)
    for row in range(2):
        alone, own = beam_search(model, start[:1], source=source[row : row + 1], **usual)
        n = alone.shape[-1]
        assert torch.equal(ids[row, :, :n], alone[0])
        assert torch.allclose(scores[row], own[0])
        assert all(
            allowed.automaton.accepts(TOKENIZER.decode(text.tolist())) for text in alone[0, :, 1:]
        )


# Guesses of a draft.

LETTERS = PretrainedTokenizer(
    {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 3, "content": "</s>", "special": True}],
    }
)
WRITTEN = torch.tensor([[1, 2, 0, 1, 2]])  # an n-gram is found, which may not always come
SMALL_PATTERNS = ["(ab|ba){1,2}", "(b|ab){0,2}a", "a{2}b?"]


def law_of_letters(model, pattern, sampling, n_new):
    """The probability of each row of tokens, among texts that trying finds."""
    texts = ["".join(t) for n in range(2 * n_new + 3) for t in itertools.product("ab", repeat=n)]
    texts = [text for text in texts if re.fullmatch(pattern, text)]

    def may_come(new):
        text = "".join(("a", "b", "ab")[token] for token in new)
        return [
            token
            for token, more in enumerate(("a", "b", "ab"))
            if any(t.startswith(text + more) for t in texts)
        ] + [3] * (text in texts)

    return enumerated(
        model, WRITTEN, sampling, may_come, is_over=lambda new: 3 in new or len(new) == n_new
    )


def assert_guesses_change_nothing(pattern, draft, sampling=Sampling()):  # noqa: B008
    """Over every way in which draws can fall."""
    model, allowed = lively(0, vocab_size=4), Pattern(pattern, LETTERS)
    options = {"sampling": sampling, "n_guesses": 2, "max_new_tokens": 4, "eos_id": 3}

    def run():
        ids = speculative_generate(model, WRITTEN, draft=draft, allowed=allowed, **options)
        return tuple(ids[0, WRITTEN.shape[1] :].tolist())

    wanted = law_of_letters(model, pattern, sampling, 4)
    assert sum(wanted.values()) == pytest.approx(1)
    assert len(wanted) > 2
    found = {new: chance for new, chance in AllChoices().outcomes(run).items() if chance > 0}
    assert found.keys() == wanted.keys()
    assert all(found[new] == pytest.approx(wanted[new], abs=1e-6) for new in wanted)


def test_texts_guessed_by_a_model_are_as_probable_as_without_guesses():
    for pattern in SMALL_PATTERNS:
        assert_guesses_change_nothing(pattern, lively(1, vocab_size=4))


def test_texts_guessed_by_ngrams_are_as_probable_as_without_guesses():
    for pattern in SMALL_PATTERNS:
        assert_guesses_change_nothing(pattern, NgramDraft())


def test_the_same_with_options_of_sampling():
    for draft in (lively(1, vocab_size=4), NgramDraft()):
        assert_guesses_change_nothing(SMALL_PATTERNS[0], draft, Sampling(temperature=0.5, top_k=2))


def test_greedy_guesses_write_what_the_best_tokens_write(model):
    for pattern in (*PATTERNS, "(ab|ba){4}"):
        usual = {"allowed": Pattern(pattern, TOKENIZER), "eos_id": END, "max_new_tokens": 9}
        wanted = generate(model, PROMPT, **usual)
        for draft in (lively(1), model, NgramDraft()):
            found = speculative_generate(model, PROMPT, draft=draft, n_guesses=3, **usual)
            assert torch.equal(found, wanted)


def test_guesses_of_the_model_itself_are_all_kept(model):
    """They would not be if the draft were not limited as the model is, guess by guess."""
    usual = {"allowed": Pattern("(ab|ba){7}", TOKENIZER), "eos_id": END, "max_new_tokens": 20}
    rounds = list(speculative_stream(model, PROMPT, draft=model, n_guesses=3, **usual))
    n_after_the_first = sum(map(len, rounds)) - 1
    assert n_after_the_first > 4
    assert len(rounds) == 1 + -(-n_after_the_first // 4)
