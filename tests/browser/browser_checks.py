"""The checks that every built page must pass, as functions that return what is wrong.

Each check takes a loaded page and returns a list of problems, empty when all is well. They know
nothing about pytest, so that `test_checks_can_fail.py` can feed them pages that are broken on
purpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, Response, Route

AXE = Path(__file__).parents[1] / "vendor" / "axe.min.js"
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}
TIMEOUT_MS = 30_000

MOST_BYTES = 1.5e6  # decoded, of the page and all that it loads
MOST_FILES = 28  # Play has a script and a style sheet of each live figure
MOST_SHIFT = 0.02  # of the screen's height, weighted by the part of the screen that moved

# What the reader sees as text: code, formulas and scripts are taken out, hidden solutions stay in.
VISIBLE_TEXT = """() => {
  const copy = (document.querySelector("main") ?? document.body).cloneNode(true);
  const notProse = "pre, code, script, style, template, noscript, .katex, textarea";
  copy.querySelectorAll(notProse).forEach((element) => element.remove());
  return copy.textContent;
}"""

# axe takes time for every element, and a page has thousands that repeat: tokens of code and of
# signatures, strokes of formulas and figures. One token of each kind in each kind of block speaks
# for all; the others become plain text, and drawings keep their box, so that nothing moves.
THIN_OUT = """() => {
  const seen = new Set();
  for (const token of document.querySelectorAll("pre span, dt.sig span, dt.sig em, code span")) {
    if (token.querySelector("a, button, [tabindex], [id]")) continue;
    const block = token.closest("pre, dt, code").parentElement.closest("[class]");
    const kind = [block?.className, token.className, token.getAttribute("style")].join("|");
    if (seen.has(kind) && !token.id) token.replaceWith(...token.childNodes);
    seen.add(kind);
  }
  document.querySelectorAll(".katex-html > *, .katex-mathml > math > *")
    .forEach((stroke) => stroke.remove());
  document.querySelectorAll("svg[role=img] > :not(title, desc)")
    .forEach((stroke) => stroke.remove());
}"""

# Contrast depends on how a text looks, and hundreds of texts look alike: in tag, colour, size,
# weight, decoration, and in every background behind them. One of each look is measured for all. A
# link must stand out from the text around it: one of each look in each look of a block.
LOOKS = """() => {
  const clear = "rgba(0, 0, 0, 0),none,1,none,normal,static";
  const known = new Map();
  const behind = (element) => {
    if (element === null) return "";
    if (!known.has(element)) {
      const style = getComputedStyle(element);
      const own = [style.backgroundColor, style.backgroundImage, style.opacity, style.filter,
                   style.mixBlendMode, style.position].join();
      known.set(element, (own === clear ? "" : `${own}/`) + behind(element.parentElement));
    }
    return known.get(element);
  };
  const look = (element) => {
    const style = getComputedStyle(element);
    return [element.tagName, style.color, style.fontSize, style.fontWeight, style.textShadow,
            style.textDecorationLine, behind(element)].join("|");
  };
  const texts = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const kind = look(element);
    if (!texts.has(kind)) texts.set(kind, element);
  }
  const links = new Map();
  const blockOf = (element) => {
    while (element.parentElement && getComputedStyle(element).display.startsWith("inline"))
      element = element.parentElement;
    return element;
  };
  for (const link of document.querySelectorAll("a[href], [role=link]")) {
    const block = blockOf(link), style = getComputedStyle(link);
    const alone = block.textContent.trim() === link.textContent.trim();
    const inside = [...link.children].map((child) => look(child)).join();
    const kind = [look(link), look(link.parentElement), look(block), inside, alone, style.border,
                  style.outline, style.fontStyle, style.fontFamily, style.display].join("|");
    if (link.checkVisibility() && !links.has(kind)) links.set(kind, link);
  }
  return [...new Set([...texts.values(), ...links.values()])];
}"""

# The rules of colours look at these alone.
ONLY_LOOKS = """() => axe.configure({rules: [
  {id: "color-contrast", selector: "[data-look]"},
  {id: "link-in-text-block", selector: "a[href][data-look], [role=link][data-look]"},
]})"""

# To measure a colour, axe first finds out where everything lies, hidden or not. Blocks in which no
# look is measured give their place to an empty block meanwhile, unless they can cover another one.
SET_ASIDE = """() => {
  const hasShade = ({ backgroundColor, backgroundImage }) =>
    backgroundColor !== "rgba(0, 0, 0, 0)" || backgroundImage !== "none";
  const floats = ({ position }) => ["absolute", "fixed", "sticky"].includes(position);
  const needed = new Set([document.body]);
  for (const element of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    if ("look" in element.dataset || (floats(style) && hasShade(style)))
      for (let up = element; !needed.has(up); up = up.parentElement) needed.add(up);
  }
  const pairs = [...document.body.querySelectorAll(":not(style, link, script)")]
    .filter((element) => !needed.has(element) && needed.has(element.parentElement)
      && !getComputedStyle(element).display.startsWith("inline"))
    .map((block) => [block, block.cloneNode(false)]);
  for (const [block, empty] of pairs) block.replaceWith(empty);
  return () => {
    for (const [block, empty] of pairs) empty.replaceWith(block);
  };
}"""

RAW_MARKUP = {
    "display math": re.compile(r"\$\$"),
    "inline math": re.compile(r"\$(?!\s)[^$\n]{1,80}(?<!\s)\$(?!\d)"),
    "a TeX delimiter": re.compile(r"\\[()\[\]]"),
    "a TeX command": re.compile(
        r"\\(?:frac|sqrt|sum|text|math[a-z]+|operatorname|begin|end|left|right|cdot|top|in|times)\b"
    ),
    "a MyST role": re.compile(r"\{[a-z][a-z:_-]*\}`|\{cite|\{eq\}|\{ref\}|\{doc\}"),
    "a MyST fence": re.compile(r":::|```"),
    "a MyST label": re.compile(r"^\([a-z0-9:_-]+\)=", re.MULTILINE),
}


@dataclass
class Traffic:
    """What a page asked for and complained about while it was open."""

    origin: str
    external: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Listen to a page before it is loaded."""
        page.on("request", self._on_request)
        page.on("response", self._on_response)
        page.on("requestfailed", self._on_failure)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.console.append(f"exception: {error}"))

    def is_own(self, url: str) -> bool:
        return url.startswith((self.origin, "data:", "blob:", "about:"))

    def _on_request(self, request: Request) -> None:
        if not self.is_own(request.url):
            self.external.append(f"request to {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.failed.append(f"{response.status} {response.url}")

    def _on_failure(self, request: Request) -> None:
        if self.is_own(request.url):
            self.failed.append(f"{request.failure} {request.url}")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.console.append(f"{message.type}: {message.text}")


def wait_for_fonts(page: Page) -> None:
    """Have a page that is to be measured wait for its fonts, however busy the machine is.

    To readers, late fonts are optional (tools/light/pages.py): the page then keeps theirs, which
    are wider. Call it before the page is loaded.
    """

    def patient(route: Route) -> None:
        response = route.fetch()
        css = response.text()
        assert "font-display: optional" in css, f"{route.request.url} has no optional fonts"
        patient_css = css.replace("font-display: optional", "font-display: swap")
        route.fulfill(response=response, body=patient_css)

    page.route(re.compile(r"/_static/book-\w+\.css$"), patient)


def settle(page: Page) -> None:
    """Wait until fonts are loaded."""
    page.evaluate("document.fonts.ready")


def settle_again(page: Page) -> None:
    """Wait until the page has reacted to a change of its window or its media, fades included."""
    page.evaluate(
        """async () => {
          const frame = () => new Promise(requestAnimationFrame);
          await frame(); await frame();
          await document.fonts.ready;  // another layout may ask for another font
          const ending = document.getAnimations()
            .filter((animation) => animation.effect.getComputedTiming().endTime < 5000);
          await Promise.allSettled(ending.map((animation) => animation.finished));
        }"""
    )


def foreign_resources(page: Page, origin: str) -> list[str]:
    """Find elements that name another host, whether or not the browser asked for it."""
    urls: list[str] = page.evaluate(
        """() => {
          const rels = ["stylesheet", "preload", "preconnect", "dns-prefetch", "icon", "manifest",
                        "modulepreload", "prefetch"];
          const links = [...document.querySelectorAll("link[href]")]
            .filter((link) => rels.some((rel) => link.relList.contains(rel)));
          const others = document.querySelectorAll(
            "script[src], img[src], iframe[src], source[src], video[src], audio[src], embed[src]");
          return [...links, ...others].map((element) => element.href || element.src);
        }"""
    )
    return [
        f"element refers to {url}"
        for url in urls
        if url and not url.startswith((origin, "data:", "blob:", "about:"))
    ]


def overflow(page: Page) -> list[str]:
    """Find out whether the page can be scrolled sideways, and which element is to blame."""
    found: dict[str, object] | None = page.evaluate(
        """() => {
          const root = document.documentElement;
          if (root.scrollWidth <= window.innerWidth) return null;
          // Inside its own scroll bar, or out of the flow, an element cannot widen the page.
          const isContained = (element) => {
            for (let up = element; up && up !== document.body; up = up.parentElement) {
              const style = getComputedStyle(up);
              if (style.position === "fixed") return true;
              if (up !== element && style.overflowX !== "visible") return true;
            }
            return false;
          };
          let widest = null, edge = window.innerWidth;
          for (const element of document.body.querySelectorAll("*")) {
            const box = element.getBoundingClientRect();
            const spills = getComputedStyle(element).overflowX === "visible";
            const right = Math.max(box.right, spills ? box.left + element.scrollWidth : 0);
            // The innermost of several equally wide elements says most.
            if (right >= edge && right > window.innerWidth && !isContained(element)) {
              widest = element; edge = right;
            }
          }
          const name = widest === null ? "no single element"
            : `<${widest.tagName.toLowerCase()} id="${widest.id}" `
              + `class="${widest.getAttribute("class") ?? ""}">`;
          const text = (widest?.textContent ?? "").trim().replace(/\\s+/g, " ").slice(0, 60);
          return {width: root.scrollWidth, window: window.innerWidth, edge, name, text};
        }"""
    )
    if found is None:
        return []
    return [
        f"page is {found['width']} px wide in a window of {found['window']} px; widest: "
        f"{found['name']} reaches {found['edge']} px, text {found['text']!r}"
    ]


def wide_examples(page: Page) -> list[str]:
    """Find examples of the API that must be scrolled sideways."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("dl.py pre")]
          .filter((box) => box.scrollWidth > box.clientWidth)
          .map((box) => box.textContent.split("\\n").sort((a, b) => b.length - a.length)[0])"""
    )
    return [f"example runs out of its box: {line!r}" for line in found]


