"""Adversarial Intrinsic Motivation: a Kantorovich potential f(s, g), learned from transitions, as a reward."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.rewards.base import Reward
from aimrl.types import GoalSpec, Metrics, Transition


class AIMState(eqx.Module):
    potential: nn.Learner
    moments: nn.Moments  # of achieved goals: the potential sees standardised inputs when asked
    f_max: Float[Array, ""]  # statistics of f over the states of the last round of updates
    f_min: Float[Array, ""]
    f_std: Float[Array, ""]


class AIM(Reward):
    """AIM's potential and reward (paper, section 5.2)."""

    hidden: tuple[int, ...] = eqx.field(default=(64,), static=True)
    activation: str = eqx.field(default="tanh", static=True)
    learning_rate: float = eqx.field(default=1e-3, static=True)
    lipschitz_weight: float = eqx.field(default=10.0, static=True)  # λ of eqn:f_loss
    step_bound: float = eqx.field(default=0.1, static=True)  # the paper's 1; 0.1 with λ = 10 is the authors' scaling of the same problem
    bound: Literal["two-sided", "one-sided"] = eqx.field(default="two-sided", static=True)
    form: Literal["biased", "to-goal", "shaped"] = eqx.field(default="biased", static=True)
    normalise: Literal["none", "range", "std"] = eqx.field(default="std", static=True)
    margin: float = eqx.field(default=0.1, static=True)  # widens the normalising statistics, as the authors' code does
    target_std: float = eqx.field(default=0.01, static=True)  # Gaussian target around the goal; 0 is the Dirac of the theory
    goal_term: bool = eqx.field(default=True, static=True)  # −f(g, g) in the loss; off = the linear-program ablation
    standardise: bool = eqx.field(default=False, static=True)  # running standardisation of the potential's inputs
    gamma: float = eqx.field(default=0.99, static=True)  # only the shaped form needs it
    task_weight: float = eqx.field(default=0.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> AIMState:
        net = nn.mlp(key, (2 * spec.goal_dim, *self.hidden, 1), self.activation)
        zero = jnp.zeros(())
        return AIMState(nn.learner(net, self._optimiser()), nn.moments(spec.goal_dim), zero, zero, zero)

    def potential(self, state: AIMState, achieved: Float[Array, "*batch g"], goal: Float[Array, "*batch g"]) -> Float[Array, "*batch"]:
        """f_φ(s, s_g): high at the goal, falling with the number of steps to it."""
        return self._potential(state.potential.params, state.moments, achieved, goal)

    def update(self, state: AIMState, batches: Transition, key: PRNGKeyArray) -> tuple[AIMState, Metrics]:
        moments = state.moments
        if self.standardise:
            moments = nn.observe(moments, batches.next_achieved.reshape(-1, batches.next_achieved.shape[-1]))

        def step(learner: nn.Learner, inputs: tuple[Transition, PRNGKeyArray]):
            batch, key = inputs
            grads, metrics = eqx.filter_grad(self.loss, has_aux=True)(learner.params, moments, batch, key)
            return nn.descend(learner, grads, self._optimiser()), metrics

        n_updates = batches.goal.shape[0]
        learner, (metrics, f) = jax.lax.scan(step, state.potential, (batches, jax.random.split(key, n_updates)))
        state = AIMState(learner, moments, f.max(), f.min(), f.std())
        return state, {k: v[-1] for k, v in metrics.items()} | {"aim/f_max": state.f_max, "aim/f_std": state.f_std}

    def loss(self, net: nn.MLP, moments: nn.Moments, batch: Transition, key: PRNGKeyArray):
        """L_f = E[−f(g, g) + f(s, g)] + λ E[max(|f(s, g) − f(s′, g)| − 1, 0)²]  (eqn:f_loss)."""
        target = batch.goal + self.target_std * jax.random.normal(key, batch.goal.shape)
        f_target = self._potential(net, moments, target, batch.goal)
        f_t = self._potential(net, moments, batch.achieved, batch.goal)
        f_tp1 = self._potential(net, moments, batch.next_achieved, batch.goal)
        change = f_tp1 - f_t
        if self.bound == "two-sided":
            change = jnp.abs(change)  # the paper's penalty: it bounds f per undirected hop
        excess = jnp.maximum(change - self.step_bound, 0.0)
        penalty = jnp.square(excess).mean()
        distance = f_target.mean() - f_tp1.mean()
        loss = -f_target.mean() * self.goal_term + f_tp1.mean() + self.lipschitz_weight * penalty
        metrics = {
            "aim/loss": loss,
            "aim/w1": distance / self.step_bound,  # the estimate of W1 in steps
            "aim/penalty": penalty,
            "aim/violations": (excess > 0).mean(),
        }
        return loss, (metrics, f_tp1)

    def reward(self, state: AIMState, batch: Transition) -> Float[Array, "*batch"]:
        """r̂ = f(s′, g) − b  (eqn:reward); also the shaped γ f(s′) − f(s) and the to-goal f(s′, g) − f(g, g)."""
        f_tp1 = self.potential(state, batch.next_achieved, batch.goal)
        if self.form == "biased":
            r = f_tp1 - (state.f_max + self.margin)
        elif self.form == "to-goal":
            r = f_tp1 - self.potential(state, batch.goal, batch.goal)
        else:
            r = self.gamma * f_tp1 - self.potential(state, batch.achieved, batch.goal)
        if self.normalise == "range":
            return r / (state.f_max - state.f_min + 2 * self.margin)
        if self.normalise == "std":
            return r / (2 * (state.f_std + self.margin))
        return r

    def _potential(self, net: nn.MLP, moments: nn.Moments, achieved: Array, goal: Array) -> Array:
        if self.standardise:
            achieved, goal = moments.normalise(achieved), moments.normalise(goal)
        return net(jnp.concatenate([achieved, goal], -1))[..., 0]

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
