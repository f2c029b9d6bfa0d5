"""What a reader does: switch to dark, open a solution, use the keyboard, read offline."""

from __future__ import annotations

import sys
from html import escape
from urllib.parse import parse_qs, urlsplit

import pytest
from browser_checks import DESKTOP, PHONE, Traffic, jumps, overflow, settle
from built_site import CHAPTER_03, ROOT, SITE
from local_site import LateFonts, serve
from playwright.sync_api import BrowserContext, Page, expect

sys.path.insert(0, str(ROOT / "book" / "_ext"))

from book_launch import repository_links

Style = dict[str, str]
PATIENCE_MS = 10_000

COLOURS = """() => {
  const shown = (element, property) => getComputedStyle(element)[property];
  const label = document.querySelector("article svg[role=img] text");
  return {
    background: shown(document.body, "backgroundColor"),
    text: shown(document.querySelector("article p"), "color"),
    figure: label === null ? "no figure" : shown(label, "fill"),
  };
}"""

FOCUSED_STYLE = """() => {
  const style = getComputedStyle(document.activeElement);
  return Object.fromEntries(["outline", "boxShadow", "borderBottom", "backgroundColor",
    "textDecoration", "color"].map((name) => [name, style[name]]));
}"""

# The element itself, kept so that its style can be read again after it has lost the focus.
UNFOCUSED_STYLE = FOCUSED_STYLE.replace("document.activeElement", "window.lastFocused")


def test_chapter_03_has_formulas_and_figures(chapter: Page) -> None:
    """Without this, "every formula is typeset" would hold for a page that has none."""
    assert chapter.locator(".katex").count() >= 5
    assert chapter.locator("article svg[role=img]").count() >= 1
    assert chapter.locator("button.copybtn").count() >= 5


def test_formulas_do_not_jump_when_fonts_come_late(context: BrowserContext) -> None:
    """Late letters of its formulas once moved this page's first screen by 0.044."""
    page = context.new_page()
    page.set_viewport_size(DESKTOP)
    with serve(SITE, LateFonts) as origin:
        page.goto(f"{origin}/book/04c_scale_in_training.html")
        settle(page)
        assert page.locator(".katex").count() >= 5
        assert not jumps(page)


def test_dark_mode_switches_page_and_figures(chapter: Page) -> None:
    before: Style = chapter.evaluate(COLOURS)
    switch = chapter.locator("button.theme-switch-button:visible").first
    theme = "light"
    for _ in range(3):  # the switch goes round light, dark and automatic
        switch.click()
        theme = chapter.evaluate("() => document.documentElement.dataset.theme")
        if theme == "dark":
            break
    assert theme == "dark"
    after: Style = chapter.evaluate(COLOURS)
    assert before["figure"] != "no figure"
    for part in before:
        assert before[part] != after[part], f"{part} keeps its colour {before[part]} in the dark"
    chapter.reload()
    assert chapter.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_a_hidden_solution_opens(chapter: Page) -> None:
    solution = chapter.locator("article .tag_solution").first
    code = solution.locator(".cell_input pre").first
    assert code.count() == 1
    expect(code).to_be_hidden()
    solution.locator("summary").first.click()
    expect(code).to_be_visible()
    assert code.inner_text().strip()


def test_a_hidden_solution_opens_with_the_keyboard(chapter: Page) -> None:
    solution = chapter.locator("article .tag_solution").first
    solution.locator("summary").first.focus()
    chapter.keyboard.press("Enter")
    expect(solution.locator(".cell_input pre").first).to_be_visible()


def test_a_cell_of_the_readers_file_is_marked_and_offers_the_file_so_far(chapter: Page) -> None:
    cell = chapter.locator("article .tag_your-file").first
    mark, link = cell.locator(".your-file-mark"), cell.get_by_role("link", name="the file so far")
    code = cell.locator(".cell_input").first
    for size in (DESKTOP, PHONE):
        chapter.set_viewport_size(size)
        expect(mark).to_have_text("your file")
        boxes = [part.bounding_box() for part in (mark, link, code)]
        said, offered, shown = (box for box in boxes if box is not None)
        assert said["y"] + said["height"] <= shown["y"] + 1, "the mark stands above the code"
        assert offered["x"] + offered["width"] <= size["width"], "the link runs out of the page"
    with chapter.expect_download() as waiting:
        link.click()
    assert waiting.value.suggested_filename == "transformer_03.py"
    text = waiting.value.path().read_text(encoding="utf-8")
    assert text == (SITE / "book" / "files" / "transformer_03.py").read_text(encoding="utf-8")
    assert "def attention" in text


