"""Live figures: the scripts that a page's figures need, and only those; a page that gathers them.

A notebook stores the static picture of a live figure, marked with the figure's name and settings.
Here it gets a frame that the scripts of ``_static/live`` fill; without scripts, and in print, the
picture stays. The directive ``live-figure`` shows the figure of a chapter again elsewhere, or one
whose picture is kept in a file of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from book_figures import inline_svg

_MARK = re.compile(r'<svg (?=[^>]*data-live="([a-z-]+)")(?=[^>]*data-settings="([^"]*)")')
_FRAME = re.compile(r'<div class="live" data-live="([a-z-]+)"')
_log = logging.getLogger(__name__)


def framed(markup: str, figures: dict[str, Any]) -> str:
    """Put a frame around a picture that has a live form; leave any other as it is.

    The frame has the height of the live form from the start, so that nothing moves.

    >>> framed(
    ...     '<svg data-live="a" data-settings="b=1"></svg>',
    ...     {"a": {"heights": [9, 12]}},
    ... )[:54]
    '<div class="live" data-live="a" data-settings="b=1" st'
    >>> framed("<svg></svg>", {})
    '<svg></svg>'
    """
    mark = _MARK.search(markup)
    if not mark:
        return markup
    name, settings = mark.groups()
    markup = re.sub(r' data-(?:live|settings)="[^"]*"', "", markup)
    wide, narrow = definition(name, figures)["heights"]
    return (
        f'<div class="live" data-live="{name}" data-settings="{settings}" '
        f'style="--live-height: {wide}px; --live-height-phone: {narrow}px">{markup}</div>'
    )


def read_figures(app: Sphinx | BuildEnvironment) -> dict[str, Any]:
    """What the figures say of themselves."""
    path = Path(app.srcdir) / "book" / "_static" / "live" / "figures.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def definition(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Return what a figure says of itself.

    Raises:
        ValueError: if nobody has written it down.
    """
    if name not in figures:
        where = f"book/_static/live/figures.json has no figure {name!r}"
        remedy = "run `.venv/bin/python -m tools.live_definitions`, which reads the scripts there"
        raise ValueError(f"{where}: {remedy}; expected one of {sorted(figures)}")
    found: dict[str, Any] = figures[name]
    return found


def stored_picture(notebook: Path, name: str) -> str:
    """The static picture of a live figure, as its chapter stores it."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            picture = "".join(output.get("data", {}).get("image/svg+xml", ""))
            if f'data-live="{name}"' in picture:
                return picture
    remedy = f'add a cell `live.figure("{name}")`, then `make notebooks NB=book/{notebook.name}`'
    raise ValueError(f"book/{notebook.name} shows no live figure {name!r}: {remedy}")


def kept_pictures(book: Path, name: str, figures: dict[str, Any]) -> dict[Path, str]:
    """The static picture of a live figure and the file that keeps it: its chapter's notebook.

    The figure of a page that is no notebook has files of its own: the picture for a wide page, and
    the one for a phone.
    """
    own = definition(name, figures).get("pictures", ())
    files = [book / "_static" / "live" / file for file in own]
    if files:
        return {file: file.read_text(encoding="utf-8") for file in files}
    notebook = book / f"{definition(name, figures)['page']}.ipynb"
    return {notebook: stored_picture(notebook, name)}


def live_figures(doctree: nodes.document) -> list[str]:
    """The live figures on a page, each once."""
    raw = (str(node) for node in doctree.findall(nodes.raw))
    return list(dict.fromkeys(name for text in raw for name in _FRAME.findall(text)))


class FrameLiveFigures(SphinxPostTransform):
    """Frame the live figures among a page's pictures."""

    default_priority = 210  # after book_figures has put the pictures into the page
    formats = ("html",)

    def run(self, **_kwargs: Any) -> None:
        """Frame every live figure of this page."""
        for node in list(self.document.findall(nodes.raw)):
            markup = node.astext()
            if _MARK.search(markup):
                try:
                    framed_markup = framed(markup, read_figures(self.env))
                except ValueError as error:
                    _log.warning(str(error), location=node)  # a warning fails the build
                    continue
                node.replace_self(nodes.raw("", framed_markup, format="html"))


class LiveFigureDirective(Directive):
    """Show a live figure, its chapter's or one without a chapter: ``{live-figure} front``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Take the picture from the file that keeps it."""
        environment = self.state.document.settings.env
        name = self.arguments[0]
        figures = read_figures(environment)
        try:
            kept = kept_pictures(Path(environment.srcdir) / "book", name, figures)
            for file in kept:
                environment.note_dependency(str(file))
            prefixes = (f"play-{name}-{n}-" if n else f"play-{name}-" for n in range(len(kept)))
            markup = "".join(map(inline_svg, kept.values(), prefixes))
        except (KeyError, ValueError) as error:
            raise self.error(f"live-figure {name!r}: {error}") from None
        return [nodes.raw("", framed(markup, figures), format="html")]


def add_scripts(
    app: Sphinx,
    _page: str,
    _template: str,
    _context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Give a page the scripts of the live figures on it."""
    names = live_figures(doctree) if doctree is not None else []
    if not names:
        return
    figures = read_figures(app)
    app.add_css_file("live/live.css")
    for file in dict.fromkeys(
        file for name in names for file in definition(name, figures)["styles"]
    ):
        app.add_css_file(f"live/{file}")
    scripts = (file for name in names for file in definition(name, figures)["scripts"])
    for file in dict.fromkeys(scripts):
        app.add_js_file(f"live/{file}", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_post_transform(FrameLiveFigures)
    app.add_directive("live-figure", LiveFigureDirective)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
