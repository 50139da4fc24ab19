"""A mistake in a study's literals is found in the text, with the import's own message; nothing else is."""

import sys
from pathlib import Path

import pytest

from sweeper.definition.declared import DeclaringFile, check_target
from sweeper.definition.loading import load_definition
from sweeper.errors import SweeperError

HEAD = "from sweeper import Data, Every, Halving, Hyperband, Keep, Retries, Study\n"
ROW = 'study = Study(\n    name="a", model=len, data=len, {}\n)\n'
GOOD = "epochs=2, trials=4"


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """Stand in an empty directory, and forget what is imported from it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    # Not what a library has imported meanwhile: a second copy of it would have other classes.
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def file_with(text):
    Path("study_of_test.py").write_text(text)
    return "study_of_test.py"


def message(act, target):
    """What is said, and the user's traceback; None if nothing is wrong."""
    try:
        act(target)
    except SweeperError as error:
        return type(error), str(error), getattr(error, "traceback", "")
    return None


MISTAKES = {
    "syntax": "x = (1\n",
    "a return": HEAD + "return 3\n",
    "unknown": HEAD + ROW.format("epoch=3, trials=4"),
    "unknown and computed": HEAD + "N = int('3')\n" + ROW.format("epoch=N, trials=4"),
    "missing": HEAD + "study = Study(model=len, data=len, epochs=2, trials=4)\n",
    "positional": HEAD + "study = Study('a', model=len, data=len, epochs=2, trials=4)\n",
    "total": HEAD + ROW.format("epochs=2, trials=0"),
    "total beside what is computed": HEAD + "N = int('3')\n" + ROW.format("epochs=N, trials=0"),
    "total beside stars": HEAD + "given = dict(epochs=2)\n" + ROW.format("**given, trials=0"),
    "word": HEAD + ROW.format(f'{GOOD}, direction="max"'),
    "word beside a computed objective": HEAD
    + ROW.format(f'{GOOD}, objective=str("loss"), direction="max"'),
    "name": HEAD + ROW.format(GOOD).replace('"a"', '"../a"'),
    "sampler": HEAD + ROW.format(f'{GOOD}, sampler="tpo"'),
    "grid": HEAD + ROW.format(f'{GOOD}, sampler="grid"'),
    "keep": HEAD + ROW.format(f"{GOOD}, keep=Keep(last=0)"),
    "every": HEAD + ROW.format(f"{GOOD},\n    checkpoint_every=Every(\n        step=3)"),
    "budget": HEAD + ROW.format("epochs=9, trials=1, budget=Hyperband(min_epochs=9)"),
    "repeats": HEAD + ROW.format("epochs=9, trials=4, repeats=3"),
    "module": "import sweeper as sw\nstudy = sw.Study(name='a', model=len, data=len, epoch=1)\n",
    "other name": "from sweeper import Study as S\nstudy = S(name='a', model=3, data=len, epochs=1, trials=1)\n",
    "second": HEAD + ROW.format(GOOD) + ROW.format("epochs=0, trials=4").replace("study", "two"),
    "after the main block": HEAD
    + 'if __name__ == "__main__":\n    study.run()\n'
    + ROW.format("epochs=0, trials=4"),
}


