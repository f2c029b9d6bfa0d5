"""The live figure of chapter 3: one query among five keys in the plane."""

import math
from typing import Any

import torch

from transformer_book.figures.pictures import GRID, INK, MUTED, PAPER, ROLES
from transformer_book.live.wording import number, short
from transformer_lib import attention

WORDS = ("The", "quick", "brown", "fox", "jumps")
SIZE = 300.0  # of a plane, in px
KEY_RANGE, VALUE_RANGE = 4.0, 1.5
SHORTEST = 1e-6  # a gradient below that counts as 0


def values(**state: Any) -> dict[str, Any]:
    """Compute what the figure shows, with the library's attention and autograd.

    Args:
        state: the settings of the figure.

    Returns:
        Scores, weights, the answer, and the gradient of the answer's length.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> found = values(
        ...     **complete(FIGURES["attention-plane"], {"query": (0, 0)})
        ... )
        >>> [round(weight, 2) for weight in found["weights"]]
        [0.2, 0.2, 0.2, 0.2, 0.2]
    """
    query = torch.tensor([state["query"]], dtype=torch.float64, requires_grad=True)  # (1, 2)
    keys = _rows(state, "key").requires_grad_()  # (S, 2)
    answer, weights = attention(query, keys, _rows(state, "value"))
    length = answer.norm()
    if length > 0:  # at zero the length has no gradient; the figure shows none
        length.backward()
    scores = (query @ keys.T / math.sqrt(2))[0]
    zero = torch.zeros(1, dtype=torch.float64)
    return {
        "scores": scores.tolist(),
        "weights": weights[0].tolist(),
        "answer": answer[0].tolist(),
        "query": (zero.expand(2) if query.grad is None else query.grad[0]).tolist(),
        "keys": (zero.expand(5, 2) if keys.grad is None else keys.grad).tolist(),
    }


def _rows(state: dict[str, Any], kind: str) -> torch.Tensor:
    rows = [state[f"{kind}{at}"] for at in range(len(WORDS))]
    return torch.tensor(rows, dtype=torch.float64)


