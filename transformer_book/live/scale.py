"""The live figure "scale": one query's weights without the root and with it.

The figure adds up products feature by feature and divides. Here the library attends, in float64.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import GRID, INK, MUTED, ROLES
from transformer_book.live.numbers import normals
from transformer_book.live.wording import number
from transformer_lib import attention

WIDTHS = tuple(2**power for power in range(11))
ROWS, KEYS = 31, 64  # queries and keys of a draw
DIVISORS = ("none", "root")
MOST = 0.9  # of the weight
POINTS = tuple(i * i // 4 for i in range(65))  # features added up, along a walk

_PURPLE = ROLES["weight"][0]
_LOOKS = {"root": (_PURPLE, "none", "divided by √d"), "none": (INK, "7 4", "as they are")}


def values(*, width: int, keys: int, draw: int) -> dict[str, Any]:
    """Let a query of random numbers attend to random keys, without the root and with it.

    Args:
        width: d, the number of features of a query and of a key.
        keys: n, how many keys there are.
        draw: the seed.

    Returns:
        For scores as they are (``none``) and divided by √d (``root``) the weights, largest first,
        and what is measured on them; ``typical`` holds the median query's largest weight at every
        width, for each of the two. ``walks`` holds how the scores grow, product by product, and
        ``ends`` where they are after d.

    Example:
        >>> found = values(width=64, keys=32, draw=9)
        >>> [round(found[by]["largest"], 2) for by in ("none", "root")]
        [0.82, 0.16]
    """
    found: dict[str, Any] = {"typical": [list(law) for law in _laws(draw, keys)]}
    for by in DIVISORS:
        scores, weights = (each[0] for each in _attend(draw, width, keys, by))  # (n,) each
        ordered = weights.sort(descending=True).values
        found[by] = {
            "weights": ordered.tolist(),
            "spread": scores.std().item(),
            "largest": weights.max().item(),
            "holders": int((ordered.cumsum(dim=0) < MOST).sum()) + 1,
        }
    queries, every_key = _draw(draw)
    grown = (queries[0] * every_key[:keys]).cumsum(dim=1)  # (n, D)
    walks = torch.nn.functional.pad(grown, (1, 0))[:, list(POINTS)]
    return {**found, "walks": walks.tolist(), "ends": grown[:, width - 1].tolist()}


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        Two sentences.

    Example:
        >>> state = {"width": 64, "keys": 32, "draw": 9}
        >>> say(state, values(**state)).partition(",")[2].partition(",")[0]
        ' the scores have a standard deviation of 8.26'
    """
    none, root = (
        [number(values[by]["spread"]), number(values[by]["largest"]), values[by]["holders"]]
        for by in DIVISORS
    )
    return (
        f"As they are, the scores have a standard deviation of {none[0]}, the largest of "
        f"{state['keys']} weights is {none[1]}, and nine tenths of the weight go to {none[2]} of "
        f"the keys. Divided by √{state['width']}, these three are {root[0]}, {root[1]} and "
        f"{root[2]}."
    )


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: both rows of weights, numbers, and the law.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> state = {"width": 64, "keys": 32, "draw": 9}
        >>> drawing(state, values(**state))[1:]
        (680.0, 460.0)
    """
    canvas = Canvas()
    title = f"one query, {state['keys']} keys, width {state['width']}"
    canvas.text(14, 22, title, size=13.5, bold=True, anchor="start")
    _draw_weights(canvas, 0.0, "Weights, scores as they are", values["none"]["weights"], INK)
    scaled = values["root"]["weights"]
    _draw_weights(canvas, 340.0, "Weights, scores divided by √d", scaled, _PURPLE)
    _draw_numbers(canvas, values)
    _draw_laws(canvas, state, values)
    return "\n".join(canvas.elements), 680.0, 460.0


@lru_cache(maxsize=9)
def _draw(draw: int) -> tuple[Float[Tensor, "R Dk"], Float[Tensor, "S Dk"]]:
    """Queries and keys of the widest head; a narrower one has their first features."""
    numbers = torch.from_numpy(normals(draw, (KEYS + ROWS) * WIDTHS[-1])).view(-1, WIDTHS[-1])
    return numbers[KEYS:], numbers[:KEYS]


def _scale(width: int, by: str) -> float:
    return 1 / math.sqrt(width) if by == "root" else 1.0


def _attend(
    draw: int, width: int, n: int, by: str
) -> tuple[Float[Tensor, "R S"], Float[Tensor, "R S"]]:
    """The scaled scores and the library's weights; the root is what it does by itself."""
    every_query, every_key = _draw(draw)
    q, k = every_query[:, :width], every_key[:n, :width]
    weights = attention(q, k, k, scale=None if by == "root" else _scale(width, by))[1]
    return _scale(width, by) * (q @ k.mT), weights


