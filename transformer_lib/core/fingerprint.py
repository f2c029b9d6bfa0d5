"""Fingerprint of modules: whether hooks, monkey patches or other weights touched them.

A fast path bypasses a module: it calls the parts, multiplies by the weights itself, or replays what
was recorded. It may do so only where the output is the same. :class:`Fingerprint` is the one answer
to that, made of the probes in ``SEEN``. Where one of them cannot tell, the slow path runs.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, repeat
from operator import contains, is_, itemgetter, methodcaller
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

_LOG = logging.getLogger(__name__)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_FOR_ALL = [getattr(all_modules, f"_global{name}") for name in _HOOKS]
_OURS = ("transformer_lib.", "torch.")
_CALL = nn.Module.__call__
# What nn.Module keeps about a module, and the mode, which whoever depends on it looks at itself.
_NO_SETTINGS = {*vars(nn.Module()), "_compiled_call_impl"}
_PLAIN_VALUES = (bool, int, float, str, tuple)

# These run in C: a fingerprint is compared for every token.
_hooks_of = itemgetter(*_HOOKS)
_tensors_of = itemgetter("_parameters", "_buffers")
_values = methodcaller("values")

Functions = Mapping[tuple[type, str], Callable[..., object]]
# The functions of each class when it was first seen; for most, those that it was written with.
_FUNCTIONS: "WeakKeyDictionary[type, Functions]" = WeakKeyDictionary()


class Modules:
    """Some modules, and what probes look at: their classes and their attributes.

    Args:
        parts: any modules; of those inside them only which they are is seen.

    Example:
        >>> modules = Modules([nn.Tanh(), nn.Tanh()])
        >>> modules.classes
        {<class 'torch.nn.modules.activation.Tanh'>}
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        self.parts = list(parts)
        self.kinds = list(map(type, self.parts))
        self.classes = set(self.kinds)
        self.attributes = list(map(vars, self.parts))


class Probe:
    """One thing that a fingerprint looks at.

    Making a probe notes what is there; :meth:`holds` compares with it.

    Args:
        modules: what to look at.

    Example:
        >>> modules = Modules([layer := nn.Linear(2, 3)])
        >>> HookProbe = SEEN["hooks"]
        >>> probe = HookProbe(modules)
        >>> HookProbe.is_touched(modules), probe.holds()
        (False, True)
        >>> handle = layer.register_forward_hook(print)
        >>> HookProbe.is_touched(modules), probe.holds()
        (True, False)
    """

    def __init__(self, modules: Modules) -> None:
        raise NotImplementedError

    @staticmethod
    def is_touched(modules: Modules) -> bool:
        """Say whether the modules do something else than their classes say, as far as seen here."""
        return False

    def holds(self) -> bool:
        """Say whether what was noted is still so."""
        raise NotImplementedError


class _ClassProbe(Probe):
    """A module's class is the one that it was."""

    def __init__(self, modules: Modules) -> None:
        self._parts, self._kinds = modules.parts, modules.kinds

    def holds(self) -> bool:
        return all(map(is_, map(type, self._parts), self._kinds))


class _FunctionProbe(Probe):
    """No function or setting of a class was replaced, nor the way in which modules are called."""

    def __init__(self, modules: Modules) -> None:
        bases = {base for kind in modules.classes for base in _bases(kind)}
        self._places = [
            (vars(base), name)
            for base in bases
            for name in vars(base)
            if name == "forward" or (_is_of_library(base) and not name.startswith("__"))
        ]
        self._functions = _look_at(self._places)

    @staticmethod
    def is_touched(modules: Modules) -> bool:
        functions = map(_functions_of, modules.classes)
        return nn.Module.__call__ is not _CALL or not all(map(_are_in_place, functions))

    def holds(self) -> bool:
        is_same = all(map(is_, _look_at(self._places), self._functions))
        return is_same and nn.Module.__call__ is _CALL


class _OwnProbe(Probe):
    """No module has a function of its own in the place of its class's, or was compiled."""

    def __init__(self, modules: Modules) -> None:
        self._attributes = modules.attributes
        self._counts = list(map(len, self._attributes))

    @staticmethod
    def is_touched(modules: Modules) -> bool:
        own = {kind: _names_of_functions(kind) for kind in modules.classes}
        names = map(own.__getitem__, modules.kinds)
        return any(issubclass(kind, torch.jit.ScriptModule) for kind in modules.classes) or any(
            not functions.isdisjoint(attributes) or attributes.get("_compiled_call_impl")
            for functions, attributes in zip(names, modules.attributes, strict=True)
        )

    def holds(self) -> bool:
        # Whoever gives a module something of its own adds an attribute to it, or replaces one.
        has_forward = any(map(contains, self._attributes, repeat("forward")))
        return not has_forward and list(map(len, self._attributes)) == self._counts


class _HookProbe(Probe):
    """There are no hooks on a module, or on all of them."""

    def __init__(self, modules: Modules) -> None:
        self._hooks = [*chain.from_iterable(map(_hooks_of, modules.attributes)), *_HOOKS_FOR_ALL]

    @staticmethod
    def is_touched(modules: Modules) -> bool:
        return any(_HOOKS_FOR_ALL) or any(chain.from_iterable(map(_hooks_of, modules.attributes)))

    def holds(self) -> bool:
        return not any(self._hooks)


