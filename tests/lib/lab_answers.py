"""Answers that learners write in the labs, collected for the tests of the labs' checks."""

import pytest

from transformer_book.exercises import EXERCISES
from transformer_book.exercises.grading.checking import judge


class Answers:
    """Wrong answers with what they must be told, and right ones of other forms than ours."""

    def __init__(self):
        self.wrong_ones: list = []
        self.right_ones: list = []

    def wrong(self, name, *sentences):
        """Decorate an answer that must be refused, with parts of what is said."""

        def add(answer):
            case = pytest.param(name, sentences, answer, id=f"{name}: {answer.__name__}")
            self.wrong_ones.append(case)
            return answer

        return add

    def right(self, name):
        """Decorate an answer that must be accepted."""

        def add(answer):
            self.right_ones.append(pytest.param(name, answer, id=f"{name}: {answer.__name__}"))
            return answer

        return add


def assert_refused(name, sentences, answer):
    verdict = judge(EXERCISES[name], answer)
    assert not verdict.right
    for sentence in sentences:
        assert sentence in verdict.text


def assert_accepted(name, answer):
    assert judge(EXERCISES[name], answer).text == "correct."
