"""What the browser tests of live figures share: where a figure is, what it says, a finger."""

from __future__ import annotations

from collections.abc import Iterator

from browser_checks import DESKTOP
from playwright.sync_api import BrowserContext, Page, expect

PLAY = "book/play.html"
PLANE = '.live[data-live="attention-plane"]'
FIGURES = (
    "journey", "recurrence", "tokenizer", "attention-plane", "scale", "mask-lab", "heads",
    "positions", "fold", "four-numbers", "norms", "stream",
    "translate",
)  # fmt: skip
SETTLED = "[data-settled]"  # a figure in which nothing moves

# Where the letters of a figure are drawn smaller than so many px.
SMALL = """(figure, least) => [...figure.querySelectorAll("*")]
  .filter((node) => node.checkVisibility({ visibilityProperty: true }))
  .filter((node) => [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim()))
  .map((node) => {
    const matrix = node.getScreenCTM?.();
    const scale = matrix ? Math.hypot(matrix.a, matrix.b) : 1;
    return [parseFloat(getComputedStyle(node).fontSize) * scale, node.textContent.trim()];
  })
  .filter(([size]) => size < least - 0.05)
  .map(([size, text]) => `${text}: ${size.toFixed(1)} px`)"""


def watched(context: BrowserContext) -> Iterator[Page]:
    """A wide page; what it complains of on its console is an error in the end."""
    page = context.new_page()
    page.set_viewport_size(DESKTOP)
    said: list[str] = []
    page.on(
        "console", lambda message: said.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    assert not said


def live_figure(name: str) -> str:
    return f'.live[data-live="{name}"]'


def run_model(page: Page, name: str = "Shakespeare model") -> None:
    """The model of that name, in every figure of the page that asks for it."""
    starts = page.get_by_role("button", name=f"Run the {name} here")
    for left in reversed(range(starts.count())):
        starts.first.click()
        expect(starts).to_have_count(left, timeout=20_000)


def run_models(page: Page) -> None:
    """Both models, for all figures of the page."""
    run_model(page)
    run_model(page, "number translator")


def centre(page: Page, handle: str, figure: str = PLANE) -> tuple[float, float]:
    """Where on the screen a point of a figure is drawn: of chapter 3, if no figure is named."""
    slider = page.locator(figure).get_by_role("slider", name=handle, exact=True)
    slider.scroll_into_view_if_needed()
    box = slider.locator(".live-grip").bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def unit(page: Page) -> float:
    """How many px of the screen make 1 in the plane of the query."""
    plane = page.locator(f"{PLANE} .live-drawing").first.bounding_box()
    assert plane
    return plane["width"] * (260 / 300) / 8  # a margin of 20 on each side; from -4 to 4


def words(page: Page, figure: str = PLANE) -> str:
    return page.locator(f"{figure} .live-words").inner_text()


class Finger:
    """A finger on the screen, as the browser gets it from the system."""

    def __init__(self, page: Page) -> None:
        self.cdp = page.context.new_cdp_session(page)

    def _send(self, kind: str, *points: tuple[float, float]) -> None:
        touches = [{"x": x, "y": y} for x, y in points]
        self.cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    def drag(self, start: tuple[float, float], by: tuple[float, float], steps: int = 6) -> None:
        self._send("touchStart", start)
        for step in range(1, steps + 1):
            share = step / steps
            self._send("touchMove", (start[0] + by[0] * share, start[1] + by[1] * share))

    def lift(self) -> None:
        self._send("touchEnd")

    def lose(self) -> None:
        """Another gesture of the system takes the finger over."""
        self._send("touchCancel")

    def tap(self, at: tuple[float, float]) -> None:
        self._send("touchStart", at)
        self._send("touchEnd")
