"""exercises: right answers pass, every known mistake is diagnosed, and nothing else passes."""

import pytest
import torch

from transformer_book.exercises import EXERCISES, check, pick

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
    assert said(capsys, name, EXERCISES[name].reference) == f"{name}: correct.\n"


@pytest.mark.parametrize(("name", "hint"), MISTAKES)
def test_each_mistake_is_diagnosed_with_its_own_hint(capsys, name, hint):
    assert hint in said(capsys, name, EXERCISES[name].mistakes[hint])


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("nothing", [None, ...])
def test_an_untouched_stub_is_not_attempted(capsys, name, nothing):
    assert said(capsys, name, lambda *_: nothing).startswith(f"{name}: not attempted yet")


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
        (lambda *_: (torch.ones(2), torch.ones(3)), "return the one that is asked for"),
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


def test_a_mistake_that_crashes_on_other_sizes_is_found_on_the_square_ones(capsys):
    def transposed(q, k, v):
        return (q.mT @ k / 2).softmax(dim=-1) @ v

    assert "positions must meet positions" in said(capsys, "attention.from_scratch", transposed)


def test_answers_rounded_by_hand_are_told_so(capsys):
    rounded = [[0, 0], [2.21, -2.21]]
    assert "Nearly right" in said(capsys, "attention.second_token", lambda: rounded)
    assert "correct" in said(capsys, "attention.second_token", lambda: [[0, 0], [2.2118, -2.2118]])


def test_a_hook_that_is_left_behind_is_noticed_and_forgotten(capsys):
    def forgetful(attend, run):
        heard = []
        for part in (attend.query, attend.key):
            part.register_forward_hook(lambda *given: heard.append(given[2]))
        run()
        return torch.stack(heard)

    assert "remove() each handle" in said(capsys, "lab1.listen", forgetful)
    assert "correct" in said(capsys, "lab1.listen", EXERCISES["lab1.listen"].reference)


def test_a_lab_goes_on_with_a_right_answer(capsys):
    ours = EXERCISES["heads.merge"].reference

    def yours(heads):
        return heads.transpose(1, 2).flatten(start_dim=2)

    assert pick("heads.merge", yours, ours) is yours
    assert capsys.readouterr().out == "heads.merge: correct. Going on with your answer.\n"


def test_a_lab_goes_on_with_the_solution_after_a_wrong_answer(capsys):
    ours = EXERCISES["heads.merge"].reference
    hint, wrong = next(iter(EXERCISES["heads.merge"].mistakes.items()))
    assert pick("heads.merge", wrong, ours) is ours
    out = capsys.readouterr().out
    assert hint in out
    assert out.endswith("Going on with the solution.\n")


def test_a_wrong_solution_is_refused():
    wrong = next(iter(EXERCISES["heads.merge"].mistakes.values()))
    with pytest.raises(ValueError, match=r"does not solve heads.merge"):
        pick("heads.merge", lambda heads: ..., wrong)
