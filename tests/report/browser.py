"""A real browser for tests: an installed Chromium without a window, driven by Playwright, which downloads nothing.

`SLIPSTREAM_BROWSER` names the program, or else one on PATH is used; where there is none, tests that need it are
skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
PATIENCE_S = 60.0


def find_browser() -> str | None:
    named = os.environ.get("SLIPSTREAM_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """One tab, as Playwright's `tab`. `problems` are errors on its console and exceptions nobody caught."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.problems: list[str] = []
        self.requests: list[str] = []
        tab.set_default_timeout(PATIENCE_S * 1000)
        tab.on("pageerror", lambda error: self.problems.append(str(error)))
        tab.on("console", self._note)
        tab.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.problems.append(f"{message.text} {message.location.get('url', '')}")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self.tab.evaluate(script)

    def until(self, condition: str) -> None:
        """Playwright's own waiting evaluates text within the page, which the report's policy forbids."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < deadline, f"never became true: {condition}; {self.problems}"
            self.tab.wait_for_timeout(50)


class Browser:
    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    def page(self, size: tuple[int, int] = (1280, 900), theme: str = "light") -> Page:
        """A new tab with cookies of its own."""
        view = {"width": size[0], "height": size[1]}
        return Page(self._chromium.new_context(viewport=view, color_scheme=theme).new_page())


@contextmanager
def run_browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on PATH: install one, or name it in SLIPSTREAM_BROWSER")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=list(_ARGUMENTS))
        yield Browser(chromium)
        chromium.close()
