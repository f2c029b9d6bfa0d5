"""Checkpoints: all that a run needs to go on, in one file.

The checksum of a checkpoint (CRC-32) tells damage by accident. It is no protection from people: who
changes a file on purpose can change the checksum too.
"""

import json
import math
import re
import warnings
import zlib
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from transformer_lib.core.files import write_file
from transformer_lib.models.saving import (
    ModelDescription,
    Tensors,
    describe_model,
    with_current_names,
)
from transformer_lib.training.data import Batch, Examples
from transformer_lib.training.recipes import Recipe
from transformer_lib.training.run_log import Metrics

_CHECKPOINT = re.compile(r"step-\d{8,}-[0-9a-f]{8}\.safetensors")  # the step, and the checksum
_UNFINISHED = re.compile(rf"\.{_CHECKPOINT.pattern}\.part")

# Fields of the recipe that may differ when a run goes on: these change how the same numbers are
# computed and kept, and how many there will be.
_MAY_DIFFER = {
    "steps",
    "log_every",
    "checkpoint_every",
    "keep",
    "compile",
    "checkpoint_activations",
    "strategy",
    "half_weights",
}
_PIECES = 64  # of the data, each with a checksum: enough to say roughly where a difference is


class DataSums(TypedDict):
    """Checksums of all examples that a run learns from.

    Args:
        n_examples: how many there are.
        pieces: the checksums of as many pieces of them, equally large.

    Example:
        >>> DataSums(n_examples=2, pieces=[11, 12])["n_examples"]
        2
    """

    n_examples: int
    pieces: list[int]


class RunState(TypedDict):
    """What a checkpoint holds beside tensors, as JSON.

    Args:
        recipe: the fields of the :class:`~transformer_lib.training.recipes.Recipe`.
        model: class and arguments of the model.
        rows: what is in ``metrics.csv``.
        scaler: the state of the loss scaler of float16.
        place: the place of the last batch in its stream.
        batch: a checksum of that batch.
        validation: a checksum of the validation, ``None`` if there is none.
        data: checksums of what is learned from; ``None`` if there are none, or ``place`` has one.
        optimizer: of each parameter, what the optimizer knows and is not a tensor.
        groups: of each parameter group, what the optimizer has changed itself.
        frozen: a checksum of what a model has beside its adapters; ``None`` if it has none.

    Example:
        >>> # files of earlier versions have none of these
        >>> sorted(RunState.__optional_keys__)
        ['data', 'frozen', 'groups', 'optimizer', 'validation']
    """

    recipe: dict[str, object]
    model: ModelDescription
    rows: list[Metrics]
    scaler: dict[str, float]
    place: dict[str, int]
    batch: int
    validation: NotRequired[int | None]
    data: NotRequired[DataSums | None]
    optimizer: NotRequired[dict[str, dict[str, object]]]
    groups: NotRequired[list[dict[str, object]]]
    frozen: NotRequired[int | None]


def write_checkpoint(folder: Path, step: int, tensors: Tensors, state: RunState, keep: int) -> None:
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
        ...         write_checkpoint(
        ...             Path(folder), step, {}, {"seed": step}, keep=2
        ...         )
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
    # Nothing else in the folder is ours. Unfinished ones were left by a run that was killed.
    unfinished = [part for part in folder.iterdir() if _UNFINISHED.fullmatch(part.name)]
    for other in _checkpoints(folder) + unfinished:
        if other not in kept:
            other.unlink()


def read_checkpoint(folder: Path) -> tuple[Tensors, RunState] | None:
    """Read the newest checkpoint that is sound; a damaged one is said and passed over.

    Nothing but time is lost then: training is exact, so the older one leads to the same end.

    Args:
        folder: where checkpoints are.

    Returns:
        Tensors and state as they were written; ``None`` if there is no checkpoint.

    Raises:
        ValueError: if there are checkpoints, and all are damaged.

    Example:
        >>> read_checkpoint(Path("nowhere")) is None
        True
    """
    found = _checkpoints(folder)
    for path in found:
        content = path.read_bytes()
        if path.stem.endswith(f"{zlib.crc32(content):08x}"):
            length = int.from_bytes(content[:8], "little")  # of the header, which comes next
            header = json.loads(content[8 : 8 + length])
            return load(content), json.loads(header["__metadata__"]["state"])
        warnings.warn(f"{path} is damaged, an earlier checkpoint is looked for", stacklevel=2)
    if found:
        raise ValueError(f"all checkpoints in {folder} are damaged; remove them to start anew")
    return None


