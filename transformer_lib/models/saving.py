"""Models on disk: their class, arguments and weights."""

import json
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import NotRequired, Protocol, TypedDict, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from transformer_lib.core.checks import check_choice
from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.files import whole_files, why_missing
from transformer_lib.layers.build_parts import STANDARD_PARTS, Parts
from transformer_lib.models import language_models as models
from transformer_lib.models.lora import LoraSettings, add_adapters, describe_adapters
from transformer_lib.models.quantization import QuantizedLayers, describe_quantized, make_room

Tensors = dict[str, Tensor]
_ClassName = TypedDict("_ClassName", {"class": str})  # a word that cannot be a field below

_CLASSES: dict[str, Callable[..., nn.Module]] = {
    "CausalLM": models.CausalLM,
    "Seq2SeqLM": models.Seq2SeqLM,
    "MaskedLM": models.MaskedLM,
    "SequenceClassifier": models.SequenceClassifier,
    "VisionTransformer": models.VisionTransformer,
}
# Parts of tensors' names in files of version 0.1, and what they are called now.
_OLD_NAMES = {"gain": "weight", "expand": "up", "contract": "down"}


class ModelDescription(_ClassName):
    """How a model can be built again, ready for JSON.

    Args:
        class: the name of its class.
        arguments: what the class was called with.
        parts: the names of what makes those of its parts that are not the library's.
        adapters: what the adapters of its layers were made with, if it has some.
        quantized: bits and group of each layer whose weights are quantised, if there are some.

    Example:
        >>> described = describe_model(nn.Linear(2, 3))
        >>> described == ModelDescription({"class": "Linear", "arguments": {}})
        True
    """

    arguments: dict[str, object]
    parts: NotRequired[dict[str, str]]
    adapters: NotRequired[dict[str, LoraSettings]]
    quantized: NotRequired[QuantizedLayers]


@runtime_checkable
class _Tokenizer(Protocol):
    """What can write itself to a file, as the tokenizers of this library can."""

    def save(self, path: Path) -> None: ...


def save_model(
    model: nn.Module,
    folder: str | Path,
    *,
    tokenizer: _Tokenizer | None = None,
    card: str | None = None,
) -> None:
    """Write a model so that :func:`load_model` can build it again.

    Args:
        model: one of the models of ``models``. Of parts of its own only the names are written: who
            loads it gives them again. Adapters (LoRA) are written with it, beside their layers, and
            quantised layers as they are.
        folder: where ``model.json`` (class and arguments) and ``model.safetensors`` (weights by our
            own names, tied ones once) are written; made if need be.
        tokenizer: written beside it as ``tokenizer.json``.
        card: what there is to say about the model, in Markdown; written as ``README.md``.

    Raises:
        ValueError: if the model is of another class.

    Example:
        >>> import tempfile
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(models.CausalLM(config), folder)
        ...     model = load_model(folder)
        >>> model(torch.tensor([[5, 7, 9]])).shape
        torch.Size([1, 3, 100])
    """
    description = describe_model(model)
    check_choice("model", description["class"], tuple(_CLASSES))
    tensors = without_copies(model, model.state_dict())
    writers: dict[str, Callable[[Path], object]] = {
        "model.safetensors": partial(save_file, tensors)
    }
    if tokenizer is not None:
        writers["tokenizer.json"] = tokenizer.save
    if card is not None:
        writers["README.md"] = partial(Path.write_bytes, data=card.encode())
    text = json.dumps(description, indent=2)
    writers["model.json"] = partial(Path.write_bytes, data=text.encode())  # load_model begins here
    with whole_files(Path(folder), *writers) as temporary:
        for write, path in zip(writers.values(), temporary, strict=True):
            write(path)


def load_model(
    folder: str | Path, device: str | torch.device = "cpu", *, parts: Parts = STANDARD_PARTS
) -> nn.Module:
    """Build the model that :func:`save_model` has written.

    Args:
        folder: where it was written.
        device: where the model shall be.
        parts: how attention, networks and norms are made, if the model had some of its own.

    Returns:
        The model in evaluation mode, in float32. Of layers that were quantised no full weights are
        made, and the other weights are frozen, as
        :func:`~transformer_lib.models.quantization.quantize` left them.

    Raises:
        ValueError: if a file is missing, damaged or of another kind, or parts are not given.

    Example:
        >>> load_model("nowhere")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: nowhere/model.json cannot be read: ...
    """
    path = Path(folder) / "model.json"
    try:
        description = json.loads(path.read_bytes())
        check_choice("class", description["class"], tuple(_CLASSES))
        _check_parts(parts, description.get("parts", {}))
        arguments = dict(description["arguments"])
        if "config" in arguments:
            arguments["config"] = TransformerConfig(**arguments["config"])
        quantized: QuantizedLayers = description.get("quantized", {})
        # On this device weights take no memory.
        place = torch.device("meta") if quantized else nullcontext()
        with torch.random.fork_rng(devices=[]), place:  # as if no weights were drawn
            model = _CLASSES[description["class"]](**arguments, parts=parts)
            if "adapters" in description:
                add_adapters(model, description["adapters"])
            if quantized:  # by its names, a layer that has an adapter is in it
                make_room(model, quantized)
        path = Path(folder) / "model.safetensors"
        tensors = with_current_names(load(path.read_bytes()), model.state_dict())
        check_tensors(model, tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}{why_missing(path)}") from None
    if quantized:
        _take_over(model, tensors)
    else:
        model.load_state_dict(tensors, strict=False)  # those that are missing are tied
    return model.to(device).eval()


