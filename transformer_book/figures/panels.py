"""Figures of several panels, and of many values at once."""

from __future__ import annotations  # so that the documentation shows ArrayLike by its name

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from transformer_book.figures.pictures import GRID, MUTED, PAPER, Picture
from transformer_book.figures.plot_data import (
    as_curve,
    as_finite,
    as_matrices,
    check_filled,
    describe_curve,
    written,
)
from transformer_book.figures.plot_style import (
    AMOUNT,
    ON_DARK,
    ON_LIGHT,
    SERIES_STYLES,
    SIGNED,
    picture_of,
    styled_axes,
)
from transformer_book.figures.plots import MAX_INCHES
from transformer_lib import check_whole

CLEAR = ListedColormap(["none"])
FORBIDDEN_ALLOWED = ListedColormap([PAPER, "#e3bdd4"])
Each = TypeVar("Each", str, bool)
MAX_NAMES = 12  # more names than this cannot be read along a small panel


def heatmap_grid(
    panels: Mapping[str, ArrayLike],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    n_columns: int = 4,
    row_axis: str = "query",
    column_axis: str = "key",
    signed: bool = False,
    decimals: int = 2,
    hatched: Mapping[str, ArrayLike] | None = None,
) -> Picture:
    r"""Draw many matrices of one shape as small heat maps without numbers.

    Args:
        panels: a name and a matrix for each.
        rows: a name for each row; written only if there are few.
        columns: a name for each column; written only if there are few.
        title: a short name for the picture.
        n_columns: how many panels stand side by side.
        row_axis: what the rows are.
        column_axis: what the columns are.
        signed: whether zero is the middle of the colours.
        decimals: decimals in the summary.
        hatched: for some panels a matrix of True and False; where it is True, lines are drawn over
            the cell.

    Returns:
        The picture; all its panels share one range of colours.

    Raises:
        ValueError: if there is no panel, a matrix does not fit the names, or a value is not
            finite, or negative without ``signed``.

    Example:
        >>> heads = {"one": [[1.0, 0.0]], "two": [[0.2, 0.8]]}
        >>> columns = ["cat", "sat"]
        >>> grid = heatmap_grid(
        ...     heads, rows=["sat"], columns=columns, title="Two"
        ... )
        >>> print(grid.summary.replace(". ", ".\n"))
        Two: heat maps, query by key.
        one: most 1.00, sat to cat.
        two: most 0.80, sat to sat.
    """
    check_whole("n_columns", n_columns)
    matrices = as_matrices("panels", panels, rows, columns, signed=signed)
    top = max(float(np.abs(matrix).max()) for matrix in matrices.values())
    colours, low = (SIGNED, -top) if signed else (AMOUNT, 0.0)
    marks = {name: np.asarray(each, dtype=bool) for name, each in (hatched or {}).items()}
    sentences = []
    axis_names = (row_axis, column_axis)
    with _grid(title, matrices, rows, columns, axis_names, n_columns) as (figure, drawn):
        for axis, name, matrix in drawn:
            # Outlined in their own colours: the page would shine through between bare cells.
            axis.pcolormesh(
                matrix, cmap=colours, vmin=low, vmax=top, edgecolors="face", linewidth=0.4
            )
            i, j = np.unravel_index(int(np.abs(matrix).argmax()), matrix.shape)
            most = f"most {written(matrix[i, j], decimals)}, {rows[int(i)]} to {columns[int(j)]}"
            marked = marks.get(name)
            if marked is not None:
                axis.pcolor(
                    np.ma.masked_where(~marked, marked),
                    hatch="////", facecolor="none", edgecolor=ON_DARK, linewidth=0, cmap=CLEAR,
                )  # fmt: skip
                most += f"; {int(marked.sum())} of {marked.size} hatched"
            sentences.append(f"{name}: {most}.")
        summary = f"{title}: heat maps, {row_axis} by {column_axis}. " + " ".join(sentences)
        return picture_of(figure, title, summary)


