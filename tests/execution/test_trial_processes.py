"""The processes of one trial: what they agree on, whose state is whose, and what is refused."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from sweeper import DefinitionError, FactoryError, MultiWorker, RestoreError, UncapturableError
from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.checkpoints.store import CheckpointStore
from sweeper.checkpoints.values import decode_values
from sweeper.execution.audit.differences import compare_checkpoints
from sweeper.execution.protocol.channel import Channel
from sweeper.execution.protocol.framing import MessagePipe
from sweeper.execution.protocol.messages import Assignment, Failed
from sweeper.execution.protocol.peers import Agreed, PeerDone
from sweeper.execution.trial.peers.alone import OnlyProcess
from sweeper.execution.trial.peers.following import PeerLink
from sweeper.execution.trial.peers.leading import FirstProcess
from sweeper.execution.trial.peers.member import PeerProcess
from sweeper.execution.trial.peers.states import merged, state_of
from sweeper.execution.trial.peers.transfer import answer, ask
from sweeper.execution.trial.process import failure_of
from sweeper.execution.trial.strategies import strategy_scope
from sweeper.inspection.fingerprint import read_code
from sweeper.training.randomness.seeds import TrialSeeds
from sweeper.training.replicas import multiworker
from sweeper.training.replicas.multiworker import ClusterError, ClusterTask, free_addresses
from sweeper.trial import Trial

TASK = ClusterTask(0, ("127.0.0.1:1", "127.0.0.1:2"))


def snapshot(process: int, state: Any, **tensors: Any) -> Snapshot:
    """Two variables of the strategy's, one of which each replica writes for itself, and others."""
    below = "" if process == 0 else f"/replica-{process}"
    held = {
        f"model/0{below}": np.arange(3.0),
        f"model/1{below}": np.full(2, process),
        "numpy_random/words": np.array([7, 8]),
        **tensors,
    }
    repeated = {"model/0": (f"model/0{below}",), "model/1": (f"model/1{below}",)}
    return Snapshot(
        step=4,
        epoch=1,
        tensors=held,
        state={"position": {"step": 4}, **state},
        metrics={},
        digest_names=(f"model/0{below}", f"model/1{below}"),
        repeated=repeated if process else {},
    )


def gathered(*snapshots: Snapshot) -> Snapshot:
    """The first one's, with what the others send over their sockets."""
    first, *others = snapshots
    pairs = [tuple(map(MessagePipe, socket.socketpair())) for _ in others]
    threads = [
        threading.Thread(target=answer, args=(theirs, own))
        for (_, theirs), own in zip(pairs, others, strict=True)
    ]
    for thread in threads:
        thread.start()
    states = ask([ours for ours, _ in pairs], first)
    for thread in threads:
        thread.join()
    for pipe in (each for pair in pairs for each in pair):
        pipe.close()
    return merged(first, states)


def loaded(whole: Snapshot) -> LoadedCheckpoint:
    return LoadedCheckpoint(
        step=whole.step,
        epoch=whole.epoch,
        digest="",
        tensors={name: np.asarray(value) for name, value in whole.tensors.items()},
        state=decode_values(whole.state_json),
        metrics={},
        path=Path("step-000000004"),
        bytes=0,
    )


def test_every_process_gets_its_own_state_back() -> None:
    ours = snapshot(0, {"callbacks": [1], "history": {}}, **{"callbacks/0": np.zeros(2)})
    brain = np.array([[1.5, 2.5]], tf.bfloat16.as_numpy_dtype)
    theirs = snapshot(
        1,
        {"callbacks": [float("inf")], "history": {}},
        **{"numpy_random/words": np.array([9, 9]), "callbacks/1": brain},
    )
    whole = loaded(gathered(ours, theirs))
    one, two = (state_of(whole, index, 2) for index in (0, 1))
    assert set(one.tensors) == {*ours.tensors, "model/0/replica-1", "model/1/replica-1"}
    assert one.state == decode_values(ours.state_json)
    assert two.state == decode_values(theirs.state_json)
    assert two.tensors["numpy_random/words"].tolist() == [9, 9]
    assert two.tensors["callbacks/1"].tobytes() == brain.tobytes()
    assert two.tensors["callbacks/1"].dtype == brain.dtype
    assert "callbacks/0" not in two.tensors
    assert two.tensors["model/1"].tolist() == [0, 0]
    assert two.tensors["model/1/replica-1"].tolist() == [1, 1]


def test_what_processes_have_alike_is_in_the_checkpoint_once() -> None:
    whole = gathered(snapshot(0, {}), snapshot(1, {}), snapshot(2, {}))
    assert not any(name.startswith("processes/") for name in whole.tensors)
    assert whole.repeated["model/0"] == ("model/0/replica-1", "model/0/replica-2")
    assert whole.digest_names == (
        *("model/0", "model/0/replica-1", "model/0/replica-2"),
        *("model/1", "model/1/replica-1", "model/1/replica-2"),
    )


