"""The early check of a run: what it refuses, what it warns of, and that neither depends on luck."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from corpus import ALLOWED, INLINE, PITFALLS, REFUSED, refused_in_a_process, rehearsed_by_default
from rehearsals import PLAIN, UNVALIDATED, rehearsed
from study_files import StudyText
from sweeps import Swept, sweep, trials_in

from sweeper.errors import IndependenceError, Interrupted
from sweeper.records.events import Notice
from sweeper.replay.reports import Finding, RehearsalReport
from sweeper.run import early_check

REPEATED = {"training_step_made_once", "thread_local"}
"""Checked early on request only: by default `test_check_rehearsal` builds them, and here their like,
which is refused to the first trial or made by it, is checked."""

ONE_EPOCH = 'objective="loss", epochs=1, trials=2, sampler="random", audit="off"'


def checked_by_default(files: list[Path]) -> list[Any]:
    """As `rehearsed_by_default`, and those of `REPEATED` by request, too."""
    marks = pytest.mark.whole
    return [
        pytest.param(f, marks=marks) if isinstance(f, Path) and f.stem in REPEATED else f
        for f in rehearsed_by_default(files)
    ]


def of_sharing(report: RehearsalReport) -> list[Finding]:
    return [f for f in report.findings if f.level == "error"]


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize(
    "file", checked_by_default([*REFUSED, *INLINE]), ids=lambda file: file.stem
)
def test_what_a_process_of_its_own_makes_the_trials_is_no_finding_and_all_else_an_error(
    file: Path, tmp_path: Path
) -> None:
    message = refused_in_a_process(file)
    found = of_sharing(rehearsed(file, tmp_path, "build"))
    assert [(f.level, f.check, f.message) for f in found] == (
        [("error", "independence", message)] if message else []
    )
    assert all(f.line is not None for f in found)


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize("file", checked_by_default(ALLOWED), ids=lambda file: file.stem)
def test_a_sound_study_is_neither_refused_nor_warned_of(file: Path, tmp_path: Path) -> None:
    assert of_sharing(rehearsed(file, tmp_path, "build")) == []


SLOW = StudyText(
    name="slow",
    head="""
    import time

    LOG = keras.callbacks.History()

    def slow_data(trial):
        time.sleep(0.4)
        return load_data(trial)
    """,
    model=PLAIN,
    callbacks="LOG",
    arguments=ONE_EPOCH,
    tail="study.data = slow_data",
)


def test_a_refusal_is_waited_for_however_long_two_trials_take_to_build(
    tmp_path: Path,
) -> None:
    file = SLOW.write(tmp_path / "slow.py")
    with pytest.raises(IndependenceError, match=r"module attribute slow\.LOG") as raised:
        sweep(file, tmp_path / "runs", workers=2)
    assert str(raised.value).endswith("no trial was run, because each would be refused")
    assert trials_in(tmp_path / "runs", "slow") == ()


def test_without_the_wait_the_same_study_fails_trial_by_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_check.EarlyCheck, "wait", lambda self: None)
    file = SLOW.write(tmp_path / "slow.py")
    states = [trial.state for trial in sweep(file, tmp_path / "runs", workers=2).trials]
    assert states == ["failed", "failed"]


def test_a_second_trial_that_would_be_refused_is_reported_by_its_number(tmp_path: Path) -> None:
    text = StudyText(
        name="other",
        head="LOG = keras.callbacks.History()",
        model=PLAIN,
        callbacks="*([LOG] if trial.number else [])",
        arguments=ONE_EPOCH,
    )
    with pytest.raises(
        IndependenceError, match="no trial was run, because trial 1 would be refused"
    ):
        sweep(text.write(tmp_path / "other.py"), tmp_path / "runs")


def test_a_factory_that_fails_for_the_first_trial_alone_ends_no_run(tmp_path: Path) -> None:
    text = StudyText(
        name="first",
        model=f"if trial.number == 0: raise KeyError('first')\n{PLAIN}",
        data=UNVALIDATED,
        arguments=ONE_EPOCH,
    )
    swept = sweep(text.write(tmp_path / "first.py"), tmp_path / "runs")
    assert [trial.state for trial in swept.trials] == ["failed", "complete"]
    assert warned_early(swept) == [], "what is sound is not warned of"


def warned_early(swept: Swept) -> list[str]:
    """What a run says of its study, beside how its processes start and what it waits for."""
    notices = [event.message for event in swept.events if isinstance(event, Notice)]
    of_processes = ("every trial ", "the first trial waits", "a worker waits", "a trial waits")
    return [message for message in notices if not message.startswith(of_processes)]


@pytest.mark.parametrize("directory", ["refused/memoized", "inline/loss_tracker"])
def test_what_its_processes_keep_apart_runs_without_a_word(directory: str, tmp_path: Path) -> None:
    kept = PITFALLS / f"{directory}.py"
    file = tmp_path / kept.name
    file.write_text(kept.read_text().replace('optimizer="adam"', 'optimizer="sgd"'))
    around = PITFALLS.with_name("small_study.py").read_text()
    (tmp_path / "small_study.py").write_text(around.replace("trials=2,", 'trials=2, audit="off",'))
    swept = sweep(file, tmp_path / "runs", trials=2)
    assert [trial.state for trial in swept.trials] == ["complete"] * 2
    assert warned_early(swept) == []


SPLIT = StudyText(
    name="split",
    model=PLAIN,
    data="""
    held_out = {how}
    return Data(train=(x, y), validation=(x[held_out], y[held_out]), batch_size=8)
    """,
    arguments='objective="val_loss", epochs=1, trials=2, sampler="random", audit="off"',
)
VALIDATED = {
    "np.random.permutation(len(x))[:40]": True,
    "np.random.default_rng(trial.seed).permutation(len(x))[:40]": True,
    "np.random.default_rng(0).permutation(len(x))[:40]": False,
    # Another order of the same samples.
    "np.random.permutation(40)": False,
    # A parameter asks for it.
    "slice(int(trial.suggest_float('from', 0, 100)), 120)": False,
}


@pytest.mark.parametrize("how", VALIDATED)
def test_trials_that_are_validated_on_other_samples_are_warned_of_once(
    how: str, tmp_path: Path
) -> None:
    text = replace(SPLIT, data=SPLIT.data.format(how=how))
    file = text.write(tmp_path / "split.py")
    swept = sweep(file, tmp_path / "runs")
    assert [trial.state for trial in swept.trials] == ["complete"] * 2
    warned = warned_early(swept)
    assert len(warned) == VALIDATED[how]
    if warned:
        line = 1 + file.read_text().splitlines().index("def load_data(trial):")
        assert warned[0].startswith(
            f"{file}:{line}: trials are validated on different samples, so their values cannot be "
            "compared: load_data returned different validation data for two trials with equal "
            "parameters; draw the split from a seed that does not depend on the trial"
        )


def test_the_rest_of_the_check_is_not_waited_for_once_the_study_is_asked_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hanging(self: early_check.EarlyCheck, *_: object) -> None:
        self._stopping.wait(30)
        raise Interrupted("ended")

    asked: list[str] = []
    repository = SimpleNamespace(stop_requested=lambda _name: asked[0] if asked else None)
    prepared: Any = SimpleNamespace(repository=repository, settings=SimpleNamespace(name="study"))
    launcher: Any = object()
    monkeypatch.setattr(early_check.EarlyCheck, "_rehearse", hanging)
    monkeypatch.setattr(early_check, "_LOOK_SECONDS", 0.1)
    check = early_check.EarlyCheck(prepared, launcher, lambda _event: None)
    finishing = threading.Thread(target=check.finish, daemon=True)
    finishing.start()
    finishing.join(0.3)
    assert finishing.is_alive(), "the control: nobody asked yet"
    asked.append("drain")
    finishing.join(10)
    assert not finishing.is_alive()
