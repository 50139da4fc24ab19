"""The page of a report in Chromium: opened from disk without a network, sorted, filtered, brushed, read."""

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from browsing import Watched, chromium
from drawn_studies import NASTY
from playwright.sync_api import expect
from recorded_studies import (
    PARAMETER,
    database,
    write_extended,
    write_halved,
    write_mixed,
    write_repeated,
)
from sweeps import python

from sweeper.cli.main import main
from sweeper.db.database import Database
from sweeper.db.repository import Repository

WIDTHS = (390, 1280, 2560)
ALL_IN_VIEW = 6000
"""Height of a window in which every picture is drawn."""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    storage = database(tmp_path_factory.mktemp("recorded") / "sweeper.db")
    with Database.open(storage, create=False) as opened:
        repository = Repository(opened)
        write_halved(repository)
        write_extended(repository)
        write_repeated(repository)
    return storage


def report(url, study, path, *more):
    assert main(["report", study, "--storage", url, "--output", str(path), *more]) == 0
    return path


@pytest.fixture(scope="module")
def written(url, tmp_path_factory):
    return report(url, "recorded", tmp_path_factory.mktemp("report") / "page.html")


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def show(browser):
    """Opens reports in windows in which every picture is drawn, unless another size is given."""
    with ExitStack() as stack:

        def opened(path, place="", *, width=1280, height=ALL_IN_VIEW, **options):
            viewport = {"width": width, "height": height}
            context = stack.enter_context(browser.new_context(viewport=viewport, **options))
            context.set_offline(True)
            watched = Watched(context.new_page(), "file://")
            watched.page.goto(path.as_uri() + place)
            watched.page.wait_for_selector("html[data-drawn=yes]", state="attached")
            return watched

        yield opened


@pytest.fixture
def opened(show, written):
    watched = show(written)
    yield watched
    watched.check()


@pytest.fixture
def page_of(url, show, tmp_path):
    """The page of the report of a study."""
    return lambda study: show(report(url, study, tmp_path / "page.html")).page


def trial_numbers(page):
    return [
        int(text) for text in page.locator("#trials-table tbody tr:visible th").all_inner_texts()
    ]


def curves(page):
    return page.locator("#curves-picture .scatterlayer .trace path.js-line")


def test_every_picture_is_drawn_without_a_network_or_a_word_in_the_console(opened):
    page = opened.page
    for name in ("curves", "scatter"):
        assert page.locator(f"#{name}-picture svg.main-svg").count() > 0, name
    assert page.locator("#parallel-picture path").count() == 11, (
        "a line for each trial with a value"
    )
    assert page.locator("canvas").count() == 0
    expect(page.locator("#importance-table meter")).not_to_have_count(0)
    assert opened.errors == []
    assert opened.elsewhere == []


@pytest.mark.whole
def test_a_picture_is_drawn_when_it_comes_into_view(show, written):
    page = show(written, height=300).page
    assert page.locator(".picture svg").count() == 0
    for name in ("scatter", "parallel", "curves"):
        page.locator(f"#{name}-heading").scroll_into_view_if_needed()
        page.locator(f"#{name}-picture").scroll_into_view_if_needed()
        expect(page.locator(f"#{name}-picture svg").first).to_be_visible()
    expect(page.locator("#parallel-picture path.chosen")).to_have_count(5)


def test_any_column_sorts_both_ways_and_values_that_are_missing_come_last(opened):
    page = opened.page
    assert trial_numbers(page)[:3] == [11, 10, 9], "the best first"
    head = page.locator("#trials-table thead th")
    score = head.filter(has_text="score")
    expect(score).to_have_attribute("aria-sort", "descending")
    score.get_by_role("button").click()
    expect(score).to_have_attribute("aria-sort", "ascending")
    assert trial_numbers(page)[:2] == [3, 0]
    assert trial_numbers(page)[-1] == 2, "a failed trial has no value"
    head.filter(has_text="units").get_by_role("button").click()
    expect(score).not_to_have_attribute("aria-sort", re.compile("."))
    assert trial_numbers(page) == sorted(trial_numbers(page)), "units grow with the number"
    state = head.filter(has_text="state").get_by_role("button")
    state.focus()
    page.keyboard.press("Enter")
    assert trial_numbers(page)[-2:] == [2, 3], "failed, pruned"
    head.filter(has_text="trial").first.get_by_role("button").click()
    assert trial_numbers(page) == list(range(12))


