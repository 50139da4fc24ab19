"""Training on several replicas: slices of batches, scaling of losses, and refused cases.

Keras divides the mean loss of a replica's slice by the number of replicas and adds the replicas'
gradients. This is correct only for slices of equal size. In `scaled`, a slice is weighted by its share of
the batch. Then Keras's own step is equal to the step of one replica on the whole batch, except for the
order of additions:

- a mean over samples, an activity or weight regularizer and ``add_loss`` are weighted by the share;
- a mean over weights (``"mean_with_sample_weight"``) or over unmasked values divides by the weights, or
  the unmasked values, of all replicas;
- a sum stays a sum;
- gradients are clipped after they are added, not before;
- losses that layers add are stored separately for each replica, because replicas are threads that take
  turns at each reduction, and share a layer's list of losses.

The functions of Keras's modules that do this are replaced while a step is traced, or runs eagerly.

A replica gets the slice of the batch at its index, so the order of the data is the same as on one
replica, and data sources do not depend on replicas. Slices differ by at most one sample; the first ones
are longer. A batch with fewer samples than replicas is refused, because BatchNorm and other means over
an empty slice would give NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from keras.src.trainers.compile_utils import CompileLoss

from sweeper.errors import DataError, FactoryError, UncapturableError
from sweeper.train.codec import replicas_of
from sweeper.train.randomness.generators import global_seed_generator, set_global_seed_generator
from sweeper.train.step import TrainingStep
from sweeper.train.step_losses import over_replicas

_MARK = "sweeper: samples in this batch:"
_MARKED = re.compile(re.escape(_MARK) + r"\]? \[(\d+)\]")


@dataclass(frozen=True)
class Slice:
    """Slice of a batch for one replica.

    Attributes:
        batch: Part of the batch, in the same structure.
        size: Number of samples in the slice, a scalar.
        whole: Number of samples in the batch, a scalar.
    """

    batch: Any
    size: Any
    whole: Any

    def share(self, dtype: Any) -> Any:
        """Return the slice's share of the batch, from 0 to 1."""
        return tf.cast(self.size, dtype) / tf.cast(self.whole, dtype)

    @property
    def static_size(self) -> int | None:
        """Return the number of samples, if it is known before the graph runs."""
        size = tf.get_static_value(self.size)
        return None if size is None else int(size)


def slice_batch(batch: Any, replicas: int) -> tuple[Slice, ...]:
    """Return the slices of ``batch`` along its first axis, one for each replica."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    whole = _length(leaves[0])
    least, longer = whole // replicas, whole % replicas
    found = []
    for index in range(replicas):
        at = tf.constant(index, whole.dtype)
        begin = at * least + tf.minimum(at, longer)
        size = least + tf.cast(at < longer, whole.dtype)
        part = tf.nest.map_structure(
            lambda leaf, begin=begin, size=size: _part(leaf, begin, size), batch
        )
        found.append(Slice(part, size, whole))
    return tuple(found)


def _length(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    return tf.shape(leaf, out_type=tf.int64)[0]


def _part(leaf: Any, begin: Any, size: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        shape = tf.shape(leaf, out_type=tf.int64)
        start = tf.concat([[begin], tf.zeros_like(shape[1:])], 0)
        part = tf.sparse.slice(leaf, start, tf.concat([[size], shape[1:]], 0))
        part.set_shape([None, *leaf.shape[1:]])
        return part
    return leaf[begin : begin + size]


@dataclass(frozen=True)
class SliceRule:
    """Rule for the batches that can be sliced.

    Attributes:
        replicas: Number of slices.
        strategy: Name of the strategy's class.
        use: ``train`` or ``validation``.
        own: The user's own method of the model, whose losses are correct for equal slices only; empty
            for Keras's own methods.
    """

    replicas: int
    strategy: str
    use: str
    own: str = ""

    def is_broken_by(self, samples: int) -> bool:
        """Return whether a batch with this number of samples is refused."""
        return samples < self.replicas or bool(self.own and samples % self.replicas)

    def check(self, samples: int, shown: str) -> None:
        """Refuse a batch.

        Args:
            samples: Number of its samples.
            shown: Description of the batch, such as ``batch 3 of epoch 1``.

        Raises:
            DataError: A replica would have no sample, or slices that must be equal would not be.
        """
        if self.is_broken_by(samples):
            msg = (
                f"Data({self.use}=…): {shown} has {_samples(samples)}{self._why(samples)}; give "
                f"batches of {self._wanted()}, and drop or fill the last one"
            )
            raise DataError(msg)

    def check_arrays(self, samples: int, batch_size: int, *, last: bool) -> None:
        """Refuse a ``batch_size`` with which arrays come in batches that cannot be sliced.

        Args:
            samples: Number of samples in the arrays.
            batch_size: The user's batch size.
            last: Whether the last, smaller batch is ever drawn.

        Raises:
            DataError: The message has the nearest possible size.
        """
        sizes = [min(batch_size, samples)]
        if last and samples > batch_size and samples % batch_size:
            sizes.append(samples % batch_size)
        bad = next((size for size in sizes if self.is_broken_by(size)), None)
        if bad is None:
            return
        name = "batch_size" if self.use == "train" else "validation_batch_size"
        which = "which" if len(sizes) == 1 else "the last of which"
        if bad == batch_size:
            which = "each of which"
        elif bad != sizes[-1]:
            which = "of which most"
        msg = (
            f"Data({self.use}=…, {name}={batch_size}): {samples:,} samples come in batches "
            f"{which} has {_samples(bad)}{self._why(bad)}; "
        )
        found = self._nearest(samples, batch_size)
        msg += (
            f"give batches of {self._wanted()}"
            if found is None
            else f"{name}={found} leaves no such batch"
        )
        raise DataError(msg)

    def _nearest(self, samples: int, batch_size: int) -> int | None:
        sizes = range(1, min(samples, 2 * batch_size + 2 * self.replicas) + 1)
        fitting = [
            size
            for size in sizes
            if not self.is_broken_by(size)
            and (samples % size == 0 or not self.is_broken_by(samples % size))
        ]
        return min(fitting, key=lambda size: abs(size - batch_size), default=None)

    def _why(self, samples: int) -> str:
        if samples < self.replicas:
            return f", fewer than the {self.replicas} replicas of the {self.strategy}"
        return (
            f", which the {self.replicas} replicas of the {self.strategy} cannot share equally, "
            f"as the model's own {self.own} requires: it divides by the number of replicas, which "
            "is right for equal shares only (Keras's own steps and a TrainingStep accept any)"
        )

    def _wanted(self) -> str:
        return f"multiples of {self.replicas}" if self.own else f"at least {self.replicas} samples"

    def assertion(self, whole: Any) -> None:
        """Add the same check as a graph op; `explained` converts its error."""
        needed = whole >= self.replicas
        if self.own:
            needed = tf.logical_and(needed, whole % self.replicas == 0)
        tf.debugging.Assert(needed, [_MARK, whole])

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


_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")


def replica_index() -> int:
    """Return the index of the replica whose code runs."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


