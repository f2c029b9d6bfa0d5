"""What a measurement depends on besides the code: machine and versions."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


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
    """Say when it is, and how many processes want to run: more than cores means noise."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "load": round(os.getloadavg()[0], 2)}


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
