"""What `sweeper check` finds: the errors that end a trial, and what its replays show of two runs."""

import importlib.util
import sys
from dataclasses import replace
from functools import partial
from textwrap import dedent

import pytest
from corpus import INLINE, PITFALLS, REFUSED, refused_in_a_process
from short_trials import PLAIN, UNVALIDATED, failure, trained
from study_files import StudyText

from sweeper.checks.check import (
    check_study,
    checkpoints_kept,
    estimate,
    finding_of_failure,
    judge,
    kill_of,
)
from sweeper.definition.definition import StudyDefinition
from sweeper.replay.comparison import Difference
from sweeper.replay.lines import line_of, line_of_argument, line_of_error
from sweeper.replay.reports import (
    Authored,
    CheckFinding,
    CheckReport,
    Lengths,
    Line,
    StudyAuthors,
    ranked,
)
from sweeper.run.protocol.messages import Finished, ReplayBuilt
from sweeper.run.replays import ComparedCheckpoint, Kill, ReplayComparison, Replayed
from sweeper.spec.checkpointing import Every, Keep

LOSS = 'objective="loss", epochs=1, trials=2, sampler="random"'
LOCKED = """
import threading

class Locked(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def on_epoch_begin(self, epoch, logs=None):
        self.lock = threading.Lock()
"""


def line_with(file, text):
    numbers = [i for i, line in enumerate(file.read_text().splitlines(), 1) if text in line]
    return f"{file}:{numbers[-1]}"


@pytest.mark.parametrize(
    ("text", "check", "message", "at"),
    [
        (StudyText(model="raise KeyError('colour')"), "build", "KeyError: 'colour'", "raise Key"),
        (
            StudyText(metrics='"accuracy"', arguments='objective="val_acc", epochs=1, trials=1'),
            "objective",
            "reports 'accuracy', 'loss', 'val_accuracy', 'val_loss'",
            'objective="val_acc"',
        ),
        (StudyText(data="y = y[:150]"), "data", "150", "data=load_data"),
        (
            StudyText(
                head=LOCKED, model=PLAIN, data=UNVALIDATED, callbacks="Locked()", arguments=LOSS
            ),
            "capture",
            "callback Locked: attribute 'lock'",
            "callbacks=build_callbacks",
        ),
        (StudyText(model="return None"), "build", "build_model returned None", "model=build_model"),
        (StudyText(model="import nowhere"), "installation", "'nowhere' is not inst", "import now"),
    ],
    ids=["raises", "objective", "data", "capture", "nothing", "package"],
)
def test_what_cannot_be_trained_is_an_error_with_its_line(tmp_path, text, check, message, at):
    file = text.write(tmp_path / "study_twice.py")
    finding = finding_of_failure(
        failure(file, tmp_path / "run"), lambda name: line_of_argument(str(file), "small", name)
    )
    assert (finding.level, finding.check) == ("error", check)
    assert message in finding.message
    assert str(finding.line) == line_with(file, at)


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize(
    "file",
    [PITFALLS / "refused" / "class_attribute.py", PITFALLS / "refused" / "liar.py"],
    ids=lambda file: file.stem,
)
def test_what_the_guard_refuses_is_a_finding_on_independence(file, tmp_path):
    assert file in {*REFUSED, *INLINE}
    finding = finding_of_failure(failure(file, tmp_path), lambda _: Line("study.py", 1))
    assert (finding.check, finding.message) == ("independence", refused_in_a_process(file))


def test_a_shortened_trial_reports_its_authors_its_weights_and_its_lengths(tmp_path):
    text = StudyText(
        model=PLAIN,
        data="return Data(train=(np.tile(x, (30, 1)), np.tile(y, 30)), batch_size=8)",
        callbacks="keras.callbacks.TerminateOnNaN()",
        arguments='objective="loss", epochs=5, trials=2',
    )
    file = text.write(tmp_path / "long.py")
    runs = [trained(file, tmp_path / side) for side in ("one", "two")]
    [built], [again] = ([m for m in run if isinstance(m, ReplayBuilt)] for run in runs)
    assert built.lengths == Lengths(750, 125.0)
    assert built.weights == again.weights != ""
    assert str(built.authors.model.line) == line_with(file, "def build_model")
    assert built.authors.users == (), "a callback of Keras is no suspect"
    ends = [run[-1] for run in runs]
    assert isinstance(ends[0], Finished)
    assert ends[0].step == 18
    assert ends[0] == ends[1]


AUTHORS = StudyAuthors(
    Authored("build_model", Line("study.py", 3)),
    Authored("load_data", Line("study.py", 9)),
    (Authored("Jitter", Line("study.py", 20)), Authored("EarlyStopping")),
)
KILL = Kill(30, 41)
LOST = Difference("user_state", "a", "callback Jitter, attribute 'n'", "1 and 2", "error")


def replayed(weights="w", **end):
    return Replayed(
        authors=AUTHORS,
        weights=weights,
        end=Finished(**{"step": 60, "value": 0.5, "digest": "d"} | end),
    )


def judged(found, other=None, *, kill=KILL, repeats=None):
    checkpoints = {
        at: ComparedCheckpoint("", 9, found.get(at, ()))
        for at in ((1, 0), (20, 1), (40, 2), (60, 3))
    }
    compared = ReplayComparison(other or replayed(), checkpoints=checkpoints, repeats=repeats)
    return judge(replayed(), compared, kill, "error")


def test_two_equal_runs_hold_and_without_a_kill_nothing_is_said_of_resuming():
    findings, held = judged({})
    assert findings == []
    assert held[-1].startswith("killed (SIGKILL) after step 41 and resumed at step 30")
    assert len(judged({}, kill=None)[1]) == len(held) - 1


