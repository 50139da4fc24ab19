"""What does not repeat is named: the call, the function that it stands in, and its line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from sweeper.independence.lines import line_of, line_of_argument, line_of_error
from sweeper.independence.nondeterminism import kept_outside, suspects

Written = Callable[[str], ModuleType]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """Writes a module of the user's and imports it."""

    def write(text: str) -> ModuleType:
        file = tmp_path / "users_module.py"
        file.write_text(dedent(text).lstrip())
        spec = importlib.util.spec_from_file_location("users_module", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["users_module"] = module
        spec.loader.exec_module(module)
        return module

    yield write
    sys.modules.pop("users_module", None)


def found(module: ModuleType, name: str) -> list[tuple[str, int]]:
    return [(s.call, s.line.line) for s in suspects(getattr(module, name))]


@pytest.mark.parametrize(
    ("imports", "call", "expected"),
    [
        ("import time", "time.time()", "time.time"),
        ("from time import time as now", "now()", "time.time"),
        ("import time", "time.perf_counter()", "time.perf_counter"),
        ("import os", "os.urandom(4)", "os.urandom"),
        ("import uuid", "uuid.uuid4()", "uuid.uuid4"),
        ("import secrets", "secrets.randbits(8)", "secrets.randbits"),
        ("import datetime", "datetime.datetime.now()", "datetime.now"),
        ("from datetime import date", "date.today()", "date.today"),
        ("import random", "random.Random()", "random.Random() without a seed"),
        (
            "import numpy as np",
            "np.random.default_rng()",
            "np.random.default_rng() without a seed",
        ),
    ],
)
def test_a_call_is_named_whatever_it_is_imported_as(
    written: Written, imports: str, call: str, expected: str
) -> None:
    module = written(f"{imports}\n\ndef factory(trial):\n    return {call}\n")
    assert found(module, "factory") == [(expected, 4)]


@pytest.mark.parametrize(
    "body",
    [
        "return np.random.default_rng(trial.seed).normal()",
        "return random.Random(7).random()",
        "return random.random() + np.random.rand()",
        "return Clock().time()",
        "return 'time.time()'",
    ],
)
def test_what_repeats_is_not_named(written: Written, body: str) -> None:
    module = written(
        f"""
        import random
        import numpy as np

        class Clock:
            def time(self):
                return 3

        def factory(trial):
            {body}
        """
    )
    assert found(module, "factory") == []


def test_it_is_found_behind_calls_partials_decorators_and_in_methods(written: Written) -> None:
    module = written(
        """
        import functools
        import os
        import time

        def noise(size):
            return os.urandom(size)

        @functools.cache
        def cached():
            return noise(3)

        def factory(trial):
            return cached()

        given = functools.partial(factory, None)

        class Callback:
            def on_epoch_end(self, epoch, logs=None):
                self._count()

            def _count(self):
                import time as clock
                return clock.time()
        """
    )
    assert found(module, "factory") == [("os.urandom", 6)]
    assert found(module, "given") == [("os.urandom", 6)]
    assert found(module, "Callback") == [("time.time", 23)]
    [suspect] = suspects(module.Callback())
    assert suspect.within == "Callback._count"


def test_a_hash_is_named_only_where_nothing_is_likelier(written: Written) -> None:
    module = written(
        """
        import time

        def ordered(trial):
            return list(set(["a", "b"]))

        def timed(trial):
            return list(set(["a", "b"])), time.time()
        """
    )
    assert [call for call, _ in found(module, "ordered")] == [
        "set (strings in it have another order in every process)"
    ]
    assert [call for call, _ in found(module, "timed")] == ["time.time"]


def test_a_property_of_the_users_is_not_run(written: Written) -> None:
    module = written(
        """
        class Holder:
            @property
            def explode(self):
                raise RuntimeError

        held = Holder()

        def factory(trial):
            return held.explode()
        """
    )
    assert found(module, "factory") == []


def test_module_variables_that_a_callback_changes_are_named(written: Written) -> None:
    module = written(
        """
        HITS = [0]
        SEEN = {}
        LIMIT = 3

        class Counter:
            def on_train_batch_end(self, batch, logs=None):
                HITS[0] += 1
                SEEN.setdefault(batch, LIMIT)
                own = {}
                own["a"] = LIMIT
        """
    )
    expected = [(s.call, s.line.line) for s in kept_outside(module.Counter)]
    assert expected == [("the module variable 'HITS'", 7), ("the module variable 'SEEN'", 8)]


def test_lines_of_functions_classes_errors_and_arguments(written: Written) -> None:
    module = written(
        """
        from functools import partial
        def build(trial, width=3):
            raise KeyError(width)
        class Layer(dict):
            pass
        class Study:
            def __init__(self, **arguments): ...
        one = Study(name="one", objective="loss")
        two = Study(
            name="two",
            objective="val_loss",
        )
        """
    )
    file = str(module.__file__)
    assert str(line_of(partial(module.build, width=4))) == f"{file}:2"
    assert str(line_of(module.Layer())) == f"{file}:4"
    assert line_of(dict) is None
    with pytest.raises(KeyError) as caught:
        module.build(None)
    assert str(line_of_error(caught.value)) == f"{file}:3"
    assert str(line_of_argument(file, "two", "objective")) == f"{file}:11"
    assert str(line_of_argument(file, "two", "epochs")) == f"{file}:9"
    assert str(line_of_argument(file, "one", "objective")) == f"{file}:8"
