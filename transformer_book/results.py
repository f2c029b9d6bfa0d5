"""Tables of measured results, read from book/results."""

import csv
from pathlib import Path

from transformer_lib import book_folder, check_choice

Cell = int | float | str
FOLDER = book_folder() / "results"


def table(experiment: str, filename: str = "results.csv") -> list[dict[str, Cell]]:
    """Read a table that an experiment left.

    Args:
        experiment: its folder in ``book/results``.
        filename: which of its tables.

    Returns:
        A dictionary for each row; what looks like a number is one.

    Raises:
        FileNotFoundError: if the results are not there.
        ValueError: if there is no such experiment or table.

    Example:
        >>> rows = table("recall")
        >>> rows[0]["model"], rows[0]["distance"]
        ('rnn', 5)
    """
    if not FOLDER.is_dir():
        raise FileNotFoundError(
            f"there is no folder {FOLDER}: the tables are in book/results of the book's "
            "repository; run this in a clone of it, or install it from there with: pip install ."
        )
    check_choice("experiment", experiment, _names(FOLDER, "*/card.json", parent=True))
    folder = FOLDER / experiment
    check_choice("filename", filename, _names(folder, "*.csv"))
    with (folder / filename).open(encoding="utf-8", newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _names(folder: Path, pattern: str, *, parent: bool = False) -> tuple[str, ...]:
    """Return the names of the files, or of the folders that hold them."""
    return tuple(sorted((path.parent if parent else path).name for path in folder.glob(pattern)))


def _value(text: str) -> Cell:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
