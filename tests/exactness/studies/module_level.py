"""State at module and class level: globals, counters of classes, caches, helper modules, the environment."""

import contextvars
import functools
import os
import random
import threading

import keras
import numpy as np
from pieces import build_eager
from project_settings import next_rate
from registry import either, identical, refused, study, study_callback

COUNTS = {"batches": 0}


@study_callback(
    "module-dictionary", "a dictionary of the module that a callback counts in", identical()
)
class CountsInModule(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        COUNTS["batches"] += 1
        self.model.optimizer.learning_rate = 0.1 / (1 + 0.1 * COUNTS["batches"])


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


@study_callback(
    "class-attribute-counter", "a callback that counts in attributes of its class", identical()
)
class Stepper(keras.callbacks.Callback):
    steps = 0
    best = None

    def on_train_batch_end(self, batch, logs=None):
        type(self).steps += 1
        if Stepper.best is None or logs["loss"] < Stepper.best:
            Stepper.best = logs["loss"]
        self.model.optimizer.learning_rate = 0.1 * Stepper.best / (1 + 0.05 * self.steps)


@study_callback(
    "helper-module-globals",
    "a helper module's global number and dictionary, changed by its function",
    identical(),
)
class FromProject(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = next_rate()


SHUFFLER = random.Random(9)


@study_callback(
    "module-python-generator",
    "a random.Random of the module, which a callback draws from",
    either("SHUFFLER"),
)
class DrawsRate(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = SHUFFLER.choice([0.1, 0.03, 0.05])


@functools.cache
def first_loss(epoch):
    return LAST[-1]


LAST = [1.0]


@study_callback(
    "function-cache",
    "a functools.cache that a callback fills in training, with what stood there first",
    either("first_loss"),
)
class Cached(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        LAST.append(logs["loss"])
        self.model.optimizer.learning_rate = 0.05 * first_loss(self.params.get("epochs"))


LOCAL = threading.local()


@study_callback("thread-local", "a threading.local that a callback counts in", either("LOCAL"))
class InThread(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        LOCAL.count = getattr(LOCAL, "count", 0) + 1
        self.model.optimizer.learning_rate = 0.1 / LOCAL.count**0.5


DEPTH = contextvars.ContextVar("depth", default=0)


@study_callback(
    "context-variable",
    "a contextvars.ContextVar that a callback counts in",
    refused("DEPTH", "a context variable", "in an attribute"),
)
class InContext(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        DEPTH.set(DEPTH.get() + 1)
        self.model.optimizer.learning_rate = 0.1 / DEPTH.get() ** 0.5


@functools.singledispatch
def halved(value):
    return value


@halved.register(float)
def _(value):
    return value / 2


@study_callback(
    "singledispatch-called",
    "a singledispatch function that is first called in training",
    identical(),
)
class Dispatches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = halved(logs["loss"] / 10)


WINDOW = np.zeros(5)


@study_callback(
    "module-array-in-place", "an array of the module that a callback writes into", identical()
)
class Windowed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        WINDOW[:-1] = WINDOW[1:]
        WINDOW[-1] = logs["loss"]
        self.model.optimizer.learning_rate = 0.1 / (1 + WINDOW.std())


class Loud:
    """Patched from outside: monkey-patching in the middle of training."""

    @staticmethod
    def factor():
        return 1.0


@study_callback(
    "class-monkey-patched",
    "a callback that replaces a method of a class for good",
    either("factor"),
    model=build_eager,
)
class Patches(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            Loud.factor = staticmethod(lambda: 0.5)
        self.model.optimizer.learning_rate = 0.1 * Loud.factor()


@study_callback(
    "state-beside-environment",
    "a callback that counts in an environment variable",
    either("environ"),
)
class InEnvironment(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        os.environ["STEP"] = str(int(os.environ.get("STEP", "0")) + 1)
        self.model.optimizer.learning_rate = 0.1 / int(os.environ["STEP"]) ** 0.5
