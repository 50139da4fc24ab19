"""Bad input ends in one clear message and the right exit code, and leaves nothing half-written.

Every message of the command line is in `tests/cli/bad_input.py`; here is what takes a study that runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from study_files import StudyText
from sweeps import Ended, command, trials_in

from sweeper.records.results import TrialRecord


def check_refused(ended: Ended, code: int, *texts: str) -> None:
    assert ended.code == code, ended.err
    assert ended.out == ""
    assert ended.err.count("error: ") == 1, ended.err
    for text in texts:
        assert text in ended.err
    assert "sweeper/run" not in ended.err, "a traceback of ours"


def written(directory: Path) -> list[str]:
    return [p.name for p in directory.iterdir() if p.suffix != ".py" and p.name != "__pycache__"]


def test_a_module_that_cannot_be_imported_shows_its_own_traceback_once(tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text("def work():\n    raise KeyError('colour')\n")
    file = tmp_path / "broken.py"
    file.write_text("import sibling\n\nsibling.work()\n")
    ended = command("run", file, cwd=tmp_path)
    where = f"importing {file} raised KeyError: 'colour' ({tmp_path / 'sibling.py'}, line 2)"
    check_refused(ended, 1, where)
    assert ended.err.count("Traceback") == 1
    first = ended.err.split("Traceback (most recent call last):\n")[1].splitlines()[0]
    assert first == f'  File "{file}", line 3, in <module>'
    assert written(tmp_path) == []


def test_more_trials_than_the_grid_has_points(tmp_path: Path, here: Callable[..., Ended]) -> None:
    arguments = 'epochs=1, trials=3, sampler="grid", grid={"learning_rate": [0.1, 0.2]}'
    file = StudyText(arguments=arguments).write(tmp_path / "grid.py")
    check_refused(here("run", file, cwd=tmp_path), 1, "trials=3, but the grid has 2 points")
    assert written(tmp_path) == []


# ----------------------------------------------------------------------------- one trial's faults

FAULTS = StudyText(
    name="faults",
    head="""
    def spoilt(model, fault):
        if fault == "nothing returned":
            return None
        bare = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
        if fault == "no such metric":
            bare.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return bare if fault in ("not compiled", "no such metric") else model
    """,
    model='fault = trial.suggest_categorical("fault", FAULTS)',
    data="""
    if trial.params["fault"] == "lengths":
        y = y[:150]
    """,
    metrics='"accuracy"',
    rate='1e30 if fault == "nan" else 0.01',
    tail="""
    well = build_model
    study.model = lambda trial: spoilt(well(trial), trial.params["fault"])
    """,
    arguments="""objective="val_accuracy", direction="maximize", epochs=1, trials=6,
    sampler="grid", grid={"fault": FAULTS}, audit="off", nonfinite="fail", threads=1""",
)
# The first one trains: where no trial has a value yet, the study is to blame for some of the others.
FAULT_NAMES = ["none", "nothing returned", "not compiled", "no such metric", "lengths", "nan"]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, dict[str, TrialRecord]]:
    directory = tmp_path_factory.mktemp("faults")
    text = str(FAULTS).replace("\ndef spoilt", f"\nFAULTS = {FAULT_NAMES!r}\n\n\ndef spoilt")
    file = directory / "faults.py"
    file.write_text(text)
    ended = command("run", file, "--workers", 1, cwd=directory)
    return ended, dict(zip(FAULT_NAMES, trials_in(directory / "runs", "faults"), strict=True))


def test_failed_trials_stop_no_study(faults: tuple[Ended, dict[str, TrialRecord]]) -> None:
    ended, trials = faults
    assert ended.code == 3, ended.err
    assert trials["none"].state == "complete"
    assert "Traceback" not in ended.err
    assert all(t.state == "failed" and len(t.attempts) == 1 for t in list(trials.values())[1:])


@pytest.mark.parametrize(
    ("fault", "kind", "texts"),
    [
        ("nothing returned", "FactoryError", ["<lambda> returned None", "does it end with"]),
        ("not compiled", "FactoryError", ["not compiled", "model.compile("]),
        ("no such metric", "ObjectiveError", ["'val_accuracy'", "it reports 'loss', 'val_loss'"]),
        ("lengths", "DataError", ["160", "150"]),
        ("nan", "NonFiniteError", ["loss is nan", "epoch 1 of 1"]),
    ],
)
def test_a_trials_fault_is_one_clear_message_kept_with_the_trial(
    faults: tuple[Ended, dict[str, TrialRecord]], fault: str, kind: str, texts: list[str]
) -> None:
    ended, trials = faults
    error = trials[fault].attempts[0].error or ""
    assert error.startswith(f"{kind}: ")
    assert all(text in error for text in texts), error
    assert f"trial {trials[fault].number} failed: {kind}" in ended.err


# ------------------------------------------------------------------------------------- databases


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arguments = 'epochs=1, trials=1, sampler="random", audit="off"'
    return StudyText(arguments=arguments).write(tmp_path_factory.mktemp("small") / "small.py")


def test_a_database_that_is_none(small: Path, tmp_path: Path, here: Callable[..., Ended]) -> None:
    file = tmp_path / "notes.db"
    file.write_text("these are notes, but no database, but they must stay as they are\n" * 100)
    before = file.read_bytes()
    ended = here("run", small, "--storage", f"sqlite:///{file}", cwd=tmp_path)
    check_refused(ended, 1, str(file))
    assert file.read_bytes() == before
    assert written(tmp_path) == ["notes.db"]


def test_a_database_that_cannot_be_opened(
    small: Path, tmp_path: Path, here: Callable[..., Ended]
) -> None:
    (tmp_path / "file").write_text("")
    url = f"sqlite:///{tmp_path / 'file' / 'below' / 'sweeper.db'}"
    check_refused(here("run", small, "--storage", url, cwd=tmp_path), 1, "file")
    assert written(tmp_path) == ["file"]
    ended = here("run", small, "--storage", "mysql://localhost/x", cwd=tmp_path)
    check_refused(ended, 1, "mysql")
    ended = here("run", small, "--storage", "postgresql://127.0.0.1:1/x", cwd=tmp_path)
    check_refused(ended, 1, "127.0.0.1:1")
    assert written(tmp_path) == ["file"]


def test_a_database_that_is_newer(small: Path, tmp_path: Path, here: Callable[..., Ended]) -> None:
    assert here("run", small, "--isolation", "inline", cwd=tmp_path).code == 0
    database = tmp_path / "runs" / "sweeper.db"
    with sqlite3.connect(database) as connection:
        names = [row[0] for row in connection.execute("select name from sqlite_master")]
        [table] = {n for n in names if n.startswith("sweeper") and "version" in n}
        connection.execute(f"update {table} set version_num = 'r9999'")
    connection.close()
    ended = here("run", small, "--trials", 2, cwd=tmp_path)
    check_refused(ended, 1, "r9999")
    with sqlite3.connect(database) as connection:
        assert connection.execute("select count(*) from sweeper_trials").fetchone() == (1,)
    connection.close()
