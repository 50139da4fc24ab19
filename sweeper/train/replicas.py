"""Training on several replicas: equal slices of batches, and refused cases.

Keras divides the mean loss of a replica's slice by the number of replicas and adds the replicas'
gradients. This is correct for slices of equal size, so a batch that cannot be shared equally is refused.
What Keras computes on each replica for itself, and a single device does not, is refused by name as well:
means over weights or over unmasked values, clipping by the optimizer, and losses that layers add, because
replicas are threads that take turns at each reduction and share a layer's list of losses.

A replica gets the slice of the batch at its index, so the order of the data is the same as on one
replica, and data sources do not depend on replicas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import DataError, FactoryError, UncapturableError
from sweeper.train.codec import replicas_of
from sweeper.train.randomness.generators import global_seed_generator, set_global_seed_generator
from sweeper.train.randomness.interception import MASKED_LOSS, REDUCED_LOSS, Interception
from sweeper.train.step import TrainingStep

_MARK = "sweeper: samples in this batch:"
_MARKED = re.compile(re.escape(_MARK) + r"\]? \[(\d+)\]")


def slice_batch(batch: Any, replicas: int) -> tuple[Any, ...]:
    """Return equal parts of ``batch`` along its first axis, one for each replica."""
    whole = samples_in(batch)
    known = tf.get_static_value(whole)
    size = whole // replicas if known is None else int(known) // replicas
    return tuple(
        tf.nest.map_structure(
            lambda leaf, begin=index * size: _part(leaf, begin, size),
            batch,
        )
        for index in range(replicas)
    )


def samples_in(batch: Any) -> Any:
    """Return the number of samples of a batch, a scalar."""
    leaf = next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None)
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    return tf.shape(leaf, out_type=tf.int64)[0]


def _part(leaf: Any, begin: Any, size: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        shape = tf.shape(leaf, out_type=tf.int64)
        start = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(shape[1:])], 0)
        sizes = tf.concat([[tf.cast(size, tf.int64)], shape[1:]], 0)
        part = tf.sparse.slice(leaf, start, sizes)
        part.set_shape([None, *leaf.shape[1:]])
        return part
    return leaf[begin : begin + size]


@dataclass(frozen=True)
class SliceRule:
    """Rule that the replicas share every batch equally.

    Attributes:
        replicas: Number of slices.
        strategy: Name of the strategy's class.
        use: ``train`` or ``validation``.
    """

    replicas: int
    strategy: str
    use: str

    def check(self, samples: int, shown: str) -> None:
        """Refuse a batch that cannot be shared equally.

        Args:
            samples: Number of its samples.
            shown: Description of the batch, such as ``batch 3 of epoch 1``.

        Raises:
            DataError: Gives the advice.
        """
        if samples % self.replicas:
            msg = (
                f"Data({self.use}=…): {shown} has {_samples(samples)}, {self._why}; give batches of "
                f"multiples of {self.replicas}, and drop the last one (drop_remainder=True) or fill it"
            )
            raise DataError(msg)

    def check_arrays(self, samples: int, batch_size: int, *, last: bool) -> None:
        """Refuse a ``batch_size`` with which arrays come in batches that cannot be shared equally.

        Args:
            samples: Number of samples in the arrays.
            batch_size: The user's batch size.
            last: Whether the last, smaller batch is ever drawn.

        Raises:
            DataError: The message has the nearest possible size.
        """
        whole, rest = min(batch_size, samples), samples % batch_size if last else 0
        if samples <= batch_size:
            rest = 0
        bad = next((size for size in (whole, rest) if size % self.replicas), None)
        if bad is None:
            return
        name = "batch_size" if self.use == "train" else "validation_batch_size"
        which = "each of which" if bad == whole else "the last of which"
        fitting = [
            size
            for size in range(self.replicas, samples + 1, self.replicas)
            if not (last and samples % size % self.replicas)
        ]
        advice = f"leave out {_samples(samples % self.replicas)} of the arrays"
        if fitting:
            nearest = min(fitting, key=lambda size: abs(size - batch_size))
            advice = f"{name}={nearest} leaves no such batch"
        msg = (
            f"Data({self.use}=…, {name}={batch_size}): {samples:,} samples come in batches {which} "
            f"has {_samples(bad)}, {self._why}; {advice}"
        )
        raise DataError(msg)

    @property
    def _why(self) -> str:
        return f"which the {self.replicas} replicas of the {self.strategy} cannot share equally"

    def assertion(self, whole: Any) -> None:
        """Add the same check as a graph op; `explained` converts its error."""
        tf.debugging.Assert(tf.equal(whole % self.replicas, 0), [_MARK, whole])

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Context manager for running a graph with an `assertion`: converts its error to a `DataError`."""
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            found = _MARKED.search(str(error))
            if found is None:
                raise
            samples = int(found[1])
        else:
            return
        self.check(samples, "a batch")


