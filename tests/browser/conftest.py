"""One browser for the whole run, one server for the built site."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_site import SITE
from local_site import give_up, serve
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tools.browser import find_browser, has_sandbox


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        executable = find_browser(bundled=Path(playwright.chromium.executable_path))
        if executable is None:
            give_up(os.environ)
        browser = playwright.chromium.launch(
            executable_path=executable, chromium_sandbox=has_sandbox()
        )
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture(scope="session")
def origin() -> Iterator[str]:
    with serve(SITE) as address:
        yield address
