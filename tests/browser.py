"""A real headless Chromium for tests of pages: AIMRL_CHROMIUM, or the one installed, or Debian's package where we may install it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ARGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGS += ["--disable-component-update", "--disable-sync"]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    if path := os.environ.get("AIMRL_CHROMIUM"):
        return path
    with open(Path(tempfile.gettempdir()) / "aimrl-chromium.lock", "w") as lock:  # parallel test workers must not install at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found := next(filter(None, map(shutil.which, NAMES)), None):
            return found
        if os.geteuid() == 0 and shutil.which("apt-get"):
            subprocess.run(["apt-get", "update"], capture_output=True, check=False)
            subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "chromium"], capture_output=True, check=False)
        if found := next(filter(None, map(shutil.which, NAMES)), None):
            return found
    raise RuntimeError("these tests need Chromium: install the package chromium, or set AIMRL_CHROMIUM to its path")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=find_chromium(), args=ARGS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page with what it said on the console and what it asked the network for."""

    def __init__(self, browser: Browser, url: str, scheme: str = "light", width: int = 1200, **context: object):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **context)  # pyright: ignore[reportArgumentType]
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("dialog", lambda d: (self.said.append(f"dialog {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(url)
        self.drawn()

    def wait(self, expression: str, seconds: float = 60.0) -> None:
        """Until a script expression is true; Playwright's own waiting needs eval, which the page forbids."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            if time.monotonic() > end:
                raise TimeoutError(expression)
            self.page.wait_for_timeout(50)

    def drawn(self) -> None:
        self.wait("[...document.querySelectorAll('.plot')].every(n => n.dataset.drawn !== undefined)")

    def traces(self, kind: str = "line", plot: int = 0) -> list[str]:
        """Names of a chart's traces of one kind, as Plotly holds them."""
        script = "([i, kind]) => document.querySelectorAll('.plot')[i].data.filter(t => t.meta === kind).map(t => t.name)"
        return self.page.evaluate(script, [plot, kind])

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
