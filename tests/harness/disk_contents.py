"""Contents of a directory, byte by byte."""


def contents(directory):
    """Every entry below a directory: what it is, its content and its time."""
    return {
        str(path.relative_to(directory)): (path.is_symlink(), path.is_dir())
        if path.is_symlink() or path.is_dir()
        else (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if "__pycache__" not in path.parts
    }
