"""The quick check: it finds what belongs to a change, keeps to its time, and hides no failure."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import specimens as sp
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools import quick
from tools.notebooks.compare import compare, summary
from tools.notebooks.model import BOOK, NotebookError
from tools.quick import Done, Step, imports_of, matching_tests, module_name, run_lane, steps_for

SLEEP = Step("slow", (sys.executable, "-c", "import time; time.sleep(60)"))
FAIL = Step("tests", (sys.executable, "-c", "print('it is wrong'); raise SystemExit(1)"))
PASS = Step("guard", (sys.executable, "-c", "print('fine')"))


# --- which tests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("transformer_lib/generation/sampling.py", ["tests/lib/test_generation.py"]),
        ("transformer_lib/layers/masks.py", ["tests/lib/test_masks_shapes_config.py"]),
        ("transformer_book/exercises/masks.py", ["tests/lib/test_exercises.py"]),
        ("tools/notebooks/svg.py", ["tests/book/test_notebooks.py"]),
        ("tests/lib/tiny_models.py", ["tests/lib/test_generation.py"]),
        ("tests/lib/test_attention.py", ["tests/lib/test_attention.py"]),
        ("book/glossary.md", ["tests/book/test_apparatus.py"]),
        ("book/sources.yml", ["tests/book/test_sources.py"]),
        ("book/04_scaling.ipynb", ["tests/book/test_sources.py", "tests/book/test_front.py"]),
        ("README.md", ["tests/book/test_project.py"]),
    ],
)
def test_the_tests_of_a_file_are_found(path: str, tests: list[str]) -> None:
    assert (quick.ROOT / path).is_file()
    assert set(tests) <= set(matching_tests(path))


def test_every_module_of_the_library_has_tests() -> None:
    """Otherwise its author would see a quick check without any."""
    alone = [
        path.relative_to(quick.ROOT).as_posix()
        for path in sorted((quick.ROOT / "transformer_lib").rglob("*.py"))
        if path.stem not in ("__init__", "__main__")
    ]
    assert [path for path in alone if not matching_tests(path)] == []


def test_a_name_of_the_package_stands_for_its_module() -> None:
    found = imports_of("from transformer_lib import causal_mask, CausalLM\nimport tools.cover\n")
    assert {
        "transformer_lib.layers.masks",
        "transformer_lib.models.language_models",
        "tools.cover",
    } <= found
    assert module_name("transformer_lib/tracing/__init__.py") == "transformer_lib.tracing"


# --- what changed -----------------------------------------------------------------------------


def test_changes_are_those_since_the_last_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def put(name: str) -> None:
        (tmp_path / name).write_text(name, encoding="utf-8")

    monkeypatch.setattr(quick, "ROOT", tmp_path)
    git("init", "-b", "main")
    put("old.py")
    git("add", ".")
    git("commit", "-m", "first")
    assert quick.changed_files(quick.last_merge()) == []
    git("checkout", "-b", "side")
    put("merged.py")
    git("add", ".")
    git("commit", "-m", "side")
    git("checkout", "main")
    git("merge", "--no-ff", "-m", "merge", "side")
    put("committed.py")
    git("add", ".")
    git("commit", "-m", "after")
    put("new.py")
    put("old.py")
    (tmp_path / "merged.py").unlink()
    assert quick.changed_files(quick.last_merge()) == ["committed.py", "new.py"]
    put("merged.py")
    (tmp_path / "old.py").write_text("other", encoding="utf-8")
    assert quick.changed_files(quick.last_merge()) == ["committed.py", "new.py", "old.py"]
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert quick.changed_files(quick.last_merge()) == ["new.py", "old.py"]


# --- steps and time ---------------------------------------------------------------------------


def names_of(*paths: str) -> set[str]:
    lanes, _ = steps_for(paths, 60.0)
    return {step.name for lane in lanes for step in lane}


def test_each_kind_of_file_gets_its_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(quick, "MYPY_CACHE", tmp_path)
    ruff = {"ruff check", "ruff format"}
    assert names_of("book/04_scaling.ipynb") == ruff | {"guard", "compare", "tests"}
    assert names_of("transformer_lib/layers/masks.py") == ruff | {"mypy", "tests"}
    assert names_of("tests/lib/test_attention.py") == ruff | {"tests"}
    assert names_of("book/glossary.md") == {"tests"}
    monkeypatch.setattr(quick, "MYPY_CACHE", tmp_path / "none")
    assert names_of("transformer_lib/layers/masks.py") == ruff | {"tests"}
    _, left = steps_for(["transformer_lib/layers/masks.py"], 60.0)
    assert "mypy has no cache yet: `make lint` makes one, in a minute" in left


def test_one_file_gets_its_closest_tests_and_the_others_are_counted() -> None:
    (_, (tests,)), left = steps_for(["transformer_lib/layers/masks.py"], 20.0)
    assert tests.command[-quick.FEW :][:2] == (
        "transformer_lib/layers/masks.py",
        "tests/lib/test_masks_shapes_config.py",
    )
    more = len(matching_tests("transformer_lib/layers/masks.py")) - quick.FEW
    assert f"{more} more files of tests match: `make test` runs them" in left


def test_a_busy_machine_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = quick.os.cpu_count() or 1
    for load, expected in ((0.0, 1.0), (2.0 * cores, 2.0), (99.0 * cores, 3.0)):
        monkeypatch.setattr(quick.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert quick.patience() == expected


def test_pages_that_do_not_fit_are_named_and_still_guarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = {"05_masks.ipynb": 50.0, "04_scaling.ipynb": 5.0, "03_attention.ipynb": 8.0}
    monkeypatch.setattr(quick, "_seconds_by_file", lambda: slow)
    pages = [f"book/{name}" for name in slow]
    (first, _), left = steps_for(pages, 20.0)
    commands = {step.name: step.command for step in first}
    assert left == [f"book/05_masks.ipynb was not compared: {quick.TIME_IS_UP}"]
    assert commands["compare"][-2:] == ("book/04_scaling.ipynb", "book/03_attention.ipynb")
    assert set(pages) < set(commands["guard"])


def test_a_step_is_stopped_when_its_time_is_up() -> None:
    began = time.monotonic()
    (done,) = run_lane([SLEEP], began + 1.0, Event())
    assert done.status is None
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("steps", "status", "words"),
    [
        ([PASS], 0, ["nothing wrong was found"]),
        ([PASS, FAIL], 1, ["FAILED  tests", "--- tests\nit is wrong", "make quick: FAILED: tests"]),
        ([SLEEP], 0, ["stopped", "slow: no time left in the quick check", "NOT FINISHED; nothing"]),
    ],
    ids=["sound", "wrong", "late"],
)
def test_what_is_wrong_comes_last_and_what_is_late_is_said(
    steps: list[Step],
    status: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(quick, "steps_for", lambda paths, seconds: ([steps], []))
    assert quick.check(["x.py"], 2.0) == status
    said = capsys.readouterr().out
    places = [said.index(word) for word in words]
    assert places == sorted(places)


def test_a_failure_stops_the_other_lane_and_the_steps_behind_it() -> None:
    failed, began = Event(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        lanes = list(
            pool.map(lambda lane: run_lane(lane, began + 60, failed), [[FAIL, PASS], [SLEEP]])
        )
    assert [[done.status for done in lane] for lane in lanes] == [[1], [None]]
    assert time.monotonic() - began < 20


def test_tests_are_skipped_when_time_is_up(tmp_path: Path) -> None:
    # The time begins before tests are collected, which takes seconds on a busy machine.
    tests = "import time\n" + "".join(
        f"def test_{number}(): time.sleep(1.5)\n" for number in range(9)
    )
    (tmp_path / "test_it.py").write_text(tests, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rs", "-c", "/dev/null"),
            *("-p", "tools.quick", "--quick-seconds=4", str(tmp_path)),
        ],
        cwd=quick.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert quick.TIME_IS_UP in done.stdout
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert 1 <= passed <= 3


def test_a_notebook_is_compared_as_far_as_the_time_goes(tmp_path: Path) -> None:
    """Cells after one that was skipped are skipped, too: they may need it."""
    path = tmp_path / "01_page.ipynb"
    notebook = new_notebook(
        cells=[
            new_code_cell("a = 1\nprint(a)", id="first"),
            new_code_cell("import time\ntime.sleep(4)\nb = 2", id="slow"),
            new_code_cell("print(b)", id="late"),
        ]
    )
    for number, cell in enumerate(notebook.cells, start=1):
        cell.execution_count = number
    notebook.cells[0].outputs = [new_output("stream", name="stdout", text="1\n")]
    notebook.cells[2].outputs = [new_output("stream", name="stdout", text="not compared\n")]
    sp.write(notebook, path)
    record = {"chapters": {path.name: {"compared": 2, "ratio": 1.0}}, "skips": []}
    (tmp_path / "verified.json").write_text(json.dumps(record), encoding="utf-8")
    results, findings = compare([path], at_most=3.0)
    assert findings == []
    assert summary(results).startswith("1 notebook: 1 of 2 cells with output compared")


def test_a_failed_step_says_so_in_its_line() -> None:
    assert quick._told(Done(FAIL, 1, 0.5, "a\n3 failed\n")).split() == [
        "FAILED",
        "tests",
        "0.5",
        "s",
    ]
    said = quick._told(Done(FAIL, 0, 0.5, "a\n3 passed\n"))
    assert said.split() == ["ok", "tests", "0.5", "s", "3", "passed"]


# --- the command ------------------------------------------------------------------------------


def test_pages_are_called_by_number_name_or_path(capsys: pytest.CaptureFixture[str]) -> None:
    def asked(**options: object) -> list[str]:
        parsed = {"page": None, "file": None, "base": None, **options}
        return quick.wanted(quick.argparse.Namespace(**parsed))[0]

    for name in ("04", "04_scaling", str(BOOK / "04_scaling.ipynb")):
        assert asked(page=[name]) == ["book/04_scaling.ipynb"]
    assert asked(page=["lab1"]) == ["book/lab1_heads.ipynb"]
    assert asked(page=["04b"]) == ["book/04b_softmax.ipynb"]
    assert asked(file=[str(quick.ROOT / "README.md")]) == ["README.md"]
    with pytest.raises(NotebookError, match="99: expected an existing"):
        asked(page=["99"])
    assert quick.main(["--file", "no/such/file.py"]) == 2
    assert "expected an existing file" in capsys.readouterr().err
