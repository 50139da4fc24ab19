"""What one end of the pipe sends, the other receives: every message, and nothing else."""

import json
import math
import os
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_trials import finish, scripted_sweep

from sweeper.declarations.space import Categorical, CategoricalChoice, FloatRange, IntRange
from sweeper.records.results import EpochRecord
from sweeper.replay.reports import UserObjects
from sweeper.run.protocol.channel import Channel, IncompleteError
from sweeper.run.protocol.messages import EpochsEnded, Message, ReplayBuilt, Stop, Warned

words = st.text(st.characters(exclude_categories=("Cs",)))
counts = st.integers(0, 2**62)
numbers = st.floats(allow_nan=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
choices = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | numbers | words
OF_TYPE = {
    str: words,
    int: counts,
    float: numbers,
    bool: st.booleans(),
    type(None): st.none(),
    Any: words,
    CategoricalChoice: choices,
    FloatRange: st.tuples(finite, finite).map(lambda two: FloatRange(min(two), max(two))),
    IntRange: st.tuples(counts, counts).map(lambda two: IntRange(min(two), max(two))),
    Categorical: st.lists(choices, min_size=1).map(lambda values: Categorical(tuple(values))),
    EpochRecord: st.builds(EpochRecord, counts, st.dictionaries(words, numbers)),
    UserObjects: st.from_type(UserObjects),
}


def of_type(hint):
    """Values of a field of a message."""
    if hint in OF_TYPE:
        return OF_TYPE[hint]
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return st.floats(0, 1e9) if arguments[0] is float else of_type(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(of_type, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(of_type(arguments[0]), max_size=4).map(tuple)
    if origin is Sequence:
        return st.lists(of_type(arguments[0]), max_size=4)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    if origin in (dict, Mapping):
        return st.dictionaries(words, of_type(arguments[1]), max_size=4)
    hints = get_type_hints(hint, include_extras=True)
    return st.builds(hint, **{field.name: of_type(hints[field.name]) for field in fields(hint)})


def pair():
    near_end, far_end = Channel.pair()
    return near_end, Channel.on(far_end.detach())


@pytest.fixture
def both():
    """Both ends of a channel."""
    ends = pair()
    yield ends
    for end in ends:
        end.close()


def carried(message):
    one, other = pair()

    def send():
        try:
            one.send(message)
        except BaseException:
            one.close()  # or the other end waits for what never comes
            raise

    threading.Thread(target=send).start()
    received = other.receive(30)
    one.close()
    other.close()
    return received


@pytest.mark.parametrize("examples", [25, pytest.param(100, marks=pytest.mark.whole)])
@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_a_message_arrives_as_it_was_sent(kind, examples):
    @settings(max_examples=examples)
    @given(of_type(kind))
    def arrives(message):
        received = carried(message)
        assert received == message
        # 1 and 1.0 and True are equal, and as parameters they are not the same. A replay has none,
        # and sets, which print in any order.
        assert kind is ReplayBuilt or repr(received) == repr(message)

    arrives()


@pytest.mark.parametrize(
    "message",
    [
        *(
            EpochsEnded((EpochRecord(0, {"loss": n}),), step=1)
            for n in (math.nan, math.inf, -math.inf)
        ),
        Warned(os.fsdecode(b"log-\xe9.csv")),
    ],
    ids=repr,
)
def test_a_number_or_a_text_that_json_cannot_have_arrives(message):
    assert repr(carried(message)) == repr(message)


def test_a_closed_end_is_the_end_after_what_was_sent_before(both):
    one, other = both
    assert other.receive(0) is None, "nothing within the time is none"
    one.send(Stop())
    one.close()
    assert other.receive(30) == Stop()
    with pytest.raises(EOFError):
        other.receive(30)
    with pytest.raises(OSError):
        other.send(Stop())


def test_threads_that_send_at_once_mix_no_messages(both):
    one, other = both
    long = "x" * 100_000
    senders = [
        threading.Thread(target=lambda: [one.send(Warned(long)) for _ in range(20)])
        for _ in range(4)
    ]
    for sender in senders:
        sender.start()
    assert all(other.receive(30) == Warned(long) for _ in range(80))
    for sender in senders:
        sender.join()


def test_what_was_sent_arrives_although_another_process_still_holds_the_pipe_open(both):
    one, other = both
    one.send(Stop())
    other.end_receiving()
    assert other.receive(30) == Stop()
    with pytest.raises(EOFError):
        other.receive(30)


def test_a_pipe_that_ends_within_a_message_says_so(both):
    one, other = both
    os.write(one.connection.fileno(), b"\0\0\0\x09half")
    assert other.receive(0.1) is None
    one.close()
    with pytest.raises(IncompleteError, match="incomplete"):
        other.receive(30)


HALF = struct.pack("!I", 1000) + b'{"kind": "finis'


def begin_a_message_and_hang(trial):
    trial.begin()
    trial.write(HALF)
    trial.killed.wait(60)
    return 0


def begin_a_message_and_stop(trial):
    trial.begin()
    trial.write(HALF)
    trial.wait_for_stop()
    return trial.stop_here(5)


@pytest.mark.parametrize(
    ("script", "asked", "outcome", "error"),
    [
        (begin_a_message_and_hang, "kill", "interrupted", "killed on request"),
        (begin_a_message_and_stop, "drain", "failed", "an incomplete message"),
        (begin_a_message_and_hang, None, "failed", "time_limit=1"),
    ],
)
def test_half_a_message_keeps_no_trial_from_being_stopped(tmp_path, script, asked, outcome, error):
    with scripted_sweep(tmp_path, {0: script}, time_limit=None if asked else 1.0) as sweep:
        with sweep.serving():
            time.sleep(0.2)
            if asked is not None:
                sweep.context.request_stop(asked)
            began = time.monotonic()
        assert time.monotonic() - began < 5
        assert sweep.outcomes() == [outcome]
        assert error in sweep.attempt_error()
        assert sweep.error is None


@pytest.mark.parametrize("death", [-9, -11, 3])
def test_a_trial_that_dies_within_a_message_has_crashed_and_is_tried_again(tmp_path, death):
    """The negative control: a death in the middle of sending is no fault of the trial's code."""

    def die(trial):
        trial.write(HALF)
        return death

    with scripted_sweep(tmp_path, {(0, 1): die}) as sweep:
        sweep.serve()
        assert sweep.outcomes() == ["crashed", "complete"]


def framed(text):
    return struct.pack("!I", len(text)) + text


GARBAGE = {
    "text": b"a line that was printed to the wrong file\n",
    "an empty message": framed(b""),
    "no JSON": framed(b"hello"),
    "no kind": framed(b"{}"),
    "a field that is missing": framed(b'{"kind": "Started", "start_step": 0}'),
    "a field of another type": framed(
        b'{"kind": "Started", "start_step": 1.5, "start_epoch": 0, "steps_per_epoch": 1}'
    ),
    "a field too many": framed(b'{"kind": "StoppedHere", "step": 1, "now": true}'),
    "JSON too deep": framed(b"[" * 200_000),
    "another kind": framed(b'{"kind": "format_disk"}'),
    "a worker's message": framed(b'{"kind": "Stop"}'),
    "a negative step": framed(b'{"kind": "StepsReached", "epoch": 0, "step": -1}'),
    "a step of 70 bits": framed(b'{"kind": "StepsReached", "epoch": 0, "step": %d}' % (1 << 70)),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_fails_the_trial_that_sent_it_and_no_other(tmp_path, garbage):
    def babble(trial):
        trial.begin()
        trial.write(garbage)
        trial.killed.wait(30)
        return 0

    with scripted_sweep(tmp_path, {0: babble}, trials=2) as sweep:
        sweep.serve()
        assert sweep.error is None
        assert sweep.states == ["failed", "complete"]
        assert sweep.outcomes() == ["failed"]
        assert "GarbledError" in sweep.attempt_error()


def test_messages_in_pieces_arrive_whole_and_an_end_of_no_epochs_ends_nothing(tmp_path):
    def trickle(trial):
        epoch = {"epoch": 0, "metrics": {"loss": 1.0}}
        data = framed(json.dumps({"kind": "EpochsEnded", "epochs": [epoch], "step": 1}).encode())
        for start in range(0, len(data), 7):
            trial.write(data[start : start + 7])
            time.sleep(0.01)
        trial.say(EpochsEnded((), step=1, seconds=1.0))
        return finish(trial)

    with scripted_sweep(tmp_path, {0: trickle}) as sweep:
        sweep.serve()
        assert sweep.outcomes() == ["complete"]
        assert sweep.trials[0].epochs == (EpochRecord(0, {"loss": 1.0}),)
