"""The corpus: what must be refused is, by the whole message, and nothing else is.

A refusal's message, and the warnings of a study that passes, stand in a ``.txt`` beside the file. Every
file is judged for two trials inline, and for one trial in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from corpus import ALLOWED, INLINE, REFUSED, Verdict, expected, judge, refused_in_a_process

from sweeper.independence.ownership import object_age


@dataclass
class Counts:
    refused: dict[str, bool] = field(default_factory=dict)
    allowed: dict[str, bool] = field(default_factory=dict)

    def described(self) -> str:
        found = sum(self.refused.values())
        wrong = sum(self.allowed.values())
        return (
            f"precision {found / max(1, found + wrong):.2f}, "
            f"recall {found / max(1, len(self.refused)):.2f} "
            f"({found} of {len(self.refused)} pitfalls refused, "
            f"{wrong} of {len(self.allowed)} sound studies)"
        )


@pytest.fixture(scope="module")
def counts(request: pytest.FixtureRequest) -> Iterator[Counts]:
    counted = Counts()
    yield counted
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nthe guard on the corpus: {counted.described()}", file=sys.stderr)


def name(file: Path) -> str:
    return file.stem


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(REFUSED) >= 25
    assert len(ALLOWED) >= 15


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize("file", [*REFUSED, *INLINE], ids=name)
def test_a_pitfall_is_refused_inline_with_both_ends_named(
    file: Path, tmp_path: Path, counts: Counts
) -> None:
    verdict = judge(file, tmp_path)
    counts.refused[file.stem] = bool(verdict.refusal)
    assert verdict.described() == expected(file)


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize("file", ALLOWED, ids=name)
def test_a_sound_study_is_not_refused(file: Path, tmp_path: Path, counts: Counts) -> None:
    verdict = judge(file, tmp_path)
    counts.allowed[file.stem] = bool(verdict.refusal)
    assert verdict.described() == expected(file)


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize("file", [*REFUSED, *INLINE], ids=name)
def test_in_a_process_of_its_own_what_is_not_fresh_is_refused_and_all_else_is_the_trials(
    file: Path, tmp_path: Path
) -> None:
    verdict = judge(file, tmp_path, inline=False)
    assert (verdict.refusal, verdict.warnings) == (refused_in_a_process(file), [])


def test_what_a_process_refuses_and_what_only_inline_does_are_counted() -> None:
    refused = sum(bool(refused_in_a_process(file)) for file in REFUSED)
    assert (refused, len(REFUSED), len(INLINE)) == (29, 45, 15)


def test_a_guard_that_takes_everything_to_be_new_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_age.AgeLine, "older", lambda self, things: set())
    shared = next(file for file in REFUSED if file.stem == "shared_layer")
    assert judge(shared, tmp_path) == Verdict()


def test_a_guard_that_takes_everything_to_be_old_refuses_what_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_age.AgeLine, "older", lambda self, things: {id(t) for t in things})
    sound = next(file for file in ALLOWED if file.stem == "everything_inside")
    assert judge(sound, tmp_path).refusal == (
        "model 'sequential' is the model of this trial and something that was there before "
        "build_model was called; build it inside build_model"
    )
