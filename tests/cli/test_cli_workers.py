"""``worker``, ``stop`` and ``retry``: words to requests."""

import io
from pathlib import Path

import pytest

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.errors import Interrupted
from sweeper.records.results import StudyStatus
from sweeper.run.cluster import host as worker_host
from sweeper.run.cluster.host import write_spec
from sweeper.run.options import HostSpec, WorkerOptions
from sweeper.run.protocol.messages import StudySource
from sweeper.support.paths import parse_location

URL = "sqlite:///runs/sweeper.db"


@pytest.fixture
def hosts(monkeypatch):
    """Put a worker that runs nothing where the real one is; what it was asked for."""
    specs = []

    def run_worker(spec, listener):
        specs.append(spec)
        return StudyStatus("digits", 4, complete=3, failed=1)

    monkeypatch.setattr(worker_host, "run_worker", run_worker)
    return specs


@pytest.fixture
def stored(bare_directory):
    """A database with one study, whose only trial has failed."""
    (bare_directory / "runs").mkdir()
    with Database.open(URL, create=True) as database:
        repository = Repository(database)
        repository.create_or_open(StudyRow("digits", {}, "loss", "minimize", 1, None, 0))
        claim = repository.claim("digits", WorkerIdentity.here(), lambda n: n)
        repository.finish(
            claim.token, Ending("failed", error="Traceback\nValueError: no such layer")
        )
        yield repository


def test_a_worker_is_asked_for_with_its_defaults(call, hosts):
    answer = call("worker", "digits", "--slots", "3", "--storage", "postgresql://me:secret@h/d")
    assert answer.code == 0, answer.err
    assert "4 of 4 trials finished, 1 of them failed" in answer.err
    [spec] = hosts
    assert (spec.study, spec.options.slots, spec.options.grace) == ("digits", 3, 30.0)
    assert spec.options.storage == "postgresql://me:secret@h/d"
    assert (spec.source, spec.unless_stopped, spec.placed_from) == (None, False, None)


@pytest.mark.parametrize(("words", "slots"), [((), "cores"), (("--gpus", "all"), None)])
def test_slots_come_from_the_cores_or_from_the_gpus(call, hosts, monkeypatch, words, slots):
    from sweeper.declarations.arguments import usable_cores

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert call("worker", "digits", *words).code == 0
    assert hosts[0].options.slots == (usable_cores() if slots == "cores" else None)


def test_an_interrupted_worker_ends_with_130_and_says_how_to_start_again(call, monkeypatch):
    def run_worker(spec, listener):
        raise Interrupted("study 'digits' has 1 of 4")

    monkeypatch.setattr(worker_host, "run_worker", run_worker)
    answer = call("worker", "digits", "--storage", "postgresql://me:secret@h/d")
    assert answer.code == 130
    assert "study 'digits' has 1 of 4" in answer.err
    assert answer.err.strip().endswith("sweeper worker digits --storage 'postgresql://me:***@h/d'")


def test_an_order_comes_over_standard_input_with_all_that_it_says(call, hosts, monkeypatch):
    bucket = parse_location("s3://bucket/prefix")
    options = WorkerOptions(
        2, "postgresql://me:secret@h/d", Path("/runs"), bucket, lease_seconds=45.0, grace=9
    )
    pickled = StudySource("pickled", "", "digits", "cGlja2xlZA==", ("/code",), {"cell": "x = 1"})
    spec = HostSpec("digits", options, "ray", 0, "here", pickled)
    monkeypatch.setattr("sys.stdin", io.StringIO(write_spec(spec)))
    assert call("worker", "digits", "--ordered").code == 0
    assert hosts == [spec]
    assert hosts[0].options.checkpoints == bucket


@pytest.mark.parametrize("text", ["", "{}", '{"study": "digits"}'])
def test_an_order_that_is_none_is_refused(call, hosts, monkeypatch, text):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    answer = call("worker", "digits", "--ordered")
    assert (answer.code, hosts) == (2, [])
    assert "--ordered is for `sweeper run --engine`" in answer.err


def test_stop_asks_waits_for_nobody_and_says_how_to_go_on(call, stored):
    stored.set_target("digits", 3)
    answer = call("stop", "digits")
    assert answer.code == 0, answer.err
    assert answer.out == "study digits has stopped: 1 of 3 trials finished, 0 to be resumed\n"
    assert answer.err.strip() == "sweeper resume digits"
    assert stored.stop_requested("digits") == "drain"
    assert call("stop", "digits", "--now").code == 0
    assert stored.stop_requested("digits") == "kill"


def test_stop_says_who_is_left_when_its_patience_ends(call, stored):
    here = WorkerIdentity.here()
    stored.join("digits", here, key="k" * 32)
    answer = call("stop", "digits", "--wait", "0")
    assert answer.code == 1
    assert f"1 is still running: a worker on {here.host} (process {here.pid})" in answer.err
    assert "sweeper stop digits --now" in answer.err


@pytest.mark.parametrize("which", ["0", "--failed"])
def test_retry_opens_a_failed_trial_again_and_no_other(call, stored, which):
    assert "trial 0 failed: ValueError: no such layer" in call("status", "digits").out
    answer = call("retry", "digits", which)
    assert answer.code == 0, answer.err
    assert answer.out == "trial 0 of study digits will get another attempt\n"
    assert answer.err.strip() == "sweeper resume digits"
    assert stored.trial("digits", 0).state == "interrupted"
    second = call("retry", "digits", "0")
    assert (second.code, "is interrupted" in second.err) == (2, True), second.err
    assert call("retry", "digits", "--failed").out == "no trial of study digits has failed\n"
    assert call("retry", "digits", "0", "--failed").code == 2