def say(state: dict[str, Any], values: dict[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        The words of the live figure.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["attention-plane"], {})
        >>> say(start, values(**start))[-21:]
        'Answer: (0.42, 0.42).'
    """
    shares = zip(WORDS, values["weights"], strict=True)
    gradient = ""
    if state["gradient"]:
        on_query = _size(values["query"])
        on_keys = _size([each for key in values["keys"] for each in key])
        gradient = f" The gradient of the answer’s length: {on_query} on the query, "
        gradient += f"{on_keys} on all keys."
    return (
        f"The query {_pair(state['query'])} has the length {number(math.hypot(*state['query']))}. "
        f"Weights: {', '.join(f'{word} {number(weight)}' for word, weight in shares)}. "
        f"Answer: {_pair(values['answer'])}.{gradient}"
    )


def _size(gradient: list[float]) -> str:
    length = math.hypot(*gradient)
    return "0" if length < SHORTEST else short(length)


def _pair(point: list[float]) -> str:
    return f"({', '.join(map(number, point))})"


def drawing(state: dict[str, Any], values: dict[str, Any]) -> tuple[str, float, float]:
    """Draw the static picture.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["attention-plane"], {})
        >>> drawing(start, values(**start))[1:]
        (660.0, 340.0)
    """
    left = _plane(10, KEY_RANGE, "query of “fox”, and keys", "noun", "adjective")
    right = _plane(350, VALUE_RANGE, "values, their convex hull, the answer", "fast", "brown")
    parts = [*left, _query(state["query"])]
    spots: dict[tuple[float, float], list[str]] = {}  # keys that lie on one another
    for at, word in enumerate(WORDS):
        spots.setdefault(tuple(state[f"key{at}"]), []).append(word)
    parts += [_key(spot, words) for spot, words in spots.items()]
    parts += [*right, *_answer(state, values)]
    return "\n".join(parts), 660.0, 340.0


def _place(left: float, span: float, point: list[float] | tuple[float, ...]) -> tuple[float, float]:
    x, y = (SIZE * (each + span) / (2 * span) for each in point)
    return left + x, 32 + SIZE - y


def _plane(left: float, span: float, title: str, across: str, up: str) -> list[str]:
    x, y = _place(left, span, (0, 0))
    return [
        _text(left + SIZE - 5, y - 7, f"{across} →", anchor="end", color=MUTED),
        _text(x + 7, 47, f"↑ {up}", anchor="start", color=MUTED),
        f'<rect x="{left}" y="32" width="{SIZE}" height="{SIZE}" fill="none" stroke="{GRID}"/>',
        f'<path d="M{x} 32v{SIZE}M{left} {y}h{SIZE}" stroke="{GRID}" stroke-width="1.4"/>',
        _text(left, 20, title, anchor="start", color=MUTED),
    ]


def _text(x: float, y: float, words: str, *, anchor: str = "middle", color: str = INK) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="14" text-anchor="{anchor}" fill="{color}">{words}</text>'
    )


def _query(point: list[float]) -> str:
    x, y = _place(10, KEY_RANGE, point)
    from_x, from_y = _place(10, KEY_RANGE, (0, 0))
    color = ROLES["query"][0]
    return (
        f'<path d="M{from_x} {from_y}L{x} {y}" stroke="{color}" stroke-width="3"/>'
        f'<circle cx="{x}" cy="{y}" r="8" fill="{color}" stroke="{PAPER}" stroke-width="2"/>'
        + _text(x + 13, y + 5, f"query {_pair(point)}", anchor="start", color=color)
    )


def _key(point: tuple[float, float], words: list[str]) -> str:
    x, y = _place(10, KEY_RANGE, point)
    below = point[1] <= 0 and point[0] <= 0
    return (
        f'<rect x="{x - 7}" y="{y - 7}" width="14" height="14" fill="{ROLES["key"][0]}" '
        f'stroke="{PAPER}" stroke-width="2"/>'
        + _text(
            x + (-12 if below else 12),
            y + (18 if below else -8),
            ", ".join(words),
            anchor="end" if below else "start",
        )
    )


def _answer(state: dict[str, Any], values: dict[str, Any]) -> list[str]:
    x, y = _place(350, VALUE_RANGE, values["answer"])
    color = ROLES["weight"][0]
    lines: list[str] = []
    dots: list[str] = []
    names: dict[tuple[float, float], list[str]] = {}
    for at, (word, weight) in enumerate(zip(WORDS, values["weights"], strict=True)):
        point = tuple(state[f"value{at}"])
        from_x, from_y = _place(350, VALUE_RANGE, point)
        lines.append(
            f'<path d="M{from_x} {from_y}L{x} {y}" stroke="{color}" opacity="0.45" '
            f'stroke-width="{0.5 + 12 * weight}"/>'
        )
        dots.append(
            f'<circle cx="{from_x}" cy="{from_y}" r="8" fill="{ROLES["value"][0]}" '
            f'stroke="{PAPER}" stroke-width="2"/>'
        )
        names.setdefault(point, []).append(f"{word} {number(weight)}")
    for (px, py), words in names.items():
        from_x, from_y = _place(350, VALUE_RANGE, (px, py))
        low = px <= 0 and py <= 0
        step = (
            (-8.0, 24.0, "end")
            if low
            else (10.0, -12.0, "start")
            if px <= 0
            else (0.0, 24.0, "middle")
        )
        dots += [
            _text(from_x + step[0], from_y + step[1] + 17 * row, name, anchor=step[2])
            for row, name in enumerate(words)
        ]
    ring = f'<circle cx="{x}" cy="{y}" r="11" fill="{PAPER}" stroke="{color}" stroke-width="4"/>'
    label = _text(
        x + 17, y - 10, f"({', '.join(map(number, values['answer']))})", anchor="start", color=color
    )
    corners = "L".join(f"{px} {py}" for px, py in _hull(state))
    soft = ROLES["value"][1]
    hull = f'<path d="M{corners}Z" fill="{soft}" stroke="{soft}" stroke-width="6"/>'
    return [hull, *lines, *dots, ring, label]


def _hull(state: dict[str, Any]) -> list[tuple[float, float]]:
    """The corners of the region between the values, in the order in which they are drawn."""
    places = sorted({_place(350, VALUE_RANGE, state[f"value{at}"]) for at in range(len(WORDS))})
    corners: list[tuple[float, float]] = []
    for line in (places, places[::-1]):
        side: list[tuple[float, float]] = []
        for px, py in line:
            while len(side) > 1 and _turn(side[-2], side[-1], (px, py)) <= 0:
                side.pop()
            side.append((px, py))
        corners += side
    return corners


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