@lru_cache(maxsize=64)
def _laws(draw: int, n: int) -> tuple[tuple[float, ...], ...]:
    """For each divisor the median query's largest weight, at every width."""
    return tuple(
        tuple(_attend(draw, d, n, by)[1].amax(dim=-1).median().item() for d in WIDTHS)
        for by in DIVISORS
    )


# The static picture: two drawings of 340 by 210 side by side, numbers, two charts.
_LEFT, _RIGHT, _TOP, _FLOOR = 36.0, 318.0, 62.0, 196.0


def _up(share: float) -> float:
    return _FLOOR - share * (_FLOOR - _TOP)


def _path(
    d: str, stroke: str, *, fill: str = "none", dash: str = "none", width: float = 1.6
) -> str:
    return (
        f'<path d="{d}" fill="{fill}" stroke="{stroke}" stroke-width="{width}" '
        f'stroke-dasharray="{dash}"/>'
    )


def _draw_weights(
    canvas: Canvas, x: float, title: str, weights: Sequence[float], colour: str
) -> None:
    """Draw the weights as bars from 0 to 1, and what even weights would be."""
    left, right, n = x + _LEFT, x + _RIGHT, len(weights)
    wide = (right - left) / n
    canvas.text(x + 14, 46, title, color=MUTED, anchor="start")
    for tick in (0, 0.5, 1):
        canvas.elements.append(_path(f"M{left} {_up(tick)}H{right}", GRID, width=1))
        canvas.text(left - 6, _up(tick) + 4, f"{tick:g}", color=MUTED, anchor="end")
    bars = "".join(
        f"M{left + (place + 0.1) * wide} {_FLOOR}V{_up(p)}h{0.8 * wide}V{_FLOOR}Z"
        for place, p in enumerate(weights)
    )
    canvas.elements += [
        _path(bars, "none", fill=colour),
        _path(f"M{left} {_up(1 / n)}H{right}", INK, dash="4 3"),
    ]
    canvas.text(right, _up(1 / n) - 6, f"even: 1/{n}", color=MUTED, anchor="end")
    canvas.text((left + right) / 2, _FLOOR + 36, "keys, largest weight first")


def _draw_numbers(canvas: Canvas, values: Mapping[str, Any]) -> None:
    """Write what is measured, without the root and with it."""

    def both(name: str, digits: int = 2) -> str:
        return " → ".join(number(values[by][name], digits) for by in DIVISORS)

    canvas.text(14, 274, "this query: as it is → divided by √d", color=MUTED, anchor="start")
    rows = {
        "standard deviation of the scores": both("spread"),
        "largest weight": both("largest"),
        "keys that hold 90% of the weight": both("holders", 0),
    }
    for place, (name, text) in enumerate(rows.items()):
        y = 302 + 24 * place
        canvas.text(14, y, name, anchor="start")
        canvas.text(304, y, text, anchor="end")
        canvas.elements.append(_path(f"M14 {y + 6}h290", GRID, width=1))


def _draw_laws(canvas: Canvas, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Draw the median query's largest weight at every width, without the root and with it."""
    left, right, high, floor = 340 + _LEFT, 340 + _RIGHT, 292.0, 404.0

    def point(width: int, y: float) -> str:
        share = math.log2(width) / math.log2(WIDTHS[-1])
        return f"{left + share * (right - left)} {floor - y * (floor - high)}"

    words = f"largest weight; lines: the median of {ROWS} queries"
    canvas.text(354, high - 18, words, color=MUTED, anchor="start")
    for tick in (0, 0.5, 1):
        y = floor - tick * (floor - high)
        canvas.elements.append(_path(f"M{left} {y}H{right}", GRID, width=1))
        canvas.text(left - 6, y + 4, f"{tick:g}", color=MUTED, anchor="end")
    for width in (1, 4, 16, 64, 256, 1024):
        canvas.text(float(point(width, 0).split()[0]), floor + 18, str(width), color=MUTED)
    canvas.text((left + right) / 2, floor + 35, "width d")
    curves = dict(zip(DIVISORS, values["typical"], strict=True))
    for place, (by, (colour, dash, name)) in enumerate(_LOOKS.items()):
        points = "L".join(map(point, WIDTHS, curves[by]))
        canvas.elements.append(_path(f"M{points}", colour, dash=dash, width=2.2))
        x = 354 + 160 * place
        canvas.elements.append(_path(f"M{x} 450h26", colour, dash=dash, width=2.2))
        canvas.text(x + 32, 454, name, anchor="start")
        cx, cy = point(state["width"], values[by]["largest"]).split()
        canvas.elements.append(f'<circle cx="{cx}" cy="{cy}" r="5" fill="{colour}"/>')
