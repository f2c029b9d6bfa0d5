"""The guard: everything that is wrong with a stored notebook and can be seen without a kernel.

Each check is a small generator that yields troubles: what is wrong, and how to mend it.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from . import fold, minutes, parts, svg
from .model import (
    MAX_WIDTH,
    MUST_RAISE,
    ROOT,
    SVG,
    CellTrouble,
    NotebookError,
    code_cells,
    digests,
    has_error,
    load,
    nbval_markers,
    normalise,
    place_of,
    show,
    skip_markers,
    tags,
)
from .record import FILE_NAME, Record, measure

MAX_CELL_BYTES = 300_000
MAX_NOTEBOOK_BYTES = 2_000_000
RERUN = "run `make notebooks`"

ALLOWED_TAGS = frozenset(
    (
        *(*fold.KINDS, *fold.OLD_TAGS, fold.YOUR_FILE),
        *(MUST_RAISE, "allow-stderr", "nbval-skip", "nbval-ignore-output"),
    )
)
# What nbval and this machinery compare, and what a page shows without scripts from elsewhere.
ALLOWED_FORMATS = frozenset({"text/plain", "text/html", "text/latex", "text/markdown", SVG})

Trouble = tuple[str, str]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where, and how to mend it."""

    notebook: Path
    cell: int | None
    trouble: str
    remedy: str

    def __str__(self) -> str:
        return f"{show(self.notebook)}:{self._where} {self.trouble}; {self._remedy}"

    @property
    def _where(self) -> str:
        """Which cell, so that an editor can find it: numbers are shown by none."""
        if self.cell is None:
            return ""
        try:
            return f" {place_of(load(self.notebook), self.cell)}:"
        except NotebookError:  # what is wrong is that it cannot be read
            return f" cell {self.cell}:"

    @property
    def _remedy(self) -> str:
        """The remedy, with commands that can be typed as they are."""
        path = show(self.notebook)
        remedy = self.remedy.replace("`make notebooks`", f"`make notebooks NB={path}`")
        return _ON_IT.sub(rf"`.venv/bin/\1 {path}`", remedy)


_ON_IT = re.compile(r"`(python -m tools\.notebooks [^`]+)` on it")


# --- checks of one code cell ------------------------------------------------------------------


def check_not_empty(cell: NotebookNode) -> Iterator[Trouble]:
    """An empty cell is never run, so it looks like one that was forgotten."""
    if not cell.source.strip():
        yield "empty code cell", "delete it"


def check_semicolon(cell: NotebookNode) -> Iterator[Trouble]:
    """A trailing semicolon hides a value in Jupyter but not in nbval, which keeps no history."""
    if cell.source.rstrip().endswith(";"):
        yield (
            "ends with a semicolon, which hides output here but not in nbval",
            ("assign the value to `_` instead"),
        )


def check_errors(cell: NotebookNode) -> Iterator[Trouble]:
    """An exception is stored exactly where one is meant."""
    meant = MUST_RAISE in tags(cell)
    if has_error(cell.outputs) and not meant:
        yield "stores an error", f"mend the cell, or tag it `{MUST_RAISE}` if the error is meant"
    if meant and not has_error(cell.outputs):
        yield f"is tagged `{MUST_RAISE}` but stores no error", f"remove the tag or {RERUN}"


def check_stderr(cell: NotebookNode) -> Iterator[Trouble]:
    """Warnings and log lines differ between machines and are not for readers."""
    if "allow-stderr" not in tags(cell):
        for output in cell.outputs:
            if output.get("name") == "stderr":
                yield f"stores stderr output ({_begin(output.text)})", "mend what it warns of"


def check_nbval_markers(cell: NotebookNode) -> Iterator[Trouble]:
    """Markers with which nbval compares more, or expects an error, hide what is really meant."""
    for name, meaning in nbval_markers(cell):
        if meaning == "check":
            yield f"`{name}` has no effect: every cell is compared", "remove it"
        if meaning == "check_exception" and name != MUST_RAISE:
            yield f"`{name}` is not used here", f"use the tag `{MUST_RAISE}`"


