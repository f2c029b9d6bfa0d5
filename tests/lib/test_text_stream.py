"""TextStream: pieces that together are what decode gives, and never half a letter."""

import copy
import random

import pytest
from checkpoint_tokenizers import MAKERS, SCRIPTS, mixed_texts, settings_of
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.text_stream import TextStream
from transformer_lib.text.tokenizers import (
    BPETokenizer,
    CharTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)

OURS = {
    kind.__name__: kind.train(list(SCRIPTS.values()), 700)
    for kind in (CharTokenizer, WordTokenizer, BPETokenizer, WordPieceTokenizer)
}
DECODERS = {
    "none": None,
    "spaces at both ends": {"type": "Strip", "content": "▁", "start": 1, "stop": 2},
    "metaspace": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"},
    "strip all of it": [{"type": "Fuse"}, {"type": "Strip", "content": "t", "start": 2, "stop": 1}],
    "bytes of all": [{"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "ByteLevel"}],
    "long pattern": [
        {"type": "Fuse"},
        {"type": "Replace", "pattern": {"String": "th"}, "content": "<th>"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    ],
}


def tokenizer_of(name):
    if name in OURS:
        return OURS[name]
    if name in MAKERS:
        return PretrainedTokenizer(settings_of(name))
    part = DECODERS[name]
    part = {"type": "Sequence", "decoders": part} if isinstance(part, list) else part
    return PretrainedTokenizer(settings_of("Llama 2") | {"decoder": part})


ALL = [*OURS, *MAKERS, *DECODERS]


def pieces_of(tokenizer, ids, **options):
    stream = TextStream(tokenizer, **options)
    return [*(stream.push(n) for n in ids), stream.end()]


@pytest.mark.parametrize("name", ALL)
def test_the_pieces_are_the_whole(name, unchecked_shapes):
    tokenizer = tokenizer_of(name)
    for text in mixed_texts(8000, seed=5):
        ids = tokenizer.encode(text)
        for skip in (True, False):
            pieces = pieces_of(tokenizer, ids, skip_special=skip)
            assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip)


@pytest.mark.parametrize("name", ALL)
def test_the_pieces_of_any_ids_are_the_whole(name, unchecked_shapes):
    """Also broken UTF-8: bytes that can never become a letter."""
    tokenizer, draw = tokenizer_of(name), random.Random(4)
    short = [n for n, token in enumerate(tokenizer.tokens) if len(token) == 1 or "<0x" in token]
    short += [n for n, token in enumerate(tokenizer.tokens) if "\\x" in token]
    for _ in range(200):
        ids = draw.choices(draw.choice([range(tokenizer.vocab_size), short]), k=draw.randrange(15))
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["BPETokenizer", "Llama 2", "Llama 3"]), st.lists(st.integers(0, 690)))
def test_the_pieces_of_ids_from_anywhere_are_the_whole(name, ids):
    tokenizer = tokenizer_of(name)
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["BPETokenizer", "GPT-2", "Llama 2", "Gemma", "Llama 3"])
def test_no_piece_ends_in_half_a_letter(name):
    tokenizer = tokenizer_of(name)
    for text in SCRIPTS.values():
        if "\ufffd" not in text:
            pieces = pieces_of(tokenizer, tokenizer.encode(text))
            assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", ["BPETokenizer", "GPT-2", "Llama 2", "Gemma", "Llama 3"])
def test_text_comes_as_soon_as_it_is_certain(name):
    """English needs no waiting: after every token all of it is there."""
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode("To be, or not to be, that is the question.")
    stream, seen = TextStream(tokenizer), ""
    for n in range(len(ids)):
        seen += stream.push(ids[n])
        assert seen == tokenizer.decode(ids[: n + 1])


def test_a_letter_comes_with_its_last_byte():
    tokenizer = tokenizer_of("GPT-2")
    assert pieces_of(tokenizer, tokenizer.encode("x🦊y")) == ["x", "", "", "🦊", "y", ""]
    euro = tokenizer.encode("€")
    assert pieces_of(tokenizer, [*euro[:-1], *tokenizer.encode("a")])[-2:] == ["�a", ""]
    assert pieces_of(tokenizer, euro[:-1])[-1] == "�"


