"""Internal links of a built site, checked in the files alone: no browser needed."""

from __future__ import annotations

from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

NOT_PAGES = {"_static", "_sources", "_downloads", "_images"}


class Anchors(HTMLParser):
    """Collects the anchors that a page offers and the addresses that it refers to."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: Counter[str] = Counter()
        self.references: list[str] = []
        self.redirects = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        if "id" in values:
            self.ids[values["id"]] += 1
        if tag == "a" and "name" in values and values["name"] != values.get("id"):
            self.ids[values["name"]] += 1
        if tag == "meta" and values.get("http-equiv", "").lower() == "refresh":
            self.redirects = True
            self.references.append(values["content"].lower().partition("url=")[2])
        for name in ("href", "src"):
            if name in values and values.get("rel") != "canonical":
                self.references.append(values[name])


def parse(file: Path) -> Anchors:
    return _parse(file.read_text(encoding="utf-8"))


@cache  # by the text, so that a file that is written anew is read anew; several tests ask for each
def _parse(html: str) -> Anchors:
    anchors = Anchors()
    anchors.feed(html)
    return anchors


def html_files(root: Path) -> list[Path]:
    """List the site's pages, as paths relative to its root."""
    files = sorted(file.relative_to(root) for file in root.rglob("*.html"))
    return [file for file in files if NOT_PAGES.isdisjoint(file.parts)]


def broken_links(root: Path) -> list[str]:
    """Find every reference within the site to a file or an anchor that is not there."""
    pages = {root / file: parse(root / file) for file in html_files(root)}
    problems = []
    for file, anchors in pages.items():
        for reference in sorted(set(anchors.references)):
            problem = _problem(root, file, reference, pages)
            if problem:
                problems.append(f"{file.relative_to(root)}: {reference} ({problem})")
    return problems


def repeated_ids(root: Path) -> list[str]:
    """Find ids that a page uses twice: links, labels and figures' clip paths would mix them up."""
    return [
        f"{file}: id {name!r} occurs {count} times"
        for file in html_files(root)
        for name, count in parse(root / file).ids.items()
        if count > 1
    ]


def _problem(root: Path, file: Path, reference: str, pages: dict[Path, Anchors]) -> str:
    parts = urlsplit(reference)
    if parts.scheme or parts.netloc:
        return ""
    if parts.path.startswith("/"):
        return "absolute path: breaks when the site lives in a folder"
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target = target / "index.html"
    if not target.is_relative_to(root):
        return "leaves the site"
    if not target.is_file():
        return "no such file"
    fragment = unquote(parts.fragment)
    if fragment and target in pages and fragment not in pages[target].ids:
        return "no such anchor"
    return ""
