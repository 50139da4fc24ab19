"""What every test shares: a quiet TensorFlow with one thread, and which tests run only when asked.

The thread counts are set by environment variables because TensorFlow takes others only before its
first op, and which test runs that is nobody's to say. Trial processes set their own.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from file_processes import BY_DEFAULT, FileProcesses
from forked_programs import ADDRESS, WARM_SERVER, Service
from hypothesis import HealthCheck, settings
from tiers import NIGHTLY, SuiteTable, longest_first, say_durations

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "1"
# As in a shell where the environment is active, so that printed commands begin with the program's name.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # how fast examples are made is a matter of what runs beside them

_FILES = "files in processes"
_PROCESSES = pytest.StashKey[int]()
_SERVICE = pytest.StashKey[Service]()


def pytest_addoption(parser):
    """Add the options of a run."""
    parser.addoption("--all", action="store_true", help="both tiers, with a table of their suites")
    parser.addoption("--measure", action="store_true", help="write tests/durations.json")
    parser.addoption(
        "--processes",
        type=int,
        default=BY_DEFAULT,
        metavar="N",
        help=f"files side by side, each in a process of its own ({BY_DEFAULT}); 0: all in this one",
    )


def pytest_configure(config):
    """Have each file run in a process of its own."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in the background of a script. Tests interrupt their commands, which would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    processes = 0 if config.option.usepdb else config.option.processes
    config.stash[_PROCESSES] = processes
    if processes:
        config.pluginmanager.register(FileProcesses(processes, _configure_tensorflow), _FILES)
    if config.option.all:
        config.pluginmanager.register(SuiteTable())


def pytest_sessionstart(session):
    """Import TensorFlow here, and meanwhile where programs of tests are forked from."""
    config = session.config
    if not config.option.collectonly:
        directory = config._tmp_path_factory.mktemp("forks")
        config.stash[_SERVICE] = Service(directory, os.environ)
        os.environ[ADDRESS] = config.stash[_SERVICE].path
    import tensorflow as tf  # noqa: F401

    if not config.stash[_PROCESSES]:
        _configure_tensorflow()


def pytest_collection_finish(session):
    """Make the database that tests copy, and wait until programs can be forked."""
    if _SERVICE in session.config.stash:
        from databases import empty_database

        empty_database()
        session.config.stash[_SERVICE].wait()


def pytest_sessionfinish(session):
    """End what programs were forked from."""
    if _SERVICE in session.config.stash:
        del os.environ[ADDRESS]
        session.config.stash[_SERVICE].end()


def pytest_terminal_summary(terminalreporter, config):
    """Name the files that have become slower, where whole files were run apart."""
    files = config.pluginmanager.getplugin(_FILES)
    if files is not None and not config.option.keyword:
        say_durations(terminalreporter, files.seconds, write=config.option.measure)


def _configure_tensorflow():
    """Give TensorFlow the one thread that inline trials ask for, before any test runs an op."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # For tests of many replicas; what names no device runs on the first.
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def pytest_collection_modifyitems(config, items):
    """Leave the nightly tier out unless it is asked for; begin with long files."""
    items[:] = longest_first(items)
    nightly = [item for item in items if any(map(item.get_closest_marker, NIGHTLY))]
    for item in nightly:
        item.add_marker(pytest.mark.timeout(0))
    if not (config.option.markexpr or config.option.all):
        _leave_out(config, items, nightly)


def _leave_out(config, items, left_out):
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


@pytest.fixture(scope="session")
def s3_url():
    """Give the URL of a server of the S3 protocol on loopback; it has the bucket ``sweeps``."""
    from object_faults import s3_server

    with s3_server() as url:
        yield url


@pytest.fixture(scope="session", autouse=True)
def forked_servers():
    """Have fork servers forked, and commands of `sweeps`; what a real server is, is given."""
    from sweeper.run.launch import server_process

    real = server_process._SERVER
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "_SERVER", WARM_SERVER)
        yield real


@pytest.fixture(scope="module")
def real_servers(forked_servers):
    """Have fork servers and commands import everything themselves, where they are the subject."""
    from sweeper.run.launch import server_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "_SERVER", forked_servers)
        yield
