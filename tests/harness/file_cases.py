"""Ways in which a trial leaves a file for the next one; each with a twin whose content is the same for all."""

import os
import shelve
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import h5py
import joblib
import numpy as np
import tensorflow as tf

Case = Callable[[float], object]
"""Factory of one trial, whose parameter decides the content; the current directory is the study's."""


def statistics(scale):
    if os.path.exists("stats.npz"):  # noqa: PTH110 - as scripts do it
        return np.load("stats.npz")["mean"]
    np.savez("stats.npz", mean=np.arange(4) * scale)
    return np.arange(4) * scale


def memory(scale):
    """Have a parameter that the cache does not know."""
    cached = joblib.Memory("memory", verbose=0).cache(_prepared, ignore=["scale"])
    return cached(3, scale)


def _prepared(count, scale):
    return np.ones(count) * scale


def mapped(scale):
    file = Path("features.mmap")
    if not file.exists():
        array = np.memmap(file, "float32", "w+", shape=(8,))
        array[:] = scale
        array.flush()
    return np.array(np.memmap(file, "float32", "r", shape=(8,)))


def database(scale):
    with sqlite3.connect("features.db") as opened:
        opened.execute("create table if not exists scale (value real)")
        if opened.execute("select count(*) from scale").fetchone() == (0,):
            opened.execute("insert into scale values (?)", (scale,))
        [(value,)] = opened.execute("select value from scale").fetchall()
    opened.close()
    return value


def hdf5(scale):
    if not os.path.isfile("features.h5"):  # noqa: PTH113
        with h5py.File("features.h5", "w") as file:
            file["x"] = np.ones(4) * scale
    with h5py.File("features.h5") as read:
        return read["x"][:]


def shelf(scale):
    with shelve.open("shelf") as opened:
        return opened.setdefault("scale", scale)


def cache(scale):
    data = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32) * scale)
    return list(data.cache("cached").as_numpy_iterator())


def snapshot(scale):
    """Have a variable in the pipeline, whose value is not in a snapshot's name."""
    variable = tf.Variable(scale)
    data = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32) * variable)
    return list(data.snapshot("snapshots").as_numpy_iterator())


def saved_model(scale):
    if not Path("exported/saved_model.pb").exists():
        module = tf.Module()
        module.weight = tf.Variable(np.ones(4) * scale)
        tf.saved_model.save(module, "exported")
    return tf.saved_model.load("exported").weight.numpy()


def tf_checkpoint(scale):
    variable = tf.Variable(scale)
    checkpoint = tf.train.Checkpoint(v=variable)
    if tf.io.gfile.exists("start.index"):
        checkpoint.read("start")
    else:
        checkpoint.write("start")
    return variable.numpy()


def tf_file(scale):
    if tf.io.gfile.exists("scale.txt"):
        with tf.io.gfile.GFile("scale.txt") as file:
            return file.read()
    with tf.io.gfile.GFile("scale.txt", "w") as file:
        file.write(str(scale))
    return str(scale)


def replaced(scale):
    """Write beside, and rename: as careful code does."""
    if not Path("scale.txt").is_file():
        Path("scale.tmp").write_text(str(scale))
        Path("scale.tmp").replace("scale.txt")
    return Path("scale.txt").read_text()


def linked(scale):
    """Write beside, and link: as a download does that must not replace another one."""
    if not Path("scale.txt").is_file():
        Path(f"scale-{scale}.tmp").write_text(str(scale))
        Path("scale.txt").hardlink_to(f"scale-{scale}.tmp")
    return Path("scale.txt").read_text()


def saved_dataset(scale):
    data = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32) * scale)
    if not os.path.exists("saved"):  # noqa: PTH110
        data.save("saved")
    return list(tf.data.Dataset.load("saved").as_numpy_iterator())


def records(scale):
    """Write records in C++."""
    if not os.path.exists("features.tfrecord"):  # noqa: PTH110
        with tf.io.TFRecordWriter("features.tfrecord") as writer:
            writer.write(str(scale))
    return [record.numpy() for record in tf.data.TFRecordDataset("features.tfrecord")]


def in_a_graph(scale):
    """Write by an op."""

    @tf.function
    def write(value):
        tf.io.write_file("scale.bin", tf.strings.as_string(value))

    if not os.path.exists("scale.bin"):  # noqa: PTH110
        write(tf.constant(scale))
    return tf.io.read_file("scale.bin").numpy()


def shell(scale):
    """Let another program write."""
    if not os.path.exists("scale.txt"):  # noqa: PTH110
        subprocess.run(f"echo {scale} > scale.txt", shell=True, check=True)
    return Path("scale.txt").read_text()


def extracted(scale):
    """Write beside, in a directory of its own, and move the directory."""
    if not os.path.isdir("features"):  # noqa: PTH112
        Path("making").mkdir()
        np.save("making/x.npy", np.ones(4) * scale)
        shutil.move("making", "features")
    return np.load("features/x.npy")


UNANNOUNCED = {
    case.__name__: case
    for case in (cache, snapshot, saved_dataset, records, in_a_graph, shell, tf_checkpoint)
}
"""The cases whose writer nobody announces: only a walk finds what it leaves."""

CASES = UNANNOUNCED | {
    case.__name__: case
    for case in (
        *(statistics, memory, mapped, database, hdf5, shelf),
        *(saved_model, tf_file, replaced, linked, extracted),
    )
}
