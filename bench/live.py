"""How long a live figure takes from an input to the next paint: `python -m bench.live [SITE ...]`.

Several built sites (such as one of today and one of before a change) take turns in one browser, so
that a busy machine is unfair to none. There are two screens: 1280 px, and 360 px with a CPU four
times slower. Every control of every figure is moved; for each figure the slowest one is printed.
A busy machine makes it slower still: the second number is what the page's own thread worked until
the answer was here, whatever else ran; it has some frames of the motion, or the first letters that
a model reads, in it. Tests count nodes instead, because a time is a property of a machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tools.browser import find_browser, has_sandbox

ROOT = Path(__file__).resolve().parents[1]
SCREENS = {"1280 px": (1280, 900, 1, 50), "360 px, CPU / 4": (360, 740, 4, 200)}  # ..., limit in ms
# What loads the model of a figure, and what is there when it has come.
MODELS = {
    "heads": (".live-ask button", ".live-stage"),
    "front": (".front-start", ".front-picture"),
    "stream": (".live-ask button", ".live-press"),
    "translate": (".live-ask button", ".live-press"),
}
PLAY, FRONT = "book/play.html", "book/index.html"  # all figures but one, and that one
ROUNDS = 5

# All controls of a figure, each with two inputs that change it there and back.
PREPARE = """(figure) => {
  const say = (node, kind) => node.dispatchEvent(new Event(kind, { bubbles: true }));
  const key = (node, name) =>
    node.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  const slide = (input, value) => { input.value = value; say(input, "input"); };
  const seen = (node) => node.checkVisibility();
  figure.querySelectorAll("details").forEach((fold) => (fold.open = true));
  const all = (selector) => [...figure.querySelectorAll(selector)].filter(seen);
  const name = (node) => (node.labels?.[0] ?? node).innerText.trim().split("\\n")[0];
  const found = [
    ...all("input[type=range]").map((node) =>
      [name(node), () => slide(node, node.max), () => slide(node, node.min)]),
    ...all("input[type=checkbox]").map((node) =>
      [name(node), () => node.click(), () => node.click()]),
    ...[...new Set(all("input[type=radio]").map((node) => node.name))].map((group) => {
      const [first, ...others] = all(`input[name="${group}"]`);
      return [name(others.at(-1)), () => others.at(-1).click(), () => first.click()];
    }),
    ...all("input[type=text], textarea").map((node) => {
      const type = (text) => () => { node.value = text; say(node, "input"); say(node, "change"); };
      return ["a letter more", type(node.value + "e"), type(node.value)];
    }),
    ...all("select").map((node) => {
      const pick = (at) => () => { node.selectedIndex = at; say(node, "change"); };
      return [name(node), pick(node.options.length - 1), pick(0)];
    }),
    ...all(".live-handle").slice(0, 6).map((node) =>
      [node.getAttribute("aria-label"), () => key(node, "ArrowUp"), () => key(node, "ArrowDown")]),
    ...all(".live-heat[role=grid]").slice(0, 1).map((node) => {
      const cells = node.querySelectorAll(".live-cell[tabindex]");
      return ["a cell", () => cells[3].click(), () => cells[4].click()];
    }),
    ...all(".live-player button, .front-transport button, .front-peek").map((node) =>
      [name(node), () => node.click(), () => node.click()]),
    ...[
      "button.live-token", ".live-box", "[role=radio]", ".stream-row", ".stream-cell",
      ".translate-letter",
    ].filter((o) => all(o)[1]).map((one) => {
      const press = (at) => () => say(figure.querySelectorAll(one)[at], "click");
      return [one, press(1), press(0)];
    }),
    ...all(".live-tries button:not(.live-reset)").map((node) =>
      [name(node), () => node.click(), () => figure.querySelector(".live-reset").click()]),
  ];
  figure.bench = found;
  return found.map(([what]) => what);
}"""

# From the event to the first frame after it. The motion that follows does not count.
MEASURE = """async (figure, [at, turn]) => {
  const painted = () => new Promise((done) => requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => done(performance.now());
    port2.postMessage(0); // comes when the frame has been painted
  }));
  await new Promise(requestAnimationFrame);
  const start = performance.now();
  figure.bench[at][turn]();
  return (await painted()) - start;
}"""
PAUSE_MS = 50  # between two inputs
Times = dict[
    str, tuple[float, float]
]  # of each control: to the paint, and of the page's own thread


def opened(
    browser: Browser, site: Path, screen: str, address: str, figures: Collection[str]
) -> Page:
    """Open a page, and load the models of these figures, or of all."""
    width, height, slower, _ = SCREENS[screen]
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(f"{(site / address).resolve().as_uri()}")
    page.wait_for_load_state("load")
    for name, (button, picture) in MODELS.items():
        figure = page.locator(f'.live[data-live="{name}"]')
        if figure.count() and (not figures or name in figures):
            figure.locator(button).first.click()
            figure.locator(picture).wait_for(state="visible")
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": slower})
    return page


def measured(page: Page, figure: Locator, at: int) -> tuple[float, float]:
    """Move a control there and back; of the slower one the time to the paint, and the work."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def worked() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    both = []
    for turn in (1, 2):
        before = worked()
        wall = figure.evaluate(MEASURE, [at, turn])
        both.append((wall, worked() - before))
        page.wait_for_timeout(PAUSE_MS)
    session.detach()
    return max(both)


