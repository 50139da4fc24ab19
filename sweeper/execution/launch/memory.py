"""Whether the kernel has killed for lack of memory: what tells a full machine from a `kill -9`."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = (
    (Path("/proc/vmstat"), "oom_kill"),
    (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),
)


def out_of_memory_kills() -> int:
    """How many processes the kernel has killed for lack of memory, here and in this container.

    Only a rise between two calls means anything; 0 where the kernel does not say.
    """
    total = 0
    for path, name in _COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.split()[:1] == [name])
    return total
