"""The live table as a person sees it, in windows of several sizes."""

import pytest
from terminals import OPENED, Watched, first_moment, second_moment

from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    ChecksOpened,
    EpochFinished,
    RunStopping,
    StepsDone,
    TrainingStarted,
    TrialVerified,
)

ENDS = """\
trial 3 attempt 2 resumed at step 540 learning_rate=0.001
trial 5 attempt 1 failed FactoryError: the model factory returned None
notice: trial 4: the checkpoint step-000000120 does not verify; going on with
the one before it
trial 3 attempt 2 complete value=0.95
notice: stopping: every trial finishes its step and writes a checkpoint; once
more kills
""".splitlines()


def test_the_screen_at_three_moments_and_at_the_end():
    run = Watched(80, 24)
    with run.listener:
        first_moment(run)
        first, *rows = run.shown[2:]
        assert first == "digits  3/16 done, 1 pruned, 3 running, 10 waiting  1.0s"
        assert rows[:2] == [
            "best: trial 1  val_accuracy 0.9312  learning_rate=0.003",
            "Ctrl-C checkpoints and stops; resume with: sweeper resume digits",
        ]
        trials = [" ".join(row.replace("━", "").replace("╸", "").split()) for row in rows[2:]]
        assert trials[0].startswith("trial 3 epoch 5/10 565/1200")
        assert trials[1].startswith("trial 4 epoch 1/10 30/1200")
        assert trials[2].startswith("trial 5 preparing")
        run.after(1, StepsDone(3, 4, 590))
        assert "590/1200 25.0/s 00:25" in "\n".join(run.shown)
        second_moment(run)
        shown = run.shown
        assert shown[:5] == ENDS[:5]
        assert shown[6:9] == [
            "digits  5/16 done, 1 pruned, 1 failed, 1 running, 10 waiting  21s",
            "best: trial 3  val_accuracy 0.95  learning_rate=0.001",
            "Ctrl-C checkpoints and stops; resume with: sweeper resume digits",
        ]
        assert "val_acc" in shown[9]
        text = "stopping: every trial finishes its step and writes a checkpoint; once more kills"
        run.after(1, RunStopping(text))
        assert "stopping: trial 4 until the end of a step and a checkpoint; Ctrl-C again kills" in (
            " ".join(run.shown)
        )
    assert run.screen.lines == ENDS


@pytest.mark.parametrize("columns", [40, 50, 64, 80, 110, 200])
def test_each_trial_has_one_row_in_every_width(columns):
    run = Watched(columns, 24)
    with run.listener:
        run.after(0, OPENED)
        for number in (20, 21, 22):
            run.after(0, AttemptStarted(number, 1), TrainingStarted(number, {}, 10, 120, 0))
            metrics = {"loss": 0.7, "val_accuracy": 0.51}
            run.after(1, EpochFinished(number, 0, 120, metrics, 3.0))
        rows = [line for line in run.shown if line.startswith("trial 2")]
    assert [row.split()[1] for row in rows] == ["20", "21", "22"]
    assert all(len(row) <= columns for row in rows)
    assert all(("val_accuracy=0.51" in row) >= (columns >= 80) for row in rows)


def test_a_low_window_keeps_the_counts_and_what_to_do_in_sight():
    run = Watched(80, 15)
    with run.listener:
        run.after(0, OPENED, *(AttemptStarted(number, 1) for number in range(20, 60)))
        lines = run.shown
    assert len(lines) <= 15
    assert "resume with: sweeper resume digits" in "\n".join(lines)
    assert sum("preparing" in line for line in lines) >= 5


def test_a_second_ctrl_c_says_what_is_killed_and_what_it_costs():
    run = Watched(80, 24)
    with run.listener:
        first_moment(run)
        text = "killing the trials; each goes on when resumed"
        run.after(1, RunStopping(text, at_once=True))
        killed = run.shown
    assert "killing trials 3, 4, 5; resumed from the newest checkpoint" in killed
    assert "resume with: sweeper resume digits" in killed


def test_an_epoch_of_unknown_length_has_its_total_after_the_first():
    run = Watched(100, 24)
    with run.listener:
        run.after(0, OPENED, AttemptStarted(0, 1), TrainingStarted(0, {}, 10, 0, 0))
        assert "epoch 1/10" in run.shown[-1]
        run.after(2, EpochFinished(0, 0, 25, {"val_accuracy": 0.5}, 2.0))
        assert "epoch 2/10" in run.shown[-1]
        assert "25/250" in run.shown[-1]


def test_a_users_text_is_drawn_as_it_is():
    run = Watched(120, 24)
    with run.listener:
        run.after(0, OPENED)
        for number, outcome in ((0, None), (1, "complete")):
            run.after(0, AttemptStarted(number, 1))
            run.after(0, TrainingStarted(number, {"kind": "[red]x[/red]"}, 10, 100, 0))
            run.after(1, EpochFinished(number, 0, 100, {"[b]loss": 0.5}, 1.0))
            if outcome:
                run.after(0, AttemptEnded(number, 1, "complete", 0.99))
        assert "[b]loss=0.5" in "\n".join(run.shown)
        assert "kind=[red]x[/red]" in "\n".join(run.shown)


def test_a_verification_shows_its_own_progress():
    run = Watched(80, 24)
    with run.listener:
        opened = ChecksOpened("digits", "verified", 9, 2, "val_accuracy")
        run.after(0, opened, AttemptStarted(0, 1), TrainingStarted(0, {}, 10, 120, 0))
        assert run.shown[1] == "digits  0/9 verified  0ms"
        run.after(
            2,
            AttemptEnded(0, 1, "complete", 0.9),
            TrialVerified(0, "holds", 2.0),
            TrialVerified(1, "differs", 3.0),
        )
        assert run.shown == [
            "trial 0 attempt 1 complete value=0.9",
            "trial 0 verified holds 2.0s",
            "trial 1 verified differs 3.0s",
            "",
            "digits  2/9 verified  2.0s",
            "Ctrl-C stops; the results so far are stored",
        ]


def test_every_epoch_and_checkpoint_is_told_above_the_table_only_where_asked_for():
    quiet, talkative = Watched(80, 40), Watched(80, 40, "verbose")
    for run in (quiet, talkative):
        with run.listener:
            first_moment(run)
            second_moment(run)
    told = "\n".join(talkative.screen.lines)
    assert "trial 4 epoch 1" in told
    assert "trial 3 checkpoint at step 600 1.2 MiB in 34ms, training waited 2ms" in told
    assert "epoch" not in "\n".join(quiet.screen.lines)
