"""What a run stores is decided by comparing the loaded study with the stored one, without a database."""

from dataclasses import replace
from pathlib import Path

import pytest
from scripted_trials import definition

from sweeper.declarations.repeating import ConfirmRequest
from sweeper.errors import DefinitionChangedError, UnknownStudyError, UsageError
from sweeper.records.events import Notice
from sweeper.records.lengths import Extension
from sweeper.run.launch.launchers import StudyCode
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.protocol.messages import StudySource
from sweeper.run.study_plan import StoredState, as_stored, plan_study, row_of, unchanged_settings

SOURCE = StudySource("target", "study.py")
OPTIONS = WorkerOptions(1, "sqlite:///nowhere.db", Path("runs"))


def code(*, threads_given=False, **settings):
    defined = definition(name="small", epochs=3, trials=4, objective="loss", **settings)
    return StudyCode(defined.settings(), threads_given, "")


def request(**values):
    return RunRequest(OPTIONS, Notice, **values)


def plan(loaded, stored=None, **values):
    state = StoredState() if stored is None else StoredState(stored)
    return plan_study(loaded, state, SOURCE, request(**values))


def test_a_new_study_is_stored_as_it_is_loaded():
    planned = plan(code())
    assert (planned.is_new, planned.row.name, planned.row.target) == (True, "small", 4)
    assert planned.row.definition == code().settings.to_json()
    assert planned.row.source["location"] == "study.py"
    assert plan(code(), trials=9).row.target == 9


def test_the_total_is_the_files_in_a_run_and_the_stored_one_in_a_resume():
    stored = replace(row_of(code(), None, 4), target=2)
    assert plan(code(), stored).row.target == 4
    resumed = plan(code(), stored, study="small")
    assert resumed.row.target == 2
    assert resumed.notices == (
        "the total of 'small' is 2 trials, but its file says 4; --trials 4 raises it",
    )
    assert plan(code(), replace(stored, target=6), study="small").notices == ()


def test_the_number_of_threads_is_resolved_once_unless_the_definition_sets_it():
    first = row_of(code(), None, 4)
    stored = replace(first, definition={**first.definition, "threads": 7})
    assert plan(code(), stored).row.definition["threads"] == 7
    given = code(threads_given=True)
    assert plan(given, stored).row.definition["threads"] == first.definition["threads"]


def test_a_study_is_only_extended_and_its_grid_has_its_total():
    with pytest.raises(UsageError, match="a study can only be extended: give more than 3"):
        plan(code(), extension=Extension(2))
    plan(code(), extension=Extension(3))
    grid = code(sampler="grid", grid={"rate": [0.1, 0.2]})
    with pytest.raises(Exception, match="grid"):
        plan(grid)


def test_a_changed_definition_is_named_and_an_unchanged_one_is_the_stored_one():
    stored = replace(row_of(code(), None, 4), target=9)
    assert unchanged_settings(stored, code()).trials == 9
    with pytest.raises(DefinitionChangedError, match="epochs was 3 and is now 5"):
        unchanged_settings(stored, replace(code(), settings=replace(code().settings, epochs=5)))


def test_a_confirmation_needs_a_study_that_was_run_and_keeps_its_stored_settings():
    with pytest.raises(UnknownStudyError, match="has no leading configurations to confirm"):
        plan(code(), study="small", confirm=ConfirmRequest(None, (), 5, None))
    ordinary = row_of(code(), None, 4)
    assert as_stored(code(), ordinary) == code()
