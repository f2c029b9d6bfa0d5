"""The live figure "scale": scores, weights and gradient for a width, a divisor and some keys.

The figure adds up products feature by feature, and sizes the softmax's Jacobian with a formula.
Here the library attends, and PyTorch builds the Jacobian, in float64.
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
from transformer_lib.attention import attention

WIDTHS = tuple(2**power for power in range(11))
ROWS, KEYS = 31, 64  # queries and keys of a draw
NAMES = {"none": "nothing", "root": "√d", "width": "d"}
BEHIND = 10.0  # how far behind the best score the drawing reaches

_PURPLE, _SOFT = ROLES["weight"]
_LOOKS = {"root": (_PURPLE, "none"), "none": (INK, "7 4"), "width": (MUTED, "2 4")}


def values(*, width: int, keys: int, by: str, draw: int) -> dict[str, Any]:
    """Let a query of random numbers attend to random keys.

    Args:
        width: d, the number of features of a query and of a key.
        keys: n, how many keys there are.
        by: what the scores are divided by: nothing (``none``), √d (``root``) or d (``width``).
        draw: the seed.

    Returns:
        Scores and weights, largest first, and what is measured on them; ``typical`` holds the
        median query's largest weight at every width, for each of the three divisors.

    Example:
        >>> found = values(width=64, keys=32, by="root", draw=7)
        >>> round(found["largest"], 2), round(found["effective"], 1)
        (0.11, 25.0)
    """
    scores, weights = _attend(draw, width, keys, by)  # (31, n) each
    slopes = torch.autograd.functional.jacobian(lambda row: row.softmax(dim=-1), scores[0])
    even = torch.full((keys,), 1 / keys, dtype=torch.float64)
    measured = {
        "spread": scores[0].std(),
        "largest": weights[0].max(),
        "effective": torch.special.entr(weights[0]).sum().exp(),
        "jacobian": slopes.norm(),
        "even": (torch.diag(even) - even[:, None] * even).norm(),
    }
    return {
        "scores": scores[0].sort(descending=True).values.tolist(),
        "weights": weights[0].sort(descending=True).values.tolist(),
        "expected": math.sqrt(width) * _scale(width, by),
        **{name: value.item() for name, value in measured.items()},
        "typical": [list(law) for law in _laws(draw, keys)],
    }


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        Three sentences.

    Example:
        >>> state = {"width": 64, "keys": 32, "by": "none", "draw": 7}
        >>> say(state, values(**state)).split(". ")[0]
        'The scores spread by 6.72; 8.00 is expected'
    """

    def short(name: str) -> str:
        value = values[name]
        return number(value, 2 if value < 9.995 else 1)

    return (
        f"The scores spread by {short('spread')}; {short('expected')} is expected. "
        f"The largest of {state['keys']} weights is {short('largest')}: "
        f"the query is as undecided as among {short('effective')} keys. "
        f"The softmax lets a gradient of {short('jacobian')} through; "
        f"even weights: {short('even')}."
    )


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: scores, weights, numbers, and the law.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> state = {"width": 64, "keys": 32, "by": "none", "draw": 7}
        >>> drawing(state, values(**state))[1:]
        (680.0, 460.0)
    """
    canvas = Canvas()
    divided = NAMES[state["by"]]
    title = f"width {state['width']}, {state['keys']} keys, divided by {divided}"
    canvas.text(14, 22, title, size=13.5, bold=True, anchor="start")
    _draw_scores(canvas, values["scores"], values["expected"])
    _draw_weights(canvas, values["weights"])
    _draw_numbers(canvas, state, values)
    _draw_laws(canvas, state, values)
    return "\n".join(canvas.elements), 680.0, 460.0


@lru_cache(maxsize=9)
def _draw(draw: int) -> tuple[Float[Tensor, "R K"], Float[Tensor, "S K"]]:
    """Queries and keys of the widest head; a narrower one has their first features."""
    numbers = torch.from_numpy(normals(draw, (KEYS + ROWS) * WIDTHS[-1])).view(-1, WIDTHS[-1])
    return numbers[KEYS:], numbers[:KEYS]


def _scale(width: int, by: str) -> float:
    return {"none": 1.0, "root": 1 / math.sqrt(width), "width": 1 / width}[by]


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
        for by in NAMES
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


def _draw_scores(canvas: Canvas, scores: Sequence[float], expected: float) -> None:
    """Draw each score as far left of the best as it is smaller, under the exponential."""

    def across(behind: float) -> float:
        return _RIGHT - 6 + behind / BEHIND * (_RIGHT - _LEFT - 6)

    def tip(behind: float) -> float:
        return _up(0.7 * math.exp(behind))

    near = [s - scores[0] for s in scores if s - scores[0] >= -BEHIND]
    curve = "".join(f"L{across(-x / 10)} {tip(-x / 10)}" for x in range(101))
    end = across(-min(expected, BEHIND))
    cap = "l7 -5m-7 5l7 5" if expected > BEHIND else "m0 -5v10"  # an arrow: it goes on
    canvas.text(14, 46, "Scores, as the softmax sees them", color=MUTED, anchor="start")
    canvas.elements += [
        _path(f"M{across(0)} {_FLOOR}{curve}V{_FLOOR}Z", "none", fill=_SOFT),
        _path(f"M{_LEFT} {_FLOOR}H{_RIGHT}", MUTED),
        _path(f"M{across(0)} 57v10m0 -5H{end}{cap}", INK),
        _path("".join(f"M{across(x)} {_FLOOR}V{tip(x)}" for x in near) or "M0 0", _PURPLE),
    ]
    for x in near:
        canvas.elements.append(
            f'<circle cx="{across(x)}" cy="{_FLOOR}" r="4.5" fill="{ROLES["key"][0]}" '
            'fill-opacity="0.6"/>'
        )
    canvas.text(_LEFT, 84, f"expected spread: {number(expected)}", color=MUTED, anchor="start")
    canvas.text(across(-1), tip(-0.5), "height: e to this power", color=MUTED, anchor="end")
    if len(near) < len(scores):
        far = f"← {len(scores) - len(near)} further behind"
        canvas.text(_LEFT, _FLOOR - 12, far, color=MUTED, anchor="start")
    for tick in (-10, -5, 0):
        canvas.text(across(tick), _FLOOR + 19, number(tick, 0), color=MUTED)
    canvas.text((_LEFT + _RIGHT) / 2, _FLOOR + 36, "score − largest score")


def _draw_weights(canvas: Canvas, weights: Sequence[float]) -> None:
    """Draw the weights as bars from 0 to 1, and what even weights would be."""
    left, right, n = 340 + _LEFT, 340 + _RIGHT, len(weights)
    wide = (right - left) / n
    canvas.text(354, 46, "Weights", color=MUTED, anchor="start")
    for tick in (0, 0.5, 1):
        canvas.elements.append(_path(f"M{left} {_up(tick)}H{right}", GRID, width=1))
        canvas.text(left - 6, _up(tick) + 4, f"{tick:g}", color=MUTED, anchor="end")
    bars = "".join(
        f"M{left + (place + 0.1) * wide} {_FLOOR}V{_up(p)}h{0.8 * wide}V{_FLOOR}Z"
        for place, p in enumerate(weights)
    )
    canvas.elements += [
        _path(bars, "none", fill=_PURPLE),
        _path(f"M{left} {_up(1 / n)}H{right}", INK, dash="4 3"),
    ]
    canvas.text(right, _up(1 / n) - 6, f"even: 1/{n}", color=MUTED, anchor="end")
    canvas.text((left + right) / 2, _FLOOR + 36, "keys, largest weight first")


def _draw_numbers(canvas: Canvas, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Write what is measured below the scores."""
    rows = {
        "standard deviation of the scores": number(values["spread"]),
        "expected": number(values["expected"]),
        "largest weight": number(values["largest"]),
        "effective number of keys": f"{number(values['effective'])} of {state['keys']}",
        "gradient let through": number(values["jacobian"]),
        "the same with even weights": number(values["even"]),
    }
    for place, (name, text) in enumerate(rows.items()):
        y = 292 + 24 * place
        canvas.text(14, y, name, anchor="start")
        canvas.text(304, y, text, anchor="end")
        canvas.elements.append(_path(f"M14 {y + 6}h290", GRID, width=1))


def _draw_laws(canvas: Canvas, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Draw the median query's largest weight at every width, for each divisor; a dot for this."""
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
    curves = dict(zip(NAMES, values["typical"], strict=True))
    for place, (by, (colour, dash)) in enumerate(_LOOKS.items()):
        points = "L".join(map(point, WIDTHS, curves[by]))
        canvas.elements.append(_path(f"M{points}", colour, dash=dash, width=2.2))
        x = 354 + 112 * place
        canvas.elements.append(_path(f"M{x} 450h26", colour, dash=dash, width=2.2))
        canvas.text(x + 32, 454, f"by {NAMES[by]}", anchor="start")
    cx, cy = point(state["width"], values["largest"]).split()
    colour = _LOOKS[state["by"]][0]
    canvas.elements.append(f'<circle cx="{cx}" cy="{cy}" r="5" fill="{colour}"/>')
