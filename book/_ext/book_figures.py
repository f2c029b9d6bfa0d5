"""Put the notebooks' SVG figures into the page itself, so that they follow light and dark mode.

A figure stored in a notebook is a light card that stands alone. Inlined, its theme colours become
CSS variables, its ids become unique on the page, its title and description are read by screen
readers, and a width is computed below which its smallest label could not be read any more.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
ET.register_namespace("", SVG)
ET.register_namespace("xlink", XLINK)

# The same values stand in transformer_book's figures and, per mode, in book/_static/book.css.
THEME_COLOURS = {
    "#fdfcf9": "paper",
    "#1b2733": "ink",
    "#5b6875": "muted",
    "#d5d9de": "grid",
    "#eef1f4": "panel",
    "#0067a5": "q",
    "#dcecf7": "q-soft",
    "#b04a00": "k",
    "#fbe6d6": "k-soft",
    "#00735a": "v",
    "#d8f0e8": "v-soft",
    "#8a2a6b": "w",
    "#f4e0ee": "w-soft",
}
COLOUR_ATTRIBUTES = {"color", "fill", "flood-color", "stop-color", "stroke", "style"}
SMALLEST_LABEL_PX = 9.5
DEFAULT_FONT_SIZE = 12.0

_COLOUR = re.compile(r"(?<![\w(&#])#[0-9a-fA-F]{6}(?![0-9a-fA-F])")
_URL_REFERENCE = re.compile(r"url\((['\"]?)#([^)'\"]+)\1\)")
_CSS_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_FONT_SIZE = re.compile(r"font(?:-size\s*:\s*([\d.]+)|\s*:[^;{}]*?([\d.]+)p[xt]\b)")
_LENGTH = re.compile(r"\s*([\d.]+)\s*(px|pt|)\s*")
_PX_PER = {"px": 1.0, "": 1.0, "pt": 4 / 3}


def map_colours(text: str) -> str:
    """Replace the theme's hex colours by the CSS variables of the page; leave all others."""

    def variable(match: re.Match[str]) -> str:
        name = THEME_COLOURS.get(match[0].lower())
        return f"var(--fig-{name})" if name else match[0]

    return _COLOUR.sub(variable, text)


def prefix_ids(root: ET.Element, prefix: str) -> None:
    """Make every id of the figure, and every reference to one, unique by a prefix."""
    known = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}

    def renamed(match: re.Match[str]) -> str:
        return f"url(#{prefix}{match[2]})" if match[2] in known else match[0]

    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, prefix + value)
            elif name in ("href", f"{{{XLINK}}}href") and value[:1] == "#" and value[1:] in known:
                element.set(name, f"#{prefix}{value[1:]}")
            elif name in ("aria-labelledby", "aria-describedby"):
                words = [prefix + word if word in known else word for word in value.split()]
                element.set(name, " ".join(words))
            else:
                element.set(name, _URL_REFERENCE.sub(renamed, value))


def scope_css(css: str, scope: str) -> str:
    """Limit the rules of a figure's own style sheet to that figure."""

    def scoped(match: re.Match[str]) -> str:
        selectors = ", ".join(f"{scope} {part.strip()}" for part in match[1].split(","))
        return f"{selectors} {{{match[2]}}}"

    return _CSS_RULE.sub(scoped, css)


def natural_size(root: ET.Element) -> tuple[float, float, float]:
    """Return width and height in CSS pixels and the pixels per unit of the drawing."""
    view_box = [
        float(part) for part in re.split(r"[\s,]+", root.get("viewBox", "").strip()) if part
    ]
    width, height = _pixels(root.get("width")), _pixels(root.get("height"))
    if len(view_box) == 4:
        width = width or view_box[2]
        height = height or width * view_box[3] / view_box[2]
        return width, height, width / view_box[2]
    if not (width and height):
        raise ValueError("an SVG figure needs a viewBox, or a width and a height")
    return width, height, 1.0


def _pixels(length: str | None) -> float | None:
    match = _LENGTH.fullmatch(length or "")
    return float(match[1]) * _PX_PER[match[2]] if match else None


