"""A live figure as one HTML document with everything in it, for a notebook's frame."""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from transformer_book.live.one_byte import weights_script
from transformer_lib import book_folder

STATIC = book_folder() / "_static"
SCRIPTS = STATIC / "live"
_PALETTE = re.compile(r'html(?:,\nhtml)?\[data-theme="(?:light|dark)"\] \{\n  --book[^}]*\}')
_TYPE = "--book-sans: 'Source Sans 3', system-ui, sans-serif; --book-mono: ui-monospace, monospace"

# The frame belongs to the notebook's page: it follows that page's colours, and grows to its height.
_FOLLOW = """
  const around = (() => { try { return parent.document.body.dataset; } catch { return {}; } })();
  const prefers = matchMedia("(prefers-color-scheme: dark)").matches;
  const dark = around.jpThemeLight ? around.jpThemeLight === "false"
    : (around.vscodeThemeKind || "").includes("dark") || prefers;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  addEventListener("load", () => new ResizeObserver(() => {
    if (window.frameElement) frameElement.style.height = `${document.body.scrollHeight + 8}px`;
  }).observe(document.body));
"""


def document(
    name: str, definition: Mapping[str, Any], settings: str, models: Iterable[str] = ()
) -> str:
    """Write a figure as a document that needs nothing else.

    Args:
        name: the figure's.
        definition: what it says of itself.
        settings: as in an address.
        models: whose weights are put into it.

    Returns:
        HTML.

    Example:
        >>> page = document(
        ...     "scale",
        ...     {"title": "Scores", "scripts": ["scale.js"]},
        ...     "by=none",
        ... )
        >>> "src=" in page, 'data-settings="by=none"' in page
        (False, True)
    """
    read = [
        (SCRIPTS / file).read_text(encoding="utf-8")
        for file in (*definition["scripts"], *definition.get("later", ()))
    ]
    read += [weights_script(model) for model in models]
    book = (STATIC / "book.css").read_text(encoding="utf-8")
    css = "\n".join(_PALETTE.findall(book)) + "".join(
        (SCRIPTS / file).read_text(encoding="utf-8")
        for file in ("live.css", *definition.get("styles", ()))
    )
    code = "\n".join(f"<script>{_inside(script)}</script>" for script in read)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(definition['title'])}</title><style>{css}\n"
        f"html {{ {_TYPE} }} body {{ background: var(--book-paper); color: var(--book-ink); "
        f"margin: 0 }} .live {{ margin: 2px }} * {{ box-sizing: border-box }}</style>"
        f"<script>globalThis.Live = {{ embedded: true }};{_FOLLOW}</script></head><body>"
        f'<div class="live" data-live="{name}" data-settings="{escape(settings)}"></div>'
        f"{code}</body></html>"
    )


def _inside(script: str) -> str:
    """Make a script safe to stand inside a page."""
    return script.replace("</script", "<\\/script")
