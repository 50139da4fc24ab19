"""``python -m sweeper`` is the ``sweeper`` command."""

import sys

from sweeper.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