def math(page: Page) -> list[str]:
    """Find formulas that were not typeset, or typeset as an error."""
    found: dict[str, list[str]] = page.evaluate(
        """() => {
          const texts = (elements) => elements.map((e) => e.textContent.trim().slice(0, 80));
          const formulas = [...document.querySelectorAll(".math")];
          return {
            raw: texts(formulas.filter((e) => !e.querySelector(".katex-mathml + .katex-html"))),
            errors: texts([...document.querySelectorAll(".katex-error")]),
          };
        }"""
    )
    return [f"formula not typeset: {text}" for text in found["raw"]] + [
        f"formula with an error: {text}" for text in found["errors"]
    ]


def markup(page: Page) -> list[str]:
    """Find TeX or MyST source that reaches the reader as text."""
    text: str = page.evaluate(VISIBLE_TEXT)
    return [
        f"{what} is visible: {text[max(0, hit.start() - 30) : hit.end() + 30]!r}"
        for what, pattern in RAW_MARKUP.items()
        for hit in pattern.finditer(text)
    ]


def images(page: Page) -> list[str]:
    """Find pictures without alternative text, and inline figures without a role or name."""
    broken: list[str] = page.evaluate(
        """() => {
          const problems = [];
          for (const image of document.querySelectorAll("img")) {
            const src = image.getAttribute("src")?.slice(0, 80);
            if (!image.hasAttribute("alt")) problems.push(`img without alt: ${src}`);
            const inContent = image.closest("article") !== null;
            if (inContent && image.getAttribute("alt")?.trim() === ""
                && image.getAttribute("role") !== "presentation")
              problems.push(`img in the text with empty alt: ${src}`);
            if (image.complete && image.naturalWidth === 0)
              problems.push(`img does not show: ${src}`);
          }
          const named = (svg) => {
            const ids = (svg.getAttribute("aria-labelledby") ?? "").split(/\\s+/).filter(Boolean);
            const referred = ids.map((id) => document.getElementById(id)?.textContent ?? "");
            const title = [...svg.children].find((child) => child.tagName === "title");
            return [svg.getAttribute("aria-label"), referred.join(" "), title?.textContent]
              .some((name) => name?.trim());
          };
          const decoration = ".katex, a, button, [aria-hidden=true]";
          for (const svg of document.querySelectorAll("article svg, main svg")) {
            if (svg.parentElement.closest("svg") || svg.closest(decoration)) continue;
            const start = svg.outerHTML.slice(0, 100);
            const controls = svg.querySelector("[tabindex], a[href]"); // which an image would hide
            const isGrid = svg.querySelector("[role=row] [role=gridcell]");
            const fitting = controls ? ["group", ...(isGrid ? ["grid"] : [])] : ["img"];
            if (!fitting.includes(svg.getAttribute("role")))
              problems.push(`figure without role=img, or group or grid around controls: ${start}`);
            if (!named(svg)) problems.push(`figure without a name: ${start}`);
          }
          return problems;
        }"""
    )
    return broken