def describe_model(model: nn.Module) -> ModelDescription:
    """Say of which class a model is, and with which arguments it was built.

    Args:
        model: any module; the arguments are known for those that :func:`save_model` takes.

    Returns:
        ``class`` and ``arguments``, ready for JSON; and ``parts``, the names of what makes those
        that are not the library's, ``adapters`` and ``quantized``, if there are any.

    Example:
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> described = describe_model(
        ...     models.SequenceClassifier(config, n_classes=3)
        ... )
        >>> described["class"], described["arguments"]["n_classes"]
        ('SequenceClassifier', 3)
    """
    arguments: dict[str, object] = {}
    config = getattr(model, "config", None)
    if isinstance(config, TransformerConfig):
        arguments["config"] = asdict(config)
    if isinstance(model, models.SequenceClassifier):
        arguments["n_classes"] = model.classifier.out_features if model.classifier else 0
        arguments["pooling"] = "cls" if model.pooler else "mean"
    elif isinstance(model, models.VisionTransformer):
        for name in ("image_size", "patch_size", "n_channels"):
            arguments[name] = getattr(model.patches, name)
        arguments["n_classes"] = model.classifier.out_features
    description: ModelDescription = {"class": type(model).__name__, "arguments": arguments}
    own_parts = _own_parts(getattr(model, "parts", None))
    if own_parts:
        description["parts"] = own_parts
    if adapters := describe_adapters(model):
        description["adapters"] = adapters
    if quantized := describe_quantized(model):
        description["quantized"] = quantized
    return description


def _take_over(model: nn.Module, tensors: Tensors) -> None:
    """Give stored tensors to a model on the device meta; those that it ties are one."""
    places = model.state_dict(keep_vars=True)
    stored: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        place = places[name]
        converted = tensor.to(place.dtype)
        is_weight = isinstance(place, nn.Parameter)
        stored[id(place)] = nn.Parameter(converted) if is_weight else converted
    model.load_state_dict({name: stored[id(places[name])] for name in places}, assign=True)
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise ValueError(
                f"{name} is not stored, and without full weights nothing makes it: load the model "
                "that was quantised, and quantize it again"
            )


def _own_parts(parts: object) -> dict[str, str]:
    """Name what makes those parts that are not the library's, such as ``{"norm": "mine.Norm"}``."""
    if not isinstance(parts, Parts):
        return {}
    makers = {field.name: getattr(parts, field.name) for field in fields(parts)}
    return {
        name: f"{make.__module__}.{getattr(make, '__qualname__', type(make).__qualname__)}"
        for name, make in makers.items()
        if make is not getattr(STANDARD_PARTS, name)
    }


def _check_parts(parts: Parts, wanted: dict[str, str]) -> None:
    missing = {name: wanted[name] for name in wanted.keys() - _own_parts(parts).keys()}
    if missing:
        listed = ", ".join(f"{name}={missing[name]}" for name in sorted(missing))
        raise ValueError(f"the model has parts of its own; expected parts=Parts({listed})")


def without_copies(model: nn.Module, state: Tensors) -> Tensors:
    """Leave out the tensors that a model ties to earlier ones.

    Args:
        model: the model.
        state: its state dict, or one that was gathered from several processes.

    Returns:
        What has to be stored.

    Example:
        >>> model = models.CausalLM(
        ...     TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        ... )
        >>> (
        ...     model.state_dict().keys()
        ...     - without_copies(model, model.state_dict()).keys()
        ... )
        {'output.projection.weight'}
    """
    ours = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(ours.items())}
    return {name: state[name].contiguous() for name in sorted(first.values()) if name in state}


def with_current_names(tensors: Tensors, known: Collection[str] = ()) -> Tensors:
    """Give tensors of an old file the names that they have now.

    Args:
        tensors: what a file holds.
        known: names that stay, since the model has them: a part of your own may have a ``gain``.

    Returns:
        The same tensors; ``gain`` is ``weight``, ``expand`` is ``up``, ``contract`` is ``down``.

    Example:
        >>> list(
        ...     with_current_names(
        ...         {"blocks.0.feed_forward.expand.bias": torch.zeros(1)}
        ...     )
        ... )
        ['blocks.0.feed_forward.up.bias']
    """
    return {
        name
        if name in known
        else ".".join(_OLD_NAMES.get(part, part) for part in name.split(".")): tensor
        for name, tensor in tensors.items()
    }


def check_tensors(model: nn.Module, tensors: Tensors) -> None:
    """Raise an error unless stored tensors are those of a model.

    Args:
        model: the model that shall get them.
        tensors: what :func:`without_copies` gave for it, or for another one.

    Raises:
        ValueError: if one is missing, unknown or of another shape.

    Example:
        >>> check_tensors(nn.Linear(2, 3), {"weight": torch.zeros(3, 2)})
        Traceback (most recent call last):
        ValueError: the tensor bias is missing
    """
    wanted = without_copies(model, model.state_dict())
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors or name not in wanted:
            what = "missing" if name in wanted else "unknown"
            raise ValueError(f"the tensor {name} is {what}")
        if tensors[name].shape != wanted[name].shape:
            shapes = tuple(tensors[name].shape), tuple(wanted[name].shape)
            raise ValueError(f"the tensor {name} has shape {shapes[0]}; expected {shapes[1]}")
