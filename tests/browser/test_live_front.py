"""The figure of the front page in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlparse

import pytest
from browser_checks import (
    DESKTOP,
    PHONE,
    accessible_colours,
    accessible_layout,
    settle,
    wait_for_fonts,
)
from built_site import SITE
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

FRONT = "book/index.html"
FIGURE = '.live[data-live="front"]'
WEIGHTS = "/live/weights/"
LATER = re.compile("front_(picture|zoom).js")  # come with the model
PARTS = 8
STAGES = 12
# Of an attention, with the name of the column that each is about.
ZOOMS = {
    "query, key and value": "query",
    "scores": "score",
    "scale": "score ÷ √32",
    "mask": "masked score",
    "softmax": "softmax",
    "mixture": "value",
    "write": "e − r",
    "what it does to “e”": "sum",
}
DEEPS = 3  # of a feed-forward
STEPS = STAGES + len(ZOOMS) + DEEPS  # both parts of one layer are walked through
OPENS = 8  # the attention that raises the answer to the first line most
LAPTOP = {"width": 1280, "height": 800}
SCREEN = 740  # px: the height of a phone
A_MOMENT = 6  # frames: a tenth of a second, on a machine that draws at once

# How many frames are drawn between the weights' arrival and the first picture of their model.
COUNT_FRAMES = """() => {
  const { load } = Live.model;
  window.frames = -1;
  const count = () => {
    window.frames += 1;
    if (document.querySelector(".front-still:not([hidden])")) requestAnimationFrame(count);
  };
  Live.model.load = async (...all) => {
    const model = await load(...all);
    requestAnimationFrame(count);
    return model;
  };
}"""


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that complains about nothing, for a reader who prefers reduced motion."""
    page = context.new_page()
    page.set_viewport_size(DESKTOP)
    page.emulate_media(reduced_motion="reduce")
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    assert not said


def open_front(page: Page, origin: str, address: str = "") -> None:
    page.goto(f"{origin}/{FRONT}{address}")
    settle(page)


def run(page: Page) -> None:
    """Press the button, and wait until the model is there."""
    page.locator(f"{FIGURE} .front-start").click()
    expect(page.locator(f"{FIGURE} .front-picture")).to_be_visible(timeout=30_000)


def words(page: Page) -> str:
    return page.locator(f"{FIGURE} .live-words").inner_text()


def button(page: Page, name: str) -> None:
    page.locator(FIGURE).get_by_role("button", name=name, exact=True).click()


def write(page: Page) -> None:
    """Find a letter, write it, and find the next one."""
    for written in range(2):
        button(page, "Run until the next letter is found")
        expect(page.locator(f"{FIGURE} .front-line mark")).to_have_text(
            re.compile(f"^.{{{written}}}$"), timeout=20_000
        )
        expect(page.locator(f"{FIGURE} .live-words")).to_contain_text(
            "Next letter: ", timeout=20_000
        )
        expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()


def go(page: Page, stage: int) -> None:
    track = page.locator(f"{FIGURE} input[type=range]")
    track.fill(str(stage))
    expect(page.locator(f"{FIGURE}[data-settled]")).to_be_attached()


def drawing(page: Page) -> str:
    """The picture, without styles that were set and taken back."""
    return page.locator(f"{FIGURE} .front-picture").inner_html().replace(' style=""', "")


