"""Write what the live figure of the whole model draws and counts: the boxes of every preset.

Usage: ``python -m tools.live_journey``, after a change to the presets, the models or the words of
the trace. A test fails while the file is not up to date.

Presets of one architecture share their boxes, and equal boxes are written once. The figure
evaluates the formulas with the sizes of the preset; it knows no model by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from transformer_book.live.journey_number import FIRST, FOLLOWED, SOURCE, WRITTEN, drawn, sums, told
from transformer_book.live.journey_parts import (
    FEW,
    MODELS,
    NAMES,
    NUMBERS,
    Part,
    parts_of,
    sizes_of,
)

TARGET = Path(__file__).resolve().parent.parent / "book" / "_static" / "live" / "journey_data.js"
NUMBER = TARGET.with_name("journey_number.js")
FILLED = re.compile("(?<=“).(?=”)|the start|(?:[−+] )?−?\\d+(?:\\.\\d+)?")
MINUS = re.compile(r"^−(?=[ \d])")
SIZES = "L D H G Dk F V M C N P I"  # the order in which a preset's sizes are written
HEAD = """"use strict";
/* The boxes of every preset, from the library's trace: written by `python -m tools.live_journey`.
   A box: label | shape in | shape out | parameters | FLOPs | its steps, each a number of `words`
   and the shape that comes out. An order: towers, stages, names. A model: its order, and the number
   of the box under each name. A preset: its name, its model, its `sizes`. */
(globalThis.Live = globalThis.Live || {}).journey = {
"""

NUMBER_HEAD = """"use strict";
/* A real number on its way through the number translator: for each box what it did, a sentence, or
   one for each layer; the sums of its steps, with ; between them; and what is drawn of it: vectors
   in tenths, weights in percent, hidden units as bits, the likeliest letters. A text is the number
   of one of the `texts` and what stands for each # in it, a vector that of one of the `vectors`.
   Computed with the library: written by `python -m tools.live_journey`. */
Live.journey.number = {
"""


class Pool(list[str]):
    """Texts that are written once and then called by their number."""

    def number(self, text: str) -> int:
        """The number of a text, which is added if it is new."""
        if text not in self:
            self.append(text)
        return self.index(text)


def written(part: Part, words: Pool) -> str:
    """A box as one line, without its place in the model."""
    steps = ";".join(f"{words.number(what)} {shape}" for what, shape, _ in part.steps)
    return "|".join((part.label, *part.shape, part.parameters, part.flops, steps))


def text() -> str:
    """The file's content."""
    words, boxes, orders = Pool(), Pool(), Pool()
    models: list[list[int]] = []
    presets: dict[str, list[object]] = {}
    for preset in MODELS:
        parts = parts_of(preset, *FEW)
        model = [orders.number(order(parts)), *(boxes.number(written(p, words)) for p in parts)]
        if model not in models:
            models.append(model)
        sizes = sizes_of(preset)
        numbers = [sizes[letter] for letter in SIZES.split() if letter in sizes]
        presets[preset] = [NAMES[preset], models.index(model), *numbers]
    tables: dict[str, Sequence[object]] = {
        "words": words,
        "boxes": boxes,
        "orders": orders,
        "models": models,
    }
    lines = [f'sizes: "{SIZES}",']
    for name, table in tables.items():
        lines += [f"{name}: [", *(f"{dump(row)}," for row in table), "],"]
    lines += ["presets: {", *(f"{dump(key)}:{dump(row)}," for key, row in presets.items()), "},"]
    return HEAD + "\n".join(lines) + "\n};\n"


def number() -> str:
    """The file with the number that travels: what each box did to it."""
    steps = {part.box: [summed(part, found) for found in sums()[part.box]] for part in boxes()}
    texts = Packed([*chain(*told().values()), *chain(*chain(*steps.values()))])
    said = {box: [texts.write(one) for one in each] for box, each in told().items()}
    summed_up = {
        box: [";".join(map(texts.write, layer)) for layer in each] for box, each in steps.items()
    }
    vectors: list[list[int]] = []
    pictures = {box: [pooled(rows, vectors) for rows in each] for box, each in drawn().items()}
    tables: dict[str, Mapping[str, object]] = {
        "told": said,
        "sums": summed_up,
        "drawn": pictures,
    }
    lines = [f"texts:{dump(texts.pool)},", f"vectors:{dump(vectors)},"]
    for name, table in tables.items():
        lines += [
            f"{name}:{{",
            *(f"{dump(box)}:{dump(each)}," for box, each in table.items()),
            "},",
        ]
    head = f"source:{dump(SOURCE)},written:{dump(WRITTEN)},followed:{dump(SOURCE[FOLLOWED])},"
    return NUMBER_HEAD + "\n".join([head, *lines]) + "\n};\n"


def boxes() -> tuple[Part, ...]:
    """The boxes of the model through which the number travels."""
    return parts_of(NUMBERS, *FEW)


def summed(part: Part, found: dict[str, str]) -> list[str]:
    """The sum of each step of a box; nothing for a step that has none."""
    return [found.get(what.removesuffix(" (tied)"), "") for what, _, _ in part.steps]


class Packed:
    """Texts that differ in some letters and numbers: written once, with a # for each of these.

    Args:
        texts: all that will be written.
    """

    def __init__(self, texts: list[str]) -> None:
        self.pool = Pool()
        self.rows: dict[str, list[list[str]]] = {}
        for text in texts:
            self.rows.setdefault(FILLED.sub("#", text), []).append(FILLED.findall(text))

    def write(self, text: str) -> str:
        """The number of what the text has in common with others, and its letters and numbers.

        A minus sign is written in one byte.
        """
        if not text:
            return ""
        rows = self.rows[FILLED.sub("#", text)]
        differs = [len(set(column)) > 1 for column in zip(*rows, strict=True)]
        keep = iter(differs)
        common = FILLED.sub(lambda one: "#" if next(keep) else one[0], text)
        own = [one for one, is_own in zip(FILLED.findall(text), differs, strict=True) if is_own]
        return "|".join([str(self.pool.number(common)), *(MINUS.sub("-", one) for one in own)])


def pooled(rows: list[Any], vectors: list[list[int]]) -> list[Any]:
    """What is drawn, with the number of a vector for each: most are drawn of two boxes."""
    if not isinstance(rows[0], list) or len(rows[0]) != FIRST:
        return rows
    vectors += [row for row in rows if row not in vectors]
    return [vectors.index(row) for row in rows]


def order(parts: tuple[Part, ...]) -> str:
    """The names of a model's boxes, each tower and each stage announced."""
    said: list[str] = []
    place = ("", "")
    for part in parts:
        if part.tower != place[0]:
            said.append(part.tower)
        if (part.tower, part.stage) != place:
            said.append(part.stage)
        place = (part.tower, part.stage)
        said.append(part.name)
    return " ".join(said)


def dump(value: object) -> str:
    """A value as JavaScript reads it, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    NUMBER.write_text(number(), encoding="utf-8")
    print(f"{TARGET.name}: {len(MODELS)} models, {TARGET.stat().st_size:,} bytes")
