"""Entropy for generators without a seed, from the trial's seed instead of the system.

``np.random.default_rng()``, ``SeedSequence()``, ``RandomState()`` and ``random.Random()`` use the
operating system's entropy, which differs in each process. While a trial's code runs, both libraries
get numbers that are a function of the trial's seed and of the count of earlier requests. The count is
captured and restored.

``os.urandom``, ``uuid.uuid4`` and ``secrets`` are not replaced, because their callers may need unique
numbers, such as the name of a run or a token, also in a replay. The user's first line that calls them
is reported. Requests of this package, of the standard library (names of temporary files, copies of
generators) and of other threads are not replaced either, because their order is not a function of the
trial. An unseeded generator that the user's code makes in another thread is refused.
"""

import os
import random
import sys
import threading
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from sweeper.errors import UncapturableError
from sweeper.inspection.sources import is_users, outward, users_line
from sweeper.train.codec import Json, Tensors
from sweeper.train.component import Component
from sweeper.train.randomness.interception import (
    MODULE_SEED,
    NUMPY_BITS,
    PYTHON_SEED,
    SYSTEM_BYTES,
    SYSTEM_BYTES_OF_RANDOM,
    Interception,
    Replacements,
)

_OF_THE_LIBRARIES = ("numpy", "random")
"""Modules that forward requests, and are skipped when the caller is determined."""

_OF_THE_SYSTEM = ("random", "secrets", "uuid")
"""Modules that forward requests for the system's random numbers."""

_NOT_THE_TRIALS = frozenset({"sweeper", *sys.stdlib_module_names}) - {"__main__"}

_SEED_BITS = 256
"""Number of bits that seed an unseeded ``random.Random``."""

_system_randbits = NUMPY_BITS.current
_system_urandom = os.urandom
_seed_of_python = random.Random.seed


class FreshEntropy(Component):
    """A stream of entropy for one use, in the thread that entered it.

    ``notify`` is called once with a notice if the user's code requests the system's random numbers.
    """

    name = "fresh_entropy"

    def __init__(
        self,
        sequence: np.random.SeedSequence,
        use: str,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self._entropy = sequence.entropy
        self._key = (*sequence.spawn_key, zlib.crc32(f"fresh entropy of {use}".encode()))
        self.drawn = 0
        """Number of values drawn so far."""
        self._notify = notify
        self._taken: str | None = None
        self._of: tuple[int, int] | None = None
        self._elsewhere: str | None = None

    def __enter__(self) -> Self:
        self._of = (os.getpid(), threading.get_ident())
        _streams.append(self)
        if len(_streams) == 1:
            _replacing.__enter__()
        return self

    def __exit__(self, *_exception: object) -> None:
        # Not the last one, if streams of two threads end in the order in which they started.
        _streams.remove(self)
        if not _streams:
            _replacing.__exit__()

    def bits(self, count: int) -> int | None:
        """Return the next number of ``count`` bits; None for the system's entropy."""
        pid, thread = self._of or (0, 0)
        caller = _caller(_OF_THE_LIBRARIES)
        if pid != os.getpid() or caller is None or _root_of(caller) in _NOT_THE_TRIALS:
            return None
        if thread != threading.get_ident():
            frames = outward(sys._getframe(1))
            line = users_line((f.f_code.co_filename, f.f_lineno) for f in frames)
            self._elsewhere = self._elsewhere or line
            return None
        sequence = np.random.SeedSequence(self._entropy, spawn_key=(*self._key, self.drawn))
        self.drawn += 1
        words = sequence.generate_state(-(-count // 32), np.uint32)
        return int.from_bytes(words.astype("<u4").tobytes(), "little") >> (-count % 32)

    def note_system(self) -> None:
        """Report the user's line that requests the system's random numbers, if any."""
        caller = _caller(_OF_THE_SYSTEM)
        pid, thread = self._of or (0, 0)
        if self._notify is None or caller is None or pid != os.getpid():
            return
        code = caller.f_code
        if is_users(code.co_filename):
            self._taken = (
                f"{code.co_filename}:{caller.f_lineno}: {code.co_name} takes random numbers from "
                "the operating system (os.urandom, uuid or secrets), which differ in every "
                "process, so a resumed trial differs if training uses them. Draw from trial.seed"
            )
        # Notices are sent from the training's thread; those of other threads wait for a checkpoint.
        if thread == threading.get_ident():
            self._notify_taken()

    def _notify_taken(self) -> None:
        if self._notify is not None and self._taken is not None:
            notify = self._notify
            self._notify = None
            notify(self._taken)

    def capture(self, tensors: Tensors) -> Json:
        del tensors
        self._notify_taken()
        if self._elsewhere is not None:
            raise UncapturableError(
                f"{self._elsewhere}: a random generator without a seed was made in another thread "
                "than the training's (for example in a Python function that TensorFlow calls), "
                "so a resumed trial would draw other numbers; give it a seed, such as "
                "[trial.seed, the number of the sample]"
            )
        return {"drawn": self.drawn}

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        del tensors
        self.drawn = saved["drawn"]


@contextmanager
def system_entropy() -> Iterator[None]:
    """Context manager that uses the system's entropy, for code that is not the trial's."""
    _streams.append(None)
    try:
        yield
    finally:
        _streams.pop()


_streams: list[FreshEntropy | None] = []
"""The entered streams, innermost last; None for the system's entropy."""


def _replaced() -> Replacements:
    yield NUMPY_BITS, _randbits
    yield PYTHON_SEED, _seed
    yield MODULE_SEED, types.MethodType(_seed, MODULE_SEED.current.__self__)
    yield from ((source, _urandom) for source in (SYSTEM_BYTES, SYSTEM_BYTES_OF_RANDOM))


_replacing = Interception(_replaced)


def _drawn_bits(count: int) -> int | None:
    stream = _streams[-1] if _streams else None
    return None if stream is None else stream.bits(count)


def _randbits(count: int) -> int:
    drawn = _drawn_bits(count)
    return int(_system_randbits(count)) if drawn is None else drawn


def _seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
    if a is None:
        a = _drawn_bits(_SEED_BITS)
    _seed_of_python(generator, a, version)


def _urandom(size: int) -> bytes:
    stream = _streams[-1] if _streams else None
    if stream is not None:
        stream.note_system()
    return _system_urandom(size)


def _caller(forwarding: tuple[str, ...]) -> types.FrameType | None:
    """Return the innermost frame outside of this module and the modules that forward requests."""
    for frame in outward(sys._getframe(1)):
        if frame.f_globals is not globals() and _root_of(frame) not in forwarding:
            return frame
    return None


def _root_of(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
