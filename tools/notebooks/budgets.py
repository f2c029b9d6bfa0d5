"""What a page may have at most, and the list of what is above it today, which may only fall.

`budgets.yml` beside the notebooks has two halves. People write the first: the budgets, each with
its reason. `python -m tools.notebooks budgets` writes the second, below the key `today`: for each
page above a budget its value, the parts that it lacks, the numbers of its text that nothing bears
out, the core terms that it uses before they are defined, and the further pages that it needs
although it is a core page. `check` fails if a page is above its budget and above the list. A page
that has become better never fails: the next run of the tool, or of the notebook, lowers its entry.
Each page is judged alone, so that two changes which are right apart are right together; the sums
over the book are printed and enforce nothing.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from .guard import Finding
from .model import NotebookError, find_notebooks, load, show, write_atomically
from .numbers import Said
from .pages import (
    CORE_RULERS,
    LEGEND,
    PAGE_RULERS,
    SUM_RULERS,
    Page,
    Plan,
    Values,
    measure_page,
    measure_sums,
    table,
)
from .parts import PARTS
from .rulers import PAGE_KINDS, page_kind
from .terms import FILE_NAME as TERMS
from .terms import Use

FILE_NAME = "budgets.yml"
REWRITE = "`python -m tools.notebooks budgets`"
_TODAY = "\ntoday:"
_LISTS = ("lacks", "numbers", "terms", "needs")  # in the order of the fields of `Budgets`


# --- the file ---------------------------------------------------------------------------------


@dataclass
class Budgets:
    """The content of one `budgets.yml`."""

    path: Path
    written: str  # what people wrote, kept as it is
    kinds: dict[str, Values]
    documents: frozenset[str]
    listed_pages: dict[str, Values] = field(default_factory=dict)
    listed_lacks: dict[str, list[str]] = field(default_factory=dict)
    listed_numbers: dict[str, list[str]] = field(default_factory=dict)
    listed_terms: dict[str, list[str]] = field(default_factory=dict)
    listed_needs: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def beside(cls, notebook: Path) -> Budgets | None:
        """Read the budgets in the notebook's folder; None where a folder has none."""
        path = notebook.parent / FILE_NAME
        if not path.exists():
            return None
        text = path.read_text(encoding="utf-8")
        try:
            return cls._parse(path, text)
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotebookError(
                f"{show(path)}: expected `budgets` with {', '.join(PAGE_RULERS)} for each of "
                f"{', '.join(PAGE_KINDS[:-1])}, `documents`, and `today` as {REWRITE} "
                f"writes it ({type(error).__name__}: {error})"
            ) from None

    @classmethod
    def _parse(cls, path: Path, text: str) -> Budgets:
        content = yaml.safe_load(text)
        today: dict[str, Any] = content.get("today") or {}
        kinds = {
            kind: {ruler: float(content["budgets"][kind][ruler]) for ruler in _rulers_of(kind)}
            for kind in PAGE_KINDS[:-1]
        }
        pages = {page: _numeric(values) for page, values in (today.get("pages") or {}).items()}
        return cls(
            path,
            text.partition(_TODAY)[0].rstrip() + "\n",
            kinds,
            frozenset(content["documents"]),
            pages,
            *(_strings(today.get(name) or {}) for name in _LISTS),
        )

    def save(self) -> None:
        """Write the second half anew behind the first."""
        today = {
            "pages": {
                page: {ruler: _plain(value) for ruler, value in values.items()}
                for page, values in sorted(self.listed_pages.items())
                if values
            },
            **{
                name: {page: entries for page, entries in sorted(listed.items()) if entries}
                for name, listed in self.lists.items()
            },
        }
        half = yaml.safe_dump(
            {"today": today},
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=None,
            width=100,
        )
        write_atomically(self.path, f"{self.written}\n{half}")

    @property
    def lists(self) -> dict[str, dict[str, list[str]]]:
        """The lists of names, by what the file calls them."""
        return {name: getattr(self, f"listed_{name}") for name in _LISTS}

    def forget_all_but(self, pages: set[str]) -> None:
        """Drop the entries of pages that are gone."""
        everything: list[dict[str, Any]] = [self.listed_pages, *self.lists.values()]
        for listed in everything:
            for gone in listed.keys() - pages:
                del listed[gone]

    def limits(self, page: Page) -> Values:
        """The budgets of a page; pages that stand apart have none."""
        return self.kinds.get(page.kind or "", {})

    def loose(self, page: Page) -> tuple[Said, ...]:
        """The numbers of a page that nothing bears out.

        Pages about the documents are apart: they quote wrong numbers and name sections. A test
        holds each of their entries to the output of its cell.
        """
        return () if page.name in self.documents else page.numbers.loose


def _rulers_of(kind: str) -> list[str]:
    """The rulers that have a budget on a kind of page."""
    return [ruler for ruler in PAGE_RULERS if kind == "core" or ruler not in CORE_RULERS]


def _strings(listed: Mapping[str, Any]) -> dict[str, list[str]]:
    return {str(page): list(map(str, entries)) for page, entries in listed.items()}


