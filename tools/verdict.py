"""The last line of `make test`: that everything passed, or what was skipped without a browser.

The browser tests write down what they skipped (`note`), and the line says it: a run that looked at
no page must not read like one that looked at all of them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

NOTES = Path(__file__).resolve().parents[1] / "_build" / "browser-skips.json"


def note(reasons: Iterable[str], notes: Path = NOTES) -> None:
    """Write down why tests were skipped, one reason for each of them; none is an answer, too."""
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text(json.dumps(list(reasons)), encoding="utf-8")


def last_line(notes: Path = NOTES) -> str:
    """Say how the run ended.

    Raises:
        FileNotFoundError: if the browser tests left no note, so that nobody knows whether they ran.
    """
    if not notes.is_file():
        raise FileNotFoundError(f"{notes.name}: missing; expected `make test-browser` to write it")
    skipped = Counter(json.loads(notes.read_text(encoding="utf-8")))
    if not skipped:
        return "make test: everything passed"
    said = [f"{count} browser tests were SKIPPED ({reason})" for reason, count in skipped.items()]
    return f"make test: all that ran passed, but {'; '.join(said)}"


def main() -> int:
    """Print the line; returns the exit status."""
    try:
        print(last_line())
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
