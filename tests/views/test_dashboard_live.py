"""The dashboard and our pages in Chromium while two workers run a study, one of its trials resumed.

With ``SWEEPER_PICTURES`` set to a directory, the pictures of the documentation are written there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import PATIENCE, Watched, chromium
from held_study import EPOCHS, NAME, HeldStudy
from playwright.sync_api import Browser, Page, ViewportSize, expect
from sweeps import RunningCommand, command

PICTURES = os.environ.get("SWEEPER_PICTURES")
VIEWPORT: ViewportSize = {"width": 1200, "height": 800}
REFRESHED = 6_000
"""Milliseconds within which a page has asked whether it is up to date."""

STUDY = f"sweeper/studies/{NAME}"
OURS = (
    *("sweeper/", STUDY, f"{STUDY}/trials/0", "sweeper/nothing"),
    pytest.param(f"{STUDY}/trials/2", marks=pytest.mark.whole),
)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldStudy]:
    with HeldStudy(tmp_path_factory.mktemp("held")) as study:
        yield study


@pytest.fixture(scope="module")
def dashboard(held: HeldStudy) -> Iterator[str]:
    """Its URL."""
    words = ("--storage", held.storage, "--port", 0, "--runs-dir", held.directory / "runs")
    with RunningCommand("dashboard", *words, cwd=held.directory) as running:
        assert running.process.stdout is not None
        url = running.process.stdout.readline().strip()
        assert url, running.err
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def watched(browser: Browser, dashboard: str) -> Iterator[Watched]:
    with browser.new_context(viewport=VIEWPORT) as context:
        yield Watched(context.new_page(), dashboard)


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, browser: Browser, dashboard: str) -> Iterator[Watched]:
    """One of our pages, for tests that read it."""
    with browser.new_context(viewport=VIEWPORT) as context:
        watched = Watched(context.new_page(), dashboard)
        watched.open(request.param)
        yield watched


def status(held: HeldStudy) -> dict[str, Any]:
    """What ``sweeper status --json`` says."""
    ended = command("status", NAME, "--json", cwd=held.directory)
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.set_viewport_size({"width": 1200, "height": 1000})
        page.wait_for_load_state("networkidle")
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


@pytest.mark.parametrize("opened", [STUDY], indirect=True)
def test_a_studys_numbers_are_those_of_status(held: HeldStudy, opened: Watched) -> None:
    page = opened.page
    picture(page, "study-page")
    said = status(held)
    assert (said["complete"], said["running"]) == (2, 1), "the study does not stand still"
    for name in ("complete", "running"):
        expect(page.locator(f"#count-{name}")).to_have_text(str(said[name]))
    expect(page.locator("#lead")).to_contain_text(f"2 of {said['target']} trials done")
    for trial in said["trials"]:
        if trial["state"] == "running":
            shown = page.locator(f"#running-{trial['number']}")
            expect(shown).to_contain_text(f"{trial['epoch']} of {trial['epochs']}")
    best = page.get_by_role("region", name="Table: leading trials").locator("tbody tr").first
    expect(best.get_by_role("link", name=f"trial {said['best']['number']}")).to_be_visible()
    expect(best).to_contain_text(f"{said['best']['value']:.6g}")
    expect(page.get_by_text("at work")).to_be_visible()
    opened.check()


@pytest.mark.parametrize("opened", [f"{STUDY}/trials/0"], indirect=True)
def test_the_resumed_trial_has_both_attempts(held: HeldStudy, opened: Watched) -> None:
    page = opened.page
    picture(page, "trial-page")
    trial = held.trials()[0]
    first, second = trial.attempts
    assert (first.outcome, second.outcome, second.start_step) == ("crashed", "complete", 40)
    expect(page.locator("#lead")).to_contain_text("of work in 2 attempts")
    expect(page.locator("#lead")).to_contain_text(f"{EPOCHS} of {EPOCHS} epochs")
    expect(page.locator("#attempt-1")).to_contain_text("crashed")
    expect(page.locator("#attempt-2")).to_contain_text("40 (resumed)")
    expect(page.get_by_text("attempt 2 resumes at step 40")).to_be_visible()
    expect(page.get_by_text(str(trial.digest)).first).to_be_visible()
    attempts = page.get_by_role("region", name="Table: Attempts at the trial")
    assert attempts.locator("tbody tr").count() == 2
    drawn = page.locator("#trial-curves .main-svg").first.bounding_box()
    below = page.locator("details").bounding_box()
    assert drawn is not None
    assert below is not None
    assert drawn["y"] + drawn["height"] <= below["y"], "the figure covers what is below it"
    for kept in trial.checkpoints:
        expect(page.get_by_text(kept.path)).to_be_visible()
    opened.check()


def go_within(page: Page, path: str) -> None:
    """Go on in optuna-dashboard as its own links do, without loading it again."""
    page.evaluate(
        "(path) => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }",
        path,
    )


def test_optuna_dashboard_shows_our_words_and_names(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.origin}dashboard/studies/1")
    expect(page.get_by_text("val_accuracy").first).to_be_visible()
    expect(page.get_by_text("Objective 0")).to_have_count(0)
    picture(page, "dashboard-study")
    go_within(page, "/dashboard/studies/1/trials?numbers=0")
    expect(page.get_by_text("resumed from step")).to_be_visible()
    go_within(page, "/dashboard/studies/1/note")
    link = page.get_by_role("link", name=re.compile("Attempts, checkpoints"))
    expect(link).to_be_visible()
    assert link.get_attribute("href") == f"/{STUDY}"
    page.goto(watched.origin + str(link.get_attribute("href"))[1:], wait_until="commit")
    expect(page.get_by_role("heading", name=NAME, exact=True)).to_be_visible()
    watched.check()


@pytest.mark.parametrize("opened", OURS, indirect=True)
def test_nothing_keeps_anybody_from_reading_or_reaching(opened: Watched) -> None:
    assert opened.serious() == []
    assert opened.out_of_reach() == []
    assert opened.elsewhere == []


def test_the_checks_of_pages_find_what_is_wrong(watched: Watched) -> None:
    """The control: a picture without words, pale text, a link that shows no focus, one out of reach."""
    page = watched.open("sweeper/")
    page.evaluate(
        """() => {
          const main = document.querySelector("main");
          const add = (kind, text) => {
            const one = document.createElement(kind);
            one.textContent = text;
            main.append(one);
            return one;
          };
          add("img", "").src = "data:,";
          add("p", "pale").style.color = "#cccccc";
          const unseen = add("a", "unseen");
          unseen.href = "/";
          unseen.style.outline = "none";
          const far = add("a", "far");
          far.href = "/";
          far.tabIndex = -1;
          console.error("said");
          fetch("http://192.0.2.1/").catch(() => null);
        }"""
    )
    found = " ".join(watched.serious())
    assert "image-alt" in found
    assert "color-contrast" in found
    missed = watched.out_of_reach()
    assert any("without a visible focus" in each and "unseen" in each for each in missed)
    assert any(">far<" in each for each in missed)
    assert "said" in watched.errors


CHANGES = [
    ("<p id=a>1</p> <p id=b>2</p>", "<p id=b>3</p>"),
    ("<p id=b>2</p> text", "<p id=a>1</p> <p id=c>0</p> <p id=b class=x>3</p> other"),
    ("<p>x</p><p id=b>2</p>", "<ul><li>y</li></ul> <p id=b>3</p><p>z</p>"),
    ("<section aria-labelledby=s></section> <p id=b>2</p>", " <p id=b>3</p> "),
]
"""What a page has, and what it is to have."""


def test_what_a_page_has_already_is_changed_where_it_stands(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.origin}sweeper/")
    for change in CHANGES:
        kept, shown, wanted = page.evaluate(
            """([before, after]) => {
              const [old, fresh] = [document.createElement("div"), document.createElement("div")];
              old.innerHTML = before;
              fresh.innerHTML = after;
              const one = old.querySelector("#b");
              patchChildren(old, fresh);
              return [old.querySelector("#b") === one, old.innerHTML, fresh.innerHTML];
            }""",
            change,
        )
        assert kept, change
        assert shown == wanted, change


def test_a_page_is_kept_up_to_date_where_its_reader_is(held: HeldStudy, watched: Watched) -> None:
    """To the study's end; last, since nothing runs afterwards."""
    watched.page.clock.install()
    page = watched.open(STUDY)
    link = page.get_by_role("link", name="this study in optuna-dashboard")
    row = page.get_by_role("region", name="Table: all trials").get_by_role("link", name="trial 0")
    row.focus()
    page.evaluate("document.activeElement.kept = true; document.querySelector('h1').kept = true")
    held.let_go(2)
    assert held.end() == 0
    page.clock.fast_forward(REFRESHED)
    expect(page.locator("#lead")).to_contain_text("3 of 3", timeout=PATIENCE)
    expect(page.locator("#running")).to_have_count(0)
    assert page.evaluate("document.activeElement.kept && document.querySelector('h1').kept")
    expect(row).to_be_focused()
    expect(link).to_be_visible()
    said = status(held)
    expect(page.locator("#count-complete")).to_have_text(str(said["complete"]))
    watched.check()
