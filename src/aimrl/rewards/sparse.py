"""The task's own reward and nothing else: the baseline R of the paper."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl.rewards.base import Reward
from aimrl.types import GoalSpec, Metrics, Transition


class Sparse(Reward):
    """R: adds nothing to the task reward, learns nothing."""

    task_weight: float = eqx.field(default=1.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> None:
        return None

    def update(self, state: None, batches: Transition, key: PRNGKeyArray) -> tuple[None, Metrics]:
        return None, {}

    def reward(self, state: None, batch: Transition) -> Float[Array, "*batch"]:
        return jnp.zeros_like(batch.next_achieved[..., 0])

    def bounds(self) -> tuple[float, float]:
        return 0.0, 0.0
