"""DisCo RL (Nasiriany 2020): the log-likelihood of the state under a normal distribution around the goal."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.rewards.base import Reward
from aimrl.rewards.common import Normalise, fits, observe_values, scaled
from aimrl.types import GoalSpec, Metrics, Transition, UserError


def _frozen(x: Any) -> Any:
    """Nested tuples of an array or of lists: static fields must be hashable."""
    x = x.tolist() if hasattr(x, "tolist") else x
    return tuple(_frozen(row) for row in x) if isinstance(x, list | tuple) else x


class DiscoState(eqx.Module):
    precision: Float[Array, "goal goal"]  # Σ⁻¹
    log_normaliser: Float[Array, ""]  # ½ log |2π Σ|
    stats: nn.Moments  # of the reward


class Disco(Reward):
    """r = log N(s′; g, Σ) = −½ (s′ − g)ᵀ Σ⁻¹ (s′ − g), without its constant unless asked for."""

    covariance: Any = eqx.field(default=1.0, converter=_frozen, static=True)  # a variance, one variance a feature, or a matrix
    constant: bool = eqx.field(default=False, static=True)  # a narrow normal's constant is positive: it pays for staying away from the goal
    normalise: Normalise = eqx.field(default="none", static=True)
    task_weight: float = eqx.field(default=1.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        _numbers(self.covariance)

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> DiscoState:
        sigma = _matrix(self.covariance, spec.goal_dim)
        log_normaliser = 0.5 * np.linalg.slogdet(2 * np.pi * sigma)[1]
        return DiscoState(jnp.asarray(np.linalg.inv(sigma), jnp.float32), jnp.asarray(log_normaliser, jnp.float32), nn.moments(1))

    def update(self, state: DiscoState, batches: Transition, key: PRNGKeyArray) -> tuple[DiscoState, Metrics]:
        density = self._log_density(state, batches)
        stats = observe_values(state.stats, density, self.normalise)
        return DiscoState(state.precision, state.log_normaliser, stats), {"disco/log_density": density[-1].mean()}

    def reward(self, state: DiscoState, batch: Transition) -> Float[Array, "*batch"]:
        return scaled(self._log_density(state, batch), state.stats, self.normalise)

    def _log_density(self, state: DiscoState, batch: Transition) -> Float[Array, "*batch"]:
        x = batch.next_achieved - batch.goal
        fits(state.precision.shape[-1], x)
        density = -0.5 * jnp.einsum("...i,ij,...j->...", x, state.precision, x)
        return density - state.log_normaliser if self.constant else density


def _numbers(covariance: Any) -> np.ndarray:
    try:
        return np.asarray(covariance, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError("disco: the covariance must be a number, one number a feature, or a matrix of them") from error


def _matrix(covariance: Any, dim: int) -> np.ndarray:
    """The covariance as a [dim, dim] matrix, checked."""
    c = _numbers(covariance)
    if c.shape not in ((), (dim,), (dim, dim)):
        raise UserError(f"disco: a covariance of shape {list(c.shape)} doesn't fit goals of {dim} features")
    sigma = c if c.ndim == 2 else np.eye(dim) * c
    if not (np.isfinite(sigma).all() and np.allclose(sigma, sigma.T) and np.linalg.eigvalsh(sigma).min() > 0):
        raise UserError("disco: the covariance must be symmetric and positive definite")
    return sigma
