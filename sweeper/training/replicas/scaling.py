"""Losses of slices that add up to the loss of the whole batch.

Keras divides the mean loss of a replica's slice by the number of replicas, and adds the replicas'
gradients up: right for slices of one size only. In `scaled` a slice counts by its share of the
batch, which is the same where slices are equal, and makes every step of Keras's own the step of one
replica on the whole batch, but for the order of additions:

- a mean over samples, an activity or weight regularizer and ``add_loss`` count by the share;
- a mean over weights (``"mean_with_sample_weight"``) or over what a mask leaves divides by the
  weights, or the unmasked values, of all replicas;
- a sum stays a sum;
- gradients are clipped after they are added up, not before;
- what layers add to the loss is kept apart for each replica. Replicas are threads that take turns
  wherever they add something up, and a layer's list of losses is the same one in all of them.

All of it stands in functions that Keras's modules look up when they are called, so these are replaced
while a step is traced (or runs, for a model that runs eagerly) and put back after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from keras.src.trainers.compile_utils import CompileLoss

from sweeper.errors import FactoryError
from sweeper.training.replicas.slices import Slice

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def replica_index() -> int:
    """The number of the replica whose code runs, from 0."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


@contextmanager
def scaled(model: keras.Model, slices: Sequence[Slice]) -> Iterator[None]:
    """Have the losses of ``model``'s own step scaled for replicas that take ``slices``."""
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
        if _clips(model.optimizer):
            stack.enter_context(_clipped_after_adding())
        yield


class _Scaling:
    """Keras's functions, for the slices of one step."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._slices = slices
        self._in_compiled_loss: set[int] = set()
        """Replicas whose threads are in it: where gradients or weights are added up, they take turns."""

    def scale(self, value: Any) -> Any:
        """What the loss of a slice adds to the loss of the batch."""
        return value * self._slice().share(value.dtype)

    def unscale(self, value: Any) -> Any:
        """What is logged, and weighted by the slice's samples: the loss of the slice itself."""
        own = self._slice()
        if replica_index() in self._in_compiled_loss and own.static_size is None:
            # Keras knows no sizes here, and weights each output's loss of each slice by 1.
            return value * tf.cast(len(self._slices), value.dtype)
        return value / own.share(value.dtype)

    def reducing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``reduce_values``, where it divides by what other replicas have a part of."""

        def reduce_values(
            values: Any, sample_weight: Any = None, reduction: str | None = "sum_over_batch_size"
        ) -> Any:
            if reduction in _MEANS and values.shape.rank == 0:
                msg = (
                    "a loss function of the model gives one number for a whole batch; on "
                    f"{len(self._slices)} replicas nobody can tell whether these are to be added or "
                    "averaged: let it give a value for each sample, and Keras takes the mean"
                )
                raise FactoryError(msg)
            if reduction == "mean_with_sample_weight" and sample_weight is not None:
                total = tf.reduce_sum(values)
                divisor = sum_of_all(tf.cast(tf.reduce_sum(sample_weight), total.dtype))
                return tf.math.divide_no_nan(total, divisor)
            return original(values, sample_weight=sample_weight, reduction=reduction)

        return reduce_values

    def masking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``apply_mask``, where it weights by how much of the mask is set."""

        def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: str | None) -> Any:
            if mask is None or reduction not in ("mean", "sum_over_batch_size"):
                return original(sample_weight, mask, dtype=dtype, reduction=reduction)
            mask = tf.cast(mask, dtype)
            both = tf.stack([tf.cast(tf.size(mask), dtype), tf.reduce_sum(mask)])
            values, valid = tf.unstack(sum_of_all(both))
            weights = mask * tf.math.divide_no_nan(values, valid)
            return original(sample_weight, weights, dtype=dtype, reduction="sum")

        return apply_mask

    def inside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``CompileLoss.call``, in which each output's own loss is logged."""

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
    """What layers add to the loss, a list for each replica."""
    lists: dict[tuple[int, int], list[Any]] = {}

    def losses(layer: Any) -> list[Any]:
        if tf.distribute.get_replica_context() is None:
            own: list[Any] = vars(layer)["_losses"]
            return own
        return lists.setdefault((replica_index(), id(layer)), [])

    def assign(layer: Any, given: list[Any]) -> None:
        vars(layer)["_losses"] = given

    return property(losses, assign)


def sum_of_all(value: Any) -> Any:
    """The sum of a tensor over all replicas; nothing flows back."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(value))


def _clips(optimizer: Any) -> bool:
    names = ("clipnorm", "global_clipnorm", "clipvalue")
    return any(getattr(optimizer, name, None) for name in names)


@contextmanager
def _clipped_after_adding() -> Iterator[None]:
    """Have gradients added up before they are clipped; Keras clips each replica's own."""
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
    """``owner.name`` is ``value`` inside, and what it was after it."""
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
