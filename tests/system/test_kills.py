"""A study killed again and again ends as one that never was: the second and the third promise."""

from __future__ import annotations

import random
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from interruptions import INTERRUPTED_STUDY, WholeRun
from study_files import StudyText
from sweeps import RunningCommand, command, differing, results_of, sweep, trials_in

from sweeper.records.results import TrialRecord
from sweeper.train.loop import loop

STEPS_AN_EPOCH = 20
INSIDE = ("make_directory", "create", "write", "fsync", "fsync_directory", "rename", "remove")


@dataclass
class Kills:
    """What was hit, over one study.

    Attributes:
        commits: Kills inside a checkpoint's commit or deletion: it left unfinished work behind.
    """

    kills: int = 0
    commits: int = 0
    runs: int = 0


def unfinished(runs: Path) -> set[Path]:
    return {p for p in runs.rglob(".*-step-*") if p.is_dir()}


def steps_kept(runs: Path) -> int:
    """How many steps of a study are in checkpoints, over all trials."""
    furthest: dict[str, int] = {}
    for path in runs.glob("*/trial-*/attempt-*/checkpoints/step-*"):
        trial, step = path.parts[-4], int(path.name.removeprefix("step-"))
        furthest[trial] = max(step, furthest.get(trial, 0))
    return sum(furthest.values())


