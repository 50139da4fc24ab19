"""A run goes straight from the command to the training loop."""

import pytest
from first_step import calls_to_the_first_step, modules_of, on_the_way

pytestmark = pytest.mark.whole

MOST = 30
"""Modules of the command line and of the run that a debugger follows to the first step."""


@pytest.fixture(scope="module")
def modules():
    return modules_of(calls_to_the_first_step())


def test_a_run_enters_few_modules_before_its_first_step(modules):
    entered = on_the_way(modules)
    assert "run/worker/slot.py" in entered, "the control: the way was recorded"
    assert "run/trial/run.py" in entered, "also in the process of the trial"
    assert len(entered) <= MOST, "\n".join(entered)


def test_a_local_run_asks_no_cluster_no_object_store_and_no_self_test(modules):
    for module in ("run/cluster/engines.py", "checkpoint/remote_objects.py", "run/self_test.py"):
        assert module not in modules
