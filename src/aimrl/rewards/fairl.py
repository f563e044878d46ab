"""FAIRL (Ghasemipour et al. 2020): the forward KL divergence from the same discriminator as GAIL."""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from aimrl.rewards.discriminator import Adversarial


class FAIRL(Adversarial):
    """r = −h eʰ with h = log D − log(1 − D): at most 1/e, at h = −1; `negative` (fairl-) subtracts that maximum."""

    clip: float = eqx.field(default=10.0, static=True)  # |h| at most
    negative: bool = eqx.field(default=False, static=True)
    task_weight: float = eqx.field(default=0.0, static=True)  # instead of the task reward
    scale: float = eqx.field(default=1.0, static=True)

    def from_logit(self, h: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        h = jnp.clip(h, -self.clip, self.clip)
        r = -h * jnp.exp(h)
        return r - 1 / math.e if self.negative else r
