"""The verbs that tell a study something, and the conditions of those that read, on a real database."""

import csv
import gc
import io
import json
from pathlib import Path

import optuna
import pytest
from optuna_view import closing
from stored_study import defined, take

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.space import Categorical, FloatRange

VALUES = (0.5, 0.9, 0.7)


@pytest.fixture
def repository(bare_directory):
    """The database of the current directory, with three complete trials of the study `digits`."""
    Path("runs").mkdir()
    with Database.open("sqlite:///runs/sweeper.db", create=True) as database:
        repository = Repository(database)
        repository.create_or_open(defined(sampler="tpe"))
        for number, value in enumerate(VALUES):
            claimed = take(repository)
            kinds = Categorical(("a", "b"))
            repository.record_parameter(claimed.token, "lr", FloatRange(0.0, 1.0), number / 10)
            repository.record_parameter(claimed.token, "kind", kinds, "ab"[number % 2])
            repository.finish(claimed.token, Ending("complete", 3, value, f"{number}" * 32))
        yield repository


def numbers(answer):
    assert answer.code == 0, answer.err
    return [trial["number"] for trial in answer.json]


def observed(repository):
    return [(o.params, o.values[0], o.source) for o in repository.status("digits").observations]


FILES = {
    "plain.csv": "lr,kind,value\n0.3,a,0.8\n0.4,,0.6\n",
    "objective.csv": "\ufefflr,val_accuracy,kind\n0.3,0.8,a\n0.4,0.6,\n",
    "optuna.csv": ",number,value,state,params_lr,params_kind\n0,0,0.8,COMPLETE,0.3,a\n"
    "1,1,0.6,COMPLETE,0.4,\n2,2,,FAIL,0.5,a\n",
    "plain.json": json.dumps(
        [{"params": {"lr": 0.3, "kind": "a"}, "value": 0.8}, {"params": {"lr": 0.4}, "value": 0.6}]
    ),
    "status.json": json.dumps(
        {
            "trials": [
                {"params": {"lr": 0.3, "kind": "a"}, "value": 0.8, "state": "complete"},
                {"params": {"lr": 0.4}, "value": 0.6, "state": "complete"},
                {"params": {"lr": 0.4}, "value": None, "state": "running"},
            ]
        }
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_form_give_the_same_observations(name, call, repository):
    Path(name).write_text(FILES[name])
    answer = call("observe", "digits", name)
    assert answer.code == 0, answer.err
    assert answer.out == f"2 new observations from {name}\n"
    assert answer.err == "  trials from 3 on draw their parameters with them\n"
    params = [{"lr": 0.3, "kind": "a"}, {"lr": 0.4}]
    assert observed(repository) == [(params[0], 0.8, name), (params[1], 0.6, name)]
    again = call("observe", "digits", name)
    assert again.out == f"0 new observations from {name} (2 were there already)\n"


def test_what_status_prints_can_be_observed(call, repository):
    for option in ("--csv", "--json"):
        Path(f"own.{option[2:]}").write_text(call("status", "digits", option).out)
        assert call("observe", "digits", f"own.{option[2:]}").code == 0
    values = [(p["lr"], p["kind"], v) for p, v, _ in observed(repository)]
    assert values == [(0.0, "a", 0.5), (0.1, "b", 0.9), (0.2, "a", 0.7)] * 2


# Optuna leaves its connection open where the text is refused.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_an_optuna_study_is_observed_from_its_database(call, repository):
    storage = "sqlite:///optuna.db"
    with closing(optuna.storages.RDBStorage(storage)) as opened:
        for name in ("other", "another"):
            study = optuna.create_study(storage=opened, study_name=name, direction="maximize")
            study.add_trial(
                optuna.trial.create_trial(
                    params={"lr": 0.3},
                    distributions={"lr": optuna.distributions.FloatDistribution(0, 1)},
                    value=0.8,
                )
            )
            study.enqueue_trial({"lr": 0.9})
        optuna.create_study(storage=opened, study_name="loss", direction="minimize")
    answer = call("observe", "digits", "--from-optuna", storage)
    assert answer.code == 2
    assert (
        "has several studies; its studies are 'other', 'another', 'loss': name one with"
        in answer.err
    )
    answer = call("observe", "digits", "--from-optuna", storage, "--optuna-study", "loss")
    assert "'loss' is to minimize, and this study to maximize" in answer.err
    answer = call("observe", "digits", "--from-optuna", storage, "--optuna-study", "other")
    assert answer.out == "1 new observation from other\n"
    assert observed(repository) == [({"lr": 0.3}, 0.8, "other")]
    answer = call("observe", "digits", "--from-optuna", "sqlite:///none.db")
    assert answer.code == 1
    assert "sqlite:///none.db: there is no such file" in answer.err
    assert not Path("none.db").exists()
    Path("text.db").write_text("no database, and long enough to be none")
    answer = call("observe", "digits", "--from-optuna", "sqlite:///text.db")
    assert "cannot be read as a database of Optuna's: " in answer.err
    gc.collect()


def test_a_study_of_another_database_of_ours_is_observed(call, repository):
    answer = call(
        "observe",
        "digits",
        "--from-optuna",
        "sqlite:///runs/sweeper.db",
        "--optuna-study",
        "digits",
    )
    assert answer.out == "3 new observations from digits\n"


def test_observations_are_shown_as_what_they_are(call, repository):
    Path("old.csv").write_text("lr,value\n0.3,99\n7,0.1\n")
    answer = call("observe", "digits", "old.csv")
    assert (
        "  1 with a value outside of the present ranges, which the sampler ignores\n" in answer.err
    )
    take(repository)
    shown = "2 observations for the sampler, no trials: 2 from old.csv, used from trial 3 on"
    assert shown in call("status", "digits").out
    assert "drawn with" not in call("show", "digits", "2").out
    assert "drawn with    2 observations for the sampler" in call("show", "digits", "3").out
    assert call("ls").out.splitlines() == [
        "study   done  running  failed  waiting  best  trial  observations",
        "digits   3/4        1       0        0   0.9      1             2",
    ]
    assert call("best", "digits", "--json").json["value"] == 0.9
    status = call("status", "digits", "--json").json
    assert (status["best"]["number"], len(status["observations"])) == (1, 2)
    answer = call("observe", "digits", "--clear")
    assert answer.out == "2 observations of study digits withdrawn\n"
    assert "2 from old.csv, used by trial 3\n" in call("status", "digits").out


BAD = {
    "columns.csv": ("lr,score\n0.1,1\n", 1, "no column for the value of 'val_accuracy'; expected one of"),
    "names.csv": ("lrr,value\n0.1,1\n", 2, "'lrr', which names.csv has; the trials' parameters"),
    "missing.csv": ("lr,value\n0.1,\n", 1, "missing.csv[0] has 0 values, and the study has 1 objective"),
    "nan.csv": ("lr,value\n0.1,nan\n", 1, "nan.csv[0] has the value nan; expected a finite number"),
    "text.csv": ("lr,value\n0.1,good\n", 1, "text.csv[0] has the value 'good'"),
    "empty.csv": ("", 1, "no column for the value"),
    "header.csv": ("lr,value\n", 1, "header.csv has no complete result; expected one at least"),
    "form.json": ("[{", 1, "form.json cannot be read: "),
    "bytes.csv": ("\udcff", 1, "bytes.csv cannot be read: "),
    "entry.json": ("[3]", 1, "entry.json[0]=3; give a mapping as in"),
    "kind.txt": ("lr,value\n", 1, "kind.txt: the name does not end in .csv or .json"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_and_nothing_is_stored(name, call, repository):
    text, code, message = BAD[name]
    Path(name).write_bytes(text.encode("utf-8", "surrogateescape"))
    answer = call("observe", "digits", name)
    assert answer.code == code
    assert message in answer.err
    assert observed(repository) == []


def test_what_to_observe_is_said_once(call, repository):
    for words in ((), ("a.csv", "--from-optuna", "sqlite:///x.db")):
        answer = call("observe", "digits", *words)
        assert answer.code == 2
        assert "give a file, or --from-optuna URL, or --clear" in answer.err
    answer = call("observe", "digits", "a.csv", "--optuna-study", "x")
    assert "--optuna-study x without --from-optuna" in answer.err
    assert "a.csv cannot be read: No such file" in call("observe", "digits", "a.csv").err


def test_trials_are_tagged_noted_hidden_and_listed_by_it(call, repository):
    assert call("tag", "digits", "0", "good").out == "trial 0 of study digits: good\n"
    call("note", "digits", "2", "diverged twice")
    answer = call("hide", "digits", "1")
    assert answer.out == "trial 1 of study digits is hidden\n"
    assert answer.err == "  the sampler still uses the result; --undo shows it again\n"
    assert call("ls", "digits").out.splitlines() == [
        "trial  state     value  epochs  tags  note             lr  kind",
        "    2  complete    0.7  0 of 3  -     diverged twice  0.2     a",
        "    0  complete    0.5  0 of 3  good  -                 0     a",
        "1 hidden trial: --all lists them",
    ]
    listed = call("ls", "digits", "--all").out
    assert "    1  complete, hidden    0.9" in listed
    assert "hidden: trial 1" in call("status", "digits").out
    assert call("best", "digits", "--json").json["number"] == 2
    for words, note in (("1", "not listed, and never the best one"), ("2", "diverged twice")):
        assert note in call("show", "digits", words).out
    assert [t.get("hidden") for t in call("status", "digits", "--json").json["trials"]] == [
        None, True, None,
    ]  # fmt: skip
    assert call("hide", "digits", "1", "--undo").out == "trial 1 of study digits is shown again\n"
    assert (
        call("tag", "digits", "0", "good", "--remove").out == "trial 0 of study digits: no tags\n"
    )
    assert call("note", "digits", "2", "").out == "trial 2 of study digits: no note\n"
    assert call("best", "digits", "--json").json["number"] == 1


def test_conditions_select_and_several_all_hold(call, repository):
    call("tag", "digits", "0", "good")

    def listed(*conditions):
        words = [word for text in conditions for word in ("--where", text)]
        return numbers(call("ls", "digits", "--json", *words))

    assert listed() == [1, 2, 0]
    assert listed("lr<0.15") == [1, 0]
    assert listed("lr <= 1e-1", "kind=a") == [0]
    assert listed("kind!=b", "value>=0.7") == [2]
    assert listed("tag=good") == [0]
    assert listed("tag!=good", "number!=2") == [1]
    assert listed("state=complete", "lr==0.1") == [1]
    assert listed("state=failed") == []
    assert "no trial of study digits is to be listed" in call("ls", "digits", "--where", "lr>5").out
    assert call("best", "digits", "--where", "kind=a", "--json").json["number"] == 2
    assert (
        "meets lr>5 and kind=a"
        in call("best", "digits", "--where", "lr>5", "--where", "kind=a").err
    )
    assert numbers(call("show", "digits", "--where", "kind=a", "--json")) == [0, 2]
    shown = call("show", "digits", "--where", "kind=a").out
    assert "Trial 0 of digits" in shown
    assert "Trial 2 of digits" in shown
    rows = list(csv.DictReader(io.StringIO(call("ls", "digits", "--csv").out)))
    assert [row["number"] for row in rows] == ["1", "2", "0"]


BAD_CONDITIONS = {
    "lr": "'lr' is not a condition; write a name, one of",
    "lr<": "'lr<' is not a condition",
    "lrr<0.1": "tag, state, value, number; did you mean 'lr'?",
    "rate<0.1": "no trial has a 'rate'; it is one of lr, kind, tag, state, value, number",
    "kind<3": "orders 'a' of trial 0; only numbers have an order",
    "lr<small": "only numbers have an order: write = or !=",
    "tag<good": "tags have no order; write tag=… or tag!=…",
}


@pytest.mark.parametrize(("text", "message"), BAD_CONDITIONS.items(), ids=BAD_CONDITIONS)
def test_a_bad_condition_is_a_wrong_use(text, message, call, repository):
    for verb in ("ls", "best", "show"):
        answer = call(verb, "digits", "--where", text)
        assert answer.code == 2
        assert message in answer.err


def test_conditions_need_a_study_or_no_number(call, repository):
    assert "--where is for the trials of a study" in call("ls", "--where", "lr<1").err
    assert "--all is for the trials of a study" in call("ls", "--all").err
    for words in ((), ("1", "--where", "lr<1")):
        assert "give the number of a trial, or conditions" in call("show", "digits", *words).err
