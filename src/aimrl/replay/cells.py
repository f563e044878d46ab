"""How often each part of the goal space was visited: a box of cells around the desired goals, hashed so that any number of axes fits."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

PER_AXIS = 8  # cells along each side of the box of desired goals
SLOTS = 1 << 14


class Cells(eqx.Module):
    """Visits of each cell, and a box around every desired goal so far."""

    counts: Int[Array, " slots"]
    low: Float[Array, " goal"]
    high: Float[Array, " goal"]


def make_cells(goal_dim: int) -> Cells:
    low, high = (jnp.full((goal_dim,), side * jnp.inf, jnp.float32) for side in (1, -1))
    return Cells(jnp.zeros((SLOTS,), jnp.int32), low, high)


def visit(cells: Cells, achieved: Float[Array, "n g"], counted: Bool[Array, " n"], desired: Float[Array, "m g"], real: Bool[Array, " m"]):
    """Count achieved goals, after widening the box to the desired ones; if all are one, by how far from it the first episodes were."""
    low = jnp.minimum(cells.low, jnp.where(real[:, None], desired, jnp.inf).min(0))
    high = jnp.maximum(cells.high, jnp.where(real[:, None], desired, -jnp.inf).max(0))
    alone = ~(high > low).any()  # the box has no size yet, so nothing to count in
    away = jnp.where(alone & counted[:, None], jnp.abs(achieved - low), 0.0).max(0)
    low, high = low - away, high + away
    cells = Cells(cells.counts, low, high)
    return Cells(cells.counts.at[jnp.where(counted & ~alone, _slot(cells, achieved), SLOTS)].add(1, mode="drop"), low, high)


def log_weight(cells: Cells, goal: Float[Array, "*n g"]) -> Float[Array, "*n"]:
    """Drawn by it, goals spread evenly over all cells visited, and goals far from every desired one are rare."""
    position = _position(cells, goal)
    outside = ((position < -1) | (position > PER_AXIS + 1)).any(-1)
    return -jnp.log(jnp.maximum(cells.counts[_slot(cells, goal)], 1)) - 5.0 * outside


def slot_of(corner: Int[Array, "*n g"], slots: int) -> Int[Array, "*n"]:
    """Cells hashed to slots; two that collide share one."""
    corner = corner.astype(jnp.uint32)
    code = jnp.zeros(corner.shape[:-1], jnp.uint32)
    for axis in range(corner.shape[-1]):
        code = (code ^ corner[..., axis]) * jnp.uint32(0x9E3779B1)  # Knuth's multiplicative hash, one round an axis
        code = code ^ (code >> 15)
    return (code % slots).astype(jnp.int32)


def _position(cells: Cells, goal: Float[Array, "*n g"]) -> Float[Array, "*n g"]:
    """Within the box from 0 to PER_AXIS. An axis on which desired goals hardly differ is as wide as half the widest one."""
    width = cells.high - cells.low
    return PER_AXIS * (goal - cells.low) / jnp.maximum(width, jnp.maximum(0.5 * width.max(), 1e-6))


def _slot(cells: Cells, goal: Float[Array, "*n g"]) -> Int[Array, "*n"]:
    return slot_of(jnp.floor(jnp.clip(_position(cells, goal), -(2.0**20), 2.0**20)).astype(jnp.int32), SLOTS)
