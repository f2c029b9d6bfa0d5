"""What the checks of the reader's file say: of empty cells, of versions, and of real slips."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from transformer_book import file
from transformer_book.datasets import shakespeare
from transformer_book.exercises import EXERCISES, pick
from transformer_book.exercises.grading.checking import judge
from transformer_book.exercises.your_file import _Heads, _Network, _Norm, _Pairs, _Rotary
from transformer_lib import BPETokenizer
from transformer_lib.text import tokenizers


def first_attention(q, k, v):
    """As chapter 3 has it."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
    return weights @ v, weights


def said(name, answer):
    return judge(EXERCISES[name], answer).text


def test_both_versions_pass_the_first_check_and_only_the_second_the_other():
    assert said("file.attention", first_attention) == "correct."
    assert said("file.attention", file.attention) == "correct."
    assert said("file.attention.5", file.attention) == "correct."
    refused = said("file.attention.5", first_attention)
    assert refused.startswith("not yet. There is no mask yet: this version has a fourth argument")
    assert "first_attention() takes 3 positional arguments but 4 were given" in refused


def fused(q, k, v, mask=None):
    """Another way to the same numbers."""
    weights = first_attention(q, k, v)[1]
    if mask is not None:
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).where(mask, -torch.inf)
        weights = scores.softmax(dim=-1).where(mask, 0.0)
    return torch.einsum("...ts,...sd->...td", weights, v), weights


@pytest.mark.parametrize("name", ["file.attention", "file.attention.5"])
def test_another_way_to_the_same_numbers_passes(name):
    assert said(name, fused) == "correct."


def only_output(q, k, v, mask=None):
    return file.attention(q, k, v, mask)[0]


def other_order(q, k, v, mask=None):
    return file.attention(q, k, v, mask)[::-1]


def without_gradient(q, k, v, mask=None):
    with torch.no_grad():
        return file.attention(q, k, v, mask)


def keys_without_gradient(q, k, v, mask=None):
    return file.attention(q, k.detach(), v, mask)


def rounded(q, k, v, mask=None):
    output, weights = file.attention(q.float(), k.float(), v.float(), mask)
    return output.double(), weights.double()


def in_place(q, k, v, mask=None):
    result = file.attention(q, k, v, mask)
    q.detach().mul_(2)
    return result


@pytest.mark.parametrize("name", ["file.attention", "file.attention.5"])
@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (only_output, "It must return two tensors, what was found and the weights"),
        (other_order, "The parts are right but in another order: return output, weights."),
        (without_gradient, "no gradient comes back to q. Leave out detach()"),
        (keys_without_gradient, "no gradient comes back to k. Leave out detach()"),
        (rounded, "computed in float32? Keep the dtype that comes in."),
        (in_place, "in place"),
    ],
)
def test_slips_of_attention_are_named(name, answer, sentence):
    told = said(name, answer)
    assert told.startswith("not yet. ")
    assert sentence in told


class Slip(file.MultiHeadAttention):
    """A layer with the names and shapes of the library's."""


class Untouched(nn.Module):
    """As the learner's edition has it."""

    def __init__(self, d_model, n_heads): ...

    def split(self, x): ...

    def forward(self, x, memory=None, mask=None): ...


class NoForward(Slip):
    def forward(self, x, memory=None, mask=None): ...


class Pair(Slip):
    def forward(self, x, memory=None, mask=None):
        return super().forward(x, memory, mask), None


class OtherName(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.queries = nn.Linear(d_model, d_model)


class OneMore(Slip):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.dial = nn.Parameter(torch.ones(1))


class HeadWidth(Slip):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.key = nn.Linear(d_model, d_model // n_heads)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Untouched, "not attempted yet."),
        (NoForward, "Its forward returns nothing; expected one tensor, (B, T, D)."),
        (Pair, "Its forward returns a tuple; expected one tensor, (B, T, D)."),
        (OtherName, "There is no 'query.weight' in its state_dict(), but ['queries.weight',"),
        (OneMore, "parameters or buffers that the library's has not: ['dial']"),
        (HeadWidth, "key.weight has the shape (4, 12); expected (12, 12), because all heads"),
        (lambda *_: 3, "It must be a class that inherits from nn.Module."),
    ],
)
def test_slips_of_the_layer_are_named(answer, sentence):
    assert sentence in said("file.MultiHeadAttention", answer)


def test_the_layer_in_steps_is_right_before_a_step_goes_wrong():
    assert said("file.MultiHeadAttention", _Heads) == "correct."


