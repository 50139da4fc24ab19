"""The live table as a person sees it: whole screens, at three moments, in windows of two sizes."""

from __future__ import annotations

import pytest
from terminals import OPENED, Watched, first_moment, killing_moment, second_moment, third_moment

from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    CheckpointMeasured,
    EpochFinished,
    EvaluationOpened,
    StepsDone,
    StudyCounted,
    TrainingStarted,
    TrialVerified,
    VerificationOpened,
)
from sweeper.records.results import BestTrial
from sweeper.views.terminal.live import LiveProgress
from sweeper.views.terminal.model import ProgressModel

WIDE = (
    """\
trial 3 attempt 2 resumed at step 540 learning_rate=0.001

digits  3/16 done, 1 pruned, 3 running, 10 waiting  1.0s
trial  state      epoch     step                steps/s    left  val_accuracy
    3  resumed     5/10   85/120  ━━━━━━━━╸        25.0     25s             -
    4  training    1/10   30/120  ━━━              30.0     39s             -
    5  preparing      -        -                      -       -             -
best: trial 1  val_accuracy 0.9312  learning_rate=0.003
then: trial 0  val_accuracy 0.88  learning_rate=0.01
Ctrl-C checkpoints and stops; go on with: sweeper resume digits
""",
    """\
trial 3 attempt 2 resumed at step 540 learning_rate=0.001
trial 5 attempt 1 failed FactoryError: the model factory returned None
notice: trial 4: the checkpoint step-000000120 does not verify; going on with
the one before it
trial 3 attempt 2 complete value=0.95

digits  5/16 done, 1 pruned, 1 failed, 1 running, 10 waiting  20s, ~2m59s left
last checkpoint: 1.2 MiB in 34ms, training waited 2ms (trial 3, step 600)
trial  state     epoch     step  steps/s    left  val_accuracy      loss
    4  training   2/10   30/120      1.8     26s          0.51       0.7
best: trial 3  val_accuracy 0.95  learning_rate=0.001
then: trial 1  val_accuracy 0.9312  learning_rate=0.003
then: trial 0  val_accuracy 0.88  learning_rate=0.01
Ctrl-C checkpoints and stops; go on with: sweeper resume digits
""",
    """\
trial 3 attempt 2 resumed at step 540 learning_rate=0.001
trial 5 attempt 1 failed FactoryError: the model factory returned None
notice: trial 4: the checkpoint step-000000120 does not verify; going on with
the one before it
trial 3 attempt 2 complete value=0.95
notice: stopping: every trial finishes its step and writes a checkpoint; once
more kills

digits  5/16 done, 1 pruned, 1 failed, 1 running, 10 waiting  21s, ~2m58s left
last checkpoint: 1.2 MiB in 34ms, training waited 2ms (trial 3, step 600)
trial  state     epoch     step  steps/s    left  val_accuracy      loss
    4  training   2/10   30/120      1.8     25s          0.51       0.7
best: trial 3  val_accuracy 0.95  learning_rate=0.001
then: trial 1  val_accuracy 0.9312  learning_rate=0.003
then: trial 0  val_accuracy 0.88  learning_rate=0.01
stopping: trial 4 finishes its step and writes a checkpoint; Ctrl-C again kills
go on with: sweeper resume digits
""",
    """\
trial 3 attempt 2 resumed at step 540 learning_rate=0.001
trial 5 attempt 1 failed FactoryError: the model factory returned None
notice: trial 4: the checkpoint step-000000120 does not verify; going on with
the one before it
trial 3 attempt 2 complete value=0.95
notice: stopping: every trial finishes its step and writes a checkpoint; once
more kills
""",
)
"""80 columns, 24 lines: as a trial is resumed; after ends and a checkpoint; stopping; at the end."""

