"""Steps at which a rehearsed trial is killed, and the validations that are rehearsed.

That a kill shows what no checkpoint holds is in `test_check_studies.py`, end to end.
"""

from __future__ import annotations

import pytest

from sweeper.checks.interrupted_runs import interruptions
from sweeper.run.replays import Kill


@pytest.mark.parametrize(
    ("end", "steps", "kills"),
    [
        (62, 20, [[Kill(20, 41)], [Kill(10, 21), Kill(30, 41)]]),
        (40, 20, [[Kill(20, 40)], [Kill(10, 21), Kill(30, 40)]]),
        (20, 20, [[Kill(10, 11)]]),
        (4, 1, [[Kill(1, 3)]]),
        (2, 1, [[Kill(1, 2)]]),
        (2, 2, [[Kill(1, 2)]]),
        (5, 3, [[Kill(3, 5)], [Kill(1, 4), Kill(4, 5)]]),
    ],
)
def test_one_is_killed_past_an_epochs_end_and_one_twice_past_its_middle(
    end: int, steps: int, kills: list[list[Kill]]
) -> None:
    assert [list(each.kills) for each in interruptions(end, steps)] == kills


def test_every_kill_is_between_its_checkpoint_and_the_end() -> None:
    for steps in range(1, 30):
        for end in range(2, 4 * steps):
            for interruption in interruptions(end, steps):
                before = 0
                for kill in interruption.kills:
                    assert before < kill.checkpoint < kill.after <= end
                    before = kill.checkpoint


@pytest.mark.parametrize(
    ("freq", "epochs", "expected"),
    [(5, 6, 1), (2, 6, 2), (5, 3, 5), ([9], 10, 1), ([2, 9], 10, [2, 9])],
)
def test_a_validation_that_is_due_after_the_rehearsed_epochs_is_rehearsed_in_each(
    freq: object, epochs: int, expected: object
) -> None:
    import keras
    import numpy as np

    from sweeper import Data
    from sweeper.replay.digests import shortened
    from sweeper.train.loop.plan import TrainingPlan

    x, y = np.zeros((8, 2), "float32"), np.zeros(8)
    plan = TrainingPlan(
        model=keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
        data=Data(train=(x, y), validation=(x, y), validation_freq=freq),
        callbacks=(),
        epochs=epochs,
        objective="loss",
        order_seed=np.random.SeedSequence(0),
    )
    assert shortened(plan, None, None)[0].data.validation_freq == expected
