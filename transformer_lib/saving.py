"""Models and checkpoints on disk: whole, or not at all.

The checksum of a checkpoint (CRC-32) tells damage by accident. It is no protection from people: who
changes a file on purpose can change the checksum too.
"""

import json
import os
import platform
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save, save_file
from torch import Tensor, nn

from transformer_lib import models
from transformer_lib.checks import check_choice
from transformer_lib.config import TransformerConfig

if sys.platform != "win32":
    import fcntl

Tensors = dict[str, Tensor]
_HEADS = ("CausalLM", "Seq2SeqLM", "MaskedLM", "SequenceClassifier", "VisionTransformer")
_CLASSES = {name: getattr(models, name) for name in _HEADS}
# Parts of tensors' names in files of version 0.1, and what they are called now.
_OLD_NAMES = {"gain": "weight", "expand": "up", "contract": "down"}
LOCK = ".lock"  # the file that is locked in a folder
_CHECKPOINT = re.compile(r"step-\d{8,}-[0-9a-f]{8}\.safetensors")  # the step, and the checksum
_UNFINISHED = re.compile(rf"\.{_CHECKPOINT.pattern}\.part")


def save_model(
    model: nn.Module, folder: str | Path, *, tokenizer: Any = None, card: str | None = None
) -> None:
    """Write a model so that :func:`load_model` can build it again.

    Args:
        model: one of the models of ``models``.
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
    with whole_files(Path(folder), *writers) as parts:
        for write, part in zip(writers.values(), parts, strict=True):
            write(part)


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> nn.Module:
    """Build the model that :func:`save_model` has written.

    Args:
        folder: where it was written.
        device: where the model shall be.

    Returns:
        The model in evaluation mode, in float32.

    Raises:
        ValueError: if a file is missing, damaged or of another kind.

    Example:
        >>> load_model("nowhere")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: nowhere/model.json cannot be read: ...
    """
    path = Path(folder) / "model.json"
    try:
        description = json.loads(path.read_bytes())
        check_choice("class", description["class"], tuple(_CLASSES))
        arguments = dict(description["arguments"])
        if "config" in arguments:
            arguments["config"] = TransformerConfig(**arguments["config"])
        with torch.random.fork_rng(devices=[]):  # as if no weights were drawn only to be replaced
            model: nn.Module = _CLASSES[description["class"]](**arguments)
        path = Path(folder) / "model.safetensors"
        tensors = with_current_names(load(path.read_bytes()))
        check_tensors(model, tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}{why_missing(path)}") from None
    model.load_state_dict(tensors, strict=False)  # those that are missing are tied
    return model.to(device).eval()


def describe_model(model: nn.Module) -> dict[str, Any]:
    """Say of which class a model is, and with which arguments it was built.

    Args:
        model: any module; the arguments are known for those that :func:`save_model` takes.

    Returns:
        ``class`` and ``arguments``, ready for JSON.

    Example:
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> described = describe_model(models.SequenceClassifier(config, n_classes=3))
        >>> described["class"], described["arguments"]["n_classes"]
        ('SequenceClassifier', 3)
    """
    arguments: dict[str, Any] = {}
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
    return {"class": type(model).__name__, "arguments": arguments}


def without_copies(model: nn.Module, state: Tensors) -> Tensors:
    """Leave out the tensors that a model ties to earlier ones.

    Args:
        model: the model.
        state: its state dict, or one that was gathered from several processes.

    Returns:
        What has to be stored.

    Example:
        >>> model = models.CausalLM(TransformerConfig(vocab_size=100, d_model=8, n_heads=2))
        >>> model.state_dict().keys() - without_copies(model, model.state_dict()).keys()
        {'output.projection.weight'}
    """
    ours = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(ours.items())}
    return {name: state[name].contiguous() for name in sorted(first.values()) if name in state}


def with_current_names(tensors: Tensors) -> Tensors:
    """Give tensors of an old file the names that they have now.

    Args:
        tensors: what a file holds.

    Returns:
        The same tensors: ``gain`` is ``weight``, ``expand`` is ``up``, ``contract`` is ``down``.

    Example:
        >>> list(with_current_names({"blocks.0.feed_forward.expand.bias": torch.zeros(1)}))
        ['blocks.0.feed_forward.up.bias']
    """
    return {
        ".".join(_OLD_NAMES.get(part, part) for part in name.split(".")): tensor
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


def write_file(path: Path, content: bytes) -> None:
    """Write a file that gets its name only when all of it is on the disk.

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
    with whole_files(path.parent, path.name) as (part,):
        part.write_bytes(content)