def last_checkpoint_step(folder: Path) -> int | None:
    """Say after which step the newest checkpoint was written, by the names of the files.

    Args:
        folder: where checkpoints are.

    Returns:
        The number of the step; ``None`` if there is no checkpoint.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (9, 10):
        ...         write_checkpoint(Path(folder), step, {}, {}, keep=2)
        ...     size = (Path(folder) / "step-notes.txt").write_text("ours")
        ...     last_checkpoint_step(Path(folder))
        10
        >>> last_checkpoint_step(Path("nowhere")) is None
        True
    """
    return next(map(_step, _checkpoints(folder)), None)


def _checkpoints(folder: Path) -> list[Path]:
    """Return the files that have such a name as :func:`write_checkpoint` gives; newest first."""
    paths = folder.iterdir() if folder.is_dir() else []
    ours = [path for path in paths if _CHECKPOINT.fullmatch(path.name) and path.is_file()]
    return sorted(ours, key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def split_by_kind(tensors: Tensors, known: Collection[str]) -> dict[str, Tensors]:
    """Sort the tensors of a checkpoint, and give them the names that they have now.

    Args:
        tensors: by names such as ``"model/output.bias"`` and ``"exp_avg/output.bias"``.
        known: the names of the model's own tensors.

    Returns:
        For each kind the tensors by names without it.

    Example:
        >>> split_by_kind(
        ...     {"model/norm.gain": torch.ones(1)}, known=["norm.weight"]
        ... )
        {'model': {'norm.weight': tensor([1.])}}
    """
    kinds: dict[str, Tensors] = {}
    for full_name, tensor in tensors.items():
        kind, name = full_name.split("/", 1)
        kinds.setdefault(kind, {})[name] = tensor
    return {kind: with_current_names(by_name, known) for kind, by_name in kinds.items()}


def check_same_run(folder: Path, state: RunState, model: nn.Module, recipe: Recipe) -> None:
    """Raise an error unless a model and a recipe can go on with the run in a folder.

    Args:
        folder: where the run is, for the error message.
        state: what its checkpoint says.
        model: the model that shall go on.
        recipe: how it shall go on. It may differ in what does not change the numbers, and in
            ``steps``, as long as they are not fewer than there were already; then also in
            ``warmup`` and ``decay_share``, which recipes often choose by the number of steps.

    Raises:
        ValueError: if it is another run, or there are too few steps.

    Example:
        >>> recipe, model = Recipe(steps=5, learning_rate=0.1), nn.Linear(2, 2)
        >>> row = Metrics(
        ...     step=4,
        ...     tokens=32,
        ...     loss=2.3,
        ...     learning_rate=0.1,
        ...     grad_norm=1.5,
        ...     validation_loss=None,
        ...     perplexity=None,
        ... )
        >>> state = RunState(
        ...     recipe=asdict(recipe),
        ...     model=describe_model(model),
        ...     rows=[row],
        ...     scaler={},
        ...     place={},
        ...     batch=0,
        ... )
        >>> check_same_run(Path("runs/a"), state, model, recipe)
        >>> fewer, run = Recipe(steps=3, learning_rate=0.1), Path("runs/a")
        >>> check_same_run(run, state, model, fewer)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: steps=3, but runs/a holds a run of 4 steps already; ...
    """
    described = describe_model(model)
    then, now = state["model"].get("parts", {}), described.get("parts", {})
    if then != now:
        raise ValueError(f"parts={now}, but {folder} holds a run with {then}; take another folder")
    _check_same_adapters(folder, state["model"], described)
    _check_same(folder, state["model"], described, may_differ=())
    # What an older version did not know of, it did as the default says.
    defaults = {field.name: field.default for field in fields(Recipe)}
    by_steps = {"warmup", "decay_share"}  # recipes often choose these by the number of steps
    may_differ = _MAY_DIFFER | (by_steps if recipe.steps != state["recipe"]["steps"] else set())
    _check_same(folder, defaults | state["recipe"], asdict(recipe), may_differ)
    done = state["rows"][-1]["step"]
    if recipe.steps < done:
        already = f"{folder} holds a run of {done} steps already; take more, or another folder"
        raise ValueError(f"steps={recipe.steps}, but {already}")


def _check_same_adapters(folder: Path, old: ModelDescription, new: ModelDescription) -> None:
    then, now = old.get("adapters", {}), new.get("adapters", {})
    for name in {**then, **now}:
        ours, theirs = now.get(name, "no adapter"), then.get(name, "no adapter")
        if ours != theirs:
            raise ValueError(
                f"model has {ours} at {name}, but {folder} holds a run with {theirs}; take another "
                "folder"
            )


def _check_same(
    folder: Path,
    then: Mapping[str, object],
    now: Mapping[str, object],
    may_differ: Collection[str],
) -> None:
    before, after = json.loads(json.dumps([then, now]))  # as they are in a file: no tuples
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict):
            _check_same(folder, old or {}, value, may_differ)
        elif name not in may_differ and old != value:
            other = f"{folder} holds a run with {old!r}"
            to_go_on = f"take another folder, or give {name}={old!r} to go on with that run"
            raise ValueError(f"{name}={value!r}, but {other}; {to_go_on}")


