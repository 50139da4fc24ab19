"""The report: one file that a browser without a network shows whole, and numbers that agree."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from browsing import ARGUMENTS, CHROMIUM
from drawn_studies import NASTY
from page_tables import tables_of
from recorded_studies import PARAMETER, database

from sweeper.cli.main import main


@dataclass
class Shown:
    """The report in a browser, and what that said."""

    page: Any
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return database(tmp_path_factory.mktemp("recorded") / "sweeper.db")


@pytest.fixture(scope="module")
def written(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "page.html"
    assert main(["report", "recorded", "--storage", url, "--output", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        said = f"no browser at {CHROMIUM}: install chromium, or set CHROMIUM to its path"
        pytest.fail(said) if os.environ.get("CI") == "true" else pytest.skip(said)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def shown(browser: Any, written: Path) -> Iterator[Shown]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_offline(True)
    found = Shown(context.new_page())

    def refuse(route: Any) -> None:
        found.requests.append(route.request.url)
        route.abort()

    found.page.route(re.compile("^(https?|wss?):"), refuse)
    found.page.on("console", lambda message: found.said.append(message.text))
    found.page.on("pageerror", lambda error: found.said.append(str(error)))
    found.page.on("dialog", lambda dialog: (found.said.append("dialog"), dialog.dismiss()))
    found.page.goto(written.as_uri())
    found.page.wait_for_selector("html[data-drawn=yes]", state="attached")
    yield found
    context.close()


def test_every_picture_is_drawn_without_a_network_or_a_word_in_the_console(shown: Shown) -> None:
    keys = ["learning-curves", "parallel-coordinates", "importance", "attempts"]
    for key in keys:
        assert shown.page.locator(f"#{key} svg.main-svg").count() > 0, key
    for key in keys[:2]:
        assert shown.page.locator(f"#{key} .scatterlayer path.js-line").count() > 0, key
    assert shown.page.locator("#attempts .barlayer path").count() == 13
    assert shown.page.locator(".picture").count() == len(keys)
    assert shown.requests == []
    assert shown.said == []


def test_what_a_user_wrote_is_text_and_nothing_else(shown: Shown, written: Path) -> None:
    assert shown.page.locator("img").count() == 0
    assert shown.page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    assert shown.page.get_by_text(NASTY).count() > 0
    assert "<img" not in written.read_text(encoding="utf-8")
    assert shown.page.locator("#parallel-coordinates").get_by_text(PARAMETER[:20]).count() > 0


def test_the_policy_lets_no_other_script_run(shown: Shown) -> None:
    ran = shown.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.foreign = true";
            document.body.append(script);
            script.remove();
            return window.foreign === true;
        }"""
    )
    assert not ran
    shown.said.clear()  # the browser's word on what was just refused


def test_the_numbers_are_those_of_status(
    url: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "recorded", "--json", "--storage", url]) == 0
    status = json.loads(capsys.readouterr().out)
    page = written.read_text(encoding="utf-8")
    for state in ("complete", "pruned", "failed"):
        assert f'<dd id="count-{state}">{status[state]}</dd>' in page
    best = status["best"]
    assert f"The best trial is {best['number']}, with score {best['value']:.6g} (maximize)" in page
    listed = [
        (int(r[0]), r[1].split()[0], r[2]) for r in tables_of(written.read_text())["All trials"]
    ]
    assert listed == [
        (t["number"], t["state"], "none yet" if t["value"] is None else f"{t['value']:.6g}")
        for t in status["trials"]
    ]


def test_interruptions_verdicts_spread_environment_and_commands_are_there(
    url: str, written: Path
) -> None:
    found = tables_of(written.read_text())
    interrupted = found["Attempts that were interrupted or resumed"]
    assert [row[:5] for row in interrupted] == [
        ["1", "1", "crashed", "0", "35"],
        ["1", "2", "complete", "30", "60"],
        ["2", "1", "failed", "0", "0"],
    ]
    assert interrupted[0][8] == f"Killed: {NASTY}"
    verified = found["Replays and their verdicts"]
    assert verified[0][:3] == ["0", "killed and resumed", "holds"]
    spread = found["How far the answer spreads"]
    assert spread[0][1:] == [
        *("the best 3 of 10 complete trials (other parameters)", "3"),
        *("0.69", "0.7", "0.71", "0.01"),
    ]
    assert spread[2][1:5] == ["the last 5 epochs of the best trial, 11", "5", "0.63", "0.67"]
    assert spread[3][2] == "0"
    environment = found["Environments of the attempts"]
    assert environment[0][1:3] == ["python 3.11.0, tensorflow 2.21.0", f"CPU {NASTY}"]
    commands = written.read_text(encoding="utf-8")
    assert f"sweeper verify recorded --trial 11 --storage {url}" in commands
    assert "sweeper run studies/digits.py:study --runs-dir runs-again" in commands


