"""PretrainedTokenizer: the same ids and texts as the tokenizers library, for every set-up."""

import builtins
import copy
import json
import random
import re
import sys
import unicodedata

import pytest
import transformers
from checkpoint_tokenizers import (
    ASSIGNED,
    LLAMA3,
    MAKERS,
    O200K,
    PRECOMPILED,
    SCRIPTS,
    mixed_texts,
    peer_of,
    settings_of,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.tokenizer_json import merge_model as tokenizer_model
from transformer_lib.text.tokenizer_json import piece_models
from transformer_lib.text.tokenizer_json.added_tokens import AddedToken, AddedTokens
from transformer_lib.text.tokenizer_json.patterns import find_spans
from transformer_lib.text.tokenizer_json.steps import read_normalizer, read_pre_tokenizer

BYTES_EACH = 80_000  # of mixed text for every set-up: 1.4 MB in all
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
any_text = st.text(st.sampled_from(ASSIGNED), max_size=30) | st.text(
    "ab Z1'\n\r\t▁<s>/é世½Ⅷ_.\u0301😀\u200d\xa0", max_size=40
)


def ours_of(name):
    return PretrainedTokenizer(settings_of(name))


def peer_with(name, encode_special_tokens):
    peer = peer_of(name)
    peer.encode_special_tokens = encode_special_tokens
    return peer


def assert_same(name, ours, text):
    """Compare ids and decoded texts, in all ways to ask for them."""
    peer = peer_with(name, False)
    for special in (True, False):
        ids = ours.encode(text, special=special)
        assert ids == peer.encode(text, add_special_tokens=special).ids
    peer = peer_with(name, True)
    plain = ours.encode(text, special=False, parse_special=False)
    assert plain == peer.encode(text, add_special_tokens=False).ids
    for skip in (True, False):
        assert ours.decode(ids, skip_special=skip) == peer.decode(ids, skip_special_tokens=skip)


# --- equal to tokenizers ------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_mixed_text_is_the_same(name, unchecked_shapes):  # the checks of types take their time
    texts = mixed_texts(BYTES_EACH, seed=list(MAKERS).index(name))
    assert sum(len(text.encode()) for text in texts) > BYTES_EACH
    ours = ours_of(name)
    for text in texts:
        assert_same(name, ours, text)


@pytest.mark.parametrize("name", MAKERS)
def test_a_little_mixed_text_is_the_same(name, unchecked_shapes):  # the only one that is traced
    ours = ours_of(name)
    for text in mixed_texts(1_000, seed=0):
        assert_same(name, ours, text)


@pytest.mark.parametrize("name", MAKERS)
def test_the_vocabulary_is_the_same(name):
    ours, peer = ours_of(name), peer_of(name)
    assert ours.vocab_size == peer.get_vocab_size()
    assert {token: n for n, token in enumerate(ours.tokens)} == peer.get_vocab()


@pytest.mark.parametrize("name", MAKERS)
def test_any_ids_decode_to_the_same(name, unchecked_shapes):
    """Also what no text gives: broken UTF-8, bytes in between, special tokens anywhere."""
    ours, peer, draw = ours_of(name), peer_of(name), random.Random(3)
    rare = [n for n in range(ours.vocab_size) if len(ours.tokens[n]) == 1 or "<" in ours.tokens[n]]
    for _ in range(300):
        pool = draw.choice([range(ours.vocab_size), rare])
        ids = draw.choices(pool, k=draw.randrange(12))
        for skip in (True, False):
            expected = peer.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special=skip) == expected


@pytest.mark.parametrize("name", ["GPT-2", "Llama 2", "Gemma", "Llama 3", "Qwen 2", "flags"])
def test_any_text_is_the_same(name):
    ours = ours_of(name)

    @settings(max_examples=60, deadline=None)
    @given(any_text)
    @example(" <s> ")
    @example("<s><s>a")
    def check(text):
        assert_same(name, ours, text)

    check()


@pytest.mark.parametrize("name", ["GPT-2", "Llama 2", "merges over spaces", "Gemma"])
def test_a_word_without_end_is_merged_in_time(name):
    text = "".join(random.Random(0).choices("etaoinshrdlu", k=20_000)) + "a" * 5000
    assert_same(name, ours_of(name), text)


