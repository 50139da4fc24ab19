"""Four callbacks through four kills, and a directory that is moved and then used by two runs at once."""

import shutil
from dataclasses import replace

from study_files import SHORT
from sweeps import RunningCommand, differing, results_of, sweep, trials_in

STUDY = replace(
    SHORT,
    head="""
        from optuna.pruners import MedianPruner

        KILLS = Path(__file__).with_name("kills")

        class Dies(keras.callbacks.Callback):
            "Kills the process of trial 0 at four steps, once at each, where there is a directory for it."

            def __init__(self, trial):
                super().__init__()
                self.dies = trial.number == 0

            def on_train_batch_end(self, batch, logs=None):
                mark = KILLS / str(int(self.model.optimizer.iterations))
                if self.dies and mark.name in ("3", "8", "13", "18") and KILLS.exists():
                    if not mark.exists():
                        mark.touch()
                        os.kill(os.getpid(), signal.SIGKILL)
    """,
    data="""
        weights = {"class_weight": {0: 2.0, 1: 1.0, 2: 0.5, 3: 1.0}} if trial.number % 2 else {}
        train = (x[:16], y[:16]) if weights else (x[:16], y[:16], np.linspace(0, 1, 16))
        return Data(
            train=train, validation=(x[16:24], y[16:24]), batch_size=8, validation_freq=2, **weights
        )
    """,
    callbacks="""
        Dies(trial),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.7, patience=2, cooldown=1),
        keras.callbacks.EarlyStopping("loss", patience=6, restore_best_weights=True),
        keras.callbacks.CSVLogger(trial.directory / "epochs.csv"),
        keras.callbacks.ModelCheckpoint(
            trial.directory / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
        )
    """,
    arguments="""objective="val_loss", epochs=14, trials=3, sampler="random", audit="off",
    pruner=MedianPruner(n_startup_trials=1), retries={"crash": 9}, checkpoint_every=Every(steps=1),
    """.rstrip().rstrip(","),
)


def written(runs):
    """Return the tables that the trials wrote."""
    tables = sorted(runs.glob("small/trial-*/files/epochs.csv"))
    return [table.read_text() for table in tables]


def test_four_callbacks_four_kills_a_moved_directory_and_two_runs_at_once_change_no_result(
    tmp_path,
):
    whole, first, moved = (tmp_path / name for name in ("whole", "erste Größe", "zweite 日本"))
    whole.mkdir()
    uninterrupted = sweep(STUDY.write(whole / "small.py"), whole / "runs", workers=1)
    (first / "kills").mkdir(parents=True)
    STUDY.write(first / "small.py")
    with RunningCommand("run", "small.py", "--workers", 1, cwd=first) as run:
        # The fourth of the kills, and then that of the whole command.
        assert run.wait_for("trial 0 attempt 5 resumed")
        run.kill_group()
    shutil.move(first, moved)
    with (
        RunningCommand("run", "small.py", "--workers", 1, cwd=moved) as one,
        RunningCommand("run", "small.py", "--workers", 1, cwd=moved) as other,
    ):
        assert [one.end(), other.end()] == [0, 0], one.err + other.err
    trials = trials_in(moved / "runs")
    assert differing(results_of(uninterrupted.trials), results_of(trials)) == []
    starts = [attempt.start_step for attempt in trials[0].attempts]
    assert len(starts) == 6
    # The command that was killed may not have stored the first step of attempt 5, which it had just printed.
    assert all(starts[1:4] + starts[5:]), "each resumed from a checkpoint"
    assert written(moved / "runs") == written(whole / "runs")
    assert len(written(moved / "runs")) == 3
