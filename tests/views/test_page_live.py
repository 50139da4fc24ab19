"""The dashboard and our page in Chromium while two workers run a study, one of its trials resumed.

With ``SWEEPER_PICTURES`` set to a directory, the pictures of the documentation are written there.
"""

import json
import os
import re
from pathlib import Path

import pytest
from browsing import Watched, chromium
from dashboard_process import running_dashboard
from held_study import EPOCHS, NAME, HeldStudy
from playwright.sync_api import expect
from recorded_studies import database
from sweeps import command

PICTURES = os.environ.get("SWEEPER_PICTURES")
VIEWPORT = {"width": 1200, "height": 6000}
STUDY = f"sweeper/studies/{NAME}"
OURS = ("sweeper/", STUDY, f"{STUDY}#trial-0", "sweeper/nothing")


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    with HeldStudy(tmp_path_factory.mktemp("held")) as study:
        yield study


@pytest.fixture(scope="module")
def dashboard(held):
    """Its URL."""
    words = ("--storage", held.storage, "--runs-dir", held.directory / "runs")
    with running_dashboard(*words, cwd=held.directory) as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def watched(browser, dashboard):
    with browser.new_context(viewport=VIEWPORT) as context:
        yield Watched(context.new_page(), dashboard)


def status(held):
    """What ``sweeper status --json`` says."""
    ended = command("status", NAME, "--json", cwd=held.directory)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def picture(page, name):
    if PICTURES:
        page.set_viewport_size({"width": 1200, "height": 1000})
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


@pytest.mark.whole
def test_a_studys_numbers_are_those_of_status(held, watched):
    page = watched.open(STUDY)
    picture(page, "study-page")
    said = status(held)
    assert (said["complete"], said["running"]) == (2, 1), "the study does not stand still"
    for name in ("complete", "running"):
        expect(page.locator(f"#count-{name}")).to_have_text(str(said[name]))
    expect(page.locator("#lead")).to_contain_text(f"2 of {said['target']} trials done")
    for trial in said["trials"]:
        row = page.locator(f"#trials-table-{trial['number']}")
        expect(row).to_contain_text(f"{trial['epoch']} of {trial['epochs']}")
        expect(row.locator(".state")).to_have_text(trial["state"])
    expect(page.locator("#trials-table-0")).to_contain_text("resumed 1")
    expect(page.locator("#trials-table tbody tr th").first).to_have_text(
        str(said["best"]["number"])
    )
    watched.check()


def test_the_resumed_trial_has_both_attempts_and_its_log(held, watched):
    log = held.directory / "runs" / NAME / "trial-00000" / "attempt-02" / "log.txt"
    with log.open("a") as file:
        file.write("the last line of the log\n")
    page = watched.open(f"{STUDY}#trial-0")
    trial = held.trials()[0]
    first, second = trial.attempts
    assert (first.outcome, second.outcome, second.start_step) == ("crashed", "complete", 40)
    expect(page.locator("#lead")).to_contain_text("of work in 2 attempts")
    expect(page.locator("#lead")).to_contain_text(f"{EPOCHS} of {EPOCHS} epochs")
    attempts = page.locator("#trial-attempts tbody tr")
    expect(attempts.nth(0)).to_contain_text("crashed")
    expect(attempts.nth(1)).to_contain_text("40")
    expect(page.locator("#trial-picture .legend")).to_contain_text("resumed here")
    expect(page.get_by_text(str(trial.digest)).first).to_be_visible()
    for kept in trial.checkpoints:
        expect(page.get_by_text(kept.path)).to_be_visible()
    expect(page.locator("#trial-log-text")).to_contain_text("the last line of the log")
    picture(page, "trial-page")
    watched.check()


