"""Matrix of versions: one environment for each cell, in which a study is killed, resumed, checked and verified.

Keras's own tests of its callbacks, which its package has, are run as they are and with `sweeper.fit`.

    python tests/versions/matrix.py            # all cells
    python tests/versions/matrix.py lowest     # one of them
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Cell:
    """One environment."""

    pins: tuple[str, ...]
    lowest: bool = False


CELLS = {
    "lowest": Cell(
        ("keras==3.10.0", "tensorflow==2.19.*", "optuna==4.5.*", "sqlalchemy==2.0.*"), lowest=True
    ),
    "3.12": Cell(("keras==3.12.*", "tensorflow==2.20.*", "optuna==4.9.*", "sqlalchemy==2.0.*")),
    "3.14": Cell(("keras==3.14.*", "tensorflow==2.21.*", "optuna==5.0.*", "sqlalchemy==2.1.*")),
    "3.15": Cell(("keras==3.15.*", "tensorflow==2.21.*", "optuna==5.0.*", "sqlalchemy==2.1.*")),
}

_STUDY = """
import keras, tensorflow as tf
from sklearn.datasets import load_digits
from sweeper import Data, Every, Study

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32").reshape(-1, 8, 8, 1)


def build_model(trial):
    model = keras.Sequential([
        keras.Input((8, 8, 1)), keras.layers.RandomTranslation(0.1, 0.1), keras.layers.Conv2D(8, 3),
        keras.layers.BatchNormalization(), keras.layers.Flatten(), keras.layers.Dropout(0.3),
        keras.layers.Dense(10, activation="softmax"),
    ])
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
    schedule = keras.optimizers.schedules.CosineDecay(rate, 300)
    model.compile(keras.optimizers.Adam(schedule), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def load_data(trial):
    train = tf.data.Dataset.from_tensor_slices((x[:1400], y[:1400])).shuffle(1400, seed=3).batch(32)
    return Data(train=train, validation=(x[1400:], y[1400:]), batch_size=64)


def make_callbacks(trial):
    return [keras.callbacks.EarlyStopping(patience=9), keras.callbacks.TerminateOnNaN()]


study = Study(name="matrix", model=build_model, data=load_data, callbacks=make_callbacks,
              objective="val_accuracy", direction="maximize", epochs=8, trials=2, checkpoint_every=Every(steps=10))
"""


def environment(cell: Cell, directory: Path) -> Path:
    """Return the Python of a new environment with the cell's versions."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "uv"], check=True)
    install = [directory / "bin" / "uv", "pip", "install", "--quiet", "--python", python]
    resolution = ["--resolution", "lowest-direct"] if cell.lowest else []
    subprocess.run([*install, *resolution, "-e", ROOT, *cell.pins], check=True)
    frozen = subprocess.run(
        [*install[:2], "freeze", "--python", python], capture_output=True, text=True, check=True
    )
    fixed = directory / "constraints.txt"
    fixed.write_text(
        "".join(f"{line}\n" for line in frozen.stdout.splitlines() if not line.startswith("-e"))
    )
    needed = ("scikit-learn", "pytest", "requests", "absl-py")
    subprocess.run([*install, "--constraint", fixed, *needed], check=True)
    return python


def run_tests(python: Path, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run tests to their end, whatever fails; nothing that they warn of is an error."""
    usual = ("-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider")
    return subprocess.run(
        [python, *usual, *words], cwd=directory, capture_output=True, text=True, check=False
    )


_OF_BACKUP = "BackupAndRestore"
"""Callback that sweeper leaves out of a training, because it restores the training itself."""

_CONFTEST = """
import pytest

def skip_if_backend(backend, reason):
    return pytest.mark.skipif(backend == "tensorflow", reason=reason)
"""


def keras_tests(python: Path, directory: Path) -> list[str]:
    """Run Keras's tests of its callbacks; return those that pass with ``fit`` and not with `sweeper.fit`."""
    where = "import keras.src.callbacks as c; print(c.__path__[0])"
    process = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    directory.mkdir()
    for file in Path(process.stdout.split()[-1]).glob("*_test.py"):
        if not file.name.startswith("orbax"):
            shutil.copy(file, directory)
    if not any(directory.iterdir()):
        print("  Keras's package has no tests in this version", flush=True)
        return []
    (directory / "conftest.py").write_text(_CONFTEST)
    (directory / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    requires_trainable_backend: trains\n"
    )
    shutil.copy(Path(__file__).with_name("keras_through_sweeper.py"), directory)

    def passed(*plugin: str) -> set[str]:
        ran = run_tests(python, directory, "-rA", *plugin, ".")
        return set(re.findall(r"^PASSED (\S+)", ran.stdout, re.MULTILINE))

    plain = passed()
    through = passed("-p", "keras_through_sweeper")
    if not plain:
        return ["Keras's own tests of its callbacks could not be run"]
    lost = sorted(name for name in plain - through if _OF_BACKUP not in name)
    print(
        f"  Keras's callbacks: {len(plain)} pass with fit, {len(through)} with sweeper.fit",
        flush=True,
    )
    return [f"only with fit pass {', '.join(lost)}"] if lost else []


def replacements(python: Path) -> list[str]:
    """Run the tests of what is replaced in the libraries; return what fails."""
    files = [ROOT / "tests/train" / name for name in ("test_interception.py", "test_sums.py")]
    ran = run_tests(python, python.parent, "-c", os.devnull, "--noconftest", *map(str, files))
    print(f"  {ran.stdout.splitlines()[-1] if ran.stdout else ran.stderr[-600:]}", flush=True)
    return ["tests of replaced functions failed"] if ran.returncode else []


@dataclass(frozen=True)
class Tried:
    """A study in a directory, and what does not hold of it."""

    python: Path
    directory: Path
    study: str
    wrong: list[str]

    def command(self, *words: str, runs: str = "") -> list[str]:
        options = ["--runs-dir", runs] if runs else []
        return [str(self.python), "-m", "sweeper", *words, *options]

    def run(self, *words: str, runs: str = "") -> str:
        """Run a command to its end; return its output."""
        ended = subprocess.run(
            self.command(*words, runs=runs),
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            output = (ended.stdout + ended.stderr)[-600:]
            self.wrong.append(f"{' '.join(words)} ended with {ended.returncode}: {output}")
        return ended.stdout

    def kill_and_resume(self) -> None:
        """Run the study whole, and killed and resumed; compare its first two trials."""
        file = f"{self.study}_study.py"
        runs_of_killed = f"{self.study}-killed"
        self.run("run", file, runs=f"{self.study}-whole")
        killed = subprocess.Popen(
            self.command("run", file, runs=runs_of_killed),
            cwd=self.directory,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 120
        while time.monotonic() < until and not list(
            (self.directory / runs_of_killed).rglob("manifest.json")
        ):
            time.sleep(0.05)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        self.run("resume", self.study, runs=runs_of_killed)
        for number in ("0", "1"):
            whole, resumed = (
                json.loads(self.run("show", self.study, number, "--json", runs=runs) or "{}")
                for runs in (f"{self.study}-whole", runs_of_killed)
            )
            if not whole or any(whole[key] != resumed.get(key) for key in ("digest", "epochs")):
                self.wrong.append(f"trial {number} of {self.study} differs after a resume")


def tried(python: Path, directory: Path) -> list[str]:
    """Try README's study and one of `tf.data` with augmentation; return what does not hold."""
    wrong: list[str] = []
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (directory / "digits_study.py").write_text(blocks[0])
    (directory / "matrix_study.py").write_text(_STUDY)
    Tried(python, directory, "digits", wrong).kill_and_resume()
    matrix = Tried(python, directory, "matrix", wrong)
    matrix.kill_and_resume()
    matrix.run("check", "matrix_study.py")
    matrix.run("verify", "matrix", "--interrupt", runs="matrix-whole")
    return wrong


def main(names: list[str]) -> int:
    """Try each cell; return 1 if something does not hold in one of them."""
    failed = 0
    for name in names or list(CELLS):
        with tempfile.TemporaryDirectory(prefix=f"sweeper-versions-{name}-") as scratch:
            directory = Path(scratch)
            interpreter = os.environ.get("SWEEPER_TEST_PYTHON")
            python = (
                Path(interpreter)
                if interpreter
                else environment(CELLS[name], directory / "environment")
            )
            wrong = tried(python, directory)
            wrong += replacements(python)
            wrong += keras_tests(python, directory / "keras_tests")
        print(f"{name}: {'holds' if not wrong else '; '.join(wrong)}", flush=True)
        failed |= bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
