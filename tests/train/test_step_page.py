"""The page about training steps: what it shows runs, and every part and hook is in its tables."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from trainings import Watcher, plan, train

from sweeper import TrainingStep

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-training-step.md"
PARTS = (
    *("on_bind", "make_batch", "inputs", "outputs", "loss_inputs", "per_example_loss", "reduce"),
    *("extra_losses", "trainable_variables", "process_gradients", "update", "logs"),
)
HOOKS = (
    *("every_steps", "at_step", "create_dataset", "make_batches", "create_model", "create_loss"),
    *("create_opt", "create_ckpt", "input_pre", "loss_pre", "grad_pre", "update_pre"),
)


class Lowest:
    """A trial that takes the least of everything."""

    def __init__(self, directory):
        self.seed = 1
        self.directory = directory

    def suggest_float(self, name, low, high, **options):
        return low


@pytest.fixture(scope="module")
def shown():
    names = {"__name__": "shown"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _without_tensorboard(monkeypatch):
    """``tf.summary.scalar`` is TensorBoard's, which need not be installed here."""
    monkeypatch.setattr(tf.summary, "scalar", tf.summary.write)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("step", "data", "callbacks"),
    [
        ("RobustStep", "load_data", True),
        ("HeadStep", "load_data", False),
        ("GanStep", "load_data", False),
        ("NoisyStep", "load_batches", False),
    ],
)
def test_each_step_of_the_page_trains(step, data, callbacks, shown, tmp_path):
    trial = Lowest(tmp_path)
    loop = train(
        plan(
            model=lambda: shown["build_model"](trial),
            step=lambda: shown[step](trial),
            data=lambda: shown[data](trial),
            callbacks=lambda: shown["build_callbacks"](trial) if callbacks else [],
        ),
        Watcher(),
    )
    assert all(np.isfinite(loop.history.history["loss"]))
    assert len(list(tmp_path.glob("summaries/events*"))) == int(callbacks)
    if callbacks:
        assert float(loop._plan.step.width.numpy()) == 0.5


def test_every_part_and_every_hook_has_a_row():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for part in PARTS:
        assert callable(getattr(TrainingStep, part))
        assert sum(row.startswith(f"| `{part}(") for row in rows) == 1, part
    for hook in HOOKS:
        assert sum(bool(re.match(rf"\| `{hook}[(\[]", row)) for row in rows) == 1, hook
