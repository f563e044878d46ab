"""The grid worlds as Gymnasium goal environments: `aimrl/Room-v0`, `aimrl/Windy-v0`, `aimrl/Torus-v0`, `aimrl/Grid-v0` (any file).

Importing this module registers them; `gymnasium.make("aimrl.envs.grid_gym:aimrl/Room-v0")` does so by itself.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from aimrl.envs import grid

PIXELS = 24  # per cell


class GridEnv(gym.Env):
    """Observation, achieved and desired goal are plain coordinates (x, y); the reward is the paper's I[s′ = g]."""

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(self, world: str = "room", render_mode: str | None = None):
        self.world = grid.load(world)
        self.render_mode = render_mode
        high = np.array([self.world.width - 1, self.world.height - 1], np.float32)
        box = gym.spaces.Box(np.zeros(2, np.float32), np.maximum(high, 1.0), dtype=np.float32)
        self.observation_space = gym.spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = gym.spaces.Discrete(4)
        self._state = self._goal = self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._state = int(self.np_random.choice(self.world.starts))
        self._goal = int(self.np_random.choice(self.world.goals))
        self._t = 0
        return self._observe(), {"is_success": False}

    def step(self, action):
        s, a = self._state, int(action)
        windy = self.np_random.random() < self.world.gust_prob[s, a]
        self._state = int(self.world.gust[s, a] if windy else self.world.move[s, a])
        self._t += 1
        obs = self._observe()
        info = {"is_success": self._state == self._goal}
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], info))
        terminated = self.compute_terminated(obs["achieved_goal"], obs["desired_goal"], info)
        truncated = not terminated and self._t >= self.world.limit
        return obs, reward, bool(terminated), truncated, info

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """r = I[s′ = g]; batches are welcome."""
        return self.compute_terminated(achieved_goal, desired_goal, info).astype(np.float64)

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        return np.all(np.abs(np.asarray(achieved_goal) - np.asarray(desired_goal)) < 0.5, axis=-1)

    def compute_truncated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> bool:
        return False  # time alone truncates, and the goals don't tell it

    def render(self):
        return self._text() if self.render_mode == "ansi" else self._image()

    def _observe(self) -> dict[str, np.ndarray]:
        xy = self.world.xy.astype(np.float32)
        return {"observation": xy[self._state], "achieved_goal": xy[self._state], "desired_goal": xy[self._goal]}

    def _text(self) -> str:
        lines = [line for line in self.world.text.splitlines() if line[:1] in ("+", "|", " ")]
        x, y = self.world.xy[self._state]
        row, column = 2 * (self.world.height - y) - 1, 2 * x + 1
        lines[row] = lines[row][:column] + "A" + lines[row][column + 1 :]
        return "\n".join(lines)

    def _image(self) -> np.ndarray:
        w = self.world
        image = np.full((w.height * PIXELS, w.width * PIXELS, 3), 60, np.uint8)

        def fill(x: Any, y: Any, half_x: float, half_y: float, colour: tuple[int, int, int]) -> None:
            rows = slice(max(0, round((w.height - 0.5 - y - half_y) * PIXELS)), round((w.height - 0.5 - y + half_y) * PIXELS))
            columns = slice(max(0, round((x + 0.5 - half_x) * PIXELS)), round((x + 0.5 + half_x) * PIXELS))
            image[rows, columns] = colour

        for s, (x, y) in enumerate(w.xy):
            fill(x, y, 0.5, 0.5, (225, 235, 245) if w.windy[s] else (250, 250, 250))
        (goal_x, goal_y), (x, y) = w.xy[self._goal], w.xy[self._state]
        fill(goal_x, goal_y, 0.3, 0.3, (200, 30, 30))
        fill(x, y, 0.25, 0.25, (30, 80, 200))
        for x0, y0, x1, y1 in w.walls:
            fill((x0 + x1) / 2, (y0 + y1) / 2, abs(x1 - x0) / 2 + 0.06, abs(y1 - y0) / 2 + 0.06, (0, 0, 0))
        return image


def register() -> None:
    """Make the worlds known to Gymnasium; safe to call twice."""
    for name, text in grid.WORLDS.items():
        _register(f"aimrl/{name.capitalize()}-v0", {"world": name}, grid.parse(text, name).limit)
    _register("aimrl/Grid-v0", {}, None)


def _register(env_id: str, kwargs: dict[str, Any], limit: int | None) -> None:
    if env_id not in gym.registry:
        gym.register(env_id, entry_point="aimrl.envs.grid_gym:GridEnv", kwargs=kwargs, max_episode_steps=limit)


register()
