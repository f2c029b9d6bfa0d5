"""A folder served on this machine, and what to do where there is no browser to look at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

import pytest

from tools.browser import NO_BROWSER


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line in the terminal for each of them."""

    def log_message(self, format: str, *args: object) -> None:
        pass


class LateFonts(QuietHandler):
    """Serves fonts as a slow line does: after the rest of the page."""

    def do_GET(self) -> None:
        if self.path.endswith(".woff2"):
            time.sleep(1.5)
        super().do_GET()


@contextmanager
def serve(folder: Path, handling: type[QuietHandler] = QuietHandler) -> Iterator[str]:
    """Serve a folder on a free port of the loopback interface; yields its origin."""
    handler = partial(handling, directory=str(folder))
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


def give_up(environment: Mapping[str, str]) -> NoReturn:
    """Skip the tests on a machine without a browser; in CI that would hide that none ran."""
    if environment.get("CI"):
        pytest.fail(NO_BROWSER, pytrace=False)
    pytest.skip(NO_BROWSER)


def skip_reasons(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Say of each skipped test why it was; a report holds file, line and reason."""
    places = [report.longrepr for report in reports]
    return [str(place[2]).removeprefix("Skipped: ") for place in places if place]
