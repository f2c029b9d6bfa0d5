"""Make the built pages light: no icon font, no scripts and styles that a page does not use.

The theme sends every page with an icon font and the script that replaces it (1.6 MB), the index of
the search (0.6 MB, needed on the page of the search only), and style sheets of which a book uses a
tenth. After Sphinx is done, this draws the few icons in place, takes out what is not used, and
joins what is left, so that a page needs few requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

# --- icons ------------------------------------------------------------------------------------

# Strokes on a grid of 24 by 24.
ICONS = {
    "angle-left": "M15 5l-7 7 7 7",
    "angle-right": "M9 5l7 7-7 7",
    "arrow-up": "M12 20V5M5 12l7-7 7 7",
    "bars": "M4 6h16M4 12h16M4 18h16",
    "chevron-down": "M5 9l7 7 7-7",
    "circle-half-stroke": "M12 3a9 9 0 100 18 9 9 0 100-18zM12 3v18M12 7h6M12 11h8.5M12 15h7.5",
    "download": "M12 3v12M6 10l6 6 6-6M4 20h16",
    "file": "M6 3h8l4 4v14H6zM14 3v4h4",
    "file-pdf": "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
    "list": "M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01",
    "magnifying-glass": "M10.5 4a6.5 6.5 0 100 13 6.5 6.5 0 100-13zM15.5 15.5L21 21",
    "moon": "M20 14a8 8 0 01-10-10 8 8 0 1010 10z",
    "sun": "M12 8a4 4 0 100 8 4 4 0 100-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19"
    "M5 19l1.4-1.4M17.6 6.4L19 5",
}
_ICON = re.compile(r"<i (?P<attributes>[^>]*\bclass=\"[^\"]*\bfa-(?P<name>[a-z-]+)[^>]*)>\s*</i>")
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
    return _ICON.sub(_drawn, html)


def _drawn(match: re.Match[str]) -> str:
    names = re.findall(r"\bfa-([a-z-]+)", match["attributes"])
    known = [name for name in names if name in ICONS]
    if not known:
        raise UnknownIconError(f"no drawing for the icon {match[0]!r}; add one to tools/light.py")
    return f'<svg {match["attributes"]} {_STROKE}><path d="{ICONS[known[0]]}"/></svg>'


# --- style sheets -----------------------------------------------------------------------------

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_IMPORT = re.compile(r"@import\s+(?:url\()?[\"']?(?P<name>[^\"')]+)[\"']?\)?[^;]*;")
_URL = re.compile(r"url\(\s*[\"']?(?!data:|#|\w+:)(?P<name>[^\"')]+)[\"']?\s*\)")
_FUNCTION = re.compile(r":(?:not|is|where|has|nth-[\w-]+|dir|lang)\((?:[^()]|\([^()]*\))*\)")
_NEEDED = re.compile(r"[.#](?P<name>-?[A-Za-z_](?:[\w-]|\\.)*)")
_ATTRIBUTES = re.compile(r"\[[^\]]*\]")
_NESTED = ("@media", "@supports", "@layer", "@container")


def rules_of(css: str) -> Iterator[tuple[str, str]]:
    """Cut a style sheet without comments into rules: what stands before the braces, and inside.

    >>> list(rules_of("a{b:c}@media print{d{e:f}}"))
    [('a', 'b:c'), ('@media print', 'd{e:f}')]
    >>> list(rules_of('@charset "utf-8";a{}'))
    [('@charset "utf-8"', ''), ('a', '')]
    """
    start = place = 0
    while place < len(css):
        if css[place] == ";":
            yield css[start:place].strip(), ""
        elif css[place] == "{":
            end = _closing(css, place)
            yield css[start:place].strip(), css[place + 1 : end]
            place = end
        else:
            place += 1
            continue
        place += 1
        start = place


def _closing(css: str, opening: int) -> int:
    """The place of the brace that closes this one; those in strings do not count."""
    depth, quote = 0, ""
    for place in range(opening, len(css)):
        sign = css[place]
        if quote:
            quote = "" if sign == quote and css[place - 1] != "\\" else quote
        elif sign in "\"'":
            quote = sign
        else:
            depth += (sign == "{") - (sign == "}")
            if depth == 0:
                return place
    raise ValueError(f"a brace is never closed: {css[opening - 60 : opening + 60]!r}")


def used_part(css: str, used: frozenset[str]) -> str:
    """Leave out the rules that match nothing.

    Args:
        css: a style sheet without comments.
        used: the classes and ids that pages have or scripts may give them.

    Returns:
        The rest, in the same order.

    >>> used_part(".a,.b .c{x:y}#d{}@media print{.b{x:y}}", frozenset("a"))
    '.a{x:y}'
    """
    kept = []
    for head, body in rules_of(css):
        if head.startswith(_NESTED):
            inside = used_part(body, used)
            kept.append(f"{head}{{{inside}}}" if inside else "")
        elif head.startswith("@"):
            kept.append(f"{head}{{{body}}}" if body else f"{head};")
        elif body.strip():
            selectors = [part for part in _selectors(head) if _may_match(part, used)]
            kept.append(f"{','.join(selectors)}{{{body}}}" if selectors else "")
    return "".join(kept)


def _selectors(head: str) -> Iterator[str]:
    """The selectors of a rule; commas inside of parentheses do not part them."""
    depth = start = 0
    for place, sign in enumerate(head):
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0:
            yield head[start:place].strip()
            start = place + 1
    yield head[start:].strip()


def _may_match(selector: str, used: frozenset[str]) -> bool:
    plain = _ATTRIBUTES.sub("", _FUNCTION.sub("", selector))
    return all(match["name"].replace("\\", "") in used for match in _NEEDED.finditer(plain))


def whole_sheet(path: Path, base: Path) -> str:
    """Read a style sheet with all that it imports, its addresses seen from another folder.

    Args:
        path: the file.
        base: the folder in which the result will lie.

    Returns:
        One style sheet without comments.
    """
    css = _COMMENT.sub("", path.read_text(encoding="utf-8"))

    def imported(match: re.Match[str]) -> str:
        return whole_sheet(path.parent / match["name"].partition("?")[0], base)

    def moved(match: re.Match[str]) -> str:
        name, sign, rest = match["name"].partition("#" if "#" in match["name"] else "?")
        target = (path.parent / name).resolve().relative_to(base.resolve())
        return f"url({target.as_posix()}{sign}{rest})"

    pieces, start = [], 0
    for match in _IMPORT.finditer(css):  # an imported sheet has its addresses right already
        pieces += [_URL.sub(moved, css[start : match.start()]), imported(match)]
        start = match.end()
    return "".join([*pieces, _URL.sub(moved, css[start:])])


# --- pages ------------------------------------------------------------------------------------

_SHEET = re.compile(r'<link (?=[^>]*rel="stylesheet")[^>]*href="(?P<href>[^"]+)"[^>]*/?>\s*')
_SCRIPT = re.compile(r'<script(?P<attributes>[^>]*) src="(?P<src>[^"]+)"[^>]*></script>\s*')
_PRELOAD = re.compile(r'<link rel="preload" as="script"[^>]*/?>\s*')
_CLASSES = re.compile(r'\b(?:class|id)="([^"]*)"')
_WORD = re.compile(r"-?[A-Za-z_][\w-]*")
NEVER = ("fontawesome.js",)
FOR_SEARCH = ("searchtools.js", "language_data.js", "searchindex.js")


def names_in(pages: Iterator[str], scripts: Iterator[str]) -> frozenset[str]:
    """The classes and ids of pages, and all words of scripts, which may set them."""
    found: set[str] = set()
    for html in pages:
        for value in set(_CLASSES.findall(html)):
            found.update(value.split())
    for script in scripts:
        found.update(_WORD.findall(script))
    return frozenset(found)


@dataclass
class Lightener:
    """Makes the pages of one site light.

    Attributes:
        root: the folder of the site.
        used: the classes and ids that its pages may have.
    """

    root: Path
    used: frozenset[str]
    _sheets: dict[tuple[Path, ...], str] = field(default_factory=dict)

    def page(self, path: Path) -> None:
        """Write a page anew, and the style sheet that it needs."""
        html = with_drawn_icons(path.read_text(encoding="utf-8"))
        html = _PRELOAD.sub("", html)
        is_search = path.name == "search.html"
        unneeded = NEVER if is_search else NEVER + FOR_SEARCH
        html = _SCRIPT.sub(
            lambda m: "" if m["src"].partition("?")[0].endswith(unneeded) else m[0], html
        )
        links = list(_SHEET.finditer(html))
        sheets = tuple((path.parent / m["href"].partition("?")[0]).resolve() for m in links)
        sheet = self._sheets.get(sheets) or self._joined(sheets)
        html = _SHEET.sub("", html)
        up = "../" * len(path.parent.relative_to(self.root).parts)
        link = f'<link rel="stylesheet" type="text/css" href="{up}{sheet}" />\n'
        start = links[0].start() if links else html.index("</head>")
        path.write_text(html[:start] + link + html[start:], encoding="utf-8")

    def _joined(self, sheets: tuple[Path, ...]) -> str:
        """Write one sheet for several, and return its address from the root of the site."""
        static = self.root / "_static"
        css = "".join(used_part(whole_sheet(sheet, static), self.used) for sheet in sheets)
        name = f"book-{sha256(css.encode()).hexdigest()[:10]}.css"
        (static / name).write_text(css, encoding="utf-8")
        self._sheets[sheets] = f"_static/{name}"
        return self._sheets[sheets]


def lighten(root: Path) -> None:
    """Make all pages of a built site light."""
    static = root / "_static"
    pages = sorted(path for path in root.rglob("*.html") if static not in path.parents)
    scripts = static.rglob("*.js")
    used = names_in(
        (path.read_text(encoding="utf-8") for path in pages),
        (path.read_text(encoding="utf-8") for path in scripts if path.name not in NEVER),
    )
    maker = Lightener(root, used)
    for path in pages:
        maker.page(path)
