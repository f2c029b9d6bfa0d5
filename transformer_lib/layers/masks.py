"""Masks: which query may look at which key.

A mask is a boolean tensor in which ``True`` means *may attend*. It broadcasts to
``(B, H, T, S)``: one entry for each query position and key position. Masks are combined with
``&``. This is the polarity of ``F.scaled_dot_product_attention``; PyTorch's
``key_padding_mask`` has the other one (``True`` = ignore).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_lib.core.checks import check_whole
from transformer_lib.core.shapes import expect_shape


def query_key_distances(
    n_queries: int, n_keys: int | None = None, *, device: torch.device | str | None = None
) -> Int[Tensor, "T S"]:
    """Count how far each key stands before each query; the last query stands at the last key.

    Args:
        n_queries: T, the number of query positions.
        n_keys: S, the number of key positions; the same as ``n_queries`` if left out.
        device: where to build the table.

    Returns:
        A ``(T, S)`` table, negative where the key comes after the query.

    Raises:
        ValueError: if a length is not positive, or there are more queries than keys.

    Example:
        >>> query_key_distances(2, 4)
        tensor([[ 2,  1,  0, -1],
                [ 3,  2,  1,  0]])
    """
    n_keys = n_queries if n_keys is None else n_keys
    check_whole("n_queries", n_queries)
    check_whole("n_keys", n_keys)
    if n_queries > n_keys:
        why = "the first queries would have nothing to look at"
        raise ValueError(f"{n_queries=} is larger than {n_keys=}: {why}")
    keys = torch.arange(n_keys, device=device)
    return keys[n_keys - n_queries :, None] - keys


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
    return query_key_distances(n_queries, n_keys, device=device) >= 0


def with_causal(
    mask: Bool[Tensor, "..."] | None,
    n_queries: int,
    n_keys: int,
    *,
    device: torch.device | None = None,
) -> Bool[Tensor, "..."]:
    """Hide the future on top of what a mask hides.

    Args:
        mask: boolean, broadcastable to ``(..., T, S)``; ``None`` hides nothing.
        n_queries: T; the last query stands at the last key.
        n_keys: S.
        device: where to put the mask.

    Returns:
        Both masks in one, ``(..., T, S)``.

    Example:
        >>> first_is_padding = torch.tensor([[False, True, True]])
        >>> with_causal(first_is_padding, 2, 3).int()
        tensor([[0, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    causal = causal_mask(n_queries, n_keys, device=device)
    return causal if mask is None else mask & causal


def additive_mask(
    mask: Bool[Tensor, "..."], bias: Float[Tensor, "..."] | None, dtype: torch.dtype
) -> Float[Tensor, "..."]:
    """Write a mask as numbers to add to the scores, together with a bias.

    Args:
        mask: boolean, ``True`` = may attend.
        bias: what is added where a query may attend; 0 if left out.
        dtype: of the numbers.

    Returns:
        The bias, and the lowest finite number where a query may not attend. So a row that may
        attend to nothing has even weights, not NaN.

    Example:
        >>> additive_mask(torch.tensor([True, False]), None, torch.float32)
        tensor([ 0.0000e+00, -3.4028e+38])
    """
    free = mask.new_zeros((), dtype=dtype) if bias is None else bias.to(dtype)
    return torch.where(mask, free, torch.finfo(dtype).min)


def padding_mask(lengths: Int[Tensor, " B"], n_keys: int) -> Bool[Tensor, "B 1 1 {n_keys}"]:
    """Hide the padding at the end of each sequence from every query.

    Args:
        lengths: how many real tokens each sequence of the batch has.
        n_keys: S, the padded length.

    Returns:
        A ``(B, 1, 1, S)`` mask, the same for all heads and all queries.

    Raises:
        TypeError: if the lengths are not whole numbers.
        ValueError: if a length is negative or larger than ``n_keys``.

    Example:
        >>> padding_mask(torch.tensor([3, 1]), 3)[:, 0, 0].int()
        tensor([[1, 1, 1],
                [1, 0, 0]], dtype=torch.int32)
    """
    _check_lengths("lengths", lengths, n_keys)
    positions = torch.arange(n_keys, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def token_mask(ids: Int[Tensor, "B S"], pad_id: int) -> Bool[Tensor, "B 1 1 S"]:
    """Hide padding wherever it stands, at the end, at the start or in between.

    Args:
        ids: the padded batch, ``(B, S)``.
        pad_id: the id that fills it up.

    Returns:
        A ``(B, 1, 1, S)`` mask, the same for all heads and all queries.

    Raises:
        ValueError: if ``ids`` is not a batch of sequences.

    Example:
        >>> token_mask(torch.tensor([[5, 7, 0], [0, 0, 9]]), pad_id=0)[
        ...     :, 0, 0
        ... ].int()
        tensor([[1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    expect_shape("ids", ids, "B S", {})
    return (ids != pad_id)[:, None, None, :]


def window_mask(
    n_queries: int,
    n_keys: int | None = None,
    *,
    window: int,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "T S"]:
    """Let each position see only those nearer than ``window``, to both sides.

    Together with :func:`causal_mask` (``&``) a token sees itself and the ``window - 1`` before it.

    Args:
        n_queries: T, the number of query positions.
        n_keys: S, the number of key positions; the same as ``n_queries`` if left out.
        window: how many positions are seen to one side, the query's own included.
        device: where to build the mask.

    Returns:
        A ``(T, S)`` mask, aligned bottom-right like :func:`causal_mask`.

    Raises:
        ValueError: if a length or the window is not positive, or there are more queries than keys.

    Example:
        >>> (window_mask(4, window=2) & causal_mask(4)).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    check_whole("window", window)
    return query_key_distances(n_queries, n_keys, device=device).abs() < window


def prefix_mask(
    prefix_lengths: Int[Tensor, " B"], n_queries: int, n_keys: int | None = None
) -> Bool[Tensor, "B 1 T S"]:
    """Let every position see the whole prefix, and the rest causally (a prefix language model).

    It takes the place of :func:`causal_mask`: combining the two would hide the prefix again. So it
    is for an encoder, or a stack with ``causal=False``; a decoder hides the future in any case.

    Args:
        prefix_lengths: the length of each sequence's prefix, ``(B,)``.
        n_queries: T, the number of query positions.
        n_keys: S, the number of key positions; the same as ``n_queries`` if left out.

    Returns:
        A ``(B, 1, T, S)`` mask.

    Raises:
        TypeError: if the lengths are not whole numbers.
        ValueError: if a prefix is longer than the keys, or the lengths make no sense.

    Example:
        >>> prefix_mask(torch.tensor([2]), 4)[0, 0].int()
        tensor([[1, 1, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
    """
    causal = causal_mask(n_queries, n_keys, device=prefix_lengths.device)
    _check_lengths("prefix_lengths", prefix_lengths, causal.shape[1])
    positions = torch.arange(causal.shape[1], device=prefix_lengths.device)
    in_prefix = positions < prefix_lengths[:, None]  # (B, S)
    return in_prefix[:, None, None, :] | causal


def _check_lengths(name: str, lengths: Tensor, n_keys: int) -> None:
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {lengths.dtype}; expected whole numbers")
    expect_shape(name, lengths, "B", {})
    outside = (lengths < 0) | (lengths > n_keys)
    if not lengths.is_meta and outside.any():
        raise ValueError(
            f"{name} has {lengths[outside].tolist()}; each must be between 0 and n_keys={n_keys}"
        )
