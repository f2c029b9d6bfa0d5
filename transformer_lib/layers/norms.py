"""Normalisation of each vector: LayerNorm and RMSNorm.

The two functions spell the formulas out. The modules call PyTorch's fused kernels; tests hold the
two equal.
"""

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn

from transformer_lib.core.checks import check_whole
from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.shapes import expect_last


def layer_norm(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, " D"],
    bias: Float[Tensor, " D"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch D"]:
    """Shift each vector to mean 0 and scale it to variance 1, then apply weight and bias.

    Args:
        x: vectors, ``(..., D)``.
        weight: what each feature is multiplied by, ``(D,)``.
        bias: what is added to each feature, ``(D,)``.
        eps: added to the variance, inside the root, against division by zero.

    Returns:
        The normalised vectors, ``(..., D)``.

    Raises:
        ValueError: if the widths differ.

    Example:
        >>> layer_norm(torch.tensor([1.0, 2.0, 3.0]), weight=torch.ones(3))
        tensor([-1.2247,  0.0000,  1.2247])
    """
    _check_widths(x, weight, bias)
    mean = x.mean(dim=-1, keepdim=True)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)  # divides by D, not by D - 1
    normalised = weight * (x - mean) / torch.sqrt(variance + eps)
    return normalised if bias is None else normalised + bias


def rms_norm(
    x: Float[Tensor, "*batch D"], weight: Float[Tensor, " D"], eps: float = 1e-5
) -> Float[Tensor, "*batch D"]:
    """Scale each vector to root mean square 1, then apply the weight (the gain); the mean stays.

    Args:
        x: vectors, ``(..., D)``.
        weight: what each feature is multiplied by, ``(D,)``.
        eps: added to the mean square, inside the root, against division by zero.

    Returns:
        The normalised vectors, ``(..., D)``.

    Raises:
        ValueError: if the widths differ.

    Example:
        >>> rms_norm(torch.tensor([3.0, 4.0]), weight=torch.ones(2))
        tensor([0.8485, 1.1314])
    """
    _check_widths(x, weight, None)
    mean_square = x.square().mean(dim=-1, keepdim=True)
    return weight * x / torch.sqrt(mean_square + eps)


class LayerNorm(nn.Module):
    """:func:`layer_norm` with learned weight and bias, by PyTorch's kernel.

    Args:
        width: D, the width of the vectors.
        eps: added to the variance, inside the root.
        bias: whether there is a learned bias.

    Example:
        >>> LayerNorm(3)(torch.tensor([1.0, 2.0, 3.0]))
        tensor([-1.2247,  0.0000,  1.2247], grad_fn=<NativeLayerNormBackward0>)
    """

    def __init__(self, width: int, eps: float = 1e-5, *, bias: bool = True) -> None:
        super().__init__()
        check_whole("width", width)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalise each vector of ``x``, ``(..., D)``."""
        weight, bias = self.weight, self.bias
        _check_widths(x, weight, bias)
        if x.dtype == weight.dtype:
            return F.layer_norm(x, weight.shape, weight, bias, self.eps)
        with _own_dtype(x):
            added = None if bias is None else bias.to(x.dtype)
            return F.layer_norm(x, weight.shape, weight.to(x.dtype), added, self.eps)


class RMSNorm(nn.Module):
    """:func:`rms_norm` with a learned weight, by PyTorch's kernel.

    Args:
        width: D, the width of the vectors.
        eps: added to the mean square, inside the root.
        offset: added to the weight, which starts at ``1 - offset`` (Gemma: 1, so that weight decay
            pulls the gain towards 1).

    Example:
        >>> RMSNorm(2)(torch.tensor([3.0, 4.0])).detach()
        tensor([0.8485, 1.1314])
    """

    def __init__(self, width: int, eps: float = 1e-5, *, offset: float = 0.0) -> None:
        super().__init__()
        check_whole("width", width)
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalise each vector of ``x``, ``(..., D)``."""
        _check_widths(x, self.weight, None)
        if self.offset and x.element_size() < 4:  # 16 bits cannot hold 1.003: add in float32
            gain = self.weight.float() + self.offset
            return F.rms_norm(x.float(), gain.shape, gain, self.eps).to(x.dtype)
        weight = self.weight + self.offset if self.offset else self.weight
        if x.dtype == weight.dtype:
            return F.rms_norm(x, weight.shape, weight, self.eps)
        with _own_dtype(x):
            return F.rms_norm(x, weight.shape, weight.to(x.dtype), self.eps)


def make_norm(config: TransformerConfig, width: int | None = None) -> LayerNorm | RMSNorm:
    """Build the norm that a configuration asks for.

    Args:
        config: ``norm``, ``d_model``, ``norm_eps``, ``norm_offset`` and ``bias`` are read.
        width: over how many features; ``d_model`` if left out.

    Returns:
        A new norm.

    Example:
        >>> make_norm(TransformerConfig(norm="rms"))
        RMSNorm()
    """
    width = config.d_model if width is None else width
    if config.norm == "rms":
        return RMSNorm(width, config.norm_eps, offset=config.norm_offset)
    return LayerNorm(width, config.norm_eps, bias=config.bias)


def _own_dtype(x: Tensor) -> AbstractContextManager[object]:
    """Keep autocast from turning a stream of bfloat16 into float32 and back around every norm.

    The kernels compute in float32 in any case; only what goes in and out is rounded.
    """
    return torch.autocast(x.device.type, enabled=False)


def _check_widths(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    width = weight.shape
    if x.shape[-1:] == width and (bias is None or bias.shape == width):
        return  # at once, since there are many norms and they take little time
    sizes: dict[str, int] = {"D": weight.shape[-1]}
    expect_last("x", x, "D", sizes)
    if bias is not None:
        expect_last("bias", bias, "D", sizes)
