"""The fingerprint of a study's code: what changes it, what does not, and what the refusal names."""

import base64
import linecache
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.inspection.fingerprint import read_code
from sweeper.inspection.sources import find_module_file, texts_of_cells
from sweeper.records.code import CodeFingerprint
from sweeper.run.launch.sources import pickle_by_value

STUDY = '''\
"""A study."""
import functools
import time

import numpy as np

from helpers_of_study import FACTOR, scale
import helpers_of_study as helpers

WIDTH = 32
DATA = "digits.npz"
SIZES = []
SIZES.append(WIDTH)
CACHE = {}
STARTED = time.time()
TABLE = helpers.read_table()
WEIGHTS = np.arange(4)


class Settings:
    """How wide."""

    depth = 2

    def width(self):
        """Twice."""
        return WIDTH * self.depth


def rounded(function):
    @functools.wraps(function)
    def call(trial):
        return round(function(trial))
    return call


def make_model(rate):
    def build_model(trial):
        """A model."""
        units = trial.suggest_int("units", 8, 64)
        CACHE[units] = STARTED
        return scale(units) * rate + Settings().width() + sum(SIZES) + sum(WEIGHTS)

    return build_model


@rounded
def load_data(trial, share=0.5):
    import lazy_of_study

    return lazy_of_study.load(DATA, TABLE["rows"], helpers.deep.offset(share), FACTOR)


def unused():
    return "never"


def partly(trial, *, epochs):
    return epochs


callbacks = functools.partial(partly, epochs=3)
model = make_model(0.1)
data = load_data
'''

HELPERS = '''\
"""Helpers."""
import deep_of_study as deep

FACTOR = 3


def scale(x):
    """Scaled."""
    y = x * FACTOR
    return y


def read_table():
    return {"rows": 7}


def not_used():
    return 1
'''

MAIN = "code_of_study.py"
HELP = "helpers_of_study.py"
DEEP_FILE = "deep_of_study.py"
LAZY_FILE = "lazy_of_study.py"
FILES = {
    MAIN: STUDY,
    HELP: HELPERS,
    DEEP_FILE: "def offset(share):\n    return share + 1\n",
    LAZY_FILE: "def load(name, rows, offset, factor):\n    return rows\n",
}

Read = Callable[..., CodeFingerprint]


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Write texts to files, and import the one called ``name`` as a new process would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget():
        for name in [n for n in sys.modules if n.endswith("_of_study")]:
            del sys.modules[name]

    def written(texts, name):
        for file, text in texts.items():
            (tmp_path / file).write_text(text)
        forget()
        linecache.clearcache()
        return __import__(name)

    yield written
    forget()


@pytest.fixture
def read(fresh):
    """Read the code of the study's files, with texts replaced in them."""

    def edited(*edits, files=None):
        texts = dict(FILES | (files or {}))
        for file, old, new in edits:
            assert old in texts[file], old
            texts[file] = texts[file].replace(old, new)
        return read_code(roots(fresh(texts, "code_of_study")))

    return edited


def code_of_text(text, file, name, factory):
    """Read the code of one factory of a text that is run under the name of a file."""
    namespace = {"__name__": name, "__file__": str(file)}
    exec(compile(text, str(file), "exec"), namespace)
    return read_code({"model": namespace[factory]})


def roots(module):
    return {"model": module.model, "data": module.data, "callbacks": module.callbacks}


