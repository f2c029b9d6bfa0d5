"""Figures drawn from data, each with a computed sentence.

Every function returns a :class:`~transformer_book.figures.pictures.Picture`; as the last line of a
cell it shows itself. Series differ by marker and dash as well as by colour.
"""

from __future__ import annotations  # so that the documentation shows ArrayLike by its name

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from transformer_book.figures.pictures import MUTED, PAPER, ROLES, Picture
from transformer_book.figures.plot_data import (
    as_array,
    as_curve,
    as_finite,
    as_matrices,
    as_matrix,
    check_filled,
    describe_curve,
    describe_matrix,
    listed,
    written,
)
from transformer_book.figures.plot_style import (
    AMOUNT,
    ON_DARK,
    ON_LIGHT,
    SERIES_STYLES,
    SIGNED,
    VALUE,
    WEIGHT,
    picture_of,
    styled_axes,
)
from transformer_lib import check_choice

MAX_INCHES = 6.9  # what a page has room for


def heatmap(
    values: ArrayLike | Mapping[str, ArrayLike],
    *,
    rows: Sequence[str],
    columns: Sequence[str] | Mapping[str, Sequence[str]],
    title: str,
    row_axis: str = "query",
    column_axis: str = "key",
    signed: bool = False,
    decimals: int = 2,
) -> Picture:
    """Draw a matrix, or several side by side, as heat maps with the values in the cells.

    Args:
        values: the matrix; for several panels of one shape, a name and a matrix for each.
        rows: a name for each row.
        columns: a name for each column; if the panels differ in them, such names for each panel.
        title: a short name for the picture.
        row_axis: what the rows are.
        column_axis: what the columns are.
        signed: whether zero is the middle of the colours.
        decimals: how many decimals to write.

    Returns:
        The picture; all its panels share one range of colours.

    Raises:
        ValueError: if there is no matrix, one has another shape than the names, or a value is not
            finite, or negative without ``signed``.

    Example:
        >>> maps = heatmap([[0.7]], rows=["cat"], columns=["the"], title="Map")
        >>> maps.summary
        'Map: heat map, query by key. cat: the 0.70.'
    """
    panels = values if isinstance(values, Mapping) else {title: values}
    named = columns if isinstance(columns, Mapping) else dict.fromkeys(panels, columns)
    columns = next(iter(named.values()), ())
    matrices = as_matrices("values", panels, rows, columns, signed=signed)
    top = max(float(np.abs(matrix).max()) for matrix in matrices.values())
    names_width = 0.09 * max(len(name) for name in rows) + 0.45  # the rows' names, inches
    wanted = 0.62 if max(len(name) for name in columns) <= 5 else 0.82
    cell = min(wanted, (MAX_INCHES - names_width) / (len(columns) * len(panels)) - 0.04)
    width = names_width + (cell * len(columns) + 0.2) * len(panels)
    with styled_axes(width, cell * len(rows) + 1.0, n_columns=len(panels)) as (figure, axes):
        for axis, (name, matrix) in zip(axes, matrices.items(), strict=True):
            _draw_heatmap(axis, matrix, rows, named[name], top, signed, decimals)
            axis.set_title(name if len(panels) > 1 else title, pad=10)
            axis.set_xlabel(column_axis)
            axis.set_ylabel(row_axis if axis is axes[0] else "")
            if axis is not axes[0]:
                axis.tick_params(labelleft=False)
        summary = f"{title}: heat map, {row_axis} by {column_axis}. " + " ".join(
            (f"{name}. " if len(panels) > 1 else "")
            + describe_matrix(matrix, rows, named[name], decimals)
            for name, matrix in matrices.items()
        )
        return picture_of(figure, title, summary)


