"""tokenizers: nothing is lost, and BPE and WordPiece equal those of Hugging Face."""

import json
import random
import sys
import unicodedata
from collections import Counter

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace
from tokenizers.models import BPE, WordPiece
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from transformer_lib.text import tokenizers
from transformer_lib.text.tokenizers import (
    SPECIAL,
    BPETokenizer,
    CharTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)

KINDS = [CharTokenizer, WordTokenizer, BPETokenizer, WordPieceTokenizer]
TEXTS = {
    "English": "To be, or not to be, that is the question: whether 'tis nobler in the mind to "
    "suffer the slings and arrows of outrageous fortune. It's what they'll say; I've said I'd go.",
    "German": "Über allen Gipfeln ist Ruh, in allen Wipfeln spürest du kaum einen Hauch; die "
    "Vögelein schweigen im Walde. Größe, Maß, Füße, süß, äußerst. ÄÖÜ äöü ẞß.",
    "emoji": "👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️❤️❤️ 🤖🤖 x😀y😀z 😀😀😀",
    "numbers": "1 12 123 1234 12345 3.14159 1,000,000 2024-01-31 ½ ²³ Ⅷ ٣٤٥ 0x1F 1e-9",
    "code": "def f(x):\n    if x_1 >= 10:\n\treturn {'a': [x ** 2, -x]}  # y\n\n\nprint(f(3))\r\n",
    "scripts": "Привет, мир! Γειά σου Κόσμε. 你好，世界。こんにちは 안녕 שלום नमस्ते สวัสดี",
    "spaces": "  two   three    \n\n \n  \t tab\t\ttab \u00a0nb\u2003em\u3000wide \x1c\x85 end   ",
    "ties": "ab ba cd dc ef fe aabb bbaa ccdd abc cba abcd dcba aaaa aaaaa aaaaaa bbbbb",
    "controls": "\x00\x01 a\x00b \x7f\x80\x9f\xad\ufeff\u200b e\u0301e\u0301 \U0010ffff",
}
MIXED = list(TEXTS.values())
any_text = st.text(max_size=40) | st.text("aäb #<eos>\n\r\t'1½😀\u0301", max_size=40)


def hugging_face_bpe(texts, vocab_size, special=SPECIAL):
    peer = HuggingFace(BPE())
    peer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    peer.train_from_iterator(texts, trainer)
    return peer