def test_files_are_read_as_tokenizers_writes_them(tmp_path):
    peer_of("Llama 3").save(str(tmp_path / "tokenizer.json"))
    ours = PretrainedTokenizer.from_file(tmp_path / "tokenizer.json")
    for text in SCRIPTS.values():
        assert ours.encode(text) == peer_with("Llama 3", False).encode(text).ids


def test_merges_do_not_matter_for_whole_words_where_the_file_says_so():
    """ignore_merges: that test above would pass without it if every token could be merged."""
    changed = copy.deepcopy(settings_of("Llama 3"))
    changed["model"]["ignore_merges"] = False
    plain, ours = PretrainedTokenizer(changed), ours_of("Llama 3")
    texts = mixed_texts(BYTES_EACH)
    assert sum(plain.encode(text) != ours.encode(text) for text in texts) > 20


def test_words_are_cut_at_spaces_only_where_no_merge_crosses_them():
    assert ours_of("Llama 2")._model._parts is not None
    assert ours_of("merges over spaces")._model._parts is None
    assert ours_of("GPT-2")._model._parts is None


def test_remembered_words_are_forgotten_in_time(monkeypatch):
    monkeypatch.setattr(tokenizer_model, "MAX_REMEMBERED", 3)
    ours = ours_of("GPT-2")
    assert_same("GPT-2", ours, SCRIPTS["English"])
    assert 0 < len(ours._model._remembered) <= 3


# --- the steps, one by one ----------------------------------------------------------------------


def expected_words(part, text):
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": part}
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    peer = Tokenizer.from_str(json.dumps(whole | {"model": model}))
    return [word for word, _ in peer.pre_tokenizer.pre_tokenize_str(text)]


PATTERNS = [{"String": " "}, {"String": "ab"}, {"Regex": r"\s+"}, {"Regex": r"\p{N}{1,3}"}]
PATTERNS += [{"Regex": r"(?=b)|\s*"}, {"Regex": "^.|.$"}]


@pytest.mark.parametrize("behavior", BEHAVIORS)
@pytest.mark.parametrize("invert", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_splits_are_the_same(behavior, invert, pattern):
    part = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    cut = read_pre_tokenizer(part)
    for text in [" ab  abab 1234 x\n\ny ", "ab", "  ", "b", "x y", "a1b22\r\nc"]:
        assert [word for word in cut([text], True) if word] == expected_words(part, text)


OTHERS = [
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "Punctuation", "behavior": "MergedWithPrevious"},
    {"type": "Digits", "individual_digits": True},
    {"type": "Digits", "individual_digits": False},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    *(
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cuts}
        for scheme in ("always", "first", "never")
        for cuts in (True, False)
    ),
    {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        ],
    },
]


@pytest.mark.parametrize("part", OTHERS, ids=lambda part: json.dumps(part)[:60])
def test_pre_tokenizers_are_the_same(part):
    cut = read_pre_tokenizer(part)
    for text in mixed_texts(3000):
        if text:
            assert [word for word in cut([text], True) if word] == expected_words(part, text)


BERT = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
NORMALIZERS = [
    *({"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")),
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Replace", "pattern": {"Regex": r"\s{2,}|a(?=b)"}, "content": r"\1$1"},
    {"type": "Replace", "pattern": {"String": "a"}, "content": ""},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "StripAccents"},
    {"type": "BertNormalizer", **BERT, "lowercase": False, "strip_accents": None},
    {"type": "BertNormalizer", **BERT, "lowercase": False, "strip_accents": True},
    {"type": "BertNormalizer", **BERT, "lowercase": True, "strip_accents": False},
    {"type": "BertNormalizer", **BERT, "lowercase": True, "clean_text": False},
    {"type": "BertNormalizer", **BERT, "lowercase": True, "handle_chinese_chars": False},
    PRECOMPILED,
]
NORMALIZERS += [{"type": "Sequence", "normalizers": [NORMALIZERS[5], NORMALIZERS[9]]}]


