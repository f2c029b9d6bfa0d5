"""Install packages into the environment that runs this: with uv where it can be had, else with pip.

    .venv/bin/python -m tools.install --requirement requirements.txt

The arguments are those that ``pip install`` and ``uv pip install`` share. uv is several times as
fast. It is used if the command is there, and is installed into the environment if it is not. But it
does not read pip's settings: where these name another place for packages, pip alone is asked. And
whatever uv cannot do, pip tries again, so uv never decides whether something can be installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip"]
# Settings of pip that say where packages come from, and how they are reached.
SOURCES = {
    *("index-url", "extra-index-url", "find-links", "no-index"),
    *("cert", "client-cert", "proxy", "trusted-host"),
}
# Without a network, uv shall give up soon: pip will say what is wrong.
HASTE = {"UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "30"}


def main(arguments: list[str]) -> int:
    """Install; return the exit status."""
    if sys.prefix == sys.base_prefix:
        print("This installs into a virtual environment only: run `make env`.", file=sys.stderr)
        return 2
    if (uv := find_uv()) is not None:
        if run([uv, "pip", "install", "--python", sys.executable, *arguments]) == 0:
            return 0
        print("uv could not install this (see above); pip tries now.", file=sys.stderr)
    status = run([*PIP, "install", *arguments])
    if status:
        print(f"Not installed (see above): {' '.join(arguments)}", file=sys.stderr)
    return status


def run(command: list[str]) -> int:
    """Run a command, which speaks only if something is wrong; return its exit status."""
    variables = {**HASTE, **os.environ}
    return subprocess.run([*command, "--quiet"], cwd=ROOT, env=variables, check=False).returncode


def find_uv() -> str | None:
    """Return the command uv, installed if need be; or None if pip has to do it."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False)
    if own_sources(listed.stdout):
        return None
    here = Path(sys.executable).with_name("uv")
    if (found := shutil.which("uv")) or here.is_file():
        return found or str(here)
    constraint = ["--constraint", "requirements.txt"]
    return str(here) if run([*PIP, "install", *constraint, "uv"]) == 0 else None


def own_sources(settings: str) -> list[str]:
    r"""Return those of pip's settings that uv would have to know.

    Args:
        settings: what ``pip config list`` prints.

    Example:
        >>> own_sources(
        ...     "global.index-url='https://mirror'\nglobal.timeout='60'\n:env:.cert='a'"
        ... )
        ['index-url', 'cert']
    """
    names = [line.partition("=")[0].rpartition(".")[2] for line in settings.splitlines()]
    return [name for name in names if name in SOURCES]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
