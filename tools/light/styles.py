"""Style sheets: joined, and cut to what the pages use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

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


_ICON_FONT = re.compile(r"Font Awesome|var\(--fa-|--fa-font|\\f[0-9a-f]{3}\b|--fa-[a-z]+-scale")


def without_icon_font(css: str) -> str:
    r"""Leave out the rules that belong to an icon font.

    >>> without_icon_font(r'a{b:c}.fa-sun:before{content:"\f185"}')
    'a{b:c}'
    """
    kept = []
    for head, body in rules_of(css):
        if head.startswith(_NESTED):
            kept.append(f"{head}{{{without_icon_font(body)}}}")
        elif not _ICON_FONT.search(body) and not head.startswith("@keyframes fa-"):
            kept.append(f"{head}{{{body}}}" if body else f"{head};")
    return "".join(kept)


def without_indents(css: str) -> str:
    r"""Write a style sheet without the room that makes it easy to read.

    >>> without_indents("a{\n  b: c;\n  d: e,\n    f;\n}")
    'a{b: c;d: e, f;}'
    """
    return re.sub(r"\s*\n\s*", " ", re.sub(r"(?<=[;{}])\s*\n\s*|\s*\n\s*(?=})", "", css))


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
