"""From each page to the files that hold its subject: a line below the title, by ``files.yml``.

Where the repository is known, the line leads to the file itself, else to its section of the API.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml  # type: ignore[import-untyped]
from sphinx.application import Sphinx

from book_launch import REACHABLE_HOST, insert_after_title, known_repository

FILE = Path(__file__).resolve().parents[1] / "files.yml"


@cache
def files() -> dict[str, list[str]]:
    """Read the file: for each page the paths of its files, from the root of the repository."""
    found: dict[str, list[str]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return found


def module_of(path: str) -> str:
    """Name the module that a file holds.

    >>> module_of("transformer_lib/layers/masks.py")
    'transformer_lib.layers.masks'
    """
    return path.removesuffix(".py").replace("/", ".")


def line(addresses: Mapping[str, str]) -> str:
    """Return the line for one page.

    Args:
        addresses: the page's files, and where each is found.

    >>> line({"lib/masks.py": "api.html#masks"})
    '<p class="library-files">In the library: <a href="api.html#masks">lib/<wbr>masks.py</a></p>'
    """
    links = ", ".join(
        f'<a href="{html.escape(address)}">{html.escape(path).replace("/", "/<wbr>")}</a>'
        for path, address in addresses.items()
    )
    return f'<p class="library-files">In the library: {links}</p>'


def _address_of(app: Sphinx, page: str, path: str) -> str:
    if repository := known_repository(app):
        return f"https://{REACHABLE_HOST}/{repository}/blob/HEAD/{quote(path)}"
    where = app.env.get_domain("py").modules[module_of(path)]  # type: ignore[attr-defined]
    return f"{app.builder.get_relative_uri(page, where.docname)}#{where.node_id}"


def _add_line(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], doctree: object
) -> None:
    paths = files().get(page.removeprefix("book/"), [])
    if doctree is not None and paths:
        added = line({path: _address_of(app, page, path) for path in paths})
        context["body"] = insert_after_title(context["body"], added)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", _add_line, priority=400)  # so that buttons come above it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
