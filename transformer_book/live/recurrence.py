"""The live figure "recurrence": what is left of the first input after n steps of silence.

The figure multiplies and sums in plain loops. Here the book's own cells are run and PyTorch
differentiates them, in float64, so that the two agree only if both are right.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import GRID, INK, MUTED, ROLES
from transformer_book.live.wording import RAISED, short
from transformer_book.recurrent import CELLS, State
from transformer_lib import attention

LONGEST = 200
SMALLEST = 1e-300  # float64 has not much below; what is smaller counts as nothing
NAMES = ("RNN", "LSTM", "attention")
COLOURS = tuple(ROLES[role][0] for role in ("key", "query", "value"))
DASHES = ("none", "7 4", "2 4")  # never colour alone

Curves = tuple[list[float], list[float]]  # forwards and backwards, at distances 1 to 200

_LOWEST, _HIGHEST = -12, 4  # powers of ten on the chart of "tens"
_WORDS = {0.0: "nothing", 0.5: "half", 1.0: "all"}  # on that of "share"
_LEFT, _TOP, _WIDE, _HIGH = 60.0, 14.0, 322.0, 224.0  # where its frame stands


def values(
    *,
    distance: int,
    weight: float,
    tanh: bool,
    gate: float,
    score: float,
    axis: str = "share",
) -> dict[str, Any]:
    """Compute what is left of the first input, and of its gradient, at every distance.

    Args:
        distance: n, the number of steps between the first input and the reader.
        weight: w, of the RNN's state on the next state.
        tanh: whether the RNN has a tanh around its state.
        gate: f, the LSTM's forget gate.
        score: of the first token in attention; the others have 0.
        axis: of the chart, "share" or "tens"; the numbers do not depend on it.

    Returns:
        For the RNN, the LSTM's cell and attention: ``input`` and ``gradient`` at the distance,
        ``steps`` on the way, and ``inputs``, powers of ten at distances 1 to 200 (None for
        nothing). ``gradients`` are those of the RNN, likewise.

    Example:
        >>> found = values(
        ...     distance=3, weight=0.5, tanh=False, gate=1.0, score=0.0
        ... )
        >>> found["input"], found["steps"]
        ([0.125, 1.0, 0.25], [3, 3, 1])
    """
    curves = (_rnn(weight, tanh), _lstm(gate), _attention(score))
    here = [[curve[distance - 1] for curve in pair] for pair in curves]
    return {
        "input": [x if x >= SMALLEST else 0.0 for x, _ in here],
        "gradient": [x if x >= SMALLEST else 0.0 for _, x in here],
        "steps": [distance, distance, 1],
        "inputs": [_powers(forwards) for forwards, _ in curves],
        "gradients": _powers(curves[0][1]),  # those of the others are as their inputs
    }


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        A sentence.

    Example:
        >>> state = {
        ...     "distance": 3,
        ...     "weight": 0.5,
        ...     "tanh": False,
        ...     "gate": 1.0,
        ...     "score": 0.0,
        ... }
        >>> say(state, values(**state)).partition(", ")[0]
        'After 3 steps attention has 0.250 of the first input left'
    """
    n = state["distance"]
    rnn, lstm, attended = map(short, values["input"])
    return (
        f"After {n} {'step' if n == 1 else 'steps'} attention has {attended} of the first input "
        f"left, the LSTM {lstm} and the RNN {rnn}."
    )


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: the curves, the distance, the numbers.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> state = {
        ...     "distance": 3,
        ...     "weight": 0.5,
        ...     "tanh": False,
        ...     "gate": 1.0,
        ...     "score": 0.0,
        ... }
        >>> drawing(state, values(**state))[1:]
        (680.0, 282.0)
    """
    canvas = Canvas()
    axis = state.get("axis", "share")
    _draw_axes(canvas, axis, state["distance"])
    if state["tanh"]:
        _draw_curve(canvas, axis, values["gradients"], COLOURS[0], "9 3 2 3")
    for powers, colour, dash in zip(values["inputs"], COLOURS, DASHES, strict=True):
        _draw_curve(canvas, axis, powers, colour, dash)
    _draw_table(canvas, state, values)
    return "\n".join(canvas.elements), 680.0, 282.0


def _left(run: Callable[[Tensor], Tensor]) -> Curves:
    """Send a first input of 1 over each distance; return what arrives, and its gradient."""
    first = torch.ones(LONGEST, 1, dtype=torch.float64, requires_grad=True)  # a row a distance
    last = run(first)  # (200, 1)
    (gradient,) = torch.autograd.grad(last.sum(), first)
    return last.flatten().tolist(), gradient.flatten().tolist()


@lru_cache(maxsize=512)
def _rnn(weight: float, tanh: bool) -> Curves:
    """The book's RNN with a state of one number, or the one without tanh, made by hand."""
    cell = _silent("rnn", weight_hh=weight)
    if tanh:
        return _left(lambda first: _run(cell, State(first), lambda state: state.hidden))

    def by_hand(first: Tensor) -> Tensor:
        states = [first]
        for _ in range(LONGEST):
            states.append(weight * states[-1])  # h = w h + u x, and x is 0
        return _after(states[1:])

    return _left(by_hand)


@lru_cache(maxsize=512)
def _lstm(gate: float) -> Curves:
    """The cell of the book's LSTM: all W are 0, so the forget gate alone is between its steps."""
    logit = math.log(gate / (1 - gate)) if gate < 1 else math.inf
    cell = _silent("lstm", bias_ih=[0.0, logit, 0.0, 0.0])  # rows of the gates: i, f, g, o
    return _left(
        lambda first: _run(cell, State(torch.zeros_like(first), first), lambda state: state.cell)
    )


