"""How an answer is diagnosed: by comparing it with mistakes that people really make."""

import copy
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transformer_book.exercises.grading.comparing import TOLERANCE, compare
from transformer_book.exercises.grading.relations import relate

Answer = Callable[..., object]
Arguments = tuple[object, ...]
CORRECT = "correct."
# An error is shown where the reader's own code has it, not where it surfaces in a library.
_NOT_THE_READERS = tuple(
    str(folder)
    for folder in (Path(__file__).parents[1], *map(sysconfig.get_path, ("stdlib", "purelib")))
)


def _as_it_is(returned: object) -> object:
    """Measure nothing: the answer is a number already."""
    return returned


def _nothing_to_say(*_: object) -> str:
    """Leave the arguments unseen."""
    return ""


class UnfitError(Exception):
    """Raised by a measure if an answer cannot be measured; its sentence is told as it is.

    Args:
        sentence: what is wrong with the answer.

    Example:
        >>> def measure(found):
        ...     raise UnfitError("Return a class, not an object of it.")
        >>> judge(
        ...     Exercise(
        ...         lambda: 1, [()], {}, measure=measure, raises=UnfitError
        ...     ),
        ...     int,
        ... ).right
        True
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)


@dataclass(frozen=True)
class Exercise:
    """A question with a reference answer and the mistakes it knows.

    Args:
        reference: the right answer.
        inputs: argument lists, or functions that make one; on at least one of them each mistake
            differs from the answer. Every call gets a copy of its own; what cannot be copied, such
            as a function that holds a layer, needs a function that makes it.
        mistakes: for each hint the function that makes this mistake.
        hints: two or three steps from a nudge to the call to use.
        returns: what the parts of the result are called, if there are several.
        measure: what turns an answer that is no number, such as a model, into numbers, best as a
            mapping with a name for each; it may raise an :class:`UnfitError`.
        inspect: gets the arguments after the answer had them and says what is wrong with them.
        leaves_arguments: whether an answer that changes an argument is wrong.
        raises: an error that the reference raises in some test, and an answer has to raise, too.
        tolerance: how far numbers may be off that are not whole.

    Example:
        >>> double = Exercise(
        ...     lambda x: 2 * x, [(3.0,)], {"You squared it.": lambda x: x**2}
        ... )
        >>> judge(double, lambda x: x * x).text
        'not yet. You squared it.'
    """

    reference: Answer
    inputs: Sequence[Arguments | Callable[[], Arguments]]
    mistakes: Mapping[str, Answer]
    hints: Sequence[str] = ()
    returns: Sequence[str] = ()
    measure: Callable[[Any], object] = _as_it_is
    inspect: Callable[..., str] = _nothing_to_say
    leaves_arguments: bool = False
    raises: type[Exception] | None = None
    tolerance: float = TOLERANCE

    def arguments(self, i: int) -> Arguments:
        """Make the arguments of a test anew, so that no call can spoil those of another.

        Args:
            i: which test.

        Returns:
            Arguments that belong to the caller.
        """
        given = self.inputs[i]
        return given() if callable(given) else copy.deepcopy(given)

    @cached_property
    def _known(self) -> dict[tuple[str, int], "_Outcome"]:
        """What the reference and the mistakes led to, by hint and test; no reader sees it."""
        return {}


@dataclass(frozen=True)
class Verdict:
    """What an answer is told.

    Args:
        right: whether it solves the exercise.
        text: one sentence or a few.

    Example:
        >>> Verdict(right=True, text="correct.").right
        True
    """

    right: bool
    text: str


@dataclass(frozen=True)
class _Outcome:
    """What one call of a function led to."""

    arguments: Arguments  # as the call left them
    value: object = None
    error: Exception | None = None
    nothing: bool = False


@dataclass
class _Tests:
    """All calls of one answer, until it crashes or returns nothing."""

    outcomes: list[_Outcome] = field(default_factory=list)

    @property
    def last(self) -> _Outcome:
        return self.outcomes[-1]

    @property
    def values(self) -> list[object]:
        return [outcome.value for outcome in self.outcomes if outcome.error is None]


def judge(exercise: Exercise, answer: Answer) -> Verdict:
    """Say what an answer gets wrong, or that it is right.

    Random numbers that are drawn on the way are given back: nothing after a check depends on it.

    Args:
        exercise: the question.
        answer: the reader's function.

    Returns:
        A hint, what went wrong, or that it is correct; and whether it changes its arguments.

    Example:
        >>> double = Exercise(lambda x: 2 * x, [(3.0,)], {})
        >>> judge(double, lambda x: x + x)
        Verdict(right=True, text='correct.')
    """
    with torch.random.fork_rng(devices=[]):
        return _judge(exercise, answer)


def _judge(exercise: Exercise, answer: Answer) -> Verdict:
    expected = [_expect(exercise, i) for i in range(len(exercise.inputs))]
    tests = _Tests()
    for i, right in enumerate(expected):
        tests.outcomes.append(_call(exercise, answer, i))
        if tests.last.nothing:
            return Verdict(False, "not attempted yet (nothing was returned).")
        if _is_a_stub(tests.last.error):
            return Verdict(False, "not attempted yet.")
        if tests.last.error is not None and type(tests.last.error) is not type(right.error):
            break
    complaint = _find_mistake(exercise, answer, tests, expected)
    if complaint:
        return Verdict(False, f"not yet. {complaint}")
    changed = _changed_arguments(exercise, answer, tests)
    if changed and exercise.leaves_arguments:
        return Verdict(False, f"not yet. {changed} Work on a copy.")
    return Verdict(True, " ".join(filter(None, (CORRECT, changed))))


def _expect(exercise: Exercise, i: int) -> _Outcome:
    right = _call_known(exercise, "", exercise.reference, i)
    if right.error is not None and type(right.error) is not exercise.raises:
        raise right.error
    return right


def _call(exercise: Exercise, answer: Answer, i: int) -> _Outcome:
    arguments = exercise.arguments(i)
    try:
        found = answer(*arguments)
        if found is None or found is ...:
            return _Outcome(arguments, nothing=True)
        return _Outcome(arguments, exercise.measure(found))
    except Exception as error:  # whatever the reader's code raises is shown to the reader
        return _Outcome(arguments, error=error)


def _call_known(exercise: Exercise, hint: str, answer: Answer, i: int) -> _Outcome:
    """As :func:`_call`, for the reference and the mistakes: once is enough."""
    if (hint, i) not in exercise._known:
        exercise._known[hint, i] = _call(exercise, answer, i)
    return exercise._known[hint, i]


def _is_a_stub(error: Exception | None) -> bool:
    """Whether the reader left ``raise NotImplementedError`` as it stood."""
    return isinstance(error, NotImplementedError) and not str(error)


def _find_mistake(
    exercise: Exercise, answer: Answer, tests: _Tests, expected: Sequence[_Outcome]
) -> str:
    """The hint of the mistake that gives the same results, or what is wrong with them."""
    complaints = []
    for outcome, right in zip(tests.outcomes, expected, strict=False):
        complaints.append(
            _complain(exercise, outcome, right) or exercise.inspect(*outcome.arguments)
        )
    if not any(complaints):
        return ""
    only_crashed = not {*complaints} - {"", _CRASHED}  # right results are no sign of a mistake
    for hint, mistake in exercise.mistakes.items():
        if not only_crashed and _gives_the_same(exercise, hint, mistake, tests):
            return hint
    if tests.last.error is not None and complaints[-1] == _CRASHED:
        return _hint_of_crash(exercise, tests) + _describe_crash(answer, tests.last)
    n = len(tests.values)
    general = relate(tests.values, [right.value for right in expected[:n]], exercise.returns)
    return general or next(filter(None, complaints))


_CRASHED = "It raised an error."


def _complain(exercise: Exercise, outcome: _Outcome, right: _Outcome) -> str:
    if outcome.error is not None:
        return "" if type(outcome.error) is type(right.error) else _CRASHED
    if right.error is not None:
        return f"It should raise {type(right.error).__name__}: {right.error}"
    reveal = bool(outcome.arguments)  # a question without arguments has one answer
    return _differs(exercise, outcome, right, reveal=reveal)


def _differs(exercise: Exercise, got: _Outcome, other: _Outcome, *, reveal: bool = True) -> str:
    """What tells two results apart, in a sentence; empty if nothing does."""
    tolerance = exercise.tolerance
    return compare(got.value, other.value, exercise.returns, reveal=reveal, tolerance=tolerance)


def _gives_the_same(exercise: Exercise, hint: str, mistake: Answer, tests: _Tests) -> bool:
    """Whether a mistake returns what the answer returned, in all tests that came to an end."""
    matched = 0
    for i, outcome in enumerate(tests.outcomes):
        if outcome.error is not None:
            continue
        wrong = _call_known(exercise, hint, mistake, i)  # an error: not with these sizes
        if wrong.error is not None or _differs(exercise, outcome, wrong):
            return False
        matched += 1
    return matched > 0


def _hint_of_crash(exercise: Exercise, tests: _Tests) -> str:
    """The hint of a mistake that raises the same error in the first test, on a line of its own."""
    if len(tests.outcomes) > 1:
        return ""
    for hint, mistake in exercise.mistakes.items():
        error = _call_known(exercise, hint, mistake, 0).error
        if error is not None and _without_its_name(error) == _without_its_name(tests.last.error):
            return f"{hint}\n"
    return ""


def _without_its_name(error: Exception | None) -> str:
    """An error, but for what the reader's function is called: "attention() takes 3 ..."."""
    return f"{type(error).__name__}: {_CALLED.sub('', str(error))}"


