"""The live figure "norms": a stack of blocks without a norm, with post-norm and with pre-norm.

The figure goes forwards and backwards in plain loops. Here the library's feed-forward networks and
its LayerNorm make the stack, and PyTorch differentiates it, in float64.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import GRID, INK, MUTED, PAPER, ROLES
from transformer_book.live.numbers import normals
from transformer_book.live.strokes import stroke
from transformer_book.live.wording import number, short
from transformer_lib import FeedForward, layer_norm

WIDTH, HIDDEN, TOKENS, DEEPEST = 16, 32, 8, 64
ORDERS = {"none": "no norm", "post": "post-norm", "pre": "pre-norm"}

_LOOKS = {"none": ("key", "none"), "post": ("value", "7 4"), "pre": ("query", "2 4")}
_CHARTS = {"stream": "length of the stream", "gradient": "length of the gradient"}
_LOWEST, _HIGHEST = -6, 6  # powers of ten on the charts


def values(
    *, order: str, depth: int, write: float, alike: float, path: bool, final: bool, draw: int
) -> dict[str, Any]:
    """Send eight tokens through a stack in each of three orders, and a gradient back.

    Args:
        order: the one that the figure shows strongly; the numbers do not depend on it.
        depth: how many blocks.
        write: how long a block's write is, for each unit of length of what the block reads.
        alike: how much of the write is the same for every token.
        path: whether a write is added to the stream, or takes its place.
        final: whether a norm stands at the end of the stack.
        draw: the seed of all weights.

    Returns:
        For each of ``ORDERS``: ``stream`` and ``gradient``, their lengths (rms) after 0, 1, ...
        blocks as powers of ten; so are ``reads`` and ``writes``, of the last feed-forward network,
        and ``end``, of what leaves the stack. ``own`` is what of the last stream is not common to
        all tokens.

    Example:
        >>> found = values(
        ...     order="post",
        ...     depth=4,
        ...     write=1.0,
        ...     alike=0.0,
        ...     path=True,
        ...     final=False,
        ...     draw=1,
        ... )
        >>> [round(abs(each), 3) for each in found["post"]["stream"]]
        [0.0, 0.0, 0.0, 0.0, 0.0]
    """
    del order
    return {each: _run(each, depth, write, alike, path, final, draw) for each in ORDERS}


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        One sentence, and another where something is the same for all tokens.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> state = complete(FIGURES["norms"], {"order": "post", "depth": 2})
        >>> say(state, values(**state)).partition(",")[0]
        'With post-norm the stream’s length goes from 1 to 1.00 in 2 blocks'
    """
    found = values[state["order"]]
    normed = f"the norm at the end makes it {short(10 ** found['end'])}, " if state["final"] else ""
    own = f" Of the stream at the end, {number(found['own'])} is each token’s own."
    return (
        f"With {ORDERS[state['order']]} the stream’s length goes from 1 to "
        f"{short(10 ** found['stream'][-1])} in {state['depth']} blocks, {normed}and a gradient "
        f"of length 1 arrives at the bottom with {short(10 ** found['gradient'][0])}."
        f"{own if state['alike'] else ''}"
    )


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: both lengths at each depth, for the three orders.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> state = complete(FIGURES["norms"], {})
        >>> drawing(state, values(**state))[1:]
        (680.0, 300.0)
    """
    canvas = Canvas()
    for which, left in zip(_CHARTS, _LEFT, strict=True):
        _draw_chart(canvas, left, which, state, values)
    return "\n".join(canvas.elements), 680.0, 300.0


class _Weights:
    """All random numbers of a draw."""

    def __init__(self, draw: int) -> None:
        sizes = [TOKENS * WIDTH] * 2 + [HIDDEN * WIDTH, WIDTH * HIDDEN, WIDTH] * DEEPEST
        drawn = torch.from_numpy(normals(draw, sum(sizes)))
        start, direction, *rest = drawn.split(sizes)
        self.start = _norm(start.view(TOKENS, WIDTH))
        self.direction = (direction / _length(direction)).view(TOKENS, WIDTH)
        self.blocks = [
            (
                math.sqrt(2 / WIDTH) * up.view(HIDDEN, WIDTH),
                math.sqrt(1 / HIDDEN) * down.view(WIDTH, HIDDEN),
                alike / _length(alike),
            )
            for up, down, alike in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        ]


_weights = lru_cache(maxsize=9)(_Weights)


def _norm(x: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
    return layer_norm(x, torch.ones_like(x[0]))


def _length(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


@lru_cache(maxsize=512)
def _run(
    order: str, depth: int, write: float, alike: float, path: bool, final: bool, draw: int
) -> dict[str, Any]:
    weights = _weights(draw)
    block = FeedForward(WIDTH, HIDDEN).to("cpu", torch.float64).requires_grad_(False)
    block.up.bias.zero_()
    stream = [weights.start.clone().requires_grad_()]
    for up, down, common in weights.blocks[:depth]:
        block.up.weight = torch.nn.Parameter(up, requires_grad=False)
        block.down.weight = torch.nn.Parameter(
            write * math.sqrt(1 - alike**2) * down, requires_grad=False
        )
        block.down.bias = torch.nn.Parameter(write * alike * common, requires_grad=False)
        x = stream[-1]
        read = _norm(x) if order == "pre" else x
        written = block(read)
        after = x + written if path else written
        stream.append(_norm(after) if order == "post" else after)
    end = _norm(stream[-1]) if final else stream[-1]
    gradients = torch.autograd.grad(end, stream, weights.direction)
    last = stream[-1].detach()
    return {
        "stream": [_length(each.detach()).log10().item() for each in stream],
        "gradient": [_length(each).log10().item() for each in gradients],
        "reads": _length(read.detach()).log10().item(),
        "writes": _length(written.detach()).log10().item(),
        "end": _length(end.detach()).log10().item(),
        "own": (_length(last - last.mean(dim=0)) / _length(last)).item(),
    }


# The static picture: two charts side by side, with room for the names of the lines between them.
_TOP, _WIDE, _HIGH = 40.0, 220.0, 210.0
_LEFT = (78.0, 440.0)
_WORDS = {6: "a million", 3: "a thousand", 0: "1", -3: "a 1,000th", -6: "a millionth"}
_LIMITS = {"explodes": (_HIGHEST, 3, 14.0), "dies": (-3, _LOWEST, 47.0)}  # where its name stands


def _y(power: float) -> float:
    return _TOP + _HIGH * (_HIGHEST - power) / (_HIGHEST - _LOWEST)


def _inside(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The part of a curve that the chart shows, up to its very edge."""
    shown: list[tuple[float, float]] = []
    for before, after in zip([points[0], *points], points, strict=False):
        if _LOWEST <= after[1] <= _HIGHEST:
            shown.append(after)
        elif _LOWEST <= before[1] <= _HIGHEST:
            edge = _LOWEST if after[1] < _LOWEST else _HIGHEST
            share = (edge - before[1]) / (after[1] - before[1])
            shown.append((before[0] + share * (after[0] - before[0]), edge))
    return shown


