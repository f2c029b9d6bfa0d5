"""What leads from a page to its repository, derived from the repository the build is made from.

Chapters have links to Binder and Colab below their titles. Each page's foot links to the page's
source and to a new issue that names the page, each cell and figure to one that names it as well
(``_static/report.js``); licence and citation stand there in any case.
``{get-a-copy}`` says how to get the sources, ``{book-citation}`` how to cite the book.

No address is written down in the book. It is taken, in this order, from ``BOOK_REPOSITORY``, from
GitHub Actions' own variables, or from the git remote ``origin``. Where none of these names a host
that Binder and Colab can reach, the pages carry no link to a repository at all, and say in words
what to do.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import yaml  # type: ignore[import-untyped]
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from book_front import MarkdownDirective

BINDER = "https://mybinder.org/v2/gh"
COLAB = "https://colab.research.google.com/github"
REACHABLE_HOST = "github.com"

# Theme options that would show links to a repository; Jupyter Book's default is its own.
REPOSITORY_OPTIONS = ("repository_url", "repository_branch", "path_to_docs", "launch_buttons")


def normalise_repository(address: str) -> str | None:
    """Return ``owner/name`` for an https or ssh address on GitHub, else ``None``."""
    match = re.fullmatch(
        r"(?:https?://(?:[^@/\s]+@)?|ssh://(?:[^@/\s]+@)?|git://|git@)?"
        r"(?P<host>[\w.-]+)(?::\d+)?[/:]"
        r"(?P<owner>[A-Za-z0-9][\w-]*)/(?P<name>[\w.-]+?)(?:\.git)?/?",
        address.strip(),
    )
    if match is None or match["host"].lower().removeprefix("www.") != REACHABLE_HOST:
        return None
    if match["name"] in (".", ".."):
        return None
    return f"{match['owner']}/{match['name']}"


def find_repository(environment: Mapping[str, str], origin: str) -> str | None:
    """Return ``owner/name`` of the repository that this build is made from, if it is known.

    Args:
        environment: the process environment.
        origin: the address of the git remote ``origin``, or an empty string.
    """
    server, slug = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    stated = environment.get("BOOK_REPOSITORY")
    if stated is not None:  # also when empty: that is how the links are switched off
        return normalise_repository(stated)
    if server and slug:
        return normalise_repository(f"{server}/{slug}")
    return normalise_repository(origin)


def find_branch(environment: Mapping[str, str]) -> str:
    """Return the branch that the links open."""
    return environment.get("BOOK_BRANCH") or environment.get("GITHUB_REF_NAME") or "main"


def launch_links(repository: str, branch: str, path: str) -> dict[str, str]:
    """Return the address of one notebook on each service."""
    reference = quote(branch, safe="")
    return {
        "Binder": f"{BINDER}/{repository}/{reference}?urlpath={quote('lab/tree/' + path, safe='')}",
        "Colab": f"{COLAB}/{repository}/blob/{quote(branch)}/{quote(path)}",
    }


def launch_bar(links: Mapping[str, str]) -> str:
    """Return the line of links that stands below a chapter's title."""
    anchors = " ".join(
        f'<a class="launch-link" href="{html.escape(url)}" rel="noopener">{name}</a>'
        for name, url in links.items()
    )
    return f'<p class="launch-bar"><span>Run this chapter:</span> {anchors}</p>'


def insert_after_title(body: str, addition: str) -> str:
    """Put ``addition`` behind the first ``</h1>`` of a page."""
    before, title_end, after = body.partition("</h1>")
    return before + title_end + addition + after if title_end else body


def repository_links(repository: str, path: str | None, title: str) -> dict[str, str]:
    """Return the addresses for the foot of a page.

    Args:
        repository: ``owner/name``.
        path: the page's file in the repository; a page that Sphinx made has none.
        title: the page's title.
    """
    home = f"https://{REACHABLE_HOST}/{repository}"
    question = "What is wrong, and where on the page?"
    issue = {"title": f"{title}: ", "body": f"Page: {path}\n\n{question}\n\n"}
    # HEAD is the branch that people work on; the one that Binder opens is made anew each time.
    of_page = {
        "source_link": f"{home}/blob/HEAD/{quote(path or '')}",
        "report_link": f"{home}/issues/new?{urlencode(issue, quote_via=quote)}",
    }
    return {"repository_link": home, **(of_page if path else {})}


