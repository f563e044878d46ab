"""Sampling with hindsight: goals are redrawn, and reward AND termination recomputed for them. O(batch) at any buffer size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from aimrl.replay.cells import log_weight
from aimrl.replay.ring import Judge, Ring
from aimrl.types import Strategy, Transition

MET_PENALTY = 3.0  # off the log weight of a goal that the state meets already: there are enough of those among the others
CANDIDATES = 1024  # goals reached before, among which one to practise is drawn


Bits = UInt32[Array, "..."]


@dataclass(frozen=True)
class Hindsight:
    """How goals are redrawn when transitions are sampled."""

    strategy: Strategy = "future"
    ratio: float = 0.8  # share of transitions that get a hindsight goal: k/(k+1) with k = 4
    redraws: int = 0  # in every second transition, draw a future goal again, up to this often, while the state already meets it
    moved_fraction: float = 0.0  # share of a batch taken from before the achieved goal moves
    spread: int = 0  # draw that share this many times over, and of these so that its goals spread evenly over all reached (0: off)
    success_terminates: bool = True  # reaching the goal ends the episode, in hindsight too
    ends: Callable[..., Array] | None = None  # (achieved, goal) → would the environment itself end the episode here? None: never


def sample(ring: Ring, key: PRNGKeyArray, shape: tuple[int, ...], how: Hindsight, judge: Judge, window: int | None = None) -> Transition:
    """Transitions of the given shape (its last axis is a batch), from the last `window` ones if given."""
    moved = round(how.moved_fraction * shape[-1])
    many, draws = (*shape[:-1], moved * max(how.spread, 1)), how.redraws + 1
    of_moved = many, (draws, *many), (*shape[:-1], moved)
    for_row, for_steps, for_goal, for_relabelling, *for_moved = _bits(key, shape, (draws, *shape), shape, shape, *of_moved)
    rows = ring.table.shape[0]
    row = _draw(ring.table, ring.span, for_row, window)
    steps = _draw_steps(ring, row, for_steps, how, judge)
    if moved:
        some = ring.moved_span[1] > ring.moved_span[0]
        drawn = _draw_moved(ring, for_moved, how, judge, window)
        row, steps = (jnp.concatenate([jnp.where(some, b, a[..., :moved]), a[..., moved:]], -1) for a, b in zip((row, steps), drawn))
    next_row = _wrapped(row + 1, rows)
    slot = ring.slot[row]
    achieved, desired, end = ring.achieved[row], ring.desired[slot], ring.end[slot]

    future = ring.achieved[_wrapped(row + steps, rows)]
    if how.strategy == "random":
        after = _draw(ring.table, ring.span, for_goal, window) + 1  # an episode's last state, too: where it was met, perhaps
        hindsight = ring.achieved[_wrapped(after, rows)]
    elif how.strategy == "episode":
        hindsight = ring.achieved[_episode_row(ring, row, for_goal)]
    elif how.strategy == "final":
        hindsight = ring.achieved[end]
    else:
        hindsight = future
    relabelled = (_unit(for_relabelling) < how.ratio) & (how.strategy != "none")
    goal = jnp.where(relabelled[..., None], hindsight, desired)

    task_reward, success = judge(ring.achieved[next_row], goal)
    # Failures (a fall, a broken limit) end an episode under every goal; reaching the goal only under the goal in force.
    terminated = (ring.failed[slot] & (next_row == end)) | (success & (how.success_terminates | ring.ends_at_goal))
    if how.ends is not None:
        terminated |= how.ends(ring.achieved[next_row], goal)
    return Transition(
        obs=ring.obs[row],
        action=ring.action[row],
        next_obs=ring.obs[next_row],
        achieved=achieved,
        next_achieved=ring.achieved[next_row],
        goal=goal,
        desired=desired,
        future=future,
        future_steps=steps,
        relabelled=relabelled,
        task_reward=task_reward,
        success=success,
        terminated=terminated,
        prefix_mean=None if ring.prefix_mean is None else ring.prefix_mean[next_row],
        prefix_var=None if ring.prefix_var is None else ring.prefix_var[next_row],
    )


def practice_goals(ring: Ring, key: PRNGKeyArray, desired: Float[Array, "n g"], share: float, judge: Judge) -> Float[Array, "n g"]:
    """Goals to play for: the desired ones, or in a share of episodes goals reached before, the rarer the likelier.

    An agent that is only ever asked for what it can't do yet learns nothing on the way; what it did once, by chance, it can practise.
    """
    n = desired.shape[0]
    bits = _bits(key, (CANDIDATES,), (1, CANDIDATES), (n,), (n, 1))
    row = _draw(ring.moved_table, ring.moved_span, bits[0], None)
    goal = ring.achieved[_wrapped(row + _draw_steps(ring, row, bits[1], Hindsight(), judge), ring.table.shape[0])]
    chosen = goal[_draw_by(jnp.exp(log_weight(ring.cells, goal)), bits[2])]
    practises = (_unit(bits[3]) < share) & (ring.moved_span[1] > ring.moved_span[0])
    return jnp.where(practises, chosen, desired)


# --- chance ------------------------------------------------------------------------------------------------------------------------------


def _bits(key: PRNGKeyArray, *shapes: tuple[int, ...]) -> list[Bits]:
    """Random bits for everything that is to be drawn, at once: each call of the generator is a program of its own to trace and compile."""
    sizes = [math.prod(shape) for shape in shapes]
    ends = list(itertools.accumulate(sizes))
    drawn = jax.random.bits(key, (ends[-1],))
    return [drawn[end - size : end].reshape(shape) for size, end, shape in zip(sizes, ends, shapes)]


def _below(bits: Bits, bound: Int[Array, "..."]) -> Int[Array, "..."]:
    """Whole numbers from 0 to below the bound, uneven by no more than a bound in 2³²."""
    return jax.lax.rem(bits, jnp.broadcast_to(bound, bits.shape).astype(jnp.uint32)).astype(jnp.int32)


def _unit(bits: Bits) -> Float[Array, "..."]:
    """Numbers in [0, 1)."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def _wrapped(row: Int[Array, "..."], rows: int) -> Int[Array, "..."]:
    """The row in the ring, of one that isn't negative."""
    return jax.lax.rem(row, jnp.full_like(row, rows))