def check_width(cell: NotebookNode) -> Iterator[Trouble]:
    """What is cut off at the right edge of the page is not read."""
    printed = [str(output.get("text", "")) for output in cell.outputs]
    values = [output.get("data", {}) for output in cell.outputs]
    printed += [data.get("text/plain", "") for data in values if SVG not in data]
    for what, text in (("source", cell.source), ("output", "\n".join(printed))):
        longest = max((len(line) for line in text.splitlines()), default=0)
        if longest > MAX_WIDTH and "remove-cell" not in tags(cell):
            yield f"{what} has a line of {longest} characters, at most {MAX_WIDTH}", "break it"


def check_weight(cell: NotebookNode) -> Iterator[Trouble]:
    """Heavy outputs make pages slow and differences unreadable."""
    size = len(json.dumps(cell.outputs, ensure_ascii=False).encode())
    if size > MAX_CELL_BYTES:
        yield f"heavy output: {size:,} bytes, at most {MAX_CELL_BYTES:,}", "show less"


def check_formats(cell: NotebookNode) -> Iterator[Trouble]:
    """Only formats that can be compared exactly and that show everywhere."""
    for output in cell.outputs:
        for kind in sorted(set(output.get("data", {})) - ALLOWED_FORMATS):
            advice = "draw the figure with transformer_book.figures.plots (SVG)"
            if not kind.startswith("image/"):
                advice = f"use one of {', '.join(sorted(ALLOWED_FORMATS))}"
            yield f"stores {kind}, which cannot be compared exactly", advice
        if "data:image/" in str(output.get("data", {}).get("text/html", "")):
            yield (
                "HTML output with an embedded bitmap, which cannot be compared",
                ("draw the figure with transformer_book.figures.plots (SVG)"),
            )


def check_alt_text(cell: NotebookNode) -> Iterator[Trouble]:
    """Every picture comes with a sentence that says what it shows."""
    for output in cell.outputs:
        data = output.get("data", {})
        if not any(kind.startswith("image/") for kind in data):
            continue
        summary = data.get("text/plain", "")
        if not _is_sentence(summary):
            yield (
                f"image without alt text (text/plain is {_begin(summary)})",
                ("give the figure a summary that is a sentence of at least four words"),
            )
        if SVG in data:
            yield from _check_description(data[SVG], summary)


def _check_description(picture: str, summary: str) -> Iterator[Trouble]:
    try:
        described = svg.description(picture)
    except svg.SvgError as error:
        yield str(error), RERUN
        return
    if described != summary:
        yield (
            f"the SVG's <desc> ({_begin(described)}) is not the summary ({_begin(summary)})",
            ("write the same summary into both"),
        )


def check_live(cell: NotebookNode) -> Iterator[Trouble]:
    """A live figure is stored as its static picture: a change of its scripts changes no page."""
    for output in cell.outputs:
        if "<iframe" in str(output.get("data", {}).get("text/html", "")):
            yield "stores the live form of a figure", RERUN


def check_traces_of_a_machine(cell: NotebookNode) -> Iterator[Trouble]:
    """Addresses and absolute paths are different on every machine."""
    text = "\n".join(_texts(cell.outputs))
    for what, pattern in _MACHINE_TRACES.items():
        if match := pattern.search(text):
            yield f"output shows {what} ({match.group()!r})", "print something that lasts"


_MACHINE_TRACES = {
    "a memory address": re.compile(r"\b0x[0-9a-fA-F]{7,}\b"),
    "an absolute path": re.compile(
        r"(?<![\w./~-])/(?:home|root|Users|tmp|private|var/folders)/\S*|\b[A-Z]:\\(?:\w|\\)[^\s]*"
    ),
    "the path of this checkout": re.compile(re.escape(str(ROOT)) + r"\b"),
}

CODE_CHECKS: tuple[Callable[[NotebookNode], Iterator[Trouble]], ...] = (
    check_not_empty,
    check_semicolon,
    check_errors,
    check_stderr,
    check_nbval_markers,
    check_width,
    check_weight,
    check_formats,
    check_alt_text,
    check_live,
    check_traces_of_a_machine,
)


# --- checks of one Markdown cell --------------------------------------------------------------

