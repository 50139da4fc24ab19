"""A database is created once, opened quickly, and refused in one clear sentence."""

import gc
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from databases import place_database, postgresql_database
from optuna.storages._rdb import models

from sweeper.db import database as database_module
from sweeper.db import optuna_rows, schema
from sweeper.db.database import Database
from sweeper.db.faults import is_passing, parse_url, unavailable
from sweeper.db.tables import Base
from sweeper.errors import DatabaseUnavailableError, DatabaseVersionError
from sweeper.run.options import HostSpec, RunRequest, WorkerOptions

PACKAGE = Path(schema.__file__).parent


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "sweeper.db"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@pytest.fixture
def made(path):
    """The database is there already."""
    place_database(path)


def one(database, statement):
    return database.read(lambda c: c.exec_driver_sql(statement).scalar())


def stamp(path, revision, table="sweeper_alembic_version"):
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {table} SET version_num = ?", (revision,))
    connection.commit()
    connection.close()


MORE = sa.MetaData()
sa.Table("sweeper_more", MORE, sa.Column("id", sa.Integer, primary_key=True))


def test_creating_makes_the_directory_the_declared_tables_and_a_file_in_wal_mode(path, url):
    with Database.open(url, create=True) as database:
        assert differences(database, Base.metadata) == []
        assert differences(database, MORE) != [], "the control"
        assert one(database, "PRAGMA journal_mode") == "wal"
        assert one(database, "PRAGMA synchronous") == 1
        # Each try waits so long; how many there are is the patience's matter.
        assert 1000 < int(str(one(database, "PRAGMA busy_timeout"))) <= 2000
        assert one(database, "PRAGMA foreign_keys") == 1
    assert path.is_file()
    names = {p.name.removeprefix("sweeper.db") for p in path.parent.iterdir()}
    assert names <= {"", "-wal", "-shm"}


@pytest.mark.parametrize("cut_off", ["before Optuna's tables", "before ours"])
def test_a_creation_that_was_cut_off_is_finished_by_the_next(url, monkeypatch, cut_off):
    def die(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(
            schema, "optuna_storage" if cut_off == "before Optuna's tables" else "_migrate", die
        )
        with pytest.raises(KeyboardInterrupt):
            Database.open(url, create=True)
    with pytest.raises(DatabaseUnavailableError, match="holds no studies of sweeper's"):
        Database.open(url, create=False)
    Database.open(url, create=True).close()
    Database.open(url, create=False).close()


# Versions


# Optuna leaves its connection open where it refuses a database.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.usefixtures("made")
def test_a_database_of_a_newer_version_or_another_optuna_is_refused_and_left_alone(path, url):
    stamp(path, "9999")
    for create in (True, False):
        with pytest.raises(DatabaseVersionError, match=r"9999.*install the newer sweeper"):
            Database.open(url, create=create)
    with pytest.raises(DatabaseVersionError, match="9999"):
        Database.upgrade(url)
    connection = sqlite3.connect(path)
    stamped = connection.execute("SELECT version_num FROM sweeper_alembic_version").fetchone()
    connection.close()
    assert stamped == ("9999",)
    stamp(path, schema.REVISIONS[-1])
    stamp(path, "v9.0.0.a", "alembic_version")
    with pytest.raises(DatabaseVersionError, match=r"another version of Optuna.*updating optuna"):
        Database.open(url, create=False)
    gc.collect()


def test_the_known_revisions_are_those_of_the_migrations_and_of_the_installed_optuna():
    config = Config()
    config.set_main_option("script_location", str(PACKAGE / "migrations"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert tuple(r.revision for r in scripts.walk_revisions())[::-1] == schema.REVISIONS
    storage = optuna.storages.RDBStorage("sqlite:///:memory:")
    assert storage.get_head_version() == schema._OPTUNA_REVISION
    storage.remove_session()
    storage.engine.dispose()


def differences(database, metadata):
    def ours(_object, name, kind, *_rest):
        return kind != "table" or str(name).startswith("sweeper_")

    def compare(connection):
        context = MigrationContext.configure(
            connection,
            opts={"include_object": ours, "version_table": schema.VERSION_TABLE},
        )
        return list(compare_metadata(context, metadata))

    return database.read(compare)


# Faults


@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_database_is_named_and_left_alone(path, url, *, create):
    path.parent.mkdir()
    path.write_text("notes to myself\n" * 100)
    with pytest.raises(DatabaseUnavailableError, match=r"sweeper\.db.*not a database"):
        Database.open(url, create=create)
    assert path.read_text() == "notes to myself\n" * 100


def test_reading_creates_nothing_and_no_database_is_where_a_directory_is(path, url, tmp_path):
    with pytest.raises(DatabaseUnavailableError, match=r"there is no database at sqlite:///.*run"):
        Database.open(url, create=False)
    assert not path.parent.exists()
    path.parent.mkdir()
    path.touch()
    with pytest.raises(DatabaseUnavailableError, match="holds no studies of sweeper's"):
        Database.open(url, create=False)
    assert path.stat().st_size == 0
    with pytest.raises(DatabaseUnavailableError, match="is a directory"):
        Database.open(f"sqlite:///{tmp_path}", create=True)
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseUnavailableError, match="cannot be created"):
        Database.open(f"sqlite:///{tmp_path}/file/sweeper.db", create=True)


def test_no_record_of_a_run_has_its_database_in_its_text():
    options = WorkerOptions(1, "postgresql://me:SECRET@h/d", Path("runs"))
    for record in (options, HostSpec("s", options), RunRequest(options, print)):
        assert "SECRET" not in repr(record)
        assert "runs" in repr(record)


def test_the_url_of_a_hosting_service_is_that_of_a_server():
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        assert parse_url(f"{scheme}://me@host/sweeps").drivername == "postgresql+psycopg"


@pytest.mark.usefixtures("made")
def test_only_passing_faults_are_retried(url):
    runs = []

    def faulty(error):
        runs.append(error)
        if len(runs) == 1:
            raise error

    def fault(kind, code):
        original = sqlite3.OperationalError("fault")
        original.sqlite_errorcode = code
        return kind("select", {}, original)

    with Database.open(url, create=True) as database:
        database.write(lambda _c: faulty(fault(sa.exc.OperationalError, sqlite3.SQLITE_BUSY)))
        assert len(runs) == 2
        for lasting, raised in [
            (fault(sa.exc.OperationalError, sqlite3.SQLITE_FULL), DatabaseUnavailableError),
            (fault(sa.exc.IntegrityError, sqlite3.SQLITE_CONSTRAINT), sa.exc.IntegrityError),
            (ValueError("the work's own"), ValueError),
        ]:
            runs.clear()
            with pytest.raises(raised):
                database.write(lambda _c, error=lasting: faulty(error))
            assert len(runs) == 1


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        *((state, True) for state in ("40001", "40P01", "08006", "57P01", "57P03", "53300")),
        *((state, False) for state in ("53100", "28P01")),
        ("server closed the connection unexpectedly", True),
        ("connection to server at 10.0.0.1, port 5432 failed: Connection refused", True),
        ("could not receive data from server: Connection reset by peer", True),
        ("failed to resolve host 'db.example': [Errno -3] Temporary failure in name resol", True),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  sorry, too many clients already", True),
        ('FATAL:  database "sweeps" is not currently accepting connections', True),
        ('FATAL:  password authentication failed for user "me"', False),
        ('FATAL:  database "sweeps" does not exist', False),
        ("FATAL:  no pg_hba.conf entry for host 10.0.0.2", False),
        ("fe_sendauth: no password supplied", False),
    ],
)
def test_postgresqls_passing_faults_are_known_by_their_states_or_what_was_said(text, *, passing):
    """psycopg gives the errors of a refused connection no state."""
    original = Exception(text)
    if len(text) == 5:
        original.sqlstate = text
    error = sa.exc.OperationalError("connect", {}, original)
    assert is_passing(error) is passing
    assert unavailable(sa.make_url("postgresql://h/d"), error).passing is passing


