"""Eval mode for a while: each module's own mode is put back, whatever happens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TypeVar

from torch import nn

from transformer_lib.core.eval_twin import Twin
from transformer_lib.core.thread_modes import (
    LOOKING,
    forget,
    say_switched,
    switched_by_another,
    trained_by_another,
)

_Model = TypeVar("_Model", bound=nn.Module)
_IS_TRAINING = attrgetter("training")  # for every token and module, hence no generator


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Let every module end in the mode it was in, training or evaluation, whatever comes between.

    ``model.train()`` would not do: it also wakes the dropout of parts that were frozen.

    Args:
        model: any module.

    Example:
        >>> model = nn.Sequential(nn.Dropout().eval(), nn.Dropout())
        >>> with modes_kept(model):
        ...     model = model.eval()
        >>> [part.training for part in model]
        [False, True]
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: _Model, twin: Twin[_Model] | None = None) -> Iterator[_Model]:
    """Give a model in evaluation mode, wrong for no thread; afterwards each module is as it was.

    Modes are attributes of modules, and all threads share them. So there are three cases.

    1. Every module is in evaluation mode. Nothing is written: any number of threads may come.
    2. A module is in training, and there is a twin. The twin is used, and nothing is written
       either: the model may be trained by another thread meanwhile.
    3. A module is in training, and there is no twin, or it could differ from the model. Then
       the modes are switched, and until they are put back the model is for one thread alone. If
       another one, which is still there, was the last to train it, this raises an error; if
       another one calls it meanwhile, that one gets an error from ``check_modes``. Neither
       computes with the other's modes.

    Args:
        model: any model.
        twin: a twin of the model, which may be used in its place.

    Yields:
        What to call: the model, or its twin.

    Raises:
        RuntimeError: if the modes would change under another thread.

    Example:
        >>> model = nn.Dropout()
        >>> with evaluating(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    parts = _parts_of(model)
    with LOOKING:
        is_ready = not (any(map(_IS_TRAINING, parts)) or switched_by_another(parts))
    stand_in = None if is_ready or twin is None else twin.refreshed()
    if is_ready or stand_in is not None:
        yield model if stand_in is None else stand_in
        return
    with _switched(parts):
        yield model


@contextmanager
def _switched(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluation mode for this thread, and for no other."""
    in_use = (
        "model is in training mode, and another thread uses it, whose modes would "
        "change: call model.eval() first, or give each thread a copy.deepcopy(model)"
    )
    with LOOKING:
        if switched_by_another(parts):
            raise RuntimeError(in_use)
        in_training = [part for part in parts if part.training]
        switched = say_switched(parts)
        # After that, and not before: a thread that begins to train in between sees it.
        if trained_by_another(parts):
            forget(switched)
            raise RuntimeError(in_use)
        _set_modes(in_training, training=False)
    try:
        yield
    finally:
        with LOOKING:
            _set_modes(in_training, training=True)
            forget(switched)  # an outer one of this thread goes on with its own


def _parts_of(model: nn.Module) -> list[nn.Module]:
    """All modules; for every token, hence faster than ``modules()``, and a shared part twice."""
    parts = [model]
    for part in parts:
        if children := part._modules:
            parts += [child for child in children.values() if child is not None]
    return parts


def _set_modes(parts: Sequence[nn.Module], *, training: bool) -> None:
    for part in parts:
        if "training" in vars(part):
            vars(part)["training"] = training  # for every token, hence without a module's setter
        else:  # compiled and scripted modules hand it on
            part.training = training
