"""Generator of the page beside it: ``python docs/reference/generate_what_is_captured.py``.

The tables list the components of the state, the data sources, and Keras's callbacks, which come
from the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sweeper.train.state.callbacks import LEFT_OUT, REFUSED
from sweeper.train.userstate.files import MOST_WRITTEN
from sweeper.train.userstate.refused import KINDS

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
            "every variable of every other optimizer that is reachable from attributes of the model or of "
            "a `TrainingStep`, such as the second one of a GAN"
        ),
        "",
    ),
    "metrics": ("every variable of `model.metrics`, needed in the middle of an epoch", ""),
    "reachable": (
        (
            "every variable that is reachable from attributes of the model or of a `TrainingStep` and "
            "that Keras's lists do not contain: metrics that `metrics` does not return, seed "
            "generators in plain objects, `tf.Variable`, `tf.random.Generator`"
        ),
        "lookup tables and queues have no variables and are not found",
    ),
    "user_state": (
        (
            "everything else that the user's code reaches and training has changed: attributes, "
            "containers, closures, default arguments, class attributes, module variables, environment "
            "variables, random generators, arrays, variables; objects keep their identity"
        ),
        (
            "refused, at the first checkpoint after the change: a changed value that cannot be encoded, "
            "and a traced function that contains a changed Python value. Unchanged values are never "
            "refused. `Trial.output_only(…)` exempts objects that only write output"
        ),
    ),
    "parts": (
        (
            "the classes of the optimizer and of the other arguments of `compile`, the strategy with "
            "its number of replicas, and Keras's number format, epsilon, image layout and dtype policy"
        ),
        (
            "refused: an optimizer, rate, metric, setting of Keras or Keras variable that is replaced or added "
            "during training"
        ),
    ),
    "reopening": (
        (
            "for data that are read again after a resume: the objects that their functions reach and the "
            "process's generators, as they were at the beginning of the pass"
        ),
        "",
    ),
    "global_seed_generator": (
        (
            "Keras's last seed, and its global seed generator, if it is used; after `clear_session()` or `set_random_seed()` "
            "in a callback, both the one with which the step was traced and the new one"
        ),
        "",
    ),
    "python_random": ("the state of `random`", ""),
    "numpy_random": ("the state of `numpy.random`'s global generator", ""),
    "tensorflow_random": (
        (
            "TensorFlow's global seed, the source of seeds for eager random operations, and the global "
            "`tf.random.Generator`"
        ),
        (
            "refused: a stateful random operation in a graph that no generator replaces, because "
            "its function was traced before the training or runs on several replicas, or its kind "
            "is not known"
        ),
    ),
    "history": ("`model.history`, and each epoch's logs as they were reported", ""),
    "callbacks": (
        (
            "each callback's state, see below, and the results of `get_state()` of objects that were registered "
            "with `Trial.track(name, …)`; variables, generators, Keras's layers, optimizers and metrics among "
            "these are captured with the user's objects"
        ),
        "refused, by name: other tracked objects; callbacks, see below",
    ),
    "data": ("the positions of the data sources, besides epoch and step", ""),
    "fresh_entropy": (
        (
            "the number of generators that were made without a seed: `np.random.default_rng()`, "
            "`SeedSequence()`, `RandomState()` and `random.Random()` are seeded from the trial's seed"
        ),
        (
            "refused: one made in another thread. `os.urandom`, `uuid.uuid4` and `secrets` use the "
            "system's entropy, and lines of your code that call them are named"
        ),
    ),
    "eager_operations": (
        (
            "the number of calls of each eager random operation with its own seed: call number k gets "
            "seeds that are derived from its seed and k"
        ),
        "",
    ),
}

_FIRST = ("parts", "data", "reopening")
COMPONENTS: Mapping[str, tuple[str, str]] = {
    **{name: _DESCRIBED[name] for name in _FIRST},
    **{name: message for name, message in _DESCRIBED.items() if name not in _FIRST},
}
"""State that each component captures, and state that it refuses or leaves out, in the order of a restore."""

SOURCES: Mapping[str, tuple[str, str, str]] = {
    "ArraySource": (
        "arrays, nested arrays, pandas, tensors (ragged ones, too); sample and class weights",
        "nothing: the order of an epoch is a function of (seed, epoch), and indices are skipped",
        "sparse arrays, arrays of Python objects other than texts",
    ),
    "PyDatasetSource": (
        "`keras.utils.PyDataset`",
        (
            "its attributes that have changed, or `get_state()`; the order of its batches is a "
            "function of (seed, epoch), and skipped batches are not made"
        ),
        (
            "with epoch hooks, an attribute that cannot be encoded; with more than one "
            "worker, a `__getitem__` that depends on more than the index"
        ),
    ),
    "TfDataSource": (
        "`tf.data.Dataset`",
        (
            "nothing: the earlier batches of the pass are read again and dropped, with a notice; the "
            "number of processors, if the order of an `interleave` without `cycle_length` depends on it"
        ),
        (
            "random ops without a seed in `map`; variables written in `map` before a `cache`, or "
            "also used elsewhere; a shuffle without any seed; "
            "a reshuffling dataset that a function of another dataset reads"
        ),
    ),
    "EpochFunctionSource": (
        "a function `epoch -> iterable of batches`",
        "nothing: the epoch's function is called again, and the earlier batches are dropped",
        "a bare iterator or generator, whose position is hidden",
    ),
    "GrainSource": (
        "a grain `MapDataset`, `IterDataset` or `DataLoader`",
        "nothing: the earlier batches of the pass are read again and dropped, with a notice",
        "",
    ),
}
"""Each kind of data by the class of its source: name, captured state, refused cases."""

CALLBACKS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "CSVLogger": (
        ("keys",),
        "its file is truncated to its length at the checkpoint, or at the trial's first start",
    ),
    "EarlyStopping": (("wait", "best", "best_epoch", "stopped_epoch", "best_weights"), ""),
    "History": ((), "the history is a separate component"),
    "LambdaCallback": ((), "variables in the closures of its functions are captured"),
    "LearningRateScheduler": (
        (),
        "the learning rate is the optimizer's; the state of the schedule function is captured",
    ),
    "ModelCheckpoint": (
        ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
        "files that were written after the checkpoint are written again, with equal content",
    ),
    "ProgbarLogger": ((), "its output is not undone"),
    "ReduceLROnPlateau": (
        ("wait", "best", "cooldown_counter"),
        "the learning rate is the optimizer's",
    ),
    "RemoteMonitor": ((), "an epoch that ends again after a crash is sent again"),
    "SwapEMAWeights": (
        ("_ema_weights_in_model",),
        (
            "with swap_on_epoch=True the model has the averages at the checkpoint of an epoch's end, as for "
            "the callbacks after it"
        ),
    ),
    "TensorBoard": (
        ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
        (
            "every attempt writes its own event files and continues the step numbers; those of the attempt "
            "before are truncated to their length at the checkpoint; a running profile is lost"
        ),
    ),
    "TerminateOnNaN": ((), ""),
}
"""Attributes of Keras's own callbacks that training changes, and a note, by the callback."""