def gpt2_characters():
    """Each byte, and the character that Hugging Face shows for it."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return dict(zip(visible + hidden, map(chr, [*visible, *range(256, 324)]), strict=True))


SHOWN = gpt2_characters()


def shown(token):
    return "".join(SHOWN[byte] for byte in token)


def assert_equals_hugging_face(texts, vocab_size, more=()):
    ours = BPETokenizer.train(texts, vocab_size)
    peer = hugging_face_bpe(texts, vocab_size or 100_000)
    tokens = [shown(token) for token in ours._tokens[3:]]
    assert [*SPECIAL, *tokens] == [peer.id_to_token(i) for i in range(peer.get_vocab_size())]
    merges = [[tokens[first], tokens[second]] for first, second in ours.learned]
    assert merges == json.loads(peer.to_str())["model"]["merges"]
    for text in (*texts, *more):
        assert ours.encode(text) == peer.encode(text).ids


def hugging_face_split(text):
    pieces = ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in pieces]


# --- BPE, the same as Hugging Face --------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [259, 260, 300, 400, None])
@pytest.mark.parametrize("name", TEXTS)
def test_bpe_equals_hugging_face(name, vocab_size):
    assert_equals_hugging_face([TEXTS[name]], vocab_size, more=MIXED)


@pytest.mark.parametrize("vocab_size", [300, 600, None])
def test_bpe_equals_hugging_face_on_many_texts(vocab_size):
    assert_equals_hugging_face(MIXED * 2 + ["", "the end"], vocab_size)


@pytest.mark.parametrize("seed", range(60))
def test_bpe_breaks_ties_as_hugging_face_does(seed):
    """Few letters and many words of the same frequency: nearly every choice is a tie."""
    draw = random.Random(seed)
    letters = "abcde"[: 1 + seed % 5]
    longest = draw.choice([4, 12, 40])
    texts = [
        "".join(draw.choices(letters, k=draw.randint(1, longest)))
        for _ in range(draw.randint(1, 40))
    ]
    assert_equals_hugging_face(texts, draw.choice([262, 280, 330, None]), more=["abcde" * 9])


@settings(max_examples=50, deadline=None)
@given(st.lists(any_text, max_size=5), st.sampled_from([262, 300, None]), any_text)
def test_bpe_equals_hugging_face_on_any_text(texts, vocab_size, other):
    # Hugging Face finds special tokens in text, and knows newer characters than this Python.
    *texts, other = (
        "".join(c for c in text if c != "<" and unicodedata.category(c) != "Cn")
        for text in (*texts, other)
    )
    assert_equals_hugging_face(texts, vocab_size, more=[other])


def test_bpe_gives_special_tokens_the_ids_of_hugging_face():
    special = ("<mask>", *SPECIAL, "<sep>")
    ours = BPETokenizer.train(MIXED, 400, special)
    assert ours.encode(MIXED[0]) == hugging_face_bpe(MIXED, 400, special).encode(MIXED[0]).ids


def test_a_word_without_end_is_merged_like_any_other():
    text = "".join(random.Random(0).choices("etaoinshrdlu", k=1200))
    assert_equals_hugging_face([TEXTS["English"], text], 700)


def test_bpe_by_hand():
    """l+o occurs 3 times, then lo+w 3 times, then the space with low twice, as often as low+e."""
    tokenizer = BPETokenizer.train(["low lower lowest"], vocab_size=263)
    assert tokenizer.tokens[-4:] == ["lo", "low", " low", " lowe"]
    assert [tokenizer.tokens[i] for i in tokenizer.encode("slow lowest")] == [
        *("s", "low", " lowe", "s", "t")
    ]


# --- words --------------------------------------------------------------------------------------


def test_every_character_is_split_off_as_gpt2_does():
    """Those that this Python knows; newer ones count as neither letter nor number."""
    known = [
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if (category := unicodedata.category(character)) not in ("Cn", "Cs", "Co")
        and (category != "Lo" or ord(character) % 10 == 0)  # there are very many like that
    ]
    assert len(known) > 28_000
    for start in range(0, len(known), 5000):
        text = "".join(f"a{c}1{c}!{c} {c}" for c in known[start : start + 5000])
        assert WordTokenizer._split(text) == hugging_face_split(text)


@settings(max_examples=200, deadline=None)
@given(any_text)
@example("I'll they're 'S don't we've he'd I'm '''s")
@example("a_b __init__ x²y ½ a1b2 　 \x1c\x1f end")
def test_words_are_those_of_gpt2(text):
    known = "".join(c for c in text if unicodedata.category(c) != "Cn")
    assert WordTokenizer._split(known) == hugging_face_split(known)


def test_wordpiece_words_differ_only_in_punctuation():
    text = "a#b ##ing (x) ... it's"
    pieces = ["a", "#", "b", " #", "#", "ing", " (", "x", ")", " .", ".", ".", " it", "'s"]
    assert WordPieceTokenizer._split(text) == pieces


# --- nothing is lost ----------------------------------------------------------------------------

TRAINED = {kind: kind.train(MIXED, 900) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [*MIXED, "", "<pad><bos><eos>", "##ing ## #", "\r\n\n\r", "\\xe2"])
@pytest.mark.parametrize("trained", [True, False])
def test_a_text_comes_back_as_it_was(kind, text, trained):
    tokenizer = TRAINED[kind] if trained else kind()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(any_text)
def test_any_text_comes_back_as_it_was(kind, text):
    ids = TRAINED[kind].encode(text, bos=True, eos=True)
    assert TRAINED[kind].decode(ids) == text
    assert ids[0] == 1
    assert ids[-1] == 2
    assert all(3 <= i < TRAINED[kind].vocab_size for i in ids[1:-1])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(st.lists(any_text, max_size=4), st.none() | st.integers(259, 330), any_text)
def test_whatever_it_was_trained_on(kind, texts, vocab_size, text):
    tokenizer = kind.train(texts, vocab_size)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert vocab_size is None or tokenizer.vocab_size <= vocab_size
    assert len(set(tokenizer._tokens)) == tokenizer.vocab_size == len(tokenizer.tokens)


def test_remembered_words_are_forgotten_in_time(monkeypatch):
    monkeypatch.setattr(tokenizers, "MAX_REMEMBERED", 3)
    tokenizer = BPETokenizer.train(MIXED, 400)
    assert tokenizer.encode(MIXED[0]) == TRAINED[BPETokenizer].train(MIXED, 400).encode(MIXED[0])
    assert 0 < len(tokenizer._remembered) <= 3
    assert tokenizer.encode("to be") == tokenizer.encode("to be")


# --- vocabularies -------------------------------------------------------------------------------


def names(tokenizer, text):
    return [tokenizer.tokens[i] for i in tokenizer.encode(text)]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_bytes_come_first(kind):
    tokenizer = kind.train(["x"], special=("<mask>", "<eos>", "<bos>", "<pad>"))
    assert tokenizer.tokens[:5] == ["<mask>", "<eos>", "<bos>", "<pad>", "!"]
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (3, 2, 1)
    assert sorted(tokenizer._tokens[4:260]) == [bytes([n]) for n in range(256)]
    assert tokenizer.vocab_size == 260


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_never_made_from_text(kind):
    tokenizer = kind.train(["<eos> <pad> <bos> " * 9])
    assert min(tokenizer.encode("<eos><pad><bos>")) >= 3
    ids = [*tokenizer.encode("a<eos>", bos=True, eos=True), tokenizer.pad_id]
    assert tokenizer.decode(ids) == "a<eos>"
    assert tokenizer.decode(ids, skip_special=False) == "<bos>a<eos><eos><pad>"


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_token_that_looks_like_a_word_is_no_word(kind):
    text = "mask mask é a"
    special = (*SPECIAL, "mask", " mask", "é", "a")
    for tokenizer in (kind((), special), kind.train([text], special=special)):
        assert min(tokenizer.encode(text)) >= len(special)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_texts_does_not_matter(kind):
    assert kind.train(MIXED, 500).learned == kind.train(MIXED[::-1], 500).learned
    assert kind.train(iter(MIXED), 500).learned == kind.train(MIXED, 500).learned


def test_the_most_frequent_characters_are_learned_first():
    text = "aaäöößßßéé"
    assert CharTokenizer.train([text]).learned == ["ß", "é", "ö", "ä"]
    assert CharTokenizer.train([text], 261).learned == ["ß", "é"]
    assert names(CharTokenizer.train([text], 260), "aßé") == ["a", "ß", "\\xc3", "\\xa9"]


def test_the_most_frequent_words_are_learned_first():
    tokenizer = WordTokenizer.train(["to be or not to be, to be"])
    assert tokenizer.learned == [" be", " to", " not", " or", "to"]
    assert names(tokenizer, "to be, he") == ["to", " be", ",", " ", "h", "e"]


def test_wordpiece_learns_pieces():
    """##u+##g occurs 5 times, then the space with ##h 3 times, as often as ##h+##ug, and so on."""
    tokenizer = WordPieceTokenizer.train(["hug hugs hugs pug hug"])
    alphabet = ["##g", "##h", "##p", "##s", "##u"]
    pieces = ["##ug", " h", " hug", " hugs", " p", "hug", " pug"]
    assert tokenizer.learned == alphabet + pieces
    assert WordPieceTokenizer.train(["hug hugs hugs pug hug"], 266).learned == alphabet + pieces[:2]
    assert names(tokenizer, "hug hugs") == ["hug", " hugs"]
    assert names(tokenizer, "hugs") == ["hug", "##s"]


