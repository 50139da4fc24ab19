"""Comparison of a trial with its replays: each difference is one finding in each verb, and what excuses it."""

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from checkpoints_on_disk import STATE, TENSORS, Planted, write
from scripted_trials import definition

from sweeper.checkpoint.format import relocated
from sweeper.checks.check import judge as judge_check
from sweeper.checks.verify import TrialFiles, findings_of
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.records.results import EpochRecord, TrialRecord
from sweeper.replay.comparison import compare_checkpoints, compare_epochs, errors, judge
from sweeper.replay.reports import UserObject, UserObjects
from sweeper.run import replays
from sweeper.run.auditing import IntervalReplay
from sweeper.run.replays import Answers, ComparedReplay, Kill, Reference, Replayed, ReplayOrder

NOBODY = UserObject("nobody")
USER_OBJECTS = UserObjects(NOBODY, NOBODY, (UserObject("Count"),))

USERS = ("user_state", "changed")
EXACT = False
EXCUSABLE = True

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


SETTINGS = definition(name="small", epochs=2, objective="val_accuracy").settings()


@dataclass
class Ran:
    """Stands for the engine: replays end in turn with their checkpoints, one an epoch, and their metrics."""

    checkpoints: Sequence[Sequence[Path]]
    metrics: Sequence[Mapping[str, float]] = ({}, {})
    user_objects: UserObjects = USER_OBJECTS
    number: int = 0

    def __call__(self, order, *_more):
        replayed = Replayed(user_objects=self.user_objects)
        for epoch, path in enumerate(self.checkpoints[self.number], start=1):
            replayed.epochs[epoch - 1] = EpochRecord(epoch - 1, self.metrics[self.number])
            checkpoint = KeptCheckpoint(8 * epoch, epoch, path, digest="digest", bytes=1)
            replayed.checkpoints[checkpoint.step, checkpoint.epoch] = replayed.reached = checkpoint
            if (checkpoint.step, checkpoint.epoch) == order.ends_at:
                break
        self.number += 1
        return replayed


def compared(ran, checkpoints, directory, *, stored=None):
    """Compare replays with the checkpoints that are kept, as `sweeper check` and `sweeper verify` do."""
    by_position = {
        (8 * epoch, epoch): KeptCheckpoint(8 * epoch, epoch, path)
        for epoch, path in enumerate(checkpoints, 1)
    }
    epochs = {} if stored is None else {0: stored, 1: stored}
    with mock.patch.object(replays, "run_again", ran):
        return ComparedReplay(
            Reference(by_position, "", epochs),
            prepare=lambda _: ReplayOrder(SETTINGS, 0, Answers({}, {}), tuple(by_position)),
            directory=directory,
            launchers=(),
            stopping=threading.Event(),
        ).run()


def by_audit(whole, ran):
    end = KeptCheckpoint(8, 1, whole)
    trial = TrialRecord("small", 0, "complete", {}, None, 0, None)
    files = whole.parents[2] / "files"
    launcher = None
    replay = IntervalReplay(trial, None, end, SETTINGS, files, launcher, threading.Event())
    with mock.patch.object(replays, "run_again", ran):
        outcome = replay.outcome()
    differences = errors(outcome.comparison.differences)
    assert outcome.identical == (not differences)
    return (differences[0].level, str(differences[0])) if differences else ("", "")


def first_told(findings):
    told = [finding for finding in findings if finding.level != "note"]
    return (told[0].level, told[0].message) if told else ("", "")


def by_check(whole, ran):
    comparison = compared(ran, [whole], whole.parents[2] / "replays")
    findings, promises = judge_check(
        Replayed(user_objects=USER_OBJECTS), comparison, Kill(4, 6), "error"
    )
    assert bool(promises) != any(finding.level != "note" for finding in findings)
    return first_told(findings)


def by_verify(whole, ran):
    files = TrialFiles((KeptCheckpoint(8, 1, whole),), ())
    comparison = compared(ran, [whole], whole.parents[2] / "replays")
    trial = TrialRecord("small", 0, "complete", {}, None, 0, None)
    return first_told(findings_of(trial, files, comparison, SETTINGS))


@pytest.fixture(params=[by_check, by_audit, by_verify], ids=lambda caller: caller.__name__)
def caller(request):
    """Give what a verb finds where a resumed trial, and perhaps a second replay, end otherwise."""

    def find(whole, resumed, second=None):
        return request.param(whole, Ran([[resumed], [second or resumed]]))

    return find


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case[0])
def test_a_planted_difference_is_the_same_finding_in_each_verb_and_so_is_its_excuse(
    case, caller, tmp_path
):
    _, where, value, another, name, level, excusable = case
    plant = Planted(where).write
    whole = write(tmp_path / "whole")
    resumed = plant(tmp_path / "resumed", value)
    other = plant(tmp_path / "other", another)
    result = caller(whole, resumed)
    assert result[0] == level
    assert name in result[1]
    excused = caller(whole, resumed, other)
    assert excused[0] == ("" if excusable else level)