@pytest.mark.parametrize("part", NORMALIZERS, ids=lambda part: str(part)[:80])
def test_normalizers_are_the_same(part):
    ours = read_normalizer(part)
    whole = {"version": "1.0", "added_tokens": [], "normalizer": part}
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    peer = Tokenizer.from_str(json.dumps(whole | {"model": model})).normalizer
    for text in [*mixed_texts(20_000), "ΑΣ Σ", "  \x1c a \u3000", "İ"]:
        assert ours(text) == peer.normalize_str(text)


def test_unicode_forms_are_the_same_for_every_character():
    text = " ".join(ASSIGNED)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert unicodedata.normalize(form, text) == getattr(normalizers, form)().normalize_str(text)


# --- patterns -----------------------------------------------------------------------------------

CLASSES = [r"\s", r"\S", r"\w", r"\W", r"\d", r"[^\s\p{L}\p{N}]", r"[\S]", r"[^\W\d]", r"\p{P}"]
CLASSES += [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[\p{Lu}\p{M}]", r"[!--]", r"[|~&a]", r"[]a]", "."]
CHANGED = {"\u0295"}  # Unicode 17 made a lower-case letter of it


@pytest.mark.parametrize("pattern", CLASSES)
def test_every_character_counts_as_in_oniguruma(pattern):
    find, cut = find_spans(pattern), pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    many = ("Co", "Lo")  # there are very many like that
    known = [c for c in ASSIGNED if unicodedata.category(c) not in many or ord(c) % 20 == 0]
    known = [c for c in known if c not in CHANGED]
    for start in range(0, len(known), 20_000):
        text = "".join(f"'{c}" for c in known[start : start + 20_000])
        found = [text[a:b] for a, b in find(text)]
        assert found == [word for word, _ in cut.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    "pattern",
    [LLAMA3, O200K, r"a$", r"^a", r"a\z", r"a\Z", r"\s++\S?+", "(?>a+)b|c*", "a{2}", "[[a]b&&[b]]"],
)
def test_patterns_find_the_same(pattern):
    find, cut = find_spans(pattern), pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    texts = ["a\na b\naa a", "a\n", "aab ac  \n\n  a", "I'LL 12345 Übergröße\r\n \tx"]
    for text in [*texts, *mixed_texts(20_000)[1:]]:
        found = [text[a:b] for a, b in find(text) if a < b]
        assert found == [word for word, _ in cut.pre_tokenize_str(text)]


def test_rust_ends_a_text_where_oniguruma_ends_a_line():
    assert find_spans("a$", "rust")("a\na") == [(2, 3)]
    assert find_spans("^a", "rust")("a\na") == [(0, 1)]
    assert find_spans("a$")("a\na") == [(0, 1), (2, 3)]
    assert find_spans(r"\d{1,2}+\d", "rust")("123") == [(0, 3)]


# --- what is added and what is not --------------------------------------------------------------


def test_special_tokens_cannot_be_forged():
    ours = ours_of("Llama 3")
    ids = ours.encode("a<|im_end|>b", special=False, parse_special=False)
    assert not ours.special_ids.intersection(ids)
    assert ours.decode(ids) == "a<|im_end|>b"
    assert len(ours.special_ids.intersection(ours.encode("a<|im_end|>b"))) == 2


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [  # by hand: what a reader can check
        ("WordPiece", "unaffable", ["un", "##aff", "##able"]),
        ("WordPiece", "unaffablex", ["[UNK]"]),
        ("WordPiece", "un able", ["un", "[UNK]"]),
        ("Unigram", "hugs", ["hug", "s"]),  # -2 - 1 is more than -1 - 1 - 1 - 1.5
        ("Unigram", "hs?!s", ["h", "s", "<unk>", "s"]),
    ],
)
def test_small_models_by_hand(name, text, expected):
    pieces = {"[UNK]": 0, "un": 1, "##aff": 2, "##able": 3, "##a": 4}
    scores = [["<unk>", 0], ["h", -1], ["u", -1.5], ["g", -1], ["s", -1], ["hug", -2], ["gs", -1]]
    model = {"WordPiece": {"vocab": pieces}, "Unigram": {"vocab": scores, "unk_id": 0}}[name]
    part = {"type": "BertPreTokenizer"} if name == "WordPiece" else None
    ours = PretrainedTokenizer({"model": {"type": name, **model}, "pre_tokenizer": part})
    assert [ours.tokens[n] for n in ours.encode(text)] == expected


