"""What cannot be trained on several replicas is refused by name, each error compared whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicated import two_replicas, under
from trainings import SEEDS, Watcher, digits, one_layer, plan, train

from sweeper import Data, DataError, DefinitionError, FactoryError, Study, Trial
from sweeper.run.trial.parts import check_made_in, strategy_scope
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.replicas import check_strategy, describe_strategy


def refused(
    error: type[Exception],
    data: Callable[[], Data] | None = None,
    model: Callable[[], keras.Model] = one_layer,
    built: Callable[[Callable[[], keras.Model]], Callable[[], keras.Model]] = under,
) -> str:
    given = {} if data is None else {"data": data}
    with pytest.raises(error) as raised:
        train(plan(model=built(model), **given), Watcher())
    return str(raised.value)


def arrays(samples: int, **options: Any) -> Callable[[], Data]:
    return lambda: Data(train=digits(samples), **options)


_SHARE = "which the 2 replicas of the MirroredStrategy cannot share equally"


def test_a_last_batch_that_cannot_be_shared_equally_is_refused_before_training() -> None:
    assert refused(DataError, arrays(65, batch_size=16)) == (
        "Data(train=…, batch_size=16): 65 samples come in batches the last of which has 1 "
        f"sample, {_SHARE}; leave out 1 sample of the arrays"
    )


def test_a_batch_size_that_cannot_be_shared_equally_is_refused() -> None:
    assert refused(DataError, arrays(64, batch_size=15)) == (
        "Data(train=…, batch_size=15): 64 samples come in batches each of which has 15 samples, "
        f"{_SHARE}; batch_size=14 leaves no such batch"
    )


def test_a_last_batch_of_validation_that_cannot_be_shared_equally_is_refused() -> None:
    data = arrays(64, batch_size=16, validation=digits(33))
    assert refused(DataError, data) == (
        "Data(validation=…, validation_batch_size=16): 33 samples come in batches the last of "
        f"which has 1 sample, {_SHARE}; leave out 1 sample of the arrays"
    )


def test_a_last_batch_that_is_never_drawn_is_not_refused() -> None:
    data = arrays(64, batch_size=16, validation=digits(33), validation_steps=2)
    train(plan(model=under(one_layer), data=data, epochs=1), Watcher())


@pytest.mark.parametrize("kind", ["function", "tf.data", "validation"])
def test_a_batch_that_cannot_be_shared_equally_is_refused_where_it_comes(kind: str) -> None:
    x, y = digits(33)

    def batches(_epoch: int) -> Any:
        for at in range(0, 33, 16):
            yield x[at : at + 16], y[at : at + 16]

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    given = {
        "function": lambda: Data(train=batches),
        "tf.data": lambda: Data(train=dataset),
        "validation": lambda: Data(train=digits(64), validation=dataset),
    }[kind]
    shown = "batch 3 of epoch 1" if kind == "function" else "a batch"
    use = "validation" if kind == "validation" else "train"
    assert refused(DataError, given) == (
        f"Data({use}=…): {shown} has 1 sample, {_SHARE}; give batches of multiples of 2, and drop "
        "the last one (drop_remainder=True) or fill it"
    )


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, self(x, training=True))
            loss = tf.reduce_mean(losses) / 2
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"mean_loss": 2 * loss}


def own_step() -> keras.Model:
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(4, activation="softmax")(inputs)
    model = OwnStep(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1))
    return model


def test_a_step_of_the_users_own_is_told_what_it_must_do_and_logs_the_mean_over_the_batch() -> None:
    told: list[str] = []
    data = arrays(64, batch_size=16)
    two = plan(model=under(own_step), data=data, epochs=1)
    loop = TrainingLoop(two, Watcher(), told.append)
    loop.run()
    assert told == [
        (
            "the model's own train_step() runs on the 2 replicas of the MirroredStrategy, each "
            "with its share of a batch, and gradients are summed: divide the loss of a share "
            "by 2, otherwise the training differs from that on one device; Keras's own steps "
            "and a TrainingStep do this by themselves"
        )
    ]

    one = own_step()
    one.set_weights(plan(model=own_step, data=data).model.get_weights())
    x, y = digits(64)
    order = loop._train._order_of(0).numpy()
    for at in range(0, 64, 16):
        chosen = order[at : at + 16]
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                tf.constant(y[chosen]), one(x[chosen])
            )
            loss = tf.reduce_mean(losses)
        one.optimizer.apply(tape.gradient(loss, one.trainable_variables), one.trainable_variables)
    np.testing.assert_allclose(two.model.weights[0].numpy(), one.weights[0].numpy(), rtol=1e-5)
    assert loop.epochs[-1].metrics["mean_loss"] == pytest.approx(float(loss), rel=1e-5)


def outside(build: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
    """The layers are made before the scope is entered, and the model in it."""

    def built() -> keras.Model:
        inputs = keras.Input((8,), name="inputs")
        outputs = keras.layers.Dense(4, name="early")(inputs)
        with two_replicas().scope():
            model = keras.Model(inputs, outputs, name="late")
            model.compile("sgd", "mse")
        return model

    del build
    return built


_INSIDE = (
    "make the model, its layers and its optimizer inside strategy.scope(), as a study's factories do "
    "with Study(strategy=…)"
)


def test_layers_made_outside_the_scope_are_refused() -> None:
    assert refused(FactoryError, built=outside) == (
        "model 'late' cannot be trained on the 2 replicas of the MirroredStrategy: its variable "
        f"'early/kernel' was made outside the strategy's scope; {_INSIDE}"
    )


def compiled(**options: Any) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        given = {name: value() if callable(value) else value for name, value in options.items()}
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)], name="net")
        model.compile(**{"optimizer": "sgd", "loss": "mse", **given})
        return model

    return build


def test_an_optimizer_made_outside_the_scope_is_refused() -> None:
    early = keras.optimizers.SGD(0.1)
    assert refused(FactoryError, model=compiled(optimizer=early)) == (
        "model 'net' cannot be trained on the 2 replicas of the MirroredStrategy: its optimizer was "
        f"made outside the strategy's scope; {_INSIDE}"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(
            (
                {"optimizer": lambda name=name: keras.optimizers.SGD(0.1, **{name: 0.5})},
                (
                    f"its optimizer SGD has {name}, and Keras clips the gradients of each replica, not "
                    "their sum; leave it out, and give a TrainingStep gradients="
                    "[sweeper.gradients.clip_by_global_norm(…)], which clips the sum"
                ),
            )
            for name in ("clipnorm", "global_clipnorm", "clipvalue")
        ),
        (
            {"optimizer": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)},
            (
                "its optimizer SGD has gradient_accumulation_steps, and Keras does not sum "
                "gradients inside its condition; use a larger batch_size, which replicas share"
            ),
        ),
        (
            {"optimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))},
            (
                "its optimizer is a LossScaleOptimizer, and Keras does not sum gradients "
                "inside its condition; use the policy 'mixed_bfloat16', which needs no loss "
                "scaling"
            ),
        ),
        (
            {
                "optimizer": lambda: keras.optimizers.SGD(
                    0.1, use_ema=True, ema_overwrite_frequency=3
                )
            },
            (
                "its optimizer SGD has ema_overwrite_frequency, and Keras does not overwrite "
                "weights inside its condition; leave it out: the averages replace the weights "
                "when training ends"
            ),
        ),
    ],
)
def test_what_keras_cannot_do_on_replicas_is_refused_before_training(
    options: dict[str, Any], text: str
) -> None:
    assert refused(FactoryError, model=compiled(**options)) == (
        f"model 'net' cannot be trained on the 2 replicas of the MirroredStrategy: {text}"
    )


def test_a_model_that_xla_compiles_is_refused() -> None:
    def build() -> keras.Model:
        model = compiled()()
        # With deterministic kernels Keras takes none of its own layers for one that XLA compiles.
        model._jit_compile = True
        return model

    assert refused(FactoryError, model=build) == (
        "model 'net' cannot be trained on the 2 replicas of the MirroredStrategy: it is "
        "compiled with jit_compile=True, and XLA compiles for one device only; leave it out"
    )


def test_a_loss_that_is_one_number_for_a_batch_is_refused() -> None:
    def mean(y: Any, predicted: Any) -> Any:
        return tf.reduce_mean(tf.square(y - predicted))

    x, _ = digits(64)
    data = Data(train=(x, x[:, :4]), batch_size=16)
    assert refused(FactoryError, lambda: data, compiled(loss=lambda: mean)) == (
        "a loss function of the model returns one number for a whole batch; on 2 replicas it "
        "is unknown whether these numbers have to be summed or averaged: return a value for "
        "each sample, and Keras takes the mean"
    )


def test_a_mean_over_the_weights_of_one_replica_is_refused() -> None:
    x, _ = digits(64)
    data = Data(train=(x, x[:, :4], np.ones(64)), batch_size=16)
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    assert refused(FactoryError, lambda: data, compiled(loss=lambda: loss)) == (
        'the reduction "mean_with_sample_weight" of a loss divides by the weights of one replica, not '
        "of all 2; use a TrainingStep, which computes it over all replicas"
    )


def test_a_mean_over_the_unmasked_values_of_one_replica_is_refused() -> None:
    def masked() -> keras.Model:
        embedding = keras.layers.Embedding(5, 4, mask_zero=True)
        layers = [keras.Input((6,), dtype="int32"), embedding, keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
        return model

    x = np.arange(96).reshape(16, 6) % 5
    data = Data(train=(x.astype("int32"), np.ones((16, 6, 2))), batch_size=8)
    assert refused(FactoryError, lambda: data, masked) == (
        "the model's output has a mask, and a loss divides by the unmasked values of one replica, not "
        "of all 2; use a TrainingStep, which computes it over all replicas"
    )


class Adds(keras.layers.Layer):
    """Adds to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.3 * tf.reduce_mean(tf.square(x)))
        return x


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Adds(name="a"),
        lambda: keras.layers.Dense(4, activity_regularizer="l1", name="a"),
    ],
    ids=["add_loss", "activity"],
)
def test_losses_that_layers_add_are_refused(layer: Callable[[], Any]) -> None:
    def adding() -> keras.Model:
        model = keras.Sequential([keras.Input((8,)), layer(), keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        return model

    x, _ = digits(64)
    data = Data(train=(x, x[:, :4]), batch_size=16)
    assert refused(FactoryError, lambda: data, adding) == (
        "layer 'a' adds a loss (add_loss, or an activity regularizer), and the replicas, which are "
        "threads, share a layer's list of losses; override extra_losses() of a TrainingStep, or "
        "compute the loss from an output of the model"
    )


def test_strategies_whose_replicas_are_not_in_this_process_are_refused() -> None:
    several = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)
    with pytest.raises(FactoryError) as raised:
        check_strategy(several)
    assert str(raised.value) == (
        "the model's strategy is a CollectiveAllReduceStrategy, which is not supported: a trial trains "
        "in one process; use tf.distribute.MirroredStrategy, which trains on all GPUs that the trial sees, "
        "and run other trials on other hosts (`sweeper worker`)"
    )
    for kind, words in {
        tf.distribute.ParameterServerStrategy: "take steps at their own pace",
        tf.distribute.TPUStrategy: "was never tested on a TPU",
        tf.distribute.experimental.CentralStorageStrategy: "keeps weights everywhere",
    }.items():
        with pytest.raises(FactoryError, match=words):
            check_strategy(object.__new__(kind))
    check_strategy(tf.distribute.get_strategy())
    check_strategy(tf.distribute.OneDeviceStrategy("CPU:1"))
    assert describe_strategy(two_replicas()) == "MirroredStrategy, 2 replicas, ReductionToOneDevice"


def a_trial(directory: Path) -> Trial:
    return Trial(number=0, seed=0, directory=directory, ask=lambda *_: 0)


@pytest.mark.parametrize(
    ("given", "shown"), [(None, "None"), (["CPU:0", "CPU:1"], "a builtins.list")]
)
def test_a_strategy_factory_that_returns_something_else_is_named(
    given: Any, shown: str, tmp_path: Path
) -> None:
    def replicas(_trial: Trial) -> Any:
        return given

    with (
        pytest.raises(FactoryError) as raised,
        strategy_scope(replicas, a_trial(tmp_path), SEEDS),
    ):
        pytest.fail("no scope")
    name = replicas.__qualname__
    assert str(raised.value) == (
        f"the strategy factory {name} returned {shown}; expected a tf.distribute.Strategy, such as "
        'tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])'
    )


def test_a_model_made_outside_the_studys_scope_is_refused(tmp_path: Path) -> None:
    before = compiled()()
    with strategy_scope(lambda _trial: two_replicas(), a_trial(tmp_path), SEEDS) as strategy:
        check_made_in(strategy, compiled()(), "build_model")
        with pytest.raises(FactoryError) as raised:
            check_made_in(strategy, before, "build_model")
    assert str(raised.value) == (
        "the model factory build_model returned model 'net', which was made outside every "
        "scope; with Study(strategy=…) the factory runs in the scope of the study's "
        "MirroredStrategy: make the model in that scope, and enter no other"
    )


def test_trials_of_one_process_share_a_strategy_that_adds_up_by_collective_ops(
    tmp_path: Path,
) -> None:
    given = []
    for _ in range(2):
        with strategy_scope(
            lambda _trial: two_replicas(cross_device_ops=None), a_trial(tmp_path), SEEDS
        ) as strategy:
            given.append(strategy)
    assert given[0] is given[1]


def test_a_strategy_in_place_of_a_factory_is_refused() -> None:
    strategy = two_replicas()
    with pytest.raises(DefinitionError) as raised:
        Study(
            name="x",
            model=one_layer,
            data=dict,
            epochs=1,
            trials=1,
            strategy=strategy,  # type: ignore[arg-type]
        )
    assert str(raised.value) == (
        f"strategy={strategy!r} cannot be called; give a function, trial -> tf.distribute.Strategy; a "
        "strategy belongs to one process, and every trial has its own: write a function that makes "
        "it, strategy=lambda trial: …"
    )
