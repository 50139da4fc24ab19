"""A sweep is the same sweep on any number of workers, and its total is exact."""

from dataclasses import replace

import pytest
from study_files import SHORT
from sweeps import differing, results_of, sweep, trials_in

from sweeper.errors import DefinitionError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs directory of the sweep on so many workers."""
    working_directory = tmp_path_factory.mktemp("workers")

    replace(
        SHORT, arguments='objective="val_loss", epochs=2, audit="off", trials=3, sampler="random"'
    ).write(working_directory / "random.py")

    def run(workers):
        directory = working_directory / f"random-{workers}"
        if not directory.exists():
            isolation = "inline" if workers == 1 else "auto"
            sweep(working_directory / "random.py", directory, workers=workers, isolation=isolation)
        return directory

    return run


def overlapping(trials):
    spans = [(a.started_at, a.ended_at) for t in trials for a in t.attempts]
    return sum(
        one[0] < other[1] and other[0] < one[1]
        for i, one in enumerate(spans)
        for other in spans[i + 1 :]
    )


# Trials that are drawn from what others gave are in test_pruned_sweeps.
def test_one_and_two_workers_side_by_side_give_the_same_sweep_digest_for_digest(runs):
    one, two = (trials_in(runs(workers)) for workers in (1, 2))
    assert len(one) == len(two) == 3
    assert differing(results_of(one), results_of(two)) == []
    assert len({t.digest for t in one}) == len(one), "different trials, different digests"
    assert all(t.digest for t in one)
    assert overlapping(one) == 0
    assert overlapping(two) > 0


def test_the_total_is_exact_over_all_runs_and_can_be_raised(runs, tmp_path):
    whole = trials_in(runs(2))
    file = runs(2).parent / "random.py"
    here = {"workers": 1, "isolation": "inline"}
    totals = [len(sweep(file, tmp_path, trials=1, **here).trials)]
    resumed = sweep(None, tmp_path, study="small", **here)
    totals.append(len(resumed.trials))
    totals.append(len(sweep(file, tmp_path, trials=3, **here).trials))
    assert totals == [1, 1, 3], "a resume goes on to the total that was asked for"
    assert any("--trials 3 raises it" in text for text in resumed.notices)
    assert differing(results_of(whole), results_of(trials_in(tmp_path))) == []
    assert [len(t.attempts) for t in trials_in(tmp_path)] == [1] * 3
    with pytest.raises(DefinitionError, match="3"):
        sweep(file, tmp_path, trials=2)


def test_more_workers_than_the_search_can_use_is_said(tmp_path):
    arguments = 'objective="loss", epochs=1, audit="off", trials=1, concurrency=2, sampler="tpe"'
    file = replace(SHORT, arguments=arguments).write(tmp_path / "tpe.py")
    swept = sweep(file, tmp_path, workers=5)
    expected = "concurrency is 2, so 2 of 5 workers are used"
    assert any(expected in text for text in swept.notices), swept.notices
