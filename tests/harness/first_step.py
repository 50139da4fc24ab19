"""Modules of this package that ``sweeper run`` enters on its way to the first training step.

As a script it prints them in their order, each with the functions that were called first::

    .venv/bin/python tests/harness/first_step.py

A module is entered when one of its functions is called, in the command, in the fork server or in the process of the
trial. Running a module's top level and the bodies of its classes is no entry. The modules of `WAY` are those that a
debugger follows from the command to the training loop; the others compute something for one of them.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import sweeper

PACKAGE = Path(sweeper.__file__).parent

WAY = ("cli", "run")
"""Packages through which a run's request goes to the loop."""

STUDY = """
import keras
import numpy as np
from sweeper import Data, Study

def build_model(trial):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1)
    model.compile(optimizer=keras.optimizers.SGD(rate), loss="mse")
    return model

def load_data(trial):
    x = np.ones((16, 4), "float32")
    return Data(train=(x, x[:, 0]), batch_size=8)

study = Study(
    name="first", model=build_model, data=load_data, objective="loss", epochs=1, trials=1, audit="off"
)
"""

HOOK = """
import os, sys, threading, time

package = os.environ["SWEEPER_TEST_PACKAGE"] + os.sep
record = os.open(os.environ["SWEEPER_TEST_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
entered = {}

def profile(frame, event, argument):
    code = frame.f_code
    # The body of a module or a class has no fast locals.
    if event != "call" or not code.co_flags & 2 or not code.co_filename.startswith(package):
        return
    call = f"{code.co_filename.removeprefix(package)} {code.co_qualname}"
    calls = entered.setdefault(os.getpid(), set())
    if call not in calls:
        calls.add(call)
        os.write(record, f"{time.monotonic_ns()} {call}\\n".encode())

sys.setprofile(profile)
threading.setprofile(profile)
"""
"""Run by each Python process at its start: ``sitecustomize.py``."""

_FIRST_STEP = ("train/loop/runners.py", "IndexRunner.run")


def calls_to_the_first_step() -> list[tuple[str, str]]:
    """Return the module and the name of each called function, in the order of their first calls."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "sitecustomize.py").write_text(HOOK)
        (place / "study.py").write_text(STUDY)
        environment = {
            **os.environ,
            "PYTHONPATH": directory,
            "SWEEPER_TEST_PACKAGE": str(PACKAGE),
            "SWEEPER_TEST_RECORD": str(place / "record"),
        }
        program = [sys.executable, "-m", "sweeper", "run", "study.py", "--quiet"]
        subprocess.run(program, cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL)
        lines = [line.split(" ") for line in (place / "record").read_text().splitlines()]
    calls = [
        (module, function) for _, module, function in sorted(lines, key=lambda line: int(line[0]))
    ]
    return calls[: calls.index(_FIRST_STEP) + 1]


def modules_of(calls: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the called functions by their module, in the order in which the modules are entered."""
    modules: dict[str, list[str]] = {}
    for module, function in calls:
        modules.setdefault(module, []).append(function)
    return modules


def on_the_way(modules: dict[str, list[str]]) -> list[str]:
    """Return the modules of the packages of `WAY`."""
    return [module for module in modules if module.partition("/")[0] in WAY]


if __name__ == "__main__":
    entered_modules = modules_of(calls_to_the_first_step())
    for name, functions in entered_modules.items():
        print(
            f"{'* ' if name in on_the_way(entered_modules) else '  '}{name}: {', '.join(functions[:6])}"
        )
    print(
        f"{len(on_the_way(entered_modules))} modules of {' and '.join(WAY)}, {len(entered_modules)} in all"
    )
