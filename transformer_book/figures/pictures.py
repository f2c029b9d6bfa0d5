"""What a figure is: a drawing and a sentence about it.

The sentence is computed from the data. A notebook stores it beside the drawing, so that the test
run compares it and a screen reader can read it.
"""

import re
from dataclasses import dataclass
from xml.sax.saxutils import escape

FONT = "'Source Sans 3', 'Source Sans Pro', 'DejaVu Sans', Arial, sans-serif"

# The site replaces these exact values by its light and dark colours; elsewhere they stand as is.
PAPER = "#fdfcf9"
INK = "#1b2733"
MUTED = "#5b6875"
GRID = "#d5d9de"
PANEL = "#eef1f4"

# One colour for each role, in every figure: line and text, and the fill that goes with it.
ROLES = {
    "query": ("#0067a5", "#dcecf7"),
    "key": ("#b04a00", "#fbe6d6"),
    "value": ("#00735a", "#d8f0e8"),
    "weight": ("#8a2a6b", "#f4e0ee"),
    "plain": (INK, PANEL),
}


@dataclass(frozen=True)
class Picture:
    """A drawing and the sentence that says what it shows.

    Args:
        title: a short name.
        summary: what the drawing shows, computed from its data; the text alternative.
        svg: the drawing.

    Example:
        >>> finish_svg(
        ...     "Dot",
        ...     "A dot at 1, 1.",
        ...     '<circle cx="1.234" cy="1" r="1"/>',
        ...     2,
        ...     2,
        ... )
        Picture(title='Dot', summary='A dot at 1, 1.')
    """

    title: str
    summary: str
    svg: str

    def __repr__(self) -> str:
        """Leave the drawing out: it is long."""
        return f"Picture(title={self.title!r}, summary={self.summary!r})"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Give Jupyter the drawing, and the summary as its text."""
        return {"image/svg+xml": self.svg, "text/plain": self.summary}


def finish_svg(
    title: str, summary: str, body: str, width: float, height: float, *, scale: float = 1.0
) -> Picture:
    """Wrap drawing commands into a complete, accessible and reproducible SVG.

    Args:
        title: a short name.
        summary: the text alternative; it must not be empty.
        body: SVG elements.
        width: of the drawing, in user units.
        height: of the drawing, in user units.
        scale: pixels that one user unit takes on a page with room for the whole drawing.

    Returns:
        The picture.

    Raises:
        ValueError: if the title or the summary is empty.

    Example:
        >>> dot = finish_svg(
        ...     "Dot", "A dot.", '<circle cx="1.234" cy="1" r="1"/>', 2, 2
        ... )
        >>> 'cx="1.23"' in dot.svg
        True
    """
    for name, text in {"title": title, "summary": summary}.items():
        if not text.strip():
            raise ValueError(f"{name} is empty: every picture says what it shows")
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'role="img" width="{scale * width:.2f}" height="{scale * height:.2f}" '
        f'viewBox="0 0 {width:.2f} {height:.2f}" font-family="{FONT}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(summary)}</desc>\n"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n{_round_attributes(body)}\n</svg>\n'
    )
    return Picture(title, summary, svg)


def _round_attributes(body: str) -> str:
    """Round the numbers inside tags to two decimals: the last digits differ between CPUs."""

    def round_number(match: re.Match[str]) -> str:
        return f"{round(float(match.group()), 2) + 0.0:g}"  # + 0.0 turns -0.0 into 0.0

    def round_tag(match: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{3,}(?:e-?\d+)?", round_number, match.group())

    return re.sub(r"<[^>]+>", round_tag, body)
