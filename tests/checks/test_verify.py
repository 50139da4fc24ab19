"""`sweeper verify` on real trials: what is untouched holds, and what was changed is found and named."""

import json
import re
import shutil
import signal
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from checkpoints_on_disk import commit
from databases import opened_database
from disk_contents import digests
from recorded_replays import RecordedReplays
from scripted_trials import definition, row_of
from study_files import StudyText
from sweeps import RunningCommand, sweep, sweep_inline, trials_in

from sweeper import load_study
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.cli.main import main
from sweeper.db.attempts import Ending
from sweeper.db.repository import Repository, WorkerIdentity

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


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The runs of the study, which are never touched again, and its replays, each run once."""
    directory = tmp_path_factory.mktemp("verified")
    sweep(STUDY.write(directory / "small.py"), directory / "runs")
    return directory / "runs", RecordedReplays(directory / "replays")


@dataclass(frozen=True)
class Copy:
    """The study's database and files, to be changed."""

    runs: Path
    capsys: pytest.CaptureFixture[str]

    def execute(self, statement, *values):
        with closing(sqlite3.connect(self.runs / "sweeper.db")) as database, database:
            assert database.execute(statement, values).rowcount == 1

    def ask(self, query, *values):
        with closing(sqlite3.connect(self.runs / "sweeper.db")) as database:
            return database.execute(query, values).fetchone()[0]

    def checkpoints(self, number=EXACT):
        return sorted((self.runs / f"small/trial-{number:05d}").glob("attempt-*/**/step-*"))

    def trial_id(self, number=EXACT):
        return int(self.ask("SELECT id FROM sweeper_trials WHERE number = ?", number))

    def optuna_id(self, number=EXACT):
        return int(self.ask("SELECT optuna_trial_id FROM sweeper_trials WHERE number = ?", number))

    def verify(self, number=EXACT, *words):
        """Return the report of ``sweeper verify`` on a trial, which is what is stored."""
        flags = ("--runs-dir", str(self.runs), "--json")
        code = main(["verify", "small", "--trial", str(number), *words, *flags])
        output = self.capsys.readouterr()
        assert output.out, output.err
        [trial] = json.loads(output.out)["trials"]
        assert code == (4 if trial["verdict"] == "differs" else 0)
        verification = trials_in(self.runs)[number].verification
        assert verification.report == trial
        for name in ("verdict", "epoch", "step", "variable"):
            assert getattr(verification, name) == trial[name]
        return trial


@pytest.fixture
def copy(ran, tmp_path, monkeypatch, capsys):
    runs, replays = ran
    monkeypatch.setattr("sweeper.run.replays.run_again", replays.run)
    shutil.copytree(runs, tmp_path / "runs")
    return Copy(tmp_path / "runs", capsys)


def errors(trial):
    return [finding for finding in trial["findings"] if finding["level"] == "error"]


def test_untouched_trials_hold_and_one_that_reads_random_bytes_does_not(
    ran, copy, tmp_path, capsys, monkeypatch
):
    """The whole command: a trial whose data come from ``os.urandom`` is its negative control."""
    monkeypatch.setattr("sweeper.run.replays.run_again", ran[1].run_anew)
    originals = digests(copy.runs)
    flags = ("--runs-dir", str(copy.runs))
    report_file = tmp_path / "r.json"
    code = main(["verify", "small", "--all", "--report", str(report_file), *flags])
    output = capsys.readouterr()
    assert code == 4, output.err
    report = json.loads(report_file.read_text())
    verdicts = {trial["number"]: trial["verdict"] for trial in report["trials"]}
    assert verdicts == {EXACT: "holds", FORGETFUL: "holds", RANDOM: "differs", PRUNED: "holds"}
    assert report["holds"] is False
    random = report["trials"][RANDOM]
    assert random["epoch"] == 0
    assert random["variable"].startswith("model variable 1 (")
    assert digests(copy.runs) == originals, "the study's own directory was written to"
    assert "trial 0 holds: final digest, value, 3 epochs, 2 checkpoints equal" in output.out
    assert "trial 2 DIFFERS" in output.out
    assert "no known difference of the environment explains the difference" in output.out
    assert output.out.endswith("3 of 4 verified trials hold\n")
    assert "trial 0 epoch 3/3" in output.err
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
    (finding,) = errors(trial)
    assert (trial["verdict"], trial["step"], trial["epoch"]) == ("differs", 4, None)
    assert str(file) in finding["message"]
    assert finding["subject"].startswith("model variable 1 (")
    assert finding["subject"].endswith("kernel)")
    assert trial["variable"] == finding["subject"]
    assert "tensor 'model/00001' has the digest" in finding["message"]
    assert file.read_bytes() == bytes_of_file, "who would resume from it renames it"


