"""Models and checkpoints on disk: whole, or not at all."""

import json
import os
import shutil
import warnings
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from transformer_lib import heads, recurrent
from transformer_lib.config import TransformerConfig
from transformer_lib.shapes import check_choice

Tensors = dict[str, Tensor]
_CLASSES: dict[str, type[nn.Module]] = {
    "CausalLM": heads.CausalLM,
    "Seq2SeqLM": heads.Seq2SeqLM,
    "MaskedLM": heads.MaskedLM,
    "SequenceClassifier": heads.SequenceClassifier,
    "VisionTransformer": heads.VisionTransformer,
    "RecurrentClassifier": recurrent.RecurrentClassifier,
    "RecurrentSeq2Seq": recurrent.RecurrentSeq2Seq,
}


def save_model(
    model: nn.Module, folder: str | Path, *, tokenizer: Any = None, card: str | None = None
) -> None:
    """Write a model so that :func:`load_model` can build it again.

    Args:
        model: one of the models of ``heads`` or ``recurrent``.
        folder: where ``model.json`` (class and arguments) and ``model.safetensors`` (weights by our
            own names, tied ones once) are written; made if need be.
        tokenizer: written beside it as ``tokenizer.json``.
        card: what there is to say about the model, in Markdown; written as ``README.md``.

    Raises:
        ValueError: if the model is of another class.

    Example:
        >>> import tempfile
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2, n_layers=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(heads.CausalLM(config), folder)
        ...     model = load_model(folder)
        >>> model(torch.tensor([[5, 7, 9]])).shape
        torch.Size([1, 3, 100])
    """
    description = describe_model(model)
    check_choice("model", description["class"], tuple(_CLASSES))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "model.safetensors", save(once(model, model.state_dict())))
    write_file(folder / "model.json", _json(description))
    if tokenizer is not None:
        tokenizer.save(folder / "tokenizer.json")
    if card is not None:
        write_file(folder / "README.md", card.encode())


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> nn.Module:
    """Build a model that :func:`save_model` or a checkpoint of a training run has written.

    Args:
        folder: a folder with ``model.json`` and ``model.safetensors``.
        device: where the model shall be.

    Returns:
        The model in evaluation mode.

    Raises:
        ValueError: if a file is missing, damaged or of another kind.

    Example:
        >>> load_model("nowhere")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: nowhere/model.json is missing or damaged: ...
    """
    path = Path(folder) / "model.json"
    description = _read(path)
    try:
        check_choice("class", description["class"], tuple(_CLASSES))
        arguments = dict(description["arguments"])
        if "config" in arguments:
            arguments["config"] = TransformerConfig(**arguments["config"])
        with torch.device("meta"):  # no memory and no time for weights that are replaced anyway
            model = _CLASSES[description["class"]](**arguments)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no model of this library: {error}") from None
    path = Path(folder) / "model.safetensors"
    parameters: Tensors = {name: nn.Parameter(tensor) for name, tensor in _read(path).items()}
    model.load_state_dict(for_every_name(model, parameters, str(path)), assign=True)
    return model.to(device).eval()


def describe_model(model: nn.Module) -> dict[str, Any]:
    """Say of which class a model is, and with which arguments it was built.

    Args:
        model: any module; the arguments are known for the models of this library.

    Returns:
        ``class`` and ``arguments``, ready for JSON.

    Example:
        >>> describe_model(recurrent.RecurrentClassifier("gru", 10, d_model=8, n_classes=3))
        ... # doctest: +NORMALIZE_WHITESPACE
        {'class': 'RecurrentClassifier',
         'arguments': {'kind': 'gru', 'vocab_size': 10, 'd_model': 8, 'n_classes': 3}}
    """
    arguments: dict[str, Any] = {}
    config = getattr(model, "config", None)
    if isinstance(config, TransformerConfig):
        arguments["config"] = asdict(config)
    match model:
        case heads.SequenceClassifier():
            last = model.classifier
            arguments["n_classes"] = 0 if last is None else last.out_features
            arguments["pooling"] = "mean" if model.pooler is None else "cls"
        case heads.VisionTransformer():
            for name in ("image_size", "patch_size", "n_channels"):
                arguments[name] = getattr(model.patches, name)
            arguments["n_classes"] = model.classifier.out_features
        case recurrent.RecurrentClassifier():
            kinds = {cell: kind for kind, cell in recurrent.CELLS.items()}
            arguments["kind"] = kinds[type(model.recurrent.cell)]
            arguments["vocab_size"], arguments["d_model"] = model.embedding.weight.shape
            arguments["n_classes"] = model.head.out_features
        case recurrent.RecurrentSeq2Seq():
            arguments["vocab_size"], arguments["d_model"] = model.source_embedding.weight.shape
            arguments["attention"] = model.attention is not None
    return {"class": type(model).__name__, "arguments": arguments}


