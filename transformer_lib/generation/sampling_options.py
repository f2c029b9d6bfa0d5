"""The options of sampling: each is a field, and the command line is made of the fields.

It does not import PyTorch, so that ``--help`` on the command line is fast.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from transformer_lib.core.checks import check_number, check_whole

Value = TypeVar("Value")


def _option(default: Value, words: str) -> Value:
    """A field, with the words that the command line has for it."""
    return field(default=default, metadata={"help": words})


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn. As it stands, from the model's own distribution.

    Args:
        temperature: what the logits are divided by: less than 1 sharpens the distribution, more
            flattens it; 0 takes the best token always (greedy).
        top_k: how many of the best tokens are left to draw from; ``None``: all. Tokens as good as
            the last of them stay too.
        top_p: draw from the fewest best tokens whose probabilities add up to at least this
            (nucleus sampling); 1: all.
        min_p: leave out tokens less probable than this share of the best one's probability; 0:
            none.
        repetition_penalty: what the logits of tokens that were there before are divided by, or
            multiplied by where they are negative; 1 changes nothing.

    Raises:
        ValueError: if a value is out of range.

    Example:
        >>> Sampling(temperature=0.8, top_k=40).top_p
        1.0
        >>> Sampling(top_p=0)
        Traceback (most recent call last):
        ValueError: top_p=0 must be a number greater than 0 and at most 1
    """

    temperature: float = _option(
        1.0, "0: always the most probable token; 1: as the model learned it; more: wilder"
    )
    top_k: int | None = _option(None, "draw only from the K most probable tokens")
    top_p: float = _option(
        1.0, "draw only from the most probable tokens that together reach this probability"
    )
    min_p: float = _option(
        0.0, "exclude tokens less probable than this fraction of the most probable one"
    )
    repetition_penalty: float = _option(1.0, "above 1: avoid tokens that were used before")

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, lambda x: x >= 0, "of at least 0")
        if self.top_k is not None:
            check_whole("top_k", self.top_k)
        check_number("top_p", self.top_p, lambda x: 0 < x <= 1, "greater than 0 and at most 1")
        check_number("min_p", self.min_p, lambda x: 0 <= x <= 1, "from 0 to 1")
        penalty = self.repetition_penalty
        check_number("repetition_penalty", penalty, lambda x: x > 0, "greater than 0")
