"""One step on all replicas: each takes its slice, and what they report becomes one report.

What cannot be trained on several replicas is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError, UncapturableError
from sweeper.train.codec import replicas_of
from sweeper.train.randomness.generators import global_seed_generator, set_global_seed_generator
from sweeper.train.replicas.slices import Slice, SliceRule, replica_index, scaled, slice_batch
from sweeper.train.step import TrainingStep


class ReplicatedStep:
    """A step of a model whose strategy has several replicas, for one global batch.

    Args:
        model: Compiled, and made in the strategy's scope.
        step: ``model.train_step``, ``model.test_step`` or what takes its place; it is called on each
            replica, with that replica's slice.
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
        """Run one step; a method to be traced, or called as it is for a model that runs eagerly."""
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
            # `GraphStep` says what it must be.
            return outputs  # type: ignore[no-any-return]
        return self._reported(outputs, slices)

    def _reported(self, outputs: Mapping[str, Any], slices: tuple[Slice, ...]) -> Mapping[str, Any]:
        """Metrics over all replicas; of anything else, the mean over the batch."""
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
    """Keras's global seed generator, which each thread has for itself, is ``shared`` in this one.

    Raises:
        UncapturableError: There was none, and the replica made one, in a thread that ends.
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
    """Return which of the methods that a step of ``model`` goes through is the user's own; empty for none."""
    own = (name for name in (step, "compute_loss") if not _is_keras_own(model, name))
    return next((f"{name}()" for name in own), "")


def _is_keras_own(model: keras.Model, method: str) -> bool:
    return getattr(type(model), method, None) is getattr(keras.Model, method, None)


def replicated(model: keras.Model, step: Callable[[Any], Any]) -> ReplicatedStep | None:
    """Return the step on all replicas of the model's strategy; None where it runs as it is.

    A strategy with mirrored variables runs it in threads, on one replica as well.
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
"""Why a strategy is refused, and what to use; by the name of its class without ``V1`` or ``V2``."""


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy unless its replicas train in step, and all in this process.

    Raises:
        FactoryError: Names the strategy and says which one to use.
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
    """Refuse a model that its strategy's replicas would not train as one replica would.

    Args:
        model: Compiled.
        step: What is taken instead of the model's own step, if anything is.

    Returns:
        What the user should know; None where there is nothing.

    Raises:
        FactoryError: Says what of it cannot be, and what to do.
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
    """Return the strategy, its replicas and how they add up, for the record of what a trial ran on."""
    name, replicas = type(strategy).__name__, int(strategy.num_replicas_in_sync)
    if replicas == 1:
        return name
    adding = type(getattr(strategy.extended, "_cross_device_ops", None)).__name__
    return f"{name}, {replicas} replicas, {adding}"


def _outside(model: keras.Model, strategy: Any) -> Iterator[str]:
    """Yield the parts of the model that were made outside the strategy's scope."""
    advice = (
        "make the model, its layers and its optimizer inside strategy.scope(), as a study's factories "
        "do with Study(strategy=…)"
    )
    for variable in model.variables:
        if len(replicas_of(variable)) != strategy.num_replicas_in_sync:
            yield f"its variable {variable.path!r} was made outside the strategy's scope; {advice}"
    optimizer = model.optimizer
    if optimizer is not None and _strategy_of(optimizer) is not strategy:
        yield f"its optimizer was made outside the strategy's scope; {advice}"


def _strategy_of(optimizer: Any) -> Any:
    return getattr(optimizer, "_distribution_strategy", None)


def _optimizer(optimizer: Any) -> Iterator[str]:
    """Yield the settings of the optimizer that Keras 3 cannot train on replicas, where they fail inside a graph."""
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
