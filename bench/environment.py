"""What a measurement depends on besides the code: machine and versions."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

COMPILER_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # where they keep their work
FRESH = "bench-fresh-"  # how the name of a folder begins that was empty when we started


def environment(device: str) -> dict[str, Any]:
    """Describe machine and versions, ready for JSON.

    Args:
        device: ``"cpu"`` or ``"cuda"``.

    Returns:
        Names and numbers; nothing that says whose machine it is.
    """
    found: dict[str, Any] = {
        "device": device,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["cuda"] = torch.version.cuda
    return found


def moment() -> dict[str, Any]:
    """Say when it is, how many processes want to run, and whether compilers start from nothing.

    More processes than cores mean noise.
    """
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    cold = FRESH in os.environ.get(COMPILER_CACHES[0], "")
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None  # not on Windows
    return {"date": today, "load": load, "cold_compiler": cold}


@contextmanager
def fresh_compiler_cache() -> Iterator[None]:
    """Let compilers start from nothing: what they kept in earlier processes is out of their sight.

    They keep their own work for later processes, so that a second measurement would find most of it
    done. What they keep here is thrown away at the end.
    """
    before = {name: os.environ.get(name) for name in COMPILER_CACHES}
    with tempfile.TemporaryDirectory(prefix=FRESH, ignore_cleanup_errors=True) as folder:
        for name in COMPILER_CACHES:
            os.environ[name] = str(Path(folder, name.lower()))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def cpu_name() -> str:
    """Find out what the processor is called; not every system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    with suppress(OSError, subprocess.SubprocessError):
        lscpu = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, timeout=10)
        lines = dict(line.split(":", 1) for line in lscpu.stdout.splitlines() if ":" in line)
        if name := lines.get("Model name", "").strip(" -"):
            return name
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
