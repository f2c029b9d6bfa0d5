"""From core page to core page: what the menu and the foot of a page say, and where they lead."""

from __future__ import annotations

import pytest
from browser_checks import DESKTOP, PHONE, settle
from playwright.sync_api import Locator, Page, expect

CORE, FURTHER = "03_attention.html", "03c_scores.html"  # the last of two
IN_CHAPTER_3 = "nav.bd-links li:has(> a[aria-current=page])"
# Where the words of a link begin, their size and their colour.
LOOK = """(link) => {
  const style = getComputedStyle(link);
  const left = link.getBoundingClientRect().left + parseFloat(style.paddingLeft);
  return { left, size: parseFloat(style.fontSize), colour: style.color };
}"""


def test_the_menu_tells_further_pages_from_core_pages(chapter: Page) -> None:
    core = chapter.locator(f"{IN_CHAPTER_3} > a")
    further = chapter.locator(f"{IN_CHAPTER_3} > ul.further-pages a[href='{FURTHER}']")
    expect(core).to_have_accessible_name("3 · Attention")
    expect(further).to_have_accessible_name("further: 3c · What a score compares")
    other = chapter.locator("nav.bd-links a[href='04_scaling.html']")  # core, but not current
    quiet, loud = further.evaluate(LOOK), other.evaluate(LOOK)
    assert quiet["left"] >= loud["left"] + 10, "a further page is not set back"
    assert 13 <= quiet["size"] < loud["size"], "a further page is not smaller, or too small"
    assert quiet["colour"] != loud["colour"], "a further page is not quieter"


def test_next_leads_from_chapter_3_to_chapter_4_with_the_keyboard(chapter: Page) -> None:
    offer = chapter.locator(f".further-offer a[href='{FURTHER}']")
    offer.focus()
    for stop in ("02_tokens.html", "04_scaling.html"):
        chapter.keyboard.press("Tab")
        expect(chapter.locator("*:focus")).to_have_attribute("href", stop)
    chapter.keyboard.press("Enter")
    chapter.wait_for_url("**/04_scaling.html")
    expect(chapter.locator("nav.bd-links [aria-current=page]")).to_be_in_viewport()


def test_a_further_page_is_offered_and_leads_back(chapter: Page) -> None:
    expect(chapter.locator(".further-offer li")).to_have_count(2)
    offer = chapter.locator(".further-offer li").last
    expect(offer).to_contain_text("3c · What a score compares")
    expect(offer).to_contain_text("minutes")
    offer.get_by_role("link").click()
    chapter.wait_for_url(f"**/{FURTHER}")
    expect(chapter.locator(".further-offer")).to_have_count(0)
    back, on = chapter.locator("a.left-prev"), chapter.locator("a.right-next")
    expect(back).to_contain_text("Back to chapter 3")
    expect(on).to_have_attribute("href", "04_scaling.html")
    back.click()
    chapter.wait_for_url(f"**/{CORE}")


def test_the_way_to_a_page_stands_above_it_and_leads_back(chapter: Page, origin: str) -> None:
    chapter.set_viewport_size(PHONE)
    chapter.goto(f"{origin}/book/{FURTHER}")
    trail = chapter.get_by_role("navigation", name="Breadcrumb")
    expect(trail.get_by_role("listitem")).to_have_text(
        ["Contents", "Attention", "Chapter 3", "Chapter 3c"]
    )
    expect(trail.locator("[aria-current=page]")).to_have_text("Chapter 3c")
    expect(trail).to_be_in_viewport()
    assert left_and_right(trail)[1] <= PHONE["width"]
    trail.get_by_role("link", name="Chapter 3").click()
    chapter.wait_for_url(f"**/{CORE}")


def test_every_page_has_its_licence_its_citation_and_the_index(chapter: Page) -> None:
    foot = chapter.locator("footer.bd-footer-content")
    expect(foot.locator("a[rel~=license]")).to_have_count(2)
    for window in (PHONE, DESKTOP):
        chapter.set_viewport_size(window)
        offset = left_and_right(foot.locator("li").first)[0]
        assert abs(offset - left_and_right(chapter.locator("article h1"))[0]) < 2
    foot.get_by_text("How to cite").click()
    expect(foot.get_by_text("The Executable Transformer, version")).to_be_visible()
    chapter.locator("nav.bd-links").get_by_role("link", name="Index of terms and code").click()
    chapter.wait_for_url("**/genindex.html")


def left_and_right(locator: Locator) -> tuple[float, float]:
    box = locator.bounding_box()
    assert box is not None
    return box["x"], box["x"] + box["width"]


