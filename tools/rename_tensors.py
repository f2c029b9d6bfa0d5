"""Give the tensors of the book's shipped models the names that the library uses now.

Run ``python -m tools.rename_tensors`` once after a name has changed. Values are kept bit for bit;
files that have the new names already are left alone.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from transformer_lib import with_current_names, write_file

RESULTS = Path(__file__).resolve().parents[1] / "book" / "results"


def rename(path: Path) -> bool:
    """Rewrite a file whose tensors have old names; say whether it had any.

    Args:
        path: a file of safetensors.

    Returns:
        Whether it was written anew.

    Raises:
        ValueError: if a tensor would not be the same afterwards.
    """
    with safe_open(path, "pt") as file:
        about = file.metadata()
    old = load_file(path)
    new = with_current_names(old)
    if list(new) == list(old):
        return False
    write_file(path, save(new, about))
    again = load_file(path)
    pairs = zip(old.values(), (again[name] for name in new), strict=True)
    if len(new) != len(old) or not all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs
    ):
        raise ValueError(f"{path} is not what it was: take it back with git")
    return True


if __name__ == "__main__":
    for found in sorted(RESULTS.glob("*/*.safetensors")):
        print(f"{found.relative_to(RESULTS)}: {'renamed' if rename(found) else 'left alone'}")
