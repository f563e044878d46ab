"""An environment of one's own: a puck on a table, pushed by its action, should stop within 0.1 of its goal.

python -m aimrl doctor square:Square-v0      # from this folder
python -m aimrl train square:Square-v0 --steps 20000
"""

import gymnasium as gym
import numpy as np


class Square(gym.Env):
    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        box = lambda size: gym.spaces.Box(-2.0, 2.0, (size,), np.float32)  # noqa: E731
        self.observation_space = gym.spaces.Dict({"observation": box(4), "achieved_goal": box(2), "desired_goal": box(2)})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # all randomness from self.np_random: the same seed, the same episode
        self.at = self.np_random.uniform(-1, 1, 2)
        self.speed = np.zeros(2)
        self.goal = self.np_random.uniform(-1, 1, 2)
        return self.observe(), {}

    def step(self, action):
        self.speed = 0.7 * self.speed + 0.1 * np.clip(action, -1, 1)
        self.at = np.clip(self.at + self.speed, -2, 2)
        obs = self.observe()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        return obs, reward, False, False, {}  # the time limit is Gymnasium's business

    def compute_reward(self, achieved_goal, desired_goal, info):
        """−1 until the goal is met, for one goal or a batch of them: hindsight asks about goals the episode wasn't played for."""
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.1).astype(np.float32)

    def observe(self):
        state = np.concatenate([self.at, self.speed]).astype(np.float32)
        return {"observation": state, "achieved_goal": state[:2], "desired_goal": self.goal.astype(np.float32)}


gym.register("Square-v0", Square, max_episode_steps=50)
