"""The rulers: how long a page is, how much of it is code, and what its outputs say.

Hiding is not shortening: captions, title lines and comments of folded cells count as words, and
folded lines are counted beside visible ones. What the rulers may show at most stands in
`budgets.yml`; `budgets` compares.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from .fold import VISIBLE, YOUR_FILE, kind_of, title_lines
from .model import NotebookError, as_node, code_cells, load, save, show, tags

PAGE_KINDS = ("core", "further", "lab", "apart")

# --- the kind of a page -----------------------------------------------------------------------


def page_kind(notebook: NotebookNode) -> str | None:
    """What kind of page a notebook says it is; None if it says nothing that is known."""
    said = notebook.metadata.get("page", {}).get("kind")
    return said if said in PAGE_KINDS else None


def set_kind(path: Path, kind: str) -> None:
    """Write into a notebook what kind of page it is.

    Args:
        path: the notebook.
        kind: one of `PAGE_KINDS`.

    Raises:
        NotebookError: if there is no such kind.
    """
    if kind not in PAGE_KINDS:
        known = ", ".join(PAGE_KINDS)
        raise NotebookError(f"{show(path)}: no kind {kind!r}; expected one of {known}")
    notebook = load(path)
    notebook.metadata["page"] = as_node({"kind": kind})
    save(notebook, path)


# --- words ------------------------------------------------------------------------------------

_FORMULA = re.compile(r"(?<!\\)\$\$.*?(?<!\\)\$\$|(?<!\\)\$(?:(?!\n\s*\n)[^$])*(?<!\\)\$", re.S)
# Text in a directive such as ```{note} is read; code and formulas in a fence are not prose.
_FENCE = re.compile(r"^([`~]{3,})[ \t]*(?!\{(?!code|math)).*?^\1[`~]*[ \t]*$", re.M | re.S)
MARKUP = re.compile(r"<!--.*?-->|</?[a-z][^<>]*>", re.S | re.I)
_TARGET = re.compile(r"\]\((?:<[^>]*>|[^()]*(?:\([^()]*\)[^()]*)?)\)")
_WORD = re.compile(r"[A-Za-z][\w'’-]*")
_NOT_READ = ("solution", "remove-cell")  # counted apart; not on the page
_BY_TOOL = re.compile(r", \d+ for the exercises\b")  # in the line under the title
_PRAGMA = re.compile(r"#\s*(?:fmt:|noqa|type: ignore|ruff:|NBVAL|PYTEST_VALIDATE)")


def without_formulas(text: str) -> str:
    """Markdown without formulas and fenced code."""
    return _FORMULA.sub(" ", _FENCE.sub(" ", text))


def count_words(text: str) -> int:
    """The words of Markdown; formulas, fenced code and targets of links do not count."""
    text = MARKUP.sub(" ", _TARGET.sub("] ", without_formulas(text)))
    return len(_WORD.findall(text))


def comments(source: str) -> Iterator[str]:
    """The comments of code, title lines among them, without what only tools read."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and not _PRAGMA.match(token.string):
                yield token.string.removeprefix("# @title")
    except (tokenize.TokenError, SyntaxError):
        return  # a cell that is meant to fail: its comments end where Python gives up


def caption(cell: NotebookNode) -> str:
    """The caption of the figure that a cell draws."""
    return str(cell.metadata.get("mystnb", {}).get("figure", {}).get("caption", ""))


def _words_of(cell: NotebookNode) -> int:
    """How many words a reader finds in a cell."""
    if cell.cell_type != "code":
        return count_words(_BY_TOOL.sub("", cell.source))
    if kind_of(cell) in _NOT_READ:
        return 0
    source = cell.source
    if kind_of(cell) == "set-up":  # its title is generated: names of the code, no words
        source = "\n".join(source.split("\n")[len(title_lines(source)) :])
    return count_words(caption(cell)) + sum(map(count_words, comments(source)))


# --- code and outputs -------------------------------------------------------------------------

_VERDICT = re.compile(r"\b(?:True|False)\b\W*$")


def count_lines(source: str) -> int:
    """The lines that are not blank."""
    return sum(bool(line.strip()) for line in source.splitlines())


def printed(cell: NotebookNode) -> str:
    """The text of a cell's outputs: what it prints, its value, the message of an error."""
    texts = (
        str(output.get("text", output.get("data", {}).get("text/plain", output.get("evalue", ""))))
        for output in cell.get("outputs", [])
    )
    return "\n".join(texts)


