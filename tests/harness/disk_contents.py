"""Contents of a directory, byte by byte."""

import hashlib


def contents(directory):
    """Every entry below a directory: what it is, its content and its time."""
    return {
        str(path.relative_to(directory)): (path.is_symlink(), path.is_dir())
        if path.is_symlink() or path.is_dir()
        else (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if "__pycache__" not in path.parts
    }


def digests(directory):
    """The digest of every file below a directory, except for a study's database."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith("sweeper.db")
    }