def _run(cell: Any, state: State, kept: Callable[[State], Tensor | None]) -> Tensor:
    """Let a cell read zeros, and return what is kept in row n after n steps."""
    from_x = cell.project(state.hidden.new_zeros(LONGEST, 1))  # (B, G)
    found = []
    for _ in range(LONGEST):
        state = cell.step(from_x, state)
        found.append(kept(state))
    return _after(found)


def _after(states: Sequence[Tensor | None]) -> Tensor:
    """Of all states after 1, 2, ... steps, each (B, 1), take row n after n steps."""
    return torch.cat([state for state in states if state is not None], dim=1).diagonal()[:, None]


def _attention(score: float) -> Curves:
    """A query that looks back over n + 1 tokens, of which the first has the score."""
    keys = torch.zeros(LONGEST, LONGEST + 1, 1, dtype=torch.float64)  # (B, S, 1)
    keys[:, 0] = score
    seen = torch.arange(LONGEST + 1) <= torch.arange(1, LONGEST + 1)[:, None]  # (B, S)

    def answer(first: Tensor) -> Tensor:
        silence = first.new_zeros(LONGEST, LONGEST, 1)
        value = torch.cat([first[:, None], silence], dim=1)  # (B, S, 1)
        query = first.new_ones(LONGEST, 1, 1)
        return attention(query, keys, value, seen[:, None], scale=1.0)[0][:, 0]

    return _left(answer)


def _silent(kind: str, **parameters: float | list[float]) -> Any:
    """A cell of one number whose parameters are 0, except those that are given."""
    cell = CELLS[kind](1, 1).double().requires_grad_(False)
    for name, parameter in cell.named_parameters():
        parameter.copy_(torch.tensor(parameters.get(name, 0.0), dtype=torch.float64))
    return cell


def _powers(curve: list[float]) -> list[float | None]:
    return [math.log10(x) if x >= SMALLEST else None for x in curve]


def _x(distance: float) -> float:
    return _LEFT + _WIDE * distance / LONGEST


def _y(axis: str, power: float | None) -> float:
    """The height of a power of ten; None is nothing at all."""
    if axis == "share":
        return _TOP + _HIGH * (1 - (0 if power is None else 10**power))
    return _TOP + _HIGH * (_HIGHEST - (_LOWEST if power is None else power)) / (_HIGHEST - _LOWEST)


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, more: str = "") -> str:
    return f'<path d="M{x} {y}L{to_x} {to_y}" fill="none" stroke="{colour}"{more}/>'


def _draw_axes(canvas: Canvas, axis: str, distance: int) -> None:
    ticks: dict[float, str] = _WORDS
    if axis == "tens":
        powers = range(_LOWEST, _HIGHEST + 1, 4)
        ticks = {10.0**n: f"10{str(n).translate(RAISED)}" if n else "1" for n in powers}
    for share, words in ticks.items():
        y = _y(axis, math.log10(share) if share else None)
        canvas.elements.append(_line(_LEFT, y, _LEFT + _WIDE, y, GRID))
        canvas.text(_LEFT - 6, y + 4, words, anchor="end", color=MUTED)
    for tick in range(0, LONGEST + 1, 50):
        canvas.text(_x(tick), _TOP + _HIGH + 17, str(tick), color=MUTED)
    canvas.text(_x(LONGEST / 2), _TOP + _HIGH + 36, "distance n, in steps", color=INK)
    more = ' stroke-dasharray="3 3" stroke-width="1.2"'
    canvas.elements.append(_line(_x(distance), _TOP, _x(distance), _TOP + _HIGH, MUTED, more))


def _draw_curve(
    canvas: Canvas, axis: str, powers: Sequence[float | None], colour: str, dash: str
) -> None:
    """Draw a curve up to where it leaves the chart."""
    path = f"M{_x(0)} {_y(axis, 0)}"
    for place, power in enumerate(powers, start=1):
        y = _y(axis, power)
        edge = min(max(y, _TOP), _TOP + _HIGH)
        path += f"L{_x(place)} {edge:.2f}"
        if edge != y:
            break
    canvas.elements.append(
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.2" '
        f'stroke-dasharray="{dash}"/>'
    )


def _draw_table(canvas: Canvas, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Write the numbers beside the chart: a block for each of the three."""
    inside = "tanh(w h)" if state["tanh"] else "w h"
    knobs = (
        f"h ← {inside}, w = {state['weight']:.2f}",
        f"c ← f c, f = {state['gate']:.2f}",
        f"score {state['score']:.1f}, the others 0",
    )
    left = _LEFT + _WIDE + 26
    canvas.text(left, 28, f"left at distance {state['distance']}", anchor="start", bold=True)
    for place, (name, knob, colour) in enumerate(zip(NAMES, knobs, COLOURS, strict=True)):
        y = 58 + 66.0 * place
        steps = values["steps"][place]
        more = f' stroke-width="2.2" stroke-dasharray="{DASHES[place]}"'
        canvas.elements.append(_line(left, y - 4, left + 22, y - 4, colour, more))
        canvas.text(left + 28, y, name, anchor="start", bold=True, color=colour)
        canvas.text(left + 100, y, knob, anchor="start", color=MUTED)
        both = (short(values["input"][place]), short(values["gradient"][place]))
        canvas.text(left + 28, y + 18, f"input {both[0]}, gradient {both[1]}", anchor="start")
        words = "1 step" if steps == 1 else f"{steps} steps, one after another"
        canvas.text(left + 28, y + 36, words, anchor="start")
    if state["tanh"]:
        canvas.text(left, 262, "dots and dashes: the RNN’s gradient", anchor="start")