def test_pieces_are_forgotten_in_time(monkeypatch):
    monkeypatch.setattr(piece_models, "MAX_REMEMBERED", 3)
    ours = ours_of("BERT")
    assert_same("BERT", ours, SCRIPTS["English"])
    assert 0 < len(ours._model._remembered) <= 3


@pytest.mark.parametrize("name", ["BERT", "T5"])
def test_a_word_without_end_is_cut_in_time(name):
    text = "".join(random.Random(0).choices("etaoinshrdlu", k=20_000)) + "a" * 5000
    assert_same(name, ours_of(name), text)


def test_a_special_token_that_the_normalizer_changes_is_skipped_all_the_same():
    """The tokenizers library writes such a one; that of a text's beginning would be seen."""
    changed = copy.deepcopy(settings_of("Llama 2"))
    changed["added_tokens"][-1]["normalized"] = True
    ours = PretrainedTokenizer(changed)
    number = changed["added_tokens"][-1]["id"]
    assert ours.encode("[INST]", special=False) == [number]
    assert ours.decode([number]) == ""
    assert ours.decode([number], skip_special=False) == "[INST]"


def test_what_follows_a_token_is_not_the_beginning():
    """Also after a token that is found only in the normalized text."""
    changed = copy.deepcopy(settings_of("Llama 2, Metaspace"))
    changed["added_tokens"][-1]["normalized"] = True
    ours, peer = PretrainedTokenizer(changed), Tokenizer.from_str(json.dumps(changed))
    for text in ("[INST]to be", "to[INST]be", "<s>be[INST]", "[INST][INST]be", " [INST] be"):
        assert ours.encode(text) == peer.encode(text).ids


def test_the_word_before_a_token_may_end_in_any_character():
    """single_word: what Rust counts as part of a word."""
    tokens = AddedTokens({"<a>": AddedToken("<a>", 7, single_word=True)})
    word = find_spans(r"\w", "rust")
    for character in ASSIGNED:
        if unicodedata.category(character) not in ("Co", "Lo") and character != "<":
            assert (7 in tokens.split(character + "<a>")) == (not word(character)), character


# --- folders ------------------------------------------------------------------------------------

CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}


