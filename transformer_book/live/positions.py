"""The live figure "positions": two words carry their vectors along a text.

The figure turns, adds and counts in plain loops. Here the library places both words, in float64.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import GRID, INK, MUTED, PAPER, ROLES
from transformer_book.live.numbers import normals
from transformer_book.live.strokes import stroke
from transformer_book.live.wording import number
from transformer_lib import RopeScaling, TransformerConfig
from transformer_lib.layers.positions import (
    AddedPositions,
    AlibiBias,
    T5Bias,
    rope_angles,
    rotate,
)

PAIRS, WIDTH = 4, 8  # of the head
PLACES, FARTHEST = 40, 24  # of the text; how far after the key the query may stand
ROWS = PLACES + FARTHEST  # of the learned table: the curve goes on beyond the text
SEED, LEARNED = 4874, 0.5  # of all vectors; the spread of what is learned
HEADS, HEAD = 8, 3  # ALiBi's head 4 of 8
BUCKETS = 16  # T5's, on one side of the query; keys to its right have as many
SCHEMES = {
    "none": "none",
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "rope": "RoPE",
    "alibi": "ALiBi",
    "t5": "T5 bias",
}

Vectors = Float[Tensor, "distances Dk"]


def values(*, scheme: str, key: int, distance: int, theta: float, stretch: float) -> dict[str, Any]:
    """Place two words in a text, and score them by every scheme.

    Args:
        scheme: whose vectors are shown, one of ``SCHEMES``.
        key: the place of the key, 0 to 39.
        distance: how many places after it the query stands, 0 to 24.
        theta: RoPE's base.
        stretch: by what RoPE's positions are divided.

    Returns:
        The pairs of features of ``query`` and ``key`` as they are multiplied, the ``turns``
        between them as a share of a full turn, what they add to the score (``parts``), the
        ``bias``, the ``score``, and the score at each distance for all schemes (``curves``).

    Example:
        >>> found = values(
        ...     scheme="rope", key=4, distance=4, theta=10_000, stretch=1
        ... )
        >>> round(found["score"], 2), round(found["curves"]["none"][4], 2)
        (0.31, 1.31)
    """
    query_vectors, key_vectors, bias = _placed(scheme, key, theta, stretch)
    query, own = query_vectors[distance].view(PAIRS, 2), key_vectors[distance].view(PAIRS, 2)
    parts = (query * own).sum(dim=-1) / WIDTH**0.5
    crossed = query[:, 0] * own[:, 1] - query[:, 1] * own[:, 0]
    turns = torch.atan2(crossed.abs(), (query * own).sum(dim=-1)) / (2 * torch.pi)
    curves = {each: list(_curve(each, key, theta, stretch)) for each in SCHEMES}
    return {
        "query": query.tolist(),
        "key": own.tolist(),
        "bias": bias[distance].item(),
        "score": curves[scheme][distance],
        "parts": parts.tolist(),
        "turns": turns.tolist(),
        "curves": curves,
    }


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        A sentence.

    Example:
        >>> state = dict(
        ...     scheme="rope", key=4, distance=4, theta=10_000, stretch=1
        ... )
        >>> say(state, values(**state)).partition(": ")[2]
        'at distance 4 RoPE gives the score 0.31.'
    """
    key, distance = state["key"], state["distance"]
    scheme = "no scheme" if state["scheme"] == "none" else SCHEMES[state["scheme"]]
    return (
        f"The key man stands at place {key}, the query runs at place {key + distance}: at distance "
        f"{distance} {scheme} gives the score {number(values['score'])}."
    )


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: the text, the pairs as hands, the score at each distance.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Raises:
        ValueError: if the query would stand beyond the text.

    Example:
        >>> state = dict(
        ...     scheme="rope", key=4, distance=4, theta=10_000, stretch=1
        ... )
        >>> drawing(state, values(**state))[1:]
        (680.0, 510.0)
    """
    if state["key"] + state["distance"] >= PLACES:
        farthest = PLACES - 1 - state["key"]
        raise ValueError(
            f"distance={state['distance']}; expected at most {farthest} with key={state['key']}: "
            f"the text has {PLACES} places"
        )
    canvas = Canvas()
    _draw_text(canvas, state)
    _draw_hands(canvas, state, values)
    _draw_curves(canvas, state, values)
    return "\n".join(canvas.elements), 680.0, 510.0


@lru_cache(maxsize=1)
def _drawn() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The query, the key, the learned table (64, 8) and T5's biases (16)."""
    numbers = torch.tensor(normals(SEED, 2 * WIDTH + ROWS * WIDTH + BUCKETS))
    query, key, table, biases = numbers.split([WIDTH, WIDTH, ROWS * WIDTH, BUCKETS])
    return query, key, LEARNED * table.view(ROWS, WIDTH), LEARNED * biases


