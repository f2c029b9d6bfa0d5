"""The few icons of the site, drawn in place of an icon font."""

from __future__ import annotations

import re

# Strokes on a grid of 24 by 24.
ICONS = {
    "angle-left": "M15 5l-7 7 7 7",
    "angle-right": "M9 5l7 7-7 7",
    "arrow-up": "M12 20V5M5 12l7-7 7 7",
    "bars": "M4 6h16M4 12h16M4 18h16",
    "book": "M5 4h13v16H7a2 2 0 01-2-2zM5 18a2 2 0 012-2h11",
    "chevron-down": "M5 9l7 7 7-7",
    "circle-half-stroke": "M12 3a9 9 0 100 18 9 9 0 100-18zM12 3v18M12 7h6M12 11h8.5M12 15h7.5",
    "download": "M12 3v12M6 10l6 6 6-6M4 20h16",
    "file": "M6 3h8l4 4v14H6zM14 3v4h4",
    "file-pdf": "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
    "list": "M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01",
    "magnifying-glass": "M10.5 4a6.5 6.5 0 100 13 6.5 6.5 0 100-13zM15.5 15.5L21 21",
    "moon": "M20 14a8 8 0 01-10-10 8 8 0 1010 10z",
    "sun": "M12 8a4 4 0 100 8 4 4 0 100-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 "
    "19M5 19l1.4-1.4M17.6 6.4L19 5",
}
_ICON = re.compile(r'<(?P<tag>i|span) (?P<attributes>[^>]*\bclass="[^"]*\bfa-[^>]*)>\s*</(?P=tag)>')
_LEFT = re.compile(r'<(?!svg\b)\w+ [^>]*\bclass="(?:[^"]* )?fa-[^>]*>')
_STROKE = (
    'viewBox="0 0 24 24" width="1em" height="1em" fill="none" stroke="currentColor" '
    'stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round"'
)


class UnknownIconError(ValueError):
    """A page shows an icon that nobody has drawn."""


def with_drawn_icons(html: str) -> str:
    """Draw the icons of a page in place.

    Args:
        html: the page.

    Returns:
        The page, without a need for an icon font.

    Raises:
        UnknownIconError: if there is no drawing for one of them.
    """
    html = _ICON.sub(_drawn, html)
    if left := _LEFT.search(html):
        raise UnknownIconError(f"an icon that is not drawn: {left[0]!r}; see tools/light/icons.py")
    return html


def _drawn(match: re.Match[str]) -> str:
    names = re.findall(r"\bfa-([a-z-]+)", match["attributes"])
    known = [name for name in names if name in ICONS]
    if not known:
        raise UnknownIconError(
            f"no drawing for the icon {match[0]!r}; add one to tools/light/icons.py"
        )
    hidden = "" if "aria-hidden" in match["attributes"] else 'aria-hidden="true" '
    return f'<svg {match["attributes"]} {hidden}{_STROKE}><path d="{ICONS[known[0]]}"/></svg>'
