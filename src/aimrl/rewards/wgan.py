"""The potential of a Wasserstein GAN: AIM's objective with a gradient penalty in place of the time-step bound."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.rewards import targets
from aimrl.rewards.base import Reward
from aimrl.rewards.common import Activation, by_round, gradient_penalty, inputs, observe_goals
from aimrl.types import GoalSpec, Metrics, Transition


class WGANState(eqx.Module):
    potential: nn.Learner
    moments: nn.Moments  # of achieved goals
    f_max: Float[Array, ""]  # statistics of f over the last round of updates
    f_min: Float[Array, ""]
    f_std: Float[Array, ""]


class WGAN(Reward):
    """f is 1-Lipschitz in the features of the goal space (eqn:KRdual_l2), not in time steps: walls and wrap-arounds don't exist for it."""

    hidden: tuple[int, ...] = eqx.field(default=(64,), static=True)
    activation: Activation = eqx.field(default="tanh", static=True)
    learning_rate: float = eqx.field(default=1e-3, static=True)
    gradient_weight: float = eqx.field(default=10.0, static=True)
    normalise: Literal["none", "range", "std"] = eqx.field(default="std", static=True)
    statistics: Literal["all", "visited"] = eqx.field(default="all", static=True)  # of f over targets and states, or states, as in AIM
    margin: float = eqx.field(default=0.1, static=True)  # widens the normalising statistics, as in AIM
    target_std: float = eqx.field(default=0.01, static=True)  # Gaussian target around the goal
    standardise: bool = eqx.field(default=False, static=True)
    task_weight: float = eqx.field(default=0.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> WGANState:
        net = nn.mlp(key, (2 * spec.goal_dim, *self.hidden, 1), self.activation)
        zero = jnp.zeros(())
        return WGANState(nn.learner(net, self._optimiser()), nn.moments(spec.goal_dim), zero, zero, zero)

    def potential(self, state: WGANState, achieved: Float[Array, "*batch g"], goal: Float[Array, "*batch g"]) -> Float[Array, "*batch"]:
        return state.potential.params(jnp.concatenate(inputs(state.moments, self.standardise, achieved, goal), -1))[..., 0]

    def update(self, state: WGANState, batches: Transition, key: PRNGKeyArray) -> tuple[WGANState, Metrics]:
        moments = observe_goals(state.moments, batches, self.standardise)

        def step(learner: nn.Learner, batch_and_key: tuple[Transition, PRNGKeyArray]):
            grads, aux = eqx.filter_grad(self.loss, has_aux=True)(learner.params, moments, *batch_and_key)
            return nn.descend(learner, grads, self._optimiser()), aux

        learner, (metrics, f) = jax.lax.scan(step, state.potential, (batches, jax.random.split(key, batches.goal.shape[0])))
        return WGANState(learner, moments, f.max(), f.min(), f.std()), {k: v[-1] for k, v in metrics.items()}

    def loss(self, net: nn.MLP, moments: nn.Moments, batch: Transition, key: PRNGKeyArray):
        """L_f = E[−f(g, g) + f(s, g)] + λ E[(‖∇f‖ − 1)²], the gradient taken in s on the lines between targets and states."""
        target_key, penalty_key = jax.random.split(key)
        target = targets.sample("gaussian", batch.goal, self.target_std, None, None, target_key)
        target, state, goal = inputs(moments, self.standardise, target, batch.next_achieved, batch.goal)
        f_target = net(jnp.concatenate([target, goal], -1))[..., 0]
        f = net(jnp.concatenate([state, goal], -1))[..., 0]
        penalty = gradient_penalty(lambda z, g: net(jnp.concatenate([z, g]))[0], state, target, penalty_key, goal)
        metrics = {"wgan/w1": f_target.mean() - f.mean(), "wgan/penalty": penalty}
        loss = -f_target.mean() + f.mean() + self.gradient_weight * penalty
        return loss, (metrics, f if self.statistics == "visited" else jnp.concatenate([f_target, f]))

    def reward(self, state: WGANState, batch: Transition) -> Float[Array, "*batch"]:
        """r̂ = f(s′, g) − max f, as AIM's biased form (eqn:reward)."""
        r = self.potential(state, batch.next_achieved, batch.goal) - (state.f_max + self.margin)
        return by_round(r, state.f_max, state.f_min, state.f_std, self.normalise, self.margin)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
