"""Small goal environments that behave, and one that can be told to misbehave."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """A point on a line, moved by its action; the goal is met within 0.1. Action bounds are lopsided on purpose."""

    low, high = -2.0, 6.0

    def __init__(self, ends_at_goal: bool = False, pays: tuple[float, float] = (-1.0, 0.0), span: float = 10.0) -> None:
        box = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.observation_space = spaces.Dict(
            {"observation": spaces.Box(-np.inf, np.inf, (2, 2)), "achieved_goal": box, "desired_goal": box}
        )
        self.action_space = spaces.Box(self.low, self.high, (1,), np.float32)
        self.ends_at_goal, self.pays, self.span = ends_at_goal, pays, span
        self.x, self.goal, self.t = 0.0, 0.0, 0
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.x, self.goal, self.t = 0.0, self.np_random.uniform(1, self.span), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.x, self.t = self.x + float(action[0]), self.t + 1
        obs = self._obs()
        goals = obs["achieved_goal"], obs["desired_goal"], {}
        return obs, self.compute_reward(*goals), self.compute_terminated(*goals), False, {}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.where(np.abs(achieved - desired)[..., 0] < 0.1, self.pays[1], self.pays[0])

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return (np.abs(achieved - desired)[..., 0] < 0.1) & self.ends_at_goal

    def _obs(self) -> dict[str, np.ndarray]:
        seen = np.array([[self.x, self.t], [self.goal, 1.0]], np.float32)
        return {"observation": seen, "achieved_goal": np.array([self.x]), "desired_goal": np.array([self.goal])}


class Steps(Walk):
    """The same walk with three actions, numbered from 5: left, stay, right."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3, start=5)

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return super().step([int(action) - 6])


class OneByOne(Walk):
    """compute_reward and compute_terminated written for one pair only: on a batch they answer for its first row."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return float(super().compute_reward(achieved.reshape(-1)[:1], desired.reshape(-1)[:1], info))

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return bool(super().compute_terminated(achieved.reshape(-1)[:1], desired.reshape(-1)[:1], info))


class Rogue(Walk):
    """Misbehaves in its `when`-th step (0: in reset), in the way `how` says, if its goal is beyond `beyond`."""

    def __init__(self, how: str, when: int = 3, beyond: float = -1.0) -> None:
        super().__init__()
        self.how, self.when, self.beyond = how, when, beyond

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = super().reset(seed=seed)
        return (self._spoilt(obs) if self.when == 0 else obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.t == self.when and self.goal > self.beyond:
            if self.how == "bad reward":
                return obs, float("nan"), terminated, truncated, info
            if self.how == "bad flag":
                return obs, reward, None, truncated, info
            if self.how == "four values":
                return obs, reward, terminated, info
            return self._spoilt(obs), reward, terminated, truncated, info
        return obs, reward, terminated, truncated, info

    def _spoilt(self, obs: Any) -> Any:
        match self.how:
            case "raise":
                raise ValueError("the wheel\ncame off")
            case "hang":
                time.sleep(3600)
            case "die":
                os._exit(17)
            case "nan":
                return obs | {"achieved_goal": np.array([np.nan])}
            case "inf":
                return obs | {"observation": np.full((2, 2), np.inf, np.float32)}
            case "overflow":
                return obs | {"desired_goal": np.array([1e60])}
            case "shape":
                return obs | {"achieved_goal": np.zeros(2)}
            case "dtype":
                return obs | {"achieved_goal": np.array(["here"])}
            case "missing":
                return {"observation": obs["observation"]}
            case "array":
                return obs["observation"]
        return obs
