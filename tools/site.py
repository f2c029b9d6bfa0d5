"""Build the book's site strictly, prove that it is complete and self-contained, and serve it.

Usage::

    python -m tools.site build            # from nothing; any warning fails
    python -m tools.site serve --port 8000
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tools.light import lighten
from tools.live import write_weights

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
HTML = BUILD / "html"
LOG = BUILD / "site-build.log"

# What a Sphinx run leaves behind; a stale file here could hide a warning or a missing page.
BUILD_PRODUCTS = ("html", ".doctrees", "jupyter_execute", ".jupyter_cache")

SHOWN_LINES = 40  # of a failed build's log
LINE_LENGTH = 300
MINIMAL_TEXT = 200  # characters of readable text below which a page counts as empty

# Links that a browser follows only when the reader asks for it.
PASSIVE_LINKS = {"alternate", "author", "canonical", "help", "license", "next", "prev", "search"}
RESOURCE_ATTRIBUTES = {
    "audio": ("src",),
    "embed": ("src",),
    "feimage": ("href", "xlink:href"),
    "form": (),
    "frame": ("src",),
    "iframe": ("src", "srcdoc"),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
EXTERNAL_URL = re.compile(r"(?:^|[\s,\"'(=])(?:https?:)?//[\w.-]", re.IGNORECASE)
EXTERNAL_CSS = re.compile(
    r"(?:url\(\s*[\"']?|@import\s+[\"'])\s*((?:https?:)?//[^\s\"')]+)", re.IGNORECASE
)
WARNING_LINE = re.compile(r"WARNING|ERROR|CRITICAL|Exception|Traceback")
ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class SiteError(Exception):
    """The site is not what the book promises."""


class _ResourceCollector(HTMLParser):
    """Collect what a page makes the browser fetch from elsewhere, and how much text it shows."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.external: list[str] = []
        self.text_length = 0  # of the article itself, not of menus and footers
        self.headings = 0
        self._silent: list[str] = []
        self._article_depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "article":
            self._article_depth += 1
        if tag == "h1" and self._article_depth:
            self.headings += 1
        if tag in ("script", "style"):
            self._silent.append(tag)
        for name in self._fetched_attributes(tag, values):
            if EXTERNAL_URL.search(values.get(name, "")):
                self.external.append(f"<{tag} {name}={values[name]!r}>")
        self._collect_css(values.get("style", ""), f"<{tag} style>")

    @staticmethod
    def _fetched_attributes(tag: str, values: dict[str, str]) -> tuple[str, ...]:
        if tag == "link":
            relations = set(values.get("rel", "").lower().split())
            return () if relations and relations <= PASSIVE_LINKS else ("href", "imagesrcset")
        return RESOURCE_ATTRIBUTES.get(tag, ())

    def _collect_css(self, css: str, where: str) -> None:
        self.external += [f"{where} {url}" for url in EXTERNAL_CSS.findall(css)]

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._article_depth -= 1
        if self._silent and self._silent[-1] == tag:
            self._silent.pop()

    def handle_data(self, data: str) -> None:
        if self._silent:
            if self._silent[-1] == "style":
                self._collect_css(data, "<style>")
        elif self._article_depth:
            self.text_length += len(data.strip())


def external_resources(html: str) -> list[str]:
    """Return the resources that this page would fetch from another host.

    Ordinary links (``<a href>``) do not count: nothing is fetched before the reader follows them.
    """
    collector = _ResourceCollector()
    collector.feed(html)
    collector.close()
    return collector.external


def external_css(css: str) -> list[str]:
    """Return the addresses on other hosts that a style sheet would fetch."""
    return EXTERNAL_CSS.findall(css)


def is_empty_page(html: str) -> bool:
    """Tell whether a page lacks a heading or readable text."""
    collector = _ResourceCollector()
    collector.feed(html)
    collector.close()
    return collector.headings == 0 or collector.text_length < MINIMAL_TEXT