@torch.no_grad()
def _placed(
    scheme: str, key: int, theta: float, stretch: float
) -> tuple[Vectors, Vectors, Float[Tensor, " distances"]]:
    """Query and key as the library places them, and its bias, at each distance."""
    query, own, _, _ = _drawn()
    queries, keys = (x.expand(FARTHEST + 1, WIDTH) for x in (query, own))
    distances = torch.arange(FARTHEST + 1)
    places, bias = key + distances, torch.zeros(FARTHEST + 1, dtype=torch.float64)
    if scheme in ("learned", "sinusoidal"):
        add = _adder(scheme)
        queries = add(queries[None], places[None])[0]
        keys = add(keys[None], torch.full_like(places, key)[None])[0]
    elif scheme == "rope":
        scaling = RopeScaling(kind="linear", factor=stretch) if stretch > 1 else None
        queries, keys = (
            rotate(x, rope_angles(at, WIDTH, theta, scaling=scaling))
            for x, at in ((queries, places), (keys, torch.full_like(places, key)))
        )
    elif scheme == "alibi":
        bias = AlibiBias(HEADS)(distances[:, None])[0, HEAD, :, 0].double()
    elif scheme == "t5":
        bias = _t5()(distances[:, None])[0, 0, :, 0]
    return queries, keys, bias


@lru_cache(maxsize=2)
def _adder(scheme: Any) -> AddedPositions:
    config = TransformerConfig(d_model=WIDTH, n_heads=1, position=scheme, max_len=ROWS)
    add = AddedPositions(config).double()
    if add.table is not None:
        add.table.weight = nn.Parameter(_drawn()[2])
    return add


@lru_cache(maxsize=1)
def _t5() -> T5Bias:
    biases = _drawn()[3]
    t5 = T5Bias(1, bidirectional=True, n_buckets=2 * BUCKETS)
    t5.table.weight = nn.Parameter(torch.cat((biases, torch.zeros_like(biases)))[:, None])
    return t5


@lru_cache(maxsize=512)
def _curve(scheme: str, key: int, theta: float, stretch: float) -> tuple[float, ...]:
    """The score at each distance."""
    queries, keys, bias = _placed(scheme, key, theta, stretch)
    scores = (queries * keys).sum(dim=-1) / WIDTH**0.5 + bias
    return tuple(scores.tolist())


# The static picture: a strip, four faces in a row, a chart with its names beside it.
_LOOKS = {  # role and dash of each scheme's line
    "none": ("plain", "2 4"),
    "learned": ("key", "7 4"),
    "sinusoidal": ("value", "9 3 2 3"),
    "rope": ("weight", "none"),
    "alibi": ("query", "14 4"),
    "t5": ("muted", "4 2"),
}
_LEFT, _RIGHT, _TOP, _FLOOR = 46.0, 440.0, 300.0, 460.0
_RADIUS = 42.0


def _colour(role: str) -> str:
    return MUTED if role == "muted" else ROLES[role][0]


def _draw_text(canvas: Canvas, state: Mapping[str, Any]) -> None:
    """Draw the places of the text, and the two words on theirs."""
    unit, y = 660 / PLACES, 52.0
    words = f"two words in a text of {PLACES} places; distance {state['distance']}"
    canvas.text(14, 18, words, color=MUTED, anchor="start")
    spots = {"key": state["key"], "query": state["key"] + state["distance"]}
    roles = {place: role for role, place in spots.items()}
    for place in range(PLACES):
        fill = _colour(roles[place]) if place in roles else PAPER
        canvas.elements.append(
            f'<rect x="{11 + place * unit}" y="{y}" width="{unit - 2}" height="16" rx="2" '
            f'fill="{fill}" stroke="{GRID}"/>'
        )
    for role, word, line in (("query", "runs", y - 7), ("key", "man", y + 32)):
        x = 10 + (spots[role] + 0.5) * unit
        canvas.text(
            min(max(x, 40), 640), line, f"{word} {spots[role]}", bold=True, color=_colour(role)
        )