VALUES: tuple[tuple[str, str], ...] = (
    ("None, bool, int, float, complex, str, bytes, range, slice", "by value"),
    (
        "list, tuple, named tuple, dict, OrderedDict, defaultdict, Counter, deque",
        "with their contents and order; shared containers remain shared",
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
        "`numpy.random.Generator`, `RandomState`, `random.Random`",
        "their states",
    ),
    ("Path, datetime, date, time, timedelta, compiled patterns, enumeration members", "by value"),
    (
        "objects of Python classes, dataclasses included, if all attributes can be encoded",
        "their attributes, in place",
    ),
    (
        "functions, methods, `functools.partial`, callable objects",
        "the values in their closures and arguments",
    ),
    ("another callback of the same training", "as a reference"),
    (
        "files that are open for writing only",
        (
            f"their content, up to {MOST_WRITTEN >> 20} MiB, and position; what is appended (mode 'a') stays, so "
            "that lines of steps that are trained again are there twice"
        ),
    ),
    (
        (
            "classes, modules, loggers, dtypes, Keras losses, initializers, regularizers and schedules, "
            "progress bars, summary writers"
        ),
        "the study's code makes them again; attributes of a class, loss or schedule are captured",
    ),
)
"""Kinds of values in the user's objects, and how each is restored."""

