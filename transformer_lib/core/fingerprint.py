"""Hooks and monkey patches: who listens to a module, or replaced what it does.

What is fast goes around a module: it calls the parts, or multiplies by the weights itself. That is
allowed only where nobody can tell.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import contains, methodcaller

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CALL = nn.Module.__call__
_values = methodcaller("values")


def is_plain_linear(layer: nn.Module) -> bool:
    """Say whether a layer does nothing but ``x @ weight.T + bias``, so that others may do it too.

    Args:
        layer: any module.

    Returns:
        ``False`` for a subclass, a parametrised or pruned layer, one whose ``forward`` was
        replaced, and wherever somebody listens with a hook, also one for all modules.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> is_plain_linear(layer)
        True
        >>> handle = layer.register_forward_pre_hook(lambda *_: None)
        >>> is_plain_linear(layer)
        False
    """
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
        all_modules._global_forward_hooks,
        all_modules._global_forward_pre_hooks,
        all_modules._global_backward_hooks,
        all_modules._global_backward_pre_hooks,
    )
    return type(layer) is nn.Linear and "forward" not in vars(layer) and not any(hooks)


def has_forward_of(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Say whether a module runs the forward pass of a class, and none of its own.

    Args:
        module: any module.
        kind: the class.

    Returns:
        ``False`` for a subclass with another ``forward``, and where it was replaced.

    Example:
        >>> has_forward_of(nn.Linear(2, 3), nn.Linear)
        True
    """
    return type(module).forward is kind.forward and "forward" not in vars(module)


def forward_hooks(*modules: nn.Module) -> Iterator[Mapping[int, object]]:
    """Show where those are entered who listen to what modules are given and return.

    Args:
        modules: any modules.

    Yields:
        One mapping after the other, empty where nobody listens: those for all modules first.

    Example:
        >>> any(forward_hooks(nn.Linear(2, 3)))
        False
    """
    yield from (all_modules._global_forward_pre_hooks, all_modules._global_forward_hooks)
    for module in modules:
        yield from (module._forward_pre_hooks, module._forward_hooks)


def are_plain(parts: Sequence[nn.Module]) -> bool:
    """Say whether modules do what classes of this library or of PyTorch say, and nobody listens.

    Such a module does the same in every call, and a copy of it does what it does.

    Args:
        parts: any modules; those inside them are not looked at.

    Returns:
        ``False`` where Python has a say: a hook, a class of somebody else, a ``forward`` that was
        replaced, a compiled or scripted module in the place of another.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> are_plain([layer])
        True
        >>> layer.forward = lambda x: x
        >>> are_plain([layer])
        False
    """
    return not any(forward_hooks(*parts)) and all(map(_is_plain, parts))


def _is_plain(part: nn.Module) -> bool:
    """Whether a part does what its class says, and that is one of this library or of PyTorch."""
    if "forward" in vars(part) or isinstance(part, torch.jit.ScriptModule):
        return False
    makers = (type(part), type(part).forward)  # a forward may also be put into the class
    return all(maker.__module__.startswith(("transformer_lib.", "torch.")) for maker in makers)


def is_untouched(
    module: nn.Module, forward: Mapping[type[nn.Module], Callable[..., Tensor]]
) -> bool:
    """Say whether a module does when it is called what its class did when it was defined.

    Args:
        module: any module.
        forward: the ``forward`` of each class that is known, as it was then.

    Returns:
        ``False`` for other classes, also subclasses, and for a module that is hooked or compiled,
        or whose ``forward``, or that of its class, was replaced.

    Example:
        >>> known = {nn.Tanh: nn.Tanh.forward}
        >>> module = nn.Tanh()
        >>> is_untouched(module, known)
        True
        >>> module.forward = lambda x: x
        >>> is_untouched(module, known)
        False
    """
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    own = "forward" in vars(module) or module._compiled_call_impl is not None
    kind = type(module)
    return not (own or any(hooks)) and kind in forward and kind.forward is forward[kind]


