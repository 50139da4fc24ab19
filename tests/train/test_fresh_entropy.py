"""Generators without a seed begin from the trial's, and a resumed trial's go on where they were."""

import copy
import os
import random
import secrets
import tempfile
import threading
import uuid

import numpy as np
import pytest
from trainings import SEEDS, plan, small_data

from sweeper import Data
from sweeper.errors import UncapturableError
from sweeper.train.randomness.fresh_entropy import FreshEntropy, system_entropy
from sweeper.train.randomness.seeds import TrialSeeds

UNSEEDED = {
    "default_rng": lambda: np.random.default_rng().random(),
    "SeedSequence": lambda: np.random.SeedSequence().generate_state(1)[0] / 2**32,
    "RandomState": lambda: np.random.RandomState().random_sample(),
    "PCG64": lambda: np.random.Generator(np.random.PCG64()).random(),
    "np.random.seed": lambda: np.random.seed() or np.random.random_sample(),
    "random.Random": lambda: random.Random().random(),
    "random.seed": lambda: random.seed() or random.random(),
}


def test_an_unseeded_split_in_a_factory_is_the_same_in_every_build():
    one, other = (plan(data=unseeded_split).data.train[1] for _ in range(2))
    assert one.tobytes() == other.tobytes()


def unseeded_split():
    x, y = small_data().train
    order = np.random.default_rng().permutation(len(y))
    return Data(train=(x[order], y[order]), batch_size=16)


def test_without_the_stream_two_builds_split_differently():
    """Negative control."""
    with system_entropy():
        one, other = (unseeded_split().train[1] for _ in range(2))
    assert one.tobytes() != other.tobytes()


def test_each_trial_and_each_purpose_has_a_seed_of_its_own():
    uses = ("model", "data", "callbacks", "order", "training")
    seeds = [TrialSeeds(s, n).child(use) for s in (0, 7) for n in range(20) for use in uses]
    assert len(set(seeds)) == len(seeds)


def test_factories_and_trials_have_streams_of_their_own():
    drawn = set()
    for sequence, use in (
        (SEEDS.sequence("model"), "model"),
        (SEEDS.sequence("data"), "data"),
        (SEEDS.sequence("data"), "training"),
        (np.random.SeedSequence([7, 4]), "data"),
    ):
        with FreshEntropy(sequence, use):
            drawn |= {np.random.default_rng().integers(1 << 60), random.Random().getrandbits(60)}
    assert len(drawn) == 8


def test_copies_and_what_is_none_of_the_trials_move_no_stream():
    with FreshEntropy(SEEDS.sequence("model"), "model") as stream:
        numpys = np.random.default_rng(1)
        pythons = random.Random(1)
        copy.deepcopy((numpys, pythons))
        with system_entropy():
            np.random.default_rng()
        assert stream.drawn == 0
        np.random.default_rng()
        assert stream.drawn == 1


def test_a_generator_made_in_another_thread_is_refused_with_its_line():
    stream = FreshEntropy(SEEDS.sequence("model"), "model")
    with stream:
        thread = threading.Thread(target=unseeded_split)
        thread.start()
        thread.join()
        with pytest.raises(
            UncapturableError,
            match=r"^test_fresh_entropy.py:\d+: a random generator without a seed",
        ):
            stream.capture({})


@pytest.mark.parametrize(
    "ask", [lambda: os.urandom(4), uuid.uuid4, secrets.randbits], ids=["os", "uuid", "secrets"]
)
def test_the_users_line_that_takes_the_systems_random_numbers_is_told_once(ask):
    told = []
    with FreshEntropy(SEEDS.sequence("model"), "model", told.append):
        np.random.default_rng()
        with tempfile.TemporaryDirectory():
            assert told == [], (
                "the control: neither a library nor the trial's own stream is told of"
            )
        drawn = [ask(8) if ask is secrets.randbits else ask() for _ in range(2)]
    assert len(told) == 1
    assert told[0].startswith(f"{__file__}:")
    assert "from the operating system" in told[0]
    assert len(drawn) == 2


def test_a_line_of_another_thread_is_told_by_the_trainings_at_the_next_checkpoint():
    told = []
    stream = FreshEntropy(
        SEEDS.sequence("model"), "model", lambda _said: told.append(threading.get_ident())
    )
    with stream:
        thread = threading.Thread(target=lambda: os.urandom(1))
        thread.start()
        thread.join()
        assert told == []
        stream.capture({})
    assert told == [threading.get_ident()]
