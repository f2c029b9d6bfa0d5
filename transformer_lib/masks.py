"""Masks: which query may look at which key.

A mask is a boolean tensor in which ``True`` means *may attend*. It broadcasts to
``(B, H, T, S)``: one entry for each query position and key position. Masks are combined with
``&``. This is the polarity of ``F.scaled_dot_product_attention``; PyTorch's
``key_padding_mask`` has the other one (``True`` = ignore).
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def causal_mask(
    n_queries: int, n_keys: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "T S"]:
    """Let each position see itself and what came before it.

    With fewer queries than keys, the queries are the *last* positions (bottom-right alignment):
    that is what a decoder with a cache needs. PyTorch's own ``is_causal=True`` aligns top-left.

    Args:
        n_queries: T, the number of query positions.
        n_keys: S, the number of key positions; the same as ``n_queries`` if left out.
        device: where to build the mask.

    Returns:
        A ``(T, S)`` mask.

    Raises:
        ValueError: if a length is not positive, or there are more queries than keys.

    Example:
        >>> causal_mask(3).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        >>> causal_mask(1, 4).int()
        tensor([[1, 1, 1, 1]], dtype=torch.int32)
    """
    n_keys = n_queries if n_keys is None else n_keys
    if n_queries < 1 or n_keys < 1:
        raise ValueError(f"n_queries={n_queries} and n_keys={n_keys} must both be at least 1")
    if n_queries > n_keys:
        raise ValueError(
            f"n_queries={n_queries} is larger than n_keys={n_keys}: "
            "the first queries would have nothing to look at"
        )
    all_pairs = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return all_pairs.tril(diagonal=n_keys - n_queries)


def padding_mask(lengths: Int[Tensor, " B"], n_keys: int) -> Bool[Tensor, "B 1 1 {n_keys}"]:
    """Hide the padding at the end of each sequence from every query.

    Args:
        lengths: how many real tokens each sequence of the batch has.
        n_keys: S, the padded length.

    Returns:
        A ``(B, 1, 1, S)`` mask, the same for all heads and all queries.

    Raises:
        ValueError: if a length is negative or larger than ``n_keys``.

    Example:
        >>> padding_mask(torch.tensor([3, 1]), 3)[:, 0, 0].int()
        tensor([[1, 1, 1],
                [1, 0, 0]], dtype=torch.int32)
    """
    outside = (lengths < 0) | (lengths > n_keys)
    if outside.any():
        raise ValueError(
            f"lengths has {lengths[outside].tolist()}; each must be between 0 and n_keys={n_keys}"
        )
    positions = torch.arange(n_keys, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]
