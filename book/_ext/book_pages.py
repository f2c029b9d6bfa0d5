"""Last touches to each page: no leftover scripts, no address of other projects."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def is_thebe_script(script: object) -> bool:
    """Tell whether a page script belongs to thebe, which the book does not use.

    Jupyter Book adds an inline script that declares ``const THEBE_JS_URL`` twice, so that each
    page ends with a console error; thebe would also load its code from a CDN.
    """
    body = getattr(script, "attributes", {}).get("body") or ""
    name = str(getattr(script, "filename", "") or "")
    return "THEBE_JS_URL" in body or "thebe" in name


def _clean_page(
    _app: Sphinx, _pagename: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    scripts = context.get("script_files", [])
    context["script_files"] = [script for script in scripts if not is_thebe_script(script)]
    styles = context.get("css_files", [])
    context["css_files"] = [style for style in styles if not is_thebe_script(style)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", _clean_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
