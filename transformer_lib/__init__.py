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

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(f"transformer_lib.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'transformer_lib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
