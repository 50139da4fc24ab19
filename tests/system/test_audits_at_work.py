"""Every sweep audits itself: a clean study is alike, a hole ends the run, and no audit costs a trial."""

import contextlib
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from study_files import SHORT
from sweeps import command, database_url, results_of, sweep, sweep_inline, trials_in

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import DatabaseUnavailableError, ExactnessError
from sweeper.run.auditing import IntervalReplay
from sweeper.run.launch.launchers import WarmServer

ARGUMENTS = 'objective="val_loss", epochs=2, trials=2, sampler="random"'

CLEAN = replace(
    SHORT,
    head="""
        import time

        class Clock(keras.callbacks.Callback):
            '''Measures, keeps a path into the trial's directory, and writes there.'''

            def __init__(self, directory):
                super().__init__()
                self.file = directory / "epochs.txt"
                self.times = []
                self.took = np.zeros(8)

            def on_epoch_begin(self, epoch, logs=None):
                self.times.append(time.time())

            def on_epoch_end(self, epoch, logs=None):
                logs["seconds"] = self.took[epoch] = time.time() - self.times[-1]
                with self.file.open("a") as stream:
                    stream.write(f"{epoch}\\n")
        """,
    callbacks=(
        "Clock(trial.directory), keras.callbacks.CSVLogger(str(trial.directory / 'own.csv')), "
        "keras.callbacks.CSVLogger(f'fixed-{trial.number}.csv', append=True)"
    ),
    arguments=ARGUMENTS,
)
"""Everything in it that differs from run to run is measured, or lies in files."""

HOLE = replace(
    SHORT,
    name="hole",
    head="""
        import math

        class Halving(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                seen = getattr(math, "epochs_seen", 0)
                math.epochs_seen = seen + 1
                self.model.optimizer.learning_rate = 0.01 * 0.5**seen
        """,
    callbacks="Halving()",
    arguments='objective="val_loss", epochs=3, trials=2, sampler="random"',
)
"""It keeps what its learning rate hangs on where no checkpoint can see it."""


def without_times(swept):
    results = results_of(swept.trials)
    for result in results.values():
        for _, metrics in result.epochs:
            metrics.pop("seconds")
    return results