def mask_grid(
    masks: Mapping[str, ArrayLike],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    row_axis: str = "query",
    column_axis: str = "key",
) -> Picture:
    """Draw masks side by side: a filled cell with a dot may attend, an empty one may not.

    Args:
        masks: a name and a matrix of truth values for each.
        rows: a name for each row.
        columns: a name for each column.
        title: a short name for the picture.
        row_axis: what the rows are.
        column_axis: what the columns are.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no mask, a mask does not fit the names, or holds anything but truth
            values.

    Example:
        >>> masks = {"causal": [[True, False], [True, True]]}
        >>> mask_grid(
        ...     masks, rows=["0", "1"], columns=["0", "1"], title="Masks"
        ... ).summary
        'Masks: query by key. causal: 0 sees 0; 1 sees 0 1.'
    """
    matrices = as_matrices("masks", masks, rows, columns, signed=True)
    for name, matrix in matrices.items():
        strange = matrix[(matrix != 0) & (matrix != 1)]
        if strange.size:
            raise ValueError(f"{name!r} holds {strange[0]:g}; expected True or False, or 1 or 0")
    n_columns = max(1, min(4, int(MAX_INCHES / (0.24 * len(columns) + 0.35))))
    sentences = []
    axis_names = (row_axis, column_axis)
    with _grid(title, matrices, rows, columns, axis_names, n_columns) as (figure, drawn):
        for axis, name, matrix in drawn:
            axis.pcolormesh(
                matrix, cmap=FORBIDDEN_ALLOWED, vmin=0, vmax=1, edgecolors=GRID, linewidth=1
            )
            allowed_rows, allowed_columns = np.nonzero(matrix)
            axis.plot(allowed_columns + 0.5, allowed_rows + 0.5, "o", color=ON_LIGHT, markersize=5)
            seen = [
                f"{row} sees {' '.join(itertools.compress(columns, values)) or 'nothing'}"
                for row, values in zip(rows, matrix, strict=True)
            ]
            sentences.append(f"{name}: {'; '.join(seen)}.")
        summary = f"{title}: {row_axis} by {column_axis}. " + " ".join(sentences)
        return picture_of(figure, title, summary)


def line_panels(
    panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]],
    *,
    title: str,
    x_label: str | Sequence[str],
    y_label: str | Sequence[str],
    log_x: bool = False,
    log_y: bool | Sequence[bool] = False,
    markers: bool = True,
    y_from_zero: bool = False,
    x_mark: float | None = None,
    decimals: int = 2,
) -> Picture:
    """Draw panels of curves side by side; a name means the same curve in each.

    Args:
        panels: for each panel its name and its curves: name, x and y values.
        title: a short name for the picture.
        x_label: what x is; one for all panels or one for each.
        y_label: what y is; one for all panels or one for each.
        log_x: whether x has a logarithmic axis.
        log_y: whether y has a logarithmic axis; one for all panels or one for each.
        markers: whether to mark the points.
        y_from_zero: whether the y axes start at zero; what lies below is cut off.
        x_mark: where a vertical line is drawn in each panel; the caption says what it stands for.
        decimals: decimals in the summary; with ``log_y`` significant digits instead.

    Returns:
        The picture.

    Raises:
        ValueError: if a panel or a curve is missing or damaged, or the labels do not fit.

    Example:
        >>> panels = {"up": {"a": ([1, 2], [3, 5])}}
        >>> up = line_panels(panels, title="Up", x_label="x", y_label="y")
        >>> up.summary[21:]
        'a: 2 points, 3.00 at 1, 5.00 at 2; lowest 3.00, highest 5.00.'
    """
    check_filled("panels", panels, "at least one panel")
    x_labels = _one_each("x_label", x_label, len(panels))
    y_labels = _one_each("y_label", y_label, len(panels))
    logs = _one_each("log_y", log_y, len(panels))
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    styles = dict(zip(names, itertools.cycle(SERIES_STYLES), strict=False))
    if not markers:
        styles = {name: {**style, "marker": ""} for name, style in styles.items()}
    sentences = []
    with styled_axes(MAX_INCHES, 3.1, n_columns=len(panels)) as (figure, axes):
        for place, (panel, curves) in enumerate(panels.items()):
            axis = axes[place]
            check_filled(f"panels[{panel!r}]", curves, "at least one curve")
            for name, (x, y) in curves.items():
                xs, ys = as_curve(name, x, y, log_x=log_x, log_y=logs[place])
                axis.plot(xs, ys, **styles[name])
                drawn = f"{panel}, {y_labels[place]} against {x_labels[place]}: {name}"
                sentences.append(f"{drawn}: {describe_curve(xs, ys, decimals, logs[place])}.")
            axis.set(xlabel=x_labels[place], ylabel=y_labels[place])
            axis.set_title(panel, fontsize=11)
            axis.set_xscale("log" if log_x else "linear")
            axis.set_yscale("log" if logs[place] else "linear")
            if y_from_zero and not logs[place]:
                axis.set_ylim(bottom=0)
            if x_mark is not None:
                axis.axvline(x_mark, color=MUTED, linewidth=1, linestyle=":")
        if len(names) > 1:
            _legend_below(figure, axes[0], styles)
        if x_mark is not None:
            sentences.append(f"A vertical line at {x_mark:g}.")
        return picture_of(figure, title, f"{title}. " + " ".join(sentences))


