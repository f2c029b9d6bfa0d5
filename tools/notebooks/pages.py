"""All that is measured on a page, the sums over the book, and the table of both."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .minutes import Minutes, minutes_of
from .model import load
from .numbers import Account, account
from .parts import ideas_of, missing_parts
from .record import Coverage, measure
from .references import Reference, further_needs, reading_order, references_forward
from .rulers import Rulers, count_lines, page_kind, rule
from .terms import CoreTerms, Use, undefined_terms

Values = dict[str, float]

# For each ruler that has a budget: how its value is told, and what helps.
PAGE_RULERS = {
    "words": ("{:,} words", "shorten the text, or make two pages of it"),
    "visible": ("{:,} visible lines of code", "show only what a learner would type"),
    "longest": ("a visible cell of {:,} lines", "break it up, or fold what is not the idea"),
    "your_file": ("a “your file” cell of {:,} lines", "keep to what the page built"),
    "excess": ("{:,} more folded lines than visible ones", "hiding is not shortening: cut them"),
    "verdicts": ("a share of {:.4g} of outputs that say only True or False", "print numbers"),
    "mentions": ("{:,} mentions of the five documents", "test the claim without a culprit"),
    "forward": ("{:,} references forward", "say the fact in half a sentence instead"),
}
CORE_RULERS = frozenset({"forward"})  # those that have a budget on core pages only
SUM_RULERS = {
    "core_words": "{:,} words on all core pages",
    "book_words": "{:,} words in the book",
    "code_lines": "{:,} lines of code in all, visible, folded and in transformer_book",
}


@dataclass(frozen=True)
class Plan:
    """What one must know of the whole book to judge one page: no other page is read for that."""

    order: tuple[str, ...]
    core: CoreTerms

    @classmethod
    def of(cls, folder: Path) -> Plan:
        """Read the contents and the core terms of a book."""
        return cls(tuple(reading_order(folder)), CoreTerms.of(folder))


@dataclass(frozen=True)
class Page:
    """Everything that is measured on one page."""

    path: Path
    kind: str | None
    rulers: Rulers
    numbers: Account
    coverage: Coverage
    lacks: tuple[str, ...]
    forward: tuple[Reference, ...]
    undefined: tuple[Use, ...]
    needs: tuple[Reference, ...]  # further pages that a core page needs
    ideas: tuple[str, ...]
    minutes: Minutes

    @property
    def name(self) -> str:
        """Such as ``05_masks``."""
        return self.path.stem

    @property
    def values(self) -> Values:
        """What the rulers with a budget show."""
        counted = {"forward": len(self.forward)}
        return {ruler: counted.get(ruler, getattr(self.rulers, ruler, 0)) for ruler in PAGE_RULERS}

    def cell_of(self, ruler: str) -> int | None:
        """The number of the cell that a ruler speaks of; None if it speaks of the page."""
        last = self.forward[-1].cell if self.forward else None
        cells = {"longest": self.rulers.longest_cell, "your_file": self.rulers.your_file_cell}
        return {**cells, "forward": last}.get(ruler)

    def detail(self, ruler: str) -> str:
        """What a finding adds to the value of a ruler."""
        if ruler != "forward" or not self.forward:
            return ""
        return f" ({', '.join(reference.page for reference in self.forward)})"


def measure_page(path: Path, plan: Plan | None = None) -> Page:
    """Measure a stored notebook; whoever measures many gives the plan of their folder."""
    notebook, name = load(path), path.stem
    order, core = (plan := plan or Plan.of(path.parent)).order, plan.core
    return Page(
        path,
        page_kind(notebook),
        rule(notebook, name),
        account(notebook),
        measure(notebook),
        missing_parts(notebook),
        references_forward(notebook, name, order),
        undefined_terms(notebook, name, order, core),
        further_needs(notebook),
        tuple(ideas_of(notebook)),
        minutes_of(notebook),
    )


def measure_sums(pages: Sequence[Page], documents: Iterable[str], helpers: Path) -> Values:
    """The sums over the whole book: printed, and enforced nowhere.

    Args:
        pages: all of them.
        documents: names of those whose words are apart.
        helpers: the package that the notebooks take code from, without its exercises.

    Returns:
        A value for each of `SUM_RULERS`.
    """
    lines = sum(page.rulers.visible + page.rulers.folded for page in pages)
    return {
        "core_words": sum(page.rulers.words for page in pages if page.kind == "core"),
        "book_words": sum(page.rulers.words for page in pages if page.name not in documents),
        "code_lines": lines + sum(map(_code_lines, _modules(helpers))),
    }


def _modules(package: Path) -> list[Path]:
    """The modules of a package, without the exercises: solutions count nowhere."""
    files = sorted(package.rglob("*.py"))
    return [file for file in files if "exercises" not in file.relative_to(package).parts]


def _code_lines(file: Path) -> int:
    """The lines of a module that are not blank, without docstrings: explaining costs nothing."""
    source = file.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        node.body[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    ]
    lines = source.splitlines()
    for docstring in docstrings:
        for row in range(docstring.lineno - 1, docstring.end_lineno or docstring.lineno):
            lines[row] = ""
    return count_lines("\n".join(lines))


# --- the table --------------------------------------------------------------------------------

_HEAD = (
    "page", "kind", "verified", "words", "visible", "longest", "folded", "set-up", "solutions",
    "verdicts", "mentions", "numbers", "loose", "minutes", "ideas", "forward", "terms", "needs",
)  # fmt: skip
LEGEND = (
    "* above its budget. verified: outputs compared / outputs. Lines of code: visible, in the "
    "longest visible cell, folded, in set-up\nand solution cells. verdicts: share of outputs that "
    "say only True or False. numbers: in the text; loose: of these, neither\nin an output nor "
    "cited. minutes: to read + for the exercises. ideas: headings that stand for one. forward: "
    "references to\nlater pages. terms: core terms used before they are defined. needs: further "
    "pages that a core page needs."
)


def table(pages: Sequence[Page], limits: Mapping[str, Values]) -> str:
    """One line for each page.

    Args:
        pages: what was measured.
        limits: the budgets of each kind of page; what is above is marked with a star.

    Returns:
        The table, for a terminal.
    """
    rows = [_HEAD, *(_row(page, limits.get(page.kind or "", {})) for page in pages)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _row(page: Page, limits: Values) -> tuple[str, ...]:
    """What the table says of a page."""
    over = {name: "*" if page.values[name] > limit else "" for name, limit in limits.items()}
    rulers, numbers, coverage = page.rulers, page.numbers, page.coverage
    return (
        page.name,
        page.kind or "?",
        f"{coverage.compared_with_output}/{coverage.with_output}",
        f"{rulers.words:,}{over.get('words', '')}",
        f"{rulers.visible}{over.get('visible', '')}",
        f"{rulers.longest}{over.get('longest', '')}",
        f"{rulers.folded}{over.get('excess', '')}",
        f"{rulers.set_up}",
        f"{rulers.solutions}",
        f"{rulers.verdicts:.2f}{over.get('verdicts', '')}",
        f"{rulers.mentions}{over.get('mentions', '')}",
        f"{numbers.said}",
        f"{len(numbers.loose)}",
        f"{page.minutes.reading}+{page.minutes.exercises}",
        f"{len(page.ideas)}",
        f"{len(page.forward)}{over.get('forward', '')}",
        f"{len(page.undefined)}{'*' * bool(page.undefined)}" if page.kind == "core" else "-",
        f"{len(page.needs)}{'*' * bool(page.needs)}" if page.kind == "core" else "-",
    )
