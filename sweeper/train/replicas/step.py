"""One step on all replicas: each takes its slice, and what they report becomes one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import UncapturableError
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
