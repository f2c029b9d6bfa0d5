"""Numbers in running text are bound: what a page says, a cell of the page has printed.

A number of the text is a decimal, a number of three digits or more (with or without thousands
separators, or written with a word: 8 billion), a percentage, or a factor ("3 times", "2.5 ×"), in
paragraphs, headings, tables and captions. Formulas, code spans, targets of links, years, numbers of
chapters and sections, names (GPT-3.5, Python 3.11) and the text of citations are apart.

It is bound if it stands, perhaps more exactly, in a text output of the same page: what a cell
prints, its value, the summary of a figure (not the figure's drawing commands); or if its sentence
or table row carries a citation. Code binds nothing: what it was given it may print. Numbers that
are not bound are loose; they stand in `budgets.yml`, in a list that may only shrink.

A small whole percentage or factor is easily met by accident. The check finds numbers that a cell
no longer prints, not every number that is used wrongly.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from .model import code_cells
from .rulers import MARKUP, caption, printed, without_formulas

# --- numbers of the text ----------------------------------------------------------------------

_UNITS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_LETTERS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NUMBER = re.compile(
    r"(?<![\w.,^_{])(?<![A-Za-z]-)"  # part of a name or of a longer number
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?:e(?P<power>-?\d+))?"
    r"(?![\d]|[.,]\d)"
    r"(?:(?P<percent>\s?%|\s(?:percent|per cent|(?:out )?of 100)\b)"
    r"|(?P<factor>\s?×(?!\s?[\d(])|\stimes\b(?!\s\d)|-?fold\b)"
    rf"|\s(?P<unit>{'|'.join(_UNITS)})\b|(?P<letter>[{''.join(_LETTERS)}])\b)?"
)
_YEAR = re.compile(r"(?:19|20)\d\d(?<!2048)")
_SECTION = r"[1-9]\d?(?:\.\d{1,2})*[a-z]?(?![\d,.]*\d)"
_APART = re.compile(
    # chapters, sections and what else is counted rather than measured
    r"(?:(?:[Ss]ection|[Cc]hapter|[Tt]able|[Ff]igure|[Ee]quation|[Ee]xercise|[Pp]art)s?|[Aa]ppendix"
    rf"|Fig\.|Eq\.|Sec\.|§)\s*(?:[A-Z]\.?)?{_SECTION}(?:(?:\s(?:and|to|or)\s|–){_SECTION})*"
    r"|(?:\b[Pp]ages?|\bpp?\.)\s\d{1,4}(?:–\d{1,4})?\b"
    # versions
    r"|(?:Python|PyTorch|CUDA|Triton|NumPy|Unicode|[Vv]ersion|[Ll][Ll]a[Mm][Aa]|GPT|Qwen|Claude"
    r"|Gemini|Gemma|Mistral|DeepSeek|Phi|OLMo)[ -]\d+(?:\.\d+)*"
    # how long a page takes, which nobody can print
    r"|\b\d+ (?:seconds|minutes|hours) to \w+|\b\d+ for the exercises"
    # dates, ids of cells, addresses
    r"|\b\d{4}-\d\d(?:-\d\d)?\b|\b\d\d[bc]?-\d{3}\b|arXiv:\S+|https?://\S+"
)


@dataclass(frozen=True)
class Said:
    """A number as the text says it."""

    text: str  # as it stands there, with its unit: "0.45", "45%", "1.5 billion"
    value: float
    step: float  # one unit of its last digit
    scales: tuple[float, ...]  # what an output may be multiplied with to be compared
    cited: bool  # whether its sentence carries a citation
    cell: int
    sentence: str


def said_in(text: str, cell: int) -> Iterator[Said]:
    """The numbers of Markdown that must be bound, sentence by sentence."""
    for sentence in sentences(text):
        cited = "](cite:" in sentence
        bare = _APART.sub(" ", LINK.sub(_link_text, sentence))
        for match in _NUMBER.finditer(bare):
            if _counts(match):
                yield _said(match, cited, cell, " ".join(bare.split()))


def _counts(match: re.Match[str]) -> bool:
    """Whether a number is one of those that must be bound."""
    digits = match["digits"]
    if match["percent"] or match["factor"] or match["unit"] or match["power"]:
        return True
    if _YEAR.fullmatch(digits) and not match["letter"]:
        return False
    return "." in digits or len(digits.replace(",", "")) >= 3


def _said(match: re.Match[str], cited: bool, cell: int, sentence: str) -> Said:
    """What a number of the text claims, and how exactly."""
    digits = match["digits"].replace(",", "")
    step = 10.0 ** -len(digits.partition(".")[2])
    if "." not in digits and len(digits) > 3:  # 262,000: said to the thousand, but never coarser
        step = 10.0 ** min(len(digits) - len(digits.rstrip("0")), len(digits) - 2)
    power = 10.0 ** int(match["power"] or 0)
    scales = [1.0]
    if match["percent"]:
        scales.append(100.0)
    if unit := _UNITS.get(match["unit"] or "") or _LETTERS.get(match["letter"] or ""):
        scales.append(1 / unit)
    text = " ".join(match.group().split())
    return Said(text, float(digits) * power, step * power, tuple(scales), cited, cell, sentence)


# --- sentences --------------------------------------------------------------------------------

LINK = re.compile(
    r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]"
    r"\((?P<target><[^>]*>|[^()]*(?:\([^()]*\)[^()]*)?)\)"
)
CODE_SPAN = re.compile(r"(`+)(?!`)[^\n]*?(?<!`)\1(?!`)")
_OPENS_A_BLOCK = re.compile(r"\s*(?:#+ |\||[-*+] |\d+\. |>|:::|```)")
_ABBREVIATION = re.compile(r"\b(al|e\.g|i\.e|vs|cf|Fig|Eq|Sec|No|pp?|approx|resp|ca)\.")
_SENTENCE_END = re.compile(r"(?<=[.!?])[*_)\"”]*\s+(?=[^a-z\s])")


def _link_text(link: re.Match[str]) -> str:
    """Of a link, what is read; of a citation nothing."""
    return " " if link["target"].startswith("cite:") else link["text"]


def sentences(text: str) -> Iterator[str]:
    """The sentences of Markdown, without formulas and code; a table row counts as one."""
    text = MARKUP.sub(" ", CODE_SPAN.sub(" ", without_formulas(text)))
    for block in blocks(text):
        yield from (block[start:end] for start, end in sentence_spans(block))


def sentence_spans(block: str) -> list[tuple[int, int]]:
    """Where each sentence of a block begins and ends; a table row counts as one."""
    if block.lstrip().startswith("|"):
        return [(0, len(block))]
    whole = _ABBREVIATION.sub(r"\1\0", block)  # a full stop that ends nothing
    gaps = [match.span() for match in _SENTENCE_END.finditer(whole)]
    starts, ends = [0, *(end for _, end in gaps)], [*(start for start, _ in gaps), len(block)]
    return list(zip(starts, ends, strict=True))


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, headings, items of lists and rows of tables."""
    block: list[str] = []
    for line in text.splitlines():
        if not line.strip() or _OPENS_A_BLOCK.match(line):
            yield " ".join(block)
            block = []
        block.append(line)
    yield " ".join(block)


