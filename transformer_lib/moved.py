"""Modules that have another name now: whoever imports the old one is told the new one."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

# Old path: the new one. CHANGELOG.md says since when.
MOVED = {
    "transformer_lib.heads": "transformer_lib.models",
    "transformer_lib.shapes": "transformer_lib.checks",
    "transformer_lib.checkpoints": "transformer_lib.hugging_face",
    "transformer_lib.recording": "transformer_lib.tracing",
    "transformer_book.diagrams": "transformer_book.figures.diagrams",
    "transformer_book.landscapes": "transformer_book.figures.landscapes",
    "transformer_book.panels": "transformer_book.figures.panels",
    "transformer_book.pictures": "transformer_book.figures.pictures",
    "transformer_book.plot_data": "transformer_book.figures.plot_data",
    "transformer_book.plot_style": "transformer_book.figures.plot_style",
    "transformer_book.plots": "transformer_book.figures.plots",
    "transformer_book.sketches": "transformer_book.figures.sketches",
}


class MovedModules(MetaPathFinder):
    """Asked last, when nobody has found a module: says where it went, if it is one of ours.

    Example:
        >>> import transformer_lib.heads
        Traceback (most recent call last):
        ImportError: transformer_lib.heads is called transformer_lib.models now
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raise an error that names the new path, or leave the module to others."""
        if fullname in MOVED:
            raise ImportError(f"{fullname} is called {MOVED[fullname]} now", name=fullname)


def tell_moved_modules() -> None:
    """Let imports of old paths fail with a sentence, once in a process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