def batch_checksum(batches: Iterable[Batch]) -> int:
    """Compute a checksum of all tensors of some batches.

    Args:
        batches: the batches.

    Returns:
        A number that other batches do not have, but by accident.

    Example:
        >>> one, other = {"ids": torch.tensor([1])}, {"ids": torch.tensor([2])}
        >>> (
        ...     batch_checksum([one]) == batch_checksum([one]),
        ...     batch_checksum([one]) == batch_checksum([other]),
        ... )
        (True, False)
    """
    found = 0
    for batch in batches:
        layout = torch.contiguous_format
        content = save({name: t.clone(memory_format=layout) for name, t in batch.items()})
        found = zlib.crc32(content, found)
    return found


def sum_up(examples: Examples) -> DataSums | None:
    """Compute checksums of all examples, by which a change is noticed, and where it is.

    Args:
        examples: what :class:`~transformer_lib.training.data.Batches` are made of.

    Returns:
        The number of examples, and a checksum of each piece; ``None`` if an example is made of
        something else than tensors, arrays, numbers, texts, and lists, tuples and dictionaries of
        these, which have no checksum.

    Example:
        >>> found = sum_up([[i, i + 1] for i in range(100)])
        >>> found["n_examples"], len(found["pieces"])
        (100, 50)
    """
    n_examples = len(examples)
    size = _piece_size(n_examples)
    pieces = [0] * math.ceil(n_examples / size)
    for i in range(n_examples):
        try:
            pieces[i // size] = zlib.crc32(_content(examples[i]), pieces[i // size])
        except (TypeError, OverflowError):  # such as whole numbers beyond 64 bits
            return None
    return DataSums(n_examples=n_examples, pieces=pieces)


def check_same_data(folder: Path, then: DataSums, now: DataSums) -> None:
    """Raise an error unless examples are those that a run began with.

    Args:
        folder: where the run is, for the error message.
        then: what its checkpoint says.
        now: checksums of the examples that it shall go on with.

    Raises:
        ValueError: if they differ; it says where.

    Example:
        >>> then, now = sum_up([[1, 2], [3, 4]]), sum_up([[1, 2], [3, 5]])
        >>> check_same_data(Path("runs/a"), then, now)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: batches gives other data than the run in ...
    """
    if now == then:
        return
    n = now["n_examples"]
    if n != then["n_examples"]:
        what = f"it has {n} examples, and had {then['n_examples']}"
    else:
        pairs = zip(then["pieces"], now["pieces"], strict=True)
        first = next(i for i, (old, new) in enumerate(pairs) if old != new) * _piece_size(n)
        last = min(first + _piece_size(n), n) - 1
        place = f"number {first}" if first == last else f"one of numbers {first} to {last}"
        what = f"of its {n} examples, counted from 0, {place} is the first to differ"
    instead = "give the same data, or take another folder"
    raise ValueError(f"batches gives other data than the run in {folder}: {what}; {instead}")


def _piece_size(n_examples: int) -> int:
    return max(1, math.ceil(n_examples / _PIECES))


def _content(example: object) -> bytes:
    """All that an example says. A row of whole numbers may be a list, a tensor or an array."""
    if isinstance(example, np.ndarray | np.generic):
        example = torch.from_numpy(np.asarray(example))  # no copy; objects are a TypeError
    if isinstance(example, Tensor):
        exact = example.is_floating_point() or example.is_complex()
        numbers = (example.detach() if exact else example.long()).cpu().reshape(-1)
        head = f"{numbers.dtype} {tuple(example.shape)} "
        return head.encode() + numbers.view(torch.uint8).numpy().tobytes()
    if isinstance(example, dict):
        return b"{" + b", ".join(map(_content, example.items())) + b"}"
    if isinstance(example, list | tuple):
        if set(map(type, example)) == {int}:  # nearly always: without a call for each
            return f"{torch.int64} ({len(example)},) ".encode() + array("q", example).tobytes()
        return b"[" + b", ".join(map(_content, example)) + b"]"
    if example is None or isinstance(example, int | float | str | bytes):
        return repr(example).encode()
    raise TypeError(f"examples has a {type(example).__name__}")
