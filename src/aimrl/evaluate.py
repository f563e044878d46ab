"""Policy + environment → episode records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aimrl.envs.vector import VectorGoalEnv

Policy = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (observations, goals) → actions


def evaluate(policy: Policy, env: VectorGoalEnv, episodes: int) -> dict[str, Any]:
    """Play `episodes` episodes, each to its own end (the time limit, where success doesn't end it), and record them.

    `success_final`: the goal is met in the last state; `success_ever`: in any state; `steps_to_goal`: the first such step, −1 if never.
    Episodes are taken in a fixed order, environment by environment, so that quick episodes are not over-represented.
    """
    n = env.num_envs
    quota = np.full(n, episodes // n) + (np.arange(n) < episodes % n)
    records: list[list[dict[str, Any]]] = [[] for _ in range(n)]
    obs = env.reset()
    first = np.full(n, -1)
    length = np.zeros(n, int)
    returns = np.zeros(n)
    while any(len(r) < q for r, q in zip(records, quota)):
        result = env.step(policy(obs.observation, obs.desired_goal))
        length += 1
        returns += result.reward
        hit = np.asarray(env.task.success(result.obs.achieved_goal, result.obs.desired_goal))
        first = np.where(hit & (first < 0), length, first)
        done = result.terminated | result.truncated
        for i in np.flatnonzero(done):
            if len(records[i]) < quota[i]:
                records[i].append({"final": bool(hit[i]), "first": int(first[i]), "return": float(returns[i])})
        obs = env.reset(done) if done.any() else result.obs
        first, length, returns = np.where(done, -1, first), np.where(done, 0, length), np.where(done, 0.0, returns)
    flat = [r for rs in records for r in rs]
    return {
        "episodes": len(flat),
        "success_final": [int(r["final"]) for r in flat],
        "success_ever": [int(r["first"] >= 0) for r in flat],
        "steps_to_goal": [r["first"] for r in flat],
        "return": [round(r["return"], 6) for r in flat],
    }
