"""Write what the live figure of heads shows at its start, before anybody asks for its model.

Usage: ``python -m tools.live_heads``, after a change to the figure's start or to the Shakespeare
model. A test fails while the file is not up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformer_book.live import FIGURES, complete
from transformer_book.live.heads import values

TARGET = Path(__file__).resolve().parent.parent / "book" / "_static" / "live" / "heads_start.js"
DIGITS = 4  # of each number: two more than the figure shows

_SCRIPT = """\
"use strict";
/* What the figure of heads shows at its start: its values, rounded; of the weights, each row up to
   its own letter. Written by `python -m tools.live_heads`. */
(globalThis.Live = globalThis.Live || {}).headsStart = %s;
"""


def start() -> dict[str, Any]:
    """The values at the start, each number rounded, without the weights that the mask makes 0."""
    found: dict[str, Any] = rounded(values(**complete(FIGURES["heads"], {})))
    found["weights"] = [row[: at + 1] for at, row in enumerate(found["weights"])]
    for name, row in (("queries", found["queries"]), ("keys", found["keys"])):
        found[name] = "".join(row)  # one letter each
    return found


def rounded(value: Any) -> Any:
    """The same with every number rounded, in dictionaries and lists, too."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, float):
        short = round(value, DIGITS)
        return int(short) if short == int(short) else short
    return value


def script() -> str:
    """The file's content."""
    lines = (f"{key}: {json.dumps(one, separators=(',', ':'))}" for key, one in start().items())
    return _SCRIPT % ("{\n" + ",\n".join(lines) + ",\n}")


if __name__ == "__main__":
    TARGET.write_text(script(), encoding="utf-8")
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")
