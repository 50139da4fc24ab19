"""What `sweeper verify` decides without running anything: which trials, and which verdict."""

import json
from dataclasses import replace

import pytest
from scripted_trials import definition, row_of

from sweeper.checks.verify import (
    Compared,
    StudyVerification,
    TrialVerification,
    Unverified,
    VerifyFinding,
    choose,
    where_to_kill,
)
from sweeper.cli.main import main
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, WorkerIdentity
from sweeper.errors import DefinitionChangedError, SweeperError, UnknownStudyError, UsageError
from sweeper.records.results import EpochRecord
from sweeper.run.launch.launchers import Loaded, open_launcher
from sweeper.run.protocol.messages import Replay
from sweeper.run.stored_study import unchanged_settings

DONE = Ending("complete", end_step=9, digest="0")


def settings():
    return definition(name="digits", epochs=3, trials=4, objective="val_loss").settings()


def test_a_replay_takes_its_checkpoints_where_it_is_asked_and_nowhere_else():
    from sweeper.run.trial.run import ReplayObserver
    from sweeper.train.state.state import Position

    observer = ReplayObserver(None, Replay(((7, 0), (20, 1)), also_after=12, die_after=15))
    positions = [Position(step, 1 if step >= 20 else 0, 0) for step in range(41)]
    left = [observer.steps_until_due(positions[step]) for step in (0, 7, 12, 15, 20)]
    assert left == [7, 5, 3, 5, 1 << 30]
    due = [position.step for position in positions if observer.is_due(position)]
    assert due == [7, 12, 20]


def test_where_a_replay_is_killed_follows_from_the_seed():
    positions = [where_to_kill(seed, 3, 60) for seed in range(200)]
    assert positions == [where_to_kill(seed, 3, 60) for seed in range(200)]
    assert len(set(positions)) > 100
    assert all(kill is not None and 0 < kill.checkpoint < kill.after < 60 for kill in positions)
    assert where_to_kill(0, 3, 2) is None


@pytest.fixture
def repository(tmp_path):
    with Database.open(f"sqlite:///{tmp_path / 'runs' / 'sweeper.db'}", create=True) as database:
        yield Repository(database)


def stored(repository):
    return repository.create_or_open(row_of(settings()))


def begin(repository):
    claimed = repository.claim("digits", WorkerIdentity.here(), lambda number: number)
    assert isinstance(claimed, Claim)
    return claimed


def test_only_finished_trials_are_verified_and_the_others_are_named_with_what_to_do(repository):
    stored(repository)
    with pytest.raises(SweeperError, match="has no trial to verify, none has begun; run it first"):
        choose(repository, "digits", "all")
    with pytest.raises(SweeperError, match="there is no best trial"):
        choose(repository, "digits", "best")
    for value in (0.5, 0.25):
        claimed = begin(repository)
        repository.record_epochs(claimed.token, [EpochRecord(0, {"val_loss": value})], {0: value})
        repository.finish(claimed.token, replace(DONE, value=value))
    repository.finish(begin(repository).token, Ending("failed", error="no such layer"))
    begin(repository)
    chosen, passed_over = choose(repository, "digits", "all")
    assert [trial.number for trial in chosen] == [0, 1]
    assert [(trial.number, trial.reason.split(",")[0]) for trial in passed_over] == [
        (2, "failed"),
        (3, "is running"),
    ]
    assert choose(repository, "digits", "best")[0][0].number == 1
    with pytest.raises(SweeperError, match="trial 3 of study 'digits' is running, not finished"):
        choose(repository, "digits", 3)
    with pytest.raises(SweeperError, match="failed, so it has no result to compare; `sweeper ret"):
        choose(repository, "digits", 2)
    with pytest.raises(UnknownStudyError, match="no trial 4"):
        choose(repository, "digits", 4)


def test_a_trial_from_before_an_accepted_change_cannot_be_verified(repository):
    row = stored(repository)
    repository.finish(begin(repository).token, replace(DONE, value=0.5))
    repository.accept_definition(replace(row, definition={**row.definition, "epochs": 5}))
    repository.finish(begin(repository).token, replace(DONE, value=0.4))
    with pytest.raises(SweeperError, match=r"began before .* was changed \(epochs was 3 and is no"):
        choose(repository, "digits", 0)
    assert [trial.number for trial in choose(repository, "digits", "all")[0]] == [1]


def test_a_definition_that_has_changed_since_is_refused_by_what_changed(repository):
    row = stored(repository)
    same = unchanged_settings(
        repository, row, Loaded(settings(), threads_given=True, cannot_fork="")
    )
    assert same == settings()
    other = Loaded(replace(settings(), epochs=5), threads_given=True, cannot_fork="")
    with pytest.raises(DefinitionChangedError, match="epochs was 3 and is now 5"):
        unchanged_settings(repository, row, other)
    elsewhere = Loaded(replace(settings(), threads=64), threads_given=False, cannot_fork="")
    assert unchanged_settings(repository, row, elsewhere) == settings(), "threads stay as they were"


def test_warnings_and_notes_change_no_verdict_and_errors_do():
    note = VerifyFinding("note", "file", "not here", step=40)
    trial = TrialVerification(
        "digits", 3, "replay", (note,), ("keras was 1 and is 2",), Compared(epochs=1), None
    )
    assert (trial.verdict, trial.epoch, trial.step, trial.unexplained) == (
        "holds",
        None,
        None,
        False,
    )
    assert trial.message == "final digest, value, 1 epoch equal"
    late = VerifyFinding("error", "metric", "epoch 2", epoch=2, by_replay=True)
    early = VerifyFinding(
        "error", "tensor", "step 20", epoch=1, step=20, variable="a", by_replay=True
    )
    worse = replace(trial, findings=(late, early))
    assert (worse.verdict, worse.epoch, worse.step, worse.variable) == ("differs", 1, 20, "a")
    assert worse.message == "epoch 2 (and 1 more)"
    assert not worse.unexplained
    assert replace(worse, explanations=()).unexplained
    assert replace(trial, promised=False).verdict == "unpromised"


def test_an_inline_replay_is_refused():
    from sweeper.run.protocol.messages import StudySource

    with (
        pytest.raises(UsageError, match="every replay needs a fresh process"),
        open_launcher(StudySource("target", "x.py"), "inline", pytest.fail),
    ):
        pass


@pytest.mark.parametrize(("level", "code"), [("warning", 0), ("error", 4)])
def test_the_exit_code_says_whether_every_promise_holds(level, code, capsys, monkeypatch):
    asked = []
    finding = VerifyFinding(level, "digest", "the final digest is another", epoch=2)
    trial = TrialVerification("digits", 3, "interrupt", (finding,), (), Compared(), None)

    def verify(request):
        asked.append(request)
        return StudyVerification("digits", (trial,), (Unverified(4, "is running"),))

    monkeypatch.setattr("sweeper.checks.verify.verify_study", verify)
    assert main(["verify", "digits", "--interrupt", "--seed", "7", "--json"]) == code
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["holds"] is (code == 0)
    assert report["trials"][0]["findings"][0]["message"] == "the final digest is another"
    assert "--seed 7" in printed.err
    assert (asked[0].which, asked[0].interrupt, asked[0].seed) == ("best", True, 7)
    assert main(["verify", "digits", "--trial", "3"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "trial 4 skipped: it is running",
        f"{int(code == 0)} of 1 verified trials hold",
    ]
    assert asked[1].which == 3
