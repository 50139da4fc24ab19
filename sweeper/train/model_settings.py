"""Settings of the model with which a training of `sweeper.fit` began, and those that differ in a later process.

A script that is run again with another learning rate or dropout continues from its checkpoint: variables have the
checkpoint's values, and everything else is what the script says now. That is right after a small edit, and a mixture
otherwise, so differences are told. A study compares its code instead.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

_FILE = "settings.json"
_SHOWN = 3
"""Maximum number of differences in a message."""

_NOT_COMPARED = frozenset(
    [
        "name",
        "module",
        "registered_name",
        "build_config",
        "build_input_shape",
        "shared_object_id",
    ]
)
"""Entries of a configuration that a process numbers or computes."""

_SEEN: set[Path] = set()
"""Directories for which this process has called: it may change the model of its own training between calls."""


def check_settings(
    model: keras.Model, directory: Path, notify: Callable[[str], None], *, begins: bool
) -> None:
    """Store the settings of a training that ``begins``; of one that goes on, tell what differs on this process's first call."""
    file = directory.absolute() / _FILE
    if file in _SEEN:
        return
    _SEEN.add(file)
    settings = _settings_of(model)
    if begins:
        # On a full disk the first checkpoint says so, in its words; a notice is all that is lost here.
        with contextlib.suppress(OSError):
            temporary = file.with_name(f"{_FILE}.{os.getpid()}")
            temporary.write_text(json.dumps(settings), encoding="utf-8")
            temporary.replace(file)
    elif file.exists():
        stored = json.loads(file.read_text(encoding="utf-8"))
        names = [n for n in {**stored, **settings} if stored.get(n) != settings.get(n)]
        if names:
            notify(_differences(directory, names, stored, settings))


def _differences(
    directory: Path, names: Sequence[str], stored: Mapping[str, str], settings: Mapping[str, str]
) -> str:
    shown = [
        f"{n} was {stored.get(n, 'not there')} and is {settings.get(n, 'not there')}" for n in names
    ]
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"the training in {directory} began with other settings: {'; '.join(shown[:_SHOWN])}{more}. It continues from "
        "its checkpoint, and what that has, such as the learning rate, counts; to train with the present settings "
        "alone, give another directory (checkpoints=…)"
    )


def _settings_of(model: keras.Model) -> dict[str, str]:
    """Return the settings of the model, and of what it was compiled with, as texts by name."""
    layers = {layer.name: f"layer {n}" for n, layer in enumerate(_layers(model))}
    compiled = _configuration(model.get_compile_config)
    return {
        **dict(_flat(_configuration(model.get_config), "", layers)),
        **dict(_flat(compiled, "", layers)),
    }


def _configuration(get: Callable[[], Any]) -> Any:
    try:
        return get() or {}
    except Exception:
        # The user's own classes need no configuration, and some have code that cannot be put into one.
        return {}


def _layers(model: keras.Model) -> list[Any]:
    return list(model._flatten_layers(include_self=False))


def _flat(config: Any, path: str, layers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the leaves of a configuration with their names; layers are numbered, because processes name them."""
    if isinstance(config, Mapping):
        if config.get("class_name") == "__lambda__":
            return
        inner = config.get("config")
        if isinstance(inner, Mapping) and isinstance(config.get("class_name"), str):
            path = f"{path}{'.' if path else ''}{config['class_name']}"
            yield path, "present"
            yield from _flat(inner, path, layers)
            yield from _flat(config.get("inbound_nodes") or [], f"{path}.inputs", layers)
            return
        for name, value in config.items():
            if name not in _NOT_COMPARED:
                yield from _flat(value, f"{path}{'.' if path else ''}{name}", layers)
    elif isinstance(config, list | tuple):
        for number, value in enumerate(config):
            yield from _flat(value, f"{path}[{number}]", layers)
    elif config is None or isinstance(config, str | float | int):
        yield path, _text_of(config, layers)


def _text_of(value: str | float | None, layers: Mapping[str, str]) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"  # of a variable in float32
    return layers.get(value, repr(value)) if isinstance(value, str) else repr(value)