def test_wordpiece_without_room_for_all_characters():
    tokenizer = WordPieceTokenizer.train(["ab ab ab aé"], 262)
    assert tokenizer.learned == ["##a", "##b", "##é"]
    tokenizer = WordPieceTokenizer.train(["ab ab ab aé"], 261)
    assert tokenizer.learned == ["##a", "##b"]
    assert names(tokenizer, "abé") == ["a", "##b", "\\xc3", "\\xa9"]
    assert WordPieceTokenizer.train(["ab"], 259).learned == []


# --- WordPiece, the same as Hugging Face --------------------------------------------------------


def hugging_face_wordpiece(tokenizer):
    vocabulary = {token: n for n, token in enumerate(tokenizer.tokens) if "\\x" not in token}
    return WordPiece(vocabulary, unk_token="<pad>", max_input_chars_per_word=1000)


def test_wordpiece_equals_hugging_face():
    tokenizer = WordPieceTokenizer.train(MIXED, 700)
    peer = hugging_face_wordpiece(tokenizer)
    draw = random.Random(0)
    words = [word for text in MIXED for word in tokenizer._split(text)]
    words += ["".join(draw.sample(word, len(word))) for word in words]
    words += [draw.choice(words) + draw.choice(words).strip(" ") for _ in range(3000)]
    words = [word for word in words if tokenizer._split(word) == [word]]
    compared = Counter()
    for word in words:
        expected = [token.id for token in peer.tokenize(word)]
        compared[0 in expected] += 1
        if 0 not in expected:  # no word that the peer does not know
            assert tokenizer.encode(word) == expected
    assert compared[False] > 900, compared