@pytest.mark.whole
def test_a_logarithmic_axis_and_a_saved_picture_need_nothing_that_the_policy_refuses(
    browser, tmp_path
):
    storage = database(tmp_path / "sweeper.db")
    with (
        running_dashboard("--storage", storage, cwd=tmp_path) as (_, url),
        browser.new_context(viewport=VIEWPORT) as context,
    ):
        watched = Watched(context.new_page(), url)
        page = watched.open("sweeper/studies/recorded")
        assert (
            page.evaluate("document.querySelector('#scatter-picture').layout.xaxis.type") == "log"
        )
        ticks = page.locator("#scatter-picture .xtick text")
        expect(ticks.filter(has_text=re.compile("e.4"))).not_to_have_count(0)
        with page.expect_download() as saved:
            page.locator("#scatter").get_by_role("button", name="Save the picture as PNG").click()
        assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
        watched.check()


def test_optuna_dashboard_has_the_names_and_what_the_worker_wrote(watched):
    page = watched.page
    page.goto(f"{watched.origin}dashboard/studies/1")
    expect(page.get_by_text("val_accuracy").first).to_be_visible()
    expect(page.get_by_text("Objective 0")).to_have_count(0)
    picture(page, "dashboard-study")
    page.goto(f"{watched.origin}api/studies/1", wait_until="commit")
    trials = json.loads(page.locator("body").inner_text())["trials"]
    found = {each["key"]: each["value"] for each in trials[0]["user_attrs"]}
    assert found["attempts"] == "2"
    assert len(found["digest"].strip('"')) == 32
    watched.check()


@pytest.mark.parametrize("page", OURS)
def test_nothing_keeps_anybody_from_reading_or_reaching(watched, page):
    watched.open(page)
    assert watched.serious() == []
    assert watched.out_of_reach() == []
    assert watched.elsewhere == []


def test_the_checks_of_pages_find_what_is_wrong(watched):
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


def test_a_page_is_kept_up_to_date_where_its_reader_is(held, watched):
    """To the study's end; last, since nothing runs afterwards."""
    page = watched.open(STUDY)
    asked = []
    page.on(
        "response",
        lambda answer: asked.append((answer.status, len(answer.body()) if answer.ok else 0)),
    )
    page.get_by_role("searchbox").fill("complete")
    page.get_by_label("Choose trial 0", exact=True).uncheck()
    link = page.locator("#trials-table a[href='#trial-0']")
    link.focus()
    page.evaluate("document.activeElement.kept = true; document.querySelector('h1').kept = true")
    expect(page.locator("#trials-table-2")).to_be_hidden()
    page.wait_for_timeout(4500)
    assert asked
    assert {code for code, _ in asked} == {304}, "nothing has changed"
    held.let_go(2)
    assert held.end() == 0
    expect(page.locator("#lead")).to_contain_text("3 of 3")
    expect(page.locator("#trials-table-2")).to_be_visible()
    expect(page.locator("#count-running")).to_have_count(0)
    assert page.evaluate("document.activeElement.kept && document.querySelector('h1').kept")
    expect(link).to_be_focused()
    expect(page.get_by_role("searchbox")).to_have_value("complete")
    expect(page.get_by_label("Choose trial 0", exact=True)).not_to_be_checked()
    said = status(held)
    expect(page.locator("#count-complete")).to_have_text(str(said["complete"]))
    watched.errors = [each for each in watched.errors if "304" not in each]
    watched.check()


@pytest.mark.whole
def test_a_dashboard_that_ends_is_said_and_one_that_begins_again_is_followed(held, browser):
    words = ("--storage", held.storage, "--runs-dir", held.directory / "runs")
    with browser.new_context(viewport=VIEWPORT) as context:
        with running_dashboard(*words, cwd=held.directory) as (_, url):
            watched = Watched(context.new_page(), url)
            page = watched.open(STUDY)
            expect(page.locator("#connection")).to_be_hidden()
        expect(page.locator("#connection")).to_be_visible()
        port = url.rstrip("/").rpartition(":")[2]
        with running_dashboard(*words, cwd=held.directory, port=port):
            expect(page.locator("#connection")).to_be_hidden()
