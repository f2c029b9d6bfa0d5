"""Fingerprint of modules: whether hooks, monkey patches or other weights touched them.

What is fast goes around a module: it calls the parts, multiplies by the weights itself, or replays
what was recorded. That is allowed only where nobody can tell. :class:`Fingerprint` is the one
answer to that; ``SEEN`` is all that it looks at. Where it cannot tell, the slow path runs.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import is_, itemgetter, methodcaller
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

SEEN = {
    "class": "a module's class is of this library or of PyTorch, and the one that it was",
    "functions": "no function of a class was replaced, nor the way in which modules are called",
    "forward": "no module has a function of its own in the place of its class's",
    "hooks": "nobody listens to a module, or to all of them",
    "compiled": "no module was compiled or scripted",
    "parametrisation": "no weight is computed from others",
    "parts": "modules have the parts that they had",
    "weights": "weights and buffers are the same tensors, at the same places in memory",
    "settings": "other attributes are what they were: functions always, all others if asked for",
    "context": "autocast and inference mode are as they were",
}

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FOR_ALL = [getattr(all_modules, f"_global{name}") for name in _HOOKS]
_OURS = ("transformer_lib.", "torch.")
_CALL = nn.Module.__call__
# What nn.Module keeps about a module, and the mode, which whoever depends on it looks at itself.
_NO_SETTINGS = {*vars(nn.Module()), "_compiled_call_impl"}
_values = methodcaller("values")
_hooks_of = itemgetter(*_HOOKS)

Functions = Mapping[tuple[type, str], Callable[..., object]]
# The functions of each class when it was first seen: those that it was written with.
_FUNCTIONS: "WeakKeyDictionary[type, Functions]" = WeakKeyDictionary()


class Fingerprint:
    """What some modules do when they are called, noted down; it says whether that still holds.

    To ask again is cheap: it is done for every token.

    Args:
        parts: any modules; of those inside them only which they are is seen.
        to_compare: whether to write down what :meth:`holds` compares; else only the attributes
            below are there, which takes less time.

    Attributes:
        is_untouched: whether, when this was made, calling the modules was to do what their classes
            say: entries "functions" to "parametrisation" of ``SEEN``.
        is_plain: whether, besides, all classes were of this library or of PyTorch.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> before = Fingerprint([layer], to_compare=True)
        >>> before.is_plain, before.holds()
        (True, True)
        >>> layer.forward = lambda x: x
        >>> before.holds(), Fingerprint([layer]).is_plain
        (False, False)
    """

    def __init__(self, parts: Iterable[nn.Module], *, to_compare: bool = False) -> None:
        self._parts = list(parts)
        self._kinds = list(map(type, self._parts))
        self._attributes = list(map(vars, self._parts))
        kinds = set(self._kinds)
        functions = [_functions_of(kind) for kind in kinds]
        own = {kind: {"forward", *(name for _, name in _functions_of(kind))} for kind in kinds}
        self.is_untouched = (
            not any(_FOR_ALL)
            and nn.Module.__call__ is _CALL
            and all(map(_are_in_place, functions))
            and not any(issubclass(kind, torch.jit.ScriptModule) for kind in kinds)
            and not any(map(_is_touched, self._attributes, map(own.__getitem__, self._kinds)))
        )
        self.is_plain = self.is_untouched and all(map(_is_ours, kinds))
        self._context = _context()
        if self.is_untouched and to_compare:  # if touched, it will never hold
            self._note()

    def _note(self) -> None:
        """Write down where to look again, and what is there."""
        self._hooks = [*chain.from_iterable(map(_hooks_of, self._attributes)), *_FOR_ALL]
        self._counts = list(map(len, self._attributes))
        self._owners = [
            names[kind]
            for names in self._attributes
            for kind in ("_modules", "_parameters", "_buffers")
            if names[kind]
        ]
        self._sizes = list(map(len, self._owners))
        self._owned = list(chain.from_iterable(map(_values, self._owners)))
        self._tensors = [x for x in self._owned if isinstance(x, Tensor)]
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        # As long as these are held, nothing else can come to stand at their addresses.
        self._held = [x.untyped_storage() for x in self._tensors]
        bases = {base for kind in set(self._kinds) for base in _bases(kind)}
        self._of_classes = [
            (vars(base), name)
            for base in bases
            for name in vars(base)
            if name == "forward" or (_is_of_library(base) and not name.startswith("__"))
        ]
        names = [
            (attributes, name)
            for attributes in self._attributes
            for name in attributes.keys() - _NO_SETTINGS
        ]
        # Functions may be exchanged between two tokens; to look at all settings takes too long.
        self._of_modules = [(own, name) for own, name in names if callable(own[name])]
        self._settings = names
        self._functions = self._look_at_functions()
        self._values = _look_at(self._settings)

    def _look_at_functions(self) -> list[object]:
        return [*_look_at(self._of_classes), *_look_at(self._of_modules), nn.Module.__call__]

    def holds(self, *, settings: bool = False) -> bool:
        """Say whether nobody has touched the modules since, nor before.

        Args:
            settings: whether to look at settings that are no functions, too. There are many, so
                this is for a batch, not for a token.

        Returns:
            ``True`` if to call the modules is to do what it was, but for the values of weights and
            the modes of modules.
        """
        return (
            self.is_untouched
            and not any(self._hooks)
            and all(map(is_, map(type, self._parts), self._kinds))
            and list(map(len, self._attributes)) == self._counts  # nobody added a forward
            and list(map(len, self._owners)) == self._sizes
            and all(map(is_, chain.from_iterable(map(_values, self._owners)), self._owned))
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
            and all(map(is_, self._look_at_functions(), self._functions))
            and _context() == self._context
            and (not settings or _are_same(_look_at(self._settings), self._values))
        )


def _look_at(places: Iterable[tuple[Mapping[str, object], str]]) -> list[object]:
    return [names.get(name) for names, name in places]


def _are_same(new: list[object], old: list[object]) -> bool:
    """Whether settings are what they were; tensors and the like if they are the same objects."""
    plain = (bool, int, float, str, tuple)
    return all(
        x is y or (isinstance(x, plain) and type(x) is type(y) and x == y)
        for x, y in zip(new, old, strict=True)
    )


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(_OURS)


def _is_of_library(kind: type) -> bool:
    return kind.__module__.startswith("transformer_lib.")


def _functions_of(kind: type[nn.Module]) -> Functions:
    """The functions that a class was written with, its own and those of its bases."""
    if kind not in _FUNCTIONS:
        _FUNCTIONS[kind] = {
            (base, name): function
            for base in _bases(kind)
            for name, function in vars(base).items()
            if callable(function)
        }
    return _FUNCTIONS[kind]


def _bases(kind: type[nn.Module]) -> list[type[nn.Module]]:
    """A class of modules and those that it inherits from, up to that of all modules."""
    return [x for x in kind.__mro__ if issubclass(x, nn.Module) and x is not nn.Module]


def _are_in_place(functions: Functions) -> bool:
    """Whether classes have these functions, and none of them came from elsewhere."""
    return all(
        vars(kind).get(name) is function and _is_own(kind, name, function)
        for (kind, name), function in functions.items()
    )


def _is_own(kind: type, name: str, function: Callable[..., object]) -> bool:
    """Whether a function was written in its class, as far as its name tells."""
    if not _is_ours(kind):
        return True  # a class of others may be made in any way
    if not (getattr(function, "__module__", None) or "").startswith(_OURS):
        return False
    return (
        not _is_of_library(kind)
        or getattr(function, "__qualname__", "") == f"{kind.__qualname__}.{name}"
    )


def _is_touched(attributes: Mapping[str, object], functions: set[str]) -> bool:
    """Whether somebody listens to a module or gave it something to do that is not its class's."""
    parts = attributes["_modules"]
    assert isinstance(parts, dict)
    return (
        any(_hooks_of(attributes))
        or attributes.get("_compiled_call_impl") is not None
        or "parametrizations" in parts
        or not functions.isdisjoint(attributes)
    )


def _context() -> tuple[object, ...]:
    """What decides how PyTorch computes, and is no part of a module."""
    return (
        torch.is_inference_mode_enabled(),
        *(
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in ("cpu", "cuda")
        ),
    )