def test_filters_go_by_state_text_and_range_and_say_how_many(opened):
    page = opened.page
    page.get_by_label("failed").check()
    assert trial_numbers(page) == [2]
    expect(page.locator("#shown")).to_contain_text("1 of 12 trials shown")
    page.get_by_label("failed").uncheck()
    page.get_by_role("searchbox").fill("sgd complete")
    assert set(trial_numbers(page)) == {0, 4, 6, 8, 10}
    page.get_by_role("button", name="Show all trials").click()
    expect(page.locator("#shown")).to_contain_text("12 of 12 trials shown")
    page.get_by_text("Ranges of parameters and objectives").click()
    units = page.get_by_role("group", name="units")
    units.get_by_label("least").fill("12")
    units.get_by_label("greatest").fill("14")
    units.get_by_label("greatest").press("Enter")
    assert set(trial_numbers(page)) == {4, 5, 6}
    page.get_by_role("group", name="optimizer").get_by_label("sgd").uncheck()
    assert set(trial_numbers(page)) == {5}
    assert page.locator("#parallel-picture path:not(.left-out)").count() == 1
    page.get_by_role("button", name="Show all trials").click()
    expect(page.locator("#trials-table tbody tr:visible")).to_have_count(12)
    assert page.locator("#parallel-picture path.left-out").count() == 0


def test_a_brush_filters_the_table_and_a_click_ends_it(opened):
    page = opened.page
    axis = page.locator("[data-axis-brush='param:units']")
    axis.scroll_into_view_if_needed()
    box = axis.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    y = box["y"]
    page.mouse.move(x, y + box["height"] - 5)
    page.mouse.down()
    page.mouse.move(x, y + box["height"] * 0.93, steps=4)
    page.mouse.up()
    numbers = trial_numbers(page)
    assert 0 in numbers
    assert 11 not in numbers
    page.get_by_text("Ranges of parameters and objectives").click()
    field = page.get_by_role("group", name="units").get_by_label("greatest")
    most = float(field.input_value())
    assert set(numbers) == {n for n in range(12) if 8 + n <= most}
    assert page.locator(".brush").nth(2).evaluate("one => one.height.baseVal.value") > 0
    axis.click()
    assert len(trial_numbers(page)) == 12
    assert field.input_value() == ""


def test_chosen_trials_are_overlaid_by_any_metric_axis_and_smoothing(opened):
    page = opened.page
    assert curves(page).count() == 5, "the leaders at first"
    for number in (0, 1):
        page.get_by_label(f"Choose trial {number}", exact=True).check()
    expect(curves(page)).to_have_count(7)
    expect(page.locator("#curves-picture .legend")).to_contain_text("trial 1 (resumed 1")
    expect(page.locator("#curves-picture .legend")).to_contain_text("resumed here")
    page.get_by_label("Choose trial 0", exact=True).uncheck()
    expect(curves(page)).to_have_count(6)
    page.get_by_label("Metric").select_option("loss")
    expect(page.locator("#curves-text")).to_contain_text("loss of trials 1, 7, 8")
    page.locator("#curves-axis").select_option("step")
    expect(page.locator("#curves-picture .xtitle")).to_have_text("steps")
    ticks = page.locator("#curves-picture .xtick text").all_text_contents()
    assert ticks
    assert all(re.fullmatch(r"[\d,]+", tick) for tick in ticks), "whole numbers"
    page.locator("#curves-axis").select_option("time")
    expect(page.locator("#curves-picture .xtitle")).to_have_text("training time, seconds")
    page.get_by_label("Smoothing").fill("0.5")
    expect(curves(page)).to_have_count(12)
    page.get_by_role("button", name="Choose leaders and running trials").click()
    page.get_by_label("Smoothing").fill("0")
    expect(curves(page)).to_have_count(5)
    page.get_by_label("failed").check()
    page.get_by_role("button", name="Choose the trials shown").click()
    expect(page.locator("#curves-text")).to_contain_text("No chosen trial has finished an epoch")