def test_wordpiece_takes_the_longest_piece_first():
    tokenizer = WordPieceTokenizer(["un", "unha", "##happy", "##ppy", "##p", "##h"])
    assert names(tokenizer, "unhappy") == ["unha", "##ppy"]
    assert names(tokenizer, "unhp") == ["un", "##h", "##p"]
    assert [token.value for token in hugging_face_wordpiece(tokenizer).tokenize("unhappy")] == [
        *("unha", "##ppy")
    ]


def test_wordpiece_writes_only_the_unknown_in_bytes():
    tokenizer = WordPieceTokenizer(["play", "##ing", "é"])
    assert names(tokenizer, "playéing") == ["play", "é", "##ing"]
    assert names(tokenizer, "playöing") == ["play", "\\xc3", "\\xb6", "##ing"]
    assert tokenizer.decode(tokenizer.encode("playöing")) == "playöing"


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same(kind, tmp_path):
    saved = kind.train(MIXED, 500, special=(*SPECIAL, "<mask>"))
    saved.save(tmp_path / "tokenizer.json")
    for loaded in (
        Tokenizer.load(tmp_path / "tokenizer.json"),
        kind.load(f"{tmp_path}/tokenizer.json"),
    ):
        assert type(loaded) is kind
        assert loaded.tokens == saved.tokens
        assert loaded.special == saved.special
        assert all(loaded.encode(text) == saved.encode(text) for text in MIXED)
    loaded.save(tmp_path / "again.json")
    files = [(tmp_path / name).read_bytes() for name in ("tokenizer.json", "again.json")]
    assert files[0] == files[1]


