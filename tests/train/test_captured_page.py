"""The documentation's table of what is captured is what the code captures."""

import re
from pathlib import Path

import keras
from generate_what_is_captured import COMPONENTS, PAGE, SOURCES, page
from trainings import Watcher, one_layer, plan, train

import sweeper


def test_the_page_is_what_the_generator_prints():
    assert PAGE.read_text() == page(), "run: python docs/reference/generate_what_is_captured.py"


def test_the_table_has_every_component_in_order():
    watcher = Watcher(stop_at=1)
    train(plan(model=one_layer), watcher)
    assert [*watcher.last.state] == ["position", *COMPONENTS]


def test_every_callback_of_keras_is_on_the_page():
    abstract = {"Callback", "CallbackList"}
    names = {n for n, member in vars(keras.callbacks).items() if isinstance(member, type)}
    assert [name for name in sorted(names - abstract) if f"| `{name}` |" not in page()] == []


def test_every_source_of_data_is_on_the_page():
    files = (Path(sweeper.__file__).parent / "train/sources").glob("*.py")
    names = {
        n for f in files for n in re.findall(r"^class (\w+Source)\b", f.read_text(), re.MULTILINE)
    }
    assert names == set(SOURCES)