def _numeric(values: Mapping[str, Any]) -> Values:
    return {str(name): float(value) for name, value in values.items()}


def _plain(value: float) -> float:
    """A whole number as such, so that the file says 2400 and not 2400.0."""
    return int(value) if value == int(value) else value


# --- the check --------------------------------------------------------------------------------


def _compare(
    told: tuple[str, str], value: float, limit: float, listed: float | None, whose: str
) -> tuple[str, str] | None:
    """What is wrong with one value, and how to mend it."""
    said, remedy = told
    most = f"{_plain(limit):,}"
    if value <= max(limit, listed or 0.0):
        return None
    if listed is None:
        return f"{said}, at most {most} {whose}", remedy
    listing = f"{_plain(listed):,} in {FILE_NAME}, which may only fall (budget {whose}: {most})"
    return f"{said}, {listing}", remedy


def inspect_page(page: Page, budgets: Budgets) -> Iterator[Finding]:
    """Where a page is above its budgets and above its entries in the list."""
    if page.kind is None:
        remedy = (
            f"run `python -m tools.notebooks kind {page.name} KIND`, of {', '.join(PAGE_KINDS)}"
        )
        yield Finding(page.path, None, "says no kind", remedy)
    limits, listed = budgets.limits(page), budgets.listed_pages.get(page.name, {})
    for ruler, limit in limits.items():
        cell, value, (form, remedy) = page.cell_of(ruler), page.values[ruler], PAGE_RULERS[ruler]
        told = form.format(_plain(value)) + page.detail(ruler), remedy
        if trouble := _compare(told, value, limit, listed.get(ruler), f"on a {page.kind} page"):
            yield Finding(page.path, cell, *trouble)
    yield from _inspect_parts(page, budgets)
    yield from _inspect_numbers(page, budgets)
    yield from _inspect_terms(page, budgets)
    yield from _inspect_needs(page, budgets)


def _inspect_parts(page: Page, budgets: Budgets) -> Iterator[Finding]:
    """Parts that a page lacks without being listed."""
    listed = budgets.listed_lacks.get(page.name, [])
    for name in page.lacks:
        if name not in listed:
            trouble = f"lacks a part that every {page.kind} page has: {name}"
            yield Finding(page.path, None, trouble, PARTS[name].remedy)


def _inspect_numbers(page: Page, budgets: Budgets) -> Iterator[Finding]:
    """Numbers of the text that are neither borne out nor listed."""
    left = Counter(budgets.listed_numbers.get(page.name, []))
    for said in budgets.loose(page):
        if left[said.text]:
            left[said.text] -= 1
            continue
        yield Finding(
            page.path,
            said.cell,
            f"{said.text!r} stands in no text output of the page and carries no citation "
            f"(in: {_around(said)!r})",
            "print it, cite where it comes from, or say it without the number",
        )


def _around(said: Said, reach: int = 40) -> str:
    """The words around a number."""
    place = said.sentence.find(said.text)
    return said.sentence[max(0, place - reach) : place + len(said.text) + reach].strip()


def _inspect_terms(page: Page, budgets: Budgets) -> Iterator[Finding]:
    """Core terms that are used before they are defined, without being listed."""
    listed = budgets.listed_terms.get(page.name, [])
    for use in page.undefined:
        if use.term not in listed:
            yield Finding(page.path, use.cell, *_undefined(use, page.name))


def _undefined(use: Use, page: str) -> tuple[str, str]:
    """What is wrong with the first use of a term, and how to mend it."""
    bold = f"say in the sentence where it first stands what it is, with **{use.term}** in bold"
    if use.cell is None:
        trouble = f"is to define {use.term!r} ({TERMS}, core), and never names it"
        return trouble, f"{bold}, or name another page in {TERMS}"
    where = f"(in: {textwrap.shorten(use.sentence, 90, placeholder=' …')!r})"
    if use.home == page:
        return f"uses {use.term!r} before it is defined {where}", bold
    return (
        f"uses {use.term!r}, which {use.home} defines, later in the core {where}",
        f"use other words; or {bold}, and name this page in {TERMS}",
    )


def _inspect_needs(page: Page, budgets: Budgets) -> Iterator[Finding]:
    """Further pages that a core page needs, without being listed."""
    for need in page.needs:
        if need.page not in budgets.listed_needs.get(page.name, []):
            trouble = f"is a core page and needs {need.page}, a further one"
            remedy = "bring what is needed into the core, or take the need out of the sentence"
            yield Finding(page.path, need.cell, trouble, remedy)


def book_sums(pages: Sequence[Page], budgets: Budgets) -> Values:
    """The sums over the book that a file of budgets belongs to."""
    helpers = budgets.path.parent.parent / "transformer_book"
    return measure_sums(pages, budgets.documents, helpers)


