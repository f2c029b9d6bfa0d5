"""The register of fast paths: what may be deleted, and nothing but time is lost.

A fast path does what slower code does, in less time, and with the same output. Each is a file in a
folder called ``fast`` beside what it speeds up. The slower code asks here for it, once, when it is
imported: without the file it goes on alone.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

FAST_PATHS = {
    "padding_free": "layers",  # batches without padding, sequences laid end to end
    "flexible_pattern": "layers",  # rules in the place of masks (FlexAttention): on request
    "quantized_kernels": "layers",  # products with codes of 8 or 4 bits: on request
    "single_token": "generation",  # one new token, with little around it
    "decode_kernel": "generation",  # attention of one new token in one Triton kernel
    "cuda_graph": "generation",  # decoding steps recorded on a GPU, and replayed
    "compiled_decoder": "generation",  # the same, compiled first: on request
}
BUILT_ON = {"compiled_decoder": "cuda_graph"}  # who deletes the second has deleted the first
_LIBRARY = Path(__file__).parents[1]


def fast_path(name: str) -> ModuleType | None:
    """Import a fast path, if it is there.

    Args:
        name: one of ``FAST_PATHS``.

    Returns:
        The module, or ``None`` if its file was deleted, or that of one it is built on.

    Example:
        >>> fast_path("padding_free").__name__
        'transformer_lib.layers.fast.padding_free'
    """
    if missing_file(name) is not None:
        return None
    return import_module(f"transformer_lib.{FAST_PATHS[name]}.fast.{name}")


def missing_file(name: str) -> str | None:
    """Say which file a fast path would need that was deleted.

    Args:
        name: one of ``FAST_PATHS``.

    Returns:
        Its own file, or that of one it is built on; ``None`` if both are there.

    Example:
        >>> missing_file("compiled_decoder") is None
        True
    """
    path = f"{FAST_PATHS[name]}/fast/{name}.py"
    if not (_LIBRARY / path).is_file():
        return f"transformer_lib/{path}"
    return missing_file(BUILT_ON[name]) if name in BUILT_ON else None
