"""AIM's potential on the full observation instead of the goal space: `python results/rewards/full_state.py`.

The paper learns f on the achieved goal and leaves open what the full state would change. Here f sees the observation and the goal. No
observation of the goal is there to put into f(g, g), so the target is every visited state with the goal it achieves.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from aimrl import nn, runs
from aimrl.config import make_config
from aimrl.rewards.base import Reward
from aimrl.train import train

HERE = Path(__file__).resolve().parent


class State(eqx.Module):
    learner: nn.Learner
    obs: nn.Moments
    goal: nn.Moments
    top: Array  # mean potential of states that meet their goal


class FullStateAIM(Reward):
    """r = (f(s′, g) − f of states that meet their goal) / c, per episode length, at most 0; nothing is paid while the goal is met."""

    hidden: tuple[int, ...] = eqx.field(default=(64,), static=True)
    learning_rate: float = eqx.field(default=1e-3, static=True)
    lipschitz_weight: float = eqx.field(default=100.0, static=True)
    step_bound: float = eqx.field(default=0.1, static=True)
    horizon: float = eqx.field(default=50.0, static=True)
    knee: float = eqx.field(default=0.05, static=True)
    task_weight: float = eqx.field(default=0.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key, spec):
        net = nn.mlp(key, (spec.obs_dim + spec.goal_dim, *self.hidden, 1), "tanh")
        moments = nn.moments(spec.obs_dim), nn.moments(spec.goal_dim)
        return State(nn.learner(net, optax.adam(self.learning_rate)), *moments, jnp.zeros(()))

    def potential(self, net: nn.MLP, state: State, obs: Array, goal: Array) -> Array:
        return net(jnp.concatenate([state.obs.normalise(obs), state.goal.normalise(goal)], -1))[..., 0]

    def update(self, state, batches, key):
        flat = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
        moments = nn.observe(state.obs, flat(batches.next_obs)), nn.observe(state.goal, flat(batches.next_achieved))
        state = State(state.learner, *moments, state.top)

        def loss(net: nn.MLP, b: Any):
            top = self.potential(net, state, b.next_obs, b.next_achieved).mean()
            f_t, f_tp1 = (self.potential(net, state, obs, b.goal) for obs in (b.obs, b.next_obs))
            excess = jnp.abs(f_tp1 - f_t) - self.step_bound
            total = -top + f_tp1.mean() + self.lipschitz_weight * jnp.square(jnp.maximum(excess, 0.0)).mean()
            return total, {"aim/w1": (top - f_tp1.mean()) / self.step_bound, "aim/violations": (excess > 0).mean(), "aim/top": top}

        def step(learner: nn.Learner, batch: Any):
            grads, metrics = eqx.filter_grad(loss, has_aux=True)(learner.params, batch)
            return nn.descend(learner, grads, optax.adam(self.learning_rate)), metrics

        learner, metrics = jax.lax.scan(step, state.learner, batches)
        metrics = {k: v[-1] for k, v in metrics.items()}
        return State(learner, *moments, metrics["aim/top"]), metrics

    def reward(self, state, batch):
        r = jnp.minimum(self.potential(state.learner.params, state, batch.next_obs, batch.goal) - state.top, 0.0)
        r = r / (self.step_bound * self.horizon)
        return jnp.where(batch.success, 0.0, r / (self.knee + jnp.abs(r)))

    def bounds(self):
        return -1.0, 0.0


def main() -> None:
    rows = []
    for updates, seed in itertools.product((20, 200), (11, 12, 13)):  # seeds of the desk's runs, whose potential is on the goal space
        every = {"eval_every": 1_000, "checkpoint_every": 4_000}
        c = make_config("FetchReach-v4", seed=seed, steps=4_000, potential_updates=updates, tensorboard=False, **every)
        with tempfile.TemporaryDirectory() as scratch:
            train(c, Path(scratch) / "run", reward=FullStateAIM())
            evals = list(runs.read_lines(Path(scratch) / "run" / "evals.jsonl"))
            metrics = list(runs.read_lines(Path(scratch) / "run" / "metrics.jsonl"))
        row = {"updates": updates, "seed": seed, "steps": [e["step"] for e in evals]}
        row |= {"held": [float(np.mean(e["success_final"])) for e in evals]}
        rows.append(row | {k: round(metrics[-1][k], 3) for k in ("aim/w1", "aim/violations")})
        print(rows[-1], flush=True)
    (HERE / "full_state.json").write_text(json.dumps({"versions": runs.versions(), "runs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
