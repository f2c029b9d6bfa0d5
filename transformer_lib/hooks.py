"""Who listens to a module, or has replaced what it does.

What is fast goes around a module: it calls the parts, or multiplies by the weights itself. That is
allowed only where nobody can tell.
"""

from torch import nn
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
