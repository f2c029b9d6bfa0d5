"""Quantised linear layers: packed weights in 8 or 4 bits (W4A16), with a scale for each group.

A row of a weight matrix is cut into groups of neighbours. A group keeps the step between its
numbers (its *scale*), and of each weight only how many steps it is away from zero (its *code*):

    scale = largest magnitude of the group / steps     steps: 127 with 8 bits, 7 with 4
    code = round(weight / scale)
    weight ≈ code * scale

Codes are as many on both sides of zero, so a group needs no zero point, and a weight of zero stays
zero. A zero point would fit groups that are not symmetric: with 4 bits and groups of 16, the
weights of the book's Shakespeare model are off by 8.6 % without and by 6.5 % with it, and its loss
on text that it has not seen rises by less than 0.005 nats either way. Scales are stored in
bfloat16, whose range is that of float32. Codes count steps of the rounded scale, so rounding it
adds next to no error.

Activations are not quantised (weight-only quantisation).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transformer_lib.core.checks import check_choice, check_divides, check_whole
from transformer_lib.core.shapes import expect_last

STEPS = {8: 127, 4: 7}  # the largest code; that of the smallest weight is its negative
_NIBBLE_ZERO = 8  # what a code of zero is stored as: half a byte has no sign


class Codes(NamedTuple):
    """Weights as whole numbers, and what one step is worth.

    Args:
        codes: how many steps each weight is away from zero, ``(m, n)``.
        scale: the step of each group, ``(m, n / group)``.

    Example:
        >>> Codes(torch.tensor([[-7, 7]]), torch.tensor([[0.5]])).codes
        tensor([[-7,  7]])
    """

    codes: Int[Tensor, "m n"]
    scale: Float[Tensor, "m groups"]


def quantize_weight(weight: Float[Tensor, "m n"], bits: int, group: int) -> Codes:
    """Round a matrix to whole numbers of steps.

    Args:
        weight: the matrix, ``(m, n)``, one row for each output.
        bits: 8 or 4.
        group: how many neighbours in a row share a scale.

    Returns:
        The codes, from -127 to 127 or from -7 to 7, and the scales.

    Raises:
        ValueError: if ``bits`` is another number, ``group`` does not divide n, or a weight is
            infinite or not a number.

    Example:
        >>> quantize_weight(
        ...     torch.tensor([[0.5, -3.5, 1.2, 0.0]]), bits=4, group=2
        ... ).codes
        tensor([[ 1, -7,  7,  0]], dtype=torch.int8)
    """
    check_sizes(weight.shape[1], bits, group)
    if not weight.isfinite().all():
        raise ValueError("weight has numbers that are infinite or not a number")
    groups = weight.float().unflatten(1, (-1, group))  # (m, n / group, group)
    scale = (groups.abs().amax(dim=2) / STEPS[bits]).bfloat16()
    scale = torch.where(scale == 0, 1, scale)  # a group of zeros has codes of zero at any scale
    codes = (groups / scale.float()[..., None]).round().clamp(-STEPS[bits], STEPS[bits])
    return Codes(codes.flatten(start_dim=1).to(torch.int8), scale)


def dequantize(
    codes: Int[Tensor, "m n"], scale: Float[Tensor, "m groups"], dtype: torch.dtype
) -> Float[Tensor, "m n"]:
    """Make weights again: each code times the scale of its group.

    Args:
        codes: how many steps each weight is away from zero, ``(m, n)``.
        scale: the step of each group, ``(m, n / group)``.
        dtype: of the result.

    Returns:
        The matrix, ``(m, n)``.

    Example:
        >>> dequantize(
        ...     *quantize_weight(torch.eye(2), 8, group=2), torch.float32
        ... )
        tensor([[0.9999, 0.0000],
                [0.0000, 0.9999]])
    """
    groups = codes.unflatten(1, (scale.shape[1], -1)).to(dtype)  # (m, n / group, group)
    weight: Tensor = groups * scale.to(dtype)[..., None]
    return weight.flatten(start_dim=1)


def pack_nibbles(codes: Int[Tensor, "m n"]) -> Integer[Tensor, "m half_n"]:
    """Put two codes of 4 bits into each byte: the first in its low half (nibble).

    Args:
        codes: from -8 to 7, ``(m, n)``, with an even n; stored as 0 to 15.

    Returns:
        The bytes, ``(m, n / 2)``.

    Example:
        >>> pack_nibbles(torch.tensor([[-7, 7]], dtype=torch.int8))
        tensor([[241]], dtype=torch.uint8)
    """
    nibbles = (codes + _NIBBLE_ZERO).view(torch.uint8)
    return nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)


def unpack_nibbles(packed: Integer[Tensor, "m half_n"]) -> Int[Tensor, "m n"]:
    """Take the codes out of bytes again: :func:`pack_nibbles` backwards.

    Args:
        packed: the bytes, ``(m, n / 2)``.

    Returns:
        The codes, ``(m, n)``.

    Example:
        >>> unpack_nibbles(torch.tensor([[241]], dtype=torch.uint8))
        tensor([[-7,  7]], dtype=torch.int8)
    """
    nibbles = torch.stack((packed & 15, packed >> 4), dim=2).flatten(start_dim=1)
    return nibbles.view(torch.int8) - _NIBBLE_ZERO


def encode(weight: Float[Tensor, "m n"], bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Quantise a matrix as a :class:`QuantizedLinear` stores it.

    Args:
        weight: the matrix, ``(m, n)``.
        bits: 8 or 4.
        group: how many neighbours in a row share a scale.

    Returns:
        Its ``codes``, of 4 bits two to a byte, and its ``scale``.

    Example:
        >>> codes, scale = encode(torch.zeros(3, 128), bits=4, group=64)
        >>> codes.shape, scale.shape
        (torch.Size([3, 64]), torch.Size([3, 2]))
    """
    codes, scale = quantize_weight(weight, bits, group)
    return pack_nibbles(codes) if bits == 4 else codes, scale


