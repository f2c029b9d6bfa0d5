"""The live figure of the whole model: every sublayer, residual and norm of any preset."""

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from transformer_book.counting import Kind, forward_flops
from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import INK, MUTED, ROLES
from transformer_book.live.journey_number import drawn, sums, told
from transformer_book.live.journey_parts import (
    MODELS,
    NAMES,
    NUMBERS,
    Part,
    length_of,
    parts_at,
    sizes_of,
    source_length_of,
)
from transformer_book.live.wording import number

WORDS = ("", " thousand", " million", " billion", " trillion")
# Widths: a box, the way past it, shapes, between the towers.
BOX, LANE, ASIDE, MIDDLE = 176.0, 30.0, 96.0, 72.0
COLORS = {
    "attention": "query",
    "cross_attention": "key",
    "feed_forward": "value",
    "output": "weight",
}
MEANINGS = {
    "B": "sequence", "S": "source tokens", "T": "tokens", "D": "width of the stream",
    "H": "heads", "G": "heads of keys and values", "Dk": "width of a head", "F": "inner width",
    "V": "vocabulary", "M": "longest text", "N": "patches", "P": "numbers in a patch",
    "C": "classes", "I": "pixels across",
}  # fmt: skip
FLOPS = (" FLOPs", " kFLOPs", " MFLOPs", " GFLOPs", " TFLOPs", " PFLOPs")


def values(**state: Any) -> dict[str, Any]:
    """Trace the preset and count what the figure shows.

    Args:
        state: the settings of the figure: ``preset``, ``T``, ``box`` and ``layer``.

    Returns:
        The boxes with their shapes, parameters and FLOPs, those of the chosen one in formulas and
        in numbers, and the totals, which are the library's own.

    Raises:
        ArithmeticError: if the boxes do not add up to the whole model.

    Example:
        >>> found = values(preset="gpt2", T=64, box="decoder.tokens")
        >>> found["parameters"][found["at"]], found["totals"][0]
        (38597376, 124439808)
    """
    preset = state["preset"]
    length, layers = length_of(preset, state["T"]), sizes_of(preset)["L"]
    parts = parts_at(preset, length)
    copies = [layers if part.stage == "block" else 1 for part in parts]
    totals = [MODELS[preset].parameters, _total_flops(preset, length)]
    for which, total in enumerate(totals):
        counted = sum(n * part.counts[which] for n, part in zip(copies, parts, strict=True))
        if counted != total:
            raise ArithmeticError(f"the boxes of {preset} make {counted}, not {total}")
    at = _chosen(parts, state["box"])
    box = parts[at]
    sentences = told()[box.box] if preset == NUMBERS else [""]
    pictures: list[Any] = drawn()[box.box] if preset == NUMBERS else [None]
    summed: list[dict[str, str]] = sums()[box.box] if preset == NUMBERS else [{}]
    own = summed[min(state.get("layer", 1), len(summed)) - 1]
    used = " ".join(
        " ".join((*part.shape, part.parameters, part.flops, *(shape for _, shape, _ in part.steps)))
        for part in parts
    )
    return {
        "model": NAMES[preset],
        "length": length,
        "source": source_length_of(preset, length),
        "told": sentences[min(state.get("layer", 1), len(sentences)) - 1],
        "drawn": pictures[min(state.get("layer", 1), len(pictures)) - 1],
        "letters": [letter for letter in MEANINGS if letter in set(re.findall("[A-Z]k?", used))],
        "boxes": [part.box for part in parts],
        "names": [part.label for part in parts],
        "copies": copies,
        "shapes": [" → ".join(part.shape) for part in parts],
        "parameters": [part.counts[0] for part in parts],
        "flops": [part.counts[1] for part in parts],
        "totals": totals,
        "at": at,
        "sizes": " → ".join(box.sizes),
        "formulas": [box.parameters, box.flops],
        "shares": [copies[at] * n / total for n, total in zip(box.counts, totals, strict=True)],
        "steps": [[*step, own.get(step[0].removesuffix(" (tied)"), "")] for step in box.steps],
    }