REFUSED_VALUES: tuple[str, ...] = (
    "locks, sockets, threads and processes",
    "changed objects of libraries that are written in C (a change is found by their pickles)",
    "datasets, layers, optimizers, metrics and generators of Keras and TensorFlow that are made during training",
    *(f"{kind.what}: {kind.advice}" for kind in KINDS),
    "classes and functions that were made during training and cannot be found by name, and objects of such classes",
    "caches of `functools` whose function reads a value that training has changed",
    (
        "sets, because their order of iteration depends on how they were filled (an empty one is captured); use a dict, "
        "which keeps its order (`dict.fromkeys(…)`), or a sorted tuple instead of a frozenset"
    ),
)
"""Kinds of values that are refused at the first checkpoint after a change, without `get_state`."""


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# What is captured",
        "",
        "<!-- Written by `docs/reference/generate_what_is_captured.py`; change that, not this file. -->",
        "",
        (
            "A checkpoint holds everything that training changes, and a resumed trial ends bit-identical "
            "to an uninterrupted one. State that cannot be restored is refused by name, before training if "
            "possible. A restore is complete, or it is an error that names every entry that is missing, "
            "unexpected or of another shape."
        ),
        "",
        "## Components",
        "",
        "| Component | Captured | Refused or left out |",
        "|---|---|---|",
        *(f"| `{name}` | {held} | {not_held} |" for name, (held, not_held) in COMPONENTS.items()),
        "",
        "The digest of a trial covers `model`, `optimizer` and `optimizers`, in this order.",
        "",
        "## Data",
        "",
        "With every kind of data a resumed epoch continues with the next batch.",
        "",
        "| Kind | Captured, besides epoch and step | Refused |",
        "|---|---|---|",
        *(f"| {kind} | {held} | {refused} |" for kind, held, refused in SOURCES.values()),
        "",
        "## Keras's callbacks",
        "",
        "Settings of a callback that training changes are captured too.",
        "",
        "| Callback | Captured | Note |",
        "|---|---|---|",
    ]
    for name, (attributes, note) in CALLBACKS.items():
        names = ", ".join(f"`{attribute}`" for attribute in attributes) or "nothing changes"
        lines.append(f"| `{name}` | {names} | {note} |")
    for left_out, reason in sorted(LEFT_OUT.items(), key=lambda item: item[0].__name__):
        lines.append(f"| `{left_out.__name__}` | left out | {reason}; subclasses are refused |")
    for refused, reason in sorted(REFUSED.items(), key=lambda item: item[0].__name__):
        lines.append(f"| `{refused.__name__}` | refused | {reason} |")
    lines += [
        "",
        "## What your own code keeps",
        "",
        (
            "sweeper walks over everything that the study's code reaches: callbacks, the model and its "
            "layers, losses, metrics, schedules, data and their functions, with their attributes, "
            "containers, closures, default arguments, classes, the variables of your modules that they "
            "use, and the environment. It records all values when training begins. At a checkpoint, "
            "changed values are captured if they have one of these kinds; unchanged values are never "
            "refused. Callbacks and datasets with `get_state()` and `set_state(state)` use these instead."
        ),
        "",
        "| Value | How it is restored |",
        "|---|---|",
        *(f"| {kind} | {how} |" for kind, how in VALUES),
        "",
        "Refused by name, at the first checkpoint after a change:",
        "",
        *(f"- {kind}" for kind in REFUSED_VALUES),
        "",
        (
            "Not found: state in the modules of installed libraries, in files, in other processes, and in "
            "objects written in C that cannot be pickled. Audits and `sweeper check` find it by its "
            "effect. `Trial.output_only` exempts an object that only writes output."
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
