"""The small parts that trials are run with: devices, engines, memory, last words."""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import joblib
import pytest
from forked_programs import PROGRAM
from sweeps import python

from sweeper.errors import UsageError
from sweeper.records.events import AttemptEnded, AttemptStarted, EpochFinished, TrainingStarted
from sweeper.records.results import TrialStatus
from sweeper.run.cluster.driver import _Drive, progress_between
from sweeper.run.cluster.engines import check_engine, run_tasks
from sweeper.run.protocol.messages import StudySource
from sweeper.run.worker import outcomes

ROOT = Path(__file__).parents[2]

CONFIGURE = """
import json, os
from sweeper.run.trial.devices import configure_tensorflow, import_tensorflow, show_devices
import_tensorflow()
show_devices("3")
from tensorflow.python.framework import config
enabled = []
for deterministic in (False, True, False):
    configure_tensorflow(threads=2, deterministic=deterministic)
    enabled.append(config.is_op_determinism_enabled())
import tensorflow as tf
tf.zeros(1)
refused = ""
try:
    configure_tensorflow(threads=3, deterministic=False)
except RuntimeError as error:
    refused = str(error)
threads = tf.config.threading
print(json.dumps([threads.get_intra_op_parallelism_threads(),
    threads.get_inter_op_parallelism_threads(), [*enabled, config.is_op_determinism_enabled()],
    os.environ["CUDA_VISIBLE_DEVICES"], refused]))
"""


def test_threads_and_determinism_hold_and_cannot_be_changed_after_the_first_op(tmp_path):
    ended = python(*PROGRAM, "-c", CONFIGURE, cwd=tmp_path)
    assert ended.code == 0, ended.err
    intra, inter, enabled, devices, message = json.loads(ended.out)
    assert (intra, inter, devices) == (2, 2, "3")
    assert enabled == [False, True, True, True], "it is never taken back"
    assert "cannot be modified" in message


def test_an_engine_without_its_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"engine 'ray' .*pip install .*\[ray\]'"):
        check_engine("ray")


def test_a_cluster_scaled_to_no_machines_is_refused_by_name():
    class Scaled:
        nodes = 0

        def backend(self, tasks, slots):
            raise AssertionError((tasks, slots))

        def close(self): ...

    study = SimpleNamespace(repository=None, settings=SimpleNamespace(name="s"))
    prepared = SimpleNamespace(study=study, source=StudySource("target", "s.py"))
    request = SimpleNamespace(engine="dask", listener=print)
    with pytest.raises(UsageError, match="'dask' has no machines now, so 3 workers cannot be"):
        _Drive(prepared, request)._start_hosts(Scaled(), 3)


def test_a_single_order_is_run_by_the_cluster_too():
    """One order must not be run in the driver itself, which joblib does where it sees one job."""

    class Threads:
        nodes = 1

        def backend(self, tasks, slots):
            return joblib.parallel_config(backend="threading")

        def close(self): ...

    here = threading.current_thread().name
    [ran] = run_tasks(Threads(), lambda _spec: threading.current_thread().name, ["order"], 1)
    assert ran != here


def test_kills_for_lack_of_memory_are_added_up(tmp_path, monkeypatch):
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\noom_kill_other 40\n")
    (tmp_path / "events").write_text("low 0\noom 9\noom_kill 2\n")
    counters = tuple((tmp_path / n, "oom_kill") for n in ("vmstat", "events", "missing"))
    monkeypatch.setattr(outcomes, "_COUNTERS", counters)
    assert outcomes.out_of_memory_kills() == 5
    monkeypatch.setattr(outcomes, "_COUNTERS", counters[2:])
    assert outcomes.out_of_memory_kills() == 0


def test_a_driver_reports_what_differs_between_two_looks_at_a_trial():
    def look(state, epoch=0, attempts=1, value=None):
        params = {"rate": 0.5} if epoch or state != "running" else {}
        return TrialStatus(3, state, params, value, epoch, 9, {"loss": 1.0}, attempts=attempts)

    def kinds(*pair):
        return [type(event) for event in progress_between(*pair, 2.0)]

    begun, trained = look("running"), look("running", 4)
    ended = look("complete", 9, value=0.5)
    assert kinds(None, begun) == [AttemptStarted]
    assert kinds(begun, trained) == [TrainingStarted, EpochFinished]
    assert kinds(trained, trained) == []
    assert list(progress_between(trained, ended, 2.0)) == [
        EpochFinished(3, 8, 0, {"loss": 1.0}, 0.4),
        AttemptEnded(3, 1, "complete", 0.5),
    ]
    assert kinds(None, ended) == [AttemptStarted, TrainingStarted, EpochFinished, AttemptEnded]
    lost = look("interrupted", 4)
    assert kinds(trained, lost) == [AttemptEnded]
    assert kinds(lost, look("running", 4, attempts=2)) == [AttemptStarted, TrainingStarted]