@pytest.mark.parametrize(("key", "value"), [("file_size", 121), ("event_files", {"events.1": 40})])
def test_the_length_of_a_log_file_is_no_difference_and_a_users_value_of_that_name_is_one(
    key, value, caller, tmp_path
):
    """Measured times in the file have more digits in one run than in another."""
    whole = write(tmp_path / "whole")
    resumed = Planted(["callbacks", 2, key]).write(tmp_path / "resumed", value)
    assert caller(whole, resumed) == ("", "")
    path = [*USERS, "callback Count.inner", "items", 0]
    lost = Planted(path).write(tmp_path / "lost", [key, 0.5])
    assert caller(whole, lost)[0] == "error"


@pytest.mark.parametrize("weights", [["model/00000", 2], ["optimizer/00001", ()]], ids=str)
def test_the_highest_severity_counts_whatever_differs_before_it(weights, caller, tmp_path):
    """What is excused never hides what is not, in whichever component it is."""
    timer = ["user_state/callback Count.seconds", 0]
    whole = write(tmp_path / "whole")
    other = Planted(timer).write(tmp_path / "other", 0.75)
    both = Planted(weights).write(tmp_path / "both", 5.0, also=(timer, 0.25))
    level, message = caller(whole, both, other)
    assert level == "error"
    assert "variable" in message


def test_what_get_state_leaves_out_is_said_to_be_lost_on_resume_in_each_verb(caller, tmp_path):
    whole = write(tmp_path / "whole")
    lost = Planted(["user_state", "left_out"]).write(tmp_path / "resumed", [])
    level, message = caller(whole, lost)
    assert level == "error"
    assert "callback Keeps, attribute 'left': 7 " in message
    assert "lost on resume" in message


def test_the_table_has_every_component_that_a_training_has():
    components = {str(case[1][0]).partition("/")[0] for case in TABLE}
    assert components == {*STATE, *(name.partition("/")[0] for name in TENSORS)}


def differences(tmp_path, state=None, **tensors):
    changed = {name.replace("__", "/"): value for name, value in tensors.items()}
    return compare_checkpoints(
        write(tmp_path / "a"),
        write(tmp_path / "bb", state, {**TENSORS, **changed}),
        objectives=["val_accuracy"],
    )


def test_checkpoints_that_are_the_same_do_not_differ_however_long_they_took(tmp_path):
    assert differences(tmp_path) == []
    # How far tf.data has read ahead is no difference; anything else that is kept of the data is one.
    read_ahead = np.ones(5, np.uint8)
    assert differences(tmp_path / "ahead", data__train__iterator=read_ahead) == []
    assert differences(tmp_path / "more", data__train__order=np.ones(5))
    # Names that Keras made up are no values.
    state = copy.deepcopy(STATE)
    state["model"] = ["dense_7/kernel", "dense_7/bias"]
    assert differences(tmp_path / "names", state) == []


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (
            "model/00000",
            np.arange(6, dtype=np.float64),
            "model variable 0 (dense/kernel): float32[6] undisturbed, float64[6] resumed",
        ),
        ("reachable/00001", np.zeros(1), "reachable, '1': only resumed"),
        ("global_seed_generator", 7, "the state of global seed generator: null undisturbed, 7"),
        ("another", {"x": 1}, "the state of another: missing undisturbed, {"),
        ("model", ["dense/kernel"], "the state of model: 2 undisturbed, 1 resumed"),
    ],
)
def test_what_has_another_type_or_is_in_one_checkpoint_only_is_named(
    where, value, message, tmp_path
):
    other = Planted([where]).write(tmp_path / "bb", value)
    (difference,) = compare_checkpoints(write(tmp_path / "a"), other)
    assert str(difference).startswith(message)
    assert difference.level == "error"


def test_a_new_object_elsewhere_makes_no_difference_of_those_after_it(tmp_path):
    """Shared objects are named by their first place; one more of them shifts no other."""
    state = copy.deepcopy(STATE)
    user_state = state["user_state"]
    user_state["changed"]["callback Another"] = {"set": {"x": {"!": "list", "v": [9]}}, "gone": []}
    (difference,) = differences(tmp_path, state)
    assert difference.name == "callback Another, attribute 'x'"


def test_an_array_is_excused_in_the_elements_that_differ_anyway_and_in_no_other(tmp_path):
    seconds = Planted(["user_state/callback Count.seconds", 0])
    more = Planted(["user_state/callback Count.seconds", 2])
    whole = write(tmp_path / "a")
    anyway = compare_checkpoints(whole, seconds.write(tmp_path / "bb", 0.125))
    same = compare_checkpoints(whole, seconds.write(tmp_path / "ccc", 0.75))
    assert [difference.level for difference in judge(same, anyway, None)] == ["note"]
    other = compare_checkpoints(whole, more.write(tmp_path / "dddd", 3.0))
    assert [difference.level for difference in judge(other, anyway, None)] == ["error"]
    assert str(other[0]).startswith(
        "callback Count, attribute 'seconds': differs in 1 of 3 values, by at most 3"
    )


