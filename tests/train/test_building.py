"""Building metrics and optimizer from shapes: done where it can be, and no fault hidden."""

import logging

import keras
import numpy as np
import pytest

from sweeper.train.loop.building import build_before_tracing

X, Y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)


def compiled(metric="mae", loss="mse"):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", loss, metrics=[metric])
    return model


def test_metrics_and_optimizer_have_their_variables_before_any_step():
    model = compiled()
    assert not model.optimizer.built
    build_before_tracing(model, (X, Y))
    assert model.optimizer.built
    assert len(model.optimizer.variables) == 6
    assert model._compile_metrics.built


def test_a_fault_in_a_metric_of_the_users_is_raised_and_not_swallowed():
    def faulty(_y, _prediction):
        return {}["nothing of this name"]

    with pytest.raises(KeyError, match="nothing of this name"):
        build_before_tracing(compiled(faulty), (X, Y))


def test_what_does_not_fit_is_left_to_the_trace_and_logged(caplog):
    with caplog.at_level(logging.DEBUG, logger="sweeper.train.loop.building"):
        build_before_tracing(compiled(), (np.ones((4, 7), np.float32), Y))
    assert "built by its trace" in caplog.text