def write_folder(folder, **files):
    (folder / "tokenizer.json").write_text(json.dumps(settings_of("Llama 2")), encoding="utf-8")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        ending = "jinja" if name == "chat_template" else "json"
        (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
    return PretrainedTokenizer.from_folder(folder)


def test_a_folder_with_nothing_else_names_no_tokens(tmp_path):
    ours = write_folder(tmp_path)
    assert (ours.bos_id, ours.eos_ids, ours.pad_id, ours.chat_template) == (None, (), None, None)


def test_roles_come_from_the_configuration(tmp_path):
    names = {"pad_token": "<unk>", "bos_token": "</s>", "unk_token": "<unk>"}
    ours = write_folder(tmp_path, tokenizer_config=CONFIG, special_tokens_map=names)
    assert (ours.bos_id, ours.eos_ids, ours.pad_id) == (1, (2,), None)
    (tmp_path / "tokenizer_config.json").unlink()
    ours = PretrainedTokenizer.from_folder(str(tmp_path))
    assert (ours.bos_id, ours.eos_ids, ours.pad_id) == (2, (), 0)


def test_there_may_be_several_ends(tmp_path):
    generation = {"eos_token_id": [1460, 2, 1461], "bos_token_id": 0, "pad_token_id": 1}
    ours = write_folder(tmp_path, tokenizer_config=CONFIG, generation_config=generation)
    assert (ours.bos_id, ours.eos_ids, ours.pad_id) == (1, (2, 1460, 1461), None)
    (tmp_path / "tokenizer_config.json").unlink()
    ours = PretrainedTokenizer.from_folder(tmp_path)
    assert (ours.bos_id, ours.eos_ids, ours.pad_id) == (0, (1460, 2, 1461), 1)
    ours = write_folder(tmp_path, generation_config={"eos_token_id": 2, "bos_token_id": None})
    assert (ours.bos_id, ours.eos_ids, ours.pad_id) == (None, (2,), None)


def test_ends_may_stand_in_the_configuration_of_the_model_alone(tmp_path):
    """F13."""
    ours = write_folder(tmp_path, tokenizer_config=CONFIG, config={"eos_token_id": [5, 2]})
    assert (ours.bos_id, ours.eos_ids) == (1, (2, 5))
    generation = {"eos_token_id": None, "temperature": 0.6}
    assert write_folder(tmp_path, generation_config=generation).eos_ids == (2, 5)
    ours = write_folder(tmp_path, generation_config={"eos_token_id": 7})
    assert ours.eos_ids == (2, 7)


TYPED = {"__type": "AddedToken", "lstrip": True, "special": True}
MORE_TOKENS = {  # F13: what tokenizer_config.json may say beside tokenizer.json
    "listed": {
        "added_tokens_decoder": {
            "1464": {"content": "<|tool|>", "special": True, "lstrip": False, "rstrip": True},
            "1463": {"content": "[B]", "special": False, "normalized": False},
            "2": {"content": "</s>", "special": True},
        }
    },
    "special": {"additional_special_tokens": ["<|tool|>", "he", {**TYPED, "content": "[B]"}]},
    "special, new name": {"extra_special_tokens": ["<|tool|>", "[B]"]},
    "named": {"extra_special_tokens": {"tool_token": "<|tool|>"}, "mask_token": "▁the"},
    "a role": {"sep_token": {**TYPED, "content": "▁the"}, "bos_token": "<s>"},
}


@pytest.mark.parametrize("name", MORE_TOKENS)
def test_tokens_that_only_the_configuration_names_are_found(name, tmp_path):
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **MORE_TOKENS[name]}
    ours = write_folder(tmp_path, tokenizer_config=config)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("he said<|tool|> so [B] the end</s>", "the <|tool|>  he", " [B][B]the he</s>"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        ids = ours.encode(text)
        kept = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == kept


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"added_tokens_decoder": {"9999": {"content": "[B]"}}},
            "added_tokens_decoder has '[B]' with id=9999; expected 1",
        ),
        ({"added_tokens_decoder": {"a": "[B]"}}, "added_tokens_decoder has 'a': '[B]'; expected"),
        ({"added_tokens_decoder": []}, "has added_tokens_decoder=[]; expected a dict"),
        ({"additional_special_tokens": "[B]"}, "additional_special_tokens='[B]'; expected a list"),
    ],
)
def test_damaged_lists_of_tokens_are_named(config, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        write_folder(tmp_path, tokenizer_config=config)


def test_the_template_has_three_places(tmp_path):
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    assert write_folder(tmp_path, tokenizer_config={"chat_template": "c"}).chat_template == "c"
    assert write_folder(tmp_path, tokenizer_config={"chat_template": named}).chat_template == "d"
    assert write_folder(tmp_path, chat_template="j").chat_template == "j"


# --- misuse -------------------------------------------------------------------------------------


def changed(name="GPT-2", **parts):
    return lambda: PretrainedTokenizer(settings_of(name) | parts)


def model(**changes):
    return changed(model=settings_of("GPT-2")["model"] | changes)


def added(**token):
    return changed(added_tokens=[{"id": 5000, "content": "<x>", **token}])


def charsmap(text):
    return changed(normalizer={"type": "Precompiled", "precompiled_charsmap": text})


def unigram(vocab, **more):
    return changed(model={"type": "Unigram", "vocab": vocab, **more}, added_tokens=[])


def pattern(text):
    return lambda: find_spans(text)


STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
FIRST = {"replacement": "▁", "prepend_scheme": "first"}
NO_MODEL = {"type": "BPE", "vocab": {}, "merges": []}
MISUSE = [
    (changed(normalizer={"type": "Nmt"}), "the normalizer 'Nmt' is not supported"),
    (changed(normalizer={"type": "Precompiled"}), "Precompiled has precompiled_charsmap=None; exp"),
    (charsmap("!"), "Precompiled has a table that is no base64: "),
    (charsmap("AAA="), "Precompiled has a table of 2 bytes that says 0; it is damaged"),
    (charsmap("CAAAAAAAAAA="), "Precompiled has a table of 8 bytes that says 8; it is damaged"),
    (lambda: charsmap("BAAAAAAAAAA=")().encode("a"), "Precompiled has a damaged table: "),
    (
        changed(normalizer={"type": "BertNormalizer", "lowercase": "yes"}),
        "BertNormalizer has lowercase='yes'; expected a bool",
    ),
    (
        changed("Llama 2, Metaspace", normalizer={"type": "StripAccents"}),
        "the normalizer 'StripAccents' before prepend_scheme='first' is not supported",
    ),
    (
        changed(pre_tokenizer={"type": "UnicodeScripts"}),
        "the pre_tokenizer 'UnicodeScripts' is not",
    ),
    (changed(post_processor={"type": "Other"}), "the post_processor 'Other' is not supported"),
    (
        changed(post_processor={"type": "BertProcessing", "cls": ["[CLS]", "1"]}),
        "BertProcessing has cls=['[CLS]', '1']; expected a token and its id",
    ),
    (changed(decoder={"type": "CTC"}), "the decoder 'CTC' is not supported"),
    (
        changed(decoder={"type": "Sequence", "decoders": [{"type": "BPEDecoder"}]}),
        "the decoder 'BPEDecoder' is not supported",
    ),
    (
        changed(normalizer={"type": "Sequence", "normalizers": [7]}),
        "normalizers holds something els",
    ),
    (changed(model={"type": "WordLevel"}), "'WordLevel' is not supported; expected BPE, WordPiece"),
    (changed(model={"type": "Unigram"}), "Unigram has vocab=None; expected a list"),
    (unigram([["a"]]), "Unigram has ['a'] in vocab; expected a text and a score"),
    (unigram([["a", float("nan")]]), "Unigram has ['a', nan] in vocab; expected a text and a sc"),
    (unigram([["a", 0.0]], unk_id=1), "Unigram has unk_id=1; expected less than 1"),
    (lambda: unigram([["a", 0.0]])().encode("a b"), "'Ġb' has no pieces, and unk_id=None: the fil"),
    (
        changed(model={"type": "WordPiece", "vocab": {"a": 0}}, added_tokens=[]),
        "WordPiece has unk_token='[UNK]', which is not in vocab",
    ),
    (
        changed(model={"type": "WordPiece", "vocab": {"[UNK]": -1}}),
        "WordPiece has the id -1 in vocab; expected whole numbers from 0",
    ),
    (
        changed(model={"type": "WordPiece", "vocab": {"[UNK]": 0}, "max_input_chars_per_word": -1}),
        "max_input_chars_per_word=-1 must be a whole number of at least 0",
    ),
    (changed(model=None), "tokenizer.json has model=None; expected a dict"),
    (model(dropout=0.1), "BPE with dropout=0.1 is not supported"),
    (model(end_of_word_suffix="</w>"), "BPE with end_of_word_suffix='</w>' is not supported"),
    (model(merges=[["a", "nothing"]]), "'nothing' of the merge 'a' 'nothing' is not in vocab"),
    (model(merges=["a b c"]), "merges holds 'a b c'; expected two tokens"),
    (model(unk_token="<none>"), "BPE has unk_token='<none>', which is not in vocab"),
    (model(vocab={"a": "b"}, merges=[]), "BPE has the id 'b' in vocab; expected whole numbers"),
    (
        model(vocab={"<s>": 1}, merges=[]),
        "the vocabulary has the token '<s>' twice, with different",
    ),
    (changed(model=NO_MODEL, added_tokens=[]), "the vocabulary is empty"),
    (added(id=3), "the added token '<x>' has id=3, which is that of '$'"),
    (added(lstrip=1), "an added token has lstrip=1; expected a bool"),
    (
        changed(pre_tokenizer={"type": "Digits"}),
        "Digits has individual_digits=None; expected a bool",
    ),
    (
        changed(pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "Odd"}),
        "behavior='Odd' of a split is not known",
    ),
    (
        changed(pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "no"}),
        "prepend_scheme='no' must be one of 'always', 'first', 'never'",
    ),
    (
        changed("Llama 2, Metaspace", normalizer={"type": "Sequence", "normalizers": [STRIP]}),
        "the normalizer 'Strip' before prepend_scheme='first' is not supported",
    ),
    (
        changed(pre_tokenizer={"type": "Metaspace", "add_prefix_space": False} | FIRST),
        "prepend_scheme='first' must be one of 'never'",
    ),
    (pattern(r"\p{N}{1,3}+"), r"pattern='\\p{N}{1,3}+' has '{1,3}+', which is not supported"),
    (pattern(r"\R"), r"pattern='\\R' has '\\R', which is not supported"),
    (pattern("(?m:.)"), "pattern='(?m:.)' has '(?m', which is not supported"),
    (pattern("[[:punct:]]"), "has '[:punct:]', which is not supported"),
    (pattern("(a"), "pattern='(a' cannot be read: missing )"),
    (
        lambda: PretrainedTokenizer(settings_of("GPT-2"), {"bos_token": "<bos>"}),
        "bos_token='<bos>' is not in the vocabulary",
    ),
    (
        lambda: PretrainedTokenizer(settings_of("GPT-2"), eos_ids=[5000]),
        "eos_ids holds 5000; expected 0 to 1506",
    ),
    (lambda: ours_of("GPT-2").decode([1507]), "ids holds 1507; expected 0 to 1506"),
    (lambda: ours_of("GPT-2").decode([-1]), "ids holds -1; expected 0 to 1506"),
    (lambda: ours_of("GPT-2").encode("\ud83d"), "surrogates not allowed"),
    (lambda: ours_of("GPT-2").encode(b"a"), "expected a text; got bytes: b'a'"),
    (lambda: ours_of("GPT-2").chat([]), "chat_template=None: this tokenizer has none; set one"),
    (
        lambda: PretrainedTokenizer.from_ranks({b"a": 0}, ".", {}),
        "ranks lacks the byte 0; expected all 256",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISUSE, ids=[row[1][:50] for row in MISUSE])
