"""Quantisation: the linear layers of a model in 8 or 4 bits.

A model is quantised after it was trained, one layer after the other, from its weights alone
(round to nearest). No data are needed.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.layers.feedforward import MixtureOfExperts
from transformer_lib.layers.quantized_linear import QuantizedLinear, check_sizes
from transformer_lib.models.blocks import Block

QuantizedLayers = dict[str, dict[str, int]]  # bits and group of each quantised layer, by its name


class LayerReport(NamedTuple):
    """What became of one layer.

    Args:
        name: as in ``model.named_modules()``.
        bytes_before: what its weights and constants took.
        bytes_after: what codes, scales and constants take.
        relative_error: the length of the difference of the weights, divided by their length.
        largest_error: the largest difference of a weight.

    Example:
        >>> LayerReport("output.projection", 4_000, 625, 0.1, 0.02).bytes_after
        625
    """

    name: str
    bytes_before: int
    bytes_after: int
    relative_error: float
    largest_error: float


class QuantizationReport(NamedTuple):
    """What became of a model.

    Args:
        bytes_before: what all tensors of the model took, tied ones once.
        bytes_after: what they take now.
        relative_error: as of a layer, over the weights of all that were quantised.
        layers: those that were quantised.

    Example:
        >>> layer = LayerReport("output.projection", 4_000, 625, 0.1, 0.02)
        >>> print(QuantizationReport(9_000, 5_625, 0.1, (layer,)))
        1 layers: 9,000 -> 5,625 bytes, weights off by 10.0 %, at most by 0.02
    """

    bytes_before: int
    bytes_after: int
    relative_error: float
    layers: tuple[LayerReport, ...]

    @property
    def largest_error(self) -> float:
        """The largest difference of a weight."""
        return max(layer.largest_error for layer in self.layers)

    def __str__(self) -> str:
        sizes = f"{self.bytes_before:,} -> {self.bytes_after:,} bytes"
        errors = f"weights off by {self.relative_error:.1%}, at most by {self.largest_error:.2g}"
        return f"{len(self.layers)} layers: {sizes}, {errors}".replace("%", " %")


def quantize(
    model: nn.Module,
    bits: int = 4,
    group: int | None = 64,
    *,
    layers: Collection[str] | None = None,
) -> QuantizationReport:
    """Store the weights of linear layers in 8 or 4 bits; the model is changed in place.

    Only one layer at a time exists in both forms. What is left of the model's parameters is frozen:
    a quantised model is not trained, though adapters beside its layers may be. It is saved and
    loaded as before (:func:`~transformer_lib.models.saving.save_model`).

    Args:
        model: any model, on any device.
        bits: 8 or 4.
        group: how many neighbours in a row of weights share a scale; a whole row if ``None``.
            Smaller groups are more exact and take more scales, of 16 bits each.
        layers: names of linear layers, as in ``model.named_modules()``. If left out, all in blocks
            but the routers of experts: embeddings, norms and the output layer keep their weights.

    Returns:
        How many bytes the model took and takes, and how far its weights are off.

    Raises:
        TypeError: if ``layers`` is a string, or names what is no linear layer.
        ValueError: if a setting does not fit a layer, if a layer has hooks or was changed, if the
            model has no such layer, or is quantised already. The model is as it was, then.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=64, n_heads=2, n_layers=2
        ... )
        >>> model = CausalLM(config).eval()
        >>> report = quantize(model, bits=4)
        >>> len(report.layers), report.bytes_before, report.bytes_after
        (12, 425472, 84480)
        >>> model(torch.tensor([[5, 7, 9]])).shape
        torch.Size([1, 3, 100])
    """
    chosen = _layers_in_blocks(model) if layers is None else _named_layers(model, layers)
    if not chosen:
        raise ValueError("layers is empty; expected names of linear layers")
    for layer, names in chosen:
        _check_sizes(names[0], layer, bits, group)
        _check_weight(names[0], layer)
    bytes_before = _count_bytes(model)
    reports: list[LayerReport] = []
    squares = torch.zeros(2, dtype=torch.float64)  # of the differences, and of the weights
    while chosen:
        layer, names = chosen.pop(0)  # with its place in the model, all that holds its weights
        quantized = QuantizedLinear.from_linear(layer, bits, group)
        for name in names:
            model.set_submodule(name, quantized)
        report, more = _compare(names[0], layer, quantized)
        reports.append(report)
        squares += more
        del layer
    model.requires_grad_(False)
    error = math.sqrt(squares[0] / squares[1]) if squares[1] else 0.0
    return QuantizationReport(bytes_before, _count_bytes(model), error, tuple(reports))


def describe_quantized(model: nn.Module) -> QuantizedLayers:
    """Say which layers of a model are quantised, and how, ready for JSON.

    Args:
        model: any module.

    Returns:
        ``bits`` and ``group`` of each of them, by its name.

    Example:
        >>> describe_quantized(nn.Sequential(QuantizedLinear(128, 3)))
        {'0': {'bits': 4, 'group': 64}}
    """
    return {
        name: {"bits": part.bits, "group": part.group}
        for name, part in model.named_modules(remove_duplicate=False)
        if isinstance(part, QuantizedLinear)
    }


def choose_layers(model: nn.Module, bits: int, group: int | None) -> QuantizedLayers:
    """Say which layers :func:`quantize` takes if none are named; their weights need not be there.

    Args:
        model: any model, also on the device ``meta``.
        bits: 8 or 4.
        group: how many neighbours in a row of weights share a scale; a whole row if ``None``.

    Returns:
        ``bits`` and ``group`` of each of them, by its name.

    Raises:
        ValueError: as :func:`quantize`.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> with torch.device("meta"):
        ...     model = CausalLM(TransformerConfig(n_layers=1))
        >>> found = choose_layers(model, bits=8, group=None)
        >>> found["decoder.stack.blocks.0.feed_forward.down"]
        {'bits': 8, 'group': 2048}
    """
    settings: QuantizedLayers = {}
    for layer, names in _layers_in_blocks(model):
        own_group = _check_sizes(names[0], layer, bits, group)
        settings |= {name: {"bits": bits, "group": own_group} for name in names}
    return settings


def make_room(model: nn.Module, settings: QuantizedLayers) -> None:
    """Put quantised layers without content into the places of linear ones, to be loaded into.

    The other parameters are frozen, unless some are already: it was said what is trained, then.

    Args:
        model: changed in place; usually on the device ``meta``, where weights take no memory.
        settings: what :func:`describe_quantized` said of the model that was saved.

    Raises:
        TypeError: if a name is not that of a linear layer.
        ValueError: if there is no such name, or a setting does not fit.

    Example:
        >>> with torch.device("meta"):
        ...     model = nn.Sequential(nn.Linear(128, 3))
        >>> make_room(model, {"0": {"bits": 8, "group": 128}})
        >>> model[0].codes.shape, model[0].codes.device
        (torch.Size([3, 128]), device(type='meta'))
    """
    if all(parameter.requires_grad for parameter in model.parameters()):
        model.requires_grad_(False)
    for layer, names in _named_layers(model, settings):
        empty = QuantizedLinear(
            layer.in_features, layer.out_features, **settings[names[0]],
            bias=layer.bias is not None, device=layer.weight.device,
        )  # fmt: skip
        for name in names:
            model.set_submodule(name, empty)


# Layers, and under which names a model has them: most have one.
_Chosen = list[tuple[nn.Linear, list[str]]]


def _layers_in_blocks(model: nn.Module) -> _Chosen:
    """The linear layers in blocks; what a router says decides which expert runs, so it stays."""
    done = next(iter(describe_quantized(model)), None)
    if done is not None:
        raise ValueError(f"model is quantised already, as {done} is; expected full weights")
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    routers = [part.router for part in model.modules() if isinstance(part, MixtureOfExperts)]
    inside = {part for block in blocks for part in block.modules()} - set(routers)
    found = [name for name, part in model.named_modules() if part in inside and _is_linear(part)]
    if not found:
        raise ValueError("model has no linear layers in blocks; expected some, or layers=[names]")
    return _named_layers(model, found)


def _named_layers(model: nn.Module, names: Collection[str]) -> _Chosen:
    """The layers of these names, each with all names under which the model has it."""
    if isinstance(names, str):
        raise TypeError(f"layers has type str; expected a collection of names, such as [{names!r}]")
    parts = dict(model.named_modules(remove_duplicate=False))
    known_as: dict[nn.Module, list[str]] = {}
    for name, part in parts.items():
        known_as.setdefault(part, []).append(name)
    chosen: _Chosen = []
    for name in names:
        if name not in parts:
            raise ValueError(f"layers holds {name!r}, and model has no module of that name")
        part = parts[name]
        if isinstance(part, QuantizedLinear):
            raise ValueError(f"layers holds {name!r}, which is quantised already")
        if not isinstance(part, nn.Linear) or not _is_linear(part):
            kind = type(part).__name__
            raise TypeError(f"{name} has type {kind}; expected an nn.Linear in layers")
        if all(part is not layer for layer, _ in chosen):
            chosen.append((part, known_as[part]))
    return chosen


def _is_linear(part: nn.Module) -> bool:
    return type(part) is nn.Linear  # a subclass may multiply in another way


def _check_sizes(name: str, layer: nn.Linear, bits: int, group: int | None) -> int:
    """Refuse settings that do not fit a layer; return its group."""
    own_group = layer.in_features if group is None else group
    try:
        check_sizes(layer.in_features, bits, own_group)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return own_group


def _check_weight(name: str, layer: nn.Linear) -> None:
    if touched := Fingerprint([layer]).touched:
        raise ValueError(f"{name} was changed ({', '.join(touched)}); expected a layer as built")
    if layer.weight.is_meta:
        raise ValueError(f"{name} is on the device meta; expected weights that are there")
    if not layer.weight.isfinite().all():
        raise ValueError(f"{name} has weights that are infinite or not a number")


def _compare(name: str, layer: nn.Linear, quantized: QuantizedLinear) -> tuple[LayerReport, Tensor]:
    """What became of a layer, and the sums of squares of differences and of weights."""
    weight = layer.weight.detach().float()
    difference = quantized.full_weight() - weight
    squares = torch.stack([x.double().square().sum().cpu() for x in (difference, weight)])
    error = math.sqrt(squares[0] / squares[1]) if squares[1] else 0.0
    largest = float(difference.abs().max())
    sizes = _count_bytes(layer), _count_bytes(quantized)
    return LayerReport(name, *sizes, error, largest), squares


def _count_bytes(model: nn.Module) -> int:
    """What a model's tensors take, tied ones once."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
