"""The documentation's table of what is captured is what the code captures."""

import importlib
import pkgutil

import keras
from generate_what_is_captured import COMPONENTS, PAGE, SOURCES, page
from trainings import Watcher, one_layer, plan

from sweeper.train import sources
from sweeper.train.loop.loop import TrainingLoop


def test_the_page_is_what_the_generator_prints():
    assert PAGE.read_text() == page(), "run: python docs/reference/generate_what_is_captured.py"


def test_the_table_has_every_component_in_order():
    loop = TrainingLoop(plan(model=one_layer), Watcher())
    assert [component.name for component in loop._state.components] == list(COMPONENTS)


def test_every_callback_of_keras_is_on_the_page():
    abstract = {"Callback", "CallbackList"}
    names = {n for n, member in vars(keras.callbacks).items() if isinstance(member, type)}
    assert [name for name in sorted(names - abstract) if f"| `{name}` |" not in page()] == []


def test_every_source_of_data_is_on_the_page():
    modules = [
        importlib.import_module(f"{sources.__name__}.{module.name}")
        for module in pkgutil.iter_modules(sources.__path__)
    ]
    found = {
        name
        for module in modules
        for name, member in vars(module).items()
        if isinstance(member, type) and member.__module__ == module.__name__
        if name.endswith("Source")
    }
    assert found == set(SOURCES)
