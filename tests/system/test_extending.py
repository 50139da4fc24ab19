"""Studies that are extended, killed on the way and extended again, against one as long from the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from study_files import StudyText
from sweeps import Ended, Swept, database_url, sweep, trials_in

from sweeper.checkpoint.end import read_end
from sweeper.errors import ExactnessError
from sweeper.records.events import Notice
from sweeper.records.lengths import Extension
from sweeper.records.results import TrialRecord
from sweeper.support.paths import RunPaths

HEAD = """
class KilledOnce(keras.callbacks.Callback):
    def __init__(self, mark):
        super().__init__()
        self.mark = str(mark)

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 47 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
"""
STOPPING = (
    'keras.callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)'
)
SETTINGS = 'objective="val_loss", trials=2, sampler="random", audit="off"'


def write(path: Path, epochs: int, *, killed: bool = False) -> Path:
    """The study's file; ``killed``: its first trial is, in its third epoch."""
    mark = str(path.with_suffix(".killed"))
    kills = f", *([] if trial.number else [KilledOnce({mark!r})])"
    callbacks = f"{STOPPING}{kills}" if killed else STOPPING
    head = HEAD if killed else ""
    arguments = f"{SETTINGS}, epochs={epochs}"
    return StudyText(head=head, callbacks=callbacks, arguments=arguments).write(path)


def digest_at_end(trial: TrialRecord, runs: Path) -> str:
    """Of the model as training left it."""
    end = RunPaths(runs, trial.study).end_model(trial.number)
    found = read_end([end], [Path(c.path) for c in trial.checkpoints])
    assert found is not None
    assert found.digest != trial.digest, "the end of training changes this model"
    return found.digest


def test_a_study_extended_twice_and_killed_equals_one_as_long_from_its_beginning(
    tmp_path: Path, here: Callable[..., Ended]
) -> None:
    whole = sweep(
        write(tmp_path / "whole.py", 5),
        tmp_path / "whole",
        workers=1,
        trials=1,
        isolation="inline",
    ).trials
    file, runs = write(tmp_path / "small.py", 2, killed=True), tmp_path / "runs"
    short = sweep(file, runs, workers=1, isolation="inline").trials
    assert short[0].digest != whole[0].digest

    further = sweep(file, runs, workers=1, extension=Extension(3))
    assert further.trials[0].epochs == whole[0].epochs[:3]
    for trial, before, ends in zip(further.trials, short, (["crashed"], []), strict=True):
        assert [a.outcome for a in trial.attempts] == ["complete", *ends, "complete"]
        assert len(trial.epochs) == 3
        assert trial.epochs[:2] == before.epochs
        assert trial.lengths[0] == before.lengths[0]
    assert further.results.status.trials[0].epochs == 3

    flags = ("--storage", database_url(runs), "--runs-dir", runs, "--workers", 1)
    extended = here("extend", "small", "--epochs", 5, "--trial", 0, *flags, cwd=tmp_path)
    assert extended.code == 0, extended.err
    assert "study 'small': trial 0 trains on to 5 epochs" in extended.err
    assert "epochs: 5 for trial 0; 3 for trial 1" in extended.out
    first, second = trials_in(runs)
    assert second == further.trials[1], "what is not extended is not touched"
    assert (first.digest, first.value, first.epochs) == (
        whole[0].digest,
        whole[0].value,
        whole[0].epochs,
    )
    assert [length.epochs for length in first.lengths] == [2, 3, 5]
    assert [a.start_step for a in first.attempts] == [0, 40, 40, 60]
    assert digest_at_end(first, runs) == digest_at_end(whole[0], tmp_path / "whole")

    verified = here("verify", "small", "--trial", 0, *flags[:4], cwd=tmp_path)
    assert verified.code == 0, verified.out + verified.err