# --- what is drawn -----------------------------------------------------------------------------------------------------------------------


def _draw(table: Int[Array, " rows"], span: Int[Array, "2"], bits: Bits, window: int | None) -> Int[Array, "..."]:
    first = span[0] if window is None else jnp.maximum(span[0], span[1] - window)
    return table[_wrapped(first + _below(bits, jnp.maximum(span[1] - first, 1)), table.shape[0])]


def _draw_moved(
    ring: Ring, bits: list[Bits], how: Hindsight, judge: Judge, window: int | None
) -> tuple[Int[Array, "*u n"], Int[Array, "*u n"]]:
    """Rows from before the achieved goal moves, and how many steps ahead their goals lie; spread evenly over the goals if asked."""
    row = _draw(ring.moved_table, ring.moved_span, bits[0], window)
    steps = _draw_steps(ring, row, bits[1], how, judge)
    if not how.spread:
        return row, steps
    goal = ring.achieved[_wrapped(row + steps, ring.table.shape[0])]
    _, met = judge(ring.achieved[row], goal)
    keep = _draw_by(jnp.exp(log_weight(ring.cells, goal) - MET_PENALTY * met), bits[2])
    return jnp.take_along_axis(row, keep, -1), jnp.take_along_axis(steps, keep, -1)


def _draw_by(weight: Float[Array, "*u m"], bits: Bits) -> Int[Array, "*u n"]:
    """Indices drawn with replacement, each as often as its weight says."""
    edges = jnp.cumsum(weight, -1)
    search = jnp.vectorize(partial(jnp.searchsorted, side="right"), signature="(m),(n)->(n)")
    return search(edges, edges[..., -1:] * _unit(bits)).clip(0, weight.shape[-1] - 1)


def _draw_steps(ring: Ring, row: Int[Array, "*u n"], bits: Bits, how: Hindsight, judge: Judge) -> Int[Array, "*u n"]:
    """How many steps ahead the future goal lies: uniform over the rest of the episode, redrawn while s already meets it.

    Only every second transition is redrawn, and where every draw is met already the first stays: goals that are met teach the critic what
    staying is worth and the actor to keep still. Without them it never learns to hold, and drifts away from what it can't move yet.
    """
    rows = ring.table.shape[0]
    remaining = jnp.maximum(_wrapped(ring.end[ring.slot[row]] - row + rows, rows), 1)
    draws = 1 + _below(bits, remaining)
    if how.redraws == 0:
        return draws[0]
    candidates = ring.achieved[_wrapped(row + draws, rows)]
    _, trivial = judge(jnp.broadcast_to(ring.achieved[row], candidates.shape), candidates)
    first = jnp.where(jnp.arange(row.shape[-1]) % 2 == 0, jnp.argmin(trivial, axis=0), 0)  # the first that isn't trivial, or the first
    return jnp.take_along_axis(draws, first[None], axis=0)[0]


def _episode_row(ring: Ring, row: Int[Array, "*u n"], bits: Bits) -> Int[Array, "*u n"]:
    """A row of the same episode, before or after, as far as it hasn't been overwritten."""
    rows = ring.table.shape[0]
    behind = jnp.minimum(_wrapped(row - ring.begin[ring.slot[row]] + rows, rows), _wrapped(row - ring.head + rows, rows))
    ahead = _wrapped(ring.end[ring.slot[row]] - row + rows, rows)
    return _wrapped(row - behind + _below(bits, behind + ahead + 1) + rows, rows)
