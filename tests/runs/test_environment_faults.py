"""A full disk, and a process that cannot begin, are the environment's: no trial pays for them."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest
from scripted_trials import finish, scripted_sweep

import sweeper
from sweeper.definition.trial import Trial
from sweeper.errors import (
    CheckpointError,
    DataError,
    FactoryError,
    ParameterError,
    RestoreError,
    StudyImportError,
    SweeperError,
)
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Failed
from sweeper.run.trial.link import failure_of
from sweeper.run.worker.slot import serve_slot

LAST = f"""
import dataclasses, json, os, sys
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment
sys.path.append({str(Path(__file__).parent)!r})
from plain_settings import plain_settings

def assignment(**changes):
    return Assignment(**{{
        "settings": plain_settings(), "number": 0, "attempt": 1, "files": "files",
        "log": "log.txt", "checkpoints": ("checkpoints",), **changes,
    }})
"""


def last_words(code, directory, *, log=os.devnull):
    """What a process that runs ``code`` with a channel's DESCRIPTOR says, and its exit code."""
    ours, theirs = Channel.pair()
    with Path(log).open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", LAST + code, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=directory,
            stdout=output,
            stderr=output,
        )
    theirs.close()
    try:
        said = ours.receive(60)
    except EOFError:
        said = None
    # Closed before it has ended, it would say that it has lost its worker.
    code = process.wait(60)
    ours.close()
    return said, code


def loading(load, before=""):
    """The code of a trial's process that imports its study by ``load``, after ``before``."""
    return f"""
import signal
from sweeper.run.trial import process
process.look_for_gpus = lambda: None
process.configure_tensorflow = lambda **_: None
{dedent(before)}
def load():
{indent(dedent(load), "    ")}
process.serve_trial(Channel.on(int(sys.argv[1])), assignment(), load)
os._exit(0)
"""


FAILING = loading("""
    print("a line of the trial's own")
    sys.stdout.flush()
    raise ValueError("no such layer")
""")


def test_a_trial_on_a_full_disk_tells_its_failure_before_it_prints_it(tmp_path):
    said, code = last_words(FAILING, tmp_path, log="/dev/full")
    assert isinstance(said, Failed)
    assert said.fault == "environment"
    assert "No space left on device" in said.error
    assert code == 0, "printing the traceback failed, and with it the process"

    # The control: on a disk with room it fails for its own error.
    said, code = last_words(FAILING, tmp_path, log=str(tmp_path / "log"))
    assert isinstance(said, Failed)
    assert (said.fault, said.error, code) == ("trial", "ValueError: no such layer", 0)
    assert "no such layer" in (tmp_path / "log").read_text()


FORKING = """
import socket, time
from sweeper.run.launch.warm_server import _Server

control, worker = socket.socketpair()
server = _Server(control)
assigned = dataclasses.asdict(assignment(log=os.path.join("nowhere", "log.txt")))
server._fork({"assignment": assigned}, [int(sys.argv[1]), os.pipe()[1]], ())
os.wait()
"""


def test_a_log_that_cannot_be_opened_is_reported_as_such_and_is_no_crash(tmp_path):
    said, _ = last_words(FORKING, tmp_path)
    assert isinstance(said, Failed)
    assert said.fault == "environment"
    assert "its process could not start: FileNotFoundError" in said.error
    assert "nowhere/log.txt" in said.error


class UnknownError(Exception):
    """As TensorFlow's, which has no errno."""


UnknownError.__module__ = "tensorflow.python.framework.errors_impl"


class ResourceExhaustedError(Exception):
    """Called as TensorFlow's is."""


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


FULL = OSError(errno.ENOSPC, "No space left on device", "rows.csv")
H5PY_FULL = OSError("Can't write data (errno = 28, error message = 'No space left on device')")


@pytest.mark.parametrize(
    ("error", "fault", "with_traceback"),
    [
        (raised(FULL), "disk", True),
        (raised(OSError(errno.EDQUOT, "Disk quota exceeded")), "disk", True),
        (raised(OSError(errno.EROFS, "Read-only file system")), "disk", True),
        (raised(H5PY_FULL), "disk", True),
        (raised(UnknownError("events.out: No space left on device")), "disk", True),
        (raised(RuntimeError("the callback failed"), FULL), "disk", True),
        (raised(DataError("no cache"), OSError(errno.EDQUOT, "spent")), "disk", True),
        (raised(CheckpointError("disk full")), "environment", False),
        (raised(RestoreError("does not fit")), "environment", False),
        (raised(MemoryError("64 GB")), "memory", True),
        (raised(ResourceExhaustedError("OOM")), "memory", True),
        (raised(FileNotFoundError(errno.ENOENT, "No such file")), "trial", True),
        (raised(PermissionError(errno.EACCES, "Permission denied")), "trial", True),
        (raised(ValueError("No space left on device")), "trial", True),
        (raised(KeyboardInterrupt()), "trial", True),
        (raised(FactoryError("no model")), "trial", False),
    ],
)
def test_what_the_disk_or_memory_refuses_is_distinguished_from_what_the_code_did(
    error, fault, with_traceback
):
    failed = failure_of(error)
    assert failed.fault == ("environment" if fault == "disk" else fault)
    line = raised.__code__.co_firstlineno + 2
    line_text = f" (in raised, {Path(__file__).name}:{line})" if with_traceback else ""
    advice = ": free some space or make the disk writable where the trial writes)"
    if fault == "disk":
        assert advice in failed.error
    else:
        assert failed.error == f"{type(error).__name__}: {error}{line_text}"
    assert bool(failed.traceback) == with_traceback
    if with_traceback:
        assert "in raised" in failed.traceback


