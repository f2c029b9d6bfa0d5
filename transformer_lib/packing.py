"""Several sequences in one row, so that little is padding."""

from collections.abc import Sequence

import torch

from transformer_lib.checks import check_whole
from transformer_lib.data import IGNORE, Batch, Ids


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
    ids = torch.full((len(sequences), length), pad_id)
    targets = torch.full_like(ids, IGNORE)
    positions, owners = torch.zeros_like(ids), torch.zeros_like(ids)
    filled = [0] * len(sequences)  # how much of each row; there cannot be more rows
    for owner, sequence in enumerate(sequences, start=1):
        tokens = torch.as_tensor(sequence, dtype=torch.long)
        n = len(tokens) - 1
        if not 1 <= n <= length:
            raise ValueError(
                f"a sequence has {n + 1} tokens; {length=} has room for 2 to {length + 1}"
            )
        row = next(row for row, used in enumerate(filled) if used + n <= length)
        place = (row, slice(filled[row], filled[row] + n))
        ids[place], targets[place] = tokens[:-1], tokens[1:]
        positions[place], owners[place] = torch.arange(n), owner
        filled[row] += n
    batch = {"ids": ids, "targets": targets, "positions": positions}
    queries, keys = owners[:, None, :, None], owners[:, None, None, :]
    # Padding sees nothing: by that a stack knows it, and leaves it out.
    batch["mask"] = (queries == keys) & (queries > 0)
    n_rows = sum(used > 0 for used in filled)
    return {name: tensor[:n_rows] for name, tensor in batch.items()}
