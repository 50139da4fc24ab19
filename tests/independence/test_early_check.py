"""The early check of a run: what it refuses, what it warns of, and that neither depends on luck."""

from __future__ import annotations

import gc
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from corpus import ALLOWED, PITFALLS, REFUSED, expected, rehearsed_by_default
from rehearsals import PLAIN, UNVALIDATED, rehearsed
from study_files import StudyText
from sweeps import Swept, command, sweep, trials_in

from sweeper.errors import IndependenceError, Interrupted
from sweeper.events import Notice
from sweeper.execution import early_check
from sweeper.independence.findings import Finding
from sweeper.independence.guard import Earlier
from sweeper.independence.ownership.object_age import Inventory
from sweeper.independence.reports import RehearsalReport
from sweeper.preflight.judging import judge_second

REPEATED = {"training_step_made_once", "same_layers_in_a_clone", "thread_local"}
"""Checked early on request only: by default `test_check_rehearsal` builds them, and here their like,
which is refused to the first trial or made by it, is checked."""

ONE_EPOCH = 'objective="loss", epochs=1, trials=2, sampler="random", audit="off"'
APART = "trials that are built in one process share something: "


def checked_by_default(files: list[Path]) -> list[Any]:
    """As `rehearsed_by_default`, and those of `REPEATED` by request, too."""
    marks = pytest.mark.whole
    return [
        pytest.param(f, marks=marks) if isinstance(f, Path) and f.stem in REPEATED else f
        for f in rehearsed_by_default(files)
    ]


def of_sharing(report: RehearsalReport) -> list[Finding]:
    found = report.findings
    return [f for f in found if f.check == "isolation" or f.level == "error"]


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize("file", checked_by_default(REFUSED), ids=lambda file: file.stem)
def test_what_a_process_of_its_own_makes_harmless_is_a_warning_and_all_else_an_error(
    file: Path, tmp_path: Path
) -> None:
    trial, _, message = expected(file).strip().partition(": ")
    first, *_ = found = of_sharing(rehearsed(file, tmp_path, "early"))
    assert first.line is not None
    if trial == "trial 0":
        assert [(f.level, f.check, f.message) for f in found] == [
            ("error", "independence", message)
        ]
        return
    shared, _, advice = message.rpartition("; ")
    shared = shared.replace("of this trial", "of a second trial").replace(
        "of trial 0", "of the first"
    )
    assert {(f.level, f.check) for f in found} == {("warning", "isolation")}
    assert first.message.startswith(
        f"{APART}{shared}. In this run every trial has a process of its own"
    )
    assert first.message.endswith(f"they would share it: {advice}")


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize("file", checked_by_default(ALLOWED), ids=lambda file: file.stem)
def test_a_sound_study_is_neither_refused_nor_warned_of(file: Path, tmp_path: Path) -> None:
    assert of_sharing(rehearsed(file, tmp_path, "early")) == []


def test_a_rehearsal_lets_go_of_what_was_there_before_it(tmp_path: Path) -> None:
    rehearsed(PITFALLS / "allowed" / "cached_data.py", tmp_path, "early")
    assert [each for each in gc.get_objects() if type(each) is Inventory and each._held] == []


@pytest.mark.parametrize("name", ["cached_dataset", "cached_weights", "shuffled_once"])
def test_a_sound_study_shares_nothing_among_two_alike_and_two_others(
    name: str, tmp_path: Path
) -> None:
    report = rehearsed(PITFALLS / "allowed" / f"{name}.py", tmp_path, "build")
    assert report.complete
    assert [f for f in report.findings if f.level == "error"] == []


def test_a_check_to_which_everything_was_there_before_refuses_what_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Earlier, "made", lambda self, thing: False)
    file = PITFALLS / "refused" / "memoized.py"
    assert [f.level for f in of_sharing(rehearsed(file, tmp_path, "early"))] == ["error"]


COPIED = StudyText(
    head="""
    import copy
    import functools

    @functools.cache
    def base():
        return keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])

    def copied_model(trial):
        model = copy.copy(base())
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model
    """,
    data=UNVALIDATED,
    tail="study.model = copied_model",
    arguments=ONE_EPOCH,
)


def test_a_copy_of_a_model_that_was_made_once_is_found_by_what_trials_begin_with(
    tmp_path: Path,
) -> None:
    def judged(text: StudyText, name: str) -> list[Finding]:
        file = text.write(tmp_path / f"{name}.py")
        built = rehearsed(file, tmp_path / name / "two", "build")
        assert built.complete
        return list(judge_second(built, built, rehearsed(file, tmp_path / name / "one", "alone")))

    [finding] = judged(COPIED, "study_copied")
    assert (finding.level, finding.check) == ("error", "independence")
    assert "trial 1 begins with other weights when trial 0 was built before it" in finding.message
    assert "a model that was made once and is copied" in finding.message
    assert judged(StudyText(), "study_plain") == []


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_check, "_UNTOLD_SECONDS", 0.2)
    file = SLOW.write(tmp_path / "slow.py")
    with pytest.raises(IndependenceError, match=r"module attribute slow\.LOG") as raised:
        sweep(file, tmp_path / "runs", workers=2)
    assert str(raised.value).endswith("no trial was run, since each would be refused")
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
    with pytest.raises(IndependenceError, match="no trial was run, since trial 1 would be refused"):
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
    assert warned_of_sharing(swept) == [], "what is sound is not warned of"


def warned_of_sharing(swept: Swept) -> list[str]:
    notices = [event.message for event in swept.events if isinstance(event, Notice)]
    return [m for m in notices if "in the same process" in m or "in one process" in m]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("memoized", f"{APART}model 'encoder' is model.layers[0] of a second trial and "),
        ("copied", "trial 1 begins with other weights when trial 0 was built before it"),
        pytest.param("dataset_once", None, marks=pytest.mark.whole),
    ],
)
def test_a_run_warns_of_what_only_its_processes_keep_apart_and_goes_on(
    name: str, message: str | None, tmp_path: Path
) -> None:
    if name == "copied":
        file = COPIED.write(tmp_path / "copied.py")
    else:
        kept = PITFALLS / ("refused" if message else "allowed") / f"{name}.py"
        file = tmp_path / kept.name
        text = kept.read_text().replace('optimizer="adam"', 'optimizer="sgd"')
        file.write_text(text.replace("trials=2,", 'trials=2,\n    audit="off",'))
    # What a copy begins with is seen before any trial; one goes on as two do.
    trials = 1 if name == "copied" else 2
    swept = sweep(file, tmp_path / "runs", trials=trials)
    assert [trial.state for trial in swept.trials] == ["complete"] * trials
    warned = warned_of_sharing(swept)
    assert len(warned) == (message is not None)
    if message is not None:
        assert re.match(r"\S+\.py:\d+: ", warned[0])
        assert message in warned[0]


@pytest.mark.whole  # by default: a shared callback, in test_check_studies.py
def test_a_loss_tracker_of_the_module_ends_a_run_with_4_and_says_where_to_make_it(
    tmp_path: Path,
) -> None:
    ended = command("run", PITFALLS / "refused" / "loss_tracker.py", "--workers", 1, cwd=tmp_path)
    assert ended.code == 4, ended.err
    assert "metric 'loss' is global variable 'loss_tracker' of model.train_step" in ended.err
    assert "make them in CustomModel.__init__, as attributes of self" in ended.err
    assert "no trial was run, since each would be refused" in ended.err
    assert trials_in(tmp_path / "runs", "loss-tracker") == ()


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