def test_an_import_error_keeps_the_users_traceback():
    assert failure_of(StudyImportError("broken", "Traceback: theirs")).traceback == (
        "Traceback: theirs"
    )


def test_what_no_pipe_and_no_database_can_carry_is_reported_in_escapes():
    failed = failure_of(raised(ValueError("name \udce9, nul \0")))
    assert failed.error.startswith(r"ValueError: name \udce9, nul \x00 (in raised, ")
    assert "\0" not in failed.traceback
    failed.traceback.encode()


def test_a_full_disk_stops_the_run_as_resumable_and_charges_no_trial(tmp_path):
    def fill(trial):
        trial.say(failure_of(OSError(errno.ENOSPC, "No space left on device")))
        return 0

    with scripted_sweep(tmp_path, {(0, 1): fill}, trials=2) as sweep:
        serve_slot(sweep.context)
        assert isinstance(sweep.context.error, SweeperError)
        assert "can be resumed" in str(sweep.context.error)
        assert sweep.outcomes() == ["interrupted"]
        assert len(sweep.trials) == 1, "the next trial would meet the same disk"
        sweep.launcher.scripts = {None: finish}
        sweep.context.error = None
        sweep.context.stopping.clear()
        serve_slot(sweep.context)
        assert [t.state for t in sweep.trials] == ["complete", "complete"]


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


def line_of(error):
    failed = failure_of(raised(error))
    assert "\n" not in failed.error
    return failed.error.rpartition(" (in raised, ")[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GATHER, "indices[0,0] = 5 is not in [0, 5)"),
        (EAGER, "Incompatible shapes: [2] vs. [3]"),
        (ASSERTED, "assertion failed: [too big] [x (x:0) = ] [5]"),
        (KERAS, KERAS_IN_A_LINE),
        ("two\n  lines", "two lines"),
        ("", ""),
    ],
)
def test_the_line_that_is_shown_has_the_reason(text, reason):
    assert line_of(ValueError(text)) == f"ValueError: {reason}"


def test_what_tensorflow_itself_raises_is_reported_with_its_reason():
    tf = pytest.importorskip("tensorflow")
    gather = tf.function(lambda at: tf.gather(tf.zeros(5), at), autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        gather(tf.constant([5]))
    message = failure_of(caught.value).error
    assert message.startswith(
        "InvalidArgumentError: indices[0] = 5 is not in [0, 5) (in test_what_"
    )
    assert f"{Path(__file__).name}:" in message


def test_an_exception_that_cannot_say_what_it_is_ends_its_trial_with_its_name():
    class MuteError(Exception):
        def __str__(self):
            raise SystemExit(3)

        __repr__ = __str__

    assert line_of(MuteError()) == "MuteError: <its __str__ raised SystemExit>"
    assert line_of(SystemExit(MuteError())) == ""
    assert "sys.exit" in failure_of(SystemExit(MuteError())).error
    chained = ValueError("x")
    chained.__cause__ = MuteError()
    chained.add_note("note")
    assert line_of(chained) == "ValueError: x"


def test_an_errors_text_is_reported_up_to_a_length_with_its_beginning_and_its_end():
    failed = failure_of(ValueError(f"begins {'x' * 5_000_000} ends"))
    assert len(failed.error) < 3_000
    assert len(failed.traceback) < 110_000
    for text in (failed.error, failed.traceback):
        assert "begins" in text
        assert text.rstrip().endswith("ends")
        assert "characters left out" in text


@pytest.mark.parametrize("name", ["nul \0", "half \udce9", "\ud800"])
def test_a_name_that_no_database_can_hold_is_refused_by_name(name, tmp_path):
    trial = Trial(number=0, seed=1, directory=tmp_path, ask=lambda _name, _of: 0.5)
    with pytest.raises(ParameterError, match=r"NUL|lone surrogate"):
        trial.suggest_float(name, 0, 1)
    with pytest.raises(ParameterError, match="lone surrogate"):
        trial.suggest_categorical("kind", ["a", "\udce9"])
    assert trial.suggest_float("größe 😀", 0, 1) == 0.5


def test_the_traceback_that_is_kept_begins_with_the_users_code():
    package = Path(sweeper.__file__).parent
    names = {"failure_of": failure_of}
    for room, text in {
        "independence": "def guarded(factory):\n    factory()\n",
        "execution/trial": (
            "def caught(factory):\n    try:\n        guarded(factory)\n"
            "    except Exception as error:\n        return failure_of(error)\n"
        ),
    }.items():
        exec(compile(text, str(package / room / "made_up.py"), "exec"), names)

    def build_model():
        msg = "mine"
        raise ValueError(msg)

    failed = names["caught"](build_model)
    assert "build_model" in failed.traceback
    assert "made_up.py" not in failed.traceback
