"""What is said before a study is extended, and that nothing of it is changed where it is refused."""

import keras
import numpy as np
import optuna
import pytest
from databases import place_database
from scripted_trials import scripted_sweep
from sweeps import notices_of

import sweeper
from sweeper.errors import DefinitionError, UsageError

Cosine = keras.optimizers.schedules.CosineDecay


class WithoutConfig(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, rate, decay_steps):
        self.rate = rate
        self.decay_steps = decay_steps

    def __call__(self, step):
        return self.rate - self.rate * step / self.decay_steps


def load_data(trial):
    x = np.ones((20, 1), "float32")
    return sweeper.Data(train=(x, x), batch_size=2)


def study(schedule=Cosine, decay_steps=7, **changes):
    """A study of two epochs of ten steps; its trials' learning rate is a schedule."""

    def build_model(trial):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        rate = trial.suggest_float("rate", 0.01, 0.1)
        optimizer = keras.optimizers.SGD(schedule(rate, decay_steps))
        model.compile(optimizer, "mse", run_eagerly=True)
        return model

    values = {"name": "s", "epochs": 2, "trials": 1, "objective": "loss", "sampler": "random"}
    return sweeper.Study(model=build_model, data=load_data, threads=1, **{**values, **changes})


@pytest.fixture
def options(tmp_path):
    place_database(tmp_path / "sweeper.db")
    return {"isolation": "inline", "workers": 1, "runs_dir": tmp_path, "listener": id}


@pytest.mark.parametrize(
    ("schedule", "steps", "is_noticed"),
    [(Cosine, 20, True), (Cosine, 21, False), (WithoutConfig, 20, True)],
)
def test_a_schedule_with_the_first_length_as_a_constant_is_noticed_in_an_extended_trial(
    options, schedule, steps, is_noticed
):
    extended = study(schedule, steps)
    run_events = []
    extend_events = []
    extended.run(**{**options, "listener": run_events.append})
    extended.extend(3, **{**options, "listener": extend_events.append})
    text = f"{schedule.__name__} has decay_steps=20, the steps of the study's first 2 epochs"
    matches = [
        [text in notice for notice in notices_of(events)] for events in (run_events, extend_events)
    ]
    assert list(map(any, matches)) == [False, is_noticed]


def test_the_best_trials_are_extended_and_the_same_again_says_nothing(options):
    extended = study(trials=2)
    best = extended.run(**options).best.number
    results = extended.extend(3, best=1, **options)
    assert [len(trial.epochs) for trial in results] == [3 if n == best else 2 for n in range(2)]
    events = []
    extended.extend(3, trials=[best], **{**options, "listener": events.append})
    assert not any("continue" in text for text in notices_of(events))


TWO = {"objective": ["loss", "val_loss"], "direction": ["minimize", "minimize"]}


def test_a_study_that_has_no_best_trial_is_refused(options):
    with pytest.raises(UsageError, match="study 's' has no complete trial yet"):
        study().extend(5, best=1, **options)
    with pytest.raises(UsageError, match="study 'two' has several objectives"):
        study(name="two", **TWO).extend(5, best=1, **options)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epochs": 0}, DefinitionError, "epochs=0"),
        ({"epochs": True}, DefinitionError, "epochs=True"),
        ({"epochs": 5.5}, DefinitionError, r"epochs=5\.5"),
        ({"epochs": 5, "best": 0}, DefinitionError, "best=0"),
        ({"epochs": 5, "trials": (-1,)}, DefinitionError, "trials=-1"),
        ({"epochs": 5, "trials": (1,), "best": 1}, UsageError, "both trials= and best="),
    ],
)
def test_what_python_asks_for_is_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        study().extend(**arguments)


def test_no_trial_is_judged_at_the_first_length_or_past_it(tmp_path):
    pruned = []

    def train(trial):
        trial.begin()
        pruned.extend(trial.judge(*[1.0] * epochs) for epochs in range(1, 6))
        return trial.finish(1.0)

    pruner = optuna.pruners.ThresholdPruner(upper=0.5)
    with scripted_sweep(tmp_path, {None: train}, epochs=3, pruner=pruner) as sweep:
        sweep.serve()
    assert pruned == [True, True, False, False, False], "as if it had 3 epochs, whatever its length"
