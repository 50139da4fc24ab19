"""The study's file is edited while the study runs: nothing is begun under the new code."""

from contextlib import closing

import pytest
from study_files import StudyText
from sweeps import database_url, notices_of, trials_in

from sweeper.errors import DefinitionChangedError
from sweeper.records.code import CodeFingerprint
from sweeper.records.events import AttemptEnded, TrainingStarted
from sweeper.run.launch.launchers import WarmServer
from sweeper.run.launch.sources import target_source
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.run import run_sweep


def run_and_edit(directory, arguments, kind):
    """Run a study whose file is edited at events of this kind; return the messages of its notices."""
    file = StudyText(arguments=f'objective="val_loss", sampler="random", {arguments}').write(
        directory / "edited.py"
    )
    events = []

    def edit(event):
        events.append(event)
        if isinstance(event, kind):
            file.write_text(file.read_text().replace("Dropout(0.3)", "Dropout(0.4)"))

    options = WorkerOptions(1, database_url(directory), directory, isolation="spawn")
    run_sweep(RunRequest(options, edit, source=str(file)))
    return notices_of(events)


@pytest.mark.whole
def test_a_spawned_trial_runs_the_code_that_the_study_was_started_with(tmp_path):
    message = r"was edited while it runs: build_model has changed \(edited\.py, line \d+\)"
    with pytest.raises(DefinitionChangedError, match=message):
        run_and_edit(tmp_path, 'epochs=1, trials=2, audit="off"', AttemptEnded)
    states = [trial.state for trial in trials_in(tmp_path, "small")]
    assert states == ["complete", "interrupted"]


@pytest.mark.whole
def test_an_audit_under_edited_code_gives_no_verdict(tmp_path):
    notices = run_and_edit(tmp_path, "epochs=2, trials=1", TrainingStarted)
    assert [trial.state for trial in trials_in(tmp_path, "small")] == ["complete"]
    said = [notice for notice in notices if "gives no verdict" in notice]
    assert said, notices
    assert all("was edited while it runs: build_model has changed" in notice for notice in said)


def test_a_server_that_starts_again_compares_the_code(tmp_path):
    file = StudyText().write(tmp_path / "served.py")
    with closing(WarmServer(target_source(str(file)))) as server:
        server.loaded()
        source = server.source
    file.write_text(file.read_text().replace("Dropout(0.3)", "Dropout(0.4)"))
    with (
        closing(WarmServer(source)) as edited,
        pytest.raises(DefinitionChangedError, match="build_model has changed"),
    ):
        edited.loaded()
    file.write_text(file.read_text().replace("Dropout(0.4)", "Dropout(0.30)"))
    with closing(WarmServer(source)) as restored:
        assert source.code is not None
        assert restored.loaded().code == CodeFingerprint.from_json(source.code)