@contextmanager
def whole_files(folder: Path, *names: str) -> Iterator[list[Path]]:
    """Write files that belong together, so that nobody reads some old and some new ones.

    Only when all are on the disk do they get their names. The last one is taken away before the
    first gets its name, and comes back at the end: it must be a file without which the others are
    not read. So a crash leaves the old files, the new ones, or an error for whoever reads them.

    Args:
        folder: where the files shall be; made if need be.
        names: what they are called; those that are there already are replaced.

    Yields:
        Where to write each of them, in the ``with`` block.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with whole_files(Path(folder), "weights", "settings") as (weights, settings):
        ...         size = weights.write_bytes(b"0123"), settings.write_bytes(b"{}")
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['settings', 'weights']
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [_part(folder / name) for name in names]
    try:
        yield parts
        for part in parts:
            _sync(part, os.O_RDWR)
    except BaseException:  # also Ctrl-C; a full disk gets its room back
        for part in parts:
            with suppress(OSError):
                os.unlink(part)
        raise
    last = folder / names[-1]
    if len(names) > 1 and last.exists():
        os.unlink(last)
        _sync(folder)
    for part, name in zip(parts, names, strict=True):
        os.replace(part, folder / name)
    _sync(folder)


def why_missing(path: Path) -> str:
    """Say what is known of a file that is not there.

    Args:
        path: the file.

    Returns:
        The end of an error message, empty unless :func:`whole_files` was cut off there.

    Example:
        >>> why_missing(Path("nowhere/model.json"))
        ''
    """
    if path.exists() or not _part(path).exists():
        return ""
    return "; it was being written when its writer stopped: write it again"


@contextmanager
def lock_folder(folder: str | Path | None) -> Iterator[None]:
    """Keep other processes from writing to a folder, until the ``with`` block ends.

    The lock is one of the operating system, so a process that is killed leaves none behind.
    Windows has no such locks: nothing happens there. Some network drives have none either, which a
    warning says.

    Args:
        folder: the folder, made if need be; ``None`` locks nothing.

    Yields:
        Nothing.

    Raises:
        BlockingIOError: if it is locked; the message says by which process.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with lock_folder(folder):
        ...         [path.name for path in Path(folder).iterdir()]
        ['.lock']
    """
    if folder is None or sys.platform == "win32":
        yield
        return
    path = Path(folder) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _lock(path)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        if _is_at(path, handle):  # before the lock is gone: what is there later is not ours
            os.unlink(path)
        os.close(handle)


def write_checkpoint(
    folder: Path, step: int, tensors: Tensors, state: dict[str, Any], keep: int
) -> None:
    """Write all that a training run needs to go on as one file, with its checksum in its name.

    Args:
        folder: where checkpoints are; the new one is called ``step-00000100-1a2b3c4d.safetensors``
            or the like.
        step: the number of updates so far.
        tensors: what it holds.
        state: what else it holds, as JSON in the file's header.
        keep: how many checkpoints are left, this one included. Older ones are removed, and those of
            later steps, which are damaged: training would have gone on from them.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (1, 2, 3):
        ...         write_checkpoint(Path(folder), step, {}, {"seed": step}, keep=2)
        ...     sorted(path.name[:13] for path in Path(folder).iterdir())
        ...     read_checkpoint(Path(folder))
        ['step-00000002', 'step-00000003']
        ({}, {'seed': 3})
    """
    content = save(tensors, {"state": json.dumps(state)})
    path = folder / f"step-{step:08d}-{zlib.crc32(content):08x}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    earlier = [other for other in _checkpoints(folder) if _step(other) < step]
    kept = {path, *earlier[: keep - 1]}
    # Nothing else in the folder is ours. Unfinished ones were left by somebody who was killed.
    unfinished = [part for part in folder.iterdir() if _UNFINISHED.fullmatch(part.name)]
    for other in _checkpoints(folder) + unfinished:
        if other not in kept:
            other.unlink()


def read_checkpoint(folder: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read the newest checkpoint that is sound; a damaged one is said and passed over.

    Nothing but time is lost then: training is exact, so the older one leads to the same end.

    Args:
        folder: where checkpoints are.

    Returns:
        Tensors and state as they were written; both empty if there is no checkpoint.

    Raises:
        ValueError: if there are checkpoints, and all are damaged.

    Example:
        >>> read_checkpoint(Path("nowhere"))
        ({}, {})
    """
    found = _checkpoints(folder)
    for path in found:
        content = path.read_bytes()
        if path.stem.endswith(f"{zlib.crc32(content):08x}"):
            length = int.from_bytes(content[:8], "little")  # of the header, which comes next
            header = json.loads(content[8 : 8 + length])
            return with_current_names(load(content)), json.loads(header["__metadata__"]["state"])
        warnings.warn(f"{path} is damaged, an earlier checkpoint is looked for", stacklevel=2)
    if found:
        raise ValueError(f"all checkpoints in {folder} are damaged; remove them to start anew")
    return {}, {}


def _checkpoints(folder: Path) -> list[Path]:
    """Return the files that have such a name as :func:`write_checkpoint` gives; newest first."""
    paths = folder.iterdir() if folder.is_dir() else []
    ours = [path for path in paths if _CHECKPOINT.fullmatch(path.name) and path.is_file()]
    return sorted(ours, key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def book_folder() -> Path:
    """Find the data and results of the book.

    Returns:
        The folder in the package if that is installed, else in the clone that it belongs to.

    Example:
        >>> (book_folder() / "data" / "shakespeare.txt").is_file()
        True
    """
    package = Path(__file__).resolve().parent
    installed = package / "book"
    return installed if installed.is_dir() else package.parent / "book"


def _lock(path: Path) -> int:
    """Open and lock a file; return its handle."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 1000, 0).decode(errors="replace") or "unknown"
            os.close(handle)
            raise BlockingIOError(
                f"folder={str(path.parent)!r} is in use by process {holder}; "
                "expected a folder that nobody else writes to"
            ) from None
        except OSError as error:
            warnings.warn(f"{path} cannot be locked: {error}; let no other write", stacklevel=4)
            return handle
        if _is_at(path, handle):
            return handle
        os.close(handle)  # its last holder has removed it since we opened it: try the new one


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file is the one that a path leads to."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(handle))
    return False


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _sync(path: Path, flags: int = os.O_RDONLY) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name != "posix" and path.is_dir():  # Windows has no call for that
        return
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
