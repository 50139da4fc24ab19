"""What is exported works in a process that has no sweeper, and training goes on from it there."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_models import SAMPLES, Runner, arrays, network, without_validation
from trainings import unoptimized

from sweeper import Keep
from sweeper.checkpoint.reading import load_checkpoint


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A study of three epochs, whose model leaves after the second; read by another process."""
    directory = tmp_path_factory.mktemp("left")
    with unoptimized():
        ran = Runner(directory)(
            network, data=without_validation, objective="loss", epochs=3, keep=Keep(last=9)
        )
    best = ran.results.best
    names = {"savedmodel": "served", "frozen": "model.pb", "tf-checkpoint": "checkpoint"}
    names |= {"keras": "model.keras", "weights": "model.weights.h5"}
    for form, name in names.items():
        best.export(directory / name, form, at=4)
    x, y = arrays()
    inputs = {"x": x[SAMPLES:], "train_x": x[:SAMPLES], "train_y": y[:SAMPLES]}
    np.savez(directory / "given.npz", **inputs, rate=best.params["rate"])
    subprocess.run(
        [sys.executable, str(Path(__file__).with_name("outside.py")), str(directory)],
        check=True,
        env={**os.environ, "PYTHONPATH": ""},
        cwd=directory,
    )
    expected, other = (
        best.load_model(at=step)(x[SAMPLES:], training=False).numpy() for step in (4, 6)
    )
    with np.load(directory / "found.npz") as outputs:
        yield SimpleNamespace(best=best, found=dict(outputs), expected=expected, other=other)


@pytest.mark.whole
@pytest.mark.parametrize("form", ["savedmodel", "frozen", "keras", "weights"])
def test_predictions_agree(left, form):
    np.testing.assert_allclose(left.found[form], left.expected, rtol=1e-6, atol=1e-6)
    assert not np.allclose(left.found[form], left.other, rtol=1e-6, atol=1e-6)


@pytest.mark.whole
def test_training_on_from_a_tensorflow_checkpoint_gives_the_next_epoch_bit_for_bit(left):
    (next_epoch,) = (c.path for c in left.best.checkpoints if c.step == 6)
    loaded = load_checkpoint(Path(next_epoch))
    names = sorted(n for n in loaded.tensors if n.startswith(("model/", "optimizer/")))
    assert int(left.found["step"]) == 4
    for index, name in enumerate(names):
        assert left.found[f"after_{index}"].tobytes() == loaded.tensors[name].tobytes(), name