def _total_flops(preset: str, length: int) -> int:
    """One forward pass of one sequence, counted by arithmetic and not by the trace."""
    kinds: dict[str, Kind] = {
        "CausalLM": "decoder", "Seq2SeqLM": "encoder-decoder",
        "SequenceClassifier": "classifier", "VisionTransformer": "vision",
    }  # fmt: skip
    build, sizes = MODELS[preset].build, sizes_of(preset)
    kind = kinds[getattr(build, "func", build).__name__]
    classes = {"n_classes": sizes.get("C", 0), "patch_numbers": sizes.get("P", 1)}
    return forward_flops(
        MODELS[preset].config, kind, 1, length, source_length_of(preset, length), **classes
    )["total"]


def _chosen(parts: tuple[Part, ...], box: str) -> int:
    """The box of that name; if the model has none, one that does the same in the other tower."""
    boxes = [part.box for part in parts]
    same = [at for at, part in enumerate(parts) if part.name == box.partition(".")[2]]
    return boxes.index(box) if box in boxes else (same or [0])[0]


def short(value: float, units: tuple[str, ...]) -> str:
    """Write a large number with three digits and a unit.

    Args:
        value: the number.
        units: for each power of a thousand.

    Returns:
        The text.

    Example:
        >>> short(63_082_496, WORDS), short(1024, WORDS)
        ('63.1 million', '1,024')
    """
    if value < 10_000:
        return f"{value:,}{units[0]}"
    at = 0
    while value >= 999.5 and at < len(units) - 1:
        value, at = value / 1000, at + 1
    return number(value, max(0, 3 - len(str(int(value))))) + units[at]


