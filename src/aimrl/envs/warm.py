"""Imported once by the fork server, so that worker processes start with the simulators already loaded instead of a second each.

It and the workers leave the caller's session: a signal to the process group, from a closed terminal or from `timeout`, is the caller's to
answer, who then still needs them. They end with their pipes when the caller is gone.
"""

import contextlib
import os

from aimrl.envs.vector import register_robotics

with contextlib.suppress(OSError):
    os.setsid()
register_robotics()
