"""The live figures in a real browser: what the page's own checks and V8 cannot see."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browser_checks import DESKTOP, PHONE, settle, wait_for_fonts
from built_site import CHAPTER_03, SITE
from playwright.sync_api import BrowserContext, Page, expect

from transformer_book import live

PLAY = "book/play.html"
PLANE = '.live[data-live="attention-plane"]'
FIGURES = (
    "journey", "recurrence", "tokenizer", "attention-plane", "scale", "mask-lab", "heads",
)  # fmt: skip
ANSWER_MS = 50
ROOM = 40  # px: fonts differ a little from machine to machine
WEIGHTS = "/live/weights/"

# For each slider the median time from a change until all is laid out; the largest of them. Each
# change is made three times, and the quickest counts: a busy machine is slow now and then, a slow
# figure always.
SLOWEST = """async (figure) => {
  const medians = [0];
  for (const slider of figure.querySelectorAll("input[type=range]")) {
    const [low, high] = [Number(slider.min), Number(slider.max)];
    const change = (share) => {
      const start = performance.now();
      slider.value = low + share * (high - low);
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      figure.getBoundingClientRect();
      return performance.now() - start;
    };
    const shares = [1, 0, 0.5, 0.75, 0.25, 0.9, 0.1];
    const rounds = [1, 2, 3].map(() => shares.map(change));
    const times = shares.map((_, i) => Math.min(...rounds.map((round) => round[i])));
    medians.push(times.sort((a, b) => a - b)[3]);
  }
  return Math.max(...medians);
}"""


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    page = context.new_page()
    page.set_viewport_size(DESKTOP)
    said: list[str] = []
    page.on(
        "console", lambda message: said.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    assert not said


def words(page: Page, figure: str = PLANE) -> str:
    return page.locator(f"{figure} .live-words").inner_text()


@pytest.mark.parametrize("where", ["server", "folder"])
def test_a_figure_answers(where: str, page: Page, origin: str) -> None:
    page.goto(f"{origin if where == 'server' else SITE.as_uri()}/{CHAPTER_03}")
    settle(page)
    expect(page.locator(f"{PLANE} svg[role=img]").first).to_be_hidden()
    before = words(page)
    assert "Answer: (0.42, 0.42)" in before
    page.locator(f"{PLANE} .live-tries button", has_text="Ask for nothing").click()
    assert "Weights: The 0.20, quick 0.20" in words(page)
    expect(page.locator(f"{PLANE} [role=status]")).to_contain_text(words(page))
    expect(page.locator(f"{PLANE} .live-see")).to_have_text(re.compile("all weights 0.20"))
    expect(page.get_by_role("button", name="Ask for nothing", pressed=True)).to_have_count(1)
    assert page.url.endswith("#live:attention-plane:query=0,0")
    page.reload()
    settle(page)
    assert "The query (0.00, 0.00)" in words(page)
    page.locator(f"{PLANE} .live-reset").click()
    assert words(page) == before
    assert "#" not in page.url


def test_everything_works_with_the_keyboard_alone(page: Page, origin: str) -> None:
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    query = page.get_by_role("slider", name="query of fox")
    query.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert "The query (1.00, 3.00)" in words(page)
    assert query.get_attribute("aria-valuetext") == "1.00, 3.00"
    page.keyboard.press("Shift+ArrowDown")
    assert "The query (1.00, 2.00)" in words(page)
    page.goto(f"{origin}/book/05_masks.html")
    settle(page)
    lab = '.live[data-live="mask-lab"]'
    grid = page.locator(f"{lab} [role=grid]").first
    grid.locator("[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    before = words(page, lab)
    page.keyboard.press("Enter")
    assert words(page, lab) != before
    assert grid.locator("[tabindex='0']").evaluate("cell => cell === document.activeElement")


def test_what_a_first_look_does_not_need_is_folded(page: Page, origin: str) -> None:
    lab = '.live[data-live="mask-lab"]'
    folded = page.locator(f"{lab} .live-extra, {lab} details > div")
    page.goto(f"{origin}/book/05_masks.html")
    settle(page)
    assert not any(each.is_visible() for each in folded.all())
    page.locator(f"{lab} summary").focus()
    page.keyboard.press("Enter")
    assert all(each.is_visible() for each in folded.all())
    page.goto(f"{origin}/{PLAY}#live:mask-lab:window=2")  # its control must be in sight
    settle(page)
    expect(page.locator(lab).get_by_label("window (0: off)")).to_be_visible()


def test_points_are_dragged(page: Page, origin: str) -> None:
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    handle = page.get_by_role("slider", name="query of fox")
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    plane = page.locator(f"{PLANE} .live-drawing").first.bounding_box()
    assert box
    assert plane
    unit = plane["width"] / 8  # from -4 to 4
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 2 * unit, y + unit, steps=4)
    page.mouse.up()
    assert "The query (2.00, 2.00)" in words(page)


@pytest.mark.parametrize("address", ["#live:attention-plane:query=9,9", "#live:nothing:", "#live:"])
def test_malformed_addresses_are_ignored(address: str, page: Page, origin: str) -> None:
    page.goto(f"{origin}/{CHAPTER_03}{address}")
    settle(page)
    assert "The query (0.00, 3.00)" in words(page)


def test_ordinary_anchors_keep_working(page: Page, origin: str) -> None:
    page.goto(f"{origin}/{CHAPTER_03}#exercises")
    settle(page)
    assert "The query (0.00, 3.00)" in words(page)
    assert page.locator("#exercises").bounding_box()["y"] < DESKTOP["height"]  # type: ignore[index]


def test_all_figures_stand_on_one_page_and_answer_at_once(page: Page, origin: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{origin}/{PLAY}")
    settle(page)
    assert page.locator(".live.live-on").evaluate_all("all => all.map(f => f.dataset.live)") == [
        *FIGURES
    ]
    assert not [url for url in asked if WEIGHTS in url]
    expect(page.get_by_role("button", name="Run the Shakespeare model here")).to_be_visible()
    for name in FIGURES:
        figure = page.locator(f'.live[data-live="{name}"]')
        slowest = figure.evaluate(SLOWEST)
        print(f"{name}: {slowest:.0f} ms")
        assert slowest < ANSWER_MS, name


@pytest.mark.parametrize("where", ["server", "folder"])
def test_the_model_runs_when_asked(where: str, page: Page, origin: str) -> None:
    page.goto(f"{origin if where == 'server' else SITE.as_uri()}/{PLAY}")
    settle(page)
    heads = '.live[data-live="heads"]'
    page.get_by_role("button", name="Run the Shakespeare model here").click()
    expect(page.locator(f"{heads} .live-stage")).to_be_visible(timeout=20_000)
    assert words(page, heads).startswith("Layer 0, head 7. Position 15, “r”, looks at: “e” (14)")


def test_it_lives_in_a_notebooks_frame(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(live.STATIC, raising=False)
    shown = live.figure("attention-plane")._repr_mimebundle_()["text/html"]
    page.set_content(shown + live.figure("heads")._repr_mimebundle_()["text/html"])
    plane, heads = page.frame_locator("iframe").first, page.frame_locator("iframe").last
    plane.get_by_role("button", name="Ask for nothing").click()
    expect(plane.locator(".live-words")).to_contain_text("The query (0.00, 0.00)")
    plane.get_by_role("button", name="Reset").click()
    expect(plane.locator(".live-words")).to_contain_text("The query (0.00, 3.00)")
    heads.get_by_role("button", name="Run the Shakespeare model here").click()
    expect(heads.locator("[role=alert]")).to_contain_text("weights=True")


def test_weights_that_cannot_be_loaded_are_named(page: Page, origin: str) -> None:
    page.route(f"**{WEIGHTS}**", lambda route: route.fulfill(status=200, body="/* nothing */"))
    page.goto(f"{origin}/{PLAY}")
    settle(page)
    page.get_by_role("button", name="Run the Shakespeare model here").click()
    alert = page.locator('.live[data-live="heads"] [role=alert]')
    expect(alert).to_contain_text("shakespeare")
    expect(alert).to_contain_text("make book")


def test_without_scripts_and_in_print_the_picture_stays(
    context: BrowserContext, origin: str
) -> None:
    assert context.browser
    plain = context.browser.new_context(java_script_enabled=False)
    page = plain.new_page()
    page.goto(f"{origin}/{CHAPTER_03}")
    expect(page.locator(f"{PLANE} svg[role=img]")).to_be_visible()
    plain.close()
    page = context.new_page()
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    page.emulate_media(media="print")
    expect(page.locator(f"{PLANE} svg[role=img]").first).to_be_visible()
    expect(page.locator(f"{PLANE} .live-body")).to_be_hidden()


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_a_figure_keeps_to_its_room(screen: dict[str, int], page: Page, origin: str) -> None:
    """Nothing sticks out, and the room that is kept for it is the room that it needs."""
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.goto(f"{origin}/{PLAY}")
    settle(page)
    for name in FIGURES:
        figure = page.locator(f'.live[data-live="{name}"]')
        wide = figure.evaluate("figure => figure.scrollWidth - figure.clientWidth")
        assert wide <= 1, f"{name} sticks out by {wide} px"
        figure.evaluate("figure => { figure.style.minHeight = 0; }")
        needed = figure.evaluate("figure => figure.getBoundingClientRect().height")
        kept = live.FIGURES[name]["heights"][screen is PHONE]
        assert abs(needed - kept) <= ROOM, f"{name} needs {needed:.0f} px; heights say {kept}"
