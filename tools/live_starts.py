"""Write what the live figures of the stream and the translator show before their model is there.

Usage: ``python -m tools.live_starts``, after a change to one of these figures' starts or to its
model. A test fails while a file is not up to date.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

from tools.live_heads import rounded
from transformer_book.live import FIGURES, complete

FOLDER = Path(__file__).resolve().parent.parent / "book" / "_static" / "live"
NAMES = ("stream", "translate")

_SCRIPT = """\
"use strict";
/* What the figure "%s" shows at its start: its values, rounded. Written by
   `python -m tools.live_starts`. */
(globalThis.Live = globalThis.Live || {}).%sStart = %s;
"""


def target(name: str) -> Path:
    """The file of a figure."""
    return FOLDER / f"{name}_start.js"


def script(name: str) -> str:
    """The file's content."""
    module = import_module(f"transformer_book.live.{name}")
    start = rounded(module.values(**complete(FIGURES[name], {})))
    lines = (
        f"{key}: {json.dumps(one, ensure_ascii=False, separators=(',', ':'))}"
        for key, one in start.items()
    )
    return _SCRIPT % (name, name, "{\n" + ",\n".join(lines) + ",\n}")


if __name__ == "__main__":
    for name in NAMES:
        target(name).write_text(script(name), encoding="utf-8")
        print(f"{target(name).name}: {target(name).stat().st_size:,} bytes")
