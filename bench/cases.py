"""What a case is: one kind of work, and those who do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.races import Competitor
from transformer_lib import TransformerConfig

LIMIT = "limit"  # it copies the bytes that a run of the others must read

Answers = Mapping[str, Any]  # the first answer of every competitor that gave one


@dataclass
class Case:
    """One kind of work and those who do it.

    Args:
        title: what is measured, in a few words.
        sizes: of the model and its input, for the record.
        amount: how many tokens one run processes.
        competitors: who does it.
        check: looks at the first answers; returns what goes into the record, with ``agree``;
            ``compared`` is false if nothing could be compared.
        flops_per_token: if the share of the matrix product's speed shall be told.
        bytes_per_run: what one run must read at least, if a competitor called ``LIMIT`` copies it.
        keeps_compiled: whether the next case goes on with what was compiled for this one.
    """

    title: str
    sizes: dict[str, Any]
    amount: int
    competitors: list[Competitor]
    check: Callable[[Answers], dict[str, Any]]
    flops_per_token: float | None = None
    bytes_per_run: float | None = None
    keeps_compiled: bool = False


def sizes_of(config: TransformerConfig) -> dict[str, Any]:
    """The sizes of a model that decide how long it takes."""
    names = ("vocab_size", "d_model", "n_heads", "n_layers", "ffn_width")
    return {name: getattr(config, name) for name in names}
