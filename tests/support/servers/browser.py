"""A headless Chromium for tests of pages, and what a page must never do."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

__all__ = ["Visitor", "axe_script", "chromium", "launched", "serious_problems", "visiting"]

PATIENCE = 60_000


def chromium() -> str:
    """The program, or a skip with one line."""
    pytest.importorskip("nicegui", reason="the extra farflung[web] is not installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if found is None:
        with playwright.sync_playwright() as driver:
            found = driver.chromium.executable_path
    if not Path(found).exists():
        pytest.skip("no Chromium found: python -m playwright install chromium")
    return found


def axe_script() -> str:
    """The text of axe-core, or a skip with one line."""
    place = find_spec("axe_playwright_python")
    if place is None or not place.submodule_search_locations:
        pytest.skip("axe-playwright-python is not installed")
    (path,) = glob.glob(f"{place.submodule_search_locations[0]}/**/axe.min.js", recursive=True)
    return Path(path).read_text(encoding="utf-8")


def serious_problems(page: Any, script: str) -> list[Any]:
    """What axe-core finds on the page that a person cannot get around; ``script``: of ``axe_script``."""
    page.evaluate(script)
    found = page.evaluate("axe.run()")
    return [(one["id"], one["nodes"]) for one in found["violations"] if one["impact"] in ("serious", "critical")]


class Visitor:
    """A browser window. ``problems``: errors of the console and failed requests. ``hosts``: who was asked for anything."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: message.type in ("error", "warning") and self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("websocket", lambda socket: self.hosts.add(urlsplit(socket.url).netloc))

    def sees(self, text: str) -> None:
        """Wait until the page shows ``text``."""
        self.page.get_by_text(text).first.wait_for()


@contextmanager
def launched(program: str) -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver, driver.chromium.launch(executable_path=program, args=["--no-sandbox"]) as browser:
        yield browser


@contextmanager
def visiting(browser: Any, *, dark: bool = False, narrow: bool = False, state: Any = None) -> Iterator[Visitor]:
    """A window that shares nothing with others. ``state``: cookies of an earlier one."""
    size: Any = {"width": 390 if narrow else 1440, "height": 900}
    context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", storage_state=state)
    try:
        yield Visitor(context.new_page())
    finally:
        context.close()
