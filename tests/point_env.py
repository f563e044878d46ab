"""A goal environment small enough for any test: a point in a square, pushed by its action. `point_env:Point-v0`."""

from typing import Any

import gymnasium as gym
import numpy as np


class PointEnv(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(self, render_mode: str | None = None, blind: bool = False):
        box = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.observation_space = gym.spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = gym.spaces.Box(-0.5, 0.5, (2,), np.float32)
        self.render_mode, self.blind = render_mode, blind
        self.at = self.goal = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self._obs(), {}

    def step(self, action):
        self.at = np.clip(self.at + np.asarray(action, np.float32), -2, 2)
        obs = self._obs()
        return obs, float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})), False, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.5).astype(np.float32)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return np.zeros(np.shape(achieved_goal)[:-1], bool)

    def compute_truncated(self, achieved_goal, desired_goal, info):
        return np.zeros(np.shape(achieved_goal)[:-1], bool)

    def render(self):
        if self.blind:
            raise RuntimeError("no display")
        picture = np.zeros((40, 60, 3), np.uint8)
        for colour, point in enumerate((self.at, self.goal)):
            x, y = ((point + 2) / 4 * (57, 37)).astype(int)
            picture[y : y + 3, x : x + 3, colour] = 255
        return picture

    def _obs(self) -> dict[str, np.ndarray]:
        return {"observation": self.at.copy(), "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}


gym.register("Point-v0", PointEnv, max_episode_steps=10)
gym.register("Blind-v0", PointEnv, max_episode_steps=10, kwargs={"blind": True})
