"""Figures that stand in a page as SVG: the same picture in fewer bytes."""

from __future__ import annotations

import re

_FIGURE = re.compile(r'<svg\b[^>]*\brole="img".*?</svg>', re.DOTALL)
_ID = re.compile(r' id="(?P<name>[^"]*)"')
_REFERENCE = re.compile(r'#([\w:.-]+)|\baria-\w+="([^"]*)"')
_PATH = re.compile(r'(?<= d=")[^"]*')
_STYLE = re.compile(r'(?<= style=")[^"]*')
_UNTURNED = re.compile(r' transform="rotate\(-?0 [^)]*\)"')
_INDENT = re.compile(r">\s*\n\s*<(?!/?(?:tspan|text))")  # spaces inside of a text may show
_EMPTY_GROUP = re.compile(r"<g>\s*</g>|<g ?/>")


def with_lighter_drawings(html: str) -> str:
    """Write the figures of a page in fewer bytes.

    Args:
        html: the page.

    Returns:
        The page; its figures look the same.
    """
    if not _FIGURE.search(html):
        return html
    referred = {name for pair in _REFERENCE.findall(html) for name in " ".join(pair).split()}
    return _FIGURE.sub(lambda match: lighter_drawing(match[0], referred), html)


def lighter_drawing(svg: str, referred: set[str]) -> str:
    """Write one figure in fewer bytes.

    Args:
        svg: the figure.
        referred: the ids that something refers to; the others go.

    Returns:
        The figure.

    >>> figure = '<svg><g id="a"/><path d="M 1 2  L 3 2  " style="fill: none" /></svg>'
    >>> lighter_drawing(figure, set())
    '<svg><path d="M1 2H3" style="fill:none" /></svg>'
    """
    svg = _ID.sub(lambda match: match[0] if match["name"] in referred else "", svg)
    svg = _UNTURNED.sub("", svg)
    svg = _PATH.sub(lambda match: short_path(match[0]), svg)
    svg = _STYLE.sub(lambda match: re.sub(r"([:;])\s+", r"\1", match[0]), svg)
    svg = _INDENT.sub("><", svg)
    while _EMPTY_GROUP.search(svg):  # a group of empty groups is empty
        svg = _EMPTY_GROUP.sub("", svg)
    return svg


def short_path(path: str) -> str:
    """Write a path with fewer signs; horizontal and vertical strokes name one number.

    >>> short_path("M 1 2  L 1 5  L 7 5  L 8 9  ")
    'M1 2V5H7L8 9'
    >>> short_path("M 1 2  C 1 5 7 5 8 9  z ")
    'M1 2C1 5 7 5 8 9z'
    """
    strokes = re.findall(r"([A-Za-z])([^A-Za-z]*)", re.sub(r"(?<=\d)e(?=[-+\d])", "E", path))
    if any(letter == "E" for letter, _ in strokes):  # numbers like 1e-05: leave them alone
        return path
    written, place = [], ["", ""]
    for letter, rest in strokes:
        numbers = rest.replace(",", " ").split()
        if letter == "L" and len(numbers) == 2 and place[1] == numbers[1]:
            written.append(f"H{numbers[0]}")
        elif letter == "L" and len(numbers) == 2 and place[0] == numbers[0]:
            written.append(f"V{numbers[1]}")
        else:
            written.append(letter + " ".join(numbers))
        # Only after these two is the place known without arithmetic.
        place = numbers if letter in "ML" and len(numbers) == 2 else ["", ""]
    return "".join(written)
