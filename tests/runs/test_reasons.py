"""What is said of the exception that ended a trial: its reason and its line, whatever it is like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sweeper
from sweeper.definition.trial import Trial
from sweeper.errors import ParameterError
from sweeper.run.trial.link import failure_of

GATHER = (
    "Graph execution error:\n\nDetected at node sequential_1/embedding_1/GatherV2 defined at (most "
    'recent call last):\n  File "/home/me/study.py", line 8, in <module>\n\n  File "/lib/keras/'
    'trainer.py", line 399, in fit\n\nindices[0,0] = 5 is not in [0, 5)\n\t [[{{node sequential_1/'
    "embedding_1/GatherV2}}]] [Op:__inference_multi_step_on_iterator_941]"
)
EAGER = (
    "{{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:CPU:0}} "
    "Incompatible shapes: [2] vs. [3] [Op:AddV2] name: "
)
ASSERTED = (
    "Graph execution error:\n\nDetected at node assert_less/Assert/Assert defined at (most recent "
    'call last):\n  File "/x.py", line 15, in f\n\nassertion failed: [too big] [x (x:0) = ] [5]\n'
    "\t [[{{node assert_less/Assert/Assert}}]] [Op:__inference_f_1108]"
)
KERAS = (
    "Exception encountered when calling Sequential.call().\n\n\x1b[1mInput 0 is incompatible\x1b[0m"
    "\n\nArguments received by Sequential.call():\n  • training=None"
)

KERAS_IN_A_LINE = (
    "Exception encountered when calling Sequential.call(). Input 0 is incompatible "
    "Arguments received by Sequential.call(): • training=None"
)


def line_of(error: BaseException) -> str:
    try:
        raise error
    except BaseException as caught:
        failed = failure_of(caught)
    assert "\n" not in failed.error
    return failed.error.rpartition(" (in line_of, ")[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GATHER, "indices[0,0] = 5 is not in [0, 5)"),
        (EAGER, "Incompatible shapes: [2] vs. [3]"),
        (ASSERTED, "assertion failed: [too big] [x (x:0) = ] [5]"),
        (
            KERAS,
            KERAS_IN_A_LINE,
        ),
        ("two\n  lines", "two lines"),
        ("", ""),
    ],
)
def test_the_line_that_is_shown_has_the_reason(text: str, reason: str) -> None:
    assert line_of(ValueError(text)) == f"ValueError: {reason}"


def test_what_tensorflow_itself_raises_is_reported_with_its_reason() -> None:
    tf = pytest.importorskip("tensorflow")
    gather = tf.function(lambda at: tf.gather(tf.zeros(5), at), autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        gather(tf.constant([5]))
    message = failure_of(caught.value).error
    assert message.startswith(
        "InvalidArgumentError: indices[0] = 5 is not in [0, 5) (in test_what_"
    )
    assert f"{Path(__file__).name}:" in message


def test_an_exception_that_cannot_say_what_it_is_ends_its_trial_with_its_name() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

        __repr__ = __str__

    assert line_of(MuteError()) == "MuteError: <its __str__ raised SystemExit>"
    assert line_of(SystemExit(MuteError())) == ""
    assert "sys.exit" in failure_of(SystemExit(MuteError())).error
    chained = ValueError("x")
    chained.__cause__ = MuteError()
    chained.add_note("note")
    assert line_of(chained) == "ValueError: x"


def test_an_errors_text_is_reported_up_to_a_length_with_its_beginning_and_its_end() -> None:
    failed = failure_of(ValueError(f"begins {'x' * 50_000_000} ends"))
    assert len(failed.error) < 3_000
    assert len(failed.traceback) < 110_000
    for text in (failed.error, failed.traceback):
        assert "begins" in text
        assert text.rstrip().endswith("ends")
        assert "characters left out" in text


@pytest.mark.parametrize("name", ["nul \0", "half \udce9", "\ud800"])
def test_a_name_that_no_database_can_hold_is_refused_by_name(name: str, tmp_path: Path) -> None:
    trial = Trial(number=0, seed=1, directory=tmp_path, ask=lambda _name, _of: 0.5)
    with pytest.raises(ParameterError, match=r"NUL|lone surrogate"):
        trial.suggest_float(name, 0, 1)
    with pytest.raises(ParameterError, match="lone surrogate"):
        trial.suggest_categorical("kind", ["a", "\udce9"])
    assert trial.suggest_float("größe 😀", 0, 1) == 0.5


def test_the_traceback_that_is_kept_begins_with_the_users_code() -> None:
    package = Path(sweeper.__file__).parent
    names: dict[str, Any] = {"failure_of": failure_of}
    for room, text in {
        "independence": "def guarded(factory):\n    factory()\n",
        "execution/trial": (
            "def caught(factory):\n    try:\n        guarded(factory)\n"
            "    except Exception as error:\n        return failure_of(error)\n"
        ),
    }.items():
        exec(compile(text, str(package / room / "made_up.py"), "exec"), names)

    def build_model() -> None:
        msg = "mine"
        raise ValueError(msg)

    failed = names["caught"](build_model)
    assert "build_model" in failed.traceback
    assert "made_up.py" not in failed.traceback
