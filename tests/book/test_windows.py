"""README's two commands without make and without a system like Unix: `make.py`, and all on its way.

No test here runs on Windows. They hold the steps equal to the Makefile's, forbid the calls that
Windows does not have, and import everything on the way with these calls taken out of Python.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import windows
from omissions import fail_on

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import make  # noqa: E402
from tools.notebooks import forked  # noqa: E402

FOLDERS = ("transformer_lib", "transformer_book", "tools", "book/_ext", "tests", "experiments")
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "spwd", "syslog", "termios", "tty"}
MEMBERS = {
    "os": {
        *("P_ALL", "WEXITED", "WNOHANG", "WNOWAIT", "WTERMSIG", "WUNTRACED", "chown", "chroot"),
        *("fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getpgrp"),
        *("getuid", "killpg", "lchown", "mkfifo", "mknod", "nice", "openpty", "posix_spawn"),
        *("pread", "pwrite", "register_at_fork", "sched_getaffinity", "sched_setaffinity"),
        *("setpgid", "setsid", "setuid", "statvfs", "symlink", "sync", "sysconf", "uname"),
        *("wait", "wait3", "wait4", "waitid", "waitpid"),
    },
    "signal": {
        *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP"),
        *("SIGUSR1", "SIGUSR2", "alarm", "pause", "pthread_kill", "setitimer", "sigwait"),
    },
}
METHODS = {"send_signal", "symlink_to"}
KEYWORDS = {"pass_fds", "preexec_fn", "process_group", "start_new_session"}
PROGRAMS = {"awk", "bash", "make", "sh", "touch"}
FILES = ("/dev/null", "/bin/sh")
_IN_A_SCRIPT = re.compile(
    "|".join(
        rf"\b{module}\.{name}\b" for module, names in MEMBERS.items() for name in sorted(names)
    )
    + rf"|^\s*import (?:{'|'.join(sorted(MODULES))})\b",
    re.MULTILINE,
)

# What the two commands never run on Windows, and why.
OFF_THE_WAY = {
    "tools/fresh_env.py": "make binder-check",
    "tools/newest.py": "only CI runs it",
    "tools/quick.py": "make quick",
    "tools/run_notebook.py": "make binder-check",
    "tools/notebooks/forked.py": "only where can_fork() says so",
    "tests/windows.py": "names the calls",
    "tests/book/test_windows.py": "names the calls",
}
# Calls that stand behind a question that this test cannot read.
GUARDED = {
    "transformer_lib/core/files.py": {"os.pread", "os.pwrite"},  # for a lock, not there on Windows
    "tools/seconds.py": {f"os.{n}" for n in ("P_ALL", "WEXITED", "WNOHANG", "WNOWAIT", "waitid")},
}
_ASKS = re.compile(r"hasattr\((?:os|signal), |sys\.platform|os\.name")


def missing_calls(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield what Windows does not have: the outermost definition, the line, the name.

    Where an ``if`` asks for the system, or whether the call is there, it may stand.
    """
    for node in ast.parse(source).body:
        for top, line, name in _below(node, getattr(node, "name", ""), ""):
            if name not in PROGRAMS or "subprocess" in source:  # else a word in some list
                yield top, line, name


def _below(node: ast.AST, top: str, inner: str) -> Iterator[tuple[str, int, str]]:
    if isinstance(node, ast.If | ast.IfExp) and _ASKS.search(ast.unparse(node.test)):
        return
    for name in _names(node):
        yield inner or top, getattr(node, "lineno", 0), name
    for child in ast.iter_child_nodes(node):
        is_method = isinstance(node, ast.ClassDef) and isinstance(child, ast.FunctionDef)
        yield from _below(child, top, child.name if is_method else inner)


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names if alias.name in MODULES)
        case ast.ImportFrom(module=module, names=names) if module in MODULES | MEMBERS.keys():
            found = {alias.name for alias in names}
            yield from ({module} if module in MODULES else found & MEMBERS[module])
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in MEMBERS:
            yield from ({f"{module}.{name}"} if name in MEMBERS[module] else ())
        case ast.Attribute(attr=name) if name in METHODS:
            yield name
        case ast.keyword(arg=name) if name in KEYWORDS:
            yield name
        case ast.List(elts=[ast.Constant(value=program), *_]) if program in PROGRAMS:
            yield program
        case ast.Constant(value=str(text)):
            yield from (file for file in FILES if file in text and "\n" not in text)
            yield from (_IN_A_SCRIPT.findall(text) if "\n" in text else ())