SAME = {
    "a comment": (MAIN, "        CACHE[units]", "        # why\n        CACHE[units]"),
    "a docstring": (MAIN, '"""A model."""', '"""Another model,\n\n        said at length."""'),
    "no docstring": (HELP, '    """Scaled."""\n', ""),
    "a class's docstring": (MAIN, '"""How wide."""', '"""How."""'),
    "blank lines above": (MAIN, "WIDTH = 32", "\n\n\nWIDTH = 32"),
    "parentheses and breaks": (HELP, "y = x * FACTOR", "y = (\n        x\n        * FACTOR\n    )"),
    "quotes": (MAIN, '"digits.npz"', "'digits.npz'"),
    "an unused function": (MAIN, "def unused", "def another():\n    return 2\n\n\ndef unused"),
    "an unused function's body": (MAIN, '"never"', '"ever"'),
    "an unused function of a helper": (HELP, "return 1", "return 2"),
    "an unused constant": (MAIN, "WIDTH = 32", "WIDTH = 32\nOTHER = 1"),
    "a string instead of a comment": (HELP, "    y = x", "    'why'\n    y = x"),
    "a range": (MAIN, "8, 64", "8, 2 * max(64, WIDTH), log=True"),
    "a number's notation": (MAIN, "WIDTH = 32", "WIDTH = 0x20"),
}

CHANGED = {
    "a layer's size": (MAIN, "SIZES)", "SIZES) + 1", "make_model"),
    "a range and the width that it is used for": (
        *(MAIN, "8, 64)\n        CACHE", "8, 128) + 1\n        CACHE"),
        "make_model",
    ),
    "a parameter's name": (MAIN, '"units", 8', '"width", 8', "make_model"),
    "a parameter's kind": (MAIN, "suggest_int", "suggest_float", "make_model"),
    "a range with an effect": (MAIN, "8, 64", "8, CACHE.setdefault(0, 64)", "make_model"),
    "a constant": (MAIN, "WIDTH = 32", "WIDTH = 64", "WIDTH"),
    "a constant's items": (MAIN, "append(WIDTH)", "append(3)", "SIZES"),
    "a data file's name": (MAIN, "digits.npz", "letters.npz", "DATA"),
    "a helper in another file": (HELP, "x * FACTOR", "x * FACTOR + 1", "helpers_of_study.scale"),
    "a constant in another file": (HELP, "FACTOR = 3", "FACTOR = 4", "helpers_of_study.FACTOR"),
    "a helper's helper": (DEEP_FILE, "share + 1", "share + 2", "deep_of_study.offset"),
    "a module imported when the factory runs": (
        *(LAZY_FILE, "return rows", "return rows + 1"),
        "module lazy_of_study",
    ),
    "a class's attribute": (MAIN, "depth = 2", "depth = 3", "Settings"),
    "a class's method": (MAIN, "WIDTH * self.depth", "WIDTH + self.depth", "Settings"),
    "a default": (MAIN, "share=0.5", "share=0.25", "load_data"),
    "a decorator's work": (MAIN, "round(function(trial))", "function(trial)", "rounded"),
    "an array": (MAIN, "np.arange(4)", "np.arange(5)", "WEIGHTS"),
    "the code of a constant's call, though its result is the same": (
        *(HELP, '{"rows": 7}', '{"rows": 3 + 4}'),
        "helpers_of_study.read_table",
    ),
    "what a constant's call read from a file": (
        *(MAIN, "helpers.read_table()", "helpers.read_table() | {'file': 1}"),
        "TABLE",
    ),
}
"""Each edit, and the name that has changed, which is told with the edit's file."""

CHANGED_ELSEWHERE = {
    "a closure's constant": (
        *(MAIN, "make_model(0.1)", "make_model(0.2)"),
        "closure variable 'rate' of make_model.<locals>.build_model has changed",
    ),
    "a partial's argument": (
        *(MAIN, "partly, epochs=3", "partly, epochs=4"),
        "argument 'epochs' of the partial callbacks has changed",
    ),
    "what a constant's call gives": (
        *(HELP, '{"rows": 7}', '{"rows": 8}'),
        "TABLE has changed (code_of_study.py)",
    ),
    "a call taken out": (
        *(MAIN, "scale(units) * rate", "units * rate"),
        "helpers_of_study.scale is no longer used (it was in helpers_of_study.py)",
    ),
}


