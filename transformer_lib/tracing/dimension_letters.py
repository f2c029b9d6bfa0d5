"""Where the letters of a shape go: a rule for each PyTorch function.

Letters travel with the tensors: ``transpose`` takes them along. None is guessed from sizes that
happen to be equal; where no rule knows a letter, the size stands for it.
"""

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import get_args

from torch import Tensor

from transformer_lib.core.shapes import LETTERS

Letters = tuple[str, ...]

STEP_LETTERS = {
    **LETTERS,
    "G": "heads with keys and values of their own, where they are fewer than H",
    "E": "experts in a mixture",
    "C": "classes",
}
UNKNOWN = "."


def declared_letters(annotation: object, x: Tensor) -> Letters:
    """Name the dimensions of an argument as its annotation does.

    Args:
        annotation: what the forward pass says of the argument; jaxtyping's have letters.
        x: what is given.

    Returns:
        A letter for each dimension, the size where the annotation has none; nothing for ``...``.

    Example:
        >>> import torch
        >>> from jaxtyping import Float
        >>> declared_letters(
        ...     Float[Tensor, "B T 3"] | None, torch.zeros(2, 5, 3)
        ... )
        ('B', 'T', '3')
    """
    kinds = (annotation, *get_args(annotation))
    names = " ".join(getattr(kind, "dim_str", "") for kind in kinds).split()
    if names == ["..."]:
        return ()
    if names and names[0].startswith("*"):  # any leading dimensions
        names = ["B", "T"][: x.ndim - len(names) + 1] + names[1:]
    if len(names) != x.ndim:
        names = [""] * x.ndim
    return tuple(
        name.lstrip("#") if name.lstrip("#") in LETTERS and (name, size) != ("#B", 1) else str(size)
        for name, size in zip(names, x.shape, strict=True)
    )


def complete_letters(moved: Letters, ends: str, shape: Sequence[int]) -> Letters:
    """Fill in what no rule knows.

    Args:
        moved: the letters that a rule gave, with dots in between, or the wrong number of them.
        ends: letters of the last dimensions, which win; a dot leaves one as it is.
        shape: the sizes, for what is still not known.

    Returns:
        A letter or a number for each dimension.

    Example:
        >>> complete_letters(("B", "T", "."), "H*Dk", (2, 3, 8))
        ('B', 'T', 'H*Dk')
        >>> complete_letters((), "H . .", (4, 3, 3))
        ('H', '3', '3')
    """
    unknown = (UNKNOWN,) * len(shape)
    last = tuple(ends.split())
    moved = moved if len(moved) == len(shape) else unknown
    said = (unknown + last)[len(last) :] if len(last) <= len(shape) else unknown
    return tuple(
        next((letter for letter in found if letter != UNKNOWN), str(size))
        for *found, size in zip(said, moved, shape, strict=True)
    )


# Each rule has the signature of PyTorch's function, with letters in the place of tensors. A dot, or
# the wrong number of letters, means: not known.


def _same(x: Letters, *_: object, **__: object) -> Letters:
    return x


def _new_last(x: Letters, *_: object, **__: object) -> Letters:
    return (*x[:-1], UNKNOWN)


def _embedding(ids: Letters, *_: object, **__: object) -> Letters:
    return (*ids, UNKNOWN)


def _matmul(a: Letters, b: Letters) -> Letters:
    return (*a[:-1], b[-1])


def _elementwise(*args: object, **_: object) -> Letters:
    """Of what meets in a dimension, the letter wins over numbers."""
    inputs = [reversed(x) for x in args if isinstance(x, tuple) and x and isinstance(x[0], str)]
    columns = zip_longest(*inputs, fillvalue="1")
    names = [{letter for letter in column if not letter.isdigit()} for column in columns]
    return tuple(found.pop() if len(found) == 1 else UNKNOWN for found in reversed(names))


def _flatten(x: Letters, start_dim: int = 0, end_dim: int = -1) -> Letters:
    """Lay dimensions side by side: H and Dk make H*Dk, Dk/2 and 2 make Dk."""
    start, end = start_dim % len(x), end_dim % len(x) + 1
    names = [letter for letter in x[start:end] if not letter.isdigit()]
    numbers = [letter for letter in x[start:end] if letter.isdigit()]
    joined = "*".join(names) if not numbers else UNKNOWN
    if len(names) == 1 and names[0].endswith("/" + "".join(numbers)):
        joined = names[0].partition("/")[0]
    return (*x[:start], joined, *x[end:])


def _unflatten(x: Letters, dim: int, sizes: tuple[int, ...]) -> Letters:
    """Cut a dimension: H*Dk into H and Dk, Dk into Dk/2 and 2."""
    letter, dim = x[dim], dim % len(x)
    parts = letter.split("*")
    if len(parts) != len(sizes):
        rest = f"{letter}/{math.prod(size for size in sizes if size != -1)}"
        parts = [rest if size == -1 and letter.isalpha() else UNKNOWN for size in sizes]
    return (*x[:dim], *parts, *x[dim + 1 :])


def _transpose(x: Letters, dim0: int, dim1: int) -> Letters:
    letters = list(x)
    letters[dim0], letters[dim1] = x[dim1], x[dim0]
    return tuple(letters)


def _swap_last_two(x: Letters) -> Letters:
    return _transpose(x, -1, -2)


def _stack(inputs: Sequence[Letters], dim: int = 0) -> Letters:
    at = dim % (len(inputs[0]) + 1)
    return (*inputs[0][:at], UNKNOWN, *inputs[0][at:])


def _unbind(x: Letters, dim: int = 0) -> Letters:
    at = dim % len(x)
    return (*x[:at], *x[at + 1 :])


def _view_as(_: Letters, other: Letters) -> Letters:
    return other


# fmt: off
ELEMENTWISE = (
    "add", "sub", "mul", "div", "neg", "exp", "to", "zeros_like", "dropout", "softmax", "relu",
    "gelu", "silu", "tanh", "sigmoid", "masked_fill", "layer_norm", "rms_norm",
)
# fmt: on
RULES: dict[str, Callable[..., Letters]] = {
    "linear": _new_last,
    "topk": _new_last,
    "embedding": _embedding,
    "matmul": _matmul,
    "mT": _swap_last_two,
    "transpose": _transpose,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "stack": _stack,
    "unbind": _unbind,
    "view_as": _view_as,
    "repeat_interleave": _same,
    "index_add": _same,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
}
