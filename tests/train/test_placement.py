"""A data set is never what fills a GPU's memory."""

import numpy as np
import tensorflow as tf

from sweeper.train.loop.runners import gathering

DATA = (np.arange(30.0).reshape(10, 3), {"y": np.arange(10), "weights": None})


def test_batches_are_gathered_in_the_hosts_memory():
    """A gather that TensorFlow placed on the GPU would copy the whole array there at each step."""
    gather = gathering(DATA)
    spec = [tf.TensorSpec((None,), tf.int64)]
    graph = tf.function(gather, input_signature=spec).get_concrete_function().graph
    gathers = [op.device for op in graph.get_operations() if op.type.startswith("Gather")]
    assert len(gathers) == 2
    assert all(device.endswith("CPU:0") for device in gathers)
    x, more = gather(tf.constant([7, 0, 7], tf.int64))
    assert np.array_equal(x, DATA[0][[7, 0, 7]])
    assert np.array_equal(more["y"], [7, 0, 7])
    assert more["weights"] is None
