"""Settings of a run: flag > environment > sweeper.toml > default.

Each setting is looked up in the four sources in this order, so the number of workers may come from
``SWEEPER_WORKERS`` and the database's URL from ``sweeper.toml`` in the current directory.

pydantic-settings takes a fifth of a second to import, which is why the command line imports this
module only in the bodies of its verbs.
"""

import difflib
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from sweeper.declarations.arguments import usable_cores
from sweeper.errors import UsageError
from sweeper.support.installation import program
from sweeper.support.paths import DATABASE_FILE, Location, parse_location
from sweeper.support.shown import shown_text, shown_url

CONFIGURATION_FILE = "sweeper.toml"
DEFAULT_RUNS_DIR = Path("runs")

Engine = Literal["local", "dask", "ray"]
Isolation = Literal["auto", "fork", "spawn", "inline"]

_PREFIX = "SWEEPER_"
_EXPECTED = {
    "storage": "a database URL such as sqlite:///runs/sweeper.db or postgresql://host/name",
    "runs_dir": "a directory's path",
    "workers": "a whole number, at least 1",
    "engine": "local, dask or ray",
    "isolation": "auto, fork, spawn or inline",
    "engine_address": "a cluster's address such as tcp://10.0.0.1:8786",
    "lease_seconds": "a number of seconds, at least 1",
    "gpus": "all, or ids such as 0,1",
    "trials_per_gpu": "a whole number, at least 1",
    "checkpoints": "a directory's path, or a URL such as s3://bucket/prefix",
}


class Settings(BaseSettings):
    """Settings of one command, resolved and frozen.

    Attributes:
        storage: SQLAlchemy URL of the database. Default: SQLite, ``sweeper.db`` below ``runs_dir``,
            so that moving that directory moves everything.
        runs_dir: Directory with one subdirectory for each study. Default ``runs``.
        workers: Parallel trials, at least 1. Default: one for each core that this process may use,
            because a typical trial keeps about one core busy. Results do not depend on the number.
        engine: Where workers run: ``local`` (default), ``dask`` or ``ray``.
        isolation: How trial processes are made; ``auto`` (default) forks from a fork server where
            that is safe, and spawns otherwise.
        engine_address: The cluster's address for ``dask`` and ``ray``; by default a cluster is
            started on this machine.
        lease_seconds: Duration of a lease. A worker on another machine that does not renew its
            leases for this many seconds counts as gone, and others take its trials. Default 60.
        gpus: ``all`` or ids separated by commas: each slot is bound to one of them. By default
            trials see the GPUs of this process.
        trials_per_gpu: Parallel trials on one GPU, which share its memory. Default 1.
        checkpoints: Place of checkpoints: a directory, or ``s3://bucket/prefix``, ``gs://…``,
            ``memory://…``. Default: below ``runs_dir``.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        toml_file=CONFIGURATION_FILE,
    )

    storage: str = ""
    runs_dir: Path = DEFAULT_RUNS_DIR
    workers: int = Field(default_factory=usable_cores, ge=1)
    engine: Engine = "local"
    isolation: Isolation = "auto"
    engine_address: str | None = None
    lease_seconds: float = Field(default=60.0, ge=1)
    gpus: str | None = None
    trials_per_gpu: int = Field(default=1, ge=1)
    checkpoints: str | None = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read flags, then the environment, then the file; neither .env nor secrets files."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @field_validator("storage")
    @classmethod
    def _storage_is_a_url(cls, value: str) -> str:
        if value and "://" not in value:
            raise ValueError(
                f"no '://' in it; for a SQLite file write sqlite:///{shown_url(value)}"
            )
        return value

    @field_validator("runs_dir")
    @classmethod
    def _runs_dir_fits_into_a_url(cls, value: Path) -> Path:
        if "?" in str(value):
            raise ValueError("a '?' would end the path in the default database's URL")
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(value)):
            raise ValueError(
                "a URL is not a directory: use --storage for a database's URL, --checkpoints for "
                "a bucket's"
            )
        return value.expanduser()

    @field_validator("checkpoints")
    @classmethod
    def _checkpoints_are_a_location(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse_location(value)
            except UsageError as error:
                raise ValueError(str(error)) from None
        return value

    @property
    def checkpoints_location(self) -> Location | None:
        """Return the location of checkpoints; None for ``runs_dir``."""
        return None if self.checkpoints is None else parse_location(self.checkpoints)

    def command(self, *words: str, **options: object) -> str:
        """Return ``sweeper WORDS`` with these locations, as it must be typed in the same directory.

        An option that is None or has its default value is left out, so the common case is ``sweeper
        resume STUDY``. A database's password is written as ``***``, because the text may end in a
        log.
        """
        storage = None if self.storage == _default_storage(self.runs_dir) else self.storage
        typed = [program(), *words]
        for name, value in {"storage": storage, "runs_dir": self.runs_dir, **options}.items():
            setting = type(self).model_fields.get(name)
            if value is not None and (setting is None or value != setting.default):
                text = str(value) if isinstance(value, Path) else shown_url(value)
                typed += [f"--{name.replace('_', '-')}", text]
        return shlex.join(typed)

    @model_validator(mode="before")
    @classmethod
    def _storage_follows_runs_dir(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("storage"):
            return values
        runs_dir = str(values.get("runs_dir", DEFAULT_RUNS_DIR))
        return {**values, "storage": _default_storage(Path(runs_dir).expanduser())}


def load_settings(**given: Any) -> Settings:
    """Resolve every setting.

    Args:
        given: Fields of `Settings` by name: the flags that the user typed, None for others.

    Raises:
        UsageError: A value is not valid, or ``sweeper.toml`` in the current directory cannot be
            read or has an unknown key. The message names the source, the value found, and the
            expected one.
    """
    flags = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(**flags)
    except ValidationError as error:
        raise UsageError(_explain(error, flags)) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{CONFIGURATION_FILE}: not valid TOML: {error}; correct it or move it away"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{CONFIGURATION_FILE}: cannot be read: {error}; make it a readable UTF-8 file"
        ) from None


def _default_storage(runs_dir: Path) -> str:
    return f"sqlite:///{(runs_dir / DATABASE_FILE).as_posix()}"


def _explain(error: ValidationError, flags: dict[str, Any]) -> str:
    return "; ".join(
        _explain_one(str(detail["loc"][0]) if detail["loc"] else "", detail["type"], detail, flags)
        for detail in error.errors()
    )


def _explain_one(key: str, kind: str, detail: Any, flags: dict[str, Any]) -> str:
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(key, _EXPECTED, n=1)
        hint = f"there are {', '.join(sorted(_EXPECTED))}"
        if near:
            hint = f"did you mean {near[0]!r}?"
        return f"{CONFIGURATION_FILE}: {key}: there is no setting of that name; {hint}"
    variable = f"{_PREFIX}{key.upper()}"
    if key in flags:
        given_by = f"--{key.replace('_', '-')}"
    elif os.environ.get(variable):
        given_by = variable
    else:
        given_by = f"{CONFIGURATION_FILE}: {key}"
    expected = _EXPECTED.get(key, "another value")
    reason = f" ({shown_text(str(detail['ctx']['error']))})" if kind == "value_error" else ""
    value = detail["input"]
    if isinstance(value, str | Path):
        value = shown_url(value)
    return f"{given_by}: found {value!r}{reason}; expected {expected}"
