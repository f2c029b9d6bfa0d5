"""Kernels that need not import PyTorch again: each is forked from a process that only imported it.

Half of the seconds that a small notebook takes are imports. A *nursery* is a process that imports
what almost every page imports, and then nothing but forks: it runs no cell, draws no random number
and starts no thread, so that each kernel begins with the same clean memory, and what a notebook
does to its own copy no other kernel can see. `tests/book/test_forked.py` proves that.

`compare` starts its kernels so. `run`, which stores outputs, starts fresh ones, and so does
everything on a system where forking is not known to be safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

# The kernel itself, and the large packages that most pages import. Not the book's own modules: they
# are small, and a page that forgets to import one of them shall fail here as it would elsewhere.
PRELOADED = (
    *("ipykernel.kernelapp", "ipykernel.ipkernel"),
    *("torch", "pandas", "matplotlib.figure", "jaxtyping", "safetensors.torch"),
)
# What imports read: the backend that a kernel chooses before it imports, and no threads for NumPy's
# products, which alone would start them at once. Kernels get their own variables afterwards.
AT_THE_START = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "OPENBLAS_NUM_THREADS": "1",
}
LAUNCHER = "ipykernel_launcher"
ROOT = Path(__file__).resolve().parents[2]


def can_fork() -> bool:
    """Whether kernels may be forked here: macOS' own libraries do not survive it."""
    return sys.platform == "linux"


# --- the side that asks -----------------------------------------------------------------------


class Nursery:
    """The process that forks kernels, seen from the process that wants them."""

    def __init__(self, python: Sequence[str], env: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [*python, "-m", __name__],
            cwd=ROOT,
            env={**env, **AT_THE_START},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        """Send one request and wait for its answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        answer = ""
        with self._lock, contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the nursery of kernels ended with status {process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """Let the nursery end: it does when nobody can ask any more."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe:
                    pipe.close()
        self._process.wait()


class ForkedKernel:
    """A kernel with those parts of `subprocess.Popen` that jupyter_client uses."""

    stdin = stdout = stderr = None

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        if self.returncode is None:
            self.returncode = self._nursery.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status."""
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"kernel {self.pid}", timeout or 0.0)
            time.sleep(0.02)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


_nurseries: list[Nursery] = []


def launch(
    cmd: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None, **_: Any
) -> ForkedKernel:
    """Start a kernel; takes the place of jupyter_client's `launch_kernel`.

    Args:
        cmd: the command that would start it afresh: Python, its options, the module, arguments.
        env: its environment variables.
        cwd: its folder.

    Returns:
        The running kernel.
    """
    at = cmd.index("-m")
    if cmd[at + 1] != LAUNCHER:
        raise ValueError(f"cmd: expected a kernel of {LAUNCHER}, got {cmd}")
    variables = dict(os.environ if env is None else env)
    if not _nurseries:
        _nurseries.append(Nursery(cmd[:at], variables))
    (nursery,) = _nurseries
    request = {"arguments": cmd[at + 2 :], "env": variables, "cwd": cwd or str(Path.cwd())}
    return ForkedKernel(nursery, nursery.ask(fork=request))


def close() -> None:
    """End the nursery, if one was started."""
    while _nurseries:
        _nurseries.pop().close()


# --- the nursery ------------------------------------------------------------------------------


def preload() -> None:
    """Import what kernels will need."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that the collector of a kernel leaves the shared pages alone


def threads() -> int:
    """How many threads this process has, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def serve(requests: TextIO, answers: TextIO) -> dict[str, Any] | None:
    """Answer requests until nobody can ask any more.

    Returns:
        In a forked child what it shall run; in the nursery itself, at the end, None.
    """
    for line in requests:
        request = json.loads(line)
        if "poll" in request:
            answer = _poll(request["poll"])
        else:
            if threads() != 1:
                raise RuntimeError(f"the nursery has {threads()} threads; expected only its own")
            nursery = os.getpid()
            if os.fork() == 0:
                os.setsid()
                _die_with(nursery)
                _tell(answers, os.getpid())  # by the child: now it leads a group of its own
                asked: dict[str, Any] = request["fork"]
                return asked
            continue
        _tell(answers, answer)
    return None


def _die_with(parent: int) -> None:
    """Ask the system to end this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has just ended
        os._exit(1)


def _poll(pid: int) -> int | None:
    with contextlib.suppress(ChildProcessError):
        ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None
    return 0  # it was reaped before


def _tell(answers: TextIO, answer: object) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def become_kernel(asked: dict[str, Any]) -> None:
    """Be in a forked child what a fresh `python -m ipykernel_launcher` would have been."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the pipes of the nursery are not the kernel's
        os.dup2(nowhere, stream)
    os.close(nowhere)
    os.environ.clear()
    os.environ.update(asked["env"], JPY_PARENT_PID=str(os.getppid()))
    os.chdir(asked["cwd"])
    sys.argv = [LAUNCHER, *asked["arguments"]]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tools"]:
        del sys.modules[name]
    # What imports drew from the system's randomness each kernel draws for itself.
    importlib.import_module("torch").seed()
    importlib.import_module("numpy.random").seed()
    app = importlib.import_module("ipykernel.kernelapp")
    app.launch_new_instance()


def main() -> None:
    """Preload, then fork whenever asked to."""
    if Path(sys.path[0] or ".").resolve() == ROOT:  # as in a kernel, where the launcher drops it
        del sys.path[0]
    preload()
    if asked := serve(sys.stdin, sys.stdout):
        become_kernel(asked)


if __name__ == "__main__":
    main()