def test_bytes_of_sentence_piece_come_when_their_row_ends():
    """A row that is broken becomes signs as a whole, as decode has it: so it must be awaited."""
    tokenizer = tokenizer_of("Llama 2")
    first, *rest = (tokenizer.tokens.index(f"<0x{n:02X}>") for n in "🫠".encode())
    a = tokenizer.tokens.index("a")
    assert pieces_of(tokenizer, [a, first, *rest, a]) == ["a", "", "", "", "", "🫠a", ""]
    assert pieces_of(tokenizer, [a, first, *rest, first, a])[-2:] == ["�����a", ""]


def test_the_space_at_the_beginning_is_left_out_once():
    tokenizer = tokenizer_of("Llama 2")
    space, a = tokenizer.tokens.index("▁"), tokenizer.tokens.index("a")
    assert pieces_of(tokenizer, [1, space, space, a]) == ["", "", " ", "a", ""]
    assert pieces_of(tokenizer, [a, space, a]) == ["a", " ", "a", ""]


def test_a_stream_begins_anew_after_its_end():
    for name in ("Llama 2", "BPETokenizer"):
        tokenizer = tokenizer_of(name)
        stream, ids = TextStream(tokenizer), tokenizer.encode("to be")
        for _ in range(2):
            assert "".join([*map(stream.push, ids), stream.end()]) == "to be"


def test_special_tokens_do_not_tear_letters_apart():
    tokenizer = tokenizer_of("GPT-2")
    first, *rest = tokenizer.encode("€")
    end = tokenizer.tokens.index("</s>")
    assert "".join(pieces_of(tokenizer, [first, end, *rest])) == "€"
    torn = "".join(pieces_of(tokenizer, [first, end, *rest], skip_special=False))
    assert torn == tokenizer.decode([first, end, *rest], skip_special=False)


def test_what_a_stream_reads_is_not_changed():
    settings_before = copy.deepcopy(settings_of("Llama 2"))
    pieces_of(PretrainedTokenizer(settings_of("Llama 2")), [1, 5, 9])
    assert settings_of("Llama 2") == settings_before


@pytest.mark.parametrize("name", ALL)
def test_after_a_prompt_only_what_is_new_is_given(name, unchecked_shapes):
    tokenizer, draw = tokenizer_of(name), random.Random(7)
    checked = 0
    for text in mixed_texts(3000, seed=6):
        ids = tokenizer.encode(text)
        cut = draw.randrange(len(ids) + 1)
        before, whole = tokenizer.decode(ids[:cut]), tokenizer.decode(ids)
        if whole.startswith(before):  # else new ids have changed the text of the prompt
            stream = TextStream(tokenizer, prompt=ids[:cut])
            new = [*map(stream.push, ids[cut:]), stream.end()]
            assert before + "".join(new) == whole
            checked += 1
    assert checked > 20


def test_the_first_space_after_a_prompt_is_written():
    tokenizer = tokenizer_of("Llama 2")
    space, a = tokenizer.tokens.index("▁"), tokenizer.tokens.index("a")
    stream = TextStream(tokenizer, prompt=[1, space, a])
    assert [stream.push(space), stream.push(a), stream.end()] == [" ", "a", ""]
    assert [stream.push(space), stream.push(a), stream.end()] == ["", "a", ""]  # another text


def test_what_a_prompt_holds_back_is_not_given_twice():
    """The end of a row of bytes is seen only when the next token comes."""
    tokenizer = tokenizer_of("Llama 2")
    first, *rest = (tokenizer.tokens.index(f"<0x{n:02X}>") for n in "🫠".encode())
    a = tokenizer.tokens.index("a")
    stream = TextStream(tokenizer, prompt=[a, first, *rest])
    assert [stream.push(a), stream.end()] == ["a", ""]
    stream = TextStream(tokenizer, prompt=[a, first, *rest])
    assert [stream.push(first), *map(stream.push, rest), stream.end()] == ["", "", "", "", "🫠"]


@pytest.mark.parametrize("name", ["GPT-2", "BPETokenizer"])
def test_unknown_ids_are_named(name):
    stream = TextStream(tokenizer_of(name))
    for wrong in (-1, 10_000):
        with pytest.raises(ValueError, match=rf"{wrong}.*expected 0 to \d+"):
            stream.push(wrong)


def test_only_tokenizers_are_taken(unchecked_shapes):
    with pytest.raises(TypeError, match="expected a tokenizer; got str"):
        TextStream("gpt2")
