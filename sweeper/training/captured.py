"""Writes the table of what a checkpoint holds: ``python -m sweeper.training.captured FILE``.

The table is made from the code that captures: the components, the sources of data, and Keras's
callbacks by name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from sweeper.training.built_ins import BUILT_INS, REFUSED

__all__ = ["COMPONENTS", "REFUSED_VALUES", "SOURCES", "VALUES", "page"]

COMPONENTS: Mapping[str, tuple[str, str]] = {
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
            "every variable of every other optimizer that the model's attributes lead to, such as a "
            "GAN's second one"
        ),
        "",
    ),
    "metrics": ("every variable of `model.metrics`, needed in the middle of an epoch", ""),
    "reachable": (
        (
            "every variable that the model's attributes lead to and no list of Keras's has: metrics that "
            "`metrics` does not return, seed generators in plain objects, `tf.Variable`, "
            "`tf.random.Generator`"
        ),
        "lookup tables and queues have no variables and are not found",
    ),
    "attributes": (
        (
            "plain attributes of the user's own models, layers, optimizers and metrics that have changed "
            "since training began, as in a `train_step` that runs eagerly"
        ),
        (
            "refused: one that changed to what has no plain form. An object of a library that changes "
            "inside without its attribute changing is not noticed"
        ),
    ),
    "tracked": (
        (
            "what `Trial.track(name, …)` registered: variables, generators, Keras's layers, optimizers "
            "and metrics, NumPy's generators, objects with `get_state` and `set_state`"
        ),
        "refused, by name: everything else",
    ),
    "global_seed_generator": ("Keras's global seed generator, where it is used", ""),
    "python_random": ("the state of `random`", ""),
    "numpy_random": ("the state of `numpy.random`'s global generator", ""),
    "tensorflow_random": (
        (
            "TensorFlow's global seed, what gives eager random operations their seeds, and the global "
            "`tf.random.Generator`"
        ),
        "refused: a stateful random operation inside the step, whose state no interface reads",
    ),
    "history": ("`model.history`, and each epoch's logs as they were reported", ""),
    "callbacks": ("each callback's state: see below", "refused: see below"),
    "data": ("where the sources of data stand, beyond epoch and step", ""),
}
"""What each component captures, and what it refuses or leaves out."""

SOURCES: Mapping[str, tuple[str, str, str]] = {
    "ArraySource": (
        "arrays, nested arrays, pandas, tensors; sample and class weights",
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
            "again, which is said"
        ),
        (
            "stateful random ops and variables written in `map`; a shuffle without any seed; "
            "training and validation taken from one reshuffling dataset"
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
        "with everything in them; one that two callbacks share is shared again",
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
    ("`numpy.random.Generator`, `RandomState`, `random.Random`", "their states"),
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
            "summary writers"
        ),
        "constants: the study's code makes them again",
    ),
)
"""The kinds of values that a callback or a model may carry, and how each comes back."""

REFUSED_VALUES: tuple[str, ...] = (
    "locks, files, sockets, threads, processes",
    "iterators and generators",
    "datasets, lookup tables",
    "arrays of Python objects or of text, and two arrays that share memory",
    "containers that contain themselves",
    "objects of libraries, and objects of local classes that were made during training",
    (
        "functions that were set during training, that change a global variable, that have a list, dict "
        "or set as a default argument, or that are methods of a list, dict or set"
    ),
)
"""What is refused before training, by callback and attribute; two methods cure it."""


def page() -> str:
    """The page, as Markdown."""
    lines = [
        "# What is captured",
        "",
        "<!-- Written by `python -m sweeper.training.captured`; change the code, not this file. -->",
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
    for refused, reason in sorted(REFUSED.items(), key=lambda item: item[0].__name__):
        lines.append(f"| `{refused.__name__}` | refused | {reason} |")
    lines += [
        "",
        "## Callbacks of your own",
        "",
        (
            "A callback with `get_state()` and `set_state(state)` is asked for its state, after "
            "`on_train_begin`. Of any other, every attribute is captured, and what its methods keep in "
            "their closures; it is refused where an attribute has none of these forms:"
        ),
        "",
        "| Value | How it comes back |",
        "|---|---|",
        *(f"| {kind} | {how} |" for kind, how in VALUES),
        "",
        "Refused, with the callback and the attribute named:",
        "",
        *(f"- {kind}" for kind in REFUSED_VALUES),
        "",
        (
            "Not seen: lists and dicts of a module that a callback changes without holding them. Track "
            "such an object with `Trial.track`, or keep it in the callback."
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m sweeper.training.captured FILE")
    Path(sys.argv[1]).write_text(page())
