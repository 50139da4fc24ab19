"""A data set is never what fills a GPU's memory, and where it lies changes no batch."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from sweeper.train.loop import runners
from sweeper.train.loop.runners import MOST_ON_GPU, put_arrays

DATA = (np.arange(30.0).reshape(10, 3), {"y": np.arange(10), "weights": None})


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, as far as TensorFlow's settings tell; its limits are to be appended."""
    limits = []
    monkeypatch.setattr(runners.tf.config, "list_physical_devices", lambda _kind: ["GPU:0"])
    monkeypatch.setattr(
        runners.tf.config, "get_logical_device_configuration", lambda _gpu: limits or None
    )
    return limits


def placed(arrays, monkeypatch):
    """On which device, without allocating what a test could not."""
    notices = []
    monkeypatch.setattr(runners.tf, "constant", lambda array: array)
    return put_arrays(arrays, "train", notices.append).device, notices


def sized(count):
    return SimpleNamespace(shape=(count,), dtype="uint8")


def test_what_is_larger_than_the_bound_stays_in_the_hosts_memory_and_that_is_said(gpu, monkeypatch):
    assert placed((sized(MOST_ON_GPU // 2), sized(MOST_ON_GPU // 2)), monkeypatch) == (None, [])
    device, notices = placed((sized(MOST_ON_GPU), None, sized(1)), monkeypatch)
    assert device == "/device:CPU:0"
    assert "the train data have 1,024 MiB" in notices[0]
    gpu.append(SimpleNamespace(memory_limit=2048))
    assert placed(sized(512 * 2**20), monkeypatch) == (None, [])
    assert placed(sized(513 * 2**20), monkeypatch)[0] == "/device:CPU:0"


def test_without_a_gpu_nothing_is_said(monkeypatch):
    monkeypatch.setattr(runners.tf.config, "list_physical_devices", lambda _kind: [])
    assert placed(sized(2**40), monkeypatch) == (None, [])


def test_batches_are_gathered_where_the_arrays_are_and_are_the_same(gpu, monkeypatch):
    """A gather that TensorFlow placed on the GPU would copy the whole array there at each step."""
    anywhere = put_arrays(DATA, "train", lambda _: None)
    monkeypatch.setattr(runners, "MOST_ON_GPU", 100)
    hosted = put_arrays(DATA, "train", lambda _: None)
    spec = [tf.TensorSpec((None,), tf.int64)]
    graph = tf.function(hosted.gather, input_signature=spec).get_concrete_function().graph
    gathers = [op.device for op in graph.get_operations() if op.type.startswith("Gather")]
    assert len(gathers) == 2
    assert all(device.endswith("CPU:0") for device in gathers)
    indices = tf.constant([7, 0, 7], tf.int64)
    for one, other in zip(
        tf.nest.flatten(hosted.gather(indices)),
        tf.nest.flatten(anywhere.gather(indices)),
        strict=True,
    ):
        assert (one is None and other is None) or np.array_equal(one, other)