# --- numbers of the page ----------------------------------------------------------------------

_SHOWN = re.compile(
    r"(?P<digits>\d{1,3}(?:[,_]\d{3})+(?:\.\d+)?|\d+(?:_\d+)*(?:\.\d*)?|\.\d+)"
    r"(?:[eE](?P<power>[+-]?\d+))?(?P<percent>\s?%)?"
)


def values_in(text: str) -> Iterator[float]:
    """Every number in a text, without sign; 45% is also 0.45, and (3,512) also 3 and 512."""
    for match in _SHOWN.finditer(text):
        digits = match["digits"]
        value = float(re.sub("[,_]", "", digits)) * 10.0 ** int(match["power"] or 0)
        yield value
        if match["percent"]:
            yield value / 100
        if "," in digits:
            yield from (float(part) for part in digits.split(","))


class Shown:
    """The numbers that a page shows, for looking up."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._values = sorted({value for text in texts for value in values_in(text)})

    def bears(self, said: Said) -> bool:
        """Whether a number that is shown becomes the one that is said when it is rounded."""
        return any(self._near(said.value / scale, said.step / scale) for scale in said.scales)

    def _near(self, value: float, step: float) -> bool:
        """Whether there is a number within half a step, the borders included."""
        reach = step / 2 + 1e-9 * max(value, step)
        place = bisect_left(self._values, value - reach)
        return place < len(self._values) and self._values[place] <= value + reach


@dataclass(frozen=True)
class Account:
    """All numbers in the text of a page, and what they rest on."""

    said: int
    cited: int
    loose: tuple[Said, ...]  # neither in an output nor cited


def account(notebook: NotebookNode) -> Account:
    """Find what every number in the text of a page rests on.

    Args:
        notebook: the page, with its outputs.

    Returns:
        How many there are, how many rest on a citation, and those that no output bears.
    """
    cells = [cell for _, cell in code_cells(notebook)]
    outputs = Shown(printed(cell) for cell in cells)
    said = [
        number
        for place, cell in enumerate(notebook.cells, start=1)
        for number in said_in(caption(cell) if cell.cell_type == "code" else cell.source, place)
    ]
    rest = [number for number in said if not outputs.bears(number)]
    loose = tuple(number for number in rest if not number.cited)
    return Account(len(said), len(rest) - len(loose), loose)
