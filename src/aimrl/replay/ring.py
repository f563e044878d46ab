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
    """Rows of states; two tables list, oldest first, the rows that start a transition: all, and those whose goal is still to move."""

    obs: Float[Array, "rows obs"]
    achieved: Float[Array, "rows goal"]
    desired: Float[Array, "rows goal"]
    action: Float[Array, "rows act"]  # taken in this row's state; zero in an episode's last row
    failed: Bool[Array, " rows"]  # the step into this row ended the episode for a reason other than the goal
    begin: Int[Array, " rows"]  # the episode's first row
    end: Int[Array, " rows"]  # the episode's last row
    kind: Int[Array, " rows"]  # 0 no transition starts here, 1 one does, 2 one does and the achieved goal is yet to move
    table: Int[Array, " rows"]
    moved_table: Int[Array, " rows"]
    head: Int[Array, ""]  # the row written next, and once full the oldest
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
    floats = spec.obs_dim + (2 + 2 * prefix) * spec.goal_dim + spec.action_dim
    return _rows(spec, capacity) * (4 * floats + 4 * 4 + 2)


def _rows(spec: GoalSpec, capacity: int) -> int:
    return capacity + -(-capacity // spec.horizon) + spec.horizon + 1


def make_ring(spec: GoalSpec, capacity: int, prefix: bool = False) -> Ring:
    """An empty ring for at least `capacity` transitions in episodes of full length."""
    rows = _rows(spec, capacity)
    goals = lambda: jnp.zeros((rows, spec.goal_dim))  # noqa: E731  one buffer each, so that all can be donated
    ints = lambda: jnp.zeros((rows,), jnp.int32)  # noqa: E731
    return Ring(
        obs=jnp.zeros((rows, spec.obs_dim)),
        achieved=goals(),
        desired=goals(),
        action=jnp.zeros((rows, spec.action_dim)),
        failed=jnp.zeros((rows,), bool),
        begin=ints(),
        end=ints(),
        kind=jnp.zeros((rows,), jnp.int8),
        table=ints(),
        moved_table=ints(),
        head=jnp.zeros((), jnp.int32),
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
    cells = visit(ring.cells, flat(achieved), counted.reshape(-1), desired, steps > 0)

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
        desired=put(ring.desired, desired[:, None]),
        action=put(ring.action, jnp.where(starts[..., None], action, 0.0)),
        failed=put(ring.failed, failed[:, None] & (t == length)),
        begin=put(ring.begin, begin[:, None] % rows),
        end=put(ring.end, (begin[:, None] + length) % rows),
        kind=put(ring.kind, starts.astype(jnp.int8) + moving),
        table=table,
        moved_table=moved_table,
        head=(ring.head + size.sum()) % rows,
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
    return _map_rows(ring, lambda a: a[:rows])


def untrimmed(part: Ring, whole: Ring) -> Ring:
    """A trimmed ring laid back over a fresh one."""
    rows = whole.table.shape[0]
    pad = lambda a: jnp.concatenate([jnp.asarray(a), jnp.zeros((rows - a.shape[0], *a.shape[1:]), a.dtype)])  # noqa: E731
    return jax.tree.map(jnp.asarray, _map_rows(part, pad))


def _map_rows(ring: Ring, f: Callable[[Array], Array]) -> Ring:
    scalars = ("head", "span", "moved_span", "ends_at_goal", "cells")
    rows = {field.name: getattr(ring, field.name) for field in dataclasses.fields(ring) if field.name not in scalars}
    return dataclasses.replace(ring, **{k: f(v) for k, v in rows.items() if v is not None})