def test_an_epoch_that_only_one_of_two_runs_has_is_never_excused():
    """How long a training goes on is decided by its metrics, and by no clock."""
    metrics = {"loss": 0.5, "seconds": 1.0}
    (missing,) = compare_epochs({0: metrics, 1: metrics}, {0: metrics})
    assert (missing.name, missing.epoch) == ("epoch 2", 1)
    assert [difference.level for difference in judge([missing], [missing], None)] == ["error"]
    (measured,) = compare_epochs({0: metrics}, {0: {**metrics, "seconds": 2.0}})
    control = judge([measured], [measured], None)
    assert [difference.level for difference in control] == ["note"]


def test_the_replays_own_directory_stands_for_the_trials(tmp_path):
    state = copy.deepcopy(STATE)
    state["user_state"]["changed"]["callback Count"]["set"]["file"] = "/runs/trial/files/a.txt"
    moved = relocated(state, "/runs/trial/files", "/tmp/replay/files")
    assert moved != state
    one = write(tmp_path / "a", state)
    other = write(tmp_path / "bb", moved)
    assert len(compare_checkpoints(one, other)) == 1
    directories = ("/runs/trial/files", "/tmp/replay/files")
    assert compare_checkpoints(one, other, directories=directories) == []
    assert relocated("/runs/trial/files-of-another", "/runs/trial/files", "/x") == (
        "/runs/trial/files-of-another"
    )


WEIGHTS = Planted(["model/00000", 2])
COUNT = Planted([*USERS, "callback Count", "set", "count"])
SECONDS = Planted(["user_state/callback Count.seconds", 0])


@pytest.fixture
def replayed(tmp_path):
    """Compares a trial of two equal checkpoints with replays that end as is given."""
    whole = write(tmp_path / "whole")

    def compare(*runs, metrics=({}, {}), stored=None, measured=frozenset()):
        objects = UserObjects(NOBODY, NOBODY, (UserObject("Count", measured=measured),))
        ran = Ran([[path or whole for path in replay] for replay in runs], metrics, objects)
        return compared(ran, [whole, whole], tmp_path / "replays", stored=stored), ran.number

    return compare


SAME = (None, None)


def test_a_replay_that_is_the_same_is_run_once(replayed):
    comparison, runs = replayed(SAME, metrics=[{"loss": 0.5}], stored={"loss": 0.5})
    assert (runs, comparison.again, comparison.repeats, comparison.differences) == (
        1,
        None,
        None,
        [],
    )
    assert [*comparison.checkpoints] == [(8, 1), (16, 2)]


@pytest.mark.parametrize("repeats", [True, False])
def test_weights_that_differ_are_run_again_and_are_never_excused(replayed, tmp_path, *, repeats):
    changed = WEIGHTS.write(tmp_path / "changed", 5.0)
    other = changed if repeats else WEIGHTS.write(tmp_path / "again", 6.0)
    comparison, runs = replayed((changed, changed), (other, other))
    assert runs == 2
    assert comparison.repeats is repeats
    assert [difference.component for difference in errors(comparison.differences)] == [
        "model",
        "model",
    ]


def test_the_second_replay_excuses_a_measured_value_that_first_differs_at_the_last_checkpoint(
    replayed, tmp_path
):
    early = COUNT.write(tmp_path / "early", 4)
    late = COUNT.write(tmp_path / "late", 4, also=(SECONDS.where, 9.0))
    timed = COUNT.write(tmp_path / "timed", 4, also=(SECONDS.where, 8.0))
    comparison, _ = replayed((early, late), (early, timed))
    # The time differs between the replays, and the counter does not.
    notes = {difference.name for difference in comparison.differences if difference.level == "note"}
    assert notes == {"callback Count, attribute 'seconds'"}
    counted = {difference.name for difference in errors(comparison.differences)}
    assert counted == {"callback Count, attribute 'count'"}
    assert comparison.repeats is True, "what is measured says nothing of it"


def test_a_measured_metric_is_excused_by_a_whole_second_replay_and_an_objective_never(replayed):
    reference = {"loss": 0.5, "seconds": 1.0}
    metrics = [{"loss": 0.25, "seconds": 2.0}, {"loss": 0.75, "seconds": 3.0}]
    comparison, runs = replayed(SAME, SAME, metrics=metrics, stored=reference)
    assert runs == 2
    assert {(difference.path, difference.level) for difference in comparison.differences} == {
        (f"history/epochs/{epoch}/1/{name}", level)
        for epoch in (0, 1)
        for name, level in (("loss", "error"), ("seconds", "note"))
    }
    assert comparison.repeats is False


@pytest.mark.parametrize(("measured", "level"), [("seconds", "note"), ("others", "error")])
def test_a_metric_of_a_clock_that_two_replays_have_alike_is_excused_by_who_measures_it(
    replayed, measured, level
):
    """A rounded time is easily the same in two replays."""
    metrics = [{"seconds": 2.0}] * 2
    reference = {"seconds": 1.0}
    arguments = {"metrics": metrics, "stored": reference, "measured": frozenset({measured})}
    comparison, _ = replayed(SAME, SAME, **arguments)
    assert {difference.level for difference in comparison.differences} == {level}