def lines(
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = True,
    y_from_zero: bool = False,
    decimals: int = 2,
) -> Picture:
    r"""Draw curves, told apart by dash and marker as well as by colour.

    Args:
        series: for each curve its name and its x and y values.
        title: a short name for the picture.
        x_label: what x is.
        y_label: what y is.
        log_x: whether x has a logarithmic axis.
        log_y: whether y has a logarithmic axis.
        markers: whether to mark the points.
        y_from_zero: whether the y axis starts at zero; what lies below is cut off.
        decimals: decimals in the summary; with ``log_y`` significant digits instead.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no curve, one has no points, its x and y differ in length, or a
            number has no place on its axis.

    Example:
        >>> series = {"a": ([1, 2], [3, 5])}
        >>> up = lines(series, title="Up", x_label="x", y_label="y")
        >>> print(up.summary.replace(". ", ".\n"))
        Up: y against x.
        a: 2 points, 3.00 at 1, 5.00 at 2; lowest 3.00, highest 5.00.
    """
    check_filled("series", series, "at least one curve")
    with styled_axes(5.4, 3.4) as (figure, axes):
        axis = axes[0]
        sentences = []
        for (name, (x, y)), style in zip(
            series.items(), itertools.cycle(SERIES_STYLES), strict=False
        ):
            xs, ys = as_curve(name, x, y, log_x=log_x, log_y=log_y)
            drawn = style if markers else {**style, "marker": ""}
            axis.plot(xs, ys, label=name, **drawn)
            sentences.append(f"{name}: {describe_curve(xs, ys, decimals, log_y)}.")
        _finish_axis(axis, title, x_label, y_label, log_x, log_y)
        if y_from_zero:
            axis.set_ylim(bottom=0)
        if len(series) > 1:
            axis.legend()
        return picture_of(
            figure, title, f"{title}: {y_label} against {x_label}. " + " ".join(sentences)
        )


def bars(
    groups: Mapping[str, ArrayLike],
    *,
    names: Sequence[str],
    title: str,
    y_label: str,
    decimals: int = 2,
) -> Picture:
    """Draw groups of bars side by side, one panel a group, with the value at the end of each bar.

    Args:
        groups: for each panel its name and one value for each of ``names``.
        names: what each bar stands for.
        title: a short name for the picture.
        y_label: what the height is.
        decimals: how many decimals to write.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no group or no name, or a group has not one finite value for each
            name.

    Example:
        >>> bars(
        ...     {"soft": [0.5, 0.5]},
        ...     names=["a", "b"],
        ...     title="Choice",
        ...     y_label="weight",
        ... ).summary
        'Choice: weight. soft: a 0.50, b 0.50.'
    """
    check_filled("groups", groups, "at least one group of bars")
    check_filled("names", names, "at least one bar")
    rows = {
        name: as_matrix(name, np.atleast_2d(as_array(values)), ["row"], names)[0]
        for name, values in groups.items()
    }
    low = min(0.0, *(float(row.min()) for row in rows.values()))
    top = max(0.0, *(float(row.max()) for row in rows.values()))
    width = min(max(0.62 * len(names) + 0.6, 1.7) * len(rows), MAX_INCHES)
    with styled_axes(width, 2.7, n_columns=len(rows)) as (figure, axes):
        for axis, (group, row) in zip(axes, rows.items(), strict=True):
            # By number: two bars of one name would stand in each other's place.
            drawn = axis.bar(range(len(names)), row, color=WEIGHT, width=0.66)
            axis.set_xticks(range(len(names)), list(names))
            axis.bar_label(drawn, [written(value, decimals) for value in row], padding=2)
            axis.set_title(group)
            axis.set_ylim(0, (1.18 * top - 0.18 * low) or 1.0)  # with room for the values
            if low < 0:
                axis.set_ylim(bottom=1.18 * low - 0.18 * top)
                axis.axhline(0, color=MUTED, linewidth=0.8)
            axis.grid(axis="x", visible=False)
            axis.set_ylabel(y_label if axis is axes[0] else "")
            if axis is not axes[0]:
                axis.tick_params(labelleft=False)
        sentences = [f"{group}: {listed(names, row, decimals)}." for group, row in rows.items()]
        return picture_of(figure, title, f"{title}: {y_label}. " + " ".join(sentences))