def test_an_audit_compares_the_random_state_of_every_process(tmp_path: Path) -> None:
    paths = []
    for drawn in (9, 10):
        theirs = snapshot(1, {}, **{"numpy_random/words": np.array([drawn, 9])})
        whole = gathered(snapshot(0, {}), theirs)
        store = CheckpointStore(tmp_path / str(drawn))
        paths.append(Path(str(store.commit(whole).path)))
    assert compare_checkpoints(paths[0], paths[0]) == []
    [found] = compare_checkpoints(*paths)
    assert (found.path, found.exact) == ("processes/1/numpy_random/words", True)


def test_a_variable_that_the_first_process_lacks_is_refused() -> None:
    theirs = snapshot(1, {}, **{"model/2/replica-1": np.zeros(1)})
    with pytest.raises(UncapturableError) as refused:
        gathered(snapshot(0, {}), theirs)
    assert str(refused.value) == (
        "process 1 of the trial has a variable that process 0 lacks (model/2): every process must make "
        "the same variables, in the same order"
    )


@pytest.mark.parametrize(("whole", "was"), [(True, "2 processes"), (False, "1 process")])
def test_a_checkpoint_of_another_number_of_processes_is_refused(whole: bool, was: str) -> None:
    first = snapshot(0, {})
    with pytest.raises(RestoreError) as refused:
        state_of(loaded(gathered(first, snapshot(1, {})) if whole else first), 0, 3)
    assert str(refused.value) == (
        f"the checkpoint step-000000004 is of {was}, and the trial has 3 now; go on with the number "
        "that it began with"
    )


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, PeerLink]]:
    """The first process's end, and another one's; that one would end with the first."""
    monkeypatch.setattr(os, "_exit", lambda _code: None)
    first, theirs = Channel.pair()
    own = Channel.on(theirs.detach())
    before = set(threading.enumerate())
    link = PeerLink(own)
    link.task = ClusterTask(1, TASK.addresses)
    [listening] = set(threading.enumerate()) - before
    yield first, link
    first.close()
    listening.join()
    own.close()


def test_another_process_takes_what_the_first_one_decided(pair: tuple[Channel, PeerLink]) -> None:
    first, link = pair
    first.send(Agreed("whether to stop", 3, 1))
    assert link.agree("whether to stop", 3, 0) == 1


@pytest.mark.parametrize("said", [("the end", 3), ("whether to stop", 4)])
def test_a_process_that_went_another_way_says_where(
    pair: tuple[Channel, PeerLink], said: tuple[str, int]
) -> None:
    first, link = pair
    first.send(Agreed(*said, 0))
    with pytest.raises(FactoryError) as refused:
        link.agree("whether to stop", 3, 0)
    assert str(refused.value) == (
        "the processes of the trial went apart: process 1 of 2 has come to whether to stop at step 3, "
        f"and process 0 to {said[0]} at step {said[1]}. What callbacks and steps do must be the same in "
        "every process: not by the clock, or by the process"
    )


class WorkerLink:
    """Keeps what is sent to the worker."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send(self, message: Any) -> None:
        self.sent.put(message)


@pytest.fixture
def first(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[FirstProcess, Channel, WorkerLink]]:
    """A first process whose exit would be this process's: it is recorded instead."""
    link, (ours, theirs) = WorkerLink(), Channel.pair()
    states, unused = map(MessagePipe, socket.socketpair())
    monkeypatch.setattr(os, "_exit", link.sent.put)
    other = PeerProcess(1, ours, states, lambda _patience: "was killed by SIGKILL")
    assignment = Assignment(
        *("study", 0, 1, 0, 1, "loss", True, 1, "epoch", "files", "log.txt", ("checkpoints",))
    )
    peer = Channel.on(theirs.detach())
    leading = FirstProcess(link, [other], assignment)  # type: ignore[arg-type]
    [listening] = [t for t in threading.enumerate() if t.name == "sweeper-peer-1"]
    yield leading, peer, link
    listening.join()
    for each in (ours, peer, states, unused):
        each.close()


def test_the_death_of_another_process_ends_the_attempt_as_crashed(
    first: tuple[FirstProcess, Channel, WorkerLink],
) -> None:
    _, peer, link = first
    peer.close()
    assert link.sent.get() == Failed(
        "process 1 of the trial's 2 was killed by SIGKILL, so the others were ended, too; all of them "
        "begin again together",
        fault="crash",
    )
    assert link.sent.get() == 0


def test_an_error_of_another_process_names_it(
    first: tuple[FirstProcess, Channel, WorkerLink],
) -> None:
    _, peer, link = first
    peer.send(Failed("ValueError: no", traceback="…"))
    assert link.sent.get() == Failed(
        "ValueError: no (in process 1 of the trial's 2)", traceback="…"
    )