def test_a_checkpoint_that_was_replaced_by_a_whole_one_is_found(copy):
    """Its manifest fits its files; only the database and the replay know better."""
    path = copy.checkpoints()[1]
    loaded = load_checkpoint(path)
    tensors = dict(loaded.tensors)
    tensors["optimizer/00002"] = tensors["optimizer/00002"] + 0.25
    shutil.rmtree(path)
    position = {"step": loaded.step, "epoch": loaded.epoch}
    commit(path.parent, tensors, loaded.state, **position, metrics=loaded.metrics)
    trial = copy.verify()
    checkpoint, tensor = errors(trial)
    assert checkpoint["subject"] == "digest"
    assert tensor["message"].startswith("the checkpoint of step 6: optimizer variable 2 (")
    assert (trial["step"], trial["epoch"]) == (6, 2)
    assert trial["variable"].startswith("optimizer variable 2 (")
    assert "by at most 0.25" in tensor["message"]


def test_the_model_as_training_left_it_is_compared_and_its_damage_is_found(copy):
    """No checkpoint's digest vouches for it: it may hold weights that were put back at the end."""
    place = copy.runs / "small/trial-00000/end"
    last = load_checkpoint(copy.checkpoints()[-1])
    tensors = {
        name: last.tensors[name].copy() for name in last.tensors if name.startswith("model/")
    }
    state = {"model": last.state["model"], "same_as": None}

    def end():
        shutil.rmtree(place)
        return commit(place, tensors, state, step=last.step, epoch=last.epoch)

    end()
    assert errors(copy.verify()) == [], "the same model, kept whole"
    tensors["model/00001"].flat[0] += 1
    path = end()
    (finding,) = errors(copy.verify())
    assert finding["message"].startswith(
        f"the model at the end: model variable 1 ({last.state['model'][1]}): differs in 1 of "
    )
    (path / "tensors.safetensors").write_bytes(b"torn")
    (finding,) = errors(copy.verify())
    assert finding["subject"] == "file"
    assert str(place) in finding["message"]
    shutil.rmtree(place)
    trial = copy.verify()
    assert trial["verdict"] == "holds"
    assert "has no stored model at the end" in trial["findings"][-1]["message"]


def test_a_logged_metric_changed_in_the_database_is_found_with_all_its_values(copy):
    where = "trial_id = ? AND epoch = 1"
    text = copy.ask(f"SELECT metrics FROM sweeper_epochs WHERE {where}", copy.trial_id())
    metrics = json.loads(text)
    rate = metrics["learning_rate"]
    metrics["learning_rate"] = rate + 2**-20
    copy.execute(
        f"UPDATE sweeper_epochs SET metrics = ? WHERE {where}", json.dumps(metrics), copy.trial_id()
    )
    trial = copy.verify()
    (finding,) = errors(trial)
    assert finding["subject"] == "the history's 'learning_rate' of epoch 2"
    assert finding["epoch"] == 1
    assert trial["message"] == (
        f"the history's 'learning_rate' of epoch 2: {rate + 2**-20!r} in the trial, "
        f"{rate!r} in its replay"
    )


def test_any_other_stored_result_that_was_changed_is_found(copy):
    wrong = "0" * 32
    trial_id = copy.trial_id()
    optuna = copy.optuna_id()
    copy.execute("UPDATE sweeper_trials SET digest = ? WHERE id = ?", wrong, trial_id)
    copy.execute(
        "UPDATE sweeper_checkpoints SET digest = ? WHERE trial_id = ? AND step = 4", wrong, trial_id
    )
    copy.execute("UPDATE trial_values SET value = 0.5 WHERE trial_id = ?", optuna)
    trial = copy.verify()
    mismatches = [
        (finding["subject"], finding["epoch"], finding["step"]) for finding in errors(trial)
    ]
    assert mismatches == [
        ("digest", None, 4),
        ("digest", None, 6),
        ("the final value (loss)", 2, None),
    ]
    message = "\n".join(finding["message"] for finding in errors(trial))
    assert "the final value (loss): 0.5 in the trial, " in message
    assert f", but {wrong} in the database" in message
    assert (
        f"the trial's digest is {wrong}, but that of its last checkpoint, at step 6, is " in message
    )
    assert f"the final digest: '{wrong}' in the trial, " in message


def test_a_parameter_changed_in_the_database_shows_in_what_the_replay_trains(copy):
    copy.execute("UPDATE trial_params SET param_value = 0.05 WHERE trial_id = ?", copy.optuna_id())
    trial = copy.verify()
    assert (trial["verdict"], trial["epoch"]) == ("differs", 0)
    assert "'learning_rate' of epoch 1" in trial["message"]
    assert " in the trial, 0.05" in trial["message"]


def test_a_replay_that_is_killed_and_resumed_equals_the_trial(copy):
    trial = copy.verify(EXACT, "--interrupt", "--seed", "3")
    assert trial["verdict"] == "holds", trial["message"]
    assert (trial["replay"]["starts"], trial["replay"]["killed_at"]) == ([0, 1], 2)
    assert trial["message"].endswith("killed at step 2 and resumed at step 1")


