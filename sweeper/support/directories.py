"""Directories whose files are of no trial: of the system, of installed libraries, caches and downloads."""

import functools
import os
import sys
import tempfile
from pathlib import Path

_SYSTEM = ("/proc/", "/dev/", "/sys/", "/etc/", "/usr/", "/lib/", "/lib64/", "/run/", "/var/lib/")
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_DOWNLOADS = {
    "XDG_CACHE_HOME": "~/.cache",
    "KERAS_HOME": "~/.keras",
    "TFDS_DATA_DIR": "~/tensorflow_datasets",
    "SCIKIT_LEARN_DATA": "~/scikit_learn_data",
    "HF_HOME": "~/.cache/huggingface",
    "TORCH_HOME": "~/.cache/torch",
    "KAGGLEHUB_CACHE": "~/.cache/kagglehub",
    "TFHUB_CACHE_DIR": "",
    "MPLCONFIGDIR": "~/.config/matplotlib",
}
"""Environment variables that name a directory of downloads and caches, with their defaults."""


@functools.cache
def nobodys(directory: str) -> tuple[str, ...]:
    """Return the prefixes of paths that are of no trial: the system, libraries, caches and downloads, unless ``directory`` is there."""
    downloads = (os.environ.get(name) or default for name, default in _DOWNLOADS.items())
    prefixes = {
        os.path.realpath(os.path.expanduser(path)) + os.sep  # noqa: PTH111 - it may be empty
        for path in (sys.prefix, sys.base_prefix, *downloads)
        if path
    }
    scratch = os.path.realpath(tempfile.gettempdir()) + "/sweeper-"
    return (
        scratch,
        _PACKAGE,
        *_SYSTEM,
        *(p for p in sorted(prefixes) if not f"{directory}/".startswith(p)),
    )


def roots_of(target: str) -> list[str]:
    """Return the directories that trials of a study work in: the current one, and that of its file."""
    file = Path(target)
    here = Path.cwd()
    directories = [here, *([file.resolve().parent] if file.is_file() else [])]
    return list(dict.fromkeys(map(os.path.realpath, directories)))
