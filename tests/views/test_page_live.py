"""The dashboard and our page in Chromium while a study runs, one of whose trials was resumed.

With ``SWEEPER_PICTURES`` set to a directory, the pictures of the documentation are written there.
"""

import json
import os
import re
from pathlib import Path

import pytest
from browsing import Watched, chromium
from dashboard_process import running_dashboard
from playwright.sync_api import expect
from recorded_studies import database, record_unfinished_study

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.observing import ForeignObservation

PICTURES = os.environ.get("SWEEPER_PICTURES")
VIEWPORT = {"width": 1200, "height": 6000}
NAME = "digits-sweep"
STUDY = f"sweeper/studies/{NAME}"
OURS = ("sweeper/", STUDY, f"{STUDY}#trial-1", "sweeper/nothing")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where the commands of the study are typed."""
    directory = tmp_path_factory.mktemp("live")
    (directory / "runs").mkdir()
    return directory


@pytest.fixture(scope="module")
def repository(directory):
    with Database.open(f"sqlite:///{directory}/runs/sweeper.db", create=True) as opened:
        yield Repository(opened)


@pytest.fixture(scope="module")
def running(repository):
    """The token of the one trial that runs, number 4."""
    return record_unfinished_study(repository, NAME, 8, text="")


@pytest.fixture(scope="module")
def dashboard(directory, running):
    """Its URL."""
    with running_dashboard(cwd=directory) as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def watched(browser, dashboard):
    with browser.new_context(viewport=VIEWPORT) as context:
        yield Watched(context.new_page(), dashboard)


def picture(page, name):
    if PICTURES:
        page.set_viewport_size({"width": 1200, "height": 1000})
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


def test_the_resumed_trial_has_both_attempts_and_its_log(directory, watched):
    log = directory / "runs" / NAME / "trial-00001" / "attempt-02" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("the last line of the log\n")
    page = watched.open(f"{STUDY}#trial-1")
    expect(page.locator("#lead")).to_contain_text("6 of 6 epochs")
    attempts = page.locator("#trial-attempts tbody tr")
    expect(attempts.nth(0)).to_contain_text("crashed")
    expect(attempts.nth(1)).to_contain_text("30")
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
    expect(page.get_by_text("score").first).to_be_visible()
    expect(page.get_by_text("Objective 0")).to_have_count(0)
    picture(page, "dashboard-study")
    page.goto(f"{watched.origin}api/studies/1", wait_until="commit")
    trials = json.loads(page.locator("body").inner_text())["trials"]
    attributes = {attribute["key"]: attribute["value"] for attribute in trials[1]["user_attrs"]}
    assert attributes["attempts"] == "2"
    assert len(attributes["digest"].strip('"')) == 32
    watched.check()


def test_hidden_trials_and_observations_are_marked_on_both_pages(repository, watched):
    best = repository.status(NAME).best.number
    repository.hide(NAME, best)
    repository.tag(NAME, best, "odd")
    name = next(iter(repository.trial(NAME, best).params))
    repository.observe(NAME, [ForeignObservation({name: 0.1}, (9.0,))], "old.csv")
    try:
        page = watched.open(STUDY)
        row = page.locator(f"#trials-table-{best}")
        expect(row).to_be_hidden()
        page.get_by_label("hidden", exact=True).check()
        expect(row).to_be_visible()
        expect(row).to_contain_text("odd")
        expect(page.locator("body")).to_contain_text("1 observation for the sampler, no trial")
        page.goto(f"{watched.origin}dashboard/studies/1")
        expect(page.get_by_text("score").first).to_be_visible()
        page.goto(f"{watched.origin}api/studies/1", wait_until="commit")
        study = json.loads(page.locator("body").inner_text())
        assert len(study["trials"]) == len(repository.trials(NAME))
        attributes = {a["key"]: a["value"] for a in study["trials"][best]["user_attrs"]}
        assert (attributes["hidden"], attributes["tags"]) == ("True", "odd")
        [observed] = study["user_attrs"]
        assert observed["key"] == "observations (no trials)"
        assert "1 from old.csv" in observed["value"]
        watched.check()
    finally:
        repository.hide(NAME, best, undo=True)
        repository.tag(NAME, best, "odd", remove=True)
        repository.observe(NAME, [], "", clear=True)


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
    text = " ".join(watched.serious())
    assert "image-alt" in text
    assert "color-contrast" in text
    missed = watched.out_of_reach()
    assert any("without a visible focus" in element and "unseen" in element for element in missed)
    assert any(">far<" in element for element in missed)
    assert "said" in watched.errors


def test_a_page_is_kept_up_to_date_where_its_reader_is(repository, running, watched):
    """To the end of the running trial; last, since nothing runs afterwards."""
    page = watched.open(STUDY)
    picture(page, "study-page")
    expect(page.locator("#count-running")).to_have_text("1")
    asked = []
    page.on("response", lambda answer: asked.append(answer.status))
    page.get_by_role("searchbox").fill("complete")
    page.get_by_label("Choose trial 0", exact=True).uncheck()
    link = page.locator("#trials-table a[href='#trial-0']")
    link.focus()
    page.evaluate("document.activeElement.kept = true; document.querySelector('h1').kept = true")
    expect(page.locator("#trials-table-4")).to_be_hidden()
    page.wait_for_timeout(4500)
    assert set(asked) == {304}, "nothing has changed"
    repository.finish(running, Ending("complete", 60, 0.7, "d" * 32))
    expect(page.locator("#lead")).to_contain_text("5 of 8")
    expect(page.locator("#trials-table-4")).to_be_visible()
    expect(page.locator("#count-running")).to_have_count(0)
    assert page.evaluate("document.activeElement.kept && document.querySelector('h1').kept")
    expect(link).to_be_focused()
    expect(page.get_by_role("searchbox")).to_have_value("complete")
    expect(page.get_by_label("Choose trial 0", exact=True)).not_to_be_checked()
    expect(page.locator("#count-complete")).to_have_text(str(repository.status(NAME).complete))
    watched.errors = [error for error in watched.errors if "304" not in error]
    watched.check()


@pytest.mark.whole
def test_a_dashboard_that_ends_is_said_and_one_that_begins_again_is_followed(
    directory, running, browser
):
    with browser.new_context(viewport=VIEWPORT) as context:
        with running_dashboard(cwd=directory) as (_, url):
            watched = Watched(context.new_page(), url)
            page = watched.open(STUDY)
            expect(page.locator("#connection")).to_be_hidden()
        expect(page.locator("#connection")).to_be_visible()
        port = url.rstrip("/").rpartition(":")[2]
        with running_dashboard(cwd=directory, port=port):
            expect(page.locator("#connection")).to_be_hidden()
