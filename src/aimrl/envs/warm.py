"""Imported once by the fork server, so that worker processes start with the simulators already loaded instead of a second each."""

from aimrl.envs.vector import register_robotics

register_robotics()
