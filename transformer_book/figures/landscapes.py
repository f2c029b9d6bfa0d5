"""Maps of surfaces: level lines seen from above.

Every function returns a :class:`~transformer_book.figures.pictures.Picture`.
"""

from __future__ import annotations  # so that the documentation shows ArrayLike by its name

import math
from collections.abc import Mapping, Sequence

import numpy as np
from contourpy import contour_generator
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from transformer_book.figures.pictures import MUTED, Picture
from transformer_book.figures.plot_data import as_array, check_filled, written
from transformer_book.figures.plot_style import AMOUNT, VALUE, picture_of, styled_axes
from transformer_book.figures.plots import MAX_INCHES
from transformer_lib import check_whole


def level_maps(
    panels: Mapping[str, ArrayLike],
    *,
    reach: float,
    levels: Sequence[float],
    title: str,
    n_columns: int = 3,
    x_label: str = "first direction",
    y_label: str = "second direction",
) -> Picture:
    """Draw surfaces from above, like maps: bands between level lines, a dot in the middle.

    Args:
        panels: for each panel its name and the heights on a square of points.
        reach: the square goes from minus this to this in both directions.
        levels: the heights of the level lines, upwards; what is higher has the last colour.
        title: a short name for the picture.
        n_columns: how many panels stand side by side.
        x_label: what x is.
        y_label: what y is.

    Returns:
        The picture; all its panels have the same levels and colours.

    Raises:
        ValueError: if there is no panel, a panel is no square of finite numbers, levels do not go
            upwards, or reach or n_columns is not above 0.

    Example:
        >>> bowl = {"bowl": [[2, 1, 2], [1, 0, 1], [2, 1, 2]]}
        >>> level_maps(bowl, reach=1, levels=[1.5], title="Map").summary[25:]
        'bowl: 0.00 in the middle, lowest 0.00, highest 2.00.'
    """
    check_filled("panels", panels, "at least one panel")
    check_whole("n_columns", n_columns)
    if not 0 < reach < math.inf:
        raise ValueError(f"reach={reach} must be a number above 0")
    squares = {name: _square(name, values) for name, values in panels.items()}
    if list(levels) != sorted(set(levels)) or not levels:
        raise ValueError(f"levels={list(levels)} must go upwards")
    n_columns = min(n_columns, len(squares))
    n_rows = math.ceil(len(squares) / n_columns)
    side = (MAX_INCHES - 0.6) / n_columns
    sentences = []
    with styled_axes(MAX_INCHES, n_rows * (side + 0.2) + 0.8, n_columns, n_rows) as (figure, axes):
        for axis in axes[len(squares) :]:
            axis.set_visible(False)
        for axis, (name, heights) in zip(axes, squares.items(), strict=False):
            _draw_levels(axis, heights, reach, levels)
            axis.set_title(name, fontsize=10.5)
            found = (heights[len(heights) // 2, len(heights) // 2], heights.min(), heights.max())
            middle, low, high = map(_short, found)
            sentences.append(f"{name}: {middle} in the middle, lowest {low}, highest {high}.")
        figure.suptitle(title, fontweight="bold", fontsize=12)
        figure.supxlabel(x_label, fontsize=11)
        figure.supylabel(y_label, fontsize=11)
        lines = ", ".join(f"{level:g}" for level in levels)
        summary = f"{title}: level lines at {lines}. " + " ".join(sentences)
        return picture_of(figure, title, summary)


def _draw_levels(
    axis: Axes, heights: NDArray[np.float64], reach: float, levels: Sequence[float]
) -> None:
    """Fill the bands between the levels, draw their lines, and mark the middle."""
    places = np.linspace(-reach, reach, len(heights))
    shown = np.clip(heights, levels[0] - 1, levels[-1] + 1)
    edges = [levels[0] - 2, *levels, levels[-1] + 2]
    colours = AMOUNT(np.linspace(0.05, 0.95, len(levels) + 1))
    axis.contourf(places, places, shown, levels=edges, colors=colours)
    # Not axis.contour: versions of matplotlib differ in how they close its lines.
    contours = contour_generator(places, places, shown)
    for level in levels:
        for line in contours.lines(level):
            axis.plot(*np.asarray(line).T, "-", color=MUTED, linewidth=0.6, marker="")
    axis.plot([0], [0], "o", color=VALUE, markersize=4)
    axis.set_aspect("equal")
    axis.grid(visible=False)
    axis.set(xticks=[-reach, 0, reach], yticks=[-reach, 0, reach])
    axis.tick_params(labelsize=9)


def _short(height: float) -> str:
    """Write a height with two decimals, or a very large one with two digits."""
    return written(height, 2) if height < 1_000 else f"{height:.1e}"


def _square(name: str, values: ArrayLike) -> NDArray[np.float64]:
    heights = as_array(values)
    if heights.ndim != 2 or heights.shape[0] != heights.shape[1]:
        raise ValueError(f"{name!r} has shape {heights.shape}; expected a square")
    if not np.isfinite(heights).all():
        raise ValueError(f"{name!r} has values that are not finite")
    return heights
