"""Which imports of a study's file are done once for all trials, and which each trial does itself."""

import ast

import pytest

from sweeper.run.launch.sources import target_source
from sweeper.run.launch.warm_server import execute_all, leading_imports

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