@pytest.mark.whole
def test_smoothing_is_a_debiased_average_and_times_are_within_attempts(opened):
    values = opened.page.evaluate(
        """() => {
          const trial = store.trials.get(1);
          const line = curve({ ...trial, epochs: [{ epoch: 0, m: 1 }, { epoch: 1, m: 3 }, { epoch: 2, m: null }] }, "m", "epoch", 0.5);
          const two = { ...trial, own: { ...trial.own, stepsPerEpoch: 10, spans: [100, 60] }, epochs: new Array(6),
            attempts: [{ number: 1, start_step: 0, end_step: 40 }, { number: 2, start_step: 30, end_step: 60 }] };
          const at = positions(two, "time");
          return [line.y, line.broken, at(20), at(40), at(60), at(30, true)];
        }"""
    )
    assert values[0] == [1, pytest.approx(7 / 3), None]
    assert values[1] == [3]
    assert values[2:] == [50, 120, 160, 100], "the second attempt ran the fourth epoch again"


def test_a_trial_has_all_that_is_known_of_it_and_the_way_back(opened):
    page = opened.page
    page.locator("#trials-table").get_by_role("link", name="trial 1", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Trial 1 of recorded")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.locator("#lead")).to_contain_text("6 of 6 epochs")
    expect(page.locator("#lead")).to_contain_text("in 2 attempts")
    attempts = page.get_by_role("region", name="Table: Attempts of the trial")
    assert attempts.locator("tbody tr").count() == 2
    expect(attempts).to_contain_text(f"Killed: {NASTY}")
    assert page.locator("#trial-timeline span:not(.pause)").count() == 2
    expect(page.locator("#trial-picture .legend")).to_contain_text("resumed here")
    expect(page.get_by_text("runs/step-30")).to_be_visible()
    expect(page.get_by_text("e" * 32)).to_be_visible()
    expect(page.locator("#trial-commands")).to_contain_text("sweeper verify recorded --trial 1 ")
    page.get_by_text("Epochs as a table").click()
    assert page.locator("#trial-epochs tbody tr").count() == 6
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("recorded")
    expect(page.locator("#trials-table a[href='#trial-1']")).to_be_focused()
    page.evaluate("location.hash = 'trial-2'")
    expect(page.locator("#trial-error")).to_have_text(f"ValueError: {NASTY}")


def test_what_a_user_wrote_is_text_and_nothing_else(opened, written):
    page = opened.page
    assert page.locator("img").count() == 0
    assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    assert page.get_by_text(NASTY).count() > 0
    assert "<img" not in written.read_text(encoding="utf-8")
    expect(page.locator("#scatter-picture .xtitle")).to_have_text(PARAMETER)


def test_the_policy_lets_no_other_script_run(opened):
    ran = opened.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.foreign = true";
            document.body.append(script);
            script.remove();
            return window.foreign === true;
        }"""
    )
    assert not ran
    opened.errors.clear()  # the browser's word on what was just refused


STATES = ["complete", "running", "interrupted", "paused", "pruned", "failed", "waiting"]


@pytest.mark.parametrize(
    "study",
    [
        "recorded",
        "repeated",
        pytest.param("longer", marks=pytest.mark.whole),
        pytest.param("halved", marks=pytest.mark.whole),
    ],
)
def test_every_number_is_that_of_status(url, study, page_of, capsys):
    """Of a study with a killed, an extended, a halved and a repeated trial."""
    page = page_of(study)
    capsys.readouterr()
    assert main(["status", study, "--json", "--storage", url]) == 0
    status = json.loads(capsys.readouterr().out)
    for state in STATES:
        expect(page.locator(f"#count-{state}")).to_have_count(1 if status[state] else 0)
        if status[state]:
            expect(page.locator(f"#count-{state}")).to_have_text(str(status[state]))
    rows = {}
    for row in page.locator("#trials-table tbody tr").all():
        cells = row.locator("th, td").all_inner_texts()
        rows[int(cells[0])] = (cells[1].split()[0], cells[2], cells[3])
    assert rows == {
        t["number"]: (
            t["state"],
            "-" if t["value"] is None else f"{t['value']:.6g}",
            f"{t['epoch']} of {t['epochs']}",
        )
        for t in status["trials"]
    }
    expect(page.locator("#configurations")).to_be_visible(visible=bool(status["configurations"]))
    assert page.locator("#configurations-table tbody tr").count() == len(status["configurations"])


def test_an_extended_trial_is_marked_and_compared_with_none_of_another_length(page_of):
    page = page_of("longer")
    expect(page.locator("#trials-table-0")).to_contain_text("extended from 2")
    expect(page.locator("#trials-table-1")).not_to_contain_text("extended")
    for part in ("#importance", "#scatter", "#rungs"):
        expect(page.locator(part)).to_be_hidden()


def test_a_halved_study_has_who_was_promoted(page_of):
    page = page_of("halved")
    first = page.locator("#rungs-table tbody tr").first
    expect(first).to_contain_text("1 (0.1), 3 (0.2)")
    page.evaluate("location.hash = 'trial-0'")
    expect(page.locator("#trial-rungs-table")).to_contain_text("ended here")
    page.evaluate("location.hash = 'trial-1'")
    expect(page.locator("#trial-rungs-table tbody tr")).to_have_count(2)


def test_configurations_have_an_interval_and_a_dot_for_each_repeat(page_of):
    page = page_of("repeated")
    expect(page.locator("#answer")).to_contain_text("onfiguration 1 leads with 0.901")
    first = page.locator("#configurations-table tbody tr").first
    expect(first).to_contain_text("0.9010 ± 0.0025")
    assert first.locator("circle").count() == 3
    expect(first.get_by_role("link")).to_have_text(["3", "4", "5"])
    page.locator("#configurations-table thead").get_by_role("button", name="mean").click()


@pytest.mark.parametrize(
    ("scheme", "place"),
    [
        ("dark", ""),
        ("light", "#trial-1"),
        pytest.param("light", "", marks=pytest.mark.whole),
        pytest.param("dark", "#trial-1", marks=pytest.mark.whole),
    ],
)
def test_nothing_keeps_anybody_from_reading_or_reaching(show, written, scheme, place):
    watched = show(written, place, color_scheme=scheme)
    assert watched.serious() == []
    assert watched.out_of_reach() == []


@pytest.mark.parametrize(
    "width", [WIDTHS[0], *(pytest.param(width, marks=pytest.mark.whole) for width in WIDTHS[1:])]
)
def test_only_frames_scroll_sideways_and_the_trials_column_stays(show, written, width):
    page = show(written, width=width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#scatter-picture .main-svg").count() > 0
    wider = page.evaluate(
        """() => [...document.querySelectorAll(".picture .main-svg")].filter(
          (one) => one.getBoundingClientRect().width > one.closest("section").clientWidth + 1).length"""
    )
    assert wider == 0, "no picture lies over the one beside it"
    frame = page.locator("#trials-table .scrolling")
    box = page.locator("#trials-table tbody th").first.bounding_box()
    frame.evaluate("one => { one.scrollLeft = 500; }")
    assert page.locator("#trials-table tbody th").first.bounding_box() == box
    page.evaluate("location.hash = 'trial-1'")
    expect(page.locator("#trial-view")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.whole
def test_it_prints_with_every_picture_within_the_page(opened):
    page = opened.page
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    widths = page.evaluate(
        "[...document.querySelectorAll('svg.main-svg')].map(s => s.getBoundingClientRect().width)"
    )
    assert widths
    assert max(widths) <= 681
    assert page.pdf(format="A4")[:5] == b"%PDF-"


@pytest.mark.whole
def test_the_first_key_leads_past_the_header(opened):
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def test_only_a_report_is_replaced_unless_it_is_forced(url, tmp_path, capsys):
    path = tmp_path / "thesis.html"
    path.write_text("my only copy")
    options = ["report", "other", "--storage", url, "--output", str(path)]
    assert main(options) == 2
    assert "is not a report of sweeper" in capsys.readouterr().err
    assert path.read_text() == "my only copy"
    assert main([*options, "--force"]) == 0
    assert main(options) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.html"]


def test_the_default_name_is_the_studys(url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "other", "--storage", url]) == 0
    assert capsys.readouterr().out == "other-report.html\n"
    assert (tmp_path / "other-report.html").is_file()


@pytest.mark.whole
def test_a_picture_is_saved_as_png(opened):
    page = opened.page
    for name in ("curves", "scatter"):
        with page.expect_download() as saved:
            page.locator(f"#{name}").get_by_role("button", name="Save the picture as PNG").click()
        assert saved.value.suggested_filename == f"recorded-{name}.png"
        assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


def test_a_missing_package_is_named_with_the_command_that_installs_it(url, tmp_path):
    program = (
        "import sys; sys.modules['jinja2'] = None; import sweeper.cli.main as m; sys.exit(m.main())"
    )
    answer = python("-c", program, "report", "other", "--storage", url, cwd=tmp_path)
    assert answer.code == 2
    assert "a report needs the package 'jinja2'" in answer.err
    assert "[plots]" in answer.err


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The report of a study with parameters of every kind, and repeats far apart."""
    directory = tmp_path_factory.mktemp("mixed")
    storage = database(directory / "sweeper.db")
    with Database.open(storage, create=False) as opened:
        write_mixed(Repository(opened))
    return report(storage, "mixed", directory / "page.html")


