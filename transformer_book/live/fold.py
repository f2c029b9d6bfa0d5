"""The live figure "fold": ReLU units that fold the plane of four phrases.

The figure finds its output layer by Newton steps in plain loops. Here the library's feed-forward
network computes the units, and PyTorch finds the layer: L-BFGS, then steps by autograd's Hessian.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import GRID, INK, MUTED, PAPER, ROLES
from transformer_book.live.wording import number
from transformer_lib import FeedForward

PHRASES = {
    "very good": (1, 1),
    "very bad": (1, -1),
    "not good": (-1, 1),
    "not bad": (-1, -1),
}
TASKS = {"xor": (1, 0, 0, 1), "and": (1, 0, 0, 0)}
NAMES = {"xor": "XOR (praise)", "and": "AND"}
MOST = 6  # units
REACH, CELLS = 2.0, 15  # of the plane that is drawn, and how many squares of it are compared
DECAY = 1e-3
UNDECIDED = 0.05  # nearer than this to one half


def values(
    *, width: int, relu: bool, task: str, across: int = 1, up: int = 2, **units: list[float]
) -> dict[str, Any]:
    """Send four phrases through hidden units, and find the best output layer for them.

    Args:
        width: how many of the units there are.
        relu: whether a unit is silent below 0.
        task: which of ``TASKS`` is asked.
        across: which unit the picture shows from left to right; the numbers do not depend on it.
        up: and which from below.
        units: for unit k ``at_k``, a point of its line, and ``to_k``, its weights: a vector that
            stands upright on the line and points to the side on which the unit is on.

    Returns:
        ``hidden``, the units at the four phrases, ``weights`` and ``bias`` of the output layer, the
        ``shares`` it gives (probabilities), how many are ``right``, and its share all over the
        plane (``field``, row by row from the lower left).

    Example:
        >>> found = values(
        ...     width=1,
        ...     relu=True,
        ...     task="and",
        ...     at_1=[0.5, 0.5],
        ...     to_1=[1.0, 1.0],
        ... )
        >>> found["hidden"], found["right"]
        ([[1.0], [0.0], [0.0], [0.0]], 4)
    """
    network = _network(width, relu, units)
    points = torch.tensor(list(PHRASES.values()), dtype=torch.float64)
    hidden = network(points)  # (4, F)
    weights, bias = _fitted(tuple(map(tuple, hidden.tolist())), TASKS[task])
    shares = torch.sigmoid(hidden @ weights + bias)
    away = (shares - 0.5).abs()
    wanted = torch.tensor(TASKS[task])
    right = ((shares > 0.5) == wanted.bool()) & (away >= UNDECIDED)
    steps = REACH * ((2 * torch.arange(CELLS, dtype=torch.float64) + 1) / CELLS - 1)
    plane = torch.cartesian_prod(steps, steps).flip(-1)  # rows of equal height, left to right
    return {
        "hidden": hidden.tolist(),
        "weights": weights.tolist(),
        "bias": bias.item(),
        "shares": shares.tolist(),
        "right": int(right.sum()),
        "undecided": int((away < UNDECIDED).sum()),
        "field": torch.sigmoid(network(plane) @ weights + bias).tolist(),
    }


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: the plane with the units' lines, and what two units say.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> state = complete(FIGURES["fold"], {})
        >>> drawing(state, values(**state))[1:]
        (680.0, 370.0)
    """
    canvas = Canvas()
    canvas.text(14, 18, "the plane, and the line of each unit", color=MUTED, anchor="start")
    across = min(state["across"], state["width"])
    up = state["up"] if state["up"] <= state["width"] else None
    shown = f"unit {across} says" if up is None else f"units {across} and {up} say"
    canvas.text(370, 18, f"what {shown}", color=MUTED, anchor="start")
    canvas.elements += [*_field(values["field"]), _frame(14), _frame(370), _axes(370)]
    units = [(state[f"at_{k + 1}"], state[f"to_{k + 1}"]) for k in range(state["width"])]
    for unit in units:  # before all handles, which stand on them
        _draw_unit_line(canvas, *unit, aside=any(_share_a_line(unit, o) for o in units))
    for k, unit in enumerate(units):
        _draw_unit(canvas, k + 1, *unit)
    axes = [across - 1, None if up is None else up - 1]
    _draw_line(canvas, axes, values)
    hidden = [[0 if k is None else h[k] for k in axes] for h in values["hidden"]]
    below: dict[tuple[float, ...], int] = {}
    for i, (name, point) in enumerate(PHRASES.items()):
        is_yes = bool(TASKS[state["task"]][i])
        words = f"{name} {number(values['shares'][i])}"
        x, y = _in_plane(*point)
        canvas.elements.append(_mark(x, y, is_yes))
        canvas.text(x, y + (-13 if point[1] > 0 else 24), words)
        x, y = _in_units(*hidden[i])
        rows = below.setdefault((x, y), 0)
        below[x, y] += 1
        canvas.elements.append(_mark(x, y, is_yes))
        canvas.text(x + 12, y + 18 + 16 * rows, name, anchor="start")
    canvas.elements += [_mark(20, 354, True), _mark(126, 354, False)]
    canvas.text(33, 359, "wanted: yes", anchor="start")
    canvas.text(139, 359, "wanted: no", anchor="start")
    result = f"output layer trained for these units: {values['right']} of 4 right"
    canvas.text(370, 359, result, anchor="start")
    return "\n".join(canvas.elements), 680.0, 370.0


