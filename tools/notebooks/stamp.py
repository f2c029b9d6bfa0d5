"""Writing the repository's address into copies of the notebooks, for the deployment."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .model import NotebookError, code_cells, load, reseal, save, show

# A comment may follow; it speaks of the empty placeholder and goes with it.
_PLACEHOLDER = re.compile(r'^(\s*)REPOSITORY = ""(?: *#.*)?$', re.M)
_ADDRESS = re.compile(r"https://[\w.-]+(?:/[\w.~-]+)+")


def stamp(path: Path, address: str, folder: Path) -> Path:
    """Write a copy of the notebook whose set-up cell knows the repository.

    Raises:
        NotebookError: if the address or the set-up cell is not what is expected.
    """
    address = address.removesuffix("/").removesuffix(".git")
    if not _ADDRESS.fullmatch(address):
        raise NotebookError(f"{address!r}: expected an address like https://github.com/OWNER/NAME")
    target = folder / path.name
    if target.resolve() == path.resolve():
        raise NotebookError(f"{show(folder)}: expected another folder than the notebook's own")
    notebook = load(path)
    _, setup = next(code_cells(notebook), (0, None))
    if setup is None or len(_PLACEHOLDER.findall(setup.source)) != 1:
        raise NotebookError(
            f'{show(path)}: expected one line `REPOSITORY = ""` in the first code cell'
        )
    setup.source = _PLACEHOLDER.sub(
        lambda match: f"{match.group(1)}REPOSITORY = {json.dumps(address)}", setup.source
    )
    reseal(notebook)
    folder.mkdir(parents=True, exist_ok=True)
    save(notebook, target)
    return target
