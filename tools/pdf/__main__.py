"""Print the book from the built site into one PDF, and link to it from the site.

Usage::

    python -m tools.pdf    # after `python -m tools.site build`
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter

import yaml  # type: ignore[import-untyped]

from tools.site import BUILD, HTML, ROOT

from .contents import PdfError, reading_order
from .join import About, Book, join
from .offer import NAME, linked, megabytes, offer

try:
    from .printing import chromium, print_book
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is missing: `make env` installs what printing needs")


def make_pdf() -> None:
    """Print the built site."""
    started = time.monotonic()
    if not HTML.is_dir():
        raise PdfError("There is no built site yet: run `make book` first.")
    entries = reading_order(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    documents = [entry.document for entry in entries]
    print(f"Joining {len(entries)} pages of the site ...", flush=True)
    book = join(HTML, entries, read_about(), "../html")
    linked(HTML, documents, "")  # a page without a place for it is told before the long wait
    print("Printing them; this takes minutes ...", flush=True)
    with chromium() as browser:
        printed = print_book(browser, book, BUILD / "pdf" / "book.html")
    (HTML / NAME).write_bytes(printed.data)
    offer(HTML, documents, printed.pages, len(printed.data))
    smaller = ", ".join(f"{count} × {kind}" for kind, count in printed.scaled.items() if count)
    print(
        f"The book is printed: {printed.pages:,} pages, {megabytes(len(printed.data))}, "
        f"{count_links(book)} ({time.monotonic() - started:.0f} s).\n"
        f"  made smaller to fit: {smaller or 'nothing'}\n"
        f"  file:  {HTML / NAME}"
    )


def read_about() -> About:
    """Read what the title page says from the site's configuration and the citation file."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    licence = str(config["copyright"]).partition(". ")[2]  # after whose it is
    return About(config["title"], config["author"], licence, citation["version"])


def count_links(book: Book) -> str:
    """Say how many links of each kind a book has."""
    kinds = Counter(
        "inside" if address.startswith("#") else "outside"
        for sheet in book.sheets
        for address in re.findall(r'<a [^>]*?href="([^"]+)"', sheet.html)
    )
    return f"{kinds['inside']:,} links inside, {kinds['outside']:,} to the web"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.pdf", description=__doc__)
    parser.parse_args(arguments)
    try:
        make_pdf()
    except PdfError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