def _samples(count: int) -> str:
    return f"{count:,} sample" if count == 1 else f"{count:,} samples"


_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")
_HOOKS = "use a TrainingStep, which computes it over all replicas"


def replica_index() -> int:
    """Return the index of the replica whose code runs."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def losses_checked(replicas: int) -> Interception:
    """Return the context manager that refuses losses which Keras reduces on each replica for itself.

    Nothing is computed otherwise than by Keras.

    Raises:
        FactoryError: Names the reduction.
    """
    reducing, masking = REDUCED_LOSS.current, MASKED_LOSS.current

    def reduce_values(
        values: Any, sample_weight: Any = None, reduction: str | None = "sum_over_batch_size"
    ) -> Any:
        if values.shape.rank == 0 and reduction not in (None, "none", "sum"):
            msg = (
                "a loss function of the model returns one number for a whole batch; on "
                f"{replicas} replicas it is unknown whether these numbers have to be "
                "summed or averaged: return a value for each sample, and Keras takes the mean"
            )
            raise FactoryError(msg)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            msg = (
                'the reduction "mean_with_sample_weight" of a loss divides by the weights of one '
                f"replica, not of all {replicas}; {_HOOKS}"
            )
            raise FactoryError(msg)
        return reducing(values, sample_weight=sample_weight, reduction=reduction)

    def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: str | None) -> Any:
        if mask is not None and reduction in ("mean", "sum_over_batch_size"):
            msg = (
                "the model's output has a mask, and a loss divides by the unmasked values of one "
                f"replica, not of all {replicas}; {_HOOKS}"
            )
            raise FactoryError(msg)
        return masking(sample_weight, mask, dtype=dtype, reduction=reduction)

    return Interception(lambda: ((REDUCED_LOSS, reduce_values), (MASKED_LOSS, apply_mask)))


def _check_no_added_losses(model: keras.Model) -> None:
    """Refuse losses that layers have added in the step that a replica has just run.

    Raises:
        FactoryError: Names the layer.
    """
    adding = next((each for each in model._flatten_layers() if each._losses), None)
    if adding is not None:
        msg = (
            f"layer {adding.name!r} adds a loss (add_loss, or an activity regularizer), and the "
            "replicas, which are threads, share a layer's list of losses; override extra_losses() of "
            "a TrainingStep, or compute the loss from an output of the model"
        )
        raise FactoryError(msg)


class ReplicatedStep:
    """A step of a model whose strategy has several replicas, for one global batch.

    Args:
        model: A compiled model, created in the strategy's scope.
        step: ``train_step`` or ``test_step`` of the model or of a `TrainingStep`; called on each
            replica with its slice.
    """

    def __init__(self, model: keras.Model, step: Callable[[Any], Any]) -> None:
        self._model = model
        self._step = step
        self._strategy = model.distribute_strategy
        self.rule = SliceRule(
            replicas=int(self._strategy.num_replicas_in_sync),
            strategy=type(self._strategy).__name__,
            use="validation" if step.__name__ == "test_step" else "train",
        )

    @property
    def _is_of_the_model(self) -> bool:
        return getattr(self._step, "__self__", None) is self._model

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """Run one step; traced, or called directly for an eager model."""
        self.rule.assertion(samples_in(batch))
        slices = slice_batch(batch, self.rule.replicas)
        shared = global_seed_generator()

        def on_replica() -> Any:
            with _one_global_generator(shared):
                outputs = self._step(slices[replica_index()])
                if self.rule.replicas > 1:
                    _check_no_added_losses(self._model)
                return outputs

        checks = self._is_of_the_model and self.rule.replicas > 1
        with losses_checked(self.rule.replicas) if checks else nullcontext():
            outputs = self._strategy.run(on_replica)
        if not isinstance(outputs, dict):
            # `GraphStep` raises the error.
            return outputs  # type: ignore[no-any-return]
        return self._reported(outputs)

    def _reported(self, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return metrics over all replicas, and the mean over the batch of other logs."""
        if self._is_of_the_model and _is_keras_own(self._model, self._step.__name__):
            of_keras: Mapping[str, Any] = self._model.get_metrics_result()
            return of_keras
        owner = getattr(self._step, "__self__", None)
        metrics = owner.results() if isinstance(owner, TrainingStep) else {}
        return {
            name: metrics[name] if name in metrics else tf.nest.map_structure(self._one, value)
            for name, value in outputs.items()
        }

    def _one(self, value: Any) -> Any:
        values = [tf.convert_to_tensor(v) for v in self._strategy.experimental_local_results(value)]
        if not values[0].dtype.is_floating or len(values) == 1:
            return values[0]
        return tf.add_n(values) / tf.cast(len(values), values[0].dtype)