def _network(width: int, relu: bool, units: Mapping[str, list[float]]) -> nn.Module:
    """The library's network up to its units: without ReLU, its first layer alone."""
    both = FeedForward(2, width).double().requires_grad_(False)
    at, to = (
        torch.tensor([units[f"{name}_{k + 1}"] for k in range(width)], dtype=torch.float64)
        for name in ("at", "to")
    )
    both.up.weight.copy_(to)
    both.up.bias.copy_(-(at * to).sum(dim=-1))
    return nn.Sequential(both.up, nn.ReLU()) if relu else both.up


@lru_cache(maxsize=256)
def _fitted(
    hidden: tuple[tuple[float, ...], ...], task: tuple[int, ...]
) -> tuple[Float[Tensor, " F"], Float[Tensor, ""]]:
    """The output layer of least cross-entropy, with a little weight decay."""
    inputs = nn.functional.pad(torch.tensor(hidden, dtype=torch.float64), (0, 1), value=1.0)
    wanted = torch.tensor(task, dtype=torch.float64)
    layer = torch.zeros(inputs.shape[1], dtype=torch.float64, requires_grad=True)

    def loss(weights: Tensor) -> Tensor:
        wrong = nn.functional.binary_cross_entropy_with_logits(inputs @ weights, wanted)
        total: Tensor = wrong + DECAY / 2 * weights.square().sum()
        return total

    optimizer = torch.optim.LBFGS([layer], line_search_fn="strong_wolfe", max_iter=60)

    def step() -> float:
        optimizer.zero_grad()
        total = loss(layer)
        total.backward()
        return total.item()

    optimizer.step(step)
    for _ in range(3):  # near the end each step doubles the digits
        (slope,) = torch.autograd.grad(loss(layer), layer, create_graph=True)
        rows = [torch.autograd.grad(each, layer, retain_graph=True)[0] for each in slope]
        layer.data -= torch.linalg.solve(torch.stack(rows), slope.detach())
    found = layer.detach()
    return found[:-1], found[-1]


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        Three sentences.

    Example:
        >>> state = dict(
        ...     width=1,
        ...     relu=True,
        ...     task="and",
        ...     at_1=[0.5, 0.5],
        ...     to_1=[1.0, 1.0],
        ... )
        >>> say(state, values(**state)).partition(".")[0]
        'Unit 1 is on for very good'
    """
    on = []
    for k in range(state["width"]):
        names = [name for name, h in zip(PHRASES, values["hidden"], strict=True) if h[k] > 1e-9]
        on.append(f"unit {k + 1} is on for {', '.join(names) or 'none of them'}")
    first = (
        f"{'; '.join(on)}."
        if state["relu"]
        else "Without ReLU no unit is ever off, and nothing folds."
    )
    shares = zip(PHRASES, map(number, values["shares"]), strict=True)
    open_ = f", {values['undecided']} undecided" if values["undecided"] else ""
    return (
        f"{first[0].upper()}{first[1:]} {NAMES[state['task']]}: "
        f"{', '.join(f'{name} {share}' for name, share in shares)}. "
        f"{values['right']} of 4 right{open_}."
    )


_Unit = tuple[list[float], list[float]]  # a point of its line, and where its arrow points

# The static picture: two squares of 300 side by side.
_SIDE, _TOP = 300.0, 30.0
_LOWEST, _HIGHEST = -3.2, 4.0  # of what two units say


def _in_plane(a: float, b: float) -> tuple[float, float]:
    return 14 + _SIDE * (a + REACH) / (2 * REACH), _TOP + _SIDE * (REACH - b) / (2 * REACH)


def _in_units(one: float, other: float) -> tuple[float, float]:
    unit = _SIDE / (_HIGHEST - _LOWEST)
    return 370 + unit * (one - _LOWEST), _TOP + unit * (_HIGHEST - other)


def _path(d: str, stroke: str, *, width: float = 2, opacity: float = 1) -> str:
    return (
        f'<path d="{d}" fill="none" stroke="{stroke}" stroke-width="{width}" opacity="{opacity}"/>'
    )


def _frame(x: float) -> str:
    return _path(f"M{x} {_TOP}h{_SIDE}v{_SIDE}h{-_SIDE}z", GRID, width=1)


def _axes(x: float) -> str:
    zero_x, zero_y = _in_units(0, 0)
    return _path(f"M{zero_x} {_TOP}v{_SIDE}M{x} {zero_y}h{_SIDE}", MUTED, width=1)


def _field(shares: list[float]) -> list[str]:
    """The squares of the plane where the answer is yes, and where it is no."""
    side = _SIDE / CELLS
    squares = {"key": "", "value": ""}
    for place, share in enumerate(shares):
        if abs(share - 0.5) >= UNDECIDED:
            x, y = 14 + place % CELLS * side, _TOP + _SIDE - place // CELLS * side
            squares["value" if share > 0.5 else "key"] += f"M{x} {y}h{side}v{-side}h{-side}z"
    return [f'<path d="{d}" fill="{ROLES[role][1]}"/>' for role, d in squares.items() if d]


def _mark(x: float, y: float, is_yes: bool) -> str:
    look = f'fill="{ROLES["value" if is_yes else "key"][0]}" stroke="{PAPER}" stroke-width="2"'
    if is_yes:
        return f'<circle cx="{x}" cy="{y}" r="7.5" {look}/>'
    return f'<rect x="{x - 7}" y="{y - 7}" width="14" height="14" {look}/>'


def _clipped(
    point: tuple[float, float], along: tuple[float, float], low: float, high: float
) -> list[tuple[float, float]]:
    """Where a line enters and leaves a square; nothing if it passes it by."""
    start, end = -math.inf, math.inf
    for at, by in zip(point, along, strict=True):
        if abs(by) < 1e-9:
            if not low <= at <= high:
                return []
            continue
        near, far = sorted(((low - at) / by, (high - at) / by))
        start, end = max(start, near), min(end, far)
    if start >= end or math.isinf(start):
        return []
    return [(point[0] + t * along[0], point[1] + t * along[1]) for t in (start, end)]


def _share_a_line(one: _Unit, other: _Unit) -> bool:
    """Whether two units turn on at one line, at its two sides."""
    (at, to), (there, towards) = one, other
    sizes = math.hypot(*to) * math.hypot(*towards)
    is_opposite = sizes > 0 and to[0] * towards[0] + to[1] * towards[1] < -0.999 * sizes
    away = to[0] * (there[0] - at[0]) + to[1] * (there[1] - at[1])
    return is_opposite and abs(away) < 0.06 * math.hypot(*to)


def _draw_unit_line(canvas: Canvas, at: list[float], to: list[float], *, aside: bool) -> None:
    """Draw where a unit turns on, a little to its side if another line is there."""
    far = 0.04 / max(math.hypot(*to), 1e-9) if aside else 0.0
    ends = _clipped((at[0] + far * to[0], at[1] + far * to[1]), (-to[1], to[0]), -REACH, REACH)
    if ends:
        (x, y), (u, v) = (_in_plane(*end) for end in ends)
        canvas.elements.append(_path(f"M{x} {y}L{u} {v}", INK))


def _draw_unit(canvas: Canvas, k: int, at: list[float], to: list[float]) -> None:
    """Draw an arrow to the side on which a unit is on."""
    x, y = _in_plane(*at)
    u, v = _in_plane(*(min(max(a + b, -REACH), REACH) for a, b in zip(at, to, strict=True)))
    canvas.elements += [
        _path(f"M{x} {y}L{u} {v}", INK),
        f'<circle cx="{u}" cy="{v}" r="5" fill="{PAPER}" stroke="{ROLES["query"][0]}" '
        'stroke-width="2.5"/>',
        f'<circle cx="{x}" cy="{y}" r="10" fill="{ROLES["query"][0]}"/>',
    ]
    canvas.text(x, y + 5, str(k), bold=True, color=PAPER)


def _draw_line(canvas: Canvas, axes: list[int | None], values: Mapping[str, Any]) -> None:
    """Draw the output layer's line, if the units that are not shown have no part in it."""
    weights = values["weights"]
    hidden = [w for k, w in enumerate(weights) if k not in axes and abs(w) >= 0.005]
    one, other = (0.0 if k is None else weights[k] for k in axes)
    length = math.hypot(one, other)
    if hidden or length < 0.02 or axes[0] == axes[1]:
        return
    foot = (-values["bias"] * one / length**2, -values["bias"] * other / length**2)
    ends = _clipped(foot, (-other, one), _LOWEST, _HIGHEST)
    if ends:
        (x, y), (u, v) = (_in_units(*end) for end in ends)
        canvas.elements.append(_path(f"M{x} {y}L{u} {v}", ROLES["weight"][0], width=3))