NARROW = (
    """\
trial 3 attempt 2 resumed at step 540
learning_rate=0.001

digits  3/16 done, 1 pruned, 3 running, 10 waiting
1.0s
trial  epoch     step    left  val_accuracy
    3   5/10   85/120     25s             -
    4   1/10   30/120     39s             -
    5      -        -       -             -
best: trial 1  val_accuracy 0.9312  learning_rate…
then: trial 0  val_accuracy 0.88  learning_rate=0…
Ctrl-C checkpoints and stops; go on with: sweeper
resume digits
""",
    """\
factory returned None
notice: trial 4: the checkpoint step-000000120
does not verify; going on with the one before it
trial 3 attempt 2 complete value=0.95

digits  5/16 done, 1 pruned, 1 failed, 1 running,
10 waiting  20s, ~2m59s left
last checkpoint: 1.2 MiB in 34ms, training waited…
trial  epoch     step    left  val_accuracy
    4   2/10   30/120     26s          0.51
best: trial 3  val_accuracy 0.95  learning_rate=0…
then: trial 1  val_accuracy 0.9312  learning_rate…
then: trial 0  val_accuracy 0.88  learning_rate=0…
Ctrl-C checkpoints and stops; go on with: sweeper
resume digits
""",
    """\
trial 3 attempt 2 complete value=0.95
notice: stopping: every trial finishes its step
and writes a checkpoint; once more kills

digits  5/16 done, 1 pruned, 1 failed, 1 running,
10 waiting  21s, ~2m58s left
last checkpoint: 1.2 MiB in 34ms, training waited…
trial  epoch     step    left  val_accuracy
    4   2/10   30/120     25s          0.51
best: trial 3  val_accuracy 0.95  learning_rate=0…
then: trial 1  val_accuracy 0.9312  learning_rate…
then: trial 0  val_accuracy 0.88  learning_rate=0…
stopping: trial 4 finishes its step and writes a
checkpoint; Ctrl-C again kills
go on with: sweeper resume digits
""",
    """\
notice: stopping: every trial finishes its step
and writes a checkpoint; once more kills
""",
)
"""The same in 50 columns and 15 lines."""


@pytest.mark.parametrize(("columns", "lines", "screens"), [(80, 24, WIDE), (50, 15, NARROW)])
def test_the_screen_at_three_moments_and_at_the_end(
    columns: int, lines: int, screens: tuple[str, ...]
) -> None:
    run = Watched(columns, lines)
    with run.listener:
        for moment, screen in zip(
            (first_moment, second_moment, third_moment), screens, strict=False
        ):
            moment(run)
            assert run.shown == screen.rstrip("\n").split("\n")
    assert run.screen.lines == screens[-1].rstrip("\n").split("\n")


@pytest.mark.parametrize("columns", [20, 30, 40, 50, 64, 80, 110, 200])
def test_no_column_is_ever_squeezed_and_no_row_is_wrapped(columns: int) -> None:
    run = Watched(columns, 24)
    with run.listener:
        first_moment(run)
        second_moment(run)
        lines = run.shown
    heading = next(index for index, line in enumerate(lines) if line.startswith("trial  "))
    heads, row = lines[heading].split(), lines[heading + 1].split()
    assert heads[:2] == ["trial", "epoch"] or heads[:3] == ["trial", "state", "epoch"]
    assert row[0] == "4"
    assert "2/10" in row
    assert "…" not in lines[heading] + lines[heading + 1]
    assert ("val_accuracy" in heads) == ("0.51" in row) == (columns >= 30)
    assert ("steps/s" in heads) == (columns >= 64)


def test_more_trials_than_lines_are_counted_and_what_to_do_stays_in_sight() -> None:
    run = Watched(80, 15)
    with run.listener:
        run.after(0, OPENED, *(AttemptStarted(number, 1) for number in range(20, 60)))
        lines = run.shown
    assert len(lines) <= 15
    rows = [line for line in lines if "preparing" in line]
    assert f"and {40 - len(rows)} more running" in lines
    assert lines[-1].endswith("go on with: sweeper resume digits")
    assert len(rows) >= 5


def test_a_second_ctrl_c_says_what_is_killed_and_what_it_costs() -> None:
    run = Watched(80, 24)
    with run.listener:
        first_moment(run)
        third_moment(run)
        assert (
            "stopping: trials 3, 4, 5 finish their step and write a checkpoint; Ctrl-C again kills"
            in " ".join(run.shown)
        )
        killing_moment(run)
        killed = run.shown
    assert killed[-2] == "killing trials 3, 4, 5; go on from the newest checkpoint"
    assert killed[-1] == "go on with: sweeper resume digits"


