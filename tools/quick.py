"""The quick check: what a change is most likely to break, in seconds instead of half an hour.

    make quick NB=04                            # one page, by its number, name or path
    make quick FILE=transformer_lib/generation/sampling.py # one file
    make quick                                  # all that changed since the last merge

It runs ruff, mypy, the guard of the notebooks, the comparison of changed pages, and the tests that
import what changed or name it, without their checks of shapes, which cost as much time as all the
rest. It does so in two lanes side by side, and keeps to a time: 30 seconds for one
page or file, 4 minutes for everything, longer on a busy machine. It ends with the first failure,
whose output is printed last. What did not fit is said, and left to `make test`, which is the proof.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event

import pytest

from tools.notebooks.model import NotebookError, find_notebooks
from tools.seconds import read

ROOT = Path(__file__).resolve().parents[1]
ONE, ALL = 27.0, 220.0  # seconds: for one page or file, for all that changed
FEW = 5  # files of tests for one file: importing more takes most of the time
CLOSING = 4.0  # seconds that pytest may still take when its time is up
STARTING = 3.0  # seconds that the guard takes before a page is compared
UNKNOWN_PAGE = 15.0  # seconds for a notebook that was never measured
# The tests that hold all pages of the book to its lists: errata, terms, headings, paths, README.
OF_ALL_PAGES = ("sources", "front", "moved", "culprits", "apparatus", "project")
MYPY_CACHE = ROOT / ".mypy_cache"
PACKAGES = ("transformer_lib", "transformer_book", "tools", "experiments", "bench")
TIME_IS_UP = "no time left in the quick check for all of it: `make test` has it"


# --- which tests belong to a file -------------------------------------------------------------


def module_name(path: str) -> str:
    """The dotted name under which a file of the project is imported.

    Example:
        >>> (
        ...     module_name("transformer_lib/layers/masks.py"),
        ...     module_name("book/_ext/book_terms.py"),
        ... )
        ('transformer_lib.layers.masks', 'book_terms')
    """
    parts = Path(path).with_suffix("").parts
    inside = parts if parts[0] in PACKAGES else parts[-1:]
    return ".".join(part for part in inside if part != "__init__")


@cache
def definitions(package: str) -> dict[str, str]:
    """The names that a package's files define at their top level, each with its module."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found.setdefault(node.name, module_name(str(path.relative_to(ROOT))))
    return found


def imports_of(source: str, within: str = "") -> set[str]:
    """The modules that a source imports; a name of a package stands for the module that has it.

    Args:
        source: the text of a module.
        within: its name, which relative imports start from.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = within.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
            if origin in PACKAGES:
                known = definitions(origin)
                found |= {known[alias.name] for alias in node.names if alias.name in known}
    return found


@dataclass(frozen=True)
class FileOfTests:
    """A file of tests, with what it imports and what its text names."""

    path: str
    imports: frozenset[str]
    text: str


@cache
def test_files() -> tuple[FileOfTests, ...]:
    """All files of tests that run without a browser; what a helper imports counts as theirs."""
    folders = [ROOT / "tests" / "lib", ROOT / "tests" / "book"]
    texts = {path: path.read_text("utf-8") for folder in folders for path in folder.glob("*.py")}
    imports = {path.stem: imports_of(text) for path, text in texts.items()}
    found = []
    for path, text in sorted(texts.items()):
        if path.stem.startswith("test_"):
            own = imports[path.stem]
            helped = set().union(*(imports.get(name, ()) for name in own))
            found.append(FileOfTests(str(path.relative_to(ROOT)), frozenset(own | helped), text))
    return tuple(found)


def matching_tests(path: str) -> list[str]:
    """What pytest shall run for a file: the file itself if it holds tests, and what matches it.

    A test matches a module that it imports, or whose package it imports, and then those that such a
    module is used by; any other file, if its text names it. The closest ones come first: those that
    are called like the module, then those that import little else. A page is matched by the tests
    that look at all pages.
    """
    if path.startswith("tests/") and Path(path).name.startswith("test_"):
        return [path] if "browser" not in path else []
    if path.endswith(".ipynb"):
        return [f"tests/book/test_{name}.py" for name in OF_ALL_PAGES]
    if not path.endswith(".py"):
        name = Path(path).name
        return [test.path for test in test_files() if name in test.text and "/book/" in test.path]
    module = module_name(path)
    near = _names(module)
    far = near.union(*(_names(user) for user in users(module)))
    stem = module.rpartition(".")[2]
    ranked = sorted(test_files(), key=lambda test: (stem not in test.path, len(test.imports)))
    closest = [test.path for test in ranked if near & test.imports]
    others = [test.path for test in ranked if far & test.imports]
    own = [path] if path.startswith(PACKAGES[:2]) else []  # the examples in its docstrings
    return list(dict.fromkeys([*own, *closest, *others]))


def _names(module: str) -> set[str]:
    """A module, and the package within ours that it belongs to, by which it may be imported."""
    package = module.rpartition(".")[0]
    return {module, package} if "." in package else {module}


def users(module: str) -> list[str]:
    """The modules of its package that import a module."""
    top = module.partition(".")[0]
    return [name for name, found in imports_within(top).items() if module in found]


@cache
def imports_within(package: str) -> dict[str, set[str]]:
    """What each module of one of our packages imports."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")) if package in PACKAGES else ():
        name = module_name(str(path.relative_to(ROOT)))
        if path.stem != "__init__":
            found[name] = imports_of(path.read_text(encoding="utf-8"), within=name)
    return found