def test_it_prints_with_every_picture_within_the_page(shown: Shown) -> None:
    shown.page.emulate_media(media="print")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    widths = shown.page.evaluate(
        "[...document.querySelectorAll('svg.main-svg')].map(s => s.getBoundingClientRect().width)"
    )
    assert widths
    assert max(widths) <= 681
    assert shown.page.pdf(format="A4")[:5] == b"%PDF-"
    shown.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    shown.page.emulate_media(media="screen")
    assert shown.said == []


def test_it_has_no_serious_fault_of_accessibility(shown: Shown) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(shown.page).response["violations"]
    bad = [
        (v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")
    ]
    assert bad == []


def test_a_narrow_screen_scrolls_only_within_tables(shown: Shown) -> None:
    shown.page.set_viewport_size({"width": 360, "height": 700})
    shown.page.evaluate(
        """async () => {
            const wide = () => [...document.querySelectorAll("svg.main-svg")]
                .some(svg => svg.getBoundingClientRect().right > 360);
            while (wide()) await new Promise(requestAnimationFrame);
        }"""
    )
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 360
    shown.page.set_viewport_size({"width": 1280, "height": 900})


def test_the_first_key_leads_past_the_contents(shown: Shown) -> None:
    shown.page.evaluate("document.activeElement.blur()")
    shown.page.keyboard.press("Tab")
    assert shown.page.evaluate("document.activeElement.className") == "skip"
    shown.page.keyboard.press("Enter")
    assert shown.page.evaluate("document.activeElement.id") == "answer"


def test_another_study_is_put_beside_it_and_one_of_another_objective_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "both.html"
    options = ["--storage", url, "--output", str(path)]
    assert main(["report", "recorded", "--compare", "other", *options]) == 0
    rows = tables_of(path.read_text())["Side by side"]
    assert rows[:2] == [["finished trials", "12 of 12", "5 of 5"], ["best score", "0.71", "0.64"]]
    assert "other: complete" in path.read_text(encoding="utf-8")
    before = path.read_bytes()
    assert main(["report", "recorded", "--compare", "unlike", *options]) == 2
    said = capsys.readouterr().err
    assert "the first has the objective score (maximize), the second gain (maximize)" in said
    assert main(["report", "recorded", "--compare", "recorded", *options]) == 2
    assert path.read_bytes() == before


def test_only_a_report_is_replaced_unless_it_is_forced(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "thesis.html"
    path.write_text("my only copy")
    options = ["report", "other", "--storage", url, "--output", str(path)]
    assert main(options) == 2
    assert "is not a report of sweeper" in capsys.readouterr().err
    assert path.read_text() == "my only copy"
    assert main([*options, "--force"]) == 0
    assert main(options) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.html"]


def test_the_default_name_is_the_studys(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "other", "--storage", url]) == 0
    assert capsys.readouterr().out == "other-report.html\n"
    assert (tmp_path / "other-report.html").is_file()


def test_pictures_are_written_as_png_and_a_missing_browser_is_said(
    url: str,
    tmp_path: Path,
    browser: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--storage", url, "--output", str(tmp_path / "p.html"), "--png"]
    monkeypatch.setenv("BROWSER_PATH", str(CHROMIUM))
    assert main(["report", "other", *options, str(tmp_path / "png")]) == 0
    files = sorted((tmp_path / "png").iterdir())
    assert [f.name for f in files] == [
        *("attempts.png", "importance.png", "learning-curves.png", "parallel-coordinates.png")
    ]
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in files)
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "no-browser"))
    monkeypatch.setenv("PATH", str(tmp_path))
    capsys.readouterr()
    assert main(["report", "other", *options, str(tmp_path / "none")]) == 2
    assert "--png needs Chrome or Chromium, and none was found" in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "kaleido", None)
    options = ["--storage", url, "--output", str(tmp_path / "p.html"), "--png", str(tmp_path)]
    assert main(["report", "other", *options]) == 2
    assert "needs the package 'kaleido'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", "other", *options]) == 2
    said = capsys.readouterr().err
    assert "a report needs the package 'jinja2'" in said
    assert "[plots]" in said