_FENCE = re.compile(r"^(`{3,}|~{3,})(?!\s*\{(?:figure|image)\}).*?^\1[`~]*\s*$", re.M | re.S)
_INLINE_CODE = re.compile(r"(`+)(?!`)[^\n]*?(?<!`)\1(?!`)")
_DIRECTIVE = re.compile(
    r"^([`~:]{3,})\s*\{(?:figure|image)\}[ \t]*(?P<target>\S*)(?P<body>.*?)^\1\s*$", re.M | re.S
)
_MARKDOWN_IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\](?:\((?P<target>[^)\s]*)|\[[^\]]*\])")
_HTML_IMAGE = re.compile(r"<img\b[^>]*>", re.I)
_ALT_ATTRIBUTE = re.compile(r"\balt\s*=\s*(?:\"[^\"]*\S[^\"]*\"|'[^']*\S[^']*')", re.I)
_SOURCE_ATTRIBUTE = re.compile(r"\bsrc\s*=\s*[\"']?(?P<target>[^\"'\s>]*)", re.I)
_REMOTE = re.compile(r"(?:https?:)?//", re.I)
_REMOTE_DEFINITION = re.compile(
    r"^\[[^\]]+\]:\s*(?:https?:)?//\S+\.(?:png|jpe?g|gif|svg|webp)", re.M
)


def check_markdown_images(cell: NotebookNode) -> Iterator[Trouble]:
    """Pictures in the text have alt text and travel with the book."""
    text = _INLINE_CODE.sub("", _FENCE.sub("", cell.source))
    for target, alt in _images(text):
        if not alt.strip():
            yield f"image {target or 'by reference'} without alt text", "say what it shows"
        if _REMOTE.match(target):
            yield f"remote image {target}", "put the picture into the book and link it there"
    if match := _REMOTE_DEFINITION.search(text):
        yield f"remote image {match.group()}", "put the picture into the book and link it there"


def _images(text: str) -> Iterator[tuple[str, str]]:
    """Target and alt text of every image in Markdown, HTML and directives."""
    for match in _MARKDOWN_IMAGE.finditer(text):
        yield match["target"] or "", match["alt"]
    for match in _HTML_IMAGE.finditer(text):
        source = _SOURCE_ATTRIBUTE.search(match.group())
        alt = _ALT_ATTRIBUTE.search(match.group())
        yield source["target"] if source else "", alt.group() if alt else ""
    for match in _DIRECTIVE.finditer(text):
        alt = re.search(r"^:alt:(.*)$", match["body"], re.M)
        yield match["target"], alt.group(1) if alt else ""


# --- checks of a whole notebook ---------------------------------------------------------------


