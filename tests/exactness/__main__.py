"""One study of the corpus, or a group, or all: ``python tests/exactness [NAME…] [--before M:F]``.

Without a name it lists them. ``--before module:function`` is called in every trial process before
the study is imported, to see what the corpus says without a part of sweeper; the environment's
``SWEEPER_EXACTNESS_BEFORE`` says the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
for entry in (HERE, HERE.parent, HERE.parent.parent):
    if str(entry) not in sys.path:
        sys.path.insert(0, str(entry))

import exactness_list as corpus  # noqa: E402 - found by the lines above
from exactness_audited import audit  # noqa: E402
from exactness_starting import forked, service, starts  # noqa: E402
from exactness_verdicts import judge  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="studies or groups; 'all' for all")
    parser.add_argument("--before", default=os.environ.get("SWEEPER_EXACTNESS_BEFORE") or None)
    parser.add_argument("--audits", action="store_true", help="audit two intervals of each instead")
    given = parser.parse_args()
    if not given.names:
        for group in corpus.groups():
            for part in corpus.studies_of(group):
                print(f"{group:24} {part.name:44} {part.kind}")
        return 0
    parts = list(chosen(given.names))
    with empty_directory() as directory, service(directory):
        return audits(parts, given.before) if given.audits else verdicts(parts, given.before)


def verdicts(parts: list[corpus.StudyPart], before: str | None) -> int:
    """Kill and judge each study; what comes to another verdict than expected is wrong."""
    counts: Counter[str] = Counter()
    wrong = 0
    for part in parts:
        begun = time.monotonic()
        with empty_directory() as directory, starts(part, before) as start:
            verdict = judge(part, directory, start)
        counts[verdict.outcome] += 1
        wrong += not verdict.fits(part)
        note = "" if verdict.fits(part) else f"   <- expected {'/'.join(part.expects.outcomes)}"
        print(f"{time.monotonic() - begun:5.1f} s  {verdict}{note}", flush=True)
        if not verdict.fits(part) and verdict.log:
            print("          " + verdict.log.replace("\n", "\n          "))
    print(", ".join(f"{counts[o]} {o}" for o in ("identical", "refused", "silent")))
    return 1 if wrong else 0


def audits(parts: list[corpus.StudyPart], before: str | None) -> int:
    """Audit two intervals of each study; what acts in them and is not caught is wrong."""
    counts: Counter[str] = Counter()
    missed = 0
    for part in parts:
        if part.own_server:
            continue
        begun = time.monotonic()
        with empty_directory() as directory:
            found = audit(part, directory, forked(part, before))
        counts["refused" if found.refused else "acting" if found.acts else "inert"] += 1
        counts["caught"] += bool(found.caught)
        missed += found.acts and not found.caught
        note = "   <- not caught" if found.acts and not found.caught else ""
        print(f"{time.monotonic() - begun:5.1f} s  {found}{note}", flush=True)
    print(
        f"{counts['acting']} act within the audited intervals, {missed} of them not caught; "
        f"{counts['inert']} do not; {counts['caught']} caught in all; {counts['refused']} refused"
    )
    return 1 if missed else 0


def chosen(names: list[str]) -> Iterator[corpus.StudyPart]:
    for name in names:
        if name == "all":
            yield from (p for group in corpus.groups() for p in corpus.studies_of(group))
        elif name in corpus.groups():
            yield from corpus.studies_of(name)
        else:
            yield corpus.find(name)


@contextmanager
def empty_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="sweeper-exactness-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
