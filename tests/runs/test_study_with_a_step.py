"""A study's step factory: refused and fingerprinted like the other factories."""

import keras
import numpy as np
import pytest
from corpus import PITFALLS, judge

from sweeper import Data, FactoryError, Study, TrainingStep


def build_model(trial):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])


def load_data(trial):
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    return Data(train=(x, x[:, :2]))


def make_step(trial):
    return TrainingStep(optimizer="sgd", loss="mse", metrics=["mae"])


def make_louder_step(trial):
    return TrainingStep(optimizer="sgd", loss="mae", metrics=["mae"])


def study_of(step):
    return Study(name="a", model=build_model, data=load_data, step=step, epochs=1, trials=1)


def test_the_code_of_the_step_is_part_of_the_definition():
    codes = [study_of(step).code().digest for step in (make_step, make_louder_step, None)]
    assert len(set(codes)) == 3
    assert codes[0] == study_of(make_step).code().digest
    assert study_of(None).factories() == (build_model, load_data)
    assert study_of(make_step).factories() == (build_model, make_step, load_data)


def test_a_step_factory_that_returns_something_else_is_told_so(tmp_path):
    file = PITFALLS / "allowed" / "training_step_of_its_own.py"
    for returned, kind in (("None", "None"), ("[1]", "a builtins.list")):
        text = file.read_text().replace("step=Step", f"step=lambda trial: {returned}")
        wrong = tmp_path / f"wrong_{len(returned)}.py"
        wrong.write_text(text)
        with pytest.raises(FactoryError) as raised:
            judge(wrong, tmp_path)
        assert str(raised.value) == (
            f"the step factory <lambda> returned {kind}; expected a sweeper.TrainingStep (does it "
            "end with `return`?)"
        )
