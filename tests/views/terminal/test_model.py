"""The state of a run: what it says of the study by the database's counts and the run's own events."""

import threading
from dataclasses import replace

import pytest
from terminals import STATUS, with_trials

from sweeper.records.configurations import ConfigurationRecord
from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    EpochFinished,
    Notice,
    RungDecided,
    StepsDone,
    StudyCounted,
    StudyOpened,
    TrainingStarted,
)
from sweeper.records.results import BestTrial, StudyStatus
from sweeper.spec.searching import Objective
from sweeper.views.terminal.model import RunState


class Run:
    """A state of an opened study, and short words for what happens to it."""

    def __init__(self, target=6, *, is_repeated=False, begun=(), **status):
        self.state = RunState(lambda: 0.0)
        given = {"target": target, "best": None, "pruned": 0, **status}
        self.status = with_trials(replace(STATUS, **given), **dict(begun))
        self.apply(StudyOpened(self.status, 2, "sqlite://", "sweeper resume", is_repeated))

    def apply(self, *events):
        for event in events:
            self.state.apply(event)

    def start(self, *trials, attempt=1):
        for trial in trials:
            self.apply(AttemptStarted(trial, attempt))
            self.apply(TrainingStarted(trial, {"lr": trial / 10}, 10, 100, 0))

    def end(self, trial, outcome, value=None):
        self.apply(AttemptEnded(trial, 1, outcome, value))

    @property
    def counts(self):
        return str(next(self.state.lines(""))).split("  ")[1]

    @property
    def best(self):
        return str(list(self.state.lines(""))[1])


def test_before_the_study_is_opened_nothing_is_known():
    state = RunState(lambda: 0.0)
    assert [str(line) for line in state.lines("Ctrl-C")] == ["opening the study ..."]
    assert (state.name, state.brief()) == ("", "")


@pytest.mark.parametrize(("direction", "leader"), [("maximize", 1), ("minimize", 2)])
def test_the_best_follows_the_direction_and_nan_never_leads(direction, leader):
    run = Run(direction=direction)
    for trial, value in ((3, float("nan")), (0, 0.5), (1, 0.9), (2, 0.1)):
        run.start(trial)
        run.end(trial, "complete", value)
        assert (run.best == "best: none yet") == (trial == 3)
    value = {1: "0.9", 2: "0.1"}[leader]
    assert run.best == f"best: trial {leader}  val_accuracy {value}  lr={leader / 10}"


def test_the_best_of_earlier_runs_and_other_workers_leads_until_a_better_one_comes():
    run = Run(best=BestTrial(0, 0.8, {"lr": 0.7}))
    run.start(1)
    run.end(1, "complete", 0.5)
    assert run.best.startswith("best: trial 0 ")
    run.apply(StudyCounted(replace(run.status, best=BestTrial(5, 0.85, {}))))
    assert run.best.startswith("best: trial 5 ")
    run.start(2)
    run.end(2, "complete", 0.9)
    assert run.best.startswith("best: trial 2 ")


def test_with_several_objectives_no_trial_leads_and_their_names_are_shown():
    names = (Objective("val_accuracy", "maximize"), Objective("val_loss", "minimize"))
    run = Run(objectives=names)
    run.start(0)
    run.end(0, "complete", 0.9)
    assert run.best == "objectives: val_accuracy, val_loss"
    assert run.state.brief() == " [1/6 done]"


def test_a_confirmation_is_led_by_a_configuration_and_not_by_its_best_training():
    run = Run(is_repeated=True)
    run.start(0)
    run.end(0, "complete", 0.99)
    assert run.best == "no configuration is complete yet"
    leading = ConfigurationRecord(
        number=4,
        params={},
        values={0: 0.5, 1: 0.5},
        mean=0.5,
        std=0.0,
        interval=(0.5, 0.5),
        trials=(0, 2),
        state="complete",
    )
    run.apply(StudyCounted(replace(run.status, configurations=(leading,))))
    assert run.best == "configuration 4 leads with 0.5 ± 0 over 2 repeats"
    assert run.best in run.state.brief()


