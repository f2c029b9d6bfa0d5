"""The live figure "four-numbers": what LayerNorm and RMSNorm make of four numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import GRID, INK, MUTED, ROLES
from transformer_book.live.wording import number
from transformer_lib import layer_norm, rms_norm

NAMES = ("first", "second", "third", "fourth")
SHOWN = 35


def values(
    *, first: float, second: float, third: float, fourth: float, add: float = 0.0
) -> dict[str, Any]:
    """Normalise four numbers in two ways.

    Args:
        first: a number.
        second: a number.
        third: a number.
        fourth: a number.
        add: what is added to each of them.

    Returns:
        ``mean``, ``deviation`` and ``rms`` of the four; ``layer`` and ``root``, what LayerNorm and
        RMSNorm make of them.

    Example:
        >>> found = values(first=3, second=9, third=11, fourth=17)
        >>> (
        ...     found["mean"],
        ...     found["deviation"],
        ...     [round(each, 2) for each in found["layer"]],
        ... )
        (10.0, 5.0, [-1.4, -0.2, 0.2, 1.4])
    """
    x = torch.tensor([first, second, third, fourth], dtype=torch.float64) + add
    ones = torch.ones(4, dtype=torch.float64)
    return {
        "mean": x.mean().item(),
        "deviation": x.std(correction=0).item(),
        "rms": x.square().mean().sqrt().item(),
        "layer": layer_norm(x, ones).tolist(),
        "root": rms_norm(x, ones).tolist(),
    }


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        Three sentences.

    Example:
        >>> state = {"first": 3, "second": 9, "third": 11, "fourth": 17}
        >>> say(state, values(**state)).partition(".  ")[0][:44]
        'Mean 10.00, standard deviation 5.00, rms 11.'
    """
    del state
    mean, deviation, rms = (number(values[name]) for name in ("mean", "deviation", "rms"))
    layer, root = (", ".join(map(number, values[name])) for name in ("layer", "root"))
    return (
        f"Mean {mean}, standard deviation {deviation}, rms {rms}. "
        f"LayerNorm gives {layer}. RMSNorm gives {root}."
    )


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: the numbers, and what each norm gives.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> state = {"first": 3, "second": 9, "third": 11, "fourth": 17}
        >>> drawing(state, values(**state))[1:]
        (680.0, 280.0)
    """
    canvas = Canvas()
    numbers = [state[name] + state.get("add", 0) for name in NAMES]
    marks = {"weight": ("7 4", values["mean"]), "key": ("2 4", values["rms"])}
    _draw_bars(canvas, 14.0, "four numbers", numbers, SHOWN, "query")
    _draw_bars(canvas, 248.0, "LayerNorm", values["layer"], 2.2, "value")
    _draw_bars(canvas, 472.0, "RMSNorm", values["root"], 2.2, "value")
    for role, (dash, level) in marks.items():
        y = _y(level, SHOWN)
        canvas.elements.append(
            f'<path d="M44 {y}h170" fill="none" stroke="{ROLES[role][0]}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
    words = (
        f"dashes: mean {number(values['mean'])}; dots: rms {number(values['rms'])}; "
        f"standard deviation {number(values['deviation'])}"
    )
    canvas.text(14, 270, words, anchor="start")
    return "\n".join(canvas.elements), 680.0, 280.0


_TOP, _HIGH = 46.0, 190.0


def _y(value: float, most: float) -> float:
    return _TOP + _HIGH * (most - value) / (2 * most)


def _draw_bars(
    canvas: Canvas, left: float, title: str, numbers: Sequence[float], most: float, role: str
) -> None:
    """Draw four bars from zero, with their numbers."""
    canvas.text(left, 20, title, anchor="start", bold=True)
    tick = 20 if most > 3 else 2
    for level in (-tick, 0, tick):
        y = _y(level, most)
        canvas.elements.append(
            f'<path d="M{left + 30} {y}h170" fill="none" stroke="{GRID}" stroke-width="1"/>'
        )
        canvas.text(left + 24, y + 4, number(level, 0), anchor="end", color=MUTED)
    for place, value in enumerate(numbers):
        x, y = left + 37 + 42.5 * place, _y(value, most)
        canvas.elements.append(
            f'<path d="M{x} {_y(0, most)}V{y}h28V{_y(0, most)}Z" fill="{ROLES[role][0]}"/>'
        )
        words = number(value, 1 if most > 3 else 2)
        canvas.text(x + 14, y + 16 if value < 0 else y - 6, words, color=INK)