@contextmanager
def scaled(model: keras.Model, slices: Sequence[Slice]) -> Iterator[None]:
    """Context manager that scales the losses of the model's own step for replicas with ``slices``."""
    scaling = _Scaling(slices)
    replaced = (
        (keras_loss, "scale_loss_for_distribution", scaling.scale),
        (keras_loss, "unscale_loss_for_distribution", scaling.unscale),
        (keras_loss, "reduce_values", scaling.reducing(keras_loss.reduce_values)),
        (keras_loss, "apply_mask", scaling.masking(keras_loss.apply_mask)),
        (CompileLoss, "call", scaling.inside(CompileLoss.call)),
        (keras.layers.Layer, "_losses", _losses_by_replica()),
    )
    with ExitStack() as stack:
        for owner, name, function in replaced:
            stack.enter_context(_replaced(owner, name, function))
        if any(getattr(model.optimizer, name, None) for name in _CLIPPING):
            stack.enter_context(_clipped_after_adding())
        yield


class _Scaling:
    """Replacements of Keras's functions for the slices of one step."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._slices = slices
        self._in_compiled_loss: set[int] = set()
        """Replicas whose threads are in ``CompileLoss.call``; they take turns at each reduction."""

    def scale(self, value: Any) -> Any:
        """Return the contribution of a slice's loss to the batch's loss."""
        return value * self._slice().share(value.dtype)

    def unscale(self, value: Any) -> Any:
        """Return the slice's own loss, which is logged and weighted by the slice's samples."""
        own = self._slice()
        if replica_index() in self._in_compiled_loss and own.static_size is None:
            # Without static sizes, Keras weights each output's loss of each slice by 1.
            return value * tf.cast(len(self._slices), value.dtype)
        return value / own.share(value.dtype)

    def reducing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of ``reduce_values`` that divides by the weights of all replicas."""

        def reduce_values(
            values: Any, sample_weight: Any = None, reduction: str | None = "sum_over_batch_size"
        ) -> Any:
            if reduction in _MEANS and values.shape.rank == 0:
                msg = (
                    "a loss function of the model returns one number for a whole batch; on "
                    f"{len(self._slices)} replicas it is unknown whether these numbers have to be "
                    "summed or averaged: return a value for each sample, and Keras takes the mean"
                )
                raise FactoryError(msg)
            if reduction == "mean_with_sample_weight" and sample_weight is not None:
                total = tf.reduce_sum(values)
                divisor = over_replicas(tf.cast(tf.reduce_sum(sample_weight), total.dtype))
                return tf.math.divide_no_nan(total, divisor)
            return original(values, sample_weight=sample_weight, reduction=reduction)

        return reduce_values

    def masking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of ``apply_mask`` that counts the unmasked values of all replicas."""

        def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: str | None) -> Any:
            if mask is None or reduction not in ("mean", "sum_over_batch_size"):
                return original(sample_weight, mask, dtype=dtype, reduction=reduction)
            mask = tf.cast(mask, dtype)
            both = tf.stack([tf.cast(tf.size(mask), dtype), tf.reduce_sum(mask)])
            values, valid = tf.unstack(over_replicas(both))
            weights = mask * tf.math.divide_no_nan(values, valid)
            return original(sample_weight, weights, dtype=dtype, reduction="sum")

        return apply_mask

    def inside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of ``CompileLoss.call``, which logs each output's loss."""

        def call(compiled: Any, *args: Any, **options: Any) -> Any:
            self._in_compiled_loss.add(replica_index())
            try:
                return original(compiled, *args, **options)
            finally:
                self._in_compiled_loss.discard(replica_index())

        return call

    def _slice(self) -> Slice:
        return self._slices[replica_index()]


