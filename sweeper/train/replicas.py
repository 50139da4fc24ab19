"""Training on several replicas: equal slices of batches, and refused cases.

Keras divides the mean loss of a replica's slice by the number of replicas and adds the replicas'
gradients. This is correct for slices of equal size, so a batch that cannot be shared equally is refused.
Masked values and weights are counted over all replicas by a `TrainingStep`, which therefore replaces
Keras's own step here. What Keras's optimizers and layers compute on each replica for itself, and a single
device does not, is refused by name: clipping, and losses that layers add, because replicas are threads
that take turns at each reduction and share a layer's list of losses.

A replica gets the slice of the batch at its index, so the order of the data is the same as on one
replica, and data sources do not depend on replicas.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import DataError, FactoryError, UncapturableError
from sweeper.train.codec import replicas_of
from sweeper.train.data import PartName
from sweeper.train.randomness.generators import global_seed_generator
from sweeper.train.step import TrainingStep, own_methods

_MARK = "sweeper: samples in this batch:"
_MARKED = re.compile(re.escape(_MARK) + r"\]? \[(\d+)\]")


def slice_of(batch: Any, index: int, replicas: int) -> Any:
    """Return the replica's part of ``batch`` along its first axis; all parts have the same size."""

    def part(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.SparseTensor):
            rows = tf.sparse.split(sp_input=leaf, num_split=replicas, axis=0)[index]
            rows.set_shape([None, *leaf.shape[1:]])
            return rows
        size = samples_in(leaf) // replicas
        return leaf[index * size : (index + 1) * size]

    return tf.nest.map_structure(part, batch)


def samples_in(batch: Any) -> Any:
    leaf = next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None)
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    return tf.shape(leaf, out_type=tf.int64)[0]


_TRAINING = PartName("train")


class ReplicatedStep:
    """A ``train_step`` or ``test_step`` on all replicas of the model's strategy, each with its slice of a batch."""

    def __init__(
        self, model: keras.Model, step: Callable[[Any], Any], data: PartName = _TRAINING
    ) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._replicas = int(self._strategy.num_replicas_in_sync)
        self._data = data
        owner: Any = getattr(step, "__self__", None)
        overridden = {step.__name__, "compute_loss"}.intersection(own_methods(model))
        if self._replicas > 1 and owner is model and not overridden:
            owner = TrainingStep()
            owner.model = model
            step = getattr(owner, step.__name__)
        self._step = step
        self._results = owner.results if isinstance(owner, TrainingStep) else dict

    def __call__(self, batch: Any) -> Any:
        """Run one step; traced, or called directly for an eager model."""
        if not isinstance(self._strategy, tf.distribute.MirroredStrategy):
            return self._strategy.run(self._step, args=(batch,))
        samples = samples_in(batch)
        tf.debugging.Assert(tf.equal(samples % self._replicas, 0), [_MARK, samples])

        def on_replica() -> Any:
            context = tf.distribute.get_replica_context()
            index = int(tf.get_static_value(context.replica_id_in_sync_group))
            outputs = self._step(slice_of(batch, index, self._replicas))
            _check_replica(self._model, self._replicas)
            return outputs

        outputs = self._strategy.run(on_replica)
        if not isinstance(outputs, dict):
            # `GraphStep` raises the error.
            return outputs
        # Metrics over all replicas, and the mean over the batch of other logs.
        metrics = self._results()
        return {
            name: metrics[name] if name in metrics else tf.nest.map_structure(self._mean, value)
            for name, value in outputs.items()
        }

    def _mean(self, value: Any) -> Any:
        values = [tf.convert_to_tensor(v) for v in self._strategy.experimental_local_results(value)]
        if not values[0].dtype.is_floating or len(values) == 1:
            return values[0]
        return tf.add_n(values) / tf.cast(len(values), values[0].dtype)

    def check_arrays(self, samples: int, batch_size: int, *, last: bool) -> None:
        """Refuse arrays whose batches, with the ``last`` and smaller one if it is drawn, cannot be shared equally."""
        sizes = [min(batch_size, samples), samples % batch_size if last else 0]
        for size, which in zip(sizes, ("each", "the last"), strict=True):
            if size % self._replicas:
                label = f"{which} of the batches of {batch_size} from arrays of {samples:,} samples"
                raise self._unequal(label, size)

    @contextmanager
    def checked(self, label: str = "a batch") -> Iterator[None]:
        """Context manager for running the step; refuses a batch, ``label``, that cannot be shared equally."""
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            match = _MARKED.search(str(error))
            if match is None:
                raise
            samples = int(match[1])
        else:
            return
        raise self._unequal(label, samples)

    def _unequal(self, label: str, samples: int) -> DataError:
        size = "batch_size" if self._data.use == "train" else "validation_batch_size"
        return DataError(
            f"{self._data}: {label} has {samples:,} sample{'s' * (samples != 1)}, which the "
            f"{self._replicas} replicas of the {type(self._strategy).__name__} cannot share equally; give "
            f"batches of multiples of {self._replicas} ({size}=), and leave out the samples of the last "
            "one (of a tf.data.Dataset by drop_remainder=True) or fill it"
        )


