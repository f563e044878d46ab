"""GAIL (Ho and Ermon 2016) with the agent's own hindsight as the expert."""

from __future__ import annotations

import equinox as eqx
import jax
from jaxtyping import Array, Float

from aimrl.rewards.discriminator import Adversarial


class GAIL(Adversarial):
    """r = log D(s′, g): never positive."""

    task_weight: float = eqx.field(default=1.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def from_logit(self, h: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jax.nn.log_sigmoid(h)
