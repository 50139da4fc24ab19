"""Code that looks at how many epochs there are is found by name; code that does not is not."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.inspection.epochs import read_lengths
from sweeper.records.lengths import LengthRead

EPOCHS, STEPS = 5, 100

Read = Callable[..., list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reads(body: str, before: str = "") -> list[str]:
        """What goes by a length of 5 epochs, 100 steps, in a factory of this body."""
        module = load(tmp_path / "model.py", f"{before}\ndef build(trial):\n{body}\n")
        found = read_lengths({"model": module.build})
        return [each.text for each in found if each.goes_by({EPOCHS}, {STEPS})]

    return reads


def load(path: Path, text: str) -> Any:
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location("model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("body", "before", "text"),
    [
        ("    return trial.epochs", "", "trial.epochs"),
        ('    return trial.params["epochs"]', "", "trial.params['epochs']"),
        ('    return trial.params.get("epochs", 1)', "", "trial.params.get('epochs', 1)"),
        ("    return EPOCHS * 3", "EPOCHS = 5", "EPOCHS"),
        ("    return CosineDecay(0.1, 100)", "CosineDecay = print", "100"),
        ("    return CosineDecay(0.1, 20 * 5)", "CosineDecay = print", "20 * 5"),
        ("    return Warm(decay_steps=100)", "Warm = print", "decay_steps=100"),
        ("    return Warm(decay_steps=TOTAL)", "Warm = print\nTOTAL = 20 * 5", "decay_steps=TOTAL"),
        ("    return Warm(total_epochs=5)", "Warm = print", "total_epochs=5"),
        ("    steps = len(trial) // 32\n    return steps * 5", "", "steps * 5"),
        ("    return 5 * len(trial)", "", "5 * len(trial)"),
        ("    total_steps = 100\n    return total_steps", "", "100"),
        ("    return SCHEDULE", "CosineDecay = dict\nSCHEDULE = CosineDecay(x=1, decay_steps=100)", "decay_steps=100"),
    ],
)  # fmt: skip
def test_what_looks_at_the_number_of_epochs_is_found(
    read: Read, body: str, before: str, text: str
) -> None:
    assert text in read(body, before)


@pytest.mark.parametrize(
    ("body", "before"),
    [
        ("    return Dense(100, units=5)", "Dense = dict"),
        ("    return trial.suggest_int('units', 5, 100)", ""),
        ("    return CosineDecay(0.1, 40)", "CosineDecay = print"),
        ("    return EPOCHS * 3", "EPOCHS = 7"),
        ("    for epoch in range(3):\n        print(epoch)", ""),
        ("    return Warm(steps_per_epoch=100)", "Warm = print"),
        ("    return x * 5", "x = 1.5"),
    ],
)
def test_control_what_does_not_look_at_it_is_not(read: Read, body: str, before: str) -> None:
    assert read(body, before) == []


def test_a_callback_that_reads_its_parameters_is_named_with_its_line(tmp_path: Path) -> None:
    text = """
    class Halving:
        def on_epoch_begin(self, epoch, logs=None):
            self.share = epoch / self.params["epochs"]

    def callbacks(trial):
        return [Halving()]
    """
    module = load(tmp_path / "model.py", text)
    (found,) = read_lengths({"callbacks": module.callbacks})
    assert str(found) == "Halving (model.py, line 4): self.params['epochs']"
    assert found == LengthRead("Halving (model.py, line 4)", "self.params['epochs']", "reads")


def test_the_definition_of_the_study_itself_is_no_such_code(tmp_path: Path) -> None:
    text = """
    Study = dict

    def model(trial):
        return trial

    study = Study(model=model, epochs=5)
    """
    module = load(tmp_path / "model.py", text)
    assert read_lengths({"model": module.model}) == ()


def test_a_number_of_epochs_in_a_closure_is_found(tmp_path: Path) -> None:
    text = """
    def factory(epochs):
        def model(trial):
            return trial / epochs
        return model

    build = factory(5)
    """
    module = load(tmp_path / "model.py", text)
    found = read_lengths({"model": module.build})
    assert [each for each in found if each.goes_by({EPOCHS}, ())]