def smallest_label(root: ET.Element) -> float:
    """Return the smallest font size of the figure, in units of the drawing."""
    sizes = []
    for element in root.iter():
        css = element.get("style", "")
        if element.tag == f"{{{SVG}}}style":
            css += element.text or ""
        sizes += [float(match[1] or match[2]) for match in _FONT_SIZE.finditer(css)]
        attribute = _LENGTH.fullmatch(element.get("font-size", ""))
        if attribute:
            sizes.append(float(attribute[1]))
    return min(sizes, default=DEFAULT_FONT_SIZE)


def legible_width(root: ET.Element) -> float:
    """Return the width in pixels below which the smallest label would be too small to read."""
    width, _, scale = natural_size(root)
    label = smallest_label(root) * scale
    return min(width, width * SMALLEST_LABEL_PX / label)


def inline_svg(source: str, prefix: str, fallback_title: str = "Figure") -> str:
    """Turn a stand-alone SVG document into markup for one place on one page.

    Args:
        source: the SVG document.
        prefix: what makes its ids unique on the page.
        fallback_title: accessible name where the figure has no ``<title>``.
    """
    root = ET.fromstring(source)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    prefix_ids(root, prefix)
    for link in root.iter(f"{{{SVG}}}a"):  # notebooks lead to notebooks, pages to pages
        link.set("href", re.sub(r"\.ipynb(?=#|$)", ".html", link.get("href", "")))
    root.set("id", f"{prefix}svg")
    _map_theme(root, f"#{prefix}svg")
    _describe(root, prefix, fallback_title)
    width, height, _ = natural_size(root)
    root.set("width", f"{width:g}")
    root.set("height", f"{height:g}")
    root.set("style", f"min-width: {legible_width(root):.0f}px; {root.get('style', '')}".strip())
    root.set("class", "figure-svg")
    markup = ET.tostring(root, encoding="unicode")
    return f'<div class="figure-scroll">{markup}</div>'


def _map_theme(root: ET.Element, scope: str) -> None:
    for element in root.iter():
        for name in COLOUR_ATTRIBUTES & set(element.attrib):
            element.set(name, map_colours(element.attrib[name]))
        if element.tag == f"{{{SVG}}}style":
            element.text = map_colours(scope_css(element.text or "", scope))


def _describe(root: ET.Element, prefix: str, fallback_title: str) -> None:
    title = root.find(f"{{{SVG}}}title")
    if title is None:
        title = ET.Element(f"{{{SVG}}}title")
        title.text = fallback_title
        root.insert(0, title)
    named = [("title", title), ("desc", root.find(f"{{{SVG}}}desc"))]
    labels = []
    for name, element in named:
        if element is not None:
            element.set("id", f"{prefix}{name}")
            labels.append(f"{prefix}{name}")
    # Inside an image nobody could reach a link.
    root.set("role", "group" if root.find(f".//{{{SVG}}}a") is not None else "img")
    root.set("aria-labelledby", " ".join(labels))
    root.attrib.pop("aria-label", None)


class InlineNotebookFigures(SphinxPostTransform):
    """Replace the images that myst-nb made of SVG outputs by the SVG itself."""

    default_priority = 201  # after myst-nb has chosen one form of each output, and book_fold
    formats = ("html",)

    def run(self, **_kwargs: Any) -> None:
        """Inline every figure of this page."""
        page = re.sub(r"\W+", "-", self.env.docname)
        for number, image in enumerate(self._notebook_figures(), start=1):
            path = Path(self.env.srcdir) / image["uri"].lstrip("/")
            markup = inline_svg(
                path.read_text(encoding="utf-8"), f"{page}-f{number}-", image.get("alt", "Figure")
            )
            image.replace_self(nodes.raw("", markup, format="html"))

    def _notebook_figures(self) -> list[nodes.image]:
        images = self.document.findall(nodes.image)
        return [i for i in images if i["uri"].endswith(".svg") and "jupyter_execute" in i["uri"]]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_post_transform(InlineNotebookFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
