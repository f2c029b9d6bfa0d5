"""A folder served on this machine, and a browser to look at it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

import pytest

NO_BROWSER = (
    "no Chromium or Chrome found: install one (Debian and Ubuntu: apt-get install chromium), "
    "or name it in the environment variable CHROMIUM, or run "
    "`.venv/bin/python -m playwright install chromium`"
)
ON_PATH = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ON_MACOS = (
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
)


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line in the terminal for each of them."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of the loopback interface; yields its origin."""
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


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
    for file in (*ON_MACOS, bundled):
        if file.is_file():
            return str(file)
    return None


def give_up(environment: Mapping[str, str]) -> NoReturn:
    """Skip the tests on a machine without a browser; in CI that would hide that none ran."""
    if environment.get("CI"):
        pytest.fail(NO_BROWSER, pytrace=False)
    pytest.skip(NO_BROWSER)
