"""The live figures in a real browser: what the page's own checks and V8 cannot see."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from browser_checks import DESKTOP, PHONE, settle, wait_for_fonts
from built_site import CHAPTER_03, ROOT, SITE
from live_page import (
    FIGURES,
    PLANE,
    PLAY,
    SETTLED,
    SMALL,
    Finger,
    centre,
    live_figure,
    run_model,
    run_models,
    unit,
    watched,
    words,
)  # fmt: skip
from playwright.sync_api import Browser, BrowserContext, Page, expect

from bench import live as bench
from transformer_book import live

ROOM = 40  # px: fonts differ a little from machine to machine
WEIGHTS = "/live/weights/"

# How well the letters of a button stand out from what lies below them.
CONTRAST = """button => {
  const light = (colour) => {
    const [red, green, blue] = colour.match(/[\\d.]+/g).map((n) => n / 255)
      .map((n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const look = (node) => getComputedStyle(node);
  let below = button;
  while (look(below).backgroundColor === "rgba(0, 0, 0, 0)") below = below.parentElement;
  const both = [look(button).color, look(below).backgroundColor].map(light);
  return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
}"""

# How many elements were made or taken away while every slider, box and radio button of a figure was
# moved. What only changes stays; `but` names what may be made anew.
REBUILT = """async (figure) => {
  const found = {};
  const count = async (name, change) => {
    const watcher = new MutationObserver(() => {});
    watcher.observe(figure, { childList: true, subtree: true });
    change();
    const nodes = watcher.takeRecords().flatMap((one) => [...one.addedNodes, ...one.removedNodes]);
    watcher.disconnect();
    found[name] = nodes.filter((node) => node.nodeType === Node.ELEMENT_NODE).length;
  };
  const say = (input, kind) => input.dispatchEvent(new Event(kind, { bubbles: true }));
  for (const input of figure.querySelectorAll("input[type=range]")) {
    const [low, high] = [Number(input.min), Number(input.max)];
    for (const share of [1, 0, 0.5, 0.25])
      await count(`${input.labels[0].innerText} ${share}`, () => {
        input.value = low + share * (high - low);
        say(input, "input");
      });
  }
  for (const input of figure.querySelectorAll("input[type=checkbox], input[type=radio]"))
    await count(input.labels[0].innerText, () => input.click());
  for (const [at, button] of [...figure.querySelectorAll(".live-tries button")].entries())
    await count(`try ${at}`, () => button.click());
  return found;
}"""

# The same for whatever is pressed.
PRESSED = """(figure, selector) => {
  const watcher = new MutationObserver(() => {});
  watcher.observe(figure, { childList: true, subtree: true });
  return [...figure.querySelectorAll(selector)].map((node) => {
    node.click();
    const nodes = watcher.takeRecords().flatMap((one) => [...one.addedNodes, ...one.removedNodes]);
    return nodes.filter((each) => each.nodeType === Node.ELEMENT_NODE).length;
  });
}"""

# How high a figure is at the start, and after each thing to try.
HEIGHTS = """(figure, hasTries) => {
  const height = () => Math.round(figure.getBoundingClientRect().height);
  const found = [height()];
  for (const button of hasTries ? figure.querySelectorAll(".live-tries button") : []) {
    button.click();
    found.push(height());
  }
  return found;
}"""

# The highest band of a figure in which nothing is drawn.
EMPTY = """(figure) => {
  const rects = [...figure.querySelectorAll(".live-body *")]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }))
    .filter((node) => [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim())
      || (!node.childElementCount && node.closest("svg, input, .live-bar, .live-cell")))
    .map((node) => node.getBoundingClientRect())
    .filter((box) => box.width && box.height).sort((a, b) => a.top - b.top);
  const frame = figure.getBoundingClientRect();
  let [end, most] = [frame.top, 0];
  for (const box of [...rects, { top: frame.bottom, bottom: frame.bottom }]) {
    most = Math.max(most, box.top - end);
    end = Math.max(end, box.bottom);
  }
  return most;
}"""


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    yield from watched(context)


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


def test_at_most_four_controls_stand_in_the_open(page: Page, origin: str) -> None:
    """A newcomer sees what teaches; the other controls are folded."""
    page.goto(f"{origin}/{PLAY}")
    settle(page)
    for name in ("scale", "positions", "heads", "norms", "recurrence"):
        controls = page.locator(f"{live_figure(name)} > .live-body > .live-controls > *").all()
        assert len([one for one in controls if one.is_visible()]) <= 4, name


def test_points_are_dragged(page: Page, origin: str) -> None:
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    x, y = centre(page, "query of fox")
    one = unit(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 2 * one, y + one, steps=4)
    page.mouse.up()
    assert "The query (2.00, 2.00)" in words(page)


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    wait_for_fonts(page)
    yield page
    context.close()


def test_points_are_dragged_with_a_finger(phone: Page, origin: str) -> None:
    phone.goto(f"{origin}/{CHAPTER_03}")
    settle(phone)
    finger, start, one = Finger(phone), centre(phone, "query of fox"), unit(phone)
    scrolled = phone.evaluate("scrollY")
    finger.drag(start, (2 * one, 2 * one))
    finger.lift()
    found = re.search(r"The query \((\S+), (\S+)\)", words(phone))
    assert found
    assert [float(each) for each in found.groups()] == pytest.approx([2, 1], abs=0.11)
    assert phone.evaluate("scrollY") == scrolled
    assert "query=" in phone.url  # it was let go


def test_a_drag_that_the_system_takes_over_ends_where_it_was(phone: Page, origin: str) -> None:
    phone.goto(f"{origin}/{CHAPTER_03}")
    settle(phone)
    finger, start, one = Finger(phone), centre(phone, "query of fox"), unit(phone)
    finger.drag(start, (one, one))
    expect(phone.locator(f"{PLANE} .live-held")).to_have_count(1)
    finger.lose()
    expect(phone.locator(f"{PLANE} .live-held")).to_have_count(0)
    assert "query=" in phone.url
    before = words(phone)
    assert "The query (0.00, 3.00)" not in before
    finger.drag(centre(phone, "query of fox"), (-one, 0))  # and it can be taken again
    finger.lift()
    assert words(phone) != before


# Every pair of width, theme, way of pressing and protocol stands in one of these six.
PAIRS = [
    ("wide", "light", "mouse", "server"), ("phone", "dark", "mouse", "folder"),
    ("wide", "dark", "keyboard", "folder"), ("phone", "light", "keyboard", "server"),
    ("phone", "light", "finger", "folder"), ("wide", "dark", "finger", "server"),
]  # fmt: skip


def test_every_pair_of_circumstances_occurs() -> None:
    values = [sorted(set(column)) for column in zip(*PAIRS, strict=True)]
    for first, second in combinations(range(4), 2):
        seen = {(pair[first], pair[second]) for pair in PAIRS}
        assert seen == set(product(values[first], values[second]))


@pytest.mark.parametrize(("width", "theme", "by", "where"), PAIRS, ids=map("-".join, PAIRS))
def test_all_figures_answer_in_all_circumstances(
    width: str, theme: str, by: str, where: str, browser: Browser, origin: str
) -> None:
    screen = DESKTOP if width == "wide" else PHONE
    context = browser.new_context(
        viewport=screen,
        has_touch=by == "finger",
        color_scheme="dark" if theme == "dark" else "light",
    )
    page = context.new_page()
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{origin if where == 'server' else SITE.as_uri()}/{PLAY}")
    settle(page)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    for name in set(FIGURES) - {"heads", "stream", "translate"}:  # these load a model first
        button = page.locator(f"{live_figure(name)} .live-tries button").first
        button.scroll_into_view_if_needed()
        before = words(page, live_figure(name))
        if by == "finger":
            box = button.bounding_box()
            assert box
            Finger(page).tap((box["x"] + box["width"] / 2, box["y"] + box["height"] / 2))
            expect(button).to_have_attribute("aria-pressed", "true")
        elif by == "keyboard":
            button.focus()
            page.keyboard.press("Enter")
        else:
            button.click()
        assert words(page, live_figure(name)) != before, name
        expect(page.locator(live_figure(name) + SETTLED)).to_be_visible()
        small = page.locator(live_figure(name)).evaluate(SMALL, 12)
        assert not small, f"{name}: {small}"
    assert not wrong
    context.close()


# Motion -------------------------------------------------------------------------------------------

# Presses a button, and writes down at each frame how far some bars are and where a circle stands.
WATCH = """async (figure) => {
  const widths = (bars) =>
    [...bars.querySelectorAll(".live-bar > span")].map((bar) => bar.style.width);
  const answer = figure.querySelectorAll(".live-drawing")[1].querySelectorAll("circle")[1];
  const read = () => [...figure.querySelectorAll(".live-bars")].map((bars) => widths(bars).join())
    .concat(answer.cx.baseVal.value);
  const start = read(), first = start.map(() => null);
  const words = figure.querySelector(".live-words").textContent;
  figure.querySelector(".live-tries button").click();
  const atOnce = {
    words: figure.querySelector(".live-words").textContent !== words, address: location.hash,
    settled: figure.hasAttribute("data-settled"),
    moved: read().map((each, at) => each !== start[at]),
  };
  const begin = performance.now();
  while (!figure.hasAttribute("data-settled")) {
    const time = await new Promise(requestAnimationFrame);
    read().forEach((each, at) => each !== start[at] && (first[at] ??= time));
    if (performance.now() - begin > 8000) break;
  }
  const ghosts = [...figure.querySelectorAll(".live-was")].map((was) => was.style.width).join();
  return { atOnce, first, took: performance.now() - begin, ghosts, start, end: read() };
}"""


def test_a_try_shows_cause_and_effect_step_by_step(page: Page, origin: str) -> None:
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    found = page.locator(PLANE).evaluate(WATCH)
    assert found["atOnce"]["words"]
    assert found["atOnce"]["address"] == "#live:attention-plane:query=0,0"
    assert not found["atOnce"]["settled"]
    assert found["atOnce"]["moved"] == [False, False, False]
    scores, weights, answer = found["first"]
    assert scores < weights < answer
    assert found["took"] >= 900  # four steps, the first three 350 ms apart
    assert found["ghosts"] == ",".join(found["start"][:2])  # where the bars were before
    page.locator(f"{PLANE} .live-reset").click()
    page.locator(PLANE + SETTLED).wait_for()
    back = page.locator(f"{PLANE} .live-bar > span").evaluate_all(
        "all => all.map(b => b.style.width)"
    )
    assert ",".join(back) == ",".join(found["start"][:2])
    ghosts = page.locator(f"{PLANE} .live-was").evaluate_all(
        "all => all.map(was => was.style.width)"
    )
    assert set(ghosts) == {"0px"}  # Reset is a beginning: nothing was before


def test_who_prefers_reduced_motion_sees_the_end_at_once(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    found = page.locator(PLANE).evaluate(WATCH)
    assert found["atOnce"]["settled"]
    assert found["atOnce"]["moved"] == [True, True, True]
    assert found["ghosts"] == ",".join(found["start"][:2])
    page.goto(f"{origin}/book/00_reading_this_book.html")
    settle(page)
    page.get_by_role("button", name="Send a sentence through").click()
    chosen = page.locator(f"{live_figure('journey')} .live-box[aria-pressed=true]")
    expect(chosen).to_have_attribute("aria-label", re.compile("Output layer"))


def test_the_ghost_of_a_try_is_the_start(page: Page, origin: str) -> None:
    """A Try says "0.37 instead of 0.05": whatever came before, it compares with the start."""
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    tries = page.locator(f"{PLANE} .live-tries button")
    widths = "all => all.map(bar => bar.style.width)"
    start = page.locator(f"{PLANE} .live-bar > span").evaluate_all(widths)
    for button in tries.all()[:3]:
        button.click()
        assert page.locator(f"{PLANE} .live-was").evaluate_all(widths) == start
    page.get_by_label("gradient of the answer’s length").check()  # no Try: what was before it
    before = page.locator(f"{PLANE} .live-bar > span").evaluate_all(widths)
    query = page.get_by_role("slider", name="query of fox")
    query.press("Shift+ArrowDown")
    assert page.locator(f"{PLANE} .live-was").evaluate_all(widths) == before != start


def test_a_dragged_point_is_under_the_finger(page: Page, origin: str) -> None:
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    x, y = centre(page, "query of fox")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 50, y + 50)
    assert page.locator(PLANE + SETTLED).count() == 1
    assert centre(page, "query of fox") == pytest.approx((x + 50, y + 50), abs=2)
    page.mouse.up()


# One screen, one picture --------------------------------------------------------------------------

# px from the top of the picture to the foot of the last thing that changes it.
SPAN = """(figure) => {
  const asks = ".live-tries button, .live-see, .live-controls :is(input, select, textarea)";
  const feet = [...figure.querySelectorAll(asks)]
    .filter((node) => node.checkVisibility() && !node.closest("details"))
    .map((node) => node.getBoundingClientRect().bottom);
  return Math.max(...feet) - figure.querySelector(".live-stage").getBoundingClientRect().top;
}"""
FIRST = """(figure) => {
  const top = (selector) => figure.querySelector(selector).getBoundingClientRect().top;
  return [top(".live-stage"), top(".live-tries"), top(".live-controls")];
}"""


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_control_and_result_stand_on_one_screen(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.goto(f"{origin}/{PLAY}")
    settle(page)
    run_models(page)
    for name in FIGURES:
        figure = page.locator(live_figure(name))
        span = figure.evaluate(SPAN)
        print(f"{name}: {span:.0f} px")
        assert span <= screen["height"], f"{name}: {span:.0f} px from picture to last control"
        assert figure.evaluate(FIRST) == sorted(figure.evaluate(FIRST)), name
        assert not figure.evaluate(SMALL, 12), name
        empty = figure.evaluate(EMPTY)
        assert empty <= 70, f"{name} has an empty band of {empty:.0f} px"


def test_no_bar_of_an_output_stands_beside_a_figure(page: Page, origin: str) -> None:
    page.goto(f"{origin}/{CHAPTER_03}")
    settle(page)
    width = "figure => getComputedStyle(figure.closest('.cell_output')).borderLeftWidth"
    assert page.locator(PLANE).evaluate(width) == "0px"


def test_nothing_is_rebuilt_that_only_changes(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{origin}/{PLAY}")
    settle(page)
    run_models(page)
    # Another number of tokens, another model, another axis: there other things are shown.
    # A Try begins at the start: it may change the model twice.
    other = {"tokenizer": 170, "journey": 30, "heads": 10, "recurrence": 20}
    for name in FIGURES:
        made = page.locator(live_figure(name)).evaluate(REBUILT)
        many = {what: count for what, count in made.items() if count}
        print(name, many)
        assert all(count <= other.get(name, 0) for count in many.values()), f"{name}: {many}"
    page.locator(f"{live_figure('heads')} .live-reset").click()
    made = page.locator(live_figure("heads")).evaluate(PRESSED, ".live-cell, .live-token")
    assert len(made) == 32 + 28
    assert not any(made)


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


def test_all_figures_stand_on_one_page_and_load_no_model(page: Page, origin: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{origin}/{PLAY}")
    settle(page)
    assert page.locator(".live.live-on").evaluate_all("all => all.map(f => f.dataset.live)") == [
        *FIGURES
    ]
    assert not [url for url in asked if WEIGHTS in url]
    for start in ("heads", "stream", "translate"):
        expect(page.locator(live_figure(start)).get_by_text("Run the ")).to_be_visible()


@pytest.mark.parametrize("where", ["server", "folder"])
def test_the_model_runs_when_asked(where: str, page: Page, origin: str) -> None:
    page.goto(f"{origin if where == 'server' else SITE.as_uri()}/{PLAY}")
    settle(page)
    heads = '.live[data-live="heads"]'
    run_model(page)
    assert words(page, heads).startswith(
        "Head 8 of layer 1: “r” gives 1.00 of its weight to “e”, 1 letter before."
    )


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


@pytest.mark.parametrize(("address", "scheme"), [("book/index.html", "light"), (PLAY, "dark")])
def test_a_button_under_the_pointer_can_be_read(
    address: str, scheme: str, page: Page, origin: str
) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(f"{origin}/{address}")
    settle(page)
    buttons = page.locator(".live button:visible:enabled").all()
    assert len(buttons) > 5
    for button in buttons:
        button.hover()
        assert button.evaluate(CONTRAST) >= 4.5, button.inner_text()


def test_weights_that_cannot_be_loaded_are_named(page: Page, origin: str) -> None:
    page.route(f"**{WEIGHTS}**", lambda route: route.fulfill(status=200, body="/* nothing */"))
    page.goto(f"{origin}/{PLAY}")
    settle(page)
    heads = page.locator(live_figure("heads"))
    heads.get_by_role("button", name="Run the Shakespeare model here").click()
    alert = heads.locator("[role=alert]")
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
    page.emulate_media(reduced_motion="reduce")
    for name in FIGURES:
        figure = page.locator(live_figure(name))
        wide = figure.evaluate("figure => figure.scrollWidth - figure.clientWidth")
        assert wide <= 1, f"{name} sticks out by {wide} px"
        figure.evaluate("figure => { figure.style.minHeight = 0; }")
        loads = name in ("heads", "stream", "translate")  # a try would load a model
        heights = figure.evaluate(HEIGHTS, not loads)  # the start, then each thing to try
        kept = live.FIGURES[name]["heights"][screen is PHONE]
        assert abs(max(heights) - kept) <= ROOM, f"{name} needs {heights} px; heights say {kept}"


def test_the_bench_finds_the_controls_of_every_figure(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it measures depends on the machine; that it presses something must not."""
    press = "(figure, [at, turn]) => { figure.bench[at][turn](); return 1; }"
    monkeypatch.setattr(bench, "MEASURE", press)
    monkeypatch.setattr(bench, "PAUSE_MS", 0)
    found = bench.race(browser, [SITE], "1280 px", rounds=1)
    assert list(found) == ["front", *FIGURES]
    for name, (controls,) in found.items():
        assert len(controls) >= len(live.FIGURES[name]["tries"]) + 1, f"{name}: {controls}"
    assert {"query of fox", "Ask for nothing"} <= set(found["attention-plane"][0])
    assert {"layers", "window (0: off)", "a cell"} <= set(found["mask-lab"][0])
    assert {"Step ▶", "[role=radio]", "Into layer 4"} <= set(found["front"][0])
    assert "a letter more" in found["tokenizer"][0]


def test_the_bench_prints_a_time_for_each_screen() -> None:
    """Of one figure, one round: what the command prints of all is the same many times over."""
    command = [sys.executable, "-m", "bench.live", "--figures", "scale", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    line = r"^(.+), scale: (\d+) ms, \d+ its own \(.+\)$"
    found = re.findall(line, done.stdout, re.MULTILINE)
    assert [screen for screen, _ in found] == [*bench.SCREENS], done.stdout + done.stderr
    times = [int(ms) for _, ms in found]
    assert min(times) > 0
    limits = [limit for *_, limit in bench.SCREENS.values()]
    over = any(ms > limit for ms, limit in zip(times, limits, strict=True))
    assert done.returncode == over  # the verdict is this machine's, and follows from the times
