"""Goal environments that go wrong after a number of steps, over all of their copies: `misbehaving:Raises-v0` and so on."""

import time
from typing import Any

import gymnasium as gym
import numpy as np


class Misbehaving(gym.Env):
    after = 10**9  # steps until it goes wrong; set by the test
    steps = 0

    def __init__(self, how: str, render_mode: str | None = None):
        box = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.observation_space = gym.spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = gym.spaces.Box(-0.5, 0.5, (2,), np.float32)
        self.how, self.render_mode = how, render_mode
        if how == "builds" and Misbehaving.steps > Misbehaving.after:
            raise OSError("no more licences")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self._obs(), {}

    def step(self, action):
        Misbehaving.steps += 1
        self.at = np.clip(self.at + np.asarray(action, np.float32), -2, 2)
        obs = self._obs()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        if Misbehaving.steps > Misbehaving.after:
            if self.how == "raises":
                raise RuntimeError("the motor\nis on fire")
            if self.how == "exits":
                raise SystemExit
            if self.how == "nan":
                obs["observation"][0] = np.nan
            if self.how == "shape":
                obs["achieved_goal"] = np.zeros(3, np.float32)
            if self.how == "hangs":
                time.sleep(30)
        return obs, reward, False, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        fails = {"rule": np.ndim(achieved_goal) > 1, "learning": np.size(achieved_goal) > 1_000}  # asked by the gatherer, by the learner
        if fails.get(self.how) and Misbehaving.steps > Misbehaving.after:
            raise ZeroDivisionError("the goal\nhas no size")
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.5).astype(np.float32)

    def _obs(self) -> dict[str, np.ndarray]:
        return {"observation": self.at.copy(), "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}


HOW = {
    "raises": "raised RuntimeError: the motor is on fire",
    "nan": "NaN",
    "shape": "has shape (3,)",
    "hangs": "no answer within",
    "exits": "raised SystemExit",
}
for name in (*HOW, "rule", "learning", "builds"):
    gym.register(f"{name.capitalize()}-v0", Misbehaving, max_episode_steps=10, kwargs={"how": name})
