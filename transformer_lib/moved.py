"""Modules with a new name: who imports the old one is told."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from types import ModuleType

# Old path: the new one. CHANGELOG.md says since when.
MOVED = {
    "transformer_lib.heads": "transformer_lib.models",
    "transformer_lib.shapes": "transformer_lib.checks",
    "transformer_lib.checkpoints": "transformer_lib.hugging_face",
    "transformer_lib.recording": "transformer_lib.tracing",
}


@dataclass(frozen=True)
class MovedModules(MetaPathFinder):
    """Asked last, when nobody has found a module: says where it went, if it is in the table.

    Args:
        new_paths: for each old path of a module the new one.

    Example:
        >>> MovedModules({"attic.chair": "hall.chair"}).find_spec("attic.chair", None)
        Traceback (most recent call last):
        ImportError: attic.chair is called hall.chair now
    """

    new_paths: Mapping[str, str]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raise an error that names the new path, or leave the module to others."""
        if fullname in self.new_paths:
            raise ImportError(f"{fullname} is called {self.new_paths[fullname]} now", name=fullname)


def tell_moved_modules(new_paths: Mapping[str, str]) -> None:
    """Let imports of old paths fail with a sentence that names the new one.

    Args:
        new_paths: for each old path of a module the new one. The same table counts once.

    Example:
        >>> import transformer_lib  # calls this with the table of this module
        >>> from transformer_lib import heads
        Traceback (most recent call last):
        ImportError: transformer_lib.heads is called transformer_lib.models now
    """
    finder = MovedModules(new_paths)
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)
