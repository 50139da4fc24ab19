"""When checkpoints are taken, which are kept, and how both are described."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.declarations.checkpointing import (
    Every,
    Keep,
    KeptCheckpoint,
    describe_every,
    parse_every,
)
from sweeper.errors import DefinitionError


def kept(step, loss=None, *, hours=0.0, epoch=None, good=True):
    return KeptCheckpoint(
        step=step,
        epoch=step if epoch is None else epoch,
        path=Path(f"step-{step:09d}"),
        metrics={} if loss is None else {"val_loss": loss},
        trained_seconds=hours * 3600,
        good=good,
    )


def remaining(keep, checkpoints):
    doomed = keep.select(checkpoints)
    return [c.step for c in checkpoints if c not in doomed]


def low_loss(metrics):
    return metrics["val_loss"] < 0.3


@pytest.mark.parametrize(
    "make",
    [
        Every,
        lambda: Every(steps=0),
        lambda: Every(steps=True),
        lambda: Every(seconds=-1),
        lambda: Every(seconds=math.nan),
        lambda: Every(epochs="1"),
        lambda: parse_every("hourly"),
        lambda: parse_every({"minutes": 3}),
        lambda: Keep(last=0),
        lambda: Keep(best=1),
        lambda: Keep(best=1, monitor="gap"),
        lambda: Keep(improving="gap"),
        lambda: Keep(best=1, monitor="loss", mode="auto"),
        lambda: Keep(monitor="loss", mode="min"),
        lambda: Keep(every_hours=0),
        lambda: Keep(at_most=0),
        lambda: Keep(when="val_loss < 1"),
        lambda: Keep(improving=""),
        lambda: Keep(mode="max"),
        lambda: Keep(newest=2),
    ],
)
def test_an_impossible_policy_is_refused_when_it_is_written(make):
    with pytest.raises(DefinitionError):
        make()


def stored(described):
    return json.loads(json.dumps(described))


@pytest.mark.parametrize(
    "every", [Every(steps=7), Every(seconds=0.5), Every(epochs=1), Every(steps=3, epochs=2), "auto"]
)
def test_an_interval_survives_the_database(every):
    assert parse_every(stored(describe_every(every))) == every


def test_a_policy_survives_the_database_and_a_predicate_is_described_by_its_name():
    for keep in (
        Keep(last=3, best=2, monitor="val_loss", mode="min", every_hours=1.5, at_most=9),
        Keep(last=1, improving="val_loss", mode="min", at_most=150),
    ):
        assert Keep(**stored(keep.describe())) == keep
    assert stored(Keep(when=low_loss).describe())["when"] == f"{__name__}.low_loss"


def test_whichever_interval_is_due_first_decides():
    every = Every(steps=10, seconds=60)
    position = {"epoch": 0, "last_epoch": 0, "last_step": 8}
    assert every.due(step=10, since=1, **position)
    assert every.due(step=9, since=60, **position)
    assert not every.due(step=9, since=59, **position)
    assert Every(epochs=2).due(step=9, last_step=0, epoch=2, last_epoch=1, since=0)
    assert not Every(epochs=2).due(step=9, last_step=0, epoch=3, last_epoch=2, since=0)
    assert [every.next_step(s) for s in (0, 9, 10)] == [10, 10, 20]
    assert Every(seconds=1).next_step(3) is None


def test_each_rule_keeps_what_it_promises():
    losses = [0.5, 0.1, 0.4, 0.1, math.nan, 0.9]
    checkpoints = [kept(i, loss, hours=i * 0.5) for i, loss in enumerate(losses)]
    assert remaining(Keep(last=2), checkpoints) == [4, 5]
    assert remaining(Keep(last=1, best=1, monitor="val_loss", mode="min"), checkpoints) == [1, 5]
    assert remaining(Keep(last=1, best=2, monitor="val_loss", mode="max"), checkpoints) == [0, 5]
    assert remaining(Keep(last=1, every_hours=1), checkpoints) == [2, 4, 5]
    assert remaining(Keep(last=1, every_epochs=2), checkpoints) == [2, 4, 5]
    assert remaining(Keep(last=1, when=low_loss), checkpoints) == [1, 3, 5]
    # One in the middle of an epoch does not stand for it.
    checkpoints = [kept(10, epoch=2), kept(13, epoch=2), kept(16, epoch=3)]
    assert remaining(Keep(last=1, every_epochs=2), checkpoints) == [10, 16]
    # Of a step taken again, the later one counts.
    doomed = Keep(last=2).select([kept(0), kept(1), kept(2, 0.9), kept(2, 0.1)])
    assert doomed == {kept(0), kept(2, 0.9)}


def test_at_most_gives_up_the_oldest_first_and_the_best_and_newest_last():
    checkpoints = [kept(i, loss) for i, loss in enumerate([0.1, 0.5, 0.4, 0.3, 0.9])]
    rules = {"last": 3, "best": 1, "monitor": "val_loss", "mode": "min"}
    assert remaining(Keep(**rules), checkpoints) == [0, 2, 3, 4]
    assert remaining(Keep(**rules, at_most=3), checkpoints) == [0, 3, 4]
    assert remaining(Keep(**rules, at_most=2), checkpoints) == [0, 4]
    assert remaining(Keep(**rules, at_most=1), checkpoints) == [4]


def test_a_predicate_that_fails_is_named_and_one_without_metrics_is_not_asked():
    assert remaining(Keep(last=1, when=low_loss), [kept(1), kept(2, 0.1), kept(3)]) == [2, 3]
    with pytest.raises(DefinitionError, match=r"low_loss.*KeyError.*accuracy"):
        Keep(when=low_loss).select(
            [KeptCheckpoint(1, 1, Path("step-000000001"), metrics={"accuracy": 1.0})]
        )


checkpoints_strategy = st.lists(
    st.builds(
        kept,
        st.integers(0, 50),
        st.none() | st.floats(allow_nan=True),
        hours=st.floats(0, 100),
        good=st.booleans(),
    ),
    max_size=12,
)
keeps = st.builds(
    Keep,
    last=st.integers(1, 3),
    every_hours=st.none() | st.floats(0.1, 10),
    every_epochs=st.none() | st.integers(1, 4),
    at_most=st.none() | st.integers(1, 4),
) | st.builds(
    Keep,
    last=st.integers(1, 3),
    best=st.integers(1, 3),
    monitor=st.just("val_loss"),
    mode=st.sampled_from(["min", "max"]),
    at_most=st.none() | st.integers(1, 4),
)


def spares_newest_and_good(select, checkpoints):
    doomed = select(checkpoints)
    good = [c for c in checkpoints if c.good]
    newest = sorted(checkpoints, key=lambda c: c.step)[-1:]
    newest_good = sorted(good, key=lambda c: c.step)[-1:]
    return doomed.isdisjoint(newest + newest_good) and doomed <= set(good)


@given(keeps, checkpoints_strategy)
def test_neither_the_newest_nor_the_only_good_one_is_ever_selected(keep, checkpoints):
    assert spares_newest_and_good(keep.select, checkpoints)


def test_control_a_policy_that_keeps_only_the_best_is_caught():
    checkpoints = [kept(1, 0.1), kept(2, 0.9)]

    def best_alone(candidates):
        return frozenset(candidates) - {min(candidates, key=lambda c: c.metrics["val_loss"])}

    assert not spares_newest_and_good(best_alone, checkpoints)


@given(keeps, checkpoints_strategy)
def test_selecting_again_from_what_is_left_selects_nothing(keep, checkpoints):
    rest = [c for c in checkpoints if c not in keep.select(checkpoints)]
    assert keep.select(rest) == frozenset()


def history_of(*pairs):
    return [{"loss": loss, "val_loss": validation} for loss, validation in pairs]


def overfits(metrics):
    return metrics["val_loss"] > metrics["loss"]


def test_of_improving_checkpoints_the_newest_stay():
    history = history_of(*((0.0, 500.0 - i) for i in range(50)))
    keep = Keep(last=1, improving="val_loss", when=overfits, at_most=30)
    present = []
    for epoch, metrics in enumerate(history, 1):
        present.append(KeptCheckpoint(epoch, epoch, Path(f"{epoch}"), metrics=metrics))
        present = [c for c in present if c not in keep.select(present, history[:epoch])]
    assert [c.epoch for c in present] == list(range(21, 51))


def test_what_improves_may_be_the_larger_and_a_nan_improves_nothing():
    values = [0.5, math.nan, 0.4, 0.6, 0.6, 0.7]
    keep = Keep(improving="accuracy", mode="max")
    history = [{"accuracy": value} for value in values]
    assert keep.improvements(history) == {1, 4, 6}
    assert keep.improvements([{"other": 1.0}]) == frozenset()
    assert Keep(improving="accuracy").improvements(history) == {1, 4, 6}, "by its name"
    assert Keep(improving="accuracy", mode="min").improvements(history) == {1, 3}
    with pytest.raises(DefinitionError, match=r"raised KeyError: 'val_loss' .* of epoch 1"):
        Keep(improving="loss", when=overfits).improvements([{"loss": 1.0}])
