"""Pages: each one with one style sheet and one script."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tools.light.drawings import with_lighter_drawings
from tools.light.icons import with_drawn_icons
from tools.light.styles import used_part, whole_sheet, without_icon_font, without_indents

_SHEET = re.compile(r'<link (?=[^>]*rel="stylesheet")[^>]*href="(?P<href>[^"]+)"[^>]*/?>\s*')
_SCRIPT = re.compile(r'<script(?=[^>]*\ssrc=)[^>]*\ssrc="(?P<src>[^"]+)"[^>]*>\s*</script>\s*')
_SCRIPT_PRELOAD = re.compile(r'<link rel="preload" as="script"[^>]*/?>\s*')
_FONT_FACE = re.compile(r"@font-face\{[^}]*\}")
_PREFACE = re.compile(r"\s*/\*.*?\*/\s*", re.DOTALL)
_LINE = re.compile(r"^(?://.*|/\*(?:[^*]|\*(?!/))*\*/)\n", re.MULTILINE)
_BEHIND = re.compile(r"""[ \t]+// [^"'`\n]*$""", re.MULTILINE)  # no text ends there: a comment
_LICENCE = re.compile(r"/\*!|licen[cs]e|copyright", re.IGNORECASE)
_NAMES = re.compile(r'\b(?:class|id)="([^"]*)"')
_WORD = re.compile(r"-?[A-Za-z_][\w-]*")

ICON_FONT = ("scripts/fontawesome.js", "vendor/fontawesome")
# The theme sends every page with Sphinx's own search; the book has another (book_search.py).
UNUSED_SCRIPTS = {
    *("fontawesome.js", "searchtools.js", "language_data.js", "searchindex.js"),
    "sphinx_highlight.js",
}

# The letters of most pages are asked for ahead. They are "optional": where they still come too
# late, this one page keeps the reader's own font, and nothing jumps under the reader's eyes.
# A browser complains of a font that it got ahead and did not use: each has a mark of its use.
FONTS_AHEAD = {
    "fonts/source-sans-3-latin-wght-normal.woff2": "<h1",
    "fonts/source-serif-4-latin-wght-normal.woff2": "<p>",
    "fonts/source-serif-4-latin-wght-italic.woff2": "<p><em>",
    "fonts/source-sans-3-latin-wght-italic.woff2": "<td><p><em>",
    "fonts/jetbrains-mono-latin-wght-normal.woff2": "<code",
    "fonts/jetbrains-mono-latin-wght-italic.woff2": '<span class="c1">',
}
# No other font has the widths of a formula: a line with one would jump when its letters came late.
# These two, which nearly all formulas need, are inside the style sheet, there at the first paint.
FONTS_INSIDE = (
    "katex/fonts/KaTeX_Main-Regular.woff2",
    "katex/fonts/KaTeX_Math-Italic.woff2",
)
# Even so a browser that is busy decodes them only when it lays out the first formula, and then
# again what it has painted. Asked for by name they are ready before there is a body.
_FORMULA = 'class="katex"'
_FORMULAS_READY = """<script>
  document.fonts.load("1em KaTeX_Main");
  document.fonts.load("italic 1em KaTeX_Math");
</script>"""
# From a folder on the reader's disk, browsers refuse to load ahead: there, the page is laid out but
# not shown until its fonts are read, which takes a moment. What is not shown cannot jump.
_ASK_AHEAD = """<script>
  (() => {
    const add = (name, properties) => document.head.appendChild(
      Object.assign(document.createElement(name), properties));
    if (location.protocol === "file:") {
      const still = add("style", {textContent: "body{visibility:hidden}input{visibility:visible}"});
      const show = () => still.remove();
      setTimeout(show, 2000);
      addEventListener("DOMContentLoaded", () => {
        const late = add("link", {rel: "stylesheet", href: "STATIC/fonts/fonts.css"});
        late.onload = () => requestAnimationFrame(() => document.fonts.ready.then(show));
      });
    } else for (const font of FONTS)
      add("link", {rel: "preload", as: "font", type: "font/woff2", crossOrigin: "", href: font});
  })();
</script>"""


def names_in(pages: Iterable[str], scripts: Iterable[str]) -> frozenset[str]:
    """Collect the classes and ids of pages, and all words of scripts, which may set them.

    >>> sorted(
    ...     names_in(['<p class="a b" id="c">'], ["e.classList.add('d')"])
    ... )
    ['a', 'add', 'b', 'c', 'classList', 'd', 'e']
    """
    found: set[str] = set()
    for html in pages:
        for value in set(_NAMES.findall(html)):
            found.update(value.split())
    for script in scripts:
        found.update(_WORD.findall(script))
    return frozenset(found)


def without_room(code: str) -> str:
    r"""Leave out indents, comments, empty lines, and what a script begins with; a licence stays.

    No script may need the indent of a line inside a text; the browser tests would show it.

    >>> (
    ...     without_room(
    ...         "/* What it does. */\nif (x)\n  // so\n  run(); // (T,)"
    ...     ),
    ...     without_room("/*! MIT */ x"),
    ... )
    ('if (x)\nrun();', '/*! MIT */ x')
    """
    preface = _PREFACE.match(code)
    if preface is not None and not _LICENCE.search(preface[0]):
        code = code[preface.end() :]
    code = re.sub(r"^[ \t]+", "", code, flags=re.MULTILINE)
    for comment in (_LINE, _BEHIND):
        code = comment.sub(lambda found: found[0] if _LICENCE.search(found[0]) else "", code)
    return re.sub(r"\n\s*\n", "\n", code)


