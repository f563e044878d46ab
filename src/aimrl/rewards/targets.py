"""Distributions a potential can be pulled towards: the goal, a Gaussian around it, example states, every state visited so far."""

from __future__ import annotations

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from aimrl.replay.cells import slot_of

Target = Literal["gaussian", "dirac", "examples", "visited"]


class Memory(eqx.Module):
    """One state for every visited cell of the goal space: each cell counts once, however often it was visited."""

    states: Float[Array, "slots goal"]
    filled: Bool[Array, " slots"]


def memory(goal_dim: int, slots: int) -> Memory:
    return Memory(jnp.zeros((slots, goal_dim)), jnp.zeros((slots,), bool))


def remember(m: Memory, states: Float[Array, "n goal"], cell: float) -> Memory:
    """Keep the latest state of each cell. Cells are hashed to slots; two cells that collide share one slot."""
    slot = slot_of(jnp.floor(states / cell).astype(jnp.int32), m.states.shape[0])
    return Memory(m.states.at[slot].set(states), m.filled.at[slot].set(True))


def draw(m: Memory, key: PRNGKeyArray, n: int) -> Float[Array, "n goal"]:
    """States uniform over the visited cells."""
    rank = jnp.cumsum(m.filled)  # the k-th filled slot is the first whose rank is k
    k = jax.random.randint(key, (n,), 1, jnp.maximum(rank[-1], 1) + 1)
    return m.states[jnp.searchsorted(rank, k)]


def sample(
    kind: Target, goal: Float[Array, "*batch goal"], std: float, examples: Array | None, visited: Memory | None, key: PRNGKeyArray
) -> Float[Array, "*batch goal"]:
    """One draw of the target distribution for every goal of a batch."""
    if kind == "gaussian":
        return goal + std * jax.random.normal(key, goal.shape)
    if kind == "examples":
        assert examples is not None
        return examples[jax.random.randint(key, goal.shape[:-1], 0, examples.shape[0])]
    if kind == "visited":
        assert visited is not None
        return draw(visited, key, math.prod(goal.shape[:-1])).reshape(goal.shape)
    return goal
