"""A trial's record gives its model back, or says what it keeps instead."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np
import optuna
import pytest
from small_models import Noisy, Runner, regression, same, variables
from study_files import SHORT

from sweeper import (
    CheckpointError,
    Data,
    DefinitionChangedError,
    Keep,
    RestoreError,
    Study,
    StudyFileError,
    TrialRecord,
    UnknownStudyError,
    UsageError,
    load_study,
)
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.cli.main import main


def unbuilt(trial):
    model = Noisy()
    rate = trial.suggest_float("rate", 0.01, 0.1)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", run_eagerly=True)
    return model


LARGEST = {"objective": "val_loss", "direction": "maximize", "keep": Keep(last=9)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A study of `regression` whose objective is to be large, with every epoch's checkpoint kept."""
    return Runner(tmp_path_factory.mktemp("plain"))(regression, **LARGEST)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """The same of a model that is built by its first batch and draws random numbers; the smallest is best."""
    options = {**LARGEST, "direction": "minimize"}
    return Runner(tmp_path_factory.mktemp("noisy"))(unbuilt, **options)


def saved(record, step):
    (path,) = (Path(c.path) for c in record.checkpoints if c.step == step)
    loaded = load_checkpoint(path)
    return [loaded.tensors[f"model/{i:05d}"] for i in range(len(loaded.state["model"]))]


# What its first batch builds, and what has a generator; `test_end_model.py` has the other.
def test_every_variable_of_the_asked_step_comes_back(noisy):
    best = noisy.results.best
    models = {step: best.load_model(at=step) for step in (2, 8)}
    for step, model in models.items():
        assert same(variables(model), saved(best, step))
        assert not same(variables(model), saved(best, 4))
    assert models[8].compiled


def test_the_best_is_the_kept_checkpoint_with_the_best_objective(plain, noisy):
    for ran, choose in ((noisy, min), (plain, max)):
        best = ran.results.best
        values = [e.metrics["val_loss"] for e in best.epochs]
        step = 2 * (values.index(choose(values)) + 1)

        assert same(variables(best.load_model(at="best")), saved(best, step))


def test_an_ensemble_predicts_the_mean_and_is_one_file(run, tmp_path):
    results = run(regression, epochs=1, trials=2).results
    top = results.top(2)
    assert top[0].number == results.best.number
    ensemble = top.ensemble(tmp_path / "ensemble.keras")
    x = np.random.default_rng(1).normal(size=(5, *ensemble.input_shape[1:])).astype("float32")
    single = [trial.load_model().predict(x, verbose=0) for trial in top]
    assert not np.allclose(*single)
    for model in (ensemble, keras.saving.load_model(tmp_path / "ensemble.keras")):
        assert model.predict(x, verbose=0) == pytest.approx(np.mean(single, axis=0), abs=1e-6)
    with pytest.raises(UsageError, match="complete configuration"):
        results.top(3)


def by_name(trial):
    """A model that takes and returns dictionaries."""
    rate = trial.suggest_float("rate", 0.01, 0.1)
    inputs = {name: keras.Input((6,), name=name) for name in ("left", "right")}
    joined = keras.layers.Concatenate()(list(inputs.values()))
    outputs = {name: keras.layers.Dense(2, name=name)(joined) for name in ("one", "two")}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(rate), {"one": "mse", "two": "mse"})
    return model


def test_an_ensemble_takes_and_returns_the_dictionaries_of_its_models(run, tmp_path):
    numbers = np.random.default_rng(2)
    x = {name: numbers.normal(size=(8, 6)).astype("float32") for name in ("left", "right")}
    y = {name: numbers.normal(size=(8, 2)).astype("float32") for name in ("one", "two")}

    def load_data(_trial):
        return Data(train=(x, y), validation=(x, y), batch_size=4)

    top = run(by_name, data=load_data, epochs=1, trials=2).results.top(2)
    ensemble = top.ensemble(tmp_path / "ensemble.keras")
    single = [trial.load_model().predict(x, verbose=0) for trial in top]
    for model in (ensemble, keras.saving.load_model(tmp_path / "ensemble.keras")):
        predicted = model.predict(x, verbose=0)
        assert predicted.keys() == y.keys()
        for name in y:
            mean = np.mean([outputs[name] for outputs in single], axis=0)
            assert predicted[name] == pytest.approx(mean, abs=1e-6)
    assert not np.allclose(predicted["one"], predicted["two"])


@pytest.mark.whole
def test_records_of_every_kind_give_their_model(run, plain):
    objectives = {"objective": ["val_loss", "loss"], "direction": ["minimize", "minimize"]}
    ran = run(regression, epochs=1, **objectives)
    expected = variables(ran.results.trials[0].load_model())

    assert same(variables(ran.results.status.pareto[0].load_model()), expected)
    assert same(variables(ran.results.pareto[0].load_model()), expected)
    ran = plain
    expected = variables(ran.results.best.load_model())
    status = ran.study.status(**ran.places)
    assert same(variables(status.best.load_model()), expected)
    assert same(variables(ran.study.results(**ran.places).trials[0].load_model()), expected)


def test_the_generators_of_the_process_are_as_they_were(noisy):
    for seed in (random.seed, np.random.seed, keras.utils.set_random_seed):
        seed(3)
    expected = [random.random(), np.random.random(), float(keras.random.uniform(()))]

    keras.utils.set_random_seed(3)
    noisy.results.best.load_model()

    assert expected == [random.random(), np.random.random(), float(keras.random.uniform(()))]


