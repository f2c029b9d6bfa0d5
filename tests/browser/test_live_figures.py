"""Each live figure in a real browser: what a visitor found wrong with it once, and what it does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from math import cos, dist, radians, sqrt
from typing import Literal

import pytest
from browser_checks import DESKTOP, PHONE, settle, wait_for_fonts
from built_site import CHAPTER_03, SITE
from live_page import (
    PLANE,
    PLAY,
    SETTLED,
    SMALL,
    Finger,
    centre,
    live_figure,
    run_model,
    watched,
    words,
)  # fmt: skip
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from transformer_book.live import FIGURES, complete, norms

WORDS = ("The", "quick", "brown", "fox", "jumps")
RECURRENCE, TOKENIZER, SCALE = map(live_figure, ("recurrence", "tokenizer", "scale"))
LAB, HEADS, JOURNEY = map(live_figure, ("mask-lab", "heads", "journey"))


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    yield from watched(context)


def opened(page: Page, address: str) -> None:
    page.goto(address)
    settle(page)


# Follow an address on the page, and wait until what it asks for has been drawn.
GO_TO = """(hash) => new Promise((drawn) => {
  const twice = () => requestAnimationFrame(() => requestAnimationFrame(drawn));
  addEventListener("hashchange", twice, { once: true });
  location.hash = hash;
})"""


def texts(page: Page, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_text_contents()]


# A query among keys -------------------------------------------------------------------------------


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_points_that_lie_on_each_other_are_drawn_apart(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    opened(page, f"{origin}/{CHAPTER_03}")
    for handles in (["query of fox", *(f"key of {word}" for word in WORDS)],
                    [f"value of {word}" for word in WORDS]):  # fmt: skip
        places = {name: centre(page, name) for name in handles}
        scroll = page.evaluate("scrollY")
        for one, other in combinations(handles, 2):
            assert dist(places[one], places[other]) >= 12, f"{one} lies on {other}"
        assert scroll == page.evaluate("scrollY")


@pytest.mark.parametrize(
    "point", [f"{kind} of {word}" for kind in ("key", "value") for word in WORDS]
)
def test_every_point_can_be_taken(point: str, page: Page, origin: str) -> None:
    opened(page, f"{origin}/{CHAPTER_03}")
    sliders = page.locator(f"{PLANE} [role=slider]")
    at = """all => Object.fromEntries(
      all.map(s => [s.getAttribute("aria-label"), s.getAttribute("aria-valuetext")]))"""
    before = sliders.evaluate_all(at)
    x, y = centre(page, point)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 30, steps=3)
    page.mouse.up()
    after = sliders.evaluate_all(at)
    assert {name for name in after if after[name] != before[name]} == {point}


@pytest.mark.parametrize("kind", ["key", "value"])
def test_even_five_points_of_one_place_are_drawn_apart(kind: str, page: Page, origin: str) -> None:
    all_at_one = ";".join(f"{kind}{at}=1,1" for at in range(5))
    query = ";query=1,1" if kind == "key" else ""
    opened(page, f"{origin}/{CHAPTER_03}#live:attention-plane:{all_at_one}{query}")
    handles = [f"{kind} of {word}" for word in WORDS] + ["query of fox"] * (kind == "key")
    places = {name: centre(page, name) for name in handles}
    for one, other in combinations(handles, 2):
        assert dist(places[one], places[other]) >= 15, f"{one} lies on {other}"


START = (0.05, 0.42, 0.42, 0.05, 0.05)  # weights
OUTSIDE = """(figure) => {
  const frame = figure.querySelector(".live-drawing").getBoundingClientRect();
  const drawing = figure.querySelector(".live-drawing");
  return [...drawing.querySelectorAll(".live-handle > text, .live-mark > :last-child")]
    .map((node) => [node.textContent, node.getBoundingClientRect()])
    .filter(([, box]) => box.top < frame.top || box.bottom > frame.bottom
      || box.left < frame.left || box.right > frame.right)
    .map(([text, box]) => `${text} ${box.top - frame.top}`);
}"""


@pytest.mark.parametrize("query", ["0,4", "4,4", "-4,4", "4,-4", "-4,-4", "0,-4", "4,0", "-4,0"])
def test_a_point_at_the_edge_stands_in_the_frame_with_its_name(
    query: str, page: Page, origin: str
) -> None:
    """And what "Let The win" shows: the query and a key at (0, 4)."""
    opened(page, f"{origin}/{CHAPTER_03}#live:attention-plane:query={query};key0={query}")
    assert not page.locator(PLANE).evaluate(OUTSIDE)


def test_the_query_has_its_name(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{CHAPTER_03}")
    query = page.get_by_role("slider", name="query of fox")
    expect(query.locator("text")).to_have_text("query")


BANDS = """figure => [...figure.querySelectorAll("path[stroke-linecap=round][opacity='0.3']")]
  .map((band) => Number(band.getAttribute("stroke-width")))"""
ANSWER = """(figure) => {
  const boxes = [...figure.querySelectorAll(".live-drawing")[1].querySelectorAll("text.live-halo")]
    .map((node) => node.getBoundingClientRect());
  const [one, ...others] = boxes; // the answer's name is drawn before the points'
  const over = (a, b) => a.left < b.right && b.left < a.right
    && a.top < b.bottom && b.top < a.bottom;
  return others.some((other) => over(one, other));
}"""


def test_a_band_is_as_thick_as_its_weight_and_the_answer_has_its_name(
    page: Page, origin: str
) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{CHAPTER_03}")
    figure = page.locator(PLANE)
    assert figure.evaluate(BANDS) == pytest.approx([0.5 + 14 * w for w in START], abs=0.1)
    for press in [None, *figure.locator(".live-tries button").all()]:
        if press:
            press.click()
        assert not figure.evaluate(ANSWER)
        assert not figure.evaluate(OUTSIDE)


# Pairs of texts of a drawing of which one covers the other.
COVERED = """(figure, selector) => {
  const texts = [...figure.querySelectorAll(selector)].filter((node) => node.textContent)
    .map((node) => [node.textContent, node.getBoundingClientRect()]);
  const over = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 4 && b.top < a.bottom - 4;
  return texts.flatMap(([one, a], at) =>
    texts.slice(at + 1).filter(([, b]) => over(a, b)).map(([other]) => `${one}, ${other}`));
}"""


def test_no_name_covers_another_on_a_phone(page: Page, origin: str) -> None:
    page.set_viewport_size(PHONE)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{CHAPTER_03}")
    figure = page.locator(PLANE)
    for press in [None, *figure.locator(".live-tries button").all()]:
        if press:
            press.click()
        assert figure.evaluate(COVERED, ".live-drawing text.live-halo") == []


# Short vectors crowd at the middle, where the names had no free side of their points.
CROWDS = (
    "",
    "query=0,0;" + ";".join(f"key{n}=0,0;value{n}=0,0" for n in range(5)),
    "query=0.05,0;key0=0.05,0.1;key1=0.1,0;key2=-0.05,0.05;key3=-0.05,0.1;key4=0,-0.05",
    "query=-0.55,0.15;key0=-0.25,0.5;key1=-0.5,0;key2=-0.3,-0.3;key3=-0.4,-0.3;key4=-0.1,0.15;"
    "value0=0.3,-0.3;value1=0.25,0;value2=0.3,-0.1;value3=0.1,0.1;value4=-0.05,0.05",
    "query=0.25,-0.25;key0=0.05,0.05;key1=0.25,-0.1;key2=-0.1,0;key3=-0.25,0.25;key4=-0.25,-0.25",
    "query=2.5,0.65;key1=2.5,0.5;key2=2.3,0.7;value0=-0.3,-0.1;value1=-0.5,-0.15;value2=-0.4,0.1",
)
# Names of a figure's points that lie on the point of another.
ON_POINTS = """(figure) => [...figure.querySelectorAll(".live-draggable")].flatMap((drawing) => {
  const points = [...drawing.querySelectorAll(".live-handle")].map((one) =>
    [one.querySelector(":scope > text"), one.querySelector(".live-mark > :last-child")]);
  const marks = points.map(([, mark]) => mark.getBoundingClientRect());
  return points.flatMap(([name], n) => {
    const box = name.getBoundingClientRect();
    const over = (mark) => box.left < mark.right - 2 && mark.left < box.right - 2
      && box.top < mark.bottom - 5 && mark.top < box.bottom - 5;
    return marks.some((mark, m) => m !== n && over(mark)) ? [name.textContent] : [];
  });
})"""


# How far on the screen the nearest two points of each drawing stand apart.
GAPS = """(figure) => [...figure.querySelectorAll(".live-draggable")].map((drawing) => {
  const grips = [...drawing.querySelectorAll(".live-grip")];
  const spots = grips.map((one) => one.getBoundingClientRect());
  return Math.min(...spots.flatMap((a, n) =>
    spots.slice(n + 1).map((b) => Math.hypot(a.left - b.left, a.top - b.top))));
})"""


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_names_of_points_in_a_crowd_stand_apart(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    """None lies on another, on a point, or on a number of the axes; a line leads to a far one."""
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{CHAPTER_03}")
    figure = page.locator(PLANE)
    ties = 0
    for state in CROWDS:
        page.evaluate(GO_TO, f"live:attention-plane:{state}")
        covered = [
            figure.locator(".live-draggable").nth(n).evaluate(COVERED, "text") for n in (0, 1)
        ]
        assert covered == [[], []], state
        assert figure.evaluate(ON_POINTS) == [], state
        assert not figure.evaluate(OUTSIDE), state
        assert min(figure.evaluate(GAPS)) >= 13, state
        ties += figure.locator(".live-tie[d^=M]").count()
    assert ties


LONGEST = """(figure) => Math.max(0, ...[...figure.querySelectorAll("path[stroke-dasharray='4 3']")]
  .map((path) => (path.getAttribute("d") ? path.getTotalLength() : 0)))"""


def test_the_gradient_is_seen_or_printed_as_zero(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{CHAPTER_03}")
    figure = page.locator(PLANE)
    page.get_by_label("gradient of the answer’s length").check()
    assert figure.evaluate(LONGEST) > 30  # units of a drawing of 300
    note = figure.locator("text", has_text="gradient")
    expect(note).to_have_text(re.compile(r"^arrows: gradient × [125]0*$"))
    figure.locator(".live-tries button", has_text="gradient on").click()
    assert figure.evaluate(LONGEST) > 30  # saturated: enlarged, and it says by how much
    expect(note).to_have_text(re.compile(r"^arrows: gradient × [125]0?,000$"))
    opened(page, f"{origin}/{CHAPTER_03}#live:attention-plane:value1=0,0;value2=0,0;gradient=yes")
    page.reload()
    expect(note).to_have_text("gradient: 0, no arrow")
    assert figure.evaluate(LONGEST) == 0


# Heads --------------------------------------------------------------------------------------------


def test_the_translator_does_not_collapse_the_figure(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    run_model(page)
    figure = page.locator(HEADS)
    height = "figure => figure.getBoundingClientRect().height"
    before = figure.evaluate(height)
    hold: list[Route] = []  # the first part of the weights, until all was looked at
    page.route("**/weights/numbers-0.js", lambda route: hold.append(route))
    figure.locator(".live-tries button", has_text="translator").click()
    seen = figure.locator(".live-see > span").first
    expect(seen).to_have_text("This needs the number translator.")  # nothing of what is not there
    for button in ("Let a space look", "Reset"):
        expect(figure.get_by_role("button", name=button)).to_be_visible()
    stays = figure.locator(".live-stage")  # what is drawn, paler
    assert stays.evaluate("node => getComputedStyle(node).opacity") == "0.5"
    assert figure.evaluate(height) >= before - 1
    hold.pop().continue_()
    expect(figure.locator(".live-words")).to_contain_text("It writes zweiundvierzig")
    page.locator(HEADS + SETTLED).wait_for()
    expect(seen).to_have_text(re.compile("^German says two-and-forty"))
    assert figure.evaluate(height) >= before - 1


def test_a_try_loads_the_model_that_it_needs(page: Page, origin: str) -> None:
    """Something can be explored before a model is there; the last Try that is pressed wins."""
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(HEADS)
    tries = figure.locator(".live-tries button")
    expect(tries.first).to_be_visible()
    bottom, top = (
        figure.locator(place).evaluate(f"node => node.getBoundingClientRect().{side}")
        for place, side in ((".live-stage", "bottom"), (".live-tries", "top"))
    )
    assert bottom <= top  # the picture comes first
    tries.nth(1).click()
    tries.filter(has_text="translator").click()
    expect(figure.locator(".live-words")).to_contain_text(
        "It writes zweiundvierzig", timeout=20_000
    )
    expect(figure.locator(".live-see > span").first).to_have_text(
        re.compile("^German says two-and-forty")
    )
    assert "model=numbers" in page.url


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_to_choose_a_model_is_to_ask_for_it(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(HEADS)
    if screen is PHONE:
        figure.locator("summary").click()  # there the models are folded
    choice = figure.get_by_role("radio", name="translator")
    expect(figure.get_by_label("number in English")).to_be_hidden()  # it means nothing yet
    hold: list[Route] = []
    page.route("**/weights/numbers-0.js", lambda route: hold.append(route))
    place = "node => node.getBoundingClientRect().top - node.closest('.live').offsetTop + scrollY"
    before = choice.evaluate(place)
    choice.check()
    expect(figure.locator(".live-ask")).to_contain_text("Loading the number translator")
    assert abs(choice.evaluate(place) - before) < 8  # it stays under the finger
    hold.pop().continue_()
    expect(figure.locator(".live-words")).to_contain_text(
        "It writes zweiundvierzig", timeout=20_000
    )
    expect(figure.get_by_label("number in English")).to_be_visible()
    expect(figure.get_by_role("textbox", name="line")).to_be_hidden()


def test_a_line_that_is_typed_asks_for_its_model(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(HEADS)
    line = figure.get_by_role("textbox", name="line")
    line.fill("to be or not")
    line.press("Enter")
    expect(figure.locator(".live-words")).to_contain_text(": “t” gives", timeout=20_000)


def test_a_link_to_the_translator_shows_no_other_model(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}#live:heads:model=numbers;layer=1")
    figure = page.locator(HEADS)
    expect(figure.get_by_role("button", name="Run the number translator here")).to_be_visible()
    expect(figure.locator(":scope > :not(.live-body)").first).to_be_hidden()
    expect(figure.get_by_role("button", name="Reset")).to_be_visible()


def test_the_keyboard_keeps_its_place_when_a_model_runs(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(HEADS)
    places = "figure => [...figure.querySelectorAll('button')].map((one) => one.offsetTop)"
    start = figure.get_by_role("button", name="Run the Shakespeare model here")
    height = "figure => figure.getBoundingClientRect().height"
    before = [figure.evaluate(places)[1:], figure.evaluate(height)]
    start.focus()
    page.keyboard.press("Enter")
    expect(start).to_be_hidden(timeout=20_000)
    assert [figure.evaluate(places), figure.evaluate(height)] == before  # it looked so before
    assert page.locator(HEADS).evaluate("figure => figure.contains(document.activeElement)")
    page.keyboard.press("Tab")
    assert page.locator(f"{HEADS} .live-token").first.evaluate(
        "one => one === document.activeElement"
    )


# How much room is left beside the longest words of a menu, before its arrow.
ROOM_OF_MENU = """(select) => {
  const { fontSize, fontFamily, paddingLeft } = getComputedStyle(select);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${fontSize} ${fontFamily}`;
  const longest = Math.max(...[...select.options].map((one) => pen.measureText(one.text).width));
  return select.clientWidth - parseFloat(paddingLeft) - longest;
}"""


def test_what_heads_are_compared_by_is_read_on_a_phone(page: Page, origin: str) -> None:
    page.set_viewport_size(PHONE)
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}")
    room = page.locator(f"{HEADS} select").evaluate(ROOM_OF_MENU)
    assert room >= 14, f"the arrow covers words: {room:.0f} px are left for it"


SHADES = """(cells) => {
  const pen = document.createElement("canvas").getContext("2d");
  const light = (cell) => {
    pen.fillStyle = getComputedStyle(cell).backgroundColor;
    pen.fillRect(0, 0, 1, 1);
    const parts = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) => each / 255)
      .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const all = cells.map(light);
  return (Math.max(...all) + 0.05) / (Math.min(...all) + 0.05);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_strongest_head_stands_out(
    theme: Literal["light", "dark"], page: Page, origin: str
) -> None:
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    opened(page, f"{origin}/book/06_heads.html")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    cells = page.locator(f"{HEADS} .live-cell")
    expect(cells).to_have_count(32)
    assert cells.evaluate_all(SHADES) >= 3


def test_a_head_stands_beside_even_weights(page: Page, origin: str) -> None:
    """Two bars for the question of the figure; all other numbers are where the pointer rests."""
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(HEADS)
    bars = figure.locator(".live-bars")
    expect(bars).to_have_attribute("aria-label", re.compile("this head 0.62, even weights 0.11$"))
    cells = figure.get_by_role("gridcell")
    expect(cells).to_have_count(32)
    assert not "".join(cells.all_text_contents())
    expect(cells.nth(7)).to_have_attribute("title", "layer 1, 8: 0.62")
    assert "in code" not in figure.inner_text()
    expect(figure.get_by_title("In code: layer 0, head 7")).to_be_visible()
    expect(figure.get_by_text("weight on copies of itself", exact=True).first).to_be_hidden()
    figure.locator("summary").click()
    expect(figure.locator("dt", has_text="weight on copies of itself")).to_be_visible()


def test_the_menu_says_what_heads_are_compared_by(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(HEADS)
    menu = figure.get_by_label("compare by")
    figure.get_by_role("radio", name="translator").check()
    expect(figure.locator(".live-words")).to_contain_text("It writes", timeout=20_000)
    expect(menu).to_have_value("entropy")
    expect(figure.get_by_text("entropy in nats: pick a head")).to_be_visible()
    for value, can_be in (("before", False), ("same", False), ("space", True), ("first", True)):
        expect(menu.locator(f"[value={value}]")).to_be_enabled(enabled=can_be)
    menu.select_option("first")
    expect(figure.get_by_text("weight on the first position: pick a head")).to_be_visible()
    figure.get_by_role("radio", name="encoder").check()
    expect(menu.locator("[value=before]")).to_be_enabled()


def test_heads_are_compared_with_the_same_measure_only(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    run_model(page)
    figure = page.locator(HEADS)
    frames = figure.locator(".live-cell.live-changed")
    told = figure.get_by_text("is the state before")
    ticks = ".live-was:not([style*='width: 0'])"
    figure.get_by_role("gridcell").nth(9).click()  # another head, the same measure
    expect(told).to_be_visible()
    expect(figure.locator(ticks)).not_to_have_count(0)
    for button in ("Find a head for spaces", "Find a head for copies", "Watch a translator"):
        figure.get_by_role("button", name=button).click()
        expect(figure.locator(".live-see > span").first).not_to_be_empty()
        expect(figure.locator(".live-words")).to_contain_text("Head", timeout=20_000)
        page.locator(HEADS + SETTLED).wait_for()
        expect(frames).to_have_count(0)
        expect(figure.locator(ticks)).to_have_count(0)
        expect(told).to_have_count(0)
    figure.get_by_role("textbox", name="number in English").fill("nine")
    expect(figure.locator(".live-words")).to_contain_text("It writes neun")
    expect(told).to_be_visible()
    expect(frames).not_to_have_count(0)


def test_a_line_that_a_model_cannot_know_is_told(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}#live:heads:model=numbers;number=100")
    figure = page.locator(HEADS)
    expect(figure.get_by_text("It has never read “1”, “0”.")).to_be_visible()
    figure.get_by_role("textbox", name="number in English").fill("seven")
    expect(figure.get_by_text("It has never read")).to_have_count(0)


def test_a_loaded_model_says_what_can_be_done(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(HEADS)
    run_model(page)
    ready = figure.get_by_text("Now click a letter or a head, or type a line of your own.")
    expect(ready.first).to_be_visible()
    figure.locator(".live-token").nth(3).click()
    expect(figure.locator(".heads-ready")).to_have_count(0)


def test_the_map_and_the_tries_stand_on_one_screen_of_a_phone(page: Page, origin: str) -> None:
    page.set_viewport_size(PHONE)
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}")
    run_model(page)
    figure = page.locator(HEADS)
    diagram = figure.locator(".live-drawing").last.bounding_box()
    tries = figure.locator(".live-tries").bounding_box()
    assert diagram
    assert tries
    assert diagram["y"] < tries["y"]  # the picture first
    assert tries["y"] + tries["height"] - diagram["y"] <= PHONE["height"]


# Journey ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_journeys_height_stays(screen: dict[str, int], page: Page, origin: str) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/00_reading_this_book.html")
    figure = page.locator(JOURNEY)
    height = "figure => Math.round(figure.getBoundingClientRect().height)"
    heights = []
    for button in figure.locator(".live-tries button").all():
        button.click()
        heights.append(figure.evaluate(height))
    assert len(set(heights)) == 1, heights


# How high the written letter stands, whenever it moves: 0 is the foot of the tower.
FOLLOW_LETTER = """figure => {
  window.letterWay = [];
  new MutationObserver(() => {
    const letter = figure.querySelector(".live-written");
    if (letter) letterWay.push(letter.transform.baseVal[0].matrix.f);
  }).observe(figure, { subtree: true, childList: true, attributes: true });
}"""


def test_the_number_is_followed_to_the_letter_that_it_writes(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/00_reading_this_book.html")
    figure = page.locator(JOURNEY)
    expect(figure.locator(".live-picture")).to_contain_text("Shapes only.")
    expect(figure.get_by_text("V vocabulary")).to_be_visible()  # with its card closed
    figure.get_by_role("button", name="A real number").click()
    expect(figure.locator(".live-picture")).not_to_contain_text("Shapes only.")
    figure.locator("summary", has_text="Inside").click()
    sums = figure.locator(".live-sum")
    expect(sums).to_have_count(3)
    expect(sums.last).to_contain_text("1.00 in all")
    before = sums.all_text_contents()
    layer = figure.get_by_role("slider", name="layer")
    layer.press("ArrowLeft")
    assert sums.all_text_contents() != before  # as are the numbers of each layer
    layer.press("ArrowRight")
    letter = figure.locator(".live-written")
    figure.evaluate(FOLLOW_LETTER)
    for _ in range(6):
        expect(letter).to_have_count(0)
        figure.get_by_role("button", name="One box").click()
    expect(layer).to_have_value("3")  # the output comes behind the third layer
    expect(letter).to_have_text("u")
    expect(page.locator(f"{JOURNEY}{SETTLED}")).to_be_visible()
    way = page.evaluate("letterWay")
    assert way[0] < -300  # it starts beside the output,
    assert way[-1] == 4  # and ends on the line of the decoder’s input
    figure.get_by_role("button", name="Back", exact=True).click()
    expect(letter).to_have_count(0)
    expect(layer).to_have_value("3")


def test_the_run_of_the_number_can_be_four_times_as_fast(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/00_reading_this_book.html")
    faster = page.locator(JOURNEY).get_by_role("button", name="faster")
    faster.click()
    expect(faster).to_have_attribute("aria-disabled", "false")
    faster.click()
    expect(page.locator(f"{JOURNEY} .live-pace output")).to_have_text("4×")
    expect(faster).to_have_attribute("aria-disabled", "true")


def test_an_image_has_as_many_tokens_as_it_has(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/00_reading_this_book.html")
    figure = page.locator(JOURNEY)
    model, tokens = figure.locator("select").first, figure.locator(".live-control").nth(1)
    model.select_option("vit-b-16")
    expect(tokens.get_by_role("slider")).to_be_disabled()
    expect(tokens).to_contain_text(re.compile("196 patches \\+ 1.*197", re.DOTALL))
    expect(figure).to_contain_text("N patches, P numbers in a patch, C classes, I pixels across")
    model.select_option("gpt3-175b")
    expect(tokens.get_by_role("slider")).to_be_enabled()
    expect(tokens.locator("span").first).to_have_text("tokens T")
    for fold in figure.locator(".live-folds summary").all():
        fold.click()
    total = figure.get_by_text("174,604,259,328").bounding_box()
    box = figure.bounding_box()
    assert total
    assert box
    assert total["x"] + total["width"] < box["x"] + box["width"]  # it was cut off there


def test_boxes_look_like_something_to_press(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/00_reading_this_book.html")
    box = page.locator(f"{JOURNEY} [role=button]", has_text="cross-attention")
    assert box.evaluate("box => getComputedStyle(box).cursor") == "pointer"
    drawn = "b => [...b.querySelectorAll('rect')].map(one => one.getBoundingClientRect().bottom)"
    edge, face = box.evaluate(drawn)
    assert edge > face + 1  # an edge below the face, as a key has
    box.hover()
    edge_below, hovered = box.evaluate(drawn)
    assert edge_below - hovered > edge - face  # it rises to the pointer
    box.click()
    page.mouse.move(0, 0)
    edge_below, pressed = box.evaluate(drawn)
    assert edge_below - pressed < edge - face  # and goes down


WIDTHS = "all => all.map(each => each.getBoundingClientRect().width)"
PLACE = "card => { const box = card.getBoundingClientRect(); return [box.x, box.y]; }"
CARD = f"{JOURNEY} .live-card:last-of-type"


def test_a_sentence_travels_through_the_boxes(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/00_reading_this_book.html")
    caption = page.locator(f"{JOURNEY} .live-caption")
    first = "Token embedding (encoder): 64 token ids → 64 vectors of 512 numbers"
    expect(caption).to_have_text(first)
    one = page.get_by_role("button", name="One box")
    seen, places = [], []
    for _ in range(20):
        page.locator(JOURNEY + SETTLED).wait_for()
        chosen = page.locator(f"{JOURNEY} .live-box[aria-pressed=true]")
        seen.append(str(chosen.get_attribute("aria-label")).split(":")[0])
        where = page.locator(CARD).evaluate(PLACE)
        box = chosen.bounding_box()
        assert box
        assert abs(where[1] - box["y"]) < 30  # beside the box
        places.append(tuple(where))
        one.click()
    assert seen[0] == "Token embedding, encoder"
    assert seen[8] == "Token embedding, decoder"
    assert "Cross-attention, decoder" in seen
    assert seen[-1] == "Output layer, decoder"
    assert len(set(places)) == 20
    expect(caption).to_have_text(first)  # and again from the beginning


def test_play_sends_it_and_any_other_act_stops_it(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/00_reading_this_book.html")
    play = page.locator(f"{JOURNEY} .live-play")
    play.click()
    expect(play).to_have_text("Pause")
    expect(page.locator(f"{JOURNEY} .live-box[aria-pressed=true]")).to_have_text("self-attention")
    page.locator(f"{JOURNEY} .live-reset").click()
    expect(play).to_have_text("Send a sentence through")


WAITS = """(figure) => new Promise((seen) => {
  const times = [];
  const watch = new MutationObserver(() => {
    times.push(performance.now());
    if (times.length === 4) seen((watch.disconnect(), times[3] - times[1]));
  });
  watch.observe(figure.querySelector(".live-caption"), { childList: true });
})"""


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_the_card_of_a_box_opens_when_it_is_pressed_and_not_on_the_way(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    opened(page, f"{origin}/book/00_reading_this_book.html")
    figure = page.locator(JOURNEY)
    card = figure.get_by_text("Looks up a learned vector for each token id.")
    told = figure.get_by_text("Works on each position alone: expand, bend, contract.")
    expect(card).to_be_hidden()
    figure.get_by_role("button", name="One box").click()
    expect(figure.locator("details[open]")).to_have_count(0)
    figure.locator(".live-box", has_text="feed-forward").first.press("Enter")
    expect(told).to_be_visible()
    figure.get_by_role("button", name="Send a sentence").click()
    expect(told).to_be_hidden()  # it travels
    figure.locator(".live-box", has_text="token embedding").first.click()
    expect(card).to_be_visible()
    expect(figure.locator(".live-play")).not_to_have_text("Pause")


def test_the_sentence_goes_slower_and_faster(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/00_reading_this_book.html")
    figure, play = page.locator(JOURNEY), page.locator(f"{JOURNEY} .live-play")
    pace = figure.get_by_role("group", name="speed")
    slower, faster = (pace.get_by_role("button", name=name) for name in ("slower", "faster"))
    for _ in range(2):
        slower.press("Enter")
    expect(pace).to_contain_text("½×")
    expect(slower).to_have_attribute("aria-disabled", "true")
    play.click()
    waits = {"½×": figure.evaluate(WAITS)}
    for name in ("1×", "2×", "4×"):
        faster.click()
        expect(play).to_have_text("Pause")  # it goes on, at another speed
        expect(pace).to_contain_text(name)
        waits[name] = figure.evaluate(WAITS)
    expect(faster).to_have_attribute("aria-disabled", "true")
    assert waits["½×"] > 3_000  # two boxes: 3.6, 1.8, 0.9 and 0.45 seconds on an idle machine
    assert waits["½×"] > 1.4 * waits["1×"] > 1.4 * 1.4 * waits["2×"], waits


def test_the_sentence_is_as_long_as_the_caption_says(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/00_reading_this_book.html")
    lines = texts(page, f"{JOURNEY} .live-picture text")
    assert {"“the cat sleeps …”", "“die Katze schläft …”"} <= set(lines)
    assert lines.count("the first 3 of 64 tokens") == 2
    page.get_by_label("tokens T").fill("0")  # the first stop of the slider: 1
    lines = texts(page, f"{JOURNEY} .live-picture text")
    assert {"“the”", "“die”"} <= set(lines)
    assert lines.count("1 token") == 2


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_a_real_number_travels_through_all_layers(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.set_viewport_size(screen)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/00_reading_this_book.html")
    figure, caption = page.locator(JOURNEY), page.locator(f"{JOURNEY} .live-caption")
    words = figure.locator(".live-words")
    figure.get_by_role("button", name="A real number").click()
    expect(caption).to_contain_text("Cross-attention (decoder, layer 3)")
    expect(words).to_contain_text("“i” asks the source")
    assert {"forty-two", "9 tokens", "▷zwei", "5 tokens"} <= set(
        texts(page, f"{JOURNEY} .live-picture text")
    )
    expect(figure.get_by_role("slider", name="layer")).to_have_value("3")
    expect(figure.get_by_label("tokens T")).to_be_hidden()
    top = "figure => figure.querySelector('.live-picture').getBoundingClientRect().top + scrollY"
    places, said = set(), set()
    for _ in range(50):
        figure.get_by_role("button", name="One box").click()
        said.add(caption.inner_text() + words.inner_text())
        places.add(round(figure.evaluate(top)))
    assert len(said) == 2 + 3 * 6 + 2 + 3 * 9 + 1  # each box, each in its layer, once
    assert len(places) == 1, places  # the picture stays where it is
    expect(caption).to_contain_text("Cross-attention (decoder, layer 3)")  # once around
    figure.get_by_role("button", name="Back").click()
    expect(caption).to_contain_text("LayerNorm (decoder, layer 3)")
    assert not [url for url in asked if "/live/weights/" in url]


# The others ---------------------------------------------------------------------------------------


def test_what_recurrences_axis_sets_apart(page: Page, origin: str) -> None:
    """0.52 for attention and 0.08 for the LSTM: a third of the chart, not a hair's breadth."""
    opened(page, f"{origin}/book/01_recurrence.html")
    dots = page.locator(f"{RECURRENCE} .live-chart circle")
    heights = [float(str(dot.get_attribute("cy"))) for dot in dots.all() if dot.is_visible()]
    _, lstm, attention, _ = heights
    frame = page.locator(f"{RECURRENCE} .live-chart .live-drawing").evaluate(
        "d => d.viewBox.baseVal.height"
    )
    assert lstm - attention > frame / 3
    assert {"LSTM 0.0769", "attention 0.522"} <= set(texts(page, f"{RECURRENCE} text"))
    page.locator(f"{RECURRENCE} summary").click()
    page.get_by_label("powers of ten").check()
    page.locator(RECURRENCE + SETTLED).wait_for()
    assert "10⁻⁸" in texts(page, f"{RECURRENCE} text")
    layers = page.locator(f"{RECURRENCE} .live-chart g[clip-path]")
    lines = "layer => [...layer.children].map(line => line.getAttribute('d') ?? '')"
    was, now = (layer.evaluate(lines) for layer in layers.all())
    assert was == now  # the state before had the same numbers: on the new axis it is the same line


LEADS = """figure => [...figure.querySelectorAll(".live-reading")].map((lead) =>
  lead.getAttribute("d").slice(1).split("H")[0].split(" ").map(Number))"""
DOTS = """figure => [...figure.querySelectorAll(".live-chart g:not(.live-ghost) > circle")]
  .map((dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value])"""
NAMED = """(figure) => {
  const box = figure.querySelector(".live-chart > svg").getBoundingClientRect();
  const texts = [...figure.querySelectorAll(".live-chart text:has(tspan)")];
  const boxes = texts.map((text) => text.getBoundingClientRect()).sort((a, b) => a.top - b.top);
  return [boxes.slice(1).map((one, at) => one.top - boxes[at].bottom),
    Math.max(...boxes.map((one) => one.right - box.right)),
    Math.max(...boxes.map((one) => one.bottom - box.bottom))];
}"""


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_recurrences_names_stand_apart_beside_their_lines(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/01_recurrence.html")
    figure = page.locator(RECURRENCE)
    for press in [None, *figure.locator(".live-tries button").all()]:
        if press:
            press.click()
        between, right, foot = figure.evaluate(NAMED)
        assert len(between) == 3
        assert min(between) >= -2, between
        assert right <= 1
        assert foot <= 0
        dots = figure.evaluate(DOTS)  # a number stands for a dot, and its line leads there
        for lead, dot in zip(figure.evaluate(LEADS), dots, strict=True):
            assert lead == pytest.approx(dot, abs=0.1)
    figure.locator("summary").click()
    figure.get_by_label("tanh around the state").uncheck()
    expect(figure.locator(".live-off[d^=M]")).to_have_count(0)
    figure.get_by_role("slider", name="weight").fill("1.5")
    expect(figure.locator(".live-off[d^=M]")).to_have_count(2)  # both explode
    assert {"nothing", "half", "all"} <= set(texts(page, f"{RECURRENCE} text"))


def test_a_trail_fades_as_the_curves_do(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/01_recurrence.html")
    trail = page.locator(f"{RECURRENCE} .live-drawing").nth(1)
    rows = (
        "d => [...d.querySelectorAll('rect[opacity]')].map(r => Number(r.getAttribute('opacity')))"
    )
    shades = trail.evaluate(rows)
    assert len(shades) == 150
    _, lstm, attention = (shades[at : at + 50] for at in (0, 50, 100))
    assert lstm == sorted(lstm, reverse=True)
    assert attention == sorted(attention, reverse=True)
    assert lstm[12] == pytest.approx(0.95**50, abs=0.001)  # 50 steps back
    edges = trail.evaluate("d => d.getBBox().x + d.getBBox().width")
    assert edges <= 600


def test_the_distance_is_dragged_by_its_name_and_its_line(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/01_recurrence.html")
    figure = page.locator(RECURRENCE)
    ruler = figure.get_by_role("slider", name="distance n, in the chart")
    figure.locator(".live-reset").scroll_into_view_if_needed()
    chart, trail = (drawing.bounding_box() for drawing in figure.locator(".live-drawing").all())
    assert chart
    assert trail
    a_step = chart["width"] * (600 - 68 - 118) / 600 / 200
    x, y = chart["x"] + (68 / 600) * chart["width"] + 50 * a_step, chart["y"]
    places = ((x, y + 12), (x + 35, y + 12), (x, y + 150), (x, trail["y"] + 30))
    for at, (left, top) in enumerate(places):
        page.mouse.move(left, top)
        page.mouse.down()
        page.mouse.move(left + 40 * a_step, top + 5, steps=3)
        page.mouse.up()
        expect(ruler).to_have_attribute("aria-valuenow", "90")
        assert "After 90 steps" in words(page, RECURRENCE), at
        assert page.url.endswith("#live:recurrence:distance=90")
        page.locator(f"{RECURRENCE} .live-reset").click()
    for key, expected in (("Shift+ArrowRight", 60), ("PageDown", 40), ("End", 200), ("Home", 1)):
        ruler.press(key)
        expect(figure.locator("input[type=range]").first).to_have_value(str(expected))


def test_the_distance_is_dragged_with_a_finger(browser: Browser, origin: str) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    wait_for_fonts(page)
    opened(page, f"{origin}/book/01_recurrence.html")
    finger, name = Finger(page), page.locator(f"{RECURRENCE} [role=slider] .live-mark")
    name.scroll_into_view_if_needed()
    box = name.bounding_box()
    assert box
    start = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    finger.drag(start, (300, 0))
    finger.lift()
    assert "After 200 steps" in words(page, RECURRENCE)
    scrolled = page.evaluate("scrollY")
    finger.drag((start[0] + 40, start[1] + 100), (0, -200))  # the page, which the chart lets go
    finger.lift()
    page.wait_for_function("before => scrollY > before + 50", arg=scrolled)
    context.close()


TOUCHING = """(chart) => {
  const texts = [...chart.querySelectorAll("text")];
  const boxes = texts.map((text) => text.getBoundingClientRect());
  const over = (a, b) => a.left < b.right && b.left < a.right
    && a.top < b.bottom - 4 && b.top < a.bottom - 4;
  return texts.flatMap((one, i) => texts.filter((_, j) => j > i && over(boxes[i], boxes[j]))
    .map((other) => `${one.textContent} on ${other.textContent}`));
}"""


def test_scale_draws_the_median_as_a_line_and_one_query_as_a_dot(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/04_scaling.html")
    chart = page.locator(f"{SCALE} .live-chart").first
    # The walks come before the bars of the one query, and are the widest drawing.
    widths = page.locator(f"{SCALE} .live-drawing").evaluate_all(WIDTHS)
    assert widths[0] == max(widths)
    law = page.locator(f"{SCALE} .live-stage text", has_text="four times as many, twice the spread")
    expect(law).to_be_visible()
    expect(chart).to_be_hidden()  # a first look does not need it
    page.locator(f"{SCALE} summary").click()
    expect(chart).to_be_visible()
    lines = chart.locator("g:not(.live-ghost) > path[stroke-width='2.4']")
    assert [len(str(line.get_attribute("d")).split("L")) for line in lines.all()] == [11, 11]
    dots = [dot for dot in chart.locator("circle").all() if dot.is_visible()]
    assert len(dots) == 2
    title = page.locator(f"{SCALE} .live-title", has_text="lines: the median of 31 queries")
    expect(title).to_be_visible()
    for width in (2, 10):  # of the slider: names and numbers stand apart, and above the axis
        page.get_by_label("width d").fill(str(width))
        page.locator(SCALE + SETTLED).wait_for()
        assert chart.evaluate(TOUCHING) == []


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_the_best_key_has_one_colour_from_its_walk_to_its_weight(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/04_scaling.html")
    fan, *rows = page.locator(f"{SCALE} .live-stage .live-drawing").all()
    of_best = "d => d.querySelectorAll('path[fill=\"var(--fig-k)\"]').length"
    assert fan.locator("circle[fill='var(--fig-k)']").count() == 1
    expected = [["0.82", "0.16"], ["0.16", "0.16"], ["0.99", "0.09"]]  # the start, and two Tries
    presses = [None, *page.locator(f"{SCALE} .live-tries button").all()[:2]]
    for press, numbers in zip(presses, expected, strict=True):
        if press:
            press.click()
        assert fan.evaluate(TOUCHING) == []
        for row, number in zip(rows, numbers, strict=True):
            assert row.evaluate(of_best) == 1
            assert number in row.locator("text").all_text_contents()
            assert row.evaluate(TOUCHING) == []


def test_a_walk_for_each_key_goes_as_far_as_the_width(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/04_scaling.html")
    fan = page.locator(f"{SCALE} .live-drawing").first
    far = "fan => Number(fan.querySelectorAll('clipPath > rect')[1].getAttribute('width'))"
    walks = "fan => fan.querySelector('g > path').getAttribute('d').split('M').length - 1"
    start = fan.evaluate(far)
    assert fan.evaluate(walks) == 32
    assert {"best key", "standard deviation 8.3"} <= set(texts(page, f"{SCALE} text"))
    page.locator(f"{SCALE} .live-tries button", has_text="1024").click()
    assert fan.evaluate(far) > 3 * start
    page.locator(f"{SCALE} summary").click()
    page.get_by_role("button", name="Take 64 keys").click()
    assert fan.evaluate(walks) == 64


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_the_root_has_its_name_at_both_edges_of_what_is_typical(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    opened(page, f"{origin}/book/04_scaling.html")
    fan = page.locator(f"{SCALE} .live-drawing").first
    fan.scroll_into_view_if_needed()
    for name in (re.compile(r"^\+√d"), re.compile("^−√d$")):
        label = fan.locator("text", has_text=name)
        expect(label).to_be_in_viewport(ratio=1)
        inside = "node => node.getBoundingClientRect().right <= innerWidth"
        assert label.evaluate(inside)
    assert not fan.evaluate(SMALL, 12)


def test_each_press_draws_other_vectors(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/04_scaling.html")
    figure = page.locator(SCALE)
    figure.locator("summary").click()
    page.get_by_label("width d").fill("9")  # of the slider: 512; it stays
    walks = figure.locator(".live-drawing g > path").first
    seen = [walks.get_attribute("d")]
    for draw in (*range(1, 10), 1):
        figure.get_by_role("button", name="Draw other vectors").click()
        seen.append(walks.get_attribute("d"))
        # The ninth draw is the start's: the address does not name it.
        assert page.url.endswith(f"width=512;draw={draw}" if draw < 9 else "width=512")
        expect(figure.locator(".live-see > span").first).to_contain_text("Other vectors: the")
    assert len(set(seen[:9])) == 9  # nine draws
    assert seen[9:] == seen[:2]  # and then anew


def test_a_score_beyond_the_chart_is_told(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/04_scaling.html#live:scale:width=1024;draw=4")
    fan = page.locator(f"{SCALE} .live-drawing").first
    expect(fan.get_by_text("best key: 101 ↑")).to_be_visible()
    top, edge = (node.evaluate("n => n.getBoundingClientRect().top") for node in
                 (fan.locator("circle"), fan))  # fmt: skip
    assert top > edge


def test_rows_of_the_two_maps_stand_at_one_height(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/05_masks.html")
    top = "all => all.map(name => Math.round(name.getBoundingClientRect().top))"
    _, left, right = page.locator(f"{LAB} .live-heat").all()
    rows = [each.locator(".live-row-name").evaluate_all(top) for each in (left, right)]
    assert rows[0] == rows[1]


def test_a_cell_says_after_which_layer_it_is_heard(page: Page, origin: str) -> None:
    opened(page, f"{origin}/book/05_masks.html")
    page.locator(f"{LAB} .live-tries button", has_text="One wrong cell").click()
    page.locator(LAB + SETTLED).wait_for()
    mask, heard, _ = page.locator(f"{LAB} .live-heat").all()
    numbers = heard.locator(".live-cell").all_text_contents()
    assert numbers[:8] == ["1", *["2"] * 6, "1"]  # "we" sees "night", which has seen all
    assert numbers[8:16] == ["1", "1", *["3"] * 5, "2"]
    assert set(mask.locator(".live-cell").all_text_contents()) == {""}  # its shade says it
    assert mask.locator(".live-result").all_text_contents() == list("22345678")


LIT = (
    """(figure) => [...figure.querySelectorAll(".live-drawing circle[fill-opacity='1']")].length"""
)


def test_the_lab_draws_on_which_ways_a_word_is_reached(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/05_masks.html")
    lab = page.locator(LAB)
    expect(lab).to_contain_text("what reaches “home” in 1 layer: 5 of 8")
    assert lab.evaluate(LIT) == 1 + 5
    expect(lab.locator(".live-unheard")).to_have_text(["late", "last", "night"])
    page.get_by_label("who listens").select_option(label="we 0")
    assert lab.evaluate(LIT) == 1 + 1
    lab.locator(".live-heat").first.locator("[role=gridcell]").nth(
        7
    ).click()  # the page asks for it
    expect(lab).to_contain_text("what reaches “we” in 1 layer: 2 of 8")
    lab.locator(".live-pick").nth(2).click()
    expect(lab).to_contain_text("what reaches “her” in 1 layer: 3 of 8")
    lab.locator(".live-tries button", has_text="One wrong cell").click()
    expect(lab).to_contain_text("what reaches “go” in 3 layers: 8 of 8")
    assert lab.evaluate(LIT) == 1 + 4 + 5 + 8
    expect(lab.locator(".live-unheard")).to_have_count(0)


def test_merges_are_played_one_by_one(page: Page) -> None:
    opened(page, f"{SITE.as_uri()}/book/02_tokens.html")
    tokens = f"{TOKENIZER} .live-strip .live-token > span"
    page.get_by_role("button", name="Next merge that fits").click()
    assert len(texts(page, tokens)) == 16  # all that fit are made: one more changes nothing
    assert "; no other fits" in page.locator(TOKENIZER).inner_text()
    joined = f"{TOKENIZER} .live-drawing path[opacity='1']"
    assert page.locator(joined).count() == 49 - 16  # each join of the tree makes one token less
    page.get_by_role("button", name="Take all merges away").click()
    page.locator(TOKENIZER + SETTLED).wait_for()
    assert page.locator(joined).count() == 0
    assert "no merges: 256 bytes, 3 special tokens; next to fit: merge 1\n" in (
        page.locator(TOKENIZER).inner_text()
    )
    expect(page.locator(TOKENIZER)).to_contain_text("49 tokens; up to 24, each shows its id")
    many = len(texts(page, tokens))
    assert many == 49
    moved = page.evaluate(
        """() => {
          document.querySelector(".live-play + button").click();
          const boxes = [...document.querySelectorAll(".live-strip .live-token")];
          return boxes.filter((box) => box.style.transform).length;
        }"""
    )
    assert moved > 10  # the boxes begin where their letters were, and slide together
    page.locator(TOKENIZER + SETTLED).wait_for()
    assert len(texts(page, tokens)) < many
    new = texts(page, f"{TOKENIZER} .live-token.live-marked > span")
    assert set(new) == {"th"}
    assert "t + h → th" in page.locator(TOKENIZER).inner_text()
    assert "merges=" in page.url
    page.emulate_media(reduced_motion="reduce")
    page.get_by_role("button", name="Play the merges").click()
    assert len(texts(page, tokens)) == 16


def test_the_faint_square_has_the_scale_of_the_others(page: Page, origin: str) -> None:
    """And of another text, with which nothing can be compared, there is none."""
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(TOKENIZER)
    side = "figure => ['.live-ghost', '.live-ghost + rect'].map((one) => Number(figure"
    side += ".querySelector(`.live-aside ${one}`).getAttribute('width')))"
    figure.get_by_role("button", name="Take all merges away").click()
    before, characters = figure.evaluate(side)
    assert before / characters == pytest.approx(16 / 49)
    figure.get_by_role("button", name="Rain in Russian").click()
    expect(figure.locator(".live-words")).to_contain_text("10² = 100")
    assert figure.evaluate(side) == [0, 95]


def test_the_text_box_shows_the_whole_sentence_on_a_phone(page: Page, origin: str) -> None:
    page.set_viewport_size(PHONE)
    wait_for_fonts(page)
    opened(page, f"{origin}/book/02_tokens.html")
    box = page.get_by_label("text", exact=True)
    hidden = "b => [b.scrollWidth - b.clientWidth, b.scrollHeight - b.clientHeight]"
    assert max(box.evaluate(hidden)) <= 1


def test_letters_that_were_not_learnt_and_a_cut_text_are_explained(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(TOKENIZER)
    expect(figure.locator(".live-piece")).to_have_count(0)
    box = figure.get_by_label("text", exact=True)
    box.fill("мы")
    expect(figure.locator(".live-words")).to_contain_text("4 tokens are pieces of a character")
    expect(figure.locator(".live-piece")).to_have_count(4)
    expect(figure).to_contain_text("the plays taught no merge that joins these bytes")
    box.fill("never " * 20)
    expect(figure).to_contain_text("the first 52 of 80 characters")
    expect(figure.locator(".live-cut")).to_have_text("Only the first 80 characters are kept.")
    box.press_sequentially("m")
    expect(figure.locator(".live-cut")).to_be_visible()
    box.fill("never")
    expect(figure.locator(".live-cut")).to_be_hidden()


# Positions ----------------------------------------------------------------------------------------

POSITIONS = live_figure("positions")


def grip(page: Page, name: str) -> tuple[float, float]:
    """Where a word of the text, or the grip between both, can be taken."""
    slider = page.locator(POSITIONS).get_by_role("slider", name=name, exact=True)
    slider.scroll_into_view_if_needed()
    box = slider.locator(".live-mark").bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def standing(page: Page) -> tuple[int, int]:
    """The places of the key and of the query, as the words say."""
    found = re.search(r"at place (\d+), the query runs at place (\d+)", words(page, POSITIONS))
    assert found
    return int(found[1]), int(found[2])


def place_of(page: Page) -> float:
    """How wide a place is on the screen."""
    cell = page.locator(f"{POSITIONS} .live-place").first.bounding_box()
    later = page.locator(f"{POSITIONS} .live-place").nth(10).bounding_box()
    assert cell
    assert later
    return (later["x"] - cell["x"]) / 10


def test_words_and_both_are_dragged_along_the_text(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    moves = (("query: runs", 3, (4, 11)), ("key: man", 2, (6, 11)), ("both words", 5, (11, 16)))
    for name, by, expected in moves:
        x, y = grip(page, name)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + by * place_of(page), y, steps=4)
        assert page.locator(POSITIONS + SETTLED).count() == 1  # it is under the finger
        page.mouse.up()
        assert standing(page) == expected, name
    assert page.url.endswith("#live:positions:key=11;distance=5")


def test_words_are_dragged_with_a_finger(browser: Browser, origin: str) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}")
    finger = Finger(page)
    for name, by, expected in (("query: runs", 6, (4, 14)), ("both words", 4, (8, 18))):
        start = grip(page, name)
        scrolled = page.evaluate("scrollY")
        finger.drag(start, (by * place_of(page), 30))
        finger.lift()
        assert page.evaluate("scrollY") == scrolled
        assert standing(page) == expected, name
    assert "key=8;distance=10" in page.url
    finger.drag(grip(page, "key: man"), (-3 * place_of(page), 0))
    finger.lose()  # the system took it: what was reached stays
    assert standing(page) == (5, 18)
    expect(page.locator(f"{POSITIONS} .live-held")).to_have_count(0)
    context.close()


def test_words_are_dragged_to_both_ends_of_the_text(browser: Browser, origin: str) -> None:
    for screen in (DESKTOP, PHONE):
        context = browser.new_context(viewport=screen, has_touch=screen is PHONE)
        page = context.new_page()
        wait_for_fonts(page)
        opened(page, f"{origin}/{PLAY}")
        for name, way, expected in (
            ("query: runs", 1, (15, 39)),  # it draws the key along
            ("key: man", 1, (39, 39)),
            ("both words", -1, (0, 0)),
            ("query: runs", 1, (15, 39)),
            ("key: man", -1, (0, 24)),
            ("both words", 1, (15, 39)),
        ):
            start = grip(page, name)
            if screen is PHONE:
                finger = Finger(page)
                finger.drag(start, (way * 400, 0))
                finger.lift()
            else:
                page.mouse.move(*start)
                page.mouse.down()
                page.mouse.move(start[0] + way * 700, start[1], steps=4)
                page.mouse.up()
            assert standing(page) == expected, name
        context.close()


def test_no_word_stands_beyond_the_text(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}#live:positions:key=35;distance=24")
    assert standing(page) == (35, 39)
    x, y = grip(page, "query: runs")
    page.mouse.move(x - 30, y)  # its name is drawn within the frame, and taken where it is drawn
    page.mouse.down()
    page.mouse.move(x - 30 - 2 * place_of(page), y, steps=3)
    page.mouse.up()
    assert standing(page) == (35, 37)


def test_sliders_answer_to_all_their_keys(page: Page, origin: str) -> None:
    """The browser's own sliders do; here are those that figures draw."""
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    sliders = page.locator(".live-stage [role=slider]:not([visibility=hidden])").all()
    drawn = [slider for slider in sliders if slider.is_visible()]
    assert len(drawn) > 20
    for slider in drawn:
        name = slider.get_attribute("aria-label")
        said = []
        for key, end in (("End", "max"), ("Home", "min"), ("PageUp", ""), ("PageDown", "")):
            slider.press(key)
            said.append(slider.get_attribute("aria-valuetext"))
            if end:
                reached = [slider.get_attribute(f"aria-value{each}") for each in ("now", end)]
                assert reached[0] == reached[1], f"{name}: {key}"
        assert said[2] != said[1], f"{name}: PageUp"
        assert said[3] != said[2], f"{name}: PageDown"


def test_words_are_moved_with_the_arrow_keys(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(POSITIONS)
    for name, key, expected in (
        ("query: runs", "ArrowLeft", (4, 7)),
        ("key: man", "ArrowRight", (5, 7)),
        ("both words", "Shift+ArrowRight", (8, 10)),
        ("key: man", "Shift+ArrowRight", (10, 10)),  # not behind the query
        ("key: man", "ArrowRight", (10, 10)),
        ("query: runs", "ArrowLeft", (10, 10)),
    ):
        figure.get_by_role("slider", name=name).focus()
        page.keyboard.press(key)
        assert standing(page) == expected, name
    key = figure.get_by_role("slider", name="key: man")
    expect(key).to_have_attribute("aria-valuetext", "place 10, distance 0")
    expect(key).to_have_attribute("aria-valuenow", "10")


def test_ropes_curve_stands_still_when_both_move(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    lines = page.locator(f"{POSITIONS} .live-chart g:not(.live-ghost) > path[stroke-width='2.4']")
    drawn = "all => all.map(line => line.getAttribute('d'))"
    before = lines.evaluate_all(drawn)
    page.locator(f"{POSITIONS} .live-tries button", has_text="Move both").click()
    after = lines.evaluate_all(drawn)
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert same == [True, False, False, True, True, True]  # learned and sinusoidal change


def test_a_scheme_is_chosen_where_its_score_stands(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(POSITIONS)
    figure.get_by_role("radio", name="ALiBi").check()
    page.locator(POSITIONS + SETTLED).wait_for()
    assert "ALiBi gives the score 1.06" in words(page, POSITIONS)
    expect(figure.get_by_text("bias −0.25")).to_be_visible()  # what RoPE does not have
    assert page.url.endswith("#live:positions:scheme=alibi")
    strong = figure.locator(
        ".live-chart g:not(.live-ghost) > path[stroke-width='2.4']:not(.live-faint)"
    )
    expect(strong).to_have_count(1)
    expect(figure.locator("label", has_text="ALiBi").locator("output")).to_have_text("1.06")


def test_a_score_is_length_times_length_times_cos(page: Page, origin: str) -> None:
    """What is said of the two arrows of a pair gives what it adds to the score, which is drawn."""
    for scheme in ("rope", "sinusoidal"):
        opened(page, f"{origin}/{PLAY}#live:positions:scheme={scheme};key=7;distance=9")
        faces = page.locator(f"{POSITIONS} .live-drawing").nth(1)
        label = str(faces.get_attribute("aria-label"))
        pairs = re.findall(r": (\S+) × (\S+) × cos (\d+)° ÷ √8 = (−?)([\d.]+\d)", label)
        assert len(pairs) == 4
        for query, key, angle, sign, part in pairs:
            found = float(query) * float(key) * cos(radians(int(angle))) / sqrt(8)
            assert found == pytest.approx(float(part) * (-1 if sign else 1), abs=0.03)
            expect(faces.locator("text").filter(has_text=f"{sign}{part}")).not_to_have_count(0)
            told = faces.locator("title").filter(has_text=f"{query} × {key} × cos {angle}°")
            expect(told).not_to_have_count(0)  # where the pointer rests


# Which texts of the list of schemes lie on each other, or stand beyond their row.
CROWDED = """list => [...list.querySelectorAll("label")].flatMap((row) => {
  const box = (node) => node.getBoundingClientRect();
  const whole = box(row), parts = [...row.querySelectorAll("span, small, output")];
  const on = (a, b) => a.left < b.right && b.left < a.right
    && a.top < b.bottom - 4 && b.top < a.bottom - 4;
  return parts.filter((one, at) => box(one).right > whole.right + 1
    || parts.slice(at + 1).some((other) => on(box(one), box(other)))).map((one) => one.textContent);
})"""


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_whose_score_stays_is_said_beside_it(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(POSITIONS)
    was = f"{POSITIONS} .live-schemes small"
    assert texts(page, was) == [""] * 6
    figure.get_by_role("button", name="Move both").click()
    before = ["0.85 →", "1.91 →"] if screen is DESKTOP else ["was 0.85", "was 1.91"]
    assert texts(page, was) == ["stays", *before, "stays", "stays", "stays"]
    assert all(each.is_visible() for each in page.locator(was).all())
    assert not figure.evaluate(SMALL, 12)
    assert not page.locator(f"{POSITIONS} .live-schemes").evaluate(CROWDED)
    figure.get_by_role("button", name="Reset").click()
    assert texts(page, was) == [""] * 6


def test_marks_of_the_other_schemes_step_back(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(POSITIONS)
    opacity = "all => all.map(one => Number(getComputedStyle(one).opacity))"
    marks = figure.locator(".live-schemes label > svg")
    lines = figure.locator(".live-chart .live-ghost + g > path")
    rows = figure.locator(".live-schemes label, .live-schemes label > :not(svg)")
    for touched, strong in ((None, {"rope"}), ("learned", {"rope", "learned"})):
        if touched:
            figure.locator(f".live-schemes label:has([value={touched}])").hover()
        names = figure.get_by_role("radio").evaluate_all("all => all.map(one => one.value)")
        for drawn in (marks, lines):
            found = dict(zip(names, drawn.evaluate_all(opacity), strict=True))
            assert {name for name in names if found[name] == 1} == strong
            assert max(found[name] for name in names if name not in strong) <= 0.6
        assert set(rows.evaluate_all(opacity)) == {1}  # words stay readable


def test_what_ropes_sliders_do_is_folded_at_first(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(POSITIONS)
    base = figure.get_by_label("RoPE: base θ")
    expect(base).to_be_hidden()
    summary = figure.locator("summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(base).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first Try of the fold
    assert page.url.endswith("#live:positions:theta=10")
    opened(page, "about:blank")
    opened(page, f"{origin}/{PLAY}#live:positions:stretch=4")  # a link shows what it sets
    expect(figure.get_by_label("RoPE: stretch")).to_be_visible()


# Fold ---------------------------------------------------------------------------------------------

FOLD = live_figure("fold")


def unit_of_plane(page: Page) -> float:
    """How many px of the screen make 1 in the plane of the phrases."""
    box = page.locator(f"{FOLD} .live-drawing").first.bounding_box()
    assert box
    return box["width"] * (294 / 300) / 4  # a margin of 3 on each side; from -2 to 2


def lines_of_units(page: Page) -> list[str]:
    """What is drawn of the units' lines that are shown."""
    drawn = "all => all.filter(one => one.style.display !== 'none').map(l => l.getAttribute('d'))"
    found: list[str] = page.locator(f"{FOLD} .live-fold-line").evaluate_all(drawn)
    return found


def test_lines_that_lie_on_each_other_are_two_lines(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}#live:fold:at_1=0.6,-0.6;at_2=-0.6,0.6")
    figure = page.locator(FOLD)
    told = figure.get_by_text("lie on each other")
    expect(told).to_have_text("the lines of 1 and 2 lie on each other")
    one, other = [[float(x) for x in re.findall(r"-?[\d.]+", d)] for d in lines_of_units(page)]
    points = (one[:2], one[2:], other[:2])
    (ax, ay), (bx, by), (px, py) = points
    apart = abs((bx - ax) * (py - ay) - (by - ay) * (px - ax)) / dist((ax, ay), (bx, by))
    assert 5 < apart < 8
    figure.get_by_role("button", name="Drag unit 1 away").click()
    expect(told).to_have_count(0)
    assert len(set(lines_of_units(page))) == 2


# Texts of a drawing across which the line goes where the answer turns.
CROSSED = """(drawing) => {
  const line = drawing.querySelector("path[stroke-width='3']"), matrix = line.getScreenCTM();
  const length = line.getAttribute("d") ? line.getTotalLength() : 0;
  const points = Array.from({ length: length ? 2001 : 0 }, (_, n) =>
    line.getPointAtLength((n / 2000) * length).matrixTransform(matrix));
  return [...drawing.querySelectorAll("text")].filter((text) => {
    const { left, right, top, bottom } = text.getBoundingClientRect();
    return points.some(({ x, y }) =>
      left + 2 < x && x < right - 2 && top + 5 < y && y < bottom - 5);
  }).map((text) => text.textContent);
}"""


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_no_name_of_the_fold_is_covered(screen: dict[str, int], page: Page, origin: str) -> None:
    """By another, by the number of a unit, or (on a wide page) by the line of the answer."""
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/book/08_feedforward.html")
    figure = page.locator(FOLD)
    plane, sheet = figure.locator(".live-drawing").all()[:2]
    for state in (
        "", "relu=no", "task=and;relu=no", "width=1;at_1=0.75,-1.35;to_1=1.15,1.15",
        "at_1=-1.3,0.4;to_1=0.55,-0.5;at_2=0.8,1.25;to_2=1.15,0", "width=6;at_1=1.6,0.6",
        "at_1=0.1,1.3;to_1=0.4,-0.55;at_2=-0.4,0.2;to_2=1.1,0.05",
        "width=3;at_1=0.7,0.5;to_1=-1,-0.3;at_2=1,-0.2;to_2=0.45,0.6;at_3=-0.55,-1.2;to_3=0.5,-0.35",
        "width=3;at_1=0.9,0.75;to_1=-1,0.4;at_2=-1.25,-1.1;to_2=0.8,-0.3;at_3=0.75,-0.1;to_3=-0.45,0.85",
    ):  # fmt: skip
        page.evaluate(GO_TO, f"live:fold:{state}")
        assert [plane.evaluate(COVERED, "text"), sheet.evaluate(COVERED, "text")] == [[], []], state
        if screen is DESKTOP:
            assert sheet.evaluate(CROSSED) == [], state


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_the_fold_says_what_its_shapes_are(screen: dict[str, int], page: Page, origin: str) -> None:
    page.set_viewport_size(screen)
    opened(page, f"{origin}/{PLAY}")
    legend = page.locator(f"{FOLD} .live-fold-legend")
    expect(legend).to_be_visible()
    assert len(texts(page, f"{FOLD} .live-fold-legend i")) == 7
    for drawing in page.locator(f"{FOLD} .live-drawing").all():
        assert drawing.evaluate(TOUCHING) == []


def test_a_unit_is_dragged_away_and_turned_round(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    one = unit_of_plane(page)
    for name, by, said in (
        ("line of unit 1", (0.7 * one, -1.7 * one), "Unit 1 is on for none of them"),
        ("arrow of unit 2", (1.6 * one, 0), "unit 2 is on for very good, very bad, not bad"),
    ):
        x, y = centre(page, name, FOLD)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + by[0], y + by[1], steps=4)
        assert page.locator(FOLD + SETTLED).count() == 1  # it is under the pointer
        page.mouse.up()
        assert said in words(page, FOLD)
    assert re.search(r"#live:fold:at_1=1\.\d+,1\.\d+;to_2=", page.url)


def test_a_unit_is_dragged_with_a_finger(browser: Browser, origin: str) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}")
    finger, start, one = Finger(page), centre(page, "line of unit 1", FOLD), unit_of_plane(page)
    scrolled = page.evaluate("scrollY")
    finger.drag(start, (0.7 * one, -1.7 * one))
    finger.lift()
    assert page.evaluate("scrollY") == scrolled
    assert "Unit 1 is on for none of them" in words(page, FOLD)
    assert "3 of 4 right" in words(page, FOLD)
    assert "at_1=" in page.url
    finger.drag(centre(page, "arrow of unit 1", FOLD), (-one, one))
    finger.lose()
    expect(page.locator(f"{FOLD} .live-held")).to_have_count(0)
    context.close()


def test_a_unit_is_moved_with_the_arrow_keys(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    line = page.locator(FOLD).get_by_role("slider", name="line of unit 1")
    line.focus()
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(line).to_have_attribute("aria-valuetext", "1.05, 0.80")
    page.get_by_label("ReLU", exact=True).press("Space")
    assert "4 undecided" in words(page, FOLD)
    assert "relu=no" in page.url


def test_units_that_are_not_there_cannot_be_taken(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(FOLD)
    seen = "all => all.filter(one => getComputedStyle(one).display !== 'none').length"
    handles = figure.locator("[role=slider].live-handle")
    assert handles.evaluate_all(seen) == 4
    figure.locator(".live-tries button", has_text="Add a unit").click()
    page.locator(FOLD + SETTLED).wait_for()
    assert handles.evaluate_all(seen) == 6
    x, y = centre(page, "line of unit 3", FOLD)
    figure.locator(".live-reset").click()
    page.locator(FOLD + SETTLED).wait_for()
    before = words(page, FOLD)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y + 40, steps=3)
    page.mouse.up()
    assert words(page, FOLD) == before


def test_the_plane_is_folded_step_by_step(page: Page, origin: str) -> None:
    """Without ReLU the sheet is flat; its crease comes back after the switch."""
    opened(page, f"{origin}/{PLAY}#live:fold:relu=no;to_2=0.5,1")
    sheet = page.locator(f"{FOLD} .live-drawing").nth(1).locator("path[stroke-width='1.3']")
    low = """(path) => Math.max(...path.getAttribute("d").slice(1).split(/[ML]/)
      .map((pair) => Number(pair.split(" ")[1])))"""
    flat = sheet.evaluate(low)
    switch = "(path) => path.closest('.live').querySelector('input[type=checkbox]').click()"
    at_once = sheet.evaluate(f"(path) => {{ ({switch})(path); return ({low})(path); }}")
    assert at_once == flat  # the values changed, and the drawing follows
    page.locator(FOLD + SETTLED).wait_for()
    assert sheet.evaluate(low) < flat - 50  # nothing lies below the axis now
    page.locator(f"{FOLD} .live-reset").click()
    names = page.locator(f"{FOLD} .live-drawing").nth(1).locator(".live-name")
    tops = names.evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
    assert len({round(top) for top in tops}) >= 3  # names of one place stand below each other


@pytest.mark.parametrize("state", ["width=6;at_1=1.6,0.6", "at_1=1.6,0.6", "width=1;at_1=2,2"])
def test_phrases_of_one_spot_stand_around_it(state: str, page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}#live:fold:{state}")
    sheet = page.locator(f"{FOLD} .live-drawing").nth(1)
    marks = sheet.locator("g:not(.live-ghost) > .live-mark-size")
    middle = """all => all.map((mark) => mark.getBoundingClientRect())
      .map((box) => [box.x + box.width / 2, box.y + box.height / 2])"""
    places = marks.evaluate_all(middle)
    assert len(places) == 4
    assert min(dist(one, other) for one, other in combinations(places, 2)) > 8
    told = sheet.locator("text", has_text="other units tell these apart")
    expect(told).to_have_count(1 if "width=6" in state else 0)
    expect(page.locator(FOLD).get_by_role("slider", name="up: unit")).to_be_visible(
        visible="width=1" not in state
    )
    if "width=1" in state:
        expect(page.locator(FOLD).get_by_text("what the one unit says")).to_be_visible()
        assert not [text for text in texts(page, f"{FOLD} text") if "unit 2" in text]


def test_tries_pressed_quickly_leave_no_grey_picture(page: Page, origin: str) -> None:
    """One that needs work is overtaken by one that needs none."""
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(HEADS)
    figure.get_by_role("button", name="Watch a translator").click()
    expect(figure.locator(".live-stage")).to_be_visible(timeout=20_000)
    page.locator(HEADS + SETTLED).wait_for()
    figure.evaluate(
        """async (figure) => {
          const tries = [...figure.querySelectorAll(".live-tries button:not(.live-reset)")];
          for (const button of [...tries, ...tries, ...tries]) {
            button.click();
            await new Promise((done) => setTimeout(done, 50));
          }
        }"""
    )
    expect(figure).not_to_have_class(re.compile("live-at-work"), timeout=20_000)


# Four numbers -------------------------------------------------------------------------------------

FOUR = live_figure("four-numbers")


def a_number_higher(page: Page) -> float:
    """How many px of the screen make 1 on the scale of the four numbers."""
    box = page.locator(f"{FOUR} .live-drawing").first.bounding_box()
    assert box
    high = 190 if page.viewport_size == PHONE else 240
    return box["height"] * ((high - 40) / high) / 55  # margins of 26 and 14; from -20 to 35


def test_a_bar_is_dragged(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    x, y = centre(page, "fourth number", FOUR)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 5, y + 12 * a_number_higher(page), steps=4)
    assert page.locator(FOUR + SETTLED).count() == 1
    page.mouse.up()
    assert "Mean 7.00" in words(page, FOUR)
    assert page.url.endswith("#live:four-numbers:fourth=5")


def test_what_is_dragged_hides_no_bar(page: Page, origin: str) -> None:
    """A flat cap on each bar, and lines that have their name and number beside them."""
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}#live:four-numbers:add=5")
    figure = page.locator(FOUR)
    for cap in figure.locator(".live-mark").all():
        box = cap.locator("rect").last.bounding_box()
        assert box
        assert box["height"] < 13
    assert texts(page, f"{FOUR} .live-level") == ["mean 15.00", "rms 15.81"]
    assert texts(page, f"{FOUR} .live-title > span")[1:] == ["(x − 15.00) ÷ 5.00", "x ÷ 15.81"]
    places = [one.bounding_box() for one in figure.locator(".live-level").all()]
    assert abs(places[0]["y"] - places[1]["y"]) > 11  # type: ignore[index]
    figure.get_by_role("button", name="All equal").click()
    formulas = texts(page, f"{FOUR} .live-title > :is(span, small)")
    assert formulas[2:] == [
        "(x − 10.00) ÷ 0.00316", "0.00316 = √(0.00² + ε)", "x ÷ 10.00", "10.00 = √(10.00² + ε)",
    ]  # fmt: skip


def test_a_bar_is_dragged_with_a_finger(browser: Browser, origin: str) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}")
    finger, start = Finger(page), centre(page, "first number", FOUR)
    scrolled = page.evaluate("scrollY")
    finger.drag(start, (0, -8 * a_number_higher(page)))
    finger.lift()
    assert page.evaluate("scrollY") == scrolled
    assert "Mean 12.00" in words(page, FOUR)
    context.close()


def test_a_bar_is_moved_with_keys_also_when_something_is_added(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}#live:four-numbers:add=5")
    third = page.locator(FOUR).get_by_role("slider", name="third number")
    third.focus()
    expect(third).to_have_attribute("aria-valuetext", "16.0")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowDown")
    expect(third).to_have_attribute("aria-valuetext", "12.0")
    assert page.url.endswith("#live:four-numbers:third=7;add=5")


# Norms --------------------------------------------------------------------------------------------

NORMS = live_figure("norms")


def test_the_chosen_order_stands_out(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    charts = page.locator(f"{NORMS} .live-chart > .live-drawing")
    strong = "g[clip-path]:not(.live-ghost) > path:not(.live-faint)"
    for order, colour in (("post-norm", "var(--fig-v)"), ("pre-norm", "var(--fig-q)")):
        page.locator(NORMS).get_by_label(order, exact=True).check()
        page.locator(NORMS + SETTLED).wait_for()
        for chart in charts.all():
            assert chart.locator(strong).count() == 1
            assert chart.locator(strong).get_attribute("stroke") == colour
    assert page.url.endswith("#live:norms:order=pre")


def test_a_faint_end_of_a_line_has_the_colour_of_its_line(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    stack = page.locator(NORMS)
    stack.get_by_role("button", name="Post-norm").click()
    page.locator(NORMS + SETTLED).wait_for()
    for layer in stack.locator(".live-chart .live-ghost").all():
        colours = layer.evaluate(
            """layer => [...layer.querySelectorAll("circle:not([visibility=hidden])")]
              .map((one) => one.getAttribute("fill"))"""
        )
        assert len(colours) == len(set(colours))  # a line's end never takes the colour of another


def test_a_line_that_has_left_the_chart_has_an_arrow_and_its_length(
    page: Page, origin: str
) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}#live:norms:depth=64;write=2")
    stack = page.locator(NORMS)
    found = re.search(r"goes from 1 to (.+?) in .+ bottom with (.+)\.$", words(page, NORMS))
    assert found
    charts = stack.locator(".live-chart > .live-drawing").all()
    for chart, length in zip(charts, found.groups(), strict=True):
        expect(chart.locator(".live-off[d^=M]")).to_have_count(1)
        expect(chart.locator(".live-beyond:not(:empty)")).to_have_text([length])
        heights = chart.evaluate(
            """drawing => [drawing.querySelector("clipPath rect"),
              ...drawing.querySelectorAll("g:not(.live-ghost) > circle:not(.live-faint)")]
              .map((one) => (one.cy ?? one.y).baseVal.value)"""
        )
        assert heights[1] < heights[0]  # no dot at the frame stands for what is beyond it
    stack.locator(".live-reset").click()
    expect(stack.locator(".live-chart .live-off[d^=M]")).to_have_count(0)


def test_what_is_chosen_of_the_stack_is_drawn(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    stack = page.locator(NORMS)
    block = stack.locator(".live-drawing").first
    reads, writes = (block.locator("rect[height='11']").nth(n) for n in (0, 1))
    depth = stack.locator(".live-depth").first
    drawn = "node => node.getBoundingClientRect()[node.tagName === 'rect' ? 'width' : 'left']"
    assert reads.evaluate(drawn) == writes.evaluate(drawn)  # both run out of the drawing
    expect(block.locator(".live-off[d^=M]")).to_have_count(2)
    before = depth.evaluate(drawn)
    stack.get_by_role("slider", name="size of a write").fill("1.4")
    stack.get_by_role("slider", name="blocks").fill("24")
    assert depth.evaluate(drawn) < before - 40
    expect(block.get_by_text("× 24")).to_be_visible()
    for order, formula in (("pre-norm", "x + f(norm(x))"), ("post-norm", "norm(x + f(x))")):
        stack.get_by_label(order, exact=True).check()
        expect(block).to_have_attribute("aria-label", re.compile(re.escape(f": {formula}.")))
        expect(block.locator(".live-in-box:visible", has_text="norm")).to_have_count(1)
        expect(block.locator(".live-off[d^=M]")).to_have_count(0)
        found = norms.values(**complete(FIGURES["norms"], {"depth": 24, "write": 1.4}))[
            order.removesuffix("-norm")
        ]
        lengths = [bar.evaluate(drawn) for bar in (reads, writes)]
        expected = 10 ** (found["writes"] - found["reads"])
        assert lengths[1] / lengths[0] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_the_bars_of_the_stack_have_a_title(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}#live:norms:order=pre;alike=0.9")
    block = page.locator(f"{NORMS} .live-drawing").first
    title = block.get_by_text("lengths in the last block", exact=True)
    expect(title).to_be_visible()
    box, bar = title.bounding_box(), block.locator("rect[height='11']").first.bounding_box()
    assert box
    assert bar
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= screen["width"]
    assert box["y"] + box["height"] <= bar["y"] + 4  # above its bars, and near them
    assert bar["y"] - box["y"] < 30
    assert block.evaluate(TOUCHING) == []
    for name in ("f reads", "f writes", "the same for all"):
        expect(block.get_by_text(name, exact=True)).to_be_visible()


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_a_norm_at_the_end_is_drawn_with_the_stream_before_it(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}#live:norms:order=pre")
    stack = page.locator(NORMS)
    chart = stack.locator(".live-chart > .live-drawing").first
    told = chart.locator(".live-beyond:not(.live-end):not(:empty)")
    expect(told).to_have_text(["5.10"])
    stack.get_by_label("one more norm at the end").check()
    expect(told).to_have_text(["1.00", "5.10"])
    ends = chart.evaluate(
        """chart => {
          const [line, dot] = ["path", "circle"].map((tag) =>
            chart.querySelector(`g[clip-path]:not(.live-ghost) > ${tag}:not(.live-faint)`));
          return [...line.getAttribute("d").split("L").slice(-2).map((at) => at.split(" ")[1]),
            dot.cy.baseVal.value].map(Number);
        }"""
    )
    assert ends[1] > ends[0] + 5  # the line falls from 5.10,
    assert ends[2] == pytest.approx(ends[1], abs=0.1)  # and there stands the dot
    assert chart.evaluate(TOUCHING) == []
    assert "the norm at the end makes it 1.00" in words(page, NORMS)


def test_no_number_of_the_stack_lies_on_its_slider_on_a_phone(page: Page, origin: str) -> None:
    page.set_viewport_size(PHONE)
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}#live:norms:alike=0.9")  # its fold is open
    gaps = page.locator(NORMS).evaluate(
        """figure => [...figure.querySelectorAll("label.live-control")].map((label) =>
          label.querySelector("output").getBoundingClientRect().left
            - label.querySelector("input").getBoundingClientRect().right)"""
    )
    assert len(gaps) == 4
    assert min(gaps) >= 0


def test_the_order_is_switched_with_words_and_a_ghost(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    stack = page.locator(NORMS)
    see, hint = stack.locator(".live-see > span").first, stack.locator(".live-hint")
    tall = stack.evaluate("figure => figure.querySelector('.live-see').offsetHeight")
    stack.get_by_role("button", name="Same for all tokens").click()
    expect(see).to_have_text(re.compile("switch the order"))
    before = "post-norm"
    for order in ("pre-norm", "none", "pre-norm", "post-norm", "none"):
        stack.get_by_label(order, exact=True).check()
        name = "no norm" if order == "none" else order
        if order != "post-norm":  # which is the Try itself
            expect(see).to_have_text(re.compile(f"^{name.capitalize()} instead of {before}: leng"))
        expect(see).not_to_be_empty()
        expect(hint).to_be_hidden()
        # All three lines stand in the charts anyway; a ghost shows what f read and wrote before.
        assert stack.locator(".live-drawing").first.locator(".live-ghost[d^=M]").count() >= 2
        assert stack.evaluate("figure => figure.querySelector('.live-see').offsetHeight") == tall
        before = name
    stack.get_by_role("button", name="Reset").click()
    expect(hint).to_be_visible()


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_the_stack_names_its_axis_and_only_what_is_there(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}")
    stack = page.locator(NORMS)
    assert "after block" in texts(page, f"{NORMS} .live-chart text")
    for chart in stack.locator(".live-chart").all():
        assert chart.evaluate(TOUCHING) == []
        told = chart.locator(".live-beyond:not(.live-end):not(:empty)")
        expect(told).to_have_count(1)  # a number for the order in question, no other
    expect(stack.get_by_text("the same for all", exact=True)).to_be_hidden()
    stack.get_by_role("button", name="Same for all tokens").click()
    expect(stack.get_by_text("the same for all", exact=True)).to_be_visible()


@pytest.mark.parametrize("state", ["", "depth=64;write=2", "depth=2", "path=no", "order=pre"])
def test_every_line_of_the_stack_has_its_name_where_it_ends(
    state: str, page: Page, origin: str
) -> None:
    opened(page, f"{origin}/{PLAY}#live:norms:{state}")
    for chart in page.locator(f"{NORMS} .live-chart > .live-drawing").all():
        boxes = chart.evaluate(
            """drawing => [drawing, ...drawing.querySelectorAll(".live-end")]
              .map((one) => one.getBoundingClientRect())
              .map(({ top, bottom, left, right }) => [top, bottom, left, right])"""
        )
        frame, names = boxes[0], sorted(boxes[1:])
        assert len(names) == 3
        assert all(low[0] - high[0] > 12 for high, low in pairwise(names))
        assert all(box[2] >= frame[2] - 2 and box[3] <= frame[3] + 2 for box in names)


def test_a_setting_of_the_stack_can_be_linked(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}#live:norms:order=post;alike=0.9")
    assert "arrives at the bottom with 0.00120" in words(page, NORMS)
    assert "each token’s own" in words(page, NORMS)
    assert page.get_by_label("one more norm at the end").is_visible()  # it is not folded now


# Stream, and what it shares with the translator: a start that needs no model ----------------------

STREAM, TRANSLATE = live_figure("stream"), live_figure("translate")
# Where in a figure its parts stand, and how large they are.
LAYOUT = """(figure) => {
  const frame = figure.getBoundingClientRect();
  return [...figure.querySelectorAll(".live-body > *, .live-stage *, .live-tries button, "
    + ".live-controls *, .live-rest *")]
    .filter((node) => !node.closest(".live-ask, .live-status, .live-press"))
    .map((node) => [node.tagName, node.getBoundingClientRect()])
    .filter(([, { width, height }]) => width && height)
    .map(([tag, { x, y, width, height }]) => `${tag} ` +
      [x - frame.x, y - frame.y, width, height, frame.height].map(Math.round).join());
}"""
# How far below the top of its figure a part stands, and how high the figure is.
WITHIN = """(node) => {
  const [one, figure] = [node, node.closest(".live")].map((each) => each.getBoundingClientRect());
  return [one.top - figure.top, figure.height].map(Math.round);
}"""


def loaded(page: Page, figure: str) -> None:
    """Wait for a figure's model: a line then says what can be pressed."""
    expect(page.locator(f"{figure} .live-press")).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("look", ["light", "dark"])
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_nothing_moves_when_a_model_has_come(
    screen: dict[str, int], look: Literal["light", "dark"], page: Page, origin: str
) -> None:
    """What is seen before and afterwards is one picture: all its parts, at the same places."""
    page.set_viewport_size(screen)
    page.emulate_media(color_scheme=look)
    wait_for_fonts(page)
    opened(page, f"{origin}/{PLAY}")
    for name in (STREAM, TRANSLATE):
        figure = page.locator(name)
        start = figure.locator(".live-ask button")
        box, lowest = start.bounding_box(), figure.locator(".live-drawing").first.bounding_box()
        assert box
        assert lowest
        assert box["y"] + box["height"] <= lowest["y"]  # it covers nothing of the picture
        said, before = words(page, name), figure.evaluate(LAYOUT)
        start.click()
        loaded(page, name)
        after = figure.evaluate(LAYOUT)
        moved = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        assert len(after) > 150
        assert len(moved) <= 2, moved  # a bar that is rounded otherwise
        assert words(page, name) == said


def test_what_is_pressed_before_the_model_is_there_loads_it(page: Page, origin: str) -> None:
    """And until it has come, the picture of the start stays where it is, paler."""
    hold: list[Route] = []
    page.route("**/weights/*-0.js", lambda route: hold.append(route))
    for name, press, says in (
        (STREAM, ".stream-row >> nth=0", "Embedding: the stream begins with length 1.2"),
        (TRANSLATE, ".translate-letter >> nth=7", "Hidden: “w”."),
        (TRANSLATE, "button:text-is('Step')", "It has written “zweiu”"),
        (TRANSLATE, "button:text-is('Write all')", "It has written “zweiundvierzig”"),
    ):
        opened(page, f"{origin}/{PLAY}")
        figure = page.locator(name)
        drawing = figure.locator(".live-drawing").first
        before = drawing.evaluate(WITHIN)
        figure.locator(press).click()
        expect(figure.get_by_text("Loading the ")).to_be_visible()
        assert drawing.is_visible()
        assert figure.locator(".live-stage").evaluate("n => getComputedStyle(n).opacity") == "0.5"
        assert drawing.evaluate(WITHIN) == before
        hold.pop().continue_()
        loaded(page, name)
        expect(figure.locator(".live-words")).to_contain_text(says, timeout=20_000)


def test_a_model_that_does_not_come_ends_the_writing(page: Page, origin: str) -> None:
    asked: list[Route] = []

    def refuse(route: Route) -> None:
        asked.append(route)
        route.fulfill(status=200, body="/* nothing */")

    page.route("**/weights/**", refuse)
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(TRANSLATE)
    figure.get_by_role("button", name="Write all").click()
    expect(figure.locator("[role=alert]")).to_be_visible()
    expect(figure.get_by_role("button", name="Write all")).to_be_visible()  # no longer "Pause"
    many = len(asked)
    page.wait_for_timeout(1_600)  # two more steps, if it went on
    assert len(asked) == many


@pytest.mark.parametrize("name", [HEADS, STREAM, TRANSLATE])
def test_why_a_model_does_not_come_covers_nothing(name: str, page: Page, origin: str) -> None:
    """And what was drawn stays."""
    page.route("**/weights/**", lambda route: route.fulfill(status=200, body="/* nothing */"))
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(name)
    figure.locator(".live-tries button").first.click()
    expect(figure.locator("[role=alert]")).to_be_visible()
    expect(figure.locator(".live-stage svg").first).to_be_visible()
    why, stage = figure.locator("[role=alert]").bounding_box(), figure.locator(".live-stage")
    first = stage.bounding_box()
    assert why
    assert first
    assert why["y"] + why["height"] <= first["y"]


def test_a_start_of_ones_own_is_not_the_one_that_is_written_down(page: Page, origin: str) -> None:
    """A notebook may begin with another line: there the still waits, which shows that one."""
    page.add_init_script(
        """document.addEventListener("DOMContentLoaded", () => document
          .querySelector('[data-live="stream"]').dataset.settings = "stop=0", true)"""
    )
    opened(page, f"{origin}/{PLAY}")
    expect(page.locator(f"{STREAM} .stream-bus")).to_have_count(0)
    expect(page.locator(f"{STREAM} > :not(.live-body)").first).to_be_visible()


NODES = """(figure, selector) => {
  const watcher = new MutationObserver(() => {});
  watcher.observe(figure, { childList: true, subtree: true });
  return [...figure.querySelectorAll(selector)].map((node) => {
    node.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    const nodes = watcher.takeRecords().flatMap((one) => [...one.addedNodes, ...one.removedNodes]);
    return nodes.filter((each) => each.nodeType === Node.ELEMENT_NODE).length;
  });
}"""


@pytest.mark.parametrize("where", ["server", "folder"])
def test_the_first_touch_of_the_stream_loads_its_model(where: str, page: Page, origin: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    opened(page, f"{origin if where == 'server' else SITE.as_uri()}/{PLAY}")
    expect(page.locator(f"{STREAM} .stream-bus")).to_be_visible()
    assert not [url for url in asked if "/live/weights/" in url]
    page.locator(STREAM).get_by_role("button", name="After a q").click()
    loaded(page, STREAM)
    assert words(page, STREAM).startswith("Position 17, “q”: the model’s answer is “u” (>99%).")
    expect(page.locator(f"{STREAM} .live-see")).to_contain_text("answers u with 95%")
    assert "stop=2" in page.url


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_the_stream_is_read_with_the_keyboard(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    opened(page, f"{origin}/{PLAY}")
    page.locator(f"{STREAM} .live-ask button").press("Enter")
    loaded(page, STREAM)
    row = page.locator(f"{STREAM} .stream-row[aria-pressed=true]")
    said = re.compile("block 3, feed-forward: write 54.1")
    expect(row).to_have_attribute("aria-description", said)
    row.focus()
    page.keyboard.press("ArrowUp")
    assert "Block 3, attention: a write of length 24.0" in words(page, STREAM)
    expect(row).to_be_focused()
    cell = page.locator(f"{STREAM} .stream-cell[tabindex='0']")
    cell.focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert words(page, STREAM).startswith("Position 1, “p”")
    assert "Block 1, feed-forward" in words(page, STREAM)
    page.locator(STREAM).get_by_label("letter to explain").fill("r")
    expect(page.locator(f"{STREAM} .live-words")).to_contain_text("The logit of “r” is")
    page.locator(f"{STREAM} .stream-panel button").first.click()
    assert "letter=" in page.url


def test_the_stream_makes_its_nodes_once(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    page.locator(f"{STREAM} .live-ask button").click()
    loaded(page, STREAM)
    made = page.locator(STREAM).evaluate(NODES, ".stream-row, .stream-cell")
    assert len(made) == 9 + 5 * 24
    assert not any(made)
    line = page.locator(STREAM).get_by_role("textbox", name="line", exact=True)
    line.fill("Now is the winter of our")  # its answer is a space
    expect(page.locator(STREAM)).to_contain_text("direct effect on ␣", timeout=20_000)
    assert page.locator(STREAM).evaluate(COVERED, ".stream-bus > text") == []
    page.locator(f"{STREAM} .stream-row").first.click()
    expect(page.locator(f"{STREAM} .stream-panel")).to_contain_text(
        re.compile(r"here 0\.07 \(these would weigh × 1\d\d\)\.")
    )
    line.fill("To be")  # a shorter line hides columns
    expect(page.locator(f"{STREAM} .live-words")).to_contain_text("Position 4, “e”")
    expect(page.locator(f"{STREAM} .stream-cell:visible")).to_have_count(5 * 5)


# What is drawn over the numbers and letters of the bus.
STRUCK = """(bus) => [...bus.querySelectorAll(".stream-row")].flatMap((row) => {
  const boxes = (what) => [...row.querySelectorAll(what)].map((one) => one.getBoundingClientRect());
  const crosses = (a, b) => a.left < b.right - 1 && a.right > b.left + 1
    && a.top < b.bottom - 1 && a.bottom > b.top + 1; // a line has no width
  const words = [...row.querySelectorAll("text")].map((one) => [one, one.getBoundingClientRect()]);
  return boxes("path, rect:not(.stream-room)").flatMap((shape) => words
    .filter(([, box]) => crosses(shape, box)).map(([one]) => one.textContent));
})"""


def test_nothing_strikes_through_a_number_of_the_stream(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(STREAM)
    figure.locator(".live-ask button").click()
    loaded(page, STREAM)
    for press, says in (("After a q", "Position 17, “q”"), ("A long bar", "Position 17, “b”")):
        figure.get_by_role("button", name=press).click()
        expect(figure.locator(".live-words")).to_contain_text(says, timeout=20_000)
        assert figure.locator(".stream-bus").evaluate(STRUCK) == []
    box = figure.get_by_label("letter to explain")
    for letter in "xeta":  # what stood there was another letter's
        box.fill(letter)
        box.press("Enter")
        expect(figure.locator(".live-words")).to_contain_text(f"The logit of “{letter}” is")
        assert figure.locator(".stream-bus").evaluate(STRUCK) == []


def test_what_moves_no_letter_is_said(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    panel = page.locator(f"{STREAM} .stream-panel")
    expect(panel).to_contain_text("lowersK")
    page.locator(STREAM).get_by_role("button", name="Stop at once").click()
    loaded(page, STREAM)
    expect(panel).to_contain_text("lowers no letter")
    expect(panel.locator(".live-tokens").last).to_be_hidden()
    expect(panel.locator(".live-tokens").first).to_be_visible()


def test_the_streams_picture_and_result_stand_on_one_screen(page: Page, origin: str) -> None:
    opened(page, f"{origin}/{PLAY}")
    figure = page.locator(STREAM)
    said = figure.get_by_text("At each letter a vector runs through the model, the residual stream")
    expect(said).to_be_visible()
    for what in ("Column: a letter of the line. Row: how far", "Bar: what this alone adds"):
        expect(figure.get_by_text(what)).to_be_visible()  # what is drawn, before the model is there
    page.locator(f"{STREAM} .live-ask button").click()
    loaded(page, STREAM)
    top, first, last = figure.evaluate(
        """figure => [...figure.querySelectorAll(".live-body > p:nth-child(2), .live-stage"),
          figure.querySelector(".live-words")].map((one) => one.getBoundingClientRect())
          .map(({ top, bottom }, at) => (at === 2 ? bottom : top))"""
    )
    assert top < first  # it is said before it is drawn
    assert last - first < DESKTOP["height"]
    expect(figure.get_by_text("divided by the root mean square")).to_be_hidden()
    figure.get_by_text("How a direct effect is computed").click()
    expect(figure.get_by_text("divided by the root mean square")).to_be_visible()


# Translate ----------------------------------------------------------------------------------------


def translator(page: Page, origin: str, address: str = "") -> None:
    opened(page, f"{origin}/{PLAY}{address}")
    page.locator(TRANSLATE).get_by_role("button", name="Run the number translator here").click()
    loaded(page, TRANSLATE)


@pytest.mark.parametrize("where", ["server", "folder"])
def test_a_number_is_translated_letter_by_letter(where: str, page: Page, origin: str) -> None:
    translator(page, origin if where == "server" else SITE.as_uri())
    figure = page.locator(TRANSLATE)
    assert "It has written “zwei”; the likeliest next letter is “u”" in words(page, TRANSLATE)
    figure.get_by_role("button", name="Step").click()
    assert "It has written “zweiu”" in words(page, TRANSLATE)
    assert "6 places of its own" in words(page, TRANSLATE)
    assert page.url.endswith("#live:translate:german=zweiu")
    figure.get_by_role("button", name="Back").click()
    assert "It has written “zwei”" in words(page, TRANSLATE)
    figure.get_by_role("button", name="twelve").click()
    expect(figure.locator(".live-words")).to_contain_text("It has written nothing")
    figure.get_by_role("button", name="Write all").click()
    expect(figure.locator(".live-words")).to_contain_text("“zwölf”; now the end", timeout=20_000)
    expect(figure.get_by_role("button", name="Write all")).to_be_visible()  # no longer "Pause"
    figure.get_by_role("button", name="Step").click()  # nothing comes after the end
    assert "It has written “zwölf”" in words(page, TRANSLATE)
    figure.get_by_role("button", name="Reset").click()
    expect(figure.locator(".live-words")).to_contain_text("It has written “zwei”")
    assert "#" not in page.url


def test_a_letter_is_hidden_with_the_keyboard(page: Page, origin: str) -> None:
    translator(page, origin, "#live:translate:german=;head=mean")
    figure = page.locator(TRANSLATE)
    expect(figure.locator(".live-words")).to_contain_text("the mean of its heads")
    letter = figure.locator(".translate-letter[tabindex='0']")
    letter.focus()
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    expect(letter).to_have_attribute("aria-label", re.compile("^“w”, place 7: weight"))
    page.keyboard.press("Enter")
    expect(letter).to_have_attribute("aria-pressed", "true")
    expect(letter).to_be_focused()
    assert "the likeliest next letter is “e”" in words(page, TRANSLATE)
    assert "Hidden: “w”." in words(page, TRANSLATE)
    assert "hidden=00000001" in page.url
    figure.locator(".live-bars button").nth(1).press("Enter")  # the second candidate
    assert "It has written “z”" in words(page, TRANSLATE)
    figure.get_by_label("German so far").fill("vier")
    expect(figure.locator(".live-words")).to_contain_text("It has written “vier”")
    expect(figure).to_contain_text("Trained on numbers from 0 to 999,999")
    figure.get_by_label("number in English").fill("seven billion")
    expect(figure).to_contain_text("Not a number from 0 to 999,999 as in training")
    figure.get_by_label("number in English").fill("seven")  # another number begins anew
    expect(figure.locator(".live-words")).to_contain_text("It has written nothing")
    assert "Hidden" not in words(page, TRANSLATE)


def test_pale_lines_begin_where_a_letter_still_stands(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    translator(page, origin)
    figure, pale = page.locator(TRANSLATE), page.locator(f"{TRANSLATE} .live-ghost > path[d^=M]")
    figure.get_by_role("button", name="Step").click()
    assert pale.count()  # where it looked before the letter that it has just written
    figure.get_by_role("button", name="Back").click()
    assert not pale.count()  # its place is empty again
    for press in ("Hide one letter", "Hide all", "A wrong letter"):
        figure.get_by_role("button", name=press).click()
        assert not pale.count(), press


def test_another_number_ends_the_writing(page: Page, origin: str) -> None:
    """However it gets into the box: pasted or spoken, no key is heard."""
    translator(page, origin)
    figure = page.locator(TRANSLATE)
    figure.get_by_role("button", name="Write all").click()
    figure.get_by_label("number in English").fill("seven")
    expect(figure.get_by_role("button", name="Write all")).to_be_visible()  # no longer "Pause"
    expect(figure.locator(".live-words")).to_contain_text("It has written nothing")
    page.wait_for_timeout(1_600)  # two more letters, if it went on
    assert "It has written nothing" in words(page, TRANSLATE)


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
def test_a_step_of_the_translator_makes_no_nodes_and_keeps_the_height(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    page.emulate_media(reduced_motion="reduce")
    translator(page, origin)
    figure = page.locator(TRANSLATE)
    tall = "figure => figure.querySelector('.live-stage').getBoundingClientRect().height"
    before = figure.evaluate(tall)
    made = figure.evaluate(NODES, ".translate-letter, .live-player button:nth-child(2)")
    assert len(made) == 9 + 1
    assert not any(made)
    assert figure.evaluate(tall) == pytest.approx(before, abs=1)
    figure.get_by_role("button", name="Write all").click()  # all at once: no motion is wanted
    figure.get_by_label("number in English").fill("nine hundred and ninety-nine thousand")
    figure.get_by_role("button", name="Write all").click()
    expect(figure.locator(".live-words")).to_contain_text("neunhundertneunundneunzigtausend")
    assert figure.evaluate(tall) == pytest.approx(before, abs=1)
    assert not figure.evaluate(SMALL, 12)