@pytest.mark.parametrize(
    ("found", "repeats", "check"),
    [
        ({(20, 1): [LOST], (40, 2): [LOST]}, True, "determinism"),
        ({(40, 2): [LOST]}, True, "resume"),
        ({(40, 2): [LOST]}, False, "determinism"),
    ],
    ids=["before the kill", "after the kill", "after it, and never the same"],
)
def test_a_difference_before_the_kill_does_not_repeat_and_one_after_it_was_lost(
    found, repeats, check
):
    [finding], held = judged(found, repeats=repeats)
    assert (finding.level, finding.check, held) == ("error", check, [])
    assert f"at step {min(found)[0]}" in finding.message
    assert "callback Jitter, attribute 'n': 1 and 2" in finding.message
    assert "look in callback Jitter (study.py:20);" in finding.message
    assert str(finding.line) == "study.py:20"


def test_other_initial_weights_are_the_model_factorys():
    [finding], held = judged({(1, 0): [LOST]}, replayed("other"))
    assert (finding.check, held) == ("seeds", [])
    assert "build_model returned different initial weights" in finding.message
    assert str(finding.line) == "study.py:3"


@pytest.mark.parametrize("end", [{"step": 61}, {"value": 0.25}, {"digest": "e"}], ids=str)
def test_an_end_that_differs_is_found_where_no_checkpoint_differs(end):
    [finding], held = judged({}, replayed(**end))
    assert (finding.check, held) == ("resume", [])
    assert judged({}, replayed(value=float("nan")))[0] != []


def test_what_is_measured_is_a_note():
    findings, held = judged({(40, 2): [replace(LOST, level="note")]})
    assert [(f.level, f.check) for f in findings] == [("note", "determinism")]
    assert held


def test_findings_are_ranked_and_one_error_is_enough():
    note, error = (
        CheckFinding("note", "data", "n"),
        CheckFinding("error", "data", "e", Line("s.py", 1)),
    )
    assert ranked([note, error]) == [error, note]
    assert CheckReport("s", (note,)).holds
    assert not CheckReport("s", (error, note)).holds
    assert error.to_json()["line"] == 1
    assert note.to_json()["line"] is None


def settings(**changes):
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
def test_the_estimate_of_disk_goes_by_the_studys_rules(changes, kept):
    assert checkpoints_kept(settings(**changes), 100, 50.0) == kept


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
    import keras
    import numpy as np

    from sweeper import Data
    from sweeper.run.trial.parts import shortened
    from sweeper.train.loop.plan import TrainingPlan

    x, y = np.zeros((samples, 2), "float32"), np.zeros(samples)
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


CLOCK = StudyText(
    head="""
    from time import time as now

    class Jitter(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rate = float(self.model.optimizer.learning_rate)
            self.model.optimizer.learning_rate = rate * (1 + 1e-2 * (now() % 1))
    """,
    model=PLAIN,
    data=UNVALIDATED,
    callbacks="Jitter()",
    arguments='objective="loss", epochs=3, trials=2, sampler="random"',
)
URANDOM = StudyText(
    model=PLAIN,
    data="""
    x = x + np.frombuffer(os.urandom(x.size), np.uint8).reshape(x.shape).astype("float32") / 1e3
    return Data(train=(x, y), batch_size=8)
    """,
    arguments=LOSS,
)


@pytest.mark.parametrize(
    ("text", "check", "message", "at"),
    [
        (CLOCK, "determinism", "at step 25: optimizer variable 1 (sgd/learning_rate)", "class Jit"),
        pytest.param(
            *(URANDOM, "determinism", "at step 1: model variable 0 (", "def build_model"),
            marks=pytest.mark.whole,
        ),
    ],
    ids=["clock in a callback", "random bytes in the data"],
)
def test_a_trial_that_does_not_repeat_is_found_with_what_differs_first(
    text, check, message, at, tmp_path
):
    file = text.write(tmp_path / "study_twice.py")
    report = check_study(str(file))
    [finding] = [f for f in report.findings if f.level == "error"]
    assert (finding.check, report.holds) == (check, False)
    assert message in finding.message
    assert str(finding.line) == line_with(file, at)
    assert not any("bit for bit" in held for held in report.held)


@pytest.fixture
def written(tmp_path):
    """Writes a module of the user's and imports it."""

    def write(text):
        file = tmp_path / "users_module.py"
        file.write_text(dedent(text).lstrip())
        spec = importlib.util.spec_from_file_location("users_module", file)
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["users_module"] = module
        spec.loader.exec_module(module)
        return module

    yield write
    sys.modules.pop("users_module", None)


def test_lines_of_functions_classes_errors_and_arguments(written):
    module = written(
        """
        from functools import partial
        def build(trial, width=3):
            raise KeyError(width)
        class Layer(dict):
            pass
        class Study:
            def __init__(self, **arguments): ...
        one = Study(name="one", objective="loss")
        two = Study(
            name="two",
            objective="val_loss",
        )
        """
    )
    file = str(module.__file__)
    assert str(line_of(partial(module.build, width=4))) == f"{file}:2"
    assert str(line_of(module.Layer())) == f"{file}:4"
    assert line_of(dict) is None
    with pytest.raises(KeyError) as caught:
        module.build(None)
    assert str(line_of_error(caught.value)) == f"{file}:3"
    assert str(line_of_argument(file, "two", "objective")) == f"{file}:11"
    assert str(line_of_argument(file, "two", "epochs")) == f"{file}:9"
    assert str(line_of_argument(file, "one", "objective")) == f"{file}:8"
