"""Numbers on their way into a figure and its sentence."""

from __future__ import annotations  # so that the documentation shows ArrayLike by its name

from collections.abc import Mapping, Sequence, Sized

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

MAX_LISTED = 64  # a matrix with more entries is summarised instead of listed


def as_array(values: ArrayLike) -> NDArray[np.float64]:
    """Take numbers to draw from anywhere: a tensor on a GPU or with a gradient, too.

    Args:
        values: a number, nested lists, an array or a tensor.

    Returns:
        The same numbers as an array.

    Example:
        >>> as_array(torch.tensor([1.0, 2.0], requires_grad=True)).tolist()
        [1.0, 2.0]
    """
    if isinstance(values, Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    return np.asarray(values, dtype=np.float64)


def as_finite(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Take numbers to draw, none of them NaN or infinite: a figure would leave those out.

    Args:
        name: what to call them in an error.
        values: as in :func:`as_array`.

    Returns:
        The same numbers as an array.

    Raises:
        ValueError: if a number is not finite.

    Example:
        >>> as_finite("loss", [2.0, float("nan")])
        Traceback (most recent call last):
        ValueError: 'loss' holds nan; expected finite numbers
    """
    numbers = as_array(values)
    strange = numbers[~np.isfinite(numbers)]
    if strange.size:
        raise ValueError(f"{name!r} holds {strange[0]}; expected finite numbers")
    return numbers


def check_filled(name: str, values: Sized, expected: str) -> None:
    """Raise an error if there is nothing to draw.

    Args:
        name: what the caller calls this argument, for the error message.
        values: what was given.
        expected: what there should be at least.

    Raises:
        ValueError: if nothing was given.

    Example:
        >>> check_filled("series", {}, "at least one curve")
        Traceback (most recent call last):
        ValueError: series is empty; expected at least one curve
    """
    if not len(values):
        raise ValueError(f"{name} is empty; expected {expected}")


def as_matrix(
    name: str, values: ArrayLike, rows: Sequence[str], columns: Sequence[str]
) -> NDArray[np.float64]:
    """Take a matrix that has one value for each pair of names.

    Args:
        name: what to call it in an error.
        values: the matrix.
        rows: a name for each row.
        columns: a name for each column.

    Returns:
        The matrix as an array.

    Raises:
        ValueError: if there is no name, the matrix has another shape than the names, or a value is
            not finite.

    Example:
        >>> as_matrix("weights", [[0.5, 0.5]], ["a"], ["b", "c"]).shape
        (1, 2)
    """
    for names, given in (("rows", rows), ("columns", columns)):
        check_filled(names, given, "at least one name")
    matrix = as_array(values)
    if matrix.shape != (len(rows), len(columns)):
        raise ValueError(
            f"{name!r} has shape {matrix.shape}; expected one value for each name: "
            f"{(len(rows), len(columns))}"
        )
    return as_finite(name, matrix)


def as_matrices(
    argument: str,
    panels: Mapping[str, ArrayLike],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    signed: bool = False,
) -> dict[str, NDArray[np.float64]]:
    """Take the matrices of a figure with one panel or more.

    Args:
        argument: what the caller calls ``panels``, for the error message.
        panels: a name and a matrix for each.
        rows: a name for each row of all of them.
        columns: a name for each column.
        signed: whether values may be negative; if not, their colours begin at zero.

    Returns:
        The matrices as arrays.

    Raises:
        ValueError: if there is no matrix, one does not fit the names, or a value cannot be drawn.

    Example:
        >>> as_matrices("values", {"a": [[0.5, -0.5]]}, ["a"], ["b", "c"])
        Traceback (most recent call last):
        ValueError: 'a' holds -0.5; expected no negative values, or signed=True
    """
    check_filled(argument, panels, "at least one panel")
    matrices = {name: as_matrix(name, values, rows, columns) for name, values in panels.items()}
    for name, matrix in matrices.items():
        # What is left of a rounding error looks like zero, and may.
        if not signed and matrix.min() < -1e-6 * np.abs(matrix).max():
            found = f"{name!r} holds {matrix.min():g}"
            raise ValueError(f"{found}; expected no negative values, or signed=True")
    return matrices


def as_curve(
    name: str, x: ArrayLike, y: ArrayLike, *, log_x: bool = False, log_y: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Take the points of a curve.

    Args:
        name: what to call it in an error.
        x: where the points are.
        y: how high they are.
        log_x: whether x has a logarithmic axis, on which only numbers above 0 have a place.
        log_y: the same for y.

    Returns:
        Both as arrays.

    Raises:
        ValueError: if there is no point, x and y differ in length, or a number has no place on its
            axis.

    Example:
        >>> x, y = as_curve("loss", [0, 1], [2.0, 1.5])
        >>> y.tolist()
        [2.0, 1.5]
    """
    xs, ys = as_array(x), as_array(y)
    if xs.ndim != 1 or xs.shape != ys.shape or not len(xs):
        raise ValueError(
            f"{name!r} has x of shape {xs.shape} and y of shape {ys.shape}; "
            "expected two lists of the same length with at least one point"
        )
    for axis, numbers, log in (("x", xs, log_x), ("y", ys, log_y)):
        as_finite(name, numbers)
        if log and numbers.min() <= 0:
            raise ValueError(
                f"{name!r} holds {axis}={numbers.min():g}; "
                "expected numbers greater than 0 on a logarithmic axis"
            )
    return xs, ys


def written(value: float, decimals: int) -> str:
    """Write a number with fixed decimals and never as minus zero.

    Args:
        value: the number.
        decimals: how many decimals.

    Returns:
        The number as text.

    Example:
        >>> written(-0.001, 2)
        '0.00'
    """
    return f"{round(float(value), decimals) + 0.0:.{decimals}f}"


def listed(names: Sequence[str], values: ArrayLike, decimals: int) -> str:
    """Write names with their numbers.

    Args:
        names: what the numbers are of.
        values: one number for each name.
        decimals: how many decimals.

    Returns:
        One line of text.

    Example:
        >>> listed(["a", "b"], [1, 2], 1)
        'a 1.0, b 2.0'
    """
    pairs = zip(names, as_array(values), strict=True)
    return ", ".join(f"{name} {written(value, decimals)}" for name, value in pairs)


def describe_matrix(
    matrix: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], decimals: int
) -> str:
    """Say what is in a matrix: every value if there are few, else the range and the mean.

    Args:
        matrix: the values.
        rows: a name for each row.
        columns: a name for each column.
        decimals: how many decimals.

    Returns:
        One or more sentences.

    Example:
        >>> describe_matrix(as_array([[1, 2]]), ["cat"], ["the", "cat"], 0)
        'cat: the 1, cat 2.'
    """
    if matrix.size <= MAX_LISTED:
        return " ".join(
            f"{row}: {listed(columns, values, decimals)}."
            for row, values in zip(rows, matrix, strict=True)
        )
    return (
        f"{len(rows)} by {len(columns)} values from {written(matrix.min(), decimals)} "
        f"to {written(matrix.max(), decimals)}, mean {written(matrix.mean(), decimals)}."
    )


def describe_curve(
    x: NDArray[np.float64], y: NDArray[np.float64], decimals: int, significant: bool
) -> str:
    """Say where a curve begins and ends, and how low and high it gets.

    Args:
        x: where its points are.
        y: how high they are.
        decimals: how many decimals.
        significant: whether to count significant digits instead.

    Returns:
        Part of a sentence.

    Example:
        >>> describe_curve(as_array([1, 2]), as_array([3, 5]), 0, False)
        '2 points, 3 at 1, 5 at 2; lowest 3, highest 5'
    """

    def number(value: float) -> str:
        return f"{value:.{decimals}g}" if significant else written(value, decimals)

    return (
        f"{len(x)} points, {number(y[0])} at {x[0]:g}, {number(y[-1])} at {x[-1]:g}; "
        f"lowest {number(y.min())}, highest {number(y.max())}"
    )
