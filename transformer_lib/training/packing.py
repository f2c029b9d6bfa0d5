"""Packing: several sequences in one row, so that little is padding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_lib.core.checks import check_whole
from transformer_lib.training.data import IGNORE, Batch, Ids


def pack(sequences: Sequence[Ids], length: int, pad_id: int = 0) -> Batch:
    """Fill rows with several sequences each, so that little is padding; none sees another.

    A sequence goes into the first row with room for it.

    Args:
        sequences: sequences of token ids, each with at most ``length + 1`` tokens.
        length: T, the length of the rows.
        pad_id: the id to fill up with.

    Returns:
        ``ids``, ``targets`` and ``positions``, which start anew with each sequence, ``(B, T)``;
        and ``mask``, ``(B, 1, T, T)``, where padding neither sees nor is seen. B is the number of
        rows.

    Raises:
        TypeError: if an id has a fraction.
        ValueError: if a sequence does not fit into a row, or has no next token.

    Example:
        >>> batch = pack([[5, 6, 7], [8, 9]], length=4)
        >>> batch["ids"], batch["positions"]
        (tensor([[5, 6, 8, 0]]), tensor([[0, 1, 0, 0]]))
        >>> batch["targets"]
        tensor([[   6,    7,    9, -100]])
        >>> batch["mask"][0, 0].int()
        tensor([[1, 1, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 0, 0]], dtype=torch.int32)
    """
    check_whole("length", length)
    check_whole("len(sequences)", len(sequences))
    texts = [_as_tokens(sequence, length) for sequence in sequences]
    filled: list[int] = []  # how much of each row
    places: list[tuple[int, slice]] = []  # of each sequence
    for tokens in texts:
        n = len(tokens) - 1
        row = next((row for row, used in enumerate(filled) if used + n <= length), len(filled))
        if row == len(filled):
            filled.append(0)
        places.append((row, slice(filled[row], filled[row] + n)))
        filled[row] += n
    # Only now is it known how many rows there are: the mask of one takes T * T bytes.
    ids = torch.full((len(filled), length), pad_id)
    targets = torch.full_like(ids, IGNORE)
    positions, owners = torch.zeros_like(ids), torch.zeros_like(ids)
    for owner, (tokens, place) in enumerate(zip(texts, places, strict=True), start=1):
        ids[place], targets[place] = tokens[:-1], tokens[1:]
        positions[place], owners[place] = torch.arange(len(tokens) - 1), owner
    mask = owners[:, None, :, None] == owners[:, None, None, :]
    # Padding sees nothing: by that a stack knows it, and leaves it out.
    mask &= (owners > 0)[:, None, :, None]
    return {"ids": ids, "targets": targets, "positions": positions, "mask": mask}


def _as_tokens(sequence: Ids, length: int) -> Tensor:
    """Take a sequence as a tensor; it must have a next token, and fit into a row."""
    tokens = torch.as_tensor(sequence)
    if not 2 <= len(tokens) <= length + 1:
        raise ValueError(
            f"a sequence has {len(tokens)} tokens; {length=} has room for 2 to {length + 1}"
        )
    if tokens.is_floating_point():
        raise TypeError("sequences has numbers with a fraction; expected token ids")
    return tokens.long()
