"""`sweeper verify` on real trials: what is untouched holds, and what was changed is found and named."""

import hashlib
import json
import re
import shutil
import signal
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from recorded_replays import RecordedReplays
from study_files import StudyText
from sweeps import RunningCommand, database_url, sweep

from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.reading import load_checkpoint, read_manifest
from sweeper.checkpoint.store import CheckpointStore
from sweeper.checks.verify import VerifyRequest, verify_with, where_to_kill
from sweeper.cli.main import main
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.definition.definition import StudySettings
from sweeper.run import replays
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.options import WorkerOptions
from sweeper.run.protocol.messages import StudySource

STUDY = StudyText(
    head="""
    import optuna

    class Forgetful(keras.callbacks.Callback):
        "Lowers the learning rate at each epoch, and forgets how often when it is resumed."

        def on_train_begin(self, logs=None):
            self.times = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.times += 1
            self.model.optimizer.learning_rate = 0.01 / self.times

        def get_state(self):
            return {}

        def set_state(self, state):
            self.times = 0
    """,
    data="""
    if trial.number == 2:
        x = x + np.frombuffer(os.urandom(3200), "uint8").reshape(200, 16).astype("float32")
    return Data(train=(x[:16], y[:16]), batch_size=8)
    """,
    callbacks="""
        *([Forgetful()] if trial.number == 1 else []),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1),
    """,
    rate="""trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True) * (
        1e6 if trial.number == 3 else 1
    )""",
    eager=True,
    arguments="""objective="loss", epochs=3, trials=4, sampler="random", audit="off",
    pruner=optuna.pruners.ThresholdPruner(upper=1000.0)""",
)
"""Trial 0 is exact; 1 forgets when it is resumed; 2 reads random bytes; 3 diverges and is pruned."""

EXACT, FORGETFUL, RANDOM, PRUNED = range(4)


@dataclass(frozen=True)
class Ran:
    """The study, run once and never touched again, what starts its replays, and those that were run."""

    file: Path
    runs: Path
    launcher: Launcher
    replays: RecordedReplays


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    directory = tmp_path_factory.mktemp("verified")
    file = STUDY.write(directory / "small.py")
    source = StudySource("target", str(file), "small")
    sweep(file, directory / "runs")
    with open_launcher(source, "auto", pytest.fail) as (launcher, _):
        yield Ran(file, directory / "runs", launcher, RecordedReplays(directory / "replays"))


@dataclass(frozen=True)
class Copy:
    """The study's database and files, to be changed."""

    runs: Path
    launcher: Launcher

    def execute(self, statement, *values):
        with sqlite3.connect(self.runs / "sweeper.db") as database:
            assert database.execute(statement, values).rowcount == 1

    def ask(self, query, *values):
        with sqlite3.connect(self.runs / "sweeper.db") as database:
            return database.execute(query, values).fetchone()[0]

    def checkpoints(self, number=EXACT):
        return sorted((self.runs / f"small/trial-{number:05d}").glob("attempt-*/**/step-*"))

    def trial_id(self, number=EXACT):
        return int(self.ask("SELECT id FROM sweeper_trials WHERE number = ?", number))

    def optuna_id(self, number=EXACT):
        return int(self.ask("SELECT optuna_trial_id FROM sweeper_trials WHERE number = ?", number))

    def verify(self, number=EXACT, *, interrupt=False, seed=0):
        url = database_url(self.runs)
        with Database.open(url, create=False) as database:
            repository = Repository(database)
            settings = StudySettings.from_json(repository.study("small").definition)
            request = VerifyRequest(
                study="small",
                which=number,
                interrupt=interrupt,
                seed=seed,
                options=WorkerOptions(1, url, self.runs),
                listener=lambda _: None,
            )
            found = verify_with(request, repository, settings, self.launcher)
            stored = repository.trial("small", number).verification
        (trial,) = found.trials
        assert (stored.verdict, stored.epoch, stored.step, stored.variable) == (
            trial.verdict,
            trial.epoch,
            trial.step,
            trial.variable,
        )
        assert stored.report == json.loads(json.dumps(trial.to_json()))
        return trial


