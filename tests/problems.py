"""Small goal environments and one table of tasks for every method."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from aimrl.envs.goals import GoalTask, near_task


class PointGoal(gym.Env):
    """A point in the plane, away from the origin, moves by at most 0.1 a step and should reach a goal within 0.1."""

    def __init__(self, reach: float = 0.4, centre: float = 1.5, discrete: bool = False, horizon: int = 15):
        box = lambda n: gym.spaces.Box(-10.0, 10.0, (n,), np.float32)  # noqa: E731
        self.observation_space = gym.spaces.Dict({"observation": box(2), "achieved_goal": box(2), "desired_goal": box(2)})
        self.action_space = gym.spaces.Discrete(4) if discrete else gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.reach, self.centre, self.discrete, self.horizon = reach, centre, discrete, horizon

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.t = 0
        self.x = np.full(2, self.centre)
        self.goal = self.centre + self.np_random.uniform(-self.reach, self.reach, 2)
        return self._obs(), {}

    def step(self, action: Any):
        move = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)][action]) if self.discrete else np.clip(action, -1, 1)
        self.x = self.x + 0.1 * move
        self.t += 1
        obs = self._obs()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        return obs, reward, False, self.t >= self.horizon, {"is_success": reward == 0.0}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return -(np.linalg.norm(achieved - desired, axis=-1) >= 0.1).astype(np.float32)

    def goal_task(self) -> GoalTask:
        """The same rule for compiled programs, which can then be kept: tests that train need not compile each time."""
        return near_task(0.1)

    def _obs(self) -> dict[str, np.ndarray]:
        x = self.x.astype(np.float32)
        return {"observation": x.copy(), "achieved_goal": x.copy(), "desired_goal": self.goal.astype(np.float32)}


def point_goal(**options: Any) -> gym.Env:
    """A PointGoal with its time limit where Gymnasium looks for it."""
    env = PointGoal(**options)
    return gym.wrappers.TimeLimit(env, env.horizon)


TINY: dict[str, Any] = {  # a configuration that trains PointGoal in seconds
    "num_envs": 4,
    "round_steps": 60,
    "round_updates": 30,
    "batch_size": 64,
    "learning_starts": 120,
    "random_before": 1.0,
    "potential_updates": 10,
    "potential_batch": 64,
    "buffer_size": 5_000,
    "eval_every": 600,
    "eval_episodes": 20,
    "checkpoint_every": 600,
    "normalise_inputs": True,
    "tensorboard": False,
}
