"""A trace as a table: in a terminal and on a page."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from transformer_lib.tracing.dimension_letters import STEP_LETTERS
from transformer_lib.tracing.recorder import Step

COLUMNS = ("step", "shape", "sizes", "parameters", "FLOPs", "bytes")
SIDES = ("left", "left", "left", "right", "right", "right")
NOTE = "FLOPs: matrix products only, a multiply-add is 2. bytes: new memory; a view takes none."


@dataclass(frozen=True, repr=False)
class Trace:
    """All steps of a forward pass; prints as a table, in a notebook too.

    Args:
        model: the model's class.
        steps: in the order in which they ran.
        sizes: the size of each letter.

    Example:
        >>> import torch
        >>> from transformer_lib import FeedForward, trace
        >>> x = torch.zeros(2, 3, 4)
        >>> print(trace(FeedForward(4, 8), x))  # doctest: +ELLIPSIS
        FeedForward: 3 steps with B=2 T=3 D=4 F=8
        <BLANKLINE>
        step               shape          sizes      parameters  FLOPs  bytes
        FeedForward
          expand           B T D → B T F  (2, 3, 8)          40    384    192
          activate (ReLU)  B T F → B T F  (2, 3, 8)           -      -    192
          contract         B T F → B T D  (2, 3, 4)          36    384     96
        total                                                76    768    480
        <BLANKLINE>
        FLOPs: matrix products only, a multiply-add is 2. bytes: ...
    """

    model: str
    steps: tuple[Step, ...]
    sizes: dict[str, int]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def total(self) -> Step:
        """Parameters, FLOPs and bytes of all steps together."""
        return _sum(self.steps, "", "total")

    def __repr__(self) -> str:
        return f"Trace({self._title})"

    def to_text(self, *, fold: bool = True) -> str:
        """Write the table for a terminal.

        Args:
            fold: whether blocks that do the same as the one before them are one line.

        Returns:
            The table. Its first line has the size of each letter, the others those of outputs.
        """
        rows: list[tuple[str, ...]] = [COLUMNS]
        for section, steps in self._sections(fold):
            rows.append((section,))
            rows += [(f"  {step.what}", *_text_cells(step)) for step in steps]
        rows.append(("total", *_text_cells(self.total)))
        columns = zip(*(row for row in rows if len(row) > 1), strict=True)
        widths = [max(map(len, column)) for column in columns]
        lines = [_text_line(row, widths) if len(row) > 1 else row[0] for row in rows]
        return "\n".join([self._title, "", *lines, "", NOTE])

    def to_html(self, *, fold: bool = True) -> str:
        """Write the table for a page.

        Args:
            fold: whether blocks that do the same as the one before them are one line.

        Returns:
            A ``<table class="trace">`` without colours of its own.
        """
        head = _html_cells(COLUMNS, 'th scope="col"')
        sections = "".join(
            f'<tbody><tr><th colspan="6" scope="rowgroup" style="text-align: left">{escape(name)}'
            f"</th></tr>{''.join(map(_html_row, steps))}</tbody>"
            for name, steps in self._sections(fold)
        )
        return (
            f'<table class="dataframe trace"><caption>{escape(self._title)}. {NOTE}</caption>'
            f"<thead>{head}</thead>{sections}"
            f"<tfoot>{_html_row(self.total)}</tfoot></table>"
        )

    __str__ = to_text
    _repr_html_ = to_html

    @property
    def _title(self) -> str:
        sizes = [f"{name}={self.sizes[name]}" for name in STEP_LETTERS if name in self.sizes]
        return f"{self.model}: {len(self)} steps with {' '.join(sizes)}"

    def _sections(self, fold: bool) -> Iterator[tuple[str, Iterator[Step]]]:
        steps = _fold(self.steps) if fold else self.steps
        return groupby(steps, key=lambda step: step.section or self.model)


def _fold(steps: Sequence[Step]) -> list[Step]:
    """Replace blocks that do the same as the one before them by one line."""
    blocks = [(path, list(block)) for path, block in groupby(steps, key=_block)]
    rows: list[Step] = []
    for _, same in groupby(blocks, key=_likeness):
        (path, shown), *others = same
        rows += shown
        if others:
            first, last = others[0][0], others[-1][0].rpartition(".")[2]
            section = f"{first} to {last}" if len(others) > 1 else first
            what = f"as block {path.rpartition('.')[2]}"
            rows.append(_sum([step for _, block in others for step in block], section, what))
    return rows


def _block(step: Step) -> str:
    """The path up to its first number, such as ``"decoder.stack.blocks.0"``."""
    found = re.match(r"(.*?\.)??\d+(?=\.|$)", step.section)
    return found.group() if found else ""


def _likeness(block: tuple[str, list[Step]]) -> list[tuple[str, str]]:
    """What blocks that do the same have in common: all but numbers in their paths and shapes."""
    return [(step.what, re.sub(r"\d+", "n", step.section + _shape(step))) for step in block[1]]


def _sum(steps: Sequence[Step], section: str, what: str) -> Step:
    return Step(
        module=section,
        section=section,
        what=what,
        inputs=(),
        output="",
        input_sizes=(),
        output_sizes=(),
        parameters=sum(step.parameters for step in steps),
        flops=sum(step.flops for step in steps),
        bytes=sum(step.bytes for step in steps),
    )


def _shape(step: Step) -> str:
    return f"{', '.join(step.inputs)} → {step.output}" if step.output else ""


def _text_cells(step: Step) -> tuple[str, ...]:
    sizes = str(step.output_sizes) if step.output else ""
    counts = (f"{step.parameters:,}", _short(step.flops), _short(step.bytes))
    return (_shape(step), sizes, *("-" if count == "0" else count for count in counts))


def _text_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = (
        cell.ljust(width) if side == "left" else cell.rjust(width)
        for cell, side, width in zip(cells, SIDES, widths, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _html_row(step: Step) -> str:
    sizes = f"{', '.join(map(str, step.input_sizes))} → {step.output_sizes}" if step.output else ""
    counts = (f"{count:,}" for count in (step.parameters, step.flops, step.bytes))
    return _html_cells((escape(step.what), f"<code>{_shape(step)}</code>", sizes, *counts))


def _html_cells(cells: Sequence[str], tag: str = "td") -> str:
    row = (
        f'<{tag} style="text-align: {side}">{cell}</{tag[:2]}>'
        for cell, side in zip(cells, SIDES, strict=True)
    )
    return f"<tr>{''.join(row)}</tr>"


def _short(number: int) -> str:
    """Write a number so that it fits a narrow column."""
    for power, unit in ((12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:,.4g} {unit}"
    return f"{number:,}"
