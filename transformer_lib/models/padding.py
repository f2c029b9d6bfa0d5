"""Padding in a batch: hidden, and not counted."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from transformer_lib.core.shapes import expect_shape


def hide_padding(
    name: str, real: Bool[Tensor, "B S"] | None, mask: Bool[Tensor, "..."] | None, keys: list[int]
) -> Bool[Tensor, "..."] | None:
    """Hide all keys that are not real tokens, on top of what a mask hides.

    Args:
        name: what the caller calls ``real``, for error messages.
        real: where real tokens stand, ``(B, S)``; ``None``: everywhere.
        mask: broadcastable to ``(B, H, T, S)``; ``None`` hides nothing.
        keys: their sizes, B and S.

    Returns:
        Both as one mask, ``(B, 1, 1, S)`` or larger.

    Raises:
        TypeError: if ``real`` is not boolean.
        ValueError: if a shape is another one.

    Example:
        >>> ids = torch.tensor([[0, 5, 7]])
        >>> hide_padding("real", ids != 0, None, [1, 3]).int()
        tensor([[[[0, 1, 1]]]], dtype=torch.int32)
    """
    if real is None:
        return mask
    if real.dtype != torch.bool:
        raise TypeError(f"{name} has dtype {real.dtype}; expected torch.bool, True at real tokens")
    batch, n_keys = keys
    expect_shape(name, real, "B S", {"B": batch, "S": n_keys})
    check_mask("mask", mask, n_keys)
    wide = real[:, None, None, :]  # (B, 1, 1, S)
    return wide if mask is None else mask & wide


def real_positions(real: Bool[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Number the real tokens of each row; padding is not counted, on whatever side it stands.

    Args:
        real: where real tokens stand, ``(B, S)``.

    Returns:
        How many real tokens come before each one, ``(B, S)``; what stands at padding means nothing.

    Example:
        >>> ids = torch.tensor([[5, 7, 0], [0, 0, 9]])
        >>> real_positions(ids != 0)
        tensor([[0, 1, 1],
                [0, 0, 0]])
    """
    return (real.cumsum(dim=1) - 1).clamp(min=0)


def check_mask(name: str, mask: Tensor | None, n_keys: int | None) -> None:
    """Refuse a mask that would fit by accident, before anything is stored in a cache.

    ``(B, S)`` would pass for ``(T, S)`` if B happened to equal T. ``(B, 1, 1, 1)`` of the newest
    token alone would unhide every padded key that the cache holds.

    Args:
        name: what the caller calls it, for error messages.
        mask: should broadcast to ``(B, H, T, S)``.
        n_keys: S; ``None`` if there is no memory.

    Raises:
        ValueError: if it has other than four dimensions, or another number of keys.

    Example:
        >>> check_mask("mask", torch.ones(2, 1, 1, 5).bool(), 5)
        >>> check_mask(
        ...     "mask", torch.ones(2, 5).bool(), 5
        ... )  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: mask has shape (2, 5); expected four dimensions that ...
    """
    if mask is None:
        return
    if n_keys is None:
        raise ValueError(f"{name} was given without a memory")
    shape = tuple(mask.shape)
    if mask.ndim != 4:
        raise ValueError(
            f"{name} has shape {shape}; expected four dimensions that broadcast to "
            "(B, H, T, S), such as (B, 1, 1, S) from padding_mask; what says where real tokens "
            "stand, (B, S), is an argument of its own, real"
        )
    if mask.shape[-1] != n_keys:
        included = ", those in the cache included" if name == "mask" else ""
        raise ValueError(
            f"{name} has shape {shape}; its last dimension must be the number of keys, "
            f"S={n_keys}{included}"
        )


def prompt_rows(prompt_mask: Bool[Tensor, "..."], sizes: dict[str, int]) -> Bool[Tensor, "B T"]:
    """Check where a prompt has real tokens, and give the mask two dimensions.

    Args:
        prompt_mask: ``(B, T)``, or ``(B, 1, 1, T)`` as
            :func:`~transformer_lib.training.data.pad` makes it.
        sizes: those that are known, B and T.

    Returns:
        The mask, ``(B, T)``.

    Raises:
        ValueError: if the shape is another one, or padding does not stand on the left.

    Example:
        >>> import torch
        >>> prompt_rows(
        ...     torch.tensor([[False, True, True]])[:, None, None],
        ...     {"B": 1, "T": 3},
        ... )
        tensor([[False,  True,  True]])
    """
    is_wide = prompt_mask.ndim == 4 and prompt_mask.shape[1:3] == (1, 1)
    rows = prompt_mask[:, 0, 0] if is_wide else prompt_mask
    expect_shape("prompt_mask", rows, "B T", sizes)
    if not (rows[:, -1].all() and (rows.int().diff() >= 0).all()):
        raise ValueError("prompt_mask hides a token that comes after a real one")
    return rows
