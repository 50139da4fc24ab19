"""Writes the page beside it: ``python docs/reference/generate_what_is_captured.py``.

The table is made from the code that captures: the components, the sources of data, and Keras's
callbacks by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sweeper.train.userstate.built_ins import BUILT_INS, LEFT_OUT, REFUSED

PAGE = Path(__file__).with_name("what-is-captured.md")

_DESCRIBED: Mapping[str, tuple[str, str]] = {
    "model": (
        (
            "every variable of `model.variables`, in order: weights, moving statistics, the states of "
            "layers' seed generators"
        ),
        "",
    ),
    "optimizer": (
        (
            "every variable of `model.optimizer`: slots, iterations, learning rate, averages (`use_ema`), "
            "gradient accumulators, the loss scale and the optimizers inside it"
        ),
        "",
    ),
    "optimizers": (
        (
            "every variable of every other optimizer that the attributes of the model, or of a "
            "`TrainingStep`, lead to, such as a GAN's second one"
        ),
        "",
    ),
    "metrics": ("every variable of `model.metrics`, needed in the middle of an epoch", ""),
    "reachable": (
        (
            "every variable that the attributes of the model, or of a `TrainingStep`, lead to and no "
            "list of Keras's has: metrics that `metrics` does not return, seed generators in plain objects, `tf.Variable`, "
            "`tf.random.Generator`"
        ),
        "lookup tables and queues have no variables and are not found",
    ),
    "user_state": (
        (
            "everything else that the user's code reaches and training has changed: attributes, "
            "containers, closures, default arguments, class attributes, module variables, environment "
            "variables, generators, arrays, variables, iterators of containers, positions in files that "
            "are read, wherever they are kept; objects keep who they are, sets their order"
        ),
        (
            "refused, at the first checkpoint after the change: what changed to something with no plain "
            "form, and a traced function with a Python value in it that has changed. What has not "
            "changed is never refused. `Trial.output_only(…)` exempts what only writes"
        ),
    ),
    "parts": (
        (
            "the classes of the optimizer and of what the model was compiled with, and the strategy with "
            "its number of replicas"
        ),
        (
            "refused: an optimizer, rate, metric or Keras variable that is exchanged or gained during "
            "training"
        ),
    ),
    "reopening": (
        (
            "for data that are read again after a resume: what their functions reach, and the process's "
            "generators, as they were when the pass was opened"
        ),
        "",
    ),
    "tracked": (
        (
            "what `Trial.track(name, …)` registered: variables, generators, Keras's layers, optimizers "
            "and metrics, NumPy's generators, objects with `get_state` and `set_state`"
        ),
        "refused, by name: everything else",
    ),
    "global_seed_generator": (
        (
            "Keras's global seed generator, where it is used; after a `clear_session()` or "
            "`set_random_seed()` in a callback, the one that the step was traced with and the new one"
        ),
        "",
    ),
    "keras_settings": (
        "Keras's number format, epsilon, image layout, dtype policy, and the seed last set",
        "",
    ),
    "python_random": ("the state of `random`", ""),
    "numpy_random": ("the state of `numpy.random`'s global generator", ""),
    "tensorflow_random": (
        (
            "TensorFlow's global seed, what gives eager random operations their seeds, and the global "
            "`tf.random.Generator`"
        ),
        (
            "refused: a stateful random operation in a graph that no generator replaces, because "
            "its function was traced before the training or runs on several replicas, or its kind "
            "is not known"
        ),
    ),
    "history": ("`model.history`, and each epoch's logs as they were reported", ""),
    "callbacks": ("each callback's state: see below", "refused: see below"),
    "data": ("where the sources of data stand, beyond epoch and step", ""),
    "fresh_entropy": (
        (
            "how much entropy generators without a seed were given: `np.random.default_rng()`, "
            "`SeedSequence()`, `RandomState()` and `random.Random()` begin from the trial's seed"
        ),
        (
            "refused: one made in another thread. `os.urandom`, `uuid.uuid4` and `secrets` stay the "
            "system's, and a line of yours that takes them is named"
        ),
    ),
    "eager_operations": (
        (
            "how often each eager random operation with a seed of its own was called: call number k "
            "gets seeds that are derived from its own and k"
        ),
        "",
    ),
}

_FIRST = ("parts", "data", "reopening")
COMPONENTS: Mapping[str, tuple[str, str]] = {
    **{name: _DESCRIBED[name] for name in _FIRST},
    **{name: message for name, message in _DESCRIBED.items() if name not in _FIRST},
}
"""What each component captures, and what it refuses or leaves out, in the order of a restore."""

SOURCES: Mapping[str, tuple[str, str, str]] = {
    "ArraySource": (
        "arrays, nested arrays, pandas, tensors (ragged ones, too); sample and class weights",
        "nothing: an epoch's order is a function of (seed, epoch), and indices are skipped",
        "sparse arrays, arrays of Python objects",
    ),
    "PyDatasetSource": (
        "`keras.utils.PyDataset`",
        (
            "its attributes that have changed, or `get_state()`; the order of its batches is a "
            "function of (seed, epoch), and skipped batches are not made"
        ),
        (
            "an attribute with no plain form in a dataset with epoch hooks; with more than one "
            "worker, a `__getitem__` that depends on more than the index"
        ),
    ),
    "TfDataSource": (
        "`tf.data.Dataset`",
        (
            "the iterator, where TensorFlow can serialize it; else the batches before are read "
            "again, which is said; the number of processors, where an `interleave` without "
            "`cycle_length` is ordered by it"
        ),
        (
            "random ops without a seed in `map`; variables written in `map` before a `cache`, or "
            "used elsewhere as well; a shuffle without any seed; "
            "training and validation taken from one reshuffling dataset; a reshuffling dataset "
            "that a function of another one reads from outside; `validation_steps` of an endless "
            "dataset with a shuffle before a `cache`"
        ),
    ),
    "EpochFunctionSource": (
        "a function `epoch -> iterable of batches`",
        "nothing: the epoch's function is called again, and the batches before are dropped",
        "a bare iterator or generator, whose position is hidden",
    ),
    "GrainSource": (
        "a grain `MapDataset`, `IterDataset` or `DataLoader`",
        "its iterator's own state",
        "",
    ),
}
"""Each kind of data by its source's class: what it is, what is captured, what is refused."""