def copy_words(repository: str | None) -> str:
    """Return how to get the sources of the book, in Markdown.

    >>> copy_words("a/book").partition(" and unpack them")[0]
    '[Download the sources](https://github.com/a/book/archive/HEAD.zip)'
    """
    if repository is None:
        return (
            "You need a copy of the sources: clone the repository that these pages were made from, "
            "or download its archive and unpack it. Whoever gave you the pages knows its address."
        )
    home = f"https://{REACHABLE_HOST}/{repository}"
    archive = f"[Download the sources]({home}/archive/HEAD.zip)"
    return f"{archive} and unpack them, or clone the repository: `git clone {home}`."


def citation(about: Mapping[str, Any], repository: str | None) -> str:
    """Return the line by which the book is cited.

    Args:
        about: what ``CITATION.cff`` says.
        repository: ``owner/name``, if it is known.

    >>> about = {
    ...     "authors": [{"name": "A. B."}],
    ...     "title": "A book",
    ...     "version": "2",
    ... }
    >>> citation({**about, "date-released": "2030-01-31"}, "a/book")
    'A. B. (2030). A book, version 2. https://github.com/a/book'
    """
    who = ", ".join(_author(author) for author in about["authors"])
    if "date-released" in about:
        who += f" ({str(about['date-released'])[:4]})"
    end = f" https://{REACHABLE_HOST}/{repository}" if repository else ""
    return f"{who}. {about['title']}, version {about['version']}.{end}"


def _author(author: Mapping[str, str]) -> str:
    named = [author[part] for part in ("given-names", "family-names") if part in author]
    return author.get("name") or " ".join(named)


def known_repository(app: Sphinx) -> str | None:
    """Return ``owner/name`` of the repository that the pages may link to, if it is known."""
    return find_repository(os.environ, _git_origin(str(app.srcdir)))


def _about(app: Sphinx) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        (Path(app.srcdir) / "CITATION.cff").read_text(encoding="utf-8")
    )
    return found


def _citation(app: Sphinx) -> str:
    return citation(_about(app), known_repository(app))


def _add_reports(app: Sphinx) -> None:
    if known_repository(app) is not None:
        app.add_js_file("report.js", loading_method="defer")


class GetACopy(MarkdownDirective):
    """How to get the sources, where a command needs them."""

    def run(self) -> list[nodes.Node]:
        """Write it."""
        return self.read(copy_words(known_repository(self.env.app)))


class BookCitation(MarkdownDirective):
    """The line by which the book is cited."""

    def run(self) -> list[nodes.Node]:
        """Write it."""
        return self.read(f"> {_citation(self.env.app)}")


def _git_origin(folder: str) -> str:
    command = ["git", "-C", folder, "config", "--get", "remote.origin.url"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except OSError:  # no git: the book can be built from a plain archive
        return ""
    return answer.stdout.strip()


def _forget_default_repository(_app: Sphinx, config: Config) -> None:
    for option in REPOSITORY_OPTIONS:
        config.html_theme_options.pop(option, None)


def _add_launch_bar(
    app: Sphinx, pagename: str, _template: str, context: dict[str, Any], doctree: object
) -> None:
    if doctree is None or not str(app.env.doc2path(pagename)).endswith(".ipynb"):
        return
    repository = known_repository(app)
    if repository is not None:
        links = launch_links(repository, find_branch(os.environ), f"{pagename}.ipynb")
        context["body"] = insert_after_title(context["body"], launch_bar(links))


def _fill_foot(
    app: Sphinx, pagename: str, _template: str, context: dict[str, Any], doctree: object
) -> None:
    repository = known_repository(app)
    context["citation"] = _citation(app)
    context["book_version"] = _about(app)["version"]
    written = doctree is not None
    path = Path(str(app.env.doc2path(pagename))) if written else None
    name = path.relative_to(app.srcdir).as_posix() if path else None
    context["source_name"] = name
    if repository is not None:
        title = app.env.titles[pagename].astext() if written else ""
        context.update(repository_links(repository, name, title))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("get-a-copy", GetACopy)
    app.add_directive("book-citation", BookCitation)
    app.connect("config-inited", _forget_default_repository, priority=10)
    app.connect("builder-inited", _add_reports)
    app.connect("html-page-context", _add_launch_bar)
    app.connect("html-page-context", _fill_foot)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