def _apart(heights: list[float], least: float = 15) -> list[float]:
    """Heights that are at least so far apart, in their order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + least)
    return placed


def _draw_chart(
    canvas: Canvas, left: float, which: str, state: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Draw one length at each depth; the order in question strongly, each with its name."""
    is_stream = which == "stream"
    powers = values[state["order"]][which]
    # A norm at the end: from the first length to the second, and from there to what leaves the
    # stack; the gradient comes the other way, from length 1.
    normed = [values[state["order"]]["end"] if is_stream else 0.0] if state["final"] else []
    told = (short(10**power) for power in (powers[0], powers[-1], *normed))
    title = f"{_CHARTS[which]}: {' → '.join(told) if is_stream else ' ← '.join(told)}"
    canvas.text(left - 70, 22, title, anchor="start", bold=True)
    _draw_frame(canvas, left, is_stream)
    ends = []
    for name, (role, dash) in _LOOKS.items():
        is_chosen = name == state["order"]
        points = [(float(at), power) for at, power in enumerate(values[name][which])]
        if is_chosen or not is_stream:
            points += [(points[-1][0], power) for power in normed]
        if not is_stream:
            points.reverse()
        shown = _inside(points)
        places = [f"{left + _WIDE * at / DEEPEST:.1f} {_y(power):.1f}" for at, power in shown]
        look = {"width": 2.8} if is_chosen else {"width": 1.6, "opacity": 0.75}
        canvas.elements.append(stroke(f"M{'L'.join(places)}", ROLES[role][0], dash=dash, **look))
        if is_chosen and _LOWEST <= points[-1][1] <= _HIGHEST:
            cx, cy = places[-1].split()
            canvas.elements.append(
                f'<circle cx="{cx}" cy="{cy}" r="5" fill="{ROLES[role][0]}" stroke="{PAPER}" '
                'stroke-width="2"/>'
            )
        ends.append((left + _WIDE * shown[-1][0] / DEEPEST, _y(shown[-1][1])))
    for (name, (role, _)), (x, _), y in zip(
        _LOOKS.items(), ends, _apart([y for _, y in ends]), strict=True
    ):
        canvas.text(
            x + (10 if is_stream else -10), y + 4, ORDERS[name],
            anchor="start" if is_stream else "end", color=ROLES[role][0],
            bold=name == state["order"],
        )  # fmt: skip


def _draw_frame(canvas: Canvas, left: float, is_stream: bool) -> None:
    """Draw the axes, in words, and what is called to explode and to die."""
    for name, (high, low, down) in _LIMITS.items():
        canvas.elements.append(
            f'<rect x="{left}" y="{_y(high)}" width="{_WIDE}" height="{_y(low) - _y(high)}" '
            f'fill="{ROLES["key"][0]}" opacity="0.09"/>'
        )
        x, anchor = (left + 6, "start") if is_stream else (left + _WIDE - 6, "end")
        canvas.text(x, _y(high) + down, name, anchor=anchor, color=MUTED)
    for power, words in _WORDS.items():
        y = _y(power)
        canvas.elements.append(stroke(f"M{left} {y}h{_WIDE}", GRID))
        if is_stream:
            canvas.text(left - 6, y + 4, words, anchor="end", color=MUTED)
    for tick in range(0, DEEPEST + 1, 16):
        canvas.text(left + _WIDE * tick / DEEPEST, _TOP + _HIGH + 18, str(tick), color=MUTED)
    canvas.text(left + _WIDE / 2, _TOP + _HIGH + 36, "after block", color=INK)
