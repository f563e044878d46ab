"""Monte Carlo distances (DDL, Hartikainen et al. 2019): regress how many steps lie between two states of one episode."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.rewards.base import Reward
from aimrl.rewards.common import Activation, Normalise, inputs, needs, observe_goals, observe_values, scaled
from aimrl.types import GoalSpec, Metrics, Transition


class MCState(eqx.Module):
    distance: nn.Learner
    moments: nn.Moments  # of achieved goals
    stats: nn.Moments  # of the reward
    horizon: Float[Array, ""]  # the network learns fractions of an episode: its output is of order 1 in every environment


class MC(Reward):
    """r = −d(s′, g), with d the regression of k on (s_t, s_{t+k}) in recent episodes."""

    hidden: tuple[int, ...] = eqx.field(default=(64, 64), static=True)
    activation: Activation = eqx.field(default="tanh", static=True)
    learning_rate: float = eqx.field(default=1e-3, static=True)
    both_directions: bool = eqx.field(default=True, static=True)  # also (s_{t+k}, s_t) ↦ k, as the authors: d becomes symmetric
    unit: Literal["horizon", "step"] = eqx.field(default="horizon", static=True)  # of the reward: the horizon is 1, or a step is 1
    normalise: Normalise = eqx.field(default="none", static=True)
    standardise: bool = eqx.field(default=False, static=True)
    task_weight: float = eqx.field(default=1.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> MCState:
        net = nn.mlp(key, (2 * spec.goal_dim, *self.hidden, 1), self.activation)
        horizon = jnp.asarray(spec.horizon, jnp.float32)
        return MCState(nn.learner(net, self._optimiser()), nn.moments(spec.goal_dim), nn.moments(1), horizon)

    def steps(self, state: MCState, achieved: Float[Array, "*batch g"], goal: Float[Array, "*batch g"]) -> Float[Array, "*batch"]:
        """Estimated number of steps from one state to another."""
        return state.horizon * self._net(state.distance.params, state.moments, achieved, goal)

    def update(self, state: MCState, batches: Transition, key: PRNGKeyArray) -> tuple[MCState, Metrics]:
        needs("mc", batches, "future", "future_steps")
        moments = observe_goals(state.moments, batches, self.standardise)

        def loss(net: nn.MLP, batch: Transition):
            fraction = batch.future_steps.astype(jnp.float32) / state.horizon
            error = jnp.square(self._net(net, moments, batch.achieved, batch.future) - fraction).mean()
            if self.both_directions:
                back = jnp.square(self._net(net, moments, batch.future, batch.achieved) - fraction).mean()
                error = (error + back) / 2
            return error

        def step(learner: nn.Learner, batch: Transition):
            error, grads = eqx.filter_value_and_grad(loss)(learner.params, batch)
            return nn.descend(learner, grads, self._optimiser()), error

        learner, errors = jax.lax.scan(step, state.distance, batches)
        state = MCState(learner, moments, state.stats, state.horizon)
        if self.normalise != "none":
            state = eqx.tree_at(lambda s: s.stats, state, observe_values(state.stats, self._raw(state, batches), self.normalise))
        return state, {"mc/error_steps": jnp.sqrt(errors[-1]) * state.horizon}

    def reward(self, state: MCState, batch: Transition) -> Float[Array, "*batch"]:
        return scaled(self._raw(state, batch), state.stats, self.normalise)

    def _raw(self, state: MCState, batch: Transition) -> Float[Array, "*batch"]:
        # A regression may undershoot 0 near the goal; a positive reward there would pay for waiting beside it.
        steps = jnp.maximum(self.steps(state, batch.next_achieved, batch.goal), 0.0)
        return -steps if self.unit == "step" else -steps / state.horizon

    def _net(self, net: nn.MLP, moments: nn.Moments, a: Array, b: Array) -> Array:
        return net(jnp.concatenate(inputs(moments, self.standardise, a, b), -1))[..., 0]

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