def killed_sweep(
    whole: WholeRun, study: str, runs: Path, *, kills: int, seed: int
) -> tuple[Kills, tuple[TrialRecord, ...]]:
    """Run the study of ``whole`` under ``kills`` SIGKILLs to its process group.

    Every third kill comes from within a commit. The others come once so many steps are in checkpoints,
    and up to a tenth of a second later: the k-th of n somewhere in the k-th of n equal parts of the
    first three quarters of what the undisturbed run trained. So it does not matter how fast the machine
    happens to be.
    """
    chance = random.Random(seed)
    part = 0.75 * steps_kept(whole.runs) / (kills - kills // 3)
    killed = Kills()
    flags = ["--workers", 2, "--runs-dir", runs]
    words: list[object] = ["run", whole.file, *flags]
    while killed.kills < kills:
        env = {}
        inside = killed.kills % 3 == 2
        if inside:
            env["SWEEPER_TEST_KILL_INSIDE"] = f"{chance.choice(INSIDE)}:{chance.randint(1, 12)}"
        before = unfinished(runs)
        killed.runs += 1
        with RunningCommand(*words, cwd=whole.file.parent, env=env) as run:
            if inside:
                code = run.end()
            else:
                due = part * (killed.kills - killed.kills // 3 + chance.random())
                run.wait_for(" attempt ", "learning_rate=")
                while steps_kept(runs) < due and run.process.poll() is None:
                    time.sleep(0.02)
                time.sleep(chance.uniform(0, 0.1))
                run.kill_group()
                code = run.process.returncode
        if code == 0:
            break
        assert code == -9, f"{env}: {run.err}"
        killed.kills += 1
        killed.commits += bool(unfinished(runs) - before)
        words = ["resume", study, *flags]
    last = command(*words, cwd=whole.file.parent)
    assert last.code == 0, last.err
    return killed, trials_in(runs, study)


def check(
    whole: WholeRun, killed: Kills, trials: tuple[TrialRecord, ...], capsys: pytest.CaptureFixture
) -> None:
    attempts = [attempt for trial in trials for attempt in trial.attempts]
    resumed = [a for a in attempts if a.number > 1]
    past_zero = [a for a in resumed if a.start_step]
    inside_epochs = [a for a in past_zero if a.start_step % STEPS_AN_EPOCH]
    outcomes = Counter(a.outcome for a in attempts)
    with capsys.disabled():
        print(
            f"\n{killed.kills} kills of {len(trials)} trials: {len(attempts)} attempts "
            f"({dict(outcomes)}), {len(resumed)} resumed, {len(past_zero)} past step 0, "
            f"{len(inside_epochs)} inside an epoch, {killed.commits} kills inside a commit; "
            f"the undisturbed run took {whole.seconds:.1f} s",
            file=sys.stderr,
        )
    assert differing(whole.results, results_of(trials)) == []
    assert [t.number for t in trials] == list(range(len(whole.results)))
    for trial in trials:
        assert [a.outcome for a in trial.attempts].count("complete") == 1
        assert trial.attempts[-1].outcome == "complete"
        starts = [a.start_step for a in trial.attempts if a.start_step is not None]
        assert starts == sorted(starts), "an attempt began before what an earlier one had reached"
    assert set(outcomes) == {"complete", "lost"}
    assert len(past_zero) >= len(resumed) / 2
    assert inside_epochs
    assert killed.commits


SEED = 76
"""Of when kills come: those between commits leave a third of the study to the last one."""


@pytest.fixture(scope="session")
def short(short: StudyText) -> StudyText:
    """With a trial for each worker."""
    assert "trials=3" in short.arguments
    return replace(short, arguments=short.arguments.replace("trials=3", "trials=2"))


def test_kills_change_no_result(
    whole: WholeRun, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Two kills between commits, and one from within one."""
    killed, trials = killed_sweep(whole, "small", tmp_path / "runs", kills=3, seed=SEED)
    assert killed.kills >= 2
    check(whole, killed, trials, capsys)
    assert not unfinished(tmp_path / "runs"), "a resumed trial removes what dead attempts left"


@pytest.mark.chaos
def test_two_hundred_kills_change_no_result(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    study = StudyText(
        **{
            **vars(INTERRUPTED_STUDY),
            "name": "chaos",
            "arguments": INTERRUPTED_STUDY.arguments.replace("trials=6", "trials=40"),
        }
    )
    whole = WholeRun(study.write(tmp_path / "chaos.py"), tmp_path / "whole", study="chaos")
    killed, trials = killed_sweep(whole, "chaos", tmp_path / "killed", kills=200, seed=2)
    assert killed.kills >= 150
    check(whole, killed, trials, capsys)


CONTROLS = StudyText(
    name="controls",
    head='''
    from sweeper.checkpoint.operations import FileOperations
    from sweeper.train.loop import loop
    from sweeper.train.state.state import Variables, default_components


    class NoUserState:
        """What the user's objects keep is forgotten; what would be refused is let pass."""

        name = "user_state"

        def capture(self, tensors):
            return None

        def mismatches(self, saved, tensors):
            return []

        def restore(self, saved, tensors):
            pass


    def leave_out(what):
        """Have this trial's process capture less than everything."""

        def fewer(model, *rest, **options):
            kept = {c.name: c for c in default_components(model, *rest, **options)}
            if what == "seed generators":
                seeds = {id(v) for layer in model.layers for v in layer.non_trainable_variables}
                kept["model"] = Variables(
                    "model", lambda: [v for v in model.variables if id(v) not in seeds]
                )
            if what == "optimizer slots":
                optimizer = model.optimizer
                kept["optimizer"] = Variables(
                    "optimizer", lambda: [optimizer.iterations, optimizer._learning_rate]
                )
            if what == "user state":
                kept["user_state"] = NoUserState()
            return list(kept.values())

        loop.default_components = fewer


    def kill_this_process_once(trial):
        """SIGKILL to the trial's process, right after the commit of step 91, in its fifth epoch."""
        mark = trial.directory / "killed"
        if not KILL or mark.exists():
            return
        rename = FileOperations.rename

        def renaming(self, source, target):
            rename(self, source, target)
            if target.name == "step-000000091":
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        FileOperations.rename = renaming
    ''',
    model="""
    leave_out(trial.suggest_categorical("left_out", GRID))
    kill_this_process_once(trial)
    """,
    rate="0.01",
    callbacks="""
        # Never better than at first: lowered every third epoch, and later by who has forgotten that one.
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=3, mode="max"),
        keras.callbacks.EarlyStopping(monitor="loss", patience=25),
    """,
    arguments="""objective="val_loss", epochs=8, trials=len(GRID), sampler="grid",
    grid={"left_out": GRID}, audit="off", checkpoint_every=Every(steps=7)""",
)
GRID = ["nothing", "seed generators", "optimizer slots", "user state"]


@pytest.fixture(
    scope="module",
    # Seeds by default: nothing but the masks that are drawn afterwards tells that they are missing.
    params=[
        pytest.param(GRID[:2], id="seeds"),
        pytest.param(GRID, id="each", marks=pytest.mark.whole),
    ],
)
def controls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bool]:
    """Whether a killed trial ended as the undisturbed one, by what its checkpoints left out."""
    directory, grid = tmp_path_factory.mktemp("controls"), request.param
    found = []
    for kill in (False, True):
        head = f"GRID, KILL = {grid!r}, {kill}\n" + textwrap.dedent(CONTROLS.head)
        file = replace(CONTROLS, head=head).write(directory / f"controls_{kill}.py")
        with pytest.MonkeyPatch.context() as patch:
            # What an undisturbed trial, which is run in this process, leaves out is put back.
            patch.setattr(loop, "default_components", loop.default_components)
            isolation = "auto" if kill else "inline"
            trials = sweep(file, directory / f"runs-{kill}", isolation=isolation).trials
        assert [len(t.attempts) for t in trials] == [1 + int(kill)] * len(grid)
        found.append(trials)
    killed = found[1]
    assert [t.attempts[-1].start_step for t in killed] == [91] * len(grid)
    unequal = differing(results_of(found[0]), results_of(killed))
    return {str(t.params["left_out"]): t.number not in unequal for t in killed}


def test_with_nothing_left_out_a_killed_trial_ends_as_an_undisturbed_one(
    controls: dict[str, bool],
) -> None:
    assert controls["nothing"]


def test_the_comparison_notices_what_a_checkpoint_leaves_out(controls: dict[str, bool]) -> None:
    assert len(controls) > 1
    assert [left_out for left_out, same in controls.items() if same] == ["nothing"]
