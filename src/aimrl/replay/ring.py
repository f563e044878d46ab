"""An episode ring on the device: an episode of L steps takes L + 1 consecutive rows, so next observations are never stored twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from aimrl.replay.cells import Cells, make_cells, visit
from aimrl.types import GoalSpec, UserError

AnyArray = Array | np.ndarray  # episodes come from the host
Judge = Callable[[Float[Array, "*b g"], Float[Array, "*b g"]], tuple[Float[Array, "*b"], Bool[Array, "*b"]]]  # → task reward, success


class Ring(eqx.Module):
    """Rows of states; two tables list, oldest first, the rows that start a transition: all, and those whose goal is still to move.

    What the rows of an episode share is kept once, in the episode's slot: that takes less memory, and stays in the processor's cache.
    """

    obs: Float[Array, "rows obs"]
    achieved: Float[Array, "rows goal"]
    action: Float[Array, "rows act"]  # taken in this row's state; zero in an episode's last row
    slot: Int[Array, " rows"]  # the episode's
    kind: Int[Array, " rows"]  # 0 no transition starts here, 1 one does, 2 one does and the achieved goal is yet to move
    desired: Float[Array, "slots goal"]
    begin: Int[Array, " slots"]  # the episode's first row
    end: Int[Array, " slots"]  # the episode's last row
    failed: Bool[Array, " slots"]  # the step into that row ended the episode for a reason other than the goal
    table: Int[Array, " rows"]
    moved_table: Int[Array, " rows"]
    head: Int[Array, ""]  # the row written next, and once full the oldest
    next_slot: Int[Array, ""]  # the slot of the next episode
    span: Int[Array, "2"]  # table entries [span[0], span[1]) are alive, modulo its length
    moved_span: Int[Array, "2"]
    # An episode ended at its goal although nothing had said so of the environment, and none has gone on after meeting its goal since.
    ends_at_goal: Bool[Array, ""]
    cells: Cells  # where achieved goals have been, in episodes that moved them
    prefix_mean: Float[Array, "rows goal"] | None
    prefix_var: Float[Array, "rows goal"] | None


class Episodes(NamedTuple):
    """Finished episodes padded to one length: `length` steps each, so `length + 1` states (0: padding)."""

    obs: Float[AnyArray, "n t obs"]
    achieved: Float[AnyArray, "n t goal"]
    desired: Float[AnyArray, "n goal"]
    action: Float[AnyArray, "n t act"]
    failed: Bool[AnyArray, " n"]
    length: Int[AnyArray, " n"]
    ended: Bool[AnyArray, " n"] | bool = False  # at the goal, by the environment, for no reason it had told


def episodes_like(spec: GoalSpec, n: int) -> Episodes:
    """The shapes of n episodes as they come from the host."""
    times = lambda *dims: jax.ShapeDtypeStruct((n, spec.horizon + 1, *dims), jnp.float32)  # noqa: E731
    each = lambda dtype, *dims: jax.ShapeDtypeStruct((n, *dims), dtype)  # noqa: E731
    goal = each(jnp.float32, spec.goal_dim)
    states = times(spec.obs_dim), times(spec.goal_dim), goal, times(spec.action_dim)
    return Episodes(*states, each(jnp.bool_), each(jnp.int32), each(jnp.bool_))  # pyright: ignore[reportArgumentType]


def bytes_needed(spec: GoalSpec, capacity: int, prefix: bool = False) -> int:
    """Memory of a ring that holds `capacity` transitions."""
    floats, rows = spec.obs_dim + (1 + 2 * prefix) * spec.goal_dim + spec.action_dim, _rows(spec, capacity)
    return rows * (4 * floats + 3 * 4 + 1) + _slots(rows) * (4 * spec.goal_dim + 2 * 4 + 1)


def _rows(spec: GoalSpec, capacity: int) -> int:
    return capacity + -(-capacity // spec.horizon) + spec.horizon + 1


def _slots(rows: int) -> int:
    """As many as episodes can be alive: the shortest takes two rows, and of the oldest one row may be left."""
    return rows // 2 + 1


def make_ring(spec: GoalSpec, capacity: int, prefix: bool = False) -> Ring:
    """An empty ring for at least `capacity` transitions in episodes of full length."""
    rows = _rows(spec, capacity)
    slots = _slots(rows)
    goals = lambda: jnp.zeros((rows, spec.goal_dim))  # noqa: E731  one buffer each, so that all can be donated
    ints = lambda: jnp.zeros((rows,), jnp.int32)  # noqa: E731
    return Ring(
        obs=jnp.zeros((rows, spec.obs_dim)),
        achieved=goals(),
        action=jnp.zeros((rows, spec.action_dim)),
        slot=ints(),
        kind=jnp.zeros((rows,), jnp.int8),
        desired=jnp.zeros((slots, spec.goal_dim)),
        begin=jnp.zeros((slots,), jnp.int32),
        end=jnp.zeros((slots,), jnp.int32),
        failed=jnp.zeros((slots,), bool),
        table=ints(),
        moved_table=ints(),
        head=jnp.zeros((), jnp.int32),
        next_slot=jnp.zeros((), jnp.int32),
        span=jnp.zeros((2,), jnp.int32),
        moved_span=jnp.zeros((2,), jnp.int32),
        ends_at_goal=jnp.zeros((), bool),
        cells=make_cells(spec.goal_dim),
        prefix_mean=goals() if prefix else None,
        prefix_var=goals() if prefix else None,
    )


def insert(ring: Ring, episodes: Episodes, judge: Judge) -> Ring:
    """Write finished episodes over the oldest rows.

    A row counts as moving if its state doesn't meet the goal achieved at its episode's end: by the task's own measure, in no unit of ours.
    """
    obs, achieved, desired, action, failed, steps, ended = (jnp.asarray(x) for x in episodes)
    rows = ring.table.shape[0]
    n, t_plus_1 = achieved.shape[:2]
    if n * t_plus_1 > rows:  # one would overwrite another
        raise UserError(f"a replay buffer of {rows:,} rows can't take {n:,} episodes of {t_plus_1 - 1:,} steps at once: make it larger")
    length = steps[:, None]
    t = jnp.arange(t_plus_1)[None]
    used = (t <= length) & (length > 0)
    size = jnp.where(steps > 0, steps + 1, 0)
    begin = ring.head + jnp.cumsum(size) - size
    row = jnp.where(used, (begin[:, None] + t) % rows, rows)  # `rows` is out of range: dropped
    starts = used & (t < length)
    last = jnp.take_along_axis(achieved, length[..., None], axis=1)
    _, as_at_last = judge(achieved, jnp.broadcast_to(last, achieved.shape))
    moving = starts & ~as_at_last
    _, met = judge(achieved, jnp.broadcast_to(desired[:, None], achieved.shape))
    went_on = (met & (t > 0) & starts).any()

    dead = jnp.where(used, ring.kind.at[row].get(mode="fill", fill_value=0), 0)
    span = ring.span.at[0].add((dead >= 1).sum())
    moved_span = ring.moved_span.at[0].add((dead == 2).sum())
    table, span = _append(ring.table, span, row, starts)
    moved_table, moved_span = _append(ring.moved_table, moved_span, row, moving)

    flat = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
    counted = used & moving.any(1, keepdims=True)
    real, slots = steps > 0, ring.end.shape[0]
    cells = visit(ring.cells, flat(achieved), counted.reshape(-1), desired, real)
    slot = (ring.next_slot + jnp.cumsum(real) - real) % slots

    def share(array: Array, values: Array) -> Array:
        return array.at[jnp.where(real, slot, slots)].set(values, mode="drop")

    def put(array: Array, values: Array) -> Array:
        values = jnp.broadcast_to(values, (n, t_plus_1, *array.shape[1:])).astype(array.dtype)
        return array.at[row].set(values, mode="drop")

    prefix_mean, prefix_var = ring.prefix_mean, ring.prefix_var
    if prefix_mean is not None and prefix_var is not None:
        mean, var = _prefix_moments(achieved)
        prefix_mean, prefix_var = put(prefix_mean, mean), put(prefix_var, var)
    return Ring(
        obs=put(ring.obs, obs),
        achieved=put(ring.achieved, achieved),
        action=put(ring.action, jnp.where(starts[..., None], action, 0.0)),
        slot=put(ring.slot, slot[:, None]),
        kind=put(ring.kind, starts.astype(jnp.int8) + moving),
        desired=share(ring.desired, desired),
        begin=share(ring.begin, begin % rows),
        end=share(ring.end, (begin + steps) % rows),
        failed=share(ring.failed, failed),
        table=table,
        moved_table=moved_table,
        head=(ring.head + size.sum()) % rows,
        next_slot=(ring.next_slot + real.sum()) % slots,
        span=span,
        moved_span=moved_span,
        ends_at_goal=(ring.ends_at_goal | ended.any()) & ~went_on,  # the end was a failure, then
        cells=cells,
        prefix_mean=prefix_mean,
        prefix_var=prefix_var,
    )


def _append(table: Int[Array, " rows"], span: Int[Array, "2"], row: Int[Array, "n t"], keep: Bool[Array, "n t"]):
    rows = table.shape[0]
    keep = keep.reshape(-1)
    slot = jnp.where(keep, (span[1] + jnp.cumsum(keep) - 1) % rows, rows)
    return table.at[slot].set(row.reshape(-1), mode="drop"), span.at[1].add(keep.sum())


def _prefix_moments(x: Float[Array, "n t g"]):
    """Mean and variance of each episode's states up to and including each row."""
    count = jnp.arange(1.0, x.shape[1] + 1)[None, :, None]
    shift = x[:, :1]  # against cancellation
    mean = jnp.cumsum(x - shift, 1) / count
    var = jnp.cumsum(jnp.square(x - shift), 1) / count - jnp.square(mean)
    return mean + shift, jnp.maximum(var, 0.0)


