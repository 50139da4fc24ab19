"""Objects of libraries, and of the user's own making, that have no plain form and never change."""

from __future__ import annotations

import abc
import array
import collections
import ctypes
import datetime as dt
import decimal
import fractions
import ipaddress
import sqlite3
import types
import uuid
import zoneinfo
from concurrent.futures import ThreadPoolExecutor

import keras
import pandas as pd
import wrapt
from holding import Holds
from matplotlib.figure import Figure
from pieces import FEATURES, samples
from registry import identical, study
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

NAMES = ["setosa", "versicolor", "virginica"]


def connected(trial):
    connection = sqlite3.connect(trial.directory / "facts.db")
    connection.execute("CREATE TABLE IF NOT EXISTS facts (rate REAL)")
    connection.execute("INSERT INTO facts VALUES (0.5)")
    connection.commit()
    return [Holds(connection, lambda c: c.execute("SELECT min(rate) FROM facts").fetchone()[0])]


study(
    "holds-database-connection",
    "an sqlite connection that is read from",
    identical(),
    callbacks=connected,
)


class Coroutines:
    """Makes a coroutine that is never started; closed, so that nothing complains."""

    async def wait(self):
        return 1

    def made(self):
        waiting = self.wait()
        waiting.close()
        return waiting


study(
    "holds-coroutine",
    "a coroutine that was never started",
    identical(),
    callbacks=lambda trial: [Holds(Coroutines().made(), lambda c: 0.1 * len(c.__name__))],
)

study(
    "holds-thread-pool",
    "a thread pool that has done no work",
    identical(),
    callbacks=lambda trial: [Holds(ThreadPoolExecutor(1), lambda pool: 1 / pool._max_workers)],
)

study(
    "holds-pandas-frame",
    "a pandas frame with names and dates, looked up in",
    identical(),
    callbacks=lambda trial: [
        Holds(
            pd.DataFrame({"name": NAMES, "w": [0.2, 0.5, 0.9]}).set_index("name"),
            lambda frame: float(frame.loc["versicolor", "w"]),
        )
    ],
)


def fitted(trial):
    x, y = samples()
    return [
        Holds(
            {"pca": PCA(2).fit(x), "linear": LogisticRegression().fit(x, y)},
            lambda found: float(found["linear"].score(x, y)) + found["pca"].n_components / 10,
        )
    ]


study(
    "holds-fitted-estimators",
    "estimators of scikit-learn that are fitted and then only asked",
    identical(),
    callbacks=fitted,
)


def drawn(trial):
    figure = Figure()
    figure.subplots().plot([0, 1])
    return [Holds(figure, lambda f: len(f.axes) / 2)]


study("holds-figure", "a matplotlib figure that is only looked at", identical(), callbacks=drawn)


def with_reference(trial):
    reference = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3, "softmax")])
    x = samples()[0][:4]
    return [Holds(reference, lambda m: float(m(x)[0, 0]))]


study(
    "holds-reference-model",
    "a Keras model for predictions to compare with, which stays as it is",
    identical(),
    callbacks=with_reference,
)

study(
    "holds-memoryview",
    "a memoryview and an array.array",
    identical(),
    callbacks=lambda trial: [
        Holds((memoryview(b"\x05\x06"), array.array("d", [0.5])), lambda v: v[0][0] / 10 * v[1][0])
    ],
)


class Point(ctypes.Structure):
    """A structure of C."""

    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_double))


study(
    "holds-ctypes",
    "a structure and a function of C",
    identical(),
    callbacks=lambda trial: [
        Holds((Point(2, 0.5), ctypes.CDLL(None).abs), lambda v: v[0].y * v[1](-1))
    ],
)

study(
    "holds-dates-and-zones",
    "time zones, decimals, fractions, addresses and identifiers",
    identical(),
    callbacks=lambda trial: [
        Holds(
            {
                "zone": dt.timezone(dt.timedelta(hours=2), "here"),
                "decimal": decimal.Decimal("0.75"),
                "fraction": fractions.Fraction(1, 3),
                "address": ipaddress.ip_address("127.0.0.1"),
                "id": uuid.UUID(int=5),
                "path": zoneinfo.ZoneInfo,
            },
            lambda many: float(many["decimal"]) * float(many["fraction"]),
        )
    ],
)

study(
    "holds-mapping-proxy",
    "a read-only view of a dictionary, and a ChainMap",
    identical(),
    callbacks=lambda trial: [
        Holds(
            types.MappingProxyType({"a": 0.5, "deep": collections.ChainMap({"b": 1}, {})}),
            lambda view: view["a"] * view["deep"]["b"],
        )
    ],
)


class Meta(abc.ABCMeta):
    """A metaclass that keeps a register of its classes."""

    known = {}  # noqa: RUF012 - a register on purpose

    def __new__(cls, name, bases, members):
        made = super().__new__(cls, name, bases, members)
        cls.known[name] = made
        return made


class Scale(metaclass=Meta):
    """An abstract scale."""

    @abc.abstractmethod
    def of(self, x): ...


class Half(Scale):
    """Half of it."""

    def of(self, x):
        return x / 2


study(
    "holds-object-of-metaclass",
    "an object of an abstract class with a metaclass of one's own",
    identical(),
    callbacks=lambda trial: [Holds(Half(), lambda scale: scale.of(1.0))],
)


class Everything:
    """Answers to every name, as mock objects and remote proxies do."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return len(name)


study(
    "holds-object-with-getattr",
    "an object that has every attribute",
    identical(),
    callbacks=lambda trial: [Holds(Everything(), lambda e: e.half / 8)],
)

study(
    "holds-proxy",
    "a wrapt proxy around a dictionary",
    identical(),
    callbacks=lambda trial: [Holds(wrapt.ObjectProxy({"scale": 0.6}), lambda p: p["scale"])],
)