class OtherNames(nn.Module):
    def __init__(self, d_model, d_ff, activation=torch.relu):
        super().__init__()
        self.l1, self.l2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)


class TurnedRound(nn.Module):
    """`down` widens, and `up` narrows."""

    def __init__(self, d_model, d_ff, activation=torch.relu):
        super().__init__()
        self.down, self.up = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x):
        return self.up(self.activation(self.down(x)))


class Blunt(file.FeedForward):
    def forward(self, x):
        return self.down(self.up(x))


class WithoutReturn(file.FeedForward):
    def forward(self, x): ...


class NoChoice(file.FeedForward):
    def __init__(self, d_model, d_ff):
        super().__init__(d_model, d_ff)


class NoBias(file.FeedForward):
    def __init__(self, d_model, d_ff, activation=torch.relu):
        super().__init__(d_model, d_ff, activation)
        self.down = nn.Linear(d_ff, d_model, bias=False)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (OtherNames, "There is no 'up.weight' in its state_dict(), but ['l1.weight',"),
        (TurnedRound, "not yet."),
        (Blunt, "The activation is missing: two linear layers in a row are one linear layer."),
        (WithoutReturn, "Its forward returns nothing; expected one tensor, (..., D)."),
        (NoChoice, "takes 3 positional arguments but 4 were given"),
        (NoBias, "There is no 'down.bias' in its state_dict()"),
        (lambda *_: 3, "It must be a class that inherits from nn.Module."),
    ],
)
def test_slips_of_the_network_are_named(answer, sentence):
    told = said("file.FeedForward", answer)
    assert told != "correct."
    assert sentence in told


def test_the_network_in_steps_is_right_before_a_step_goes_wrong():
    assert said("file.FeedForward", _Network) == "correct."


class NormOfOneNumber(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.tensor(1.0)), eps


class NormWithBias(file.RMSNorm):
    def __init__(self, width, eps=1e-5):
        super().__init__(width, eps)
        self.bias = nn.Parameter(torch.zeros(width))


class NormWithoutReturn(file.RMSNorm):
    def forward(self, x): ...


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (nn.LayerNorm, "It has parameters or buffers that the library's has not: ['bias']."),
        (NormWithBias, "It has parameters or buffers that the library's has not: ['bias']."),
        (NormOfOneNumber, "weight has the shape (); expected (width,)"),
        (NormWithoutReturn, "Its forward returns nothing; expected one tensor, (..., D)."),
        (lambda *_: 3, "It must be a class that inherits from nn.Module."),
    ],
)
def test_slips_of_the_norm_are_named(answer, sentence):
    assert sentence in said("file.RMSNorm", answer)


def test_the_norm_in_steps_is_right_before_a_step_goes_wrong():
    assert said("file.RMSNorm", _Norm) == "correct."


def test_a_learner_who_wrote_nothing_goes_on_with_the_books_part(capsys):
    assert pick("file.MultiHeadAttention", Untouched) is file.MultiHeadAttention
    assert pick("file.attention.5", lambda q, k, v, mask=None: ...) is file.attention
    out = capsys.readouterr().out
    assert out.count("not attempted yet") == out.count("Going on with the book's answer.") == 2


def compared(T):
    """The triangle by another way."""
    places = torch.arange(T)
    return places[:, None] >= places


def by_unsqueezing(ids, pad_id=0):
    return ids.ne(pad_id).unsqueeze(1).unsqueeze(1)


def test_masks_made_by_another_way_pass():
    assert said("file.causal_mask", compared) == "correct."
    assert said("file.padding_mask", by_unsqueezing) == "correct."
    assert said("file.padding_mask", lambda ids, pad_id=0: file.padding_mask(ids, pad_id)) == (
        "correct."
    )


