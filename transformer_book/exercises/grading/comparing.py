"""What is wrong with a result, in a sentence that names the part, the place and both values."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-4
ROUNDED_BY_HAND = 0.006  # an error that three decimals of a typed number can have
ROUNDED_BY_FLOAT32 = 1e-5


def compare(
    returned: object,
    expected: object,
    names: Sequence[str] = (),
    *,
    reveal: bool = True,
    tolerance: float = TOLERANCE,
) -> str:
    """Compare a result with the expected one, part by part.

    Whole numbers and booleans must be equal, other numbers to four digits.

    Args:
        returned: a tensor, a number, nested lists of numbers, or several of them.
        expected: the same of the right answer; a mapping has named parts.
        names: what the parts are called, if there are several.
        reveal: whether the sentence may give an expected value away.
        tolerance: how far numbers may be off that are not whole.

    Returns:
        One sentence about the first part that is wrong; empty if nothing is.

    Example:
        >>> compare(torch.zeros(3, 10), torch.zeros(3, 9))
        'The shape is (3, 10); expected (3, 9).'
        >>> compare(
        ...     (torch.ones(2), torch.ones(4)),
        ...     (torch.ones(2), torch.ones(3)),
        ...     ["ids", "mask"],
        ... )
        'mask: shape (4,), expected (3,).'
        >>> compare({"parameters": 191}, {"parameters": 100})
        '91 parameters more than expected.'
    """
    wanted = parts(expected, names)
    if wanted is None:
        return _compare_one(returned, expected, "", reveal=reveal, tolerance=tolerance)
    got = parts(returned, list(wanted), several=True)
    if got is None or set(got) != set(wanted):
        what = "one thing" if got is None else f"{len(got)} things"
        return f"It returned {what}; expected {len(wanted)}: {', '.join(wanted)}."
    complaints = (
        _compare_one(got[name], value, name, reveal=reveal, tolerance=tolerance)
        for name, value in wanted.items()
    )
    return next(filter(None, complaints), "")


def parts(
    value: object, names: Sequence[str] = (), *, several: bool = False
) -> dict[str, object] | None:
    """Take a result apart.

    Args:
        value: what was returned.
        names: what its parts are called; numbered if left out.
        several: whether a tensor or a list of numbers is to be taken apart, too.

    Returns:
        Its parts by name, or ``None`` if it is one thing.

    Example:
        >>> parts((torch.ones(2), torch.ones(3)))
        {'part 1': tensor([1., 1.]), 'part 2': tensor([1., 1., 1.])}
    """
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, Tensor | np.ndarray):
        items = list(value) if several and value.ndim else None
    elif isinstance(value, tuple | list):
        items = list(value) if several or names or _has_tensors(value) else None
    else:
        items = None
    if items is None:
        return None
    if len(names) != len(items):
        names = [f"part {number}" for number in range(1, len(items) + 1)]
    return dict(zip(names, items, strict=True))


def as_tensor(value: object) -> Tensor:
    """Turn numbers into one tensor of doubles.

    Args:
        value: a tensor, an array, a number or nested lists.

    Returns:
        A tensor on the CPU, without history.

    Raises:
        TypeError: if it is something else.
        ValueError: if lists are ragged.

    Example:
        >>> as_tensor([1, 2])
        tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(value, Tensor):
        if value.is_complex():
            raise TypeError("complex numbers")
        return value.detach().to("cpu", torch.float64)
    if isinstance(value, tuple | list) and _has_tensors(value):
        return torch.stack([as_tensor(item) for item in value])
    return torch.as_tensor(value, dtype=torch.float64, device="cpu")


def is_close(got: Tensor, right: Tensor, *, tolerance: float = TOLERANCE) -> Tensor:
    """Say which entries count as equal.

    Args:
        got: what was returned, as doubles.
        right: what was expected, of the same shape.
        tolerance: how far an entry may be off; not at all, 0, for counts.

    Returns:
        A boolean for each entry; NaN equals NaN.

    Example:
        >>> is_close(torch.tensor([1.0, 2.0]), torch.tensor([1.00001, 2.1]))
        tensor([ True, False])
    """
    return torch.isclose(got, right, rtol=tolerance, atol=tolerance, equal_nan=True)


def is_whole(value: object) -> bool:
    """Say whether a result consists of whole numbers or booleans, which must be exact.

    Args:
        value: what the right answer returned.

    Returns:
        ``False`` also for floats that happen to be whole.

    Example:
        >>> is_whole([3, 4]), is_whole(3.0), is_whole(torch.tensor([True]))
        (True, False, True)
    """
    if not isinstance(value, Tensor):
        value = torch.as_tensor(value)
    return not (value.is_floating_point() or value.is_complex())


