"""Print a joined document with Chromium: measured first, so that nothing is cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright
from pypdf import PdfReader
from pypdf.generic import IndirectObject

from tools.browser import NO_BROWSER, find_browser, has_sandbox

from .contents import PdfError
from .join import Book
from .polish import polish

FIT = Path(__file__).with_name("fit.js")
OLDEST_CHROMIUM = 131  # the first that prints heads and page numbers by CSS
COLUMN_WIDTH = 628  # CSS pixels: 166 mm, as print.css says
PAGE_HEIGHT = 960  # CSS pixels: 297 mm less the margins of print.css, rounded down
FIGURE_HEIGHT = 840  # CSS pixels, with caption: a heading and a line of code fit above it
FIGURE_SCALE = 0.82  # about as the text: 10.5 pt on paper, 18 pixels on the site
SMALLEST = 0.6  # of its size; what would have to be smaller is reported instead
SHOWN_PROBLEMS = 40
PATIENCE = 15 * 60_000  # milliseconds for one step, on a slow and busy machine

_WRITE_NUMBERS = """(numbers) => {
  for (const line of document.querySelectorAll(".contents-line a"))
    line.querySelector("b").textContent = numbers[line.hash.slice(1)] ?? "?";
}"""


class Printed(NamedTuple):
    """A printed book.

    Attributes:
        data: the PDF.
        numbers: the page, from 1, of each anchor that a link leads to.
        pages: how many pages it has.
        scaled: how many formulas, tables, blocks of code and figures were made smaller.
    """

    data: bytes
    numbers: dict[str, int]
    pages: int
    scaled: dict[str, int]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser that prints.

    Raises:
        PdfError: if there is none.
    """
    with sync_playwright() as playwright:
        try:
            executable = find_browser(bundled=Path(playwright.chromium.executable_path))
        except FileNotFoundError as error:
            raise PdfError(str(error)) from error
        if executable is None:
            raise PdfError(NO_BROWSER)
        browser = playwright.chromium.launch(
            executable_path=executable, chromium_sandbox=has_sandbox()
        )
        try:
            yield browser
        finally:
            browser.close()


def print_book(browser: Browser, book: Book, file: Path) -> Printed:
    """Print a book: first for the page numbers of its contents, then with them.

    Args:
        browser: the browser that prints.
        book: the joined pages.
        file: where the document is written; the addresses of its styles start from there.

    Raises:
        PdfError: if the browser is too old, or something would be cut.
    """
    if int(browser.version.partition(".")[0]) < OLDEST_CHROMIUM:
        raise PdfError(f"Chromium {browser.version} is too old: {OLDEST_CHROMIUM} is needed")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(book.html(), encoding="utf-8")
    context = browser.new_context(viewport={"width": COLUMN_WIDTH, "height": PAGE_HEIGHT})
    context.set_default_timeout(PATIENCE)
    try:
        page = context.new_page()
        scaled = _lay_out(page, file)
        draft = page.pdf(prefer_css_page_size=True)
        numbers, _ = page_numbers(draft)
        page.evaluate(_WRITE_NUMBERS, numbers)
        # Only tagged PDFs get an outline, and those who listen need the tags.
        final = page.pdf(
            outline=True, tagged=True, prefer_css_page_size=True, print_background=True
        )
    finally:
        context.close()
    moved, pages = page_numbers(final)
    if moved != numbers:
        raise PdfError("The pages moved when their numbers were printed in the contents")
    return Printed(polish(final), numbers, pages, scaled)


def _lay_out(page: Page, file: Path) -> dict[str, int]:
    """Open the document as on paper and make everything fit; return what was made smaller."""
    page.emulate_media(media="print", color_scheme="light")
    page.goto(file.resolve().as_uri())
    page.evaluate("document.fonts.ready.then(() => true)")
    found = page.evaluate(
        FIT.read_text(encoding="utf-8"),
        {
            "pageHeight": PAGE_HEIGHT,
            "smallest": SMALLEST,
            "figureScale": FIGURE_SCALE,
            "figureHeight": FIGURE_HEIGHT,
        },
    )
    if cut := found["cut"]:
        shown = "\n".join(f"  {line}" for line in cut[:SHOWN_PROBLEMS])
        raise PdfError(f"On paper {len(cut)} things would be cut:\n{shown}")
    scaled: dict[str, int] = found["scaled"]
    return scaled


def page_numbers(data: bytes) -> tuple[dict[str, int], int]:
    """Return the page, from 1, of each anchor that a link leads to, and the number of pages."""
    reader = PdfReader(BytesIO(data))
    places = {
        page.indirect_reference.idnum: number
        for number, page in enumerate(reader.pages, 1)
        if page.indirect_reference is not None
    }
    numbers = {}
    for name, target in reader.named_destinations.items():
        page = target.raw_get("/Page")
        assert isinstance(page, IndirectObject)  # Chromium never writes bare numbers
        numbers[name.removeprefix("/")] = places[page.idnum]
    return numbers, len(places)
