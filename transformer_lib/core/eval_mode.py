"""Eval mode and other switches: set for a while, put back whatever happens."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from transformer_lib.core.fingerprint import Fingerprint

_Model = TypeVar("_Model", bound=nn.Module)

_LOOKING = threading.Lock()  # held while modes are looked at or switched, never while a model runs
_SWITCHED: dict[int, int] = {}  # modules that are switched now, by their ids, and for which thread
_TRAINERS: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()  # and who trained them last


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
def evaluating(model: _Model, twin: "Twin[_Model] | None" = None) -> Iterator[_Model]:
    """Give a model in evaluation mode, wrong for no thread; afterwards each module is as it was.

    Modes are attributes of modules, and all threads share them. So there are three cases.

    1. Every module is in evaluation mode. Nothing is written: any number of threads may come.
    2. A module is in training, and there is a twin. The twin is used, and nothing is written
       either: the model may be trained by another thread meanwhile.
    3. A module is in training, and there is no twin, or somebody could tell it from the model. Then
       the modes are switched, and until they are put back the model is for one thread alone. If
       another one, which is still there, was the last to train it, this raises an error; if
       another one calls it meanwhile, that one gets an error from :func:`check_modes`. Neither
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
    with _LOOKING:
        is_ready = not (any(part.training for part in parts) or _are_anothers(parts))
    stand_in = None if is_ready or twin is None else twin.refreshed()
    if is_ready or stand_in is not None:
        yield model if stand_in is None else stand_in
        return
    with _switched(parts):
        yield model


