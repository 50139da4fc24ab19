"""Where checkpoints may lie: a directory or a bucket, from names that were checked."""

from pathlib import Path

import pytest

from sweeper.errors import UsageError
from sweeper.spec.settings import load_settings
from sweeper.support.paths import RemotePath, RunPaths, parse_location


@pytest.fixture(autouse=True)
def bare_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("SWEEPER_CHECKPOINTS", raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_url_is_read_as_it_is_written():
    location = parse_location("s3://bucket/some/prefix/")
    assert location == RemotePath("s3", ("bucket", "some", "prefix"))
    assert str(location) == "s3://bucket/some/prefix"
    assert str(location / "x") == "s3://bucket/some/prefix/x"
    assert (location.name, str(location.parent)) == ("prefix", "s3://bucket/some")
    assert parse_location("/large/disk") == Path("/large/disk")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://host/x", "none of the known object stores"),
        ("s3://", "names no bucket"),
        ("s3://key:secret@bucket/x", "credentials"),
        ("s3://bucket/../other", "cannot be part"),
        ("s3://bucket//x", "cannot be part"),
        ("s3://bucket/*", "cannot be part"),
        ("s3://bucket/x?versionId=1", "cannot be part"),
    ],
)
def test_what_is_no_location_is_refused_with_a_reason(url, said):
    with pytest.raises(UsageError, match=said):
        parse_location(url)
    with pytest.raises(UsageError, match=f"--checkpoints: found.*{said}"):
        load_settings(checkpoints=url)


def test_only_checkpoints_go_to_the_location_for_checkpoints():
    paths = RunPaths(Path("/runs"), "small", parse_location("s3://bucket/p"))
    assert str(paths.checkpoints(3, 1)) == (
        "s3://bucket/p/small/trial-00003/attempt-01/checkpoints"
    )
    assert paths.log(3, 1) == Path("/runs/small/trial-00003/attempt-01/log.txt")
    assert paths.trial_files(3) == Path("/runs/small/trial-00003/files")
    moved = RunPaths(Path("/runs"), "small", Path("/large"))
    assert moved.checkpoints(3, 1) == Path("/large/small/trial-00003/attempt-01/checkpoints")
    default = RunPaths(Path("/runs"), "small")
    assert default.checkpoints(3, 1) == default.attempt(3, 1) / "checkpoints"


def test_the_location_is_a_setting_like_the_others(monkeypatch):
    assert load_settings().checkpoints_location is None
    Path("sweeper.toml").write_text('checkpoints = "s3://a"\n')
    assert load_settings().checkpoints_location == RemotePath("s3", ("a",))
    monkeypatch.setenv("SWEEPER_CHECKPOINTS", "s3://b")
    assert str(load_settings().checkpoints_location) == "s3://b"
    settings = load_settings(checkpoints="s3://c/d")
    typed = settings.command("resume", "small", checkpoints=settings.checkpoints)
    assert typed == "sweeper resume small --checkpoints s3://c/d"
