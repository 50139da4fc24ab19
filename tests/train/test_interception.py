"""What is replaced in the libraries is put back, and what a version does not have is named."""

import numpy as np
import pytest

from sweeper.train.randomness import interception
from sweeper.train.randomness.hidden_state import HiddenState
from sweeper.train.randomness.interception import Interception, Replaceable


def table():
    values = [
        entry
        for value in vars(interception).values()
        for entry in (value.values() if isinstance(value, dict) else np.atleast_1d(value))
    ]
    replaceables = [entry for entry in values if isinstance(entry, Replaceable)]
    return {f"{entry.owner.__name__}.{entry.name}": entry for entry in replaceables}


def current():
    return {name: entry.current for name, entry in table().items()}


def test_everything_in_the_table_is_replaced_and_put_back():
    originals = current()
    hidden = HiddenState(np.random.SeedSequence(1))
    with hidden:
        outer = current()
        assert [name for name in originals if outer[name] is originals[name]] == []
        with hidden:
            pass
        assert current() == outer
    assert current() == originals


def test_it_is_put_back_after_an_error():
    originals = current()
    with pytest.raises(KeyError), HiddenState(np.random.SeedSequence(1)):
        raise KeyError
    assert current() == originals


def test_the_last_of_two_replacements_of_one_function_counts_and_both_end():
    entry = table()["os.urandom"]
    original = entry.current
    with Interception(lambda: [(entry, len), (entry, max)]):
        assert entry.current is max
    assert entry.current is original


def test_a_function_that_a_version_does_not_have_is_named():
    with pytest.raises(ImportError, match=r"random has no gone, .* to see; `sweeper doctor`"):
        Replaceable(table()["random.seed"].owner, "gone", "to see")