def copy_buttons(page: Page) -> list[str]:
    """Find code that cannot be copied with one click."""
    lacking: list[str] = page.evaluate(
        """() => [...document.querySelectorAll(".cell_input .highlight, article .highlight-python, "
              + "article .highlight-bash, article .highlight-shell, article .highlight-ipython3")]
            .filter((block) => !block.querySelector("button.copybtn"))
            .map((block) => block.textContent.trim().slice(0, 60))"""
    )
    return [f"code without a copy button: {text!r}" for text in lacking]


def accessibility(page: Page, rules: str = "all but colours", colours: bool = True) -> list[str]:
    """Run axe-core and report what it calls serious or critical.

    Rules whose violations axe calls minor or moderate are not run: nothing of them is reported.

    Args:
        page: the page.
        rules: which rules to run on the whole page, a key of `RULES`.
        colours: whether to measure the contrast of each look of texts and of links, which is slow.
    """
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
        page.evaluate(THIN_OUT)
        page.evaluate(ONLY_LOOKS)
    violations: list[dict[str, object]] = page.evaluate(
        """async ([leftOut, colours, ofColours]) => {
          const resultTypes = ["violations"];
          const experiments = axe._audit.tagExclude;  // which axe runs only if told to
          const grave = axe._audit.rules.filter(({ id, enabled, impact, tags }) =>
            enabled && ["serious", "critical"].includes(impact) && !leftOut?.includes(id)
            && !tags.some((tag) => experiments.includes(tag)));
          const run = async (rules) =>
            (await axe.run(document, {resultTypes, runOnly: rules})).violations;
          const found = leftOut ? await run(grave.map((rule) => rule.id)) : [];
          if (colours) {
            for (const old of document.querySelectorAll("[data-look]")) delete old.dataset.look;
            for (const look of (LOOKS)()) look.dataset.look = "";
            const putBack = (SET_ASIDE)();
            found.push(...await run(ofColours));
            putBack();
          }
          return found
            .map((rule) => ({
              id: rule.id, help: rule.help, count: rule.nodes.length,
              nodes: rule.nodes.slice(0, 3).map(
                (node) => `${node.target.join(" ")} ${node.any[0]?.message ?? ""}`),
            }));
        }""".replace("LOOKS", LOOKS).replace("SET_ASIDE", SET_ASIDE),
        [RULES[rules], colours, OF_COLOURS],
    )
    return [
        f"{rule['id']} ({rule['help']}), {rule['count']} places: {rule['nodes']}"
        for rule in violations
    ]


