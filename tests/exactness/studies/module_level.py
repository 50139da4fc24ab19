"""State at module and class level: globals, counters of classes, caches, helper modules."""

import contextvars
import functools
import random
import threading

import keras
import numpy as np
from pieces import build_eager, build_model
from project_settings import next_rate
from registry import either, identical, refused, study

COUNTS = {"batches": 0}


class CountsInModule(keras.callbacks.Callback):
    """Counts in a dictionary of the module."""

    def on_train_batch_begin(self, batch, logs=None):
        COUNTS["batches"] += 1
        self.model.optimizer.learning_rate = 0.1 / (1 + 0.1 * COUNTS["batches"])


study(
    "module-dictionary",
    "a dictionary of the module that a callback counts in",
    identical(),
    callbacks=lambda trial: [CountsInModule()],
)

GLOBAL_STEP = 0


def warm_up(batch, logs):
    global GLOBAL_STEP
    GLOBAL_STEP += 1


class ReadsGlobal(keras.callbacks.Callback):
    """Sets the rate by the global counter."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 * min(1.0, GLOBAL_STEP / 14)


study(
    "module-global-int",
    "a global number that one callback counts up and another one reads",
    identical(),
    callbacks=lambda trial: [
        keras.callbacks.LambdaCallback(on_train_batch_end=warm_up),
        ReadsGlobal(),
    ],
)


class Stepper(keras.callbacks.Callback):
    """Counts its batches in an attribute of the class."""

    steps = 0
    best = None

    def on_train_batch_end(self, batch, logs=None):
        type(self).steps += 1
        if Stepper.best is None or logs["loss"] < Stepper.best:
            Stepper.best = logs["loss"]
        self.model.optimizer.learning_rate = 0.1 * Stepper.best / (1 + 0.05 * self.steps)


study(
    "class-attribute-counter",
    "a callback that counts in attributes of its class",
    identical(),
    callbacks=lambda trial: [Stepper()],
)


class FromProject(keras.callbacks.Callback):
    """Takes the rate from a helper module, whose globals move on."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = next_rate()


study(
    "helper-module-globals",
    "a helper module's global number and dictionary, changed by its function",
    identical(),
    callbacks=lambda trial: [FromProject()],
)


SHUFFLER = random.Random(9)


class DrawsRate(keras.callbacks.Callback):
    """Draws from the module's own random.Random."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = SHUFFLER.choice([0.1, 0.03, 0.05])


study(
    "module-python-generator",
    "a random.Random of the module, which a callback draws from",
    either("SHUFFLER"),
    callbacks=lambda trial: [DrawsRate()],
)


@functools.cache
def first_loss(epoch):
    return LAST[-1]


LAST = [1.0]


class Cached(keras.callbacks.Callback):
    """Remembers each epoch's first loss by a cache."""

    def on_train_batch_end(self, batch, logs=None):
        LAST.append(logs["loss"])
        self.model.optimizer.learning_rate = 0.05 * first_loss(self.params.get("epochs"))


study(
    "function-cache",
    "a functools.cache that a callback fills in training, with what stood there first",
    either("first_loss"),
    callbacks=lambda trial: [Cached()],
)


LOCAL = threading.local()


class InThread(keras.callbacks.Callback):
    """Counts in a threading.local."""

    def on_train_batch_begin(self, batch, logs=None):
        LOCAL.count = getattr(LOCAL, "count", 0) + 1
        self.model.optimizer.learning_rate = 0.1 / LOCAL.count**0.5


study(
    "thread-local",
    "a threading.local that a callback counts in",
    either("LOCAL"),
    callbacks=lambda trial: [InThread()],
)

DEPTH = contextvars.ContextVar("depth", default=0)


class InContext(keras.callbacks.Callback):
    """Counts in a context variable."""

    def on_train_batch_begin(self, batch, logs=None):
        DEPTH.set(DEPTH.get() + 1)
        self.model.optimizer.learning_rate = 0.1 / DEPTH.get() ** 0.5


study(
    "context-variable",
    "a contextvars.ContextVar that a callback counts in",
    refused("DEPTH", "a context variable", "in an attribute"),
    callbacks=lambda trial: [InContext()],
)


@functools.singledispatch
def halved(value):
    return value


@halved.register(float)
def _(value):
    return value / 2


class Dispatches(keras.callbacks.Callback):
    """Calls a singledispatch function for the first time during training, which fills its cache."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = halved(logs["loss"] / 10)


study(
    "singledispatch-called",
    "a singledispatch function that is first called in training",
    identical(),
    callbacks=lambda trial: [Dispatches()],
)


WINDOW = np.zeros(5)


class Windowed(keras.callbacks.Callback):
    """Writes into an array of the module in place."""

    def on_train_batch_end(self, batch, logs=None):
        WINDOW[:-1] = WINDOW[1:]
        WINDOW[-1] = logs["loss"]
        self.model.optimizer.learning_rate = 0.1 / (1 + WINDOW.std())


study(
    "module-array-in-place",
    "an array of the module that a callback writes into",
    identical(),
    callbacks=lambda trial: [Windowed()],
    model=build_model,
)


class Loud:
    """Patched from outside: monkey-patching in the middle of training."""

    @staticmethod
    def factor():
        return 1.0


class Patches(keras.callbacks.Callback):
    """Replaces a function of a class after the first batches."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            Loud.factor = staticmethod(lambda: 0.5)
        self.model.optimizer.learning_rate = 0.1 * Loud.factor()


study(
    "class-monkey-patched",
    "a callback that replaces a method of a class for good",
    either("factor"),
    callbacks=lambda trial: [Patches()],
    model=build_eager,
)
