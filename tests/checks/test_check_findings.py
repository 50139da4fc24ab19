"""What the replays of `sweeper check` show of two runs, what it estimates, and how it shortens a trial."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from sweeper import Data
from sweeper.checks.check import CheckReport, checkpoints_kept, estimate, judge, kill_of
from sweeper.declarations.checkpointing import Every, Keep
from sweeper.definition.definition import StudyDefinition
from sweeper.records.findings import Finding, Line
from sweeper.replay.comparison import Difference, compare_ends
from sweeper.replay.reports import Lengths, UserObject, UserObjects
from sweeper.run.protocol.messages import Finished
from sweeper.run.replays import Kill, ReplayComparison, Replayed
from sweeper.run.trial.parts import shortened
from sweeper.train.loop.plan import TrainingPlan

USER_OBJECTS = UserObjects(
    UserObject("build_model", Line("study.py", 3)),
    UserObject("load_data", Line("study.py", 9)),
    (UserObject("Jitter", Line("study.py", 20)), UserObject("EarlyStopping")),
)
KILL = Kill(30, 41)
LOST = Difference("user_state", "a", "callback Jitter, attribute 'n'", "1 and 2", "error")


def replayed(weights="w", **end):
    return Replayed(
        user_objects=USER_OBJECTS,
        weights=weights,
        end=Finished(**{"step": 60, "value": 0.5, "digest": "d"} | end),
    )


def judged(differences, other=None, *, repeats=None):
    checkpoints = {
        position: differences.get(position, ()) for position in ((1, 0), (20, 1), (40, 2), (60, 3))
    }
    again = other or replayed()
    sides = ("undisturbed", "resumed")
    end = compare_ends(replayed().results(["loss"]), again.results(["loss"]), sides)
    compared = ReplayComparison(again, checkpoints=checkpoints, end=end, repeats=repeats)
    return judge(replayed(), compared, KILL, "error")


@pytest.mark.parametrize(
    ("differences", "repeats", "check"),
    [
        ({(20, 1): [LOST], (40, 2): [LOST]}, True, "determinism"),
        ({(40, 2): [LOST]}, True, "resume"),
        ({(40, 2): [LOST]}, False, "determinism"),
    ],
    ids=["before the kill", "after the kill", "after it, and never the same"],
)
def test_a_difference_before_the_kill_does_not_repeat_and_one_after_it_was_lost(
    differences, repeats, check
):
    [finding], promises = judged(differences, repeats=repeats)
    assert (finding.level, finding.subject, promises) == ("error", check, [])
    assert f"at step {min(differences)[0]}" in finding.message
    assert "callback Jitter, attribute 'n': 1 and 2" in finding.message
    assert "look in callback Jitter (study.py:20);" in finding.message
    assert str(finding.line) == "study.py:20"


def test_other_initial_weights_are_the_model_factorys():
    [finding], promises = judged({(1, 0): [LOST]}, replayed("other"))
    assert (finding.subject, promises) == ("seeds", [])
    assert "build_model returned different initial weights" in finding.message
    assert str(finding.line) == "study.py:3"


@pytest.mark.parametrize("end", [{"step": 61}, {"value": 0.25}, {"digest": "e"}], ids=str)
def test_an_end_that_differs_is_found_where_no_checkpoint_differs(end):
    [finding], promises = judged({}, replayed(**end))
    assert (finding.subject, promises) == ("resume", [])
    assert judged({}, replayed(value=float("nan")))[0] != []


def test_what_is_measured_is_a_note():
    [finding], promises = judged({(40, 2): [replace(LOST, level="note")]})
    assert (finding.level, finding.subject) == ("note", "determinism")
    assert promises[-1].startswith("killed (SIGKILL) after step 41 and resumed at step 30")


def settings(**changes):
    study = StudyDefinition(name="s", model=print, data=print, epochs=10, trials=6, **changes)
    return study.settings()


@pytest.mark.parametrize(
    ("changes", "count"),
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
def test_the_estimate_of_disk_goes_by_the_studys_rules(changes, count):
    assert checkpoints_kept(settings(**changes), 100, 50.0) == count


def test_the_estimate_of_time_is_for_whole_epochs_and_all_trials_side_by_side():
    measured = Replayed(
        started_after=1.0, bytes=10, epoch_seconds=[9.0, 0.2, 0.4], lengths=Lengths(60, 10.0)
    )
    estimated = estimate(settings(), measured, workers=4)
    assert estimated.epoch_seconds == pytest.approx(3.0), "the first epoch traces"
    assert estimated.trial_seconds == pytest.approx(1 + 10 * 3.0)
    assert estimated.study_seconds == pytest.approx(2 * 31.0)
    assert estimated.disk_bytes == 10 * 2 * 6
    measured.lengths = Lengths(60, 20.0)
    longer = estimate(settings(), measured, workers=4)
    assert longer.epoch_seconds == pytest.approx(6.0), "the validation was shortened more"
    measured.lengths = Lengths(None, 1.0)
    unknown = estimate(settings(), measured, workers=4)
    assert (unknown.study_seconds, unknown.startup_seconds) == (None, 1.0)
    assert estimate(settings(), Replayed(), workers=4) is None


@pytest.mark.parametrize(
    ("freq", "epochs", "expected"),
    [(5, 3, 1), (2, 3, 2), (1, 3, 1), ([9], 3, 1), ([2, 9], 3, [2, 9])],
)
def test_a_validation_that_is_due_after_the_short_epochs_follows_each(freq, epochs, expected):
    assert short(8, epochs, validation_freq=freq)[0].data.validation_freq == expected


@pytest.mark.parametrize(
    ("batch_size", "validated", "times"), [(8, 480, 1.0), (4, 480, 20.0), (8, 4, 30.0)]
)
def test_a_shortened_epoch_says_how_many_times_as_long_the_studys_is(batch_size, validated, times):
    """By its steps, or by its validation where that is shortened more."""
    _, lengths = short(480, 3, batch_size=batch_size, validation_batch_size=validated)
    assert lengths == Lengths(480 // batch_size, times)


def short(samples, epochs, **options):
    """Shorten a training on so many samples, which are its validation, too."""
    x = np.zeros((samples, 2), "float32")
    y = np.zeros(samples)
    plan = TrainingPlan(
        model=keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
        data=Data(train=(x, y), validation=(x, y), **options),
        callbacks=(),
        epochs=epochs,
        objectives=("loss",),
        order_seed=np.random.SeedSequence(0),
    )
    return shortened(plan)


@pytest.mark.parametrize(
    ("end", "steps", "kill"),
    [
        (60, 20, Kill(30, 41)),
        (40, 20, Kill(30, 40)),
        (20, 20, Kill(10, 11)),
        (3, 1, Kill(1, 3)),
        (2, 1, Kill(1, 2)),
        (2, 2, Kill(1, 2)),
        (1, 1, None),
    ],
)
def test_a_trial_is_killed_past_the_end_of_its_second_epoch(end, steps, kill):
    assert kill_of(end, steps) == kill


def test_every_kill_is_between_its_checkpoint_and_the_end():
    for steps in range(1, 30):
        for end in range(2, 4 * steps):
            kill = kill_of(end, steps)
            assert 0 < kill.checkpoint < kill.after <= end


def test_a_report_is_shown_as_text_and_as_html_in_which_users_text_is_escaped():
    finding = Finding("error", "independence", "layer <b>\n is shared", Line("s.py", 3))
    report = CheckReport("digits", (finding,), held=("two trials share none",), metrics=("loss",))
    assert str(report).split("\n\n") == [
        "digits: a promise does not hold, 1 error",
        "error [independence] s.py:3: layer <b> is shared",
        "holds    two trials share none",
        "metrics  loss",
    ]
    assert repr(report) == str(report)
    assert "layer &lt;b&gt; is shared" in report._repr_html_()
