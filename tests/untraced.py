"""Which tests run without coverage, and the hook that sees to it.

Coverage makes a test about twice as slow, and one that compiles even slower. What `untraced.txt`
lists reaches hardly a line that no other test reaches, so it runs untraced, in the same run as the
others. `make test-lib` prints the lines that are missing then.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
_LINES = (FOLDER / "untraced.txt").read_text(encoding="utf-8").splitlines()
LISTED = frozenset(line for line in _LINES if line and not line.startswith("#"))
CHILDREN = "COVERAGE_PROCESS_CONFIG"  # by which coverage traces the processes that a test starts


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


class Tracing:
    """Stops coverage before an untraced test and starts it again before a traced one."""

    def __init__(self) -> None:
        self.paused_with: str | None = None
        self.is_paused = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace a test, its set-up and its teardown, or do not."""
        self._pause(item.config, is_untraced(item.nodeid))
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Leave coverage as it began: its own plugin is going to stop it."""
        self._pause(session.config, False)

    def _pause(self, config: pytest.Config, pause: bool) -> None:
        plugin = config.pluginmanager.getplugin("_cov")
        coverage = plugin.cov_controller if plugin else None
        if coverage is None or pause == self.is_paused:
            return
        self.is_paused = pause
        if pause:
            coverage.pause()
            self.paused_with = os.environ.pop(CHILDREN, None)
        else:
            coverage.resume()
            if self.paused_with is not None:
                os.environ[CHILDREN] = self.paused_with
