"""Which tests need what Windows does not have, and are skipped there.

`tests/book/test_windows.py` finds what is missing in this list, and what stands in it for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

# For each file why, and which of its functions and classes; none means all of them.
NOT_ON_WINDOWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "book/test_commands.py": ("runs make", ()),
    "book/test_environment.py": ("asks make", ()),
    "book/test_forked.py": ("forks kernels", ()),
    "book/test_fresh_env.py": ("a tool that make runs for Binder", ()),
    "book/test_newest.py": ("a tool that only CI runs", ()),
    "book/test_quick.py": ("make quick", ()),
    "book/test_site.py": ("sends Ctrl-C", ("test_the_built_site_is_served_until_ctrl_c",)),
    "browser/test_pdf.py": ("make pdf", ()),
    "lib/test_cli.py": (
        "sends signals",
        (
            "start_waiting",  # of the next two
            "test_stopped_with_a_signal_it_goes_on_and_ends_with_the_same_bits",
            "test_a_second_ctrl_c_stops_at_once",
        ),
    ),
    "lib/killed_run.py": ("kills itself, for lib/test_resume.py", ()),
    "lib/test_resume.py": ("kills its children", ()),
    "lib/test_without_fast.py": ("forks", ()),
}


def is_left_out(node: str) -> bool:
    """Whether a test is skipped on Windows.

    >>> (
    ...     is_left_out("tests/lib/test_resume.py::test_x"),
    ...     is_left_out("tests/lib/test_parts.py::a"),
    ... )
    (True, False)
    """
    file, *parts = node.removeprefix("tests/").partition("[")[0].split("::")
    if file not in NOT_ON_WINDOWS:
        return False
    _, names = NOT_ON_WINDOWS[file]
    return not names or not set(names).isdisjoint(parts)


def skip_on_windows(items: Sequence[pytest.Item], platform: str = sys.platform) -> None:
    """Mark the tests that cannot run there."""
    if platform == "win32":
        for item in items:
            if is_left_out(item.nodeid):
                file = item.nodeid.removeprefix("tests/").partition("::")[0]
                reason = f"not on Windows: {NOT_ON_WINDOWS[file][0]}"
                item.add_marker(pytest.mark.skip(reason=reason))
