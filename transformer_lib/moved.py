"""Names that have moved: who imports an old one is told."""

import sys
from collections.abc import Callable, Mapping, Sequence
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

# The same for what modules hold that are still there.
MOVED_NAMES = {
    "transformer_lib.attention.make_attention": "transformer_lib.parts.make_attention",
    "transformer_lib.cache.KeyValueStore": "transformer_lib.cache.LayerCache",
    "transformer_lib.data.pack": "transformer_lib.packing.pack",
    "transformer_lib.decoding.CompiledDecoder": "transformer_lib.compiled.CompiledDecoder",
    "transformer_lib.decoding.generating": "transformer_lib.modes.evaluating",
    "transformer_lib.generation.GREEDY": "transformer_lib.sampling.GREEDY",
    "transformer_lib.generation.beam_search": "transformer_lib.beams.beam_search",
    "transformer_lib.generation.choose_token": "transformer_lib.sampling.choose_token",
    "transformer_lib.generation.filter_logits": "transformer_lib.sampling.filter_logits",
    "transformer_lib.saving.book_folder": "transformer_lib.files.book_folder",
    "transformer_lib.saving.lock_folder": "transformer_lib.files.lock_folder",
    "transformer_lib.saving.read_checkpoint": "transformer_lib.run_checkpoints.read_checkpoint",
    "transformer_lib.saving.write_checkpoint": "transformer_lib.run_checkpoints.write_checkpoint",
    "transformer_lib.saving.write_file": "transformer_lib.files.write_file",
}


@dataclass(frozen=True)
class MovedModules(MetaPathFinder):
    """Asked last, when nobody has found a module: says where it went, if it is in the table.

    Args:
        new_paths: for each old path of a module the new one.

    Example:
        >>> MovedModules({"attic.chair": "hall.chair"}).find_spec(
        ...     "attic.chair", None
        ... )
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


def tell_moved_names(module: str) -> Callable[[str], object]:
    """Make the ``__getattr__`` of a module some of whose names are elsewhere now.

    Args:
        module: the path of the module.

    Returns:
        A function that raises an error for every name it is asked for. For one that has moved, the
        error says where to.

    Example:
        >>> from transformer_lib.data import pack  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ImportError: transformer_lib.data.pack is ...packing.pack now
    """

    def missing(name: str) -> object:
        path = f"{module}.{name}"
        if path in MOVED_NAMES:
            raise ImportError(f"{path} is {MOVED_NAMES[path]} now", name=path)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing
