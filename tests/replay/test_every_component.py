"""The table: for each component of a training's state, one difference is one finding in each verb."""

import threading
from unittest import mock

import pytest
from checkpoints_on_disk import STATE, TENSORS, Planted, write
from scripted_trials import definition

from sweeper.checkpoint.reading import read_manifest
from sweeper.checks.check import judge
from sweeper.checks.verify import StoredCheckpoint, findings_of
from sweeper.records.results import TrialRecord
from sweeper.replay.comparison import errors
from sweeper.replay.reports import Authored, StudyAuthors
from sweeper.run import replays
from sweeper.run.auditing import IntervalReplay
from sweeper.run.protocol.messages import CheckpointCommitted
from sweeper.run.replays import Answers, ComparedReplay, Kill, Replayed, ReplayOrder
from sweeper.spec import checkpointing

NOBODY = Authored("nobody")
AUTHORS = StudyAuthors(NOBODY, NOBODY, (Authored("Count"),))

USERS = ("user_state", "changed")
EXACT, EXCUSABLE = False, True

TABLE = [
    # what, where, the resumed trial's value, another run's value, the user's name, level, excusable
    ("weights", ["model/00000", 2], 5.0, 6.0, "model variable 0 (dense/kernel)", "error", EXACT),
    ("optimizer", ["optimizer/00001", ()], 0.5, 0.75, "optimizer variable 1 (adam", "error", EXACT),
    ("loss scale", ["optimizer/00002", ()], 4.0, 8.0, "optimizer variable 2 (loss_sc", "error", EXACT),
    ("own optimizer", ["optimizers/00000", 0], 3.0, 4.0, "optimizers variable 0 (sgd", "error", EXACT),
    ("metric", ["metrics/00000", 0], 3.0, 4.0, "metrics variable 0 (mean/total)", "error", EXACT),
    ("own variable", ["reachable/00000", 0], 3.0, 4.0, "reachable variable 0 (own/w", "error", EXACT),
    ("seeds", ["global_seed_generator/state", 0], 3, 4, "global seed generator, 'state'", "error", EXACT),
    ("random", ["python_random", "gauss"], 0.5, 0.75, "python random, 'gauss'", "error", EXACT),
    ("NumPy's random", ["numpy_random/words", 0], 3, 4, "numpy random, 'words'", "error", EXACT),
    ("TF's random", ["tensorflow_random/global", 0], 3, 4, "tensorflow random, 'global'", "error", EXACT),
    ("position", ["position", "step_in_epoch"], 1, 2, "position, 'step_in_epoch'", "error", EXACT),
    ("objective", ["history", "epochs", 0, 1, "val_accuracy"], 0.5, 0.75, "the history's 'val_accuracy' of epoch 1", "error", EXACT),
    ("logged time", ["history", "epochs", 0, 1, "seconds"], 2.5, 3.5, "the history's 'seconds' of epoch 1", "error", EXCUSABLE),
    ("last logs", ["position", "logs", "seconds"], 2.5, 3.5, "position, 'logs/seconds'", "error", EXCUSABLE),
    ("callback's attribute", [*USERS, "callback Count", "set", "count"], 14, 15, "callback Count, attribute 'count'", "error", EXCUSABLE),
    ("array in place", ["user_state/callback Count.seconds", 1], 2.5, 3.5, "callback Count, attribute 'seconds'", "error", EXCUSABLE),
    ("dictionary", [*USERS, "callback Count.inner", "items", 1, 1], 14, 15, "callback Count, attribute 'inner'['epochs']", "error", EXCUSABLE),
    ("object", [*USERS, "callback Count", "set", "made", "v", 0], 14, 15, "callback Count, attribute 'made'[0]", "error", EXCUSABLE),
    ("module", [*USERS, "module study", "set", "seen"], 14, 15, "module study, variable 'seen'", "error", EXCUSABLE),
    ("environment", [*USERS, "os.environ", "items", 0, 1], "cold", "hot", "os.environ['MODE']", "error", EXCUSABLE),
    ("get_state", ["callbacks", 1, "state", "v", 0, 1], 0.25, 0.75, "callback Keeps, get_state()['best']", "error", EXCUSABLE),
    ("left out", ["user_state", "left_out", 0, 1], "8", "9", "callback Keeps, attribute 'left'", "error", EXCUSABLE),
    ("array of get_state", ["callbacks/1/state/weights", 0], 2.0, 3.0, "callback Keeps, get_state()['weights']", "error", EXCUSABLE),
    ("tracked", ["callbacks", 3, "state", "v", 0], 2, 3, "tracked object 'counter', get_state()[0]", "error", EXCUSABLE),
    ("tracked array", ["callbacks/3/state/moments", 0], 2.0, 3.0, "tracked object 'counter', get_state()['moments']", "error", EXCUSABLE),
    ("data", ["data", "train", "state"], [1], [2], "data, 'train/state/0'", "error", EXCUSABLE),
    ("data's arrays", ["data/train/order", 0], 7, 8, "data, 'train/order'", "error", EXCUSABLE),
    ("reopening", ["reopening", "train"], {"x": 1}, {"x": 2}, "reopening, 'train/x'", "error", EXCUSABLE),
    ("fixed parts", ["parts", "loss_scale"], 2, 3, "parts, 'loss_scale'", "error", EXCUSABLE),
    ("libraries", ["eager_operations", "counter"], 6, 7, "eager operations, 'counter'", "error", EXCUSABLE),
]  # fmt: skip