class _PartProbe(Probe):
    """Modules have the parts that they had, and none computes a weight (``parametrize``)."""

    def __init__(self, modules: Modules) -> None:
        self._owners = [names["_modules"] for names in modules.attributes]
        self._parts = [dict(parts) for parts in self._owners]

    @staticmethod
    def is_touched(modules: Modules) -> bool:
        return any("parametrizations" in names["_modules"] for names in modules.attributes)

    def holds(self) -> bool:
        return self._owners == self._parts  # a module equals itself alone


class _WeightProbe(Probe):
    """Weights and buffers are the same tensors, at the same places in memory."""

    def __init__(self, modules: Modules) -> None:
        self._owners = list(chain.from_iterable(map(_tensors_of, modules.attributes)))
        self._sizes = list(map(len, self._owners))
        self._not_empty = [owned for owned in self._owners if owned]
        self._owned = list(chain.from_iterable(map(_values, self._not_empty)))
        self._tensors = [x for x in self._owned if isinstance(x, Tensor)]
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        # As long as these are held, nothing else can come to stand at their addresses.
        self._held = [x.untyped_storage() for x in self._tensors]

    def holds(self) -> bool:
        return (
            list(map(len, self._owners)) == self._sizes
            and all(map(is_, chain.from_iterable(map(_values, self._not_empty)), self._owned))
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
        )


class _CallableProbe(Probe):
    """Functions that modules hold, such as activations, are the same."""

    def __init__(self, modules: Modules) -> None:
        self._places = [(own, name) for own, name in _settings(modules) if callable(own[name])]
        self._functions = _look_at(self._places)

    def holds(self) -> bool:
        return all(map(is_, _look_at(self._places), self._functions))


class _SettingProbe(Probe):
    """Other attributes are what they were: tensors and the like the same, plain values equal."""

    def __init__(self, modules: Modules) -> None:
        self._places = _settings(modules)
        self._values = _look_at(self._places)

    def holds(self) -> bool:
        pairs = zip(_look_at(self._places), self._values, strict=True)
        return all(
            x is y or (isinstance(x, _PLAIN_VALUES) and type(x) is type(y) and x == y)
            for x, y in pairs
        )


class _ContextProbe(Probe):
    """Autocast and inference mode are as they were."""

    def __init__(self, modules: Modules) -> None:
        self._context = self._look()

    def holds(self) -> bool:
        return self._look() == self._context

    @staticmethod
    def _look() -> tuple[object, ...]:
        return (
            torch.is_inference_mode_enabled(),
            *(
                torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
                for kind in ("cpu", "cuda")
            ),
        )


# All that is looked at. The last one takes long, and is asked only where there is time.
SEEN: dict[str, type[Probe]] = {
    "class": _ClassProbe,
    "functions": _FunctionProbe,
    "own": _OwnProbe,
    "hooks": _HookProbe,
    "parts": _PartProbe,
    "weights": _WeightProbe,
    "callables": _CallableProbe,
    "context": _ContextProbe,
    "settings": _SettingProbe,
}


class Fingerprint:
    """What some modules do when they are called, noted down; it says whether that still holds.

    Args:
        parts: any modules; of those inside them only which they are is seen.
        to_compare: whether to write down what :meth:`holds` compares; else only the attributes
            below are there, which takes less time.

    Attributes:
        is_untouched: whether, when this was made, calling the modules was to do what their classes
            say.
        is_plain: whether, besides, all classes were of this library or of PyTorch.
        touched: by which entries of ``SEEN`` they were not untouched.

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
        modules = Modules(parts)
        self.touched = [name for name, probe in SEEN.items() if probe.is_touched(modules)]
        self.is_untouched = not self.touched
        if self.touched:
            _LOG.debug("a slow path is taken: %s touched", ", ".join(self.touched))
        self.is_plain = self.is_untouched and all(map(_is_ours, modules.classes))
        self._probes: dict[str, Probe] = {}
        if self.is_untouched and to_compare:  # if touched, it will never hold
            self._probes = {name: probe(modules) for name, probe in SEEN.items()}
        self._cheap = [probe for name, probe in self._probes.items() if name != "settings"]

    def holds(self, *, settings: bool = False) -> bool:
        """Say whether the modules have not been touched since, nor before.

        Args:
            settings: whether to look at settings that are no functions, too. There are many, so
                this is for a batch, not for a token.

        Returns:
            ``True`` if to call the modules is to do what it was, but for the values of weights, the
            modes of modules and, unless they are asked for, settings.
        """
        if not self.is_untouched:
            return False
        for probe in self._cheap:
            if not probe.holds():
                return False
        return not settings or self._probes["settings"].holds()


def _look_at(places: Iterable[tuple[Mapping[str, object], str]]) -> list[object]:
    return [names.get(name) for names, name in places]


def _settings(modules: Modules) -> list[tuple[Mapping[str, object], str]]:
    """Where attributes are that PyTorch does not keep apart as parts, weights or hooks."""
    return [(names, name) for names in modules.attributes for name in names.keys() - _NO_SETTINGS]


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(_OURS)


def _is_of_library(kind: type) -> bool:
    return kind.__module__.startswith("transformer_lib.")


def _bases(kind: type[nn.Module]) -> list[type[nn.Module]]:
    """A class of modules and those that it inherits from, up to that of all modules."""
    return [x for x in kind.__mro__ if issubclass(x, nn.Module) and x is not nn.Module]


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


def _names_of_functions(kind: type[nn.Module]) -> set[str]:
    return {"forward", *(name for _, name in _functions_of(kind))}


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
