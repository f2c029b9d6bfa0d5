"""Modes and threads: which thread has switched a module to eval mode, and which one trains it.

The mode of a module is an attribute that all threads share. One that switches it for a while says
so here, so that another one gets an error instead of dropout that drops nothing.
"""

import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import nn

LOOKING = threading.Lock()  # held while modes are looked at or switched, never while a model runs
_SWITCHED: dict[int, int] = {}  # modules that are switched now, by their ids, and for which thread
_TRAINERS: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()  # and who trained them last


def check_modes(part: nn.Module) -> None:
    """Raise an error if another thread has put a module into evaluation mode for a while.

    Asked by every embedding and every block, since no pass through a model leaves all of them out.
    Dropout that drops nothing would go unseen otherwise. Who trains a module is noted down.

    Args:
        part: any module.

    Raises:
        RuntimeError: if so. What is compiled does not ask.

    Example:
        >>> switched = say_switched([model := nn.Dropout()])
        >>> check_modes(model)  # the same thread may go on
        >>> forget(switched)
    """
    if torch.compiler.is_compiling():
        return
    if part.training:
        _TRAINERS[part] = threading.get_ident()
    if _SWITCHED and switched_by_another((part,)):
        raise RuntimeError(
            "another thread generates from this model or judges it, and has switched its modes: "
            "call model.eval() before threads share a model, or give each a copy.deepcopy(model)"
        )


def say_switched(parts: Sequence[nn.Module]) -> list[nn.Module]:
    """Say that this thread has switched modules.

    Args:
        parts: the modules.

    Returns:
        Those that it had not switched already; they are to be forgotten in the end.

    Example:
        >>> part = nn.Dropout()
        >>> len(say_switched([part])), len(say_switched([part]))
        (1, 0)
        >>> forget([part])
    """
    new = [part for part in parts if id(part) not in _SWITCHED]
    _SWITCHED.update(dict.fromkeys(map(id, new), threading.get_ident()))
    return new


def forget(parts: Sequence[nn.Module]) -> None:
    """Say that modules are not switched any more.

    Args:
        parts: the modules.

    Example:
        >>> forget([nn.Dropout()])  # it was not
    """
    for part in parts:
        _SWITCHED.pop(id(part), None)


def switched_by_another(parts: Sequence[nn.Module]) -> bool:
    """Whether another thread has switched some of them.

    Args:
        parts: the modules.

    Returns:
        ``True`` if so.

    Example:
        >>> switched_by_another([nn.Dropout()])
        False
    """
    if not _SWITCHED:
        return False
    this = threading.get_ident()
    return any(_SWITCHED.get(id(part), this) != this for part in parts)


def trained_by_another(parts: Sequence[nn.Module]) -> bool:
    """Whether another thread has run some of them in training mode, and may be doing so now.

    Args:
        parts: the modules.

    Returns:
        ``True`` if so. If the thread has ended and a new one has its number, too: rather an error
        too many.

    Example:
        >>> trained_by_another([nn.Dropout()])
        False
    """
    found = {_TRAINERS.get(part) for part in parts} - {None, threading.get_ident()}
    return bool(found) and any(thread.ident in found for thread in threading.enumerate())
