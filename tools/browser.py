"""Where the Chromium of this machine is: for the tests in a browser and for printing the book."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NO_BROWSER = (
    "no Chromium or Chrome found: install one (Debian and Ubuntu: apt-get install chromium), "
    "or name it in the environment variable CHROMIUM, or run "
    "`.venv/bin/python -m playwright install chromium`"
)
ON_PATH = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ON_WINDOWS = tuple(
    Path(os.environ.get(folder, "C:/")) / "Google" / "Chrome" / "Application" / "chrome.exe"
    for folder in ("PROGRAMFILES", "PROGRAMFILES(X86)", "LOCALAPPDATA")
)
ON_MACOS = (
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
)


def find_browser(bundled: Path) -> str | None:
    """Find a Chromium: named by the reader, installed on the system, or Playwright's own."""
    named = os.environ.get("CHROMIUM")
    if named:
        if not shutil.which(named):
            raise FileNotFoundError(f"CHROMIUM={named} is not an executable file")
        return named
    for name in ON_PATH:
        if path := shutil.which(name):
            return path
    for file in (*ON_MACOS, *ON_WINDOWS, bundled):
        if file.is_file():
            return str(file)
    return None


def has_sandbox() -> bool:
    """Tell whether Chromium's sandbox can start: not under root, which containers run as."""
    is_root = os.geteuid() == 0 if hasattr(os, "geteuid") else False  # Windows has no such user
    return not is_root and not os.environ.get("CI")