@contextmanager
def _one_global_generator(shared: Any) -> Iterator[None]:
    """Context manager that sets this thread's global seed generator of Keras to ``shared``.

    Raises:
        UncapturableError: The replica replaced the generator, or created one, in its own thread.
    """
    before = global_seed_generator()
    set_global_seed_generator(shared)
    try:
        yield
        if global_seed_generator() is not shared:
            msg = (
                "the step draws from Keras's global seed generator (keras.random without a "
                "seed), of which every replica would make its own, in a thread that checkpoints "
                "do not cover; give the call a keras.random.SeedGenerator that the layer makes"
            )
            raise UncapturableError(msg)
    finally:
        set_global_seed_generator(before)


def own_method(model: keras.Model, step: str) -> str:
    """Return the first of the model's step methods that is the user's own; empty for none."""
    own = (name for name in (step, "compute_loss") if not _is_keras_own(model, name))
    return next((f"{name}()" for name in own), "")


def _is_keras_own(model: keras.Model, method: str) -> bool:
    return getattr(type(model), method, None) is getattr(keras.Model, method, None)


def replicated(model: keras.Model, step: Callable[[Any], Any]) -> ReplicatedStep | None:
    """Return the step on all replicas of the model's strategy; None if there is only one.

    A strategy with mirrored variables runs the step in a thread even on one replica.
    """
    strategy = model.distribute_strategy
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if strategy.num_replicas_in_sync == 1 and not mirrored:
        return None
    return ReplicatedStep(model, step)


_PROCESSES = (
    "a trial trains in one process; use tf.distribute.MirroredStrategy, which trains on all GPUs that the "
    "trial sees, and run other trials on other hosts (`sweeper worker`)"
)