def test_on_a_phone_menu_and_foot_fit_and_the_menu_opens_at_the_current_page(
    chapter: Page, origin: str
) -> None:
    chapter.set_viewport_size(PHONE)
    chapter.goto(f"{origin}/book/20b_questions.html")  # far down in the menu
    settle(chapter)
    for part in (".further-offer, a.left-prev", "a.right-next"):
        left, right = left_and_right(chapter.locator(part).first)
        assert left >= 0
        assert right <= PHONE["width"]
        assert right - left > PHONE["width"] * 0.8, f"{part} does not have a line of its own"
    chapter.locator("button.primary-toggle:visible").first.click()
    current = chapter.locator("nav.bd-links a[aria-current=page]")
    expect(current).to_be_in_viewport()
    assert left_and_right(current)[1] <= PHONE["width"]


def test_the_front_page_says_on_one_screen_what_the_book_is(chapter: Page, origin: str) -> None:
    chapter.set_viewport_size({"width": 1280, "height": 900})
    chapter.goto(f"{origin}/book/index.html")
    settle(chapter)
    start = chapter.get_by_role("link", name="Start reading")
    expect(start).to_be_in_viewport()
    figure = chapter.locator("[data-live=front]")
    expect(figure.locator("svg.figure-svg:visible")).to_be_in_viewport(ratio=1)
    expect(figure.get_by_role("button", name="Play")).to_be_in_viewport(ratio=1)
    expect(chapter.get_by_label("Download this page")).to_have_count(0)  # there is no notebook
    captions = chapter.locator("nav.bd-links p.caption")
    expect(captions.first).to_have_text("Start here")
    expect(captions.nth(1)).to_have_text("Foundations")
    expect(chapter.locator("a.right-next")).to_have_attribute(
        "href", start.get_attribute("href") or "nowhere"
    )


def test_contents_and_menu_show_their_words_in_full(chapter: Page, origin: str) -> None:
    ends = """(links) => links.map((link) => {
      const words = document.createRange();
      words.selectNodeContents(link);
      return [link.textContent, words.getBoundingClientRect().right];
    })"""
    chapter.goto(f"{origin}/book/api/text.html")  # the longest names of modules
    settle(chapter)
    beside = chapter.locator(".page-toc a.nav-link:visible").evaluate_all(ends)
    assert len(beside) > 9
    assert [name for name, right in beside if right > DESKTOP["width"]] == []
    heads = chapter.locator("nav.bd-links a[href$='06c_shapes_and_widths.html']")
    expect(heads).to_have_accessible_name("further: 6c · Heads: shapes, widths and bugs")


def test_the_search_field_stays_where_the_menu_is_scrolled(chapter: Page, origin: str) -> None:
    chapter.set_viewport_size(DESKTOP)
    chapter.goto(f"{origin}/book/21_real_weights.html")
    menu = chapter.locator(".bd-sidebar-primary")
    assert menu.evaluate("menu => menu.scrollTop") > 300, "choose a page further down"
    expect(menu.locator("[aria-current=page]")).to_be_in_viewport()
    expect(menu.locator(".search-button-field")).to_be_in_viewport(ratio=1)


def test_a_path_is_followed_from_its_table_and_from_the_graph(chapter: Page, origin: str) -> None:
    chapter.goto(f"{origin}/book/paths.html")
    settle(chapter)
    first = chapter.locator("article table").first
    expect(first.get_by_role("link", name="13 · The whole").first).to_have_attribute(
        "href", "13_transformer.html"
    )
    above = first.evaluate("""(table) => [...document.querySelectorAll("article details")]
      .filter((fold) => fold.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING)
      .length""")
    assert above == 0, "something folded stands before the answer"
    box = chapter.locator("svg.figure-svg a[href='17_cost.html']")
    box.focus()
    expect(box).to_be_focused()
    chapter.keyboard.press("Enter")
    chapter.wait_for_url("**/17_cost.html")


@pytest.mark.parametrize("name", ["paths", "teachers", "notation"])
def test_on_a_phone_no_column_of_a_plan_or_of_symbols_is_out_of_sight(
    name: str, chapter: Page, origin: str
) -> None:
    chapter.set_viewport_size(PHONE)
    chapter.goto(f"{origin}/book/{name}.html")
    settle(chapter)
    tables = chapter.locator("article table")
    assert tables.count() >= 3
    for cell in tables.first.locator("tbody td").all():
        left, right = left_and_right(cell)
        assert 0 <= left < right <= PHONE["width"], cell.inner_text()
    wide = tables.evaluate_all(
        "(all) => all.filter((table) => table.parentElement.scrollWidth > "
        "table.parentElement.clientWidth).length"
    )
    assert wide == 0, f"{wide} tables must be scrolled sideways"
