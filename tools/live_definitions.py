"""Write what the live figures say of themselves into one file that Python reads.

Usage: ``python -m tools.live_definitions``, after a change to a figure's settings, title, question
or things to try. A test fails while the file is not up to date.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from py_mini_racer import MiniRacer

SCRIPTS = Path(__file__).resolve().parent.parent / "book" / "_static" / "live"
TARGET = SCRIPTS / "figures.json"
NUMERIC = ("tensor.js", "text.js", "model.js", "reading.js")  # what computes
FOR_SOME = ("seq2seq.js", "byte_pairs.js")  # what computes, but not in every figure
PAGE = ("motion.js", "figure.js", "controls.js", "more_controls.js", "drawings.js")  # what shows
_DEFINES = re.compile(r'Live\.define\(\{\s*name: "([a-z-]+)"')
_EXTRA = re.compile(r"^ *scripts: (\[.*\]),$", re.MULTILINE)


def figure_scripts() -> dict[str, list[str]]:
    """For each figure the scripts that are its own: data that it needs first, then itself."""
    found = {}
    for path in sorted(SCRIPTS.glob("*.js")):
        text = path.read_text(encoding="utf-8")
        name = _DEFINES.search(text)
        if name:
            extra = _EXTRA.search(text)
            found[name[1]] = [*(json.loads(extra[1]) if extra else ()), path.name]
    return found


def definitions() -> dict[str, dict[str, object]]:
    """What each figure says of itself, without its functions, and all files that it needs."""
    v8 = MiniRacer()
    scripts = figure_scripts()
    for name in dict.fromkeys([*PAGE, *(file for own in scripts.values() for file in own)]):
        v8.eval((SCRIPTS / name).read_text(encoding="utf-8"))
    found: dict[str, dict[str, object]] = json.loads(str(v8.eval("JSON.stringify(Live.figures)")))
    for name, own in scripts.items():
        models = str(found[name].get("models", ""))
        needed: tuple[str, ...] = NUMERIC if models else NUMERIC[:1]  # a page loads what it runs
        needed += FOR_SOME[:1] * ("numbers" in models)
        shown = PAGE if found[name].get("drawings", True) else PAGE[:3]
        found[name]["scripts"] = [*dict.fromkeys([*needed, *shown, *own])]
        styles = Path(own[-1]).with_suffix(".css")
        found[name]["styles"] = [styles.name] if (SCRIPTS / styles).is_file() else []
    return dict(sorted(found.items()))


def text() -> str:
    """The file's content."""
    return json.dumps(definitions(), ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(f"{TARGET.name}: {', '.join(definitions())}")