def test_only_results_count_as_done_and_an_interrupted_trial_may_start_again():
    run = Run(begun={"complete": 1})
    for trial, outcome in enumerate(("complete", "pruned", "failed", "crashed", "interrupted"), 1):
        run.start(trial)
        run.end(trial, outcome)
    assert run.counts == "4/6 done, 1 pruned, 1 failed, 2 interrupted"
    run.start(4, attempt=2)
    run.end(4, "complete", 0.5)
    assert run.counts == "5/6 done, 1 pruned, 1 failed, 1 interrupted"


def test_a_resumed_trial_of_an_earlier_run_is_no_longer_interrupted():
    run = Run(begun={"interrupted": 2})
    run.start(0, attempt=2)
    assert run.counts == "0/6 done, 1 running, 1 interrupted, 4 waiting"


def test_a_trial_that_a_rung_ends_while_it_is_paused_is_pruned():
    run = Run()
    run.start(0)
    run.end(0, "paused")
    run.apply(RungDecided("promoted none", ended=(0,)))
    assert run.counts == "1/6 done, 1 pruned, 5 waiting"


def test_trials_of_other_workers_are_counted_and_none_twice():
    run = Run(target=16)
    run.start(8, 9, 10)
    counted = with_trials(run.status, complete=6, pruned=1, failed=1, running=5)
    run.apply(StudyCounted(counted))
    assert run.counts == "8/16 done, 1 pruned, 1 failed, 5 running, 3 waiting"
    run.end(8, "complete", 0.5)
    assert run.counts.startswith("9/16 done")
    run.apply(StudyCounted(counted))
    assert run.counts.startswith("9/16 done"), "the status is older than the end"


def test_a_trial_that_stopped_here_and_runs_elsewhere_is_running():
    run = Run()
    run.start(0)
    run.end(0, "interrupted")
    assert run.counts == "0/6 done, 1 interrupted, 5 waiting"
    run.apply(StudyCounted(with_trials(run.status, running=1)))
    assert run.counts == "0/6 done, 1 running, 5 waiting"


def test_a_count_that_is_older_than_the_end_of_a_trial_says_of_none_that_it_runs():
    """A sweep's last trials would be said to run on, on a machine where nothing runs."""
    run = Run(target=2)
    run.start(0, 1)
    for number in (0, 1):
        run.end(number, "complete", 0.5)
    run.apply(StudyCounted(with_trials(run.status, running=2)))
    assert run.counts == "2/2 done"


def test_further_rounds_of_a_confirmation_raise_its_total():
    run = Run(target=2, is_repeated=True)
    more = replace(run.status, target=4)
    run.apply(StudyCounted(with_trials(more, complete=2, running=2)))
    assert run.counts == "2/4 done, 2 running"


def test_the_time_left_is_the_databases_estimate():
    run = Run()
    run.apply(StudyCounted(replace(run.status, running=1, seconds_left=90.0)))
    assert "~1m30s left" in str(next(run.state.lines("")))


def test_events_out_of_order_and_without_a_start_are_taken_as_they_come():
    state = RunState(lambda: 0.0)
    for event in (
        StepsDone(1, 0, 5),
        EpochFinished(1, 0, 10, {}, 1.0),
        CheckpointKept(1, 10, 5),
        Notice("x"),
        AttemptEnded(1, 1, "complete", 0.5),
        AttemptEnded(2, 1, "lost"),
    ):
        state.apply(event)
    state.apply(StudyOpened(StudyStatus("digits", 4), 1, ""))
    assert state.brief().startswith(" [1/4 done")


def test_threads_may_tell_it_at_once():
    run = Run(target=400)

    def tell(worker):
        for trial in range(worker * 100, worker * 100 + 100):
            run.start(trial)
            list(run.state.lines("Ctrl-C"))
            run.end(trial, "complete", 0.5)

    threads = [threading.Thread(target=tell, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.counts == "400/400 done"
