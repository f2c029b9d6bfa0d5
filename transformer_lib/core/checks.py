"""Checks of plain values that name the argument, without PyTorch."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Literal, get_args, get_origin, get_type_hints


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raise an error unless a value is a whole number that is large enough.

    Args:
        name: what the caller calls this argument, for the error message.
        value: what was given.
        least: the smallest number allowed.

    Raises:
        ValueError: if it is not.

    Example:
        >>> check_whole("n_heads", 0)
        Traceback (most recent call last):
        ValueError: n_heads=0 must be a whole number of at least 1
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")


def check_probability(name: str, value: object) -> None:
    """Raise an error unless a value is a probability less than 1.

    Args:
        name: what the caller calls this argument, for the error message.
        value: what was given.

    Raises:
        ValueError: if it is not.

    Example:
        >>> check_probability("dropout", 1.0)
        Traceback (most recent call last):
        ValueError: dropout=1.0 must be at least 0 and less than 1
    """
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name}={value!r} must be at least 0 and less than 1")


def check_number(name: str, value: object, holds: Callable[[float], bool], wanted: str) -> None:
    """Raise an error unless a value is a finite number in some range.

    Args:
        name: what the caller calls this argument, for the error message.
        value: what was given.
        holds: says whether a number is in the range.
        wanted: the range in words.

    Raises:
        ValueError: if it is not.

    Example:
        >>> check_number(
        ...     "top_p",
        ...     0,
        ...     lambda x: 0 < x <= 1,
        ...     "greater than 0 and at most 1",
        ... )
        Traceback (most recent call last):
        ValueError: top_p=0 must be a number greater than 0 and at most 1
    """
    if not (isinstance(value, int | float) and math.isfinite(value) and holds(value)):
        raise ValueError(f"{name}={value!r} must be a number {wanted}")


def check_choice(name: str, value: object, options: Sequence[object]) -> None:
    """Raise an error unless a value is one of those allowed.

    Args:
        name: what the caller calls this argument, for the error message.
        value: what was given.
        options: what is allowed.

    Raises:
        ValueError: if it is not among them.

    Example:
        >>> check_choice("norm", "batch", ("layer", "rms"))
        Traceback (most recent call last):
        ValueError: norm='batch' must be one of 'layer', 'rms'
    """
    if value not in options:
        listed = ", ".join(map(repr, options))
        raise ValueError(f"{name}={value!r} must be one of {listed}")


def check_fields(values: object, may_be_zero: Collection[str] = ()) -> None:
    """Check the choices, switches and whole numbers of a dataclass by their annotations.

    ``None`` is allowed where the annotation says so. Fields of other kinds are not looked at.

    Args:
        values: the instance of a dataclass.
        may_be_zero: which whole numbers may be 0; all others are at least 1.

    Raises:
        ValueError: if a value is not one that its annotation allows.

    Example:
        >>> from transformer_lib import Recipe
        >>> Recipe(steps=0, learning_rate=0.1)
        Traceback (most recent call last):
        ValueError: steps=0 must be a whole number of at least 1
    """
    for name, kind in get_type_hints(type(values)).items():
        value = getattr(values, name)
        if get_origin(kind) is Literal:
            check_choice(name, value, get_args(kind))
        elif kind is bool:
            check_choice(name, value, (True, False))
        elif kind is int or (kind == int | None and value is not None):
            check_whole(name, value, least=0 if name in may_be_zero else 1)


def check_divides(small_name: str, small: int, large_name: str, large: int) -> None:
    """Raise an error unless both numbers are positive and one divides the other.

    Args:
        small_name: what the caller calls the divisor.
        small: the divisor.
        large_name: what the caller calls the number to be divided.
        large: the number to be divided.

    Raises:
        ValueError: if it does not divide.

    Example:
        >>> check_divides("H", 12, "D", 100)
        Traceback (most recent call last):
        ValueError: H=12 must divide D=100: 100 / 12 leaves a remainder of 4
    """
    check_whole(small_name, small)
    check_whole(large_name, large)
    if large % small:
        rest = f"{large} / {small} leaves a remainder of {large % small}"
        raise ValueError(f"{small_name}={small} must divide {large_name}={large}: {rest}")