OF_COLOURS = ["color-contrast", "link-in-text-block"]
# Which rules are left out when the whole page is looked at; None: it is not looked at.
RULES: dict[str, list[str] | None] = {
    "none": None,
    "all but colours": OF_COLOURS,
    "all of the layout": [*OF_COLOURS, "css-orientation-lock"],  # style sheets stay as they were
}


def accessible_colours(page: Page) -> list[str]:
    """Run the rules of axe-core that a change of colours can break."""
    return accessibility(page, rules="none")


def accessible_layout(page: Page) -> list[str]:
    """Run the rules of axe-core that a change of layout can break: all but those of colours."""
    return accessibility(page, rules="all of the layout", colours=False)


def weight(page: Page) -> list[str]:
    """Find out whether the page makes the browser load too much, or too many files."""
    sizes: list[float] = page.evaluate(
        """() => [...performance.getEntriesByType("navigation"),
                  ...performance.getEntriesByType("resource")]
            .map((file) => file.decodedBodySize)"""
    )
    heavy = [f"{sum(sizes) / 1e6:.2f} MB"] if sum(sizes) > MOST_BYTES else []
    return heavy + ([f"{len(sizes)} files"] if len(sizes) > MOST_FILES else [])


def jumps(page: Page) -> list[str]:
    """Find what moved while the page was loaded, after the reader had seen it elsewhere."""
    moves: list[dict[str, float | str]] = page.evaluate(
        """() => new Promise((resolve) => {
          const name = (node) => node?.className?.toString() || node?.nodeName || "unknown";
          const moves = [];
          new PerformanceObserver((list) => {
            for (const move of list.getEntries())
              moves.push({value: move.value, what: move.sources.map((s) => name(s.node)).join()});
          }).observe({type: "layout-shift", buffered: true});
          setTimeout(() => resolve(moves), 200);
        })"""
    )
    if sum(float(move["value"]) for move in moves) < MOST_SHIFT:
        return []
    return [f"{move['what']} moved, by {move['value']:.3f}" for move in moves]


