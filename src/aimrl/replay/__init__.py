"""Replay: an episode ring on the device, hindsight relabelling and the recent window."""

from aimrl.replay.hindsight import Hindsight, practice_goals, sample
from aimrl.replay.ring import Episodes, Ring, bytes_needed, episodes_like, insert, make_ring, trimmed, untrimmed, used_rows

__all__ = [
    "Episodes",
    "Hindsight",
    "Ring",
    "bytes_needed",
    "episodes_like",
    "insert",
    "make_ring",
    "practice_goals",
    "sample",
    "trimmed",
    "untrimmed",
    "used_rows",
]
