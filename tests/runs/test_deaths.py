"""Every way in which a trial can die comes back as what it was, and the study goes on."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from study_files import StudyText
from sweeps import Ended, Result, command, differing, results_of, sweep, trials_in

from sweeper.records.results import TrialRecord

FATES = (
    *("orphan", "killed", "server killed", "terminated", "survivor"),
    *("segfault", "exit", "sys.exit", "raise", "memory"),
)
"""Those that survive stand first."""

UNDISTURBED = FATES.index("survivor") + 1
"""How many trials the second sweep has."""

DEATHS = StudyText(
    name="deaths",
    head=f'''
    import threading

    from sweeper.checkpoint.operations import FileOperations

    FATES = {FATES!r}


    def once(trial):
        """Whether this is the first time: nobody dies again of what is done once."""
        mark = trial.directory / "once"
        first = not mark.exists()
        mark.touch()
        return first


    def after_step_27(act):
        """Have ``act`` done inside the second epoch, when the checkpoint of step 27 is there."""
        rename = FileOperations.rename

        def renaming(self, source, target):
            rename(self, source, target)
            if target.name == "step-000000027":
                act()

        FileOperations.rename = renaming


    def kill_server_and_wait_for_the_end():
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()


    def helper():
        raise ValueError("no layer of that kind: \\udce9")


    def meet(fate, trial):
        if fate == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif fate == "exit":
            os._exit(3)
        elif fate == "sys.exit":
            sys.exit("enough")
        elif fate == "raise":
            helper()
        elif fate == "memory":
            raise MemoryError("65 GB")
        elif fate == "killed" and once(trial):
            after_step_27(lambda: os.kill(os.getpid(), signal.SIGKILL))
        elif fate == "server killed" and once(trial):
            after_step_27(kill_server_and_wait_for_the_end)
        elif fate == "orphan" and once(trial):
            child = os.fork()
            if child == 0:
                signal.pause()
            (trial.directory / "orphan").write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        elif fate == "terminated" and once(trial):
            after_step_27(lambda: os.kill(os.getpid(), signal.SIGTERM))
    ''',
    model="""
    print("trial", trial.number, "speaks")
    if os.environ.get("SWEEPER_TEST_DEATHS") == "1":
        meet(FATES[trial.number], trial)
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-3, log=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
    return model
    """,
    data="return Data(train=(x[:160], y[:160]), batch_size=8)",
    arguments=f"""objective="loss", epochs=2, trials={len(FATES)}, sampler="random",
    audit="off", checkpoint_every=Every(steps=9), retries={{"crash": 1, "memory": 1}}""",
)


@dataclass(frozen=True)
class Deaths:
    ended: Ended
    runs: Path
    file: Path
    trials: dict[str, TrialRecord]
    undisturbed: dict[int, Result]

    def outcomes(self, fate):
        return [a.outcome for a in self.trials[fate].attempts]

    def ends_undisturbed(self, fate):
        trial = self.trials[fate]
        return results_of([trial])[trial.number] == self.undisturbed[trial.number]


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    directory = tmp_path_factory.mktemp("deaths")
    file = DEATHS.write(directory / "deaths.py")
    words = ("run", file, "--workers", 1, "--runs-dir")
    ended = command(*words, directory / "dead", cwd=directory, env={"SWEEPER_TEST_DEATHS": "1"})
    alive = sweep(file, directory / "alive", workers=1, trials=UNDISTURBED, isolation="inline")
    orphans = [int(orphan.read_text()) for orphan in (directory / "dead").rglob("orphan")]
    left = [pid for pid in orphans if psutil.pid_exists(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert (len(orphans), left) == (1, []), "what a killed trial started lives on"
    trials = trials_in(directory / "dead", "deaths")
    undisturbed = results_of(alive.trials)
    return Deaths(
        ended, directory / "dead", file, dict(zip(FATES, trials, strict=True)), undisturbed
    )


def test_the_study_goes_on_to_its_end_and_says_that_trials_failed(deaths):
    assert deaths.ended.code == 3, deaths.ended.err
    failed = {fate for fate, trial in deaths.trials.items() if trial.state == "failed"}
    assert failed == {"segfault", "exit", "sys.exit", "raise", "memory"}
    assert {t.state for f, t in deaths.trials.items() if f not in failed} == {"complete"}
    assert "Traceback" not in deaths.ended.err
    pids = [a.pid for trial in deaths.trials.values() for a in trial.attempts]
    assert len(pids) == len(set(pids))
    assert [pid for pid in pids if pid is None or psutil.pid_exists(pid)] == [], "none is left"


@pytest.mark.parametrize(
    ("fate", "outcomes", "message"),
    [
        ("segfault", ["crashed"] * 2, "was killed by SIGSEGV"),
        ("exit", ["crashed"] * 2, "exited with code 3"),
        ("memory", ["crashed"] * 2, "ran out of memory"),
        ("sys.exit", ["failed"], "sys.exit('enough')"),
    ],
)
def test_a_process_that_dies_is_tried_again_and_one_that_exits_itself_fails_at_once(
    deaths, fate, outcomes, message
):
    assert deaths.outcomes(fate) == outcomes
    assert all(message in (a.error or "") for a in deaths.trials[fate].attempts)
    assert message in (deaths.trials[fate].error or "")
    assert message in deaths.ended.err


def test_what_a_dead_process_printed_is_in_the_log_that_its_error_names(deaths):
    error = deaths.trials["segfault"].attempts[0].error or ""
    number = deaths.trials["segfault"].number
    log = deaths.runs / "deaths" / f"trial-{number:05d}" / "attempt-01" / "log.txt"
    assert str(log) in error
    assert f"trial {number} speaks" in log.read_text()


def test_an_exception_fails_its_trial_at_once_with_the_users_traceback(deaths):
    assert deaths.outcomes("raise") == ["failed"]
    lines = (deaths.trials["raise"].error or "").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{deaths.file}"'), "the traceback starts in user code"
    assert "in helper" in "\n".join(lines)
    assert re.fullmatch(
        r"ValueError: no layer of that kind: \\udce9 \(in helper, deaths\.py:\d+\)", lines[-1]
    )


@pytest.mark.parametrize(
    ("fate", "outcomes", "resumed_at"),
    [
        ("killed", ["crashed", "complete"], 27),
        ("server killed", ["crashed", "complete"], 27),
        ("terminated", ["interrupted", "complete"], 27),
        pytest.param("orphan", ["crashed", "complete"], 0, id="an orphan holds the pipe open"),
        pytest.param("survivor", ["complete"], 0, id="nobody touched it"),
    ],
)
def test_a_trial_that_was_cut_off_goes_on_from_its_checkpoint_to_the_same_end(
    deaths, fate, outcomes, resumed_at
):
    assert deaths.outcomes(fate) == outcomes
    resumed = deaths.trials[fate].attempts[-1].start_step
    assert resumed is not None
    assert resumed >= resumed_at
    assert deaths.ends_undisturbed(fate)


def test_the_comparison_can_tell_two_trials_apart(deaths):
    one, other = (deaths.undisturbed[n] for n in (3, 4))
    assert differing({0: one}, {0: other}) == [0]