VALUES: tuple[tuple[str, str], ...] = (
    ("None, bool, int, float, complex, str, bytes, range, slice", "by value"),
    (
        "list, tuple, named tuple, set, dict, OrderedDict, defaultdict, Counter, deque",
        "with everything in them; one that two objects share is shared again, sets keep their order",
    ),
    (
        "NumPy arrays and numbers, TensorFlow tensors",
        "bit for bit; an array above 64 KiB that never changes is compared, not saved again",
    ),
    ("`keras.Variable`, `tf.Variable`", "assigned to in place"),
    (
        (
            "Keras layers, models, optimizers, metrics, SeedGenerators, `tf.random.Generator`, "
            "`tf.Module`"
        ),
        "their variables, unless they are the trained model's own",
    ),
    (
        "`numpy.random.Generator`, `RandomState`, `SeedSequence`, `random.Random`",
        "their states, and how many children they have spawned",
    ),
    ("frames and series of pandas, with columns of numbers, times or text", "in place"),
    ("`bytearray`, `array.array`, ctypes: memory that can be written to", "in place"),
    (
        "iterators of containers and of `itertools`, streams in memory, files being read",
        "where they stand",
    ),
    ("Path, datetime, date, time, timedelta, compiled patterns, enumeration members", "by value"),
    (
        "objects of Python classes, dataclasses included, whose attributes are all plain",
        "their attributes, in place",
    ),
    (
        "functions, methods, `functools.partial`, callable objects",
        "the plain values in their closures and arguments",
    ),
    ("another callback of the same training", "as a reference"),
    (
        (
            "classes, modules, loggers, dtypes, Keras losses, initializers, regularizers and schedules, "
            "progress bars, summary writers"
        ),
        "the study's code makes them again; what a class, loss or schedule carries is captured",
    ),
)
"""The kinds of values that the user's objects may carry, and how each comes back."""

