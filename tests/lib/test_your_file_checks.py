"""What the checks of the reader's file say: of empty cells, of versions, and of real slips."""

import math

import pytest
import torch
from torch import nn

from transformer_book import file
from transformer_book.exercises import EXERCISES, pick
from transformer_book.exercises.grading.checking import judge
from transformer_book.exercises.your_file import _Heads


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


def test_a_learner_who_wrote_nothing_goes_on_with_the_books_part(capsys):
    assert pick("file.MultiHeadAttention", Untouched) is file.MultiHeadAttention
    assert pick("file.attention.5", lambda q, k, v, mask=None: ...) is file.attention
    out = capsys.readouterr().out
    assert out.count("not attempted yet") == out.count("Going on with the book's answer.") == 2
