"""Small, readable, tested Transformer parts: the library of The Executable Transformer.

Every name can be imported from here. It is looked up when it is first used, so
``import transformer_lib`` takes next to no time.

Example:
    >>> import transformer_lib
    >>> transformer_lib.CausalLM.__module__
    'transformer_lib.models.language_models'
"""

import re
from importlib import import_module
from pathlib import Path

__version__ = "1.0.0"  # written here only: pyproject.toml reads it, tests compare CITATION.cff

# Which module each name is in: the imports of the stub beside this file, which type checkers read.
_MODULES = {
    name: module
    for module, name in re.findall(
        r"^from transformer_lib\.([\w.]+) import (\w+) as \2$",
        Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}


def __getattr__(name: str) -> object:
    if name == "__all__":  # a star imports what was not deleted
        return [name for name in _MODULES if _missing_file(name) is None]
    if name not in _MODULES:
        raise AttributeError(f"module 'transformer_lib' has no attribute {name!r}")
    if (missing := _missing_file(name)) is not None:
        why = f"this copy of the library is without {missing}"
        raise ImportError(f"transformer_lib.{name} is part of a fast path: {why}")
    return getattr(import_module(f"transformer_lib.{_MODULES[name]}"), name)


def _missing_file(name: str) -> str | None:
    """The file that was deleted, if a name is part of a fast path."""
    if ".fast." not in _MODULES[name]:
        return None
    register = import_module("transformer_lib.core.fast_path_register")
    missing: str | None = register.missing_file(_MODULES[name].rpartition(".")[2])
    return missing


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
