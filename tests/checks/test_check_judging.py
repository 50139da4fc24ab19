"""Two reports held against each other: the first thing that differs is named, and nothing after it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from sweeper.checks.check import checkpoints_kept, estimate
from sweeper.checks.judging import Judgement, judge_runs, judge_trials
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.replay.reports import (
    Authored,
    CheckReport,
    DataDigests,
    Event,
    Finding,
    Lengths,
    Line,
    RehearsalReport,
    Spent,
    StudyAuthors,
    Timed,
    Trace,
    ranked,
    validation_finding,
)
from sweeper.spec.checkpointing import Every, Keep

REPORTS = TypeAdapter(RehearsalReport)


def report() -> dict[str, Any]:
    """What one process says of a study with two callbacks, in which everything repeats."""
    events = (
        Event("start", None, "", 0, ("a", "b")),
        Event("step", None, "", 1, ("c", "d")),
        Event("callback", 0, "on_epoch_end", 1, ("c", "d")),
        Event("callback", 1, "on_epoch_end", 1, ("c", "e")),
        Event("step", None, "", 2, ("f", "g")),
    )
    code = StudyAuthors(
        model=Authored("build_model", Line("s.py", 10)),
        data=Authored("load_data", Line("s.py", 20)),
        step=Authored("Noisy", Line("s.py", 5)),
        callbacks=(
            Authored("EarlyStopping"),
            Authored("Jitter", Line("s.py", 28), {"on_epoch_end": Line("s.py", 30)}),
        ),
    )
    data = DataDigests(
        kind="ArraySource",
        described="arrays",
        shuffle=True,
        whole=("x0", "y0"),
        epochs=((("x1", "y1"), ("x2", "y2")), (("x2", "y2"), ("x1", "y1"))),
        validation=(("v", "w"),),
        whole_validation=("v0", "w0"),
    )
    seen = RehearsalReport(
        complete=True,
        code=code,
        findings=(),
        seconds=Spent(),
        steps=2,
        weights=(("dense/kernel", "1", True), ("dense/bias", "2", False)),
        data=data,
        trace=Trace(("model variable dense/kernel", "optimizer variable rate"), events),
    )
    return json.loads(REPORTS.dump_json(seen))


def judged(
    change: Any = lambda second: None, *, deterministic: bool = True, both: Any = lambda each: None
) -> Judgement:
    first = report()
    second = copy.deepcopy(first)
    for each in (first, second):
        both(each)
    change(second)
    one, two = map(REPORTS.validate_python, (first, second))
    return judge_runs(one, two, (one.data, two.data), deterministic=deterministic)


def one(judgement: Judgement) -> Finding:
    [finding] = judgement.findings
    return finding


def test_two_equal_reports_repeat_and_say_what_holds() -> None:
    judgement = judged()
    assert judgement.repeats
    assert judgement.findings == []
    assert len(judgement.held) == 3


def test_initial_weights_that_differ_are_the_model_factorys() -> None:
    def change(second: Any) -> None:
        second["weights"][1][1] = "9"
        second["data"]["whole"] = ["?", "?"]

    finding = one(judged(change))
    assert (finding.level, finding.check, str(finding.line)) == ("error", "seeds", "s.py:10")
    assert "build_model returned different initial weights" in finding.message
    assert "dense/bias" in finding.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["whole"].__setitem__(1, "?"), "y of Data(train=…)"),
        (lambda d: d["epochs"][1][0].__setitem__(0, "?"), "x of Data(train=…)"),
        (lambda d: d["epochs"][0].pop(), "the number of batches of Data(train=…)"),
        (lambda d: d["validation"][0].__setitem__(1, "?"), "y of Data(validation=…)"),
    ],
)
def test_data_that_differ_are_the_data_factorys_and_no_step_is_blamed(
    change: Any, message: str
) -> None:
    def changed(second: Any) -> None:
        change(second["data"])
        second["trace"]["events"][1]["state"] = ["?", "?"]

    finding = one(judged(changed))
    assert (finding.check, str(finding.line)) == ("determinism", "s.py:20")
    assert "the data of load_data differ in a second run of the same trial" in finding.message
    assert f"{message} differs" in finding.message


def trials(change: Any = lambda second: None) -> Judgement:
    first, second = report(), report()
    change(second)
    judgement = Judgement()
    judge_trials(*map(REPORTS.validate_python, (first, second)), judgement)
    return judgement


def test_a_seed_that_makes_no_difference_is_a_warning_and_one_that_does_holds() -> None:
    assert (one(trials()).level, one(trials()).check) == ("warning", "seeds")
    judgement = trials(lambda second: second["weights"][0].__setitem__(1, "9"))
    assert judgement.findings == []
    assert judgement.held == ["different seeds give different initial weights"]


def test_weights_that_nothing_draws_say_nothing_of_seeds() -> None:
    def drawn_by_nothing(each: Any) -> None:
        each["weights"] = each["weights"][1:]

    first, second = report(), report()
    for each in (first, second):
        drawn_by_nothing(each)
    judgement = Judgement()
    judge_trials(*map(REPORTS.validate_python, (first, second)), judgement)
    assert (judgement.findings, judgement.held) == ([], [])


def validated(first: str | None, second: str | None) -> Finding | None:
    reports = [
        REPORTS.validate_python({**report(), "validation": digest}) for digest in (first, second)
    ]
    return validation_finding(*reports)


def test_other_validation_data_are_a_warning_that_names_the_factory_and_the_cure() -> None:
    found = validated("2:a", "2:b")
    assert found is not None
    assert (found.level, found.check, str(found.line)) == ("warning", "validation", "s.py:20")
    assert (
        "load_data returned different validation data for two trials with equal parameters"
        in found.message
    )
    assert "draw the split from a seed that does not depend on the trial" in found.message


@pytest.mark.parametrize("digests", [("2:a", "2:a"), (None, "2:a"), ("2:a", None), (None, None)])
def test_equal_or_unknown_validation_data_are_no_finding(digests: Any) -> None:
    assert validated(*digests) is None


def test_a_callback_that_leaves_another_state_is_named_with_its_hooks_line() -> None:
    finding = one(judged(lambda s: s["trace"]["events"][3].__setitem__("state", ["c", "?"])))
    assert str(finding.line) == "s.py:30"
    assert finding.message.startswith("callback Jitter does not repeat")
    assert "its on_epoch_end left optimizer variable rate" in finding.message


def test_a_step_that_leaves_another_state_is_named_with_its_variable() -> None:
    finding = one(judged(lambda s: s["trace"]["events"][1].__setitem__("state", ["?", "d"])))
    assert finding.level == "error"
    assert finding.message.startswith("step 1 does not repeat")
    assert "model variable dense/kernel" in finding.message
    assert "of the user's own code it runs Noisy" in finding.message
    assert str(finding.line) == "s.py:5"


def test_a_step_of_a_study_that_says_so_need_not_repeat() -> None:
    judgement = judged(
        lambda s: s["trace"]["events"][1].__setitem__("state", ["?", "d"]), deterministic=False
    )
    assert one(judgement).level == "warning"
    assert "deterministic=False" in one(judgement).message


def test_runs_that_take_different_courses_are_said_to() -> None:
    finding = one(judged(lambda s: s["trace"]["events"].pop()))
    assert "took different courses after step 1" in finding.message
    finding = one(judged(lambda s: s["trace"]["events"].pop(2)))
    assert "took different courses after step 1" in finding.message


def test_epochs_alike_are_a_warning_where_shuffling_was_asked_for_and_a_note_elsewhere() -> None:
    def alike(each: Any) -> None:
        each["data"]["epochs"][1] = each["data"]["epochs"][0]

    assert one(judged(both=alike)).level == "warning"

    def unshuffled(each: Any) -> None:
        alike(each)
        each["data"]["shuffle"] = False

    assert one(judged(both=unshuffled)).level == "note"


def test_findings_are_ranked_and_one_error_is_enough() -> None:
    note, error = Finding("note", "data", "n"), Finding("error", "data", "e", Line("s.py", 1))
    assert ranked([note, error, note]) == (error, note)
    assert CheckReport("s", (note,)).holds
    assert not CheckReport("s", (error, note)).holds
    assert error.to_json()["line"] == 1
    assert note.to_json()["line"] is None


def settings(**changes: Any) -> StudySettings:
    study = StudyDefinition(name="s", model=print, data=print, epochs=10, trials=6, **changes)
    return study.settings()


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, 2),
        ({"keep": Keep(last=1)}, 1),
        ({"keep": Keep(last=3, best=2, monitor="loss", mode="min")}, 5),
        ({"keep": Keep(last=30)}, 10),
        ({"keep": Keep(last=2, every_epochs=2)}, 7),
        ({"keep": Keep(last=5, every_epochs=1, at_most=4)}, 4),
        ({"keep": Keep(last=90), "checkpoint_every": Every(steps=25)}, 41),
        ({"keep": Keep(last=1, when=bool)}, 10),
    ],
)
def test_the_estimate_of_disk_goes_by_the_studys_rules(changes: Any, kept: int) -> None:
    assert checkpoints_kept(settings(**changes), 100, 50.0) == kept


def test_the_estimate_of_time_is_for_all_trials_side_by_side() -> None:
    measured = REPORTS.validate_python(
        {
            **report(),
            "timed": Timed(50, 0.5, 4, 0.02, memory=1000),
            "lengths": Lengths(100, 8, None, None),
            "validations": 10,
        }
    )
    estimated = estimate(settings(), measured, workers=4, startup_seconds=1.0, checkpoint_bytes=10)
    assert estimated is not None
    assert estimated.seconds_per_step == pytest.approx(0.01)
    assert estimated.validation_seconds == pytest.approx(0.04)
    assert estimated.trial_seconds == pytest.approx(1 + 10 * 100 * 0.01 + 10 * 0.04)
    assert estimated.study_seconds == pytest.approx(2 * estimated.trial_seconds)
    assert (estimated.memory_bytes, estimated.disk_bytes) == (4000, 10 * 2 * 6)
    measured = replace(measured, lengths=Lengths(None, 0, None, None))
    unknown = estimate(settings(), measured, workers=4, startup_seconds=1.0, checkpoint_bytes=10)
    assert unknown is not None
    assert unknown.study_seconds is None
    assert replace(unknown, steps_per_epoch=None) == unknown
