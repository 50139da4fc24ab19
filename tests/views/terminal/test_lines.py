"""Plain lines: stable, one an event worth one; and where they take the table's place."""

import io
import re
from dataclasses import replace

import pytest
from terminals import with_trials

from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    CheckpointMeasured,
    ChecksOpened,
    Doing,
    EpochFinished,
    Notice,
    Remark,
    StepsDone,
    StudyOpened,
    TrainingStarted,
    TrialVerified,
)
from sweeper.records.results import StudyStatus
from sweeper.spec.searching import Objective
from sweeper.views.terminal.lines import LineProgress
from sweeper.views.terminal.live import LiveProgress, can_redraw, progress_listener

STATUS = with_trials(
    StudyStatus("digits", 16, objective="val_accuracy", direction="maximize"), complete=3
)
OPENED = StudyOpened(STATUS, 2, "sqlite:///runs/sweeper.db", "sweeper resume")
RUN = [
    OPENED,
    AttemptStarted(4, 1),
    TrainingStarted(4, {"learning_rate": 0.001, "layer": "my conv\n"}, 5, 45, 0),
    StepsDone(4, 0, 20),
    EpochFinished(4, 0, 45, {"loss": 0.21, "val_accuracy": 0.9312}, 1.23),
    CheckpointKept(4, 45, 1000),
    AttemptEnded(4, 1, "complete", 0.95),
    AttemptStarted(3, 2),
    TrainingStarted(3, {}, 5, 45, 90),
    AttemptEnded(3, 2, "failed", None, "ValueError: two\n  lines"),
    Notice("trials are\nspawned"),
]
LINES = [
    "study digits: 3/16 done, 2 workers, storage sqlite:///runs/sweeper.db",
    'trial 4 attempt 1 started learning_rate=0.001 layer="my conv\\n" [3/16 done, no best yet]',
    "trial 4 epoch 1/5 val_accuracy=0.9312 loss=0.21 1.2s [3/16 done, no best yet]",
    "trial 4 attempt 1 complete value=0.95 [4/16 done, best 0.95 of trial 4]",
    "trial 3 attempt 2 resumed at step 90 [4/16 done, best 0.95 of trial 4]",
    "trial 3 attempt 2 failed ValueError: two lines [5/16 done, best 0.95 of trial 4]",
    "notice: trials are spawned",
]


def lines_of(events, verbosity="normal"):
    stream = io.StringIO()
    listener = LineProgress(stream, verbosity)
    for event in events:
        listener(event)
    return stream.getvalue().splitlines()


def told(events, verbosity="normal"):
    """The lines of what has happened, without those of what is waited for."""
    return [line for line in lines_of(events, verbosity) if not line.endswith(" ...")]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_what_is_waited_for_is_told_until_the_first_epoch_is_over():
    preparing = [
        Doing("importing TensorFlow and the study"),
        OPENED,
        AttemptStarted(4, 1),
        Doing("building the model", 4),
    ]
    assert lines_of([*preparing, *RUN[2:5]]) == [
        "importing TensorFlow and the study ...",
        LINES[0],
        "trial 4: starting ...",
        "trial 4: building the model ...",
        LINES[1],
        "trial 4: tracing and running its first step ...",
        "trial 4: in epoch 1, at step 20 ...",
        LINES[2],
    ]
    assert lines_of([*RUN[:5], Doing("building the model", 5), *RUN[5:]])[-5:] == LINES[-5:], (
        "nothing is told after it"
    )
    assert lines_of([*preparing, *RUN[2:5]], "quiet") == []


def test_a_long_first_epoch_is_told_of_every_ten_seconds():
    now, stream = 0.0, io.StringIO()
    listener = LineProgress(stream, clock=lambda: now)
    for step in range(45):
        listener(StepsDone(4, 0, step))
        now += 1.0
    assert re.findall(r"at step (\d+)", stream.getvalue()) == ["0", "10", "20", "30", "40"]


def test_of_many_epochs_ten_are_told_and_all_only_where_asked_for():
    events = [OPENED, AttemptStarted(4, 1), TrainingStarted(4, {}, 95, 45, 0)]
    events += [EpochFinished(4, n, n * 45, {"val_accuracy": 0.5}, 0.1) for n in range(95)]
    epochs = [line.split()[3] for line in lines_of(events) if " epoch " in line]
    assert epochs == ["1/95", *(f"{n}/95" for n in range(9, 95, 9)), "95/95"]
    assert sum(" epoch " in line for line in lines_of(events, "verbose")) == 95