def sorted_ranges(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    linear: float = 1.0,
    decimals: int = 1,
) -> Picture:
    """Draw values with their intervals, in each panel from the largest to the smallest.

    Args:
        panels: for each panel its name and its series: value, low end and high end of each member.
            The first series gives the order; the others follow it.
        title: a short name for the picture.
        x_label: what is counted along x.
        y_label: what the values are.
        linear: up to this size the y axis is linear, beyond it logarithmic.
        decimals: decimals in the summary.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no panel, or a panel has no series or series of different lengths.

    Example:
        >>> heads = {"m": {"zero": [(1.0, 0.5, 1.5), (4.0, 3.0, 5.0)]}}
        >>> picture = sorted_ranges(heads, title="T", x_label="x", y_label="y")
        >>> picture.summary.partition("on. ")[2]
        'm, zero: 4.0 down to 1.0; 2 of 2 intervals above 0.'
    """
    check_filled("panels", panels, "at least one panel")
    sentences = []
    styles: dict[str, dict[str, Any]] = {}
    with styled_axes(MAX_INCHES, 3.3, n_columns=len(panels)) as (figure, axes):
        for axis, (panel, series) in zip(axes, panels.items(), strict=True):
            check_filled(f"panels[{panel!r}]", series, "at least one series")
            first, *_ = series.values()
            order = sorted(range(len(first)), key=lambda i: -first[i][0])
            for number, (name, values) in enumerate(series.items()):
                middle, low, high = as_finite(name, [values[i] for i in order]).T
                styles[name] = SERIES_STYLES[number] | {"linestyle": "none"}
                ends = np.clip([middle - low, high - middle], 0, None)
                places = np.arange(len(order)) + 0.35 * number
                axis.errorbar(places, middle, ends, **styles[name], markersize=3, elinewidth=1)
                most, least = (written(end, decimals) for end in (middle.max(), middle.min()))
                above = f"{int((low > 0).sum())} of {len(order)} intervals above 0"
                sentences.append(f"{panel}, {name}: {most} down to {least}; {above}.")
            axis.axhline(0, color=MUTED, linewidth=0.8)
            axis.set_yscale("symlog", linthresh=linear)
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set(xlabel=x_label, ylabel=y_label if axis is axes[0] else "")
            axis.set_title(panel, fontsize=11)
        if len(styles) > 1:
            _legend_below(figure, axes[0], styles)
        summary = f"{title}: {y_label}, from the largest on. " + " ".join(sentences)
        return picture_of(figure, title, summary)


