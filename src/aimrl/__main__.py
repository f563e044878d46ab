"""`python -m aimrl` is `aimrl`."""

import sys

from aimrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