REFUSED_VALUES: tuple[str, ...] = (
    "locks, sockets, threads, processes, and files that are written to",
    "objects of libraries that are written in C and have changed, seen by their pickles",
    "Python generators that have gone on",
    "datasets, queues of TensorFlow's, layers and optimizers that are made during training",
    "objects of classes, and functions, that were made during training and that no name leads to",
    "caches of `functools` whose function reads what training has changed",
    (
        "a set that, filled anew, would give its members in another order, and one from which the study's functions may "
        "take members (`discard`, `pop()`, `-=`), as far as names tell; a dict (`dict.fromkeys`) keeps its order and is always captured"
    ),
)
"""What is refused at the first checkpoint after it changed; `get_state` and `set_state` cure it."""


def page() -> str:
    """The page, as Markdown."""
    lines = [
        "# What is captured",
        "",
        "<!-- Written by `docs/reference/generate_what_is_captured.py`; change that, not this file. -->",
        "",
        (
            "A checkpoint holds everything that training changes, and a resumed trial ends bit-identical "
            "to one that never stopped. What cannot be brought back is refused by name, before training "
            "where it can be known there. A restore is complete or an error that names every entry that "
            "is missing, left over or of another shape."
        ),
        "",
        "## Components",
        "",
        "| Component | Captured | Refused or left out |",
        "|---|---|---|",
        *(f"| `{name}` | {held} | {not_held} |" for name, (held, not_held) in COMPONENTS.items()),
        "",
        "The digest of a trial is of `model`, `optimizer` and `optimizers`, in this order.",
        "",
        "## Data",
        "",
        "For every kind a resumed epoch goes on with the very next batch.",
        "",
        "| Kind | Captured, beyond epoch and step | Refused |",
        "|---|---|---|",
        *(f"| {kind} | {held} | {refused} |" for kind, held, refused in SOURCES.values()),
        "",
        "## Keras's callbacks",
        "",
        "Settings that training changes in any of them are captured as well.",
        "",
        "| Callback | Captured | Note |",
        "|---|---|---|",
    ]
    for known, entry in sorted(BUILT_INS.items(), key=lambda item: item[0].__name__):
        names = ", ".join(f"`{name}`" for name in entry.attributes) or "nothing changes in it"
        lines.append(f"| `{known.__name__}` | {names} | {entry.note} |")
    for left_out, reason in sorted(LEFT_OUT.items(), key=lambda item: item[0].__name__):
        lines.append(f"| `{left_out.__name__}` | left out | {reason}; what extends it is refused |")
    for refused, reason in sorted(REFUSED.items(), key=lambda item: item[0].__name__):
        lines.append(f"| `{refused.__name__}` | refused | {reason} |")
    lines += [
        "",
        "## What your own code keeps",
        "",
        (
            "Everything that the study's code leads to is looked at: callbacks, the model and its layers, "
            "losses, metrics, schedules, data and their functions, with their attributes, containers, "
            "closures, default arguments, classes, and the variables of your modules that they use, and "
            "the environment. What it is as training begins is remembered. What has changed at a "
            "checkpoint is captured, where it has one of these forms; what has not changed is never "
            "refused. A callback or dataset with `get_state()` and `set_state(state)` is asked instead."
        ),
        "",
        "| Value | How it comes back |",
        "|---|---|",
        *(f"| {kind} | {how} |" for kind, how in VALUES),
        "",
        "Refused by name, at the first checkpoint after it has changed:",
        "",
        *(f"- {kind}" for kind in REFUSED_VALUES),
        "",
        (
            "Not seen: what is kept in the modules of installed libraries, in files, in other processes, "
            "and inside objects written in C that cannot be pickled. Audits, and `sweeper check`, find "
            "it by its effect. What only writes is exempted with `Trial.output_only`."
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
