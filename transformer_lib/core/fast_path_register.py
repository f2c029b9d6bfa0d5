"""The register of fast paths: what may be deleted, and nothing but time is lost.

A fast path does what slower code does, sooner, where nobody can tell. Each is a file in a folder
called ``fast`` beside what it speeds up. The slower code asks here, once, when it is imported:
without the folder it goes on alone.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

FAST_PATHS = {
    "padding_free": "layers",  # batches without padding, sequences laid end to end
    "single_token": "generation",  # one new token, with little around it
    "decode_kernel": "generation",  # attention of one new token in one Triton kernel
    "cuda_graph": "generation",  # decoding steps recorded on a GPU, and replayed
    "compiled_decoder": "generation",  # the same, compiled first: on request
}


def fast_path(name: str) -> ModuleType | None:
    """Import a fast path, if it is there.

    Args:
        name: one of ``FAST_PATHS``.

    Returns:
        The module, or ``None`` if its file was deleted.

    Example:
        >>> fast_path("padding_free").__name__
        'transformer_lib.layers.fast.padding_free'
    """
    package = FAST_PATHS[name]
    file = Path(__file__).parents[1] / package / "fast" / f"{name}.py"
    return import_module(f"transformer_lib.{package}.fast.{name}") if file.is_file() else None