def test_verbose_lines_tell_what_each_new_checkpoint_cost():
    kept = [CheckpointKept(4, 45, 1000), CheckpointKept(4, 90, 2048, 0.0345, 0.001)]
    assert lines_of([OPENED, *kept])[1:] == []
    (line,) = lines_of([OPENED, *kept], "verbose")[1:]
    told, _, state = line.partition(" [")
    assert told == "trial 4 checkpoint at step 90 2.0 KiB in 34ms, training waited 1ms"
    assert state == "3/16 done, no best yet]"


def test_quiet_lines_tell_only_what_goes_wrong():
    lost = [AttemptEnded(6, 1, "interrupted"), AttemptEnded(7, 1, "lost")]
    verified = [TrialVerified(1, "holds", 1.0), TrialVerified(2, "differs", 1.0)]
    assert lines_of([Remark("a worker waits"), Notice("x")])[0] == "notice: a worker waits"
    assert lines_of([*RUN, Remark("a worker waits"), *lost, *verified], "quiet") == [
        LINES[5],
        LINES[6],
        "trial 7 attempt 1 lost [5/16 done, best 0.95 of trial 4]",
        "trial 2 verified differs 1.0s [5/16 done, best 0.95 of trial 4]",
    ]


def test_a_study_with_several_objectives_has_no_best_in_its_lines():
    names = (Objective("val_accuracy", "maximize"), Objective("val_loss", "minimize"))
    several = replace(OPENED, status=replace(STATUS, objectives=names))
    lines = told([several, TrainingStarted(4, {}, 5, 45, 0), AttemptEnded(4, 1, "complete", 1)])
    assert lines[1:] == [
        "trial 4 attempt 1 started [3/16 done]",
        "trial 4 attempt 1 complete value=1 [4/16 done]",
    ]


def test_a_verification_and_an_evaluation_count_what_is_theirs():
    assert told(
        [
            ChecksOpened("digits", "verified", 9, 2, "val_accuracy"),
            AttemptStarted(0, 1),
            TrainingStarted(0, {}, 5, 45, 0),
            AttemptEnded(0, 1, "complete", 0.9),
            TrialVerified(0, "holds", 12.0),
            TrialVerified(1, "differs", 3.0),
        ]
    ) == [
        "study digits: 0/9 verified, 2 workers",
        "trial 0 attempt 1 started [0/9 verified]",
        "trial 0 attempt 1 complete value=0.9 [0/9 verified]",
        "trial 0 verified holds 12s [1/9 verified]",
        "trial 1 verified differs 3.0s [2/9 verified]",
    ]
    assert lines_of(
        [
            ChecksOpened("digits", "measured", 9, 1, "accuracy"),
            CheckpointMeasured(0, 120, {"loss": 0.4, "accuracy": 0.8}),
        ]
    ) == [
        "study digits: 0/9 measured, 1 worker",
        "trial 0 measured at step 120 accuracy=0.8 loss=0.4 [1/9 measured]",
    ]


def test_a_databases_password_is_in_no_line():
    opened = replace(OPENED, storage="postgresql://me:secret@host/db")
    assert lines_of([opened])[0].endswith("storage postgresql://me:***@host/db")


def test_the_lines_are_these_and_only_these_and_each_is_written_at_once_whole():
    written = []

    class Recorder(io.StringIO):
        def write(self, text):
            written.append(text)
            return len(text)

    listener = LineProgress(Recorder())
    for event in RUN:
        listener(event)
    assert [line for line in written if " ...\n" not in line] == [f"{line}\n" for line in LINES]
    assert all(line.count("\n") == 1 for line in written)


@pytest.mark.parametrize(
    ("environment", "redraws"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "CI": "false", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "CI": "true"}, False),
        ({"TERM": "xterm", "CI": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_a_terminal_redraws_unless_it_is_asked_not_to(environment, redraws):
    assert can_redraw(Terminal(), environment) is redraws
    assert not can_redraw(io.StringIO(), environment)


def test_the_choice_follows_the_stream(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert isinstance(progress_listener(Terminal()), LiveProgress)
    assert isinstance(progress_listener(io.StringIO()), LineProgress)
    assert isinstance(progress_listener(Terminal(), "quiet"), LineProgress)
