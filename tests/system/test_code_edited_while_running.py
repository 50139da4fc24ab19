"""The study's file is edited while the study runs: nothing is begun under the new code."""

import pytest
from study_files import StudyText
from sweeps import database_url, trials_in

from sweeper.errors import DefinitionChangedError
from sweeper.records.code import CodeFingerprint
from sweeper.records.events import AttemptEnded, Notice, TrainingStarted
from sweeper.run.launch.launchers import WarmServer
from sweeper.run.launch.sources import target_source
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.run import run_sweep


@pytest.mark.whole
def test_a_spawned_trial_runs_the_code_that_the_study_was_started_with(tmp_path):
    text = StudyText(
        arguments='objective="val_loss", epochs=1, trials=2, sampler="random", audit="off"'
    )
    file = text.write(tmp_path / "edited.py")

    def edit(event):
        if isinstance(event, AttemptEnded):
            file.write_text(file.read_text().replace("Dropout(0.3)", "Dropout(0.4)"))

    options = WorkerOptions(1, database_url(tmp_path), tmp_path, isolation="spawn")
    request = RunRequest(options, edit, source=str(file), trials=2)
    message = r"was edited while it runs: build_model has changed \(edited\.py, line \d+\)"
    with pytest.raises(DefinitionChangedError, match=message):
        run_sweep(request)
    states = [trial.state for trial in trials_in(tmp_path, "small")]
    assert states == ["complete", "interrupted"]


@pytest.mark.whole
def test_an_audit_under_edited_code_gives_no_verdict(tmp_path):
    text = StudyText(arguments='objective="val_loss", epochs=2, trials=1, sampler="random"')
    file = text.write(tmp_path / "edited.py")
    notices = []

    def edit(event):
        if isinstance(event, TrainingStarted):
            file.write_text(file.read_text().replace("Dropout(0.3)", "Dropout(0.4)"))
        elif isinstance(event, Notice):
            notices.append(event.message)

    options = WorkerOptions(1, database_url(tmp_path), tmp_path, isolation="spawn")
    run_sweep(RunRequest(options, edit, source=str(file), trials=1))
    assert [trial.state for trial in trials_in(tmp_path, "small")] == ["complete"]
    said = [notice for notice in notices if "gives no verdict" in notice]
    assert said, notices
    assert all("was edited while it runs: build_model has changed" in notice for notice in said)


def test_a_server_that_starts_again_compares_the_code(tmp_path):
    file = StudyText().write(tmp_path / "served.py")
    server = WarmServer(target_source(str(file)))
    try:
        server.loaded()
        source = server.source
    finally:
        server.close()
    file.write_text(file.read_text().replace("Dropout(0.3)", "Dropout(0.4)"))
    edited = WarmServer(source)
    try:
        with pytest.raises(DefinitionChangedError, match="build_model has changed"):
            edited.loaded()
    finally:
        edited.close()
    file.write_text(file.read_text().replace("Dropout(0.4)", "Dropout(0.30)"))
    restored = WarmServer(source)
    try:
        assert source.code is not None
        assert restored.loaded().code == CodeFingerprint.from_json(source.code)
    finally:
        restored.close()