@pytest.mark.parametrize(
    ("name", "answer", "sentence"),
    [
        ("causal_mask", lambda T: torch.ones(T, T).triu().bool(), "That is the upper triangle"),
        (
            "causal_mask",
            lambda T: ~torch.ones(T, T).triu().bool(),
            "a position does not see itself",
        ),
        ("causal_mask", lambda T: torch.ones(T, T).triu(1).bool(), "True means may look, and"),
        ("causal_mask", lambda T: ~torch.ones(T, T).triu(2).bool(), "also sees the next one"),
        ("causal_mask", lambda T: torch.ones(T, T).tril(), "end with .bool(), or compare."),
        ("causal_mask", lambda T: torch.ones(T, T).tril().int(), "end with .bool(), or compare."),
        ("causal_mask", lambda T: torch.ones(1, T, T).tril().bool(), "axis too many"),
        ("causal_mask", lambda T: torch.arange(T) >= 0, "The shape is (4,); expected (4, 4)."),
        ("padding_mask", lambda ids, pad_id=0: ids != pad_id, "Two axes are missing"),
        ("padding_mask", lambda ids, pad_id=0: (ids != pad_id)[:, None], "axis of the heads"),
        ("padding_mask", lambda ids, pad_id=0: (ids != pad_id)[None, None], "stand in front"),
        (
            "padding_mask",
            lambda ids, pad_id=0: (ids != pad_id)[:, None, :, None],
            "Padding is hidden as a query; it must be hidden as a key",
        ),
        (
            "padding_mask",
            lambda ids, pad_id=0: (ids == pad_id)[:, None, None],
            "True means may look, and False hides.",
        ),
        ("padding_mask", lambda ids, pad_id=0: ids.bool()[:, None, None], "compare with `pad_id`"),
        ("padding_mask", lambda ids: (ids != 0)[:, None, None], "positional argument"),
        ("padding_mask", lambda ids, pad_id: (ids != pad_id)[:, None, None], "'pad_id'"),
    ],
)
def test_slips_of_the_masks_are_named(name, answer, sentence):
    told = said(f"file.{name}", answer)
    assert told.startswith("not yet. ")
    assert sentence in told


# --- positions ----------------------------------------------------------------------------------


def by_complex_numbers(x, positions):
    """Another way to the same numbers."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    speeds = 10_000.0 ** -(torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = (positions[:, None] * speeds).to(x.dtype)
    turned = pairs * torch.complex(angles.cos(), angles.sin())
    return torch.view_as_real(turned).flatten(start_dim=-2)


def by_slices(T, D):
    table = torch.zeros(T, D)
    angles = torch.arange(T)[:, None] * 10_000.0 ** -(torch.arange(0, D, 2) / D)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


def test_positions_by_another_way_pass():
    assert said("file.sinusoids", by_slices) == "correct."
    assert said("file.rotate", file.rotate) == "correct."
    assert said("file.MultiHeadAttention.7", _Rotary) == "correct."
    assert said("file.MultiHeadAttention", _Rotary) == "correct."


def halves(x, positions):
    u, v = x.chunk(2, dim=-1)
    speeds = 10_000.0 ** -(torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    c, s = (positions[:, None] * speeds).cos(), (positions[:, None] * speeds).sin()
    return torch.cat([u * c - v * s, u * s + v * c], dim=-1)


class ValuesToo(file.MultiHeadAttention):
    """The turn stands in split, so that values turn as well."""

    def __init__(self, d_model, n_heads, rotary=False):
        super().__init__(d_model, n_heads)
        self.turns = rotary

    def split(self, x):
        x = super().split(x)
        return file.rotate(x, torch.arange(x.shape[2])) if self.turns else x


class OfChapter6(_Heads):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)


class InCrossAttention(file.MultiHeadAttention):
    def forward(self, x, memory=None, mask=None):
        memory = x if memory is None else memory
        q, k = self.split(self.query(x)), self.split(self.key(memory))
        v = self.split(self.value(memory))
        if self.rotary:
            q = file.rotate(q, torch.arange(q.shape[-2]))
            k = file.rotate(k, torch.arange(k.shape[-2]))
        found, _ = file.attention(q, k, v, mask)
        return self.output(found.transpose(1, 2).flatten(start_dim=2))


@pytest.mark.parametrize(
    ("name", "answer", "sentence"),
    [
        ("rotate", halves, "the split convention; here neighbours are a pair"),
        ("rotate", lambda x, p: file.rotate(x, p + 1), "they begin at 0"),
        ("rotate", lambda x, p: file.rotate(x, torch.arange(len(p))), "are not used"),
        ("rotate", lambda x, p: file.rotate(x, -p), "the wrong way round"),
        ("rotate", lambda x, p: file.rotate(x.detach(), p), "no gradient comes back to x"),
        ("rotate", lambda x, p: None, "not attempted yet"),
        ("rotate", lambda x, p: 3, "It returns a int; expected a tensor like x."),
        ("sinusoids", lambda T, D: by_slices(T + 1, D)[1:], "Positions begin at 1 here"),
        ("sinusoids", lambda T, D: by_slices(T, D)[None], "There is an axis too many"),
        ("sinusoids", lambda T, D: by_slices(T, D).tolist(), "It returns a list"),
        ("MultiHeadAttention.7", ValuesToo, "Values are turned as well, and everything in"),
        ("MultiHeadAttention.7", InCrossAttention, "turned in cross-attention as well"),
        ("MultiHeadAttention.7", OfChapter6, "There is no RoPE yet"),
        ("MultiHeadAttention.7", _Heads, "The option is not used: nothing is turned."),
    ],
)
def test_slips_of_positions_are_named(name, answer, sentence):
    assert sentence in said(f"file.{name}", answer)


# --- byte pairs ---------------------------------------------------------------------------------


class EmptyPairs:
    """As the learner's edition has it."""

    def split(self, text): ...

    def __init__(self, text, n_merges): ...

    def encode(self, text): ...

    def decode(self, ids): ...


