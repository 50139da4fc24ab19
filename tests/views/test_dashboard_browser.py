"""The dashboard in a real browser, while a worker writes into the same database."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from browsing import chromium
from dashboard_process import Dashboard, count_trials, make_study, writer
from playwright.sync_api import expect


@pytest.mark.whole
def test_a_browser_shows_the_study_and_its_trials_while_a_worker_writes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"
    storage = make_study(path)
    with (
        writer(storage) as working,
        Dashboard(storage, "--port", "0") as dashboard,
        chromium() as browser,
    ):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(dashboard.url)
        study = page.get_by_text("digits").first
        expect(study).to_be_visible(timeout=20_000)
        study.click()
        expect(page.get_by_text(re.compile(r"0\.876543")).first).to_be_visible(timeout=20_000)
        before = count_trials(path)
        page.goto(f"{dashboard.url}dashboard/studies/1/trials?numbers=0")
        expect(page.get_by_text(re.compile(r"0\.876543")).first).to_be_visible(timeout=20_000)
        if shot := os.environ.get("SWEEPER_TEST_SCREENSHOT"):
            page.screenshot(path=shot)
        assert working.poll() is None, "the worker died beside the dashboard"
        assert count_trials(path) > before > 1