def test_a_database_of_an_earlier_revision_is_refused_until_it_is_upgraded(url, monkeypatch):
    Database.open(url, create=True).close()
    with monkeypatch.context() as patched:
        patched.setattr(schema, "REVISIONS", ("0001", "0002"))
        with pytest.raises(DatabaseVersionError, match=r"revision 0001.*sweeper db upgrade"):
            Database.open(url, create=True)
    assert Database.upgrade(url) == ("0001", schema.REVISIONS[-1])
    assert Database.upgrade(url) == (schema.REVISIONS[-1], schema.REVISIONS[-1])
    with pytest.raises(DatabaseUnavailableError, match="there is no database"):
        Database.upgrade(url.replace("sweeper.db", "other.db"))
    with Database.open(url, create=False) as database:
        assert differences(database, Base.metadata) == []


def test_many_threads_share_a_few_connections_to_a_server():
    with (
        postgresql_database() as server,
        Database.open(server.url, create=False) as database,
        ThreadPoolExecutor(30) as pool,
    ):
        query = (
            f"SELECT count(*) FROM pg_stat_activity, pg_sleep(0.01) WHERE datname = '{server.name}'"
        )
        counts = list(pool.map(lambda _n: one(database, query), range(60)))
    assert 1 < max(map(int, counts)) <= database_module._MOST_CONNECTIONS


@pytest.mark.parametrize("ended", [True, False], ids=["ended by the server", "left alone"])
def test_a_process_stopped_in_a_transaction_holds_nobody_up_for_long(monkeypatch, *, ended):
    """Its locks would keep others from taking its trials, for as long as it is stopped."""
    monkeypatch.setattr(database_module, "_LONGEST_IDLE_MS", 100 if ended else 0)
    statement = "LOCK TABLE sweeper_studies IN ACCESS EXCLUSIVE MODE NOWAIT"
    with (
        postgresql_database() as server,
        Database.open(server.url, create=False) as stopped,
        Database.open(server.url, create=False, patience=2.0 if ended else 0.5) as other,
        stopped._writing.connect() as connection,
    ):
        connection.exec_driver_sql(statement)
        if ended:
            other.write(lambda c: c.exec_driver_sql(statement))
            with pytest.raises(sa.exc.DBAPIError) as raised:
                connection.exec_driver_sql("SELECT 1")
            assert is_passing(raised.value)
        else:
            with pytest.raises(DatabaseUnavailableError, match="could not obtain lock"):
                other.write(lambda c: c.exec_driver_sql(statement))


@pytest.mark.parametrize("table", optuna_rows._metadata.sorted_tables, ids=str)
def test_each_column_of_optunas_tables_that_is_used_is_optunas(table):
    original = models.BaseModel.metadata.tables[table.name]
    for column in table.c:
        kind = column.type
        other = original.c[column.name]
        assert column.primary_key == other.primary_key
        assert kind._type_affinity is other.type._type_affinity
        if isinstance(other.type, sa.Enum):
            assert kind.name == other.type.name
            assert sorted(kind.enums) == sorted(other.type.enums)