def test_a_trial_of_two_steps_is_too_short_for_a_kill(tmp_path, capsys):
    arguments = STUDY.arguments.replace("epochs=3, trials=4", "epochs=1, trials=1")
    sweep_inline(replace(STUDY, arguments=arguments), tmp_path)
    trial = Copy(tmp_path / "runs", capsys).verify(EXACT, "--interrupt")
    assert trial["verdict"] == "holds"
    messages = {finding["subject"]: finding["message"] for finding in trial["findings"]}
    assert messages["replay"] == "the trial is too short for a kill"


def test_a_replay_inside_the_commands_process_is_refused(copy, monkeypatch, capsys):
    monkeypatch.setenv("SWEEPER_ISOLATION", "inline")
    assert main(["verify", "small", "--runs-dir", str(copy.runs)]) == 2
    assert "every replay needs a fresh process" in capsys.readouterr().err


def test_a_callback_that_forgets_shows_only_when_the_replay_is_interrupted(copy):
    """The negative control of the kill: an undisturbed replay of this trial holds."""
    trial = copy.verify(FORGETFUL, "--interrupt", "--seed", "1")
    assert trial["replay"]["starts"] == [0, 3], "in the second epoch"
    assert trial["verdict"] == "differs"
    notes = [finding["message"] for finding in trial["findings"] if finding["subject"] == "replay"]
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
    explanations = [
        finding["message"] for finding in trial["findings"] if finding["subject"] == "environment"
    ]
    assert trial["verdict"] == "differs"
    assert explanations[0].startswith("tensorflow was 2.20.0 and is 2.")
    assert explanations[1].startswith("onednn was 2 and is ")


@pytest.mark.whole
def test_a_study_without_determinism_is_promised_nothing_and_still_must_not_contradict_itself(
    tmp_path, capsys
):
    study = replace(
        STUDY,
        data=STUDY.data.replace("trial.number == 2", "True"),
        arguments=f"{STUDY.arguments}, deterministic=False",
    )
    sweep(study.write(tmp_path / "small.py"), tmp_path / "runs", trials=1)
    study_copy = Copy(tmp_path / "runs", capsys)
    trial = study_copy.verify()
    assert trial["verdict"] == "unpromised"
    assert errors(trial) == []
    assert any(finding["level"] == "warning" for finding in trial["findings"])
    assert "exactness is not promised (deterministic=False)" in trial["message"]
    study_copy.execute("UPDATE sweeper_trials SET digest = '0'")
    assert study_copy.verify()["verdict"] == "differs"


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


@pytest.fixture
def digits(tmp_path, capsys):
    """A study of which nothing has begun, and its ``sweeper verify``, which is refused with these words."""
    runs = tmp_path / "runs"
    row = row_of(definition(name="digits", epochs=3, trials=4, objective="val_loss").settings())

    def refused(message, *words):
        assert main(["verify", "digits", *words, "--runs-dir", str(runs)]) != 0
        assert message in capsys.readouterr().err

    with opened_database(runs / "sweeper.db") as database:
        repository = Repository(database)
        repository.create_or_open(row)
        yield repository, row, refused


def begin(repository):
    return repository.claim("digits", WorkerIdentity.here(), lambda number: number).token


def test_a_trial_that_has_no_result_yet_cannot_be_verified_and_it_is_said_why(digits):
    repository, _, refused = digits
    refused("has no trial to verify, none has begun; run it first", "--all")
    refused("there is no best trial")
    repository.finish(begin(repository), Ending("failed", error="no such layer"))
    begin(repository)
    listed = "trial 0 failed, so it has no result to compare; `sweeper retry` gives it another"
    refused(listed, "--all")
    refused("trial 0 of study 'digits' failed, so it has no result to compare", "--trial", "0")
    refused("trial 1 of study 'digits' is running, not finished", "--trial", "1")
    refused("no trial 4", "--trial", "4")


def test_a_trial_from_before_an_accepted_change_cannot_be_verified(digits):
    repository, row, refused = digits
    repository.finish(begin(repository), Ending("complete", end_step=9, digest="0", value=0.5))
    repository.accept_definition(replace(row, definition={**row.definition, "epochs": 5}))
    message = (
        "trial 0 of study 'digits' began before the study's definition was changed (epochs was 3"
    )
    refused(message, "--trial", "0")


def test_a_study_object_and_a_trials_record_verify_as_the_command_does(ran, copy):
    study = load_study(ran[0].parent / "small.py")
    places = {"storage": f"sqlite:///{copy.runs / 'sweeper.db'}", "runs_dir": copy.runs}
    report = study.verify(trial=EXACT, **places)
    assert (report.holds, [trial.number for trial in report.trials]) == (True, [EXACT])
    assert str(report).endswith("1 of 1 verified trials hold")
    one = study.results(**places)[RANDOM].verify()
    assert one.verdict == "differs"
    assert "trial 2 DIFFERS" in one._repr_html_()
    assert trials_in(copy.runs)[RANDOM].verification.verdict == "differs"