_INSTEAD = {
    "MultiWorkerMirroredStrategy": _PROCESSES,
    "CollectiveAllReduceStrategy": _PROCESSES,
    "ParameterServerStrategy": (
        "its workers take steps at their own pace, so no step could be resumed exactly; use "
        "tf.distribute.MirroredStrategy"
    ),
    "CentralStorageStrategy": "use tf.distribute.MirroredStrategy, which keeps weights everywhere",
    "TPUStrategy": (
        "sweeper was never tested on a TPU; use tf.distribute.MirroredStrategy on GPUs"
    ),
}
"""Reason and advice for each refused strategy, by the name of its class without ``V1`` or ``V2``."""


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy unless its replicas are synchronous and in this process.

    Raises:
        FactoryError: Names the strategy and the one to use.
    """
    names = [cls.__name__.removesuffix("V1").removesuffix("V2") for cls in type(strategy).__mro__]
    found = next((name for name in names if name in _INSTEAD), None)
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if found is None and (mirrored or strategy.num_replicas_in_sync == 1):
        return
    why = _INSTEAD.get(found or "", "use tf.distribute.MirroredStrategy, which is supported")
    msg = f"the model's strategy is a {type(strategy).__name__}, which is not supported: {why}"
    raise FactoryError(msg)


def check_model(model: keras.Model, step: TrainingStep | None = None) -> str | None:
    """Refuse a model that several replicas would train differently from one.

    Args:
        model: A compiled model.
        step: The training step that replaces the model's own, if any.

    Returns:
        A notice for the user, or None.

    Raises:
        FactoryError: Names the unsupported part and the alternative.
    """
    strategy = model.distribute_strategy
    check_strategy(strategy)
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return None
    where = f"on the {replicas} replicas of the {type(strategy).__name__}"
    for text in (*_outside(model, strategy), *_optimizer(model.optimizer)):
        msg = f"model {model.name!r} cannot be trained {where}: {text}"
        raise FactoryError(msg)
    if model.jit_compile:
        msg = (
            f"model {model.name!r} cannot be trained {where}: it is compiled with "
            "jit_compile=True, and XLA compiles for one device only; leave it out"
        )
        raise FactoryError(msg)
    own = own_method(model, "train_step") if step is None else ""
    if own:
        return (
            f"the model's own {own} runs {where}, each with its share of a batch, and gradients "
            f"are summed: divide the loss of a share by {replicas}, otherwise the training "
            "differs from that on one device; Keras's own steps and a TrainingStep do this by "
            "themselves"
        )
    return None


def describe_strategy(strategy: Any) -> str:
    """Return the strategy, its number of replicas and its reduction, for the fingerprint."""
    name, replicas = type(strategy).__name__, int(strategy.num_replicas_in_sync)
    if replicas == 1:
        return name
    adding = type(getattr(strategy.extended, "_cross_device_ops", None)).__name__
    return f"{name}, {replicas} replicas, {adding}"


def _outside(model: keras.Model, strategy: Any) -> Iterator[str]:
    """Yield an error for each part of the model that was created outside of the strategy's scope."""
    advice = (
        "make the model, its layers and its optimizer inside strategy.scope(), as a study's factories "
        "do with Study(strategy=…)"
    )
    for variable in model.variables:
        if len(replicas_of(variable)) != strategy.num_replicas_in_sync:
            yield f"its variable {variable.path!r} was made outside the strategy's scope; {advice}"
    optimizer = model.optimizer
    own = getattr(optimizer, "_distribution_strategy", None)
    if optimizer is not None and own is not strategy:
        yield f"its optimizer was made outside the strategy's scope; {advice}"


def _optimizer(optimizer: Any) -> Iterator[str]:
    """Yield an error for each setting of the optimizer that differs on replicas, or fails."""
    name = type(optimizer).__name__
    for setting in _CLIPPING:
        if getattr(optimizer, setting, None):
            yield (
                f"its optimizer {name} has {setting}, and Keras clips the gradients of each replica, "
                "not their sum; leave it out, and give a TrainingStep gradients="
                "[sweeper.gradients.clip_by_global_norm(…)], which clips the sum"
            )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        yield (
            f"its optimizer is a {name}, and Keras does not sum gradients inside its condition; "
            "use the policy 'mixed_bfloat16', which needs no loss scaling"
        )
    if getattr(optimizer, "gradient_accumulation_steps", None):
        yield (
            f"its optimizer {name} has gradient_accumulation_steps, and Keras does not sum "
            "gradients inside its condition; use a larger batch_size, which replicas share"
        )
    if getattr(optimizer, "ema_overwrite_frequency", None):
        yield (
            f"its optimizer {name} has ema_overwrite_frequency, and Keras does not overwrite "
            "weights inside its condition; leave it out: the averages replace the weights when "
            "training ends"
        )
