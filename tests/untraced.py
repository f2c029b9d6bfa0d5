"""Which tests run without coverage, and the option that picks them.

Coverage makes a test about twice as slow, and one that compiles even slower. What `untraced.txt`
lists reaches hardly a line that no other test reaches, so `make test-lib` runs it in a second run
without coverage. (To pause coverage within one run was tried: the tests were as slow as traced.)
The first run prints the lines that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
_LINES = (FOLDER / "untraced.txt").read_text(encoding="utf-8").splitlines()
LISTED = frozenset(line for line in _LINES if line and not line.startswith("#"))


def is_untraced(node: str) -> bool:
    """Whether a test runs without coverage.

    >>> (
    ...     is_untraced("tests/lib/test_routes.py::test_x"),
    ...     is_untraced("tests/lib/test_parts.py::test_x"),
    ... )
    (True, False)
    """
    name = node.removeprefix("tests/").partition("[")[0]
    file = name.partition("::")[0]
    of_the_tools = file.startswith("book/") and not file.startswith("book/test_live")
    return of_the_tools or file in LISTED or name in LISTED


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that picks the traced tests, or the others."""
    parser.addoption(
        "--tracing", choices=("yes", "no"), help="run only the tests that are traced, or are not"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what the other run has as a whole."""
    wanted: str | None = config.getoption("--tracing")
    if not wanted or collection_path.suffix != ".py":
        return None
    node = f"tests/{collection_path.parent.name}/{collection_path.name}"
    is_whole = FOLDER in collection_path.parents and is_untraced(node)
    has_some = any(entry.startswith(f"{node.removeprefix('tests/')}::") for entry in LISTED)
    return True if (is_whole if wanted == "yes" else not (is_whole or has_some)) else None


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the other run has."""
    wanted: str | None = config.getoption("--tracing")
    if wanted:
        kept, left = split(items, untraced=wanted == "no")
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def split(
    items: Sequence[pytest.Item], *, untraced: bool
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of one run, and those of the other."""
    kept = [item for item in items if is_untraced(item.nodeid) == untraced]
    return kept, [item for item in items if is_untraced(item.nodeid) != untraced]
