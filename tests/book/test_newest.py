"""The report on the newest versions: it tells what differs, and always tells all of it."""

from __future__ import annotations

import sys
from pathlib import Path

from tools import newest
from tools.newest import SAME, Check, Outcome, moved, read_pins, report, run, write_report

ROOT = Path(__file__).resolve().parents[2]
ISSUE_HOLDS = 65_536  # characters


def python(program: str, minutes: float = 1) -> Check:
    return Check("a check", (sys.executable, "-c", program), minutes)


def outcome(status: int | None, output: str = "") -> Outcome:
    return Outcome(python(""), status, output)


def test_versions_are_compared_without_the_label_of_who_built_them() -> None:
    here = {"torch": "2.13.0+cpu", "numpy": "2.5.0", "gone": "none"}
    pins = {"torch": "2.13.0", "numpy": "2.4.6", "gone": "1.0"}
    assert moved(pins, here.__getitem__) == [("numpy", "2.4.6", "2.5.0"), ("gone", "1.0", "none")]


def test_all_pins_are_read_and_packages_are_found() -> None:
    pins = read_pins((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    assert {"torch", "transformers", "jupyter-book", "huggingface_hub"} <= pins.keys()
    assert newest.installed_version("pytest") != "none"
    assert newest.installed_version("no-such-package") == "none"


def test_the_second_check_runs_although_the_first_fails(tmp_path: Path) -> None:
    checks = [python("print('FAILED test_a - no'); exit(1)"), python("print('second')")]
    text = report(checks, tmp_path / "new" / "report.md")
    assert text == (tmp_path / "new" / "report.md").read_text(encoding="utf-8")
    assert text.startswith("1 of 2 checks did not pass.\n")
    assert "fails (status 1)" in text
    assert "- `FAILED test_a - no`" in text
    assert "passes." in text
    assert (tmp_path / "new" / "check-2.log").read_text(encoding="utf-8") == "second\n"


def test_a_check_that_does_not_end_is_stopped_and_told(tmp_path: Path) -> None:
    slow = python("import time; print('begun', flush=True); time.sleep(60)", minutes=1 / 20)
    found = run(slow, tmp_path / "log")
    assert found.status is None
    assert found.words == "was not done after 0.05 minutes"
    assert found.output == "begun\n"


def test_only_a_run_without_findings_says_that_nothing_differs() -> None:
    moved_one = [("numpy", "2.4.6", "2.5.0")]
    assert write_report(moved_one, 50, [outcome(0), outcome(0)]).startswith(SAME + "\n")
    assert "| numpy | 2.4.6 | 2.5.0 |" in write_report(moved_one, 50, [outcome(0)])
    assert "| package |" not in write_report([], 50, [outcome(0)])
    for status in (1, 2, None):
        assert SAME not in write_report([], 50, [outcome(0), outcome(status)])


def test_findings_are_failed_tests_and_changed_notebooks() -> None:
    said = "...F\nFAILED tests/lib/test_a.py::test_b - E\nbook/04.ipynb: cell 3: new\nbook/05 1"
    assert outcome(1, said).findings == [
        "FAILED tests/lib/test_a.py::test_b - E",
        "book/04.ipynb: cell 3: new",
    ]


def test_a_long_report_fits_into_an_issue() -> None:
    said = "\n".join(f"FAILED {'x' * 1000}" for _ in range(1000))
    text = write_report([("name", "1", "2")] * 60, 60, [outcome(1, said), outcome(1, said)])
    assert len(text) < ISSUE_HOLDS - 1000
    assert "and 940 more" in text


def test_the_notebooks_and_the_tests_of_the_library_are_checked() -> None:
    tests, notebooks = (" ".join(check.command) for check in newest.CHECKS)
    assert tests.endswith(" transformer_lib transformer_book tests/lib tests/book")
    assert notebooks.endswith(" -m tools.notebooks compare")
    assert sum(check.minutes for check in newest.CHECKS) <= 50  # of the hour that its job has
