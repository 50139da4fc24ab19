"""Trainings on two replicas: a strategy over two logical CPU devices, and plans under it."""

import numpy as np
import tensorflow as tf

from sweeper.train.codec import replicas_of


def two_replicas(**options):
    """Over the two logical devices that the tests' process has.

    TensorFlow's own choice of how to add up, its collective ops, lets one process have one strategy.
    """
    arguments = {"cross_device_ops": tf.distribute.ReductionToOneDevice(), **options}
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], **arguments)


def under(build, strategy=two_replicas):
    """A factory of the same model, made in the strategy's scope."""

    def built():
        with strategy().scope():
            return build()

    return built


def each_replica(model):
    """Copies of every model, optimizer and metric variable, replica by replica, in order."""
    of_optimizer = model.optimizer.variables if model.optimizer else []
    variables = [*model.variables, *of_optimizer, *model.metrics_variables]
    return [np.array(value) for v in variables for value in map(_read, replicas_of(v))]


def _read(variable):
    return variable.read_value()
