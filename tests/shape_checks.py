"""Shape checks in every call, for a third of the time that jaxtyping's own wrapper takes.

That one binds the arguments to the signature and checks them twice, before the call and once more
together with the result, so that its message can name the argument. Here one wrapper checks both,
and the message is beartype's. What is checked is the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jaxtyping
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError, config, install_import_hook
from jaxtyping._storage import pop_shape_memo, push_shape_memo

ITS_OWN = jaxtyping.jaxtyped
COMPARING = ("comparing", "relations")  # modules of transformer_book.exercises.grading


def check_shapes_of(*packages: str) -> None:
    """Let every function of packages check its arguments and its result, once they are imported."""
    jaxtyping.jaxtyped = checked  # type: ignore[assignment]  # which the hook writes above functions
    # As in static typing, an int may stand where a float is asked for.
    install_import_hook(
        list(packages), "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    )


def checked(thing: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Decorate a function; a class and a few kinds of functions are left to jaxtyping itself."""
    if thing is None:
        return partial(checked, typechecker=typechecker)
    if not inspect.isfunction(thing) or inspect.isgeneratorfunction(thing) or _is_special(thing):
        return ITS_OWN(thing, typechecker=typechecker)
    inside = typechecker(thing)

    @wraps(thing)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return thing(*args, **kwargs)
        push_shape_memo({})  # what B and T stand for in this call
        try:
            return inside(*args, **kwargs)
        except BeartypeCallHintViolation as violation:
            raise TypeCheckError(str(violation)) from violation
        finally:
            pop_shape_memo()

    return wrapper


def _is_special(function: Callable[..., Any]) -> bool:
    """Whether an annotation names an argument, as in ``"B {n_keys}"``, or tracebacks are read.

    After an error, an exercise shows the last line outside of packages and of its own folder, and a
    wrapper from this file would be that line. What compares answers stands in no such traceback.
    """
    names_sizes = any("{" in str(hint) for hint in function.__annotations__.values())
    package, _, module = function.__module__.rpartition(".")
    in_traceback = package.startswith("transformer_book.exercises") and module not in COMPARING
    return names_sizes or in_traceback or function.__module__ == "transformer_book.exercises"