def test_a_process_that_is_done_may_end(first: tuple[FirstProcess, Channel, WorkerLink]) -> None:
    leading, peer, link = first
    peer.send(PeerDone())
    leading.finish(3)
    peer.close()
    leading.wait_for_cause(ValueError("the first process's own"))
    assert link.sent.empty()


def test_processes_that_do_not_come_together_are_a_crash() -> None:
    assert failure_of(ClusterError("no")) == Failed("ClusterError: no", fault="crash")


def test_the_number_of_processes_is_part_of_the_definition() -> None:
    codes = {read_code({"strategy": MultiWorker(processes=n)}).digest for n in (2, 2, 3)}
    assert len(codes) == 2


def test_fewer_than_two_processes_are_refused() -> None:
    with pytest.raises(DefinitionError, match="it must be a whole number, at least 2"):
        MultiWorker(processes=1)


def test_trials_inside_this_process_are_refused() -> None:
    with pytest.raises(FactoryError) as refused:
        OnlyProcess().check(MultiWorker(processes=2), None, rehearsed=False)
    assert str(refused.value) == (
        "MultiWorker(processes=2) needs processes of the trial's own, and there are none here: give it "
        "as Study(strategy=…) and run the study with isolation='fork' or 'spawn' ('auto' chooses), not "
        "'inline'"
    )


def test_a_rehearsal_has_one_replica() -> None:
    OnlyProcess().check(MultiWorker(processes=2), None, rehearsed=True)
    assert MultiWorker(processes=2).strategy(None).num_replicas_in_sync == 1


@pytest.mark.parametrize("given", ['{"cluster": {"worker": ["a:1", "b:2"]}}', "{broken"])
def test_a_tf_config_of_the_users_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", given)
    with pytest.raises(FactoryError) as refused:
        MultiWorker(processes=2).strategy(TASK)
    assert str(refused.value) == (
        f"TF_CONFIG is set, to {given!r}: it says where processes on several hosts listen, and those of "
        "a trial are all on one host, started and connected by sweeper. Unset it for the worker; other "
        "hosts can take other trials (`sweeper worker`)"
    )


def test_a_study_that_ran_tensorflow_at_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    tf.constant(0.0)
    with pytest.raises(FactoryError) as refused:
        MultiWorker(processes=2).strategy(TASK)
    assert str(refused.value) == (
        "MultiWorker: TensorFlow has already run in the trial's process, so it can join no other: "
        "importing the study's module makes a tensor, a model or a strategy; do that in the factories"
    )


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(**_options: Any) -> None:
        raise tf.errors.UnknownError(None, None, "Could not start gRPC server")

    monkeypatch.setattr(multiworker, "_refuse_started", lambda: None)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", taken)
    with pytest.raises(ClusterError) as refused:
        MultiWorker(processes=2).strategy(TASK)
    assert str(refused.value) == (
        "process 0 of 2 could not join the others at 127.0.0.1:1, 127.0.0.1:2: Could not start gRPC "
        "server; is 127.0.0.1:1 taken by another program?"
    )


def test_free_addresses_are_free_and_different() -> None:
    addresses = free_addresses(3)
    assert len(set(addresses)) == 3
    for address in addresses:
        host, _, port = address.partition(":")
        socket.create_server((host, int(port))).close()


@pytest.mark.parametrize("count", [1, 3])
def test_gpus_that_cannot_be_shared_equally_are_refused(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiworker, "_refuse_started", lambda: None)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _kind: ["GPU"] * count)
    with pytest.raises(FactoryError, match=f"the trial sees {count} GPU"):
        MultiWorker(processes=2).strategy(TASK)


def test_a_multi_worker_strategy_of_the_users_own_is_refused_and_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the variable it would wait for the process at an address where nobody is."""
    cluster = '{"cluster": {"worker": ["127.0.0.1:9", "127.0.0.1:10"]}, "task": {"type": "worker", "index": 1}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    trial = Trial(number=0, seed=0, directory=tmp_path, ask=lambda *_: None)

    def factory(_trial: Trial) -> Any:
        return tf.distribute.MultiWorkerMirroredStrategy()

    with (
        pytest.raises(FactoryError) as refused,
        strategy_scope(factory, trial, TrialSeeds(0, 0)),
    ):
        pass
    assert str(refused.value) == (
        "the model's strategy is a CollectiveAllReduceStrategy, which is not supported: its replicas are "
        "processes that must start, stop and resume together, so sweeper starts them, on one host: give "
        "Study(strategy=sweeper.MultiWorker(processes=…)), which makes it in each of them; let workers on "
        "other hosts take other trials (`sweeper worker`)"
    )
    assert os.environ["TF_CONFIG"] == cluster