def _has_tensors(items: Sequence[object]) -> bool:
    return any(isinstance(item, Tensor | np.ndarray) for item in items)


def _are_tensors(items: Sequence[object]) -> bool:
    """Whether these are several tensors, not one list of numbers such as ``argmax`` returns."""
    return any(isinstance(item, Tensor | np.ndarray) and item.ndim for item in items)


def _compare_one(
    returned: object, expected: object, name: str, *, reveal: bool, tolerance: float
) -> str:
    """What is wrong with one part; empty if nothing is."""
    if isinstance(returned, tuple | list) and _are_tensors(returned) and not name:
        return "It returned several tensors; return the one that is asked for."
    try:
        got = as_tensor(returned)
    except (TypeError, ValueError, RuntimeError):
        if _is_ragged(returned):
            return _label(name, "Its rows have different lengths.")
        kind = type(returned).__name__
        return f"{name}: a {kind}; expected numbers." if name else _no_numbers(kind)
    right = as_tensor(expected)
    if got.shape != right.shape:
        shapes = tuple(got.shape), tuple(right.shape)
        if name:
            return "{}: shape {}, expected {}.".format(name, *shapes)
        return "The shape is {}; expected {}.".format(*shapes)
    if _lost_its_kind(returned, expected):
        kinds = str(getattr(returned, "dtype", "")), "torch.bool"
        return _label(name, "The dtype is {}; expected {}.".format(*kinds))
    whole = is_whole(expected)
    close = is_close(got, right, tolerance=0.0 if whole else tolerance)
    if close.all():
        return ""
    if isinstance(expected, bool):
        return _label(name, f"It is {bool(got)}; expected {expected} in one of the tests.")
    if whole and right.ndim == 0:
        return _too_many(float(got - right), name)
    typed = not isinstance(returned, Tensor | np.ndarray)
    return _label(name, _first_difference(got, right, close, reveal=reveal, typed=typed))


def _is_ragged(value: object) -> bool:
    if not isinstance(value, tuple | list):
        return False
    return len({len(row) for row in value if isinstance(row, tuple | list)}) > 1


def _no_numbers(kind: str) -> str:
    return f"It returned a {kind}; expected numbers."


def _lost_its_kind(returned: object, expected: object) -> bool:
    """Whether a mask of ones and zeros came in place of booleans."""
    if not isinstance(returned, Tensor) or not isinstance(expected, Tensor):
        return False
    return expected.dtype == torch.bool and returned.dtype != torch.bool


def _label(name: str, sentence: str) -> str:
    return f"{name}: {sentence[0].lower()}{sentence[1:]}" if name else sentence


def _too_many(excess: float, name: str) -> str:
    size = show(abs(excess))
    if name and " " not in name:  # such as "parameters"
        unit = name.removesuffix("s") if abs(excess) == 1 else name
        return f"{size} {unit} {'more' if excess > 0 else 'fewer'} than expected."
    return _label(name, f"It is {size} too {'large' if excess > 0 else 'small'}.")


def show(number: float) -> str:
    """Write a number briefly.

    Args:
        number: any.

    Returns:
        With separators if it is whole, else with four digits.

    Example:
        >>> show(12345.0), show(0.123456)
        ('12,345', '0.1235')
    """
    return f"{int(number):,}" if float(number).is_integer() else f"{number:.4g}"


def _first_difference(
    got: Tensor, right: Tensor, close: Tensor, *, reveal: bool, typed: bool
) -> str:
    """Where the result differs first, and by how much at most."""
    if (got.isnan() & ~right.isnan()).any():
        return (
            f"There are NaNs in it{_at(got.isnan() & ~right.isnan())}. They come from a row of "
            "-inf alone in a softmax, from 0 * -inf, from inf - inf or from 0 / 0."
        )
    error = (got - right).abs()[~close].max().item()
    if error < ROUNDED_BY_HAND:
        advice = "Give four decimals." if typed else "Is a small constant missing or another one?"
        if error < ROUNDED_BY_FLOAT32:
            advice = "Is a part of it computed in float32? Keep the dtype that comes in."
        return f"Nearly right: the largest error is {error:.2g}. {advice}"
    sentence = f"The shape is right; the largest error is {error:.3g}."
    if not reveal:
        return sentence
    first = tuple((~close).nonzero()[0].tolist())
    values = f"{show(got[first].item())}, expected {show(right[first].item())}"
    return f"{sentence} First{_at(~close)}: {values}."


def _at(wrong: Tensor) -> str:
    """The index of the first wrong entry, in words."""
    if wrong.ndim == 0:
        return ""
    index = wrong.nonzero()[0].tolist()
    return f" at index {index[0] if len(index) == 1 else tuple(index)}"
