"""The one contract of the off-policy agents: they see flat inputs and numbers, never goals, environments or rewards."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from aimrl.types import Metrics


class Batch(NamedTuple):
    """What an update learns from; leaves are [batch, …], or [updates, batch, …] for a whole round."""

    x: Float[Array, "*n x"]  # state and goal as the network sees them
    action: Float[Array, "*n a"]  # in [−1, 1], or one-hot for discrete actions
    reward: Float[Array, "*n"]
    next_x: Float[Array, "*n x"]
    terminated: Bool[Array, "*n"]


class Agent(eqx.Module):
    """An agent is its configuration; networks and optimisers live in the state passed in and returned."""

    gamma: eqx.AbstractVar[float]

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, x_dim: int, action_dim: int) -> Any: ...

    @abc.abstractmethod
    def update(self, state: Any, batches: Batch, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """One round of updates, compiled as one scan."""

    @abc.abstractmethod
    def act(self, state: Any, x: Float[Array, "n x"]) -> Float[Array, "n a"]:
        """The policy's best action."""

    @abc.abstractmethod
    def explore(self, state: Any, x: Float[Array, "n x"], key: PRNGKeyArray) -> Float[Array, "n a"]:
        """The policy's action with the noise for gathering data."""

    def random_action(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "n a"]:
        """Uniform over all actions."""
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
