"""Which imports of a study's file are done once for all trials, and which each trial does itself."""

import ast
import json

import pytest
from test_isolation import assignment, hear

from sweeper.run.launch.launchers import ForkLauncher, WarmServer
from sweeper.run.launch.sources import target_source
from sweeper.run.launch.warm_server import execute_all, leading_imports
from sweeper.run.protocol.messages import Finished

pytestmark = pytest.mark.usefixtures("real_servers")

LIBRARIES = {
    "plain_library": "import os\nPROCESS = os.getpid()",
    "drawing_library": "import random\nrandom.random()",
    "numpy_drawing_library": "import numpy\nnumpy.random.rand()",
    "threaded_library": (
        "import os, threading\n"
        "PROCESS = os.getpid()\n"
        "threading.Thread(target=threading.Event().wait, name='its-own', daemon=True).start()"
    ),
    "later_library": "import os\nPROCESS = os.getpid()",
}

STUDY = """
import json
import os

import keras
import plain_library
import threaded_library
import later_library
import numpy as np

from sweeper import Data, Study

RAN = keras.ops.convert_to_tensor([1.0])


def build_model(trial):
    pids = [plain_library.PROCESS, threaded_library.PROCESS, later_library.PROCESS]
    seen = [pid == os.getpid() for pid in pids]
    (trial.directory / "seen.json").write_text(json.dumps(seen))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def load_data(trial):
    return Data(train=(np.ones((8, 1)), np.ones(8)), batch_size=8)


study = Study(
    name="small", model=build_model, data=load_data, objective="loss", epochs=1, trials=1,
    sampler="random", audit="off",
)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Where libraries are installed that are importable here, and in servers that begin now."""
    directory = tmp_path / "site-packages"
    directory.mkdir()
    for name, text in LIBRARIES.items():
        (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setenv("PYTHONPATH", str(directory))
    return directory


def leading(directory, text):
    file = directory / "study.py"
    file.write_text(text)
    return [ast.unparse(step) for step in leading_imports(target_source(str(file)))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""Text."""\nfrom __future__ import annotations\nimport json, keras as k\nx = 1', 3),
        ("from plain_library import PROCESS\nimport colorsys", 2),
        ('import os\nos.environ["KERAS_BACKEND"] = "tensorflow"\nimport keras', 3),
        ('import os\nos.environ["OMP_NUM_THREADS"] = "1"\nimport keras', 1),
        ('import os\nos.environ["KERAS_BACKEND"] = chosen()\nimport keras', 1),
        ("import json\nimport random; random.seed(1)\nimport plain_library", 2),
        ("import json\nimport mine\nimport plain_library", 1),
        ("import json\nimport html.entities\nimport wave", 1),
        ("import json\nfrom . import mine\nimport plain_library", 1),
        ("import json\nimport no_such_module\nimport plain_library", 1),
        ("import json\ntry:\n    import keras\nexcept ImportError:\n    pass", 1),
        ("import json\nimport (", 0),
    ],
)
@pytest.mark.usefixtures("installed")
def test_only_what_stands_before_the_file_does_anything_is_imported_ahead(tmp_path, text, expected):
    (tmp_path / "mine.py").write_text("")
    if "html" in text:
        # The file finds its own, which has the name of a part of Python.
        (tmp_path / "wave.py").write_text("")
        expected = 2
    steps = [] if expected == 0 else ast.parse(text).body[:expected]
    assert leading(tmp_path, text) == [ast.unparse(step) for step in steps]


@pytest.mark.parametrize(
    ("library", "unfit"),
    [
        ("plain_library", 0),
        ("drawing_library", 2),
        ("numpy_drawing_library", 2),
        ("no_such_module", 2),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_library_that_draws_or_fails_is_left_to_the_trials(library, unfit):
    steps = ast.parse(f"import json\nimport {library}\nimport wave").body
    assert execute_all(steps, lambda: True) == unfit
    assert execute_all(steps, lambda: False) == 1, "the control"


@pytest.mark.whole
@pytest.mark.usefixtures("installed")
def test_a_library_that_starts_a_thread_is_imported_by_each_trial_with_all_after_it(tmp_path):
    file = tmp_path / "small.py"
    file.write_text(STUDY)
    server = WarmServer(target_source(str(file)))
    loaded = server.loaded()
    assert loaded.cannot_fork == ""
    assert "ran TensorFlow" in loaded.imported_by_trials
    launcher = ForkLauncher(server)
    try:
        trial = launcher.launch(assignment(tmp_path, epochs=1))
        assert isinstance(hear(trial, Finished), Finished)
        trial.wait(30)
        trial.channel.close()
    finally:
        launcher.close()
    [seen] = tmp_path.rglob("seen.json")
    assert json.loads(seen.read_text()) == [False, True, True]