def once(model: nn.Module, state: Tensors) -> Tensors:
    """Leave out every tensor that a model ties to an earlier one.

    Args:
        model: the model.
        state: its state dict.

    Returns:
        The tensors that have to be stored.

    Example:
        >>> model = heads.CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> model.state_dict().keys() - once(model, model.state_dict()).keys()
        {'output.projection.weight'}
    """
    return {
        name: state[name].contiguous()
        for name, first in _first_names(model).items()
        if name == first
    }


def for_every_name(model: nn.Module, tensors: Tensors, whose: str) -> Tensors:
    """Turn stored tensors into a state dict; tied names get the same tensor.

    Args:
        model: the model that shall get them.
        tensors: what :func:`once` gave.
        whose: where they come from, for the error message.

    Returns:
        A tensor for every name of the model's state.

    Raises:
        ValueError: if one is missing, unknown or of another shape.

    Example:
        >>> for_every_name(nn.Linear(2, 3), {"weight": torch.zeros(3, 2)}, "a.safetensors")
        Traceback (most recent call last):
        ValueError: a.safetensors lacks the tensor bias
    """
    names, shapes = _first_names(model), model.state_dict()
    for name in sorted(set(names.values()) ^ tensors.keys()):
        has = "lacks the tensor" if name in names else "has an unknown tensor"
        raise ValueError(f"{whose} {has} {name}")
    for name, tensor in tensors.items():
        if tensor.shape != shapes[name].shape:
            ours, theirs = tuple(shapes[name].shape), tuple(tensor.shape)
            raise ValueError(f"{whose}: {name} has shape {theirs}; expected {ours}")
    return {name: tensors[first] for name, first in names.items()}


def write_file(path: Path, content: bytes) -> None:
    """Write a file under its name only when all of it is on the disk.

    Args:
        path: the file; one that is there already is replaced.
        content: what it shall hold.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_file(Path(folder) / "a.txt", b"whole")
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync(path.parent)


def write_checkpoint(folder: Path, step: int, files: dict[str, dict[str, Any]], keep: int) -> None:
    """Write all that a training run needs to go on, in a folder of its own.

    The folder gets its name only when it is complete, so that whoever is killed in between leaves
    nothing that could be taken for a checkpoint.

    Args:
        folder: where checkpoints are; the new one is called ``step-00000100`` or the like.
        step: the number of updates so far.
        files: what each file shall hold: tensors if its name ends in ``.safetensors``, else JSON.
        keep: how many checkpoints are left, this one included; older ones are removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (1, 2, 3):
        ...         write_checkpoint(Path(folder), step, {"state.json": {"step": step}}, keep=2)
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['step-00000002', 'step-00000003']
    """
    for leftover in folder.glob(".*"):  # of somebody who was killed
        shutil.rmtree(leftover)
    final = folder / f"step-{step:08d}"
    growing = folder / f".{final.name}"
    growing.mkdir(parents=True)
    checksums = {}
    for name, held in files.items():
        content = save(held) if name.endswith(".safetensors") else _json(held)
        checksums[name] = zlib.crc32(content)
        write_file(growing / name, content)
    write_file(growing / "checksums.json", _json(checksums))
    _discard(final)  # one of that name is damaged, or training would have gone on from it
    growing.rename(final)
    _sync(folder)
    for old in sorted(folder.glob("step-*"))[:-keep]:
        _discard(old)


def read_checkpoint(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the newest checkpoint that is sound; a damaged one is said and passed over.

    Nothing but time is lost then: training is exact, so the older checkpoint leads to the same end.

    Args:
        folder: where checkpoints are.

    Returns:
        What each file holds, as given to :func:`write_checkpoint`; empty if there is no checkpoint.

    Raises:
        ValueError: if there are checkpoints, and all are damaged.

    Example:
        >>> read_checkpoint(Path("nowhere"))
        {}
    """
    found = sorted(folder.glob("step-*"), reverse=True)
    for path in found:
        try:
            checksums = _read(path / "checksums.json")
            return {name: _read(path / name, checksum) for name, checksum in checksums.items()}
        except ValueError as error:
            warnings.warn(f"a damaged checkpoint is passed over: {error}", stacklevel=2)
    if found:
        raise ValueError(f"all checkpoints in {folder} are damaged; remove them to start anew")
    return {}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Every name in the state dict, and the first name of the same tensor."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _read(path: Path, checksum: int | None = None) -> dict[str, Any]:
    """What a file of JSON or of tensors holds; an error names the file."""
    try:
        content = path.read_bytes()
        if checksum is not None and zlib.crc32(content) != checksum:
            raise ValueError("its checksum differs")
        held = json.loads(content) if path.suffix == ".json" else load(content)
        if not isinstance(held, dict):
            raise ValueError("expected names and values")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{path} is missing or damaged: {error}") from None
    return held


def _discard(path: Path) -> None:
    """Remove a checkpoint; whoever is killed meanwhile leaves no half of it under its name."""
    if path.exists():
        gone = path.rename(path.with_name(f".old-{path.name}"))
        shutil.rmtree(gone)


def _sync(folder: Path) -> None:
    """Make new names in a folder last; Windows has no call for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
