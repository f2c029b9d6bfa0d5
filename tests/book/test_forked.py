"""Forked kernels, proven: nothing of one notebook reaches another, and each begins afresh."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import local_provisioner
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

from tools.notebooks import forked
from tools.notebooks.execute import kernel_environment

pytestmark = pytest.mark.skipif(not forked.can_fork(), reason="kernels are not forked here")

# Everything that a careless page could leave behind.
POISON = """
import builtins, os, random, sys, threading, warnings
import matplotlib, numpy, pandas, torch
builtins.leaked = os.environ["LEAKED"] = "yes"
torch.manual_seed(7); torch.nn.Linear.leaked = "yes"; torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True); torch.set_num_threads(1); torch.set_grad_enabled(False)
torch.set_printoptions(precision=2); numpy.set_printoptions(precision=2)
matplotlib.rcParams["font.size"] = 99; matplotlib.use("agg")
pandas.set_option("display.precision", 2)
warnings.simplefilter("ignore"); sys.path.insert(0, "leaked"); sys.setrecursionlimit(4321)
random.seed(7); numpy.random.seed(7); sys.modules["leaked"] = sys
os.chdir("/"); threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
# What a page could find of it. Printed as JSON: the same in a fresh kernel.
LOOK = """
import builtins, json, os, sys, threading, warnings
import matplotlib, numpy, pandas, torch
print(json.dumps({
    "builtins": hasattr(builtins, "leaked"), "environment": os.environ.get("LEAKED"),
    "class": hasattr(torch.nn.Linear, "leaked"), "module": "leaked" in sys.modules,
    "seeded": torch.initial_seed() == 7,
    "dtype": str(torch.get_default_dtype()), "grad": torch.is_grad_enabled(),
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "torch threads": torch.get_num_threads(), "torch prints": repr(torch.tensor(1 / 3)),
    "numpy prints": numpy.get_printoptions()["precision"],
    "font": matplotlib.rcParams["font.size"], "backend": matplotlib.rcParams["backend"],
    "pandas prints": pandas.get_option("display.precision"),
    "warnings": len(warnings.filters), "recursion": sys.getrecursionlimit(),
    "folder": os.getcwd(), "path": sys.path, "flags": str(sys.flags), "options": sys._xoptions,
    "names": sorted(name for name in globals() if name[0] != "_"), "main": __name__,
    "book": sorted(name for name in sys.modules if name.startswith(("transformer_", "tools"))),
    "leader": os.getpgid(0) == os.getpid(), "threads": threading.active_count() < 20,
}))
"""
RANDOM = """
import random, numpy, torch
print(random.random(), numpy.random.rand(), torch.initial_seed(), float(torch.rand(1)))
"""


@contextmanager
def kernel(folder: Path) -> Iterator[KernelManager]:
    manager = KernelManager(
        kernel_name=CURRENT_ENV_KERNEL_NAME, kernel_spec_manager=NbvalKernelspecManager()
    )
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        manager.start_kernel(cwd=str(folder), env=kernel_environment(), stderr=nowhere)
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


def printed(manager: KernelManager, source: str) -> str:
    """What a cell prints; an error fails the test."""
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        texts: list[str] = []

        def listen(message: dict[str, dict[str, str]]) -> None:
            texts.append(message["content"].get("text", ""))

        reply = client.execute_interactive(source, output_hook=listen, timeout=60)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(texts)
    finally:
        client.stop_channels()


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are forked while this lasts."""
    assert not forked._nurseries
    monkeypatch.setattr(local_provisioner, "launch_kernel", forked.launch)
    yield
    forked.close()


def test_nothing_of_one_notebook_reaches_another(
    forking: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kernel(tmp_path) as first:
        assert printed(first, POISON) == ""
        assert json.loads(printed(first, LOOK))["environment"] == "yes", "the poison does nothing"
        with kernel(tmp_path) as second:  # while the first is still alive
            seen, drawn = json.loads(printed(second, LOOK)), printed(second, RANDOM)
    with kernel(tmp_path) as third:  # and after its end
        assert json.loads(printed(third, LOOK)) == seen
        for one, other in zip(printed(third, RANDOM).split(), drawn.split(), strict=True):
            assert one != other, "what nobody seeded is the same in two kernels"
    monkeypatch.undo()
    with kernel(tmp_path) as fresh:
        assert json.loads(printed(fresh, LOOK)) == seen, "a fresh kernel begins otherwise"
    assert seen["folder"] == str(tmp_path)
    assert not seen["book"], "a page that forgets an import of the book's would pass"


def test_a_forked_kernel_can_be_interrupted_and_killed(forking: None, tmp_path: Path) -> None:
    with kernel(tmp_path) as manager:
        assert printed(manager, "print(6 * 7)") == "42\n"
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        asked = client.execute("import time; time.sleep(60)")
        time.sleep(0.5)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=20)
        while reply["parent_header"]["msg_id"] != asked:
            reply = client.get_shell_msg(timeout=20)
        client.stop_channels()
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        process = manager.provisioner.process
        process.kill()
        assert process.wait(timeout=20) == -signal.SIGKILL
        assert not manager.is_alive()


def test_kernels_end_with_the_process_that_asked_for_them(tmp_path: Path) -> None:
    """Whatever happens to the tests, no kernel is left behind."""
    nursery = forked.Nursery([sys.executable], kernel_environment())
    file = tmp_path / "connection.json"
    request = {"arguments": ["-f", str(file)], "env": dict(os.environ), "cwd": str(tmp_path)}
    pid = nursery.ask(fork=request)
    assert nursery.ask(poll=pid) is None
    nursery.close()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    pytest.fail(f"kernel {pid} goes on without its nursery")


def test_a_nursery_with_threads_forks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another thread holds would stay locked in the child for ever."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        monkeypatch.setattr(os, "fork", lambda: pytest.fail("it forks"))
        with pytest.raises(RuntimeError, match=r"the nursery has \d+ threads; expected only its"):
            forked.serve(io.StringIO('{"fork": {}}\n'), io.StringIO())
    finally:
        stop.set()
        thread.join()


def test_only_kernels_are_forked() -> None:
    with pytest.raises(ValueError, match="cmd: expected a kernel of ipykernel_launcher, got"):
        forked.launch([sys.executable, "-m", "http.server"])


def test_a_nursery_that_ended_is_said_so() -> None:
    nursery = forked.Nursery([sys.executable], kernel_environment())
    nursery._process.kill()
    nursery._process.wait()
    with pytest.raises(RuntimeError, match="the nursery of kernels ended with status -9"):
        nursery.ask(poll=1)
    nursery.close()


def test_waiting_for_a_kernel_ends_in_time() -> None:
    class Deaf(forked.Nursery):
        def __init__(self) -> None:
            pass

        def ask(self, **request: object) -> None:
            return None

    with pytest.raises(subprocess.TimeoutExpired):
        forked.ForkedKernel(Deaf(), 1).wait(timeout=0.1)
