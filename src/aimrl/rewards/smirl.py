"""Surprise minimisation (SMiRL, Berseth et al. 2019): a bonus for states like those of the episode so far."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.rewards.base import Reward
from aimrl.rewards.common import Normalise, needs, observe_values, scaled
from aimrl.types import GoalSpec, Metrics, Transition


class SMiRL(Reward):
    """r = log N(s′; μ, σ²), the diagonal Gaussian of the episode's achieved goals up to and including s′."""

    needs_prefix: ClassVar[bool] = True

    variance_floor: float = eqx.field(default=1e-2, static=True)  # an episode that stands still has no variance
    normalise: Normalise = eqx.field(default="none", static=True)
    task_weight: float = eqx.field(default=1.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> nn.Moments:
        return nn.moments(1)  # of the reward: the only thing that outlives an episode

    def update(self, state: nn.Moments, batches: Transition, key: PRNGKeyArray) -> tuple[nn.Moments, Metrics]:
        density = self._log_density(batches)
        return observe_values(state, density, self.normalise), {"smirl/log_density": density[-1].mean()}

    def reward(self, state: nn.Moments, batch: Transition) -> Float[Array, "*batch"]:
        return scaled(self._log_density(batch), state, self.normalise)

    def _log_density(self, batch: Transition) -> Float[Array, "*batch"]:
        needs("smirl", batch, "prefix_mean", "prefix_var")
        var = jnp.maximum(batch.prefix_var, self.variance_floor)
        return -0.5 * (jnp.square(batch.next_achieved - batch.prefix_mean) / var + jnp.log(2 * jnp.pi * var)).sum(-1)
