"""What a script sets before it runs its study holds in the processes of the trials, too."""

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from study_files import SHORT
from sweeps import LIMIT, command, python

OPTIONS = """
import argparse
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

UNITS = 8
WORDS = {"a": 1}
LARGE = np.zeros(200_000)

@dataclass
class Rates:
    first: float = 0.1

class Names:
    activation = "relu"

RATES = Rates()
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--alone", action="store_true")
ARGUMENTS = parser.parse_args()
MADE = False
TABLE = None

def table():
    global MADE, TABLE
    if not MADE:
        MADE, TABLE = True, (name for name in "abc")
    return TABLE

def set_depth(depth):
    global DEPTH
    DEPTH = depth

DEPTH = 1
GIVEN = SimpleNamespace(depth=1)
DERIVED = [UNITS] * 2
"""

USER = "from options import GIVEN, RATES, WORDS\n"
"""Another module, which has some of the same objects."""

STUDY = replace(
    SHORT,
    name="set",
    head="""
    import options
    import user

    keras.config.set_floatx("float64")
    keras.config.set_epsilon(1e-3)
    keras.saving.get_custom_objects()["twice"] = keras.layers.Dense
    np.seterr(invalid="raise")

    def seen():
        import later

        return {
            "later": later.DEPTH,
            "floatx": keras.config.floatx(),
            "policy": keras.config.dtype_policy().name,
            "epsilon": keras.config.epsilon(),
            "custom": sorted(keras.saving.get_custom_objects()),
            "numpy": np.geterr()["invalid"],
            "variables": [options.UNITS, options.Names.activation, options.NEW, options.DEPTH],
            "made": next(options.table()),
            "objects": [user.WORDS, user.RATES.first, user.GIVEN.depth],
            "same": options.RATES is user.RATES,
            "arguments": [options.ARGUMENTS.width, sys.argv],
        }
    """,
    model='(trial.directory / "seen.json").write_text(json.dumps(seen()))',
    arguments='objective="loss", epochs=1, trials=1, sampler="random"',
    tail="""
    if __name__ == "__main__":
        keras.config.set_dtype_policy("mixed_bfloat16")
        options.UNITS = 64
        options.NEW = "new"
        options.WORDS["b"] = 2
        options.RATES.first = 0.5
        options.GIVEN.depth = 3
        options.Names.activation = "gelu"
        options.LARGE[0] = 1
        options.set_depth(4)
        options.table()
        import later

        later.DEPTH = 7
        if options.ARGUMENTS.alone:
            from sweeper.run.launch.process_state import ProcessState

            # The control: nothing but the definition travels.
            ProcessState.take = classmethod(lambda cls: None)
        study.run(workers=1)
        print(json.dumps(seen()))
    """,
)


def run_script(directory, *words):
    directory.mkdir()
    (directory / "options.py").write_text(textwrap.dedent(OPTIONS))
    (directory / "user.py").write_text(USER)
    (directory / "later.py").write_text("DEPTH = 1\n")
    STUDY.write(directory / "script.py")
    ended = subprocess.run(
        [sys.executable, "script.py", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    files = list(directory.glob("runs/set/trial-00000/files/seen.json"))
    return ended, [json.loads(file.read_text()) for file in files]


def test_settings_and_variables_of_modules_are_those_of_the_process_that_runs_the_study(tmp_path):
    ended, [seen] = run_script(tmp_path / "script", "--width", "5")
    assert ended.returncode == 0, ended.stderr
    assert seen == json.loads(ended.stdout.splitlines()[-1])
    assert seen["policy"] == "mixed_bfloat16"
    assert seen["later"] == 7
    assert seen["variables"] == [64, "gelu", "new", 4]
    assert seen["objects"] == [{"a": 1, "b": 2}, 0.5, 3]
    assert seen["same"]
    assert "options.LARGE has another value in the processes of the trials" in ended.stderr


@pytest.mark.whole
def test_without_them_a_trial_has_those_of_an_import(tmp_path):
    """The control."""
    ended, _ = run_script(tmp_path / "script", "--width", "5", "--alone")
    assert ended.returncode != 0
    assert "the following arguments are required: --width" in ended.stderr


NAMESAKE = replace(
    SHORT,
    head="from pathlib import Path\n\nimport namesake",
    model="""
    import other_namesake

    Path(trial.directory, "seen").write_text(f"{namesake.WHOSE} {other_namesake.WHOSE}")
    """,
    arguments='objective="loss", epochs=1, trials=1, sampler="random", audit="off"',
)


@pytest.mark.parametrize("by", ["command", "script"])
def test_a_module_beside_the_study_is_found_before_a_librarys_of_the_same_name(tmp_path, by):
    """As Python finds it for a script, in each process and also inside of a factory."""
    for place, whose in (("libraries", "the library's"), ("mine", "mine")):
        (tmp_path / place).mkdir()
        for module in ("namesake", "other_namesake"):
            (tmp_path / place / f"{module}.py").write_text(f"WHOSE = {whose!r}\n")
    file = NAMESAKE.write(tmp_path / "mine" / "small.py")
    env = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path / 'libraries'}"}
    if by == "command":
        ended = command("run", file, "--workers", 1, cwd=tmp_path / "mine", env=env)
    else:
        with file.open("a") as script:
            script.write("\nif __name__ == '__main__':\n    study.run(workers=1)\n")
        ended = python(file, cwd=tmp_path / "mine", env=env)
    assert ended.code == 0, ended.err
    [seen] = (tmp_path / "mine" / "runs").rglob("seen")
    assert seen.read_text() == "mine mine"
