"""Batches for the reward tests: random ones for any shape, and exact ones for a finite Markov chain."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from aimrl.types import GoalSpec, Transition


def random_batch(seed, shape, goal_dim=3, obs_dim=5, action_dim=2):
    """Away from the origin and from unit scale, as achieved goals of robots are."""
    rng = np.random.default_rng(seed)

    def normal(dim):
        return jnp.asarray(0.7 + 0.3 * rng.normal(size=(*shape, dim)), jnp.float32)

    names = ("obs", "action", "next_obs", "achieved", "next_achieved", "goal", "desired", "future", "prefix_mean")
    dims = (obs_dim, action_dim, obs_dim, *[goal_dim] * 6)
    no = jnp.zeros(shape, bool)
    return Transition(
        **{name: normal(dim) for name, dim in zip(names, dims)},
        future_steps=jnp.asarray(rng.integers(1, 20, shape), jnp.int32),
        relabelled=no,
        task_reward=-jnp.ones(shape),
        success=no,
        terminated=no,
        prefix_var=jnp.square(normal(goal_dim)),
    )


SPEC = GoalSpec(obs_dim=5, goal_dim=3, action_dim=2, horizon=50)


def pairs_batch(achieved, next_achieved, goal, future=None, desired=None, future_steps=None):
    """One round of one update from rows of features."""

    def rows(x):
        return jnp.asarray(x, jnp.float32)[None]

    goal, n = rows(goal), len(goal)
    none = jnp.zeros((1, n))
    return Transition(
        obs=none[..., None],
        action=none[..., None],
        next_obs=none[..., None],
        achieved=rows(achieved),
        next_achieved=rows(next_achieved),
        goal=goal,
        desired=goal if desired is None else rows(desired),
        future=goal if future is None else rows(future),
        future_steps=jnp.ones((1, n), jnp.int32) if future_steps is None else jnp.asarray(future_steps, jnp.int32)[None],
        relabelled=none.astype(bool),
        task_reward=none,
        success=none.astype(bool),
        terminated=none.astype(bool),
    )


def repeat_update(reward, state, batches, updates, seed=0):
    """The state after many updates on the same round, and the last metrics."""

    @eqx.filter_jit
    def run(state):
        def step(s, key):
            return reward.update(s, batches, key)

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(seed), updates))

    state, metrics = run(state)
    return state, {k: float(v[-1]) for k, v in metrics.items()}
