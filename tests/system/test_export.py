"""`sweeper export` from a shell, with errors that say what is there."""

import json

import pytest
from study_files import StudyText
from sweeps import command, sweep_inline

TEXT = StudyText(
    arguments='objective="val_loss", epochs=2, trials=1, sampler="random", audit="off"'
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("export")
    sweep_inline(TEXT, directory)
    return directory


def test_a_model_is_written_and_said(runs):
    answer = command("export", "small", "--format", "frozen", "--output", "m.pb", cwd=runs)
    assert answer.code == 0, answer.err
    description = runs / "m.pb.json"
    assert answer.out.splitlines() == [
        f"wrote {runs / 'm.pb'}",
        "  frozen of trial 0 of small, at end (step 40, 2 epochs)",
        "  input   input:0  float32[?, 16]",
        "  output  Identity:0  float32[?, 1]",
        f"  description  {description}",
    ]
    assert description.is_file()


def test_json_has_the_description(runs, here):
    answer = here(
        "export", "small", "--format", "tf-checkpoint", "--output", "tfc", "--trial", 0,
        "--max-to-keep", 2, "--name", "model", "--json", cwd=runs,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    description = json.loads(answer.out)
    assert description["path"] == str(runs / "tfc")
    assert description["details"]["checkpoints"] == ["model-20", "model-40"]
    assert (runs / "tfc" / "model-40.index").is_file()


def test_code_that_changed_is_refused(runs, here):
    """The trial's factory, edited: the file is no longer the one that the study was run from."""
    changed = runs / "changed.py"
    changed.write_text(str(TEXT).replace("Dropout(0.3)", "Dropout(0.4)"))
    answer = here(
        "export", "small", "--format", "keras", "--output", "c.keras", "--source", changed, cwd=runs
    )
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith(
        "error: the model of trial 0 of study 'small' cannot be built as it was: build_model has "
        "changed (changed.py)"
    )
    assert not (runs / "c.keras").exists()


def test_what_the_study_prints_is_not_in_the_result(runs, here):
    noisy = runs / "noisy.py"
    noisy.write_text(f"{TEXT}\nprint('noise')\n")
    answer = here(
        "export", "small", "--format", "weights", "--output", "n.weights.h5", "--json",
        "--source", noisy, cwd=runs,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["path"] == str(runs / "n.weights.h5")
    assert "noise" in answer.err


def test_an_error_of_the_factory_is_the_users_and_has_its_line(runs, here):
    broken = runs / "broken.py"
    broken.write_text(str(TEXT).replace("Dropout(0.3)", "Dropout(1 / 0)"))
    answer = here(
        "export", "small", "--format", "keras", "--output", "b.keras", "--accept-changes",
        "--source", broken, cwd=runs,
    )  # fmt: skip
    assert answer.code == 1
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("error: ZeroDivisionError: division by zero (in ")
    assert not (runs / "b.keras").exists()