@pytest.mark.parametrize("where", ["server", "folder"])
def test_nothing_is_loaded_before_the_first_touch(where: str, page: Page, origin: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    open_front(page, origin if where == "server" else SITE.as_uri())
    assert not page.evaluate("'heat' in Live.part")  # what other figures draw with
    page.mouse.wheel(0, 400)
    page.keyboard.press("Tab")
    assert asked
    assert not [url for url in asked if WEIGHTS in url or LATER.search(url)]
    run(page)
    assert len([url for url in asked if WEIGHTS in url]) == PARTS
    assert len([url for url in asked if LATER.search(url)]) == 2
    assert words(page).startswith("Answer: The last lane")


def test_a_bar_says_how_much_of_the_weights_is_there(page: Page, origin: str) -> None:
    """The parts come one by one, each when the bar has been seen to show those before it."""
    open_front(page, origin)
    waiting: list[Route] = []
    page.route(f"**{WEIGHTS}**", lambda route: waiting.append(route))
    page.evaluate(COUNT_FRAMES)
    page.locator(f"{FIGURE} .front-start").click()
    bar = page.locator(f"{FIGURE} progress")
    expect(bar).to_be_visible()
    for part in range(PARTS):
        page.wait_for_function(
            "([bar, share]) => bar.value === share", arg=[bar.element_handle(), part / PARTS]
        )
        if part < PARTS - 1:
            while not waiting:
                page.wait_for_timeout(10)
            waiting.pop(0).continue_()
    waiting.pop(0).continue_()
    expect(page.locator(f"{FIGURE} .front-picture")).to_be_visible(timeout=30_000)
    assert page.evaluate("window.frames") <= A_MOMENT


def test_one_step_there_and_back_gives_the_same_state(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    go(page, 0)
    seen = []
    for _ in range(STEPS + 3):  # over the end of the line into the next round
        seen.append((words(page), drawing(page)))
        button(page, "One step forward")
    assert len({said for said, _ in seen}) == STEPS + 3
    assert "the line has 19 tokens" in seen[STEPS][0]
    for said, drawn in reversed(seen):
        button(page, "One step back")
        assert words(page) == said
        assert drawing(page) == drawn
    assert page.url.endswith("#live:front:stage=0")


def test_the_address_brings_back_a_state(page: Page, origin: str) -> None:
    address = "#live:front:text=Speak%2C%20spe;written=2;stage=5;back=1"
    open_front(page, origin, address)
    assert page.locator(f"{FIGURE} .front-picture").is_hidden()  # nothing is loaded unasked
    run(page)
    assert words(page).startswith("Layer 2, feed-forward: every letter by itself. 688 units")
    assert "the lane of “a”" in words(page)
    expect(page.locator(f"{FIGURE} .front-line input")).to_have_value("Speak, spe")
    expect(page.locator(f"{FIGURE} .front-line mark")).to_have_text("ak")
    page.locator(f"{FIGURE} .live-reset").click()
    answer = re.compile("^Answer: The last lane is compared")
    expect(page.locator(f"{FIGURE} .live-words")).to_have_text(answer)
    assert "#" not in page.url


def test_a_line_is_typed_and_the_next_letter_falls(page: Page, origin: str) -> None:
    open_front(page, origin)
    page.locator(f"{FIGURE} .front-line input").fill("My lord, the ki")  # the first touch
    expect(page.locator(f"{FIGURE} .front-picture")).to_be_visible(timeout=30_000)
    expect(page.locator(f"{FIGURE} .live-words")).to_contain_text("“n” 89%")
    heat = page.get_by_role("group", name="How the next letter is chosen")
    for typed, found in (("", "“n”"), ("n", "“g”"), ("ng", "the space"), ("ng ", "“")):
        button(page, "Run until the next letter is found")
        expect(page.locator(f"{FIGURE} .live-words")).to_contain_text(
            f"Next letter: {found}", timeout=20_000
        )
        expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible(timeout=20_000)
        assert page.locator(f"{FIGURE} .front-line mark").text_content() == typed
        for seen in (heat, page.locator(f"{FIGURE} .front-share").first):
            expect(seen).to_be_visible()  # how it was chosen stays before the eyes
        expect(page.locator(f"{FIGURE} rect.front-mark").first).to_be_visible()
    address = "#live:front:text=My%20lord,%20the%20ki;written=3;stage=11"  # no second pass
    assert page.url.endswith(address)
    expect(page.locator(f"{FIGURE} .live-status")).not_to_be_empty()
    page.locator(f"{FIGURE} .front-line input").fill("")
    expect(page.locator(f"{FIGURE} .live-words")).to_have_text(re.compile("no letter yet"))


@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_what_is_watched_and_what_is_pressed_stand_on_one_screen(
    screen: dict[str, int], motion: str, page: Page, origin: str
) -> None:
    """After the first press: nobody scrolls between the buttons, the picture and its words."""
    page.set_viewport_size(screen)  # type: ignore[arg-type]
    page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]
    open_front(page, origin)
    run(page)
    for part in (".front-line", ".front-picture", ".front-transport", ".front-words"):
        expect(page.locator(f"{FIGURE} {part}")).to_be_in_viewport(ratio=1)
    if motion == "reduce":
        for stage in range(STAGES):
            go(page, stage)
            expect(page.locator(f"{FIGURE} .front-words")).to_be_in_viewport(ratio=1)
        go(page, OPENS)
        for _ in ZOOMS:
            button(page, "One step forward")
            expect(page.locator(f"{FIGURE} .front-words")).to_be_in_viewport(ratio=1)


def test_an_open_attention_stays_open_when_the_width_changes(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    button(page, "Into layer 4")
    button(page, "One step forward")
    lens, said = page.locator(f"{FIGURE} .front-zoom"), words(page)
    for width in (1000, 1280, 400, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        expect(lens).to_be_visible()
        assert lens.evaluate("lens => getComputedStyle(lens).opacity") == "1"
        assert words(page) == said
    lanes = page.locator(f"{FIGURE} .front-picture > g:not(.front-zoom) [style*=hidden]")
    assert lanes.count() > 0


def test_an_attention_opens_and_is_walked_through(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    lens = page.locator(f"{FIGURE} .front-zoom")
    heads = page.get_by_role("group", name="Head")
    expect(heads).to_be_hidden()
    button(page, "Into layer 4")  # from the answer: into the layer that raised it most
    expect(lens.get_by_text("of all heads, head 5 lifts e most above r")).to_be_visible()
    for step, column in ZOOMS.items():
        assert words(page).startswith(f"Layer 4, head 5, {step}: ")
        expect(lens.get_by_text(column, exact=True).filter(visible=True).first).to_be_visible()
        button(page, "One step forward")
    assert words(page).startswith("Layer 4, feed-forward")
    expect(lens).to_have_count(0)
    button(page, "One step back")
    assert words(page).startswith("Layer 4, head 5, what it does")
    button(page, "One step back")
    assert words(page).startswith("Layer 4, head 5, write")
    named = page.locator(f"{FIGURE} .front-rival").filter(visible=True).all_text_contents()
    assert named == ["answer e", "rival r", "e − r"]
    effects = page.locator(f"{FIGURE} .front-effect").filter(visible=True).all_text_contents()
    apart = [_value(effects[3 * head + 2]) for head in range(8)]
    assert apart[4] == max(apart)  # the head that the tour opens wins where it counts
    assert "“e” is 4.38 above “r”, second in the end, and so 80 times as likely." in words(page)
    bars = page.locator(f"{FIGURE} .front-sign").all_text_contents()
    assert {"e", "r"} < set(bars)  # table and bars speak of the same letters
    heads.get_by_role("button", name="head 8").click()
    assert words(page).startswith("Layer 4, head 8, write")
    pressed = heads.locator("[aria-pressed=true]")
    expect(pressed).to_have_text("8")
    expect(pressed).to_be_focused()
    assert page.url.endswith("stage=8;zoom=7;head=7")
    page.locator(f"{FIGURE} .front-row").nth(1).click()
    assert words(page).startswith("Layer 4, head 2, write")
    button(page, "One step back")
    page.locator(f"{FIGURE} .front-map").nth(3).click()
    assert words(page).startswith("Layer 4, head 4, mixture")
    page.get_by_role("button", name="Lanes").click()
    assert words(page).startswith("Layer 4, attention: the only way")
    assert "on average over 8 heads" in words(page)
    expect(lens).to_have_count(0)
    go(page, 6)
    button(page, "One step forward")  # other layers are opened by those who want it
    assert words(page).startswith("Layer 3, feed-forward")
    button(page, "One step back")
    button(page, "Look inside attention")
    assert words(page).startswith("Layer 3, head 4, query, key and value")
    button(page, "Run until the next letter is found")  # quickly, past all steps
    expect(page.locator(f"{FIGURE} .live-words")).to_contain_text(
        "Next letter: “e”", timeout=20_000
    )


def test_query_key_and_value_are_made_before_the_eyes(page: Page, origin: str) -> None:
    """The sum that the words give stands in the picture, beside those of key and value."""
    open_front(page, origin, "#live:front:stage=2;zoom=1")
    run(page)
    lens = page.locator(f"{FIGURE} .front-zoom")
    sums = lens.locator("text", has_text=re.compile(r"^−?\d+\.\d\d·.* = −?\d+\.\d\d$"))
    expect(sums).to_have_count(3)
    assert words(page).endswith(f"first number of the query: {sums.first.text_content()}")
    expect(lens.locator(".front-role")).to_have_text(["query", "key", "value"])
    button(page, "One step forward")
    expect(lens.locator(".front-role").first).to_be_hidden()


# What is drawn outside the picture, and what is written on a control or on another word.
ASTRAY = """(figure) => {
  const shown = (node) => {
    for (let at = node; at !== figure; at = at.parentElement) {
      const { opacity, visibility, display } = getComputedStyle(at);
      if (visibility === "hidden" || display === "none" || Number(opacity) === 0) return false;
    }
    return true;
  };
  const box = (node) => node.getBoundingClientRect();
  const far = 2; // px: the room around a letter
  const meet = (a, b) => a.left + far < b.right && b.left + far < a.right
    && a.top + far < b.bottom && b.top + far < a.bottom;
  const seen = (what) => [...figure.querySelectorAll(what)].filter(shown);
  const named = (node) => node.textContent || node.outerHTML.slice(0, 80);
  const picture = box(figure.querySelector(".front-picture"));
  const parts = seen(".front-zoom :is(text, rect, path, circle)").filter((node) => {
    const { width, height } = box(node);
    return width || height;
  });
  const texts = parts.filter((node) => node.tagName === "text" && node.textContent);
  const outside = parts.filter((node) => {
    const { left, right, top, bottom } = box(node);
    return left < picture.left - 1 || right > picture.right + 1
      || top < picture.top - 1 || bottom > picture.bottom + 1;
  });
  const controls = seen("button, input, summary, .front-chips");
  return [
    ...outside.map((node) => `outside: ${named(node)}`),
    ...texts.flatMap((node) => controls.filter((other) => meet(box(node), box(other)))
      .map((other) => `on a control: ${named(node)}, ${named(other)}`)),
    ...texts.flatMap((node, n) => texts.slice(n + 1).filter((other) => meet(box(node), box(other)))
      .map((other) => `on each other: ${named(node)}, ${named(other)}`)),
  ];
}"""


@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize(
    "line", ["To be, or not to b", "Speak, spe", "My lord, the ki", "O", "o" * 40]
)
def test_what_is_opened_stays_in_its_box(
    line: str, screen: dict[str, int], page: Page, origin: str
) -> None:
    """However long the line: nothing lies outside the picture, no word on another or a button."""
    page.set_viewport_size(screen)  # type: ignore[arg-type]
    wait_for_fonts(page)
    open_front(page, origin, f"#live:front:text={line};stage=0")
    run(page)
    figure, settled = page.locator(FIGURE), page.locator(f"{FIGURE}[data-settled]")
    astray: dict[tuple[int, int], list[str]] = {}
    for stage, steps in ((6, len(ZOOMS)), (9, DEEPS)):
        for zoom in range(1, steps + 1):
            address = f"live:front:text={line};stage={stage};zoom={zoom}"
            page.evaluate("address => { location.hash = address; }", address)
            part = "head" if stage == 6 else "feed-forward"
            expect(page.locator(f"{FIGURE} .live-words")).to_contain_text(
                re.compile(f"^Layer {stage // 2}, {part}")
            )
            expect(settled).to_be_attached()
            astray[stage, zoom] = figure.evaluate(ASTRAY)
    assert not any(astray.values()), astray


def test_a_feed_forward_opens_and_names_its_busiest_units(page: Page, origin: str) -> None:
    open_front(page, origin, "#live:front:text=Speak%2C%20spe;stage=7")
    run(page)
    button(page, "Look inside feed-forward")
    assert words(page).startswith("Layer 3, feed-forward, units: each compares")
    opened = page.locator(f"{FIGURE} .front-deep")
    expect(opened.get_by_text(re.compile(r"^\d: unit \d+$")).filter(visible=True)).to_have_count(6)
    unit = words(page).split("\n")[-1]
    assert re.fullmatch(r"unit 650: SiLU\(4.44\) · 4.58 = 20.10", unit)
    expect(opened.get_by_text("20.10", exact=True)).to_be_visible()
    expect(page.locator(f"{FIGURE} .front-share").first).to_be_hidden()
    button(page, "One step forward")
    assert words(page).startswith("Layer 3, feed-forward, write: ")
    named = opened.locator(".front-rival").filter(visible=True).all_text_contents()
    assert named == ["answer a", "rival e", "a − e"]
    effects = opened.locator(".front-effect").all_text_contents()
    before, write, now = (effects[3 * n + 2].removeprefix("+") for n in (7, 9, 10))
    said = words(page).split("\n")[-1]
    assert said.startswith(f"a − e: {before} · 4.37 / 5.62 + {write} = {now}; exp({now}) = 9.1")
    assert f"“a” is {now} above “e”, second in the end, and so 9.1 times as likely." in words(page)
    shares = page.locator(f"{FIGURE} .front-share").filter(visible=True)
    assert shares.first.text_content() == "60%"  # with the bars of what was before
    expect(page.get_by_text("(dashed: before)")).to_be_visible()
    expect(page.get_by_role("group", name="Head")).to_be_hidden()
    button(page, "One step forward")
    assert words(page).startswith("Layer 3, feed-forward, what it does to “a”: 256 products")
    button(page, "One step forward")
    assert words(page).startswith("Layer 4, attention: ")
    expect(opened).to_have_count(0)


# How many tables of an opened part, and the lanes, are seen in each frame until all is settled.
SEEN_TOGETHER = """async (figure) => {
  const frame = () => new Promise(requestAnimationFrame);
  const seen = (node) => {
    let share = 1;
    for (let at = node; at !== figure; at = at.parentElement) {
      const { opacity, visibility, display } = getComputedStyle(at);
      share *= visibility === "hidden" || display === "none" ? 0 : Number(opacity);
    }
    return share > 0;
  };
  const frames = [];
  figure.querySelector("[aria-label='One step forward']").click();
  do {
    const tables = [...figure.querySelectorAll(".front-zoom > g")].filter(seen).length;
    frames.push(tables + seen(figure.querySelector(".front-band")));
    await frame();
  } while (!figure.hasAttribute("data-settled"));
  return frames;
}"""


def test_no_table_lies_on_another_while_it_comes(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="no-preference")
    open_front(page, origin, "#live:front:stage=8")
    run(page)
    counted = []
    for _ in range(1 + len(ZOOMS) + DEEPS):
        frames = page.locator(FIGURE).evaluate(SEEN_TOGETHER)
        assert max(frames) == 1, frames
        counted.append(len(frames))
        expect(page.locator(f"{FIGURE}[data-settled]")).to_be_attached()
    assert max(counted) > 3  # there was motion to look at
    assert words(page).startswith("Layer 4, feed-forward, what it does")


def test_escape_leads_back_to_where_the_part_was_opened(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    go(page, OPENS)
    look = page.get_by_role("button", name="Look inside attention")
    look.focus()
    page.keyboard.press("Enter")
    heads = page.get_by_role("group", name="Head")
    heads.get_by_role("button", name="head 3").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert words(page).startswith("Layer 4, attention: the only way")
    expect(look).to_be_focused()
    step = page.get_by_role("button", name="One step forward")
    step.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert words(page).startswith("Layer 4, head 3, scores")
    page.locator(f"{FIGURE} .front-peek").focus()
    page.keyboard.press("Escape")
    expect(step).to_be_focused()
    page.keyboard.press("Escape")  # nothing is open: nothing happens
    assert words(page).startswith("Layer 4, attention: the only way")
    summary = page.locator(f"{FIGURE} .front-inside summary")
    summary.focus()
    page.keyboard.press("Enter")
    page.locator(f"{FIGURE} .front-inside a").first.focus()
    page.keyboard.press("Escape")
    expect(page.locator(f"{FIGURE} .front-inside[open]")).to_have_count(0)
    expect(summary).to_be_focused()


def test_what_is_opened_from_the_answer_leads_back_to_it(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    for stage, said in ((STAGES - 2, "Answer: "), (0, "Tokens: ")):
        for way_out in ("Escape", "Lanes"):
            go(page, stage)
            into = page.get_by_role("button", name="Into layer 4")
            into.focus()
            page.keyboard.press("Enter")
            assert words(page).startswith("Layer 4, head 5, query")
            page.keyboard.press("Escape" if way_out == "Escape" else "Enter")
            assert words(page).startswith(said)
            expect(into).to_be_focused()
    go(page, STAGES - 2)
    button(page, "Into layer 4")
    for _ in ZOOMS:
        button(page, "One step forward")
    button(page, "Look inside feed-forward")
    page.get_by_role("button", name="Lanes").click()
    assert words(page).startswith("Layer 4, feed-forward: ")  # who has walked on stays there


def test_the_table_of_a_write_begins_where_the_last_one_ended(page: Page, origin: str) -> None:
    open_front(page, origin, "#live:front:stage=2;zoom=7")
    run(page)
    ended: list[str] = []
    for stage in range(2, 10):
        go(page, stage)
        page.locator(f"{FIGURE} .front-peek").click()
        for _ in range(1 if stage % 2 else 6):
            button(page, "One step forward")
        shown = page.locator(f"{FIGURE} .front-effect").filter(visible=True).all_text_contents()
        before, held, write, now = (shown[n : n + 3] for n in range(len(shown) - 12, len(shown), 3))
        assert before == (ended or before)
        ended = now
        for row in (before, held, write, now):
            answer, rival, between = map(_value, row)
            assert abs(answer - rival - between) < 0.011  # two decimals each
        assert abs(_value(held[2]) + _value(write[2]) - _value(now[2])) < 0.011
        grown = page.locator(f"{FIGURE} .front-zoom text", has_text=re.compile("^lane grew"))
        sizes = re.findall(r"\d+\.\d+", grown.text_content() or "")
        assert f"· {sizes[1]} / {sizes[0]} + " in words(page)


def test_a_write_is_shown_beside_the_vector_of_the_letter(page: Page, origin: str) -> None:
    open_front(page, origin, "#live:front:stage=8;zoom=8")
    run(page)
    why = page.locator(f"{FIGURE} .front-lifts")
    numbers = why.locator(".front-amount").all_text_contents()
    rows = [numbers[3 * n : 3 * n + 3] for n in range(5)]  # product, vector, write
    for product, vector, write in ([_value(one) for one in row] for row in rows):
        assert abs(product - vector * write) < 0.011  # two decimals each
        assert abs(product) > 0
    rest, total, divided = (_value(one) for one in numbers[15:18])
    assert abs(sum(_value(row[0]) for row in rows) + rest - total) < 0.04
    said = words(page).split("\n")[-1]
    assert said.endswith(f"= {total:.2f}; {total:.2f} / 6.71 = +{divided:.2f}")
    assert said.startswith(" + ".join(row[0].removeprefix("+") for row in rows[:3]))
    page.get_by_role("group", name="Head").get_by_role("button", name="head 1").click()
    assert words(page).startswith("Layer 4, head 1, what it does to “e”")
    assert why.locator(".front-amount").all_text_contents() != numbers


def _value(text: str) -> float:
    return float(text.replace("−", "-"))


def test_a_temperature_changes_the_bars_where_the_letter_is_chosen(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    go(page, STAGES - 1)
    shares, bars = (page.locator(f"{FIGURE} {part}") for part in (".front-share", ".front-before"))
    assert shares.first.text_content() == "76%"
    assert {bar.get_attribute("width") for bar in bars.all()} == {"0"}  # nothing to compare with
    node = bars.first.element_handle()
    heat = page.get_by_role("group", name="How the next letter is chosen")
    for name, share in (("1.5", "54%"), ("0.5", "98%"), ("1", "76%")):
        button(page, f"temperature {name}")
        expect(heat.locator("[aria-pressed=true]")).to_have_text(name)
        expect(shares.first).to_have_text(share)
        compared = name != "1"
        assert (bars.first.get_attribute("width") != "0") == compared
        expect(page.get_by_text("(dashed: at 1)")).to_have_count(int(compared))
        assert "Next letter" in words(page)
    assert node is not None
    assert node.evaluate("bar => bar.isConnected")  # nothing was built anew
    button(page, "the likeliest")
    expect(heat.locator("[aria-pressed=true]")).to_have_text("the likeliest")
    expect(page.get_by_text("(dashed: at 1)")).to_have_count(0)
    go(page, STAGES - 2)
    expect(heat).to_be_hidden()


def test_each_press_of_a_temperature_draws_and_the_line_stays(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    write(page)
    mark = page.locator(f"{FIGURE} .front-line mark")
    expect(mark).to_have_text("e")
    heat = page.get_by_role("group", name="How the next letter is chosen")
    expect(heat).to_be_visible()
    signs, drawn = page.locator(f"{FIGURE} .front-sign"), set()
    chosen, rows = (page.locator(f"{FIGURE} {one}") for one in ("rect.front-mark", ".front-share"))
    for _ in range(12):
        button(page, "temperature 1.5")
        letter = re.search("Next letter: (“(.)”|the space)", words(page))
        assert letter
        sign = letter[2] or "␣"
        drawn.add(sign)
        row = signs.all_text_contents().index(sign)
        boxes = [one.bounding_box() for one in (chosen.first, rows.nth(row))]
        middle, text = (box["y"] + box["height"] / 2 for box in boxes if box)
        assert abs(middle - text) < 6  # px: it is marked
        expect(mark).to_have_text("e")
    assert len(drawn) > 1
    said = words(page)
    page.reload()
    settle(page)
    run(page)
    assert words(page) == said
    button(page, "One step forward")
    assert "The next letter will be drawn, at temperature 1.5." in words(page)
    written = mark.text_content()
    button(page, "the likeliest")  # here, too
    assert "drawn" not in words(page)
    expect(heat).to_be_hidden()
    assert mark.text_content() == written
    page.get_by_role("button", name="Speak, spe").click()
    expect(page.locator(f"{FIGURE} .live-words")).to_contain_text("“a” 98%")
    assert "fixed" not in page.url


@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_first_screen_says_what_to_press_and_what_it_is(
    screen: dict[str, int], page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)  # type: ignore[arg-type]
    wait_for_fonts(page)
    open_front(page, origin)
    for secret in page.locator(f"{FIGURE} .front-secret").all():
        expect(secret).to_be_hidden()  # the answer, before the reader has guessed
    expect(page.locator(f"{FIGURE} .live-see > span").first).to_be_empty()
    expect(page.locator(f"{FIGURE} .live-hint")).to_contain_text("then press the line")
    for part in (".live-question", ".front-line", ".front-start", ".front-card p"):
        expect(page.locator(f"{FIGURE} {part}")).to_be_in_viewport(ratio=1)
    assert not page.locator(f"{FIGURE} .front-card").evaluate(
        "card => card.scrollWidth > card.clientWidth + 1"
    )


def test_an_attention_opens_and_closes_in_motion(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="no-preference")
    open_front(page, origin, "#live:front:stage=4")
    run(page)
    settled = page.locator(f"{FIGURE}[data-settled]")
    lens = page.locator(f"{FIGURE} .front-zoom")
    button(page, "Look inside attention")
    expect(settled).to_be_attached()
    expect(lens).to_have_css("opacity", "1")
    button(page, "One step forward")
    expect(settled).to_be_attached()
    assert lens.locator(".live-tick", has_text=re.compile(r"^−?\d+\.\d$")).count() == 18
    page.get_by_role("button", name="Lanes").click()
    expect(settled).to_be_attached()
    expect(lens).to_have_count(0)
    expect(page.locator(f"{FIGURE} .front-links").first).to_be_visible()


def test_the_opened_attention_shows_what_its_words_say(page: Page, origin: str) -> None:
    """The share of the marked row, and what the mask crosses out."""
    open_front(page, origin, "#live:front:stage=2;zoom=5;head=3")
    run(page)
    shares = page.locator(f"{FIGURE} .front-percent").all_text_contents()
    assert len(shares) == 18
    assert (shares[-1], shares[3]) == ("62%", "27%")
    assert "<1%" in shares
    assert "0%" not in shares
    assert "itself (62%) and the 1st “b” (27%)" in words(page)
    assert words(page).endswith("= 62%")
    crosses = page.locator(f"{FIGURE} .front-cross")
    expect(crosses).to_have_count(1)  # the place of the next letter
    page.get_by_role("radio", name=re.compile("^token 9:")).click()
    button(page, "One step back")
    assert words(page).startswith("Layer 1, head 4, mask")
    assert "The 9 tokens after it are crossed out" in words(page)
    expect(crosses).to_have_count(10)
    expect(page.locator(f"{FIGURE} .front-zoom text", has_text="−∞")).to_have_count(10)


def test_a_note_goes_when_its_line_has_grown(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    tries = page.locator(f"{FIGURE} .live-tries")
    tries.get_by_role("button", name="Speak, spe").click()
    expect(tries.locator("[aria-pressed=true]")).to_have_text("Speak, spe")
    expect(tries).to_contain_text("After layers 1 and 2")
    write(page)
    expect(page.locator(f"{FIGURE} .front-line mark")).to_have_text("a")
    expect(tries.locator("[aria-pressed=true]")).to_have_count(0)
    expect(tries.locator(".live-see > span").first).to_be_empty()
    page.locator(f"{FIGURE} .front-line input").fill("")
    expect(page.locator(f"{FIGURE} .live-words")).to_have_text(re.compile("no letter yet"))
    for part in (".front-transport", ".front-peek", ".front-inside", ".front-picture"):
        expect(page.locator(f"{FIGURE} {part}")).to_be_hidden()
    page.locator(f"{FIGURE} .front-line input").fill("O")
    expect(page.locator(f"{FIGURE} .front-transport")).to_be_visible()


def test_what_is_cut_off_and_what_is_counted_is_said(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    line, cut = (page.locator(f"{FIGURE} {part}") for part in (".front-line input", ".live-cut"))
    line.fill("a" * 39 + "bcd")
    left = "A line has at most 40 tokens here. Left out: “%s”."
    expect(cut).to_have_text(left % "cd")
    expect(cut).to_have_role("status")
    expect(line).to_have_value("a" * 39 + "b")
    line.fill("東" * 14)  # three bytes each
    expect(cut).to_have_text(left % "東")
    expect(line).to_have_value("東" * 13)
    page.locator(f"{FIGURE} .live-reset").click()
    expect(cut).to_be_hidden()
    write(page)
    expect(page.locator(f"{FIGURE} .front-line mark")).to_have_text("e")
    go(page, 0)
    page.locator(f"{FIGURE} summary").click()
    facts = page.locator(f"{FIGURE} .front-inside dd")
    expect(facts.first).to_contain_text("T = 19")
    assert len(facts.nth(1).inner_text().split()) == 19


def test_every_press_of_next_letter_writes_one(page: Page, origin: str) -> None:
    """Play stops when a letter is found. Each press writes it, and finds the next one: a word."""
    open_front(page, origin)
    run(page)
    page.get_by_role("button", name="My lord, the ki").click()
    expect(page.locator(f"{FIGURE} .live-words")).to_contain_text("“n” 89%")
    button(page, "Play")
    expect(page.locator(f"{FIGURE} .live-words")).to_contain_text("Next letter: “n”")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    for _ in range(3):
        button(page, "Run until the next letter is found")
    expect(page.locator(f"{FIGURE} .live-words")).to_contain_text(
        "; 2 letters to come", timeout=60_000
    )
    expect(page.locator(f"{FIGURE} .front-line mark")).to_have_text(
        re.compile("^ng $"), timeout=60_000
    )
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible(timeout=20_000)
    assert page.url.endswith("written=3;stage=11")  # and no pass that nobody asked for


def test_a_chosen_letter_goes_with_its_line(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    go(page, STAGES - 1)
    chosen = page.locator(f"{FIGURE} [role=radio][aria-checked=true]")
    page.get_by_role("radio", name=re.compile("^token 9:")).click()
    assert words(page).startswith("Answer: The lane of")  # the next letter is not its own
    go(page, STAGES - 1)
    expect(chosen).to_have_attribute("aria-label", re.compile("^token 18:"))
    assert "Next letter: “e”" in words(page)
    button(page, "One step back")
    expect(chosen).to_have_attribute("aria-label", re.compile("^token 9:"))
    page.locator(f"{FIGURE} .front-line input").fill("To be, or not t")
    expect(chosen).to_have_attribute("aria-label", re.compile("^token 15:"))
    page.get_by_role("radio", name=re.compile("^token 9:")).click()
    write(page)
    expect(page.locator(f"{FIGURE} .front-line mark")).to_have_text("o")
    expect(chosen).to_have_attribute("aria-label", re.compile("^token 16:"))


def test_everything_works_with_the_keyboard_alone(page: Page, origin: str) -> None:
    open_front(page, origin)
    page.locator(f"{FIGURE} .front-start").focus()
    page.keyboard.press("Enter")
    expect(page.locator(f"{FIGURE} .front-picture")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_focused()
    lane = page.locator(f"{FIGURE} [role=radio][tabindex='0']")
    expect(lane).to_have_count(1)
    lane.focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator(f"{FIGURE} [role=radio]:focus")).to_have_attribute("data-row", "16")
    expect(page.locator(f"{FIGURE} [role=radio]:focus")).to_have_attribute("aria-checked", "true")
    assert "The lane of the space is compared" in words(page)
    track = page.get_by_role("slider", name="Place in the model")
    track.focus()
    page.keyboard.press("ArrowLeft")
    expect(track).to_have_attribute("aria-valuetext", "layer 4, feed-forward")
    assert words(page).startswith("Layer 4, feed-forward")
    page.locator(f"{FIGURE} summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator(f"{FIGURE} .front-inside dl")).to_contain_text("size")


def test_every_part_opens_and_its_links_lead_somewhere(page: Page, origin: str) -> None:
    open_front(page, origin)
    run(page)
    page.locator(f"{FIGURE} summary").click()
    links: set[str] = set()
    for stage in range(STAGES):
        go(page, stage)
        inside = page.locator(f"{FIGURE} .front-inside")
        expect(inside.locator("dd").first).not_to_be_empty()
        links |= set(inside.locator("a").evaluate_all("all => all.map((one) => one.href)"))
    button(page, "temperature 1")
    assert "waiting" in page.locator(f"{FIGURE} .front-code").inner_text()
    assert len(links) > 10
    for link in links:
        target = urlparse(link)
        html = (SITE / target.path.lstrip("/")).read_text(encoding="utf-8")
        assert not target.fragment or f'id="{target.fragment}"' in html, link


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_figure_is_accessible_and_keeps_its_height(
    screen: dict[str, int], scheme: str, page: Page, origin: str
) -> None:
    page.set_viewport_size(screen)
    page.emulate_media(reduced_motion="reduce", color_scheme=scheme)  # type: ignore[arg-type]
    wait_for_fonts(page)
    open_front(page, origin)
    figure = page.locator(FIGURE)
    heights = {round(figure.bounding_box()["height"])}  # type: ignore[index]
    run(page)
    for stage in range(STAGES):
        go(page, stage)
        heights.add(round(figure.bounding_box()["height"]))  # type: ignore[index]
    go(page, OPENS)
    for _ in ZOOMS:
        button(page, "One step forward")
        heights.add(round(figure.bounding_box()["height"]))  # type: ignore[index]
    assert max(heights) - min(heights) <= 1, heights
    assert figure.evaluate("figure => figure.scrollWidth - figure.clientWidth") <= 1
    top = page.locator(f"{FIGURE} .front-line").bounding_box()
    end = page.locator(f"{FIGURE} .live-words").bounding_box()
    assert top
    assert end
    assert end["y"] + end["height"] - top["y"] <= SCREEN  # the control and what it does
    small = figure.evaluate("""figure => [...figure.querySelectorAll("text, p, button, label")]
      .filter((one) => one.textContent.trim() && one.getClientRects().length)
      .map((one) => [parseFloat(getComputedStyle(one).fontSize), one.textContent])
      .filter(([size]) => size < 12)""")
    assert not small
    assert not accessible_layout(page)
    assert not accessible_colours(page)


def test_it_plays_pauses_and_moves_only_for_those_who_like_it(page: Page, origin: str) -> None:
    page.emulate_media(reduced_motion="no-preference")
    open_front(page, origin)
    run(page)
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_focused()
    assert words(page).startswith("Tokens: the line has 18 tokens")
    expect(page.locator(f"{FIGURE} .live-words")).to_contain_text("Embedding", timeout=20_000)
    expect(page.locator(f"{FIGURE}:not([data-settled])")).to_be_attached()
    button(page, "Pause")
    assert page.url.endswith("#live:front:stage=1")
    said = page.locator(f"{FIGURE} .live-words")
    page.get_by_role("button", name="Speak, spe").click()  # a try plays
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    expect(said).to_have_text(re.compile("^Tokens: the line has 10 tokens"))
    page.emulate_media(reduced_motion="reduce")
    page.get_by_role("button", name="My lord, the ki").click()
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    expect(said).to_have_text(re.compile("^Answer: The last lane.*“n” 89%"))
    expect(page.locator(f"{FIGURE}[data-settled]")).to_be_attached()


# Presses a try, and another one before the model has read the first.
PRESS_TWO = """async (figure) => {
  const [, one, other] = figure.querySelectorAll(".live-tries button");
  const frame = () => new Promise(requestAnimationFrame);
  const line = () => figure.querySelector(".live-words").textContent;
  const start = line();
  one.click();
  const atOnce = {
    pressed: one.getAttribute("aria-pressed"), settled: figure.hasAttribute("data-settled"),
    read: line() !== start,
  };
  await frame();
  other.click();
  const begin = performance.now();
  while (!figure.hasAttribute("data-settled") && performance.now() - begin < 20000) await frame();
  return { atOnce, words: line(), status: figure.querySelector(".live-status").textContent };
}"""


def test_a_new_line_is_read_in_pieces(page: Page, origin: str) -> None:
    """What was pressed looks so before the model has read; what is pressed meanwhile wins."""
    open_front(page, origin)
    run(page)
    found = page.locator(FIGURE).evaluate(PRESS_TWO)
    assert found["atOnce"] == {"pressed": "true", "settled": False, "read": False}
    assert "“n” 89%" in found["words"]
    assert found["words"] in found["status"]
    assert page.locator(f"{FIGURE}.live-at-work").count() == 0


def test_a_pointer_that_rests_marks_nothing(page: Page, origin: str) -> None:
    """It pressed the button, and the picture came under it."""
    page.set_viewport_size({"width": 1280, "height": 1400})  # nothing has to be scrolled
    open_front(page, origin)
    run(page)
    fill = "band => getComputedStyle(band).fill"
    bands = page.locator(f"{FIGURE} .front-band:not(.front-here)")
    under = page.locator(f"{FIGURE} .front-band:hover")
    assert {each.evaluate(fill) for each in bands.all()} == {"rgba(0, 0, 0, 0)"}
    box = under.bounding_box()
    assert box
    page.mouse.move(box["x"] + 3, box["y"] + 60)
    assert under.evaluate(fill) != "rgba(0, 0, 0, 0)"


def test_without_scripts_and_in_print_the_picture_stays(
    browser: Browser, page: Page, origin: str
) -> None:
    plain = browser.new_context(java_script_enabled=False)
    still = plain.new_page()
    for screen, shown in ((DESKTOP, 0), (PHONE, 1)):
        still.set_viewport_size(screen)  # type: ignore[arg-type]
        still.goto(f"{origin}/{FRONT}")
        pictures = still.locator(f"{FIGURE} svg[role=img]")
        expect(pictures).to_have_count(2)
        expect(pictures.nth(shown)).to_be_visible()
        expect(pictures.nth(1 - shown)).to_be_hidden()
        expect(pictures.nth(shown).locator(".front-secret").last).to_be_visible()
        assert "softmax turns scores into" in (
            pictures.nth(shown).locator("desc").text_content() or ""
        )
    plain.close()
    open_front(page, origin)
    run(page)
    page.emulate_media(media="print")
    expect(page.locator(f"{FIGURE} svg[role=img]").first).to_be_visible()
    for part in (".front-picture", ".live-tries", ".front-transport", ".front-start", "details"):
        expect(page.locator(f"{FIGURE} {part}").first).to_be_hidden()
