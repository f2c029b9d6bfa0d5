"""From token ids or image patches to vectors."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_lib.core.checks import check_divides, check_whole
from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.shapes import expect_shape
from transformer_lib.core.thread_modes import check_modes
from transformer_lib.layers.build_parts import STANDARD_PARTS, Parts
from transformer_lib.layers.positions import AddedPositions


class Embedding(nn.Module):
    """Look up each token's vector and add what is known of its place.

    In this order: token vector, times ``sqrt(D)`` if ``scale_embeddings``; plus the position
    (sinusoidal or learned; the other schemes act later, inside attention); plus the segment; norm
    if ``norm_embeddings``; dropout.

    Args:
        config: the model's configuration.
        parts: how its norm is made, if it has one.

    Example:
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> embed = Embedding(config)
        >>> embed(torch.tensor([[5, 7, 9]]), torch.arange(3)[None]).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: TransformerConfig, *, parts: Parts = STANDARD_PARTS) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = AddedPositions(config)
        n_segments = config.n_segments
        self.segments = nn.Embedding(n_segments, config.d_model) if n_segments else None
        self.norm = parts.norm(config) if config.norm_embeddings else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        positions: Int[Tensor, "#B T"],
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Turn ids into vectors.

        Args:
            ids: token ids, ``(B, T)``.
            positions: the place of each token, ``(1, T)`` or ``(B, T)``.
            segments: the segment of each token, ``(B, T)``; 0 if left out.

        Returns:
            The start of the residual stream, ``(B, T, D)``.

        Raises:
            RuntimeError: if another thread has switched the modes for a while.
            TypeError: if ids are not whole numbers.
            ValueError: if there is no batch of ids, or an id or segment is out of range.
        """
        check_modes(self)
        check_ids("ids", ids, self.config.vocab_size)
        x = self.tokens(ids)  # (B, T, D)
        if self.config.scale_embeddings:
            x = x * math.sqrt(self.config.d_model)
        x = self.positions(x, positions)
        if self.segments is not None:
            segments = torch.zeros_like(ids) if segments is None else segments
            check_ids("segments", segments, self.config.n_segments)
            x = x + self.segments(segments)
        elif segments is not None:
            raise ValueError("segments were given, but the configuration has n_segments=0")
        x = x if self.norm is None else self.norm(x)
        stream: Tensor = self.dropout(x)
        return stream


class PatchEmbedding(nn.Module):
    """Cut images into square patches and project each to a vector (ViT).

    Args:
        image_size: height and width of the images.
        patch_size: height and width of a patch; must divide ``image_size``.
        n_channels: the number of colour channels.
        d_model: D, the width of the vectors.

    Raises:
        ValueError: if the sizes do not divide.

    Example:
        >>> PatchEmbedding(8, 4, 1, d_model=6)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 4, 6])
    """

    def __init__(self, image_size: int, patch_size: int, n_channels: int, d_model: int) -> None:
        super().__init__()
        check_divides("patch_size", patch_size, "image_size", image_size)
        check_whole("n_channels", n_channels)
        self.image_size, self.patch_size, self.n_channels = image_size, patch_size, n_channels
        self.n_patches = (image_size // patch_size) ** 2
        self.projection = nn.Linear(n_channels * patch_size**2, d_model)

    def forward(self, images: Float[Tensor, "B C height width"]) -> Float[Tensor, "B T D"]:
        """Turn images ``(B, C, height, width)`` into vectors ``(B, T, D)``, row by row."""
        expected = (self.n_channels, self.image_size, self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            wanted = f"(B, {', '.join(map(str, expected))})"
            raise ValueError(f"images has shape {tuple(images.shape)}; expected {wanted}")
        p = self.patch_size
        rows = images.unfold(2, p, p).unfold(3, p, p)  # (B, C, rows, columns, p, p)
        patches = rows.permute(0, 2, 3, 1, 4, 5).flatten(start_dim=3).flatten(1, 2)
        x: Tensor = self.projection(patches)
        return x


def check_ids(name: str, ids: Tensor, n: int) -> None:
    """Raise an error unless ids are a batch of whole numbers from 0 to ``n - 1``.

    On a GPU the range is left to PyTorch: to look at the values would make every step wait.

    Args:
        name: what the caller calls this argument, for the error message.
        ids: should be ``(B, T)``.
        n: the number of different ids.

    Raises:
        TypeError: if they are not whole numbers.
        ValueError: if the shape or a value is wrong.

    Example:
        >>> check_ids("ids", torch.tensor([[3, 10]]), n=10)
        Traceback (most recent call last):
        ValueError: ids has 10; each must be between 0 and 9
    """
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {ids.dtype}; expected whole numbers such as torch.long")
    expect_shape(name, ids, "B T", {})
    if ids.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = map(int, ids.aminmax())
        if low < 0 or high >= n:
            wrong = low if low < 0 else high
            raise ValueError(f"{name} has {wrong}; each must be between 0 and {n - 1}")
