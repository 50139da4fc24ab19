"""Files of tests are kept apart, and what becomes of their processes is seen."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CONFTEST = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import begun
from file_processes import FileProcesses

def pytest_addoption(parser):
    parser.addoption("--apart", type=int, default=2)

def pytest_configure(config):
    if config.option.apart:
        config.pluginmanager.register(FileProcesses(config.option.apart, begun.begin))
"""

LEAVING = """
import os, sys
import begun

def test_leaves_a_path_a_module_a_variable_and_a_setting():
    sys.path.insert(0, "/left")
    sys.modules["left"] = sys
    os.environ["LEFT"] = "1"
    begun.setting = "left"
"""

LOOKING = """
import os, sys
import begun

def test_finds_nothing_of_it():
    assert "/left" not in sys.path
    assert "left" not in sys.modules
    assert "LEFT" not in os.environ
    assert begun.setting == "begun"
"""


BEGUN = 'setting = ""\ndef begin():\n    global setting\n    setting = "begun"\n'


@pytest.fixture
def run(tmp_path):
    """Runs files of tests, given by their names, apart; the exit code, and what pytest printed."""

    def run(*words, **texts):
        for name, text in {"conftest": CONFTEST, "begun": BEGUN, **texts}.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return process.returncode, process.stdout + process.stderr

    return run


@pytest.mark.whole
def test_a_file_finds_nothing_of_what_another_has_left(run):
    files = {"test_a_leaving": LEAVING, "test_b_looking": LOOKING}
    code, output = run("--apart", "1", **files)
    assert code == 0, output
    assert "2 passed" in output
    # The control: in one process it finds all.
    code, output = run("--apart", "0", **files)
    assert code == 1
    assert "1 failed, 1 passed" in output


def test_a_failure_a_skip_and_what_was_printed_come_back(run):
    code, output = run(
        test_of_all_kinds="""
        import os, pytest

        def test_good():
            os.write(1, b"past Python")

        def test_bad():
            print("before it failed")
            assert 1 == 2

        @pytest.mark.skip(reason="for a reason")
        def test_skipped(): ...

        @pytest.fixture
        def broken():
            yield
            raise RuntimeError("at its end")

        def test_with_broken(broken): ...
        """,
        test_other="def test_other():\n    print('of the other')\n",
    )
    assert code == 1
    assert "1 failed, 3 passed, 1 skipped, 1 error" in output
    for words in ("past Python", "before it failed", "assert 1 == 2", "for a reason", "at its end"):
        assert words in output, words


def test_the_tests_that_a_killed_process_takes_with_it_have_failed(run):
    code, output = run(
        test_dying="""
        import os, signal

        def test_before(): ...
        def test_at_it(): os.kill(os.getpid(), signal.SIGKILL)
        def test_after(): ...
        """,
        test_other="def test_other(): ...\n",
    )
    assert code == 1
    assert "2 failed, 2 passed" in output
    assert "ended with -9 (negative: by that signal) while it ran" in output
    assert "ended with -9 (negative: by that signal) before it ran" in output


@pytest.mark.whole
@pytest.mark.parametrize(
    ("leftover", "words"),
    [
        ("atexit.register(os.kill, os.getpid(), signal.SIGKILL)", "ended with -9"),
        ("open(__file__)", "unclosed file"),
    ],
    ids=["killed", "a file left open"],
)
def test_a_process_that_does_not_end_well_is_an_error(leftover, words, run):
    head = "import atexit, os, signal\nclass Left: ...\n\n"
    good = f"def test_good():\n    it = Left()\n    it.own, it.file = it, {leftover}\n"
    code, output = run(test_ending=head + good)
    assert code == 1, output
    assert "1 passed, 1 error" in output
    assert words in output


@pytest.mark.whole
@pytest.mark.parametrize(
    ("imported", "reason"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
            "has left threads, Thread-1 (wait)",
        ),
        (
            """
            import sys, types
            stand_in = types.ModuleType("tensorflow.python.eager.context")
            stand_in.context = lambda: types.SimpleNamespace(_context_handle=1)
            sys.modules[stand_in.__name__] = stand_in
            """,
            "has run TensorFlow",
        ),
    ],
    ids=["a thread", "TensorFlow"],
)
def test_a_file_after_whose_import_nothing_can_be_forked_is_refused_by_name(imported, reason, run):
    code, output = run(test_importing=textwrap.dedent(imported) + "\ndef test_good(): ...\n")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "test_importing.py" in output
    assert reason in output