@pytest.mark.whole
def test_a_schedule_over_all_steps_is_named_before_anything_runs(tmp_path: Path) -> None:
    rate = "keras.optimizers.schedules.CosineDecay(0.05, 20 * 2)"
    arguments = f"{SETTINGS}, epochs=2".replace("trials=2", "trials=1")
    file = StudyText(rate=rate, arguments=arguments).write(tmp_path / "small.py")
    runs = tmp_path / "runs"
    before = sweep(file, runs, workers=1)
    with pytest.raises(ExactnessError, match=r"build_model \(small\.py, line \d+\): 20 \* 2"):
        sweep(file, runs, workers=1, extension=Extension(4))
    assert sweep(file, runs, workers=1).trials == before.trials

    accepted = sweep(file, runs, workers=1, extension=Extension(4), accept_inexact=True)
    assert any("looks at the number of epochs" in message for message in notices(accepted))
    longer = StudyText(rate=rate, arguments=arguments.replace("epochs=2", "epochs=4"))
    whole = sweep(longer.write(tmp_path / "other.py"), tmp_path / "other", workers=1)
    assert accepted.trials[0].digest == whole.trials[0].digest, "the same decay, over 40 steps"


@pytest.mark.whole
def test_new_trials_of_an_extended_study_equal_those_of_a_longer_one(tmp_path: Path) -> None:
    file, runs = write(tmp_path / "small.py", 2), tmp_path / "runs"
    sweep(file, runs, workers=1, trials=1)
    more = sweep(file, runs, workers=1, trials=2, extension=Extension(3)).trials
    whole = sweep(write(tmp_path / "whole.py", 3), tmp_path / "whole", workers=1).trials
    assert [t.digest for t in more] == [t.digest for t in whole]


@pytest.mark.whole
def test_a_trial_that_stopped_by_itself_stops_there_again(tmp_path: Path) -> None:
    stopping = f"{STOPPING[:-1]}, min_delta=1e9)".replace("patience=9", "patience=1")
    arguments = f"{SETTINGS}, epochs=4".replace("trials=2", "trials=1")
    file = StudyText(callbacks=stopping, arguments=arguments).write(tmp_path / "small.py")
    runs = tmp_path / "runs"
    (before,) = sweep(file, runs, workers=1).trials
    assert len(before.epochs) < 4, "control: it stopped early"
    (after,) = sweep(file, runs, workers=1, extension=Extension(6)).trials
    assert (after.state, after.digest, after.value) == ("complete", before.digest, before.value)
    assert [(e.epochs, e.trained) for e in after.lengths] == [
        (4, len(before.epochs)),
        (6, len(before.epochs)),
    ]
    assert digest_at_end(after, runs)


@pytest.mark.whole
def test_a_pruned_trial_that_is_named_goes_on_as_if_nobody_had_pruned_it(tmp_path: Path) -> None:
    arguments = f"{SETTINGS}, epochs=3".replace("trials=2", "trials=1")
    pruner = "pruner=optuna.pruners.ThresholdPruner(upper=0.0)"
    text = StudyText(head="import optuna", arguments=f"{arguments}, {pruner}")
    file, runs = text.write(tmp_path / "small.py"), tmp_path / "runs"
    (pruned,) = sweep(file, runs, workers=1).trials
    assert (pruned.state, len(pruned.epochs)) == ("pruned", 1)
    (still,) = sweep(file, runs, workers=1, extension=Extension(4)).trials
    assert still == pruned, "a whole study's extension leaves it"
    (extended,) = sweep(file, runs, workers=1, extension=Extension(5, (0,))).trials
    longer = StudyText(arguments=arguments.replace("epochs=3", "epochs=5"))
    whole = sweep(longer.write(tmp_path / "whole.py"), tmp_path / "whole", workers=1).trials
    assert (extended.state, extended.digest) == ("complete", whole[0].digest)
    assert [(e.state, e.trained) for e in extended.lengths] == [("pruned", 1), ("complete", 5)]


def notices(swept: Swept) -> list[str]:
    return [event.message for event in swept.events if isinstance(event, Notice)]