@pytest.mark.parametrize("edit", SAME)
def test_an_edit_that_changes_no_meaning_is_no_change(edit, read):
    original = read()
    after = read(SAME[edit])
    assert after.changes_since(original) == ()
    assert after.digest == original.digest


@pytest.mark.parametrize("edit", CHANGED | CHANGED_ELSEWHERE)
def test_an_edit_of_the_meaning_is_named_with_its_file(edit, read):
    original = read()
    file, old, new, message = (CHANGED | CHANGED_ELSEWHERE)[edit]
    if edit in CHANGED:
        message = f"{message} has changed ({file})"
    after = read((file, old, new))
    assert message in after.changes_since(original)
    assert after.digest != original.digest


def test_what_is_installed_is_not_looked_into(read):
    library = "import keras\nfrom sklearn.datasets import load_digits\n"
    uses = "return load_digits, keras.layers.Dense(Layer(4)), "
    edit = (MAIN, "import functools\n", f"{library}import functools\nLayer = keras.layers.Dense\n")
    code = read(edit, (MAIN, "return scale(units)", f"{uses}scale(units)"))
    assert not [name for name in code.parts if "sklearn" in name or "keras" in name]
    other = (MAIN, edit[1], edit[2].replace(".Dense", ".Embedding"))
    after = read(other, (MAIN, "return scale(units)", f"{uses}scale(units)"))
    assert [c.partition(" ")[0] for c in after.changes_since(code)] == ["Layer"]


def test_another_name_in_the_same_import_is_no_change(read):
    shared = "TOOLS = [len, object()]\n\n\ndef not_used"
    files = {HELP: HELPERS.replace("def not_used", shared)}
    uses = ("return scale(units)", "return TOOLS, scale(units)")
    one = (MAIN, "import FACTOR, scale", "import FACTOR, TOOLS, scale")
    two = (MAIN, "import FACTOR, scale", "import FACTOR, TOOLS, not_used, scale")
    original = read(one, (MAIN, *uses), files=files)
    assert read(two, (MAIN, *uses), files=files).changes_since(original) == ()


def test_a_renamed_file_is_the_same_code(read, tmp_path):
    original = read()
    (tmp_path / MAIN).rename(tmp_path / "renamed_of_study.py")
    after = read_code(roots(__import__("renamed_of_study")))
    assert after.changes_since(original) == ()


def test_what_runs_counts_when_its_file_was_edited_after_the_import(read, tmp_path):
    read()
    imported = sys.modules["code_of_study"]
    (tmp_path / MAIN).write_text(STUDY.replace("SIZES)", "SIZES) + 1"))
    one = read_code(roots(imported))
    (tmp_path / MAIN).write_text(STUDY.replace("SIZES)", "SIZES) + 2"))
    two = read_code(roots(imported))
    name = "make_model.<locals>.build_model"
    assert one.parts[name].digest == two.parts[name].digest


def test_a_factory_that_ran_has_changed_nothing_and_nor_has_json(read):
    original = read()
    assert CodeFingerprint.from_json(original.to_json()) == original
    module = sys.modules["code_of_study"]

    class Trial:
        def suggest_int(self, *_):
            return 8

    module.model(Trial())
    module.SIZES.append(9)
    assert module.CACHE
    assert read_code(roots(module)).changes_since(original) == ()


