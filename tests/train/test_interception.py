"""What is replaced in the libraries is put back, and what a version does not have is named."""

import numpy as np
import pytest

from sweeper.train.randomness import interception
from sweeper.train.randomness.hidden_state import HiddenState
from sweeper.train.randomness.interception import Interception, Replaceable


def table():
    values = [
        each
        for found in vars(interception).values()
        for each in (found.values() if isinstance(found, dict) else np.atleast_1d(found))
    ]
    found = [each for each in values if isinstance(each, Replaceable)]
    return {f"{each.owner.__name__}.{each.name}": each for each in found}


def current():
    return {name: each.current for name, each in table().items()}


def test_everything_in_the_table_is_replaced_and_put_back():
    before = current()
    hidden = HiddenState(np.random.SeedSequence(1))
    with hidden:
        outer = current()
        assert [name for name in before if outer[name] is before[name]] == []
        with hidden:
            pass
        assert current() == outer
    assert current() == before


def test_it_is_put_back_after_an_error():
    before = current()
    with pytest.raises(KeyError), HiddenState(np.random.SeedSequence(1)):
        raise KeyError
    assert current() == before


def test_the_last_of_two_replacements_of_one_function_counts_and_both_end():
    each = table()["os.urandom"]
    before = each.current
    with Interception(lambda: [(each, len), (each, max)]):
        assert each.current is max
    assert each.current is before


def test_a_function_that_a_version_does_not_have_is_named():
    with pytest.raises(ImportError, match=r"random has no gone, .* to see; `sweeper doctor`"):
        Replaceable(table()["random.seed"].owner, "gone", "to see")