def toc_pages(toc: object) -> list[str]:
    """Return the document names of a ``_toc.yml``, in reading order."""
    if isinstance(toc, dict):
        own = [str(toc[key]) for key in ("root", "file") if key in toc]
        nested = [value for key, value in toc.items() if key not in ("root", "file")]
        return [re.sub(r"\.(ipynb|md)$", "", name) for name in own] + toc_pages(nested)
    if isinstance(toc, list):
        return [page for entry in toc for page in toc_pages(entry)]
    return []


def find_problems(html_dir: Path, pages: list[str]) -> Iterator[str]:
    """Yield what is wrong with a built site: missing or empty pages, foreign resources."""
    if not pages:
        yield "_toc.yml lists no page"
    for page in pages:
        path = html_dir / f"{page}.html"
        if not path.is_file():
            yield f"{page}: the page was not built"
        elif is_empty_page(path.read_text(encoding="utf-8")):
            yield f"{page}: the page is empty"
    for path in sorted(html_dir.rglob("*.html")):
        for resource in external_resources(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(html_dir)}: fetches from another host: {resource}"
    for path in sorted(html_dir.rglob("*.css")):
        for url in external_css(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(html_dir)}: fetches from another host: {url}"


def warnings_in(log: str) -> list[str]:
    """Return the lines of a Sphinx log that a person has to read, without repetition."""
    lines = (ANSI_COLOUR.sub("", line).strip() for line in log.splitlines())
    return list(dict.fromkeys(line for line in lines if WARNING_LINE.search(line)))


def build() -> None:
    """Build the site from nothing; raise :class:`SiteError` if anything is wrong with it."""
    for name in BUILD_PRODUCTS:
        shutil.rmtree(BUILD / name, ignore_errors=True)
    BUILD.mkdir(exist_ok=True)
    started = time.monotonic()
    _run_sphinx()
    lighten(HTML)
    write_weights(HTML / "_static" / "live")
    pages = toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    problems = list(find_problems(HTML, pages))
    if problems:
        raise SiteError("The site was built, but:\n" + "\n".join(f"  {p}" for p in problems))
    front_page = HTML / f"{pages[0]}.html"
    print(
        f"The book is built: {len(pages)} pages, no warnings, nothing fetched from elsewhere "
        f"({time.monotonic() - started:.0f} s).\n"
        f"  folder:  {HTML}\n"
        f"  open:    {front_page.as_uri()}\n"
        f"  serve:   make serve"
    )


def _run_sphinx() -> None:
    print("Building the book (full log: _build/site-build.log) ...", flush=True)
    start = "from jupyter_book.cli.main import main; main()"  # the package has no __main__
    options = ["-W", "--keep-going", "-n", "--all"]
    command = [sys.executable, "-c", start, "build", str(ROOT), *options]
    with LOG.open("w", encoding="utf-8") as log:
        run = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, check=False)
    text = LOG.read_text(encoding="utf-8")
    warnings = warnings_in(text)
    if run.returncode != 0 or warnings:
        reasons = warnings or text.splitlines()[-SHOWN_LINES:]
        shown = [f"  {line[:LINE_LENGTH]}" for line in reasons[:SHOWN_LINES]]
        if len(reasons) > SHOWN_LINES:
            shown.append(f"  ... and {len(reasons) - SHOWN_LINES} more in {LOG}")
        raise SiteError("\n".join([f"The build failed (exit status {run.returncode}):", *shown]))


class _QuietHandler(SimpleHTTPRequestHandler):
    """Serve files without a line of log for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


def serve(port: int) -> None:
    """Serve the built site on this machine until interrupted."""
    if not (HTML / "index.html").is_file():
        raise SiteError("There is no built site yet: run `python -m tools.site build` first.")
    handler = partial(_QuietHandler, directory=str(HTML))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"Serving the book at http://127.0.0.1:{server.server_port}/ (Ctrl-C stops it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nStopped.")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the site from nothing; any warning fails")
    serving = commands.add_parser("serve", help="serve the built site on this machine")
    serving.add_argument("--port", type=int, default=8000, help="0 picks a free one")
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            build()
        else:
            serve(options.port)
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
