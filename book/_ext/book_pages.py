"""Last touches to each page: no leftover scripts and marks."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_FORMATTER_MARK = re.compile(r' *(?:<span class="w"> *</span>)?<span class="c1"># fmt: \w+</span>')
_SIGNATURE = re.compile(r'<dt class="sig .*?</dt>', re.DOTALL)
_MODULE = re.compile(r'(?<=<span class="pre">)transformer_\w+(?:\.\w+)+(?=</span>)')
_LIST_TAG = re.compile(r"<(?P<end>/?)(?P<name>dl|dd)>")


def is_thebe_script(script: object) -> bool:
    """Tell whether a page script belongs to thebe, which the book does not use.

    Jupyter Book adds an inline script that declares ``const THEBE_JS_URL`` twice, so that each
    page ends with a console error; thebe would also load its code from a CDN.
    """
    body = getattr(script, "attributes", {}).get("body") or ""
    name = str(getattr(script, "filename", "") or "")
    return "THEBE_JS_URL" in body or "thebe" in name


# Scripts that extensions send with every page, and what a page has that needs them.
_NEEDED_FOR = {
    "togglebutton.js": "toggle",
    "toggleHint": "toggle",
    "toggleOpenOnPrint": "toggle",
    "togglebuttonSelector": "toggle",
    "design-tabs.js": "sd-tab-set",
    "DOCUMENTATION_OPTIONS.": "",  # for a switch between versions and a search while typing
}


def is_idle_script(script: object, page: str) -> bool:
    """Tell whether a page script has nothing to do on this page.

    Args:
        script: one of Sphinx's ``script_files``.
        page: the HTML of the article.

    Returns:
        Whether it is one that we know, and the page has nothing for it.
    """
    body = getattr(script, "attributes", {}).get("body") or ""
    name = str(getattr(script, "filename", "") or "")
    for mark, needed in _NEEDED_FOR.items():
        if mark in body or mark in name:
            classes = re.findall(r'class="([^"]*)"', page)
            return not needed or not any(needed in value.split() for value in classes)
    return False


def drop_formatter_marks(body: str) -> str:
    """Leave out the comments that tell our formatter to keep a line as it is."""
    return _FORMATTER_MARK.sub("", body)


def arguments_as_lines(body: str) -> str:
    """Set the arguments of a long signature as lines.

    Sphinx makes them a definition list without terms, which is not one for a screen reader.
    """
    return _SIGNATURE.sub(lambda found: _LIST_TAG.sub(_line_tag, found[0]), body)


def _line_tag(tag: re.Match[str]) -> str:
    if tag["end"]:
        return "</span>"
    return f'<span class="sig-argument{"s" if tag["name"] == "dl" else ""}">'


def mark_citations_as_items(body: str) -> str:
    """Make the entries of a bibliography the items of their list.

    Docutils gives them a role of their own, so that the list appears to have no items.
    """
    return body.replace('role="doc-biblioentry"', 'role="listitem"')


def let_modules_break(page: str) -> str:
    """Let the names of modules end a line behind a dot, and not within a word.

    >>> let_modules_break(
    ...     '<span class="pre">transformer_lib.layers.masks</span>'
    ... )
    '<span class="pre">transformer_lib.<wbr>layers.<wbr>masks</span>'
    """
    return _MODULE.sub(lambda name: name[0].replace(".", ".<wbr>"), page)


def _finish_page(
    _app: Sphinx, _pagename: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    page = context.get("body", "")
    for files in ("script_files", "css_files"):
        context[files] = [
            file
            for file in context.get(files, [])
            if not is_thebe_script(file) and not is_idle_script(file, page)
        ]
    if "body" in context:
        body = arguments_as_lines(drop_formatter_marks(context["body"]))
        context["body"] = let_modules_break(mark_citations_as_items(body))


def _let_contents_break(
    _app: Sphinx, _pagename: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    if "toc" in context:  # on this page
        context["toc"] = let_modules_break(context["toc"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", _let_contents_break, priority=100)  # before the theme reads it
    app.connect("html-page-context", _finish_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
