"""Every sweep audits itself: a clean study is alike, a hole ends the run, and no audit costs a trial.

The studies are small and their audits real: fresh processes, resumed from pinned checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from study_files import StudyText
from sweeps import (
    Ended,
    RunningCommand,
    Swept,
    command,
    database_url,
    results_of,
    sweep,
    trials_in,
)

from sweeper.db.audits import Audits
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import DatabaseUnavailableError, ExactnessError
from sweeper.records.events import Notice
from sweeper.run import replays as running_again
from sweeper.run.auditing import IntervalReplay

ARGUMENTS = 'objective="val_loss", epochs=2, trials=2, sampler="random"'

CLEAN = StudyText(
    head="""
        import time

        class Clock(keras.callbacks.Callback):
            '''Measures, keeps a path into the trial's directory, and writes there.'''

            def __init__(self, directory):
                super().__init__()
                self.file = directory / "epochs.txt"
                self.times = []

            def on_epoch_begin(self, epoch, logs=None):
                self.times.append(time.time())

            def on_epoch_end(self, epoch, logs=None):
                logs["seconds"] = time.time() - self.times[-1]
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

HOLE = StudyText(
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


def without_times(swept: Swept) -> dict[int, Any]:
    found = results_of(swept.trials)
    for result in found.values():
        for _, metrics in result.epochs:
            metrics.pop("seconds")  # type: ignore[attr-defined]
    return found


def audited(swept: Swept) -> tuple[int, int]:
    exactness = swept.results.status.exactness
    return exactness.intervals, exactness.alike


def notices(swept: Swept) -> str:
    return "\n".join(event.message for event in swept.events if isinstance(event, Notice))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Swept]:
    """The clean study, run without audits: what every other run of it must give."""
    directory = tmp_path_factory.mktemp("clean")
    before = Path.cwd()
    os.chdir(directory)
    try:
        study = replace(CLEAN, arguments=f'{ARGUMENTS}, audit="off"')
        file = study.write(directory / "study.py")
        return directory, sweep(file, directory / "runs")
    finally:
        os.chdir(before)


