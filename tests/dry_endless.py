"""The point of `point_env` without a time limit: `dry_endless:Endless-v0`."""

import gymnasium as gym
from point_env import PointEnv

gym.register("Endless-v0", PointEnv)
