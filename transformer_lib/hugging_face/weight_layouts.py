"""How a tensor of a Hugging Face file becomes one or more of ours, and back."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_lib.layers.positions import change_pairing
from transformer_lib.models.encoder_decoder import Encoder
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)

Model = Encoder | MaskedLM | SequenceClassifier | CausalLM | Seq2SeqLM | VisionTransformer


class Layout(NamedTuple):
    """How a file stores one tensor of ours, or several together.

    Args:
        read: takes the file's tensor and the shape of ours; returns ours.
        write: takes ours and the model; returns the file's tensor.

    Example:
        >>> TRANSPOSED.read(torch.zeros(2, 3), (3, 2))[0].shape
        torch.Size([3, 2])
    """

    read: Callable[[Tensor, Sequence[int]], Sequence[Tensor]]
    write: Callable[[Sequence[Tensor], Model], Tensor]


def _split_pairs(parts: Sequence[Tensor], model: Model) -> Tensor:
    """Order the rows of a query or key projection for the RoPE pairing of Hugging Face."""
    config = model.config
    if config.rope_pairing == "split":
        return parts[0]
    heads = parts[0].unflatten(0, (-1, config.d_head))  # (H, Dk, ...)
    turned, rest = heads[:, : config.rope_width], heads[:, config.rope_width :]
    split = change_pairing(turned.flatten(end_dim=1), len(heads), to="split").view_as(turned)
    return torch.cat((split, rest), dim=1).flatten(end_dim=1)


def _as_convolution(parts: Sequence[Tensor], model: Model) -> Tensor:
    """A linear layer over patches is a convolution whose steps are as wide as its kernel."""
    if parts[0].ndim == 1 or not isinstance(model, VisionTransformer):
        return parts[0]  # the bias
    size = model.patches.patch_size
    return parts[0].reshape(-1, model.patches.n_channels, size, size)


SAME = Layout(
    read=lambda tensor, shape: [tensor],
    write=lambda parts, model: parts[0],
)
TRANSPOSED = Layout(
    read=lambda tensor, shape: [tensor.t()],
    write=lambda parts, model: parts[0].t(),
)
FUSED = Layout(  # queries, keys and values in one transposed matrix
    read=lambda tensor, shape: [part.t() for part in tensor.chunk(3, dim=-1)],
    write=lambda parts, model: torch.cat([part.t() for part in parts], dim=-1),
)
ROTATED = Layout(  # what is read stays, since the configuration says rope_pairing="split"
    read=lambda tensor, shape: [tensor],
    write=_split_pairs,
)
JOINED_QKV = Layout(  # one below the other; there may be fewer keys and values than queries
    read=lambda tensor, shape: [tensor[: shape[0]], *tensor[shape[0] :].chunk(2)],
    write=lambda parts, model: torch.cat(
        [_split_pairs(parts[:1], model), _split_pairs(parts[1:2], model), parts[2]]
    ),
)
JOINED_GATE = Layout(  # the gate above what it gates; ours come the other way round
    read=lambda tensor, shape: list(tensor.chunk(2))[::-1],
    write=lambda parts, model: torch.cat([parts[1], parts[0]]),
)
CONVOLUTION = Layout(
    read=lambda tensor, shape: [tensor.reshape(shape)],
    write=_as_convolution,
)
BATCHED = Layout(  # with a batch dimension of 1
    read=lambda tensor, shape: [tensor.reshape(shape)],
    write=lambda parts, model: parts[0].reshape(1, -1, model.config.d_model),
)
