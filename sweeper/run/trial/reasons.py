"""Reason of a trial's failure: one line with the exception's cause and the line that raised it.

An exception may come from the user's code: its text may be missing, huge, of many lines, or contain
characters that neither a pipe nor a database can store. TensorFlow's texts contain the reason among
pages of frames and names of nodes. Formatting must never fail, because the trial would then seem to
have crashed.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import TracebackType

from sweeper.inspection.sources import is_users
from sweeper.support.installation import missing_package

_LONGEST_LINE = 2_000
_LONGEST_TEXT = 100_000
"""Maximum number of characters of a line and of a traceback; the middle of a longer one is left out."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TENSORFLOW = re.compile(r"\{\{(function_)?node |\[Op:|^Graph execution error:")
_NODES = re.compile(
    r"\{\{function_node [^}]*\}\}\s*|\[\[\{\{node [^}]*\}\}\]\]|\[Op:[^\]]*\]( name: ?\S*)?"
)
_NO_REASON = re.compile(
    r"Graph execution error:$|Detected at node .* defined at|Traceback \(most recent|"
    r"<stack traces unavailable>"
)


def error_text(error: BaseException) -> str:
    """Return ``str(error)``, or a text that names the error that ``str`` raises."""
    try:
        return str(error)
    except BaseException as other:  # it may raise whatever it likes, SystemExit too
        return f"<its __str__ raised {type(other).__name__}>"


def error_line(error: BaseException, *, where: bool) -> str:
    """Return one line: the error's type, its reason, and the user's line that raised it.

    Args:
        error: Any exception.
        where: Whether to add ``(in FUNCTION, FILE:LINE)``, if a line of the user's code is known.
    """
    kind, reason = type(error).__name__, _reason(printable(error_text(error), _LONGEST_TEXT))
    location = _location(error.__traceback__) if where else None
    missing = missing_package(error)
    advice = "" if missing is None else f"; {missing}"
    line = printable(f"{kind}: {reason}", _LONGEST_LINE) + advice
    return line if location is None else f"{line} ({printable(location)})"


def formatted(error: BaseException, trace: TracebackType | None) -> str:
    """Return the traceback as Python prints it, starting at ``trace``."""
    try:
        lines = traceback.format_exception(type(error), error, trace)
    except BaseException as other:
        # Formatting notes and chained errors calls the user's code, too.
        lines = [*traceback.format_tb(trace), f"<formatting raised {type(other).__name__}>\n"]
    return printable("".join(lines))


def printable(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return ``text`` with lone surrogates and NULs escaped, which pipes and databases cannot store.

    The middle of a text longer than ``longest`` characters is left out.
    """
    if len(text) > longest:
        half = longest // 2
        left = len(text) - 2 * half
        text = f"{text[:half]} [… {left} characters left out …] {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _reason(text: str) -> str:
    lines = _COLOURS.sub("", text).splitlines()
    if any(_TENSORFLOW.search(line) for line in lines):
        # Frames are indented; the other lines are the kernel's message.
        said = [_NODES.sub("", line).rstrip() for line in lines if not line.startswith("  ")]
        kept = [line.strip() for line in said if line.strip() and not _NO_REASON.match(line)]
        lines = list(dict.fromkeys(kept)) or lines
    return " ".join(" ".join(lines).split())


def _location(trace: TracebackType | None) -> str | None:
    """Return the innermost line of the user's own code, as ``in FUNCTION, FILE:LINE``."""
    found = None
    for frame, line in traceback.walk_tb(trace):
        if is_users(frame.f_code.co_filename):
            name = frame.f_code.co_name
            found = f"in {name}, {Path(frame.f_code.co_filename).name}:{line}"
    return found