_CALLED = re.compile(r"^[\w.<>]+\(\) ")


def _describe_crash(answer: Answer, outcome: _Outcome) -> str:
    """The error with the reader's line and the arguments that led to it."""
    error = outcome.error
    if isinstance(error, UnfitError):
        return str(error)
    if 'missing the required "forward"' in str(error):
        return "The class has no forward method: is its name misspelt, or is it indented too far?"
    lines = [f"It raised {type(error).__name__}: {error}"]
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    own = [frame for frame in frames if _is_the_readers(frame.filename)]
    if own and own[-1].line:
        lines.append(f"  in your line: {own[-1].line.strip()}")
    if outcome.arguments:
        names = _parameter_names(answer, len(outcome.arguments))
        given = zip(names, outcome.arguments, strict=True)
        told = ", ".join(f"{name} {_describe(value)}" for name, value in given)
        lines.append(f"  called with {told}")
    return "\n".join(lines)


def _is_the_readers(filename: str) -> bool:
    return not filename.startswith(_NOT_THE_READERS)


def _parameter_names(answer: Answer, n: int) -> list[str]:
    try:
        names = [
            name
            for name, parameter in inspect.signature(answer).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        names = []
    return [*names[:n], *(f"argument {i}" for i in range(len(names) + 1, n + 1))]


def _describe(value: object) -> str:
    """An argument in a few words: its shape, its value, or what it is."""
    if isinstance(value, Tensor | np.ndarray):
        return f"of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple | dict | str) and len(value) > 4:
        return f"({type(value).__name__} of {len(value)})"
    if isinstance(value, bool | int | float | str | list | tuple):
        return f"= {value!r}"
    return f"({type(value).__name__})"


def _changed_arguments(exercise: Exercise, answer: Answer, tests: _Tests) -> str:
    """Which arguments an answer has changed, in a sentence."""
    for i, outcome in enumerate(tests.outcomes):
        names = _parameter_names(answer, len(outcome.arguments))
        before = exercise.arguments(i)
        rows = zip(names, outcome.arguments, before, strict=True)
        changed = [name for name, now, then in rows if not _is_unchanged(now, then)]
        if changed:
            which = ", ".join(f"`{name}`" for name in changed)
            return f"It changes its argument {which} in place, which surprises whoever calls it."
    return ""


def _is_unchanged(now: Any, then: Any) -> bool:
    """Whether a value that can be looked into is what it was; others count as unchanged."""
    if type(now) is not type(then):
        return False
    if isinstance(then, Tensor):
        same = now.shape == then.shape and now.dtype == then.dtype
        return same and torch.equal(now.nan_to_num(), then.nan_to_num())
    if isinstance(then, np.ndarray):
        return np.array_equal(now, then, equal_nan=then.dtype.kind == "f")
    if isinstance(then, nn.Module):
        return _is_unchanged(list(now.state_dict().values()), list(then.state_dict().values()))
    if isinstance(then, Mapping):
        return list(now) == list(then) and all(_is_unchanged(now[key], then[key]) for key in then)
    if isinstance(then, list | tuple):
        return len(now) == len(then) and all(map(_is_unchanged, now, then))
    return not isinstance(then, set | bytearray) or bool(now == then)


def random_inputs(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Draw seeded inputs, the same on every machine that runs the same torch.

    Args:
        shapes: one for each tensor.

    Returns:
        Tensors of doubles.

    Example:
        >>> [x.shape for x in random_inputs((2, 3), (4,))]
        [torch.Size([2, 3]), torch.Size([4])]
    """
    generator = torch.Generator("cpu").manual_seed(3)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        for shape in shapes
    )
