"""The gallery as readers see it: pictures that come when they are near, words, files, ways."""

from __future__ import annotations

import re

from browser_checks import DESKTOP, PHONE, overflow, settle
from built_site import SITE
from playwright.sync_api import BrowserContext, Page, expect

MOST_PICTURES_AT_FIRST = 14  # of nearly 200
PATIENCE_MS = 10_000


def opened(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.set_viewport_size(DESKTOP)
    page.goto(address)
    settle(page)
    return page


def test_each_figure_has_picture_words_licence_and_file(
    context: BrowserContext, origin: str
) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = opened(context, f"{origin}/book/figures.html")
    assert 1 <= sum(url.endswith(".svg") for url in asked) <= MOST_PICTURES_AT_FIRST + 1  # its icon
    cards = page.locator(".figure-card")
    whole = """(cards) => cards.every((card) => card.querySelector("img[src$='.svg']")
      && card.querySelector(".figure-title a[href*='#cell-']") && card.querySelector("a[download]")
      && card.textContent.includes("CC BY 4.0") && !/ …$/m.test(card.textContent)
      && card.querySelectorAll("p").length >= 3)"""
    assert cards.count() > 150
    assert cards.evaluate_all(whole)
    chapters = page.locator("h2.plan-part").all_inner_texts()
    assert chapters[0].startswith("0 · ")
    assert len(chapters) > 40
    last = cards.last.locator("img")
    assert not last.evaluate("(image) => image.complete && image.naturalWidth > 0")
    last.scroll_into_view_if_needed()
    page.wait_for_function("(image) => image.naturalWidth > 0", arg=last.element_handle())
    with page.expect_download() as waiting:
        cards.last.locator("a[download]").click()
    assert waiting.value.path().read_text(encoding="utf-8").startswith(("<svg", "<?xml"))
    cards.first.locator(".figure-title a").click()
    page.wait_for_url("**/00_reading_this_book.html#cell-**")


def test_the_gallery_fits_a_phone(context: BrowserContext, origin: str) -> None:
    page = opened(context, f"{origin}/book/figures.html")
    page.set_viewport_size(PHONE)
    assert not overflow(page)
    small = page.locator(".figure-gallery a:not(.figure-small), .figure-ways a").evaluate_all(
        "(links) => links.filter((link) => link.getBoundingClientRect().height < 24).length"
    )
    assert small == 0


def test_play_shows_still_pictures_that_lead_to_live_ones(
    context: BrowserContext, origin: str
) -> None:
    page = opened(context, f"{origin}/book/play.html")
    cards = page.locator(".live-gallery .figure-card")
    assert cards.count() == page.locator("article .live").count() + 1  # and the front page's
    for card in cards.all():
        card.scroll_into_view_if_needed()
        picture = card.locator("img").element_handle()
        page.wait_for_function("(image) => image.complete && image.naturalWidth > 0", arg=picture)
        address = card.locator(".figure-title a").get_attribute("href") or ""
        name = address.partition("#")[0] or "play.html"
        html = (SITE / "book" / name).resolve().read_text(encoding="utf-8")
        assert 'class="live" data-live="' in html, address
        anchor = address.partition("#")[2]
        place = html[html.index(f'id="{anchor}"') :] if anchor else html
        found = re.search(r'data-live="([a-z-]+)"', place)
        assert found, address
    expect(cards.first).to_contain_text("Live in chapter 0")
