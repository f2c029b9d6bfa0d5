"""How an answer is diagnosed: by comparing it with mistakes that people really make."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

Answer = Callable[..., object]
TOLERANCE = 1e-4
CORRECT = "correct."


def _as_it_is(returned: object) -> object:
    """Measure nothing: the answer is a number already."""
    return returned


@dataclass(frozen=True)
class Exercise:
    """A question with a reference answer and the mistakes it knows.

    Args:
        reference: the right answer.
        inputs: argument lists; on at least one of them each mistake differs from the answer.
        mistakes: for each hint the function that makes this mistake.
        measure: what turns an answer that is no number, such as a model, into numbers.

    Example:
        >>> double = Exercise(lambda x: 2 * x, [(3.0,)], {"You squared it.": lambda x: x**2})
        >>> diagnose(double, lambda x: x * x)
        'not yet. You squared it.'
    """

    reference: Answer
    inputs: Sequence[tuple[object, ...]]
    mistakes: Mapping[str, Answer]
    measure: Callable[[Any], object] = _as_it_is


def diagnose(exercise: Exercise, answer: Answer) -> str:
    """Say in one sentence what an answer gets wrong, or that it is right.

    Args:
        exercise: the question.
        answer: the reader's function.

    Returns:
        A hint, what went wrong, or ``"correct."``.

    Example:
        >>> double = Exercise(lambda x: 2 * x, [(3.0,)], {})
        >>> diagnose(double, lambda x: x + x)
        'correct.'
    """
    returned: list[object] = []
    crash = ""
    for arguments in exercise.inputs:
        try:
            found = answer(*arguments)
            nothing = found is None or found is ...
            returned.append(None if nothing else exercise.measure(found))
        except NotImplementedError:
            return "not attempted yet."
        except Exception as error:  # whatever the reader's code raises is shown to the reader
            crash = f"It raised {type(error).__name__}: {error}"
            break
        if nothing:
            return "not attempted yet (nothing was returned)."
    complaint = _find_mistake(exercise, returned) or crash
    return f"not yet. {complaint}" if complaint else CORRECT


def _find_mistake(exercise: Exercise, returned: Sequence[object]) -> str:
    """The hint of the mistake that gives the same results, or what is wrong with them."""
    inputs = exercise.inputs[: len(returned)]  # fewer results if the answer crashed on the way
    right = [_measured(exercise, exercise.reference, *arguments) for arguments in inputs]
    complaints = [_complain(*pair) for pair in zip(returned, right, strict=True)]
    if not any(complaints):
        return ""
    for hint, mistake in exercise.mistakes.items():
        if _gives_the_same(partial(_measured, exercise, mistake), inputs, returned):
            return hint
    return next(filter(None, complaints))


def _measured(exercise: Exercise, answer: Answer, *arguments: object) -> object:
    return exercise.measure(answer(*arguments))


def _gives_the_same(
    mistake: Answer, inputs: Sequence[tuple[object, ...]], returned: Sequence[object]
) -> bool:
    try:
        wrong = [mistake(*arguments) for arguments in inputs]
    except RuntimeError:  # this mistake cannot be made with these sizes
        return False
    return not any(_complain(*pair) for pair in zip(returned, wrong, strict=True))


def _complain(returned: object, expected: object) -> str:
    """What is wrong with one returned value; empty if nothing is."""
    right = _as_tensor(expected)
    several = isinstance(returned, tuple | list) and any(isinstance(r, Tensor) for r in returned)
    if several and isinstance(expected, Tensor):
        return "It returned several tensors; return the one that is asked for."
    try:
        got = _as_tensor(returned)
    except (TypeError, ValueError, RuntimeError):
        return f"It returned a {type(returned).__name__}; expected numbers."
    if got.shape != right.shape:
        return f"The shape is {tuple(got.shape)}; expected {tuple(right.shape)}."
    if got.isnan().any() and not right.isnan().any():
        return "There are NaNs in it: is a row of -inf alone going through the softmax?"
    if torch.allclose(got, right, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        return ""
    error = (got - right).abs().max()
    if error < 0.006:
        return f"Nearly right: the largest error is {error:.2g}. Give four decimals."
    return f"The shape is right; the largest error is {error:.3g}."


def _as_tensor(value: object) -> Tensor:
    """One tensor of doubles; several tensors become one long row."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", torch.float64)
    if isinstance(value, tuple | list) and all(isinstance(item, Tensor) for item in value):
        return torch.cat([_as_tensor(item).flatten() for item in value])
    return torch.as_tensor(value, dtype=torch.float64)


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
