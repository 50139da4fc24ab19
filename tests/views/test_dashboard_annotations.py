"""What optuna-dashboard is given to show: reasons, attempts, names, plots, files; and by whom."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from optuna.artifacts import get_all_artifact_meta
from optuna_dashboard import get_note, save_note
from written_study import ERROR, SEED, STUDY, write_study

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, WorkerIdentity
from sweeper.records.results import EpochRecord, StudyResults
from sweeper.views.dashboard.annotating import (
    BELOW,
    LONGEST,
    NAMES,
    AnnotatingApplication,
    Annotator,
    ArtifactFiles,
    joined_note,
    saved_plots,
    trial_attributes,
)
from sweeper.views.pages.content import Advice

ADVICE = Advice(lambda status: [f"sweeper resume {status.study}"])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with the written study, to be copied."""
    runs = tmp_path_factory.mktemp("written")
    with Database.open(f"sqlite:///{runs}/sweeper.db", create=True) as database:
        write_study(Repository(database))
    return runs


@pytest.fixture
def runs(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "runs")
    (tmp_path / "runs" / STUDY).mkdir()
    return tmp_path / "runs"


@pytest.fixture
def repository(runs: Path) -> Iterator[Repository]:
    with Database.open(f"sqlite:///{runs}/sweeper.db", create=False) as database:
        yield Repository(database)


