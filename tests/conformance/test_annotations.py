"""What Optuna's tools show beside a study is written by whoever is first, and seen by no sampler."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna
import pytest

from sweeper.db.annotations import StudyAttributes
from sweeper.db.attempts import Ending
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.errors import UnknownStudyError
from sweeper.spec.space import FloatRange
from sweeper.views.dashboard.server import open_dashboard

ME = WorkerIdentity.here()
NAMES = ("attempts", "digest")


@pytest.fixture(autouse=True)
def study(repository: Repository) -> None:
    row = StudyRow("digits", {"epochs": 3}, "val_loss", "minimize", 4, None, 0)
    repository.create_or_open(row)
    for number in range(2):
        claim = repository.claim("digits", ME, lambda number: number)
        assert isinstance(claim, Claim)
        repository.record_parameter(claim.token, "rate", FloatRange(0.1, 1.0), 0.5)
        repository.finish(claim.token, Ending("complete", value=1.0 + number, digest="d"))


@contextmanager
def as_optuna_has_it(repository: Repository) -> Iterator[optuna.Study]:
    storage = repository.database.optuna_storage()
    try:
        yield optuna.load_study(study_name="digits", storage=storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def test_what_is_edited_in_memory_is_what_optuna_reads(repository: Repository) -> None:
    before = repository.annotations.of_study("digits")
    assert before.values == {}
    assert repository.annotations.optuna_ids() == {"digits": before.optuna_id}

    def edit(study: Any) -> None:
        study.set_metric_names(["val_loss"])

    assert repository.annotations.replace(before, before.edited(edit))
    with as_optuna_has_it(repository) as study:
        assert study.metric_names == ["val_loss"]
    again = repository.annotations.of_study("digits")
    assert again.edited(lambda study: None) == again.values


def test_of_two_who_change_the_same_only_the_first_writes(repository: Repository) -> None:
    one = two = repository.annotations.of_study("digits")
    assert repository.annotations.replace(one, {"a": [1], "b": "x"})
    assert not repository.annotations.replace(two, {"a": [2], "c": "y"})
    assert repository.annotations.of_study("digits").values == {"a": [1], "b": "x"}
    now = repository.annotations.of_study("digits")
    other = StudyAttributes(now.study, now.optuna_id, now.directions, {"a": [1]})
    assert repository.annotations.replace(other, {"a": [3]}), "who changed another key is in no way"
    assert repository.annotations.of_study("digits").values == {"a": [3], "b": "x"}
    assert repository.annotations.replace(repository.annotations.of_study("digits"), {})
    assert repository.annotations.of_study("digits").values == {}


def test_a_trials_attributes_are_set_changed_and_deleted_and_anothers_stay(
    repository: Repository,
) -> None:
    annotations = repository.annotations
    wanted = {0: {"attempts": 2, "digest": "d"}, 1: {"attempts": 1}}
    assert annotations.set_on_trials("digits", NAMES, wanted) == 3
    assert annotations.set_on_trials("digits", NAMES, wanted) == 0
    annotations.set_on_trials("digits", ("theirs",), {0: {"theirs": "kept"}})
    assert annotations.set_on_trials("digits", NAMES, {0: {"attempts": 3}}) == 2
    with as_optuna_has_it(repository) as study:
        found = {t.number: t.user_attrs for t in study.get_trials()}
    assert found == {0: {"attempts": 3, "theirs": "kept"}, 1: {"attempts": 1}}


def test_no_record_and_no_sampler_sees_an_annotation(repository: Repository) -> None:
    def seen() -> tuple[Any, ...]:
        return (
            repository.finished_before("digits", 4),
            [trial.to_json() for trial in repository.trials("digits")],
            repository.status("digits").to_json(),
        )

    before = seen()
    annotations = repository.annotations
    assert annotations.set_on_trials("digits", NAMES, {0: {"attempts": 7}, 1: {"digest": "x"}}) == 2
    assert annotations.replace(annotations.of_study("digits"), {"dashboard:note_ver": 1})
    assert seen() == before
    repository.removal.delete("digits")
    with pytest.raises(UnknownStudyError):
        annotations.of_study("digits")
    with pytest.raises(UnknownStudyError):
        annotations.set_on_trials("digits", NAMES, {0: {"attempts": 1}})


def test_a_dashboard_serves_both_halves_of_the_database(url: str, repository: Repository) -> None:
    server = open_dashboard(url, port=0)
    thread = threading.Thread(target=server._server.serve_forever)
    thread.start()
    try:
        number = repository.annotations.optuna_ids()["digits"]
        with urllib.request.urlopen(f"{server.url}api/studies/{number}", timeout=30) as answer:
            shown = json.load(answer)
        with urllib.request.urlopen(f"{server.url}sweeper/studies/digits", timeout=30) as answer:
            page = answer.read().decode()
    finally:
        server._server.shutdown()
        thread.join()
        server.close()
    assert shown["objective_names"] == ["val_loss"]
    assert [each["value"] for each in shown["trials"][0]["user_attrs"] if each["key"] == "attempts"]
    assert "/sweeper/studies/digits" in shown["note"]["body"]
    assert "2 of 4" in page