def test_trials_of_other_workers_count_and_are_told_apart() -> None:
    run = Watched(100, 24)
    with run.listener:
        first_moment(run)
        best = BestTrial(9, 0.99, {"learning_rate": 0.5})
        run.after(5, StudyCounted(6, 1, 1, 0, 5, best))
        lines = run.shown
        assert "8/16 done, 1 pruned, 1 failed, 3 running, 2 elsewhere, 3 waiting" in lines[2]
        assert "best: trial 9  val_accuracy 0.99  learning_rate=0.5" in lines
        # What this worker knows first is not counted twice.
        run.after(1, AttemptEnded(3, 2, "complete", 0.5), StudyCounted(7, 1, 1, 0, 4, best))
        assert "9/16 done" in "\n".join(run.shown)


def test_a_checkpoint_that_was_there_before_has_no_cost() -> None:
    run = Watched(80, 24)
    with run.listener:
        run.after(0, OPENED, AttemptStarted(3, 2), CheckpointKept(3, 540, 1_300_000))
        assert not any("last checkpoint" in line for line in run.shown)


def test_a_verification_shows_its_own_progress() -> None:
    run = Watched(80, 24)
    with run.listener:
        run.after(
            0,
            VerificationOpened(
                "digits", 9, 10, "val_accuracy", "maximize", 2, "sqlite:///runs/s.db"
            ),
            AttemptStarted(0, 1),
            TrainingStarted(0, {}, 10, 120, 0),
        )
        assert run.shown[1] == "digits  0/9 verified, 0 identical, 1 replayed now, 8 waiting  0ms"
        run.after(
            2,
            EpochFinished(0, 9, 1200, {"val_accuracy": 0.9}, 2.0),
            AttemptEnded(0, 1, "complete", 0.9),
            TrialVerified(0, "holds", 2.0),
            TrialVerified(1, "differs", 3.0),
            AttemptStarted(4, 1),
            TrainingStarted(4, {}, 10, 120, 0),
        )
        run.after(3, StepsDone(4, 0, 90), EpochFinished(4, 0, 120, {"val_accuracy": 0.5}, 3.0))
        assert run.shown == [
            "trial 0 verified holds 2.0s",
            "trial 1 verified differs 3.0s",
            "",
            "digits  2/9 verified, 1 identical, 1 differing, 1 replayed now, 6 waiting  5.0s,",
            "~1m28s left",
            "trial  state     epoch     step                steps/s    left  val_accuracy",
            "    4  training   2/10    0/120                   40.0     27s           0.5",
            "Ctrl-C stops; the verdicts so far are stored",
        ]


def test_an_evaluation_shows_how_many_checkpoints_are_measured_and_the_best() -> None:
    run = Watched(80, 24)
    with run.listener:
        run.after(
            0,
            CheckpointMeasured(7, None, None),
            EvaluationOpened("digits", 3, 9, 2, "loss", "minimize"),
            CheckpointMeasured(1, 120, {"loss": float("nan")}),
            CheckpointMeasured(0, 120, {"loss": 0.4}),
            CheckpointMeasured(0, 240, {"loss": 0.3}),
            CheckpointMeasured(1, 240, None),
        )
        assert run.shown == [
            "",
            "digits  3/9 checkpoints measured, 1 passed over  0ms",
            "best: trial 0 at step 240  loss 0.3",
            "Ctrl-C stops; what was measured is stored",
        ]


def test_every_epoch_and_checkpoint_is_told_above_the_table_only_where_asked_for() -> None:
    quiet, talkative = Watched(80, 40), Watched(80, 40)
    talkative.listener = LiveProgress(
        talkative.screen.console, ProgressModel(), redraws=0, verbosity="verbose"
    )
    for run in (quiet, talkative):
        with run.listener:
            first_moment(run)
            second_moment(run)
    told = "\n".join(talkative.screen.lines)
    assert "trial 4 epoch 1" in told
    assert "trial 3 checkpoint at step 600 1.2 MiB in 34ms, training waited 2ms" in told
    assert "epoch" not in "\n".join(quiet.screen.lines)