@pytest.mark.parametrize("text", MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_has_the_message_that_the_import_gives(text):
    target = file_with(text)
    early = message(check_target, target)
    assert early is not None
    assert early == message(load_definition, target)


@pytest.mark.parametrize(
    "target", ["nothere.py", "no/where", "no_such_module", "study_of_test.txt", "."]
)
def test_what_is_not_there_is_named_as_by_the_import(target):
    Path("study_of_test.txt").touch()
    early = message(check_target, target)
    assert early is not None
    assert early == message(load_definition, target)


WRONG = "epoch=3, trials=0"
RIGHT = {
    "a good study": HEAD + ROW.format(GOOD),
    "everything computed": HEAD
    + "n, w, o = int('2'), str('grid'), list(['loss', 'mae'])\nd, g = ['minimize', 'minimize'], dict(x=[1])\n"
    + ROW.format("epochs=n, trials=n, sampler=w, grid=g, objective=o, direction=d"),
    "computed beside literals": HEAD
    + "n, w, o, d = int('8'), str('grid'), list(['loss', 'mae']), tuple(['minimize'] * 2)\n"
    + ROW.format(
        'epochs=n, trials=n, sampler=w, grid={"x": [1]}, objective=["a", "b"], direction=d'
    ),
    "objectives computed": HEAD
    + "o = list(['loss', 'mae'])\n"
    + ROW.format(f'{GOOD}, objective=o, direction=["minimize", "maximize"]'),
    "grid computed": HEAD + "g = dict(x=[1])\n" + ROW.format(f'{GOOD}, sampler="grid", grid=g'),
    "repeats of a computed total": HEAD
    + "n = int('6')\n"
    + ROW.format("epochs=1, trials=n, repeats=3"),
    "budget of computed epochs": HEAD
    + "n = int('30')\n"
    + ROW.format("epochs=n, trials=3, budget=Hyperband(min_epochs=9)"),
    "rebound": HEAD
    + "def Study(**given): return given\n"
    + ROW.format(WRONG)
    + "from sweeper import Study\n"
    + ROW.format(GOOD),
    "rebound in a branch": HEAD
    + "if True:\n    Study = dict\n"
    + ROW.format(WRONG)
    + "from sweeper import Study\n"
    + ROW.format(GOOD),
    "rebound unseen": HEAD
    + "globals()['Study'] = dict\n"
    + ROW.format(WRONG)
    + "study = Data\nfrom sweeper import Study\n"
    + ROW.format(GOOD),
    "rebound by a star": "from sweeper import Study\nfrom collections import *\n"
    + ROW.format(GOOD),
    "attribute rebound": "import sweeper\noriginal = sweeper.Study\nsweeper.Study = dict\n"
    + ROW.format(WRONG).replace("Study(", "sweeper.Study(")
    + "sweeper.Study = original\n"
    + ROW.format(GOOD).replace("Study(", "original("),
    "subclass": HEAD
    + "class Mine(Study):\n    def __init__(self, epoch, trials, **given):\n        super().__init__(epochs=epoch, trials=trials or 1, **given)\n"
    + ROW.format(WRONG).replace("Study(", "Mine("),
    "main block": HEAD + ROW.format(GOOD) + 'if __name__ == "__main__":\n    Study(epoch=3)\n',
    "branch": HEAD + ROW.format(GOOD) + "if not study:\n    Study(epoch=3)\n",
    "function": HEAD + ROW.format(GOOD) + "def make():\n    return Study(epoch=3)\n",
    "lambda": HEAD + ROW.format(GOOD) + "make = lambda: Study(epoch=3)\n",
    "tried": HEAD + ROW.format(GOOD) + "try:\n    Study(epoch=3)\nexcept Exception:\n    pass\n",
    "stars": HEAD + "given = dict(epochs=1, trials=1)\n" + ROW.format("**given"),
    "stars of a direction": HEAD
    + "given = dict(direction=['minimize', 'maximize'])\n"
    + ROW.format(f"{GOOD}, objective=['loss', 'mae'], **given"),
    "stars of a grid": HEAD
    + "given = dict(grid=dict(x=[1]))\n"
    + ROW.format(f'{GOOD}, sampler="grid", **given'),
    "a file that the import writes": HEAD
    + "open('w.weights.h5', 'w').close()\n"
    + ROW.format(f'{GOOD}, warm_start="w.weights.h5"'),
    "after a study that runs": HEAD
    + ROW.format(GOOD)
    + "study.run()\n"
    + ROW.format(WRONG).replace("study", "two"),
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=list(RIGHT))
def test_what_an_import_accepts_is_never_refused(text):
    target = file_with(text)
    assert message(check_target, target) is None
    assert message(load_definition, target) is None, "the control: the import takes the file"


FACTORY = "def build(trial, width=3):\n    import keras\n    return keras\nSIZE = 3\n"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (HEAD + FACTORY + ROW.format(GOOD), True),
        ("import numpy as np\n" + HEAD + ROW.format(f"{GOOD}, keep=Keep(last=3)"), True),
        (HEAD + "import helper\n" + ROW.format(GOOD), False),
        (HEAD + "def build(trial):\n    import helper\n" + ROW.format(GOOD), False),
        (HEAD + "import no_such_library\n" + ROW.format(GOOD), False),
        (HEAD + "SIZE = int('3')\n" + ROW.format(GOOD), False),
        (HEAD + "def build(trial, width=int('3')): ...\n" + ROW.format(GOOD), False),
        (HEAD + ROW.format("epochs=int('3'), trials=4"), False),
        (HEAD + "for n in range(3):\n    pass\n" + ROW.format(GOOD), False),
        (HEAD + "class A:\n    size = int('3')\n" + ROW.format(GOOD), False),
    ],
)
def test_a_text_is_whole_if_it_alone_decides_what_the_study_is(text, whole):
    Path("helper.py").touch()
    assert DeclaringFile(Path(file_with(text))).is_whole([str(Path.cwd())]) is whole


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (HEAD + "DATA = sorted([3, 2])\n" + ROW.format(GOOD), True),
        (HEAD + "N = int('3')\n" + ROW.format("epochs=N, trials=4"), False),
        (HEAD + "epochs = {}\nepochs.update(n=3)\n" + ROW.format(f"{GOOD}, keep=epochs"), False),
        (HEAD + "import helper\n" + ROW.format(GOOD), False),
        (HEAD + "DATA = sorted([3, 2])\n" + ROW.format("epochs=int('3'), trials=4"), False),
    ],
)
def test_a_file_may_compute_what_no_argument_names_if_its_data_do_not_count(text, whole):
    Path("helper.py").touch()
    file = DeclaringFile(Path(file_with(text)))
    assert file.is_whole([str(Path.cwd())], computes=True) is whole
    assert not file.is_whole([str(Path.cwd())])
