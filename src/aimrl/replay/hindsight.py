"""Sampling with hindsight: goals are redrawn, and reward AND termination recomputed for them. O(batch) at any buffer size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from aimrl.replay.cells import log_weight
from aimrl.replay.ring import Judge, Ring
from aimrl.types import Strategy, Transition

MET_PENALTY = 3.0  # off the log weight of a goal that the state meets already: there are enough of those among the others
CANDIDATES = 1024  # goals reached before, among which one to practise is drawn


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


def sample(ring: Ring, key: PRNGKeyArray, batch: int, how: Hindsight, judge: Judge, window: int | None = None) -> Transition:
    """A batch of transitions, from the last `window` ones if given."""
    k_row, k_moved, k_goal, k_moved_goal, k_relabel, k_spread = jax.random.split(key, 6)
    rows = ring.table.shape[0]
    row = _draw(ring.table, ring.span, k_row, batch, window)
    steps = _draw_steps(ring, row, k_goal, how, judge)
    moved = round(how.moved_fraction * batch)
    if moved:
        some = ring.moved_span[1] > ring.moved_span[0]
        drawn = _draw_moved(ring, (k_moved, k_moved_goal, k_spread), moved, how, judge, window)
        row, steps = (a.at[:moved].set(jnp.where(some, b, a[:moved])) for a, b in zip((row, steps), drawn))
    next_row = (row + 1) % rows
    achieved, desired = ring.achieved[row], ring.desired[row]

    future = ring.achieved[(row + steps) % rows]
    if how.strategy == "random":
        hindsight = ring.achieved[_draw(ring.table, ring.span, k_goal, batch, window)]
    elif how.strategy == "episode":
        hindsight = ring.achieved[_episode_row(ring, row, k_goal)]
    elif how.strategy == "final":
        hindsight = ring.achieved[ring.end[row]]
    else:
        hindsight = future
    relabelled = (jax.random.uniform(k_relabel, (batch,)) < how.ratio) & (how.strategy != "none")
    goal = jnp.where(relabelled[:, None], hindsight, desired)

    task_reward, success = judge(ring.achieved[next_row], goal)
    # Failures (a fall, a broken limit) end an episode under every goal; reaching the goal only under the goal in force.
    terminated = ring.failed[next_row] | (success & (how.success_terminates | ring.ends_at_goal))
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
    k_row, k_steps, k_goal, k_which = jax.random.split(key, 4)
    row = _draw(ring.moved_table, ring.moved_span, k_row, CANDIDATES, None)
    goal = ring.achieved[(row + _draw_steps(ring, row, k_steps, Hindsight(), judge)) % ring.table.shape[0]]
    chosen = goal[_draw_by(jnp.exp(log_weight(ring.cells, goal)), k_goal, desired.shape[0])]
    practises = (jax.random.uniform(k_which, (desired.shape[0], 1)) < share) & (ring.moved_span[1] > ring.moved_span[0])
    return jnp.where(practises, chosen, desired)


def _draw(table: Int[Array, " rows"], span: Int[Array, "2"], key: PRNGKeyArray, n: int, window: int | None) -> Int[Array, " n"]:
    first = span[0] if window is None else jnp.maximum(span[0], span[1] - window)
    return table[jax.random.randint(key, (n,), first, jnp.maximum(span[1], first + 1)) % table.shape[0]]


def _draw_moved(
    ring: Ring, keys: tuple[PRNGKeyArray, ...], n: int, how: Hindsight, judge: Judge, window: int | None
) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """Rows from before the achieved goal moves, and how many steps ahead their goals lie; spread evenly over the goals if asked."""
    row = _draw(ring.moved_table, ring.moved_span, keys[0], n * max(how.spread, 1), window)
    steps = _draw_steps(ring, row, keys[1], how, judge)
    if not how.spread:
        return row, steps
    goal = ring.achieved[(row + steps) % ring.table.shape[0]]
    _, met = judge(ring.achieved[row], goal)
    keep = _draw_by(jnp.exp(log_weight(ring.cells, goal) - MET_PENALTY * met), keys[2], n)
    return row[keep], steps[keep]


def _draw_by(weight: Float[Array, " m"], key: PRNGKeyArray, n: int) -> Int[Array, " n"]:
    """Indices drawn with replacement, each as often as its weight says."""
    edges = jnp.cumsum(weight)
    return jnp.searchsorted(edges, edges[-1] * jax.random.uniform(key, (n,)), side="right").clip(0, weight.shape[0] - 1)


def _draw_steps(ring: Ring, row: Int[Array, " n"], key: PRNGKeyArray, how: Hindsight, judge: Judge) -> Int[Array, " n"]:
    """How many steps ahead the future goal lies: uniform over the rest of the episode, redrawn while s already meets it.

    Only every second transition is redrawn, and where every draw is met already the first stays: goals that are met teach the critic what
    staying is worth and the actor to keep still. Without them it never learns to hold, and drifts away from what it can't move yet.
    """
    rows = ring.table.shape[0]
    remaining = jnp.maximum((ring.end[row] - row) % rows, 1)
    draws = 1 + jax.random.randint(key, (how.redraws + 1, row.shape[0]), 0, remaining[None])
    if how.redraws == 0:
        return draws[0]
    candidates = ring.achieved[(row[None] + draws) % rows]
    _, trivial = judge(jnp.broadcast_to(ring.achieved[row], candidates.shape), candidates)
    first = jnp.where(jnp.arange(row.shape[0]) % 2 == 0, jnp.argmin(trivial, axis=0), 0)  # the first that isn't trivial, or the first
    return jnp.take_along_axis(draws, first[None], axis=0)[0]


def _episode_row(ring: Ring, row: Int[Array, " n"], key: PRNGKeyArray) -> Int[Array, " n"]:
    """A row of the same episode, before or after, as far as it hasn't been overwritten."""
    rows = ring.table.shape[0]
    behind = jnp.minimum((row - ring.begin[row]) % rows, (row - ring.head) % rows)
    ahead = (ring.end[row] - row) % rows
    return (row - behind + jax.random.randint(key, row.shape, 0, behind + ahead + 1)) % rows