def test_paper_has_the_mark_of_the_readers_file_without_its_link(chapter: Page) -> None:
    chapter.emulate_media(media="print")
    expect(chapter.locator(".your-file-mark").first).to_be_visible()
    expect(chapter.locator(".file-so-far").first).to_be_hidden()


def test_the_front_page_offers_the_whole_file(context: BrowserContext, origin: str) -> None:
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{origin}/book/index.html")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="transformer.py").click()
    text = waiting.value.path().read_text(encoding="utf-8")
    assert text == (ROOT / "book" / "transformer.py").read_text(encoding="utf-8")


def test_keyboard_skips_to_the_content(chapter: Page) -> None:
    chapter.keyboard.press("Tab")
    first = chapter.evaluate("() => document.activeElement.textContent.trim()")
    assert "skip" in first.lower(), f"the first stop of Tab is {first!r}, not a skip link"
    visible = chapter.evaluate(
        """() => {
          const box = document.activeElement.getBoundingClientRect();
          return box.width > 1 && box.bottom > 0 && box.top < innerHeight;
        }"""
    )
    assert visible, "the skip link has the focus but cannot be seen"
    chapter.keyboard.press("Enter")
    chapter.keyboard.press("Tab")
    assert chapter.evaluate(
        "() => document.activeElement.closest('main, #main-content') !== null"
    ), "after the skip link, Tab is not in the main content"


def test_keyboard_focus_is_visible_in_the_text(chapter: Page) -> None:
    for _ in range(150):
        chapter.keyboard.press("Tab")
        if chapter.evaluate(
            "() => document.activeElement.matches('article a[href]:not(.headerlink)')"
        ):
            break
    else:
        pytest.fail("150 times Tab never reached a link in the text")
    focused: Style = chapter.evaluate(FOCUSED_STYLE)
    chapter.evaluate(
        "() => { window.lastFocused = document.activeElement; document.activeElement.blur(); }"
    )
    assert focused != chapter.evaluate(UNFOCUSED_STYLE), "a focused link looks like any other"


def test_phone_menu_opens(chapter: Page) -> None:
    chapter.set_viewport_size(PHONE)
    entry = chapter.locator("nav.bd-links a[href]").first
    assert entry.count() == 1
    expect(entry).not_to_be_in_viewport()
    chapter.locator("button.primary-toggle:visible").first.click()
    expect(entry).to_be_in_viewport()


def test_the_article_is_few_stops_of_tab_away(chapter: Page) -> None:
    """It was 85, one for each link of the menu, without the link that skips them."""
    inside = "() => document.activeElement.closest('article') !== null"
    for _ in range(15):
        chapter.keyboard.press("Tab")
        if chapter.evaluate(inside):
            break
    assert chapter.evaluate(inside)


def test_arrow_keys_go_through_the_menu(chapter: Page) -> None:
    links = chapter.locator("nav.bd-links a:visible")
    names = links.all_inner_texts()
    here = chapter.locator("nav.bd-links a[aria-current=page]")
    for _ in range(10):
        chapter.keyboard.press("Tab")
        if chapter.evaluate("() => document.activeElement.closest('nav.bd-links') !== null"):
            break
    expect(here).to_be_focused()
    at = names.index(here.inner_text())
    chapter.keyboard.press("ArrowDown")
    expect(links.nth(at + 1)).to_be_focused()
    chapter.keyboard.press("ArrowUp")
    chapter.keyboard.press("ArrowUp")
    expect(links.nth(at - 1)).to_be_focused()
    chapter.keyboard.press("Tab")
    chapter.keyboard.press("Shift+Tab")
    expect(links.nth(at - 1)).to_be_focused()
    chapter.keyboard.press("Home")
    expect(links.first).to_be_focused()
    address = links.first.get_attribute("href")
    chapter.keyboard.press("Enter")
    chapter.wait_for_url(f"**/{address}")


MARKED = """async (share) => {
  const links = [...document.querySelectorAll(".page-toc a[href^='#']")];
  const parts = links.map((link) => document.getElementById(link.hash.slice(1)));
  const most = document.documentElement.scrollHeight - innerHeight;
  scrollTo({ top: share * most, behavior: "instant" });
  await new Promise((resolve) => setTimeout(resolve, 400));
  const above = parts.filter((part) => part.getBoundingClientRect().top < 0.3 * innerHeight);
  const marked = links.filter((link) => link.classList.contains("active"));
  return [parts.indexOf(above.at(-1)), ...marked.map((link) => links.indexOf(link))];
}"""


