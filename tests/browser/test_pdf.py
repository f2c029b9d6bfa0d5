"""`make pdf` on three built pages: outline, page numbers, links, nothing cut; readers find it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import yaml
from browser_checks import settle, wait_for_fonts
from built_site import ROOT, SITE
from local_site import serve
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from pypdf import PdfReader

from tools.pdf.__main__ import read_about
from tools.pdf.contents import PdfError, reading_order
from tools.pdf.join import Book, join
from tools.pdf.offer import NAME, linked
from tools.pdf.printing import Printed, page_numbers, print_book

PRINTED = ("book/index", "book/03_attention", "book/03c_scores")
COLUMN = "<div class='math'><span class='katex-display' style='width: {}em'>{}</span></div>"
TALL = (
    "<figure><div class='figure-scroll'><svg width='300' viewBox='0 0 100 900'></svg></div>"
    "<figcaption><p>A caption</p></figcaption></figure>"
)


def contents() -> dict[str, Any]:
    """The order of the pages, if they are built."""
    if not (SITE / "index.html").is_file():
        pytest.fail("there is no built book in _build/html: run `make book` first", pytrace=False)
    toc: dict[str, Any] = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return toc


@pytest.fixture(scope="session")
def book() -> Book:
    entries = [entry for entry in reading_order(contents()) if entry.document in PRINTED]
    return join(SITE, entries, read_about(), SITE.as_uri())


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what `make pdf` needs, with the built site, and contents of three pages."""
    toc = contents()
    folder = tmp_path_factory.mktemp("project")
    for name in ("Makefile", "_config.yml", "CITATION.cff"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "tools", folder / "tools")
    for part in toc["parts"]:
        part["chapters"] = [page for page in part["chapters"] if page["file"] in PRINTED]
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    site = folder / "_build" / "html"
    shutil.copytree(SITE, site, ignore=shutil.ignore_patterns(NAME), copy_function=os.symlink)
    for document in PRINTED:  # what is written to may be no link into the real site
        (site / f"{document}.html").unlink()
        shutil.copy(SITE / f"{document}.html", site / f"{document}.html")
    return folder