def race(
    browser: Browser,
    sites: Sequence[Path],
    screen: str,
    figures: Collection[str] = (),
    rounds: int = ROUNDS,
) -> dict[str, list[Times]]:
    """For each figure and site: the median times of each control, in ms."""
    found: dict[str, list[Times]] = {}
    for address in (FRONT, PLAY):
        pages = [opened(browser, site, screen, address, figures) for site in sites]
        names = pages[-1].locator(".live").evaluate_all("all => all.map(f => f.dataset.live)")
        for name in names:
            if figures and name not in figures:
                continue
            shown = [page.locator(f'.live[data-live="{name}"]') for page in pages]
            controls = [figure.evaluate(PREPARE) if figure.count() else [] for figure in shown]
            times: list[dict[str, list[tuple[float, float]]]] = [{} for _ in sites]
            for _ in range(rounds):
                for page, figure, own, kept in zip(pages, shown, controls, times, strict=True):
                    page.bring_to_front()
                    for at, control in enumerate(own):
                        both = measured(page, figure, at)
                        kept.setdefault(control, []).append(both)
            found[name] = [
                {
                    what: (median(wall for wall, _ in each), median(own for _, own in each))
                    for what, each in kept.items()
                }
                for kept in times
            ]
        for page in pages:
            page.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the slowest control of each figure; return 1 if the last site is over a limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__)
    default = [ROOT / "_build" / "html"]
    parser.add_argument("sites", nargs="*", type=Path, default=default, help="built sites")
    parser.add_argument("--figures", nargs="+", default=(), help="only these")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="so often each control is moved")
    asked = parser.parse_args(arguments)
    over = False
    with sync_playwright() as playwright:
        bundled = Path(playwright.chromium.executable_path)
        browser = playwright.chromium.launch(
            executable_path=find_browser(bundled=bundled), chromium_sandbox=has_sandbox()
        )
        for screen, (*_, limit) in SCREENS.items():
            raced = race(browser, asked.sites, screen, asked.figures, asked.rounds)
            for name, each in raced.items():
                slowest = [max(times.items(), key=lambda item: item[1]) for times in each if times]
                shown = [f"{ms:.0f} ms, {own:.0f} its own ({what})" for what, (ms, own) in slowest]
                print(f"{screen}, {name}: {'; '.join(shown)}", flush=True)
                over |= round(slowest[-1][1][0]) > limit
        browser.close()
    return int(over)


if __name__ == "__main__":
    raise SystemExit(main())