def check_tags(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """A misspelt tag would do nothing, silently."""
    for number, cell in enumerate(notebook.cells, start=1):
        for tag in tags(cell):
            if tag not in ALLOWED_TAGS:
                yield (
                    number,
                    f"unknown tag `{tag}`",
                    f"use one of {', '.join(sorted(ALLOWED_TAGS))}",
                )


def check_counts(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """Every code cell was run, once, in order, in a fresh kernel."""
    for expected, (number, cell) in enumerate(code_cells(notebook), start=1):
        count = cell.execution_count
        if count is None:
            yield number, "has no execution count: it was not run", RERUN
        elif count != expected:
            yield number, f"has execution count {count}, expected {expected}", RERUN
        for output in cell.outputs:
            if output.get("execution_count", count) != count:
                yield (
                    number,
                    f"output of run {output.execution_count} in a cell of run {count}",
                    RERUN,
                )


def check_digests(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """Sources and outputs are those of the last run."""
    stored = notebook.metadata.get("executed", {})
    if not {"cells", "sha256", "python", "torch", "date"} <= set(stored):
        yield None, "carries no stamp of its execution", RERUN
        return
    actual = digests(notebook)
    for number, cell in code_cells(notebook):
        name = cell.get("id", "")
        if name not in stored["cells"]:
            yield number, "was added since the notebook was run", RERUN
        elif stored["cells"][name] != actual["cells"][name]:
            yield number, "source or stored outputs changed since the cell was run", RERUN
    if set(stored["cells"]) - set(actual["cells"]):
        yield None, "a code cell was removed since the notebook was run", RERUN
    elif stored["sha256"] != actual["sha256"] and stored["cells"] == actual["cells"]:
        yield None, "code cells were reordered since the notebook was run", RERUN


def check_setup_cell(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """The first code cell makes the chapter run on Colab, and the deployment can stamp it."""
    first = next(code_cells(notebook), None)
    if first is None:
        yield None, "has no code cell", "begin with the set-up cell"
    elif "remove-cell" not in tags(first[1]) or "REPOSITORY = " not in first[1].source:
        yield (
            first[0],
            "the first code cell is not the set-up cell",
            ('begin with a cell tagged `remove-cell` that holds a line `REPOSITORY = ""`'),
        )


def check_normal_form(notebook: NotebookNode) -> Iterator[CellTrouble]:
    """Nothing volatile is stored: no metadata of editors, no trailing blanks, joined streams."""
    tidy = copy.deepcopy(notebook)
    normalise(tidy)
    for number, (cell, clean) in enumerate(zip(notebook.cells, tidy.cells, strict=True), start=1):
        clean["execution_count"] = cell.get("execution_count")  # check_counts speaks of these
        for key in ("source", "metadata", "outputs"):
            if cell.get(key) != clean.get(key):
                yield number, f"{key} not in normal form", RERUN
    for key in ("metadata", "nbformat_minor"):
        if notebook[key] != tidy[key]:
            yield None, f"notebook {key} not in normal form", RERUN


NOTEBOOK_CHECKS: tuple[Callable[[NotebookNode], Iterator[CellTrouble]], ...] = (
    check_setup_cell,
    check_tags,
    check_counts,
    check_digests,
    check_normal_form,
    parts.check_placeholders,
    minutes.check_minutes,
    *fold.CHECKS,
)


def check_skips(notebook: NotebookNode, name: str, record: Record) -> Iterator[CellTrouble]:
    """Every skipped comparison is on the list with its reason, and the list holds no others."""
    skipped = set()
    for number, cell in code_cells(notebook):
        for marker in skip_markers(cell):
            skipped.add(cell.get("id"))
            if not record.skips.get((name, cell.get("id", ""))):
                yield (
                    number,
                    f"`{marker}` skips the comparison without a listed reason",
                    (f'remove it, or list cell "{cell.get("id")}" with its reason in {FILE_NAME}'),
                )
    for notebook_name, cell_id in record.skips:
        if notebook_name == name and cell_id not in skipped:
            yield None, f'{FILE_NAME} excuses cell "{cell_id}", which is not skipped', "remove it"


# --- the guard --------------------------------------------------------------------------------


def inspect(path: Path) -> Iterator[Finding]:
    """Everything that is wrong with one stored notebook."""
    try:
        notebook = load(path)
        record = Record.beside(path)
    except NotebookError as error:
        yield Finding(path, None, str(error), "restore the file from git or mend it")
        return
    for number, trouble, remedy in _troubles(notebook, path.name, record):
        yield Finding(path, number, trouble, remedy)
    if path.stat().st_size > MAX_NOTEBOOK_BYTES:
        size = f"{path.stat().st_size:,} bytes, at most {MAX_NOTEBOOK_BYTES:,}"
        yield Finding(path, None, f"heavy notebook: {size}", "show less or split the chapter")


def _troubles(notebook: NotebookNode, name: str, record: Record) -> Iterator[CellTrouble]:
    for check in NOTEBOOK_CHECKS:
        yield from check(notebook)
    for number, cell in enumerate(notebook.cells, start=1):
        checks = CODE_CHECKS if cell.cell_type == "code" else (check_markdown_images,)
        for cell_check in checks:
            for trouble, remedy in cell_check(cell):
                yield number, trouble, remedy
    yield from check_skips(notebook, name, record)
    for trouble, remedy in record.shortfalls(name, measure(notebook)):
        yield None, trouble, remedy


def inspect_missing(folder: Path) -> Iterator[Finding]:
    """Chapters that are on the record but no longer in the folder."""
    record = Record.beside(folder / FILE_NAME)
    for name in [*record.chapters, *(notebook for notebook, _ in record.skips)]:
        if not (folder / name).exists():
            yield Finding(
                folder / name,
                None,
                f"is in {FILE_NAME} but does not exist",
                ("restore the notebook, or remove its entry"),
            )


def _texts(value: object) -> Iterator[str]:
    """Every string inside stored outputs."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from _texts(item)


def _is_sentence(text: str) -> bool:
    """Whether a text could be read aloud as a description, unlike the repr of an object."""
    text = text.strip()
    return not text.startswith("<") and len(text.split()) >= 4 and text.endswith((".", "!", "?"))


def _begin(text: str | None) -> str:
    """The beginning of a text, quoted, for a message."""
    return "missing" if not text else repr(text if len(text) <= 60 else text[:57] + "...")
