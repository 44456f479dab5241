"""A headless Chromium for tests of pages, without a network; whoever lacks it skips them with a reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium")
WIDTHS, SCHEMES = (500, 1400), ("light", "dark")
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
"""Returns texts whose contrast with their ground is below 4.5."""
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\u2066" + "x" * 10_000
"""A name that would be a program, were it not shown as text."""


class Opened:
    """A page that was opened; `said`: what its console said and what it asked others for than `own`."""

    def __init__(self, page: Any, own: str = "file:") -> None:
        self.page, self.said = page, list[str]()
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(own) or self.said.append(f"request: {request.url}"))

    def cpu(self) -> float:
        """Return the seconds of CPU that the page's process has had: on a machine that does nothing else, the time it takes."""
        session = self.page.context.new_cdp_session(self.page)
        session.send("Performance.enable")
        return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}["ProcessTime"]

    def pixels(self, selector: str) -> bytes:
        """Return a picture of a part of the page."""
        return self.page.locator(selector).screenshot()


@contextmanager
def browsing() -> Iterator[Any]:
    """Yield a browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here; pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, width: int = 1400, scheme: str = "light") -> Iterator[Opened]:
    """Yield a page from a file, with the network cut, when it has drawn all that it draws."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    found = Opened(context.new_page())
    found.page.goto(path.resolve().as_uri())
    drawn(found.page)
    yield found
    context.close()


@contextmanager
def visiting(browser: Any, url: str, width: int = 1400, scheme: str = "light") -> Iterator[Opened]:
    """Yield a page of a server of our own, likewise; what it asks anyone else for is `said`."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found = Opened(context.new_page(), "/".join(url.split("/")[:3]))
    found.page.goto(url)
    drawn(found.page)
    yield found
    context.close()


def drawn(page: Any) -> None:
    """Wait until a page has drawn all that it draws."""
    page.wait_for_selector("html[data-ready]", state="attached")


def readable(found: Opened, width: int) -> None:
    """Assert that a page said nothing, fits into its window, and has contrast; in the other theme too where it has a switch."""
    for _ in range(2):
        assert found.said == []
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        assert found.page.evaluate(CONTRAST) == []
        if found.page.locator("#theme").count():
            found.page.click("#theme")


def harmless(found: Opened, width: int) -> None:
    """Assert that nothing of a hostile name became a part of the page."""
    assert found.said == []
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    assert found.page.locator("main img, main script").count() == 0
