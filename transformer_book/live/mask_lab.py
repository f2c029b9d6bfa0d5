"""The live figure "mask-lab": a mask of eight positions, its weights, and who hears of whom.

The figure writes its rules as formulas of i and j. Here the library's masks and its attention are
called, and two of the three mistakes are those of the book's catalogue.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import GRID, INK, MUTED, PANEL, ROLES
from transformer_book.live.numbers import normals
from transformer_book.live.wording import number
from transformer_book.mistakes import mistake as made
from transformer_lib.layers import attention, masks

N = 8  # positions: T queries, S keys
WORDS = ("we", "saw", "her", "go", "home", "late", "last", "night")
SEED = 5  # the scores are random, and always the same
FOCUS = "4"  # who listens at the start
PAD = -1
CATALOGUE = {"next": "mask-sees-the-next-token", "late": "mask-after-softmax"}

_LEFT, _TOP, _HIGH = 66.0, 58.0, 22.0  # where the maps begin, and the height of a row
_NARROW, _WIDE = 17.0, 29.0  # the width of a cell, without and with a weight in it


def values(
    *,
    causal: bool,
    window: int,
    prefix: int,
    padding: str,
    pads: int,
    mistake: str,
    layers: int,
    cells: str,
    focus: str = FOCUS,
) -> dict[str, Any]:
    """Compute a mask, the weights that it leaves, and who hears of whom.

    Args:
        causal: whether the future is hidden.
        window: see only positions nearer than this; 0 for all.
        prefix: how many positions at the start are seen by all, with ``causal``.
        padding: where padding stands: ``"none"``, ``"end"`` or ``"start"``.
        pads: how many positions are padding.
        mistake: ``"none"``, ``"next"``, ``"late"`` or ``"queries"``.
        layers: L, all with this mask.
        cells: row after row, what is set by hand: ``1`` allows a cell and ``2`` forbids it,
            whatever the rules say; ``0`` leaves it to them. The rest may be left out.
        focus: the position whose hearing the live figure draws; the numbers do not depend on it.

    Returns:
        Tables (``wrong`` and ``stray``: what the rules do not mean), and what is counted in them.

    Example:
        >>> at = dict(causal=True, window=3, prefix=0, padding="none", pads=2)
        >>> found = values(**at, mistake="none", layers=2, cells="")
        >>> found["allowed"], found["counts"]
        (21, [1, 2, 3, 4, 5, 5, 5, 5])
    """
    rules: dict[str, Any] = {"causal": causal, "window": window, "prefix": prefix}
    real = _real(padding, pads)  # (S,)
    meant = _mask(**rules, real=real)
    with _making(mistake):
        used = _mask(**rules, real=real, on_queries=mistake == "queries")
        mask = (used | _is(cells, "1")) & ~_is(cells, "2")
        weights = _weights(mask)
    heard = _hears(mask, layers, late=mistake == "late")
    steps = [_hears(mask, each, late=mistake == "late") for each in range(1, layers + 1)]
    first = torch.where(heard, layers + 1 - torch.stack(steps).sum(dim=0), 0)
    stray = heard & ~_hears(meant, layers)
    partly = mask.any(dim=1) & ~mask.all(dim=1)
    shows = partly.any() if mistake == "late" else (used != meant).any()
    return {
        "tokens": [w if r else "<pad>" for w, r in zip(WORDS, real.tolist(), strict=True)],
        "mask": mask.int().tolist(),
        "weights": weights.tolist(),
        "heard": heard.int().tolist(),
        "first": first.tolist(),  # the layer after which it is heard; 0: never
        "stray": stray.int().tolist(),
        "wrong": (mask ^ meant).int().tolist(),
        "allowed": int(mask.sum()),
        "empty": (~mask.any(dim=1)).nonzero().flatten().tolist(),
        "sums": weights.sum(dim=1).tolist(),
        "counts": heard.sum(dim=1).tolist(),
        "onPads": weights[real][:, ~real].sum(dim=1).max().item(),
        "ahead": int(heard.triu(diagonal=1).sum()),
        "leaks": int(stray.triu(diagonal=1).sum()),
        "shows": bool(shows),
    }


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        Two or three sentences.

    Example:
        >>> at = dict(causal=True, window=3, prefix=0, padding="none", pads=2)
        >>> state = dict(**at, mistake="none", layers=2, cells="")
        >>> say(state, values(**state)).split(". ")[0]
        '21 of 64 pairs are allowed'
    """
    focus, leaks = int(state.get("focus", FOCUS)), values["leaks"]
    if not values["ahead"]:
        future = "nothing of the future comes through"
    elif not state["causal"]:
        future = "no rule hides the future"
    elif leaks:
        future = f"the future leaks in {leaks} {'pair' if leaks == 1 else 'pairs'}"
    else:
        future = "only the prefix hears ahead, as meant"
    words = (
        f"{values['allowed']} of 64 pairs are allowed{_say_sums(state['mistake'], values)}. "
        f"After {_layers(state)}, {values['tokens'][focus]} {focus} has heard of "
        f"{values['counts'][focus]} of the 8; {future}."
    )
    if state["padding"] == "none":
        return words
    share = f"up to {number(values['onPads'])} of their" if values["onPads"] else "no"
    return f"{words} Real tokens give padding {share} weight."


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the three maps beside each other, for print.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, the width and the height.

    Example:
        >>> at = dict(causal=True, window=3, prefix=0, padding="none", pads=2)
        >>> state = dict(**at, mistake="none", layers=2, cells="")
        >>> drawing(state, values(**state))[1:]
        (672.0, 264.0)
    """
    canvas = Canvas()
    for at, token in enumerate(values["tokens"]):
        canvas.text(_LEFT - 8, _row(at), f"{token} {at}", anchor="end")
    mask, wide = values["mask"], _LEFT + N * _NARROW + 18
    far = wide + N * _WIDE + 56
    canvas.elements.append(_HATCH)
    _draw_map(canvas, _LEFT, "mask", [[c or None for c in row] for row in mask], values["wrong"])
    shown = [
        [weight if allowed else None for weight, allowed in zip(*rows, strict=True)]
        for rows in zip(values["weights"], mask, strict=True)
    ]
    _draw_map(canvas, wide, "attention weights", shown, None)
    _draw_results(canvas, wide + N * _WIDE, "sum", [number(s) for s in values["sums"]])
    heard = [[cell or None for cell in row] for row in values["heard"]]
    _draw_map(canvas, far, f"heard after {_layers(state)}", heard, values["stray"])
    _draw_results(canvas, far + N * _NARROW, "n", [str(count) for count in values["counts"]])
    words = "rows: queries; columns: keys; hatched: forbidden, or not heard"
    canvas.text(_LEFT, _TOP + N * _HIGH + 20, words, anchor="start", color=MUTED)
    return "\n".join(canvas.elements), far + N * _NARROW + 28, _TOP + N * _HIGH + 30


def _real(padding: str, pads: int) -> Tensor:
    """Which positions hold a real token, ``(S,)``."""
    ids = torch.arange(N)
    if padding == "end":
        ids[N - pads :] = PAD
    elif padding == "start":
        ids[:pads] = PAD
    return masks.token_mask(ids[None], PAD)[0, 0, 0]


def _mask(
    *, causal: bool, window: int, prefix: int, real: Tensor, on_queries: bool = False
) -> Tensor:
    """The rules in one mask, ``(T, S)``; a mistake of the catalogue may be made meanwhile."""
    mask = torch.ones(N, N, dtype=torch.bool)
    if causal and prefix:
        mask &= masks.prefix_mask(torch.tensor([prefix]), N, N)[0, 0]
    elif causal:
        mask &= masks.causal_mask(N, N)
    if window:
        mask &= masks.window_mask(N, window=window)
    return mask & (real[:, None] if on_queries else real)


def _making(mistake: str) -> AbstractContextManager[Any]:
    return made(CATALOGUE[mistake]) if mistake in CATALOGUE else nullcontext()


def _is(cells: str, hand: str) -> Tensor:
    """Which cells are set so by hand, ``(T, S)``."""
    return torch.tensor([cell == hand for cell in cells.ljust(N * N, "0")]).view(N, N)


def _weights(mask: Tensor) -> Tensor:
    """The weights for the fixed scores, ``(T, S)``: with unit keys, queries are scores."""
    scores = torch.tensor(normals(SEED, N * N)).view(N, N)
    unit = torch.eye(N, dtype=torch.float64)
    return attention.attention(scores, unit, unit, mask, scale=1.0)[1]


def _hears(mask: Tensor, layers: int, *, late: bool = False) -> Tensor:
    """Who hears of whom, ``(T, S)``: the power of the mask, with the residual connection.

    If weights are hidden after the softmax, a row with any key hears all: it divides by them.
    """
    once = mask | torch.eye(N, dtype=torch.bool)
    once = once | mask.any(dim=1, keepdim=True) if late else once
    paths: Tensor = torch.linalg.matrix_power(once.double(), layers)
    return paths > 0


def _say_sums(mistake: str, values: Mapping[str, Any]) -> str:
    empty, shows = values["empty"], values["shows"]
    if mistake == "late" and shows:
        least = min(each for i, each in enumerate(values["sums"]) if i not in empty)
        return f", but rows sum to as little as {number(least)}: the softmax came before the mask"
    nothing = "; the mistake changes nothing here" if mistake != "none" and not shows else ""
    if not empty:
        return nothing
    rows = f"row {empty[0]} has" if len(empty) == 1 else f"rows {', '.join(map(str, empty))} have"
    return f"; {rows} no key (weights of 0 here, NaN in code without a guard){nothing}"


def _layers(state: Mapping[str, Any]) -> str:
    return "1 layer" if state["layers"] == 1 else f"{state['layers']} layers"


_HATCH = (
    '<defs><pattern id="mask-lab-no" width="6" height="6" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{PANEL}"/>'
    f'<path d="M0 0V6" stroke="{GRID}" stroke-width="2"/></pattern></defs>'
)


def _row(at: int) -> float:
    """The base line of the words in a row."""
    return _TOP + _HIGH * at + 16


def _draw_map(
    canvas: Canvas,
    left: float,
    title: str,
    table: list[list[float | None]],
    outlined: list[list[int]] | None,
) -> None:
    """Draw one map; without outlines it is the map of weights, with a number in each cell."""
    wide = _NARROW if outlined else _WIDE
    canvas.text(left, 22, title, anchor="start", bold=True)
    for j in range(N):
        canvas.text(left + wide * (j + 0.5), _TOP - 8, str(j), color=MUTED)
    for i, row in enumerate(table):
        for j, each in enumerate(row):
            x, y = left + wide * j, _TOP + _HIGH * i
            canvas.elements.append(_cell(x, y, wide, each))
            if outlined and outlined[i][j]:
                canvas.elements.append(_outline(x, y, wide))
            if not outlined and each is not None:
                canvas.text(x + wide / 2, _row(i), number(each), size=12)


def _cell(x: float, y: float, wide: float, value: float | None) -> str:
    place = f'<rect x="{x}" y="{y}" width="{wide}" height="{_HIGH}"'
    blank = f'{place} fill="url(#mask-lab-no)" stroke="{GRID}"/>'
    if value is None:
        return blank
    colour = ROLES["weight"][0]
    return f'{place} fill="{colour}" fill-opacity="{0.55 * value:.3f}" stroke="{GRID}"/>'


def _outline(x: float, y: float, wide: float) -> str:
    box = f'x="{x + 1.5}" y="{y + 1.5}" width="{wide - 3}" height="{_HIGH - 3}"'
    return f'<rect {box} fill="none" stroke="{INK}" stroke-width="2.5"/>'


def _draw_results(canvas: Canvas, left: float, title: str, results: list[str]) -> None:
    """Write a result at the end of each row."""
    canvas.text(left + 18, _TOP - 8, title, color=MUTED)
    for at, result in enumerate(results):
        canvas.text(left + 18, _row(at), result)
