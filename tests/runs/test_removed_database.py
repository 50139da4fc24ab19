"""A database file that is removed under a running study ends the run with an error."""

import shutil
import threading
import time
from pathlib import Path

import pytest
from scripted_trials import scripted_sweep, train_until_stopped

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import DatabaseUnavailableError
from sweeper.run.worker.slot import serve_slot


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_database_that_is_removed_under_a_run_ends_it_with_an_error(tmp_path, how):
    running = threading.Event()

    def script(trial):
        checkpoint = Path(trial.assignment.checkpoints[-1]) / "step-000000001"
        checkpoint.mkdir(parents=True)
        running.set()
        return train_until_stopped(trial)

    with scripted_sweep(tmp_path, {None: script}, trials=2) as sweep:
        slot = threading.Thread(target=serve_slot, args=(sweep.context,), daemon=True)
        slot.start()
        assert running.wait(10)
        file = tmp_path / "scripted.db"
        if how == "replaced":
            shutil.copy(file, tmp_path / "other")
            (tmp_path / "other").replace(file)
        else:
            file.unlink()
        began = time.monotonic()
        slot.join(20)
        assert not slot.is_alive()
        assert time.monotonic() - began < 15
        error = sweep.context.error
        assert isinstance(error, DatabaseUnavailableError)
        message = {"removed": "was removed", "replaced": "was replaced by another file"}[how]
        assert message in str(error)
        assert "checkpoints are not affected" in str(error)
        assert list(tmp_path.rglob("step-000000001"))
        assert len(sweep.launcher.launched) == 1, "nothing more is begun"
        assert file.exists() == (how == "replaced"), "no empty file takes its place"


def test_control_a_database_that_stays_is_none_the_worse_for_being_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Database.open("sqlite:///relative.db", create=True) as database:
        monkeypatch.chdir("/")
        assert Repository(database).study_names() == ()