def test_on_this_page_marks_what_is_read_after_a_jump(chapter: Page) -> None:
    """The theme marks a heading that it sees on its way up: after a jump it marked another one."""
    wrong = []
    for share in (0.3, 0.85, 0.15, 0.6, 0.45, 0.75, 0.35):
        read, *marked = chapter.evaluate(MARKED, share)
        if marked != [read]:
            wrong.append(f"at {share:.0%}: {marked} instead of {read}")
    assert not wrong
    *_, last = chapter.evaluate(MARKED, 1)
    assert last == chapter.locator(".page-toc a[href^='#']").count() - 1


def test_a_page_works_straight_from_the_disk(context: BrowserContext) -> None:
    page = context.new_page()
    traffic = Traffic("file://")
    traffic.watch(page)
    page.goto((SITE / CHAPTER_03).as_uri())
    settle(page)
    assert page.locator(".katex").count() >= 5
    assert traffic.external == []
    assert traffic.failed == []
    assert traffic.console == []


def test_paper_has_the_title_and_no_fold_lines(chapter: Page) -> None:
    chapter.emulate_media(media="print")
    expect(chapter.locator("article h1")).to_be_visible()
    folds = chapter.locator("article details.hide > summary")
    assert folds.count() > 3
    assert [line.inner_text() for line in folds.all() if line.is_visible()] == []


def test_links_beside_the_text_are_large_enough_for_a_finger(chapter: Page) -> None:
    small = chapter.locator("nav.bd-links a, .page-toc a.nav-link").evaluate_all(
        """(links) => links.filter((link) => link.checkVisibility())
          .map((link) => [link.textContent.trim(), link.getBoundingClientRect().height])
          .filter(([, height]) => height < 24)"""
    )
    assert small == []


def test_a_picture_stands_above_what_drew_it(chapter: Page) -> None:
    above = chapter.locator("article .cell:has(> .cell_output svg.figure-svg)").evaluate_all(
        """(cells) => cells
          .filter((cell) => cell.querySelector(":scope > details.hide"))
          .map((cell) => cell.firstElementChild.matches("details"))"""
    )
    assert len(above) > 1
    assert not any(above)


def test_a_page_from_the_disk_does_not_jump_when_its_fonts_are_read(
    context: BrowserContext,
) -> None:
    page = context.new_page()
    page.set_viewport_size(DESKTOP)
    page.goto((SITE / CHAPTER_03).as_uri())
    settle(page)
    page.wait_for_function("() => getComputedStyle(document.body).visibility === 'visible'")
    assert page.evaluate("() => document.fonts.check('1em \"Source Serif 4\"')")
    assert not jumps(page)


def test_the_library_does_not_run_out_of_a_phone_without_our_fonts(
    context: BrowserContext, origin: str
) -> None:
    """A reader's own font is wider: then names without a space ran out of the page."""
    page = context.new_page()
    page.set_viewport_size(PHONE)
    page.route("**/*.woff2", lambda route: route.abort())
    for name in ("exercises", "models", "training"):
        page.goto(f"{origin}/book/api/{name}.html")
        settle(page)
        assert not overflow(page), name


FOOT = """<div class="page-foot"><a data-version="9.1" href="%s">Report an error here</a></div>"""


def test_cells_and_figures_open_a_report_that_names_them(context: BrowserContext) -> None:
    """On a page like those that are built where the repository is known; this one is not."""
    links = repository_links("owner/name", "book/05_masks.ipynb", "5 · Masks & more")
    places = '<div class="cell" id="cell-05-a">x</div><figure id="fig-b">y</figure>'
    page = context.new_page()
    script = (ROOT / "book" / "_static" / "report.js").read_text(encoding="utf-8")
    for foot, wanted in ((FOOT % escape(links["report_link"]), 2), ("", 0)):
        page.set_content(f"<article>{places}</article>{foot}")
        page.evaluate(script)
        expect(page.locator("a.report-this")).to_have_count(wanted)
        for name, link in zip(
            ("cell-05-a", "fig-b"), page.locator("a.report-this").all(), strict=False
        ):
            address = urlsplit(link.get_attribute("href") or "")
            asked = parse_qs(address.query)
            assert address.path == "/owner/name/issues/new"
            assert asked["title"] == [f"5 · Masks & more: {name}: "]
            assert asked["body"][0].splitlines()[:3] == [
                "Page: book/05_masks.ipynb",
                f"Place: {name}",
                "Version: 9.1",
            ]
