"""exercises: right answers pass, every known mistake is diagnosed, and nothing else passes."""

import pytest
import torch

from transformer_lib.exercises import EXERCISES, check

MISTAKES = [
    pytest.param(name, hint, id=f"{name}: {hint[:30]}")
    for name, exercise in EXERCISES.items()
    for hint in exercise.mistakes
]


def said(capsys, name, answer):
    check(name, answer)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(capsys, name):
    assert "correct on all" in said(capsys, name, EXERCISES[name].reference)


@pytest.mark.parametrize(("name", "hint"), MISTAKES)
def test_each_mistake_is_diagnosed_with_its_own_hint(capsys, name, hint):
    assert hint in said(capsys, name, EXERCISES[name].mistakes[hint])


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("nothing", [None, ...])
def test_an_untouched_stub_is_not_attempted(capsys, name, nothing):
    assert said(capsys, name, lambda *_: nothing) == f"{name}: not attempted yet.\n"


def not_written(*_):
    raise NotImplementedError


def divides_by_zero(*_):
    return 1 / 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (not_written, "not attempted yet"),
        (divides_by_zero, "It raised ZeroDivisionError: division by zero"),
        (lambda *_: "words", "It returned a str; expected numbers"),
        (lambda *_: torch.ones(9, 9), r"The shape is (9, 9); expected (2,)"),
        (lambda *_: torch.full((2,), 7.0), "The shape is right; the largest error is"),
        (lambda *_: torch.full((2,), torch.nan), "There are NaNs in it"),
    ],
)
def test_other_answers_get_a_useful_sentence(capsys, answer, message):
    assert message in said(capsys, "attention.soft_lookup", answer)


def test_unknown_exercise_is_named():
    with pytest.raises(ValueError, match="name='nope' is not an exercise"):
        check("nope", lambda: None)