# --- what changed -----------------------------------------------------------------------------


def git(*arguments: str) -> list[str]:
    """The lines that a command of git prints; none if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines() if done.returncode == 0 else []


def last_merge() -> str:
    """Where the work began: the common past with origin's main, else the last merge, else HEAD."""
    for question in (("merge-base", "HEAD", "origin/main"), ("rev-list", "--merges", "-1", "HEAD")):
        if found := git(*question):
            return found[0]
    return "HEAD"


def changed_files(base: str) -> list[str]:
    """The files that differ from a commit and are still there, new ones included."""
    names = {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}
    return sorted(name for name in names if (ROOT / name).is_file())


# --- steps and lanes --------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One command, and how it is called in the list of what was done."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """How a step ended."""

    step: Step
    status: int | None  # None: it was stopped, since its time was up or another step had failed
    seconds: float
    output: str


def steps_for(paths: Sequence[str], seconds: float) -> tuple[list[list[Step]], list[str]]:
    """What to run for changed files, in two lanes, and what is left out for want of time."""
    python = [path for path in paths if path.endswith(".py")]
    chapters = [path for path in paths if re.fullmatch(r"book/\w+\.ipynb", path)]
    pages = _affordable(chapters, seconds)
    left = [f"{page} was not compared: {TIME_IS_UP}" for page in chapters if page not in pages]
    known = [path for path in paths if path.endswith((".py", ".ipynb"))]
    first, second = [], []
    if known:
        first.append(_step("ruff check", str(_bin("ruff")), "check", *known))
        first.append(_step("ruff format", str(_bin("ruff")), "format", "--check", *known))
    if chapters:
        first.append(_python("guard", "tools.notebooks", "check", *chapters))
    if pages:
        limit = f"--at-most={seconds - STARTING:.0f}"
        first.append(_python("compare", "tools.notebooks", "compare", limit, *pages))
    typed = [path for path in python if path.startswith(tuple(f"{p}/" for p in PACKAGES))]
    if typed and MYPY_CACHE.is_dir():
        first.append(_step("mypy", str(_bin("mypy")), *typed))
    elif typed:
        left.append("mypy has no cache yet: `make lint` makes one, in a minute")
    tests = list(dict.fromkeys(test for path in paths for test in matching_tests(path)))
    if len(paths) == 1 and len(tests) > FEW:
        left.append(f"{len(tests) - FEW} more files of tests match: `make test` runs them")
        tests = tests[:FEW]
    if tests:
        words = ",".join(sorted({Path(path).stem for path in paths}))
        options = (
            *("-q", "-x", "-rs", "--no-header", "-p", "tools.quick"),  # -x: tell at once
            *(f"--quick-seconds={seconds}", f"--quick-words={words}"),
        )
        second.append(_python("tests", "pytest", *options, *tests))
    return [first, second], left


def _affordable(pages: Sequence[str], seconds: float) -> list[str]:
    """The pages that can be compared in the time, the quickest first, but at least one."""
    measured = _seconds_by_file()
    taken: list[str] = []
    for page in sorted(pages, key=lambda page: measured.get(Path(page).name, UNKNOWN_PAGE)):
        seconds -= measured.get(Path(page).name, UNKNOWN_PAGE)
        if seconds > 0 or not taken:
            taken.append(page)
    return taken


def _seconds_by_file() -> dict[str, float]:
    """What each notebook took in the last run of all of them."""
    found: dict[str, float] = {}
    for process in read().get("nbval", []):
        for row in process:
            name = Path(row.what.partition("::")[0]).name
            found[name] = found.get(name, 0.0) + row.wall
    return found


