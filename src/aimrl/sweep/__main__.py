"""The process of one cell: `python -m aimrl.sweep --cell FOLDER --parent PID`."""

import sys

from aimrl.sweep.local import main

if __name__ == "__main__":
    sys.exit(main())
