"""What is said before a study is extended, and that nothing of it is changed where it is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from databases import opened_database
from plain_settings import plain_settings

from sweeper.api.study import asked_extension
from sweeper.db.attempts import Ending
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.errors import DefinitionError, UsageError
from sweeper.records.lengths import Extension
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.protocol.messages import Answered, Judge
from sweeper.run.stored_study import extend_study
from sweeper.run.trial.run import _notice_first_length
from sweeper.run.worker.slot import TrialSearch
from sweeper.support.paths import RunPaths

ROW = StudyRow("digits", {"epochs": 3}, "loss", "minimize", 4, None, 0)
TWO_OBJECTIVES = replace(
    ROW, name="two", definition={"epochs": 3, "further_objectives": [["size", "minimize"]]}
)
SETTINGS = plain_settings(name="digits", epochs=3, trials=4, pruner={"name": "MedianPruner"})


@pytest.fixture
def repository(tmp_path):
    with opened_database(tmp_path / "sweeper.db") as database:
        repository = Repository(database)
        repository.create_or_open(ROW)
        for value in (2.0, 1.0):
            claim = repository.claim("digits", WorkerIdentity.here(), lambda n: n)
            epochs = [EpochRecord(n, {"loss": value}) for n in range(3)]
            repository.record_epochs(claim.token, epochs)
            last = RunPaths(tmp_path, "digits").checkpoints(claim.number, 1) / "step-000000030"
            last.mkdir(parents=True)
            repository.record_checkpoint(claim.token, CheckpointRecord(30, 3, "d", 9, str(last)))
            repository.finish(claim.token, Ending("complete", 30, value, "d"))
        yield repository


def extend(repository, extension, row=ROW):
    events = []
    options = WorkerOptions(1, "", Path(str(repository.database.url.database)).parent)
    request = RunRequest(options, events.append, study=row.name, extension=extension)
    extend_study(repository, row.name, request)
    return events


def states(repository):
    return [trial.state for trial in repository.trials("digits")]


@pytest.mark.parametrize(("steps", "said"), [(10, True), (11, False), (None, False)])
@pytest.mark.parametrize("epochs", [5, 3])
@pytest.mark.parametrize("own", [False, True])
def test_a_schedule_with_the_first_length_as_a_constant_is_noticed_in_an_extended_trial(
    own, epochs, steps, said
):
    import keras

    class WithoutConfig(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, decay_steps):
            self.decay_steps = decay_steps

        def __call__(self, step):
            return 0.1 - 0.1 * step / self.decay_steps

    sent = []
    rate = WithoutConfig(30) if own else keras.optimizers.schedules.CosineDecay(0.1, 30)
    model = SimpleNamespace(optimizer=keras.optimizers.SGD(rate))
    _notice_first_length(3, SimpleNamespace(model=model, epochs=epochs), steps, sent.append)
    assert len(sent) == (said and epochs == 5)
    if sent:
        assert (
            f"{type(rate).__name__} has decay_steps=30, the steps of the study's first 3 epochs"
            in sent[0]
        )


def test_the_best_trials_are_extended_and_the_same_again_says_nothing(repository):
    assert extend(repository, Extension(5, best=1))
    assert states(repository) == ["complete", "interrupted"]
    assert extend(repository, Extension(5, (1,))) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (TWO_OBJECTIVES, "study 'two' has several objectives"),
        (replace(ROW, name="new"), "study 'new' has no complete trial yet"),
    ],
)
def test_a_study_that_has_no_best_trial_is_refused(repository, row, said):
    repository.create_or_open(row)
    with pytest.raises(UsageError, match=said):
        extend(repository, Extension(5, best=1), row)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"epochs": 0}, DefinitionError, "epochs=0"),
        ({"epochs": True}, DefinitionError, "epochs=True"),
        ({"epochs": 5.5}, DefinitionError, r"epochs=5\.5"),
        ({"epochs": 5, "best": 0}, DefinitionError, "best=0"),
        ({"epochs": 5, "trials": (-1,)}, DefinitionError, "trials=-1"),
        ({"epochs": 5, "trials": (1,), "best": 1}, UsageError, "both trials= and best="),
    ],
)
def test_what_python_asks_for_is_checked(given, error, message):
    with pytest.raises(error, match=message):
        asked_extension(**given)


def test_no_trial_is_judged_at_the_first_length_or_past_it():
    class Pruner:
        def judge(self, values):
            return True

    study = SimpleNamespace(settings=SETTINGS)
    claim = SimpleNamespace(params={}, number=4)
    search = TrialSearch(study, claim, queue=None, waiting=lambda: None)
    search._opened = Pruner()
    pruned = {
        epoch: search.answer(Judge(tuple((n, 1.0) for n in range(epoch + 1)))) for epoch in range(5)
    }
    ends = [epoch for epoch, answer in pruned.items() if answer == Answered(True)]
    assert ends == [0, 1], "as in a study of 3 epochs, whatever the trial's own length"
