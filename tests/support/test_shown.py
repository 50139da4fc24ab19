"""A URL is shown without its secrets, whatever is wrong with it, wherever it is shown."""

from pathlib import Path

import psycopg
import pytest

from sweeper.cli.main import main
from sweeper.db.database import Database
from sweeper.declarations.settings import load_settings
from sweeper.errors import DatabaseUnavailableError, UsageError
from sweeper.support.shown import shown_text, shown_value

WITH_SECRETS = [
    "postgresql+psycopg://me:SECRET@host:5432/db",
    "postgresql://me:a/SECRET@host/db",
    "postgresql://me:a?SECRET@host/db",
    "postgresql://me:a#SECRET@host/db",
    "postgresql://me:a@SECRET@host/db",
    "postgresql://:SECRET@host",
    "postgresql://me%3ASECRET@host/db",
    "postgresql://me:SECRET",
    "postgresql://me:SECRET/db",
    "postgresql:///me:SECRET@host/db",
    "postgresql:/me:SECRET@host/db",
    "postgresql//me:SECRET@host/db",
    "postgresql:me:SECRET@host/db",
    "me:SECRET@host/db",
    "sqlite://me:SECRET@host/db",
    "postgresql://host/db?user=me&password=SECRET",
    "postgresql://host/db?PASSWORD=SECRET&sslmode=require",
    "postgresql://host/db?password=a&SECRET",
    "postgresql://host/db?sslpassword=SECRET",
    "postgresql://host:port/db?passwrd=SECRET",
    "postgresql://host/db;password=SECRET",
    "host=h password='a SECRET' user=me",
    "s3://key:SECRET@bucket/prefix",
    "S3://key:SECRET@bucket/prefix",
    "s3:/key:SECRET@bucket/prefix",
    "key:SECRET@s3://bucket",
    "ray://me:SECRET@host:10001",
]
WITHOUT = [
    "sqlite:///other/sweeper.db",
    "sqlite:////home/a@b/c:d@e.db",
    "sqlite:///x.db?mode=ro&uri=true",
    "postgresql://me@host:5432/db?sslmode=require",
    "postgresql://[::1]:5432/db",
    "tcp://10.0.0.1:8786",
    "s3://bucket/prefix",
    "/home/a@b/runs",
    "runs",
]


def shown(url):
    """Return what is printed of a database's URL: in a command, or in the error that refuses it."""
    try:
        return load_settings(storage=url).command("ls")
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("url", WITH_SECRETS)
def test_no_secret_is_shown_and_the_rest_is(url):
    assert "SECRET" not in shown(url)
    assert "***" in shown(url)


@pytest.mark.parametrize("url", WITHOUT)
def test_a_url_without_a_secret_is_shown_as_it_is(url, capsys):
    assert url in shown(url)
    assert main(["ls", f"'{url}'"]) == 2
    assert url in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize("url", WITH_SECRETS)
def test_settings_the_database_and_locations_refuse_a_url_without_showing_it(url):
    for read in (
        lambda: load_settings(storage=url, workers=0),
        lambda: load_settings(checkpoints=url, workers=0),
        lambda: load_settings(runs_dir=Path(f"{url}?"), workers=0),
        lambda: Database.open(f"{url.partition('?')[0]}:x?password=SECRET", create=False),
    ):
        with pytest.raises((UsageError, DatabaseUnavailableError)) as caught:
            read()
        assert "SECRET" not in str(caught.value)
        assert caught.value.__suppress_context__ or "SECRET" not in str(caught.value.__context__)


def test_what_a_driver_says_of_a_url_is_reported_without_its_secrets(monkeypatch):
    def refuse(*_arguments, **_options):
        raise psycopg.OperationalError("no login for me with s/cret, s%2Fcret or other")

    monkeypatch.setattr(psycopg, "connect", refuse)
    with pytest.raises(DatabaseUnavailableError, match=r"no login for me with \*\*\*, \*\*\* or"):
        Database.open("postgresql://me:s%2Fcret@host/db?password=other&user=me", create=False)
    with pytest.raises(DatabaseUnavailableError, match=r"its port is no number.*HOST:PORT"):
        Database.open("postgresql://me:SECRET@host:abc/db", create=False)


@pytest.mark.parametrize(
    "words",
    [
        ["status", "s", "--storage", "URL"],
        ["status", "URL"],
        ["ls", "URL"],
        ["ls", "--URL"],
        ["run", "study.py", "--workers", "URL"],
        ["status", "s", "--runs-dir", "URL"],
        ["db", "copy", "URL", "URL"],
        ["db", "copy", "sqlite:///none.db", "URL"],
        ["dashboard", "--storage", "URL"],
        ["run", "study.py", "--checkpoints", "URL"],
        ["status", "s", "--debug", "--storage", "URL"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:SECRET@127.0.0.1:1/db?password=SECRET",
        "postgresql://me:SECRET@h:x/db",
        "s3://key:SECRET@bucket",
        "postgres:/me:SECRET@h/db",
    ],
)
def test_no_command_shows_a_secret_whatever_it_is_given(words, url, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("URL", url) for word in words]) != 0
    output = "".join(capfd.readouterr())
    assert "SECRET" not in output.replace("\n", "").replace("│", "").replace(" ", "")
    assert output


@pytest.mark.parametrize("text", ["no answer (tcp://host:8786).", "at tcp://host:8786, again"])
def test_a_sentence_about_a_url_keeps_its_port(text):
    assert shown_text(text) == text
    assert shown_text("no login (s3://key:SECRET).") == "no login (s3://key:***)."


class Mute:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize("value", [list(range(1000)), "x\n" * 99, {"a": [1] * 99}, Mute()])
def test_a_users_value_is_one_short_line_in_a_message(value):
    text = shown_value(value)
    assert "\n" not in text
    assert 20 < len(text) <= 60
    assert shown_value(32) == "32"