def running(resumed, one, other):
    """Stand for the engine: a replay ends as ``resumed``, and a second one as two like runs differ."""
    ends = iter([resumed, resumed if one == other else other])

    def run(*_order):
        done = CheckpointCommitted(8, 1, "", 1, str(next(ends)))
        return Replayed(reached=done, checkpoints={(8, 1): done}, authors=AUTHORS)

    return mock.patch.object(replays, "run_again", run)


SETTINGS = definition(name="small", objective="val_accuracy").settings()


def by_audit(whole, resumed, one, other):
    end = checkpointing.KeptCheckpoint(8, 1, whole)
    trial = TrialRecord("small", 0, "complete", {}, None, 0, None)
    files, launcher = whole.parents[2] / "files", None
    replay = IntervalReplay(trial, None, end, SETTINGS, files, launcher, threading.Event())
    with running(resumed, one, other):
        outcome = replay.outcome()
    found = errors(outcome.comparison.differences)
    assert outcome.alike == (not found)
    return (found[0].level, str(found[0])) if found else ("", "")


def compared(resumed, one, other):
    """Compare a replay with what is kept, as `sweeper check` and `sweeper verify` do."""
    order = ReplayOrder(SETTINGS, 0, Answers({}, {}), ((8, 1),))
    with running(resumed, one, other):
        return ComparedReplay(
            prepare=lambda _: order,
            directory=one.parents[2] / f"compared-{one == other}",
            references={(8, 1): one},
            files="",
            launchers=(),
            stopping=threading.Event(),
        ).run()


def by_check(whole, resumed, one, other):
    comparison = compared(resumed, whole, other)
    found, held = judge(Replayed(authors=AUTHORS), comparison, Kill(4, 6), "error")
    told = [each for each in found if each.level != "note"]
    assert bool(held) != bool(told)
    return (told[0].level, told[0].message) if told else ("", "")


def by_verify(whole, resumed, one, other):
    kept = StoredCheckpoint(8, 1, None, whole, read_manifest(whole))
    comparison = compared(resumed, whole, other)
    trial = TrialRecord("small", 0, "complete", {}, None, 0, None)
    found = findings_of(trial, [kept], comparison, SETTINGS)
    told = [each for each in found if each.level != "note"]
    return (told[0].level, told[0].message) if told else ("", "")


@pytest.fixture(params=[by_check, by_audit, by_verify], ids=lambda caller: caller.__name__)
def caller(request):
    return request.param


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case[0])
def test_a_planted_difference_is_the_same_finding_in_each_verb_and_so_is_its_excuse(
    case, caller, tmp_path
):
    _, where, value, another, name, level, excusable = case
    plant = Planted(where).write
    whole = write(tmp_path / "whole")
    resumed, other = plant(tmp_path / "resumed", value), plant(tmp_path / "other", another)
    found = caller(whole, resumed, whole, whole)
    assert found[0] == level
    assert name in found[1]
    excused = caller(whole, resumed, whole, other)
    assert excused[0] == ("" if excusable else level)


@pytest.mark.parametrize(("key", "value"), [("file_size", 121), ("event_files", {"events.1": 40})])
def test_the_length_of_a_log_file_is_no_difference_and_a_users_value_of_that_name_is_one(
    key, value, caller, tmp_path
):
    """Measured times in the file have more digits in one run than in another."""
    whole = write(tmp_path / "whole")
    resumed = Planted(["callbacks", 2, key]).write(tmp_path / "resumed", value)
    assert caller(whole, resumed, whole, whole) == ("", "")
    own = [*USERS, "callback Count.inner", "items", 0]
    lost = Planted(own).write(tmp_path / "lost", [key, 0.5])
    assert caller(whole, lost, whole, whole)[0] == "error"


@pytest.mark.parametrize("weights", [["model/00000", 2], ["optimizer/00001", ()]], ids=str)
def test_the_highest_severity_counts_whatever_differs_before_it(weights, caller, tmp_path):
    """What is excused never hides what is not, in whichever component it is."""
    timer = ["user_state/callback Count.seconds", 0]
    whole, other = write(tmp_path / "whole"), Planted(timer).write(tmp_path / "other", 0.75)
    both = Planted(weights).write(tmp_path / "both", 5.0, also=(timer, 0.25))
    level, message = caller(whole, both, whole, other)
    assert level == "error"
    assert "variable" in message


def test_what_get_state_leaves_out_is_said_to_be_lost_on_resume_in_each_verb(caller, tmp_path):
    whole = write(tmp_path / "whole")
    lost = Planted(["user_state", "left_out"]).write(tmp_path / "resumed", [])
    level, message = caller(whole, lost, whole, whole)
    assert level == "error"
    assert "callback Keeps, attribute 'left': 7 " in message
    assert "lost on resume" in message


def test_the_table_has_every_component_that_a_training_has():
    components = {str(case[1][0]).partition("/")[0] for case in TABLE}
    assert components == {*STATE, *(name.partition("/")[0] for name in TENSORS)}
