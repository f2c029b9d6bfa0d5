"""The one style of all plots, and the way to a picture."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from transformer_book.figures.pictures import GRID, INK, MUTED, PAPER, ROLES, Picture, finish_svg

QUERY, KEY, VALUE, WEIGHT = (ROLES[role][0] for role in ("query", "key", "value", "weight"))
SERIES_STYLES: tuple[dict[str, Any], ...] = (
    {"color": QUERY, "marker": "o", "linestyle": "-"},
    {"color": KEY, "marker": "s", "linestyle": "--"},
    {"color": VALUE, "marker": "^", "linestyle": "-."},
    {"color": WEIGHT, "marker": "D", "linestyle": ":"},
    {"color": INK, "marker": "x", "linestyle": (0, (5, 1, 1, 1))},
    {"color": MUTED, "marker": "v", "linestyle": (0, (1, 1))},
)
# Lightness falls (or falls to both sides) without a turn, so the maps also read in grey.
AMOUNT = LinearSegmentedColormap.from_list("amount", ["#fbf5f9", "#c77fae", "#5a1446"])
SIGNED = LinearSegmentedColormap.from_list("signed", ["#7a3300", "#f7f5f2", "#00406b"])
ON_LIGHT, ON_DARK = "#101820", "#ffffff"

STYLE: dict[str, Any] = {
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": "none",  # the picture brings its own background
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",  # real text: it can be searched, read aloud and restyled
    "svg.hashsalt": "the executable transformer",
    "font.family": "DejaVu Sans",  # ships with matplotlib, so the layout is the same everywhere
    "mathtext.default": "regular",
    "axes.unicode_minus": True,
}


@contextmanager
def styled_axes(
    width: float, height: float, n_columns: int = 1, n_rows: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Give axes in the book's style, whatever the caller's matplotlib settings are.

    Args:
        width: of the figure, in inches.
        height: of the figure, in inches.
        n_columns: the number of panels side by side.
        n_rows: the number of such rows.

    Yields:
        The figure and its axes, row by row.

    Example:
        >>> with styled_axes(6, 3, n_columns=2) as (figure, axes):
        ...     len(axes)
        2
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)  # type: ignore[arg-type]  # its keys are plain strings
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False)
        yield figure, list(grid.flat)


def picture_of(figure: Figure, title: str, summary: str) -> Picture:
    """Turn a matplotlib figure into a picture without dates, random names or embedded fonts.

    Args:
        figure: made with :func:`styled_axes`.
        title: a short name.
        summary: the text alternative.

    Returns:
        The picture.

    Example:
        >>> with styled_axes(2, 2) as (figure, (axes,)):
        ...     picture_of(figure, "Nothing", "An empty pair of axes.")
        Picture(title='Nothing', summary='An empty pair of axes.')
    """
    file = io.StringIO()
    figure.savefig(
        file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    body = file.getvalue()
    body = body[body.index("<defs>") : body.rindex("</svg>")]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # it would restyle the page
    body = re.sub(r"font-family: 'DejaVu Sans'[^;\"]*;?\s*", "", body)
    body = re.sub(r"font:\s*([^;\"]*?)'DejaVu Sans'[^;\"]*", _font_without_family, body)
    width, height = (72 * inches for inches in figure.get_size_inches())
    return finish_svg(title, summary, body, width, height, scale=96 / 72)  # points to pixels


def _font_without_family(match: re.Match[str]) -> str:
    """Spell out the shorthand of older matplotlibs, ``font: 700 12px 'DejaVu Sans'``."""
    words = match.group(1).split()
    size = words[-1]
    weight = f"; font-weight: {words[0]}" if len(words) > 1 else ""
    return f"font-size: {size}{weight}"