def problems_in(path: str, source: str) -> Iterator[str]:
    """Yield what a file on the way calls and Windows does not have."""
    if path in OFF_THE_WAY:
        return
    file = path.removeprefix("tests/")
    for name, line, call in missing_calls(source):
        is_skipped = file in windows.NOT_ON_WINDOWS and windows.is_left_out(f"{file}::{name}")
        if not is_skipped and call not in GUARDED.get(path, ()):
            remedy = "ask for it first, or enter the test in tests/windows.py"
            yield f"{path}:{line}: Windows has no {call}: {remedy}"


def sources() -> dict[str, str]:
    files = [ROOT / "make.py", ROOT / "setup.py"]
    files += [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    return {
        file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_nothing_on_the_way_calls_what_windows_does_not_have() -> None:
    found = sources()
    assert len(found) > 300
    fail_on(problem for path, source in found.items() for problem in problems_in(path, source))


def test_no_entry_stands_there_for_nothing() -> None:
    found = sources()
    gone = [path for path in (*OFF_THE_WAY, *GUARDED) if path not in found]
    for file, (_, names) in windows.NOT_ON_WINDOWS.items():
        text = found.get(f"tests/{file}", "")
        gone += [f"{file}: {name}" for name in names if f"def {name}(" not in text]
        gone += [file] if not text else []
    for path, calls in GUARDED.items():
        gone += [f"{path}: {call}" for call in calls - {c for *_, c in missing_calls(found[path])}]
    assert not gone


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nos.fork()", ["os.fork"]),
        ("from signal import SIGKILL", ["SIGKILL"]),
        ("import resource", ["resource"]),
        ("subprocess.run(['make', 'book'], preexec_fn=f)", ["make", "preexec_fn"]),
        ("open('/dev/null')", ["/dev/null"]),
        ("CHILD = '''\nimport os\nos.fork()\n'''", ["os.fork"]),
        ("if hasattr(os, 'nice'):\n    os.nice(1)", []),
        ("x = os.geteuid() if sys.platform != 'win32' else 0", []),
        ("os.kill(1, signal.SIGTERM)", []),
    ],
)
def test_calls_that_windows_lacks_are_found(source: str, found: list[str]) -> None:
    assert sorted(call for *_, call in missing_calls(source)) == found


def test_kernels_are_not_forked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert not forked.can_fork()


# Each import that the commands make, where Python has only what it has on Windows.
IMPORTS = """
import importlib, os, signal, subprocess, sys
import jupyter_client, nbval.plugin, pytest, torch, yaml  # of others: they look for themselves
members, modules, names = {members!r}, {modules!r}, {names!r}
for module, missing in members.items():
    for name in missing:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
for module in modules:
    sys.modules[module] = None  # an import of it fails
sys.platform = "win32"
for name in names:
    importlib.import_module(name)
print(importlib.import_module("tools.browser").has_sandbox())
"""
OURS = [
    *("make", "tools.install", "tools.live", "tools.seconds", "tools.sizes", "tools.verdict"),
    *("tools.browser", "tools.notebooks.__main__", "tools.notebooks.nbval_guard"),
    *("transformer_lib", "transformer_lib.core.files", "transformer_book.file"),
]


def test_all_is_imported_without_the_calls_that_windows_lacks() -> None:
    # symlink and wait are there on Windows: the first asks for a right, the second for a child.
    members = {module: sorted(names - {"symlink"}) for module, names in MEMBERS.items()}
    code = IMPORTS.format(members=members, modules=sorted(MODULES - {"posix"}), names=OURS)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "JAXTYPING_DISABLE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("True", "False")