def says_only_true_or_false(text: str) -> bool:
    """Whether more than half of the lines end with a verdict."""
    lines = [line for line in text.splitlines() if line.strip()]
    return 2 * sum(bool(_VERDICT.search(line)) for line in lines) > len(lines)


def _verdict_share(notebook: NotebookNode) -> float:
    """The share of text outputs that say only True or False; figures and solutions apart."""
    outputs = [
        printed(cell)
        for _, cell in code_cells(notebook)
        if kind_of(cell) not in _NOT_READ
        and not any(set(output.get("data", {})) - {"text/plain"} for output in cell.outputs)
        and any(output.output_type != "error" for output in cell.outputs)
    ]
    outputs = [text for text in outputs if text.strip()]
    return round(sum(map(says_only_true_or_false, outputs)) / max(1, len(outputs)), 4)


# --- mentions of the five documents -----------------------------------------------------------

_VERB = (
    "says|say|said|writes|wrote|calls|prints|gives|claims|puts|shows|states|names|lists|tells|asks"
    "|means|leaves|counts|draws|has|uses|takes|is right|is wrong|forgot|does"
    "|warns|adds|speaks|quotes"
)
_ALONE = r"(?<!\d )(?<![\w√$\\{(=.*`_'-])[A-E]"  # no variable, no matrix
CULPRIT = re.compile(
    r"\b[Ss]ources? [A-E]\b|\b[Dd]ocuments? [A-E]\b|\b[Ss]ources A to E\b|\b[Ff]ive sources\b"
    r"|\b[Ff]ive (?:public )?documents\b|\bthe documents?\b|\b[Ii]n the sources\b|cite:source[A-E]"
    rf"|{_ALONE}(?:'s|’s)(?= [a-z`*])|{_ALONE} (?:{_VERB})\b|\bX-[A-E]\d\d\b|\b[Ee]rrat(?:um|a)\b"
)
# Checked by eye: words that look like a culprit and are none, and the few that may speak of them.
EXCEPTIONS = {
    "glossary": ("erratum", "five documents", "X-A11"),
}


def mentions(page: str, texts: Iterable[str]) -> list[str]:
    """All mentions of the five documents in the texts of a page, with the words around each."""
    found = []
    for text in texts:
        for exception in EXCEPTIONS.get(page, ()):
            text = text.replace(exception, "")
        for match in CULPRIT.finditer(text):
            found.append(text[max(match.start() - 30, 0) : match.end() + 30].replace("\n", " "))
    return found


def texts_of(notebook: NotebookNode) -> Iterator[str]:
    """What a reader sees of a notebook: words, code, captions and what else its cells show."""
    for cell in notebook.cells:
        yield cell.source
        yield json.dumps(cell.metadata.get("mystnb", {}), ensure_ascii=False)
        yield printed(cell)


# --- all rulers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rulers:
    """What the rulers show of one page."""

    words: int
    visible: int
    longest: int
    longest_cell: int | None
    your_file: int
    your_file_cell: int | None
    folded: int
    set_up: int
    solutions: int
    verdicts: float
    mentions: int

    @property
    def excess(self) -> int:
        """How many more lines are folded than visible."""
        return max(0, self.folded - self.visible)


def rule(notebook: NotebookNode, page: str) -> Rulers:
    """Apply every ruler to a notebook.

    Args:
        notebook: the page.
        page: its name, such as ``05_masks``.

    Returns:
        What each of them shows.
    """
    cells = [(kind_of(cell), count_lines(cell.source), n) for n, cell in code_cells(notebook)]
    visible = [(lines, number) for kind, lines, number in cells if kind in VISIBLE]
    for_file = {number for number, cell in code_cells(notebook) if YOUR_FILE in tags(cell)}
    longest, longest_cell = max((c for c in visible if c[1] not in for_file), default=(0, None))
    your_file, your_file_cell = max((c for c in visible if c[1] in for_file), default=(0, None))
    apart: Counter[str] = Counter()
    for kind, lines, _ in cells:
        apart[kind] += lines
    return Rulers(
        words=sum(map(_words_of, notebook.cells)),
        visible=sum(lines for lines, _ in visible),
        longest=longest,
        longest_cell=longest_cell,
        your_file=your_file,
        your_file_cell=your_file_cell,
        folded=apart["fold"],
        set_up=apart["set-up"],
        solutions=apart["solution"],
        verdicts=_verdict_share(notebook),
        mentions=len(mentions(page, texts_of(notebook))),
    )
