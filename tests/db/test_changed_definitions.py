"""A changed definition: refused, accepted and ranked apart, or taken while nothing has a value."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from stored_study import ME, take
from stored_study import ROW as STORED

from sweeper.checkpoint.identity import Origin, claim_directory
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.space import FloatRange
from sweeper.errors import DefinitionChangedError, ForeignCheckpointError, UsageError
from sweeper.records.code import CodeFingerprint, CodePart
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.run.removed_study import remove_study, rename_existing, study_directories
from sweeper.run.worker.checkpoints import (
    check_directories,
    check_new_study,
    claim_directories,
    present_path,
)
from sweeper.support.paths import RunPaths


def code(**digests):
    return CodeFingerprint({n: CodePart(digest, "study.py") for n, digest in digests.items()})


ROW = replace(STORED, target=6, source={"location": "study.py"}, code=code(build_model="a"))
EDITED = replace(ROW, code=code(build_model="b"))


@pytest.fixture
def repository(file):
    with Database.open(f"sqlite:///{file}", create=False) as database:
        repository = Repository(database)
        repository.create_or_open(ROW)
        yield repository


def finish(repository, value):
    claim = take(repository)
    repository.record_process(claim.token, 1, "fork", 0)
    repository.record_epochs(claim.token, [EpochRecord(0, {"loss": value})])
    repository.finish(claim.token, Ending("complete", value=value, digest="d"))
    return claim.number


def fail(repository, error="KeyError: 'val_acc'"):
    claim = take(repository)
    repository.record_parameter(claim.token, "rate", FloatRange(0.1, 1.0), 0.5)
    repository.finish(claim.token, Ending("failed", error=f"Traceback\n{error}"))
    return claim.number


def test_the_same_code_in_another_file_is_the_same_study_as_are_the_first_fingerprints(
    repository,
):
    moved = CodeFingerprint({"build_model": CodePart("a", "renamed.py")})
    repository.create_or_open(replace(ROW, code=moved))
    assert repository.study("digits").code == moved
    # A study from before there were fingerprints takes the first that it sees.
    older = replace(ROW, name="older", code=None)
    repository.create_or_open(older)
    repository.create_or_open(replace(older, code=ROW.code))
    with pytest.raises(DefinitionChangedError):
        repository.create_or_open(replace(older, code=EDITED.code))


def test_a_trial_gone_on_with_under_another_code_is_of_neither(repository):
    first = take(repository)
    repository.record_process(first.token, 1, "fork", 0)
    repository.finish(first.token, Ending("interrupted", end_step=20))
    repository.accept_definition(EDITED)
    second = take(repository)
    assert (second.number, second.ignore_checkpoints_through) == (0, 0)
    repository.record_process(second.token, 1, "fork", 20)
    repository.finish(second.token, Ending("complete", value=0.5, digest="d"))
    finish(repository, 3.0)
    status = repository.status("digits")
    assert status.best.number == 1
    assert "+" in (repository.trial("digits", 0).code or "")


def test_a_worker_with_another_definition_begins_nothing(repository):
    take(repository, fingerprint=ROW.fingerprint)
    repository.accept_definition(EDITED)
    with pytest.raises(DefinitionChangedError, match="another run has accepted"):
        take(repository, fingerprint=ROW.fingerprint)
    take(repository, fingerprint=EDITED.fingerprint)


def test_policy_and_search_are_no_part_of_what_a_result_depends_on():
    def given(**more):
        return replace(ROW, definition={**ROW.definition, **more}).fingerprint

    policy = {"trials": 9, "retries": {"crash": 1}, "failing_alike": None, "keep": 3}
    assert given(**policy, sampler="qmc") == ROW.fingerprint
    assert given(epochs=4) != ROW.fingerprint
    assert EDITED.fingerprint != ROW.fingerprint


@pytest.mark.parametrize(
    ("how", "location", "extend", "fresh"),
    [
        (
            "target",
            "/s/digits.py",
            "`sweeper extend digits --epochs 8`",
            "`sweeper run /s/digits.py --fresh`",
        ),
        ("pickled", "", "call study.extend(8)", "study.run(fresh=True)"),
        ("pickled", "/s/digits.py", "call study.extend(8)", "study.run(fresh=True)"),
    ],
)
def test_more_epochs_are_refused_with_the_way_to_train_them_first(
    repository, how, location, extend, fresh
):
    finish(repository, 1.0)
    length = ROW.definition["epochs"]
    for epochs, named in ((8, True), (length - 1, False)):
        definition = {**ROW.definition, "epochs": epochs}
        with pytest.raises(DefinitionChangedError) as raised:
            repository.create_or_open(
                replace(
                    ROW,
                    definition=definition,
                    source={"how": how, "location": location, "name": None},
                )
            )
        message = str(raised.value)
        assert (f"write epochs={length} again and" in message) is named
        assert "FILE" not in message
        if named:
            assert message.index(extend) < message.index(fresh)


@pytest.mark.parametrize("state", ["complete", "pruned", "running", "trained"])
def test_a_change_is_not_taken_where_a_trial_has_a_value_or_is_on_its_way(repository, state):
    fail(repository)
    claim = take(repository)
    repository.record_process(claim.token, 1, "fork", 0)
    repository.record_epochs(claim.token, [EpochRecord(0, {"loss": 1.0})], {0: 1.0})
    if state == "trained":
        repository.finish(claim.token, Ending("interrupted", end_step=20))
    elif state != "running":
        repository.finish(claim.token, Ending(state, value=1.0, digest="d"))
    assert repository.accept_while_nothing_has_a_value(EDITED, int) == ((), 0)
    assert repository.study("digits").code == ROW.code


def test_a_failed_trial_goes_on_under_its_own_code_and_begins_anew_under_another(repository):
    fail(repository)
    assert repository.retry_failed("digits") == (0,)
    claim = take(repository)
    assert claim.ignore_checkpoints_through == 0
    assert claim.params == {"rate": 0.5}
    repository.finish(claim.token, Ending("failed", error="again"))
    finish(repository, 1.0)
    repository.accept_definition(EDITED)
    assert repository.retry_failed("digits") == (0,)
    claim = take(repository)
    assert (claim.ignore_checkpoints_through, claim.params) == (2, {})


@pytest.mark.parametrize(
    "end", [lambda r: fail(r, "ValueError: no units"), lambda r: finish(r, 1.0)]
)
def test_trials_that_fail_alike_are_found_unless_one_ends_otherwise_or_was_the_last(
    repository, end
):
    fail(repository, "ValueError: 37 units are too many")
    fail(repository, "ValueError: 51 units are too many")
    assert repository.failing_alike("digits", 3) is None
    fail(repository, "ValueError: 12.5 units are too many")
    repository.set_target("digits", 3)
    assert repository.failing_alike("digits", 3) is None, "it was the last"
    repository.set_target("digits", 6)
    assert repository.failing_alike("digits", 3) == (3, "ValueError: 12.5 units are too many")
    end(repository)
    assert repository.failing_alike("digits", 3) is None


def files_of(repository, runs, text):
    """Give trial 0 a checkpoint with a file in it."""
    path = runs / "digits" / "trial-00000" / "attempt-01" / "checkpoints" / "step-000000020"
    path.mkdir(parents=True)
    (path / "state.json").write_text(text)
    claim = take(repository)
    repository.record_checkpoint(claim.token, CheckpointRecord(20, 1, "d" * 32, 10, str(path)))
    repository.finish(claim.token, Ending("complete", value=1.0, digest="d"))
    return path


def test_a_link_to_elsewhere_is_removed_and_not_followed(repository, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("mine")
    (tmp_path / "digits").symlink_to(outside)
    remove_study(repository, RunPaths(tmp_path, "digits"))
    assert not (tmp_path / "digits").is_symlink()
    assert (outside / "kept").read_text() == "mine"


@pytest.mark.parametrize("user", ["trial", "worker"])
def test_a_study_at_work_is_neither_removed_nor_renamed(repository, tmp_path, user):
    path = files_of(repository, tmp_path, "one")
    if user == "trial":
        take(repository)
    else:
        repository.join("digits", ME, key="k" * 32)
    with pytest.raises(UsageError, match=r"removed while it runs .*sweeper stop digits"):
        remove_study(repository, RunPaths(tmp_path, "digits"))
    with pytest.raises(UsageError, match="renamed while it runs"):
        rename_existing(repository, RunPaths(tmp_path, "digits"))
    assert path.is_dir()
    assert repository.study("digits")


def test_a_study_whose_directory_cannot_be_renamed_stays_as_it_is(
    repository, tmp_path, monkeypatch
):
    def refuse(*_):
        raise UsageError("the database is away")

    path = files_of(repository, tmp_path, "one")
    monkeypatch.setattr(Repository, "rename_study", refuse)
    with pytest.raises(UsageError, match="away"):
        rename_existing(repository, RunPaths(tmp_path, "digits"))
    assert path.is_dir()
    assert repository.study_names() == ("digits",)


def test_checkpoints_in_an_object_store_are_not_renamed(repository, tmp_path):
    claim = take(repository)
    path = "s3://bucket/digits/trial-00000/attempt-01/checkpoints/step-000000020"
    repository.record_checkpoint(claim.token, CheckpointRecord(20, 1, "d" * 32, 10, path))
    repository.finish(claim.token, Ending("complete", value=1.0, digest="d"))
    paths = RunPaths(tmp_path, "digits")
    with pytest.raises(UsageError, match=r"object store .* another name"):
        rename_existing(repository, paths)
    [remote] = study_directories(repository, repository.trials("digits"), paths).remote
    assert str(remote) == "s3://bucket/digits", "what rm would delete"


@pytest.mark.parametrize("take_away", [remove_study, rename_existing])
def test_the_directory_of_another_database_s_study_is_neither_removed_nor_renamed(
    repository, tmp_path, take_away
):
    paths = RunPaths(tmp_path, "digits")
    finish(repository, 1.0)
    claim_directory(paths.study_directory, Origin("digits", "2" * 32, 0, 7, "f"))
    (paths.study_directory / "kept").write_text("theirs")
    with pytest.raises(ForeignCheckpointError, match="identity 22222222"):
        take_away(repository, paths)
    assert (paths.study_directory / "kept").read_text() == "theirs"
    assert repository.study_names() == ("digits",)


def test_a_study_that_is_renamed_owns_its_files_alone_and_each_leaves_its_name_free(
    repository, tmp_path
):
    paths = RunPaths(tmp_path, "digits")
    for number in (1, 2):
        check_new_study(paths, "sqlite://")
        repository.create_or_open(EDITED if number == 2 else ROW)
        claim_directories(paths, repository.study("digits"), begun=False)
        files_of(repository, tmp_path, f"study {number}")
        name = f"digits~{number}"
        assert rename_existing(repository, paths) == name
        directories = RunPaths(tmp_path, name).study_directories
        check_directories(directories, repository.study(name), begun=False)
        checkpoint = Path(repository.trial(name, 0).checkpoints[0].path)
        assert (checkpoint / "state.json").read_text() == f"study {number}"
    assert repository.names_of_renamed("digits") == repository.study_names()
    with pytest.raises(ForeignCheckpointError):
        check_directories(directories, repository.study("digits~1"), begun=False)
    repository.create_or_open(ROW)
    apart = RunPaths(tmp_path, "digits", tmp_path / "apart")
    claim_directories(apart, repository.study("digits"), begun=False)
    remove_study(repository, apart)
    assert not any(directory.exists() for directory in apart.study_directories)
    check_new_study(apart, "sqlite://")


@pytest.mark.parametrize("take_away", [remove_study, rename_existing])
@pytest.mark.parametrize("copied", ["its database", "its files", "nothing"])
def test_the_directory_that_a_database_was_copied_from_keeps_its_files(
    repository, tmp_path, copied, take_away
):
    """The control is a directory that only this database names, as after a run with another ``--runs-dir``."""
    checkpoint = files_of(repository, tmp_path / "former", "one")
    if copied == "its database":
        (tmp_path / "former" / "sweeper.db").write_text("another")
    if copied == "its files":
        shutil.copytree(tmp_path / "former" / "digits", tmp_path / "here" / "digits")
    taken = take_away(repository, RunPaths(tmp_path / "here", "digits"))
    assert checkpoint.is_dir() == (copied != "nothing")
    assert not (tmp_path / "here" / "digits").exists()
    if take_away is remove_study:
        assert (tmp_path / "former" / "digits" in taken.left) == (copied != "nothing")
    else:
        [stored] = repository.trial(taken, 0).checkpoints
        paths = RunPaths(tmp_path / "here", taken)
        assert (present_path(stored, 0, paths) / "state.json").read_text() == "one"


def test_a_runs_directory_with_two_names_is_one(repository, tmp_path):
    files_of(repository, tmp_path / "former", "one")
    (tmp_path / "link").symlink_to(tmp_path / "former")
    taken = remove_study(repository, RunPaths(tmp_path / "link", "digits"))
    assert (taken.own, taken.left) == ((tmp_path / "link" / "digits",), ())
    assert not (tmp_path / "former" / "digits").exists()


def test_the_fingerprint_in_checkpoints_is_the_one_that_ranks(repository):
    claim = take(repository)
    row = repository.study("digits")
    assert claim.definition == row.fingerprint == ROW.fingerprint != EDITED.fingerprint
    assert claim.identity == row.identity
    repository.finish(claim.token, Ending("interrupted"))
    repository.accept_definition(EDITED)
    resumed = take(repository)
    assert (resumed.definition, resumed.former) == (EDITED.fingerprint, (ROW.fingerprint,))