def say(state: dict[str, Any], values: dict[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        The words of the live figure.

    Example:
        >>> start = {"preset": "gpt2", "T": 64, "box": "decoder.tokens"}
        >>> say(start, values(**start))[:61]
        'GPT-2 small, T = 64. Token embedding: B T → B T D. Parameters'
    """
    at, length = values["at"], values["length"]
    name = values["names"][at].removeprefix("+ ")
    name = "Residual sum" if name == "add" else name[0].upper() + name[1:]
    most = " (all it has room for)" if length < state["T"] else ""
    most = " (what an image makes)" if length > state["T"] else most
    layers = f" in each of {values['copies'][at]} layers" if values["copies"][at] > 1 else ""
    said = []
    for which, (what, units) in enumerate({"parameters": WORDS, "flops": FLOPS}.items()):
        count, share = values[what][at], _percent(values["shares"][which])
        own = (
            f"{short(count, units)}{layers}, {share}"
            if count
            else ("none", "no matrix product")[which]
        )
        said.append(f"{own} of the {short(values['totals'][which], units)}")
    if values["told"]:  # what it costs is not the question now
        where = f", layer {state['layer']}" if values["copies"][at] > 1 else ""
        return (
            f"{values['told']} {values['model']}, S = {values['source']}, T = {length}{where}. "
            f"{name}: {values['shapes'][at]}."
        )
    return (
        f"{values['model']}, T = {length:,}{most}. {name}: {values['shapes'][at]}. "
        f"Parameters of its own: {said[0]} in the model. Work: {said[1]} of one pass."
    )


def _percent(share: float) -> str:
    return f"{number(100 * share, 1)}%" if share >= 0.0005 else "less than 0.1%"


def drawing(state: dict[str, Any], values: dict[str, Any]) -> tuple[str, float, float]:
    """Draw the static picture: the whole model with its shapes.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> start = {
        ...     "preset": "transformer-base",
        ...     "T": 64,
        ...     "box": "encoder.attention",
        ... }
        >>> drawing(start, values(**start))[1]
        680.0
    """
    parts = parts_at(state["preset"], values["length"])
    sizes = {**sizes_of(state["preset"]), "B": 1, "T": values["length"], "S": values["source"]}
    towers = [list(tower) for _, tower in groupby(parts, key=lambda part: part.tower)]
    canvas = Canvas()
    boxes = [_stack(tower) for tower in towers]
    height = 42 - min(y for places in boxes for y, _ in places)
    middles = [ASIDE + LANE + BOX / 2 + at * (BOX + MIDDLE) for at in range(len(towers))]
    for at, (tower, places) in enumerate(zip(towers, boxes, strict=True)):
        up = [(height + y, h) for y, h in places]
        side = 1 if at else -1
        _tower(canvas, tower, up, middles[at], side, height, sizes["L"])
    if len(towers) > 1:
        cross = next(at for at, part in enumerate(towers[1]) if part.name == "cross_attention")
        top = height + boxes[0][-1][0]
        y, tall = boxes[1][cross]
        _memory(canvas, middles[0], top, middles[1] - BOX / 2, height + y + tall / 2)
    left = 14.0 if len(towers) > 1 else middles[0] + BOX / 2 + 50
    _legend(canvas, left, values, sizes, parts)
    return "\n".join(canvas.elements), 680.0 if len(towers) > 1 else 560.0, height + 8


def _stack(tower: list[Part]) -> list[tuple[float, float]]:
    """Upper edge and height of each box; the tower grows upwards from 0, to negative numbers."""
    y, places, before = -30.0, [], ""
    for part in tower:
        wide = part.name in COLORS
        height = 18.0 if part.label == "add" else 24.0 if part.label.endswith("Norm") else 32.0
        height = 58.0 if wide else height
        enters = bool(before) and (before == "block") != (part.stage == "block")
        y -= 15 + 20 * enters + 18 * part.name.endswith("attention") + height
        places.append((y, height))
        before = part.stage
    return places


def _tower(
    canvas: Canvas, tower: list[Part], places: list[tuple[float, float]], middle: float,
    side: int, foot: float, layers: int,
) -> None:  # fmt: skip
    """Draw a tower: frame, lines, boxes, shapes."""
    blocks = [place for place, part in zip(places, tower, strict=True) if part.stage == "block"]
    first = next(part for part in tower if part.stage == "block")
    top, bottom = blocks[-1][0] - 9, sum(blocks[0]) + (34 if first.name == "attention" else 17)
    left = middle - BOX / 2 - (LANE - 2 if side < 0 else 14)
    canvas.elements.append(
        f'<rect x="{left}" y="{top}" width="{BOX + LANE + 12}" height="{bottom - top}" rx="10" '
        f'fill="none" stroke="{MUTED}" stroke-dasharray="2 3"/>'
    )
    canvas.text(middle + side * (BOX / 2 + 4), top - 6, f"× {layers}", size=14, bold=True)
    names = {"B S": "source ids", "B T": "target ids" if side > 0 else "token ids"}
    start, end = tower[0].shape[0], places[-1][0] - 20
    canvas.text(middle, foot - 8, f"{names.get(start, 'image')}: {start}", color=MUTED)
    canvas.arrow((middle, foot - 24), (middle, end))
    if "V" in tower[-1].shape[1]:
        canvas.text(middle, end - 7, "logits: a score for each token", color=MUTED)
    for part, (y, _) in zip(tower, places, strict=True):
        if part.label == "add":
            at = next(at for at, one in enumerate(tower) if one.name.startswith(part.name[:-4]))
            low = sum(places[at]) + (26 if tower[at].name.endswith("attention") else 8)
            lane, to = middle + side * (BOX / 2 + LANE - 12), middle + side * 9
            canvas.arrow((middle, low), (lane, low), (lane, y + 9), (to, y + 9), color=INK)
    for part, (y, height) in zip(tower, places, strict=True):
        _given(canvas, part, middle, y + height)
        _box(canvas, part, middle, y, height, side)
        if part.name == "bias":  # to the scores, not into the stream
            at = next(at for at, one in enumerate(tower) if one.name == "attention")
            to, edge = places[at][0] + places[at][1] / 2, middle - side * BOX / 2
            turn, own = edge - side * 10, y + height / 2
            canvas.arrow((edge, own), (turn, own), (turn, to), (edge, to), color=ROLES["weight"][0])


def _given(canvas: Canvas, part: Part, middle: float, foot: float) -> None:
    """The arrows into attention: queries, keys and values."""
    given = {"attention": ("key", "query", "value"), "cross_attention": ("query",)}
    roles = given.get(part.name, ())
    for at, role in enumerate(roles):
        x, color = middle + (at - (len(roles) - 1) / 2) * 42, ROLES[role][0]
        canvas.arrow((middle, foot + 18), (x, foot + 18), (x, foot), color=color)
        canvas.text(x + 9, foot + 13, role[0].upper(), size=12, color=color, bold=True)


def _box(canvas: Canvas, part: Part, middle: float, y: float, height: float, side: int) -> None:
    color, fill = ROLES[COLORS.get(part.name, "plain")]
    look = f'fill="{fill}" stroke="{color}" stroke-width="1.4"'
    center = y + height / 2
    if part.label == "add":
        canvas.elements.append(f'<circle cx="{middle}" cy="{center}" r="9" {look}/>')
        canvas.text(middle, center + 4.5, "+", size=14)
        return
    width = BOX / 2 - 8 if part.name == "bias" else BOX
    left = middle - BOX / 2 if side > 0 else middle + BOX / 2 - width
    canvas.elements.append(
        f'<rect x="{left}" y="{y}" width="{width}" height="{height}" rx="8" {look}/>'
    )
    shapes = [shape for what, shape, _ in part.steps if what in ("softmax", "expand")]
    lines = [f"{'weights' if 'H' in shape else 'inside'} {shape}" for shape in shapes]
    own = (
        short(part.counts[0], WORDS) + " parameters" if part.counts[0] else "the embedding’s table"
    )
    lines = [*lines, own] if part.name in COLORS else []
    first = center + 4.5 - 8 * len(lines)
    label = part.label.split()[-1] if part.name == "bias" else part.label
    canvas.text(left + width / 2, first, label, size=13.5, bold=bool(lines), color=color)
    for at, line in enumerate(lines):
        canvas.text(middle, first + 16 * (at + 1), line, size=12)
    x, anchor = middle + side * (BOX / 2 + LANE + 6), "start" if side > 0 else "end"
    canvas.text(x, center - 2, part.shape[1], size=12.5, bold=True, anchor=anchor)
    canvas.text(x, center + 13, part.sizes[1].replace(" ", ""), size=12, anchor=anchor, color=MUTED)


def _memory(canvas: Canvas, start: float, top: float, edge: float, cross: float) -> None:
    """Lead the encoder's result to cross-attention as keys and values."""
    lane = edge - MIDDLE / 2
    for role, by in (("key", -4.0), ("value", 4.0)):
        turn = lane - by
        canvas.arrow(
            (start, top - 20 + by), (turn, top - 20 + by), (turn, cross + by), (edge, cross + by),
            color=ROLES[role][0],
        )  # fmt: skip
    canvas.text(start, top - 34, "memory: B S D", color=MUTED)


def _legend(
    canvas: Canvas, left: float, values: dict[str, Any], sizes: Mapping[str, int],
    parts: tuple[Part, ...],
) -> None:  # fmt: skip
    """The model's name and size, and what the letters mean."""
    canvas.text(left, 24, values["model"], size=15, bold=True, anchor="start")
    canvas.text(left, 43, f"{values['totals'][0]:,} parameters", anchor="start", color=MUTED)
    used = " ".join(f"{part.parameters} {part.flops} {part.shape}" for part in parts)
    found = set(re.findall("[A-Za-z]+", used))
    letters = [letter for letter in MEANINGS if letter in found and letter in sizes]
    for at, letter in enumerate(letters):
        is_target = letter == "T" and "S" in letters
        meaning = f"{sizes[letter]:,}  {'target ' * is_target}{MEANINGS[letter]}"
        canvas.text(left, 66 + 17 * at, f"{letter} =", size=12.5, bold=True, anchor="start")
        canvas.text(left + 38, 66 + 17 * at, meaning, size=12.5, anchor="start")
