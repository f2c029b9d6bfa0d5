"""Write the merges that chapter 2's byte-pair encoding learns into a script for the live figure.

Usage: ``python -m tools.live_merges``. A test fails while the file is not up to date.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

from transformer_book.live.tokenizer import learned

TARGET = Path(__file__).resolve().parent.parent / "book" / "_static" / "live" / "merges.js"
DIGITS = string.digits + string.ascii_lowercase + string.ascii_uppercase
PER_LINE = 24  # merges of four digits

_SCRIPT = """\
"use strict";
/* The merges that chapter 2's byte-pair encoding learns, in their order: pairs of token numbers, of
   which the bytes have 0 to 255 and the n-th merge 256 + n. Four digits a merge, to the base of 62.
   Written by tools/live_merges.py. */
(() => {
  const Live = (globalThis.Live = globalThis.Live || {});
  const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const text = [
%s
  ].join("");
  const number = (two) => 62 * DIGITS.indexOf(two[0]) + DIGITS.indexOf(two[1]);
  Live.merges = text.match(/..../g).map((four) => [number(four), number(four.slice(2))]);
})();
"""


def script(merges: Sequence[Sequence[int]]) -> str:
    """The script's text.

    Args:
        merges: pairs of token numbers.

    Returns:
        JavaScript that sets ``Live.merges``.

    Raises:
        ValueError: if a number needs more than two digits.

    Example:
        >>> "0a12" in script([(10, 64)])
        True
    """
    numbers = [number for pair in merges for number in pair]
    if not all(0 <= number < len(DIGITS) ** 2 for number in numbers):
        raise ValueError(f"merges hold {max(numbers)}; expected less than {len(DIGITS) ** 2}")
    written = [DIGITS[number // len(DIGITS)] + DIGITS[number % len(DIGITS)] for number in numbers]
    starts = range(0, len(written), 2 * PER_LINE)
    lines = ["".join(written[start : start + 2 * PER_LINE]) for start in starts]
    return _SCRIPT % "\n".join(f'    "{line}",' for line in lines)


if __name__ == "__main__":
    TARGET.write_text(script(learned()), encoding="utf-8")
    print(f"{TARGET.name}: {len(learned()):,} merges, {TARGET.stat().st_size:,} bytes")
