"""A full disk, and a process that cannot begin, are the environment's: no trial pays for them."""

import errno
import signal
from dataclasses import replace
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from scripted_trials import finish, scripted_sweep
from study_files import SHORT
from sweeps import command, python, trials_in

from sweeper import ParameterError, Trial
from sweeper.errors import (
    CheckpointError,
    DataError,
    FactoryError,
    RestoreError,
    StudyImportError,
    SweeperError,
)
from sweeper.run.trial.link import failure_of
from sweeper.support.shown import shown_error

BLOCKED = """
import os, signal, sys, time
number = signal.Signals(int(sys.argv[1]))
sent = sys.argv[2] == "sent"
signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, [number])  # by the threads of imports, too
from pathlib import Path
sys.path.append({helpers!r})
from scripted_trials import assignment_in
from sweeper.run.protocol.channel import Channel
from sweeper.run.trial import process

process.look_for_gpus = lambda: None
process.configure_tensorflow = lambda **_: None
links, made = [], process.ChannelLink
process.ChannelLink = lambda *given, **more: links.append(made(*given, **more)) or links[-1]

def load():
    time.sleep(10)
    raise ValueError(f"asked to stop: {{links[0].stop_requested()}}")

ours, theirs = Channel.pair()
if os.fork() == 0:
    if sent:
        os.kill(os.getpid(), number)
    process.serve_trial(Channel.on(theirs.detach()), assignment_in(Path.cwd()), load)
    os._exit(0)
theirs.close()
print(ours.receive(60))
"""


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_a_trial_could_take_it_is_taken_when_it_begins(number, tmp_path):
    """It then ends at once, with nothing to resume from; the control takes its time."""
    code = BLOCKED.format(helpers=str(Path(__file__).parents[1] / "harness"))
    ended = python("-c", code, int(number), "sent", cwd=tmp_path)
    assert ended.out == "StoppedHere(step=0)\n", ended.err
    control = python("-c", code, int(number), "not sent", cwd=tmp_path)
    assert "asked to stop: False" in control.out, control.err


LOG = """
if trial.number == 1:
    print("a line of its own", flush=True)
    raise ValueError("no such layer")
log = trial.directory.parents[1] / "trial-00001" / "attempt-01" / "log.txt"
log.parent.mkdir(parents=True)
log.{make}
"""


@pytest.mark.parametrize(
    ("make", "says"),
    [
        ("symlink_to('/dev/full')", "No space left on device"),
        ("mkdir()", "its process could not start: IsADirectoryError"),
        ("touch()", "ValueError: no such layer"),
    ],
)
def test_a_trial_whose_log_cannot_be_written_says_so_and_is_interrupted(tmp_path, make, says):
    arguments = SHORT.arguments.replace("epochs=2", "epochs=1")
    text = replace(SHORT, model=LOG.format(make=make), arguments=arguments)
    text.write(tmp_path / "small.py")
    ended = command("run", "small.py", "--workers", 1, cwd=tmp_path)
    assert ended.code != 0
    assert says in ended.err
    assert "Traceback" not in ended.err
    [attempt] = trials_in(tmp_path / "runs")[1].attempts
    assert attempt.outcome == ("failed" if make == "touch()" else "interrupted"), ended.err


def test_a_full_disk_stops_the_run_as_resumable_and_charges_no_trial(tmp_path):
    def fill(trial):
        trial.say(failure_of(OSError(errno.ENOSPC, "No space left on device")))
        return 0

    with scripted_sweep(tmp_path, {(0, 1): fill}, trials=2) as sweep:
        sweep.serve()
        assert isinstance(sweep.error, SweeperError)
        assert "can be resumed" in str(sweep.error)
        assert sweep.outcomes() == ["interrupted"]
        assert len(sweep.trials) == 1, "the next trial would meet the same disk"
    with scripted_sweep(tmp_path, {None: finish}, trials=2) as sweep:
        sweep.serve()
        assert sweep.states == ["complete", "complete"]


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
    if fault == "disk":
        assert ": free some space or make the disk writable where the trial writes)" in failed.error
    else:
        line = raised.__code__.co_firstlineno + 2
        where = f" (in raised, {Path(__file__).name}:{line})" if with_traceback else ""
        text = f": {error}" if str(error) else ""
        assert failed.error == f"{type(error).__name__}{text}{where}"
    assert ("in raised" in failed.traceback) == with_traceback == bool(failed.traceback)


def test_an_import_error_keeps_the_users_traceback():
    error = StudyImportError("broken", "Traceback: theirs")
    assert failure_of(error).traceback == "Traceback: theirs"


def test_what_no_pipe_and_no_database_can_carry_is_reported_in_escapes():
    failed = failure_of(raised(ValueError("name \udce9, nul \0")))
    assert failed.error.startswith(r"ValueError: name \udce9, nul \x00 (in raised, ")
    assert "\0" not in failed.traceback
    failed.traceback.encode()


def line_of(error):
    failed = failure_of(error)
    assert not set("\n\x1b") & set(failed.error)
    return failed.error.rpartition(" (in ")[0]


def of_tensorflow(function):
    return lambda: tf.function(function, autograph=False)(tf.constant([5]))


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (of_tensorflow(lambda at: tf.gather(tf.zeros(5), at)), "indices[0] = 5 is not in [0, 5)"),
        (
            of_tensorflow(lambda x: [tf.debugging.assert_less(x, 5, "no"), x][1]),
            "assertion failed: ",
        ),
        (lambda: tf.zeros(2) + tf.zeros(3), "Incompatible shapes: [2] vs. [3]"),
        (
            lambda: keras.layers.Lambda(lambda x: x + tf.zeros(3))(tf.zeros(2)),
            "Exception encountered when calling Lambda.call(). ",
        ),
        (lambda: int("two\n  lines"), "invalid literal for int() with base 10: "),
    ],
)
def test_the_line_that_is_shown_has_the_reason(act, reason):
    with pytest.raises(Exception, match=r".") as caught:
        act()
    name = type(caught.value).__name__
    assert line_of(caught.value).startswith(f"{name}: {reason}")


@pytest.mark.parametrize("error", [AssertionError(), KeyError(), StopIteration()])
def test_an_exception_without_a_text_is_shown_by_its_name_without_a_colon(error):
    assert line_of(raised(error)) == shown_error(error) == type(error).__name__
    assert shown_error(type(error)("why")).startswith(f"{type(error).__name__}: ")


def test_an_exception_that_cannot_say_what_it_is_ends_its_trial_with_its_name():
    class MuteError(Exception):
        def __str__(self):
            raise SystemExit(3)

        __repr__ = __str__

    assert line_of(raised(MuteError())) == "MuteError: <its __str__ raised SystemExit>"
    assert "sys.exit" in failure_of(SystemExit(MuteError())).error
    chained = ValueError("x")
    chained.__cause__ = MuteError()
    chained.add_note("note")
    assert line_of(raised(chained, chained.__cause__)) == "ValueError: x"


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
