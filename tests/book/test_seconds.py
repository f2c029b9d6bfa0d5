"""Where the seconds go: measured with all that a test starts, written down, told largest first."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import seconds
from tools.seconds import Row, by_file, cpu_seconds, read, report, write

BUSY = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"
ROOT = Path(__file__).resolve().parents[2]
TESTS = f"""
import subprocess, sys, time

def test_own_work():
    end = time.process_time() + 0.3
    while time.process_time() < end: pass

def test_work_of_a_child():
    subprocess.run([sys.executable, "-c", {BUSY.format(0.3)!r}], check=True)

def test_sleep():
    time.sleep(0.3)
"""


def test_work_of_children_counts_while_they_run_and_when_they_have_ended() -> None:
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", BUSY.format(0.4) + "input()"], stdin=-1) as child:
        end = time.monotonic() + 20
        while cpu_seconds() - before < 0.3 and time.monotonic() < end:
            time.sleep(0.05)
        assert cpu_seconds() - before >= 0.3, "a running child is not counted"
        child.communicate(b"\n")
    assert cpu_seconds() - before >= 0.4, "an ended child is forgotten"


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two workers"])
def test_every_test_is_measured(workers: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "plugin.py").write_text(
        "from tools import seconds\nfrom pathlib import Path\n"
        f"seconds.FOLDER = Path({str(tmp_path / 'seconds')!r})\n"
        "seconds.Meter.__init__.__defaults__ = (seconds.FOLDER,)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "tools.seconds"),
            *("-p", "plugin", "--seconds", "some", *workers, "test_it.py"),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (processes,) = read(tmp_path / "seconds").values()
    assert len(processes) == max(1, len(workers))
    rows = {row.what.partition("::")[2]: row for process in processes for row in process}
    assert rows["test_own_work"].cpu >= 0.25
    assert rows["test_work_of_a_child"].cpu >= 0.25
    assert rows["test_sleep"].wall >= 0.3 > rows["test_sleep"].cpu + 0.1
    assert "" in rows, "what the process takes beside its tests is missing"


def test_a_command_is_measured_and_keeps_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seconds, "FOLDER", tmp_path)
    code = BUSY.format(0.2) + "raise SystemExit(3)"
    assert seconds.main(["run", "step", sys.executable, "-c", code]) == 3
    (((row,),),) = read(tmp_path).values()
    assert row.cpu >= 0.2
    assert row.wall >= 0.2


def test_the_report_is_sorted_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    write(
        tmp_path / "test-lib.gw0.json",
        [
            Row("(start)", 1.0, 1.0),
            Row("tests/lib/test_a.py::test_one", 2.0, 1.5),
            Row("tests/lib/test_b.py::test_two", 3.0, 5.0),
            Row("tests/lib/test_a.py::test_three", 2.0, 2.0),
        ],
    )
    write(tmp_path / "test-lib.gw1.json", [Row("tests/lib/test_c.py::test_four", 9.0, 4.0)])
    write(tmp_path / "site.alone.json", [Row("-m tools.site build", 60.0, 61.0)])
    said = report(read(tmp_path), most=2).splitlines()
    steps = {line.split()[-1]: line.split()[:2] for line in said[1:3]}
    assert steps == {"test-lib": ["13.5", "9.0"], "site": ["61.0", "60.0"]}
    assert [line.split() for line in said[5:8]] == [
        ["5.0", "3.0", "tests/lib/test_b.py"],
        ["4.0", "9.0", "tests/lib/test_c.py"],
        ["4.5", "5.0", "2", "more"],
    ]
    (first, *_) = by_file([Row("tests/browser/test_pages.py::test_page[a]", 1.0, 1.0)])
    assert first.what.endswith("[a]"), "browser tests stand for themselves"


def test_nothing_measured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seconds, "read", lambda: {})
    assert seconds.main([]) == 1
