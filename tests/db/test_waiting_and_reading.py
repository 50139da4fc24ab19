"""Nobody waits for longer than their patience, and what may not be written can be read."""

import contextlib
import io
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import pytest
from databases import opened_database

from sweeper.cli.main import main
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.errors import DatabaseUnavailableError

NOBODY = 65534


@contextlib.contextmanager
def written_elsewhere(path):
    """Another process's writing, which goes on."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


def seconds_of(work):
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailableError) as caught:
        work()
    assert caught.value.passing
    return time.monotonic() - began


def test_no_writer_waits_behind_another_for_longer_than_its_own_patience(file):
    """Patient writers of a process wait for a second process, and get their turns; an impatient one does not."""
    with Database.open(f"sqlite:///{file}", create=False, patience=30) as database:
        turns = []
        patient = [
            threading.Thread(target=lambda n=n: database.write(lambda c: turns.append(n)))
            for n in range(3)
        ]
        with written_elsewhere(file):
            for writer in patient:
                writer.start()
            time.sleep(0.2)
            impatient = database.with_patience(0.5)
            assert 0.3 < seconds_of(lambda: impatient.write(lambda c: None)) < 3
            assert impatient.read(lambda c: c.exec_driver_sql("SELECT 1").scalar()) == 1
            assert turns == []
        for writer in patient:
            writer.join(20)
        assert sorted(turns) == [0, 1, 2], "patience was for something"


def answer(words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    return code, out.getvalue()


def as_nobody(work):
    """Run ``work`` in a fork that has no rights to what is not everybody's, and return its text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            text = work()
        except BaseException:
            text = traceback.format_exc()
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.fixture
def others():
    """Another user's runs directory with a study in it, which everybody may read."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    runs = top / "runs"
    runs.mkdir()
    with opened_database(runs / "sweeper.db") as database:
        repository = Repository(database)
        row = StudyRow("theirs", {"epochs": 1}, "loss", "minimize", 2, window=None, seed=1)
        repository.create_or_open(row)
        claim = repository.claim("theirs", WorkerIdentity.here(), lambda number: number)
        repository.finish(claim.token, Ending("complete", end_step=1, value=0.5, digest="ab" * 16))
    yield runs
    top.chmod(0o755)
    runs.chmod(0o755)
    shutil.rmtree(top)


VERBS = (["ls"], ["status", "theirs"], ["show", "theirs", "0"], ["best", "theirs"])


@pytest.mark.skipif(sys.platform == "win32", reason="another user's rights are made with setuid")
@pytest.mark.parametrize("state", ["closed", "being written", "its writer was killed"])
def test_another_users_database_can_be_read_and_is_left_as_it_was(others, state):
    words = [[*verb, "--json", "--runs-dir", str(others)] for verb in VERBS]
    expected = [answer(arguments) for arguments in words]
    assert [code for code, _ in expected] == [0] * len(VERBS), expected
    file = others / "sweeper.db"
    writer = None
    if state != "closed":
        writer = sqlite3.connect(file, isolation_level=None)
        writer.execute("UPDATE sweeper_studies SET target = 3")
        expected = [answer(arguments) for arguments in words]
    if state == "its writer was killed":
        logs = {end: file.with_name(f"sweeper.db{end}").read_bytes() for end in ("-wal", "-shm")}
        contents = file.read_bytes()
        writer.close()
        file.write_bytes(contents)
        for end, content in logs.items():
            file.with_name(f"sweeper.db{end}").write_bytes(content)
    for path in others.iterdir():
        path.chmod(0o444)
    others.chmod(0o555)
    listed = sorted(others.iterdir())
    for arguments, (_, data) in zip(words, expected, strict=True):
        assert as_nobody(lambda arguments=arguments: answer(arguments)[1]) == data
    run = ["stop", "theirs", "--runs-dir", str(others)]
    assert "readonly database" in as_nobody(lambda: answer(run)[1])
    assert sorted(others.iterdir()) == listed
    if writer is not None:
        writer.close()