class WithoutDecode(file.BytePairs):
    decode = None


class Tensors(file.BytePairs):
    """Right, but for the kind of list."""

    def encode(self, text):
        return torch.tensor(super().encode(text), dtype=torch.long)


class AsText(file.BytePairs):
    def encode(self, text):
        return " ".join(map(str, super().encode(text)))


class Stripped(file.BytePairs):
    def decode(self, ids):
        return super().decode(ids).strip()


class OnlyKnownLetters(file.BytePairs):
    """It begins with the characters of the text, and not with the bytes."""

    def __init__(self, text, n_merges):
        super().__init__(text, n_merges)
        self.known = set(text)

    def encode(self, text):
        return super().encode("".join(c for c in text if c in self.known))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (EmptyPairs, "not attempted yet."),
        (WithoutDecode, "There is no 'decode' in it: write a class with encode and decode."),
        (AsText, "encode returns str; expected a list of whole numbers."),
        (Stripped, "and back, as characters"),
        (OnlyKnownLetters, "not yet. ids of 'strain rail tails'"),
        (lambda *_: 3, "There is no 'encode' in it"),
    ],
)
def test_slips_of_byte_pairs_are_named(answer, sentence):
    assert sentence in said("file.BytePairs", answer)


class Lists(_Pairs):
    """Lists of ids, of which each known pair with the lowest id is merged first."""

    def encode_word(self, word):
        ids = self.spell(word)
        while known := [pair for pair in pairwise(ids) if pair in self.merges]:
            best = min(known, key=self.merges.index)
            ids = self.merge(ids, best, self.id_of(best))
        return ids


@pytest.mark.parametrize("answer", [file.BytePairs, _Pairs, Lists, Tensors])
def test_other_ways_to_the_same_pairs_pass(answer):
    assert said("file.BytePairs", answer) == "correct."


def from_library(text, n_merges):
    """The merges that the library learns; its ids are those of the reader, but for the bytes."""
    return BPETokenizer.train([text], BPETokenizer().vocab_size + n_merges)


def pieces(tokenizer, ids):
    return [tokenizer.decode([i]) for i in ids]


@pytest.mark.parametrize("n_merges", [0, 4, 100])
def test_with_one_order_of_bytes_byte_pairs_are_the_librarys(n_merges, monkeypatch):
    monkeypatch.setattr(tokenizers, "BYTE_ORDER", list(range(256)))
    monkeypatch.setattr(tokenizers, "_BYTES", [bytes([n]) for n in range(256)])
    text = shakespeare().train[:30_000] + "naïve café 5 €, naïve café 20 €\n" * 40
    mine, library = file.BytePairs(text, n_merges), from_library(text, n_merges)
    n_special = len(library.special)
    assert mine.tokens == library._tokens[n_special:]
    for probe in (text[:5_000], "A naïve 日本 €\t \n\n it's we'll 1984 x_1"):
        assert mine.encode(probe) == [i - n_special for i in library.encode(probe)]
        assert mine.decode(mine.encode(probe)) == probe


def test_on_the_text_of_the_page_byte_pairs_are_the_librarys():
    text = "\n".join(["rain"] * 5 + ["train"] * 4 + ["rainy"] * 3 + ["tail"] * 3 + ["rail"] * 2)
    mine, library = file.BytePairs(text, 4), from_library(text, 4)
    for word in ("train", "trail", "strain", "brainy", "snow"):
        assert pieces(mine, mine.encode(word)) == pieces(library, library.encode(word))
    assert [i - 256 for i in mine.encode("train")] == [i - 259 for i in library.encode("train")]


def test_more_merges_than_there_are_pairs_are_no_error():
    assert len(file.BytePairs("to be", 100).tokens) == 256 + 3
