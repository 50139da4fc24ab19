"""A study with repeats and its confirmation, killed again and again, end as those that were not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from databases import postgresql_database
from study_files import StudyText
from sweeps import Ended, RunningCommand

from sweeper.db.database import Database
from sweeper.db.repository import Repository

Here = Callable[..., Ended]

STUDY = StudyText(
    rate='trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)',
    arguments="""objective="val_loss", epochs=12, trials=12, repeats=3, sampler="tpe",
    concurrency=2, audit="off", seed=5, checkpoint_every=Every(steps=7)""",
)
CONFIRM = ("confirm", "small", "--best", 3, "--repeats", 2, "--at-most", 4)


def outcome(storage: str) -> dict[str, Any]:
    """What must not depend on workers, kills or the database: trials, and verdicts on configurations."""
    with Database.open(storage, create=False) as database:
        repository = Repository(database)
        return {
            study: (
                [(t.number, t.seed, t.params, t.value, t.digest) for t in repository.trials(study)],
                [each.to_json() for each in repository.status(study).configurations],
            )
            for study in ("small", "small~confirm")
        }


def swept(cwd: Path, storage: str, workers: int, here: Here, *, kills: int) -> dict[str, Any]:
    """Run the study and confirm it, each under half of ``kills`` SIGKILLs to its group."""
    cwd.mkdir()
    STUDY.write(cwd / "small.py")
    chance = random.Random(kills)
    for first, name in ((("run", "small.py"), "small"), (CONFIRM, "small~confirm")):
        words: tuple[object, ...] = first
        for _ in range(kills // 2):
            arguments = (*words, "--workers", workers, "--storage", storage, "-v")
            with RunningCommand(*arguments, cwd=cwd) as running:
                for _ in range(chance.randint(1, 9)):
                    if not running.wait_for("epoch"):
                        break
                running.kill_group()
            words = ("resume", name)
        ended = here(*words, "--workers", workers, "--storage", storage, "-q", cwd=cwd)
        assert ended.code == 0, ended.err
    return outcome(storage)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Here], dict[str, Any]]:
    """Function that gives the outcome without kills, by one worker on SQLite, run once."""
    found: dict[str, Any] = {}

    def run(here: Here) -> dict[str, Any]:
        if not found:
            directory = tmp_path_factory.mktemp("undisturbed") / "study"
            storage = f"sqlite:///{directory}/sweeper.db"
            found.update(swept(directory, storage, 1, here, kills=0))
        return found

    return run


@pytest.mark.chaos
def test_two_kills_change_nothing(tmp_path: Path, here: Here, undisturbed: Any) -> None:
    directory = tmp_path / "killed"
    storage = f"sqlite:///{directory}/sweeper.db"
    whole = undisturbed(here)
    assert swept(directory, storage, 2, here, kills=2) == whole
    trials, configurations = whole["small"]
    assert len(trials) == 12
    assert len(configurations) == 4
    assert len({seed for _, seed, *_ in trials}) == 3, "seeds pair over configurations"


@pytest.mark.chaos
@pytest.mark.parametrize("workers", [1, 2])
def test_ten_kills_on_postgresql_change_nothing(
    workers: int, tmp_path: Path, here: Here, undisturbed: Any
) -> None:
    whole = undisturbed(here)
    with postgresql_database() as server:
        assert swept(tmp_path / "killed", server.url, workers, here, kills=10) == whole


@pytest.mark.chaos
def test_control_what_is_compared_tells_trials_apart(undisturbed: Any, here: Here) -> None:
    trials, _ = undisturbed(here)["small"]
    assert len({json.dumps(params) for _, _, params, *_ in trials}) == 4
    assert len({digest for *_, digest in trials}) == 12