@contextmanager
def optunas(repository: Repository) -> Iterator[optuna.Study]:
    """The study as any of Optuna's tools sees it."""
    storage = repository.database.optuna_storage()
    try:
        yield optuna.load_study(study_name=STUDY, storage=storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def annotator(repository: Repository, runs: Path, said: list[str] | None = None) -> Annotator:
    return Annotator(lambda: repository, runs, ADVICE, ([] if said is None else said).append)


def annotate(repository: Repository, runs: Path) -> None:
    assert annotator(repository, runs).annotate(repository, STUDY)


def end_running_trial(repository: Repository, value: float) -> None:
    """Give the trial that waits another attempt, and have it complete."""
    claim = repository.claim(STUDY, WorkerIdentity.here(), lambda number: number)
    assert isinstance(claim, Claim)
    repository.finish(claim.token, Ending("complete", 20, value, "e" * 32))


def test_each_trial_says_what_optunas_tables_cannot(repository: Repository, runs: Path) -> None:
    annotate(repository, runs)
    with optunas(repository) as study:
        found = {trial.number: trial.user_attrs for trial in study.get_trials()}
        assert study.metric_names == ["val_accuracy"]
    resumed, best, failed, interrupted, running = (found[number] for number in range(5))
    assert (resumed["attempts"], resumed["resumed from step"]) == (2, "20")
    assert "which Duration includes" in resumed["paused"]
    assert (best["attempts"], best["digest"], best["seed"]) == (1, "b" * 32, str(SEED + 1))
    assert "paused" not in best
    assert failed["failed because"] == ERROR.splitlines()[-1]
    assert interrupted["interrupted"].startswith("waits to be resumed; attempt 1 interrupted")
    assert not {"interrupted", "failed because", "worked"} & set(running)
    assert {name for attributes in found.values() for name in attributes} <= set(NAMES)


def test_what_no_longer_holds_is_deleted(repository: Repository, runs: Path) -> None:
    annotate(repository, runs)
    end_running_trial(repository, 0.5)
    annotate(repository, runs)
    with optunas(repository) as study:
        attributes = study.get_trials()[3].user_attrs
    assert "interrupted" not in attributes
    assert attributes["attempts"] == 2


def test_a_running_trials_attributes_stand_still(repository: Repository) -> None:
    """So that looking at it writes nothing."""
    running = repository.trial(STUDY, 4)
    moments = (datetime(2030, 1, day, tzinfo=UTC) for day in (1, 2))
    first, second = (trial_attributes(running, moment) for moment in moments)
    assert first == second
    assert running.state == "running"


def test_the_note_has_the_study_in_it_and_keeps_what_a_person_wrote(
    repository: Repository, runs: Path
) -> None:
    annotate(repository, runs)
    with optunas(repository) as study:
        note = get_note(study)
        assert f"(/sweeper/studies/{STUDY})" in note
        for said in ("maximize `val_accuracy`", "seed 7", "2 complete", "1 interrupted", "trial 1"):
            assert said in note
        assert f"sweeper resume {STUDY}" in note
        save_note(study, f"Mine: **read this**.\n\n{note}")
    end_running_trial(repository, 0.99)
    annotate(repository, runs)
    with optunas(repository) as study:
        note = get_note(study)
    assert note.startswith("Mine: **read this**.\n\n")
    assert note.count(BELOW) == 1
    assert "3 complete" in note


def test_a_note_without_ours_is_all_a_persons() -> None:
    assert joined_note("theirs", f"{BELOW} ours") == f"theirs\n\n{BELOW} ours"
    assert joined_note("", f"{BELOW} ours") == f"{BELOW} ours"


def test_plots_are_kept_and_bounded_however_long_a_study_is(
    repository: Repository, runs: Path
) -> None:
    annotate(repository, runs)
    kept = repository.annotations.of_study(STUDY).values
    for name in ("learning-curves", "attempts"):
        parts = {k: v for k, v in kept.items() if k.startswith(f"dashboard:plot_data:{name}:")}
        figure = json.loads("".join(parts[key] for key in sorted(parts, key=_index)))
        assert figure["data"]
    trial = repository.trial(STUDY, 1)
    values = [EpochRecord(n, {"val_accuracy": n / 3_000}) for n in range(3_000)]
    long = StudyResults(
        repository.status(STUDY),
        tuple(_numbered(trial, number, tuple(values)) for number in range(300)),
    )
    plots = saved_plots(long)
    assert set(plots) == {"learning-curves", "attempts"}
    assert all(len(figure.to_json()) < LONGEST for figure in plots.values())


def _index(key: str) -> int:
    return int(key.rpartition(":")[2])


def _numbered(trial: Any, number: int, epochs: tuple[EpochRecord, ...]) -> Any:
    from dataclasses import replace

    return replace(trial, number=number, epochs=epochs)


def test_the_best_trials_picture_and_exports_are_offered_until_another_is_best(
    repository: Repository, runs: Path
) -> None:
    exports = runs / STUDY / "exports"
    exports.mkdir()
    for name, trial in (("best.keras", 1), ("other.keras", 0)):
        (exports / name).write_bytes(b"model " + name.encode())
        card = {"study": STUDY, "trial": trial}
        (exports / f"{name}.json").write_text(json.dumps(card))
    (exports / "unfinished.keras").write_bytes(b"no card yet")
    annotate(repository, runs)
    assert _offered(repository, runs) == {"best-trial-1.png": b"\x89PNG", "best.keras": b"mode"}
    before = list((runs / STUDY / "artifacts").iterdir())
    annotate(repository, runs)
    assert list((runs / STUDY / "artifacts").iterdir()) == before
    end_running_trial(repository, 0.99)
    annotate(repository, runs)
    # No epoch of the new best one has the objective's curve but those of its first attempt.
    assert set(_offered(repository, runs)) == {"best-trial-3.png"}
    assert len(list((runs / STUDY / "artifacts").iterdir())) == 1


def _offered(repository: Repository, runs: Path) -> dict[str, bytes]:
    """The first bytes of each artifact of the study, by its file's name."""
    store = ArtifactFiles(runs)
    found = {}
    with optunas(repository) as study:
        for meta in get_all_artifact_meta(study_or_trial=study):
            with store.open_reader(meta.artifact_id) as file:
                found[meta.filename] = file.read(4)
    return found


@pytest.mark.parametrize("artifact_id", ["../../sweeper.db", "/etc/passwd", "a" * 36, "", "x"])
def test_an_artifact_is_looked_for_in_its_own_place_only(runs: Path, artifact_id: str) -> None:
    from optuna_dashboard.artifact.exceptions import ArtifactNotFound

    with pytest.raises(ArtifactNotFound):
        ArtifactFiles(runs).open_reader(artifact_id)
    with pytest.raises(ValueError, match="no study"):
        ArtifactFiles(runs).write(artifact_id, None)  # type: ignore[arg-type]


def test_two_dashboards_at_once_leave_what_one_would(repository: Repository, runs: Path) -> None:
    both = [annotator(repository, runs) for _ in range(2)]
    ready = threading.Barrier(2)

    def at_once(one: Annotator) -> None:
        ready.wait()
        one.annotate(repository, STUDY)

    threads = [threading.Thread(target=at_once, args=(one,)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    annotate(repository, runs)
    with optunas(repository) as study:
        assert get_note(study).count(BELOW) == 1
        offered = [meta.artifact_id for meta in get_all_artifact_meta(study_or_trial=study)]
    assert sorted(path.name for path in (runs / STUDY / "artifacts").iterdir()) == offered
    assert len(offered) == 1


def test_nothing_is_written_where_nothing_has_changed(
    repository: Repository, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotate(repository, runs)
    writes: list[Any] = []
    real = Database.write

    def counted(self: Database, work: Any) -> Any:
        writes.append(work)
        return real(self, work)

    monkeypatch.setattr(Database, "write", counted)
    annotate(repository, runs)
    assert writes == []
    end_running_trial(repository, 0.99)
    writes.clear()
    annotate(repository, runs)
    assert writes, "the control: a change is written"


def test_a_look_soon_after_another_reads_nothing(repository: Repository, runs: Path) -> None:
    one = annotator(repository, runs)
    assert one.annotate(repository, STUDY)
    assert not one.annotate(repository, STUDY)
    assert annotator(repository, runs).annotate(repository, STUDY), "another dashboard's own look"


def test_what_goes_wrong_is_said_once_and_the_page_is_answered(
    repository: Repository, runs: Path
) -> None:
    said: list[str] = []

    def away() -> Repository:
        msg = "the database is away"
        raise OSError(msg)

    def page(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"page"]

    application = AnnotatingApplication(
        page,  # type: ignore[arg-type]
        Annotator(away, runs, ADVICE, said.append),
    )
    for _ in range(2):
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        environ["PATH_INFO"] = "/api/studies/1"
        assert list(application(environ, lambda *_: print)) == [b"page"]  # type: ignore[arg-type]
    assert said == ["notes and plots are not up to date: OSError: the database is away"]


def test_only_the_study_that_is_looked_at_is_written(repository: Repository, runs: Path) -> None:
    write_study(repository, "other", trials=5)
    ids = repository.annotations.optuna_ids()
    annotator(repository, runs).look(ids["other"])
    annotator(repository, runs).look(999)
    assert repository.annotations.of_study(STUDY).values == {}
    assert repository.annotations.of_study("other").values != {}


def test_an_artifacts_reader_is_closed_with_its_file(repository: Repository, runs: Path) -> None:
    annotate(repository, runs)
    [path] = (runs / STUDY / "artifacts").iterdir()
    store = ArtifactFiles(runs, STUDY)
    with closing(store.open_reader(path.name)) as file:
        assert file.read() == path.read_bytes()
    store.remove(path.name)
    store.remove(path.name)
    assert not path.exists()
