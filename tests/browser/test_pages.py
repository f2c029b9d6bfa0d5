"""Every page of the built book, opened in a real browser with the network cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_checks import CHECKS, visit
from built_site import CHAPTER_03, ROOT, SITE, documents_in_toc, pages
from playwright.sync_api import BrowserContext
from site_links import broken_links, repeated_ids

PAGES = pages()
LONGEST_FIRST = sorted(PAGES, key=lambda path: -(SITE / path).stat().st_size)


@pytest.mark.parametrize("path", LONGEST_FIRST)  # so that two workers end at the same time
def test_page(path: str, context: BrowserContext, origin: str) -> None:
    """One visit, every check: a page is slow to load and quick to look at."""
    found = visit(context, origin, f"{origin}/{path}")
    assert set(found) == set(CHECKS)
    problems = [f"{check}? {problem}" for check, listed in found.items() for problem in listed]
    assert not problems, f"{path}:\n  " + "\n  ".join(problems)


def test_every_document_of_the_contents_has_a_page() -> None:
    documents = documents_in_toc()
    assert len(documents) >= 2
    missing = [name for name in documents if f"{_stem(name)}.html" not in PAGES]
    assert not missing, f"in _toc.yml but not built: {missing}"


def test_the_pages_that_sphinx_adds_are_there() -> None:
    assert {"genindex.html", "search.html", CHAPTER_03} <= set(PAGES)


def test_internal_links_lead_somewhere() -> None:
    problems = broken_links(SITE)
    assert not problems, "\n".join(problems)


def test_ids_are_unique_within_a_page() -> None:
    problems = repeated_ids(SITE)
    assert not problems, "\n".join(problems)


def _stem(document: str) -> str:
    for suffix in (".ipynb", ".md", ".rst"):
        document = document.removesuffix(suffix)
    return document


def test_the_site_is_built_from_this_tree() -> None:
    """A chapter that is newer than its page means that the tests look at an old build."""
    stale = [
        source.name
        for name in documents_in_toc()
        for source in ROOT.glob(f"{_stem(name)}.*")
        if source.suffix in (".ipynb", ".md") and _is_newer(source, SITE / f"{_stem(name)}.html")
    ]
    assert not stale, f"changed since the book was built, run `make book`: {stale}"


def _is_newer(source: Path, page: Path) -> bool:
    return page.is_file() and source.stat().st_mtime > page.stat().st_mtime