def _draw_hands(canvas: Canvas, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Draw each pair of features as two hands, and what it adds to the score."""
    words = "their pairs of features, the key’s dashed; below, what each pair adds to the score"
    canvas.text(14, 112, words, color=MUTED, anchor="start")
    longest = 2.9 if state["scheme"] in ("learned", "sinusoidal") else 1.45
    for pair in range(PAIRS):
        x, y = 68 + 132.0 * pair, 132 + _RADIUS
        canvas.elements.append(
            f'<circle cx="{x}" cy="{y}" r="{_RADIUS}" fill="{PAPER}" stroke="{GRID}"/>'
        )
        for role, dash in (("query", "none"), ("key", "6 4")):
            dx, dy = (_RADIUS / longest * each for each in values[role][pair])
            canvas.elements.append(
                stroke(f"M{x} {y}l{dx} {-dy}", _colour(role), width=3, dash=dash)
            )
        turned = f"{number(360 * values['turns'][pair], 0)}° apart"
        canvas.text(x, y + _RADIUS + 18, turned, color=MUTED)
        canvas.text(x, y + _RADIUS + 38, number(values["parts"][pair]))
        if pair:
            canvas.text(x - 66, y + _RADIUS + 38, "+")
    canvas.text(596, 132 + _RADIUS - 6, "score", color=MUTED)
    canvas.text(596, 132 + _RADIUS + 16, number(values["score"]), size=19, bold=True)
    if state["scheme"] in ("alibi", "t5"):
        foot = 132 + 2 * _RADIUS + 38
        canvas.text(530, foot, "+")
        canvas.text(596, foot, f"bias {number(values['bias'])}")


def _draw_curves(canvas: Canvas, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Draw the score at each distance; the chosen scheme strong, with a dot."""

    def point(distance: int, score: float) -> tuple[float, float]:
        across = _LEFT + distance / FARTHEST * (_RIGHT - _LEFT)
        return across, _FLOOR - (score + 2) / 6.5 * (_FLOOR - _TOP)

    words = "score at every distance (learned, T5: random)"
    canvas.text(14, _TOP - 18, words, color=MUTED, anchor="start")
    for tick in (-2, 0, 2, 4):
        y = point(0, tick)[1]
        canvas.elements.append(stroke(f"M{_LEFT} {y}H{_RIGHT}", GRID, width=1))
        canvas.text(_LEFT - 7, y + 4, number(tick, 0), color=MUTED, anchor="end")
    for tick in (0, 10, 20):
        canvas.text(point(tick, 0)[0], _FLOOR + 18, str(tick), color=MUTED)
    canvas.text((_LEFT + _RIGHT) / 2, _FLOOR + 38, "distance from key to query", color=MUTED)
    for place, (scheme, name) in enumerate(SCHEMES.items()):
        role, dash = _LOOKS[scheme]
        is_chosen = scheme == state["scheme"]
        look = {"width": 2.6 if is_chosen else 1.5, "opacity": 1 if is_chosen else 0.5}
        line = _joined(point(at, each) for at, each in enumerate(values["curves"][scheme]))
        canvas.elements.append(stroke(line, _colour(role), dash=dash, **look))
        y = _TOP + 10 + 27 * place
        canvas.elements.append(stroke(f"M476 {y - 4}h30", _colour(role), dash=dash, width=2.6))
        score = number(values["curves"][scheme][state["distance"]])
        canvas.text(516, y, name, bold=is_chosen, anchor="start")
        canvas.text(660, y, score, bold=is_chosen, anchor="end")
    x, y = point(state["distance"], values["score"])
    canvas.elements.append(
        f'<circle cx="{x}" cy="{y}" r="6" fill="{INK}" stroke="{PAPER}" stroke-width="2"/>'
    )


def _joined(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
