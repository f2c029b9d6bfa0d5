"""One browser for the whole run, one server for the built site."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_checks import DESKTOP, settle, wait_for_fonts
from built_site import CHAPTER_03, SITE
from local_site import give_up, serve, skip_reasons
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tools.browser import find_browser, has_sandbox
from tools.verdict import note

PATIENCE_MS = 10_000
# Pages are served from this machine and find nothing else, whatever they ask for.
ONLY_THIS_MACHINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
# For every window Chromium loads pages of its own, 400 scripts for an address bar that nobody sees:
# half a CPU second. The option replaces the list that Playwright gives; what it needs stands first.
NO_ADDRESS_BAR = (
    "--disable-features=PaintHolding,HttpsUpgrades,MediaRouter,OptimizationHints,"
    "WebUIOmniboxPopup,WebUIOmniboxAimPopup"
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write down what was skipped, and why, for the last line of `make test`."""
    note(skip_reasons(terminalreporter.stats.get("skipped", [])))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        executable = find_browser(bundled=Path(playwright.chromium.executable_path))
        if executable is None:
            give_up(os.environ)
        browser = playwright.chromium.launch(
            executable_path=executable,
            chromium_sandbox=has_sandbox(),
            args=[ONLY_THIS_MACHINE, NO_ADDRESS_BAR],
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


@pytest.fixture
def chapter(context: BrowserContext, origin: str) -> Page:
    """Chapter 3, open on a desktop in the light."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size(DESKTOP)
    wait_for_fonts(page)
    response = page.goto(f"{origin}/{CHAPTER_03}")
    assert response is not None
    assert response.ok, f"{CHAPTER_03}: {response.status}"
    settle(page)
    return page
