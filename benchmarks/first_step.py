"""Modules that `sweeper run` enters on its way to the first training step, in order: ``python benchmarks/first_step.py``.

A module is entered when one of its functions is called, in the command, in the fork server or in the trial's process.
Running a module's top level, its classes' bodies and its dataclasses' methods is no entry.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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

study = Study(name="first", model=build_model, data=load_data, objective="loss", epochs=1, trials=1, audit="off")
"""

HOOK = """
import os, sys, threading, time

package = os.environ["FIRST_STEP_PACKAGE"] + os.sep
record = os.open(os.environ["FIRST_STEP_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
entered = {}

def entry(frame, event, argument):
    code = frame.f_code
    file = code.co_filename
    if event != "call" or not file.startswith(package) or code.co_name.startswith("<"):
        return
    if code.co_flags & 2 == 0:  # the body of a class has no fast locals
        return
    name = file.removeprefix(package)
    calls = entered.setdefault(os.getpid(), set())
    if (name, code.co_qualname) not in calls:
        calls.add((name, code.co_qualname))
        os.write(record, f"{time.monotonic():.6f} {os.getpid()} {name} {code.co_qualname}\\n".encode())

sys.setprofile(entry)
threading.setprofile(entry)
"""


def entries() -> list[tuple[str, str, str]]:
    """Return process, module and function of each first call, in their order, until the first step."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "sitecustomize.py").write_text(HOOK)
        (place / "study.py").write_text(STUDY)
        environment = {
            **os.environ,
            "PYTHONPATH": directory,
            "FIRST_STEP_PACKAGE": str(ROOT / "sweeper"),
            "FIRST_STEP_RECORD": str(place / "record"),
        }
        program = [sys.executable, "-m", "sweeper", "run", "study.py", "--quiet"]
        subprocess.run(program, cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL)
        lines = sorted(
            (place / "record").read_text().splitlines(), key=lambda line: float(line.split()[0])
        )
    calls = []
    for line in lines:
        _, process, module, function = line.split()
        calls.append((process, module, function))
        if (module, function) == ("train/loop/runners.py", "Runner.run"):
            break
    return calls


def main() -> None:
    calls = entries()
    modules: dict[str, list[str]] = {}
    for _, module, function in calls:
        modules.setdefault(module, []).append(function)
    for module, functions in modules.items():
        print(f"{module}: {', '.join(dict.fromkeys(functions))}")
    print(f"{len(modules)} modules, {len(calls)} functions")


if __name__ == "__main__":
    main()
