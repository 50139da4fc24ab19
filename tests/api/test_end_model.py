"""A trial's model as training left it is what ``fit`` leaves, and is kept for good."""

import shutil

import fsspec
import keras
import pytest
from small_models import Runner, fitted, regression, same, variables, without_validation

from sweeper import CheckpointError, UnknownStudyError
from sweeper.checkpoint.reading import read_manifest
from sweeper.cli.main import main

pytestmark = pytest.mark.usefixtures("without_constant_folding")


def stopping():
    """Ends training after the second epoch, and puts the first one's weights back."""
    return [
        keras.callbacks.EarlyStopping(
            "val_loss", mode="max", patience=1, min_delta=100.0, restore_best_weights=True
        )
    ]


def normalized(trial):
    """Moving statistics, and an optimizer with slots."""
    rate = trial.suggest_float("rate", 0.01, 0.1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    return model


def averaged(trial):
    """Without a graph, as the model of the restored weights; the one with slots has one."""
    model = regression(trial)
    optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", run_eagerly=True)
    return model


UNVALIDATED = {"data": without_validation, "objective": "loss"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A study of `normalized`, for tests that read it, or a copy."""
    return Runner(tmp_path_factory.mktemp("plain"))(normalized, **UNVALIDATED)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study of `averaged`, for tests that read it, or a copy."""
    return Runner(tmp_path_factory.mktemp("averaged"))(averaged, **UNVALIDATED)


@pytest.fixture(scope="module")
def restored(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("restored"))(regression, callbacks=lambda _: stopping())


@pytest.mark.parametrize(
    ("study", "model", "callbacks", "differs"),
    [
        ("restored", regression, stopping, True),
        pytest.param("finished", averaged, list, True, marks=pytest.mark.whole),
        ("plain", normalized, list, False),
    ],
    ids=["restored-best-weights", "finished-averages", "plain"],
)
def test_the_model_at_the_end_is_what_fit_leaves(request, study, model, callbacks, differs):
    best = request.getfixturevalue(study).results.best

    keras_model = fitted(model, best.params, callbacks())

    assert same(variables(best.load_model()), variables(keras_model))
    last = best.load_model(at=best.checkpoints[-1].step)
    assert same(variables(last), variables(keras_model)) is not differs


def test_what_did_not_change_is_kept_as_a_name_and_nothing_is_written_twice(plain, finished):
    (end,) = (plain.places["runs_dir"] / "small/trial-00000/end").iterdir()
    assert read_manifest(end).tensors == ()

    (end,) = (finished.places["runs_dir"] / "small/trial-00000/end").iterdir()
    assert len(read_manifest(end).tensors) == len(finished.results.best.load_model().variables)


def test_gc_leaves_it_and_rm_takes_it(finished, tmp_path):
    ran = finished.copy(tmp_path)
    values = variables(ran.results.best.load_model())
    place = ("--runs-dir", str(ran.places["runs_dir"]))
    assert main(["gc", "small", "--keep-last", "1", *place]) == 0
    assert same(variables(ran.study.results(**ran.places).best.load_model()), values)
    assert main(["rm", "small", "--yes", *place]) == 0
    assert not (ran.places["runs_dir"] / "small").exists()


@pytest.mark.whole
def test_in_an_object_store_it_is_read_and_removed_as_on_a_disk(run, finished, monkeypatch):
    here = finished.results.best
    ran = run(averaged, **UNVALIDATED, checkpoints_dir="memory://kept")
    objects = fsspec.filesystem("memory")
    assert [path for path in objects.find("/kept") if "/end/" in path]
    assert same(variables(ran.results.best.load_model()), variables(here.load_model()))
    monkeypatch.setenv("SWEEPER_CHECKPOINTS", "memory://kept")
    assert main(["rm", "small", "--yes", "--runs-dir", str(ran.places["runs_dir"])]) == 0
    assert objects.find("/kept") == []
    with pytest.raises(UnknownStudyError, match="has no study 'small'"):
        ran.results.best.load_model()


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("end", "no stored model at the end .*{path} was removed"),
        (
            "attempt-01/checkpoints/step-000000008",
            "step-000000008 with the digest {digest}.*missing",
        ),
    ],
)
def test_one_that_is_lost_or_whose_checkpoint_is_gone_is_refused(plain, tmp_path, removed, message):
    """It is never taken for one that did not change."""
    ran = plain.copy(tmp_path)
    path = ran.places["runs_dir"] / "small/trial-00000" / removed
    digest = ran.results.best.digest
    shutil.rmtree(path)
    with pytest.raises(CheckpointError, match=message.format(path=path, digest=digest)):
        ran.results.best.load_model()


def test_a_trial_killed_between_its_model_and_its_result_leaves_one_model(
    run, finished, monkeypatch
):
    """The process dies after the model was written and before it said that it had finished."""
    import sweeper.run.trial.run as trial_run

    wrote = []
    keep = trial_run.keep_end

    def dying(*arguments):
        keep(*arguments)
        wrote.append(arguments)
        if len(wrote) == 1:
            raise MemoryError("killed here")

    monkeypatch.setattr(trial_run, "keep_end", dying)
    ran = run(averaged, **UNVALIDATED)

    assert len(wrote) == 2
    (first, second) = ran.results.best.attempts
    assert (first.outcome, second.outcome) == ("crashed", "complete")
    (end,) = (ran.places["runs_dir"] / "small/trial-00000/end").iterdir()
    assert end.name == "step-000000008.2"
    assert same(
        variables(ran.results.best.load_model()), variables(finished.results.best.load_model())
    )
