"""Chromium for tests of pages: what it complains of, asks for, can reach by keyboard, and finds wrong."""

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 30_000
"""Milliseconds for what a page is to show."""

_FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one);
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  one.dataset.reached = "yes";
  return [one.outerHTML.slice(0, 120), seen];
}"""
_MISSED = """() => [...document.querySelectorAll(
    "a[href], button, input, select, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility() && !one.closest("svg") && one.dataset.reached !== "yes")
  .map((one) => one.outerHTML.slice(0, 120))"""


@dataclass
class Watched:
    """A page of a browser, and what went wrong in it.

    Attributes:
        page: Playwright's.
        origin: Where everything is to come from.
        errors: Of the console, and exceptions that nobody caught.
        elsewhere: What was asked of another server.
    """

    page: Page
    origin: str
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.page.set_default_timeout(PATIENCE)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", self._request)

    def _console(self, message):
        if message.type == "error":
            self.errors.append(message.text)

    def _request(self, request):
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.elsewhere.append(request.url)

    def open(self, path):
        """Go to a page of the server and wait until it is drawn."""
        self.page.goto(self.origin + path)
        drawn = self.page.locator("html[data-drawn=yes], body:not([data-source])")
        expect(drawn).to_be_attached(timeout=PATIENCE)
        return self.page

    def check(self):
        """Nothing has gone wrong so far."""
        assert self.errors == []
        assert self.elsewhere == []

    def serious(self):
        """What axe-core finds that keeps somebody from using the page."""
        violations = Axe().run(self.page).response["violations"]
        return [
            f"{violation['id']} ({violation['impact']}): {violation['nodes'][0]['html'][:200]}"
            for violation in violations
            if violation["impact"] in {"serious", "critical"}
        ]

    def out_of_reach(self):
        """What the Tab key does not reach, or reaches without showing it."""
        self.page.evaluate("document.activeElement.blur()")
        unseen = []
        for _ in range(500):
            self.page.keyboard.press("Tab")
            focus = self.page.evaluate(_FOCUSED)
            if focus is None:
                break
            if not focus[1]:
                unseen.append(f"without a visible focus: {focus[0]}")
        return [*unseen, *self.page.evaluate(_MISSED)]


@contextmanager
def chromium():
    """Start the browser; without one skip, or fail where CI has to have it."""
    if not CHROMIUM.exists():
        reason = f"no browser at {CHROMIUM}: install chromium, or set CHROMIUM to its path"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
