"""Where checkpoints may lie: a directory or a bucket, from names that were checked."""

from pathlib import Path

import pytest
from small_models import Runner

from sweeper.declarations.settings import load_settings
from sweeper.errors import UsageError


@pytest.fixture(autouse=True)
def bare_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("SWEEPER_CHECKPOINTS", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_location_is_a_setting_read_and_typed_as_it_is_written(monkeypatch):
    assert load_settings().checkpoints_location is None
    monkeypatch.setenv("SWEEPER_CHECKPOINTS", "s3://b")
    assert str(load_settings().checkpoints_location) == "s3://b"
    settings = load_settings(checkpoints="s3://bucket/some/prefix/")
    assert str(settings.checkpoints_location / "x") == "s3://bucket/some/prefix/x"
    typed = settings.command("resume", "small", checkpoints="s3://bucket/some/prefix")
    assert typed == "sweeper resume small --checkpoints s3://bucket/some/prefix"
    assert load_settings(checkpoints="/large/disk").checkpoints_location == Path("/large/disk")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://host/x", "none of the known object stores"),
        ("s3://", "names no bucket"),
        ("s3://key:SECRET@bucket/x", "credentials"),
        ("s3:/key:SECRET@bucket", r"s3:/key:\*\*\*@bucket.*object stores"),
        ("s3://bucket:SECRET", "cannot be part"),
        ("s3://bucket/../other", "cannot be part"),
        ("s3://bucket//x", "cannot be part"),
        ("s3://bucket/*", "cannot be part"),
        ("s3://bucket/x?token=SECRET", "cannot be part"),
        ("s3://bucket/key:SECRET", "cannot be part"),
    ],
)
def test_what_is_no_location_is_refused_with_a_reason_and_no_secret(url, reason):
    with pytest.raises(UsageError, match=f"--checkpoints: found.*{reason}") as caught:
        load_settings(checkpoints=url)
    assert "SECRET" not in str(caught.value)


def test_only_checkpoints_go_to_their_location_which_every_trial_must_reach(tmp_path):
    ran = Runner(tmp_path)(checkpoints_dir=tmp_path / "large")
    attempt = Path("small", "trial-00000", "attempt-01")
    directories = {Path(checkpoint.path).parent for checkpoint in ran.results.best.checkpoints}
    assert directories == {tmp_path / "large" / attempt / "checkpoints"}
    assert not (tmp_path / "runs" / attempt / "checkpoints").exists()
    assert not (tmp_path / "large" / attempt / "log.txt").exists()
    with pytest.raises(UsageError, match="memory of one process"):
        ran.study.run(isolation="spawn", checkpoints_dir="memory://x", runs_dir=tmp_path / "runs")