def _optional(face: re.Match[str]) -> str:
    """A font that is asked for ahead is used at once or not at all."""
    is_ahead = any(font in face[0] for font in FONTS_AHEAD)
    return face[0].replace("font-display: swap", "font-display: optional") if is_ahead else face[0]


@dataclass
class Lightener:
    """Makes the pages of one site light.

    Attributes:
        root: the folder of the site.
        used: the classes and ids that its pages may have.
    """

    root: Path
    used: frozenset[str]
    _joined: dict[tuple[Path, ...], str] = field(default_factory=dict)

    def page(self, path: Path) -> None:
        """Write a page anew, and the style sheet and the script that it needs."""
        html = with_lighter_drawings(with_drawn_icons(path.read_text(encoding="utf-8")))
        if not _SHEET.search(html):  # a page that only leads to another one
            return
        html = _SCRIPT_PRELOAD.sub("", html)
        start = min(match.start() for match in _SHEET.finditer(html))
        head, rest = self._head(path, html), _SHEET.sub("", _SCRIPT.sub("", html[start:]))
        path.write_text(html[:start] + head + rest, encoding="utf-8")

    def _head(self, path: Path, html: str) -> str:
        """The links to what a page needs: a style sheet, fonts, a script."""
        static = "../" * len(path.parent.relative_to(self.root).parts) + "_static"
        found = {script.name: script for script in self._files(path, _SCRIPT.finditer(html), "src")}
        script = self._script([found[name] for name in found if name not in UNUSED_SCRIPTS])
        sheet = self._sheet(self._files(path, _SHEET.finditer(html), "href"))
        fonts = [f"{static}/{font}" for font, mark in FONTS_AHEAD.items() if mark in html]
        lines = [  # the fonts first: a script waits for the style sheets that stand before it
            _ASK_AHEAD.replace("FONTS", json.dumps(fonts)).replace("STATIC", static),
            f'<link rel="stylesheet" type="text/css" href="{static}/{sheet}" />',
        ]
        if _FORMULA in html:
            lines.append(_FORMULAS_READY)
        lines.append(f'<script defer src="{static}/{script}"></script>')
        return "\n".join([*lines, ""])

    def _files(self, page: Path, matches: Iterable[re.Match[str]], group: str) -> list[Path]:
        """The files of a page's links, each once."""
        found = [(page.parent / m[group].partition("?")[0]).resolve() for m in matches]
        return list(dict.fromkeys(found))

    def _sheet(self, sheets: list[Path]) -> str:
        """Write one sheet for several, and return its name."""
        if tuple(sheets) not in self._joined:
            whole = (whole_sheet(sheet, self.root / "_static") for sheet in sheets)
            css = "".join(used_part(without_icon_font(css), self.used) for css in whole)
            css = without_indents(css)
            css = self._with_fonts(_FONT_FACE.sub(_optional, css))
            self._joined[tuple(sheets)] = self._written(css, "css")
        return self._joined[tuple(sheets)]

    def _with_fonts(self, css: str) -> str:
        """Put the fonts of formulas into a sheet that asks for them."""
        for font in FONTS_INSIDE:
            if (link := f"url({font})") in css:
                data = b64encode((self.root / "_static" / font).read_bytes()).decode()
                css = css.replace(link, f"url(data:font/woff2;base64,{data})")
        return css

    def _script(self, scripts: list[Path]) -> str:
        """Write one script for several, in their order, and return its name."""
        if tuple(scripts) not in self._joined:
            # A file's last line may be a comment or lack its semicolon.
            texts = (without_room(path.read_text(encoding="utf-8")) for path in scripts)
            code = "".join(f"{text}\n;\n" for text in texts)
            code = re.sub(r"^//# sourceMappingURL=.*$", "", code, flags=re.MULTILINE)
            self._joined[tuple(scripts)] = self._written(code, "js")
        return self._joined[tuple(scripts)]

    def _written(self, text: str, kind: str) -> str:
        name = f"book-{sha256(text.encode()).hexdigest()[:10]}.{kind}"
        (self.root / "_static" / name).write_text(text, encoding="utf-8")
        return name


def lighten(root: Path) -> None:
    """Make all pages of a built site light.

    Args:
        root: the folder of the site.

    Raises:
        UnknownIconError: if a page shows an icon that nobody has drawn.
    """
    static = root / "_static"
    pages = sorted(path for path in root.rglob("*.html") if static not in path.parents)
    for name in ICON_FONT:
        unused = static / name
        shutil.rmtree(unused) if unused.is_dir() else unused.unlink(missing_ok=True)
    used = names_in(
        (path.read_text(encoding="utf-8") for path in pages),
        (path.read_text(encoding="utf-8") for path in static.rglob("*.js")),
    )
    maker = Lightener(root, used)
    for path in pages:
        maker.page(path)
    for path in scripts_that_come_later(static / "live"):
        path.write_text(without_room(path.read_text(encoding="utf-8")), encoding="utf-8")


def scripts_that_come_later(folder: Path) -> list[Path]:
    """The scripts that a live figure loads by itself, and which no page holds."""
    if not (folder / "figures.json").is_file():
        return []
    figures = json.loads((folder / "figures.json").read_text(encoding="utf-8")).values()
    return [folder / file for figure in figures for file in figure.get("later", ())]
