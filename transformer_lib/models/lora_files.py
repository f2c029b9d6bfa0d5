"""LoRA on disk: the adapters of a model alone, by our own names.

:mod:`transformer_lib.hugging_face.peft_format` writes and reads them as ``peft`` does.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from transformer_lib.core.files import read_object, whole_files, why_missing
from transformer_lib.models.lora import LoraSettings, add_adapters, describe_adapters, lora_layers
from transformer_lib.models.saving import Tensors

SETTINGS, WEIGHTS = "lora.json", "lora.safetensors"


def save_lora(model: nn.Module, folder: str | Path, *, base: str | None = None) -> None:
    """Write the adapters of a model, without the model.

    Args:
        model: a model with adapters.
        folder: where ``lora.json`` (what each adapter was made with) and ``lora.safetensors``
            (their matrices) are written; made if need be.
        base: where the model without adapters is, for whoever reads the folder.

    Raises:
        ValueError: if the model has no adapters, or if other parts of it are trained too: what they
            have learned would be lost.

    Example:
        >>> import tempfile
        >>> from transformer_lib import add_lora
        >>> model, other = (nn.Sequential(nn.Linear(2, 3)) for _ in "ab")
        >>> names = add_lora(model, rank=1, layers="0")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_lora(model, folder)
        ...     load_lora(other, folder)
        >>> torch.equal(model[0].down, other[0].down)
        True
    """
    check_adapters_alone(model)
    content = {"base": base, "adapters": describe_adapters(model)}
    tensors = {name: tensor.detach().contiguous() for name, tensor in _own_tensors(model).items()}
    text = json.dumps(content, indent=2) + "\n"
    with whole_files(Path(folder), WEIGHTS, SETTINGS) as (weights, settings):
        save_file(tensors, weights)
        settings.write_bytes(text.encode())


def load_lora(model: nn.Module, folder: str | Path) -> None:
    """Give a model the adapters that :func:`save_lora` has written, in place.

    Args:
        model: the model that they were trained beside, without adapters. What is no adapter is
            frozen, as by :func:`~transformer_lib.models.lora.add_lora`.
        folder: where they were written.

    Raises:
        ValueError: if a file is missing or damaged, if the model has adapters already, or if they
            do not fit it; the model is then as it was.

    Example:
        >>> load_lora(nn.Linear(2, 3), "nowhere")
        Traceback (most recent call last):
        ValueError: nowhere has no lora.json
    """
    folder = Path(folder)
    content = read_object(folder / SETTINGS)
    path = folder / WEIGHTS
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}{why_missing(path)}") from None
    put_adapters(model, read_adapters(content, folder / SETTINGS), tensors, str(folder))


def read_adapters(content: Mapping[str, object], path: Path) -> dict[str, LoraSettings]:
    """Read from JSON what adapters were made with.

    Args:
        content: an object with ``adapters``, as :func:`save_lora` writes it.
        path: where it was read, for the error message.

    Returns:
        The settings by the names of the layers.

    Raises:
        ValueError: if it is damaged.

    Example:
        >>> read_adapters({}, Path("a.json"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: a.json is damaged: adapters=None must name layers ...
    """
    adapters = content.get("adapters")
    known = adapters if isinstance(adapters, dict) else {}
    keys = set(LoraSettings.__annotations__)
    if not known or not all(isinstance(one, dict) and set(one) == keys for one in known.values()):
        wanted = "must name layers with rank, alpha and dropout"
        raise ValueError(f"{path} is damaged: {adapters=} {wanted}")
    return {name: cast(LoraSettings, one) for name, one in known.items()}


def put_adapters(
    model: nn.Module, adapters: dict[str, LoraSettings], tensors: Tensors, whose: str
) -> None:
    """Give a model adapters with their matrices, or leave it as it is and raise an error.

    Args:
        model: a model without adapters; what is no adapter is frozen.
        adapters: for the name of each layer what its adapter was made with.
        tensors: their matrices, as ``"NAME.down"`` and ``"NAME.up"``.
        whose: where they are from, for error messages.

    Raises:
        ValueError: if they do not fit the model.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3))
        >>> one = LoraSettings(rank=1, alpha=1.0, dropout=0.0)
        >>> put_adapters(model, {"0": one}, {}, "here")
        Traceback (most recent call last):
        ValueError: here: the tensor 0.down is missing
    """
    parts = dict(model.named_modules())
    wanted: dict[str, tuple[int, ...]] = {}
    for name, settings in adapters.items():
        part, rank = parts.get(name), settings["rank"]
        if part is None or not hasattr(part, "in_features"):
            raise ValueError(
                f"{whose} does not fit the model: it has an adapter for {name}, "
                "which is no linear layer of the model"
            )
        wanted[f"{name}.down"] = (rank, int(part.in_features))
        wanted[f"{name}.up"] = (int(part.out_features), rank)
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in wanted or name not in tensors:
            what = "missing" if name in wanted else "unknown"
            raise ValueError(f"{whose}: the tensor {name} is {what}")
        if (shape := tuple(tensors[name].shape)) != wanted[name]:
            fits = f"expected {wanted[name]}"
            raise ValueError(f"{whose} does not fit the model: {name} has shape {shape}; {fits}")
    with torch.random.fork_rng(devices=[]):  # nothing is drawn that is not replaced at once
        add_adapters(model, adapters)
    with torch.no_grad():
        for name, parameter in _own_tensors(model).items():
            parameter.copy_(tensors[name])


def check_adapters_alone(model: nn.Module) -> None:
    """Raise an error unless a model has adapters, and nothing else of it is trained.

    Args:
        model: the model whose adapters shall be written.

    Raises:
        ValueError: if that is not so.

    Example:
        >>> check_adapters_alone(nn.Linear(2, 3))
        Traceback (most recent call last):
        ValueError: model has no adapters; expected one that add_lora gave some
    """
    own = {id(tensor) for tensor in _own_tensors(model).values()}
    if not own:
        raise ValueError("model has no adapters; expected one that add_lora gave some")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in own:
            raise ValueError(
                f"model trains {name} beside its adapters, which would be lost; expected adapters "
                "alone: freeze it, or write the whole model with save_model"
            )


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The matrices of all adapters by their names."""
    return {
        f"{name}.{side}": getattr(layer, side)
        for name, layer in lora_layers(model).items()
        for side in ("down", "up")
    }