def weigh(
    paths: Sequence[Path], *, whole_book: bool = False, with_table: bool = False
) -> tuple[str, list[Finding]]:
    """Measure notebooks and compare them with the budgets in their folders.

    Args:
        paths: the notebooks; those that cannot be read are left to the guard.
        whole_book: they are all there are, so that the sums over the book can be told, too.
        with_table: tell what was measured on each page.

    Returns:
        What was measured, in words, and all that is wrong.
    """
    pages = list(_measured(paths))
    found: list[Finding] = []
    limits: dict[str, Values] = {}
    told: list[str] = []
    for folder in sorted({path.parent for path in paths}):
        budgets = Budgets.beside(folder / FILE_NAME)
        there = [page for page in pages if page.path.parent == folder]
        if budgets is None:
            if whole_book:
                found.append(Finding(folder / FILE_NAME, None, "does not exist", "restore it"))
            continue
        limits = budgets.kinds
        found += [finding for page in there for finding in inspect_page(page, budgets)]
        if whole_book:
            told.append(totals_of(there, budgets))
    if with_table:
        told.insert(0, f"{table(pages, limits)}\n{LEGEND}")
    return "\n".join(told), found


def _measured(paths: Sequence[Path]) -> Iterator[Page]:
    plans = {folder: Plan.of(folder) for folder in {path.parent for path in paths}}
    for path in paths:
        with contextlib.suppress(NotebookError):
            yield measure_page(path, plans[path.parent])


def totals_of(pages: Sequence[Page], budgets: Budgets) -> str:
    """The sums over the book and what the numbers in its text rest on, in words."""
    sums = book_sums(pages, budgets)
    lines = [SUM_RULERS[name].format(_plain(value)) for name, value in sums.items()]
    counted = [page for page in pages if page.name not in budgets.documents]
    said = sum(page.numbers.said for page in counted)
    cited = sum(page.numbers.cited for page in counted)
    loose = sum(len(page.numbers.loose) for page in counted)
    lines.append(
        f"{said:,} numbers in the text: {said - cited - loose:,} in an output of their page, "
        f"{cited} cited, {loose} loose"
    )
    return "\n".join(lines)


# --- the list ---------------------------------------------------------------------------------


def rewrite(folder: Path, chosen: Sequence[Path] = (), *, accept_more: bool) -> list[str]:
    """Bring the list of a folder up to date: lower what fell, and raise nothing unless told to.

    Args:
        folder: where the notebooks and their budgets are.
        chosen: change the entries of these pages only; without any, of all pages.
        accept_more: also list what rose or is new.

    Returns:
        What was refused, a line each.

    Raises:
        NotebookError: if there are no budgets, or a page says no kind, so that it is unknown what
            it may have.
    """
    budgets = Budgets.beside(folder / FILE_NAME)
    if budgets is None:
        raise NotebookError(f"{show(folder / FILE_NAME)}: expected the budgets of the book there")
    there, plan = find_notebooks([folder]), Plan.of(folder)
    refused: list[str] = []
    for page in (measure_page(path, plan) for path in chosen or there):
        if page.kind is None:
            raise NotebookError(f"{show(page.path)}: says no kind, expected one of {PAGE_KINDS}")
        refused += _rewrite_page(page, budgets, accept_more)
    budgets.forget_all_but({path.stem for path in there})
    budgets.save()
    return refused


def lower(notebook: Path) -> None:
    """Lower the entries of one page, where its folder has budgets and it says its kind."""
    if (notebook.parent / FILE_NAME).exists() and page_kind(load(notebook)):
        rewrite(notebook.parent, [notebook], accept_more=False)


def _rewrite_page(page: Page, budgets: Budgets, accept_more: bool) -> list[str]:
    """Lower the entries of a page."""
    values, listed = page.values, budgets.listed_pages.get(page.name, {})
    kept, rose = _lowered(values, budgets.limits(page), listed, accept_more)
    budgets.listed_pages[page.name] = kept
    refused = [f"{page.name}: {PAGE_RULERS[name][0].format(_plain(values[name]))}" for name in rose]
    for listing, names, verb in (
        (budgets.listed_lacks, page.lacks, "lacks"),
        (budgets.listed_terms, [use.term for use in page.undefined], "uses undefined"),
        (budgets.listed_needs, [need.page for need in page.needs], "needs"),
    ):
        before = listing.get(page.name, [])
        listing[page.name] = [name for name in names if accept_more or name in before]
        rest = [name for name in names if name not in listing[page.name]]
        refused += [f"{page.name}: {verb} {name}" for name in rest]
    left = Counter(budgets.listed_numbers.get(page.name, []))
    numbers = []
    for said in budgets.loose(page):
        if accept_more or left[said.text]:
            left[said.text] -= 1
            numbers.append(said.text)
        else:
            refused.append(f"{page.name}: {said.text!r} stands in no output")
    budgets.listed_numbers[page.name] = numbers
    return refused


def _lowered(
    values: Values, limits: Values, listed: Values, accept_more: bool
) -> tuple[Values, list[str]]:
    """The values to be listed, and the names of those that rose and were refused."""
    kept: Values = {}
    rose = []
    for name, limit in limits.items():
        value, most = values[name], listed.get(name, limit)
        if value > most and not accept_more:
            rose.append(name)
        if value > limit:
            kept[name] = value if accept_more else min(value, most)
    return {name: value for name, value in kept.items() if value > limits[name]}, rose
