"""Every way in which a trial can die comes back as what it was, and the study goes on."""

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

CUT_OFF = {
    "orphan": ("leave_an_orphan(trial)", ["crashed", "complete"], 0),
    "killed": ("after_step_27(lambda: send(os.getpid(), 'KILL'))", ["crashed", "complete"], 27),
    "server killed": ("after_step_27(end_with_the_server)", ["crashed", "complete"], 27),
    "terminated": (
        *("after_step_27(lambda: send(os.getpid(), 'TERM'))", ["interrupted", "complete"]),
        27,
    ),
    "survivor": ("None", ["complete"], 0),
}
"""What befalls a trial once; the outcomes of its attempts, and the step from which the last one goes on."""

LOST = {
    "segfault": ("send(os.getpid(), 'SEGV')", ["crashed"] * 2, "was killed by SIGSEGV"),
    "exit": ("os._exit(3)", ["crashed"] * 2, "exited with code 3"),
    "memory": ("run_out_of_memory()", ["crashed"] * 2, "ran out of memory"),
    "sys.exit": ("sys.exit('enough')", ["failed"], "sys.exit('enough')"),
    "raise": ("helper()", ["failed"], "no layer of that kind"),
}
"""What befalls each attempt at a trial, the outcomes, and what is said."""

FATES = (*CUT_OFF, *LOST)
ACTS = "".join(f"lambda trial: {act[0]}, " for act in (*CUT_OFF.values(), *LOST.values()))

DEATHS = StudyText(
    name="deaths",
    head=f'''
    import threading

    from sweeper.checkpoint.operations import FileOperations

    ACTS = ({ACTS})


    def send(pid, name):
        os.kill(pid, getattr(signal, "SIG" + name))


    def after_step_27(act):
        """Have ``act`` done inside the second epoch, when the checkpoint of step 27 is there."""
        rename = FileOperations.rename

        def renaming(self, source, target):
            rename(self, source, target)
            if target.name == "step-000000027":
                act()

        FileOperations.rename = renaming


    def end_with_the_server():
        send(os.getppid(), "KILL")
        threading.Event().wait()


    def leave_an_orphan(trial):
        child = os.fork()
        if child == 0:
            signal.pause()
        (trial.directory / "orphan").write_text(str(child))
        send(os.getpid(), "KILL")


    def run_out_of_memory():
        raise MemoryError("65 GB")


    def helper():
        raise ValueError("no layer of that kind: \\udce9")


    def meet(trial):
        before = trial.directory.parent / "before"
        if trial.number >= {len(CUT_OFF)} or not before.exists():
            before.touch()
            ACTS[trial.number](trial)
    ''',
    model="""
    print("trial", trial.number, "speaks")
    if os.environ.get("SWEEPER_TEST_DEATHS") == "1":
        meet(trial)
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


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    directory = tmp_path_factory.mktemp("deaths")
    file = DEATHS.write(directory / "deaths.py")
    runs = directory / "dead"
    words = ("run", file, "--workers", 1, "--runs-dir", runs)
    ended = command(*words, cwd=directory, env={"SWEEPER_TEST_DEATHS": "1"})
    alive = sweep(file, directory / "alive", workers=1, trials=len(CUT_OFF), isolation="inline")
    orphans = [int(orphan.read_text()) for orphan in runs.rglob("orphan")]
    survivors = [pid for pid in orphans if psutil.pid_exists(pid)]
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    assert (len(orphans), survivors) == (1, []), "what a killed trial started lives on"
    trials = dict(zip(FATES, trials_in(runs, "deaths"), strict=True))
    return Deaths(ended, runs, file, trials, results_of(alive.trials))


def test_the_study_goes_on_to_its_end_and_says_that_trials_failed(deaths):
    assert deaths.ended.code == 3, deaths.ended.err
    states = {fate: "failed" if fate in LOST else "complete" for fate in FATES}
    assert {fate: trial.state for fate, trial in deaths.trials.items()} == states
    assert "Traceback" not in deaths.ended.err
    pids = [a.pid for trial in deaths.trials.values() for a in trial.attempts]
    assert len(pids) == len(set(pids))
    assert [pid for pid in pids if pid is None or psutil.pid_exists(pid)] == [], "none is left"


@pytest.mark.parametrize("fate", LOST)
def test_a_process_that_dies_is_tried_again_and_code_that_fails_fails_at_once(deaths, fate):
    _, outcomes, message = LOST[fate]
    assert deaths.outcomes(fate) == outcomes
    assert all(message in (a.error or "") for a in deaths.trials[fate].attempts)
    assert message in (deaths.trials[fate].error or "")
    assert message in deaths.ended.err


def test_what_a_dead_process_printed_is_in_the_log_that_its_error_names(deaths):
    trial = deaths.trials["segfault"]
    log = deaths.runs / "deaths" / f"trial-{trial.number:05d}" / "attempt-01" / "log.txt"
    assert str(log) in (trial.attempts[0].error or "")
    assert f"trial {trial.number} speaks" in log.read_text()


def test_an_exception_fails_its_trial_with_the_users_traceback(deaths):
    lines = (deaths.trials["raise"].error or "").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{deaths.file}"'), "the traceback starts in user code"
    assert "in helper" in "\n".join(lines)
    where = r" \(in helper, deaths\.py:\d+\)"
    assert re.fullmatch(rf"ValueError: no layer of that kind: \\udce9{where}", lines[-1])


def test_a_checkpoint_of_which_a_killed_process_did_not_tell_is_in_what_is_said(deaths):
    first, last = deaths.trials["killed"].attempts
    assert first.end_step == last.start_step == 27
    said = (
        rf"trial {deaths.trials['killed'].number}: .*; it resumes from its checkpoint of step 27 "
    )
    assert re.search(said, deaths.ended.err)


@pytest.mark.parametrize("fate", CUT_OFF)
def test_a_trial_that_was_cut_off_goes_on_from_its_checkpoint_to_the_same_end(deaths, fate):
    _, outcomes, resumed_at = CUT_OFF[fate]
    trial = deaths.trials[fate]
    assert deaths.outcomes(fate) == outcomes
    assert (trial.attempts[-1].start_step or 0) >= resumed_at
    assert results_of([trial])[trial.number] == deaths.undisturbed[trial.number]


def test_the_comparison_can_tell_two_trials_apart(deaths):
    one, other = (deaths.undisturbed[n] for n in (3, 4))
    assert differing({0: one}, {0: other}) == [0]
