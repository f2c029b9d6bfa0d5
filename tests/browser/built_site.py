"""Which pages the built site has. Asking for them without a build is an error, not a skip."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from site_links import html_files, parse

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
CHAPTER_03 = "book/03_attention.html"


def pages() -> list[str]:
    """List the pages to open: every HTML file of the site but bare redirects."""
    if not (SITE / "index.html").is_file():
        pytest.fail("there is no built book in _build/html: run `make book` first", pytrace=False)
    return [file.as_posix() for file in html_files(SITE) if not parse(SITE / file).redirects]


def documents_in_toc() -> list[str]:
    """List the documents that `_toc.yml` names, by walking all of its parts and sections."""

    def walk(entry: object) -> list[str]:
        if isinstance(entry, list):
            return [name for item in entry for name in walk(item)]
        if not isinstance(entry, dict):
            return []
        own = [str(entry[key]) for key in ("root", "file") if key in entry]
        return own + [name for value in entry.values() for name in walk(value)]

    return walk(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