def error_of(ran, at, kind=CheckpointError):
    with pytest.raises(kind) as raised:
        ran.study.results(**ran.places).trials[0].load_model(at=at)
    return str(raised.value)


def test_what_is_not_there_is_an_error_that_lists_what_is(plain):
    message = error_of(plain, 9)
    assert "trial 0 of study 'small' has no checkpoint of step 9" in message
    assert "2 (1 epoch), 4 (2 epochs), 6 (3 epochs), 8 (4 epochs): at=8" in message
    assert "at='last'" in error_of(plain, "last", UsageError)


def test_a_trial_that_came_to_no_end_has_its_newest_checkpoint(run):
    class Raises(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                raise ValueError

    ran = run(regression, callbacks=lambda _: [Raises()], failing_alike=None)
    assert ran.results.trials[0].state == "failed"
    message = error_of(ran, "end")
    assert "trial 0 of study 'small' failed before the end of its training" in message
    assert "2 (1 epoch), 4 (2 epochs): at=4" in message
    model = ran.results.trials[0].load_model(at=4)
    assert same(variables(model), saved(ran.results.trials[0], 4))


def test_a_pruned_trial_has_no_end_and_its_newest_checkpoint(run):
    """Its value is that of its best epoch, too, where that is what counts."""
    pruner = optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=1)
    ran = run(regression, objective="loss", direction="maximize", at="best", pruner=pruner)
    (trial,) = ran.results.trials

    assert (trial.state, len(trial.epochs)) == ("pruned", 2)
    assert trial.value == max(e.metrics["loss"] for e in trial.epochs)
    assert "trial 0 of study 'small' was pruned before the end" in error_of(ran, "end")
    assert same(variables(trial.load_model(at=4)), saved(trial, 4))


def test_a_record_from_elsewhere_says_how_to_get_one(run):
    record = TrialRecord("small", 3, "complete", {}, 0.1, 1, "d")
    with pytest.raises(UsageError, match=r"trial 3 was not read from a study.*study\.results"):
        record.load_model()


def test_changed_code_is_refused_and_shapes_are_checked_in_any_case(run, plain):
    ran = plain
    wider = partial(regression, units=20)
    changed = Study(model=wider, **{**run.defaults, **LARGEST})
    trial = changed.results(**ran.places).trials[0]

    with pytest.raises(DefinitionChangedError) as refused:
        trial.load_model()
    assert "the model of trial 0 of study 'small' cannot be built" in str(refused.value)
    assert "accept_changes=True" in str(refused.value)
    with (
        pytest.warns(UserWarning, match="continued because of --accept-changes"),
        pytest.raises(RestoreError) as misfit,
    ):
        trial.load_model(accept_changes=True)
    path = Path(ran.results.best.checkpoints[-1].path)
    lines = str(misfit.value).splitlines()
    assert f"checkpoint {path} does not fit" in lines[0]
    assert lines[1].endswith("/kernel) is float32[6, 20], and float32[6, 3] in it")


@pytest.fixture(scope="module")
def file_study(tmp_path_factory):
    options = 'objective="loss", epochs=2, trials=1, audit="off", threads=1, sampler="random"'
    text = replace(SHORT, name="from-a-file", arguments=options)
    file = text.write(tmp_path_factory.mktemp("file") / "stored_file_study.py")
    study = load_study(file)
    study.run(isolation="inline", listener=lambda _: None, runs_dir=file.parent / "runs")
    return file


def test_a_stored_study_is_read_by_its_name_and_its_code_found(file_study):
    results = load_study("from-a-file", runs_dir=file_study.parent / "runs")

    assert not isinstance(results, Study)
    assert results.status().complete == 1
    assert results.best.number == 0
    assert results.definition.name == "from-a-file"
    model = results.trials[0].load_model()
    assert same(variables(model), saved(results.trials[0], 4))
    assert results.run(isolation="inline", listener=lambda _: None).best.number == 0


@pytest.fixture
def moved(file_study):
    """The file under another name, for the time of a test."""
    moved = file_study.rename(file_study.with_name("elsewhere.py"))
    yield moved
    moved.rename(file_study)


def test_a_study_whose_code_is_gone_is_read_and_says_how_to_give_it(file_study, moved):
    results = load_study("from-a-file", runs_dir=file_study.parent / "runs")
    assert not isinstance(results, Study)

    pattern = rf"'from-a-file' was defined in {file_study}, which is gone.*source='FILE"
    with pytest.raises(StudyFileError, match=pattern):
        results.trials[0].load_model()
    with_source = load_study("from-a-file", runs_dir=file_study.parent / "runs", source=str(moved))
    assert not isinstance(with_source, Study)
    assert same(variables(with_source.trials[0].load_model()), saved(results.trials[0], 4))


def test_a_name_that_nothing_has_is_an_error(tmp_path):
    with pytest.raises(UnknownStudyError, match=f"'no-such-study' in sqlite:///{tmp_path}"):
        load_study("no-such-study", runs_dir=tmp_path)


@pytest.mark.whole
def test_a_copied_database_gives_the_same_models(plain, tmp_path):
    ran = plain.copy(tmp_path)
    expected = {key: variables(ran.results.best.load_model(at=key)) for key in ("end", "best", 4)}
    database = ran.places["runs_dir"] / "sweeper.db"
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    assert main(["db", "copy", f"sqlite:///{database}", copy]) == 0
    database.unlink()
    copied = ran.study.results(storage=copy, **ran.places).best
    for key, values in expected.items():
        assert same(variables(copied.load_model(at=key)), values)