@pytest.fixture(scope="session")
def site(browser: Browser, project: Path) -> Path:
    """The site after `make pdf`, which neither builds it nor installs anything here."""
    assert browser  # without one, these tests are skipped
    done = subprocess.run(
        ["make", "pdf", "--assume-old=book", "INSTALL=true", f"BIN={Path(sys.executable).parent}"],
        cwd=project,
        env={name: text for name, text in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "The book is printed: " in done.stdout
    return project / "_build" / "html"


@pytest.fixture(scope="session")
def printed(site: Path) -> Printed:
    data = (site / NAME).read_bytes()
    return Printed(data, *page_numbers(data), scaled={})


@pytest.fixture(scope="session")
def reader(printed: Printed) -> PdfReader:
    return PdfReader(BytesIO(printed.data))


def titles(outline: list[Any], depth: int = 0) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for item in outline:
        found += titles(item, depth + 1) if isinstance(item, list) else [(depth, item.title)]
    return found


def one_page(book: Book, addition: str) -> Book:
    """Return the book with its first page only, and something added to it."""
    first = book.sheets[0]
    html = re.sub(r'<a href="#index--[^"]*"', "<a", first.html) + addition
    return book._replace(sheets=[first._replace(html=html)])


def test_readers_find_it_on_the_front_page_and_in_the_menu_of_a_chapter(
    context: BrowserContext, site: Path, printed: Printed
) -> None:
    def fetched(page: Page, link: Locator) -> bytes:
        expect(link).to_be_visible()
        return page.request.get(urljoin(page.url, link.get_attribute("href") or "")).body()

    page = context.new_page()
    page.set_viewport_size({"width": 1280, "height": 900})
    wait_for_fonts(page)
    with serve(site) as origin:
        page.goto(f"{origin}/book/index.html")
        settle(page)
        button = page.get_by_role("link", name="PDF", exact=True)
        expect(button).to_have_attribute("title", re.compile(f"^{printed.pages} pages, "))
        assert fetched(page, button) == printed.data
        expect(page.locator("[data-live=front] svg.figure-svg:visible")).to_be_in_viewport()
        page.goto(f"{origin}/book/03c_scores.html")
        line = page.get_by_role("link", name="whole book, .pdf")
        expect(line).to_be_hidden()
        page.get_by_label("Download this page").click()
        assert fetched(page, line) == printed.data


def test_every_page_of_the_book_has_a_place_for_the_link() -> None:
    documents = [entry.document for entry in reading_order(contents())]
    pages = linked(SITE, documents, "")  # a page without one is refused
    assert len(pages) > len(PRINTED)
    assert all(NAME in html for html in pages.values())


def test_the_outline_has_parts_chapters_and_sections(reader: PdfReader) -> None:
    outline = titles(reader.outline)
    assert [title for depth, title in outline if depth == 0] == [
        "Contents",
        "About this book",
        "Attention",
    ]
    chapters = [title for depth, title in outline if depth == 1]
    assert any(title.startswith("3 · Attention") for title in chapters)
    assert any(title.startswith("3c · ") for title in chapters)
    assert len([title for depth, title in outline if depth == 2]) > 10
    assert reader.page_mode == "/UseOutlines"
    part, below = reader.outline[-2:]  # open, and its chapters are folded
    assert part["/Count"] > 0
    assert all(item["/Count"] < 0 for item in below if not isinstance(item, list))


def test_pages_are_numbered_and_the_contents_name_the_numbers(
    printed: Printed, reader: PdfReader
) -> None:
    assert 15 < printed.pages == len(reader.pages) < 80
    contents = reader.pages[1].extract_text()
    for anchor in ("index", "03_attention", "03c_scores"):
        number = printed.numbers[anchor]
        assert re.search(rf"\b{number}\b", contents)
        lines = reader.pages[number - 1].extract_text().splitlines()
        assert str(number) in [line.strip() for line in lines], anchor
    assert "3c · " in reader.pages[printed.numbers["03c_scores"]].extract_text()  # its head


def test_every_link_leads_somewhere(printed: Printed, reader: PdfReader) -> None:
    inside, outside = set(), set()
    for page in reader.pages:
        for note in page.get("/Annots", []):
            link = note.get_object()
            if "/Dest" in link:
                inside.add(str(link["/Dest"]).removeprefix("/"))
            else:
                outside.add(str(link["/A"]["/URI"]))
    assert len(inside) > 10
    assert inside <= set(printed.numbers)
    assert all(address.startswith("https://") for address in outside)


def test_the_file_says_nothing_of_when_and_where_it_was_made(
    printed: Printed, reader: PdfReader
) -> None:
    assert not {"/CreationDate", "/ModDate", "/Creator"} & set(reader.metadata or {})
    assert reader.metadata is not None
    assert reader.metadata.title == "The Executable Transformer"
    assert b"file://" not in printed.data
    assert str(ROOT).encode() not in printed.data


def test_pages_are_as_large_as_they_are_meant_to_be(reader: PdfReader) -> None:
    """Chromium makes every page smaller if anything is too wide, and says nothing."""
    for page in reader.pages:
        assert (round(page.mediabox.width), round(page.mediabox.height)) == (595, 842)
        scales = re.findall(
            rb"q\n([\d.]+) 0 0 [\d.]+ [\d.]+ [\d.]+ cm", page.get_contents().get_data()
        )
        assert float(scales[0]) == pytest.approx(300 / 96)


def test_what_is_too_wide_or_too_high_is_made_smaller(
    browser: Browser, book: Book, tmp_path: Path
) -> None:
    damaged = one_page(book, COLUMN.format(60, "x") + TALL)
    printed = print_book(browser, damaged, tmp_path / "book.html")
    assert printed.scaled["formula"] == 1
    assert printed.scaled["figure"] == 1


@pytest.mark.parametrize(
    "addition",
    [
        COLUMN.format(200, "too wide"),
        "<p style='width: 300mm'>too wide</p>",
        "<p style='white-space: nowrap'>" + "too wide" * 40 + "</p>",
        "<table><tr style='height: 400mm'><td>too wide</td></tr></table>",
    ],
)
def test_what_would_be_cut_is_reported(
    browser: Browser, book: Book, tmp_path: Path, addition: str
) -> None:
    with pytest.raises(PdfError, match=r"index: .*too wide"):
        print_book(browser, one_page(book, addition), tmp_path / "book.html")