def dots(
    series: Mapping[str, ArrayLike],
    *,
    names: Sequence[str],
    title: str,
    y_label: str,
    decimals: int = 2,
) -> Picture:
    """Draw every single value as a dot: for each name the series side by side.

    Args:
        series: for each series its name and, for each of ``names``, a row of values.
        names: what stands along x.
        title: a short name for the picture.
        y_label: what the values are.
        decimals: decimals in the summary.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no series, or one has not a row of finite values for each name.

    Example:
        >>> dots(
        ...     {"a": [[1, 2], [4, 4]]},
        ...     names=["x", "y"],
        ...     title="T",
        ...     y_label="loss",
        ... ).summary
        'T: loss, every value a dot. a: x 1.00 to 2.00, y 4.00 to 4.00.'
    """
    check_filled("series", series, "at least one series")
    sentences = []
    with styled_axes(5.4, 3.4) as (figure, axes):
        axis = axes[0]
        for number, (label, values) in enumerate(series.items()):
            rows = as_finite(label, values)
            if rows.ndim != 2 or len(rows) != len(names):
                raise ValueError(f"{label!r} has shape {rows.shape}; expected {len(names)} rows")
            x = np.arange(len(names)) + 0.18 * (number - (len(series) - 1) / 2)
            style = SERIES_STYLES[number % len(SERIES_STYLES)] | {"linestyle": "none", "alpha": 0.8}
            axis.plot(x, rows, **style)[0].set_label(label)
            ends = ((written(row.min(), decimals), written(row.max(), decimals)) for row in rows)
            told = (f"{n} {low} to {high}" for n, (low, high) in zip(names, ends, strict=True))
            sentences.append(f"{label}: {', '.join(told)}.")
        _finish_axis(axis, title, "", y_label, log_x=False, log_y=False)
        axis.set_xticks(range(len(names)), list(names))
        axis.axhline(0, color=MUTED, linewidth=0.8)
        axis.grid(axis="x", visible=False)
        axis.legend()
        summary = f"{title}: {y_label}, every value a dot. " + " ".join(sentences)
        return picture_of(figure, title, summary)


def plane(
    arrows: Mapping[str, tuple[float, float, str]],
    points: Mapping[str, tuple[float, float, str]] | None = None,
    *,
    title: str,
    hull: Sequence[tuple[float, float]] = (),
    decimals: int = 2,
) -> Picture:
    """Draw vectors of two numbers as arrows from the origin and as points.

    Args:
        arrows: for each arrow its name, x, y and role (a key of ``pictures.ROLES``).
        points: the same for points.
        title: a short name for the picture.
        hull: corners of a region to shade.
        decimals: decimals in the summary.

    Returns:
        The picture.

    Raises:
        ValueError: if there is nothing to draw, a number is not finite, or there is no such role.

    Example:
        >>> plane({"k": (1.0, 0.0, "key")}, title="A key").summary
        'A key: arrows k (1.00, 0.00).'
    """
    points = points or {}
    x_limits, y_limits = _limits([*arrows.items(), *points.items()])
    height = 3.9 * (y_limits[1] - y_limits[0]) / (x_limits[1] - x_limits[0]) + 0.6
    with styled_axes(4.6, min(height, 4.6)) as (figure, axes):
        axis = axes[0]
        axis.set(xlim=x_limits, ylim=y_limits, aspect="equal")
        axis.axhline(0, color=MUTED, linewidth=0.8)
        axis.axvline(0, color=MUTED, linewidth=0.8)
        if hull:
            corners = as_finite("hull", hull)
            axis.fill(*corners.T, facecolor=ROLES["value"][1], edgecolor=VALUE, linewidth=1)
        for name, (x, y, role) in arrows.items():
            color = ROLES[role][0]
            axis.annotate(
                "", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2}
            )
            _label_point(axis, name, x, y, color)
        for name, (x, y, role) in points.items():
            axis.plot([x], [y], "o", color=ROLES[role][0], markersize=8, markeredgecolor=PAPER)
            _label_point(axis, name, x, y, ROLES[role][0])
        axis.set_title(title, pad=10)
        parts = [
            f"{kind} "
            + ", ".join(
                f"{name} ({written(x, decimals)}, {written(y, decimals)})"
                for name, (x, y, _) in group.items()
            )
            for kind, group in (("arrows", arrows), ("points", points))
            if group
        ]
        return picture_of(figure, title, f"{title}: " + "; ".join(parts) + ".")