def used_rows(ring: Ring) -> int:
    """How many leading rows have ever been written: all once the ring has wrapped around."""
    rows, head = ring.table.shape[0], int(ring.head)
    wrapped = bool(ring.kind[head:].any()) or int(ring.span[0]) > 0
    return rows if wrapped else head


def trimmed(ring: Ring, rows: int) -> Ring:
    """The ring with only its first `rows` rows, for saving."""
    return _map_rows(ring, rows, lambda a, n: a[:n])


def untrimmed(part: Ring, whole: Ring) -> Ring:
    """A trimmed ring laid back over a fresh one."""
    pad = lambda a, n: jnp.concatenate([jnp.asarray(a), jnp.zeros((n - a.shape[0], *a.shape[1:]), a.dtype)])  # noqa: E731
    return jax.tree.map(jnp.asarray, _map_rows(part, whole.table.shape[0], pad))


def _map_rows(ring: Ring, rows: int, f: Callable[[Array, int], Array]) -> Ring:
    """The ring with f of each of its columns and the length that the column has in a ring of so many rows."""
    scalars, shared = ("head", "next_slot", "span", "moved_span", "ends_at_goal", "cells"), ("desired", "begin", "end", "failed")
    columns = {field.name: getattr(ring, field.name) for field in dataclasses.fields(ring) if field.name not in scalars}
    length = lambda name: _slots(rows) if name in shared else rows  # noqa: E731
    return dataclasses.replace(ring, **{k: f(v, length(k)) for k, v in columns.items() if v is not None})