def audited(swept):
    exactness = swept.results.status.exactness
    return exactness.intervals, exactness.identical


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The clean study, run without audits: what every other run of it must give."""
    directory = tmp_path_factory.mktemp("clean")
    with contextlib.chdir(directory):
        study = replace(CLEAN, arguments=f'{ARGUMENTS}, audit="off"')
        return directory, sweep_inline(study, directory)


def test_a_clean_study_is_alike_and_its_results_and_files_are_those_without_audits(
    clean, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    swept = sweep(CLEAN.write(tmp_path / "study.py"), tmp_path / "runs")
    assert audited(swept)[0] == audited(swept)[1] >= 1
    assert audited(clean[1]) == (0, 0)
    assert without_times(swept) == without_times(clean[1])
    intervals = [(a.from_step, a.to_step, a.outcome) for a in swept.trials[0].audits]
    assert intervals == [(2, 4, "identical")], "the last one"
    steps = [[c.step for c in trial.checkpoints] for trial in swept.trials]
    assert steps == [[c.step for c in trial.checkpoints] for trial in clean[1].trials]
    for number in range(2):
        rows = [
            (directory / f"fixed-{number}.csv").read_text().splitlines()
            for directory in (tmp_path, clean[0])
        ]
        assert len(rows[0]) == len(rows[1]) == 3, "no replay cut the file back or wrote to it"
        epochs = tmp_path / "runs" / "small" / f"trial-{number:05d}" / "files" / "epochs.txt"
        assert epochs.read_text() == "0\n1\n"


@pytest.mark.whole
def test_a_trial_in_which_only_time_is_measured_verifies(clean, here):
    """Into a list, an array and the logs."""
    directory, _ = clean
    ended = here("verify", "small", "--trial", 0, "--json", cwd=directory)
    [trial] = json.loads(ended.out)["trials"]
    assert (ended.code, trial["verdict"]) == (0, "holds"), ended.err
    notes = " ".join(
        finding["message"] for finding in trial["findings"] if finding["level"] == "note"
    )
    assert "callback Clock" in notes, "said, as no error"


def test_a_hole_ends_the_run_and_is_named_until_it_is_accepted(tmp_path, here):
    file = HOLE.write(tmp_path / "hole.py")
    runs = tmp_path / "runs"
    with pytest.raises(ExactnessError) as raised:
        sweep(file, runs)
    message = str(raised.value)
    assert raised.value.exit_code == 4
    for words in (
        "trial 0, resumed from its checkpoint of step 4 in a fresh process, differs at step",
        "at step 6: model variable 1 (sequential/dense/kernel): differs in ",
        "(adam/learning_rate): 0.0025 undisturbed, 0.01 resumed",
        f"look in callback Halving ({file}:",
        "sweeper resume hole --accept-inexact",
    ):
        assert words in message
    with Database.open(database_url(runs), create=False) as database:
        status = Repository(database).status("hole")
        assert status.running == 0, "trials go on meanwhile, and stop at a checkpoint"
        assert (status.exactness.intervals, status.exactness.identical) == (1, 0)

    second = command("resume", "hole", "--runs-dir", runs, cwd=tmp_path)
    assert second.code == 4
    assert "differs at step 6" in second.err
    assert "look in callback Halving" in second.err
    assert "attempt 1 started" not in second.err, "no trial was begun"

    accepted = here("resume", "hole", "--runs-dir", runs, "--accept-inexact", cwd=tmp_path)
    assert accepted.code == 0
    assert "notice: exactness is not promised" in accepted.err
    for verb in (("status", "hole"), ("show", "hole", "1"), ("best", "hole"), ("ls",)):
        answer = here(*verb, "--runs-dir", runs, cwd=tmp_path)
        assert "exactness is not promised: an audit found that trial 0" in answer.out, verb
    answer = here("show", "hole", "0", "--json", "--runs-dir", runs, cwd=tmp_path)
    assert json.loads(answer.out)["audits"] == [
        {"from_step": 4, "to_step": 6, "identical": False},
    ]


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """The clean study with an audit of every interval, some of which cannot be compared."""
    directory = tmp_path_factory.mktemp("disturbed")
    real = IntervalReplay.outcome
    decides = Repository.record_audit
    launch = WarmServer.launch
    calls = []

    def outcome(self):
        if (self.trial.number, self.from_step) != (0, 2):
            return real(self)
        file = Path(str(self.end.path)) / "tensors.safetensors"
        content = file.read_bytes()
        file.chmod(0o644)
        file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        try:
            return real(self)
        finally:
            file.write_bytes(content)

    def launched(self, assignment):
        process = launch(self, assignment)
        order = assignment.order
        if order is not None and (assignment.number, order.checkpoints) == (1, ((4, 2),)):
            os.kill(process.pid, signal.SIGKILL)
        return process

    def decide(self, *arguments):
        calls.append(arguments)
        decides(self, *arguments)
        if len(calls) == 1:
            error = DatabaseUnavailableError("the server is away")
            error.passing = True
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setattr(IntervalReplay, "outcome", outcome)
        patch.setattr(WarmServer, "launch", launched)
        patch.setattr(Repository, "record_audit", decide)
        study = replace(CLEAN, arguments=f'{ARGUMENTS}, audit="all"')
        return sweep(study.write(directory / "study.py"), directory / "runs", workers=1)


@pytest.mark.whole
def test_what_cannot_be_compared_gives_no_verdict_and_costs_no_trial(clean, disturbed):
    outcomes = [[(a.from_step, a.outcome) for a in t.audits] for t in disturbed.trials]
    assert outcomes == [[(0, "identical"), (2, "dropped")]] * 2
    assert audited(disturbed) == (2, 2), "those without a verdict are not counted"
    notices = "\n".join(disturbed.notices)
    assert "the audit of trial 0 from step 2 to 4 gives no verdict: it could not be" in notices
    assert "the audit of trial 1 from step 2 to 4 gives no verdict" in notices
    assert "was killed by SIGKILL" in notices
    assert "the database is unreachable" in notices
    assert without_times(disturbed) == without_times(clean[1])


@pytest.mark.whole
def test_a_hole_of_a_later_trial_is_found_by_its_audit(tmp_path):
    """Trial 0 is sound: the callback with state outside of checkpoints is in trial 1 alone."""
    study = replace(
        HOLE,
        name="small",
        callbacks="*([Halving()] if trial.number == 1 else [])",
        arguments=f'{HOLE.arguments}, audit="all"',
    )
    with pytest.raises(ExactnessError, match="trial 1, resumed from its checkpoint of step 4"):
        sweep(study.write(tmp_path / "later.py"), tmp_path / "runs", workers=1)
    assert [a.identical for a in trials_in(tmp_path / "runs")[0].audits] == [True, True]