@pytest.fixture
def copy(ran, tmp_path, monkeypatch):
    monkeypatch.setattr(replays, "run_again", ran.replays.run)
    shutil.copytree(ran.runs, tmp_path / "runs")
    return Copy(tmp_path / "runs", ran.launcher)


def errors(trial):
    return [finding for finding in trial.findings if finding.level == "error"]


def files(runs):
    """The digest of every file of the study, the database's own aside."""
    return {
        str(path.relative_to(runs)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(runs.rglob("*"))
        if path.is_file() and not path.name.startswith("sweeper.db")
    }


def test_untouched_trials_hold_and_one_that_reads_random_bytes_does_not(
    ran, copy, tmp_path, capsys, monkeypatch
):
    """The whole command: a trial whose data come from ``os.urandom`` is its negative control."""
    monkeypatch.setattr(replays, "run_again", ran.replays.run_anew)
    before = files(copy.runs)
    flags = ("--runs-dir", str(copy.runs))
    report_file = tmp_path / "r.json"
    code = main(["verify", "small", "--all", "--report", str(report_file), *flags])
    done = capsys.readouterr()
    assert code == 4, done.err
    report = json.loads(report_file.read_text())
    verdicts = {trial["number"]: trial["verdict"] for trial in report["trials"]}
    assert verdicts == {EXACT: "holds", FORGETFUL: "holds", RANDOM: "differs", PRUNED: "holds"}
    assert report["holds"] is False
    random = report["trials"][RANDOM]
    assert (random["epoch"], random["explanations"]) == (0, [])
    assert random["variable"].startswith("model variable 1 (")
    assert files(copy.runs) == before, "the study's own directory was written to"
    assert "trial 0 holds: final digest, value, 3 epochs, 2 checkpoints equal" in done.out
    assert "trial 2 DIFFERS" in done.out
    assert "no known difference of the environment explains it" in done.out
    assert done.out.endswith("3 of 4 verified trials hold\n")
    assert "trial 0 epoch 3/3" in done.err
    assert main(["show", "small", str(RANDOM), "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["verification"]["verdict"] == "differs"
    assert main(["show", "small", str(PRUNED), *flags]) == 0
    page = capsys.readouterr().out
    assert re.search(r"state +pruned", page)
    assert re.search(r"replayed +holds", page)


def test_a_bit_flipped_in_a_checkpoints_tensor_is_found_in_its_file_and_variable(copy):
    path = copy.checkpoints()[0]
    file = path / "tensors.safetensors"
    kernel = load_checkpoint(path).tensors["model/00001"].tobytes()
    bytes_of_file = bytearray(file.read_bytes())
    bytes_of_file[bytes(bytes_of_file).index(kernel) + 17] ^= 4
    file.write_bytes(bytes_of_file)
    trial = copy.verify()
    (found,) = errors(trial)
    assert (trial.verdict, trial.step, trial.epoch) == ("differs", 4, None)
    assert found.file == str(file)
    assert found.variable.startswith("model variable 1 (")
    assert found.variable.endswith("kernel)")
    assert "tensor 'model/00001' has the digest" in found.message
    assert file.read_bytes() == bytes_of_file, "it is set aside by who would resume from it"


def test_a_checkpoint_that_was_replaced_by_a_whole_one_is_found(copy):
    """Its manifest fits its files; only the database and the replay know better."""
    path = copy.checkpoints()[1]
    loaded = load_checkpoint(path)
    tensors = dict(loaded.tensors)
    tensors["optimizer/00002"] = tensors["optimizer/00002"] + 0.25
    names = read_manifest(path).digest_names
    shutil.rmtree(path)
    CheckpointStore(path.parent).commit(
        Snapshot(loaded.step, loaded.epoch, tensors, loaded.state, loaded.metrics, names)
    )
    trial = copy.verify()
    assert [finding.what for finding in errors(trial)] == ["checkpoint", "tensor"]
    assert trial.step == 6
    assert trial.epoch == 2
    assert trial.variable.startswith("optimizer variable 2 (")
    assert "by at most 0.25); 1 of " in errors(trial)[1].message


def test_the_model_as_training_left_it_is_compared_and_its_damage_is_found(copy):
    """No checkpoint's digest vouches for it: it may hold weights that were put back at the end."""
    place = copy.runs / "small/trial-00000/end"
    last = load_checkpoint(copy.checkpoints()[-1])
    tensors = {
        name: last.tensors[name].copy() for name in last.tensors if name.startswith("model/")
    }
    state = {"model": last.state["model"], "same_as": None}
    shutil.rmtree(place)
    whole = Snapshot(last.step, last.epoch, tensors, state, last.metrics, tuple(tensors))
    assert CheckpointStore(place).commit(replace(whole)).step == last.step
    assert errors(copy.verify()) == [], "the same model, kept whole"

    shutil.rmtree(place)
    tensors["model/00001"].flat[0] += 1
    path = CheckpointStore(place).commit(replace(whole)).path
    (finding,) = errors(copy.verify())
    assert finding.what == "tensor"
    assert finding.message.startswith(
        f"the model at the end: model variable 1 ({last.state['model'][1]}) is the first "
        "that differs (in 1 of "
    )
    (path / "tensors.safetensors").write_bytes(b"torn")
    (finding,) = errors(copy.verify())
    assert (finding.what, finding.file) == ("file", str(place))
    shutil.rmtree(place)
    trial = copy.verify()
    assert trial.verdict == "holds"
    assert "has no stored model at the end" in trial.findings[-1].message


def test_a_logged_metric_changed_in_the_database_is_found_with_all_its_values(copy):
    where = "trial_id = ? AND epoch = 1"
    text = copy.ask(f"SELECT metrics FROM sweeper_epochs WHERE {where}", copy.trial_id())
    metrics = json.loads(text)
    trained = metrics["learning_rate"]
    metrics["learning_rate"] = trained + 2**-20
    copy.execute(
        f"UPDATE sweeper_epochs SET metrics = ? WHERE {where}", json.dumps(metrics), copy.trial_id()
    )
    trial = copy.verify()
    (found,) = errors(trial)
    assert (found.what, found.epoch, found.variable) == ("metric", 1, "learning_rate")
    assert (found.stored, found.replayed) == (trained + 2**-20, trained)
    assert trial.message == (
        f"epoch 2: learning_rate is {trained + 2**-20!r} in the database and {trained!r} in the replay"
    )


def test_any_other_stored_result_that_was_changed_is_found(copy):
    wrong = "0" * 32
    own, optuna = copy.trial_id(), copy.optuna_id()
    copy.execute("UPDATE sweeper_trials SET digest = ? WHERE id = ?", wrong, own)
    copy.execute(
        "UPDATE sweeper_checkpoints SET digest = ? WHERE trial_id = ? AND step = 4", wrong, own
    )
    copy.execute("UPDATE trial_values SET value = 0.5 WHERE trial_id = ?", optuna)
    trial = copy.verify()
    found = [(finding.what, finding.epoch, finding.step) for finding in errors(trial)]
    assert found == [
        ("checkpoint", None, 4),
        ("digest", None, 6),
        ("value", 2, None),
        ("digest", 2, None),
    ]
    message = "\n".join(finding.message for finding in errors(trial))
    assert "the trial's value (loss) is 0.5, but the replay's is " in message
    assert f", but {wrong} in the database" in message
    assert (
        f"the trial's digest is {wrong}, but that of its last checkpoint, at step 6, is " in message
    )
    assert f"the final digest is {wrong}, but the replay's is " in message


def test_a_parameter_changed_in_the_database_shows_in_what_the_replay_trains(copy):
    copy.execute("UPDATE trial_params SET param_value = 0.05 WHERE trial_id = ?", copy.optuna_id())
    trial = copy.verify()
    assert (trial.verdict, trial.epoch) == ("differs", 0)
    rates = [
        e.replayed for e in errors(trial) if (e.what, e.variable) == ("metric", "learning_rate")
    ]
    assert rates[0] == pytest.approx(0.05)


def test_a_replay_that_is_killed_and_resumed_equals_the_trial(copy):
    trial = copy.verify(interrupt=True, seed=3)
    assert trial.verdict == "holds", trial.message
    first, second = trial.replay.starts
    assert trial.replay.killed_at is not None
    assert first == 0 < second < trial.replay.killed_at < 6
    assert trial.message.endswith(
        f"killed at step {trial.replay.killed_at} and resumed at step {second}"
    )


def test_a_callback_that_forgets_shows_only_when_the_replay_is_interrupted(copy):
    """The negative control of the kill: an undisturbed replay of this trial holds."""
    seed = next(s for s in range(100) if _killed_in_last_epoch(s, FORGETFUL))
    trial = copy.verify(FORGETFUL, interrupt=True, seed=seed)
    assert trial.verdict == "differs"
    assert trial.unexplained
    notes = [finding.message for finding in trial.findings if finding.what == "replay"]
    assert notes == ["a replay without a kill equals the trial: only the resumed replay differs"]


def test_a_difference_of_the_surroundings_is_said_and_may_explain_a_mismatch(copy):
    query = "SELECT fingerprint FROM sweeper_attempts WHERE trial_id = ?"
    fingerprint = json.loads(copy.ask(query, copy.trial_id(RANDOM)))
    fingerprint["versions"]["tensorflow"] = "2.20.0"
    fingerprint["onednn"] = "2"
    copy.execute(
        "UPDATE sweeper_attempts SET fingerprint = ? WHERE trial_id = ?",
        json.dumps(fingerprint),
        copy.trial_id(RANDOM),
    )
    trial = copy.verify(RANDOM)
    now = trial.explanations
    assert trial.verdict == "differs"
    assert now[0].startswith("tensorflow was 2.20.0 and is 2.")
    assert now[1].startswith("onednn was 2 and is ")


@pytest.mark.whole
def test_a_study_without_determinism_is_promised_nothing_and_still_must_not_contradict_itself(copy):
    definition = copy.ask("SELECT definition FROM sweeper_studies")
    changed = json.dumps({**json.loads(definition), "deterministic": False})
    copy.execute("UPDATE sweeper_studies SET definition = ?", changed)
    trial = copy.verify(RANDOM)
    assert trial.verdict == "unpromised"
    assert errors(trial) == []
    assert any(finding.by_replay and finding.level == "warning" for finding in trial.findings)
    assert "exactness is not promised (deterministic=False)" in trial.message
    copy.execute("UPDATE sweeper_trials SET digest = '0' WHERE number = ?", RANDOM)
    assert copy.verify(RANDOM).verdict == "differs"


def test_a_verification_that_is_interrupted_says_so_and_leaves_nothing_behind(copy, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ("verify", "small", "--all", "--workers", 1, "--runs-dir", copy.runs)
    with RunningCommand(*words, cwd=tmp_path, env={"TMPDIR": str(scratch)}) as running:
        assert running.wait_for("started") is not None
        assert list(scratch.iterdir()) != [], "the control"
        running.signal(signal.SIGINT)
        assert running.end() == 130
    assert "the verification was stopped" in running.err
    assert list(scratch.iterdir()) == []


def _killed_in_last_epoch(seed, number):
    """Whether a replay of a trial of 6 steps is resumed from a checkpoint of its last epoch's."""
    kill = where_to_kill(seed, number, 6)
    return kill is not None and 2 <= kill.checkpoint < 4