def follows_dark_preference(page: Page) -> list[str]:
    """Find out whether the page turned dark when the reader's system did."""
    theme = page.evaluate("() => document.documentElement.dataset.theme ?? 'none'")
    return [] if theme == "dark" else [f"the system is dark but the page's theme is {theme}"]


Check = Callable[[Page], list[str]]

ON_A_DESKTOP: dict[str, Check] = {
    "light": weight,
    "nothing jumps": jumps,
    "math is typeset": math,
    "no raw markup": markup,
    "pictures are described": images,
    "code can be copied": copy_buttons,
    "fits 1280 px": overflow,
    "examples fit their box": wide_examples,
    "axe light": accessibility,
}
IN_THE_DARK: dict[str, Check] = {
    "follows the system's dark mode": follows_dark_preference,
    "axe dark": accessible_colours,
}
ON_A_PHONE: dict[str, Check] = {
    "fits 360 px": overflow,
    "axe phone": accessible_layout,
}
ALL_ALONG = ("nothing from outside", "no failed request", "quiet console")
CHECKS = (*ALL_ALONG, *ON_A_DESKTOP, *IN_THE_DARK, *ON_A_PHONE)


def visit(
    context: BrowserContext, origin: str, url: str, only: Collection[str] = CHECKS
) -> dict[str, list[str]]:
    """Load a page once and check it on a desktop, then in the dark, then on a phone.

    Args:
        context: The browser context to open the page in.
        origin: The only address that the page may talk to.
        url: The page's address.
        only: The checks to run; all of them unless said otherwise.

    Returns:
        For each check's name, the problems it found.
    """
    traffic = Traffic(origin)
    page = _open(context, traffic, url)
    problems = _run(ON_A_DESKTOP, page, only)
    if problems.get("nothing jumps"):
        problems["nothing jumps"] = _jumps_again(context, origin, url)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    settle_again(page)
    problems |= _run(IN_THE_DARK, page, only)
    page.set_viewport_size(PHONE)
    settle_again(page)
    problems |= _run(ON_A_PHONE, page, only)
    outside = traffic.external + foreign_resources(page, origin)
    found = dict(zip(ALL_ALONG, (outside, traffic.failed, traffic.console), strict=True))
    page.close()
    return problems | {name: found[name] for name in ALL_ALONG if name in only}


def _open(context: BrowserContext, traffic: Traffic, url: str) -> Page:
    """Open a page on a desktop in the light, watched from the start."""
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    traffic.watch(page)
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size(DESKTOP)
    page.goto(url, wait_until="load")
    settle(page)
    return page


def _jumps_again(context: BrowserContext, origin: str, url: str) -> list[str]:
    """Look a second time, as a new reader: what the page does, it does again.

    On a busy machine the first paint may come before a font that is there already is decoded.
    """
    assert context.browser is not None
    anew = context.browser.new_context()
    found = jumps(_open(anew, Traffic(origin), url))
    anew.close()
    return found


def _run(checks: dict[str, Check], page: Page, only: Collection[str]) -> dict[str, list[str]]:
    return {name: check(page) for name, check in checks.items() if name in only}
