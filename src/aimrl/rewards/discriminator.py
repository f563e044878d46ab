"""The discriminator that GAIL and FAIRL share: is this goal one that comes later in the episode, or the one the environment asked for?"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from aimrl import nn
from aimrl.rewards.base import Reward
from aimrl.rewards.common import Activation, Normalise, gradient_penalty, inputs, needs, observe_goals, observe_values, scaled
from aimrl.types import GoalSpec, Metrics, Transition


class DiscriminatorState(eqx.Module):
    net: nn.Learner
    moments: nn.Moments  # of achieved goals
    stats: nn.Moments  # of the reward


class Adversarial(Reward):
    """Abstract: trains D on expert pairs (s′, future) against agent pairs (s′, desired). A final class says what its logit is worth."""

    hidden: tuple[int, ...] = eqx.field(default=(64, 64), static=True)
    activation: Activation = eqx.field(default="tanh", static=True)
    learning_rate: float = eqx.field(default=1e-3, static=True)
    smoothing: float = eqx.field(default=0.1, static=True)  # labels are 1 − smoothing and smoothing
    gradient_weight: float = eqx.field(default=0.05, static=True)  # of the gradient penalty on interpolates
    normalise: Normalise = eqx.field(default="none", static=True)
    standardise: bool = eqx.field(default=False, static=True)

    @abc.abstractmethod
    def from_logit(self, h: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The reward of h = log D − log(1 − D)."""

    def init(self, key: PRNGKeyArray, spec: GoalSpec) -> DiscriminatorState:
        net = nn.mlp(key, (2 * spec.goal_dim, *self.hidden, 1), self.activation)
        return DiscriminatorState(nn.learner(net, self._optimiser()), nn.moments(spec.goal_dim), nn.moments(1))

    def logit(
        self, state: DiscriminatorState, achieved: Float[Array, "*batch g"], goal: Float[Array, "*batch g"]
    ) -> Float[Array, "*batch"]:
        """h = log D − log(1 − D); at the optimum (no smoothing, no penalty) the log of the expert's density over the agent's."""
        return state.net.params(self._pair(state.moments, achieved, goal))[..., 0]

    def update(self, state: DiscriminatorState, batches: Transition, key: PRNGKeyArray) -> tuple[DiscriminatorState, Metrics]:
        needs("gail or fairl", batches, "future", "desired")
        moments = observe_goals(state.moments, batches, self.standardise)

        def loss(net: nn.MLP, batch: Transition, key: PRNGKeyArray):
            expert = self._pair(moments, batch.next_achieved, batch.future)
            agent = self._pair(moments, batch.next_achieved, batch.desired)
            h_expert, h_agent = net(expert)[..., 0], net(agent)[..., 0]
            entropy = _cross_entropy(h_expert, 1.0 - self.smoothing) + _cross_entropy(h_agent, self.smoothing)
            penalty = gradient_penalty(lambda z: net(z)[0], agent, expert, key) if self.gradient_weight else jnp.zeros(())
            return entropy + self.gradient_weight * penalty, ((h_expert > 0).mean() + (h_agent < 0).mean()) / 2

        def step(learner: nn.Learner, batch_and_key: tuple[Transition, PRNGKeyArray]):
            (value, accuracy), grads = eqx.filter_value_and_grad(loss, has_aux=True)(learner.params, *batch_and_key)
            return nn.descend(learner, grads, self._optimiser()), {"discriminator/loss": value, "discriminator/accuracy": accuracy}

        learner, metrics = jax.lax.scan(step, state.net, (batches, jax.random.split(key, batches.goal.shape[0])))
        state = DiscriminatorState(learner, moments, state.stats)
        if self.normalise != "none":
            raw = self.from_logit(self.logit(state, batches.next_achieved, batches.goal))
            state = eqx.tree_at(lambda s: s.stats, state, observe_values(state.stats, raw, self.normalise))
        return state, {k: v[-1] for k, v in metrics.items()}

    def reward(self, state: DiscriminatorState, batch: Transition) -> Float[Array, "*batch"]:
        return scaled(self.from_logit(self.logit(state, batch.next_achieved, batch.goal)), state.stats, self.normalise)

    def _pair(self, moments: nn.Moments, achieved: Array, goal: Array) -> Array:
        return jnp.concatenate(inputs(moments, self.standardise, achieved, goal), -1)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


def _cross_entropy(h: Float[Array, " n"], label: float) -> Float[Array, ""]:
    return -(label * jax.nn.log_sigmoid(h) + (1.0 - label) * jax.nn.log_sigmoid(-h)).mean()
