"""Attacks on the pipe between a worker and its trial: half a message, and what is none.

The trial fails that did it. Nothing else does, and no request to stop or to kill waits for the
rest.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_trials import ScriptedSweep, ScriptedTrial, finish, scripted_sweep

from sweeper.records.results import EpochRecord
from sweeper.run.protocol.messages import EpochsEnded, Finished, Started, StoppedHere
from sweeper.run.worker.slot import serve_slot

HALF = struct.pack("!I", 1000) + b'{"kind": "finis'


def framed(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


def serve(sweep: ScriptedSweep, act: Callable[[], None] = lambda: None) -> float:
    """Run one slot to its end; the seconds from ``act``, done once a trial has begun, to there."""
    slot = threading.Thread(target=serve_slot, args=(sweep.context,), daemon=True)
    slot.start()
    deadline = time.monotonic() + 30
    while not sweep.launcher.launched and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    act()
    began = time.monotonic()
    slot.join(15)
    assert not slot.is_alive(), "the slot is wedged"
    return time.monotonic() - began


def begin_a_message_and_hang(trial: ScriptedTrial) -> int:
    trial.say(Started(0, 0, 1))
    trial.write(HALF)
    trial.killed.wait(60)
    return 0


def test_half_a_message_keeps_no_trial_from_being_killed_on_request(tmp_path: Path) -> None:
    with scripted_sweep(tmp_path, {None: begin_a_message_and_hang}) as sweep:

        def kill() -> None:
            sweep.context.killing.set()
            sweep.context.stopping.set()

        assert serve(sweep, kill) < 5
        [attempt] = sweep.trials[0].attempts
        assert (attempt.outcome, attempt.error) == ("interrupted", "killed on request")


def test_half_a_message_keeps_no_trial_from_its_time_limit(tmp_path: Path) -> None:
    with scripted_sweep(tmp_path, {0: begin_a_message_and_hang}, trials=2, time_limit=0.5) as sweep:
        serve(sweep)
        assert "time_limit=0.5" in (sweep.trials[0].attempts[0].error or "")
        assert [t.state for t in sweep.trials] == ["failed", "complete"]


def test_a_trial_that_stops_after_half_a_message_is_reported_and_fails(tmp_path: Path) -> None:
    def stop(trial: ScriptedTrial) -> int:
        trial.say(Started(0, 0, 1))
        trial.write(HALF)
        trial.wait_for_stop()
        trial.say(StoppedHere(step=5))
        return 0

    with scripted_sweep(tmp_path, {0: stop}) as sweep:
        assert serve(sweep, sweep.context.stopping.set) < 5
        assert sweep.trials[0].state == "failed"
        assert "an incomplete message" in (sweep.trials[0].attempts[0].error or "")
        assert sweep.context.error is None


@pytest.mark.parametrize("death", [-9, -11, 3])
def test_a_trial_that_dies_within_a_message_has_crashed_and_is_tried_again(
    tmp_path: Path, death: int
) -> None:
    """The negative control: a death in the middle of sending is no fault of the trial's code."""

    def die(trial: ScriptedTrial) -> int:
        trial.write(HALF)
        return death

    with scripted_sweep(tmp_path, {(0, 1): die}) as sweep:
        serve(sweep)
        assert sweep.outcomes() == ["crashed", "complete"]


GARBAGE = {
    "text": b"a line that was printed to the wrong file\n",
    "an empty message": framed(b""),
    "no JSON": framed(b"hello"),
    "JSON too deep": framed(b"[" * 200_000),
    "another kind": framed(b'{"kind": "format_disk"}'),
    "a worker's message": framed(b'{"kind": "stop"}'),
    "a negative step": framed(b'{"kind": "steps_reached", "epoch": 0, "step": -1}'),
    "a step of 70 bits": framed(
        json.dumps({"kind": "steps_reached", "epoch": 0, "step": 1 << 70}).encode()
    ),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_fails_the_trial_that_sent_it_and_no_other(tmp_path: Path, garbage: bytes) -> None:
    def babble(trial: ScriptedTrial) -> int:
        trial.say(Started(0, 0, 1))
        trial.write(garbage)
        trial.killed.wait(30)
        return 0

    with scripted_sweep(tmp_path, {0: babble}, trials=2) as sweep:
        serve(sweep)
        assert sweep.context.error is None
        assert [t.state for t in sweep.trials] == ["failed", "complete"]
        assert len(sweep.trials[0].attempts) == 1
        assert "GarbledError" in (sweep.trials[0].attempts[0].error or "")


def test_an_end_of_no_epochs_ends_nothing(tmp_path: Path) -> None:
    def odd(trial: ScriptedTrial) -> int:
        trial.say(EpochsEnded((), step=1, seconds=1.0))
        return finish(trial)

    with scripted_sweep(tmp_path, {0: odd}) as sweep:
        serve(sweep)
        assert sweep.outcomes() == ["complete"]


def test_messages_in_pieces_arrive_whole(tmp_path: Path) -> None:
    def trickle(trial: ScriptedTrial) -> int:
        trial.say(Started(0, 0, 1))
        epoch = {"epoch": 0, "metrics": {"loss": 1.0}}
        said = framed(json.dumps({"kind": "epochs_ended", "epochs": [epoch], "step": 1}).encode())
        for at in range(0, len(said), 7):
            trial.write(said[at : at + 7])
            time.sleep(0.01)
        trial.say(Finished(step=1, value=1.0, digest="d" * 32))
        return 0

    with scripted_sweep(tmp_path, {0: trickle}) as sweep:
        serve(sweep)
        assert sweep.outcomes() == ["complete"]
        assert sweep.trials[0].epochs == (EpochRecord(0, {"loss": 1.0}),)