def test_misuse_is_named(call, message, unchecked_shapes):
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert message in str(caught.value)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        PretrainedTokenizer.from_folder(tmp_path)
    with pytest.raises(ValueError, match=r"has no other\.json"):
        PretrainedTokenizer.from_file(tmp_path / "other.json")
    for content in ("", "{", "[1]", '{"model": 7}'):
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"is damaged|has model=7; expected a dict"):
            PretrainedTokenizer.from_folder(tmp_path)
    with pytest.raises(ValueError, match=r"a configuration has eos_token_id='a'; expected"):
        write_folder(tmp_path, generation_config={"eos_token_id": "a"})


def test_ids_between_tokens_are_named():
    ranks = {bytes([n]): n for n in range(256)}
    ours = PretrainedTokenizer.from_ranks(ranks, r"\p{L}+|\P{L}+", {"<end>": 300})
    assert ours.vocab_size == 301
    with pytest.raises(ValueError, match="ids holds 299, which has no token; expected 0 to 300"):
        ours.decode([299])


def without(monkeypatch, package):
    """Let every import of a package fail."""
    real = builtins.__import__

    def missing(name, *args, **options):
        if name == package or name.startswith(package + "."):
            raise ImportError(name)
        return real(name, *args, **options)

    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)


def test_a_missing_package_is_named_only_where_it_is_needed(monkeypatch):
    expected = {name: ours_of(name).encode("a b 12") for name in ("GPT-2", "SmolLM2", "Gemma")}
    without(monkeypatch, "regex")
    with pytest.raises(ImportError, match=r"needs the package regex: pip install regex"):
        ours_of("Llama 3")
    assert expected == {name: ours_of(name).encode("a b 12") for name in expected}
