"""What one end of the pipe sends, the other receives: every message, and nothing else."""

from __future__ import annotations

import json
import math
import os
import threading
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.errors import ExecutionError
from sweeper.records.results import EpochRecord
from sweeper.replay.reports import Lengths, Line, StudyAuthors
from sweeper.run.protocol.channel import Channel, IncompleteError
from sweeper.run.protocol.messages import (
    Assignment,
    Candidate,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointEvaluated,
    CheckpointPassedOver,
    EpochsEnded,
    Evaluated,
    Evaluation,
    ExportOrder,
    Failed,
    FilesUsed,
    Finished,
    HeldOutData,
    Judge,
    Judged,
    Message,
    ModelExported,
    PausedHere,
    Preparing,
    PrunedHere,
    Replay,
    ReplayBuilt,
    Started,
    StepsReached,
    Stop,
    StoppedHere,
    StudySource,
    Suggest,
    Suggested,
    Surroundings,
    Warned,
)
from sweeper.spec.space import Categorical, FloatRange, IntRange

words = st.text(st.characters(exclude_categories=("Cs",)))
counts = st.integers(0, 2**62)
numbers = st.floats(allow_nan=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
choices = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | numbers | words
float_ranges = st.tuples(finite, finite).map(lambda two: FloatRange(min(two), max(two)))
int_ranges = st.tuples(counts, counts).map(lambda two: IntRange(min(two), max(two)))
categoricals = st.lists(choices, min_size=1).map(lambda found: Categorical(tuple(found)))
epochs = st.builds(EpochRecord, counts, st.dictionaries(words, numbers))
sources = st.builds(
    StudySource,
    st.sampled_from(["target", "pickled"]),
    words,
    st.none() | words,
    st.none() | words,
    st.lists(words).map(tuple),
)
replays = st.builds(
    Replay,
    st.none() | st.lists(st.tuples(counts, counts)).map(tuple),
    st.none() | counts,
    st.none() | counts,
    st.booleans(),
    st.booleans(),
)
lengths = st.builds(Lengths, st.none() | counts, counts, st.none() | counts, st.none() | counts)

candidates = st.builds(Candidate, words, counts, counts, words)
evaluations = st.builds(
    Evaluation,
    st.lists(candidates).map(tuple),
    st.builds(HeldOutData, st.none() | words, st.none() | words, st.lists(words).map(tuple)),
)

MESSAGES = {
    Assignment: st.builds(
        Assignment,
        study=words,
        number=counts,
        attempt=counts,
        seed=counts,
        epochs=counts,
        objective=words,
        deterministic=st.booleans(),
        threads=counts,
        checkpoint_every=words | st.dictionaries(words, counts),
        files=words,
        log=words,
        checkpoints=st.lists(words).map(tuple),
        devices=st.none() | words,
        source=st.none() | sources,
        replay=st.none() | replays,
        export=st.none()
        | st.builds(
            ExportOrder,
            words,
            words,
            words,
            st.lists(words).map(tuple),
            st.dictionaries(words, words),
            st.booleans(),
            words,
        ),
        evaluation=st.none() | evaluations,
        rungs=st.lists(counts).map(tuple),
        pause_after=st.none() | counts,
    ),
    Suggest: st.builds(Suggest, words, float_ranges | int_ranges | categoricals),
    Suggested: st.builds(Suggested, choices, st.none() | words),
    Stop: st.just(Stop()),
    Preparing: st.builds(Preparing, words),
    Started: st.builds(Started, counts, counts, counts),
    Surroundings: st.builds(Surroundings, st.dictionaries(words, words | st.lists(words))),
    FilesUsed: st.builds(FilesUsed, st.dictionaries(words, words | st.lists(words)), st.booleans()),
    StepsReached: st.builds(StepsReached, counts, counts),
    EpochsEnded: st.builds(
        EpochsEnded, st.lists(epochs).map(tuple), counts, st.none() | st.floats(0, 1e9)
    ),
    CheckpointCommitted: st.builds(CheckpointCommitted, counts, counts, words, counts, words),
    CheckpointDeleted: st.builds(CheckpointDeleted, words),
    Warned: st.builds(Warned, words),
    Finished: st.builds(Finished, counts, numbers, words, st.lists(numbers).map(tuple)),
    Judge: st.builds(Judge, st.lists(st.tuples(counts, numbers)).map(tuple)),
    Judged: st.builds(Judged, st.booleans(), st.none() | words),
    PausedHere: st.builds(PausedHere, counts, counts, numbers, words),
    PrunedHere: st.builds(PrunedHere, counts, counts, numbers, words),
    ReplayBuilt: st.builds(ReplayBuilt, st.from_type(StudyAuthors), words, st.none() | lengths),
    StoppedHere: st.builds(StoppedHere, counts),
    CheckpointEvaluated: st.builds(
        CheckpointEvaluated, candidates, words, words, st.dictionaries(words, numbers)
    ),
    CheckpointPassedOver: st.builds(CheckpointPassedOver, candidates, words),
    Evaluated: st.builds(Evaluated, st.none() | words, words),
    ModelExported: st.builds(ModelExported, st.dictionaries(words, words | st.lists(words))),
    Failed: st.builds(
        Failed,
        words,
        words,
        st.booleans(),
        st.sampled_from(["trial", "memory", "environment"]),
        st.none() | st.builds(Line, words, counts),
    ),
}


def pair() -> tuple[Channel, Channel]:
    ours, theirs = Channel.pair()
    return ours, Channel.on(theirs.detach())


def carried(message: Message) -> Message | None:
    one, other = pair()

    def send() -> None:
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


def test_every_kind_of_message_is_tried() -> None:
    assert set(MESSAGES) == set(get_args(Message))


@pytest.mark.parametrize("examples", [25, pytest.param(100, marks=pytest.mark.whole)])
@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_arrives_as_it_was_sent(kind: type[Message], examples: int) -> None:
    @settings(max_examples=examples)
    @given(MESSAGES[kind])
    def arrives(message: Message) -> None:
        received = carried(message)
        assert received == message
        # 1 and 1.0 and True are equal, and as parameters they are not the same. A replay has none,
        # and sets, which print in any order.
        assert kind is ReplayBuilt or repr(received) == repr(message)

    arrives()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_arrives(value: float) -> None:
    received = carried(EpochsEnded((EpochRecord(0, {"loss": value}),), step=1))
    assert isinstance(received, EpochsEnded)
    assert repr(received.epochs[0].metrics["loss"]) == repr(value)


def test_text_that_is_not_utf8_arrives() -> None:
    warned = Warned(os.fsdecode(b"log-\xe9.csv"))
    assert carried(warned) == warned


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"hello",
        b"{}",
        json.dumps({"kind": "format_disk"}).encode(),
        json.dumps({"kind": "stop", "now": True}).encode(),
        json.dumps({"kind": "started", "start_step": 0}).encode(),
        json.dumps({"kind": "started", "start_step": 1.5, "steps_per_epoch": 1}).encode(),
    ],
)
def test_what_is_no_message_is_refused_and_shown(sent: bytes) -> None:
    one, other = pair()
    one.connection.send_bytes(sent)
    with pytest.raises(ExecutionError, match="is not a message") as refusal:
        other.receive(30)
    assert repr(sent) in str(refusal.value)
    one.close()
    other.close()


def test_nothing_within_the_time_is_none_and_a_closed_end_is_the_end() -> None:
    one, other = pair()
    assert other.receive(0) is None
    one.send(Stop())
    one.close()
    assert other.receive(30) == Stop(), "what was sent before the end still arrives"
    with pytest.raises(EOFError):
        other.receive(30)
    with pytest.raises(OSError):
        other.send(Stop())
    other.close()


def test_threads_that_send_at_once_mix_no_messages() -> None:
    one, other = pair()
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
    one.close()
    other.close()


def test_what_was_sent_arrives_although_another_process_still_holds_the_pipe_open() -> None:
    one, other = pair()
    one.send(Stop())
    other.end_receiving()
    assert other.receive(30) == Stop()
    with pytest.raises(EOFError):
        other.receive(30)
    other.close()
    one.close()


def test_a_pipe_that_ends_within_a_message_says_so() -> None:
    one, other = pair()
    os.write(one.connection.fileno(), b"\0\0\0\x09half")
    assert other.receive(0.1) is None
    one.close()
    with pytest.raises(IncompleteError, match="incomplete"):
        other.receive(30)
    other.close()
