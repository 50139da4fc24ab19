"""The corpus: what must be refused is, by the whole message, and nothing else is.

A refusal's message, and the warnings of a study that passes, stand in a ``.txt`` beside the file. Every
file is judged for two trials inline, and for one trial in a process of its own.
"""

import pytest
from corpus import ALLOWED, INLINE, REFUSED, UNDONE, Verdict, expected, judge, refused_in_a_process

OLDER = "sweeper.guard.guard.AgeBoundary.older"

pytestmark = pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")


def name(file):
    return file.stem


@pytest.mark.parametrize("file", [*REFUSED, *INLINE], ids=name)
def test_a_pitfall_is_refused_inline_with_both_ends_named(file, tmp_path):
    assert judge(file, tmp_path).described() == expected(file)


@pytest.mark.parametrize("file", [*ALLOWED, *UNDONE], ids=name)
def test_a_sound_study_is_not_refused(file, tmp_path):
    assert judge(file, tmp_path).described() == expected(file)


@pytest.mark.parametrize("file", [*REFUSED, *INLINE], ids=name)
def test_in_a_process_of_its_own_what_is_not_fresh_is_refused_and_all_else_is_the_trials(
    file, tmp_path
):
    verdict = judge(file, tmp_path, inline=False)
    assert (verdict.refusal, verdict.warnings) == (refused_in_a_process(file), [])


def test_a_guard_that_takes_everything_to_be_new_refuses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(OLDER, lambda self, things: set())
    shared = next(file for file in REFUSED if file.stem == "shared_layer")
    assert judge(shared, tmp_path) == Verdict()


def test_a_guard_that_takes_everything_to_be_old_refuses_what_is_sound(tmp_path, monkeypatch):
    monkeypatch.setattr(OLDER, lambda self, things: {id(t) for t in things})
    sound = next(file for file in ALLOWED if file.stem == "everything_inside")
    assert judge(sound, tmp_path).refusal == (
        "model 'sequential' is the model of this trial and an object that existed before "
        "build_model was called; build it inside build_model"
    )
