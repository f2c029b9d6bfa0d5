"""Old addresses still lead somewhere: ``moved.yml`` says where pages and headings have gone.

A heading that only has another name keeps its old anchor beside the new one. A heading that has
gone to another page is found by a short script on the old one. A page that is gone leaves a small
page behind that leads on.
"""

from __future__ import annotations

import html
import json
import posixpath
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from book_places import problem_with

FILE = Path(__file__).resolve().parents[1] / "moved.yml"
_LOG = logging.getLogger(__name__)
_STUB = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="0; url={target}">
</head>
<body><main><h1>This page has moved</h1><p><a href="{target}">It is here now.</a></p></main></body>
</html>
"""
_SCRIPT = """<script>
(() => {{
  const moved = {moved};
  const go = () => {{
    const target = moved[decodeURIComponent(location.hash.slice(1))];
    if (target) location.replace(target);
  }};
  addEventListener("hashchange", go);
  go();
}})();
</script>
"""


@cache
def moved() -> dict[str, str]:
    """Read the file: old places and new ones."""
    found: dict[str, str] = yaml.safe_load(FILE.read_text(encoding="utf-8")) or {}
    return found


def renamed_on(page: str) -> dict[str, str]:
    """Return old and new anchors of headings that are still on a page."""
    parts = {old.partition("#")[::2]: new.partition("#")[::2] for old, new in moved().items()}
    return {old[1]: new[1] for old, new in parts.items() if old[0] == new[0] == page}


def gone_from(page: str) -> dict[str, str]:
    """Return the anchors that have left a page, each with the address of where it is."""
    found = {}
    for old, new in moved().items():
        (old_page, _, anchor), (new_page, _, target) = old.partition("#"), new.partition("#")
        if old_page == page and anchor and new_page != page:
            found[anchor] = address_of(f"{new_page}#{target}", page)
    return found


def address_of(place: str, seen_from: str) -> str:
    """Return the address of a place, seen from another page of the book.

    >>> (
    ...     address_of("05_masks#what-breaks", "05_old"),
    ...     address_of("sources", "old"),
    ... )
    ('05_masks.html#what-breaks', 'sources.html')
    >>> (
    ...     address_of("api/layers", "api/parts"),
    ...     address_of("play", "api/figures"),
    ... )
    ('layers.html', '../play.html')
    """
    page, _, anchor = place.partition("#")
    page = posixpath.relpath(page, posixpath.dirname(seen_from) or ".")
    return f"{page}.html#{anchor}" if anchor else f"{page}.html"


def _keep_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Give headings with a new name their old anchors, too."""
    page = app.env.docname.removeprefix("book/")
    for old, new in renamed_on(page).items():
        sections = [s for s in doctree.findall(nodes.section) if new in s["ids"]]
        if not sections:
            said = f"book/moved.yml says that {page}#{old} is {page}#{new} now"
            _LOG.warning("%s, but: %s", said, problem_with(f"{page}#{new}") or "it has none")
        for section in sections[:1]:
            section["ids"].append(old)


def _add_script(
    _app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: nodes.document
) -> None:
    """Let a page lead on to headings that have left it."""
    if (gone := gone_from(page.removeprefix("book/"))) and "body" in context:
        context["body"] += _SCRIPT.format(moved=json.dumps(gone).replace("</", "<\\/"))


def _write_stubs(app: Sphinx, error: Exception | None) -> None:
    """Leave a page behind where one is gone, and look whether all new pages are there."""
    if error is not None or app.builder.format != "html":
        return
    for old, new in moved().items():
        target = new.partition("#")[0]
        if f"book/{target}" not in app.env.found_docs:
            problem = problem_with(target) or f"_toc.yml has no line for book/{target}"
            _LOG.warning("book/moved.yml says that %s is %s now, but: %s", old, new, problem)
        if "#" not in old:
            text = _STUB.format(target=html.escape(address_of(new, old)))
            Path(app.outdir, "book", f"{old}.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-read", _keep_anchors, priority=400)  # before anchors are noted
    app.connect("html-page-context", _add_script)
    app.connect("build-finished", _write_stubs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