def test_a_value_that_is_assigned_after_the_import_counts(read):
    """As a script's main block does, which the commands do not run."""
    original = read()
    module, helpers = sys.modules["code_of_study"], sys.modules["helpers_of_study"]
    for owner, name, message in (
        (module, "WIDTH", "WIDTH has changed (code_of_study.py)"),
        (module.Settings, "depth", "Settings has changed (code_of_study.py)"),
        (helpers, "FACTOR", "helpers_of_study.FACTOR has changed (helpers_of_study.py)"),
    ):
        imported = getattr(owner, name)
        setattr(owner, name, imported + 1)
        assert read_code(roots(module)).changes_since(original) == (message,)
        setattr(owner, name, imported)
    assert read_code(roots(module)).changes_since(original) == ()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("int(sys.argv[1])", id="an argument"),
        pytest.param("parser.parse_args(sys.argv[1:])", id="given arguments"),
        pytest.param("parser.parse_args()", id="arguments"),
        pytest.param("vars(parser.parse_args())", id="their values"),
    ],
)
def test_the_arguments_of_the_program_count(value, tmp_path, monkeypatch):
    text = f"""
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("units", type=int)
GIVEN = {value}
def model(trial):
    return GIVEN
"""
    file = tmp_path / "given.py"
    file.write_text(text)
    codes = []
    for units in (8, 8, 64):
        monkeypatch.setattr(sys, "argv", ["given.py", str(units)])
        codes.append(code_of_text(text, file, "given", "model"))
    assert codes[1].changes_since(codes[0]) == ()
    assert codes[2].changes_since(codes[0]) == ("GIVEN has changed (given.py)",)


@pytest.mark.parametrize(
    "value",
    [
        "int(os.environ['UNITS'])",
        "int(os.environ.get('UNITS', 8))",
        "int(os.getenv('UNITS'))",
        "os.environ['UNITS'] if 'UNITS' in os.environ else 8",
    ],
)
@pytest.mark.parametrize("text", ["GIVEN = {}", "UNITS = {}", "def given():\n    return {}"])
def test_a_variable_of_the_environment_is_noted_and_is_no_change(
    value, text, tmp_path, monkeypatch
):
    name = "given()" if "def" in text else text.partition(" ")[0]
    code = f"import os\n{text.format(value)}\ndef model(trial):\n    return {name}\n"
    file = tmp_path / "given.py"
    file.write_text(code)
    codes = []
    for units in (8, 8, 64):
        monkeypatch.setenv("UNITS", str(units))
        codes.append(code_of_text(code, file, "given", "model"))
    assert [read.environment.keys() for read in codes] == [{"$UNITS"}] * 3
    assert codes[1].environment == codes[0].environment != codes[2].environment
    assert codes[2].changes_since(codes[0]) == ()
    assert codes[2].digest == codes[0].digest
    assert not any("#" in part for part in codes[0].parts), "no name is taken twice"


