"""Run a piece of the ten thousand kills: ``python tests/kill_tally.py [--minutes 20] [--tally FILE]``.

It adds to the tally, and prints the table of what was hit where. With ``--minutes 0`` it only prints it.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SUITE = HERE / "system" / "test_ten_thousand_kills.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--tally", default=str(HERE / "kill-tally.json"))
    given = parser.parse_args()
    code = 0
    if given.minutes:
        environment = {
            **os.environ,
            "SWEEPER_TEST_KILL_MINUTES": str(given.minutes),
            "SWEEPER_TEST_KILL_TALLY": str(Path(given.tally).absolute()),
        }
        words = [sys.executable, "-m", "pytest", str(SUITE), "-m", "soak", "-q", "--processes", "1"]
        code = subprocess.run(words, check=False, env=environment, cwd=HERE.parent).returncode
    sys.path += [str(HERE / "system"), str(HERE / "harness")]
    from test_ten_thousand_kills import Tally

    print(Tally.read(given.tally).table())
    return code


if __name__ == "__main__":
    sys.exit(main())
