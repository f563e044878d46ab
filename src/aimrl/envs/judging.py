"""Goal tasks for compiled programs: inside one, an environment may only be able to answer through Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from aimrl.envs.goals import GoalFunction, GoalTask, Never


def make_judge(task: GoalTask) -> Callable:
    """(achieved, goal) → (task reward, success), inside a compiled program even if the environment can only answer in Python."""
    if task.jittable:
        return lambda achieved, goal: (task.reward(achieved, goal).astype(jnp.float32), task.success(achieved, goal))
    return _on_host((task.reward, jnp.float32), (task.success, jnp.bool_))


def make_ends(task: GoalTask) -> Callable | None:
    """(achieved, goal) → would the environment itself end the episode here; None if it never does."""
    if isinstance(task.terminated, Never):
        return None
    host = _on_host((task.terminated, jnp.bool_))
    return task.terminated if task.jittable else lambda achieved, goal: host(achieved, goal)[0]


def _on_host(*functions: tuple[GoalFunction, Any]) -> Callable:
    """Functions of (achieved, goal) that only Python can answer, each with the type of its answers, inside a compiled program."""

    def host(achieved: Any, goal: Any) -> tuple[np.ndarray, ...]:
        achieved, goal = np.asarray(achieved), np.asarray(goal)
        rows = achieved.reshape(-1, achieved.shape[-1]), goal.reshape(-1, goal.shape[-1])
        return tuple(np.asarray(f(*rows), dtype).reshape(achieved.shape[:-1]) for f, dtype in functions)

    def call(achieved: Array, goal: Array) -> Any:
        out = tuple(jax.ShapeDtypeStruct(achieved.shape[:-1], dtype) for _, dtype in functions)
        return jax.pure_callback(host, out, achieved, jnp.broadcast_to(goal, achieved.shape), vmap_method="broadcast_all")

    return call