@contextmanager
def _switched(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluation mode for this thread, and for no other."""
    this = threading.get_ident()
    with _LOOKING:
        taken, in_training = _are_anothers(parts), [part for part in parts if part.training]
        if not taken:
            # First this, then a look at who trains: whoever begins between the two sees this.
            _SWITCHED.update(dict.fromkeys(map(id, parts), this))
            taken = _are_trained_by_another(parts)
            if taken:
                _forget(parts)
        if taken:
            raise RuntimeError(
                "model is in training mode, and another thread uses it, whose modes would "
                "change: call model.eval() first, or give each thread a copy.deepcopy(model)"
            )
        _set_modes(in_training, training=False)
    try:
        yield
    finally:
        with _LOOKING:
            _set_modes(in_training, training=True)
            _forget(parts if in_training else ())  # else an outer one of this thread goes on


def _forget(parts: Sequence[nn.Module]) -> None:
    """Say that modules are not switched any more."""
    for part in parts:
        _SWITCHED.pop(id(part), None)


def check_modes(part: nn.Module) -> None:
    """Raise an error if another thread has put a module into evaluation mode for a while.

    Asked by every embedding and every block, since no pass through a model leaves all of them out.
    Dropout that drops nothing would go unseen otherwise. Who trains a module is noted down.

    Args:
        part: any module.

    Raises:
        RuntimeError: if so. What is compiled does not ask.

    Example:
        >>> with evaluating(model := nn.Dropout()):
        ...     check_modes(model)  # the same thread may go on
    """
    if torch.compiler.is_compiling():
        return
    if part.training:
        _TRAINERS[part] = threading.get_ident()
    if _SWITCHED and _are_anothers((part,)):
        raise RuntimeError(
            "another thread generates from this model or judges it, and has switched its modes: "
            "call model.eval() before threads share a model, or give each a copy.deepcopy(model)"
        )


def _parts_of(model: nn.Module) -> list[nn.Module]:
    """All modules; for every token, hence faster than ``modules()``, and a shared part twice."""
    parts = [model]
    for part in parts:
        if children := part._modules:
            parts += [child for child in children.values() if child is not None]
    return parts


def _are_anothers(parts: Sequence[nn.Module]) -> bool:
    """Whether another thread has switched some of them."""
    if not _SWITCHED:
        return False
    this = threading.get_ident()
    return any(_SWITCHED.get(id(part), this) != this for part in parts)


def _are_trained_by_another(parts: Sequence[nn.Module]) -> bool:
    """Whether another thread has run some of them in training mode, and may be doing so now."""
    found = {_TRAINERS.get(part) for part in parts} - {None, threading.get_ident()}
    return bool(found) and any(thread.ident in found for thread in threading.enumerate())


def _set_modes(parts: Sequence[nn.Module], *, training: bool) -> None:
    for part in parts:
        if "training" in vars(part):
            vars(part)["training"] = training  # for every token, hence without a module's setter
        else:  # compiled and scripted modules hand it on
            part.training = training


class Twin(Generic[_Model]):
    """The same model in evaluation mode, beside the model, which is neither written to nor called.

    Its parts are copies, its weights are the model's. Only models whose parts are all of this
    library or of PyTorch have one: another class may keep notes on itself, a hook may compare
    modules, a ``forward`` of one's own may call the model's parts.

    Args:
        model: any model.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        >>> twin = Twin(model).refreshed()
        >>> twin[0].weight is model[0].weight, twin[1].training
        (True, False)
        >>> handle = model[0].register_forward_hook(lambda *_: None)
        >>> Twin(model).refreshed() is None
        True
    """

    def __init__(self, model: _Model) -> None:
        self._model = model
        self._fingerprint: Fingerprint | None = None
        self._twins: dict[nn.Module, nn.Module] = {}

    def refreshed(self) -> _Model | None:
        """Return the twin as the model is now, or nothing where somebody could tell them apart."""
        if self._fingerprint is None or not self._fingerprint.holds():
            self._fingerprint = Fingerprint(self._model.modules(), to_compare=True)
            self._twins = _copies(self._model) if self._fingerprint.is_plain else {}
        if not self._twins:
            return None
        for part, twin in self._twins.items():
            _take_over(twin, part)
        found = self._twins[self._model]
        assert isinstance(found, type(self._model))
        return found


def shared_copy(model: _Model) -> _Model:
    """Copy a model in evaluation mode: its parts are new, its weights are those of the model.

    The copy can be changed for speed without a trace on the model, which may be trained meanwhile.

    Args:
        model: any model.

    Returns:
        A copy that sees every change of the weights.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> shared_copy(model)[0].weight is model[0].weight
        True
    """
    twin = _copies(model)[model]
    assert isinstance(twin, type(model))
    return twin


def _copies(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """A twin for each module; what comes twice in the model has one."""
    twins: dict[nn.Module, nn.Module] = {
        part: object.__new__(type(part)) for part in model.modules()
    }
    for part, twin in twins.items():
        vars(twin)["_modules"] = {
            name: None if child is None else twins[child] for name, child in part._modules.items()
        }
        _take_over(twin, part)
    return twins


def _take_over(twin: nn.Module, part: nn.Module) -> None:
    """Give a twin all that its original has now, but for parts and mode."""
    own, its = vars(twin), vars(part)
    kept = {"_modules": own["_modules"], "training": False}
    own.update(its)
    if len(own) != len(its):  # the original has lost something
        own.clear()
        own.update(its)
    own.update(kept)
    own.pop("_compiled_call_impl", None)  # it would call the original


@contextmanager
def activations_recomputed(model: nn.Module) -> Iterator[None]:
    """Let blocks forget their activations and compute them again, until the ``with`` block ends.

    Args:
        model: any module; its stacks are told.

    Example:
        >>> from transformer_lib import Stack, TransformerConfig
        >>> stack = Stack(
        ...     TransformerConfig(d_model=8, n_heads=2, n_layers=1),
        ...     causal=True,
        ... )
        >>> with activations_recomputed(stack):
        ...     stack.checkpoint_activations
        True
        >>> stack.checkpoint_activations
        False
    """
    stacks: list[Any] = [x for x in model.modules() if hasattr(type(x), "checkpoint_activations")]
    before = [(stack, stack.checkpoint_activations) for stack in stacks]
    try:
        for stack in stacks:
            stack.checkpoint_activations = True
        yield
    finally:
        for stack, setting in before:
            stack.checkpoint_activations = setting


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Let random numbers go on afterwards as if none had been drawn, and nothing been seeded.

    Args:
        device: where is computed. What all devices of its kind draw from is kept, and the CPU's.

    Example:
        >>> before = torch.get_rng_state()
        >>> with random_state_kept(torch.device("cpu")):
        ...     generator = torch.manual_seed(0)
        >>> torch.equal(torch.get_rng_state(), before)
        True
    """
    on_cpu = device.type == "cpu"  # whose state is always kept
    devices = range(0 if on_cpu else torch.get_device_module(device).device_count())
    with torch.random.fork_rng(devices, device_type="cuda" if on_cpu else device.type):
        yield