def test_a_clean_study_is_alike_and_its_results_and_files_are_those_without_audits(
    clean: tuple[Path, Swept], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swept = sweep(CLEAN.write(tmp_path / "study.py"), tmp_path / "runs")
    assert audited(swept) == (2, 2)
    assert audited(clean[1]) == (0, 0)
    assert without_times(swept) == without_times(clean[1])
    intervals = [(a.from_step, a.to_step, a.outcome) for a in swept.trials[0].audits]
    assert intervals == [(10, 20, "alike"), (20, 40, "alike")], "the first in mid-epoch"
    assert swept.trials[1].audits == ()
    kept = [[c.step for c in trial.checkpoints] for trial in swept.trials]
    assert kept == [[c.step for c in trial.checkpoints] for trial in clean[1].trials]
    for number in range(2):
        rows = [
            (directory / f"fixed-{number}.csv").read_text().splitlines()
            for directory in (tmp_path, clean[0])
        ]
        assert len(rows[0]) == len(rows[1]) == 3, "no replay cut the file back or wrote to it"
        epochs = tmp_path / "runs" / "small" / f"trial-{number:05d}" / "files" / "epochs.txt"
        assert epochs.read_text() == "0\n1\n"
    assert not list((tmp_path / "runs").rglob("audit*")), "nothing is pinned any more"


def test_a_hole_ends_the_run_and_is_named_until_it_is_accepted(
    tmp_path: Path, here: Callable[..., Ended]
) -> None:
    file, runs = HOLE.write(tmp_path / "hole.py"), tmp_path / "runs"
    with pytest.raises(ExactnessError) as raised:
        sweep(file, runs)
    message = str(raised.value)
    assert raised.value.exit_code == 4
    for words in (
        "trial 0, resumed from its checkpoint of step 20 in a fresh process, differs at step",
        "at step 40: model variable 1 (sequential/dense/kernel): differs in ",
        "(adam/learning_rate): 0.005 undisturbed, 0.01 resumed",
        "it differs from step 21 on",
        f"look in callback Halving ({file}:",
        "sweeper resume hole --accept-inexact",
    ):
        assert words in message
    with Database.open(database_url(runs), create=False) as database:
        status = Repository(database).status("hole")
        assert status.running == 0, "trials go on meanwhile, and stop at a checkpoint"
        assert (status.exactness.intervals, status.exactness.alike) == (2, 1)

    again = command("resume", "hole", "--runs-dir", runs, cwd=tmp_path)
    assert again.code == 4
    assert "differs at step 40" in again.err
    assert "look in callback Halving" in again.err
    assert "attempt 1 started" not in again.err, "no trial was begun"

    accepted = here("resume", "hole", "--runs-dir", runs, "--accept-inexact", cwd=tmp_path)
    assert accepted.code == 0
    assert "notice: exactness is not promised" in accepted.err
    for verb in (("status", "hole"), ("show", "hole", "1"), ("best", "hole"), ("ls",)):
        shown = here(*verb, "--runs-dir", runs, cwd=tmp_path)
        assert "exactness is not promised: an audit found that trial 0" in shown.out, verb
    shown = here("show", "hole", "0", "--json", "--runs-dir", runs, cwd=tmp_path)
    assert json.loads(shown.out)["audits"] == [
        {"from_step": 10, "to_step": 20, "alike": True},
        {"from_step": 20, "to_step": 40, "alike": False},
    ]


@dataclass(frozen=True)
class Disturbed:
    """A sweep whose audits were disturbed.

    Attributes:
        killed: The trial of each replay whose process was killed, and where it was to end.
        verdicts: How often one was to be written.
    """

    swept: Swept
    killed: list[tuple[int, int]]
    verdicts: int


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    """The clean study: of each trial the first interval cannot be compared.

    Of trial 0 what was pinned is damaged, and of trial 1 the process dies every time; that of
    trial 0's second interval dies once. And verdicts are not heard.
    """
    directory = tmp_path_factory.mktemp("disturbed")
    real, decides = IntervalReplay.outcome, Audits.decide
    killed: list[tuple[int, int]] = []
    calls = []

    def outcome(self: IntervalReplay) -> Any:
        if self.claim.pinned.from_step == 10:
            file = Path(self.claim.pinned.to_path) / "tensors.safetensors"
            content = bytearray(file.read_bytes())
            content[-3] ^= 1
            # A file of its own: what is pinned is the trial's own file under a second name.
            file.unlink()
            file.write_bytes(content)
        return real(self)

    def started(self: Any, pid: int, _isolation: str) -> None:
        if self.order.ends_at is None:
            return
        replay = (self.order.number, self.order.ends_at[0])
        if replay == (1, 20) or (replay == (0, 40) and replay not in killed):
            killed.append(replay)
            os.kill(pid, signal.SIGKILL)

    def decide(self: Audits, *arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        if len(calls) != 2:
            decides(self, *arguments, **options)
        if len(calls) < 4:
            # The first is written and its answer lost; the second is not even heard.
            error = DatabaseUnavailableError("the server is away")
            error.passing = True
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setattr(IntervalReplay, "outcome", outcome)
        patch.setattr(running_again._Attempt, "started", started)
        patch.setattr(Audits, "decide", decide)
        study = replace(CLEAN, arguments=f'{ARGUMENTS}, audit="all"')
        swept = sweep(study.write(directory / "study.py"), directory / "runs", workers=1)
    return Disturbed(swept, killed, len(calls))


def test_a_pinned_checkpoint_that_is_damaged_costs_its_audit_and_nothing_else(
    clean: tuple[Path, Swept], disturbed: Disturbed
) -> None:
    swept = disturbed.swept
    assert audited(swept) == (2, 2)
    assert without_times(swept) == without_times(clean[1])
    assert [a.outcome for a in swept.trials[0].audits] == ["dropped", "alike"]
    assert "the audit of trial 0 from step 10 to 20 gives no verdict" in notices(swept)


def test_processes_that_are_killed_and_a_database_that_is_away_lose_no_verdict_and_no_trial(
    clean: tuple[Path, Swept], disturbed: Disturbed
) -> None:
    swept = disturbed.swept
    assert sorted(disturbed.killed) == [(0, 40), (1, 20), (1, 20), (1, 20)]
    assert disturbed.verdicts > 4
    outcomes = [[a.outcome for a in trial.audits] for trial in swept.trials]
    assert outcomes == [["dropped", "alike"]] * 2
    assert "was killed by SIGKILL" in notices(swept)
    assert "(3 tries)" in notices(swept)
    assert "the database is unreachable" in notices(swept)
    assert without_times(swept) == without_times(clean[1])


def test_two_workers_compare_every_interval_once_and_the_results_are_the_same(
    clean: tuple[Path, Swept], tmp_path: Path
) -> None:
    arguments = f'{ARGUMENTS}, audit="all"'.replace("epochs=2", "epochs=1")
    file = replace(CLEAN, arguments=arguments).write(tmp_path / "study.py")
    runs = tmp_path / "runs"
    with RunningCommand("run", file, "--workers", 1, "--runs-dir", runs, cwd=tmp_path) as run:
        assert run.wait_for("trial 0 attempt 1 started")
        flags = ("--slots", 1, "--runs-dir", runs)
        with RunningCommand("worker", "small", *flags, cwd=tmp_path) as worker:
            assert worker.end() == 0, worker.err
        assert run.end() == 0, run.err
    trials = trials_in(runs)
    intervals = [[(a.from_step, a.to_step) for a in trial.audits] for trial in trials]
    assert intervals == [[(10, 20)], [(0, 20)]]
    assert all(a.outcome == "alike" for trial in trials for a in trial.audits)
    after_one_epoch = [t.checkpoints[0] for t in clean[1].trials]
    assert [c.step for c in after_one_epoch] == [20, 20]
    assert [t.digest for t in trials] == [c.digest for c in after_one_epoch]
