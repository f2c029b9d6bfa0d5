"""Stopping criteria: an end token (EOS), sequences, or a rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from transformer_lib.core.shapes import expect_shape
from transformer_lib.layers.embeddings import check_ids

Stop = Callable[[Tensor], Tensor] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class Ending:
    """When a row has ended, and what it is filled with then.

    Args:
        tokens: the end tokens, ``(n_ends,)``.
        stop: sequences of ids after any of which a row has ended; or a function that gets the new
            tokens so far, ``(B, n)``, and says which rows have ended, ``(B,)`` boolean.
        pad_id: fills rows that have ended.

    Raises:
        ValueError: if ``stop`` holds something else.

    Example:
        >>> ending = Ending(torch.tensor([2]), stop=[[5, 6]], pad_id=0)
        >>> ending.reached(torch.tensor([[5, 6], [5, 7], [7, 2]]))
        tensor([ True, False,  True])
    """

    tokens: Int[Tensor, " n_ends"]
    stop: Stop | None
    pad_id: int

    def __post_init__(self) -> None:
        if self.stop is None or callable(self.stop):
            return
        if len(self.stop) == 0 or not all(map(_is_ids, self.stop)):
            wanted = "must hold sequences of ids, each with one id at least"
            raise ValueError(f"stop={self.stop} {wanted}")

    @property
    def may_come(self) -> bool:
        """Whether a row can end before ``max_new_tokens``; if not, no token is checked."""
        return len(self.tokens) > 0 or self.stop is not None

    def reached(self, new: Int[Tensor, "B n"]) -> Bool[Tensor, " B"]:
        """Say which rows end with their newest token.

        Args:
            new: the new tokens so far, ``(B, n)``; rows that have ended go on with padding.

        Returns:
            ``(B,)``, boolean.

        Raises:
            ValueError: if the function ``stop`` returns something else.
        """
        ended = torch.isin(new[:, -1], self.tokens)
        if callable(self.stop):
            return ended | _checked(self.stop(new), new)
        for sequence in self.stop or ():
            start = new.shape[1] - len(sequence)
            if start >= 0:
                ended = ended | (new[:, start:] == new.new_tensor(sequence)).all(dim=1)
        return ended


def end_tokens(
    eos_id: int | Sequence[int] | None, pad_id: int, prompt: Int[Tensor, "B T"], vocab_size: int
) -> Int[Tensor, " n_ends"]:
    """Check the ids of end tokens and padding; return those of end tokens.

    Args:
        eos_id: the token after which a row has ended, or several of them, or none.
        pad_id: what fills rows that have ended.
        prompt: says where the result is to be.
        vocab_size: V, the number of different tokens.

    Returns:
        The end tokens, ``(n_ends,)``; none if they were left out.

    Raises:
        TypeError: if ids are not whole numbers.
        ValueError: if there is no such token, or an empty list.

    Example:
        >>> end_tokens([2, 3], 0, torch.tensor([[5]]), vocab_size=10)
        tensor([2, 3])
    """
    ends = list(eos_id) if isinstance(eos_id, Sequence) else [] if eos_id is None else [eos_id]
    if eos_id is not None and not ends:
        raise ValueError(f"{eos_id=} must have one id at least; leave it out if nothing ends a row")
    check_ids("eos_id and pad_id", torch.tensor([[pad_id, *ends]]), vocab_size)
    return prompt.new_tensor(ends, dtype=torch.long)


def _checked(answer: object, new: Int[Tensor, "B n"]) -> Bool[Tensor, " B"]:
    """Check what the caller's function ``stop`` returned: which rows have ended."""
    try:
        rows = torch.as_tensor(answer, device=new.device)
    except (RuntimeError, TypeError, ValueError):  # PyTorch cannot make a tensor of it
        kind = type(answer).__name__
        wanted = "expected (B,) boolean, which rows have ended"
        raise ValueError(f"what stop returned is a {kind}; {wanted}") from None
    expect_shape("what stop returned", rows, "B", {"B": len(new)})
    if rows.dtype != torch.bool:
        wanted = "can only be a tensor of torch.bool, which rows have ended"
        raise ValueError(f"what stop returned {wanted}; it is one of {rows.dtype}")
    return rows


def _is_ids(sequence: object) -> bool:
    """Whether this is a sequence of ids, with one at least."""
    if not isinstance(sequence, Sequence) or len(sequence) == 0:
        return False
    return all(isinstance(token, int) for token in sequence)