def test_there_the_tests_of_the_list_are_skipped() -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid, self.marks = nodeid, []

        def add_marker(self, mark: object) -> None:
            self.marks.append(mark)

    nodes = ("tests/lib/test_resume.py::test_a", "tests/lib/test_parts.py::test_b")
    for platform, skipped in (("win32", [1, 0]), ("linux", [0, 0])):
        items = [Item(node) for node in nodes]
        windows.skip_on_windows(items, platform)  # type: ignore[arg-type]
        assert [len(item.marks) for item in items] == skipped
    assert doctest.testmod(windows).failed == 0


# --- the entry ----------------------------------------------------------------------------------


def of_make(target: str) -> list[str]:
    """The commands of a target, as `make.py` writes them."""
    marks = [f"--assume-old=.venv/{mark}" for mark in (".ready", ".site-ready")]
    command = ["make", "--dry-run", "--no-print-directory", target, "TORCH_INDEX=", *marks]
    surroundings = {name: text for name, text in os.environ.items() if name[:4] != "MAKE"}
    done = subprocess.run(
        command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=True
    )
    lines = [" ".join(line.split()) for line in done.stdout.replace("\\\n", " ").splitlines()]
    own = [line for line in lines if not re.match(r"(?:\S*/)?make\b", line)]
    return [_as_step(line) for line in own]


def _as_step(line: str) -> str:
    line = re.sub(r"^(\w+=\S+ )?\.venv/bin/python ", r"\1", line)
    line = re.sub(r"\.venv/bin/python", "PYTHON", line)
    line = re.sub(r"(?<=[ ])\.venv/bin/(\w+)", r"PYTHON -m \1", line)
    return re.sub(r"^\.venv/bin/(\w+)", r"-m \1", line)


def steps(of: list[make.Step]) -> list[str]:
    before = [" ".join(f"{name}={text}" for name, text in step.variables.items()) for step in of]
    return [f"{v} {step.command}".strip() for v, step in zip(before, of, strict=True)]


def test_its_steps_are_those_of_the_makefile() -> None:
    assert steps(make.BOOK) == of_make("book")
    assert sorted(steps(make.TEST)) == sorted(of_make("test"))
    assert steps(make.TEST)[-1] == of_make("test")[-1] == "-m tools.verdict"
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    marks = re.findall(r"^\$\((SITE|READY)\): (.*)$", text, re.MULTILINE)
    needs = {"SITE": make.NEEDS_SITE, "READY": make.NEEDS_ALL}
    assert [(mark, tuple(files.split())) for mark, files in marks] == list(needs.items())
    for step in (*make.INSTALL_SITE, *make.INSTALL_ALL):
        assert step.command.replace("-m tools.install", "$(INSTALL)") in text


@pytest.mark.parametrize(("command", "installed"), [("book", 1), ("test", 3)])
def test_it_installs_what_is_missing_and_runs_the_steps(
    command: str, installed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def note(words: list[str], **kept: object) -> subprocess.CompletedProcess[str]:
        if words[1:3] == ["-m", "venv"]:
            make.python_of(tmp_path).parent.mkdir(parents=True)
            make.python_of(tmp_path).touch()
        ran.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(make, "VENV", tmp_path)
    monkeypatch.setattr(make, "SITE", tmp_path / ".site-ready")
    monkeypatch.setattr(make, "READY", tmp_path / ".ready")
    monkeypatch.setattr(make.subprocess, "run", note)
    own = len(make.BOOK if command == "book" else make.TEST)
    for expected in (1 + installed + own, own):  # the second time all is there
        ran.clear()
        make.main([command])
        assert len(ran) == expected
    assert {words[0] for words in ran} == {str(make.python_of(tmp_path))}


def test_a_step_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 3)
    monkeypatch.setattr(make.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SystemExit, match=r"`python -m tools\.sizes` failed with exit status 3"):
        make.run(make.Step("-m tools.sizes"))


def test_its_examples_run() -> None:
    assert doctest.testmod(make).failed == 0