def _losses_by_replica() -> property:
    """Return a property for the losses that a layer adds, with one list per replica."""
    lists: dict[tuple[int, int], list[Any]] = {}

    def losses(layer: Any) -> list[Any]:
        if tf.distribute.get_replica_context() is None:
            own: list[Any] = vars(layer)["_losses"]
            return own
        return lists.setdefault((replica_index(), id(layer)), [])

    def assign(layer: Any, given: list[Any]) -> None:
        vars(layer)["_losses"] = given

    return property(losses, assign)


@contextmanager
def _clipped_after_adding() -> Iterator[None]:
    """Context manager that sums gradients before they are clipped; Keras clips on each replica."""
    base = keras.optimizers.Optimizer
    adding: Callable[..., Any] = base._all_reduce_sum_gradients
    clipping: Callable[..., Any] = base._clip_gradients

    def clip(optimizer: Any, grads: Any) -> Any:
        added = adding(optimizer, [(grad, None) for grad in grads])
        return clipping(optimizer, [grad for grad, _ in added])

    def already_added(_optimizer: Any, grads_and_vars: Any) -> Any:
        return grads_and_vars

    with (
        _replaced(base, "_clip_gradients", clip),
        _replaced(base, "_all_reduce_sum_gradients", already_added),
    ):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Context manager that sets ``owner.name`` to ``value`` and restores it."""
    inherited = name not in vars(owner)
    before = None if inherited else vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


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
            own=own_method(model, step.__name__) if self._is_of_the_model else "",
        )

    @property
    def _is_of_the_model(self) -> bool:
        return getattr(self._step, "__self__", None) is self._model

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """Run one step; traced, or called directly for an eager model."""
        slices = slice_batch(batch, self.rule.replicas)
        self.rule.assertion(slices[0].whole)

        shared = global_seed_generator()

        def on_replica() -> Any:
            with _one_global_generator(shared):
                own = slices[replica_index()]
                return self._step(own.batch)

        scaling: AbstractContextManager[None] = nullcontext()
        if self._is_of_the_model and self.rule.replicas > 1:
            scaling = scaled(self._model, slices)
        with scaling:
            outputs = self._strategy.run(on_replica)
        if not isinstance(outputs, dict):
            # `GraphStep` raises the error.
            return outputs  # type: ignore[no-any-return]
        return self._reported(outputs, slices)

    def _reported(self, outputs: Mapping[str, Any], slices: tuple[Slice, ...]) -> Mapping[str, Any]:
        """Return metrics over all replicas, and the mean over the batch of other logs."""
        if self._is_of_the_model and _is_keras_own(self._model, self._step.__name__):
            of_keras: Mapping[str, Any] = self._model.get_metrics_result()
            return of_keras
        owner = getattr(self._step, "__self__", None)
        metrics = owner.results() if isinstance(owner, TrainingStep) else {}
        return {
            name: metrics[name]
            if name in metrics
            else tf.nest.map_structure(lambda each: self._one(each, slices), value)
            for name, value in outputs.items()
        }

    def _one(self, value: Any, slices: tuple[Slice, ...]) -> Any:
        values = [tf.convert_to_tensor(v) for v in self._strategy.experimental_local_results(value)]
        if not values[0].dtype.is_floating or len(values) == 1:
            return values[0]
        shares = zip(values, slices, strict=True)
        return tf.add_n([each * own.share(each.dtype) for each, own in shares])


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
    """Yield an error for each setting of the optimizer that Keras 3 does not support on replicas."""
    name = type(optimizer).__name__
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