def ticks(page, axis):
    [group] = page.locator("#parallel-picture svg > g").all()[axis : axis + 1]
    return group.locator(":scope > text").evaluate_all(
        "found => found.map(each => each.firstChild.textContent)"
    )


def test_the_axis_of_a_whole_number_has_whole_ticks_each_of_them_once(show, mixed):
    page = show(mixed).page
    assert page.locator("#scatter-picture .xtick text").all_text_contents() == ["1", "2", "3", "4"]
    assert ticks(page, 0) == ["layers", "1", "2", "3", "4"]
    assert ticks(page, 1) == ["units", "16", "64", "256"]
    assert ticks(page, 2) == ["learning_rate", "0.0001", "0.00316", "0.1"], "no whole number"
    assert ticks(page, 3) == ["optimizer", "sgd", "adam"]


def test_the_place_of_trials_without_a_conditional_parameter_is_labelled(show, mixed):
    page = show(mixed).page
    assert ticks(page, 4) == ["momentum", "0", "0.45", "0.9", "not set"]
    assert "not set" not in ticks(page, 0), "negative control: each trial has it"


def test_the_bars_of_importance_leave_room_for_the_shares_on_a_phone(show, written):
    width = "bar => bar.getBoundingClientRect().width"
    narrow, wide = (
        show(written, width=pixels).page.locator("meter").first.evaluate(width)
        for pixels in (390, 1300)
    )
    assert narrow <= 0.3 * 390
    assert wide > 0.3 * 390, "negative control: the width that hid the shares"


def test_an_interval_beyond_the_values_ends_in_an_arrow(show, mixed, page_of):
    dots = show(mixed).page.locator(".dots")
    assert dots.count() == 4
    assert dots.locator(".beyond").count() == 8
    assert "95% interval from" in dots.first.locator("title").text_content()
    assert page_of("repeated").locator(".dots .beyond").count() < 4, "an end within the values"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1300])
def test_a_frame_that_cuts_a_column_fades_there_until_it_is_scrolled_to_its_end(
    show, mixed, width, scheme
):
    page = show(mixed, width=width, color_scheme=scheme).page
    frame = page.locator("#trials-table .scrolling")
    mask = "box => getComputedStyle(box).maskImage !== 'none'"
    expect(frame).to_have_class(re.compile("more"))
    assert frame.evaluate(mask)
    frame.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    expect(frame).not_to_have_class(re.compile("more"))
    assert not frame.evaluate(mask)
