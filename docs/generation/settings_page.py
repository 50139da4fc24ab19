"""The page of the settings, made from the class that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

from sweeper.declarations import settings
from sweeper.declarations.settings import CONFIGURATION_FILE, Settings

_HEAD = f"""# Settings: flags, environment, `{CONFIGURATION_FILE}`

<!-- Made from `sweeper/declarations/settings.py`. -->

Each setting is looked for on its own: first the flag, then the environment, then `{CONFIGURATION_FILE}`
in the current directory, then the default. So one may come from here and another from there. A key
that is none is an error, and so is a value that cannot be used; the message says where it stands.

An argument of `Study.run` counts as a flag: `study.run(workers=2, storage="…")`.
"""

_TAIL = f"""
## An example of `{CONFIGURATION_FILE}`

```toml
storage = "postgresql://me@db.example/sweeper"
runs_dir = "/shared/runs"
workers = 4
```

## Other variables

| Variable | Meaning |
|---|---|
| `SWEEPER_DEBUG` | anything but `0`: print the traceback of an unexpected error, as `--debug` does |
| `TMPDIR` | where `sweeper verify`, audits and `sweeper check` write what they compare |
"""


def page() -> str:
    """The whole page, as Markdown."""
    rows = ["| Key | Variable | Default | Meaning |", "|---|---|---|---|", *_rows()]
    return "\n".join([_HEAD, *rows, _TAIL])


def descriptions() -> dict[str, str]:
    """What the class says of each setting."""
    file = Path(str(settings.__file__))
    module: Any = griffe.visit("settings", file, file.read_text())
    for section in module["Settings"].docstring.parse("google"):
        if section.kind.value == "attributes":
            return {each.name: " ".join(each.description.split()) for each in section.value}
    return {}


def _rows() -> Iterator[str]:
    said = descriptions()
    for name, field in Settings.model_fields.items():
        default = field.get_default()
        shown = "" if default in (None, "") or field.default_factory else f"`{default}`"
        text = said[name].replace("``", "`")
        yield f"| `{name}` | `SWEEPER_{name.upper()}` | {shown} | {text} |"