def _check_replica(model: keras.Model, replicas: int) -> None:
    """Refuse what a replica's thread, which has just run a step, does not share with the others."""
    if global_seed_generator() is not None:
        raise UncapturableError(
            "the step draws from Keras's global seed generator (keras.random without a "
            "seed), of which every replica would make its own, in a thread that checkpoints "
            "do not cover; give the call a keras.random.SeedGenerator that the layer makes"
        )
    adding = next((layer for layer in model._flatten_layers() if layer._losses), None)
    if adding is not None and replicas > 1:
        raise FactoryError(
            f"layer {adding.name!r} adds a loss (add_loss, or an activity regularizer), and the "
            "replicas, which are threads, share a layer's list of losses; override extra_losses() of "
            "a TrainingStep, or compute the loss from an output of the model"
        )


_HERE = (
    tf.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    type(tf.distribute.get_strategy()),
)
"""Strategies whose replicas are synchronous and in this process."""


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy unless its replicas are synchronous and in this process."""
    if isinstance(strategy, _HERE):
        return
    raise FactoryError(
        f"the model's strategy is a {type(strategy).__name__}, which is not supported: the replicas of a "
        "trial take every step together, and it trains in one process; use "
        "tf.distribute.MirroredStrategy, which trains on all GPUs that the trial sees, and run other "
        "trials on other hosts (`sweeper worker`)"
    )


def check_model(model: keras.Model, step: TrainingStep | None = None) -> str | None:
    """Refuse a compiled model that several replicas would train differently from one; return a notice, or None."""
    strategy = model.distribute_strategy
    check_strategy(strategy)
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return None
    where = f"on the {replicas} replicas of the {type(strategy).__name__}"
    reason = next(_unsupported(model, strategy), None)
    if reason is not None:
        raise FactoryError(f"model {model.name!r} cannot be trained {where}: {reason}")
    overridden = [name for name in own_methods(model) if name != "test_step"]
    if step is not None or not overridden:
        return None
    return (
        f"the model's own {overridden[0]}() runs {where}, each with its share of a batch, and gradients "
        f"are summed: divide the loss of a share by {replicas}, otherwise the training "
        "differs from that on one device; Keras's own steps and a TrainingStep do this by "
        "themselves"
    )


def describe_strategy(strategy: Any) -> str:
    name = type(strategy).__name__
    replicas = int(strategy.num_replicas_in_sync)
    if replicas == 1:
        return name
    adding = type(getattr(strategy.extended, "_cross_device_ops", None)).__name__
    return f"{name}, {replicas} replicas, {adding}"


_CLIPS = (
    "and Keras clips the gradients of each replica, not their sum; leave it out, and give a TrainingStep "
    "gradients=[sweeper.gradients.clip_by_global_norm(…)], which clips the sum"
)

_SETTINGS = {
    "clipnorm": _CLIPS,
    "global_clipnorm": _CLIPS,
    "clipvalue": _CLIPS,
    "gradient_accumulation_steps": (
        "and Keras does not sum gradients inside its condition; use a larger batch_size, which "
        "replicas share"
    ),
    "ema_overwrite_frequency": (
        "and Keras does not overwrite weights inside its condition; leave it out: the averages replace "
        "the weights when training ends"
    ),
}
"""Settings of optimizers that differ on replicas, or fail."""


def _unsupported(model: keras.Model, strategy: Any) -> Iterator[str]:
    """Yield each reason why the replicas of ``strategy`` cannot train the model."""
    optimizer = model.optimizer
    outside = [
        f"variable {variable.path!r}"
        for variable in model.variables
        if len(replicas_of(variable)) != strategy.num_replicas_in_sync
    ]
    if optimizer is not None and getattr(optimizer, "_distribution_strategy", None) is not strategy:
        outside.append("optimizer")
    for part in outside:
        yield (
            f"its {part} was made outside the strategy's scope; make the model, its layers and its "
            "optimizer inside strategy.scope(), as a study's factories do with Study(strategy=…)"
        )
    name = type(optimizer).__name__
    for setting, reason in _SETTINGS.items():
        if getattr(optimizer, setting, None):
            yield f"its optimizer {name} has {setting}, {reason}"
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        yield (
            f"its optimizer is a {name}, and Keras does not sum gradients inside its condition; "
            "use the policy 'mixed_bfloat16', which needs no loss scaling"
        )
    if model.jit_compile:
        yield (
            "it is compiled with jit_compile=True, and XLA compiles for one device only; leave it out"
        )