class QuantizedLinear(nn.Module):
    """A linear layer whose weights are stored in 8 or 4 bits.

    For each product the whole matrix is made again, and given up afterwards. So a model with such
    layers never holds more than one of its matrices, but a product takes longer, not shorter:
    :func:`~transformer_lib.layers.fast.quantized_kernels.use_int_kernels` has kernels that
    read the codes. Its weights cannot be trained; gradients reach what comes before the layer.

    Args:
        in_features: n, the width of its input.
        out_features: m, the width of its output.
        bits: 8 or 4.
        group: how many neighbours in a row of weights share a scale; a whole row if ``None``.
        bias: whether the layer adds constants, which are not quantised.
        device: where codes and scales are.

    Attributes:
        codes: ``(m, n)`` with 8 bits; with 4 bits two to a byte, ``(m, n / 2)``.
        scale: the step of each group, ``(m, n / group)``. It stays in bfloat16 in a model that is
            moved to another dtype.
        bias: ``(m,)``, or ``None``.

    Raises:
        ValueError: if ``bits`` is another number, or ``group`` does not divide ``in_features``.

    Example:
        >>> layer = QuantizedLinear.from_linear(nn.Linear(128, 3), bits=4)
        >>> layer.bits, layer.group
        (4, 64)
        >>> layer.codes.shape, layer.scale.shape
        (torch.Size([3, 64]), torch.Size([3, 2]))
        >>> layer(torch.zeros(2, 5, 128)).shape
        torch.Size([2, 5, 3])
    """

    codes: Tensor
    scale: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bits: int = 4,
        group: int | None = 64,
        bias: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_whole("in_features", in_features)
        check_whole("out_features", out_features)
        group = in_features if group is None else group
        check_sizes(in_features, bits, group)
        self.in_features, self.out_features = in_features, out_features
        self.bits, self.group = bits, group
        width, dtype = (in_features // 2, torch.uint8) if bits == 4 else (in_features, torch.int8)
        codes = torch.zeros(out_features, width, dtype=dtype, device=device)
        scale = torch.ones(out_features, in_features // group, dtype=torch.bfloat16, device=device)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        zeros = torch.zeros(out_features, device=device)
        self.bias = nn.Parameter(zeros, requires_grad=False) if bias else None

    @classmethod
    def from_linear(
        cls, layer: nn.Linear, bits: int = 4, group: int | None = 64
    ) -> "QuantizedLinear":
        """Quantise the weights of a layer.

        Args:
            layer: stays as it is; its bias is taken over.
            bits: 8 or 4.
            group: how many neighbours in a row of weights share a scale; a whole row if ``None``.

        Returns:
            A new layer, on the device and in the mode of the other.
        """
        n, m = layer.in_features, layer.out_features
        new = cls(n, m, bits=bits, group=group, bias=False, device=layer.weight.device)
        new.codes, new.scale = encode(layer.weight.detach(), bits, new.group)
        if layer.bias is not None:
            new.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        return new.train(layer.training)

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        """Multiply ``x``, ``(..., in_features)``, by the weights that the codes stand for."""
        expect_last("x", x, "n", {"n": self.in_features})
        if torch.is_grad_enabled() and x.requires_grad:
            # The backward pass makes the matrix again: else all matrices would be kept for it.
            product: Tensor = checkpoint(
                self._product, x, use_reentrant=False, preserve_rng_state=False
            )
            return product
        return self._product(x)

    def full_weight(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "m n"]:
        """Make the matrix that the codes stand for, ``(out_features, in_features)``."""
        codes = unpack_nibbles(self.codes) if self.bits == 4 else self.codes
        return dequantize(codes, self.scale, dtype)

    def extra_repr(self) -> str:
        """Say in one line what it is, for ``print``."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bits={self.bits}, group={self.group}, bias={self.bias is not None}"

    @property
    def has_row_scales(self) -> bool:
        """Whether codes of 8 bits have one scale for a whole row."""
        return self.bits == 8 and self.group == self.in_features

    def _product(self, x: Tensor) -> Tensor:
        if self.has_row_scales and x.dtype != torch.float16:  # sums of codes have no room in that
            # The scale can wait until after the product: so a compiler reads codes in it, and
            # never makes the matrix.
            product = F.linear(x, self.codes.to(x.dtype)) * self.scale[:, 0].to(x.dtype)
            return product if self.bias is None else product + self.bias
        return F.linear(x, self.full_weight(x.dtype), self.bias)

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]  # as in PyTorch
        scale = self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.scale.dtype != scale.dtype:  # float16 has not the range for it
            self.scale = scale.to(self.scale.device)
        return self


def check_sizes(in_features: int, bits: int, group: int) -> None:
    """Raise an error unless rows of weights can be quantised.

    Args:
        in_features: n, how long a row is.
        bits: of a code.
        group: how many neighbours share a scale.

    Raises:
        ValueError: if ``bits`` is not 8 or 4, ``group`` does not divide n, or two codes to a byte
            would leave half of one.

    Example:
        >>> check_sizes(9, bits=4, group=2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: group=2 must divide in_features=9: ...
    """
    check_choice("bits", bits, tuple(STEPS))
    check_divides("group", group, "in_features", in_features)
    if bits == 4 and in_features % 2:
        raise ValueError(f"in_features={in_features} must be even: with bits=4 two share a byte")
