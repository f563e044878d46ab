"""−L2: the straight-line distance to the goal, an oracle where the goal space is free of walls."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl.rewards.base import Reward
from aimrl.types import GoalSpec, Metrics, Transition


class DenseState(eqx.Module):
    largest: Float[Array, ""]  # distance seen so far; 0 before any data


class Dense(Reward):
    """r = −‖s′ − g‖, optionally divided by the largest distance seen, as the authors ran it."""

    normalise: bool = eqx.field(default=False, static=True)
    task_weight: float = eqx.field(default=0.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> DenseState:
        return DenseState(jnp.zeros(()))

    def update(self, state: DenseState, batches: Transition, key: PRNGKeyArray) -> tuple[DenseState, Metrics]:
        largest = jnp.maximum(state.largest, _distance(batches).max())
        return DenseState(largest), {"dense/largest": largest}

    def reward(self, state: DenseState, batch: Transition) -> Float[Array, "*batch"]:
        r = -_distance(batch)
        if self.normalise:
            r = r / jnp.where(state.largest == 0, 1.0, state.largest)
        return r

    def bounds(self) -> tuple[float, float]:
        return -float("inf"), 0.0


def _distance(batch: Transition) -> Float[Array, "*batch"]:
    return jnp.linalg.norm(batch.next_achieved - batch.goal, axis=-1)