GOOD = {"kind": "BPETokenizer", "special": list(SPECIAL), "learned": [[0, 1], [256, 2]]}
DAMAGED = {
    "empty": "",
    "cut off": json.dumps(GOOD)[:-9],
    "no object": "[1, 2]",
    "of another program": '{"version": "1.0", "model": {"type": "BPE"}}',
    "unknown kind": json.dumps(GOOD | {"kind": "Unigram"}),
    "a part missing": '{"kind": "BPETokenizer", "special": []}',
    "no special tokens": json.dumps(GOOD | {"special": ["<pad>", "<bos>"]}),
    "special tokens of another type": json.dumps(GOOD | {"special": [*SPECIAL, 7]}),
    "merges of later tokens": json.dumps(GOOD | {"learned": [[0, 256]]}),
    "merges of no tokens": json.dumps(GOOD | {"learned": [[-1, 0]]}),
    "merges of three": json.dumps(GOOD | {"learned": [[1, 2, 3]]}),
    "words instead of merges": json.dumps(GOOD | {"learned": ["ab"]}),
    "merges instead of words": json.dumps(GOOD | {"kind": "WordTokenizer"}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_and_foreign_files_are_refused(name, tmp_path, unchecked_shapes):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    assert Tokenizer.load(path).tokens[-2:] == ['!"', '!"#']
    path.write_text(DAMAGED[name], encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json is damaged or not a Tokenizer: "):
        Tokenizer.load(path)


def test_binary_and_missing_files_are_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\x80\xff\x00")
    with pytest.raises(ValueError, match=r"a\.json is damaged or not a Tokenizer: Unicode"):
        Tokenizer.load(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"b\.json is damaged or not a Tokenizer: FileNotFound"):
        Tokenizer.load(tmp_path / "b.json")


def test_a_file_of_another_kind_is_refused(tmp_path):
    WordTokenizer().save(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"not a BPETokenizer: KeyError\('WordTokenizer'\)"):
        BPETokenizer.load(tmp_path / "a.json")


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [("<pad>",), (), (*SPECIAL, "<pad>"), "<pad><bos><eos>"])
def test_special_tokens_are_checked(special):
    with pytest.raises(
        ValueError, match=r"special=.* must hold \('<pad>', '<bos>', '<eos>'\), and"
    ):
        CharTokenizer((), special)


@pytest.mark.parametrize("vocab_size", [258, 0, -1, True])
def test_there_must_be_room_for_the_bytes(vocab_size):
    message = f"vocab_size={vocab_size} must be a whole number of at least 259"
    with pytest.raises(ValueError, match=message):
        BPETokenizer.train(["a"], vocab_size)


def test_one_string_is_not_several():
    with pytest.raises(TypeError, match=r"texts is a single string; expected several, such as \["):
        BPETokenizer.train("to be")


@pytest.mark.parametrize("wrong", [b"bytes", 7, None, ["a"]])
def test_only_text_is_encoded(wrong, unchecked_shapes):
    message = f"expected a text; got {type(wrong).__name__}: "
    with pytest.raises(TypeError, match=message):
        BPETokenizer().encode(wrong)
    with pytest.raises(TypeError, match=message):
        WordTokenizer.train([wrong])


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_is_refused(kind):
    with pytest.raises(ValueError, match=r"can't encode character '\\ud83d' in position 2"):
        kind().encode("a \ud83d")


@pytest.mark.parametrize("wrong", [-1, 259, 10**6])
def test_ids_outside_the_vocabulary_are_refused(wrong):
    with pytest.raises(ValueError, match=f"ids holds {wrong}; expected 0 to 258"):
        BPETokenizer().decode([5, wrong])


def test_merges_must_be_of_earlier_tokens():
    with pytest.raises(ValueError, match=r"learned holds \(0, 257\); expected two earlier tokens"):
        BPETokenizer([(0, 1), (0, 257)])


def test_bytes_that_are_no_text_are_marked():
    tokenizer = CharTokenizer()
    euro = tokenizer.encode("€")
    assert tokenizer.decode(euro[:2]) == "\ufffd"
    assert tokenizer.decode(torch.tensor(euro).tolist()) == "€"
    assert tokenizer.decode(iter(euro)) == "€"
    assert tokenizer.decode([]) == ""