def name_map(points: Mapping[str, tuple[float, float, str]], *, title: str) -> Picture:
    """Write names at their places in a plane, such as the two main directions of a table.

    Names that would cover each other are moved apart.

    Args:
        points: for each name x, y and its role (a key of ``pictures.ROLES``).
        title: a short name for the picture.

    Returns:
        The picture; its sentence gives the places to one decimal.

    Raises:
        ValueError: if there is no point, a number is not finite, or there is no such role.

    Example:
        >>> name_map(
        ...     {"a": (0.5, 0.26, "query"), "b": (-0.5, 0, "key")}, title="Two"
        ... ).summary
        'Two: a (0.5, 0.3), b (-0.5, 0.0).'
    """
    x_limits, y_limits = _limits([*points.items()])
    across = x_limits[1] - x_limits[0]
    places = _apart(as_array([place[:2] for place in points.values()]), 0.042 * across)
    height = 4.4 * (y_limits[1] - y_limits[0]) / across
    with styled_axes(5.0, min(height, 4.8)) as (figure, axes):
        axis = axes[0]
        axis.set(xlim=x_limits, ylim=y_limits, aspect="equal")
        axis.axhline(0, color=MUTED, linewidth=0.8)
        axis.axvline(0, color=MUTED, linewidth=0.8)
        for (name, (_, _, role)), (x, y) in zip(points.items(), places, strict=True):
            font = {"color": ROLES[role][0], "size": 13, "weight": "bold"}
            axis.text(x, y, name, fontdict=font, ha="center", va="center")
        axis.set_title(title, pad=10)
        told = (f"{n} ({written(x, 1)}, {written(y, 1)})" for n, (x, y, _) in points.items())
        return picture_of(figure, title, f"{title}: {', '.join(told)}.")


def _apart(places: NDArray[np.float64], distance: float) -> NDArray[np.float64]:
    """Push places apart until they have the distance, or forty times."""
    places = places + np.linspace(0, 0.01 * distance, len(places))[:, None]  # no two are equal
    for _ in range(40):
        gaps = places[:, None] - places
        lengths = np.linalg.norm(gaps, axis=-1)
        np.fill_diagonal(lengths, np.inf)
        push = np.clip(distance - lengths, 0, None) / np.maximum(lengths, 1e-9)
        places = places + 0.5 * (push[..., None] * gaps).sum(axis=1)
    return places


def _draw_heatmap(
    axis: Axes,
    matrix: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    top: float,
    signed: bool,
    decimals: int,
) -> None:
    low, high = (-top, top) if signed else (0.0, top)
    color_map = SIGNED if signed else AMOUNT
    import seaborn as sns  # noqa: PLC0415  (with pandas, it takes as long as all of this package)

    sns.heatmap(
        matrix,
        ax=axis,
        cmap=color_map,
        vmin=low,
        vmax=high,
        cbar=False,
        square=True,
        linewidths=1.5,
        linecolor=PAPER,
        xticklabels=list(columns),
        yticklabels=list(rows),
    )
    for (i, j), value in np.ndenumerate(matrix):
        red, green, blue, _ = color_map((value - low) / ((high - low) or 1))
        color = ON_LIGHT if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else ON_DARK
        axis.text(j + 0.5, i + 0.5, written(value, decimals), color=color, ha="center", va="center")
    axis.grid(visible=False)
    axis.tick_params(length=0, rotation=0)


def _finish_axis(
    axis: Axes, title: str, x_label: str, y_label: str, log_x: bool, log_y: bool
) -> None:
    axis.set_title(title, pad=10)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    if log_x:
        axis.set_xscale("log")
    if log_y:
        axis.set_yscale("log")


def _label_point(axis: Axes, name: str, x: float, y: float, color: str) -> None:
    """Write a name beside a point, on the side away from the origin."""
    axis.annotate(
        name,
        (x, y),
        xytext=(8 if x >= 0 else -8, 6 if y >= 0 else -6),
        textcoords="offset points",
        color=color,
        ha="left" if x >= 0 else "right",
        va="bottom" if y >= 0 else "top",
        fontweight="bold",
    )


def _limits(
    drawn: Sequence[tuple[str, tuple[float, float, str]]],
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Limits of x and y that show the origin and everything drawn, with room for the names."""
    check_filled("arrows", drawn, "at least one arrow or point")
    for name, (x, y, role) in drawn:
        as_finite(name, [x, y])
        check_choice("role", role, list(ROLES))
    xs = [0.0, *(x for _, (x, _, _) in drawn)]
    ys = [0.0, *(y for _, (_, y, _) in drawn)]
    room = 0.22 * (max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0)  # all may be at the origin
    return (min(xs) - room, max(xs) + room), (min(ys) - room, max(ys) + room)
