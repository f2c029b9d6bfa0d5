"""Draw the still pictures that no notebook stores: `python -m tools.live_front`.

The site is built without PyTorch, and the front page is no notebook that could store the picture.
So it is stored, wide and narrow, and a test fails while it differs from what the model gives.
"""

from __future__ import annotations

from pathlib import Path

from transformer_book.figures.pictures import finish_svg
from transformer_book.live import FIGURES, complete
from transformer_book.live.front import SIZES, say, still, values

FOLDER = Path(__file__).resolve().parent.parent / "book" / "_static" / "live"


def pictures() -> dict[Path, str]:
    """The files and their content: a picture for a wide page, and one for a phone."""
    definition = FIGURES["front"]
    state = complete(definition, {})
    found = values(**state)
    summary = f"{definition['title']}: {say(state, found)}"
    mark = '<svg data-live="front" data-settings="" '
    drawn = [finish_svg(definition["title"], summary, *still(state, found, w)).svg for w in SIZES]
    files = (FOLDER / file for file in definition["pictures"])
    return {file: svg.replace("<svg ", mark, 1) for file, svg in zip(files, drawn, strict=True)}


if __name__ == "__main__":
    for file, svg in pictures().items():
        file.write_text(svg, encoding="utf-8")
        print(f"{file.name}: {len(svg):,} bytes")
