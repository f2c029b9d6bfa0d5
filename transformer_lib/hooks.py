"""Who listens to a module, or has replaced what it does.

What is fast goes around a module: it calls the parts, or multiplies by the weights itself. That is
allowed only where nobody can tell.
"""

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn
from torch.nn.modules import module as all_modules


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