def methods_of(*kinds: type[nn.Module]) -> dict[type[nn.Module], dict[str, object]]:
    """Write down which functions classes have, to see later whether they were replaced.

    Args:
        kinds: any classes.

    Returns:
        The functions of each class by their names.

    Example:
        >>> "forward" in methods_of(nn.Linear)[nn.Linear]
        True
    """
    return {kind: {n: f for n, f in vars(kind).items() if callable(f)} for kind in kinds}


class PartsWatch:
    """Tells whether some modules still are what their classes were when they were defined.

    Asked for every token, so it looks at what it has noted down.

    Args:
        parts: the modules; those inside them are not watched.
        known: the functions of each class that is known, as they were then: :func:`methods_of`.

    Example:
        >>> watch = PartsWatch([part := nn.Tanh()], methods_of(nn.Tanh))
        >>> watch.sees_no_change()
        True
        >>> part.forward = lambda x: x
        >>> watch.sees_no_change()
        False
    """

    def __init__(
        self, parts: Iterable[nn.Module], known: Mapping[type[nn.Module], Mapping[str, object]]
    ) -> None:
        self._parts = list(parts)
        self._kinds = [type(part) for part in self._parts]
        self._attributes = [vars(part) for part in self._parts]
        self._counts = [len(names) for names in self._attributes]
        self._children = [part._modules for part in self._parts]
        self._same_children = [dict(children) for children in self._children]
        self._hooks = [getattr(part, name) for part in self._parts for name in HOOKS]
        self._hooks += [getattr(all_modules, f"_global{name}") for name in HOOKS]
        used = {kind: known.get(kind, {}) for kind in self._kinds}
        self._places = [(vars(kind), name) for kind in used for name in used[kind]]
        self._functions = [function for kind in used for function in used[kind].values()]
        self._functions.append(_CALL)
        own = zip(self._kinds, self._attributes, strict=True)
        self._was_plain = all(kind in known for kind in used) and not any(
            "_compiled_call_impl" in names or not known[kind].keys().isdisjoint(names)
            for kind, names in own
        )

    def sees_no_change(self) -> bool:
        """Say whether all classes are known, nobody listens, and no part or function is new.

        Returns:
            ``True`` if to call the modules is to do what their classes say.
        """
        return (
            self._was_plain
            and not any(self._hooks)
            and list(map(type, self._parts)) == self._kinds
            and list(map(len, self._attributes)) == self._counts  # nobody added a forward
            and self._children == self._same_children
            and [names.get(n) for names, n in self._places] + [nn.Module.__call__]
            == self._functions
        )


class ModelWatch:
    """Tells whether a model is still the one that was recorded, but for the values of its weights.

    Asked for every token, so it looks at what it has noted down instead of walking the model.

    Args:
        model: any model.

    Example:
        >>> watch = ModelWatch(model := nn.Sequential(nn.Linear(2, 2)))
        >>> watch.sees_no_change()
        True
        >>> model[0].weight = nn.Linear(2, 2).weight
        >>> watch.sees_no_change()
        False
    """

    def __init__(self, model: nn.Module) -> None:
        parts = list(model.modules())
        self._hooks = list(forward_hooks(*parts))
        self._attributes = [vars(part) for part in parts]
        tensors = [x for part in parts for x in (part._parameters, part._buffers) if x]
        self._owners = [part._modules for part in parts if part._modules] + tensors
        self._tensors = [x for owned in tensors for x in owned.values() if x is not None]
        # As long as these are held, nothing else can come to stand at their addresses.
        self._held = [x.detach() for x in self._tensors]
        self._active = [names for names in self._attributes if "activation" in names]
        self._activations = [names["activation"] for names in self._active]  # functions, no parts
        self._before = self._look()

    def sees_no_change(self) -> bool:
        """Say whether nobody listens or has replaced a ``forward``, and all are where they were."""
        return (
            not any(self._hooks)
            and not any(map(contains, self._attributes, repeat("forward")))
            and self._look() == self._before
            and [names.get("activation") for names in self._active] == self._activations
        )

    def _look(self) -> list[int]:
        """Which parts and weights there are, and where the weights lie."""
        found = list(map(id, chain.from_iterable(map(_values, self._owners))))
        found += map(Tensor.data_ptr, self._tensors)
        return found
