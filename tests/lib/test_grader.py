"""The grader: parts by name, whole numbers exactly, errors with their line, slips of every kind."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from transformer_book.exercises.grading.checking import Exercise, UnfitError, judge
from transformer_book.exercises.grading.comparing import compare, is_whole, parts
from transformer_book.exercises.grading.relations import relate

X = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.25, -4.0]])
DOUBLE = Exercise(lambda x: 2 * x, [(X,), (X[:1],)], {})


@pytest.mark.parametrize(
    ("returned", "expected", "names", "sentence"),
    [
        (torch.zeros(3, 10), torch.zeros(3, 9), (), "The shape is (3, 10); expected (3, 9)."),
        (
            (torch.zeros(3, 9), torch.zeros(3, 10)),
            (torch.zeros(3, 9), torch.zeros(3, 9)),
            ("ids", "targets"),
            "targets: shape (3, 10), expected (3, 9).",
        ),
        (
            (X, X, X),
            (X, X),
            ("ids", "targets"),
            "It returned 3 things; expected 2: ids, targets.",
        ),
        (3.0, (1.0, 2.0), ("gap", "error"), "It returned one thing; expected 2: gap, error."),
        ({"parameters": 191}, {"parameters": 100}, (), "91 parameters more than expected."),
        ({"parameters": 99}, {"parameters": 100}, (), "1 parameter fewer than expected."),
        (1_000_001, 1_000_000, (), "It is 1 too large."),
        (1_000_000 - 512, 1_000_000, (), "It is 512 too small."),
        (True, False, (), "It is True; expected False in one of the tests."),
        ((7, 5), (7, 6), ("size", "cost"), "1 cost fewer than expected."),
        ((7, 5), (6, 5), ("N with tables", "FLOPs"), "N with tables: it is 1 too large."),
        ([[1, 2], [3]], [[1, 2], [3, 0]], (), "Its rows have different lengths."),
        ("words", X, (), "It returned a str; expected numbers."),
        (("words", X), (X, X), ("a", "b"), "a: a str; expected numbers."),
        (X.to(torch.complex64), X, (), "It returned a Tensor; expected numbers."),
        ((X, X), X, (), "It returned several tensors; return the one that is asked for."),
        (
            torch.ones(2, 2),
            torch.ones(2, 2, dtype=torch.bool),
            (),
            "The dtype is torch.float32; expected torch.bool.",
        ),
        ([2.2], [2.2018], (), "Nearly right: the largest error is 0.0018. Give four decimals."),
        (
            torch.tensor([2.2]),
            [2.2018],
            (),
            "Nearly right: the largest error is 0.0018. Is a small constant missing or another "
            "one?",
        ),
        (
            torch.tensor([[1.0, 7.0]]),
            torch.tensor([[1.0, 2.5]]),
            (),
            "The shape is right; the largest error is 4.5. First at index (0, 1): 7, expected 2.5.",
        ),
        (
            torch.tensor([1.0, torch.nan]),
            torch.ones(2),
            (),
            "There are NaNs in it at index 1. They come from a row of -inf alone in a softmax, "
            "from 0 * -inf, from inf - inf or from 0 / 0.",
        ),
    ],
)
def test_what_is_wrong_is_said_exactly(returned, expected, names, sentence):
    assert compare(returned, expected, names) == sentence


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (7.0, 7),  # a whole number that was divided on the way
        (np.float64(0.5), 0.5),
        ([[1, 2], [3, 4]], torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
        (torch.stack([X, X]), (X, X)),  # one tensor in place of two of a shape
        ([X[0], X[1]], (X[0], X[1])),
        (torch.tensor([torch.nan, torch.inf]), torch.tensor([torch.nan, torch.inf])),
        (torch.tensor([1, 0]), [True, False]),
        (1.00001, 1.0),
        ([torch.tensor(3), 4, torch.tensor(1)], [3, 4, 1]),  # ids as argmax returns them
    ],
)
def test_what_is_right_in_another_form_is_right(returned, expected):
    assert compare(returned, expected) == ""


def test_an_exercise_may_ask_for_more_digits():
    third = Exercise(lambda x: x / 3, [(torch.ones(2).double(),)], {})
    rounded = judge(third, lambda x: (x.float() / 3).double())
    assert rounded.right
    strict = dataclasses.replace(third, tolerance=1e-10)
    assert judge(strict, lambda x: x * (1 / 3)).right
    said = judge(strict, lambda x: (x.float() / 3).double()).text
    assert said.endswith("Is a part of it computed in float32? Keep the dtype that comes in.")


def test_a_crash_is_known_whatever_the_function_is_called():
    old = Exercise(lambda a, b: a, [(1, 2)], {"It takes one argument.": lambda a: a})

    def yours(a):
        return a

    def other(a, b):
        return a / 0

    assert judge(old, yours).text.startswith("not yet. It takes one argument.\nIt raised TypeError")
    assert "It takes one" not in judge(old, other).text


def test_an_expected_value_is_kept_back_where_it_would_be_the_answer():
    question = Exercise(lambda: torch.tensor([0.25, 0.75]), [()], {})
    assert "0.25" not in judge(question, lambda: torch.tensor([0.5, 0.1])).text
    assert "expected 0.25" in compare(torch.tensor([0.5, 0.1]), torch.tensor([0.25, 0.75]))


def test_numbers_are_parts_only_where_they_have_names():
    assert parts([1, 2]) is None
    assert parts([1, 2], ["a", "b"]) == {"a": 1, "b": 2}
    assert not is_whole([1, 2.5])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x.mT, "The last two axes are swapped: transpose it."),
        (lambda x: x.flatten(), "The numbers are right, but the shape is (6,), expected (2, 3)."),
        (lambda x: -x, "The sign is turned round."),
        (lambda x: 1 - x, "It is one minus what is asked for."),
        (lambda x: x + 1, "Every number is 1 too large."),
        (lambda x: x - 0.5, "Every number is 0.5 too small."),
        (lambda x: x * 2, "Right but for a constant factor, 2 here"),
        (lambda x: x.flip(1), "The order along axis 1 is reversed."),
        (lambda x: x.roll(1, 1), "Everything stands one place too late along axis 1."),
        (lambda x: x.roll(-1, 1), "Everything stands one place too early along axis 1."),
        (lambda x: x[:, :-1], "One entry is missing at the end of axis 1"),
        (lambda x: x[:, 1:], "One entry is missing at the beginning of axis 1"),
        (lambda x: torch.cat([x, x[:1]]), "One entry is too many at the end of axis 0"),
        (lambda x: x.softmax(dim=-1), "These are probabilities: the softmax is one step too many."),
        (lambda x: x.exp(), "The logarithm is missing."),
        (lambda x: 1 / x, "It is upside down"),
        (lambda x: x.cumsum(dim=1), "It is added up along axis 1"),
    ],
)
def test_a_slip_that_any_exercise_can_have_is_named(change, sentence):
    assert relate([change(X)], [X]).startswith(sentence)


@pytest.mark.parametrize(
    ("got", "right", "sentence"),
    [
        (X, X.softmax(dim=-1), "The softmax over the last axis is missing."),
        (X, X.abs(), "Take absolute values."),
        (X.square(), X.abs(), "The square root is missing."),
        (X.abs(), X.square(), "That is the root; square it."),
        (X, X.exp(), "These are logarithms; take exp."),
        (X, X.cumsum(dim=0), "It is not added up along axis 0 (cumsum)."),
        (X.abs(), X.abs() / X.abs().sum(dim=1, keepdim=True), "It is not normalised"),
        (X[:1, :1], X[:1, :1].expand(2, 3), "It would broadcast"),
        (X > 0, ~(X > 0), "True and False are swapped."),
        (X.reshape(1, 2, 3).permute(2, 0, 1), X[None], "The axes are in another order"),
    ],
)
def test_a_missing_step_is_named(got, right, sentence):
    assert relate([got], [right]).startswith(sentence)


def test_parts_in_another_order_and_a_slip_in_one_part_are_named():
    names = ("reads", "targets")
    said = relate([(X + 3, X)], [(X, X + 3)], names)
    assert said == "The parts are right but in another order: return reads, targets."
    assert relate([(X, -X)], [(X, X)], names) == "targets: the sign is turned round."


def test_a_slip_counts_only_if_all_tests_show_it():
    assert relate([-X, X + 1], [X, X]) == ""
    assert relate([-X, X], [X, X]) == "The sign is turned round."  # the second test is right


def test_one_wrong_yes_or_no_is_no_slip():
    assert relate([True, True], [False, True]) == ""
    assert relate([False, True], [True, True]) == ""


def test_a_factor_is_seen_when_each_test_has_one_number():
    assert relate([2.0, 6.0, 3.0], [1.0, 3.0, 1.5]).startswith("Right but for a constant factor, 2")
    assert relate([2.0, 6.0, 3.0], [1.0, 3.0, 1.4]) == ""


def test_an_error_shows_the_readers_line_and_what_it_was_given():
    def wrong(x):
        y = x.mT
        return x @ y @ y

    said = judge(DOUBLE, wrong).text
    assert "not yet. It raised RuntimeError: " in said
    assert "\n  in your line: return x @ y @ y" in said
    assert "\n  called with x of shape (2, 3)" in said


def test_an_error_that_a_known_mistake_raises_gets_its_hint_and_is_shown():
    def transposed(x):
        return x + x.mT

    question = Exercise(lambda x: 2 * x, [(X,)], {"It is transposed.": transposed})
    said = judge(question, lambda x: x + x.transpose(0, 1)).text
    assert said.startswith("not yet. It is transposed.\nIt raised RuntimeError: The size of")
    another = judge(question, lambda x: x[5]).text
    assert another.startswith("not yet. It raised IndexError")


def test_an_error_after_right_results_is_no_known_mistake_that_is_right_there_too():
    question = Exercise(
        lambda x: x.mT, [(X,), (X[None],)], {"Count from the end.": lambda x: x.transpose(0, 1)}
    )

    def for_two_axes_only(x):
        _, columns = x.shape
        return torch.stack([x[:, i] for i in range(columns)])

    assert judge(question, for_two_axes_only).text.startswith("not yet. It raised ValueError")


def test_an_error_inside_a_library_shows_the_line_that_called_it():
    def wrong(x):
        return torch.nn.functional.cross_entropy(x, x[0])

    assert "in your line: return torch.nn.functional.cross_entropy(x, x[0])" in (
        judge(DOUBLE, wrong).text
    )


def test_arguments_are_described_by_what_they_are():
    given = (X, 3, [1, 2], list(range(9)), len, {"a": 1})
    question = Exercise(lambda *_: 1, [given], {})

    def wrong(x, n, short, *rest):
        raise KeyError("lost")

    said = judge(question, wrong).text
    wanted = "x of shape (2, 3), n = 3, short = [1, 2], argument 4 (list of 9)"
    assert wanted in said
    assert "(builtin_function_or_method)" in said


def test_what_a_measure_finds_unfit_is_told_as_it_is():
    def measure(found):
        raise UnfitError("There is no 'query' in it.")

    question = Exercise(lambda x: x, [(1,)], {}, measure=lambda x: x if x == 1 else measure(x))
    assert judge(question, lambda x: 2).text == "not yet. There is no 'query' in it."


def test_a_class_without_forward_is_told_so():
    class Misspelt(nn.Module):
        def fordward(self, x):
            return x

    question = Exercise(nn.Identity, [()], {}, measure=lambda module: module(X))
    assert "no forward method" in judge(question, Misspelt).text


def test_an_answer_in_place_is_judged_by_what_it_returns_and_told():
    def in_place(x):
        x *= 2
        return x

    verdict = judge(DOUBLE, in_place)
    assert verdict.right
    assert verdict.text.startswith("correct. It changes its argument `x` in place")
    assert judge(DOUBLE, lambda x: x + x).text == "correct."


@pytest.mark.parametrize(
    "argument",
    [X, X.numpy(), [1, 2], {"a": X}, nn.Linear(2, 2), {1, 2}],
    ids=["tensor", "array", "list", "mapping", "module", "set"],
)
def test_a_change_is_noticed_in_arguments_of_every_kind(argument):
    def change(value):
        if isinstance(value, torch.Tensor | np.ndarray):
            value[0] = 9
        elif isinstance(value, nn.Module):
            nn.init.zeros_(value.weight)
        elif isinstance(value, dict):
            value["a"][0] = 9
        elif isinstance(value, set):
            value.add(9)
        else:
            value.append(9)
        return 1

    question = Exercise(lambda value: 1, [(argument,)], {})
    assert "in place" in judge(question, change).text
    assert judge(question, change).text == judge(question, change).text  # nothing was damaged
    assert judge(question, lambda value: 1).text == "correct."


def test_a_check_gives_random_numbers_back():
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    judge(Exercise(lambda: torch.rand(2).shape[0], [()], {}), lambda: torch.rand(5).shape[0])
    assert torch.equal(torch.rand(3), wanted)


def test_an_expected_error_must_be_raised():
    def reference(x):
        if x < 0:
            raise ValueError("x is negative")
        return x

    question = Exercise(reference, [(1,), (-1,)], {}, raises=ValueError)
    assert judge(question, reference).right
    assert judge(question, lambda x: x).text == "not yet. It should raise ValueError: x is negative"
    with pytest.raises(ValueError, match="x is negative"):  # a reference that fails by accident
        judge(Exercise(reference, [(-1,)], {}), lambda x: x)
