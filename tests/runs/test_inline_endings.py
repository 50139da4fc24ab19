"""Inline, the worker is a call away from the trial: what it raises is no failure of the trial's."""

import pytest
from scripted_trials import definition, scripted_sweep

from sweeper.errors import DatabaseUnavailableError
from sweeper.run.protocol.messages import Finished, Started
from sweeper.run.trial import run as trial_run
from sweeper.run.worker import inline
from sweeper.run.worker.inline import InlineTrials
from sweeper.run.worker.slot import AttemptSupervisor, serve_slot


def serve(sweep, play, monkeypatch):
    """Run one slot whose inline trials do what ``play`` does, in the place of a training."""

    def run(_definition, _assignment, link, _process):
        play(link)
        link.send(Finished(step=1, value=1.0, digest="d" * 32))

    monkeypatch.setattr(trial_run, "run_trial", run)
    monkeypatch.setattr(inline, "configure_tensorflow", lambda **_: None)
    sweep.context.runner = InlineTrials(definition())
    serve_slot(sweep.context)


def train_through(link):
    """Catch whatever comes, as a careless callback does."""
    link.send(Started(0, 0, 1))
    for _ in range(3):
        try:
            link.stop_requested()
        except Exception:
            continue


@pytest.mark.parametrize("late", [0, 4], ids=["at once", "after four answers that are late"])
def test_a_second_interrupt_leaves_an_inline_trial_to_be_resumed(tmp_path, monkeypatch, late):
    """An answer of the database that is late does not leave the killed trial running."""
    with scripted_sweep(tmp_path, {}) as sweep:
        finish, calls = sweep.context.study.impatient.finish, []

        def answer_late(*arguments, **named):
            calls.append(arguments)
            if len(calls) <= late:
                error = DatabaseUnavailableError("no answer within 1 s")
                error.passing = True
                raise error
            return finish(*arguments, **named)

        monkeypatch.setattr(sweep.context.study.impatient, "finish", answer_late)

        def interrupted_twice(link):
            sweep.context.stopping.set()
            sweep.context.killing.set()
            train_through(link)

        serve(sweep, interrupted_twice, monkeypatch)
        assert sweep.context.error is None
        [attempt] = sweep.trials[0].attempts
        assert (attempt.outcome, attempt.error) == ("interrupted", "killed on request")
        assert sweep.trials[0].state == "interrupted"
        assert len(calls) == late + 1


def test_what_the_worker_raises_while_a_trial_runs_inline_does_not_fail_it(tmp_path, monkeypatch):
    handle = AttemptSupervisor.handle

    def break_down(self, message):
        if isinstance(message, Started):
            msg = "gone for good"
            raise DatabaseUnavailableError(msg)
        return handle(self, message)

    monkeypatch.setattr(AttemptSupervisor, "handle", break_down)
    with scripted_sweep(tmp_path, {}) as sweep:
        serve(sweep, train_through, monkeypatch)
        assert isinstance(sweep.context.error, DatabaseUnavailableError)
        assert sweep.outcomes() == ["interrupted"]


def test_a_listener_that_raises_leaves_an_inline_trial_whole(tmp_path, monkeypatch):
    with scripted_sweep(tmp_path, {}, trials=2) as sweep:

        def hear(_event):
            raise BrokenPipeError(32, "Broken pipe")

        sweep.context.listener = hear
        serve(sweep, train_through, monkeypatch)
        assert isinstance(sweep.context.error, BrokenPipeError)
        assert sweep.trials == () or {t.state for t in sweep.trials} <= {"complete", "interrupted"}


def test_what_the_trial_itself_raises_still_fails_it(tmp_path, monkeypatch):
    def fail(_link):
        msg = "no such layer"
        raise ValueError(msg)

    with scripted_sweep(tmp_path, {}) as sweep:
        serve(sweep, fail, monkeypatch)
        assert sweep.outcomes() == ["failed"]
        assert "no such layer" in (sweep.trials[0].error or "")
