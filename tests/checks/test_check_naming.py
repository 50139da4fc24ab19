"""Lines of the user's code: of factories, classes, errors and arguments."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from sweeper.replay.lines import line_of, line_of_argument, line_of_error

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