@pytest.mark.whole
def test_every_process_reads_the_same_with_any_seed_for_hashes(read, tmp_path):
    sets = 'CACHE = dict.fromkeys({"one", "two", "three"}, {"a", "b"})'
    original = read((MAIN, "CACHE = {}", sets))
    script = (
        "import sys, json, code_of_study as c; from sweeper.inspection.fingerprint import read_code;"
        "print(read_code({'model': c.model, 'data': c.data, 'callbacks': c.callbacks}).digest)"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == original.digest


def cache_lines(file, text):
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def cell(number, text, namespace):
    """Run a notebook's cell as IPython does, under a name that is another one every time."""
    file = f"/tmp/ipykernel_{number}/{abs(hash(text))}.py"
    cache_lines(file, text)
    exec(compile(text, file, "exec"), namespace)


NOTEBOOK = (
    "WIDTH = 8\n",
    "def half(x):\n    return x / 2\n",
    "def model(trial):\n    '''A model.'''\n    return half(WIDTH)  # here\n",
)


def notebook(start, *edit):
    namespace = {"__name__": "__main__"}
    for number, text in enumerate(NOTEBOOK, start):
        cell(number, text.replace(*edit) if edit else text, namespace)
    return namespace


def test_a_notebooks_cells_count_and_running_them_again_does_not():
    original = read_code({"model": notebook(0)["model"]})
    assert set(original.parts) == {"model", "half", "WIDTH"}

    def changes(*edit):
        return read_code({"model": notebook(*edit)["model"]}).changes_since(original)

    assert changes(10) == ()
    assert changes(20, "# here", "# there") == ()
    assert changes(30, "x / 2", "x / 3") == ("half has changed (a notebook's cell)",)
    constant = changes(40, "WIDTH = 8", "WIDTH = 9")
    assert [c.partition(" ")[0] for c in constant] == ["WIDTH"]


def test_a_notebooks_code_that_was_sent_to_another_process_reads_the_same_there():
    roots = {"model": notebook(50)["model"]}
    here = read_code(roots)
    texts = texts_of_cells()
    assert set(NOTEBOOK) <= set(texts.values())
    sent = pickle_by_value(roots)
    linecache.clearcache()
    for name in [n for n in linecache.cache if "ipykernel" in n]:
        del linecache.cache[name]
    for file, text in texts.items():
        cache_lines(file, text)
    arrived = pickle.loads(base64.b64decode(sent))
    remote = read_code(arrived)
    assert remote.changes_since(here) == ()
    assert remote.digest == here.digest
    # Negative control: as cloudpickle sends it.
    model = arrived["model"]
    model.__code__ = model.__code__.replace(co_filename="<dynamic-code>")
    assert read_code({"model": model}).changes_since(here) == ("model has changed (text not kept)",)


@pytest.mark.parametrize(
    "drawn",
    [
        "[random.random(), float(np.random.rand())]",
        "np.random.default_rng().normal()",
        "choice(range(10**9))",
        "one()",
    ],
)
def test_what_is_drawn_at_import_is_what_draws_it(read, drawn):
    """In the script that defines a study it is drawn from another state than in a later command."""
    imports = "import random\nfrom random import choice, random as one"
    edit = (MAIN, "STARTED = time.time()", f"{imports}\nSTARTED = {drawn}")
    original = read(edit)
    assert read(edit).changes_since(original) == ()
    other = read(edit, (MAIN, f"STARTED = {drawn}", f"STARTED = [{drawn}]"))
    assert len(other.changes_since(original)) == 1, "the control: it is still compared"


FACTORY = "\n\ndef build_model(trial):\n    return {}\n"
LONG_FILES = {
    "each line reads the one before it several times": (
        "V0 = int('7')",
        *(f"V{n} = V{n - 1} + V{n - 1} % 5 + divmod(V{n - 1}, 3)[0] + f(1)" for n in range(1, 300)),
    ),
    "a longer chain than Python's stack, of numbers": (
        "V0 = 1",
        *(f"V{n} = V{n - 1} % 97 + V{n - 1} % 89" for n in range(1, 2_000)),
    ),
    "one value many times in itself": (
        "V0 = list(map(int, '12'))",
        *(f"V{n} = list(map(f, [V{n - 1}] * 3))" for n in range(1, 16)),
    ),
    "more values than are read": ("V0 = list(map(str, range(1_000_000)))",),
    "one statement that binds every name": (
        "if True:",
        *(f"    V{n} = len([{n}]) + {'V' + str(n - 1) if n else 0}" for n in range(300)),
    ),
}


def counted(function, longest):
    """Call ``function``; fail if it makes more than ``longest`` calls of Python functions."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"
        if calls > longest:
            sys.setprofile(None)
            raise AssertionError(f"more than {longest} calls were made")

    sys.setprofile(count)
    try:
        return function()
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(lines, id=name, marks=() if "itself" in name else pytest.mark.whole)
        for name, lines in LONG_FILES.items()
    ],
)
def test_a_files_constants_are_read_in_bounded_work(lines, tmp_path):
    last = [line.split(" =")[0].strip() for line in lines][-1]
    text = "\n".join(("def f(x):\n    return x\n\n", *lines, FACTORY.format(last)))
    file = tmp_path / "long_study.py"
    file.write_text(text, encoding="utf-8")

    def read_long():
        return code_of_text(text, file, "long_study", "build_model")

    assert counted(read_long, 2_000_000).digest == read_long().digest


IMPORTS = (
    "import json\nimport os\nfrom os.path import join\nfrom pathlib import Path\n\n"
    "def read(name):\n    return json.loads(Path(name).read_text())\n\n"
    "HERE = os.path.dirname(os.path.abspath(__file__))\nHOME = Path(__file__).resolve().parent\n"
    "TABLE = {read}\nWIDTH = TABLE['width']\nOTHER = 1\n\n"
    "def model(trial):\n    return {used}\n"
)
READ = (
    "read(os.path.join(HERE, 'config.json'))",
    "json.loads(Path(join(os.path.dirname(__file__), 'config.json')).read_text())",
    "json.loads((HOME / 'config.json').read_text())",
)


@pytest.mark.parametrize(
    ("read", "used"), [(READ[0], "TABLE"), *((read, "WIDTH") for read in READ)]
)
def test_a_file_that_is_read_at_import_counts_by_what_was_read_wherever_it_is(read, used, tmp_path):
    """The text is the same; `WIDTH` is an item of a value that another statement read."""

    def read_config(text, where="here"):
        (tmp_path / where).mkdir(exist_ok=True)
        config = tmp_path / where / "config.json"
        file = tmp_path / where / "configured_study.py"
        config.write_text(text % str(config.parent))
        file.write_text(IMPORTS.format(read=read, used=used), encoding="utf-8")
        return code_of_text(file.read_text(), file, "configured_study", "model")

    original = read_config('{"width": 8, "data": ["%s"]}')
    assert read_config('{"width": 8, "data": ["%s"]}').changes_since(original) == ()
    assert read_config('{"width": 8, "data": ["%s"]}', "moved").changes_since(original) == ()
    changes = read_config('{"width": 9, "data": ["%s"]}').changes_since(original)
    assert used in {change.partition(" ")[0] for change in changes}
    outside = [read_config(f'{{"width": 8, "data": "/{name}%.0s/x"}}') for name in ("one", "two")]
    assert outside[1].changes_since(outside[0]), "the control: another directory is no moved one"


TOOLS_FILE = "tools_of_study.py"
MAIN_FILE = "main_of_study.py"
NEVER_UNDER = {
    "a module passed on as a value": ("return apply(tools)", TOOLS_FILE, "+ 1", "+ 2"),
    "a module under another name": ("m = tools; return m.add(1)", TOOLS_FILE, "+ 1", "+ 2"),
    "another library's function by the same name": (
        *("return sqrt(2)", MAIN_FILE),
        *("from math import sqrt", "from cmath import sqrt"),
    ),
    "two names exchanged in an import": (
        *("return a(1), b(1)", MAIN_FILE),
        *("add as a, take as b", "take as a, add as b"),
    ),
    "a statement moved out of its block": (
        *("if trial:\n        a(1)\n        b(1)", MAIN_FILE),
        *("        b(1)", "    b(1)"),
    ),
    "a statement moved to another branch": (
        *("if trial:\n        a(1)\n    else:\n        b(1)\n        a(2)", MAIN_FILE),
        *("    else:\n        b(1)", "        b(1)\n    else:"),
    ),
    "a pattern of a match": (
        "match trial:\n        case 1:\n            a(1)",
        MAIN_FILE,
        "case 1",
        "case 2",
    ),
    "a library's function in a partial": ("return half(7)", MAIN_FILE, "divmod", "pow"),
    "a lambda": ("return make(1)", MAIN_FILE, "x: x * 2", "x: x * 3"),
    "a setting of a library": ("return np.float32(1)", MAIN_FILE, "precision=3", "precision=4"),
}


@pytest.mark.parametrize("case", NEVER_UNDER)
def test_an_edit_that_reaches_the_factory_on_a_side_way_is_reported(case, fresh):
    body, edited, old, new = NEVER_UNDER[case]
    files = {
        "tools_of_study.py": (
            "def add(x):\n    return x + 1\n\n\ndef take(x):\n    return x - 1\n"
        ),
        "main_of_study.py": (
            "import numpy as np\nfrom math import sqrt\nimport tools_of_study as tools\n"
            "from tools_of_study import add as a, take as b\n\n"
            "import functools\nhalf = functools.partial(divmod, 2)\n"
            "np.set_printoptions(precision=3)\nmake = lambda x: x * 2\n\n"
            "def apply(m):\n    return m.add(3)\n\n"
            f"def model(trial):\n    {body}\n"
        ),
    }

    def read_files(texts):
        return read_code({"model": fresh(texts, "main_of_study").model})

    original = read_files(files)
    assert read_files(files).changes_since(original) == ()
    assert old in files[edited]
    changed = files | {edited: files[edited].replace(old, new)}
    assert read_files(changed).digest != original.digest


def test_a_study_that_its_factory_uses_or_is_made_beside_is_no_code(fresh):
    text = (
        "from sweeper import Study\n\ndef make(width):\n"
        "    def model(trial):\n        return width, study.seed\n"
        "    return model, Study(name='s', model=model, data=len, epochs=1, trials=4)\n\n"
        "model, study = make(3)\n"
    )

    def read_text(text):
        return read_code({"model": fresh({"made_of_study.py": text}, "made_of_study").model})

    original = read_text(text)
    assert read_text(text.replace("trials=4", "trials=9")).changes_since(original) == ()
    changed = read_text(text.replace("return width", "return 1 + width")).changes_since(original)
    assert changed == ("make has changed (made_of_study.py)",)


def test_code_without_a_text_is_compared_with_itself_and_with_no_text(read, tmp_path):
    text = (
        "import math\n\nimport helpers_of_study as helpers\n\n"
        "WIDTH = 32\nSIZES = [WIDTH, WIDTH * 2]\nTABLE = helpers.read_table()\n\n\n"
        'class Wide:\n    """Wide."""\n    depth = 2\n\n    def width(self):\n'
        "        return WIDTH * self.depth\n\n\n"
        'def scaled(x, by=3.0):\n    """Scaled."""\n    return x * by + math.pi\n\n\n'
        "def build_model(trial):\n    # as wide\n"
        "    return [scaled(s) for s in SIZES], Wide(), TABLE, lambda x: x + (x in {1, 2})\n"
    )
    read()  # Has the module of helpers importable.

    def piped(text):
        return code_of_text(text, "<stdin>", "__main__", "build_model")

    original = piped(text)
    assert not original.has_text
    assert piped(text.replace("# as wide", "# wider")).changes_since(original) == ()
    edits = {
        ("x * by", "by - x"): "scaled",
        ("by=3.0", "by=4.0"): "default 'by' of scaled",
        ("WIDTH = 32", "WIDTH = 3"): "WIDTH",
        ("depth = 2", "depth = 3"): "Wide.depth",
        ("WIDTH * self", "WIDTH + self"): "Wide.width",
        ("{1, 2}", "{1, 3}"): "build_model",
        ("(x, by=", "(x, *, by="): "scaled",
    }
    for edit, name in edits.items():
        changes = piped(text.replace(*edit)).changes_since(original)
        assert any(change.startswith(f"{name} has changed") for change in changes), (edit, changes)
    file = tmp_path / "saved_study.py"
    file.write_text(text, encoding="utf-8")
    (change,) = code_of_text(text, file, "saved_study", "build_model").changes_since(original)
    assert change.startswith("its code was typed at a prompt, piped into Python or edited after")


def test_a_module_of_a_package_in_a_package_without_init_files_is_found_and_not_imported(tmp_path):
    file = tmp_path / "outer_of_study" / "inner_of_study" / "module.py"
    file.parent.mkdir(parents=True)
    file.touch()
    path = find_module_file("outer_of_study.inner_of_study.module", [str(tmp_path)])
    assert path == str(file)
    assert find_module_file("outer_of_study.inner_of_study", [str(tmp_path)]) is None
    assert "outer_of_study" not in sys.modules
