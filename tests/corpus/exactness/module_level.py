"""State at module and class level: globals, counters of classes, caches, helper modules, the environment."""

import contextvars
import functools
import os
import random
import threading

import keras
import numpy as np
from pieces import build_eager, lowering
from project_settings import next_rate
from registry import identical, refused, study, study_callback

COUNTS = {"batches": 0}
GLOBAL_STEP = 0
WINDOW = np.zeros(5)
SHUFFLER = random.Random(9)
LOCAL = threading.local()


def warm_up(batch, logs):
    global GLOBAL_STEP
    GLOBAL_STEP += 1


@functools.singledispatch
def halved(value):
    return value


@halved.register(float)
def _(value):
    return value / 2


class Stepper(keras.callbacks.Callback):
    """Sets the rate by state of its class, of the module, of a helper module and of the process."""

    steps = 0
    best = None

    def on_train_batch_end(self, batch, logs=None):
        type(self).steps += 1
        if Stepper.best is None or logs["loss"] < Stepper.best:
            Stepper.best = halved(logs["loss"])
        COUNTS["batches"] += 1
        WINDOW[:-1] = WINDOW[1:]
        WINDOW[-1] = logs["loss"]
        LOCAL.count = getattr(LOCAL, "count", 0) + 1
        os.environ["STEP"] = str(int(os.environ.get("STEP", "0")) + 1)
        rate = next_rate() * SHUFFLER.choice([1.0, 0.3, 0.5]) * min(1.0, GLOBAL_STEP / 14)
        rate *= (1 + Stepper.best) / (1 + 0.05 * self.steps) / (1 + WINDOW.std())
        rate /= (1 + 0.1 * COUNTS["batches"]) * LOCAL.count**0.1 * int(os.environ["STEP"]) ** 0.1
        self.model.optimizer.learning_rate = rate


study(
    "module-level-state",
    "a dictionary, an array, a generator, a class, a thread-local, the environment, a helper module",
    identical(),
    callbacks=lambda trial: [
        keras.callbacks.LambdaCallback(on_train_batch_end=warm_up),
        Stepper(),
    ],
)


@functools.cache
def first_loss(epoch):
    return LAST[-1]


LAST = [1.0]


def remembered(_, loss):
    LAST.append(loss)
    return first_loss("first")


study(
    "function-cache",
    "a functools.cache that a callback fills in training, with what stood there first",
    refused("first_loss", "a cache of functools"),
    callbacks=lowering(int, remembered),
)


DEPTH = contextvars.ContextVar("depth", default=0)


def counted_in_context(_, loss):
    DEPTH.set(DEPTH.get() + 1)
    return DEPTH.get()


study(
    "context-variable",
    "a contextvars.ContextVar that a callback counts in",
    refused("DEPTH", "a context variable", "in an attribute"),
    callbacks=lowering(int, counted_in_context),
)


class Loud:
    """Patched from outside: monkey-patching in the middle of training."""

    @staticmethod
    def factor():
        return 1.0


@study_callback(
    "class-monkey-patched",
    "a callback that replaces a method of a class for good",
    refused("factor", "staticmethod"),
    model=build_eager,
)
class Patches(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            Loud.factor = staticmethod(lambda: 0.5)
        self.model.optimizer.learning_rate = 0.1 * Loud.factor()
