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
POINTS = tuple(i * i // 4 for i in range(65))  # features added up, along a walk

_PURPLE = ROLES["weight"][0]
_LOOKS = {"none": (INK, "as they are"), "root": (_PURPLE, "divided by √d")}


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
        found[by] = {
            "weights": weights.sort(descending=True).values.tolist(),
            "spread": scores.std().item(),
            "largest": weights.max().item(),
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
        A sentence.

    Example:
        >>> state = {"width": 64, "keys": 32, "draw": 9}
        >>> say(state, values(**state)).rpartition(", ")[2]
        'and 0.16 if all scores are divided by √64.'
    """
    none, root = (number(values[by]["largest"]) for by in DIVISORS)
    return (
        f"Of {state['keys']} keys, the best one gets {none} of the weight if its score stays as it "
        f"is, and {root} if all scores are divided by √{state['width']}."
    )


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: how the scores grow, and both rows of weights.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> state = {"width": 64, "keys": 32, "draw": 9}
        >>> drawing(state, values(**state))[1:]
        (680.0, 508.0)
    """
    canvas = Canvas()
    _draw_walks(canvas, state, values)
    for left, by in zip((0.0, 340.0), DIVISORS, strict=True):
        _draw_weights(canvas, left, by, values[by])
    return "\n".join(canvas.elements), 680.0, 508.0


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


# The static picture: walks above, two drawings of 340 by 220 side by side below.
_LEFT, _RIGHT, _TOP, _FLOOR = 36.0, 318.0, 344.0, 464.0
_AXIS, _EDGE, _MIDDLE, _UNIT = 48.0, 610.0, 142.0, 1.5  # of the walks; px for a score of 1
_BEST = ROLES["key"][0]


def _path(
    d: str,
    stroke: str,
    *,
    fill: str = "none",
    dash: str = "none",
    width: float = 1.6,
    opacity: float = 1,
) -> str:
    return (
        f'<path d="{d}" fill="{fill}" stroke="{stroke}" stroke-width="{width}" '
        f'stroke-dasharray="{dash}" opacity="{opacity}"/>'
    )


def _walk_x(d: float) -> float:
    """Steps are drawn closer and closer, so that what grows like the root is a straight line."""
    return _AXIS + math.sqrt(d / WIDTHS[-1]) * (_EDGE - _AXIS)


def _walked(walk: Sequence[float], places: Sequence[int]) -> str:
    points = (f"{_walk_x(POINTS[at]):.0f} {_MIDDLE - _UNIT * walk[at]:.0f}" for at in places)
    return f"M{'L'.join(points)}"


def _draw_walks(canvas: Canvas, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Draw how the score of each key grows, product by product, and where it is after d."""
    d, root = state["width"], math.sqrt(WIDTHS[-1])
    words = "a walk for each key: every product is a step, and where it ends is the score"
    canvas.text(14, 20, words, color=MUTED, anchor="start")
    for tick in (-50, 0, 50):
        y = _MIDDLE - _UNIT * tick
        canvas.elements.append(_path(f"M{_AXIS} {y}H{_EDGE}", GRID, width=1))
        canvas.text(_AXIS - 6, y + 4, number(tick, 0), color=MUTED, anchor="end")
    canvas.text(_AXIS - 6, 40, "score", color=MUTED, anchor="end")
    for width in (4, 16, 64, 256, 1024):
        canvas.text(_walk_x(width), 262, str(width), color=MUTED)
    canvas.text(
        (_AXIS + _EDGE) / 2, 280, "features d: four times as many, twice the spread", color=MUTED
    )
    up, down = _MIDDLE - _UNIT * root, _MIDDLE + _UNIT * root
    band = f"M{_AXIS} {_MIDDLE}L{_EDGE} {up}V{down}Z"
    canvas.elements.append(_path(band, "none", fill=_PURPLE, opacity=0.12))
    canvas.text(_EDGE + 6, up + 4, "+√d = 32", color=_PURPLE, anchor="start")
    canvas.text(_EDGE + 6, down + 4, "−√d", color=_PURPLE, anchor="start")
    now = sum(point <= d for point in POINTS)
    before, after = range(now), range(max(0, now - 1), len(POINTS), 4)
    for walk in values["walks"]:
        canvas.elements.append(_path(_walked(walk, after), MUTED, width=1, opacity=0.18))
        canvas.elements.append(_path(_walked(walk, before), INK, width=1, opacity=0.5))
    best = values["ends"].index(max(values["ends"]))
    x, y = _walk_x(d), _MIDDLE - _UNIT * values["ends"][best]
    canvas.elements += [
        _path(_walked(values["walks"][best], before), _BEST, width=2.4),
        _path(f"M{x} 40V246", MUTED, dash="3 3"),
        f'<circle cx="{x}" cy="{y}" r="5" fill="{_BEST}"/>',
    ]
    aside, anchor = (10, "start") if x < 330 else (-10, "end")
    canvas.text(x + aside, y, "best key", bold=True, color=_BEST, anchor=anchor)
    low = _MIDDLE - _UNIT * min(values["ends"]) + 18
    words = f"standard deviation {number(values['none']['spread'], 1)}"
    canvas.text(x + aside, min(low, 242), words, color=MUTED, anchor=anchor)


def _up(share: float) -> float:
    return _FLOOR - share * (_FLOOR - _TOP)


def _draw_weights(canvas: Canvas, aside: float, by: str, found: Mapping[str, Any]) -> None:
    """Draw the weights of one query, the best key in its colour, and where even ones would be."""
    weights, (colour, name) = found["weights"], _LOOKS[by]
    left, right, n = aside + _LEFT, aside + _RIGHT, len(weights)
    canvas.text(left - 22, _TOP - 28, f"weights of the scores {name}", color=MUTED, anchor="start")
    for tick in (0, 0.5, 1):
        canvas.elements.append(_path(f"M{left} {_up(tick)}H{right}", GRID, width=1))
        canvas.text(left - 6, _up(tick) + 4, f"{tick:g}", color=MUTED, anchor="end")
    wide = (right - left) / n
    bars = [
        f"M{left + (place + 0.1) * wide} {_FLOOR}V{_up(p)}h{0.8 * wide}V{_FLOOR}Z"
        for place, p in enumerate(weights)
    ]
    canvas.elements += [
        _path("".join(bars[1:]), "none", fill=colour),
        _path(bars[0], "none", fill=_BEST),
        _path(f"M{left} {_up(1 / n)}H{right}", INK, dash="4 3"),
    ]
    largest = number(found["largest"])
    canvas.text(left + 2, _up(weights[0]) - 5, largest, bold=True, color=_BEST, anchor="start")
    canvas.text(right, _up(1 / n) - 6, f"even: 1/{n}", color=MUTED, anchor="end")
    canvas.text((left + right) / 2, _FLOOR + 36, "keys, largest weight first", color=MUTED)