def histograms(
    samples: Mapping[str, ArrayLike],
    *,
    bins: tuple[float, float, int],
    title: str,
    x_label: str,
    decimals: int = 2,
) -> Picture:
    """Draw how often values fall into each bin, one outline for each sample.

    Args:
        samples: for each outline its name and its values; values outside the bins are not drawn.
        bins: where the bins begin, where they end, and how many there are.
        title: a short name for the picture.
        x_label: what the values are.
        decimals: decimals in the summary.

    Returns:
        The picture; its y axis is the share of the values in a bin.

    Raises:
        ValueError: if a sample is missing, empty or not finite, or the bins do not go upwards.

    Example:
        >>> two, bins = {"a": [0, 2]}, (0, 4, 2)
        >>> histograms(two, bins=bins, title="Two", x_label="x").summary[40:]
        'a: 2 values, mean 1.00, standard deviation 1.00.'
    """
    check_filled("samples", samples, "at least one sample")
    low, high, n_bins = bins
    if not (-math.inf < low < high < math.inf and n_bins > 0):
        raise ValueError(f"bins={bins} must be (low, high, n) with low < high and n > 0")
    edges = np.linspace(low, high, n_bins + 1)
    sentences = []
    with styled_axes(5.4, 3.2) as (figure, axes):
        axis = axes[0]
        for (name, values), style in zip(
            samples.items(), itertools.cycle(SERIES_STYLES), strict=False
        ):
            found = as_finite(name, values).ravel()
            check_filled(f"samples[{name!r}]", found, "at least one value")
            shares = np.histogram(found, edges)[0] / found.size
            axis.stairs(
                shares,
                edges,
                label=name,
                color=style["color"],
                linestyle=style["linestyle"],
                lw=1.8,
            )
            mean, spread = written(found.mean(), decimals), written(found.std(), decimals)
            sentences.append(
                f"{name}: {found.size} values, mean {mean}, standard deviation {spread}."
            )
        axis.set(xlabel=x_label, ylabel="share", ylim=(0, None))
        axis.set_title(title, pad=10)
        if len(samples) > 1:
            axis.legend()
        drawn = f"{title}: shares of {x_label} in {n_bins} bins from {low:g} to {high:g}. "
        return picture_of(figure, title, drawn + " ".join(sentences))


@contextmanager
def _grid(
    title: str,
    matrices: Mapping[str, NDArray[np.float64]],
    rows: Sequence[str],
    columns: Sequence[str],
    axis_names: tuple[str, str],
    n_columns: int,
) -> Iterator[tuple[Figure, list[tuple[Axes, str, NDArray[np.float64]]]]]:
    """Give each matrix axes of its own, as large as the page allows, with names at the edges."""
    n_columns = min(n_columns, len(matrices))
    n_rows = math.ceil(len(matrices) / n_columns)
    names_room = 0.35 + (0.09 * max(map(len, rows)) if len(rows) <= MAX_NAMES else 0)
    panel = min((MAX_INCHES - names_room) / n_columns, 0.36 * len(columns) + 0.25)
    foot = 0.3 + (0.07 * max(map(len, columns)) if len(columns) <= MAX_NAMES else 0)
    height = n_rows * (panel * len(rows) / len(columns) + 0.2 + foot) + 0.6
    width = names_room + panel * n_columns
    with styled_axes(width, height, n_columns, n_rows) as (figure, axes):
        figure.suptitle(title, fontweight="bold", fontsize=12)
        figure.supylabel(axis_names[0], fontsize=11)
        figure.supxlabel(axis_names[1], fontsize=11)
        for axis in axes[len(matrices) :]:
            axis.set_visible(False)
        for place, name in enumerate(matrices):
            axes[place].set_title(name, fontsize=10.5)
            _name_cells(axes[place], rows, columns, left=place % n_columns == 0)
        pairs = zip(axes, matrices.items(), strict=False)  # the last axes may be unused
        yield figure, [(axis, name, matrix) for axis, (name, matrix) in pairs]


def _name_cells(axis: Axes, rows: Sequence[str], columns: Sequence[str], *, left: bool) -> None:
    """Write the names beside the cells where there is room."""
    axis.set_aspect("equal")
    axis.set(xlim=(0, len(columns)), ylim=(len(rows), 0))  # the first row at the top
    axis.grid(visible=False)
    axis.tick_params(length=0, labelsize=9, labelcolor=MUTED)
    if len(columns) <= MAX_NAMES:
        turned = 90 if max(len(name) for name in columns) > 2 else 0
        axis.set_xticks(np.arange(len(columns)) + 0.5, list(columns), rotation=turned)
    else:
        axis.set_xticks([])
    if left and len(rows) <= MAX_NAMES:
        axis.set_yticks(np.arange(len(rows)) + 0.5, list(rows))
    else:
        axis.set_yticks([])


def _legend_below(figure: Figure, axis: Axes, styles: Mapping[str, dict[str, Any]]) -> None:
    handles = [axis.plot([], [], label=name, **style)[0] for name, style in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))


def _one_each(name: str, given: Each | Sequence[Each], n: int) -> list[Each]:
    """Take one value for all panels, or one for each."""
    found = [given] * n if isinstance(given, str | bool) else list(given)
    if len(found) != n:
        raise ValueError(f"{name} has {len(found)} values; expected one for each of {n} panels")
    return found
