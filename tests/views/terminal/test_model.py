"""The progress model: what it says of a run, by a clock that the test turns."""

from __future__ import annotations

import dataclasses
import io
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    EpochFinished,
    Notice,
    StepsDone,
    StudyCounted,
    StudyOpened,
    TrainingStarted,
)
from sweeper.records.results import BestTrial, Outcome
from sweeper.views.terminal.drawing import draw
from sweeper.views.terminal.model import ProgressModel, Snapshot

RESUME = "sweeper resume digits"


class Run:
    """A model with a clock, and short words for what happens to it."""

    def __init__(
        self, *, target: int = 4, finished: int = 0, workers: int = 2, direction: str = "maximize"
    ) -> None:
        self.now = 1000.0
        self.model = ProgressModel(lambda: self.now)
        self.opened = StudyOpened(
            "digits", target, finished, 10, "val_accuracy", direction, workers, "sqlite://", RESUME
        )
        self.model.apply(self.opened)

    def start(self, trial: int, *, step: int = 0, attempt: int = 1, length: int = 100) -> None:
        self.model.apply(AttemptStarted(trial, attempt))
        params = {"lr": trial / 10}
        self.model.apply(TrainingStarted(trial, params, 10, length, step, step // 100))

    def epoch(self, trial: int, number: int, *, seconds: float, value: float = 0.5) -> None:
        self.now += seconds
        metrics = {"loss": 1.0, "val_accuracy": value}
        self.model.apply(EpochFinished(trial, number, (number + 1) * 100, metrics, seconds))

    def end(self, trial: int, outcome: Outcome, value: float | None = None) -> None:
        self.model.apply(AttemptEnded(trial, 1, outcome, value))

    @property
    def snapshot(self) -> Snapshot:
        return self.model.snapshot()


def drawn(snapshot: Snapshot, width: int) -> str:
    """Return what a terminal of that width would show."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(draw(snapshot, width))
    return stream.getvalue()


def test_before_the_study_is_opened_nothing_is_known() -> None:
    snapshot = ProgressModel(lambda: 0.0).snapshot()
    assert (snapshot.study, snapshot.running, snapshot.seconds_left) == (None, (), None)


def test_a_trial_is_preparing_until_its_first_step() -> None:
    run = Run()
    run.model.apply(AttemptStarted(3, 2))
    (trial,) = run.snapshot.running
    assert (trial.number, trial.attempt, trial.phase, trial.epoch) == (3, 2, "preparing", 0)
    run.model.apply(TrainingStarted(3, {"lr": 0.1}, 10, 100, 0))
    (trial,) = run.snapshot.running
    assert (trial.phase, trial.epoch, trial.epochs, trial.params) == (
        "training",
        1,
        10,
        {"lr": 0.1},
    )


def test_steps_move_the_bar_and_an_epochs_end_starts_the_next() -> None:
    run = Run()
    run.start(0)
    run.model.apply(StepsDone(0, 0, 25))
    assert (run.snapshot.running[0].epoch, run.snapshot.running[0].fraction) == (1, 0.25)
    run.epoch(0, 0, seconds=2.0, value=0.7)
    trial = run.snapshot.running[0]
    assert (trial.epoch, trial.fraction, trial.metrics["val_accuracy"]) == (2, 0.0, 0.7)


def test_after_its_last_epoch_a_trial_stays_at_it_with_a_full_bar() -> None:
    run = Run()
    run.start(0)
    run.epoch(0, 9, seconds=1.0)
    trial = run.snapshot.running[0]
    assert (trial.epoch, trial.fraction, trial.seconds_left) == (10, 1.0, 0.0)


def test_a_resumed_trial_goes_on_inside_its_epoch() -> None:
    run = Run()
    run.start(0, step=250, attempt=2)
    trial = run.snapshot.running[0]
    assert (trial.epoch, trial.fraction, trial.resumed_at) == (3, 0.5, 250)


def test_an_epoch_of_unknown_length_has_no_fraction_and_its_end_is_news() -> None:
    run = Run()
    run.start(0, step=250, attempt=2, length=0)
    trial = run.snapshot.running[0]
    assert (trial.epoch, trial.fraction, trial.seconds_left) == (3, 0.0, None)
    run.epoch(0, 2, seconds=2.0)
    assert run.snapshot.running[0].epoch == 4
    assert run.snapshot.running[0].seconds_left == pytest.approx(7 * 2.0)


def test_the_rate_is_that_of_the_last_seconds_not_of_the_whole_trial() -> None:
    run = Run()
    run.start(0)
    assert run.snapshot.running[0].rate is None
    for second in range(1, 31):
        run.now += 1.0
        run.model.apply(StepsDone(0, 0, second * 10))
    for second in range(1, 31):
        run.now += 1.0
        run.model.apply(StepsDone(0, 0, 300 + second * 2))
    assert run.snapshot.running[0].rate == pytest.approx(2.0)


def test_one_slow_epoch_does_not_spoil_the_time_left() -> None:
    run = Run()
    run.start(0)
    for number, seconds in enumerate((30.0, 2.0, 2.0, 2.0)):
        run.epoch(0, number, seconds=seconds)
    assert run.snapshot.running[0].seconds_left == pytest.approx(6 * 2.0)
    run.now += 1.0
    assert run.snapshot.running[0].seconds_left == pytest.approx(11.0)
    run.now += 3600.0
    assert run.snapshot.running[0].seconds_left == pytest.approx(10.0), "it stands still"


def test_the_first_epochs_time_left_comes_from_the_steps() -> None:
    run = Run()
    run.start(0)
    assert run.snapshot.running[0].seconds_left is None
    run.now += 1.0
    run.model.apply(StepsDone(0, 0, 50))
    assert run.snapshot.running[0].seconds_left == pytest.approx((1000 - 50) / 50)


def test_the_studys_time_left_is_the_work_left_over_the_workers() -> None:
    run = Run(target=4, workers=2)
    assert run.snapshot.seconds_left is None
    run.start(0)
    run.start(1)
    run.epoch(0, 0, seconds=2.0)
    run.model.apply(EpochFinished(1, 0, 100, {}, 2.0))
    assert run.snapshot.seconds_left == pytest.approx((18 + 18 + 20 + 20) / 2)


def test_the_time_left_is_at_least_that_of_the_longest_trial() -> None:
    run = Run(target=1, workers=8)
    run.start(0)
    run.epoch(0, 0, seconds=2.0)
    assert run.snapshot.seconds_left == pytest.approx(18.0)


def test_trials_to_come_are_expected_to_stop_as_early_as_those_before() -> None:
    run = Run(target=2, workers=1)
    run.start(0)
    for number in range(3):
        run.epoch(0, number, seconds=2.0)
    run.end(0, "complete", 0.9)
    assert run.snapshot.seconds_left == pytest.approx(3 * 2.0)


def test_the_time_between_epochs_counts_for_trials_to_come() -> None:
    """A trial of many short epochs spends most of its time in starting."""
    run = Run(target=2, workers=1)
    run.start(0)
    run.now += 5.0
    for number in range(10):
        run.epoch(0, number, seconds=0.1)
    run.end(0, "complete", 0.9)
    assert run.snapshot.seconds_left == pytest.approx(5.0 + 10 * 0.1)


def test_nothing_is_left_when_all_is_done() -> None:
    run = Run(target=1)
    run.start(0)
    run.end(0, "complete", 0.9)
    assert (run.snapshot.done, run.snapshot.seconds_left) == (1, 0.0)


@pytest.mark.parametrize(("direction", "leader"), [("maximize", 1), ("minimize", 2)])
def test_the_best_follows_the_direction(direction: str, leader: int) -> None:
    run = Run(direction=direction)
    for trial, value in ((0, 0.5), (1, 0.9), (2, 0.1), (3, float("nan"))):
        run.start(trial)
        run.end(trial, "complete", value)
    assert run.snapshot.best == BestTrial(leader, {1: 0.9, 2: 0.1}[leader], {"lr": leader / 10})


def test_the_best_of_earlier_runs_leads_until_a_better_one_comes() -> None:
    run = Run(finished=1)
    earlier = BestTrial(0, 0.8, {"lr": 0.7})
    run.model.apply(dataclasses.replace(run.opened, best=earlier))
    for trial, value in ((1, 0.5), (2, 0.9)):
        run.start(trial)
        run.end(trial, "complete", value)
        assert run.snapshot.best is not None
        assert run.snapshot.best.value == max(0.8, value)


def test_a_run_without_a_result_yet_says_so() -> None:
    run = Run()
    run.start(0)
    assert "best: none yet" in drawn(run.snapshot, 80)


def test_nan_never_leads_even_alone() -> None:
    run = Run()
    run.start(0)
    run.end(0, "complete", float("nan"))
    assert run.snapshot.best is None


def test_only_results_count_as_done_and_an_interrupted_trial_may_start_again() -> None:
    run = Run(target=6, finished=1)
    for trial, outcome in enumerate(("complete", "pruned", "failed", "crashed", "interrupted")):
        run.start(trial)
        run.end(trial, outcome)  # type: ignore[arg-type]
    assert (run.snapshot.done, run.snapshot.failed, run.snapshot.running) == (4, 1, ())
    run.start(3, attempt=2)
    run.end(3, "complete", 0.5)
    assert run.snapshot.done == 5


def test_pruned_trials_are_counted_and_never_lead_and_shorten_the_time_left() -> None:
    run = Run(target=3, workers=1)
    run.start(0)
    for number in range(2):
        run.epoch(0, number, seconds=2.0)
    run.end(0, "pruned", 0.99)
    snapshot = run.snapshot
    assert (snapshot.done, snapshot.pruned, snapshot.failed, snapshot.best) == (1, 1, 0, None)
    assert snapshot.seconds_left == pytest.approx(2 * 2 * 2.0), "two trials of two epochs"
    assert "1/3 done, 1 pruned, 0 running" in drawn(snapshot, 100)


def test_with_several_objectives_no_trial_leads_and_their_names_are_shown() -> None:
    run = Run()
    run.model.apply(replace(run.opened, objectives=("val_accuracy", "val_loss")))
    run.start(0)
    run.end(0, "complete", 0.9)
    assert run.snapshot.best is None
    assert "objectives: val_accuracy, val_loss" in drawn(run.snapshot, 100)


def test_events_out_of_order_and_without_a_start_are_taken_as_they_come() -> None:
    model = ProgressModel(lambda: 0.0)
    for event in (
        StepsDone(1, 0, 5),
        EpochFinished(1, 0, 10, {}, 1.0),
        CheckpointKept(1, 10, 5),
        Notice("x"),
        AttemptEnded(1, 1, "complete", 0.5),
        AttemptEnded(2, 1, "lost"),
    ):
        model.apply(event)
        model.snapshot()
    assert model.snapshot().done == 1


def test_threads_may_tell_it_at_once() -> None:
    run = Run(target=400)

    def tell(worker: int) -> None:
        for index in range(100):
            trial = worker * 100 + index
            run.start(trial)
            run.epoch(trial, 0, seconds=0.0)
            run.snapshot  # noqa: B018 - drawing while others tell
            run.end(trial, "complete", 0.5)

    threads = [threading.Thread(target=tell, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (run.snapshot.done, run.snapshot.running) == (400, ())


@pytest.mark.parametrize("width", [80, 109, 110, 200])
def test_the_drawing_fits_and_shows_every_trial(width: int) -> None:
    run = Run(target=16)
    for trial in (0, 1, 12):
        run.start(trial)
        run.epoch(trial, 0, seconds=2.0, value=0.9312)
    run.end(0, "complete", 0.95)
    run.model.apply(AttemptStarted(13, 2))
    text = drawn(run.snapshot, width)
    assert max(len(line) for line in text.splitlines()) <= width
    for part in ("digits", "1/16 done", "3 running", "left", "2/10", "0.9312", "preparing", RESUME):
        assert part in text
    assert "best: trial 0  val_accuracy 0.95  lr=0" in text


def test_a_users_text_is_drawn_as_it_is() -> None:
    run = Run()
    run.model.apply(AttemptStarted(0, 1))
    run.model.apply(TrainingStarted(0, {"kind": "[red]x[/red]"}, 10, 100, 0))
    run.model.apply(EpochFinished(0, 0, 100, {"[b]loss": 0.5}, 1.0))
    run.start(1)
    run.model.apply(AttemptStarted(2, 1))
    run.model.apply(TrainingStarted(2, {"kind": "[red]x[/red]"}, 10, 100, 0))
    run.end(2, "complete", 0.5)
    assert "[b]loss" in drawn(run.snapshot, 120)
    assert "[b]loss" in drawn(run.snapshot, 80)
    assert "kind=[red]x[/red]" in drawn(run.snapshot, 80)


def test_a_trial_that_ended_after_it_was_counted_does_not_run_elsewhere() -> None:
    """The count is older than the events: a sweep's last trial would be said to run on another worker."""
    run = Run(target=2)
    for number in (0, 1):
        run.start(number)
    for number in (0, 1):
        run.end(number, "complete", 0.5)
    run.model.apply(StudyCounted(0, 0, 0, 0, 2))
    seen = run.snapshot
    assert (seen.done, seen.elsewhere, seen.study and seen.study.target) == (2, 0, 2)
    run.model.apply(StudyCounted(2, 0, 0, 0, 1))
    assert run.snapshot.elsewhere == 1, "now it is another worker's"