def _bin(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def _step(name: str, *command: str) -> Step:
    return Step(name, command)


def _python(name: str, module: str, *arguments: str) -> Step:
    return Step(name, (sys.executable, "-m", module, *arguments))


def run_lane(steps: Sequence[Step], until: float, failed: Event) -> list[Done]:
    """Run steps one after another until one fails, here or in another lane; say how each ended."""
    done: list[Done] = []
    for step in steps:
        if not failed.is_set():
            done.append(_run(step, until, failed))
            print(_told(done[-1]), flush=True)
    return done


def _run(step: Step, until: float, failed: Event) -> Done:
    """Run a step; stop it, with all that it started, when the time is up or another has failed."""
    began = time.monotonic()
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "JAXTYPING_DISABLE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while True:
        try:
            output, _ = process.communicate(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() > max(until, began + 1.0) or failed.is_set():
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                return Done(step, None, time.monotonic() - began, output)
    if process.returncode:
        failed.set()
    return Done(step, process.returncode, time.monotonic() - began, output)


def _told(done: Done) -> str:
    verdict = {0: "ok", None: "stopped"}.get(done.status, "FAILED")
    counts = done.step.name in ("tests", "compare") and done.status == 0
    last = done.output.strip().splitlines()[-1:] if counts else []
    return "  ".join([f"{verdict:8}{done.step.name:12}{done.seconds:5.1f} s", *last])


def check(paths: Sequence[str], seconds: float) -> int:
    """Run what belongs to the files; returns the exit status."""
    lanes, left = steps_for(paths, seconds - CLOSING)
    until, stop = time.monotonic() + seconds, Event()
    with ThreadPoolExecutor(len(lanes)) as pool:
        ended = list(pool.map(lambda lane: run_lane(lane, until, stop), lanes))
    done = [one for lane in ended for one in lane]
    failed = [one for one in done if one.status]
    if failed:
        for one in failed:
            print(f"\n--- {one.step.name}\n{one.output.strip()}")
        print(f"\nmake quick: FAILED: {', '.join(one.step.name for one in failed)}")
        return 1
    late = [
        f"{one.step.name}: {TIME_IS_UP}"
        for one in done
        if one.status is None or TIME_IS_UP in one.output
    ]
    for line in [*late, *left]:
        print(line)
    verdict = "NOT FINISHED; nothing wrong in what ran" if late else "nothing wrong was found"
    print(f"\nmake quick: {verdict}")
    return 0


# --- pytest's part ----------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that gives tests a time."""
    parser.addoption("--quick-seconds", type=float, default=0.0, help="skip tests after so long")
    parser.addoption("--quick-words", default="", help="tests that have one of these come first")


class Clock:
    """Runs first what was asked for, then what is quick, and skips what is left when time is up."""

    def __init__(self, seconds: float, words: Collection[str]) -> None:
        self.words = [f"[{word}." for word in words]  # as in test_it[masks.causal]
        self.until = time.monotonic() + seconds
        self.left_off: set[Path] = set()
        self.known = {row.what: row.wall for runs in read().values() for r in runs for row in r}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put named tests first, slow ones last; cells of a notebook stay in their order."""

        def rank(item: pytest.Item) -> tuple[bool, bool]:
            is_named = any(word in item.nodeid for word in self.words)
            return not is_named, self.known.get(item.nodeid, 0.0) > 1.0

        if all(item.path.suffix == ".py" for item in items):
            items.sort(key=rank)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what can no longer end in time, and the cells after a cell that was skipped."""
        is_late = time.monotonic() + self.known.get(item.nodeid, 0.0) > self.until
        if is_late or item.path in self.left_off:
            if item.path.suffix == ".ipynb":
                self.left_off.add(item.path)
            pytest.skip(TIME_IS_UP)


def pytest_configure(config: pytest.Config) -> None:
    """Start the clock."""
    if seconds := config.getoption("--quick-seconds"):
        words = config.getoption("--quick-words").split(",")
        config.pluginmanager.register(Clock(seconds, words), "quick-clock")


# --- the command ------------------------------------------------------------------------------


def wanted(options: argparse.Namespace) -> tuple[list[str], float]:
    """The files to check, and the seconds for it."""
    if options.page:
        return [_relative(path) for path in find_notebooks(options.page)], ONE
    if options.file:
        return [_relative(Path(name)) for name in options.file], ONE
    return changed_files(options.base or last_merge()), ALL


def _relative(path: Path) -> str:
    """A path as seen from the root of the project."""
    if not path.is_file():
        raise NotebookError(f"{path}: expected an existing file")
    return path.resolve().relative_to(ROOT).as_posix()


def patience() -> float:
    """How many times as long everything may take, since the machine is busy otherwise."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(3.0, max(1.0, busy))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a page, a file, or all that changed; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.quick", description=__doc__)
    parser.add_argument("--page", nargs="+", help="pages, by number, name or path")
    parser.add_argument("--file", nargs="+", help="any other files")
    parser.add_argument("--base", help="all that changed since this commit (default: last merge)")
    try:
        paths, seconds = wanted(parser.parse_args(arguments))
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 2
    if not paths:
        print("nothing changed since the last merge")
        return 0
    named = f"{', '.join(paths[:5])}{' ...' if len(paths) > 5 else ''}"
    print(f"{len(paths)} {'file' if len(paths) == 1 else 'files'}: {named}")
    return check(paths, seconds * patience())


if __name__ == "__main__":
    sys.exit(main())
