"""Shapes: the letters of every dimension, and checks that name them.

Each letter of ``LETTERS`` means one dimension everywhere: in the prose, in comments, in type
annotations and in error messages. Any other letter, such as N or G, belongs to the function that
uses it, whose docstring says what it counts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

LETTERS = {
    "B": "batch: sequences processed together",
    "T": "positions of the target or only sequence; the queries' length",
    "S": "positions of the source; the keys' and values' length",
    "H": "attention heads",
    "D": "d_model, the width of the residual stream",
    "Dk": "d_head, the width of one query or key",
    "F": "d_ff, the inner width of the feed-forward network",
    "V": "vocab_size, the number of different tokens",
}


def describe(tensor: Tensor, letters: str) -> str:
    """Write a tensor's shape with the letter of each dimension.

    Args:
        tensor: any tensor.
        letters: one letter, name or number for each dimension, separated by spaces, such as
            ``"B T D"`` or ``"H T Dk"``.

    Returns:
        The named sizes, such as ``"B=2 T=6 D=512"``; a plain number stays as it is.

    Raises:
        ValueError: if the number of letters is not the number of dimensions.

    Example:
        >>> import torch
        >>> describe(torch.zeros(2, 6, 512), "B T D")
        'B=2 T=6 D=512'
        >>> describe(torch.zeros(8, 6, 64), "H T Dk")
        'H=8 T=6 Dk=64'
    """
    names = letters.split()
    if len(names) != tensor.ndim:
        found = f"the tensor has {tensor.ndim}: {tuple(tensor.shape)}"
        raise ValueError(f"letters names {len(names)} dimensions ({letters!r}) but {found}")
    return " ".join(
        name if name.isdigit() else f"{name}={size}"
        for name, size in zip(names, tensor.shape, strict=True)
    )


def expect_last(name: str, tensor: Tensor, letters: str, known: dict[str, int]) -> None:
    """Check a tensor's last dimensions and remember the size of each new letter.

    Args:
        name: what the caller calls this argument, for the error message.
        tensor: the tensor to check; leading dimensions are free.
        letters: the letters of the last dimensions, such as ``"T Dk"``.
        known: sizes of the letters seen so far; new letters are added to it.

    Raises:
        ValueError: if there are too few dimensions, a dimension is empty, or a letter already
            known has another size.

    Example:
        >>> import torch
        >>> sizes = {}
        >>> expect_last("q", torch.zeros(5, 8), "T Dk", sizes)
        >>> sizes
        {'T': 5, 'Dk': 8}
        >>> k = torch.zeros(7, 6)
        >>> expect_last("k", k, "S Dk", sizes)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: k has shape (7, 6); expected (..., S, Dk) with Dk=8...
    """
    _expect(name, tensor, letters, known, leading=True)


def expect_shape(name: str, tensor: Tensor, letters: str, known: dict[str, int]) -> None:
    """Check all dimensions of a tensor and remember the size of each new letter.

    Args:
        name: what the caller calls this argument, for the error message.
        tensor: the tensor to check.
        letters: the letters of all its dimensions, such as ``"B T D"``.
        known: sizes of the letters seen so far; new letters are added to it.

    Raises:
        ValueError: if the number of dimensions is another one, a dimension is empty, or a letter
            already known has another size.

    Example:
        >>> import torch
        >>> expect_shape("x", torch.zeros(5, 64), "B T D", {"D": 64})
        Traceback (most recent call last):
        ValueError: x has shape (5, 64); expected (B, T, D)
    """
    _expect(name, tensor, letters, known, leading=False)


def _expect(name: str, tensor: Tensor, letters: str, known: dict[str, int], leading: bool) -> None:
    """Check the last dimensions; others may come before them only if ``leading``."""
    names, shape = letters.split(), tuple(tensor.shape)
    if len(shape) < len(names) or (len(shape) > len(names) and not leading):
        raise ValueError(f"{name} has shape {shape}; expected {_wanted(names, leading)}")
    for letter, size in zip(names, shape[-len(names) :], strict=True):
        if size == 0:
            zero = f"{letter} in {_wanted(names, leading)} may not be 0"
            raise ValueError(f"{name} has shape {shape}; {zero}")
        if known.setdefault(letter, size) != size:
            sizes = f"with {letter}={known[letter]}, got {letter}={size}"
            expected = f"expected {_wanted(names, leading)} {sizes}"
            raise ValueError(f"{name} has shape {shape}; {expected}")


def _wanted(names: Sequence[str], leading: bool) -> str:
    return f"({', '.join(['...'] * leading + list(names))})"


def check_streams(x: Tensor, memory: Tensor | None, d_model: int) -> None:
    """Raise an error unless what attention reads from has the width of the model.

    Args:
        x: should be ``(B, T, D)``.
        memory: should be ``(B, S, D)``, if there is one.
        d_model: D.

    Raises:
        ValueError: if a shape is another one.

    Example:
        >>> import torch
        >>> x, memory = torch.zeros(2, 5, 8), torch.zeros(2, 7, 4)
        >>> check_streams(x, memory, d_model=8)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: memory has shape (2, 7, 4); expected (B, S, D) with D=8...
    """
    sizes = {"D": d_model}
    expect_shape("x", x, "B T D", sizes)
    if memory is not None:
        expect_shape("memory", memory, "B S D", sizes)


def check_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None
) -> None:
    """Raise an error that names the argument unless all that attention reads fits together.

    Args:
        q: queries, ``(..., T, Dk)``.
        k: keys, ``(..., S, Dk)``.
        v: values, ``(..., S, Dv)``.
        mask: boolean, broadcastable to ``(..., T, S)``.
        bias: broadcastable to ``(..., T, S)``.

    Raises:
        TypeError: if a dtype is another one than expected.
        ValueError: if a shape is.

    Example:
        >>> import torch
        >>> q, k = torch.zeros(5, 64), torch.zeros(7, 64)
        >>> check_attention(q, k.half(), k.half(), None, None)
        Traceback (most recent call last):
        TypeError: k has dtype torch.float16; expected that of q, torch.float32
    """
    if not q.is_floating_point():
        raise TypeError(f"q has dtype {q.dtype}; expected floating-point numbers")
    for name, tensor in {"k": k, "v": v}.items():
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected that of q, {q.dtype}")
    sizes: dict[str, int] = {}
    expect_last("q", q, "T Dk", sizes)
    expect_last("k", k, "S Dk", sizes)
    expect_last("v", v, "S Dv", sizes)
    try:
        batch = _broadcast(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except RuntimeError:
        raise ValueError(
            "the leading dimensions of q, k and v must broadcast together; "
            f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        ) from None
    scores_shape = (*batch, sizes["T"], sizes["S"])
    if mask is not None:
        if mask.dtype != torch.bool:
            wanted = "torch.bool with True = may attend (for a 0/1 mask: mask.bool())"
            raise TypeError(f"mask has dtype {mask.dtype}; expected {wanted}")
        _check_fits("mask", mask, scores_shape)
    if bias is not None:
        _check_fits("bias", bias, scores_shape)


def _check_fits(name: str, tensor: Tensor, scores_shape: tuple[int, ...]) -> None:
    """Raise an error unless a mask or bias broadcasts to the scores' shape."""
    try:
        fits = tensor.ndim >= 2 and _broadcast(tensor.shape, scores_shape) == scores_shape
    except RuntimeError:
        fits = False
    if not fits:
        wanted = f"one that broadcasts to the scores, (..., T, S) = {scores_shape}"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {wanted}")


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(shapes)) == 1:  # what PyTorch would take its time to find out
        return tuple(shapes[0])
    return tuple(torch.broadcast_shapes(*shapes))
